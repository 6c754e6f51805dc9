"""Finds the lines of a section whose floats have fewer bits in the file than in a module compiled for CPUs.

XLA for CPUs multiplies and sends bfloat16 and other narrow floats as float32; the hardware of an estimate does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.graph.language.operations import row_of
from runner.graph.model import Equation, Graph, Ref
from runner.graph.source import Section

Floats: TypeAlias = Mapping[int, str]
"""The dtypes of the parts of a line, by their numbers."""

WIDE = "float32"
"""The dtype in which CPUs compute narrow floats."""


@dataclass(frozen=True)
class NarrowFloats:
    """The narrow floats of a line: `values`: the widest of all of them; `products`: that of what it multiplies, or None
    if a product has a wide operand."""

    values: str
    products: str | None

    @property
    def share(self) -> float:
        """The bytes of its values, as a share of those in float32."""
        return dtypes.dtype(self.values).itemsize / 4


def narrow(experiment: Experiment, section: Section, floats: Mapping[str, Floats]) -> dict[str, NarrowFloats]:
    """The narrow floats of each line that has any; `floats` are the dtypes of its expressions."""
    graph = experiment.computed(section)
    arrays = {array.name: array.dtype for array in experiment.given}
    by_number = {value.number: arrays.get(value.name, "") for value in graph.inputs}
    every: dict[str, list[str]] = {}
    multiplied: dict[str, list[str]] = {}
    for equation in _followed(graph, by_number):
        line, parts = equation.source.line, floats.get(equation.source.line.path, {})
        dtype = parts.get(equation.source.part, "").removeprefix("weak ")
        by_number |= dict.fromkeys((value.number for value in equation.results), dtype)
        read = [by_number.get(operand.number, "") for operand in equation.flat if isinstance(operand, Ref)]
        every.setdefault(str(line), []).extend([*read, dtype])
        row = row_of(equation.operation)
        if row.contraction is not None or row.multiply_adds is not None or row.costly:
            multiplied.setdefault(str(line), []).extend(read)
    lines: dict[str, NarrowFloats] = {}
    for line, names in every.items():
        if values := _widest([name for name in names if _is_narrow(name)]):
            read = multiplied.get(line, [])
            products = _widest(read) if read and all(map(_is_narrow, read)) else None
            lines[line] = NarrowFloats(values, products)
    return lines


def _followed(graph: Graph, by_number: dict[int, str]) -> Iterator[Equation]:
    """Yield every equation before those of its bodies, whose inputs have the dtypes of its operands."""
    for equation in graph.equations:
        yield equation
        for body in equation.bodies:
            for value, operand in zip(body.inputs, equation.operands, strict=False):
                if isinstance(operand, Ref):
                    by_number.setdefault(value.number, by_number.get(operand.number, ""))
            yield from _followed(body, by_number)


def _is_narrow(name: str) -> bool:
    return name in dtypes.NAMES and dtypes.dtype(name).kind == "float" and dtypes.dtype(name).itemsize < 4


def _widest(names: list[str]) -> str | None:
    return max(names, key=lambda name: dtypes.dtype(name).itemsize, default=None)


def share(nodes: Sequence[str], lines: Mapping[str, NarrowFloats]) -> float:
    """The bytes of the values of some lines, as a share of those in float32."""
    return max((lines[node].share if node in lines else 1.0 for node in nodes), default=1.0)


def product(nodes: Sequence[str], lines: Mapping[str, NarrowFloats]) -> str | None:
    """The dtype of the products of some lines, if all are narrow."""
    names = [lines[node].products for node in nodes if node in lines]
    every = [name for name in names if name is not None]
    return _widest(every) if nodes and len(every) == len(nodes) else None
