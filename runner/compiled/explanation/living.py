"""Finds the arrays that are alive at once in a scheduled module, and the moment at which they are largest.

A compiler's own figures are better, where they are known: this counts no padding and no scratch memory of kernels, and
assumes that an update writes in place, as compilers do where the array is not read again.
"""

from __future__ import annotations

from dataclasses import field

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.compiled.evidence.hlo import CALLING, GOING_ON, Computation, Instruction, Module

_PASSED = frozenset(
    {"bitcast", "tuple", "get-tuple-element", "opt-barrier", "while", "copy-done"}
    | GOING_ON
    | {"optimization-barrier", "after-all", "add-dependency", "domain", "all-reduce-done", "all-gather-done"}
    | {"collective-permute-done", "send-done", "recv-done", "parameter", "slice-done", "dynamic-slice-done"}
)
"""Opcodes whose result lies where an operand lies; a parameter lies where the caller has it."""

_UPDATING = frozenset({"dynamic-update-slice", "scatter"})


@dataclass
class Moment:
    """When the most is alive: the bytes, and the instructions that hold them, innermost computation last."""

    bytes: int = 0
    holding: list[tuple[Computation, Instruction, int]] = field(
        default_factory=list[tuple[Computation, Instruction, int]]
    )


class Living:
    """The temporaries of a module that are alive at once; those in a TPU's on-chip memories do not count."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._peaks: dict[str, Moment] = {}

    def peak(self) -> Moment:
        """When the most is alive in the whole program, besides its arguments and results."""
        entry = self._module.entry
        return Moment() if entry is None else self._of(entry)

    def _of(self, computation: Computation) -> Moment:
        if computation.name not in self._peaks:
            self._peaks[computation.name] = Moment()
            self._peaks[computation.name] = self._swept(computation)
        return self._peaks[computation.name]

    def _swept(self, computation: Computation) -> Moment:
        """The largest moment of one computation: its own arrays, and those of what runs meanwhile."""
        held_by = self._stores(computation)
        last = self._last_reads(computation, held_by)
        root = computation.root
        returned = held_by.get(root.name, frozenset()) if root is not None else frozenset[str]()
        ends = by_key((at, name) for name, at in last.items())
        alive: dict[str, int] = {}
        now, best, best_alive, best_inner = 0, 0, dict[str, int](), Moment()
        for at, instruction in enumerate(computation.order):
            if instruction.name in held_by.get(instruction.name, ()) and instruction.name not in returned:
                alive[instruction.name] = self._size(instruction)
                now += alive[instruction.name]
            inner = self._inner(instruction)
            if now + inner.bytes > best:
                best, best_alive, best_inner = now + inner.bytes, dict(alive), inner
            for name in ends.get(at, ()):
                now -= alive.pop(name, 0)
        holding = [(computation, computation.instructions[name], size) for name, size in best_alive.items()]
        return Moment(best, [*holding, *best_inner.holding])

    def _inner(self, instruction: Instruction) -> Moment:
        """The largest moment of the computations that an instruction runs."""
        if instruction.opcode not in CALLING:
            return Moment()
        moments = [
            self._of(self._module.computations[name])
            for _, name in instruction.called
            if name in self._module.computations
        ]
        return max(moments, key=lambda moment: moment.bytes, default=Moment())

    def _size(self, instruction: Instruction) -> int:
        """The bytes of a result in the main memory; of a start those of what it makes, not of its operand."""
        shapes = instruction.shapes
        if instruction.opcode in ("copy-start", "all-gather-start", "collective-permute-start") and len(shapes) > 1:
            shapes = shapes[:1] if instruction.opcode == "copy-start" else shapes[1:2]
        return sum(shape.bytes for shape in shapes if not (self._module.tiled and shape.space))

    def _stores(self, computation: Computation) -> dict[str, frozenset[str]]:
        """For each value the instructions that made the memory it lies in."""
        stores: dict[str, frozenset[str]] = {}
        for instruction in computation.order:
            name = instruction.name
            if instruction.opcode in ("parameter", "constant"):
                stores[name] = frozenset()
            elif instruction.opcode in _PASSED:
                operands = instruction.operands
                stores[name] = frozenset().union(*(stores.get(operand, frozenset()) for operand in operands))
            elif self._in_place(computation, instruction):
                stores[name] = stores.get(instruction.operands[0], frozenset({name}))
            else:
                stores[name] = frozenset({name})
        return stores

    def _in_place(self, computation: Computation, instruction: Instruction) -> bool:
        """Whether an instruction updates its first operand where it lies."""
        if not instruction.operands or instruction.operands[0] not in computation.instructions:
            return False
        if computation.instructions[instruction.operands[0]].shapes != instruction.shapes:
            return False
        if instruction.opcode in _UPDATING:
            return True
        inside = list(self._module.inside(instruction)) if instruction.opcode == "fusion" else []
        return any(inner.root and inner.opcode in _UPDATING for inner in inside)

    def _last_reads(self, computation: Computation, held_by: dict[str, frozenset[str]]) -> dict[str, int]:
        last: dict[str, int] = {}
        for at, instruction in enumerate(computation.order):
            for name in instruction.operands:
                for store in held_by.get(name, ()):
                    last[store] = at
            last.setdefault(instruction.name, at)
        return last
