"""Writes the source of one JAX script for each program of an experiment (`writers.py`)."""
