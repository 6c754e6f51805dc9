"""Specs, shapes and what Shardy plans of them in; layouts and the moves between them, without JAX, out."""
