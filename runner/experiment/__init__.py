"""Reads a resolved mapping into one frozen `Experiment` and its arrays."""
