"""A JAX function; the same with the result of each elementary function moved within XLA's error of it.

What XLA computes for `tanh` depends on what it is fused with: one compiled program is one sample of its error. Moving
the results at random gives others, also inside of what differentiation made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from jax import lax, numpy

from runner.checks.reference import elementary
from runner.checks.reference.elementary import Inexactness
from runner.worker import calls
from runner.worker.versions import CALLING, bodies, evaluated, opened, scan_counts

_jnp: Any = numpy
_lax: Any = lax


def has_elementary(closed: Any, platform: str) -> bool:
    """Whether a jaxpr, or one inside it, has an elementary function."""
    return any(
        equation.primitive.name in elementary.known(platform)
        or any(has_elementary(inner, platform) for _, inner in bodies(equation))
        for equation in closed.eqns
    )


def inexact(function: Callable[..., Any], platform: str) -> Callable[..., tuple[Any, ...]]:
    """The function with a first operand, a uint32, that seeds the errors; 0 leaves every result as XLA computes it.

    Its results are flat. `platform`: the one whose errors they are.
    """

    def evaluate(seed: Any, *operands: Any) -> tuple[Any, ...]:
        closed = calls.make_jaxpr(function)(*operands)
        return tuple(_Evaluation(elementary.known(platform), seed)(closed.jaxpr, closed.consts, operands))

    return evaluate


class _Evaluation:
    """Evaluates jaxprs; `errors` are those of the primitives, by name."""

    def __init__(self, errors: Mapping[str, Inexactness], seed: Any) -> None:
        self._errors, self._seed = errors, seed

    def __call__(self, jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        return evaluated(jaxpr, operands, self._results, attrgetter("val"), constants)

    def closed(self, jaxpr: Any, *operands: Any) -> list[Any]:
        """The results of a jaxpr with its constants, or of one that needs none."""
        return self(*opened(jaxpr), operands)

    def _results(self, equation: Any, operands: list[Any]) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if name in self._errors:
            return [self._elementary(equation, operands)]
        if name == "scan":
            return self._scan(params, operands)
        if name == "while":
            return self._while(params, operands)
        if name == "cond":
            index, *rest = operands
            return _lax.switch(_jnp.asarray(index, np.int32), list(map(self._branch, params["branches"])), *rest)
        if name in CALLING:
            return self.closed(params[CALLING[name]], *operands)
        results = _bound(equation, operands)
        return results if equation.primitive.multiple_results else [results]

    def _elementary(self, equation: Any, operands: list[Any]) -> Any:
        """The result of an elementary function; of narrow floats it is computed in float32, as XLA does."""
        (typed,) = (variable.aval for variable in equation.outvars)
        error = self._errors[equation.primitive.name]
        if not _jnp.issubdtype(typed.dtype, np.floating):
            return _bound(equation, operands)
        wide = np.dtype(np.float64 if typed.dtype == np.float64 else np.float32)
        read = [_jnp.asarray(operand).astype(wide) for operand in operands]
        if wide == np.float64:
            return _moved(_bound(equation, read), elementary.IN_FLOAT64.result * 2.0**-53, self._seed)
        unit = elementary.DRAWN * error.unit(float(_jnp.finfo(typed.dtype).eps))
        if error.operand:
            read = [_moved(operand, error.operand * unit, self._seed) for operand in read]
        return _moved(_bound(equation, read), error.result * unit, self._seed).astype(typed.dtype)

    def _branch(self, jaxpr: Any) -> Callable[..., tuple[Any, ...]]:
        return lambda *operands: tuple(self.closed(jaxpr, *operands))

    def _scan(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        same, carried = scan_counts(params)
        constants, start, slices = operands[:same], operands[same : same + carried], operands[same + carried :]

        def step(carry: Any, slices: Any) -> tuple[list[Any], list[Any]]:
            results = self.closed(params["jaxpr"], *constants, *carry, *slices)
            return results[:carried], results[carried:]

        end, stacked = _lax.scan(step, list(start), list(slices), params["length"], params["reverse"], params["unroll"])
        return [*end, *stacked]

    def _while(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        first, second = params["cond_nconsts"], params["body_nconsts"]
        of_condition, of_body = operands[:first], operands[first : first + second]

        def goes_on(carry: Any) -> Any:
            return self.closed(params["cond_jaxpr"], *of_condition, *carry)[0]

        def step(carry: Any) -> list[Any]:
            return self.closed(params["body_jaxpr"], *of_body, *carry)

        return _lax.while_loop(goes_on, step, operands[first + second :])


def _bound(equation: Any, operands: Sequence[Any]) -> Any:
    """What the primitive of an equation makes of other operands."""
    with equation.ctx.manager:
        return equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))


def _moved(value: Any, most: float, seed: Any) -> Any:
    """Each number moved up or down by at most this share of itself, drawn from its bits and the seed; 0: not at all."""
    bits = _lax.bitcast_convert_type(value.astype(np.float32), np.uint32) ^ seed
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    drawn = (bits >> np.uint32(8)).astype(value.dtype) * 2.0**-23 - 1.0
    share = _jnp.where(seed == 0, 0.0, drawn * most).astype(value.dtype)
    return _jnp.where(_jnp.isfinite(value), value + value * share, value)
