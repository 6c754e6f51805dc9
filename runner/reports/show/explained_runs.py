"""Explains the programs of a run whose lines are a user's Python functions: by the modules in its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from runner.base import codec, plain
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict
from runner.compiled.evidence.model import Collective
from runner.compiled.explanation import files, meshes, modules
from runner.compiled.explanation.model import Explanation, layouts_of
from runner.compiled.explanation.modules import Known, UnreadableModule
from runner.compiled.explanation.reasons import at_asking_lines
from runner.graph.sharding.propagation import PlannedOperation
from runner.graph.source import Frame
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.record.readable import lines_of


@dataclass(frozen=True)
class ExplainedPrograms:
    """What the programs of some names, all alike, were compiled to.

    - `changed`: the user's files that are no longer those that ran; of them only lines of the record have a text.
    """

    names: list[str]
    explanation: Explanation
    changed: list[str] = field(default_factory=list[str])


def explained(record: Record, folder: Path) -> list[ExplainedPrograms]:
    """The explanations of a run's programs, as far as their lines are those of Python functions.

    Programs whose lines communicate and compute alike share one. A program has none if its module is not in `folder`,
    or names no line of the functions, as that of `derived`, which is written without them.
    """
    groups: list[ExplainedPrograms] = []
    for name, program in record.compiled.items():
        lines = record.lines.get(lines_of(name, record.lines), ())
        frames = {line.line: line.frame for line in lines if line.frame is not None}
        if not frames or program.collectives is None:
            continue
        explanation = _explained(record, program, folder / f"hlo_{name}.txt", frames.values())
        if explanation is None:
            continue
        explanation = _laid_out(explanation, folder / f"plan_{name}.json", frames)
        alike = next((group for group in groups if _same(group.explanation, explanation)), None)
        if alike is not None:
            alike.names.append(name)
        else:
            kept, changed = _as_run(explanation.sources, frames.values())
            groups.append(ExplainedPrograms([name], replace(explanation, sources=kept), changed))
    return groups


def _explained(record: Record, program: CompiledProgram, file: Path, frames: Iterable[Frame]) -> Explanation | None:
    own = frozenset(frame.file for frame in frames)
    mesh = record.mesh and dict(zip(record.mesh.axes, record.mesh.shape, strict=True))
    try:
        explanation = modules.explain(files.read_text(file), str(file), Known(mesh=mesh, users=own.__contains__))
    except (UnreadableModule, meshes.InvalidMesh):
        # A run may leave no module, as with several processes: then its tables are all there is.
        return None
    if own.isdisjoint(place.file for place in explanation.lines.values()):
        return None
    by_name: dict[str, Collective] = {entry.instruction: entry for entry in program.collectives or ()}
    placed = [
        replace(entry, why=by_name[entry.instruction].why) if entry.instruction in by_name else entry
        for entry in explanation.placed or ()
    ]
    return at_asking_lines(replace(explanation, placed=placed))


def _laid_out(explanation: Explanation, file: Path, frames: Mapping[str, Frame]) -> Explanation:
    """The explanation with the layouts of lines, by the plan that the run left; `frames`: by the plan's lines."""
    try:
        plan: Any = plain.parse(files.read_text(file))
        operations = [codec.build(PlannedOperation, row) for row in plan.get("operations", ())] if is_dict(plan) else []
    except (UnreadableModule, plain.NotJson, codec.Misfit):
        # Without a plan the margin lacks its layouts; the run's own page says what is wrong with it.
        return explanation
    names = {(place.file, place.line): name for name, place in explanation.lines.items()}

    def name(line: str) -> str | None:
        frame = frames.get(line)
        return None if frame is None else names.get((frame.file, frame.line))

    return replace(explanation, layouts=layouts_of(operations, name))


def _same(left: Explanation, right: Explanation) -> bool:
    """Whether two programs do the same at the same lines."""

    def work(explanation: Explanation) -> object:
        moved = [
            (e.kind, e.nodes, e.axes, e.gradient, e.count, e.bytes_sent, e.callers) for e in explanation.placed or ()
        ]
        return moved, explanation.computed

    return work(left) == work(right)


def _as_run(sources: Mapping[str, str], frames: Iterable[Frame]) -> tuple[dict[str, str], list[str]]:
    """The texts of files as they ran: of a file that has changed since, the lines that the record has."""
    lines: dict[str, dict[int, str]] = {}
    for frame in frames:
        lines.setdefault(frame.file, {})[frame.line] = frame.text
    kept, changed = dict(sources), list[str]()
    for file, texts in lines.items():
        now = sources.get(file, "").splitlines()
        if any(number > len(now) or now[number - 1].strip() != text for number, text in texts.items() if text):
            kept[file] = "\n".join(texts.get(number, "") for number in range(1, 1 + max(texts)))
            changed.append(file)
    return kept, changed
