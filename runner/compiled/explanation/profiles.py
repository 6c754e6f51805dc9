"""Reads what a profiler left in a folder: which programs ran, what each device executed, and the modules themselves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from runner.base import plain
from runner.base.faults import nearest
from runner.base.lazy import dataclass
from runner.base.words import listed, of_address, time_text
from runner.compiled.evidence import planes, profile, trace_events, xspace
from runner.compiled.evidence.planes import Recorded, RecordedPlane
from runner.compiled.evidence.xspace import NoProfile, ProfiledModule
from runner.compiled.explanation import serialized
from runner.compiled.explanation.model import Explanation
from runner.compiled.explanation.modules import ReadModule, UnreadableModule

_PLANES, _TRACE = ".xplane.pb", ".trace.json.gz"

LARGEST = 4_000_000_000
"""The most bytes of a profile that are read."""

_LOOKED_AT = 200_000
"""The most files of a folder that are looked at."""

_NAMED = 4
"""How many programs a sentence names."""


@dataclass(frozen=True)
class ProfiledProgram:
    """A program that ran: its name, what tells it from others of its name, and the seconds of all its instructions."""

    name: str
    program: str
    seconds: float

    @property
    def spelled(self) -> str:
        """`jit_step(14)`."""
        return f"{self.name}({self.program})" if self.program else self.name


@dataclass(frozen=True)
class Recording:
    """A profile: the folder or file, its events, the programs that took most time first, and their modules.

    - `platform`: of the devices whose events they are; null if there are none. `notes`: what was not read.
    """

    path: Path
    recorded: Recorded
    programs: list[ProfiledProgram]
    modules: list[ProfiledModule]
    platform: str | None
    notes: list[str]

    def chosen(self, name: str | None = None) -> ProfiledProgram:
        """The program with this name; without one that which took the most time. Raises `UnreadableModule`."""
        if not self.programs:
            why = f": {self.recorded.unknown[0]}" if self.recorded.unknown else ""
            raise UnreadableModule(f"{self.path}: the profile shows no instruction of a compiled program{why}")
        fitting = [p for p in self.programs if name is None or name in (p.name, p.spelled)]
        fitting = fitting or [p for p in self.programs if name is not None and name in p.name]
        if not fitting:
            names = list(dict.fromkeys(p.name for p in self.programs))
            hint = nearest(name or "", names) or f"; there are {listed(names[:_NAMED])}"
            raise UnreadableModule(f"{self.path}: the profile has no program {name}{hint}")
        return fitting[0]

    def text(self, program: ProfiledProgram) -> str:
        """The text of a program's module, which the profiler keeps beside the events. Raises `UnreadableModule`."""
        alike = [m for m in self.modules if m.name == program.name]
        exact = [m for m in alike if m.program == program.program] or alike
        if not exact:
            raise UnreadableModule(
                f"{self.path}: the profile does not have the module of {program.spelled}; give its file: "
                "explain FILE --profile LOGDIR"
            )
        return serialized.text_of(exact[0].serialized, str(self.path))

    def of(self, program: ProfiledProgram) -> Recorded:
        """The events of a program."""
        return planes.of_program(self.recorded, program.name, program.program)


def is_profile(path: Path) -> bool:
    """Whether a path is that of a profile, or of a folder with one and without a module's file of its own."""
    if path.is_dir():
        return bool(_files(path)[0])
    return path.name.endswith((_PLANES, _TRACE)) and path.is_file()


def read(path: Path) -> Recording:
    """The profile in a folder, of several the newest. Raises `UnreadableModule`."""
    files, older = _files(path)
    if not files:
        how = of_address(path) or f": jax.profiler.trace writes plugins/profile/TIME/*{_PLANES}"
        raise UnreadableModule(f"{path}: no profile is here{how}")
    recordings: list[Recorded] = []
    modules: list[ProfiledModule] = []
    platforms: dict[str, None] = {}
    for file in files:
        try:
            if file.stat().st_size > LARGEST:
                raise UnreadableModule(f"{file}: a profile of more than {LARGEST // 1_000_000_000} GB is not read")
            content = file.read_bytes()
            read_planes: list[RecordedPlane] = [*_planes(file, content)]
            recordings.append(planes.read(read_planes))
            modules += [
                module for plane in read_planes if isinstance(plane, xspace.Plane) for module in plane.modules()
            ]
        except OSError as error:
            raise UnreadableModule(f"{file}: {error.strerror or error}") from None
        except NoProfile as error:
            raise UnreadableModule(f"{file}: this is no profile that was written completely: {error}") from None
        platforms |= dict.fromkeys(_platforms(read_planes))
    recorded = planes.together(recordings)
    notes = [f"of {older + 1} profiles in {path} the newest was read"] if older else []
    if len(files) > 1:
        notes.append(f"{len(files)} hosts were profiled: their devices are numbered in the order of the files' names")
    platform = next(iter(platforms), "cpu" if recorded.events else None)
    return Recording(path, recorded, _programs(recorded), modules, platform, notes)


def _planes(file: Path, content: bytes) -> Iterable[RecordedPlane]:
    return xspace.read(content) if file.name.endswith(_PLANES) else trace_events.read(content)


def profiled(taken: ReadModule, recording: Recording, program: ProfiledProgram) -> Explanation:
    """The explanation of a module with the times that its instructions took."""
    times = profile.of_recorded(
        recording.of(program), str(recording.path), taken.module, taken.places, taken.communication
    )
    others = [p for p in recording.programs if p != program]
    notes = [*taken.explanation.notes, *recording.notes, *(f"profile: {text}" for text in times.unknown)]
    if others:
        shown = [f"{p.spelled} ({time_text(p.seconds)})" for p in others[:_NAMED]]
        left = [f"{len(others) - _NAMED} more"] if len(others) > _NAMED else []
        notes.append(
            f"the profile has other programs too, by the time of all their instructions: {listed(shown + left)}"
        )
    return replace(taken.explanation, profile=replace(times, unknown=[]), notes=notes)


def _programs(recorded: Recorded) -> list[ProfiledProgram]:
    times: Counter[tuple[str, str]] = Counter()
    for event in recorded.events:
        if event.module:
            times[event.module, event.program] += event.end - event.start
    return [ProfiledProgram(*key, nanoseconds / 1e9) for key, nanoseconds in times.most_common()]


def _platforms(read_planes: Iterable[RecordedPlane]) -> Iterable[str]:
    for plane in read_planes:
        for kind in ("TPU", "GPU"):
            if plane.name.startswith(f"/device:{kind}:"):
                yield kind.lower()


def _files(path: Path) -> tuple[list[Path], int]:
    """The files of the newest profile in a folder, one for each host, and how many older ones there are."""
    if path.is_file():
        return [path], 0
    for ending in (_PLANES, _TRACE):
        by_folder: dict[Path, list[Path]] = {}
        for file in itertools.islice(plain.below(path), _LOOKED_AT):
            if file.name.endswith(ending):
                by_folder.setdefault(file.parent, []).append(file)
        if by_folder:
            # The profiler names the folders by their times.
            newest = max(by_folder, key=lambda folder: (folder.name, str(folder)))
            return sorted(by_folder[newest]), len(by_folder) - 1
    return [], 0
