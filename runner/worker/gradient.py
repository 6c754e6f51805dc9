"""Computes the gradients of the unsharded graph, in float64 on one device.

They are the oracle for gradients: JAX's differentiation rules without mesh, sharding, partitioner or collectives.
`runner/checks/reference/gradient.py` checks them against finite differences of the NumPy reference.

Lines do not have the rules of the user's `jax.custom_jvp` and `custom_vjp`. `by_rules` has the gradients with them: it
calls the functions that contain such rules, in the dtypes of the programs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runner.base import dtypes
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment
from runner.graph.language.casts import narrowed, of_own_dtype, own_dtype
from runner.graph.language.operations import OPERATIONS, Operation, row_of
from runner.graph.model import Equation, Graph, Operand, Ref, flat, is_number
from runner.graph.source import FunctionCall
from runner.worker import calls, shared
from runner.worker.imported import called
from runner.worker.walk import REFUSALS, Walker

_WIDE = {
    name: {"float": "float64", "complex": "complex128"}.get(dtypes.dtype(name).kind, name) for name in dtypes.NAMES
}

DRAWS = 3
"""How often the rounding of the gradients is measured, each time with other arrays."""


def unsharded(
    experiment: Experiment, arrays: Arrays, floats: Mapping[str, Mapping[int, str]]
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Compute the gradients in float64, in the order of `grad.wrt`, and the rounding errors of several draws.

    A draw is the gradient in the experiment's own dtypes minus that in float64, both for the same arrays: first for the
    arrays themselves, then for arrays whose elements are moved by one unit in the last place of the narrowest dtype of
    the computation, since after a smaller move all draws would round alike. If the gradient has elementary functions,
    whose results depend on what XLA fuses them with, there are further draws with other errors of these. The last draw
    is the effect of such a move in float64, for experiments that compute in it. If there are `shares`, which a narrow
    dtype may lose, the first draw is that of one share, times their number. `floats` are the dtypes of the graph's
    expressions.
    """
    # Few experiments have gradients.
    from runner.checks.reference.gradient import nudged, shares

    names = [array.name for array in experiment.arrays]
    place = _narrowest(floats)
    moved = [arrays, *(nudged(experiment, arrays, seed, place) for seed in range(1, DRAWS))]
    with _on_one_device():
        function = _Compiled(_gradients(experiment))
        own = [[_plain(g) for g in function(*(draw[name] for name in names))] for draw in moved]
        count = shares(experiment)
        if count > 1:
            share = _Compiled(_gradients(experiment, share=1 / count))(*(arrays[name] for name in names))
            own, moved = [[count * _plain(g) for g in share], *own], [arrays, *moved]
        others = list(_with_other_errors(experiment, _gradients(experiment), arrays))
        with calls.enable_x64(True):
            function = _Compiled(_gradients(experiment, floats))
            wide = [dtypes.dtype(_WIDE[array.dtype]).numpy for array in experiment.arrays]

            def evaluate(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
                operands = [arrays[name].astype(dtype) for name, dtype in zip(names, wide, strict=True)]
                return [_plain(gradient) for gradient in function(*operands)]

            exact = [evaluate(draw) for draw in moved]
            beside = evaluate(
                nudged(experiment, {n: a.astype(d) for n, a, d in zip(names, moved[0].values(), wide, strict=True)}, 0)
            )
    # The gradient may be undefined at moved arrays.
    defined = [pair for pair in zip(own, exact, strict=True) if _as_finite(pair[1], exact[0])]
    draws = [[a - b for a, b in zip(*pair, strict=True)] for pair in (*defined, *((own, exact[0]) for own in others))]
    return exact[0], [*draws, [a - b for a, b in zip(beside, exact[0], strict=True)]]


class _Compiled:
    """A function, compiled at its first call, for operands of one kind; once for all with the same lowered text."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = calls.jit(function)
        self._compiled: Any = None

    def __call__(self, *operands: Any) -> Any:
        if self._compiled is None:
            self._compiled, _ = shared.of_lowered(self._function.lower(*operands), ())
        return self._compiled(*operands)


def _with_other_errors(
    experiment: Experiment, function: Callable[..., tuple[Any, ...]], arrays: Arrays
) -> Iterator[list[np.ndarray]]:
    """Yield gradients with other errors of XLA's elementary functions; none if there is no such function."""
    # It traces the gradient again, which is not needed for most.
    from runner.worker.inexact import has_elementary, inexact

    platform, operands = experiment.target.platform, [arrays[array.name] for array in experiment.arrays]
    if has_elementary(calls.make_jaxpr(function)(*operands), platform):
        compiled = _Compiled(inexact(function, platform))
        for seed in range(1, 1 + DRAWS):
            yield [_plain(gradient) for gradient in compiled(np.uint32(seed), *operands)]


def by_rules(
    experiment: Experiment, arrays: Arrays, floats: Mapping[str, Mapping[int, str]]
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Compute the gradients by the rules of the user's functions, in their own dtypes, and draws of their rounding.

    A draw is what a move of the arrays by one unit in the last place changes. Where the functions can also be called
    with 64 bits, and then compute the same, another draw is the difference from that.
    """
    from runner.checks.reference.gradient import nudged

    names = [array.name for array in experiment.arrays]
    place = _narrowest(floats)
    own = _scalar(experiment, rules=True)
    with _on_one_device():
        function = _Compiled(calls.value_and_grad(own, argnums=places(experiment)))

        def evaluate(arrays: Mapping[str, np.ndarray]) -> tuple[float, list[np.ndarray]]:
            value, gradients = function(*(arrays[name] for name in names))
            return float(value), [_plain(gradient) for gradient in gradients]

        value, gradients = evaluate(arrays)
        beside = [evaluate(nudged(experiment, arrays, seed, place))[1] for seed in range(1, DRAWS)]
        beside += _with_other_errors(experiment, calls.grad(own, argnums=places(experiment)), arrays)
        wide = _in_float64(experiment, floats, [arrays[name] for name in names])
    near = min(100 * max(place, dtypes.dtype("float32").eps), _SAME_FUNCTION) * abs(value)
    if wide is not None and abs(wide[0] - value) <= near:
        beside.append(wide[1])
    defined = [draw for draw in beside if _as_finite(draw, gradients)]
    return gradients, [[a - b for a, b in zip(draw, gradients, strict=True)] for draw in defined]


def widened(experiment: Experiment, arrays: Arrays, exact: Iterable[float]) -> list[np.ndarray]:
    """Compute the gradients as a twin does: by the user's rules, in float64, with casts that do not round.

    `exact` as in `widening.widened`, which raises `CannotWiden`.
    """
    # Few runs need it.
    from runner.worker import widening

    operands = tuple(arrays[array.name] for array in experiment.arrays)
    with _on_one_device():
        gradients, as_read = _gradients(experiment, rules=bool(experiment.rules)), bool(experiment.imports.functions)
        function, wide = widening.widened(gradients, operands, exact, as_read=as_read)
        return [_plain(gradient) for gradient in function(*wide)]


_SAME_FUNCTION = 0.01
"""Relative distance of two scalars beyond which the function computes something else with 64 bits: it draws numbers."""


def _in_float64(
    experiment: Experiment, floats: Mapping[str, Mapping[int, str]], arrays: Sequence[np.ndarray]
) -> tuple[float, list[np.ndarray]] | None:
    """The scalar and its gradients by the rules, in float64; None where a function does not take 64-bit floats."""
    with calls.enable_x64(True):
        operands = [array.astype(dtypes.dtype(_WIDE[str(array.dtype)]).numpy) for array in arrays]
        scalar = _scalar(experiment, floats, rules=True)
        try:
            value, gradients = calls.jit(calls.value_and_grad(scalar, argnums=places(experiment)))(*operands)
        except REFUSALS:
            return None
        return float(value), [_plain(gradient) for gradient in gradients]


def _narrowest(floats: Mapping[str, Mapping[int, str]]) -> float:
    """The unit in the last place of the narrowest float dtype in use, relative to the number."""
    kinds = (dtypes.dtype(name) for each in floats.values() for name in each.values())
    return max((kind.eps for kind in kinds if kind.kind == "float"), default=0.0)


def _as_finite(gradients: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Whether gradients are finite wherever the other ones are."""
    return all(np.isfinite(a[np.isfinite(b)]).all() for a, b in zip(gradients, others, strict=True))


def _plain(gradient: Any) -> np.ndarray:
    return np.asarray(gradient).astype(np.float64)


def of_graph(experiment: Experiment) -> None:
    """Differentiate the graph abstractly, to raise JAX's errors early."""
    structs = [jax.ShapeDtypeStruct(a.shape, dtypes.dtype(a.dtype).numpy) for a in experiment.arrays]
    calls.eval_shape(_gradients(experiment, rules=True), *structs)


def places(experiment: Experiment) -> tuple[int, ...]:
    """The positions of the arrays in `grad.wrt`."""
    assert experiment.grad is not None
    names = [array.name for array in experiment.arrays]
    return tuple(names.index(name) for name in experiment.grad.wrt)


def _gradients(
    experiment: Experiment,
    floats: Mapping[str, Mapping[int, str]] | None = None,
    share: float = 1.0,
    *,
    rules: bool = False,
) -> Callable[..., tuple[Any, ...]]:
    """The gradients of the scalar of `_scalar`."""
    return calls.grad(_scalar(experiment, floats, share, rules=rules), argnums=places(experiment))


def _scalar(
    experiment: Experiment,
    floats: Mapping[str, Mapping[int, str]] | None = None,
    share: float = 1.0,
    *,
    rules: bool = False,
) -> Callable[..., Any]:
    """`share` times the graph's scalar: in its own dtypes, or in float64 where `floats` are given.

    `rules`: whether its derivatives are those of the user's own rules.
    """
    assert experiment.grad is not None
    of = experiment.grad.of

    def scalar(*arrays: Any) -> Any:
        values = dict(zip((a.name for a in experiment.arrays), arrays, strict=True))
        if floats is None:
            walker = _Real(experiment, values, rules=rules)
        else:
            walker = _WideFloats(experiment, values, rules=rules, floats=floats)
        walker.run(experiment.before("graph"), "graph")
        return walker.values[of] * share

    return scalar


@contextlib.contextmanager
def _on_one_device() -> Generator[None]:
    try:
        device = calls.local_devices(backend="cpu")[0]
    except RuntimeError:
        device = calls.local_devices()[0]
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        yield


@dataclass
class _Real(Walker):
    """Walks a graph on real devices: one, but for a `shard_map` of the user's own, which has its own number."""

    rules: bool = False
    """Whether it calls the functions that contain a derivative of their own, in place of their lines."""

    def inside(self, call: FunctionCall, body: Graph, arguments: Sequence[Any]) -> tuple[Any, ...]:
        imports = self.experiment.imports
        function = imports.functions.get(call.function)
        if not self.rules or function is None or not function.rules:
            return super().inside(call, body, arguments)
        given = self.called(call.function, {v.name: a for v, a in zip(body.inputs, arguments, strict=True)})
        return (given,) if len(body.outputs) == 1 else tuple(given)

    def called(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a function of the user's own."""
        return called(self.experiment.imports, name, arguments)

    def devices(self, mesh: Mesh) -> Any:
        try:
            there = calls.local_devices(backend="cpu")
        except RuntimeError:
            there = []
        there = there if len(there) >= mesh.size else calls.local_devices()
        if len(there) < mesh.size:
            return super().devices(mesh)
        types = (jax.sharding.AxisType.Auto,) * len(mesh.axes)
        return calls.make_mesh(mesh.shape, mesh.axes, axis_types=types, devices=there[: mesh.size])


@dataclass
class _WideFloats(_Real):
    """Walks a graph in float64, as the reference does; a cast rounds its value and passes the derivative through.

    Random numbers are drawn in the experiment's own dtypes, since they depend on the dtype, and are then float64.
    Integers keep 32 bits; a float of integers, as their quotient, is float64.
    """

    floats: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])

    def called(self, name: str, arguments: Mapping[str, Any]) -> Any:
        given = jax.tree.map(_wide, called(self.experiment.imports, name, arguments, x64=True))
        return given if self.experiment.x64 else jax.tree.map(_of_32_bits, given)

    def function_of(self, operation: Operation) -> Callable[..., Any]:
        if operation.default_int and not self.experiment.x64:
            return _choice
        return _attention if operation.jax == "jax.nn.dot_product_attention" else super().function_of(operation)

    def operand(self, equation: Equation, operand: Operand) -> Any:
        value = super().operand(equation, operand)
        return _WIDE.get(value, value) if isinstance(value, str) and not _of_own_dtype(equation) else value

    def computed(self, equation: Equation) -> Any:
        value = super().computed(equation)
        if equation.spelled != "call":
            return value
        narrow = narrowed(OPERATIONS[equation.operation], equation, self._float_of)
        if narrow is None:
            return value

        def rounded(value: Any) -> Any:
            return _rounded(value, narrow)

        return jax.tree.map(rounded, value)

    def apply(self, equation: Equation, call: Callable[..., Any], operands: list[Any]) -> Any:
        if equation.spelled == "call":
            operation = OPERATIONS[equation.operation]
            own = of_own_dtype(operation, equation)
            if own:
                kind = own_dtype(own, self._float_of, x64=self.experiment.x64)
                operands = [
                    calls.asarray(x, kind) if _is_float(x) and any(operand is each for each in own) else x
                    for x, operand in zip(operands, flat(equation.arguments), strict=True)
                ]
            if operation.indices is not None and not self.experiment.x64:
                # JAX takes indices of one dtype; a Python integer would be 64-bit.
                starts = _elements(equation, operation.indices)
                operands = [np.int32(x) if i in starts and isinstance(x, int) else x for i, x in enumerate(operands)]
            if operation.makes_key and not self.experiment.x64:
                # The seed's lower 32 bits, which are all that JAX would read.
                operands = [x % 2**32 if isinstance(x, int) else x for x in operands]
        value = super().apply(equation, call, operands)
        if any(map(_is_narrow, jax.tree.leaves(value))):
            if not _of_own_dtype(equation):
                # JAX computes a float of 32-bit integers in float32, and of 64-bit integers in float64.
                value = super().apply(equation, call, list(map(_of_64_bits, operands)))
            value = jax.tree.map(_wide, value)
        return value if self.experiment.x64 else jax.tree.map(_of_32_bits, value)

    def _float_of(self, operand: Operand) -> str:
        if is_number(operand):
            return "float64"
        source = operand.source if isinstance(operand, Ref) else None
        kind = "float32" if source is None else self.floats.get(source.line.path, {}).get(source.part, "float32")
        return dtypes.dtype(kind).name


def _choice(key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0) -> Any:
    """`jax.random.choice` with the indices that it draws without `jax_enable_x64`."""
    if p is not None or not replace:
        return jax.random.choice(key, a, shape, replace, p, axis)
    count = a.shape[axis] if jnp.ndim(a) else a
    index = jax.random.randint(key, shape, 0, count, "int32")
    return jnp.take(a, index, axis) if jnp.ndim(a) else index


def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Any:
    """`jax.nn.dot_product_attention` in the operands' dtype; JAX's own computes the softmax in float32."""
    # The types of jax.numpy are unknown in parts.
    numpy: Any = jnp
    key, value = (numpy.repeat(x, query.shape[-2] // x.shape[-2], axis=-2) for x in (key, value))
    logits = numpy.einsum("...tnh,...snh->...nts", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    logits = logits if bias is None else logits + bias
    allowed = numpy.broadcast_to(True if mask is None else mask, logits.shape)
    allowed = numpy.tril(allowed) if is_causal else allowed
    # JAX's value for what is masked: a query that may attend to nothing averages over everything.
    weights = jax.nn.softmax(numpy.where(allowed, logits, -0.7 * numpy.finfo("float32").max), axis=-1)
    return numpy.einsum("...nts,...snh->...tnh", weights, value)


def _of_own_dtype(equation: Equation) -> bool:
    """Whether an equation's values depend on the dtype that it names, or that its operands have in the experiment."""
    operation = row_of(equation.operation)
    return equation.spelled == "call" and bool(operation.random or operation.dtype_of)


def _is_float(x: Any) -> bool:
    """Whether an operand is a Python number or an array of floats."""
    return not hasattr(x, "dtype") or jnp.issubdtype(x.dtype, jax.numpy.floating)


def _elements(equation: Equation, name: str) -> range:
    """The positions of the argument `name` among a call's flattened operands."""
    argument = equation.argument(name, OPERATIONS[equation.operation].signature)
    start = 0
    for operand in equation.arguments:
        count = len(flat([operand]))
        if operand is argument:
            return range(start, start + count)
        start += count
    return range(0)


def _is_narrow(x: Any) -> bool:
    return isinstance(x, jax.Array) and _WIDE.get(str(x.dtype), str(x.dtype)) != str(x.dtype)


def _wide(x: Any) -> Any:
    return x.astype(_WIDE[str(x.dtype)]) if _is_narrow(x) else x


def _of_64_bits(x: Any) -> Any:
    return x.astype("int64") if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.numpy.integer) else x


def _of_32_bits(x: Any) -> Any:
    # For a Python number, the operand may be just its type.
    narrow = {"int64": "int32", "uint64": "uint32"}.get(str(x.dtype)) if isinstance(x, jax.Array) else None
    return x if narrow is None else x.astype(narrow)


def _rounded(x: Any, narrow: str) -> Any:
    """Round `x` to the dtype `narrow`; the derivative is the identity's."""
    return x + jax.lax.stop_gradient(x.astype(dtypes.dtype(narrow).numpy).astype(x.dtype) - x)
