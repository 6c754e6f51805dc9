"""Words an error of JAX, or of types that it would refuse, and of the user's own code, for the user."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from runner.base.faults import Fault, InvalidExperiment, Key
from runner.base.words import quoted
from runner.worker import calls
from runner.worker.versions import is_own, varying_axes


def unlike(name: str, start: Any, end: Any, text: str, call: str) -> str | None:
    """The message for a carry that ends the body with another type than it starts with, in `jax.lax`'s `call`."""
    if start.shape != end.shape or (start.dtype != end.dtype and not start.weak_type):
        types = [f"{kind.dtype}{list(kind.shape)}" for kind in (start, end)]
        return f"the carry '{name}' starts as {types[0]} and ends the body as {types[1]}; a {call} keeps one type"
    loose = varying_axes(end) - varying_axes(start)
    if loose:
        axes = sorted(loose)
        over = quoted(axes)
        cast = repr(axes[0] if len(axes) == 1 else tuple(axes))
        return (
            f"the carry '{name}' starts the same on every device along {over}, but may differ at the end of the body; "
            f"start it with pcast({text}, {cast}, to='varying')"
        )
    return None


def unfit(name: str, on: Any) -> str | None:
    """The message for an invalid predicate or index of a `cond`, `switch` or `while`."""
    what = "the index of a switch" if name == "switch" else f"the predicate of a {name}"
    if not (hasattr(on, "shape") or isinstance(on, bool | int | float)):
        return f"{what} is {type(on).__name__}; it must be one number"
    kind = jax.typeof(on)
    if kind.shape:
        return f"{what} is {kind.dtype}{list(kind.shape)}; it must be one number (where(…) chooses for each element)"
    wanted = "int32" if name == "switch" else "bool"
    fits = kind.dtype == "bool" if wanted == "bool" else jax.numpy.issubdtype(kind.dtype, jax.numpy.integer)
    return None if fits else f"{what} is {kind.dtype}; make it {wanted}"


def unlike_branches(ends: dict[int, tuple[Any, ...]]) -> str | None:
    """The message for branches whose results have different types."""
    for values in zip(*ends.values(), strict=True):
        if any(not hasattr(value, "shape") and not isinstance(value, bool | int | float | complex) for value in values):
            return "a branch gives several values as one; a choice has a name for each: a, b: cond(p, f, g, x)"
        kinds = [jax.typeof(value) for value in values]
        types = [f"{kind.dtype}{list(kind.shape)}" for kind in kinds]
        if len(set(types)) > 1:
            return f"the branches give {', '.join(types)}, in JAX's order; all branches must give one type"
        axes = [varying_axes(kind) for kind in kinds]
        every = frozenset[str]().union(*axes)
        for branch, own in zip(ends, axes, strict=True):
            if every - own:
                loose = sorted(every - own)
                cast = repr(loose[0] if len(loose) == 1 else tuple(loose))
                return (
                    f"the result of branch {branch} is the same on every device along {quoted(loose)}, and another's "
                    f"may differ; let both differ: pcast(…, {cast}, to='varying')"
                )
    return None


def first_lines(error: BaseException) -> str:
    """The first sentences of one of JAX's messages."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return "it is not implemented for these operands"
    text = lines[0]
    if text.endswith(":") and len(lines) > 1:
        text = " ".join(line for line in lines[:4] if line)
    return text if len(text) < 400 else text[:397] + "…"


def refusal(error: BaseException, operands: list[Any]) -> str:
    """JAX's message about operands that it does not accept, with their types."""
    shapes = ", ".join(f"{operand.dtype}{list(operand.shape)}" for operand in operands if hasattr(operand, "shape"))
    message = _too_large(error) or first_lines(error).removesuffix(".")
    return f"JAX refuses it: {message}" + (f"; the operands are {shapes}" if shapes else "")


_OVERFLOWN = re.compile(r"(?:Python int(?:eger)?|with value) (-?\d+).*?\b(u?int\d+\b|$)", re.DOTALL)
"""JAX's and NumPy's messages for a Python integer that a dtype cannot represent."""


def _too_large(error: BaseException) -> str | None:
    """The message for a Python integer that is too large for a dtype, if this is the error."""
    overflown = _OVERFLOWN.search(str(error)) if isinstance(error, OverflowError) else None
    if overflown is None:
        return None
    number, kind = overflown.groups()
    usual = "int64" if calls.x64() else "int32"
    message = f"the integer {number} does not fit in {kind or usual}"
    if (kind or usual) != "int32" or calls.x64() or not -(2**63) <= int(number) < 2**63:
        return message
    return f"{message}; integers have 64 bits where an array or a line has a 64-bit dtype, which sets jax_enable_x64"


def text_of(error: BaseException) -> str:
    """The text of an exception, whose class may be the user's own and fail to give one."""
    try:
        return str(error)
    except BaseException as other:
        return f"its __str__ raises {type(other).__name__}"


def raised(doing: str, error: Exception) -> str:
    """The error of a program for an exception of the runner's own; the traceback goes to the worker's log.

    `doing`: what the runner did: `deriving the lines of one device`.
    """
    traceback.print_exception(error)
    text = text_of(error)
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"this is a bug in shardproof, please report it: {doing} raised {described}; worker.log has the traceback"


def reported(error: BaseException, what: str, key: Key, call: str = "", remedy: str = "") -> InvalidExperiment:
    """The report of an exception of the user's code, with its line if known."""
    lines = [line.strip() for line in text_of(error).split("\n") if line.strip()]
    # JAX says of out_specs what is wrong with them in the lines after a colon, and of branches in a later line.
    count = 3 if lines and lines[0].endswith(":") else 1
    first = " ".join([*lines[:count], *(line for line in lines[count:] if " has type " in line)])
    # The place follows in JAX's words, and is given here as a line.
    first = first.partition(" This error occurs at source:")[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].line}" if frames else ""
    message = f"{what}{where}: {type(error).__name__}" + (f": {first}" if first else "")
    remedy = remedy or _OF_TRACED.get(type(error).__name__, "")
    message += f"\n{remedy}" if remedy else ""
    return InvalidExperiment(Fault(key, message, call or None, 0, len(call)))


_OF_TRACED: Mapping[str, str] = {
    "TracerArrayConversionError": "JAX traces this line, and NumPy takes no traced arrays: write jnp for np in it",
    "TracerBoolConversionError": "Python cannot decide by a traced value: jnp.where(condition, a, b), or jax.lax.cond",
    "TracerIntegerConversionError": "Python needs the number itself: a static argument, or jnp.take for an index",
    "NonConcreteBooleanIndexError": "a mask selects an unknown number of elements: jnp.where(mask, x, 0) keeps all",
}
"""What stands in place of what JAX cannot trace, by JAX's errors."""
