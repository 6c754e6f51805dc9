"""Reads the text of an expression into a checked term, and has the operations with their NumPy counterparts."""
