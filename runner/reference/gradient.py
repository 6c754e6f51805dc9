"""The NumPy reference of a scalar, and a gradient of it, in; whether differences of the reference confirm it, out.

A central difference of the reference, (f(w + hv) - f(w - hv)) / 2h in float64, shares nothing with JAX. Along random
directions v it confirms the gradient that JAX computes of the unsharded graph; element by element it takes its place
where there is no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner import dtypes
from runner.data import Arrays
from runner.experiment import DIFFERENCES, Experiment, Section
from runner.layout import Layout
from runner.reference.interpreter import Interpretation, interpret

DIRECTIONS = 3
"""Random directions per array: each has every element, with a random sign, so that no wrong element hides."""

RTOL = 1e-6
"""How far <g, v> and the difference along v may be apart, of the sum of the magnitudes of the terms of <g, v>."""

_STEPS = (1e-6, 1e-7, 1e-5, 1e-4)
"""Steps, relative to the array's largest element: a smaller one for a kink that lies near, larger ones for rounding."""

_ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""What a difference of two values loses, of the largest term in them; the step divides it."""

_ELEMENT_STEP = 1e-5

BY_JAX = "float64 gradient of the unsharded graph by JAX on one device"
BY_DIFFERENCES = "central differences of the SPMD interpreter's scalar, element by element"
CONFIRMED = {
    "graph": "confirmed by directional central differences of the NumPy reference",
    "per_device": "confirmed by directional central differences of the SPMD interpreter",
}


@dataclass
class Gradients:
    """The oracles of the gradients, which are among the values of the two interpretations.

    - `oracle`: for `graph` and `per_device`, which gradient it is, in words.
    - `apart`: for each section and gradient, the largest distance from the differences in units of what is allowed.
    - `lost`: for each gradient, what rounding in the experiment's own dtypes was measured to change in it.
    - `error`: for each gradient, the error of the oracle itself, where it is made of differences.
    - `faults`: what is wrong with the oracles.
    """

    oracle: dict[str, str] = field(default_factory=dict)
    apart: dict[str, dict[str, float]] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


Scalar = Callable[[str, np.ndarray], float]
"""The scalar, as a function of one array, which it is given by name."""


def consult(
    experiment: Experiment,
    arrays: Arrays,
    sections: Mapping[Section, Interpretation | None],
    by_jax: Mapping[str, np.ndarray],
    lost: Mapping[str, float],
) -> Gradients:
    """Add the gradients to the `sections`, each confirmed by differences of that section's own scalar.

    `by_jax` are JAX's of the graph, by the arrays' names, with the rounding `lost`; none where there is no graph.
    """
    assert experiment.grad is not None
    found = Gradients(lost={f"grad.{name}": off for name, off in lost.items()})
    for section, values in sections.items():
        if values is None:
            continue
        scalar = _scalar(experiment, section, arrays)
        magnitude = _magnitude(values, experiment.grad.of)
        rng = np.random.default_rng(0)
        gradients: dict[str, np.ndarray] = {}
        if by_jax:
            apart = {}
            for name in experiment.grad.wrt:
                at, gradient = _wide(arrays[name]), by_jax[name]
                apart[name] = max(_apart(scalar, name, at, gradient, magnitude, rng) for _ in range(DIRECTIONS))
            found.apart[section] = {f"grad.{name}": distance for name, distance in apart.items()}
            wrong = [name for name, distance in apart.items() if not distance <= 1.0]
            if not wrong:
                gradients = dict(by_jax)
                found.oracle[section] = f"{BY_JAX}, {CONFIRMED[section]}"
            elif section == "graph":
                gradients = dict(by_jax)
                found.oracle[section] = BY_JAX
                found.faults.append(
                    f"differences of the NumPy reference do not confirm the oracle's {_names(wrong)}: the scalar has a "
                    "kink at these values, or JAX's gradient of the graph or the reference is wrong"
                )
        if not gradients and section == "per_device":
            gradients = _by_elements(experiment, arrays, magnitude, found)
        for name, gradient in gradients.items():
            _define(experiment, section, values, name, gradient)
    return found


def _names(arrays: list[str]) -> str:
    return " and ".join(f"grad.{name}" for name in arrays)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _scalar(experiment: Experiment, section: Section, arrays: Arrays) -> Scalar:
    assert experiment.grad is not None
    of = experiment.grad.of
    stopped = interpret(experiment, section, arrays, keep=(of,)).stopped

    def scalar(name: str, value: np.ndarray) -> float:
        found = interpret(experiment, section, {**arrays, name: value}, keep=(of,), stopped=stopped)
        return float(found.values[of][0])

    return scalar


def _magnitude(values: Interpretation, of: str) -> float:
    """The largest term of the sums that made the scalar, or the scalar itself."""
    return max(abs(float(values.values[of][0])), values.rounding[of].scale)


def _scale(array: np.ndarray) -> float:
    return _largest(array) or 1.0


def _apart(
    scalar: Scalar, name: str, at: np.ndarray, gradient: np.ndarray, magnitude: float, rng: np.random.Generator
) -> float:
    """How far <gradient, v> is from the difference along a random v, in units of what is allowed; the best step's."""
    direction = rng.choice([-1.0, 1.0], at.shape) * _scale(at)
    products = gradient * direction
    best = np.inf
    for step in _STEPS:
        slope = (scalar(name, at + step * direction) - scalar(name, at - step * direction)) / (2 * step)
        allowed = RTOL * np.abs(products).sum() + _ROUNDING * magnitude / step
        off = abs(products.sum() - slope)
        best = min(best, 0.0 if off == 0 else float(off / allowed) if allowed > 0 else np.inf)
        if best <= 1.0:
            break
    return best


def _by_elements(experiment: Experiment, arrays: Arrays, magnitude: float, found: Gradients) -> dict[str, np.ndarray]:
    """Central differences of every element, unless the elements are too many."""
    assert experiment.grad is not None
    if sum(arrays[name].size for name in experiment.grad.wrt) > DIFFERENCES:
        return {}
    found.oracle["per_device"] = BY_DIFFERENCES
    scalar = _scalar(experiment, "per_device", arrays)
    beside = _scalar(experiment, "per_device", nudged(experiment, arrays))
    gradients = {}
    for name in experiment.grad.wrt:
        at, key = _wide(arrays[name]), f"grad.{name}"
        step = _ELEMENT_STEP * _scale(at)
        gradient, further = (_differences(scalar, name, at, h) for h in (step, 2 * step))
        rounded = _differences(beside, name, at, step)
        # The error of second order is a third of what the two steps differ by.
        found.error[key] = _largest(gradient - further) / 3 + _ROUNDING * magnitude / step
        found.lost[key] = max(found.lost.get(key, 0.0), _largest(gradient - rounded))
        gradients[name] = gradient
    return gradients


def nudged(experiment: Experiment, arrays: Arrays, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays, those of floats in float64 and each element moved by one rounding of its dtype, up or down."""
    rng = np.random.default_rng(seed)
    moved = {}
    for array in experiment.arrays:
        value, kind = arrays[array.name], dtypes.dtype(array.dtype)
        if kind.kind == "float":
            value = value.astype(np.float64) * (1 + kind.eps / 2 * rng.choice([-1.0, 1.0], value.shape))
        moved[array.name] = value
    return moved


def _differences(scalar: Scalar, name: str, at: np.ndarray, step: float) -> np.ndarray:
    """The central difference along every element."""
    slopes = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        there, back = at.copy(), at.copy()
        there[index] += step
        back[index] -= step
        slopes[index] = (scalar(name, there) - scalar(name, back)) / (2 * step)
    return slopes


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))


def _define(experiment: Experiment, section: Section, values: Interpretation, array: str, gradient: np.ndarray) -> None:
    """Make the gradient a value of the section, on every device as its spec lays it out."""
    name = f"grad.{array}"
    if section == "graph":
        values.values[name] = [gradient]
        return
    layout = Layout(experiment.mesh, gradient.shape, experiment.outputs[name])
    blocks: dict[tuple[int, ...], Any] = {}
    for position in range(experiment.mesh.size):
        blocks.setdefault(layout.block(position), gradient[layout.index(position)])
    values.values[name] = [blocks[layout.block(position)] for position in range(experiment.mesh.size)]
