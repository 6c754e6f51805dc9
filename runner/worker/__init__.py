"""Runs a job in its own process, the only one that imports JAX: types, results and evidence."""
