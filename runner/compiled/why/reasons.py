"""Adds to each collective of a compiled program the reason for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from runner.base import dtypes, executions
from runner.base.grouping import by_key
from runner.base.layout import Mesh, Spec
from runner.base.words import bytes_text, listed
from runner.compiled.evidence import words
from runner.compiled.evidence.model import REDUCING, Collective, MergedPart, Reason
from runner.compiled.why import needs
from runner.compiled.why.asked_for import ProgramLines, reason_of, unexplained
from runner.compiled.why.matching import Matching
from runner.compiled.why.needs import Keys, Need
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.sharding import ring
from runner.graph.sharding.propagation import (
    AskedCollective,
    Planned,
    PlannedCollective,
    PlannedOperation,
    PlannedValue,
)


def explained(
    experiment: Experiment,
    program: Program,
    collectives: Sequence[Collective],
    plan: Planned | None,
    derived_by: Planned | None = None,
    asked: Sequence[AskedCollective] | None = None,
) -> list[Collective]:
    """Return the collectives of a program with their reasons.

    - `experiment`: the experiment that the program was written from, with the derived lines if it was written from
      them.
    - `plan`: Shardy's plan of the program; `derived_by`: for derived lines, the plan of the graph.
    - `asked`: the collectives that the program asks for itself, if known.
    """
    written = ProgramLines(experiment, program, collectives, derived_by, asked or ())
    inserted = _inserted(experiment, program, collectives, plan)
    return [
        replace(compiled, why=inserted(compiled) if compiled.inserted else written.reason(compiled))
        for compiled in collectives
    ]


def _inserted(
    experiment: Experiment, program: Program, collectives: Sequence[Collective], plan: Planned | None
) -> Callable[[Collective], Reason]:
    if plan is None or plan.collectives is None:
        missing = "there is no plan" if plan is None else plan.missing
        return lambda _: unexplained(f"Shardy's plan is not known: {missing}")
    return of_inserted(collectives, plan, needs.keys_of(experiment, program), experiment.mesh)


def of_inserted(
    collectives: Sequence[Collective], plan: Planned, known: Keys, mesh: Mesh
) -> Callable[[Collective], Reason]:
    """Gives the reason of each of a module's collectives that the compiler inserted, whoever compiled it.

    `plan` has collectives.
    """
    teller = _Inserted(collectives, plan, known, mesh)

    def reason(compiled: Collective) -> Reason:
        needs_of = teller.reason(compiled)
        if compiled.again and needs_of.by is not None:
            return replace(needs_of, text=f"{needs_of.text}; it is computed again in the backward pass")
        return needs_of

    return reason


class _Inserted:
    """Compares the collectives that the compiler inserted with Shardy's plan."""

    def __init__(self, collectives: Sequence[Collective], plan: Planned, known: Keys, mesh: Mesh) -> None:
        self._plan, self._known, self._mesh = plan, known, mesh
        self._matching = Matching(collectives, plan, mesh)
        self._unmoved = needs.before_moves(plan.operations, plan.collectives or ())

    def reason(self, compiled: Collective) -> Reason:
        """Return the reason for a collective."""
        lines = _lines_of(compiled)
        if not lines:
            return unexplained("it comes from no line of the experiment")
        match = self._matching.of(compiled, compiled.nodes or lines)
        if match.planned:
            needs_of = [self._need(collective, compiled) for collective in match.planned]
            if not match.left:
                return reason_of(needs_of, planned=True, merged=bool(compiled.parts))
            needs_of += [need for part in match.left if (need := self._unplanned(part, compiled)) is not None]
            return reason_of(needs_of, planned=False, more=f"; {self._beside(match.left)} no sum that Shardy plans")
        instead = self._matching.instead(compiled, lines)
        later = self._matching.later(compiled)
        if later is not None and not instead:
            return reason_of([self._need(later, compiled)], planned=False, more="; XLA moves it to an earlier value")
        batches = needs.of_batches(compiled, lines, self._plan, self._known)
        if batches is not None:
            return reason_of([batches], planned=False)
        moved = needs.of_values(compiled, self._plan, self._known)
        left = self._left(compiled, lines)
        if instead:
            # The value that is moved explains more than the plan.
            largest = max(instead, key=lambda planned: planned.bytes_sent or 0)
            return self._in_place([moved] if moved else left or [self._need(largest, compiled)], instead)
        joint = [] if left or moved else self._joint(compiled, lines)
        if joint:
            return reason_of(joint, planned=False)
        if left or moved:
            more = "; the plan leaves that to the partitioner" if left else ""
            return reason_of(left or [need for need in (moved,) if need], planned=False, more=more)
        read = self._read_by(compiled)
        if read is not None:
            return reason_of([read], planned=False, more="; the plan leaves that to the partitioner")
        parts = needs.of_parts(compiled, self._known)
        if parts is not None:
            return reason_of([parts], planned=False)
        return unexplained(
            f"Shardy plans nothing in {self._known.all_named(lines)} that would need it{self._without_rules(lines)}"
        )

    def _need(self, planned: PlannedCollective, compiled: Collective) -> Need:
        axes = needs.axes_of(planned)
        shared = set(compiled.axes or ()) & axes
        return needs.of_collective(planned, self._plan.operations, self._known, shared or axes, kind=compiled.kind)

    def _in_place(self, needs_of: Sequence[Need], instead: Sequence[PlannedCollective]) -> Reason:
        sent = executions.most(ring.total(instead))
        renamed = [needs.renamed(collective, self._known.places) for collective in instead]
        asked = listed(_together(renamed))
        would = f"for which a device would have sent {bytes_text(sent)}"
        return replace(
            reason_of(needs_of, planned=False, more=f"; Shardy had planned {asked}, {would}"),
            instead=[words.planned_at_length(collective) for collective in renamed],
            instead_sent=sent,
        )

    def _left(self, compiled: Collective, lines: Sequence[str]) -> list[Need]:
        """The needs of operations of these lines that the plan leaves to the partitioner."""
        reducing = compiled.kind in REDUCING
        there = [
            operation
            for operation in [*self._plan.operations, *(self._unmoved if reducing else ())]
            if operation.line in lines and (operation.gradient == compiled.gradient or len(compiled.nodes) > 1)
        ]
        if not any(operation.line in lines for operation in self._plan.operations):
            # XLA may name an operation that it fused after the argument that it moves: what reads that needs it.
            there = [operation for operation in self._plan.operations if _reads(operation, lines)]
        source = set(compiled.between.source) if compiled.between else set[str]()
        reading = [operation for operation in there if any(value.of in source for value in operation.operands)]
        # The partitioner may extract a device's part of a value by a sum to which the other devices add zeros.
        tries = [(among, kind) for kind in ([True, False] if reducing else [False]) for among in (reading, there)]
        for among, kind in tries:
            own = [(operation, self._own_need(operation, compiled.axes, reducing=kind)) for operation in among]
            needs_of = {need.text: need for _, need in own if need is not None}
            if needs_of:
                # What reads a value of the moved one's size needs it, rather than what made that.
                sized = any(self._takes(operation, compiled) for operation, need in own if need is not None)
                read = None if sized else self._read_by(compiled)
                return [read] if read else list(needs_of.values())[:2]
        return []

    def _joint(self, compiled: Collective, lines: Sequence[str]) -> list[Need]:
        """The need of a reduction of several values at once in these lines, whose parts XLA gathers."""
        there = self._plan.operations if compiled.kind == "all-gather" else ()
        own = (
            needs.of_joint_reduction(operation, compiled.axes, self._known)
            for operation in there
            if operation.line in lines and operation.gradient == compiled.gradient
        )
        return [need for need in own if need is not None][:1]

    def _read_by(self, compiled: Collective) -> Need | None:
        """The need of the one operation that reads a value of the moved one's size, which another line may make."""
        axes = frozenset(compiled.axes or ())
        needs_of: dict[str, Need] = {}
        for operation in self._plan.operations if compiled.kind not in REDUCING else ():
            if operation.gradient == compiled.gradient and self._takes(operation, compiled):
                need = self._own_need(operation, axes)
                needs_of |= {} if need is None else {need.text: need}
        return next(iter(needs_of.values())) if len(needs_of) == 1 else None

    def _own_need(
        self, operation: PlannedOperation, axes: Iterable[str] | None, *, reducing: bool = False
    ) -> Need | None:
        """The need of an operation that the plan leaves to the partitioner."""
        uneven = None if reducing else needs.of_slice(operation, axes or (), self._known)
        return uneven or needs.of_operation(operation, axes, self._known, reducing=reducing)

    def _takes(self, operation: PlannedOperation, compiled: Collective) -> bool:
        """Whether an operand has the sizes that a collective has before and after it."""
        axes = frozenset(compiled.axes or ())
        return any(self._is_moved(value, compiled, axes) for value in operation.operands)

    def _is_moved(self, value: PlannedValue, compiled: Collective, axes: frozenset[str]) -> bool:
        """Whether a value has the sizes that a collective has before and after it, over its axes."""
        over = needs.mesh_axes(Spec.of(value.spec).axes)
        before, after = (self._sizes(value, compiled.dtype, each) for each in (frozenset[str](), axes))
        return bool(axes) and axes <= over and compiled.bytes_in in before and compiled.bytes_out in after

    def _unplanned(self, part: MergedPart, compiled: Collective) -> Need | None:
        """The need of a part of a merged all-reduce that the plan lacks, because it moves the operands instead."""
        axes = frozenset(compiled.axes or ())
        there = [
            operation
            for operation in self._unmoved
            if operation.line in part.nodes
            and operation.gradient == part.gradient
            and part.bytes in self._sizes(operation.results[0], compiled.dtype, axes)
        ]
        needs_of = (needs.of_operation(operation, axes, self._known, reducing=True) for operation in there)
        return next((need for need in needs_of if need is not None), None)

    def _sizes(self, value: PlannedValue, names: str, axes: frozenset[str]) -> set[int]:
        """The bytes, in each dtype, that a device holds of a value with this sharding over all axes except these."""
        mesh, over = self._mesh, needs.mesh_axes(Spec.of(value.spec).axes)
        elements = math.prod(value.shape) // math.prod(mesh.axis_size(axis) for axis in over - axes)
        return {elements * dtypes.dtype(name).itemsize for name in names.split(", ") if name in dtypes.NAMES}

    def _beside(self, parts: Sequence[MergedPart]) -> str:
        sentences = [
            f"{bytes_text(part.bytes)} of {self._known.all_named(part.nodes) or 'no line'}"
            f"{' (backward)' if part.gradient else ''}"
            for part in parts
        ]
        return f"{listed(sentences)} {'are' if len(sentences) > 1 else 'is'}"

    def _without_rules(self, lines: Sequence[str]) -> str:
        """The operations of some lines for which Shardy has no rule."""
        names = dict.fromkeys(
            needs.word(operation.name) for operation in self._plan.operations if _ruleless(operation, lines)
        )
        return f", and it has no rule for {listed(list(names))} there" if names else ""


def _together(planned: Sequence[PlannedCollective]) -> list[str]:
    """Planned collectives in words; of several of one value the kinds, without the axes of each."""
    of_values = by_key((words.planned_subject(collective) + _asking(collective), collective) for collective in planned)
    return [
        f"{listed(list(dict.fromkeys(_article(collective.kind) for collective in alike)))} of {value}"
        if len(alike) > 1
        else _article(words.planned(alike[0])) + _asking(alike[0])
        for value, alike in of_values.items()
    ]


def _asking(planned: PlannedCollective) -> str:
    return f" ({planned.asked_by} asks for it)" if planned.asked_by else ""


def _reads(operation: PlannedOperation, values: Sequence[str]) -> bool:
    return any(value.of in values for value in operation.operands)


def _ruleless(operation: PlannedOperation, lines: Sequence[str]) -> bool:
    return operation.line in lines and operation.rule is None


def _lines_of(compiled: Collective) -> list[str]:
    """The lines that a collective is between, those that need it first."""
    between = [*compiled.between.to, *compiled.between.source] if compiled.between else []
    return list(dict.fromkeys([*compiled.nodes, *between]))


def _article(text: str) -> str:
    return f"an {text}" if text.startswith("a") else f"a {text}"
