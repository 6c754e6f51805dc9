"""The text of `graph` or `per_device` in; its checked statements out, functions' lines standing where they are called.

A call `y: swiglu(h, w)` becomes the function's lines, under names that begin with the call's, and a line `y`. So
whoever reads statements knows nothing of functions; the writers put the calls back (`runner/programs/lines.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.experiment.checkpoints import read_checkpoint
from runner.experiment.combiners import combined
from runner.experiment.frames import Frame, Place, cycle, free, line_of
from runner.experiment.functions import RESULT, Function, bind, is_static
from runner.experiment.mapping import Maps
from runner.experiment.model import Call, Line, Loop, Node, Origin, Statement
from runner.experiment.plain import choices, located, read_expression
from runner.experiment.repeats import check_repeat, known_without_arrays, read_steps
from runner.experiment.written import BOTH, Written, of
from runner.faults import Fault, InvalidExperiment, Key, invalid, nearest
from runner.graph.term import Apply, Group, Lambda, Name, Term, calls, heads, mapped
from runner.language import bounds
from runner.language.check import Scope, check
from runner.language.forms import CALLING, is_choice, is_map
from runner.language.syntax import Expression, SyntaxFault, parse
from runner.untyped import is_mapping


def read_statements(
    config: Mapping[str, Any],
    key: Key,
    scope: Scope,
    dims: Mapping[str, int],
    functions: Mapping[str, Function] | None = None,
) -> tuple[Statement, ...]:
    """The statements of a section whose lines are a mapping that stands at `key`; `scope` grows by their names."""
    return read_section(of(config, key, scope.section, shared=False), scope, dims, functions or {})


def read_section(
    lines: Sequence[Written], scope: Scope, dims: Mapping[str, int], functions: Mapping[str, Function]
) -> tuple[Statement, ...]:
    """The statements of a section; `scope` grows by their names."""
    taken = {*dims, *scope.values, *functions, *_everywhere(lines)}
    scope.functions = tuple(functions)
    return _Reader(dims, functions, taken).statements(lines, scope, Frame(), None)


def check_functions(functions: Mapping[str, Function], scope: Scope, dims: Mapping[str, int]) -> None:
    """Read each function once, as if it were called with arrays, so that one that nobody calls is right too."""
    for function in functions.values():
        for section in ("per_device", "graph") if function.differs else ("per_device",):
            inside = Scope(
                section,
                scope.mesh,
                set(function.parameters),
                dims,
                parameters=frozenset(function.parameters),
                functions=tuple(functions),
            )
            frame = Frame(env={name: name for name in function.parameters}, inside=(function.name,))
            reader = _Reader(dims, functions, {*dims, *function.parameters, *functions})
            reader.statements([*function.body(section), function.result(section)], inside, frame, None)


def _everywhere(lines: Iterable[Written]) -> Iterable[str]:
    """The names that lines give, in their repeats too."""
    for line in lines:
        yield from line.names
        if is_mapping(line.value):
            yield str(line.value.get("index", "i"))
            carry, over, body = (line.value.get(entry) for entry in ("carry", "over", "body"))
            yield from map(str, (*(carry if is_mapping(carry) else ()), *(over if is_mapping(over) else ())))
            if is_mapping(body):
                yield from _everywhere([Written((str(name),), value, ()) for name, value in body.items()])


class _Reader(Maps):
    """Reads the lines of one section."""

    def statements(
        self, lines: Sequence[Written], scope: Scope, frame: Frame, within: Line | None
    ) -> tuple[Statement, ...]:
        parsed = [None if isinstance(line.value, Mapping) else read_expression(line.value, line.key) for line in lines]
        statements: list[Statement] = []
        for position, (line, expression) in enumerate(zip(lines, parsed, strict=True)):
            later = {
                name: known
                for each, known in zip(lines[position:], parsed[position:], strict=True)
                for name in each.names
            }
            local = replace(scope, later=later)
            if expression is not None:
                statements += self._line(line, expression, local, frame, within)
                continue
            if len(line.names) > 1:
                raise invalid(line.key, f"a repeat has one name; what it carries is NAME.{line.names[0]}")
            found = self._loop(line, local, frame, within)
            statements += found
            loop = found[-1]
            assert isinstance(loop, Loop)
            scope.loops[loop.name] = loop.results
        return tuple(statements)

    # A line: its calls first, then what is left of it.

    def _line(
        self, line: Written, expression: Expression, scope: Scope, frame: Frame, within: Line | None
    ) -> list[Statement]:
        term = frame.filled(expression, line.key, scope)
        place = Place(line.key, expression.text, scope, frame, within, line.names[0])
        before: list[Statement] = []
        found = self._written_out(term, line.names, place, before)
        if found is None:
            found = self._given(line.names, self._hoisted(term, place, before), place)
        return [*before, *found]

    def _given(self, given: tuple[str, ...], term: Term, place: Place) -> list[Statement]:
        """The lines that give an expression's value a name, or names to its parts."""
        if len(given) == 1:
            return [self._node(given[0], term, place)]
        if isinstance(term, Group):
            if len(term.items) != len(given):
                message = f"it gives {len(term.items)} values, and {len(given)} names stand before it"
                raise place.fault(message, term)
            if not any(name in given for name in heads(term)):
                return [self._node(name, part, place) for name, part in zip(given, term.items, strict=True)]
        whole = self._fresh("_".join(given), place.frame)
        return [self._node(whole, term, place, gives=len(given)), *self._parts(given, whole, place)]

    def _parts(self, given: tuple[str, ...], whole: str, place: Place) -> list[Statement]:
        """The lines that take the value called `whole` apart."""
        parts = [parse(f"{whole}[{i}]") for i in range(len(given))]
        return [
            self._node(name, part.term, replace(place, text=part.text)) for name, part in zip(given, parts, strict=True)
        ]

    def _node(self, name: str, term: Term, place: Place, *, gives: int = 0, result: bool = False) -> Node:
        """One line, checked; `name` is what the lines around it call it."""
        scope, frame = place.scope, place.frame
        expression = Expression(place.text, frame.in_section(term), term if frame.calls else None)
        self._check(expression, place, name)
        known = self._name(name, place)
        origin = Origin(place.key, frame.uses, frame.calls, name, result, gives)
        scope.values.add(known)
        scope.static.pop(known, None)
        size = known_without_arrays(expression, scope)
        if size is not None:
            scope.static[known] = size
        return Node(line_of(known, place.within, origin), expression)

    def _name(self, name: str, place: Place) -> str:
        """What the section calls a line: in a function's, a name that nothing else has."""
        frame = place.frame
        if not frame.calls:
            return name
        if name not in frame.env:
            frame.env[name] = free(f"{frame.prefix}{name}", self.taken)
        return frame.env[name]

    def _fresh(self, wish: str, frame: Frame) -> str:
        """A name for what has none, which the lines around it do not use."""
        return free(wish, {*frame.env, *frame.own} if frame.calls else self.taken)

    def _check(self, expression: Expression, place: Place, name: str | None) -> None:
        scope = place.scope
        try:
            check(expression, scope)
            bounds.check(expression, scope.sizes, scope.mesh if scope.section == "per_device" else None)
        except SyntaxFault as fault:
            around = cycle(name, scope) if name else None
            if around and "used before it stands" in fault.message:
                fault.message = f"a cycle: {' → '.join(around)}; no order of the lines can compute it"
            raise InvalidExperiment(located(place.key, expression.text, fault, place.frame.uses)) from None

    # Calls of functions.

    def _hoisted(self, term: Term, place: Place, before: list[Statement]) -> Term:
        """The term with a name in the place of each call of a function, whose lines go to `before`."""
        return self._taken_out(combined(term, self.functions, place), place, before)

    def _taken_out(self, term: Term, place: Place, before: list[Statement]) -> Term:
        if isinstance(term, Lambda):
            return term
        if not calls(term, (*self.functions, *CALLING)):
            return mapped(term, lambda part: self._taken_out(part, place, before))
        named_after = "" if place.name == RESULT else f"{place.name}_"
        name = self._fresh(f"{named_after}{term.operation}", place.frame)
        before += self._written_out(term, (name,), place, before) or ()
        return Name(name, term.at)

    def _written_out(
        self, term: Term, given: tuple[str, ...], place: Place, before: list[Statement]
    ) -> list[Statement] | None:
        """The lines that a call comes to, those of its arguments in `before`; None for what calls no function."""
        if calls(term, self.functions):
            return self._call(self.functions[term.operation], term, given, place, before)
        if is_choice(term):
            return self._choice(term, given, place, before)
        return self._map(term, given, place, before) if is_map(term) else None

    def _call(
        self,
        function: Function,
        call: Apply,
        given: tuple[str, ...],
        place: Place,
        before: list[Statement],
        branch: int | None = None,
    ) -> list[Statement]:
        """The lines of a function where it is called, in a `branch` or not; those of its arguments go to `before`."""
        frame = place.frame
        if function.name in frame.inside:
            chain = " → ".join((*frame.inside[frame.inside.index(function.name) :], function.name))
            raise place.fault(f"a cycle: {chain}; a function cannot call itself", call)
        label = given[0] if len(given) == 1 else self._fresh("_".join(given), frame)
        statics: dict[str, Term] = {}
        arguments: dict[str, str] = {}
        for parameter, argument in bind(function, call, place.key, place.text, frame.uses).items():
            if is_static(argument, self.dims):
                statics[parameter] = argument
                continue
            taken_over = {*function.bound_in_repeats, *(given if len(given) > 1 else ())}
            if isinstance(argument, Name) and not argument.carried and argument.name not in taken_over:
                self._check(Expression(place.text, frame.in_section(argument)), place, place.name)
                arguments[parameter] = argument.name
                continue
            inside = replace(place, name=self._fresh(f"{label}_{parameter}", frame))
            if calls(argument, self.functions):
                before += self._call(self.functions[argument.operation], argument, (inside.name,), inside, before)
            else:
                hoisted = self._hoisted(argument, inside, before)
                before.append(self._node(inside.name, hoisted, inside))
            arguments[parameter] = inside.name
        made = Call(function.name, label, given, tuple(arguments.items()), function.checkpoint, branch)
        last = function.result(place.scope.section)
        if isinstance(last.value, Mapping):
            message = f"what '{function.name}' gives is an expression; of a repeat it is NAME.CARRIED"
            raise InvalidExperiment(Fault(last.key, message, uses=(place.key, *frame.uses)))
        expression = read_expression(last.value, last.key)
        if len(given) > 1 and not isinstance(expression.term, Group):
            lines = self._inside(function, replace(made, results=(label,)), statics, expression, place, len(given))
            return [*lines, *self._parts(given, label, place)]
        return self._inside(function, made, statics, expression, place)

    def _inside(
        self,
        function: Function,
        made: Call,
        statics: Mapping[str, Term],
        result: Expression,
        place: Place,
        gives: int = 0,
    ) -> list[Statement]:
        """The lines of a function where a call is `made`; its `result` is taken apart into names that it `gives`."""
        outer, section = place.frame, place.scope.section
        one = len(made.results) == 1
        head = self._name(made.label, place) if one else free(f"{outer.prefix}{made.label}", self.taken)
        frame = Frame(
            env={parameter: outer.env.get(name, name) for parameter, name in made.arguments},
            statics=statics,
            prefix=f"{head}_",
            own=function.own,
            calls=(*outer.calls, made),
            uses=(place.key, *outer.uses),
            inside=(*outer.inside, function.name),
        )
        lines = list(self.statements(function.body(section), place.scope, frame, place.within))
        there = Place(function.result(section).key, result.text, place.scope, frame, place.within, "result")
        term = self._hoisted(frame.filled(result, there.key, place.scope), there, lines)
        # What a call gives has the names that the lines around the call know.
        if one:
            frame.env["result"] = head
            return [*lines, self._node("result", term, there, gives=gives, result=True)]
        assert isinstance(term, Group)
        if len(term.items) != len(made.results):
            message = f"it gives {len(term.items)} values, and {len(made.results)} names stand before the call"
            raise there.fault(message, term)
        for i, (name, part) in enumerate(zip(made.results, term.items, strict=True)):
            frame.env[f"result{i}"] = self._name(name, place)
            lines.append(self._node(f"result{i}", part, there))
        return lines

    # Repeats.

    def _loop(self, line: Written, scope: Scope, frame: Frame, within: Line | None) -> list[Statement]:
        """A repeat, after the lines of the functions that are called where it begins."""
        config, key, name = line.value, line.key, line.names[0]
        check_repeat(config, key, name, self.dims)
        steps, counted = read_steps(config, frame, key, self.dims, scope)
        index = config.get("index", "i")
        place = Place(key, "", scope, frame, within, name)
        known = self._name(name, place)
        origin = Origin(key, frame.uses, frame.calls, name)
        itself = line_of(known, within, origin)
        before: list[Statement] = []
        over, carry = (
            tuple(self._begins(config.get(what, {}), replace(place, key=(*key, what)), before))
            for what in ("over", "carry")
        )
        given = {index, *(carried for carried, _ in (*carry, *over))}
        inside = scope.nested()
        inside.values |= given
        inside.lengths = {known: size for known, size in inside.lengths.items() if known not in given}
        inside.static = {known: size for known, size in inside.static.items() if known not in given}
        lines = of(config["body"], (*key, "body"), scope.section, shared=key[0] in (BOTH, "functions"))
        own = {given for each in lines for given in each.names}
        inside.loops = {n: c for n, c in inside.loops.items() if n not in own}
        inner = frame.in_repeat(given, own) if frame.calls else frame
        body = self.statements(lines, inside, inner, itself)
        carried = {name for name, _ in carry}
        for statement in body:
            if statement.name in scope.values and statement.name not in carried:
                message = f"'{statement.name}' is a name outside the repeat already; carry it, or choose another name"
                raise InvalidExperiment(
                    replace(invalid((*key, "body", statement.name), message).fault, uses=frame.uses)
                )
            if isinstance(statement, Loop) and statement.name in carried:
                raise invalid(
                    (*key, "body", statement.name), f"'{statement.name}' is carried; a repeat cannot be assigned to it"
                )
        stack = tuple(self._stacked(config.get("stack", {}), replace(place, frame=inner), body, given, own))
        locally = tuple(config.get("stack", {}).values())
        checkpoint = read_checkpoint(config.get("checkpoint"), (*key, "checkpoint"))
        unroll = config.get("unroll", not (over or stack))
        return [*before, Loop(itself, steps, index, carry, body, unroll, over, stack, checkpoint, counted, locally)]

    def _begins(
        self, given: Mapping[str, Any], place: Place, before: list[Statement]
    ) -> Iterator[tuple[str, Expression]]:
        """The names that a repeat begins with; the lines of the functions that are called go to `before`."""
        frame = place.frame
        for name, first in given.items():
            key = (*place.key, name)
            expression = read_expression(first, key)
            here = replace(place, key=key, text=expression.text, name=f"{place.name}_{name}")
            term = self._hoisted(frame.filled(expression, key, place.scope), here, before)
            expression = Expression(expression.text, frame.in_section(term), term if frame.calls else None)
            self._check(expression, here, None)
            yield name, expression

    def _stacked(
        self, given: Mapping[str, str], place: Place, body: tuple[Statement, ...], begun: set[str], own: set[str]
    ) -> Iterator[tuple[str, str]]:
        """The names of what is stacked, each with the name that the body gives a value in each step."""
        values = {name for statement in body for name in statement.defines} | begun
        for name, written in given.items():
            head, dot, carried = written.partition(".")
            known = f"{place.frame.env.get(head, head) if place.frame.calls else head}{dot}{carried}"
            if known not in values:
                local = sorted(begun | own)
                message = f"the body has no '{written}'{nearest(written, local) or choices(local)}"
                fault = invalid((*place.key, "stack", name), message).fault
                raise InvalidExperiment(replace(fault, uses=place.frame.uses))
            yield name, known
