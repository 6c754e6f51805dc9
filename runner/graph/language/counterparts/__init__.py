"""Computes the result of a JAX function by NumPy, with floats in float64."""
