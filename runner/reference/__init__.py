"""An experiment and its arrays in; its values, computed with NumPy, without JAX's tracing, partitioner or compiler,
out.
"""

from runner.reference.arithmetic import magnitude
from runner.reference.decisions import PerDevice
from runner.reference.gradient import Gradients, consult
from runner.reference.interpreter import CannotInterpret, Interpretation, interpret
from runner.reference.rounding import Moments, Oracle, Rounding, UndecidedLine, measure

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
