"""Shardproof: one YAML file says what a sharded JAX program means; the runner proves what JAX does with it."""

__version__ = "0.1.0"
