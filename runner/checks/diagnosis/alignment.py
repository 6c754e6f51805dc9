"""Takes the values of a function and of its reference; says at which lines they part, if values of the reference mend.

The mistake is at the first value in whose place one of the reference makes the function equal it, or in what that value
is made of and the reference has not: other algorithms have values of their own, and are right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from runner.base.layout import Layout, Mesh, Spec
from runner.base.lazy import dataclass
from runner.checks.reference import PerDevice
from runner.checks.reference.interpreter import sharded
from runner.graph.language.operations import row_of
from runner.graph.model import NAME, Equation, Graph, Ref, Repeat, walk

_CLOSE = 3e-6
"""How far values that are the same may be apart, relative to the largest element: literals have 24 bits."""

_RUNS = 8
"""The largest number of values of a line of the reference that are each tried on their own."""

_PAIRS = 200_000
"""The largest number of equations and values of the reference, multiplied, that are compared."""

Ran = Mapping[int, Sequence[PerDevice]]
"""The values of equations by number, one for each time that they ran."""


@dataclass(frozen=True)
class Meant:
    """Values of the reference in the place of those of an equation of the function.

    - `runs`: for each time that the equation runs, a number of the reference, and which of its values.
    - `shape`: that of the equation; `spec`: how devices have the value, None where it is whole; `turned`: whether it is
      transposed.
    """

    runs: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]
    spec: Spec | None = None
    turned: bool = False

    def values(self, reference: Ran, mesh: Mesh) -> list[PerDevice]:
        """The values, in the order of running."""
        return [self._value(np.asarray(reference[number][run][0]), mesh) for number, run in self.runs]

    def _value(self, whole: np.ndarray, mesh: Mesh) -> PerDevice:
        whole = whole.T if self.turned else whole
        if self.spec is None:
            return [whole.reshape(self.shape)]
        return sharded(Layout(mesh, whole.shape, self.spec), [whole] * mesh.size)


@dataclass(frozen=True)
class Parted:
    """Where a function parts from its reference: by number the values among which the mistake is, those of them that no
    equation reads, so that what passes them on may be wrong, and a value of the reference that mends it.
    """

    values: tuple[int, ...]
    last: tuple[int, ...]
    reference: int


@dataclass(frozen=True)
class Aligned:
    """A function's graph, the values of its equations and inputs, and what tells the lines apart that compute them."""

    graph: Graph
    ran: Ran
    place_of: Callable[[int], Hashable]


class _Lines:
    """The lines of a function, as its user wrote them."""

    def __init__(self, of: Aligned) -> None:
        self._place_of, self._operands = of.place_of, _operands(of.graph)
        self._passing = {e.results[0].number for e in walk(of.graph) if e.form is None and _passes(e)}

    def read(self, number: int) -> set[int]:
        """The values that the line which gives a value reads: those of other lines and of inputs."""
        place = self._place_of(number)

        def inside(each: int) -> Sequence[int]:
            own = each == number or each in self._passing or self._place_of(each) in (place, None)
            return self._operands.get(each, ()) if own else ()

        every = _reached([number], inside)
        return {each for each in every if not inside(each) and each != number}


class Alignment:
    """The values of a function and of its reference, on the same arrays.

    - `function`, `reference`: the two, each with the values of its equations and inputs.
    """

    def __init__(self, function: Aligned, reference: Aligned, mesh: Mesh) -> None:
        graph = function.graph
        self._graph, self._function, self._reference, self._mesh = graph, function.ran, reference.ran, mesh
        self._own, self._meant_lines = _Lines(function), _Lines(reference)
        self._series = [*_series({n: runs for n, runs in reference.ran.items() if _is_whole(runs)}, reference.place_of)]
        self._equations = {e.results[0].number: e for e in walk(graph) if e.form is None}
        self._operands = _operands(graph)
        self._live = self._before(graph.outputs)
        self._given, self._answers = _given(graph), _given(reference.graph)

    def parted(self, mends: Callable[[int, Meant], Ran | None]) -> Parted | None:
        """Return where they part; None if no value of the reference mends the function, in the place of one.

        `mends` returns the function's values with values of the reference in the place of those of an equation; None if
        it does not equal its reference then.
        """
        firsts: dict[int, tuple[Meant, Ran]] = {}
        after = set[int]()
        if len(self._equations) * len(self._series) > _PAIRS:
            return None
        for number in (*(value.number for value in self._graph.inputs), *self._equations):
            if number not in self._live or number in after:
                continue
            tried = ((meant, mends(number, meant)) for meant in self._meant(number))
            mended = next(((meant, ran) for meant, ran in tried if ran is not None), None)
            if mended is not None:
                firsts[number] = mended
                after |= _reached([number], lambda each: self._readers.get(each, ()))
        among = {each for first, (_, ran) in firsts.items() for each in self._around(first, ran, mends)}
        wrong = self._wrongly_read(among, firsts)
        if wrong is None:
            return None
        turned = (first for first, (meant, _) in firsts.items() if meant.runs != tuple(sorted(meant.runs)))
        loops = (loop.results[0].number for first in turned for loop in self._loops(first))
        values = (*loops, *(number for number in self._equations if number in among | wrong))
        last = tuple(first for first in firsts if not self._is_read(first))
        return Parted(values, last, next(iter(firsts.values()))[0].runs[0][0]) if values else None

    def _wrongly_read(self, among: set[int], firsts: Mapping[int, tuple[Meant, Ran]]) -> set[int] | None:
        """The values that lines among which the mistake is read, and the lines of the reference that mend them do not:
        they may be wrong where they are read. None if a line and that of the reference have nothing in common.
        """
        meant = {first: self._meant_lines.read(of.runs[0][0]) for first, (of, _) in firsts.items()}
        if not any(
            self._is_among(number, ran, meant[first])
            for first, (_, ran) in firsts.items()
            for number in (first, *self._own.read(first))
        ):
            return None
        read = {each for number in among for each in self._own.read(number)} & self._equations.keys() - among
        pairs = [(ran, meant[first]) for first, (_, ran) in firsts.items()]
        return {number for number in read if not any(self._is_among(number, *pair) for pair in pairs)}

    def _is_among(self, number: int, function: Ran, reference: set[int]) -> bool:
        """Whether a value, or its sum over devices, is among some of the reference."""
        return any(
            self._same(runs, each)
            for runs in self._forms(function.get(number, ()))
            for each in self._meant_by(runs)
            if each.runs[0][0] in reference
        )

    def _around(self, first: int, mended: Ran, mends: Callable[[int, Meant], Ran | None]) -> set[int]:
        """The values among which the mistake is, if the first value that may be mended is this one.

        What it is made of is right if the reference has it once this value is right: a loop may carry it on.
        """
        known, right = dict[int, bool](), dict[int, bool]()
        is_right = partial(self._is_known, function=mended, known=right)
        among, following, readers = self._before([first], is_right), [first], set[int]()
        takes = self._is_known(first, self._function, {})
        while following:
            number = following.pop()
            for reader in self._readers.get(number, ()):
                if reader not in self._live or reader in readers:
                    continue
                readers.add(reader)
                if reader not in self._equations:
                    following.append(reader)
                    continue
                # What it reads beside this value may be wrong, and this value made up for it.
                among |= self._before([reader], lambda each, of=number: each == of or is_right(each)) - {reader}
                if takes:
                    # The value is right, and not what is meant here: what reads it may be wrong.
                    among.add(reader)
                    if _passes(self._equations[reader]) or (
                        self._is_known(reader, self._function, known) and self._is_mended(reader, mends)
                    ):
                        following.append(reader)
        return among

    def _is_read(self, number: int) -> bool:
        """Whether an equation reads a value, other than to give it a name."""
        readers = (self._equations[each] for each in self._readers.get(number, ()) if each in self._equations)
        return any(reader.operation != NAME for reader in readers)

    def _is_mended(self, number: int, mends: Callable[[int, Meant], Ran | None]) -> bool:
        return any(mends(number, meant) is not None for meant in self._meant(number))

    def _loops(self, number: int) -> Iterator[Equation]:
        """The loops around a value that depends on what they carry: their order of steps may be wrong."""
        before = self._before([number])
        for loop in walk(self._graph):
            form = loop.form
            if isinstance(form, Repeat) and form.region is None and number in loop.bodies[0].defines:
                carried = loop.bodies[0].inputs[: form.carried]
                if any(value.number in before for value in carried):
                    yield loop

    def _before(self, numbers: Sequence[int], until: Callable[[int], bool] = lambda _: False) -> set[int]:
        """These values and what they depend on, but for what values depend on that are known."""
        return _reached(numbers, lambda number: [each for each in self._operands.get(number, ()) if not until(each)])

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        readers: dict[int, list[int]] = {}
        for number, operands in self._operands.items():
            for operand in operands:
                readers.setdefault(operand, []).append(number)
        return readers

    def _is_known(self, number: int, function: Ran, known: dict[int, bool]) -> bool:
        """Whether the reference has a value, of which devices may hold parts, or terms of a sum."""
        if number not in known:
            # What a loop carries is known if it starts so and goes on so.
            known[number] = True
            equation = self._equations.get(number)
            if equation is not None and not (_passes(equation) and self._is_known(equation.reads[0], function, known)):
                forms = self._forms(function.get(number, ()))
                known[number] = any(self._same(runs, meant) for runs in forms for meant in self._meant_by(runs))
            elif equation is None:
                known[number] = all(self._is_known(each, function, known) for each in self._operands.get(number, ()))
        return known[number]

    def _forms(self, runs: Sequence[PerDevice]) -> Iterator[Sequence[PerDevice]]:
        """The values of an equation, and their sums, maxima and minima over devices."""
        if not runs or not all(map(_is_numeric, runs)):
            return
        yield runs
        if all(len(value) == self._mesh.size > 1 for value in runs):
            dimensions = range(len(self._mesh.shape))
            for axes in itertools.chain.from_iterable(itertools.combinations(dimensions, n + 1) for n in dimensions):
                for reduced in (np.sum, np.max, np.min):
                    yield [self._reduced(value, axes, reduced) for value in runs]

    def _reduced(self, value: PerDevice, axes: tuple[int, ...], reduced: Callable[..., np.ndarray]) -> PerDevice:
        held = np.stack([*map(np.asarray, value)]).reshape(*self._mesh.shape, *np.shape(value[0]))
        whole = np.broadcast_to(reduced(held, axis=axes, keepdims=True), held.shape)
        return [*whole.reshape(self._mesh.size, *np.shape(value[0]))]

    def _meant(self, number: int) -> Iterator[Meant]:
        """The values of the reference that an equation may be meant to give, but those that it gives."""
        runs = self._function.get(number, ())
        if runs and all(map(_is_numeric, runs)):
            for each in self._meant_by(runs):
                # A multiple may make up for a scale or a sign elsewhere, where the reference lacks what is given here.
                if (
                    not self._same(runs, each)
                    and not self._is_answer(number, each)
                    and (not self._is_multiple(runs, each) or self._is_known(number, self._function, {}))
                ):
                    yield each

    def _is_answer(self, number: int, meant: Meant) -> bool:
        """Whether values are the reference's results as a whole, where the function goes on to compute its own.

        The largest elements of the answer are the answer, whatever was wrong before. A value that is right where others
        read it, and returned, is returned by mistake.
        """
        whole = meant.spec is None or not any(meant.spec)
        if not whole or not all(each in self._answers for each, _ in meant.runs):
            return False
        return number not in self._given or (self._is_read(number) and self._is_known(number, self._function, {}))

    def _meant_by(self, runs: Sequence[PerDevice]) -> Iterator[Meant]:
        """The values of the reference that fit the shapes of such values."""
        shape, held = np.shape(runs[0][0]), len(runs[0])
        for series in self._series:
            if len(series) != len(runs):
                continue
            number, run = series[0]
            of = np.shape(self._reference[number][run][0])
            turned = len(of) == len(shape) == 2 and min(of) > 1
            for way in (False, True) if turned else (False,):
                whole = of[::-1] if way else of
                if held > 1:
                    yield from (Meant(series, shape, spec, way) for spec in _specs(self._mesh, whole, shape))
                elif whole == shape if way else _without_ones(of) == _without_ones(shape):
                    yield Meant(series, shape, turned=way)

    def _is_multiple(self, runs: Sequence[PerDevice], meant: Meant) -> bool:
        """Whether values of several elements are those of the reference times one number.

        Of a loop that of the first step is compared, which the mistake may not have reached.
        """
        if np.size(runs[0][0]) == 1:
            return False
        first = meant.values(self._reference, self._mesh)[0]
        given, wanted = (
            np.concatenate([np.asarray(part, np.complex128).ravel() for part in value]) for value in (runs[0], first)
        )
        with np.errstate(all="ignore"):
            return _close(given, wanted * (np.vdot(wanted, given) / np.vdot(wanted, wanted)))

    def _same(self, runs: Sequence[PerDevice], meant: Meant) -> bool:
        """Whether values are those of the reference."""
        pairs = zip(runs, meant.values(self._reference, self._mesh), strict=True)
        return all(_close(a, b) for value, other in pairs for a, b in zip(value, other, strict=True))


def _reached(numbers: Sequence[int], following: Callable[[int], Sequence[int]]) -> set[int]:
    """These values, those that follow from them, and so on."""
    reached, next_ones = set[int](), [*numbers]
    while next_ones:
        number = next_ones.pop()
        if number not in reached:
            reached.add(number)
            next_ones += following(number)
    return reached


def _given(graph: Graph) -> set[int]:
    """The values that the results are made of without computing."""
    operands, equations = _operands(graph), {e.results[0].number: e for e in walk(graph) if e.form is None}

    def inside(number: int) -> Sequence[int]:
        equation = equations.get(number)
        if equation is None:
            return operands.get(number, ())
        return equation.reads[:1] if _passes(equation) or row_of(equation.operation).moves in ("shape", "order") else ()

    return _reached(graph.outputs, inside)


def _passes(equation: Equation) -> bool:
    """Whether an equation gives the elements that it reads, in their order."""
    return bool(equation.reads) and (row_of(equation.operation).casts_axes or equation.operation in _PASSING)


_PASSING = (NAME, "broadcast_to", "expand_dims", "squeeze", "astype", "stop_gradient")


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or (a.dtype.kind == "b") != (b.dtype.kind == "b"):
        return False
    if a.dtype.kind not in "fc" and b.dtype.kind not in "fc":
        return bool((a == b).all())
    with np.errstate(all="ignore"):
        size = float(np.abs(b).max(initial=0.0, where=np.isfinite(b)))
        return bool(np.allclose(a, b, rtol=0.0, atol=_CLOSE * size, equal_nan=True))


def _is_numeric(value: PerDevice) -> bool:
    return all(getattr(getattr(part, "dtype", None), "kind", None) in ("b", "i", "u", "f", "c") for part in value)


def _is_whole(runs: Sequence[PerDevice]) -> bool:
    return all(len(value) == 1 and _is_numeric(value) for value in runs)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _specs(mesh: Mesh, whole: tuple[int, ...], block: tuple[int, ...]) -> Iterator[Spec]:
    """How a value of a shape may be sharded into blocks of another."""
    if len(whole) != len(block):
        return
    axes = [(), *((axis,) for axis in mesh.axes), *([mesh.axes] if len(mesh.axes) > 1 else [])]
    of_dimensions = [
        [entry for entry in axes if mesh.axis_size(entry) * size == length]
        for length, size in zip(whole, block, strict=True)
    ]
    for entries in itertools.product(*of_dimensions):
        spec = Spec(entries)
        if len({*spec.axes}) == len(spec.axes):
            yield spec


def _series(reference: Ran, place_of: Callable[[int], Hashable]) -> Iterator[tuple[tuple[int, int], ...]]:
    """The values of the reference that may stand for those of one equation: of one line, or of one that is unrolled."""
    places: dict[Hashable, list[int]] = {}
    for number, runs in reference.items():
        yield tuple((number, run) for run in range(len(runs)))
        if 1 < len(runs) <= _RUNS:
            yield from (((number, run),) for run in range(len(runs)))
        if len(runs) == 1 and (place := place_of(number)) is not None:
            places.setdefault((place, np.shape(runs[0][0])), []).append(number)
    for numbers in places.values():
        for every in range(1, len(numbers) // 2 + 1):
            if len(numbers) % every == 0:
                for first in range(every):
                    series = tuple((number, 0) for number in numbers[first::every])
                    yield series
                    yield series[::-1]


def _operands(graph: Graph) -> dict[int, tuple[int, ...]]:
    """The values that each value is computed from, through regions and repeats."""
    operands: dict[int, tuple[int, ...]] = {}
    for equation in walk(graph):
        if not isinstance(equation.form, Repeat):
            operands |= {result.number: equation.reads for result in equation.results}
            continue
        (body,) = equation.bodies
        given = [operand.number for operand in equation.operands if isinstance(operand, Ref)]
        for at, (value, number) in enumerate(zip(body.inputs, given, strict=False)):
            carried = equation.form.region is None and at < equation.form.carried
            operands[value.number] = (number, body.outputs[at]) if carried else (number,)
        for result, number in zip(equation.results, body.outputs, strict=False):
            operands[result.number] = (number,)
    return operands
