"""Finds the lines of a section whose floats have fewer bits in the file than in a module compiled for CPUs.

XLA for CPUs multiplies and sends bfloat16 and other narrow floats as float32; the hardware of an estimate does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from runner import dtypes
from runner.evidence.model import Collective
from runner.evidence.work import Kind, LineWork, ModuleWork
from runner.experiment.model import Experiment
from runner.graph.model import Equation, Graph, Ref
from runner.graph.source import Section
from runner.language.operations import OPERATIONS

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
    known = {value.number: arrays.get(value.name, "") for value in graph.inputs}
    every: dict[str, list[str]] = {}
    multiplied: dict[str, list[str]] = {}
    for equation in _followed(graph, known):
        line, parts = equation.source.line, floats.get(equation.source.line.path, {})
        dtype = parts.get(equation.source.part, "").removeprefix("weak ")
        known |= dict.fromkeys((value.number for value in equation.results), dtype)
        read = [known.get(operand.number, "") for operand in equation.flat if isinstance(operand, Ref)]
        every.setdefault(str(line), []).extend([*read, dtype])
        row = OPERATIONS.get(equation.operation)
        if row is not None and (row.contraction is not None or row.multiply_adds is not None or row.costly):
            multiplied.setdefault(str(line), []).extend(read)
    lines: dict[str, NarrowFloats] = {}
    for line, names in every.items():
        if values := _widest([name for name in names if _is_narrow(name)]):
            read = multiplied.get(line, [])
            products = _widest(read) if read and all(map(_is_narrow, read)) else None
            lines[line] = NarrowFloats(values, products)
    return lines


def _followed(graph: Graph, known: dict[int, str]) -> Iterator[Equation]:
    """Yield every equation before those of its bodies, whose inputs have the dtypes of its operands."""
    for equation in graph.equations:
        yield equation
        for body in equation.bodies:
            for value, operand in zip(body.inputs, equation.operands, strict=False):
                if isinstance(operand, Ref):
                    known.setdefault(value.number, known.get(operand.number, ""))
            yield from _followed(body, known)


def _is_narrow(name: str) -> bool:
    return name in dtypes.NAMES and dtypes.dtype(name).kind == "float" and dtypes.dtype(name).itemsize < 4


def _widest(names: list[str]) -> str | None:
    return max(names, key=lambda name: dtypes.dtype(name).itemsize, default=None)


def of_work(work: ModuleWork, lines: Mapping[str, NarrowFloats]) -> ModuleWork:
    """The work of a module compiled for CPUs, with the bits that the file's floats have.

    What belongs to no line is what converts them, and is not counted.
    """
    if not lines:
        return work
    return replace(work, lines=[_of_line(line, lines) for line in work.lines if line.nodes or line.flops])


def of_collective(collective: Collective, lines: Mapping[str, NarrowFloats]) -> Collective:
    """A collective with the bytes that the file's floats have."""
    share = _share(collective.nodes, lines)
    if collective.dtype != WIDE or share == 1:
        return collective
    sizes = (None if size is None else int(size * share) for size in (collective.bytes_in, collective.bytes_out))
    bytes_in, bytes_out = sizes
    return replace(collective, bytes_in=bytes_in, bytes_out=bytes_out)


def _of_line(line: LineWork, lines: Mapping[str, NarrowFloats]) -> LineWork:
    products = [lines[node].products for node in line.nodes if node in lines]
    narrow_products = [name for name in products if name is not None]
    flops: dict[Kind, float] = {}
    for (dtype, precision), many in line.flops.items():
        all_narrow = bool(products) and len(narrow_products) == len(line.nodes)
        kind = (_widest(narrow_products) or dtype) if dtype == WIDE and all_narrow else dtype
        flops[kind, precision] = flops.get((kind, precision), 0.0) + many
    return replace(line, flops=flops, bytes=line.bytes * _share(line.nodes, lines))


def _share(nodes: Sequence[str], lines: Mapping[str, NarrowFloats]) -> float:
    """The bytes of the values of some lines, as a share of those in float32."""
    return max((lines[node].share if node in lines else 1.0 for node in nodes), default=1.0)
