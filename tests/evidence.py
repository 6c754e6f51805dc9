"""What a record says of a program's collectives, memory and outputs, for tests that need it to be just so."""

from __future__ import annotations

from typing import Any


def collective(kind: str = "all-reduce", node: str | None = "C", axes: list[str] | None = None, **more: Any) -> Any:
    """A collective as `docs/record.md` describes it."""
    return {
        "kind": kind,
        "node": node,
        "nodes": [] if node is None else [node],
        "gradient": False,
        "inserted": False,
        "between": None,
        "axes": axes if axes is not None or "groups" in more else ["x"],
        "groups": [[0, 2], [1, 3]],
        "dtype": "float32",
        "bytes_in": 64,
        "bytes_out": 64,
        "bytes": 64,
        "count": 1,
        "asynchronous": False,
        "overlapped": None,
        "instruction": "all-reduce.3",
        **more,
    }


def output(**more: Any) -> Any:
    """An output as a record describes it."""
    return {
        "shape": [4, 4],
        "dtype": "float32",
        "spec": [None, None],
        "shard_shape": [4, 4],
        "text": "[[0. 1.]]",
        "values": None,
        **more,
    }


def program(*collectives: Any, **more: Any) -> Any:
    """A program that passed."""
    return {
        "status": "passed",
        "error": None,
        "checks": {name: {"status": "passed"} for name in ("value", "layout", "replicas", "agreement")},
        "outputs": {"C": output()},
        "collectives": list(collectives),
        "collectives_unknown": [],
        "collectives_missing": [],
        "memory": {"argument_bytes": 64, "output_bytes": 64, "temp_bytes": 64},
        "cost": {"flops": 80.0},
        "timing": {"compile_s": 0.05, "run_s": {"median": 0.0002}},
        **more,
    }


def record(programs: dict[str, Any] | None = None, **more: Any) -> Any:
    """A record of `case`, by default of a `shard_map` with one all-reduce."""
    return {
        "schema": 1,
        "experiment": "case",
        "summary": "",
        "overrides": ["+experiment=case"],
        "status": "passed",
        "error": None,
        "warnings": [],
        "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
        "target": {"platform": "cpu", "devices": 4, "kind": "cpu"},
        "arrays": {"A": {"shape": [4, 4], "dtype": "float32", "spec": [None, "x"], "shard_shape": [4, 2]}},
        "checks": {"sections": {"status": "passed"}},
        "programs": {"shard_map": program(collective())} if programs is None else programs,
        "not_supported": {},
        "environment": {"jax": "0.10.2", "jaxlib": "0.10.2", "python": "3.11.7", "runner": "0.1.0", "git": None},
        **more,
    }
