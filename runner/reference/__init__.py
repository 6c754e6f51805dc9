"""An experiment and its arrays in; what it computes, in NumPy, without JAX's tracing, partitioner or compiler, out."""

from runner.reference.arithmetic import magnitude
from runner.reference.decisions import PerDevice
from runner.reference.gradient import Gradients, consult
from runner.reference.interpreter import Interpretation, Misfit, interpret
from runner.reference.rounding import Moments, Oracle, Rounding, Undecided, measure

__all__ = [
    "Gradients",
    "Interpretation",
    "Misfit",
    "Moments",
    "Oracle",
    "PerDevice",
    "Rounding",
    "Undecided",
    "consult",
    "interpret",
    "magnitude",
    "measure",
]
