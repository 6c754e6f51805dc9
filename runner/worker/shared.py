"""Compiles a program once for all programs of the same text and operands.

The points of a sweep that differ only in their data, in their expectations or in keys that other programs read have
programs with the same text. A compilation depends only on the text and on the types and layouts of the operands, so
such a program is compiled once, and run once per point.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from runner.base.lazy import dataclass

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


_lowered: OrderedDict[tuple[str, tuple[int, ...]], Any] = OrderedDict()

_MOST_LOWERED = 16
"""How many of these are kept: a point has a twin for each of its programs, and up to four functions for gradients."""


def of_lowered(module: Any, device_ids: Sequence[int]) -> tuple[Any, bool]:
    """The compilation of a lowered module, and whether it is that of an earlier one with the same text.

    Twins of programs that differ in their dtypes alone have the same text, and so have the gradients of an unsharded
    graph at all points that differ in data or layouts.
    """
    text = module.as_text()
    if "callback" in text:
        # The text does not say which Python function it calls.
        return module.compile(), False
    key = text, tuple(device_ids)
    compiled = _lowered.get(key)
    if compiled is not None:
        _lowered.move_to_end(key)
        return compiled, True
    _lowered[key] = compiled = module.compile()
    if len(_lowered) > _MOST_LOWERED:
        _lowered.popitem(last=False)
    return compiled, False


def forget() -> None:
    """Drop all compilations, since the devices will change."""
    _kept.clear()
    _lowered.clear()
