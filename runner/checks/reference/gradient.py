"""Checks the gradient of a scalar against finite differences of its NumPy reference.

A central difference of the reference, (f(w + hv) - f(w - hv)) / 2h in float64, is independent of JAX. Along random
directions v it checks the gradient that JAX computes of the unsharded graph; without a graph, differences element by
element replace that gradient.

A `jax.custom_jvp` or `custom_vjp` of the user's own is part of what a program means. Where its rule gives another
gradient than the derivative of its function, that is the reference, and differences do not confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.checks.reference.arithmetic import Arithmetic, Floats, magnitude
from runner.checks.reference.decisions import PerDevice, Replaying
from runner.checks.reference.interpreter import interpret
from runner.checks.reference.rounding import SAFETY, Oracle, Rounding, of_float64, row_step
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment, Section
from runner.experiment.results import DIFFERENCES

DIRECTIONS = 3
"""The number of random directions per array; each has every element, with a random sign."""

RTOL = 1e-6
"""The tolerance between <g, v> and the difference along v, relative to the sum of the magnitudes of <g, v>'s terms."""

_STEPS = (1e-6, 1e-7, 1e-5, 1e-4)
"""Steps, relative to the array's largest element: a smaller one for a kink that lies near, larger ones for rounding."""

_BESIDE = (1e-13, 2e-13, 4e-13)
"""Steps after which float64's rounding differs, and the slope does not."""

_ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""The least relative error of a difference of two values, before it is divided by the step."""

_ELEMENT_STEP = 1e-5

BY_JAX = "float64 gradient of the unsharded graph by JAX on one device"
BY_RULES = "gradient of the unsharded graph by JAX on one device, by the rule of {rules}"
BY_DIFFERENCES = "central differences of the SPMD interpreter's scalar, element by element"
CONFIRMED = {
    "graph": "confirmed by directional central differences of the NumPy reference",
    "per_device": "confirmed by directional central differences of the SPMD interpreter",
}


@dataclass
class Gradients:
    """The oracles of the gradients, which are among the values of the two sections' oracles.

    - `oracle`: for `graph` and `per_device`, how its gradients were computed, as text.
    - `apart`: for each section and gradient, the largest distance from the differences, in tolerances.
    - `faults`: what is wrong with the oracles.
    - `by_rules`: how the gradients by the user's rules differ from the derivative, a sentence for each, by their names.
    """

    oracle: dict[str, str] = field(default_factory=dict[str, str])
    apart: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    faults: list[str] = field(default_factory=list[str])
    by_rules: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Scalar:
    """The scalar of one section as a function of one array, and float64's rounding of its value."""

    value: Callable[[str, np.ndarray], float]
    lost: float


def consult(
    experiment: Experiment,
    arrays: Arrays,
    sections: Mapping[Section, Oracle | None],
    floats: Mapping[str, Floats],
    by_jax: Mapping[str, np.ndarray],
    draws: Sequence[Mapping[str, np.ndarray]],
    by_rules: Mapping[str, str] = MappingProxyType({}),
) -> Gradients:
    """Add the gradients to `sections`, each confirmed by differences of that section's own scalar.

    `by_jax` are JAX's gradients of the graph, by the arrays' names, and `draws` their measured rounding; both None
    without a graph. Those in `by_rules`, as `ruled` returns them, are not confirmed.
    """
    assert experiment.grad is not None
    consulted = Gradients(by_rules={f"grad.{name}": how for name, how in by_rules.items()})
    whole, experiment = experiment, experiment.forward
    for section, oracle in sections.items():
        # The graph's gradients are the oracle of all programs, even if its own programs do not compute them.
        computed = whole.grad if section == "graph" else whole.alone(section).grad
        if oracle is None or computed is None:
            continue
        scalar = _scalar(experiment, section, arrays, oracle, floats.get(section, {}))
        rng = np.random.default_rng(0)
        gradients: dict[str, np.ndarray] = {}
        if by_jax:
            apart: dict[str, float] = {}
            for name in computed.wrt:
                if name in by_rules:
                    continue
                at, gradient = _wide(arrays[name]), by_jax[name]
                apart[name] = max(_apart(scalar, name, at, gradient, rng) for _ in range(DIRECTIONS))
            consulted.apart[section] = {f"grad.{name}": distance for name, distance in apart.items()}
            wrong = [name for name, distance in apart.items() if not distance <= 1.0]
            if not wrong:
                gradients = {name: by_jax[name] for name in computed.wrt}
                consulted.oracle[section] = _by_jax(whole, computed.wrt, by_rules, CONFIRMED[section])
            elif section == "graph":
                gradients = dict(by_jax)
                consulted.oracle[section] = BY_JAX
                consulted.faults.append(
                    f"differences of the NumPy reference do not confirm the oracle's {_names(wrong)}: the scalar has a "
                    "kink at these values, or JAX's gradient of the graph or the reference is wrong"
                )
        errors: dict[str, Rounding] = {}
        if not gradients and section == "per_device":
            consulted.oracle["per_device"] = BY_DIFFERENCES
            gradients, errors = _by_elements(experiment, arrays, scalar, oracle, floats)
            if not gradients:
                del consulted.oracle["per_device"]
        for name, gradient in ((name, gradients[name]) for name in gradients if name in computed.wrt):
            held = held_by(experiment, section, name, gradient)
            own = draws[1:] if section == "graph" and shares(experiment) > 1 else draws
            rounding = errors.get(name) or _measured(experiment, section, name, gradient, held, own)
            oracle.values[f"grad.{name}"], oracle.rounding[f"grad.{name}"] = held, rounding
    return consulted


def _by_jax(experiment: Experiment, names: Sequence[str], by_rules: Mapping[str, str], confirmed: str) -> str:
    """How JAX computed the gradients of these arrays, and how far they are confirmed."""
    followed = [name for name in names if name in by_rules]
    of_rules = BY_RULES.format(rules=listed(experiment.rules))
    if not followed:
        return f"{BY_JAX}, {confirmed}"
    if len(followed) == len(names):
        return of_rules
    return f"{BY_JAX}, {confirmed}; of {_names(followed)} the {of_rules}"


def ruled(
    experiment: Experiment,
    by_jax: Mapping[str, np.ndarray],
    draws: Sequence[Mapping[str, np.ndarray]],
    by_rules: Sequence[Mapping[str, np.ndarray]],
) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]], dict[str, str]]:
    """The gradients of the graph with those by the user's rules where these differ from the derivative.

    `by_jax` is the derivative of the lines, with its `draws`, both empty if JAX refuses it; `by_rules` is the gradient
    by the rules, then its draws. Returns the gradients, their draws, and how the gradients by rules differ.
    """
    gradient, *moved = by_rules
    known, measured, differing = dict[str, np.ndarray](), dict[str, list[np.ndarray]](), dict[str, str]()
    for name, here in gradient.items():
        own = [draw[name] for draw in moved]
        lines = [draw[name] for draw in draws]
        how = None
        if name in by_jax:
            allowed = SAFETY * (magnitude(own) + magnitude(lines))
            allowed = allowed + SAFETY * dtypes.dtype(experiment.array(name).dtype).eps * np.abs(by_jax[name])
            how = _unlike(here, by_jax[name], allowed)
        elif not by_jax:
            how = "is that of a rule: JAX does not differentiate the lines themselves"
        known[name], measured[name] = (by_jax[name], lines) if how is None else (here, own)
        if how is not None:
            differing[name] = how
    count = max(map(len, measured.values()), default=0)
    together = [
        {name: each[at % len(each)] if each else np.zeros(known[name].shape) for name, each in measured.items()}
        for at in range(count)
    ]
    return known, together, differing


def _unlike(by_rule: np.ndarray, derivative: np.ndarray, allowed: Any) -> str | None:
    """How a gradient by a rule differs from the derivative, by more than rounding; None if it does not."""
    with np.errstate(all="ignore"):
        off = np.abs(by_rule - derivative)
        unlike = ~((off <= allowed) | (by_rule == derivative) | (np.isnan(by_rule) & np.isnan(derivative)))
    if not unlike.any():
        return None
    undefined = int(np.count_nonzero(unlike & ~np.isfinite(derivative)))
    of = f"differs from the derivative of its function at {np.count_nonzero(unlike)} of {unlike.size} elements"
    amount = f"by up to {magnitude([off[unlike]]):.3g}" if undefined < np.count_nonzero(unlike) else ""
    where = f"at {undefined} of them the derivative is not finite" if undefined else ""
    return f"{of}, {', '.join(filter(None, (amount, where)))}"


def _measured(
    experiment: Experiment,
    section: Section,
    array: str,
    gradient: np.ndarray,
    held: PerDevice,
    draws: Sequence[Mapping[str, np.ndarray]],
) -> Rounding:
    """The measured rounding of a gradient, in its section's layout."""
    rounding = Rounding()
    for draw in draws:
        drawn = held_by(experiment, section, array, gradient + draw[array])
        rounding.take_in(held, drawn, lambda value: _whole(experiment, section, array, value))
    return rounding


def shares(experiment: Experiment) -> int:
    """The number of shares that JAX sums for a gradient of per_device; each is the derivative divided by this number.

    Without `check_vma`, `shard_map` does not know that all devices have the same scalar, so each contributes a share.
    """
    return experiment.manual.size if experiment.per_device and not experiment.check_vma else 1


def _names(arrays: list[str]) -> str:
    return " and ".join(f"grad.{name}" for name in arrays)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _scalar(experiment: Experiment, section: Section, arrays: Arrays, oracle: Oracle, floats: Floats) -> _Scalar:
    """The scalar of a section; it decides and casts as at `arrays`, so that it is smooth around them."""
    assert experiment.grad is not None
    of = experiment.grad.of

    def value(name: str, array: np.ndarray) -> float:
        script = Replaying(oracle.recorded)
        moved = {**arrays, name: array}
        interpreted = interpret(experiment, section, moved, keep=(of,), arithmetic=Arithmetic(floats), script=script)
        return float(interpreted.values[of][0])

    lost = of_float64(experiment, section, arrays, floats, oracle, (of,))[of].error
    return _Scalar(value, 8 * lost + _ROUNDING * abs(float(oracle.values[of][0])))


def _scale(array: np.ndarray) -> float:
    return magnitude([array]) or 1.0


def _apart(scalar: _Scalar, name: str, at: np.ndarray, gradient: np.ndarray, rng: np.random.Generator) -> float:
    """The distance of <gradient, v> from the difference along a random v, in tolerances, at the best step."""
    direction = rng.choice([-1.0, 1.0], at.shape) * _scale(at)
    products = gradient * direction

    def moved(by: float) -> float:
        return scalar.value(name, at + by * direction)

    def distance(slope: float, allowed: float) -> float:
        off = abs(products.sum() - slope)
        return 0.0 if off == 0 else float(off / allowed) if allowed > 0 else np.inf

    least, slopes = RTOL * float(np.abs(products).sum()), dict[float, float]()
    for step in _STEPS:
        slopes[step] = (moved(step) - moved(-step)) / (2 * step)
        if (apart := distance(slopes[step], least + scalar.lost / step)) <= 1.0:
            return apart
    # Terms that cancel may do so without rounding at `at` itself.
    lost = scalar.lost + 8 * max(abs(moved(by) - 2 * moved(0.0) + moved(-by)) for by in _BESIDE)
    return min(distance(slope, least + lost / step) for step, slope in slopes.items())


def _by_elements(
    experiment: Experiment, arrays: Arrays, scalar: _Scalar, oracle: Oracle, floats: Mapping[str, Floats]
) -> tuple[dict[str, np.ndarray], dict[str, Rounding]]:
    """Central differences of every element and their errors; None if there are too many elements."""
    assert experiment.grad is not None
    if sum(arrays[name].size for name in experiment.grad.wrt) > DIFFERENCES:
        return {}, {}
    beside = _scalar(experiment, "per_device", nudged(experiment, arrays), oracle, floats.get("per_device", {}))
    gradients: dict[str, np.ndarray] = {}
    roundings: dict[str, Rounding] = {}
    for name in experiment.grad.wrt:
        at = _wide(arrays[name])
        step = _ELEMENT_STEP * _scale(at)
        gradient, further = (_differences(scalar.value, name, at, h) for h in (step, 2 * step))
        rounded = _differences(beside.value, name, at, step)
        # The error of second order is a third of the difference between the two steps.
        error = magnitude([gradient - further]) / 3 + scalar.lost / step
        lost = magnitude([gradient - rounded])
        gradients[name] = gradient
        roundings[name] = Rounding(lost + error / SAFETY, elements=gradient.size)
    return gradients, roundings


def nudged(
    experiment: Experiment, arrays: Mapping[str, np.ndarray], seed: int = 0, place: float = 0.0
) -> dict[str, np.ndarray]:
    """Return the arrays with each float moved by one unit in the last place of its dtype: up, down, or not at all.

    A larger `place`, as a share of the element, is used instead.
    """
    rng = np.random.default_rng(seed)
    moved: dict[str, np.ndarray] = {}
    for array in experiment.arrays:
        value = arrays[array.name]
        kind = dtypes.dtype(value.dtype.name)
        if kind.kind == "float":
            factor = 1 + max(kind.eps, place) / 2 * rng.choice([-1.0, 0.0, 1.0], value.shape)
            value = (value.astype(np.float64) * factor).astype(value.dtype)
        moved[array.name] = value
    return moved


def _differences(scalar: Callable[[str, np.ndarray], float], name: str, at: np.ndarray, step: float) -> np.ndarray:
    """The central difference along every element."""
    slopes = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        there, back = at.copy(), at.copy()
        there[index] += step
        back[index] -= step
        slopes[index] = (scalar(name, there) - scalar(name, back)) / (2 * step)
    return slopes


def held_by(experiment: Experiment, section: Section, array: str, gradient: np.ndarray) -> PerDevice:
    """A gradient as every device holds it, in the layout of its spec."""
    if section == "graph":
        return [gradient]
    layout = experiment.blocks(gradient.shape, f"grad.{array}")
    blocks: dict[tuple[int, ...], Any] = {}
    for position in range(experiment.mesh.size):
        blocks.setdefault(layout.block(position), gradient[layout.index(position)])
    return [blocks[layout.block(position)] for position in range(experiment.mesh.size)]


def _whole(experiment: Experiment, section: Section, array: str, value: PerDevice) -> np.ndarray:
    """The rows of a gradient that enter its moments, assembled from the devices' values."""
    shape = experiment.array(array).shape
    step = row_step(shape)
    if section == "graph":
        return value[0][::step] if step > 1 else value[0]
    return experiment.blocks(shape, f"grad.{array}").assembled(value, step)
