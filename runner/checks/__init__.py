"""The checks: what the programs did and what the oracles say in, verdicts out. One kind, one file; no JAX."""
