"""The worker: the process in which JAX lives. `runner/target.py` starts it and listens to it."""
