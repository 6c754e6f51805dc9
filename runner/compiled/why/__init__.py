"""Finds the reason of each collective of a compiled program, by its plan and its experiment."""
