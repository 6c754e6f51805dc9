"""Widens a traced JAX function: every float becomes float64, every complex number complex128.

The jaxpr is rewritten equation by equation, with the bodies of its loops, branches, calls and `shard_map`: the types of
its values, its literals, and the dtypes that its equations name. Integers and keys stay, and random numbers are those
that the function draws in its own dtypes. Collectives, layouts and constraints are the function's own.

The files of twins contain this text, so it uses JAX and NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

_jax: Any = cast("Any", jax)
# A jaxpr is rewritten by what is public in `jax.extend`, which also imports Pallas: 50 ms.
_core: Any = __import__("jax._src.core", fromlist=["core"])
_CLOSED: Any = getattr(_core, "ClosedJaxpr", _core.Jaxpr)
"""From JAX 0.12 on, a jaxpr has its constants itself."""


class CannotWiden(Exception):
    """A function does what has another meaning in float64, or one that cannot be read: the message says what."""


class InFloat64:
    """A function that is traced and compiled with 64 bits."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._jitted = _jax.jit(function)

    def __call__(self, *arrays: Any) -> Any:
        with _jax.enable_x64(True):
            return self._jitted(*arrays)

    def lowered(self, *arrays: Any) -> Any:
        """The function as it is lowered for some operands."""
        with _jax.enable_x64(True):
            return self._jitted.lower(*arrays)


def widened(function: Any, operands: Sequence[Any], exact: Iterable[float] = ()) -> tuple[InFloat64, tuple[Any, ...]]:
    """Return a function in float64, compiled when it is called, and its operands, widened where they lie.

    A literal in the function's jaxpr has been rounded. It gets back the digits of the number in `exact` that rounds to
    it; or of the literal in the same function traced with 64 bits, where it has other types.

    Raises `CannotWiden`.
    """
    narrow: Any = _jax.make_jaxpr(function)(*operands)
    wide_operands = tuple(map(_placed, operands))
    given = [*map(float, exact), *_CONSTANTS]
    digits = _by_rounded(given)
    rounded = set(_numbers(narrow))
    with _jax.enable_x64(True):
        if rounded - digits.keys():
            digits = _by_rounded(_traced_wide(function, wide_operands)) | digits
        if rounded - digits.keys():
            quotients = [a / b for a in given for b in given if b]
            digits = _by_rounded(quotients) | digits
        wide = Widening(digits).parameter(narrow)

    def evaluate(*arrays: Any) -> Any:
        return _core.eval_jaxpr(wide.jaxpr, wide.consts, *arrays)

    return InFloat64(evaluate), wide_operands


def _traced_wide(function: Any, operands: Sequence[Any]) -> list[float]:
    """The numbers of 64 bits in a function's jaxpr with 64 bits; none if the function does not take them."""
    try:
        literals = _literals(_jax.make_jaxpr(function)(*operands))
        return [number for value in literals if value.dtype == np.float64 for number in _each(value)]
    except Exception:  # The user's function may raise anything where its types are others.
        return []


def _by_rounded(numbers: Sequence[float]) -> dict[tuple[str, float], float]:
    """Numbers by what they are in each narrow dtype: the first of those that are the same there."""
    with np.errstate(all="ignore"):
        several = np.asarray(numbers, np.float64)
        kinds = {kind: several.astype(_jax.numpy.dtype(kind)).astype(np.float64).tolist() for kind in _ROUNDING}
    return {(kind, a): b for kind, rounded in kinds.items() for a, b in reversed([*zip(rounded, numbers, strict=True)])}


_ROUNDING = ("float32", "bfloat16", "float16")
"""The dtypes whose numbers get their digits back."""

_CONSTANTS = (2**0.5,)
"""The constants of functions that draw numbers in the dtype that they are given, so also with 64 bits."""

_PLACES = 16.0
"""A number with few binary places was not rounded."""


def _numbers(jaxpr: Any) -> Iterator[tuple[str, float]]:
    """The numbers in a jaxpr that may have been rounded, each with its dtype."""
    for value in _literals(jaxpr):
        if (kind := str(value.dtype)) in _ROUNDING:
            yield from ((kind, x) for x in _each(value) if np.isfinite(x) and not float(x * _PLACES).is_integer())


def _each(value: np.ndarray) -> list[float]:
    return [] if value.dtype.kind == "c" or value.size > _MANY else value.astype(np.float64).ravel().tolist()


_MANY = 4096
"""Larger constants are data, which is compared as it is."""


def _literals(jaxpr: Any) -> Iterator[np.ndarray]:
    """Every literal and constant of a jaxpr that is a float."""
    body = jaxpr.jaxpr if isinstance(jaxpr, _CLOSED) else jaxpr
    for value in jaxpr.consts if isinstance(jaxpr, _CLOSED) else ():
        if hasattr(value, "dtype") and is_inexact(value.dtype):
            yield np.asarray(value)
    for equation in body.eqns:
        for operand in equation.invars:
            if isinstance(operand, _core.Literal) and is_inexact(operand.aval.dtype):
                yield np.asarray(operand.val, operand.aval.dtype)
        for inner in _inner(equation.params):
            yield from _literals(inner)


def _inner(value: Any) -> Iterator[Any]:
    """The jaxprs in the parameters of an equation."""
    if isinstance(value, (_core.Jaxpr, _CLOSED)):
        yield value
    elif isinstance(value, dict):
        yield from _inner(tuple(cast("Any", value).values()))
    elif isinstance(value, (list, tuple)):
        for part in cast("Any", value):
            yield from _inner(part)


def _placed(operand: Any) -> Any:
    """An operand, widened on the devices that have it."""
    if not is_narrow(operand.dtype):
        return operand
    with _jax.enable_x64(True):
        if not isinstance(operand, jax.Array):
            return _wide_value(operand)
        parts = [_jax.device_put(_wide_value(part.data), part.device) for part in operand.addressable_shards]
        return _jax.make_array_from_single_device_arrays(operand.shape, operand.sharding, parts)


def is_inexact(dtype: Any) -> bool:
    """Whether numbers of a dtype may be rounded."""
    return not _jax.dtypes.issubdtype(dtype, _jax.dtypes.extended) and _jax.numpy.issubdtype(dtype, np.inexact)


def is_narrow(dtype: Any) -> bool:
    """Whether a dtype is widened."""
    return dtype != _jax.dtypes.float0 and is_inexact(dtype) and dtype not in (np.float64, np.complex128)


def wide_dtype(dtype: Any) -> Any:
    """The dtype that takes the place of another."""
    if not is_narrow(dtype):
        return dtype
    return np.dtype(np.complex128 if _jax.numpy.issubdtype(dtype, np.complexfloating) else np.float64)


def _wide_value(value: Any) -> np.ndarray:
    return np.asarray(value).astype(wide_dtype(value.dtype))


_REFUSED = {
    "pallas_call": "a Pallas kernel",
    "pure_callback": "a callback",
    "io_callback": "a callback",
    "python_callback": "a callback",
    "ffi_call": "a call of foreign code",
    "reduce_precision": "reduce_precision, which rounds on purpose",
    "nextafter": "nextafter, which is about one dtype",
}
"""The primitives that are not widened, and what they are."""

_OF_OWN_DTYPE = ("random_gamma", "rng_uniform")
"""The primitives whose random numbers depend on the dtype in which they are drawn."""

DRAWS = "_uniform"
"""The function of `jax.random` whose numbers depend on the dtype; the others are computed from its numbers."""

BOUNDED_DRAWS = "_truncated_normal"
"""The function of `jax.random` that takes the next number of a dtype, to bound what it has drawn."""

NORMAL_DRAWS = "_normal_real"
"""The function of `jax.random` that computes the inverse error function of a number that it draws."""


class Widening:
    """Rewrites the jaxprs of one function; one that is used several times is rewritten once."""

    def __init__(self, exact: Mapping[tuple[str, float], float]) -> None:
        self._exact = exact
        self._done: dict[tuple[Any, str], Any] = {}

    def jaxpr(self, jaxpr: Any, within: str = "") -> Any:
        """A jaxpr, rewritten; `within` is the function of `jax.random` that it is the body of, if any."""
        if (jaxpr, within) not in self._done:
            self._done[jaxpr, within] = _Body(self, within).rewritten(jaxpr)
        return self._done[jaxpr, within]

    def constant(self, value: Any) -> Any:
        """A number or an array of numbers, with the digits that it had before it was rounded, if they are known."""
        dtype = getattr(value, "dtype", None)
        if dtype is None or not is_narrow(dtype):
            return value
        wide = _wide_value(value)
        if wide.dtype.kind == "c" or wide.size > _MANY:
            return wide
        numbers = [self._exact.get((str(dtype), number), number) for number in wide.ravel().tolist()]
        return np.asarray(numbers, np.float64).reshape(wide.shape)

    def parameter(self, value: Any, within: str = "") -> Any:
        """A parameter of an equation: its jaxprs rewritten, its types and dtypes widened."""
        if isinstance(value, _core.Jaxpr):
            return self.jaxpr(value, within)
        if isinstance(value, _CLOSED):
            return _CLOSED(self.jaxpr(value.jaxpr, within), [self.constant(const) for const in value.consts])
        if isinstance(value, _core.ShapedArray):
            return _wide_type(value)
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.inexact)):
            return wide_dtype(np.dtype(cast("Any", value)))
        if isinstance(value, dict):
            return {name: self.parameter(part, within) for name, part in cast("Any", value).items()}
        if not isinstance(value, (list, tuple)):
            return cast("Any", value)
        several = cast("Any", value)
        parts = [self.parameter(part, within) for part in several]
        return type(several)(*parts) if hasattr(several, "_fields") else type(several)(parts)


def _wide_type(kind: Any) -> Any:
    if isinstance(kind, _core.ShapedArray):
        return kind.update(dtype=wide_dtype(kind.dtype)) if is_narrow(kind.dtype) else kind
    if isinstance(kind, _core.AbstractToken):
        return kind
    raise CannotWiden(f"a value of type {kind}")


def _keeps_all(equation: Any) -> bool:
    """Whether a `reduce_precision` keeps all bits of its operand's dtype."""
    kind = _jax.numpy.finfo(equation.invars[0].aval.dtype)
    return equation.params == {"exponent_bits": kind.nexp, "mantissa_bits": kind.nmant}


class _Body:
    """Rewrites the equations of one jaxpr, with wider variables in the place of its own."""

    def __init__(self, widening: Widening, within: str) -> None:
        self._widening = widening
        self._within = within
        self._wide: dict[Any, Any] = {}
        self._equations: list[Any] = []

    def rewritten(self, jaxpr: Any) -> Any:
        constvars, invars = ([self._variable(each) for each in several] for several in (jaxpr.constvars, jaxpr.invars))
        for equation in jaxpr.eqns:
            self._rewrite(equation)
        outvars = [self._operand(outvar) for outvar in jaxpr.outvars]
        wide = jaxpr.replace(constvars=constvars, invars=invars, outvars=outvars, eqns=self._equations)
        consts = getattr(jaxpr, "consts", ())
        return wide.with_consts([self._widening.constant(const) for const in consts]) if consts else wide

    def _variable(self, variable: Any) -> Any:
        if variable not in self._wide:
            self._wide[variable] = type(variable)(_wide_type(variable.aval))
        return self._wide[variable]

    def _operand(self, operand: Any) -> Any:
        if not isinstance(operand, _core.Literal):
            return self._variable(operand)
        if not is_narrow(operand.aval.dtype):
            return operand
        value = self._widening.constant(np.asarray(operand.val, operand.aval.dtype))
        return _core.Literal(value[()], _wide_type(operand.aval))

    def _rewrite(self, equation: Any) -> None:
        name, params = equation.primitive.name, equation.params
        called = params.get("name", "") if name in ("jit", "pjit") else ""
        if name in ("debug_callback", "debug_print"):
            return
        if called == DRAWS or name in _OF_OWN_DTYPE or (name == "nextafter" and self._within == BOUNDED_DRAWS):
            self._keep(equation)
        elif name == "bitcast_convert_type" and any(is_narrow(v.aval.dtype) for v in equation.invars):
            raise CannotWiden("the bits of a float (bitcast_convert_type)")
        elif name == "bitcast_convert_type":
            self._keep(equation)
        elif name == "reduce_precision" and _keeps_all(equation):
            # So `jax.checkpoint` keeps the compiler from reusing a value.
            self._add(equation, params={"exponent_bits": 11, "mantissa_bits": 52})
        elif name in _REFUSED:
            raise CannotWiden(_REFUSED[name])
        elif name == "erf_inv" and self._within == NORMAL_DRAWS:
            self._invert(equation)
        else:
            wide = self._widening.parameter(params, called)
            # A product may name an algorithm of narrow dtypes, as attention does: BF16_BF16_F32.
            self._add(equation, params={**wide, "precision": None} if wide.get("precision") is not None else wide)

    def _add(self, equation: Any, **changes: Any) -> None:
        invars, outvars = [self._operand(v) for v in equation.invars], [self._variable(v) for v in equation.outvars]
        self._equations.append(equation.replace(**{"invars": invars, "outvars": outvars, **changes}))

    def _keep(self, equation: Any) -> None:
        """Keep an equation in its own dtypes: its operands are rounded to them, its results widened."""
        operands = [self._rounded(equation, operand) for operand in equation.invars]
        results = [_core.Var(result.aval) for result in equation.outvars]
        self._equations.append(equation.replace(invars=operands, outvars=results))
        for result, variable in zip(results, equation.outvars, strict=True):
            if is_narrow(variable.aval.dtype):
                self._convert(equation, result, self._variable(variable))
            else:
                self._wide[variable] = result

    def _rounded(self, equation: Any, operand: Any) -> Any:
        if isinstance(operand, _core.Literal) or not is_narrow(operand.aval.dtype):
            return operand if isinstance(operand, _core.Literal) else self._variable(operand)
        rounded = _core.Var(operand.aval)
        self._convert(equation, self._variable(operand), rounded)
        return rounded

    def _convert(self, beside: Any, operand: Any, result: Any) -> None:
        params = {"new_dtype": result.aval.dtype, "weak_type": False, "sharding": None}
        primitive: Any = _jax.lax.convert_element_type_p
        self._equations.append(
            beside.replace(invars=[operand], outvars=[result], primitive=primitive, params=params, effects=frozenset())
        )

    def _invert(self, equation: Any) -> None:
        """The inverse error function of a number, whose square XLA rounds to float32: in the tails that shows."""
        (operand,) = equation.invars
        single = operand.aval.update(dtype=np.dtype(np.float32))
        rounded, square, wide, root = (
            _core.Var(single), _core.Var(single), *(_core.Var(_wide_type(operand.aval)) for _ in range(2))
        )  # fmt: skip
        self._convert(equation, self._variable(operand), rounded)
        self._equations.append(
            equation.replace(invars=[rounded, rounded], outvars=[square], primitive=_jax.lax.mul_p, params={})
        )
        self._convert(equation, square, wide)
        sign, magnitude = _core.Var(wide.aval), _core.Var(wide.aval)
        for primitive, invars, outvar in (
            (_jax.lax.sqrt_p, [wide], root),
            (_jax.lax.sign_p, [self._variable(operand)], sign),
            (_jax.lax.mul_p, [sign, root], magnitude),
        ):
            params = {"accuracy": None} if primitive is _jax.lax.sqrt_p else {}
            self._equations.append(
                equation.replace(invars=invars, outvars=[outvar], primitive=primitive, params=params)
            )
        self._add(equation, invars=[magnitude])
