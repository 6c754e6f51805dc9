"""Rules for elementwise operations: operands share the result's dimensions, as they broadcast."""

from __future__ import annotations

from runner.graph.language.operations import OPERATIONS
from runner.programs.derivation.calls import Call
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Dimensions, Rule

BITCAST = "bitcast_convert_type"
NAMES = tuple(dict.fromkeys(row.key for row in OPERATIONS.values() if row.elementwise and row.key != BITCAST))


@rule_for(*NAMES)
def pointwise(call: Call) -> Rule | None:
    """Rule: each dimension of the result is a factor; a broadcast dimension of an operand has none."""
    listed = any(argument.parts is not None and not argument.static for argument in call.arguments.values())
    return None if listed else broadcasting(call)


@rule_for("select")
def selected(call: Call) -> Rule | None:
    """Rule: as of an elementwise operation, whose operands are in two lists."""
    unlisted = any(call.arguments[name].parts is None for name in ("condlist", "choicelist"))
    return None if unlisted else broadcasting(call)


@rule_for(BITCAST)
def bitcast(call: Call) -> Rule:
    """Rule: each dimension that operand and result share; between widths, one has another dimension at its end."""
    shape = call.result.shape
    (array,) = [array for argument in call.arguments.values() for array in argument.arrays()]
    operand_shape = Call.type(array).shape
    shared = min(len(operand_shape), len(shape))
    operand, result = (tuple((d,) if d < shared else () for d in range(len(dims))) for dims in (operand_shape, shape))
    return Rule({array.place: operand}, result, dict(enumerate(shape[:shared])))


def broadcasting(call: Call) -> Rule:
    """The rule of operands that are broadcast against each other."""
    shape = call.result.shape
    arrays = [array for argument in call.arguments.values() for array in argument.arrays()]
    operands = {array.place: aligned(Call.type(array).shape, shape) for array in arrays}
    run = {factor for dimensions in operands.values() for factors in dimensions for factor in factors}
    return Rule(operands, tuple((d,) if d in run else () for d in range(len(shape))), dict(enumerate(shape)))


@rule_for("array", "asarray")
def made(call: Call) -> Rule | None:
    """Rule: the conversion of an array."""
    return pointwise(call) if call.arguments.keys() <= {"a", "object", "dtype"} else None


@rule_for("broadcast_arrays")
def broadcast(call: Call) -> Rule | None:
    """Rule: each result is an operand in the common shape."""
    return broadcasting(call)


def aligned(operand_shape: tuple[int, ...], shape: tuple[int, ...]) -> Dimensions:
    """The factors of an operand that is broadcast to `shape`, whose dimensions are the factors 0, 1, …"""
    offset = len(shape) - len(operand_shape)
    return tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(operand_shape))
