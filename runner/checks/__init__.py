"""What the programs did and what the oracles say in; verdicts out. A kind of check is one file in `kinds/`; no JAX."""
