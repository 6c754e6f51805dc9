"""`python -m tests.profiled_step FOLDER`: profiles three runs of a step on eight devices, beside another program.

It runs in a process of its own: JAX's profiler loads libtpu, where that is installed, which other tests do not survive.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def step_and_operand() -> tuple[Any, Any]:
    """A jitted step with a loop, whose sum needs an all-reduce, and its sharded operand."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    rows = NamedSharding(mesh, P("data"))

    def step(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            return jax.lax.with_sharding_constraint(carry * jnp.sum(carry * x), rows), None

        return jax.lax.scan(body, x, None, length=3)[0]

    return jax.jit(step), jax.device_put(jnp.ones((64, 64)) / 64, rows)


def main(folder: str) -> None:
    """Run the step under the profiler."""
    step, x = step_and_operand()
    jax.block_until_ready(step(x))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for _ in range(3):
            jax.block_until_ready(step(x))
        jax.block_until_ready(x + 1)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_platforms", "cpu")
    main(sys.argv[1])
