"""What every check of one run reads: the experiment, the oracles and their tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from runner import dtypes
from runner.checks.compare import Tolerance, of_gradient, tolerance
from runner.data import Arrays
from runner.experiment import Experiment, Section
from runner.layout import Layout
from runner.reference import Gradients, Interpretation, Rounding, interpret, magnitude

SAFETY = 4
"""JAX's roundings are not NumPy's; how many times NumPy's largest may they be."""

_NARROWING = ("default", "bfloat16", "tensorfloat32")
"""The values of `precision` at which accelerators may round float32 operands of products."""

Check = dict[str, Any]
"""The verdict of one check: `status` and whatever it measured."""


@dataclass
class Context:
    """The oracles of one run. `outputs` gives each output's whole shape and its dtype."""

    experiment: Experiment
    arrays: Arrays
    outputs: Mapping[str, tuple[tuple[int, ...], str]]
    nodes: Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]]
    graph: Interpretation | None
    per_device: Interpretation | None
    not_pinned: str | None = None
    """Why the experiment's pinned values do not bind this run, if they do not."""
    gradients: Gradients = field(default_factory=Gradients)
    """The oracles of the gradients, whose values are among those of the two interpretations."""

    def layout(self, name: str) -> Layout:
        """The layout that the experiment promises for an output."""
        return Layout(self.experiment.mesh, self.outputs[name][0], self.experiment.outputs[name])

    @cached_property
    def coarsest(self) -> str:
        """The least precise inexact dtype of any array or node; float32 where none is."""
        used = {array.dtype for array in self.experiment.arrays}
        used |= {dtype for nodes in self.nodes.values() for _, dtype in nodes.values()}
        known = [name for name in used if name in dtypes.NAMES and not dtypes.dtype(name).exact]
        return max(known, key=lambda name: dtypes.dtype(name).eps, default="float32")

    def _coarsest(self, growth: float) -> str:
        """The least precise dtype on the way to a value with so much `growth`.

        Below `precision: high` an accelerator may round float32 operands to bfloat16 before it multiplies and sums
        them; simulated devices do not.
        """
        narrowed = self.experiment.target.platform != "cpu" and self.experiment.precision in _NARROWING
        return "bfloat16" if narrowed and growth and self.coarsest == "float32" else self.coarsest

    def expected(self, name: str, position: int, ranges: tuple[tuple[int, int], ...], oracle: str) -> Any:
        """What the oracle says that the device at `position` holds in `ranges`."""
        if oracle == "per_device":
            assert self.per_device is not None
            return self.per_device.values[name][position]
        assert self.graph is not None
        return np.asarray(self.graph.values[name][0])[tuple(slice(a, b) for a, b in ranges)]

    def oracles(self, section: str, name: str) -> tuple[str, ...]:
        """The oracles that know an output of a program of `section`. Only a gradient may lack one."""
        there: dict[str, Interpretation | None] = {"graph": self.graph}
        if section == "per_device":
            there = {"per_device": self.per_device, "graph": self.graph}
        return tuple(oracle for oracle, found in there.items() if found is not None and name in found.values)

    @cached_property
    def tolerances(self) -> dict[str, tuple[Tolerance, bool]]:
        """For each output its tolerance, and whether its reference is nothing but rounding noise."""
        found = {}
        for name, (_, dtype) in self.outputs.items():
            if name in self._gradients:
                found[name] = self._of_gradient(name, dtype)
                continue
            rounding = self._rounding(name)
            allowed, noise = tolerance(dtype, self._coarsest(rounding.growth), rounding, self._largest(name))
            if noise and self._largest(name):
                # Or only a term that a softmax drops, a mask's -1e30, was large: ask NumPy what is really lost.
                floor = Tolerance(allowed.rtol, allowed.rtol * self._largest(name))
                measured = floor.widened(self._lost(name), self._largest(name))
                if self._lost(name) <= measured.atol:
                    allowed, noise = measured, False
            found[name] = allowed, noise
        return found

    def _rounding(self, name: str) -> Rounding:
        """The worst that the sections say of a value."""
        sections = [section for section in (self.graph, self.per_device) if section is not None]
        return Rounding().joined(*(section.rounding[name] for section in sections))

    @property
    def _gradients(self) -> tuple[str, ...]:
        return self.experiment.grad.names if self.experiment.grad else ()

    def _of_gradient(self, name: str, dtype: str) -> tuple[Tolerance, bool]:
        assert self.experiment.grad is not None
        growth = self._rounding(self.experiment.grad.of).growth
        lost, error = (told.get(name, 0.0) for told in (self.gradients.lost, self.gradients.error))
        return of_gradient(dtype, self._coarsest(growth), growth, lost, error, self._largest(name))

    def tolerance(self, name: str) -> Tolerance:
        """The tolerance of one output."""
        return self.tolerances[name][0]

    def reconsider(self, name: str) -> bool:
        """Widen the tolerance of an output by what NumPy itself loses on it in float32; whether that changed it.

        A quotient of what a subtraction has nearly cancelled carries rounding further than any count of sums tells.
        It costs one more interpretation, and is asked for only where a check would fail.
        """
        before, noise = self.tolerances[name]
        if dtypes.dtype(self.outputs[name][1]).exact or name in self._gradients:
            return False
        after = before.widened(self._lost(name), self._largest(name))
        self.tolerances[name] = after, noise
        return after != before

    def _lost(self, name: str) -> float:
        """How far rounding may carry an output of an inexact dtype, by what NumPy itself loses on it in float32."""
        coarsest = self._coarsest(self._rounding(name).growth)
        eps = max(dtypes.dtype(coarsest).eps, dtypes.dtype(self.outputs[name][1]).eps)
        return SAFETY * eps / dtypes.dtype("float32").eps * self._lost_in_float32[name]

    def _largest(self, name: str) -> float:
        sections = [section for section in (self.graph, self.per_device) if section is not None]
        return next((magnitude(section.values[name]) for section in sections if name in section.values), 0.0)

    @cached_property
    def _lost_in_float32(self) -> dict[str, float]:
        """For each output, how far the oracles in float32 are from the oracles in float64, at most."""
        lost = {name: 0.0 for name in self.experiment.results if not dtypes.dtype(self.outputs[name][1]).exact}
        oracles: dict[Section, Interpretation | None] = {"graph": self.graph, "per_device": self.per_device}
        for section, wide in oracles.items():
            if wide is None:
                continue
            narrow = interpret(self.experiment, section, self.arrays, keep=lost, single=True)
            for name in lost:
                with np.errstate(all="ignore"):
                    apart = [np.asarray(a) - b for a, b in zip(wide.values[name], narrow.values[name], strict=True)]
                lost[name] = max(lost[name], magnitude(apart))
        return lost
