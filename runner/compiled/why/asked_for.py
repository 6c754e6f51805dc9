"""Explains the collectives that a program, or JAX's differentiation, asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.base.words import bytes_text, listed, varying
from runner.compiled.evidence.model import Collective, Reason
from runner.compiled.why import needs
from runner.compiled.why.matching import Matching
from runner.compiled.why.needs import Need
from runner.experiment.model import Experiment, Section
from runner.experiment.program import Program
from runner.graph.language.lines import calls_in, expressions
from runner.graph.language.printing import text
from runner.graph.sharding.propagation import AskedCollective, Planned, PlannedOperation
from runner.graph.term import Name

_TRANSPOSED = {
    "all-gather": "reduce-scatter", "reduce-scatter": "all-gather", "all-to-all": "all-to-all",
    "collective-permute": "collective-permute", "all-reduce": "all-reduce",
}  # fmt: skip
"""The kind of collective that a kind becomes under differentiation."""


class ProgramLines:
    """The lines that a program was written from, and the collectives that they ask for."""

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
        section = experiment.computed(program.lines)
        self._added = experiment.added_sums[program.lines]
        self._lines = {str(line): (line, expression) for line, expression in expressions(section)}

    def reason(self, compiled: Collective) -> Reason:
        """The reason of a collective that the compiler did not insert."""
        if compiled.again:
            return self._again(compiled)
        answer = self._differentiated(compiled) if compiled.gradient else self._asked(compiled)
        more = self._merged(compiled) if answer.by is not None else ""
        return replace(answer, text=f"{answer.text}{more}")

    def _again(self, compiled: Collective) -> Reason:
        """The reason for a collective that a checkpoint recomputes."""
        calls = [call for line in compiled.nodes for call in self._calls(line, compiled.kind)]
        keys, lines = self._keys(compiled.nodes, self._program.lines), self._places(compiled.nodes, self._program.lines)
        asked = f": {', '.join(dict.fromkeys(calls))}" if calls else ""
        text = f"{listed(lines)} ask{'s' if len(lines) < 2 else ''} for it{asked}"
        text += "; it is computed again in the backward pass"
        return Reason(text=text, by="program", line=compiled.node, keys=keys)

    def _merged(self, compiled: Collective) -> str:
        """The sums that the compiler merged into an all-reduce besides those of its lines, as text."""
        if (
            compiled.kind != "all-reduce"
            or compiled.bytes_in is None
            or compiled.axes is None
            or self._experiment.automatic
        ):
            return ""
        axes = set(compiled.axes)
        sums = [asked for asked in self._asked_for if asked.kind == "all-reduce" and set(asked.axes or ()) == axes]
        scattered = [
            asked
            for asked in self._asked_for
            if asked.kind == "reduce-scatter" and set(asked.axes or ()) == axes and not self._is_there(asked)
        ]
        own = [asked for asked in sums if asked.line in compiled.nodes]
        left = compiled.bytes_in - sum(asked.bytes_in for asked in own)
        if not own or left <= 0:
            return ""
        merged = [asked for asked in [*sums, *scattered] if asked not in own]
        for asked in merged:
            if asked.bytes_in == left:
                return f"; {bytes_text(left)} of it are {self._merged_text(asked)}"
        if merged and sum(asked.bytes_in for asked in merged) == left:
            return f"; {bytes_text(left)} of it are {listed([self._merged_text(asked) for asked in merged])}"
        return ""

    def _is_there(self, asked: AskedCollective) -> bool:
        return any(
            compiled.kind == asked.kind and asked.line in compiled.nodes and compiled.gradient == asked.gradient
            for compiled in self._compiled
        )

    def _merged_text(self, asked: AskedCollective) -> str:
        calls = list(self._calls(asked.line or "", _TRANSPOSED.get(asked.kind, "") if asked.gradient else asked.kind))
        what = "the derivative of " if asked.gradient else ""
        line = self._known.named(asked.line or "no line")
        of = f"{what}{', '.join(dict.fromkeys(calls))} in {line}" if calls else f"what {line} asks for"
        return of + (f", a {asked.kind} that is compiled as an all-reduce" if asked.kind != "all-reduce" else "")

    def _asked(self, compiled: Collective) -> Reason:
        asking = {line: list(self._calls(line, compiled.kind)) for line in compiled.nodes}
        if self._derived_by is not None:
            return self._derived(compiled, [call for calls in asking.values() for call in calls])
        # A merged collective may serve lines that ask for none themselves.
        asking_lines = [line for line, calls in asking.items() if calls and line not in self._added] or compiled.nodes
        section: Section = "graph" if self._program.whole else "per_device"
        keys, texts = self._keys(asking_lines, section), self._places(asking_lines, section)
        calls = list(dict.fromkeys(call for line in asking_lines for call in asking[line]))
        text = f"{listed(texts) or 'the program'} ask{'s' if len(texts) < 2 else ''} for it"
        text += f": {', '.join(calls)}" if calls else ""
        added = [line for line in compiled.nodes if line in self._added and line not in asking_lines]
        text += f"; it is merged with one that JAX adds {self._adding(compiled, added)}" if added else ""
        merged_lines = [line for line in compiled.nodes if line not in (*asking_lines, *added)]
        text += f"; the compiler merged it with one of {self._known.all_named(merged_lines)}" if merged_lines else ""
        return Reason(text=text, by="program", line=compiled.node, keys=keys)

    def _derived(self, compiled: Collective, calls: Sequence[str]) -> Reason:
        """The reason of a derived line's collective: the operation of the graph that needs it."""
        assert self._derived_by is not None
        lines = list(dict.fromkeys(line for node in compiled.nodes for line in self._readers(node)))
        plan = self._derived_by
        matching = Matching([], plan, self._experiment.mesh)
        exact = matching.of(replace(compiled, gradient=False, nodes=lines), lines)
        planned = [] if exact.left else list(exact.planned)
        planned = [
            collective for collective in planned if any(_names(collective.of, call) for call in calls)
        ] or planned
        there = planned or matching.instead(replace(compiled, gradient=False), lines)
        own = [operation for operation in plan.operations if operation.line in lines]
        axes = set(compiled.axes or ())
        if not planned and compiled.kind == "all-gather" and not any(axes & _axes(operation) for operation in own):
            return self._spread(compiled, calls)
        needs_of = [needs.of_collective(collective, plan.operations, self._known) for collective in there]
        if not needs_of:
            of_own = (needs.of_operation(operation, compiled.axes, self._known) for operation in own)
            needs_of = [need for need in of_own if need is not None][:2]
        if not needs_of:
            needs_of = self._moved(compiled, calls, lines, plan)
        # The derived lines of a user's Python have names that nobody wrote: their collectives stand without operands.
        python = bool(self._known.places)
        if python:
            calls = [call for node in compiled.nodes for call in self._calls(node, compiled.kind, outlined=True)]
        called = f"derived: {', '.join(dict.fromkeys(calls))}" if calls else "derived"
        if not needs_of:
            return Reason(
                text=called if python else f"{called}, in {self._known.all_named(compiled.nodes) or 'no line'}",
                by="program",
                line=compiled.node,
            )
        whole = reason_of(needs_of, planned=bool(planned))
        return replace(whole, text=f"{called}; {whole.text}", by="program", line=compiled.node, planned=bool(planned))

    def _spread(self, compiled: Collective, calls: Sequence[str]) -> Reason:
        """The reason of a gather over axes over which no operand is sharded."""
        over = listed(list(compiled.axes or ()))
        called = f"derived: {', '.join(dict.fromkeys(calls))}; " if calls and not self._known.places else ""
        lines = self._known.all_named(compiled.nodes) or "its line"
        text = f"no operand of {lines} is sharded over {over}: derived divides the work over it, and gathers the result"
        return Reason(text=called + text, by="program", line=compiled.node, planned=False)

    def _moved(self, compiled: Collective, calls: Sequence[str], lines: Sequence[str], plan: Planned) -> list[Need]:
        """The needs behind the values that calls move, if the plan does not have them."""
        names = [array.name for array in self._experiment.arrays]
        names += [line for line in self._lines if line not in names]
        of = [name for name in names if any(_names(name, call) for call in calls)]
        need = needs.of_sources(of, lines or compiled.nodes, compiled, plan, self._known)
        return [need] if need else []

    def _readers(self, line: str) -> list[str]:
        """The lines of the graph behind a derived line: itself, or the first lines that read it."""
        graph = {str(line_of_graph) for line_of_graph, _ in expressions(self._experiment.computed("graph"))}
        front, passed = [line], set[str]()
        while front and not any(name in graph for name in front):
            passed |= set(front)
            names = {name.rpartition(".")[2] for name in front}
            front = [reader for reader, (_, read) in self._lines.items() if names & read.names and reader not in passed]
        return [name for name in front if name in graph]

    # Collectives that JAX's differentiation asks for.

    def _differentiated(self, compiled: Collective) -> Reason:
        transposed = [call for line in compiled.nodes for call in self._calls(line, _TRANSPOSED.get(compiled.kind, ""))]
        keys, lines = self._keys(compiled.nodes, self._program.lines), self._known.all_named(compiled.nodes)
        axes = set(compiled.axes or ())
        sums = [line for line in compiled.nodes if line in self._added]
        if sums:
            return self._added_sum(compiled, sums, keys)
        own = [call for line in compiled.nodes for call in self._calls(line, compiled.kind)]
        if own and self._experiment.grad is None:
            # A derivative that the user's function takes has lines of its own.
            text = f"in the backward pass {lines} asks for it: {', '.join(dict.fromkeys(own))}"
            return Reason(text=text, by="differentiation", line=compiled.node, keys=keys)
        same = [
            array.name
            for array in self._experiment.arrays
            if not axes & set(array.layout.spec.axes)
            and any(line in self._lines and array.name in self._lines[line][1].names for line in compiled.nodes)
        ]
        if compiled.kind == "all-reduce" and same and not transposed:
            text = (
                f"JAX sums the cotangents of {listed(same)}, replicated over {listed(compiled.axes or [])}, in {lines}"
            )
            arrays = [f"arrays.{name}.spec" for name in same]
            return Reason(text=text, by="differentiation", line=compiled.node, keys=arrays)
        if transposed:
            text = f"the derivative of {', '.join(dict.fromkeys(transposed))} in {lines}"
            text += f", and of {listed(same)}, which is replicated" if same and compiled.kind == "all-reduce" else ""
            return Reason(text=text, by="differentiation", line=compiled.node, keys=keys)
        if compiled.kind == "all-reduce" and compiled.nodes:
            text = f"JAX sums the cotangents of values replicated over {listed(compiled.axes or [])}, in {lines}"
            return Reason(text=text, by="differentiation", line=compiled.node, keys=keys)
        return unexplained("JAX's differentiation adds it in a line without a collective of this kind")

    def _added_sum(self, compiled: Collective, sums: Sequence[str], keys: list[str]) -> Reason:
        """The reason of a sum that JAX adds to a derivative which the user's function takes."""
        rest = [line for line in compiled.nodes if line not in sums]
        merged = f"; it is merged with one of {self._known.all_named(rest)}" if rest else ""
        text = f"JAX adds it {self._adding(compiled, sums)}{merged}"
        return Reason(text=text, by="differentiation", line=compiled.node, keys=keys)

    def _adding(self, compiled: Collective, sums: Sequence[str]) -> str:
        """Where JAX adds a sum to a derivative, and the cast that avoids it."""
        of = sorted({self._added[line] for line in sums} - {""})
        axes = listed(compiled.axes or [])
        what = (
            f"the cotangents of {listed(of)}, which {'are' if len(of) > 1 else 'is'}" if of else "cotangents of values"
        )
        text = f"to the derivative, where it sums {what} replicated over {axes}, in {self._known.all_named(sums)}"
        cast = varying(of[0] if len(of) == 1 else "x", compiled.axes or ())
        return f"{text}; with {cast} before the derivative each device keeps its own"

    # The lines.

    def _keys(self, lines: Sequence[str], section: Section) -> list[str]:
        """The keys of lines; for lines of the user's Python, that of the line that calls it."""
        return list(dict.fromkeys(self._key(line, section) for line in lines))

    def _key(self, name: str, section: Section) -> str:
        if name not in self._lines:
            return f"{section}.{name}"
        line = self._lines[name][0]
        _, uses = line.written(section)
        key = uses[-1] if name in self._known.places and uses else (section, *line.key)
        return ".".join(map(str, key))

    def _places(self, lines: Sequence[str], section: Section) -> list[str]:
        """The readers' names of lines: their keys, or their places in the user's Python."""
        places = self._known.places
        return list(dict.fromkeys(places.get(line) or self._key(line, section) for line in lines))

    def _calls(self, line: str, kind: str, *, outlined: bool = False) -> Iterator[str]:
        """The calls in a line that communicate in this way; for a loop, in its body. `outlined`: without operands."""
        every = [
            expression for name, (_, expression) in self._lines.items() if name == line or name.startswith(f"{line}.")
        ]
        for call, row in (call for expression in every for call in calls_in(expression.term)):
            if row.over.collective == kind:
                yield text(replace(call, operands=(Name("…"), *call.operands[1:])) if outlined else call)


def _axes(operation: PlannedOperation) -> set[str]:
    """The axes over which the operands and results of an operation are sharded."""
    values = (*operation.operands, *operation.results)
    return needs.mesh_axes(axis for value in values for axis in value.spec.axes)


def _names(name: str, call: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", call) is not None


def _by_line(plan: Planned, experiment: Experiment) -> Planned:
    """A plan of the graph with names in place of the paths of its lines."""
    names = {line.path: str(line) for line, _ in expressions(experiment.computed("graph"))}
    return Planned(
        missing=plan.missing,
        unknown=plan.unknown,
        collectives=tuple(needs.renamed(planned, names) for planned in plan.collectives or ()),
        operations=tuple(
            replace(planned, line=names.get(planned.line or "", planned.line)) for planned in plan.operations
        ),
    )


def reason_of(needs_of: Sequence[Need], *, planned: bool, more: str = "", merged: bool = False) -> Reason:
    """The reason made of needs; `merged` is whether the compiler made one collective of theirs."""
    texts = list(dict.fromkeys(need.text for need in needs_of))
    return Reason(
        text=("; merged with it, " if merged else "; ").join(texts) + more,
        by="operation",
        operation=needs_of[0].operation,
        line=needs_of[0].line,
        dims=list(dict.fromkeys(dim for need in needs_of for dim in need.dims)),
        keys=list(dict.fromkeys(key for need in needs_of for key in need.keys)),
        planned=planned,
        at=needs_of[0].at if len({need.at for need in needs_of}) == 1 else None,
    )


def unexplained(why: str) -> Reason:
    """A reason that says why none is known."""
    return Reason(text=f"not explained: {why}", by=None)
