"""Finds the lines behind each operand of an all-reduce that the compiler merged from several."""

from __future__ import annotations

from runner.compiled.evidence.attribution import Attribution
from runner.compiled.evidence.flow import Flow
from runner.compiled.evidence.hlo import Computation, Instruction, Metadata, size_of
from runner.compiled.evidence.model import MergedPart
from runner.compiled.evidence.nodes import asked, stacks


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
        listed.append(
            MergedPart(
                nodes=list(dict.fromkeys(origin.node for origin in of)),
                gradient=bool(of) and all(origin.gradient for origin in of),
                bytes=None if operand is None else size_of(operand.shapes),
            )
        )
    return listed
