"""Rewrites lines as others that give the same values and for which devices send less, before they are derived.

What reads one element of a scan needs no scan, what reads the first elements of a sorted array needs no others, a
trace needs nothing of a product but its diagonal, what joins the last and the first part of an array rolls it, and a
convolution pads its operand with zeros itself, for which edges of blocks are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar, cast

from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.experiment.changing import ChangingGraph
from runner.graph.language.lines import line_of, lines, repeat
from runner.graph.language.operations import OPERATIONS, row_of
from runner.graph.language.operations.linear import convolution
from runner.graph.model import INDEX, Equation, Graph, Operand, Ref, Repeat, entries, kind_of, walk
from runner.graph.source import Line
from runner.graph.spelling import Spelling
from runner.graph.term import NOTHING, Apply, Slice, Term, elements
from runner.programs.derivation.calls import NotStatic, is_number, itemsize
from runner.programs.derivation.scopes import Names, NotDerived
from runner.programs.derivation.sliding import pairs
from runner.programs.derivation.terms import ALL, built, constant, indexed, number, spread


def rewritten(names: Names, layouts: Mapping[int, Spec]) -> Graph | None:
    """The graph of an experiment with lines rewritten; None if there are none to rewrite.

    `layouts`: those of values, by number: a line is rewritten only where what it reads is sharded.
    """
    if not any(equation.operation in _RULES for equation in walk(names.graph)):
        return None
    graph, arrays = names.graph, {array.name: array.layout.spec for array in names.experiment.given}
    laid = {value.number: arrays[value.name] for value in graph.inputs if value.name in arrays} | {**layouts}
    changed = set[int]()
    for loop in filter(None, map(repeat, walk(graph))):
        inputs = {value.name: value.number for value in loop.body.inputs}
        # A carry begins each step in the layout in which the step before ended.
        laid |= {
            inputs[name]: laid[end] for name, end in zip(loop.carry, loop.body.outputs, strict=False) if end in laid
        }
        changed |= {value.number for line in loop.body.equations for value in line.results if value.name in inputs}
    rewriting, terms = _Rewriting.of_names(names, laid), dict[Line, Term]()
    for equation in _every(graph):
        # The name of a carry stands for what the step began with.
        term = None if changed.intersection(names.reads(equation)) else rewriting.equation(equation)
        if term is not None and term != names.statics.spelling.equation(equation):
            terms[line_of(equation)] = term
    return ChangingGraph(_without(graph, rewriting.unread)).changed(terms) if terms else None


def _every(graph: Graph) -> Iterator[Equation]:
    """Yield the lines of a graph and of the bodies of its repeats."""
    for equation in lines(graph):
        if not isinstance(equation.form, Repeat):
            yield equation
        for body in equation.bodies:
            yield from _every(body)


def _without(graph: Graph, unread: Collection[Line]) -> Graph:
    """The graph without lines that nothing reads any more."""
    equations = tuple(
        replace(equation, bodies=tuple(_without(body, unread) for body in equation.bodies))
        for equation in graph.equations
        if equation.form is not None or equation.source.line not in unread
    )
    left_out = {line.name for line in unread if line in {equation.source.line for equation in graph.equations}}
    names = {name: number for name, number in graph.names.items() if name not in left_out}
    return replace(graph, equations=equations, names=names) if unread else graph


_Function = TypeVar("_Function", bound="Callable[[_Rewriting, Equation], Term | None]")

_RULES: dict[str, Callable[[_Rewriting, Equation], Term | None]] = {}
"""The rules by the operation that they replace; one returns None or raises `NotStatic` for what it leaves."""


def _replaces(*operations: str) -> Callable[[_Function], _Function]:
    def register(rule: _Function) -> _Function:
        _RULES.update(dict.fromkeys(operations, rule))
        return rule

    return register


@dataclass(frozen=True)
class _Rewriting(Spelling):
    """Spells equations as they are rewritten.

    `unread`: the lines that nothing reads any more.
    """

    names: Names
    layouts: Mapping[int, Spec]
    unread: set[Line] = field(default_factory=set[Line])

    @classmethod
    def of_names(cls, names: Names, layouts: Mapping[int, Spec]) -> _Rewriting:
        """Build the rewriting of the graph of `names`."""
        spelling = names.statics.spelling
        return cls(spelling.parts, spelling.named, names, layouts)

    def equation(self, equation: Equation) -> Term:
        """The term of an equation."""
        rule = _RULES.get(equation.operation)
        try:
            term = None if rule is None else rule(self, equation)
        except (NotStatic, NotDerived):
            term = None
        return super().equation(equation) if term is None else term

    def producer(self, operand: Operand, readers: Collection[str] = ()) -> Equation | None:
        """The equation whose result is an operand, if nothing else reads that, or only these `readers`, each once."""
        names, equation = self.names, self.names.equation(operand)
        if equation is not None or not isinstance(operand, Ref):
            return equation
        equation, experiment = names.graph.producers.get(operand.number), names.experiment
        if equation is None or equation.form is not None or equation.source.line.path in experiment.constrained:
            return None
        line, kept = equation.source.line, {*experiment.results, *([experiment.grad.of] if experiment.grad else [])}
        reading = names.readers(operand.number)
        several = bool(reading) and not line.loops and all(reader.operation in readers for reader in reading)
        if (
            str(line) in kept
            or not (len(reading) == 1 or several)
            or any(reader.reads.count(operand.number) > 1 for reader in reading)
        ):
            return None
        # A step of a repeat would compute it again, and a name that is bound again may have another value there.
        bound = list(self.named.values())
        again = any(bound.count(self.named[number]) > 1 for number in names.reads(equation) if self.named[number])
        return None if again or any(reader.source.line.loops != line.loops for reader in reading) else equation

    def given(self, equation: Equation, name: str) -> Operand | None:
        """What an argument of an operation is; None if it is not given, or the operation has none of that name."""
        signature = OPERATIONS[equation.operation].signature
        return equation.argument(name, signature) if name in signature.parameters else None

    def argument(self, equation: Equation, name: str) -> Any:
        """The static value of an argument, or its default. Raises `NotStatic`."""
        parameters, operand = OPERATIONS[equation.operation].signature.parameters, self.given(equation, name)
        if operand is not None:
            return self.names.statics.value(operand)
        return parameters[name].default if name in parameters else None

    def blocks(self, operand: Operand, d: int | None = None) -> int:
        """The number of parts into which a value is divided: along one dimension, or in all."""
        spec = self.layouts.get(operand.number, Spec()) if isinstance(operand, Ref) else Spec()
        axes = [*spec.axes] if d is None else [*spec[d]] if d < len(spec) else []
        return self.names.mesh.axis_size(axes)

    def read(self, producer: Equation) -> None:
        """Note that the line of a producer is not read any more."""
        if producer.results[0].name:
            self.unread.add(producer.source.line)


def _places(rewriting: _Rewriting, entry: Operand, size: int) -> range:
    """The places that the entry of a subscript takes of a dimension; empty if they are not known one by one."""
    at = rewriting.names.statics.value(entry)
    if isinstance(at, slice):
        return range(size)[cast("slice[Any, Any, Any]", at)]
    return range(size)[at : at + 1 or None] if isinstance(at, int) else range(0)


@_replaces(INDEX)
def _element(rewriting: _Rewriting, equation: Equation) -> Term | None:
    """Of one element of a scan: the reduction of what is before it. Of the ends of a sorted array: of sorted blocks."""
    producer = rewriting.producer(equation.operands[0])
    if producer is None or not producer.operands:
        return None
    row = row_of(producer.operation)
    if row.scan is None and row.name != "sort":
        return None
    x, taken = producer.operands[0], [*entries(equation.operands[1])]
    typed, result = rewriting.names.type_of(x), rewriting.names.type_of(equation.operands[0])
    axis = rewriting.argument(producer, "axis")
    if typed is None or typed != result or len(taken) > len(typed.shape) or (axis is None and len(typed.shape) > 1):
        return None
    d = (axis or 0) % len(typed.shape)
    others = [item for at, item in enumerate(taken) if at != d]
    if rewriting.blocks(x, d) < 2 or d >= len(taken) or any(kind_of(item) != "slice" for item in others):
        return None
    keeps, places = kind_of(taken[d]) == "slice", _places(rewriting, taken[d], typed.shape[d])
    # A sum of smaller integers has a wider type.
    if not places or not (is_number(typed, "float") or (is_number(typed, "int") and itemsize(typed.dtype) >= 4)):
        return None
    write = _of_sorted if row.scan is None else _of_scan
    term = write(rewriting, producer, typed, d, places, keeps=keeps)
    if term is None:
        return None
    rewriting.read(producer)
    terms = list(map(rewriting.operand, taken))
    terms[d : d + 1] = [ALL] if keeps else []
    return term if all(entry == ALL for entry in terms) else indexed(term, terms)


def _of_scan(rewriting: _Rewriting, scan: Equation, typed: Typed, d: int, places: range, *, keeps: bool) -> Term | None:
    """The element of a scan along `d` at the only one of `places`."""
    kind = OPERATIONS[scan.operation].scan
    assert kind is not None
    options = {"include_initial", "reverse"}.intersection(OPERATIONS[scan.operation].signature.parameters)
    back = any(rewriting.argument(scan, name) for name in sorted(options))
    if len(places) > 1 or (back and "reverse" not in options):
        return None
    if math.isinf(kind.identity) and not is_number(typed, "float"):
        return None
    x, (at,) = rewriting.operand(scan.operands[0]), places
    if at != (0 if back else typed.shape[d] - 1):
        mask = built("arange({n}) " + (">=" if back else "<=") + " {at}", n=typed.shape[d], at=at)
        mask = spread(mask, len(typed.shape) - 1 - d)
        x = built("where({mask}, {x}, {nothing})", mask=mask, x=x, nothing=number(kind.identity))
    return built("{f}({x}, axis={d}" + (", keepdims=True)" if keeps else ")"), f=kind.reduction, x=x, d=d)


def _of_sorted(
    rewriting: _Rewriting, sort: Equation, typed: Typed, d: int, places: range, *, keeps: bool
) -> Term | None:
    """Elements near an end of an array that is sorted along `d`, from those near that end of each sorted block."""
    size, blocks = typed.shape[d], rewriting.blocks(sort.operands[0], d)
    last = size - min(places) < max(places) + 1
    reach = size - min(places) if last else max(places) + 1
    # What is kept of all blocks is sorted on every device, and has to be less than a block.
    if size % blocks or reach * blocks * blocks > size:
        return None
    named = tuple((name, rewriting.operand(operand)) for name, operand in sort.named if name != "axis")
    before, after = typed.shape[:d], typed.shape[d + 1 :]
    x = built(
        "reshape({x}, {shape})", x=rewriting.operand(sort.operands[0]), shape=(*before, blocks, size // blocks, *after)
    )

    def ordered(x: Term, axis: int) -> Term:
        return Apply("sort", (x,), (("axis", constant(axis)), *named))

    part = Slice(constant(-reach), NOTHING, NOTHING) if last else Slice(NOTHING, constant(reach), NOTHING)
    ends = indexed(ordered(x, d + 1), [*[ALL] * (d + 1), part])
    ends = built("reshape({x}, {shape})", x=ends, shape=(*before, blocks * reach, *after))
    first = places[0] - (size - blocks * reach if last else 0)
    if not keeps:
        return indexed(ordered(ends, d), [*[ALL] * d, constant(first)])
    end, step = first + places.step * len(places), None if places.step == 1 else places.step
    bounds = Slice(constant(first or None), constant(end if end >= 0 else None), constant(step))
    return indexed(ordered(ends, d), [*[ALL] * d, bounds])


@_replaces("trace")
def _of_product(rewriting: _Rewriting, equation: Equation) -> Term | None:
    """The trace of a product of matrices: the sum of the products of their elements."""
    producer = rewriting.producer(equation.operands[0]) if equation.operands else None
    if producer is None or len(equation.arguments) > 1 or producer.operation != "matmul" or producer.named:
        return None
    a, b = producer.operands
    types = rewriting.names.type_of(a), rewriting.names.type_of(b)
    if any(typed is None or len(typed.shape) != 2 or not is_number(typed, "float") for typed in types):
        return None
    if max(rewriting.blocks(a), rewriting.blocks(b)) < 2:
        return None
    rewriting.read(producer)
    return built("einsum('ij,ji->', {a}, {b})", a=rewriting.operand(a), b=rewriting.operand(b))


@_replaces("concatenate")
def _of_ends(rewriting: _Rewriting, equation: Equation) -> Term | None:
    """Of an array's last part before its first, along a sharded dimension: the array, rolled."""
    arrays = rewriting.given(equation, "arrays")
    parts = [rewriting.names.equation(part) for part in elements(arrays) or ()]
    if len(parts) != 2 or any(part is None or part.spelled != INDEX for part in parts):
        return None
    subscripts = [part.operands for part in parts if part is not None]
    x, axis = subscripts[0][0], rewriting.argument(equation, "axis")
    typed = rewriting.names.type_of(x)
    if x != subscripts[1][0] or typed is None or not typed.shape or not isinstance(axis, int):
        return None
    d = axis % len(typed.shape)
    takes = [entries(index) for _, index in subscripts]
    others = [entry for taken in takes for at, entry in enumerate(taken) if at != d]
    if rewriting.blocks(x, d) < 2 or any(entry != ALL for entry in others) or min(map(len, takes)) <= d:
        return None
    last, first = (_places(rewriting, taken[d], typed.shape[d]) for taken in takes)
    if not all(kind_of(taken[d]) == "slice" for taken in takes) or first != range(len(first)):
        return None
    if last != range(len(first), typed.shape[d]):
        return None
    return built("roll({x}, {n}, axis={d})", x=rewriting.operand(x), n=len(last), d=d)


_CONVOLUTIONS = tuple(row.name for row in OPERATIONS.values() if row.multiply_adds is convolution)


@_replaces(*_CONVOLUTIONS)
def _of_padded(rewriting: _Rewriting, equation: Equation) -> Term | None:
    """Of a sharded array that is padded with zeros for convolutions alone: the convolution with that padding."""
    source = equation.operands[0]
    pad = rewriting.producer(source, _CONVOLUTIONS)
    x = None if pad is None or pad.operation != "pad" else rewriting.given(pad, "array")
    if pad is None or x is None or rewriting.blocks(x) < 2:
        return None
    if (rewriting.argument(pad, "mode"), rewriting.argument(pad, "constant_values")) != ("constant", 0):
        return None
    inlined = rewriting.names.equation(source) is not None
    readers = [equation] if inlined or not isinstance(source, Ref) else rewriting.names.readers(source.number)
    if any(_padding(rewriting, reader, pad) is None for reader in readers):
        return None
    rewriting.read(pad)
    padding = constant(_padding(rewriting, equation, pad) or ())
    operands = (x, *equation.operands[1:3], *((padding,) if len(equation.operands) > 3 else ()))
    operands += equation.operands[4:]
    named = tuple((name, padding if name == "padding" else part) for name, part in equation.named)
    return Spelling.equation(rewriting, replace(equation, operands=operands, named=named))


_SPACE = "0123456789"


def _padding(rewriting: _Rewriting, convolution: Equation, pad: Equation) -> list[tuple[int, int]] | None:
    """The padding of a convolution together with that of its operand; None if it cannot have both."""
    typed = rewriting.names.type_of(convolution.operands[0])
    if typed is None or rewriting.given(convolution, "lhs_dilation") is not None:
        return None
    rank, widths = len(typed.shape), pairs(rewriting.argument(pad, "pad_width"))
    widths = widths * rank if len(widths) == 1 else widths
    layout = rewriting.argument(convolution, "dimension_numbers")
    left, right = (layout[0], layout[1]) if layout else ("NC" + _SPACE[: rank - 2], "OI" + _SPACE[: rank - 2])
    space = [left.index(letter) for letter in right if letter not in "OI"]
    padding = rewriting.argument(convolution, "padding")
    if isinstance(padding, str):
        padding = [(0, 0)] * len(space) if padding == "VALID" else None
    if padding is None or any(low < 0 or high < 0 for low, high in widths):
        return None
    if any(widths[d] != (0, 0) for d in range(rank) if d not in space):
        return None
    return [(int(a) + widths[d][0], int(b) + widths[d][1]) for (a, b), d in zip(padding, space, strict=True)]
