"""Writes the primitives of random keys in the language."""

from __future__ import annotations

from typing import Any, cast

import jax

from runner.graph.model import literal
from runner.graph.term import Term
from runner.worker.jaxpr.primitives.registry import Application, Unread, as_array, filled, reads


@reads("random_bits")
def _bits(application: Application) -> Term:
    params = application.params
    return application.made("bits({x}, {s}, {t})", s=tuple(params["shape"]), t=f"uint{params['bit_width']}")


@reads("random_seed")
def _seeded(application: Application) -> Term:
    _must_be_threefry(application.params["impl"].name)
    seed = literal(application.x)
    if isinstance(seed, int) and seed < 2**32:
        return application.made("key({x})")
    return filled("key({x})", x=as_array(application.x, application.inputs[0]))


@reads("random_fold_in")
def _folded(application: Application) -> Term:
    return application.made("fold_in({x}, {y})")


@reads("random_split")
def _keys(application: Application) -> Term:
    shape = tuple(application.params["shape"])
    return application.made("split_key({x}, {n})", n=shape[0] if len(shape) == 1 else shape)


@reads("random_wrap")
def _wrapped(application: Application) -> Term:
    return wrapped(application.x, application.params["impl"].name)


def wrapped(data: Term, implementation: str) -> Term:
    """The keys with some data. Raises `Unread` for implementations that the oracle does not support."""
    _must_be_threefry(implementation)
    return filled("wrap_key_data({x})", x=data)


def _must_be_threefry(implementation: str) -> None:
    if implementation != "threefry2x32":
        raise Unread(
            f"a random key of '{implementation}': XLA's compiler draws its numbers, differently for each platform and "
            "layout; draw by a key of threefry2x32, JAX's default, or draw outside and pass the numbers as an argument"
        )
    if not cast("Any", jax.config).jax_threefry_partitionable:
        raise Unread("jax_threefry_partitionable is False: the oracle draws as JAX does by default; leave it as it is")


@reads("rng_bit_generator", "rng_uniform")
def _drawn_elsewhere(application: Application) -> Term:
    raise Unread(
        f"'{application.name}' is drawn by XLA's compiler, which the oracle does not repeat: draw outside and pass the "
        "numbers as an argument, or name a reference for a jitted function that draws"
    )


@reads("random_unwrap")
def _unwrapped(application: Application) -> Term:
    return application.made("key_data({x})")
