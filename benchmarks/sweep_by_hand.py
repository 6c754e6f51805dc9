"""The points of `sweep.py` as a loop written by hand: JAX, compiled, run, with the same checks.

Each point is compiled once, run as often as the runner runs it, and compared with NumPy in float64; every device's
layout and its replicas are checked; collectives, memory and cost are read from the compiled module.
"""

import itertools
import json
import re
import sys
import time

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = 8
ROWS = (None, "y", "z", ("y", "z"), ("z", "y"))
SIZES = (16, 32)
M = N = 8
KINDS = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_default_matmul_precision", "highest")


def meshes():
    return [shape for shape in itertools.product((8, 4, 2, 1), repeat=3) if np.prod(shape) == DEVICES]


def auto(mesh, rows):
    return jax.jit(lambda a, b: a @ b)


def shard_map(mesh, rows):
    def multiply(a, b):
        return jax.lax.psum(a @ b, "x")

    specs = (P(rows, "x"), P("x", None))
    return jax.jit(jax.shard_map(multiply, mesh=mesh, in_specs=specs, out_specs=P(rows, None)))


def point(shape, rows, size, write):
    mesh = jax.make_mesh(shape, ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    a = np.arange(M * size, dtype=np.float32).reshape(M, size)
    b = np.arange(16, 16 + size * N, dtype=np.float32).reshape(size, N)
    operands = [
        jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in ((a, P(rows, "x")), (b, P("x", None)))
    ]
    start = time.perf_counter()
    compiled = write(mesh, rows).lower(*operands).compile()
    compile_s = time.perf_counter() - start
    c = jax.block_until_ready(compiled(*operands))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*operands))
        times.append(time.perf_counter() - start)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(np.asarray(c), reference, rtol=1e-6)
    held = {}
    for shard in c.addressable_shards:
        value = np.asarray(shard.data)
        np.testing.assert_allclose(value, reference[shard.index], rtol=1e-6)
        assert np.array_equal(held.setdefault(str(shard.index), value), value)
    kinds = KINDS.findall(compiled.as_text())
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    return [kinds, memory.temp_size_in_bytes, cost["flops"], compile_s, sorted(times)[5]]


def main():
    points = itertools.product(meshes(), ROWS, SIZES, (auto, shard_map))
    results = [point(*each) for each in points]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
