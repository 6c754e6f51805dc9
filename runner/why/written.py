"""The collectives that a program asks for itself, or JAX's differentiation, in; the reasons that they are there out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.evidence.model import Collective, Reason
from runner.experiment.model import Experiment, expressions
from runner.experiment.program import Program
from runner.graph.term import within
from runner.language.parts import called
from runner.language.printing import text
from runner.sharding.plan import AskedCollective, Planned
from runner.why import needs
from runner.why.matching import Matching
from runner.why.needs import Need
from runner.words import bytes_text, listed

_TRANSPOSED = {
    "all-gather": "reduce-scatter", "reduce-scatter": "all-gather", "all-to-all": "all-to-all",
    "collective-permute": "collective-permute", "all-reduce": "all-reduce",
}  # fmt: skip
"""What JAX differentiates a collective to."""


class Written:
    """The lines that a program was written from, and what they ask for."""

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        collectives: Sequence[Collective],
        derived_by: Planned | None,
        asked: Sequence[AskedCollective],
    ) -> None:
        self._experiment, self._program, self._asked_for = experiment, program, asked
        self._compiled = collectives
        self._derived_by = derived_by and _by_line(derived_by, experiment)
        self._known = needs.keys_of(experiment, program)
        section = experiment.section(program.lines)
        self._lines = {str(line): (line, expression) for line, expression in expressions(section)}

    def reason(self, one: Collective) -> Reason:
        """Why a collective is there that the compiler did not put in."""
        if one.again:
            return self._again(one)
        found = self._differentiated(one) if one.gradient else self._asked(one)
        more = self._merged(one) if found.by is not None else ""
        return replace(found, text=f"{found.text}{more}")

    def _again(self, one: Collective) -> Reason:
        """What a checkpoint has computed again."""
        calls = [call for line in one.nodes for call in self._calls(line, one.kind)]
        keys = [f"{self._program.lines}.{self._key(line)}" for line in one.nodes]
        asked = f": {', '.join(dict.fromkeys(calls))}" if calls else ""
        text = (
            f"{listed(keys)} ask{'s' if len(keys) < 2 else ''} for it{asked}; it is computed again in the backward pass"
        )
        return Reason(text=text, by="program", line=one.node, keys=keys)

    def _merged(self, one: Collective) -> str:
        """What else an all-reduce carries than what its lines ask for: sums that the compiler merged into it."""
        if one.kind != "all-reduce" or one.bytes_in is None or one.axes is None or self._experiment.automatic:
            return ""
        axes = set(one.axes)
        sums = [each for each in self._asked_for if each.kind == "all-reduce" and set(each.axes or ()) == axes]
        scattered = [
            each
            for each in self._asked_for
            if each.kind == "reduce-scatter" and set(each.axes or ()) == axes and not self._is_there(each)
        ]
        own = [each for each in sums if each.line in one.nodes]
        left = one.bytes_in - sum(each.bytes_in for each in own)
        if not own or left <= 0:
            return ""
        others = [each for each in [*sums, *scattered] if each not in own]
        for each in others:
            if each.bytes_in == left:
                return f"; {bytes_text(left)} of it are {self._other(each)}"
        if others and sum(each.bytes_in for each in others) == left:
            return f"; {bytes_text(left)} of it are {listed([self._other(each) for each in others])}"
        return ""

    def _is_there(self, asked: AskedCollective) -> bool:
        return any(
            one.kind == asked.kind and asked.line in one.nodes and one.gradient == asked.gradient
            for one in self._compiled
        )

    def _other(self, asked: AskedCollective) -> str:
        calls = list(self._calls(asked.line or "", _TRANSPOSED.get(asked.kind, "") if asked.gradient else asked.kind))
        what = "the derivative of " if asked.gradient else ""
        of = f"{what}{', '.join(dict.fromkeys(calls))} in {asked.line}" if calls else f"what {asked.line} asks for"
        return of + (f", a {asked.kind} that is compiled as an all-reduce" if asked.kind != "all-reduce" else "")

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
        plan = self._derived_by
        matching = Matching([], plan)
        exact = matching.of(replace(one, gradient=False, nodes=lines), lines)
        planned = [] if exact.left else list(exact.planned)
        planned = [each for each in planned if any(_names(each.of, call) for call in calls)] or planned
        there = planned or matching.instead(replace(one, gradient=False), lines)
        found = [needs.of_collective(each, plan.operations, self._known) for each in there]
        if not found:
            own = (needs.of_operation(each, one.axes, self._known) for each in plan.operations if each.line in lines)
            found = [need for need in own if need is not None][:2]
        if not found:
            found = self._moved(one, calls, lines, plan)
        called = f"derived: {', '.join(dict.fromkeys(calls))}" if calls else "derived"
        if not found:
            return Reason(text=f"{called}, in {listed(one.nodes) or 'no line'}", by="program", line=one.node)
        whole = reason_of(found, planned=bool(planned))
        return replace(whole, text=f"{called}; {whole.text}", by="program", line=one.node, planned=bool(planned))

    def _moved(self, one: Collective, calls: Sequence[str], lines: Sequence[str], plan: Planned) -> list[Need]:
        """The needs of what calls move, where the plan does not have them."""
        names = [array.name for array in self._experiment.arrays]
        names += [line for line in self._lines if line not in names]
        of = [name for name in names if any(_names(name, call) for call in calls)]
        need = needs.of_sources(of, lines or one.nodes, one, self._experiment, plan, self._known)
        return [need] if need else []

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
        return unexplained("JAX's differentiation asks for it in a line that has no collective of its kind")

    # The lines.

    def _key(self, line: str) -> str:
        return ".".join(map(str, self._lines[line][0].key)) if line in self._lines else line

    def _calls(self, line: str, kind: str) -> Iterator[str]:
        """The calls of a line that communicate in this way; of a loop, those of its body."""
        every = [
            expression for name, (_, expression) in self._lines.items() if name == line or name.startswith(f"{line}.")
        ]
        for part in (part for expression in every for part in within(expression.term)):
            row = called(part)
            if row is not None and row.over is not None and row.over.collective == kind:
                yield text(part)


def _names(name: str, call: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", call) is not None


def _by_line(plan: Planned, experiment: Experiment) -> Planned:
    """A plan of the graph whose lines are told by their paths, with their names instead."""
    names = {line.path: str(line) for line, _ in expressions(experiment.graph)}
    return Planned(
        missing=plan.missing,
        collectives=tuple(needs.renamed(one, names) for one in plan.collectives or ()),
        operations=tuple(replace(one, line=names.get(one.line or "", one.line)) for one in plan.operations),
    )


def reason_of(found: Sequence[Need], *, planned: bool, more: str = "") -> Reason:
    """The reason that some needs are."""
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


def unexplained(why: str) -> Reason:
    """A reason that says that there is none."""
    return Reason(text=f"not explained: {why}", by=None)
