"""Reads the jaxpr of a function of the user's as lines in the language."""
