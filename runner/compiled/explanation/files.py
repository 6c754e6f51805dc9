"""Reads explanations from a file or a folder of dumps, and writes them as JSON."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.base import codec, plain
from runner.base.faults import nearest
from runner.base.invocation import invocation
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict
from runner.base.words import of_address
from runner.compiled.explanation import dumps, estimating, meshes, modules, profiles, serialized
from runner.compiled.explanation.dumps import DumpedModule
from runner.compiled.explanation.model import SCHEMA, Explanation
from runner.compiled.explanation.modules import NOTHING, Known, ReadModule, UnreadableModule

LARGEST = 2_000_000_000
"""The most bytes of a file that is read."""


_LOWERED = re.compile(r"(?:#loc\w* = loc\(.*\n|\s|#\w+ = .*\n)*module (?:@\S+ )?(?:attributes )?\{")
"""How a text of StableHLO begins."""

_SAVED = re.compile(r'\s*\{\s*"schema":\s*"shardproof-explanation')
_BEGIN = 100_000
"""The characters in which the first line of a module stands."""


@dataclass(frozen=True)
class Wanted:
    """What to explain: what is known besides, the module of a folder, hardware, the folder of its file, a profile.

    - `lowered`: the module before XLA's passes, which has the reasons and the layouts; by default the one that lies
      beside a dumped module, unless `reasons` are not wanted.
    """

    known: Known = NOTHING
    module: str | None = None
    hardware: str | None = None
    config_dir: Path | None = None
    profile: Path | None = None
    lowered: Path | None = None
    reasons: bool = True


_ANY = Wanted()


class SeveralModules(UnreadableModule):
    """A folder has several modules, none of which was chosen."""

    def __init__(self, folder: Path, modules: Sequence[DumpedModule]) -> None:
        super().__init__(f"{folder}: it has {len(modules)} modules; choose one by its name: module={modules[0].name}")
        self.modules = modules


@modules.uncollected()
def explain(path: Path | None, wanted: Wanted = _ANY) -> Explanation:
    """The explanation of a file, of a module in a folder of dumps, or of a program in a profile.

    - `path`: None if the profile has the module itself.

    Raises `UnreadableModule`, also for what is no file, `SeveralModules` for a folder of which none is chosen, and
    `meshes.InvalidMesh` and `estimating.InvalidHardware`.
    """
    if wanted.profile is None and path is not None and not _has_modules(path) and profiles.is_profile(path):
        path, wanted = None, replace(wanted, profile=path)
    if path is not None and path.is_dir() and wanted.profile is None:
        path = _chosen(path, wanted.module)
    lowered = wanted.lowered or (dumps.unoptimized(path) if path is not None and wanted.reasons else None)
    if lowered is not None and wanted.known.mesh is None:
        named = meshes.of_lowered(_text(lowered))
        wanted = replace(wanted, known=replace(wanted.known, mesh=named))
    if wanted.profile is not None:
        taken = _profiled(path, wanted.profile, wanted)
    elif path is None:
        raise UnreadableModule("there is neither a file nor a profile")
    else:
        taken = _taken(path, wanted)
    if isinstance(taken, Explanation):
        return _named(taken, path, wanted)
    explanation = taken.explanation
    if wanted.hardware is not None:
        explanation = estimating.estimated(taken, wanted.hardware, folder=wanted.config_dir)
    explanation = _named(explanation, path, wanted)
    if lowered is None or (wanted.lowered is None and not any(entry.inserted for entry in explanation.moving)):
        return explanation
    return _with_reasons(explanation, taken.text, lowered, wanted)


def _named(explanation: Explanation, path: Path | None, wanted: Wanted) -> Explanation:
    """The explanation of a file's module. Raises `UnreadableModule` if the wanted module is another one."""
    name = wanted.module
    if name is None or path is None or name in explanation.module or name in path.name:
        return explanation
    raise UnreadableModule(f"{path}: its module is {explanation.module}, not {name}")


def _with_reasons(explanation: Explanation, text: str, lowered: Path, wanted: Wanted) -> Explanation:
    """The explanation of a module's text with the reasons and layouts by the plan of the module before XLA's passes.

    If that module was not asked for, and cannot be planned, a note says why.
    """
    try:
        other = saved(serialized.explained_by(_checked(lowered), text, explanation.source), str(lowered))
    except UnreadableModule as error:
        if wanted.lowered is not None:
            raise
        return replace(explanation, notes=[*explanation.notes, f"the reasons are not known: {error}"])
    why = {entry.instruction: entry.why for entry in other.placed or ()}
    placed = [replace(entry, why=why.get(entry.instruction) or entry.why) for entry in explanation.placed or ()]
    return replace(
        explanation,
        placed=placed,
        layouts=other.layouts,
        arguments=other.arguments,
        lines={**other.lines, **explanation.lines},
        sources={**other.sources, **explanation.sources},
        notes=list(dict.fromkeys([*explanation.notes, *other.notes])),
    )


def _profiled(path: Path | None, folder: Path, wanted: Wanted) -> ReadModule:
    """A program in a profile, with its times: its module is that of `path`, or the one that the profile has."""
    recording = profiles.read(folder)
    program = recording.chosen(wanted.module)
    if path is None:
        known = replace(wanted.known, platform=wanted.known.platform or recording.platform)
        taken = modules.read(recording.text(program), str(folder), known)
    else:
        taken = _taken(path, replace(wanted, module=wanted.module or program.name))
        if isinstance(taken, Explanation):
            raise UnreadableModule(f"{path}: a saved explanation has no module to which the times could belong")
        if wanted.module is None:
            program = recording.chosen(taken.explanation.module)
    return replace(taken, explanation=profiles.profiled(taken, recording, program))


def _taken(path: Path, wanted: Wanted) -> ReadModule | Explanation:
    """The module of a file or folder, or the explanation that was saved there."""
    file = _chosen(path, wanted.module) if path.is_dir() else path
    known = wanted.known
    text = _text(file)
    if not file.name.endswith(".pb"):
        if _LOWERED.match(text[:_BEGIN]):
            return saved(serialized.lowered(file), str(file))
        if text.lstrip()[:1] == "{":
            return saved(text, str(file))
    unplanned: list[str] = []
    if wanted.reasons and dumps.is_unoptimized(file):
        try:
            return saved(serialized.lowered(file), str(file))
        except UnreadableModule as error:
            unplanned = [f"what Shardy plans is not known: {error}"]
    if known.memory is None:
        known = replace(known, memory=dumps.memory(file), platform=known.platform or _platform(file))
    taken = modules.read(text, str(file), known)
    notes = [*taken.explanation.notes, *unplanned]
    return replace(taken, explanation=replace(taken.explanation, notes=notes))


def _text(file: Path) -> str:
    """The text of a module's file, which may be serialized."""
    return serialized.text(_checked(file)) if file.name.endswith(".pb") else read_text(file)


def _has_modules(path: Path) -> bool:
    return path.is_dir() and bool(_modules(path))


def is_module(path: Path) -> bool:
    """Whether a path is that of a module, of a saved explanation, of a profile, or of a folder of dumps."""
    if path.is_dir():
        return bool(_modules(path)) or profiles.is_profile(path)
    if not path.is_file():
        return False
    if path.name.endswith(".hlo.pb") or profiles.is_profile(path):
        return True
    begin = plain.beginning(path, _BEGIN).decode("utf-8", "replace")
    return bool(_SAVED.match(begin) or _LOWERED.match(begin) or modules.HEAD.search(begin))


def _chosen(folder: Path, name: str | None) -> Path:
    modules = _modules(folder)
    if not modules:
        raise UnreadableModule(f"{folder}: no module was dumped here (module_0001.NAME.….txt)")
    fitting = dumps.chosen(modules, name) if name else modules
    if not fitting:
        names = list(dict.fromkeys(module.name for module in modules))
        raise UnreadableModule(f"{folder}: it has no module {name}{nearest(name or '', names)}")
    if len(fitting) > 1 and (name is None or len({module.name for module in fitting}) > 1):
        raise SeveralModules(folder, fitting)
    return fitting[0].file


def _modules(folder: Path) -> list[DumpedModule]:
    try:
        return dumps.modules(folder)
    except OSError as error:
        raise UnreadableModule(f"{folder}: {error.strerror or error}") from None


def by_name(path: Path, wanted: Wanted = _ANY) -> dict[str, Explanation]:
    """The explanations of a folder's modules by name, of each name the largest; of a file the one. Raises as `explain`.

    A module that cannot be read is left out of a folder's.
    """
    if not path.is_dir() or wanted.module is not None:
        explanation = explain(path, replace(wanted, reasons=False))
        return {explanation.module: explanation}
    explanations: dict[str, Explanation] = {}
    for module in _modules(path):
        if module.compiled and module.name not in explanations:
            with contextlib.suppress(UnreadableModule):
                explanations[module.name] = explain(module.file, replace(wanted, reasons=False))
    return explanations


_PLATFORMS = (("cpu_after", "cpu"), ("gpu_after", "gpu"), ("sm_", "gpu"), ("gfx", "gpu"), ("tpu", "tpu"))


def _platform(file: Path) -> str | None:
    """The platform that the name of a dumped file tells."""
    stage = file.name.split(".", 2)[-1]
    return next((platform for begin, platform in _PLATFORMS if stage.startswith(begin)), None)


def _checked(path: Path) -> Path:
    """A regular file that is not too large. Raises `UnreadableModule`."""
    if not path.is_file():
        what = "it is not a regular file" if path.exists() else f"there is no such file{of_address(path)}"
        raise UnreadableModule(f"{path}: {what}{_of_run(path) if path.name == str(path) and not path.suffix else ''}")
    if path.suffix in (".yaml", ".yml"):
        raise UnreadableModule(f"{path}: this is no module{_of_run(path)}")
    if path.suffix == ".py":
        raise UnreadableModule(f"{path}: this is no module; in a script write print(runner.explain(step, …))")
    if path.stat().st_size > LARGEST:
        raise UnreadableModule(f"{path}: a file of more than {LARGEST // 1_000_000_000} GB is not read")
    return path


def _of_run(path: Path) -> str:
    return f"; to explain an experiment write {invocation()} {path} explain=true"


def read_text(path: Path) -> str:
    """The text of a file. Raises `UnreadableModule` if it is none that can be read."""
    try:
        return plain.read_text(_checked(path), largest=LARGEST)
    except UnicodeDecodeError as error:
        raise UnreadableModule(f"{path}: this is no text in UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UnreadableModule(f"{path}: {error.strerror or error}") from None


def document(explanation: Explanation) -> str:
    """An explanation as JSON."""
    return json.dumps(codec.plain(explanation), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def schema_text() -> str:
    """The JSON Schema of a saved explanation, which is `docs/explain.schema.json`."""
    schema = codec.schema_of_file(Explanation, f"a saved explanation, schema {SCHEMA}", SCHEMA)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def saved(text: str, source: str) -> Explanation:
    """The explanation that `document` wrote. Raises `UnreadableModule` if the text is none, or of another schema."""
    try:
        data: Any = plain.parse(text)
    except plain.NotJson as error:
        raise UnreadableModule(f"{source}: {error}") from None
    schema = data.get("schema") if is_dict(data) else None
    if schema != SCHEMA:
        raise UnreadableModule(f"{source}: this is no explanation: its schema is {schema!r}, not {SCHEMA!r}")
    try:
        return codec.build(Explanation, data)
    except codec.Misfit as error:
        raise UnreadableModule(f"{source}: {error}") from None
