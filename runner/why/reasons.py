"""The collectives of one compiled program in; the same, each with the reason that it is there, out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner import executions
from runner.evidence import words
from runner.evidence.model import Collective, Reason
from runner.experiment.model import Experiment, expressions
from runner.experiment.program import Program
from runner.language.operations import OPERATIONS
from runner.sharding import ring
from runner.sharding.plan import Planned, PlannedCollective
from runner.why import needs
from runner.why.needs import Need
from runner.words import bytes_text, listed

_TRANSPOSED = {
    "all-gather": "reduce-scatter", "reduce-scatter": "all-gather", "all-to-all": "all-to-all",
    "collective-permute": "collective-permute", "all-reduce": "all-reduce",
}  # fmt: skip
"""What JAX differentiates a collective to."""


def explained(
    experiment: Experiment,
    program: Program,
    collectives: Sequence[Collective],
    plan: Planned | None,
    derived_by: Planned | None = None,
) -> list[Collective]:
    """The collectives of a program with their reasons.

    - `experiment`: what the program was written from, with the derived lines where it was of these.
    - `plan`: what Shardy plans of the program; `derived_by`: of derived lines, the plan of the graph.
    """
    teller = _Teller(experiment, program, collectives, plan, derived_by)
    return [replace(one, why=teller.reason(one)) for one in collectives]


class _Teller:
    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        collectives: Sequence[Collective],
        plan: Planned | None,
        derived_by: Planned | None,
    ) -> None:
        self._experiment, self._program = experiment, program
        self._plan = plan if plan is not None and plan.collectives is not None else None
        self._missing = "there is no plan" if plan is None else plan.missing
        self._promised = {line: f"constraints.{line}" for line in experiment.constraints}
        self._promised |= {line: f"outputs.{line}" for line in experiment.outputs if program.places}
        self._derived_by = derived_by and _by_line(derived_by, experiment)
        self._section = experiment.section(program.lines)
        self._lines = {str(line): (line, expression) for line, expression in expressions(self._section)}
        self._taken = {
            id(one) for each in collectives if each.inserted for one in self._exact(each, self._plan, each.nodes)
        }

    def reason(self, one: Collective) -> Reason:
        """Why a collective is there."""
        if one.inserted:
            return self._inserted(one)
        return self._differentiated(one) if one.gradient else self._asked(one)

    # What the compiler put in.

    def _inserted(self, one: Collective) -> Reason:
        if self._plan is None:
            return _unexplained(f"what Shardy plans is not known: {self._missing}")
        lines = _lines_of(one)
        if not lines:
            return _unexplained("it leads back to no line of the experiment")
        exact = self._exact(one, self._plan, one.nodes or lines)
        if exact:
            found = [needs.of_collective(each, self._plan.operations, self._promised) for each in exact]
            return _reason(found, planned=True)
        instead = self._instead(one, lines)
        if instead:
            found = [needs.of_collective(each, self._plan.operations, self._promised) for each in instead]
            sent = _total(instead)
            told = listed([_article(words.planned(each)) for each in instead])
            would = f"for which a device would send {bytes_text(sent)}"
            return replace(
                _reason(found, planned=False, more=f"; instead Shardy planned {told}, {would}"),
                instead=[words.planned_at_length(each) for each in instead],
                instead_sent=sent,
            )
        for axes in (one.axes, None):
            own = [
                need
                for operation in self._plan.operations
                if operation.line in lines
                and (operation.gradient == one.gradient or len(one.nodes) > 1)
                and (need := needs.of_operation(operation, axes)) is not None
            ]
            if own:
                return _reason(own[:2], planned=False, more="; the plan leaves that to the partitioner")
        return _unexplained(
            f"Shardy plans nothing in {listed(lines)} that would need it, and no operation there reduces or permutes"
        )

    def _exact(self, one: Collective, plan: Planned | None, lines: Sequence[str]) -> list[PlannedCollective]:
        """The planned collectives that this one is, or that were merged into it."""
        if plan is None or one.axes is None:
            return []
        alike = [
            each
            for each in plan.collectives or ()
            if each.kind == one.kind
            and needs.axes_of(each) == set(one.axes)
            and _concerns(each, one, lines)
            and _moves(each, one)
            and (each.gradient == one.gradient or len(one.nodes) > 1)
            and (None in (each.reduction, one.reduction) or each.reduction == one.reduction)
        ]
        as_large = [each for each in alike if (each.bytes_in, each.bytes_out) == (one.bytes_in, one.bytes_out)]
        return as_large or alike

    def _instead(self, one: Collective, lines: Sequence[str]) -> list[PlannedCollective]:
        """What the plan has where this one is: of the same lines, over an axis of its own, not compiled as planned."""
        assert self._plan is not None
        there = [
            each
            for each in self._plan.collectives or ()
            if _concerns(each, one, lines) and (each.gradient == one.gradient or len(one.nodes) > 1)
        ]
        left = [each for each in there if id(each) not in self._taken]
        for choice in (left, there):
            over = [each for each in choice if needs.axes_of(each) & set(one.axes or ())]
            for among in (
                [each for each in over if _moves(each, one)],
                over,
                choice if choice is left else [],
            ):
                if among:
                    return among
        return []

    # What the program asks for.

    def _asked(self, one: Collective) -> Reason:
        asking = {line: list(self._calls(line, one.kind)) for line in one.nodes}
        if self._derived_by is not None:
            return self._derived(one, [call for calls in asking.values() for call in calls])
        # One that the compiler merged may serve lines that ask for none themselves.
        mine = [line for line, calls in asking.items() if calls] or one.nodes
        section = "graph" if self._program.whole else "per_device"
        keys = [f"{section}.{self._key(line)}" for line in mine]
        calls = list(dict.fromkeys(call for line in mine for call in asking[line]))
        text = f"{listed(keys) or 'the program'} ask{'s' if len(keys) < 2 else ''} for it"
        text += f": {', '.join(calls)}" if calls else ""
        others = [line for line in one.nodes if line not in mine]
        text += f"; the compiler merged it with one of {listed(others)}" if others else ""
        return Reason(text=text, by="program", line=one.node, keys=keys)

    def _derived(self, one: Collective, calls: Sequence[str]) -> Reason:
        """Of derived lines, what in the graph needs it."""
        assert self._derived_by is not None
        lines = list(dict.fromkeys(line for node in one.nodes for line in self._readers(node)))
        exact = self._exact(replace(one, gradient=False), self._derived_by, lines)
        exact = [each for each in exact if any(_names(each.of, call) for call in calls)] or exact
        there = exact or [
            each
            for each in self._derived_by.collectives or ()
            if _concerns(each, one, lines) and needs.axes_of(each) & set(one.axes or ())
        ]
        found = [needs.of_collective(each, self._derived_by.operations, self._promised) for each in there]
        if not found:
            own = (needs.of_operation(each, one.axes) for each in self._derived_by.operations if each.line in lines)
            found = [need for need in own if need is not None][:2]
        called = f"derived: {', '.join(dict.fromkeys(calls))}" if calls else "derived"
        if not found:
            text = (
                f"{called}, in {listed(one.nodes) or 'no line'}, where the graph's specs cut what {listed(lines)} needs"
            )
            return Reason(text=text, by="program", line=one.node)
        whole = _reason(found, planned=bool(exact))
        return replace(whole, text=f"{called}; {whole.text}", by="program", line=one.node, planned=bool(exact))

    def _readers(self, line: str) -> list[str]:
        """The lines of the graph that a derived line is of: itself, or the first ones that read it."""
        graph = {str(each) for each, _ in expressions(self._experiment.graph)}
        front, seen = [line], set[str]()
        while front and not any(each in graph for each in front):
            seen |= set(front)
            names = {each.rpartition(".")[2] for each in front}
            front = [other for other, (_, read) in self._lines.items() if names & read.names and other not in seen]
        return [each for each in front if each in graph]

    # What JAX's differentiation asks for.

    def _differentiated(self, one: Collective) -> Reason:
        transposed = [call for line in one.nodes for call in self._calls(line, _TRANSPOSED.get(one.kind, ""))]
        keys = [f"{self._program.lines}.{self._key(line)}" for line in one.nodes]
        axes = set(one.axes or ())
        same = [
            array.name
            for array in self._experiment.arrays
            if not axes & set(array.layout.spec.axes)
            and any(line in self._lines and array.name in self._lines[line][1].names for line in one.nodes)
        ]
        if one.kind == "all-reduce" and same and not transposed:
            text = (
                f"JAX sums the cotangents of {listed(same)}, of which every device along {listed(one.axes or [])} has "
                f"the same in {listed(one.nodes)}"
            )
            arrays = [f"arrays.{name}.spec" for name in same]
            return Reason(text=text, by="differentiation", line=one.node, keys=arrays)
        if transposed:
            text = f"the derivative of {', '.join(dict.fromkeys(transposed))} in {listed(one.nodes)}"
            text += (
                f", and of {listed(same)}, which every device has whole" if same and one.kind == "all-reduce" else ""
            )
            return Reason(text=text, by="differentiation", line=one.node, keys=keys)
        if one.kind == "all-reduce" and one.nodes:
            text = (
                f"JAX sums the cotangents of what every device along {listed(one.axes or [])} has the same of "
                f"in {listed(one.nodes)}"
            )
            return Reason(text=text, by="differentiation", line=one.node, keys=keys)
        return _unexplained("JAX's differentiation asks for it in a line that has no collective of its kind")

    # The lines.

    def _key(self, line: str) -> str:
        return ".".join(map(str, self._lines[line][0].key)) if line in self._lines else line

    def _calls(self, line: str, kind: str) -> Iterator[str]:
        """The calls of a line that communicate in this way; of a loop, those of its body."""
        every = [
            expression for name, (_, expression) in self._lines.items() if name == line or name.startswith(f"{line}.")
        ]
        for expression in every:
            for node in ast.walk(expression.tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPERATIONS:
                    over = OPERATIONS[node.func.id].over
                    if over is not None and over.collective == kind:
                        yield ast.unparse(node)


def _concerns(planned: PlannedCollective, one: Collective, lines: Sequence[str]) -> bool:
    """Whether a planned collective is needed in one of these lines, or moves the value that this one moves."""
    return planned.line in lines or (one.between is not None and planned.of in one.between.source)


def _moves(planned: PlannedCollective, one: Collective) -> bool:
    """Whether this one may move what the planned one moves: of what is made within a line, nobody knows the name."""
    if planned.kind in ("all-reduce", "reduce-scatter") or one.between is None or not one.between.source:
        return True
    return planned.of in one.between.source or planned.of == planned.line


def _names(name: str, call: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", call) is not None


def _by_line(plan: Planned, experiment: Experiment) -> Planned:
    """A plan of the graph whose lines are told by their paths, with their names instead."""
    names = {line.path: str(line) for line, _ in expressions(experiment.graph)}
    return Planned(
        missing=plan.missing,
        collectives=[
            replace(one, line=names.get(one.line or "", one.line), of=names.get(one.of, one.of))
            for one in plan.collectives or ()
        ],
        operations=[replace(one, line=names.get(one.line or "", one.line)) for one in plan.operations],
    )


def _lines_of(one: Collective) -> list[str]:
    """The lines that a collective is between, those that need it first."""
    between = [*one.between.to, *one.between.source] if one.between else []
    return list(dict.fromkeys([*one.nodes, *between]))


def _reason(found: Sequence[Need], *, planned: bool, more: str = "") -> Reason:
    texts = list(dict.fromkeys(need.text for need in found))
    return Reason(
        text="; ".join(texts) + more,
        by="operation",
        operation=found[0].operation,
        line=found[0].line,
        dims=list(dict.fromkeys(dim for need in found for dim in need.dims)),
        keys=list(dict.fromkeys(key for need in found for key in need.keys)),
        planned=planned,
    )


def _total(planned: Sequence[PlannedCollective]) -> int | None:
    return executions.most(ring.total(planned))


def _article(text: str) -> str:
    return f"an {text}" if text.startswith("a") else f"a {text}"


def _unexplained(why: str) -> Reason:
    return Reason(text=f"not explained: {why}", by=None)
