"""The oracles: what an experiment computes, in NumPy, without JAX's tracing, partitioner or compiler."""

from runner.reference.interpreter import Interpretation, PerDevice, Rounding, interpret

__all__ = ["Interpretation", "PerDevice", "Rounding", "interpret"]
