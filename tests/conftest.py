"""Eight simulated CPU devices: JAX reads the number once, before its first backend exists."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Where xdist deals out the tests, those that share what a module makes for them go to one worker."""
    if getattr(config.option, "dist", None) == "load":
        config.option.dist = "loadgroup"
