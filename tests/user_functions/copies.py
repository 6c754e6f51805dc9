"""A value that every device uses: its derivative is the sum of theirs, by a rule in this module."""

from __future__ import annotations

from typing import Any

import jax


@jax.custom_vjp
def entering(x: Any) -> Any:
    return x


def _forward(x: Any) -> tuple[Any, None]:
    return x, None


def _backward(_: None, cotangent: Any) -> tuple[Any]:
    return (jax.lax.psum(cotangent, "d"),)


entering.defvjp(_forward, _backward)


def whole(w: Any) -> Any:
    return jax.lax.all_gather(w, "d", tiled=True)


@jax.jit
def summed(x: Any) -> Any:
    return jax.lax.psum(x, "d")
