"""Compiles a program once for all programs of the same text and operands.

The points of a sweep that differ only in their data, in their expectations or in keys that other programs read have
programs with the same text. A compilation depends only on the text and on the types and layouts of the operands, so
such a program is compiled once, and run once per point.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from runner.worker.compilation import CompiledModule

_MOST = 8
"""How many compilations are kept, so that the memory of a process with many points does not grow."""

_INPUTS = re.compile(r"^def inputs\(\):\n(?:(?: .*)?\n)+", re.MULTILINE)
"""The data of a program; the compiler sees only their types and layouts."""


@dataclass(frozen=True)
class _Kept:
    function: Any
    compiled: CompiledModule


_kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()


def compiled(
    text: str, function: Any, operands: Sequence[Any], compile_it: Callable[[], CompiledModule]
) -> tuple[Any, CompiledModule]:
    """The function to run and its compilation: those of an earlier program, or else `compile_it`'s.

    `text` is the source of the program, `function` its jitted function, `operands` its arguments, on devices.
    """
    key = _INPUTS.sub("", text), *((jax.typeof(operand), operand.sharding) for operand in jax.tree.leaves(operands))
    kept = _kept.get(key)
    if kept is None:
        kept = _Kept(function, compile_it())
        _kept[key] = replace(kept, compiled=replace(kept.compiled, shared=True))
        if len(_kept) > _MOST:
            _kept.popitem(last=False)
    else:
        _kept.move_to_end(key)
    return kept.function, kept.compiled


_twins: OrderedDict[tuple[str, tuple[int, ...]], Any] = OrderedDict()


def twin(lowered: Any, device_ids: Sequence[int]) -> tuple[Any, bool]:
    """The compilation of a lowered twin, and whether it is an earlier one's.

    The twins of programs that differ in their dtypes alone are lowered to the same text.
    """
    key = lowered.as_text(), tuple(device_ids)
    compiled = _twins.get(key)
    if compiled is not None:
        _twins.move_to_end(key)
        return compiled, True
    _twins[key] = compiled = lowered.compile()
    if len(_twins) > _MOST:
        _twins.popitem(last=False)
    return compiled, False


def forget() -> None:
    """Drop all compilations, since the devices will change."""
    _kept.clear()
    _twins.clear()
