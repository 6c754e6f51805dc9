"""Walks an MLIR module's operations in execution order, with their name stacks and execution counts.

A function is visited at each of its calls: the names inside it are relative to the call's.
"""

from __future__ import annotations

import math
from typing import Any

from runner.base import executions
from runner.base.executions import Count, InBranch
from runner.base.lazy import pattern
from runner.compiled.evidence.hlo import Location, Metadata
from runner.graph.sharding.propagation import CLAUSES

_TENSOR = pattern(r"tensor<((?:\d+x)*)([^>]+)>")
_BITS = pattern(r"(\d+)")
# A file's name, which a line follows, is not the name of an operation.
_NAMED = pattern(r'loc\("([^"]*)"(?!:\d)')
_FRAME = pattern(r'"([^"]*)":(\d+):')
_INTEGER = pattern(r"dense<(-?\d+)>")


_NAMING = frozenset({"func.call", "sdy.named_computation", "sdy.manual_computation"})
"""The operations to whose names those inside them are relative."""

_HANDING = frozenset({f"sdy.{name}" for name in CLAUSES})
"""The operations that only change a value's layout."""


class Walk:
    """Visits a module's operations from `main` on; subclasses override the hooks.

    `inside` is the name stack of the calls around an operation, `callers` are the lines of these calls, the innermost
    first, `branches` the branches around it, `times` its number of executions per execution of the innermost branch:
    None in a loop whose trip count is not constant.
    """

    def __init__(self, module: Any) -> None:
        functions = [
            function.operation for function in module.body.operations if function.operation.name == "func.func"
        ]
        self._functions = {_symbol(function.attributes["sym_name"]): function for function in functions}
        self.inside: tuple[str, ...] = ()
        self.callers: tuple[Location, ...] = ()
        self.times: int | None = 1
        self.branches: tuple[InBranch, ...] = ()
        self._choices = 0
        main = self._functions.get("main", functions[0] if functions else None)
        self.main: Any = main
        self.bindings: dict[Any, Any] = {}
        """The latest operands for the arguments of functions and loops."""

    def walk(self) -> None:
        """Visit every operation that runs."""
        if self.main is not None:
            self.enter(self.main)
            for region in self.main.regions:
                self._blocks(region)

    def enter(self, function: Any) -> None:
        """Hook: `main` begins."""

    def operation(self, operation: Any) -> bool:
        """Hook: an operation. Returns whether to visit its regions."""
        return True

    def argument(self, owner: Any, argument: Any, at: int) -> None:
        """Hook: an argument of a called function or of a loop's body."""

    def returned(self, owner: Any) -> None:
        """Hook: a call has been visited."""

    @property
    def count(self) -> Count:
        """How often the current operation runs in the whole program."""
        return executions.count(self.times, self.branches)

    def stack(self, operation: Any) -> str:
        """The whole name stack of an operation."""
        return self._stack(name_of(operation))

    def metadata(self, operation: Any) -> Metadata:
        """Where JAX traced an operation: its whole name stack, and the user's frames.

        In a function its own location has the frames inside of that.
        """
        name, frames = located(operation)
        return Metadata(self._stack(name), (*frames, *self.callers))

    def _stack(self, name: str) -> str:
        return "/".join([*self.inside, name] if name else self.inside)

    def consumer(self, value: Any) -> tuple[Any, Metadata]:
        """The operation that finally consumes a value, None without one, and where JAX traced it.

        Follows Shardy's collectives, called functions and loop bodies.
        """
        calls, callers = self.inside, self.callers
        while True:
            uses = list(value.uses)
            # A value that a loop passes through unchanged is also returned.
            use = next(
                (operand_use for operand_use in uses if not operand_use.owner.name.endswith(".return")),
                uses[0] if uses else None,
            )
            if use is None:
                return None, Metadata("/".join(calls), callers)
            owner, at = use.owner.operation, use.operand_number
            if owner.name in _HANDING:
                value = owner.results[0]
            elif owner.name == "func.call":
                called = self._functions[_symbol(owner.attributes["callee"])]
                name, frames = located(owner)
                calls, callers = (*calls, name) if name else calls, (*frames, *callers)
                value = called.regions[0].blocks[0].arguments[at]
            elif owner.name == "stablehlo.while" and unchanged(owner, at):
                value = owner.regions[-1].blocks[0].arguments[at]
            else:
                name, frames = located(owner)
                return owner, Metadata("/".join((*calls, name)), (*frames, *callers))

    def _blocks(self, region: Any) -> None:
        for block in region.blocks:
            for inner in block.operations:
                self._operation(inner.operation)

    def _operation(self, operation: Any) -> None:
        if not self.operation(operation):
            return
        before, inside, callers, branches = self.times, self.inside, self.callers, self.branches
        called = None
        if operation.name == "func.call":
            called = self._functions.get(_symbol(operation.attributes["callee"]))
        if operation.name in _NAMING:
            name, frames = located(operation)
            self.inside = (*inside, name) if name else inside
            self.callers = callers if called is None else (*frames, *callers)
        if operation.name == "stablehlo.while":
            steps = trip_count(operation)
            self.times = None if before is None or steps is None else before * steps
        choice, cases = None, len(operation.regions)
        if operation.name in ("stablehlo.case", "stablehlo.if") and cases > 1 and before is not None:
            self._choices += 1
            choice = f"choice {self._choices}"
        owner = operation if called is None else called
        for region in owner.regions:
            for block in region.blocks:
                for at, argument in enumerate(block.arguments):
                    if at < len(operation.operands):
                        self.bindings[argument] = operation.operands[at]
                    self.argument(operation, argument, at)
        for number, region in enumerate(owner.regions):
            if choice is not None and before is not None:
                taken = InBranch(choice=choice, branch=number, of=cases, times=before)
                self.times, self.branches = 1, (*branches, taken)
            self._blocks(region)
        self.times, self.inside, self.callers, self.branches = before, inside, callers, branches
        if called is not None or operation.name == "sdy.named_computation":
            self.returned(operation)


def _symbol(attribute: Any) -> str:
    """The name of a function: `f` of `@f`, and of `"f"`; `<lambda>` of `@"<lambda>"`."""
    return str(attribute).removeprefix("@").strip('"')


def name_of(operation: Any) -> str:
    """The name in the location of an operation; "" without one."""
    return _name(str(operation.location))


def located(operation: Any) -> tuple[str, tuple[Location, ...]]:
    """What the location of an operation says, `loc("jit(f)/hidden/dot_general"(callsite(…)))`.

    Returns its name, "" without one, and the lines of the user's files, innermost call first.
    """
    text = str(operation.location)
    return _name(text), tuple((file, int(line)) for file, line in _FRAME.findall(text))


def _name(location: str) -> str:
    match = _NAMED.match(location)
    return match[1] if match else ""


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a value; empty if it is not an array."""
    match = _TENSOR.match(str(value.type))
    return tuple(int(size) for size in match[1].split("x")[:-1]) if match else ()


def bytes_of(value: Any, parts: int = 1) -> int:
    """The bytes of a value, or of one of its equal `parts`."""
    match = _TENSOR.match(str(value.type))
    if match is None:
        return 0
    bits = _BITS.search(match[2])
    width = max(int(bits[1]) if bits else 8, 8) // 8 * (2 if match[2].startswith("complex") else 1)
    width = 1 if match[2] == "i1" else width
    return math.prod(shape_of(value)) * width // parts


_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i1": "bool"}


def dtype_of(value: Any) -> str:
    """The dtype of a value: JAX's name for it where it is a common one, otherwise MLIR's."""
    match = _TENSOR.match(str(value.type))
    return _DTYPES.get(match[2], match[2]) if match else ""


def producer(value: Any) -> Any:
    """The operation that produced a value, before any collectives of Shardy's; None for an argument."""
    owner = getattr(value.owner, "operation", None)
    while owner is not None and owner.name in _HANDING:
        owner = getattr(owner.operands[0].owner, "operation", None)
    return owner


def trip_count(loop: Any) -> int | None:
    """How often a `stablehlo.while` runs its body, if constants determine it: `for (i = start; i < end; i += step)`."""
    condition, body = (region.blocks[0] for region in loop.regions)
    test = _owner(_last(condition).operands[0])
    if test is None or test.name != "stablehlo.compare" or "LT" not in str(test.attributes["comparison_direction"]):
        return None
    index = _argument(condition, test.operands[0])
    if index is None:
        return None
    bound = _argument(condition, test.operands[1])
    end = _constant(test.operands[1] if bound is None else loop.operands[bound])
    start = _constant(loop.operands[index])
    stepped = _owner(_last(body).operands[index])
    if start is None or end is None or stepped is None or stepped.name != "stablehlo.add":
        return None
    kept = bound is None or _argument(body, _last(body).operands[bound]) == bound
    if not kept or _argument(body, stepped.operands[0]) != index:
        return None
    step = _constant(stepped.operands[1])
    return max(0, math.ceil((end - start) / step)) if step and step > 0 else None


def unchanged(loop: Any, at: int) -> bool:
    """Whether the body of a `stablehlo.while` passes one of its carried values through unchanged."""
    body = loop.regions[-1].blocks[0]
    return _argument(body, _last(body).operands[at]) == at


def _last(block: Any) -> Any:
    return list(block.operations)[-1].operation


def _owner(value: Any) -> Any:
    """The operation whose result a value is; None for an argument."""
    owner = getattr(value, "owner", None)
    return getattr(owner, "operation", None)


def _argument(block: Any, value: Any) -> int | None:
    return next((at for at, argument in enumerate(block.arguments) if argument == value), None)


def _constant(value: Any) -> int | None:
    owner = _owner(value)
    if owner is None or not owner.name.endswith(".constant"):
        return None
    match = _INTEGER.search(str(owner.attributes["value"]))
    return int(match[1]) if match else None
