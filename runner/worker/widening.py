"""Widens a traced JAX function: every float becomes float64, every complex number complex128.

The jaxpr is rewritten equation by equation, with the bodies of its loops, branches, calls and `shard_map`: the types of
its values, its literals, and the dtypes that its equations name. Integers and keys stay, and random numbers are those
that the function draws in its own dtypes. Collectives, layouts and constraints are the function's own.

The files of twins contain this text, so it uses JAX and NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
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


def widened(
    function: Any, operands: Sequence[Any], exact: Iterable[float] = (), *, as_read: bool = False
) -> tuple[InFloat64, tuple[Any, ...]]:
    """Return a function in float64, compiled when it is called, and its operands, widened where they lie.

    A literal in the function's jaxpr has been rounded. It gets its digits back: those of the same literal in the
    function traced with 64 bits, or, where that has other types, of a number in `exact` that rounds to it. `as_read`:
    `exact` has literals of a jaxpr, rounded, which come first.

    Raises `CannotWiden`.
    """
    narrow: Any = _jax.make_jaxpr(function)(*operands)
    wide_operands = tuple(map(_placed, operands))
    with _jax.enable_x64(True):
        digits = _Digits([sign * float(number) for number in exact for sign in (1, -1)], as_read)
        wide = Widening(digits.of(narrow, lambda: _jax.make_jaxpr(function)(*wide_operands))).parameter(narrow)

    def evaluate(*arrays: Any) -> Any:
        return _core.eval_jaxpr(wide.jaxpr, wide.consts, *arrays)

    return InFloat64(evaluate), wide_operands


_POSITIVE = (
    2**0.5, 0.5**0.5, 2 / np.pi**0.5, np.pi**0.5 / 2, (2 / np.pi) ** 0.5, 0.044715, np.log(2), 1 / np.log(2),
    np.log(10), np.pi, np.pi / 180, 180 / np.pi, 1 / 3, 1.6732632423543772848, 1.0507009873554804934,
)  # fmt: skip
_CONSTANTS = tuple(sign * float(number) for number in _POSITIVE for sign in (1, -1))
"""The constants of JAX's functions and derivatives, which are rounded with 64 bits too where a line names a dtype."""

_PLACES = 16.0
"""A number of 32 bits with few binary places was not rounded; many constants have few in 16 bits."""

_MANY = 4096
"""Larger constants are data, which is compared as it is."""


class _Literal:
    """A literal or a constant of a jaxpr: `owner` is what the jaxpr has, `numbers` its elements.

    `drawn`: whether it belongs to a function of `jax.random`, which readers of jaxprs do not enter. `wide`: the same
    numbers in the function traced with 64 bits, None where that has other types; `exact`: those with their digits.
    """

    def __init__(self, owner: Any, value: np.ndarray, within: str) -> None:
        self.owner = owner
        self.kind = value.dtype
        self.numbers: list[float] = value.astype(np.float64).ravel().tolist()
        self.drawn = within in (NORMAL_DRAWS, BOUNDED_DRAWS)
        self.wide: list[float] | None = None
        self.exact: list[float] = self.numbers

    def rounded(self, kind: Any) -> bytes:
        """Its numbers in a narrow dtype."""
        return _rounded_to(kind, self.numbers).tobytes()


class _Digits:
    """The digits that literals had before they were rounded."""

    def __init__(self, exact: Sequence[float], as_read: bool) -> None:
        self._as_read = as_read
        self._sources: dict[str, Callable[[], list[float]]] = {
            "exact": lambda: [*exact],
            "others": lambda: [*self._traced, *_CONSTANTS],
            "quotients": lambda: [a / b for a in exact for b in exact if b],
        }
        self._traced: list[float] = []
        self._groups: dict[tuple[Any, str], dict[float, list[float]]] = {}

    def of(self, narrow: Any, trace: Callable[[], Any]) -> list[_Literal]:
        """The literals in a jaxpr, with their digits; `trace` traces the function with 64 bits."""
        literals = [literal for literal in _literals(narrow) if is_narrow(literal.kind)]
        if any(map(self._unclear, literals)):
            _align(literals, trace)
        self._traced = [number for literal in literals for number in literal.wide or ()]
        for literal in literals:
            if literal.wide is not None and (literal.drawn or not self._as_read):
                literal.exact = literal.wide
            else:
                pairs = zip(literal.numbers, literal.wide or literal.numbers, strict=True)
                literal.exact = [self._number(literal, *pair) for pair in pairs]
        return literals

    def _number(self, literal: _Literal, number: float, wide: float) -> float:
        """The digits of a number; those with 64 bits, if known, come after those that a reader has."""
        known = [] if literal.drawn else self._rounding_to(literal.kind).get(number, [])
        read = float(str(np.asarray(number).astype(literal.kind)[()]))
        if self._as_read and literal.kind.itemsize <= _HALF and read in known:
            # A reader writes a literal so; the same number of a wider dtype is another one of `exact`.
            return read
        if known or _has_few_places(literal.kind, number):
            return wide if wide in known else _first(number, known)
        if wide != number:
            return wide
        for source in ("others", "quotients"):
            known = known or self._rounding_to(literal.kind, source).get(number, [])
        return _first(number, known)

    def _unclear(self, literal: _Literal) -> bool:
        """Whether `exact` does not say which digits a literal had."""
        known = self._rounding_to(literal.kind)
        sure = self._as_read or literal.kind.itemsize > _HALF
        return any(
            not (_has_few_places(literal.kind, number) or (sure and len(known.get(number, [])) == 1))
            for number in literal.numbers
        )

    def _rounding_to(self, kind: Any, source: str = "exact") -> dict[float, list[float]]:
        """The numbers of a source by what they are in a narrow dtype."""
        if (kind, source) not in self._groups:
            self._groups[kind, source] = _by_rounded(kind, self._sources[source]())
        return self._groups[kind, source]


_HALF = 2
"""The bytes of a half-precision number."""


def _has_few_places(kind: Any, number: float) -> bool:
    return kind.itemsize > _HALF and (not np.isfinite(number) or float(number * _PLACES).is_integer())


def _first(number: float, several: Sequence[float]) -> float:
    """The number itself if it is one of several, or else the first of them."""
    return number if number in several or not several else several[0]


def _by_rounded(kind: Any, numbers: Sequence[float]) -> dict[float, list[float]]:
    """Numbers by what they are in a narrow dtype."""
    groups: dict[float, list[float]] = {}
    for rounded, number in zip(_rounded_to(kind, numbers).tolist(), numbers, strict=True):
        groups.setdefault(rounded, []).append(number)
    return groups


def _rounded_to(kind: Any, numbers: Sequence[float]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(numbers, np.float64).astype(kind).astype(np.float64)


def _align(literals: Sequence[_Literal], trace: Callable[[], Any]) -> None:
    """Give literals the numbers at their places in the function traced with 64 bits."""
    try:
        traced = list(_literals(trace()))
    except Exception:  # The user's function may raise anything where its types are others.
        return
    coarsest = max((literal.kind for literal in literals), key=lambda kind: float(_jax.numpy.finfo(kind).eps))
    a, b = ([literal.rounded(coarsest) for literal in several] for several in (literals, traced))
    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        for narrow, wide in zip(literals[block.a :][: block.size], traced[block.b :][: block.size], strict=True):
            if wide.kind == np.float64 and narrow.rounded(narrow.kind) == wide.rounded(narrow.kind):
                narrow.wide = wide.numbers


def _literals(jaxpr: Any, within: str = "") -> Iterator[_Literal]:
    """Every literal and constant of a jaxpr that is a float; `within` is the function that it is the body of."""
    body = jaxpr.jaxpr if isinstance(jaxpr, _CLOSED) else jaxpr
    for value in jaxpr.consts if isinstance(jaxpr, _CLOSED) else ():
        if hasattr(value, "dtype") and _is_float(value.dtype) and value.size <= _MANY:
            yield _Literal(value, np.asarray(value), within)
    for equation in body.eqns:
        for operand in equation.invars:
            if isinstance(operand, _core.Literal) and _is_float(operand.aval.dtype):
                yield _Literal(operand, np.asarray(operand.val, operand.aval.dtype), within)
        for inner in _inner(equation.params):
            yield from _literals(inner, _called(equation))


def _called(equation: Any) -> str:
    """The name of the function that an equation calls; "" if it calls none."""
    return equation.params.get("name", "") if equation.primitive.name == "jit" else ""


def _is_float(dtype: Any) -> bool:
    return dtype != _jax.dtypes.float0 and is_inexact(dtype) and not _jax.numpy.issubdtype(dtype, np.complexfloating)


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


SERIES = "sinc"
"""The function of `jax.numpy` that is a polynomial for the dtype of its operand, from JAX 0.12 on."""


class Widening:
    """Rewrites the jaxprs of one function; one that is used several times is rewritten once."""

    def __init__(self, literals: Iterable[_Literal] = ()) -> None:
        self._literals = {id(literal.owner): literal for literal in literals}
        self._done: dict[tuple[Any, str], Any] = {}

    def jaxpr(self, jaxpr: Any, within: str = "") -> Any:
        """A jaxpr, rewritten; `within` is the function of `jax.random` that it is the body of, if any."""
        if (jaxpr, within) not in self._done:
            self._done[jaxpr, within] = _Body(self, within).rewritten(jaxpr)
        return self._done[jaxpr, within]

    def constant(self, value: Any, owner: Any) -> Any:
        """A number or an array of numbers, with the digits that it had before it was rounded, if they are known."""
        dtype = getattr(value, "dtype", None)
        if dtype is None or not is_narrow(dtype):
            return value
        wide = _wide_value(value)
        literal = self._literals.get(id(owner))
        return wide if literal is None else np.asarray(literal.exact, np.float64).reshape(wide.shape)

    def parameter(self, value: Any, within: str = "") -> Any:
        """A parameter of an equation: its jaxprs rewritten, its types and dtypes widened."""
        if isinstance(value, _core.Jaxpr):
            return self.jaxpr(value, within)
        if isinstance(value, _CLOSED):
            return _CLOSED(self.jaxpr(value.jaxpr, within), [self.constant(const, const) for const in value.consts])
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
        return wide.with_consts([self._widening.constant(const, const) for const in consts]) if consts else wide

    def _variable(self, variable: Any) -> Any:
        if variable not in self._wide:
            self._wide[variable] = type(variable)(_wide_type(variable.aval))
        return self._wide[variable]

    def _operand(self, operand: Any) -> Any:
        if not isinstance(operand, _core.Literal):
            return self._variable(operand)
        if not is_narrow(operand.aval.dtype):
            return operand
        value = self._widening.constant(np.asarray(operand.val, operand.aval.dtype), operand)
        return _core.Literal(value[()], _wide_type(operand.aval))

    def _rewrite(self, equation: Any) -> None:
        name, called = equation.primitive.name, _called(equation)
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
        elif name == "polynomial" and self._within == SERIES:
            raise CannotWiden("jax.numpy.sinc, whose series has the terms that one dtype needs")
        elif _is_exp_neg_sq(equation):
            self._exponentiate(equation)
        else:
            wide = self._widening.parameter(equation.params, called)
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
        single, wide = operand.aval.update(dtype=np.dtype(np.float32)), _wide_type(operand.aval)
        rounded = _core.Var(single)
        self._convert(equation, self._variable(operand), rounded)
        square, widened = self._applied(equation, _jax.lax.mul_p, rounded, rounded), _core.Var(wide)
        self._convert(equation, square, widened)
        root = self._applied(equation, _jax.lax.sqrt_p, widened)
        sign = self._applied(equation, _jax.lax.sign_p, self._variable(operand))
        self._add(equation, invars=[self._applied(equation, _jax.lax.mul_p, sign, root)])

    def _exponentiate(self, equation: Any) -> None:
        """The exponential of a number's negative square, which JAX computes from the bits of its upper half."""
        operand = self._operand(equation.invars[0])
        square = self._applied(equation, _jax.lax.mul_p, operand, operand)
        negative = self._applied(equation, _jax.lax.neg_p, square)
        self._add(equation, invars=[negative], primitive=_jax.lax.exp_p, params={"accuracy": None})

    def _applied(self, beside: Any, primitive: Any, *operands: Any) -> Any:
        """The result of an elementary primitive."""
        result = _core.Var(operands[0].aval)
        params = {"accuracy": None} if primitive is _jax.lax.sqrt_p else {}
        self._equations.append(beside.replace(invars=[*operands], outvars=[result], primitive=primitive, params=params))
        return result


def _is_exp_neg_sq(equation: Any) -> bool:
    """Whether an equation is JAX's own `exp(-x ** 2)`, which the derivatives of `erf` and `erfc` have."""
    if equation.primitive.name != "custom_jvp_call":
        return False
    source = str(equation.params["call_jaxpr"].jaxpr.debug_info.func_src_info)
    return source.startswith("exp_neg_sq at ") and "jax/_src/lax/" in source.replace("\\", "/")
