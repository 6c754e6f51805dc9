"""A job in; types, results and evidence out. Runs in its own process, the only one that imports JAX."""
