"""Eight simulated CPU devices: JAX reads the number once, before its first backend exists."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
