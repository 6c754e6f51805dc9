"""What the house knows of one operation: a row of the table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack

from runner.language.counterparts.promotion import in_floats
from runner.language.notation import Labels
from runner.language.signatures import signature

Kind = Literal["array", "collective", "static"]
Decides = Literal[
    "threshold", "comparison", "equality", "membership", "search", "bin", "largest", "smallest", "order", "draw"
]

Does = Literal[
    "sum", "mean", "extreme",
    "scatter", "gather", "exchange", "ragged", "permute", "broadcast",
    "cast", "index", "size",
]  # fmt: skip
"""What an operation over mesh axes does.

- `sum`, `mean`, `extreme`: every device gets the sum, the mean, the largest or smallest of the devices' values;
  `scatter`: its part of the sum.
- `gather`, `exchange`, `permute`, `broadcast`: a device gets the values of all, a part of each one's, the value of one,
  or all get the same one's. `ragged`: a part of each one's, whose size is known when it runs.
- `cast`: nothing; JAX's types know something else of the value. `index`, `size`: says where a device is, of how many.
"""

Limit = Literal[
    "adds no booleans", "compiles for GPUs only", "axes in the mesh's order", "takes pairs or a shift",
    "takes a permutation", "one axis under vmap", "every device under vmap", "groups without check_vma",
    "casts what is the same", "axes of one kind", "never under vmap", "ragged operands", "typed as its output",
]  # fmt: skip
"""Where JAX cannot be given a collective, and says nothing or nothing intelligible: `runner/worker/limits.py`."""


@dataclass(frozen=True)
class OverAxes:
    """What is known of an operation over mesh axes, beside the rest of its row.

    - `does`: what becomes of the values of the devices.
    - `primitives`: JAX's primitives for it, by which it is known in a compiled module: `runner/evidence/nodes.py`.
    - `limits`: where JAX cannot be given it.
    - `calls`: what else stands in a call that puts it around something, after the value and the axes; a program that
      lacks it is mended with these: `runner/checks/mends.py`.
    - `to`: what the argument `to` may be: whether JAX is to know the result as the same along an axis.
    - `operands`: the arguments that have a value on each device, what is moved first.
    - `not_on`: the platforms for which XLA does not have it.
    """

    does: Does
    primitives: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    calls: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    operands: tuple[str, ...] = ("x",)
    not_on: tuple[str, ...] = ()

    @property
    def collective(self) -> str | None:
        """What XLA calls it; None where it communicates nothing."""
        return _COLLECTIVES.get(self.does)


_COLLECTIVES = {
    "sum": "all-reduce", "mean": "all-reduce", "extreme": "all-reduce", "scatter": "reduce-scatter",
    "gather": "all-gather", "exchange": "all-to-all", "ragged": "ragged-all-to-all",
    "permute": "collective-permute", "broadcast": "collective-broadcast",
}  # fmt: skip


class Known(TypedDict, total=False):
    """What may be said of a row of kind `array`: fields of `Operation`."""

    decides: Decides
    wide: int
    draws: str
    constant: bool
    elementwise: bool
    indices: str
    contraction: Callable[[Sequence[Any]], Labels | None]
    completed_by: str
    out_sharding: bool
    pair: tuple[str, str]
    method: str
    function: str
    also: Mapping[str, str] | tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """One row.

    - `arguments`: the arguments that the language allows, by JAX's names, in JAX's order. What follows an argument of
      JAX's that the language leaves out (`out`, `device`) is keyword-only, so that a call means the same to both.
    - `jax`: the dotted name of the JAX function, as a program spells it (`jnp.sum`, `jax.nn.relu`, `jax.lax.psum`).
    - `numpy`: the counterpart. A `collective` takes the mesh first and lists of per-device values; see
      `runner/language/counterparts/collectives.py`.
    - `kind`: `array` works anywhere; `collective` only in `per_device`; `static` gives a Python value.
    - `decides`: where a small change of a float may move the result by a step, how: `runner/reference/decisions.py`.
    - `wide`: of floats with at least so many bytes JAX computes it in float32, and rounds once; 0: of none.
    - `draws`: of an operation that draws random numbers, the argument whose dtype says which.
    - `constant`: whether its result is a constant to whoever differentiates.
    - `elementwise`: whether each element of the result is made of those that broadcasting puts beside each other.
    - `indices`: the argument with indices that JAX wants of one dtype, though each may be traced or a number.
    - `contraction`: of a product that sums over dimensions, the labels of its operands, as a call has them (an array
      has a `shape`), and of its result; it gives None for operands of which it cannot say them.
    - `completed_by`: the collective that completes the result where what it sums or chooses over is split over devices.
    - `out_sharding`: whether explicit sharding lets the layout of its result be named, by an argument of that name.
    - `pair`: two arguments that people write in each other's place.
    - `function`: the argument that is a function, which the language has by its name: `arguments.COMPUTATIONS`.
    - `method`: of what is spelled `x.at[index].add(values)`, the name at its end.
    - `over`: what is known of an operation over mesh axes.
    - `also`: its other names in JAX, each a function of the same module; or for each name its own arguments.
    - `of`: the name of the row that this is another name of; "" for a row itself.
    """

    name: str
    arguments: str
    jax: str
    numpy: Callable[..., Any]
    kind: Kind = "array"
    decides: Decides | None = None
    wide: int = 0
    draws: str | None = None
    constant: bool = False
    elementwise: bool = False
    indices: str | None = None
    contraction: Callable[[Sequence[Any]], Labels | None] | None = None
    completed_by: str | None = None
    out_sharding: bool = False
    pair: tuple[str, str] | None = None
    method: str | None = None
    function: str | None = None
    over: OverAxes | None = None
    also: Mapping[str, str] | tuple[str, ...] = field(default=(), hash=False)
    of: str = ""

    def named(self) -> Iterator[Operation]:
        """The row, and the same under each of its other names."""
        yield self
        module = self.jax.rpartition(".")[0]
        for name in self.also:
            arguments = self.also[name] if isinstance(self.also, Mapping) else self.arguments
            yield replace(self, name=name, jax=f"{module}.{name}", arguments=arguments, also=(), of=self.name)

    @property
    def key(self) -> str:
        """The name of its row, whichever of its names it has."""
        return self.of or self.name

    @property
    def signature(self) -> inspect.Signature:
        """The arguments, as Python checks them: made when it is asked for, since a run asks for few."""
        return signature(self.arguments)

    @property
    def random(self) -> bool:
        """Whether it is about random numbers."""
        return self.jax.startswith("jax.random.")

    @property
    def communicates(self) -> bool:
        """Whether it moves values between devices."""
        return self.over is not None and self.over.does not in ("cast", "index", "size")

    @property
    def combines(self) -> bool:
        """Whether its function may be one of the experiment's own, or a lambda: it says no more than it computes."""
        return self.function == "fn"

    @property
    def reduces(self) -> bool:
        """Whether it makes of the devices' values one, which all of them get."""
        return self.over is not None and self.over.does in ("sum", "mean", "extreme")


def array(
    name: str, arguments: str, numpy: Callable[..., Any], jax: str | None = None, **known: Unpack[Known]
) -> Operation:
    """A row of kind `array`, of `jax.numpy` unless `jax` says otherwise."""

    def counterpart(*values: Any, **named: Any) -> Any:
        # A counterpart may name its arguments as NumPy does; only what stands behind a gap reaches it by JAX's name.
        if named:
            bound = signature(arguments).bind(*values, **named)
            values, named = bound.args, bound.kwargs
        return numpy(*values, **named)

    return Operation(name, arguments, jax or f"jnp.{name}", counterpart, **known)


def elementary(name: str, numpy: Callable[..., Any], *also: str) -> Operation:
    """A function of `jax.numpy` of one array that gives floats, and its other names."""
    return array(name, "x, /", in_floats(numpy), also=also)


def over_axes(name: str, arguments: str, numpy: Callable[..., Any], over: OverAxes, **more: Any) -> Operation:
    """A collective of `jax.lax`."""
    return Operation(name, arguments, f"jax.lax.{name}", numpy, kind="collective", over=over, **more)
