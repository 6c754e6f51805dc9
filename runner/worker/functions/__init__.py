"""Reads the Python functions that a definition imports: trees, calls, and the types of operands."""
