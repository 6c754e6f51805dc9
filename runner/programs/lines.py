"""The statements of a section in; the lines of a program that compute them out, one named scope per node.

The lines that stand in the place of a call of one of the experiment's functions are a function of the program, called.
Two calls share one where its lines are the same in both; explicit sharding or a constraint may make them differ.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from runner.experiment import branches
from runner.experiment.branches import Branch, Choice
from runner.experiment.model import Call, Experiment, Line, Loop, Node, Statement, expressions
from runner.language.syntax import Expression
from runner.layout import Spec
from runner.programs.emit import Emit
from runner.programs.names import Names
from runner.programs.spelling import checkpointed, constrained, constrained_inside, resharded, tuple_of
from runner.programs.types import Repairs


class Lines:
    """The source lines of a section, one named scope per node.

    `definitions` are the functions that they call, once the lines are written.
    """

    def __init__(
        self,
        experiment: Experiment,
        names: Names,
        repairs: Repairs | None = None,
        *,
        under_vmap: bool = False,
        inside: bool = False,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._repairs = repairs or Repairs()
        self._under_vmap = under_vmap
        self._inside = inside
        """Whether the lines are a device's, of which the compiler lays out automatic axes alone."""
        self._lines: list[str] = []
        self._depth = 0
        """In how many calls the lines stand that are being written as a function."""
        self._defined: dict[tuple[str, str], str] = {}
        """The functions that are written already, by their names in the experiment and their text."""
        self._split: set[tuple[Call, ...]] = set()
        """The calls of which some lines stand elsewhere, since they need gradients or need none: these are no call."""
        self._functions: list[str] = []

    @property
    def definitions(self) -> str:
        """The functions that the lines call, each after those that it calls."""
        return "\n".join(self._functions)

    def section(
        self,
        statements: Iterable[Statement],
        constrained: Mapping[str, Spec] | None = None,
        *,
        of: Iterable[Statement] = (),
        after: bool = False,
    ) -> str:
        """The lines of `statements`; the values named in `constrained` get a `with_sharding_constraint`.

        They may be some `of` a section's, and stand `after` others, whose names they have.
        """
        self._constrained = constrained or {}
        self._lines = []
        statements = tuple(statements)
        here, whole = (Counter(each.line.calls[:1] for each in lines) for lines in (statements, of))
        self._split = {call for call, count in here.items() if whole[call] > count}
        read = frozenset[str]().union(*(statement.names for statement in statements))
        for array in self._experiment.arrays:
            if array.name in read or not after:
                self._follow(array.name, self._names[array.name], "")
        self._statements(statements, "")
        return "\n".join(self._lines)

    def _put(self, indent: str, line: str) -> None:
        self._lines.append((indent + line).rstrip())

    def _statements(self, statements: Iterable[Statement], indent: str) -> None:
        for call, of_call in itertools.groupby(statements, self._called):
            group = list(of_call)
            if call is not None and _is_whole(group, self._depth) and (self._depth or (call,) not in self._split):
                choice = branches.choice_of(self._depth, group) if call.chooses else None
                if choice is None:
                    self._call(call, group, indent)
                else:
                    self._choice(choice, indent)
                continue
            for statement in group:
                if isinstance(statement, Loop):
                    self._loop(statement, indent)
                else:
                    self._node(statement, indent)

    def _called(self, statement: Statement) -> Call | None:
        calls = statement.line.calls
        return calls[self._depth] if len(calls) > self._depth else None

    def _name(self, line: Line) -> str:
        """What a line is called where it is being written."""
        return line.label if self._depth else line.name

    def _scope(self, line: Line) -> str:
        return f'with jax.named_scope("{"/".join(line.scopes(self._depth))}"):'

    def _node(self, node: Node, indent: str) -> None:
        source = self._expression(node.expression, node.line)
        identifier = self._names.add(self._name(node.line))
        self._put(indent, self._scope(node.line))
        self._put(indent, f"    {identifier} = {source}")
        self._follow(node.line.path, identifier, indent + "    ")

    def _call(self, call: Call, group: Sequence[Statement], indent: str) -> None:
        """A call of a function, which is written where it is not yet."""
        arguments = [self._names[name] for _, name in call.arguments]
        function = self._function(call, group)
        results = group[-len(call.results) :]
        names = [
            statement.line.name if not self._depth else name
            for statement, name in zip(results, call.results, strict=True)
        ]
        identifiers = [self._names.add(name) for name in names]
        self._put(indent, f'with jax.named_scope("{call.label}"):')
        self._put(indent, f"    {', '.join(identifiers)} = {function}({', '.join(arguments)})")
        for statement, identifier in zip(results, identifiers, strict=True):
            self._follow(statement.line.path, identifier, indent + "    ")

    def _choice(self, choice: Choice, indent: str) -> None:
        """A call of `cond` or `switch`."""
        call = choice.call
        ((_, on),) = call.arguments
        called = [self._branch(branch) for branch in choice.branches]
        cases = [function if given is None else f"lambda: {function}({', '.join(given)})" for function, given in called]
        operands: tuple[str, ...] = ()
        if called[0][1] is not None and len({given for _, given in called}) == 1:
            cases, operands = [function for function, _ in called], called[0][1]
        between = [cases[1], cases[0]] if call.function == "cond" else [f"[{', '.join(cases)}]"]
        written = f"jax.lax.{call.function}({', '.join([self._names[on], *between, *operands])})"
        names = [
            statement.line.name if not self._depth else name
            for statement, name in zip(choice.results, call.results, strict=True)
        ]
        identifiers = [self._names.add(name) for name in names]
        self._put(indent, f'with jax.named_scope("{call.label}"):')
        self._put(indent, f"    {', '.join(identifiers)} = {written}")
        for statement, identifier in zip(choice.results, identifiers, strict=True):
            self._follow(statement.line.path, identifier, indent + "    ")

    def _branch(self, branch: Branch) -> tuple[str, tuple[str, ...] | None]:
        """The function of a branch and what it is called with; or a lambda, and None."""
        call = branch.call
        reads_around = call.checkpoint is None and all(name == own for own, name in call.arguments)
        if reads_around and branch.lines == branch.gives:
            given = [self._given(statement) for statement in branch.lines]
            return f"lambda: {given[0] if len(given) == 1 else tuple_of(given)}", None
        self._depth += 1
        function = self._function(call, branch.lines)
        self._depth -= 1
        return function, tuple(self._names[name] for _, name in call.arguments)

    def _given(self, statement: Statement) -> str:
        """What a branch gives."""
        assert isinstance(statement, Node)
        path, text = statement.line.path, self._expression(statement.expression, statement.line)
        if path in self._repairs.reshard:
            text = resharded(text, self._repairs.reshard[path])
        return constrained(text, self._constrained[path]) if path in self._constrained else text

    def _function(self, call: Call, group: Sequence[Statement]) -> str:
        """The name of the function of the program that has these lines."""
        outer = self._names, self._lines, self._depth
        self._names, self._lines, self._depth = self._names.inside(), [], self._depth + 1
        parameters = [self._names.add(parameter) for parameter, _ in call.arguments]
        last = group[-len(call.results) :]
        self._statements(group[: -len(call.results)], "    ")
        given: list[str] = []
        for statement in last:
            assert isinstance(statement, Node)
            # What an ordinary call gives is laid out where it is called.
            written = (
                self._given(statement)
                if call.branch is not None
                else self._expression(statement.expression, statement.line)
            )
            if len(last) == 1:
                given.append(written)
                continue
            identifier = self._names.add(statement.line.label)
            self._put("    ", self._scope(statement.line))
            self._put("    ", f"    {identifier} = {written}")
            given.append(identifier)
        text = "\n".join([f"({', '.join(parameters)}):", *self._lines, f"    return {', '.join(given)}"])
        inner = self._names
        self._names, self._lines, self._depth = outer
        known = self._defined.get((call.function, text))
        if known is None:
            known = self._defined[call.function, text] = self._names.reserve_function(call.function, inner)
            kept = "" if call.checkpoint is None else f"\n{known} = {checkpointed(known, call.checkpoint)}\n"
            self._functions.append(f"def {known}{text}\n{kept}")
        return known

    def _follow(self, path: str, identifier: str, indent: str) -> None:
        """What follows a definition."""
        if path in self._repairs.reshard:
            self._put(indent, f"{identifier} = {resharded(identifier, self._repairs.reshard[path])}")
        if path in self._constrained:
            put = constrained_inside if self._inside else constrained
            self._put(indent, f"{identifier} = {put(identifier, self._constrained[path])}")

    def _loop(self, loop: Loop, indent: str) -> None:
        firsts = tuple_of([self._expression(first, loop.first(name)) for name, first in loop.carry])
        over = [self._over(loop, name, whole) for name, whole in loop.over]
        name_of_loop = self._name(loop.line)
        body = self._names.add(name_of_loop)
        carried, slices, stacked = self._body(loop, body, indent)
        results = [self._names.add(f"{name_of_loop}.{name}") for name in loop.results]
        last, after = tuple_of(results[: len(carried)]), results[len(carried) :]
        self._put(indent, "")
        self._put(indent, self._scope(loop.line))
        if loop.scans and not loop.unroll:
            if len(slices) > len(over):
                over.append(f"jnp.arange({loop.steps}, dtype='int32')")
            left = f"{last if carried else '_'}, {tuple_of(after) if stacked else '_'}"
            xs = tuple_of(over) if over else f"None, length={loop.steps}"
            self._put(indent, f"    {left} = jax.lax.scan({body}, {firsts}, {xs})")
        elif loop.unroll:
            self._put(indent, f"    carry = {firsts}")
            if stacked:
                self._put(indent, "    steps = []")
            if over:
                self._put(indent, f"    over = {tuple_of(over)}")
            self._put(indent, f"    for step in range({loop.steps}):")
            arguments = ", ".join(["step", "carry", *(["tuple(x[step] for x in over)"] if over else [])])
            self._put(indent, f"        {'carry, each' if stacked else 'carry'} = {body}({arguments})")
            if stacked:
                self._put(indent, "        steps.append(each)")
        else:
            self._put(indent, f"    carry = jax.lax.fori_loop(0, {loop.steps}, {body}, {firsts})")
        if carried and (loop.unroll or not loop.scans):
            self._put(indent, f"    {last} = carry")
        if stacked and loop.unroll:
            self._put(indent, f"    {tuple_of(after)} = map(jnp.stack, zip(*steps, strict=True))")
        for name, identifier in zip(loop.results, results, strict=True):
            self._follow(loop.result(name), identifier, indent + "    ")

    def _over(self, loop: Loop, name: str, whole: Expression) -> str:
        """What a repeat takes slices of."""
        path, source = loop.whole(name).path, self._expression(whole, loop.whole(name))
        return resharded(source, self._repairs.reshard[path]) if path in self._repairs.reshard else source

    def _body(self, loop: Loop, body: str, indent: str) -> tuple[list[str], list[str], list[str]]:
        """Write the function of one step; what it carries, takes slices of, and gives besides."""
        carried = [self._names.add(name) for name, _ in loop.carry]
        slices = [self._names.add(name) for name, _ in loop.over]
        index = self._names.add(loop.index)
        scanned = loop.scans and not loop.unroll
        if scanned and any(loop.index in statement.names for statement in loop.body):
            slices.append(index)
        parameters = ["carry", *(["over"] if slices or scanned else [])]
        self._put(indent, f"def {body}({', '.join(parameters if scanned else [index, *parameters])}):")
        if carried:
            self._put(indent, f"    {tuple_of(carried)} = carry")
        if slices:
            self._put(indent, f"    {tuple_of(slices)} = over")
        self._statements(loop.body, indent + "    ")
        returned = tuple_of(
            [
                resharded(identifier, self._repairs.reshard[loop.end(name)])
                if loop.end(name) in self._repairs.reshard
                else identifier
                for (name, _), identifier in zip(loop.carry, carried, strict=True)
            ]
        )
        stacked = [self._names[name] for name in (loop.locally if self._depth else (inner for _, inner in loop.stack))]
        if scanned or stacked:
            returned = f"{returned}, {tuple_of(stacked) if stacked else 'None'}"
        self._put(indent, f"    return {returned}")
        if loop.checkpoint is not None:
            self._put(indent, "")
            # In an unrolled loop the step is one of Python's numbers; in JAX's own nothing can be merged over steps.
            more = "static_argnums=(0,)" if loop.unroll else "prevent_cse=False"
            self._put(indent, f"{body} = {checkpointed(body, loop.checkpoint, more)}")
        return carried, slices, stacked

    def _expression(self, expression: Expression, line: Line) -> str:
        repairs = self._repairs.calls.get(line.path, {})
        here = expression.tree
        if self._depth:
            assert expression.local is not None
            here = expression.local
        tree = Emit(self._experiment, self._names, repairs, self._under_vmap).visit(here)
        return ast.unparse(ast.fix_missing_locations(tree))


def _is_whole(group: Sequence[Statement], depth: int) -> bool:
    """Whether the lines of a call are as its function has them: what was edited since has the section's names only."""
    if any(expression.local is None for _, expression in expressions(group)):
        return False
    return bool(depth) or branches.complete(group)
