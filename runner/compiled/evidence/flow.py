"""Finds the lines whose values an instruction of a compiled module reads, and those that read its result.

Values are followed through instructions that only move them, into and out of tuples, fusions, calls and loops.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.compiled.evidence.hlo import STARTED, Computation, Instruction, Metadata, Module, size_of
from runner.compiled.evidence.model import MergedPart
from runner.compiled.evidence.nodes import Attribution, OperationOrigin, asked, served, stacks
from runner.experiment.forms import KINDS

MOVES = frozenset(
    {"parameter", "get-tuple-element", "tuple", "bitcast", "bitcast-convert", "copy", "transpose", "reshape", "convert"}
    | {"copy-start", "copy-done", "constant"}
)
"""Opcodes that do not change values: they are looked through."""


class Flow:
    """The flow of values in one module."""

    def __init__(self, module: Module, origins: Attribution) -> None:
        self._module = module
        self._origins = origins

    def producers(self, computation: Computation, operands: Iterable[str]) -> list[OperationOrigin]:
        """The lines whose values the operands are, looking through instructions without a line."""
        lines: dict[OperationOrigin, None] = {}
        front = [(computation, name) for name in operands]
        visited: set[tuple[str, str]] = set()
        while front:
            where, name = front.pop(0)
            if (where.name, name) in visited or name not in where.instructions:
                continue
            visited.add((where.name, name))
            producer = where.instructions[name]
            origins = _computing(self._origins.of(producer.metadata))
            if origins and (producer.opcode == "parameter" or not self._only_moves(producer)):
                lines |= dict.fromkeys(origins)
            elif producer.opcode == "parameter":
                front += self._given(where, producer)
            elif producer.opcode == "get-tuple-element":
                front += self._element(where, producer)
            elif producer.opcode != "constant":
                front += [(where, operand) for operand in producer.operands]
        return list(lines)

    def _only_moves(self, instruction: Instruction) -> bool:
        """Whether an instruction only moves values; its name is then that of the place where the result is used."""
        if instruction.opcode != "fusion":
            return instruction.opcode in MOVES
        return all(self._only_moves(inner) for inner in self._module.inside(instruction))

    def _given(self, computation: Computation, parameter: Instruction) -> list[tuple[Computation, str]]:
        """The caller's operand for a parameter."""
        operands: list[tuple[Computation, str]] = []
        for outer, by, _ in self._module.callers.get(computation.name, ()):
            number = parameter.parameter()
            if number < len(by.operands):
                operands.append((outer, by.operands[number]))
        return operands

    def _element(self, computation: Computation, element: Instruction) -> list[tuple[Computation, str]]:
        """The entry of the tuple that an element is taken from; for a loop, the initial value.

        For a merged collective, the operand of the element, if no line asks for its sum, or the element has no name.
        """
        source, index = computation.instructions.get(element.operands[0]), element.index()
        nameless = source is not None and source.opcode == "all-reduce" and not element.op_name
        if source is not None and source.opcode in KINDS and (nameless or self._origins.lost(element.op_name)):
            return [(computation, operand) for operand in source.operands[index : index + 1]]
        if source is not None and source.opcode == "parameter":
            for outer, by, role in self._module.callers.get(computation.name, ()):
                entered = outer.instructions.get(by.operands[0]) if role == "body" else None
                if entered is not None and entered.opcode == "tuple" and index < len(entered.operands):
                    return [(outer, entered.operands[index])]
        if source is not None and source.opcode == "tuple" and index < len(source.operands):
            return [(computation, source.operands[index])]
        return [(computation, element.operands[0])]

    def consumers(self, computation: Computation, instruction: Instruction) -> list[OperationOrigin]:
        """The lines that read an instruction's result, inside fusions and loops too; none if it is returned."""
        lines: dict[OperationOrigin, None] = {}
        around: dict[OperationOrigin, None] = {}
        arrays: dict[OperationOrigin, None] = {}
        # The result, or the element of a tuple that holds it.
        front: list[tuple[Computation, Instruction, int | None]] = [(computation, instruction, None)]
        visited: set[tuple[str, str, int | None]] = set()
        while front:
            where, giver, index = front.pop(0)
            if (where.name, giver.name, index) in visited:
                continue
            visited.add((where.name, giver.name, index))
            if giver.root:
                callers = self._module.callers.get(where.name, ())
                front += [(outer, by, index) for outer, by, role in callers if role in ("calls", "to_apply", "body")]
            for user in where.users.get(giver.name, ()):
                if user.opcode == "get-tuple-element":
                    if index is None or index == user.index():
                        front.append((where, user, None))
                    continue
                if user.opcode == "tuple":
                    front += [(where, user, place) for place, name in enumerate(user.operands) if name == giver.name]
                    continue
                if user.opcode.endswith(("-done", "-update")):
                    front.append((where, user, index))
                    continue
                origins = _computing(self._origins.of(user.metadata))
                inside = self._parameters(user, giver)
                if inside:
                    front += [(c, parameter, index) for c, parameter in inside]
                    if not self._only_moves(user):
                        around |= dict.fromkeys(origins)
                elif origins and not self._only_moves(user) and any(origin.primitive for origin in origins):
                    lines |= dict.fromkeys(origins)
                else:
                    # With the name of an array alone, it moves that array further.
                    arrays |= {} if self._only_moves(user) else dict.fromkeys(origins)
                    front.append((where, user, index))
        return list(lines or around or arrays)

    def _parameters(self, user: Instruction, giver: Instruction) -> list[tuple[Computation, Instruction]]:
        """The names of an operand in the computations of a fusion, a loop or a call."""
        if user.opcode not in ("fusion", "while", "call", *STARTED):
            return []
        parameters: list[tuple[Computation, Instruction]] = []
        for role, name in user.called:
            inner = self._module.computations.get(name)
            if inner is None or role == "condition":
                continue
            numbers = [number for number, operand in enumerate(user.operands) if operand == giver.name]
            parameters += [(inner, inner.parameters[number]) for number in numbers if number in inner.parameters]
        return parameters


def _computing(origins: Iterable[OperationOrigin]) -> list[OperationOrigin]:
    """The lines, without loops that only pass on slices of these values or of their results."""
    return [origin for origin in origins if origin.primitive is not None]


def parts(flow: Flow, origins: Attribution, computation: Computation, instruction: Instruction) -> list[MergedPart]:
    """The parts of an instruction in their order; none if it has a single operand.

    Each is named by the instruction that extracts its result, which a dump leaves out: then the first by the collective
    itself, whose frames are those of its first part, and a sum that the compiler inserts by what produces its operand.
    """
    if len(instruction.operands) < 2 or not instruction.opcode.startswith("all-reduce"):
        return []
    users = computation.users.get(instruction.name, ())
    taken = {user.index(): user.metadata for user in users if user.opcode == "get-tuple-element" and user.op_name}
    names = stacks(instruction.metadata.op_name)
    names = names if len(names) == len(instruction.operands) else [""] * len(instruction.operands)
    named = {0: Metadata(names[0], instruction.metadata.frames)} if asked(names[0]) else {}
    listed: list[MergedPart] = []
    for index, name in enumerate(instruction.operands):
        operand = computation.instructions.get(name)
        of = origins.of(taken.get(index, named.get(index, Metadata())))
        if not of and not (asked(names[index]) and index not in taken):
            of = flow.producers(computation, [name])
        (nodes, gradient), size = served(of), None if operand is None else size_of(operand.shapes)
        listed.append(MergedPart(nodes=nodes, gradient=gradient, bytes=size))
    return listed
