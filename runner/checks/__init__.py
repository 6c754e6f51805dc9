"""What the programs did and what the oracles say in; verdicts out. One kind of check, one file; no JAX."""
