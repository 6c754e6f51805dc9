"""Writes each primitive of JAX, with its operands, as an expression of the language."""
