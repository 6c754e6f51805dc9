"""Bounds the time of one run on named hardware from below, line by line. Imports no JAX."""
