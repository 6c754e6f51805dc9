"""A script that calls `runner.check` before JAX has devices; `test_copied.py` runs it, and reads what it prints.

`python copies.py FOLDER [threads]`: with threads the workers are new processes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import runner

FOLDER = Path(sys.argv[1])
X = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
MESSAGES: list[str] = []


@jax.tree_util.register_pytree_node_class
class State:
    """A pytree whose leaves JAX numbers; a new process names them by the attributes."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.weight,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


@dataclasses.dataclass
class Logged(logging.Handler):
    """Keeps the messages of the logger of the runner."""

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        MESSAGES.append(record.getMessage())


def intruding(x: Any) -> Any:
    """A function with side effects."""
    print("a word on standard output")
    os.environ["INTRUDED"] = "yes"
    MESSAGES.append("intruded")
    return x * 2


def ending(x: Any) -> Any:
    """A function that ends its process."""
    os._exit(3)


def hanging(x: Any) -> Any:
    """A function that does not return."""
    threading.Event().wait()


def drawing(x: Any) -> Any:
    """A function whose result depends on the settings of JAX."""
    return x + jnp.arange(4.0)


def summary(function: Callable[..., Any], *operands: Any, **keys: Any) -> dict[str, Any]:
    """Check a function, and return what is to be seen of the record."""
    name = f"{function.__name__}_{len(list(FOLDER.glob('*')))}"
    keys = {"mesh": {"data": 2, "model": 2}, "in_specs": P("data"), **keys}
    record = runner.check(function, operands, quiet=True, folder=FOLDER / name, **keys)
    outputs = {name: output.dtype for program in record.compiled.values() for name, output in program.outputs.items()}
    log = FOLDER / name / "worker.log"
    words = log.read_text(encoding="utf-8") if log.is_file() else ""
    return {
        "status": record.status,
        "error": (record.error or "").split("\n")[-1],
        "arrays": sorted(record.arrays),
        "outputs": outputs,
        "log": words,
        "worker": [record.environment.worker, record.environment.worker_reason],
    }


def main() -> None:
    """Check all, and print what was seen as JSON."""
    logging.getLogger("runner").addHandler(Logged())
    logging.getLogger("runner").setLevel(logging.INFO)
    if sys.argv[2:] == ["threads"]:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("not flushed", end="")
    results = {
        "intruding": summary(intruding, X),
        "ending": summary(ending, X),
        "state": summary(lambda state, x: x @ state.weight, State(X[:4]), X, in_specs=(P(), P("data"))),
    }
    if sys.argv[2:] != ["threads"]:
        results["hanging"] = summary(hanging, X, timeout=1.0)
    with jax.enable_x64(True), jax.transfer_guard("disallow"), jax.disable_jit():
        results["wide"] = summary(drawing, X.astype(np.float64))
    jax.config.update("jax_numpy_rank_promotion", "raise")
    results["strict"] = summary(drawing, X)
    workers = [line for line in MESSAGES if line.startswith("the worker is")]
    here = {
        "intruded": "INTRUDED" in os.environ or "intruded" in MESSAGES,
        "x64": jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue]
        "devices": len(jax.devices()),
    }
    results["afterwards"] = summary(intruding, X)
    last = [line for line in MESSAGES if line.startswith("the worker is")][-1]
    print("\n" + json.dumps({"results": results, "workers": workers, "last": last, "here": here}))


if __name__ == "__main__":
    main()
