"""Reads the text of `graph` or `per_device`, checks it, and makes the section's graph.

A call `y: swiglu(h, w)` becomes an equation with the lines of the function as its body, in which static arguments are
written out; an argument without a name gets a line before the call. `h: cond(p, f, g, x)` becomes a choice between the
calls `g(x)` and `f(x)`, with a line `h: where(p, …, …)` for readers that compute both branches. `y: map(f, xs)` becomes
a repeat over the slices of `xs` and a line with the stacked results. Each line has a unique name in the section, which
begins with that of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from runner.base.faults import Fault, InvalidExperiment, Key, invalid, nearest
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.experiment.forms import choices
from runner.experiment.frames import Place, ReadingFrame, cycle, free, together
from runner.experiment.functions import RESULT, DefinedFunction, bind, is_static
from runner.experiment.graphs import CallBuilder, GraphBuilder, RepeatBuilder, graph
from runner.experiment.model import Array, FunctionCall, Section
from runner.experiment.plain import located, read_expression
from runner.experiment.remat import read_checkpoint
from runner.experiment.repeats import check_repeat, combined, known_without_arrays, read_steps
from runner.experiment.traced_graphs import put_lines
from runner.experiment.written import BOTH, WrittenLine, of
from runner.graph.language import forms, static
from runner.graph.language.check import VisibleNames, check
from runner.graph.language.forms import is_choice, is_map
from runner.graph.language.lines import at_index
from runner.graph.language.operations import CONSTANTS
from runner.graph.language.syntax import Expression, SyntaxFault
from runner.graph.model import Graph, LoopForm
from runner.graph.term import (
    NOTHING,
    Apply,
    Const,
    Group,
    Lambda,
    Name,
    Term,
    calls,
    children,
    heads,
    mapped,
    name_of,
    names,
    substituted,
)

_MAP = "map(f, xs), or map(lambda x: x @ w, xs)"
"""The syntax of a call of `map`, for messages."""


def read_section(
    lines: Sequence[WrittenLine],
    scope: VisibleNames,
    dims: Mapping[str, int],
    functions: Mapping[str, DefinedFunction],
    given: Iterable[str],
) -> Graph:
    """The graph of a section with the inputs `given`; the names of its lines are added to `scope`."""
    taken = {*dims, *scope.values, *functions, *_everywhere(lines)}
    scope.functions = tuple(functions)
    reader = _SectionReader(dims, functions, taken)
    return graph(given, lambda into: reader.lines(lines, scope, ReadingFrame(), into))


def check_functions(functions: Mapping[str, DefinedFunction], scope: VisibleNames, dims: Mapping[str, int]) -> None:
    """Read each function once, as if it were called with arrays, to find faults in functions that are never called.

    `scope` has the arrays, which functions may read.
    """
    written = (function for function in functions.values() if function.traced is None)
    for function in written:
        for section in ("per_device", "graph") if function.differs else ("per_device",):
            inside = VisibleNames(
                section,
                scope.mesh,
                {*function.inputs, *scope.values},
                dims,
                parameters=frozenset(function.inputs),
                functions=tuple(functions),
            )
            frame = ReadingFrame(inside=(function.name,), hidden=function.own)
            reader = _SectionReader(dims, functions, {*dims, *scope.values, *function.inputs, *functions})
            lines = [*function.body(section), function.result(section)]
            graph(inside.values, partial(reader.lines, lines, inside, frame))


def lengths(arrays: Iterable[Array], section: Section, mesh: Mesh) -> dict[str, int]:
    """The number of slices of each array along its first dimension, as the lines of a section see it."""
    blocks = {a.name: replace(a.layout, spec=a.layout.spec.over(mesh.axes)) for a in arrays}
    shapes = {a.name: a.shape if section == "graph" else blocks[a.name].shard_shape for a in arrays}
    return {name: shape[0] for name, shape in shapes.items() if shape}


def _everywhere(lines: Iterable[WrittenLine]) -> Iterable[str]:
    """The names that lines define, in their repeats too."""
    for line in lines:
        yield from line.names
        if is_mapping(line.value):
            yield str(line.value.get("index", "i"))
            carry, over, body = (line.value.get(entry) for entry in ("carry", "over", "body"))
            yield from map(str, (*(carry if is_mapping(carry) else ()), *(over if is_mapping(over) else ())))
            if is_mapping(body):
                yield from _everywhere([WrittenLine((str(name),), value, ()) for name, value in body.items()])


@dataclass
class _SectionReader:
    """Reads the lines of one section.

    - `taken`: the names that cannot be given to lines of functions.
    """

    dims: Mapping[str, int]
    functions: Mapping[str, DefinedFunction]
    taken: set[str]

    def lines(self, lines: Sequence[WrittenLine], scope: VisibleNames, frame: ReadingFrame, into: GraphBuilder) -> None:
        """Append the equations of lines to a graph."""
        parsed = [None if isinstance(line.value, Mapping) else read_expression(line.value, line.key) for line in lines]
        for position, (line, expression) in enumerate(zip(lines, parsed, strict=True)):
            later = {
                name: known
                for later_line, known in zip(lines[position:], parsed[position:], strict=True)
                for name in later_line.names
            }
            local = replace(scope, later=later)
            if expression is not None:
                self._line(line, expression, local, frame, into)
                continue
            if len(line.names) > 1:
                what = "while" if "while" in (line.value or {}) else "repeat"
                raise invalid(line.key, f"a {what} has one name; its carries are NAME.{line.names[0]}")
            self._loop(line, local, frame, into)

    # A line: the calls in it first, then the rest.

    def _line(
        self, line: WrittenLine, expression: Expression, scope: VisibleNames, frame: ReadingFrame, into: GraphBuilder
    ) -> None:
        term = frame.filled(expression, line.key, scope)
        place = Place(line.key, expression, scope, frame, into, line.names[0])
        if (written_out := self._written_out(term)) is not None:
            written_out(line.names, place)
        else:
            self._given(line.names, self._hoisted(term, place), place)

    def _given(self, given: tuple[str, ...], term: Term, place: Place) -> None:
        """Append the lines that name an expression's value, or its parts."""
        if len(given) == 1:
            self._node(given[0], term, place)
            return
        if isinstance(term, Group):
            if len(term.items) != len(given):
                message = f"it gives {len(term.items)} values for {len(given)} names"
                raise place.fault(message, term)
            if not any(name in given for name in heads(term)):
                for name, part in zip(given, term.items, strict=True):
                    self._node(name, part, place)
                return
        whole = self._fresh(together(given), place)
        self._node(whole, term, place, parts=len(given))
        self._parts(given, whole, place)

    def _parts(self, given: tuple[str, ...], whole: str, place: Place) -> None:
        """Append the lines that name the parts of the value called `whole`."""
        for i, name in enumerate(given):
            part = Expression.of(at_index(Name(whole), Const(i)))
            self._node(name, part.term, replace(place, written=part))

    def _node(self, name: str, term: Term, place: Place, *, parts: int = 0) -> None:
        """Append one line; `name` is its name for the lines around it."""
        expression = self._checked(name, term, place)
        place.into.line(place.line(name, parts=parts), expression)

    def _checked(self, name: str, term: Term, place: Place) -> Expression:
        """The checked expression of a line, whose name can be read from now on."""
        scope, expression = place.scope, Expression(place.text, term)
        self._check(expression, place, name)
        place.frame.named(name, self.taken)
        self._add(name, known_without_arrays(expression, scope), scope)
        return expression

    def _add(self, name: str, size: int | None, scope: VisibleNames) -> None:
        """Add the name of a value, which may be a static integer."""
        scope.values.add(name)
        scope.static.pop(name, None)
        if size is not None:
            scope.static[name] = size

    def _fresh(self, wish: str, place: Place) -> str:
        """A new name that the lines around it do not use."""
        frame, scope = place.frame, place.scope
        name = free(wish, {*scope.values, *scope.loops, *frame.own} if frame.scopes else self.taken)
        scope.generated.add(name)
        return name

    def _check(self, expression: Expression, place: Place, name: str | None) -> None:
        scope = place.scope
        try:
            check(expression, scope)
            static.check(expression, scope.sizes, scope.mesh if scope.section == "per_device" else None)
        except SyntaxFault as fault:
            around = cycle(name, scope) if name else None
            if around and "used before it is assigned" in fault.message:
                fault.message = f"a cycle: {' → '.join(around)}; no order of the lines can compute it"
            raise InvalidExperiment(located(place.key, expression.text, fault, place.frame.uses)) from None

    # Calls of functions.

    def _hoisted(self, term: Term, place: Place) -> Term:
        """The term with each call of a function replaced by a name; the calls are appended before its line."""
        return self._taken_out(combined(term, self.functions, place), place)

    def _taken_out(self, term: Term, place: Place) -> Term:
        if isinstance(term, Lambda):
            return term
        written_out = self._written_out(term)
        if written_out is None:
            return mapped(term, lambda part: self._taken_out(part, place))
        assert isinstance(term, Apply)
        named_after = "" if place.name == RESULT else f"{place.name}_"
        name = self._fresh(f"{named_after}{term.operation}", place)
        written_out((name,), place)
        return Name(name, term.at)

    def _written_out(self, term: Term) -> Callable[[tuple[str, ...], Place], None] | None:
        """Appends what a call becomes, with names for its results; None for other expressions."""
        if calls(term, self.functions):
            return partial(self._call, self.functions[term.operation], term)
        if is_choice(term):
            return partial(self._choice, term)
        return partial(self._map, term) if is_map(term) else None

    def _call(self, function: DefinedFunction, call: Apply, given: tuple[str, ...], place: Place) -> None:
        """Append a call of a function, after the lines of its arguments, and the lines that unpack its result."""
        made = self._called(function, call, given, place)
        made.put()
        if len(made.call.results) < len(given):
            self._parts(given, made.call.label, place)

    def _called(
        self, function: DefinedFunction, call: Apply, given: tuple[str, ...], place: Place, scope: str | None = None
    ) -> CallBuilder:
        """A call of a function, after the lines of its arguments; with a `scope` it is a branch, whose lines are there.

        The lines of others are in the named scope of the name that they define.
        """
        frame = place.frame
        if function.name in frame.inside:
            chain = " → ".join((*frame.inside[frame.inside.index(function.name) :], function.name))
            raise place.fault(f"a cycle: {chain}; a function cannot call itself", call)
        for name in function.captured:
            if name in frame.hidden:
                message = f"'{function.name}' reads the array '{name}', and here '{name}' is another value; rename it"
                raise place.fault(message, call)
        label = given[0] if len(given) == 1 else self._fresh(together(given), place)
        statics: dict[str, Term] = {}
        arguments: dict[str, str] = {}
        taken_over = {*function.bound_in_repeats, *(given if len(given) > 1 else ())}
        for parameter, argument in bind(function, call, place.key, place.text, frame.uses).items():
            if is_static(argument, self.dims):
                statics[parameter] = argument
                continue
            if isinstance(argument, Name) and not argument.carried and argument.name not in taken_over:
                self._check(Expression(place.text, argument), place, place.name)
                arguments[parameter] = argument.name
                continue
            inside = replace(place, name=self._fresh(f"{label}_{parameter}", place))
            if calls(argument, self.functions):
                self._call(self.functions[argument.operation], argument, (inside.name,), inside)
            else:
                self._node(inside.name, self._hoisted(argument, inside), inside)
            arguments[parameter] = inside.name
        result, key = self._result(function, place)
        apart = len(given) > 1 and not isinstance(result.term, Group)
        results = (label,) if apart else given
        made = FunctionCall(function.name, label, results, tuple(arguments.items()), function.checkpoint)
        outer, builder = frame, CallBuilder(place.into, made)
        single = len(made.results) == 1
        head = outer.named(made.label, self.taken) if single else free(f"{outer.prefix}{made.label}", self.taken)
        frame = ReadingFrame(
            statics=statics,
            own=function.own | {*function.captured},
            hidden=function.own,
            prefix=f"{head}_",
            scopes=(*outer.scopes, scope or label),
            uses=(place.key, *outer.uses),
            inside=(*outer.inside, function.name),
        )
        inside, section = place.scope.called(dict(made.arguments)), place.scope.section
        there, term = Place(key, result, inside, frame, builder.body, RESULT), result.term
        if function.traced is not None:
            put_lines(function.traced.lines, builder.body, frame, function.key, self.taken)
        else:
            self.lines(function.body(section), inside, frame, builder.body)
            term = self._hoisted(frame.filled(result, key, inside), there)
        if scope is not None:
            builder.open()
        elements = term.items if not single and isinstance(term, Group) else (term,)
        if len(elements) != len(made.results):
            message = f"it gives {len(elements)} values for {len(made.results)} names"
            raise there.fault(message, term) if function.traced is None else place.fault(message, place.written.term)
        checked, parts = function.traced is None, len(given) if apart else 0
        self._give(builder, elements, there, outer, checked=checked, parts=parts)
        for i, name in enumerate(made.results):
            self._add(name, inside.static.get(RESULT if single else f"{RESULT}{i}"), place.scope)
        return builder

    def _result(self, function: DefinedFunction, place: Place) -> tuple[Expression, Key]:
        """What a function returns, and the key of that line."""
        if function.traced is not None:
            names = tuple(map(Name, function.traced.results))
            return Expression.of(names[0] if len(names) == 1 else Group(names)), (*function.key, RESULT)
        last = function.result(place.scope.section)
        if isinstance(last.value, Mapping):
            message = f"the result of '{function.name}' is an expression, such as NAME.CARRIED of a repeat"
            raise InvalidExperiment(Fault(last.key, message, uses=(place.key, *place.frame.uses)))
        return read_expression(last.value, last.key), last.key

    def _give(
        self,
        builder: CallBuilder,
        elements: Sequence[Term],
        there: Place,
        outer: ReadingFrame,
        *,
        checked: bool = True,
        parts: int = 0,
    ) -> None:
        """Append the lines of a call's results, which have the names that the lines around the call know."""
        single = len(elements) == 1
        for i, (name, part) in enumerate(zip(builder.call.results, elements, strict=True)):
            label = RESULT if single else f"{RESULT}{i}"
            there.frame.names[label] = outer.named(name, self.taken)
            expression = self._checked(label, part, there) if checked else Expression(there.text, part)
            builder.give(there.line(label, parts=parts, result=single), expression)

    # Repeats.

    def _loop(self, line: WrittenLine, scope: VisibleNames, frame: ReadingFrame, into: GraphBuilder) -> None:
        """Append a repeat, after the calls in its initial values."""
        config, key, name = line.value, line.key, line.names[0]
        check_repeat(config, key, name, self.dims)
        steps, counted = read_steps(config, frame, key, self.dims, scope)
        index = config.get("index", "i") if "repeat" in config else ""
        place = Place(key, Expression("", NOTHING), scope, frame, into, name)
        frame.named(name, self.taken)
        over, carry = (
            dict(self._begins(config.get(what, {}), replace(place, key=(*key, what)))) for what in ("over", "carry")
        )
        repeat = RepeatBuilder(into, frame.line(name, into.within, key), carry, over, index)
        given = {*((index,) if index else ()), *carry, *over}
        inside = scope.nested()
        inside.values |= given
        inside.lengths = {known: size for known, size in inside.lengths.items() if known not in given}
        inside.static = {known: size for known, size in inside.static.items() if known not in given}
        lines = of(config["body"], (*key, "body"), inside.section, shared=key[0] in (BOTH, "functions"))
        own = {given for inner_line in lines for given in inner_line.names}
        inside.loops = {n: c for n, c in inside.loops.items() if n not in own}
        inner = frame.in_repeat(given, own)
        self.lines(lines, inside, inner, repeat.body)
        for inner_line in lines:
            for known in inner_line.names:
                if known in scope.values and known not in carry:
                    message = f"'{known}' is a name outside the repeat already; carry it, or choose another name"
                    raise InvalidExperiment(replace(invalid((*key, "body", known), message).fault, uses=frame.uses))
                if known in inside.loops and known in carry:
                    message = f"'{known}' is carried; a repeat cannot be assigned to it"
                    raise invalid((*key, "body", known), message)
        values = {*given, *(name for name in own if name not in inside.loops)}
        values |= {f"{name}.{result}" for name in own for result in inside.loops.get(name, ())}
        stack: Mapping[str, str] = config.get("stack", {})
        for stacked, written in stack.items():
            if written not in values:
                known = sorted(given | own)
                message = f"the body has no '{written}'{nearest(written, known) or choices(known)}"
                raise InvalidExperiment(replace(invalid((*key, "stack", stacked), message).fault, uses=frame.uses))
        checkpoint = read_checkpoint(config.get("checkpoint"), (*key, "checkpoint"))
        unroll = config.get("unroll", not (over or stack or steps is None))
        going = config.get("while", "")
        repeat.put(LoopForm(steps, index, stack, going, unroll=unroll, checkpoint=checkpoint), counted)
        scope.loops[name] = (*carry, *stack)

    def _begins(self, given: Mapping[str, Any], place: Place) -> Iterator[tuple[str, Expression]]:
        """The names and initial values of a repeat, after the calls in these."""
        for name, first in given.items():
            key = (*place.key, name)
            written = read_expression(first, key)
            here = replace(place, key=key, written=written, name=f"{place.name}_{name}")
            expression = Expression(written.text, self._hoisted(place.frame.filled(written, key, place.scope), here))
            self._check(expression, here, None)
            yield name, expression

    # Choices.

    def _choice(self, call: Apply, given: tuple[str, ...], place: Place) -> None:
        """Append the choice for a call of `cond` or `switch`, after the lines of its operands."""
        asked = forms.read(call)
        if isinstance(asked, str):
            raise place.fault(asked, call)
        outer = place.frame
        label = given[0] if len(given) == 1 else self._fresh(together(given), place)
        hidden = {name for case in asked.cases for name in self._hides(case)} | set(given if given[1:] else ())
        on = self._held(asked.on, f"{label}_{'on' if asked.name == 'cond' else 'index'}", hidden, place)
        operands = [
            operand if is_static(operand, self.dims) else self._held(operand, f"{label}_x", hidden, place)
            for operand in asked.operands
        ]
        names = outer.names | {name: outer.named(name, self.taken) for name in given}
        # The values of a branch are only visible in that branch.
        frame = replace(outer, own=outer.own | set(given), names=names, scopes=(*outer.scopes, label))
        inside = replace(place, frame=frame, scope=place.scope.nested())
        branches: list[CallBuilder] = []
        for i, case in enumerate(asked.cases):
            word, scope = case.name if isinstance(case, Name) else asked.words[i], f"branch_{i}_fun"
            results = tuple(self._fresh(f"{name}_{word}", inside) for name in given)
            if isinstance(case, Lambda):
                branches.append(self._lambda(case, operands, f"{label}_{word}", results, inside, scope, place.scope))
            else:
                function = self._function(case, place)
                self._gives(function, given, place, case)
                handed = Apply(function.name, tuple(operands), at=call.at)
                branches.append(self._called(function, handed, results, inside, scope))
        taken = [
            tuple(Name(branch.call.results[i], case.at) for branch, case in zip(branches, asked.cases, strict=True))
            for i in range(len(given))
        ]
        terms = {name: _taken(asked.name, on, parts, call) for name, parts in zip(given, taken, strict=True)}
        read = {name: self._checked(name, term, inside) for name, term in terms.items()}
        gives = [(inside.line(name, result=len(given) == 1), expression) for name, expression in read.items()]
        for name in given:
            self._add(name, None, place.scope)
        place.into.choice(FunctionCall(asked.name, label, given, (("on", on.name),)), branches, gives)

    def _hides(self, case: Term) -> frozenset[str]:
        function = self.functions.get(case.name) if isinstance(case, Name) else None
        return function.bound_in_repeats if function is not None else frozenset()

    def _function(self, case: Term, place: Place) -> DefinedFunction:
        if isinstance(case, Name) and case.name in self.functions:
            return self.functions[case.name]
        what = f"'{case.name}' is none" if isinstance(case, Name) else "this is none"
        form = "functions of the experiment, or lambdas: lambda x: x * 2"
        raise place.fault(f"a choice is among {form}; {what}{self._hint(case)}", case)

    def _hint(self, term: Term) -> str:
        """A suggestion of the experiment's functions for a misspelt one."""
        known = tuple(self.functions)
        return (nearest(term.name, known) if isinstance(term, Name) else "") or (choices(known) if known else "")

    def _gives(self, function: DefinedFunction, given: tuple[str, ...], place: Place, case: Term) -> None:
        value = function.result(place.scope.section)
        term = None if isinstance(value.value, Mapping) else read_expression(value.value, value.key).term
        count = len(term.items) if isinstance(term, Group) else 1
        if count != len(given):
            raise place.fault(_unlike(f"'{function.name}'", count, given), case)

    def _held(self, operand: Term, wish: str, hidden: set[str], place: Place) -> Name:
        """An operand as a name; if it is another expression, a line for it is appended."""
        hidden = {*hidden, *self.dims, *CONSTANTS}
        if isinstance(operand, Name) and not operand.carried and operand.name not in hidden:
            return operand
        inside = replace(place, name=self._fresh(wish, place))
        self._node(inside.name, self._hoisted(operand, inside), inside)
        return Name(inside.name, operand.at)

    def _lambda(
        self,
        case: Lambda,
        operands: list[Term],
        called: str,
        given: tuple[str, ...],
        place: Place,
        scope: str,
        known: VisibleNames,
    ) -> CallBuilder:
        """The call of a lambda, under the name `called`; it may read the names that are `known` around the choice."""
        parameters = case.parameters
        if len(parameters) != len(operands):
            message = f"the lambda takes {len(parameters)}, and {len(operands)} operands are given"
            raise place.fault(message, case)
        body = substituted(case.body, dict(zip(parameters, operands, strict=True)).get)
        elements = body.items if isinstance(body, Group) else (body,)
        if len(elements) != len(given):
            raise place.fault(_unlike("the lambda", len(elements), given), case.body)
        outer = place.frame
        held = {*self.dims, *CONSTANTS, *self.functions, *forms.CALLING}
        free_names = [name for name in _free(body) if name.name not in held]
        for name in free_names:
            self._check(Expression(place.text, name), replace(place, scope=replace(known, bound=parameters)), None)
        read = tuple(dict.fromkeys(name.name for name in free_names))
        label = given[0] if len(given) == 1 else self._fresh(together(given), place)
        first, *_ = [outer.named(name, self.taken) for name in given]
        frame = replace(outer, names=dict(outer.names), prefix=f"{first}_", scopes=(*outer.scopes, scope))
        builder = CallBuilder(place.into, FunctionCall(called, label, given, tuple((name, name) for name in read)))
        here = replace(place, frame=frame, scope=known.nested(), into=builder.body, name=RESULT)
        hoisted = [self._hoisted(part, here) for part in elements]
        builder.open()
        self._give(builder, hoisted, replace(here, into=builder.body), outer)
        for name in given:
            self._add(name, None, place.scope)
        return builder

    # Maps.

    def _map(self, call: Apply, given: tuple[str, ...], place: Place) -> None:
        """Append the repeat for a call of `map` and the line with its result, after the lines of its array."""
        if len(call.operands) != 2 or any(name != "length" for name, _ in call.named):
            raise place.fault(f"map takes a function and an array: {_MAP}", call)
        label, *more = given
        if more:
            raise place.fault("a map gives one array; for several, write a repeat with 'over' and 'stack'", call)
        function, xs = call.operands
        frame, scope = place.frame, place.scope
        array = self._held(xs, f"{label}_xs", set(), place) if name_of(xs) is None else xs
        over = Expression(place.text, array)
        self._check(over, place, label)
        steps = self._length(call, array, place)
        head = self._fresh(f"{label}_map", place)
        frame.named(head, self.taken)
        parameter = self._parameter(function, label, place)
        index = self._fresh(f"{label}_step", place)
        result = self._fresh(f"{label}_each", place)
        inside = scope.nested()
        inside.values |= {parameter, index}
        inside.lengths = {name: size for name, size in inside.lengths.items() if name != parameter}
        repeat = RepeatBuilder(place.into, frame.line(head, place.into.within, place.key), {}, {parameter: over}, index)
        here = replace(
            place, scope=inside, frame=frame.in_repeat({parameter, index}, {result}), into=repeat.body, name=result
        )
        self._step(function, parameter, result, here, call)
        repeat.put(LoopForm(steps, index, {label: result}))
        scope.loops[head] = (label,)
        self._node(label, Name(f"{head}.{label}", call.at), place)
        scope.lengths[label] = steps

    def _parameter(self, function: Term, label: str, place: Place) -> str:
        if not isinstance(function, Lambda):
            return self._fresh(f"{label}_x", place)
        if len(function.parameters) != 1:
            raise place.fault(f"the mapped function takes one slice: {_MAP}", function)
        return function.parameters[0]

    def _step(self, function: Term, parameter: str, result: str, place: Place, call: Apply) -> None:
        """Append the lines of one step."""
        if isinstance(function, Lambda):
            self._node(result, self._hoisted(function.body, place), place)
            return
        mapped = self._mapped(function, place)
        handed = Apply(mapped.name, (Name(parameter, function.at),), at=call.at)
        self._call(mapped, handed, (result,), place)

    def _mapped(self, function: Term, place: Place) -> DefinedFunction:
        if isinstance(function, Name) and function.name in self.functions:
            return self.functions[function.name]
        message = f"map takes a function of the experiment, or a lambda: {_MAP}{self._hint(function)}"
        raise place.fault(message, function)

    def _length(self, call: Apply, array: Term, place: Place) -> int:
        """The number of slices."""
        scope: VisibleNames = place.scope
        for _, length in call.named:
            if not scope.parameters.isdisjoint(names(length)):
                return 1
            mesh = scope.mesh if scope.section == "per_device" else None
            try:
                return static.evaluate(Expression(place.text, length), {**scope.sizes, **scope.static}, mesh)
            except SyntaxFault as fault:
                raise place.fault(fault.message, length) from None
        name = str(name_of(array))
        if name in scope.parameters:
            # The function is read without a call, so the number of slices is unknown.
            return 1
        if name not in scope.lengths:
            message = "the number of slices is unknown without arrays; give it: map(f, xs, length=N)"
            raise place.fault(message, array)
        return scope.lengths[name]


def _unlike(what: str, count: int, given: tuple[str, ...]) -> str:
    gives = "one value" if count == 1 else f"{count} values"
    names = "one name" if len(given) == 1 else f"{len(given)} names"
    return f"{what} gives {gives} for {names}; write a, b: cond(p, f, g, x) where both give (a, b)"


def _taken(name: str, on: Name, parts: tuple[Name, ...], call: Apply) -> Term:
    """The value of the selected branch; an index out of range selects the nearest branch."""
    if name == "cond":
        return Apply("where", (on, parts[1], parts[0]), at=call.at)
    # Each part needs columns of its own.
    compared = None if call.at is None else (call.at[0], call.at[0] + len(name))
    taken: Term = parts[-1]
    for i, part in reversed(list(enumerate(parts[:-1]))):
        index = Name(on.name, on.at)
        condition = Apply("less_equal", (index, Const(i, on.at)), spelled="operator", at=compared)
        taken = Apply("where", (condition, part, taken), at=call.at)
    return taken


def _free(term: Term) -> Iterator[Name]:
    """The names that an expression reads, without the parameters of lambdas in it."""
    if isinstance(term, Lambda):
        yield from (name for name in _free(term.body) if name.name not in term.parameters)
    elif isinstance(term, Name):
        yield term
    else:
        for child in children(term):
            yield from _free(child)
