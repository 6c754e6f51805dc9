"""Reads from the worker's texts what the compiler and the profiler did, as plain data. No JAX."""
