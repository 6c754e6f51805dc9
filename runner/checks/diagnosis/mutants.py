"""Takes an experiment's oracles; returns its mutants, and the checks that notice each.

A mutant is a single edit (`edits/changed_parts.py`) of `per_device`, or of `graph` where there is no `per_device`. It
is interpreted in float64 for the comparison of the sections, and as the target rounds for the checks of values, which
compare it with the oracle of the file as it is. So a mutant stands for a mistake in the file and for a program that is
wrong in that way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.checks import oracles, registry
from runner.checks.context import Context
from runner.checks.diagnosis.search import MISFITS, Suspect, Trial, most
from runner.checks.edits.applied import ChangedGraphs
from runner.checks.edits.changed_parts import changing
from runner.checks.edits.section import Edit, Edits
from runner.checks.kind import Case
from runner.checks.kinds import sections
from runner.checks.reference import PerDevice, interpret
from runner.checks.reference.arithmetic import ANY, Arithmetic, Floats
from runner.checks.reference.rounded_numpy import plain
from runner.checks.reference.rounding import machine
from runner.experiment.changing import remaining
from runner.experiment.model import Experiment, Section
from runner.experiment.program import Program
from runner.link.target import DeviceShard, Output, ProgramRun


@dataclass(frozen=True)
class Mutant:
    """An edit and its outcome.

    - `noticed`: the checks that fail; `refused`: why it computes nothing, in NumPy's or the runner's words.
    - `equivalent`: why no check could notice it. If all three are empty, it survived.
    """

    edit: Edit
    noticed: tuple[str, ...] = ()
    refused: str | None = None
    equivalent: str | None = None

    @property
    def outcome(self) -> str:
        """`noticed`, `refused`, `equivalent` or `survived`."""
        if self.noticed:
            return "noticed"
        return "refused" if self.refused else "equivalent" if self.equivalent else "survived"


def broken(experiment: Experiment) -> Section:
    """The section that is mutated."""
    return "per_device" if experiment.per_device else "graph"


def mutants(context: Context) -> list[Mutant]:
    """Every mutant of an experiment, in the order of its lines; edits that give the same text are one."""
    section = broken(context.experiment)
    judge = _Judge(context, section)
    edits = {(edit.line, edit.before, edit.after): edit for edit in changing(Edits(context.experiment, section))}
    return [judge.judged(edit) for edit in edits.values()]


class _Judge:
    def __init__(self, context: Context, section: Section) -> None:
        self._context = context
        self._section: Section = section
        self._trial = Trial(context, Suspect(context.experiment, section))
        self._changed = ChangedGraphs(context.experiment, section)
        exact = Arithmetic(context.floats.get(section, {}))
        self._values = interpret(context.experiment, section, context.arrays, arithmetic=exact).values

    def judged(self, edit: Edit) -> Mutant:
        context = self._context
        exact = Arithmetic(context.floats.get(self._section, {}))
        rounded = Arithmetic(_with_wide(exact.floats, edit), machine(context.experiment))
        try:
            values = self._interpreted(edit, exact, self._values)
            drawn = self._interpreted(edit, rounded, None)
        except MISFITS as misfit:
            return Mutant(edit, refused=f"{type(misfit).__name__}: {misfit}")
        for name in context.experiment.results:
            layout = context.blocks(name)
            for position, held in enumerate(drawn[name]):
                wanted = layout.shape if self._section == "graph" else layout.shard_shape
                if np.shape(held) != wanted:
                    return Mutant(edit, refused=f"{name} has shape {list(np.shape(held))} on device {position}")
        noticed = self._noticed(edit, values, drawn)
        if not noticed and self._trial.same(edit):
            return Mutant(edit, equivalent=self._why(edit, values))
        return Mutant(edit, tuple(noticed))

    def _interpreted(
        self, edit: Edit, arithmetic: Arithmetic, known: Mapping[str, PerDevice] | None
    ) -> dict[str, PerDevice]:
        """All values in float64, starting from those of the lines before the edit, or as the target rounds."""
        context, script = self._context, self._context.bounded(self._section)
        graph = self._changed.of(edit)
        if known is not None:
            graph = remaining(graph, self._changed.graph)
        with np.errstate(all="ignore"):
            interpreted = interpret(
                context.experiment,
                self._section,
                context.arrays,
                graph,
                arithmetic=arithmetic,
                given=known,
                most=most(context),
                script=script,
            )
        if script.endless:
            raise ValueError(f"its while does not end: {listed(sorted(script.endless))}")
        return {name: [plain(held) for held in value] for name, value in interpreted.values.items()}

    def _noticed(self, edit: Edit, values: Mapping[str, PerDevice], drawn: Mapping[str, PerDevice]) -> list[str]:
        context = self._context
        noticed: list[str] = []
        if self._section == "per_device" and context.graph is not None:
            noticed += [] if self._like_graph(values) and self._like_graph_before_casts(edit) else ["sections"]
        run = self._run(drawn)
        case = Case(context=context, run=run)
        applying = registry.of_mutants(context.experiment, run.program)
        return noticed + [kind.name for kind in applying if kind.check(case).status == "failed"]

    def _like_graph(self, values: Mapping[str, PerDevice], *, before_casts: bool = False) -> bool:
        context = self._context
        compared = (
            sections.compare(context, name, values[name], before_casts=before_casts)
            for name in context.experiment.results
        )
        return all(comparison.agree for comparison in compared)

    def _like_graph_before_casts(self, edit: Edit) -> bool:
        """Whether the `sections` check sees no difference with casts that do not round."""
        if not self._context.uncast:
            return True
        uncast = oracles.uncast(self._context, self._section, self._changed.of(edit))
        return self._like_graph(uncast, before_casts=True)

    def _run(self, drawn: Mapping[str, PerDevice]) -> ProgramRun:
        """The devices' values of a program that computes what the mutant does."""
        context = self._context
        outputs: dict[str, Output] = {}
        for name in context.experiment.results:
            layout, dtype = context.layout(name), context.outputs[name][1]
            blocks = context.blocks(name)
            held, copies = list[DeviceShard](), dict[bytes, int]()
            for position in range(context.experiment.mesh.size):
                if self._section == "per_device":
                    part = np.asarray(drawn[name][position])[layout.within(position, blocks)]
                else:
                    part = drawn[name][0][layout.index(position)]
                with np.errstate(all="ignore"):
                    part = np.asarray(part).astype(dtypes.dtype(dtype).numpy)
                copy = copies.setdefault(part.tobytes(), len(copies))
                held.append(DeviceShard(position, position, layout.ranges(position), copy, part))
            outputs[name] = Output(dtype, layout.shape, None, tuple(held))
        program = Program.SHARD_MAP if self._section == "per_device" else Program.AUTO
        return ProgramRun(program, outputs=outputs)

    def _why(self, edit: Edit, values: Mapping[str, PerDevice]) -> str:
        before, after = self._values.get(edit.line), values.get(edit.line)
        if before is None or after is None:
            return f"the loop that {edit.line} belongs to computes the same"
        if all(_alike(a, b) for a, b in zip(before, after, strict=True)):
            return f"{edit.line} is the same on every device"
        return f"{edit.line} differs, but in nothing that an output reads"


def _with_wide(floats: Floats, edit: Edit) -> Floats:
    """The dtypes of a section's floats for an edit of a line: its parts have other numbers than those that are known.

    Where a part has 64 bits the line's other parts do, rather than 32.
    """
    paths = {path.replace("/body/", ".").replace("/", "."): path for path in floats}
    path = paths.get(edit.line)
    return {**floats, path: {ANY: "float64"}} if path and dtypes.WIDE & {*floats[path].values()} else floats


def _alike(before: PerDevice, after: PerDevice) -> bool:
    a, b = np.asarray(before), np.asarray(after)
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=sections.ROUGH, atol=0.0, equal_nan=True))
