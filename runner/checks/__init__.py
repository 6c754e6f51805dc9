"""Compares what the programs did with what the oracles say; each file in `kinds/` is a kind of check. No JAX."""
