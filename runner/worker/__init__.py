"""The worker: the process in which JAX lives. `runner/link/target.py` starts it and listens to it."""
