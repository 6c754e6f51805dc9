"""Finds the line of a user's file that an instruction of a compiled module comes from, with the calls that lead to it.

It needs the text of the module alone, whoever compiled it: its stack frames, and a rule for which files are a user's.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.compiled.evidence.hlo import Location, Module
from runner.experiment.config.folders import conf_folder
from runner.experiment.imported import CALLED
from runner.graph.source import Frame

IsUsers: TypeAlias = Callable[[str], bool]
"""Whether a file is a user's own."""

_SITES = {"site-packages", "dist-packages"}
_PYTHON = re.compile(r"python\d(\.\d+)?t?(\.zip)?$")


def installed(file: str) -> bool:
    """Whether a path, on any machine, is that of an installed package, of Python's own library, or of no file."""
    if file.startswith("<"):
        return "ipython" not in file
    path = PureWindowsPath(file) if "\\" in file else PurePosixPath(file)
    library = any(
        above == "lib" and _PYTHON.match(below) for above, below in zip(path.parts, path.parts[1:], strict=False)
    )
    return library or not _SITES.isdisjoint(path.parts)


HOUSE = str(Path(__file__).parents[2])
SHIPPED = str(conf_folder())
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@functools.lru_cache(maxsize=1 << 12)
def is_users(file: str) -> bool:
    """Whether a file is a user's own, rather than a library's, Shardproof's, or evaluated text."""
    return not file.endswith(f"/{CALLED}") and not is_library(file)


def is_library(file: str) -> bool:
    """Whether a file is an installed package's, Python's, Shardproof's apart from its experiments, or evaluated."""
    if file.startswith(SHIPPED):
        return False
    return file.startswith(HOUSE) or file.startswith(_INSTALLED) or installed(file)


@dataclass(frozen=True)
class SourceLine:
    """The line that an operation comes from.

    - `at`: its file and number; `callers`: the user's lines that lead to it, the innermost first.
    - `library`: whether no frame is a user's, so that the line is a library's own.
    """

    at: Location
    callers: tuple[Location, ...] = ()
    library: bool = False


def source_line(frames: Sequence[Location], users: IsUsers = is_users) -> SourceLine | None:
    """The line of the innermost frame in a user's file, or else of the innermost frame.

    None without frames, and for a call that Shardproof itself makes of the caller's function.
    `frames`: those of the operation, the innermost first.
    """
    user_frames = tuple(frame for frame in frames if users(frame[0]))
    if user_frames:
        return SourceLine(user_frames[0], user_frames[1:])
    if not frames or frames[0][0].endswith(f"/{CALLED}"):
        return None
    return SourceLine(frames[0], (), library=True)


def source_lines(module: Module, users: IsUsers = is_users) -> dict[str, SourceLine]:
    """The lines of a module's instructions, by their names; an instruction that has no frames is left out."""
    of = functools.cache(functools.partial(source_line, users=users))
    lines = ((name, of(instruction.metadata.frames)) for name, instruction in module.instructions.items())
    return {name: line for name, line in lines if line is not None}


def distinguishing(lines: Iterable[SourceLine]) -> dict[SourceLine, tuple[Location, ...]]:
    """For each line the callers that tell it from the others at the same place, the innermost first.

    A helper that is called once needs none; if a layer calls it twice, the two lines of the layer do.
    """
    paths: dict[SourceLine, tuple[Location, ...]] = {}

    def separate(alike: Sequence[SourceLine], depth: int, shown: Mapping[SourceLine, tuple[Location, ...]]) -> None:
        at = by_key((line.callers[depth] if depth < len(line.callers) else None, line) for line in alike)
        for caller, below in at.items():
            # A generator and its caller may be one line.
            more = () if len(at) == 1 or caller in (None, alike[0].at) else (caller,)
            longer = {line: (*shown[line], *more) for line in below}
            if caller is None or len(below) == 1:
                paths.update(longer)
            else:
                separate(below, depth + 1, longer)

    locations: dict[Location, dict[SourceLine, None]] = {}
    for line in lines:
        locations.setdefault(line.at, {})[line] = None
    for alike in locations.values():
        separate([*alike], 0, dict.fromkeys(alike, ()))
    return paths


def frame(at: Location) -> Frame:
    """A line with its text, which is empty where the file is not on this machine."""
    file, number = at
    return Frame(cell_name(file), number, linecache.getline(file, number).strip())


def called_frame(written: Frame, callers: Sequence[Location]) -> Frame:
    """A line behind those of its callers, the innermost of which comes first."""
    path = [frame(call) for call in reversed(callers)]
    return replace(written, path=tuple(call.place for call in path), call=path[0].text) if path else written


def cell_name(file: str) -> str:
    """The name of a file, `cell_3.py` for the third cell of a notebook: IPython gives it a number that says nothing."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cell = shell.compile.format_code_name(file) if shell is not None else None
    return file if cell is None else f"cell_{cell[1].strip('In[]')}.py"


def spelled(line: SourceLine, callers: Sequence[Location] = ()) -> str:
    """A line as readers see it, behind those of its callers: `train.py:88 w_q = gather(w) → shardops.py:44`.

    Only the first of them has its text, since the others follow from it.
    """
    first, *others = [frame(at) for at in (*reversed(callers), line.at)]
    return " → ".join([str(first).strip(), *(other.place for other in others)])
