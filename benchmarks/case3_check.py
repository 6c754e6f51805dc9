"""Case 3 through `runner.check`, as a script: `python benchmarks/case3_check.py FOLDER`, the run folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from jax.sharding import PartitionSpec as P

import runner


def product(a, b):
    return a @ b


if __name__ == "__main__":
    A = np.arange(16, dtype=np.float32).reshape(4, 4)
    B = np.arange(16, 32, dtype=np.float32).reshape(4, 4)
    specs = (P(None, "x"), P("x", None))
    record = runner.check(
        product, (A, B), mesh={"x": 2, "y": 2}, in_specs=specs, out_specs=P(None, None), folder=sys.argv[1]
    )
    assert record.status == "passed"
