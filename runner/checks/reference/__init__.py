"""Computes an experiment's values with NumPy, without JAX's tracing, partitioner or compiler."""

from runner.checks.reference.arithmetic import magnitude
from runner.checks.reference.decisions import PerDevice
from runner.checks.reference.gradient import Gradients, consult
from runner.checks.reference.interpreter import CannotInterpret, Interpretation, interpret
from runner.checks.reference.rounding import Moments, Oracle, Rounding, UndecidedLine, measure

__all__ = [
    "CannotInterpret",
    "Gradients",
    "Interpretation",
    "Moments",
    "Oracle",
    "PerDevice",
    "Rounding",
    "UndecidedLine",
    "consult",
    "interpret",
    "magnitude",
    "measure",
]
