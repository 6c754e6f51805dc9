"""A job in; types, results and evidence out: the process in which JAX lives, which `runner/link/target.py` starts."""
