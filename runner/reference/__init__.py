"""The oracles: what an experiment computes, in NumPy, without JAX's tracing, partitioner or compiler."""

from runner.reference.gradient import Gradients, consult
from runner.reference.interpreter import Interpretation, PerDevice, Rounding, interpret, magnitude

__all__ = ["Gradients", "Interpretation", "PerDevice", "Rounding", "consult", "interpret", "magnitude"]
