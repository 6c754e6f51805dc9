"""Has the row of one operation in the table, and the properties of arguments that depend on their names alone."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from runner.base.lazy import dataclass
from runner.graph.language.notation import Labels
from runner.graph.language.operations.deferred import evaluated, promotion

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

- `sum`, `mean`, `extreme`: every device gets the sum, the mean, the maximum or minimum of the devices' values;
  `scatter`: its block of the sum.
- `gather`: every device gets the values of all; `exchange`: a block of each one's value; `permute`: the value of one;
  `broadcast`: the same device's value. `ragged`: a part of each one's value, whose size is known at run time.
- `cast`: changes the type in JAX, not the value. `index`, `size`: the device's position, and the number of devices.
"""

Limit = Literal[
    "adds no booleans", "compiles for GPUs only", "axes in the mesh's order", "takes pairs or a shift",
    "takes a permutation", "one axis under vmap", "every device under vmap", "groups without check_vma",
    "casts what is the same", "axes of one kind", "never under vmap", "ragged operands", "typed as its output",
]  # fmt: skip
"""The uses of a collective that JAX does not support without a clear error (`runner/worker/support.py`)."""


Linear = Literal["together", "each", "first"]
"""In which operands an operation is linear: all of them together, as `+`; each alone, as `*`; the first, as `/`."""


Moves = Literal["shape", "order", "part", "added"]
"""What an operation does that only moves elements.

- `shape`: it gives its operand in another shape; `order`: with its dimensions in another order; `part`: a part of it.
- `added`: elements that are moved otherwise, repeated, joined, or added up.
"""


Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
MultiplyAdds: TypeAlias = Callable[[Shapes, Callable[[str], Any], tuple[int, ...]], float | None]


OnArrays = Literal["method", "method of a tuple", "attribute"]
"""How arrays spell an operation: `x.sum(axis)`; `x.reshape(m, n)`, also of separate numbers; `x.shape`."""


Reduction = Literal["sum", "mean", "max", "min", "any", "all", "prod"]
"""How partial results are reduced to the whole, by the name of the operation that does it along dimensions."""


@dataclass(frozen=True)
class Scan:
    """How a scan along a dimension gives each element from those before it.

    - `reduction`: the operation that reduces these elements, itself included, to the result.
    - `identity`: the element that changes no result.
    - `joined`: the result of all elements `{before}` a block and of those in it, `{mine}`.
    """

    reduction: str
    identity: float
    joined: str


@dataclass(frozen=True)
class OverAxes:
    """The properties that only operations over mesh axes have.

    - `does`: what it does with the devices' values; None for an operation that works within a device.
    - `reduction`: for one that reduces the devices' values to one, the operation that reduces dimensions of an array in
      the same way.
    - `primitives`: its primitives in JAX, by which `runner/compiled/evidence/nodes.py` finds it in a compiled module.
    - `limits`: the uses that JAX does not support.
    - `calls`: the texts of further arguments, after the value and the axes, with which `checks/edits/missing.py` tries
      to insert it where a program may lack it.
    - `to`: the values of the argument `to`: whether JAX's type of the result varies along the axes.
    - `operands`: the arguments that have a value on each device; the first is the data.
    - `not_on`: the platforms on which XLA does not support it.
    """

    does: Does | None = None
    primitives: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    calls: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    operands: tuple[str, ...] = ("x",)
    not_on: tuple[str, ...] = ()
    reduction: str = ""

    @property
    def linear(self) -> bool:
        """Whether it adds up the devices' values, so that sums may be taken before or after it."""
        return self.does in ("sum", "mean", "scatter")

    @property
    def collective(self) -> str | None:
        """Its name in XLA; None where it communicates nothing."""
        return _COLLECTIVES.get(self.does or "")


_COLLECTIVES = {
    "sum": "all-reduce", "mean": "all-reduce", "extreme": "all-reduce", "scatter": "reduce-scatter",
    "gather": "all-gather", "exchange": "all-to-all", "ragged": "ragged-all-to-all",
    "permute": "collective-permute", "broadcast": "collective-broadcast",
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One operation of the language.

    - `arguments`: the parameters that the language allows, with JAX's names and order. Those after a parameter that the
      language omits (`out`, `device`) are keyword-only, so that a call means the same in both.
    - `jax`: the dotted name of the JAX function, as a program spells it (`jnp.sum`, `jax.nn.relu`, `jax.lax.psum`).
    - `counterpart`: the function of NumPy arrays that computes the same, an expression of `deferred.py`. It takes the
      arguments in the order of `arguments`; that of an operation over mesh axes takes the mesh first, lists of
      per-device values, and the other arguments by name: see `runner/graph/language/counterparts/collectives.py`.
    - `kind`: `array` works anywhere; `collective` only in `per_device`; `static` gives a Python value.
    - `decides`: how the result depends discontinuously on a float, if it does: `runner/checks/reference/decisions.py`.
    - `wide`: JAX computes floats of at least this many bytes in float32 and rounds once; 0: never.
    - `dtype_of`: the arguments on whose dtypes in JAX the result depends: the random numbers that are drawn, bits, the
      next float. The counterpart takes their common dtype as `own_dtype`.
    - `default_int`: whether JAX draws integers of its default dtype, which depends on `jax_enable_x64`. The counterpart
      takes that dtype as `own_int`.
    - `constant`: whether differentiation treats its result as a constant.
    - `elementwise`: whether each element of the result depends only on the operands' elements at its position.
    - `costly`: whether it takes more than a few steps per element; so does every product with a `contraction`.
    - `in_float32`: whether JAX computes in float32 whatever the operands' dtypes are.
    - `numberless`: whether JAX's function takes arrays only, and no Python numbers.
    - `exponential`: whether it has an exponential inside, which XLA keeps for the backward pass rather than computing
      it again.
    - `neutral`: for an operator of two numbers its neutral left and right operands, None if it has no left one.
    - `inverse`: the operation that undoes it, given the same right operand.
    - `linear`: in which operands it is linear.
    - `confused_with`: the operations that are easily written for it.
    - `counts`: for one that counts from 0 on every device, the argument that says how far.
    - `indices`: the argument with indices that JAX requires to have one dtype, though each may be traced or a number.
    - `contraction`: for a product that sums over dimensions, a function from its operands to the labels of these and of
      the result: see `runner/graph/language/notation.py`.
    - `multiply_adds`: for a product without labels, or an operation of several, a function from the shapes of its
      arguments, by name, the static value of an argument and the result's shape to the number of multiply-adds; None
      where an argument that it needs is missing.
    - `moves`: for one that only moves elements, or adds them up, what it gives; its derivative is the same at any
      elements.
    - `reduction`: for one that reduces dimensions of an array, how results for parts of these are reduced to that for
      the whole.
    - `scan`: for a scan along a dimension, how.
    - `out_sharding`: whether it takes an argument `out_sharding` under explicit sharding.
    - `pair`: two arguments that are easily confused.
    - `on_arrays`: how arrays spell it, if they do.
    - `function`: the argument that is a function, given by name: `arguments.COMPUTATIONS`.
    - `method`: the last name of an operation that is spelled `x.at[index].add(values)`.
    - `definition`: how others define it, which `definitions.py` reads; "" for one with a counterpart.
    - `over`: the properties of an operation over mesh axes.
    - `also`: its other names, in the same module of JAX; or a mapping of these to their own arguments.
    - `of`: for a row under another name, the name of the row; else "".
    """

    name: str
    arguments: str
    jax: str
    counterpart: Callable[..., Any]
    kind: Kind = "array"
    decides: Decides | None = None
    wide: int = 0
    dtype_of: tuple[str, ...] = ()
    default_int: bool = False
    constant: bool = False
    elementwise: bool = False
    costly: bool = False
    in_float32: bool = False
    numberless: bool = False
    exponential: bool = False
    neutral: tuple[float | None, float] | None = None
    inverse: str | None = None
    linear: Linear | None = None
    confused_with: tuple[str, ...] = ()
    counts: str | None = None
    indices: str | None = None
    contraction: Callable[[Sequence[Any]], Labels | None] | None = None
    multiply_adds: MultiplyAdds | None = None
    moves: Moves | None = None
    reduction: Reduction | None = None
    scan: Scan | None = None
    out_sharding: bool = False
    pair: tuple[str, str] | None = None
    on_arrays: OnArrays | None = None
    method: str | None = None
    function: str | None = None
    definition: str = ""
    over: OverAxes = OverAxes(operands=())
    also: Mapping[str, str] | tuple[str, ...] = field(default=(), hash=False)
    of: str = ""

    def named(self) -> Iterator[Operation]:
        """Yield the row, and a row for each of its other names."""
        yield self
        module = self.jax.rpartition(".")[0]
        for name in self.also:
            arguments = self.also[name] if isinstance(self.also, Mapping) else self.arguments
            yield replace(
                self, name=name, jax=f"{module}.{name}", arguments=arguments, also=(), on_arrays=None, of=self.name
            )

    @cached_property
    def numpy(self) -> Callable[..., Any]:
        """The counterpart, whose module is imported now; it is called as the JAX function is."""
        function = evaluated(self.counterpart)
        if self.over.does:
            return function

        def called(*values: Any, own: Mapping[str, str] | None = None, **named: Any) -> Any:
            # Bind by JAX's names and pass by position where possible: a counterpart may name its parameters as NumPy
            # does.
            if named:
                bound = self.signature.bind(*values, **named)
                values, named = bound.args, bound.kwargs
            return function(*values, **named, **(own or {}))

        return called

    @property
    def key(self) -> str:
        """The main name of the operation."""
        return self.of or self.name

    @property
    def signature(self) -> inspect.Signature:
        """The parsed `arguments`; parsed on demand, since a run needs few."""
        return signature(self.arguments)

    @property
    def random(self) -> bool:
        """Whether it is a function of `jax.random`."""
        return self.jax.startswith("jax.random.")

    @property
    def casts_axes(self) -> bool:
        """Whether it gives its operand as it is, and changes over which axes its type varies."""
        return self.over.does == "cast"

    @property
    def makes_key(self) -> bool:
        """Whether it makes a random key of other values than keys."""
        return self.random and not {"key", "keys"} & set(self.signature.parameters)

    @property
    def adds(self) -> bool:
        """Whether it adds its second operand to the first or subtracts it."""
        return self.neutral is not None and self.neutral[1] == 0

    @property
    def commutes(self) -> bool:
        """Whether its two operands may be exchanged."""
        return self.neutral is not None and self.neutral[0] is not None

    @property
    def communicates(self) -> bool:
        """Whether it moves values between devices."""
        return self.over.does not in (None, "cast", "index", "size")

    @property
    def windowed(self) -> bool:
        """Whether it slides a window along dimensions, which it may pad."""
        return "padding" in self.arguments

    @property
    def combines(self) -> bool:
        """Whether its function may also be a lambda or one of the experiment's own."""
        return self.function == "fn"

    @property
    def completion(self) -> Reduction | None:
        """How partial results of devices are reduced to the whole, if they can be; those of a product are added."""
        return "sum" if self.contraction is not None else self.reduction

    @property
    def reduces(self) -> bool:
        """Whether it reduces the devices' values to one, which all of them get."""
        return self.over.does in ("sum", "mean", "extreme")


def array(name: str, arguments: str, counterpart: Callable[..., Any], jax: str | None = None, **more: Any) -> Operation:
    """Build a row of kind `array`; its JAX function is that of `jax.numpy` unless `jax` is given."""
    return Operation(name, arguments, jax or f"jnp.{name}", counterpart, **more)


def elementary(name: str, counterpart: Callable[..., Any], *also: str, exponential: bool = False) -> Operation:
    """Build a row for a function of `jax.numpy` from one array to floats; `also` are its other names."""
    return array(name, "x, /", promotion.in_floats(counterpart), also=also, exponential=exponential)


def over_axes(name: str, arguments: str, counterpart: Callable[..., Any], over: OverAxes, **more: Any) -> Operation:
    """Build a row for a collective of `jax.lax`."""
    return Operation(name, arguments, f"jax.lax.{name}", counterpart, kind="collective", over=over, **more)


@functools.cache
def signature(arguments: str) -> inspect.Signature:
    """Parse a parameter list: `signature("a, axis=None, *, keepdims=False")`."""
    namespace: dict[str, Any] = {}
    exec(f"def f({arguments}): ...", namespace)  # text of the table of operations, never a user's
    return inspect.signature(namespace["f"])


@dataclass(frozen=True)
class Combiner:
    """A function of two values that a call passes by name: its name in `jax.lax`, and the operation that it is.

    `identity`: the value that changes no other.
    """

    name: str
    operation: str
    identity: float

    @property
    def jax(self) -> str:
        """The function's path in JAX."""
        return f"jax.lax.{self.name}"


COMPUTATIONS = {
    each.name: each
    for each in (
        Combiner("add", "add", 0),
        Combiner("mul", "multiply", 1),
        Combiner("max", "maximum", -math.inf),
        Combiner("min", "minimum", math.inf),
    )
}
"""The functions that a call passes by name."""

PADDINGS = ("SAME", "SAME_LOWER", "VALID")
"""The strings that the argument `padding` may be."""

DTYPES = ("dtype", "preferred_element_type")
"""The arguments that set the dtype of the result."""

FROM_ZERO = ("scatter_dimension", "split_axis", "concat_axis")
"""The arguments that name a dimension and may not be negative."""

DIMENSIONS = ("axis", *FROM_ZERO, "dimension")
"""The arguments that name a dimension."""

DIAGONAL = "k"
"""The argument that names a diagonal."""

AT = "at[]."
"""The prefix of the names of operations that are spelled `x.at[index].add(values)`."""
