"""Interprets a section again and again with a few of its equations changed, and computes only what that changes.

The values of the unchanged section are kept by equation and operands, so that an equation whose operands are the same
objects has its value at once: whatever is not downstream of a change, in every step of a loop and inside of regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from runner.base.layout import Layout, Spec, first_holders
from runner.base.lazy import dataclass
from runner.checks.reference.arithmetic import Arithmetic
from runner.checks.reference.decisions import PerDevice, Script
from runner.checks.reference.interpreter import WHOLE, Interpreter, sharded
from runner.experiment.model import Array, Experiment, Section
from runner.graph.language.counterparts.promotion import x64
from runner.graph.language.operations import row_of
from runner.graph.model import Equation, Graph, Region, Repeat
from runner.graph.source import Line, Source

_RECORDED = 64
"""The largest number of values of a line that are recorded: those of the first steps of a loop."""

_ELEMENTS = 50_000_000
"""The largest number of elements that are kept; what is computed after them is computed again each time."""

_ELEMENTS_OF_ONE = 10_000
"""The elements of a value, and `_PRODUCTS_OF_ONE` multiplications of a contraction, that NumPy computes in the time
that it takes to start computing an equation.
"""

_PRODUCTS_OF_ONE = 400_000

_KNOWN = 1 / 16
"""The work of an equation whose value is known, in computed ones."""


class Exhausted(Exception):
    """The work that a search may take is done."""


@dataclass
class Work:
    """The work of a search in equations of small values, so that what it finds does not depend on the machine's speed.

    - `done`: so far; `most`: what may be done.
    """

    done: float = 0.0
    most: float = math.inf

    def add(self, equations: float) -> None:
        """Count work. Raises `Exhausted` where it is more than may be done."""
        self.done += equations
        if self.done > self.most:
            raise Exhausted


@dataclass
class _Kept:
    """What is known of the unchanged section."""

    values: dict[tuple[object, ...], Any] = field(default_factory=dict[tuple[object, ...], Any])
    operands: list[Any] = field(default_factory=list[Any])
    """The objects whose identities are in the keys, kept so that no other object gets them."""
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """The shapes of the values of lines, by number."""
    elements: int = 0
    filling: bool = True


@dataclass
class _Remembering(Interpreter):
    kept: _Kept = field(default_factory=_Kept)
    shaped: bool = False
    """Whether lines must keep their shapes."""
    spent: Work = field(default_factory=Work)
    given: Mapping[int, Iterator[PerDevice]] = field(default_factory=dict[int, Iterator[PerDevice]])
    """Values of lines, by number, in the order of running, that stand in the place of what the lines compute."""
    recording: bool = False
    executed: dict[Line, list[PerDevice]] = field(default_factory=dict[Line, list[PerDevice]])
    """The first values of lines and of their parts, in the order of running, if they are recorded."""
    ran: dict[int, list[PerDevice]] = field(default_factory=dict[int, list[PerDevice]])
    """Those of each equation, and one more where there are more than are recorded."""
    counted: set[int] = field(default_factory=set[int])
    """The numbers of the values that are computed of no array: they may have another length, as what a loop is over."""
    joined: list[PerDevice] = field(default_factory=list[PerDevice])
    """What the devices had where the results of a region were joined, in the order of running."""

    def named(self, names: Mapping[str, int]) -> dict[str, PerDevice]:
        """The values with these numbers, by these names."""
        return {name: self.values[number] for name, number in names.items()}

    def run(self, graph: Graph, kept: frozenset[int]) -> None:
        for equation in graph.equations:
            form = equation.form
            if isinstance(form, Repeat) and form.region is not None:
                self._region(equation, form.region)
            elif isinstance(form, Repeat) and form.going is not None:
                self._while(equation, form, form.going, frozenset())
            elif isinstance(form, Repeat):
                self._repeat(equation, form, frozenset())
            else:
                self._line(equation, frozenset())

    def _once(self, key: tuple[object, ...], operands: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """What the key has, or else what is computed; kept while the unchanged section is interpreted."""
        key = (*key, *map(id, operands))
        value = self.kept.values.get(key)
        if value is None:
            self.computed += 1
            functions, elements = self.computed, self.work
            value = compute()
            self.spent.add(1 + self.computed - functions + (self.work - elements) / _ELEMENTS_OF_ONE)
            if self.kept.filling:
                self.kept.values[key] = value
                self.kept.operands += operands
                self.kept.elements += sum(getattr(part, "size", 0) for part in {id(v): v for v in value}.values())
                self.kept.filling = self.kept.elements < _ELEMENTS
        else:
            self.spent.add(_KNOWN)
        return value

    def _line(self, equation: Equation, gone: frozenset[int]) -> None:
        (result,) = equation.results
        if result.number in self.given:
            value = self.values[result.number] = next(self.given[result.number])
            self.ran.setdefault(result.number, []).append(value)
            return

        def compute() -> PerDevice:
            Interpreter._line(self, equation, frozenset())
            value = self.values[result.number]
            self.spent.add(_products(equation, [self.values[number] for number in equation.reads], value))
            return value

        read = (self.values[number] for number in equation.reads)
        value = self.values[result.number] = self._once(("line", self.mesh.size), (equation, *read), compute)
        if self.recording:
            if len(executed := self.executed.setdefault(equation.source.line, [])) < _RECORDED:
                executed.append(value)
            if len(ran := self.ran.setdefault(result.number, [])) <= _RECORDED:
                ran.append(value)
        if self.counted.issuperset(equation.reads):
            self.counted.add(result.number)
        if equation.source.whole:
            # A line may give a tuple, which has no shape.
            shape = getattr(value[0], "shape", ())
            if self.kept.filling:
                self.kept.shapes[result.number] = shape
            elif (
                self.shaped
                and result.number not in self.counted
                and self.kept.shapes.get(result.number, shape) != shape
            ):
                raise ValueError(f"{equation.source.line} has another shape than before")

    def _counter(self, step: int, *, unroll: bool) -> PerDevice:
        key = ("counter", step, unroll, self.mesh.size)
        return self._once(key, (), lambda: Interpreter._counter(self, step, unroll=unroll))

    def _slice(self, step: int, whole: PerDevice) -> PerDevice:
        return self._once(("slice", step), (whole,), lambda: Interpreter._slice(self, step, whole))

    def _stacked(self, steps: list[PerDevice]) -> PerDevice:
        return self._once(("stack",), tuple(steps), lambda: Interpreter._stacked(self, steps))

    def _as_array(self, value: PerDevice, source: Source) -> PerDevice:
        if not isinstance(value[0], bool | int | float | complex):
            return value
        return self._once(("array", source.line.path), (value,), lambda: Interpreter._as_array(self, value, source))

    def _shards(self, held: PerDevice, spec: Spec, *, whole: bool) -> PerDevice:
        return self._once(("shards", spec, whole), (held,), lambda: Interpreter._shards(self, held, spec, whole=whole))

    def _joined(
        self, held: PerDevice, layout: Layout, region: Region, equation: Equation, line: Equation | None
    ) -> PerDevice:
        def compute() -> PerDevice:
            return Interpreter._joined(self, held, layout, region, equation, line)

        self.joined.append(held)
        if not self.copies:
            # Of values that are to be copies and differ, only the unchanged section has one.
            return compute()
        return self._once(("joined", layout.spec, region.manual), (held,), compute)


def _products(equation: Equation, operands: list[PerDevice], value: PerDevice) -> float:
    """The work of the multiplications of a contraction, in equations."""
    row = row_of(equation.operation)
    if row.contraction is None and not row.costly:
        return 0.0
    first, second = (*sorted((getattr(operand[0], "size", 1) for operand in operands), reverse=True), 1, 1)[:2]
    # Of matrices of m×k, k×n and m×n the product of the sizes is (m·k·n)².
    each = math.sqrt(float(first) * second * getattr(value[0], "size", 1))
    return each * len({*first_holders(value)}) / _PRODUCTS_OF_ONE


class Rerun:
    """A section on some arrays, which is interpreted with and without changes.

    - `graph`: the section unchanged; `values`: all of its values, by the names that lines give them.
    - `ran`: the values of its inputs and equations by number, each time that they ran, but of those that ran often.
    - `work`: counts what is computed, in each step of a loop and on each device with values of its own.
    - `shaped`: whether changed lines must keep their shapes, as those of a function whose shapes JAX has traced.
    """

    def __init__(
        self,
        experiment: Experiment,
        section: Section,
        arrays: Mapping[str, np.ndarray],
        arithmetic: Arithmetic,
        script: Callable[[], Script],
        most: int,
        *,
        shaped: bool = False,
        work: Work | None = None,
    ) -> None:
        self.graph = experiment.computed(section)
        self.work = work or Work()
        self._experiment, self._arithmetic, self._script, self._most = experiment, arithmetic, script, most
        self._shaped = shaped
        self._mesh = experiment.mesh if section == "per_device" else WHOLE
        self._kept = _Kept()
        self._inputs = {
            array.name: self._block(array, arithmetic.held(arrays[array.name], experiment.x64, array.dtype))
            for array in experiment.given
        }
        ran = self._run(self.graph, copies=False, recording=True)
        self.values, self._joined, self.executed = ran.named(self.graph.names), ran.joined, ran.executed
        self.ran = self._recorded(ran)
        self._kept.filling = False

    @property
    def inputs(self) -> list[PerDevice]:
        """What the section is given."""
        return [*self._inputs.values()]

    def _block(self, array: Array, whole: np.ndarray) -> PerDevice:
        if self._mesh == WHOLE:
            return [whole]
        return sharded(self._experiment.block(array.layout), [whole] * self._mesh.size)

    def changed(self, graph: Graph, keep: Iterable[str]) -> dict[str, PerDevice]:
        """The values of these names in a graph that has most of its equations from the unchanged one.

        Raises what `interpret` raises, and `OverflowError` for a value that is much larger than any of the section's.
        """
        return self._run(graph, copies=True).named({name: graph.names[name] for name in keep})

    def executed_in(self, graph: Graph) -> dict[Line, list[PerDevice]]:
        """The first values of the lines of such a graph and of their parts, in the order of running. Raises as
        `changed`.
        """
        return self._run(graph, copies=True, recording=True).executed

    def with_values(
        self, number: int, values: Iterable[PerDevice], keep: Iterable[str]
    ) -> tuple[dict[str, PerDevice], dict[int, list[PerDevice]]]:
        """The values of these names, and those of all equations as `ran`, if an equation gave other values each time
        that it runs. Raises what `interpret` raises.
        """
        ran = self._run(self.graph, copies=True, given={number: iter(values)}, recording=True)
        return ran.named({name: self.graph.names[name] for name in keep}), self._recorded(ran)

    def _recorded(self, ran: _Remembering) -> dict[int, list[PerDevice]]:
        inputs = {value.number: [self._inputs[value.name]] for value in self.graph.inputs}
        return inputs | {number: values for number, values in ran.ran.items() if len(values) <= _RECORDED}

    def unmoved(self, graph: Graph, keep: Iterable[str]) -> bool:
        """Whether these names have the values of the unchanged section, and each device does what it joins in a region.

        What specs promise to be copies may differ, as in a wrong section. Raises what `interpret` raises.
        """
        ran = self._run(graph, copies=False)
        values = ran.named({name: graph.names[name] for name in keep})
        before = [*self._joined, *(self.values[name] for name in values)]
        return same_values(before, [*ran.joined, *values.values()])

    def _run(
        self,
        graph: Graph,
        *,
        copies: bool,
        given: Mapping[int, Iterator[PerDevice]] | None = None,
        recording: bool = False,
    ) -> _Remembering:
        """Interpret a graph."""
        experiment = self._experiment
        interpreter = _Remembering(
            self._mesh, experiment.mesh, experiment.dims, experiment.x64, self._arithmetic, self._script(),
            None if self._kept.filling else self._most, copies=copies, kept=self._kept,
            shaped=self._shaped, given=given or {}, spent=self.work, recording=recording,
        )  # fmt: skip
        interpreter.values = {
            value.number: next(interpreter.given[value.number])
            if value.number in interpreter.given
            else self._inputs[value.name]
            for value in graph.inputs
        }
        with np.errstate(all="ignore"), x64(experiment.x64):
            interpreter.run(graph, frozenset())
        return interpreter


_CLOSE = 1e-9
"""How far values that are the same may be apart by rounding, relative to the larger one."""


def same_values(before: Sequence[PerDevice], after: Sequence[PerDevice]) -> bool:
    """Whether each device has the same values."""
    return len(before) == len(after) and all(map(_same, before, after))


def _same(before: PerDevice, after: PerDevice) -> bool:
    return len(before) == len(after) and all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
        for a, b in zip(before, after, strict=True)
    )
