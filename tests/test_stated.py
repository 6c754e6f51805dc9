"""Reasons for what a user's function gathers, each beside the function without the cause, which gathers nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from runner.app import api
from runner.link.workers import Workers
from tests.user_functions import gathered

X = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
IDS = np.arange(8, dtype=np.int32)[::-1].copy()
WORKERS = Workers()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def gathers(function: Any, operands: Any, folder: Path, **more: Any) -> list[str]:
    """The reasons for the all-gathers of a function's program, which passes."""
    record = api.checked(function, operands, folder=folder / function.__name__, workers=WORKERS, **more)
    assert record.status == "passed", record
    [program] = record.compiled.values()
    listed = [entry for entry in program.collectives or () if entry.kind == "all-gather"]
    assert all(entry.inserted for entry in listed)
    return [entry.why.text for entry in listed if entry.why is not None]


def line(part: str) -> str:
    lines = inspect.getsource(gathered).split("\n")
    [number] = [at for at, text in enumerate(lines, 1) if part in text]
    return f"gathered.py:{number}"


def mesh(kind: AxisType) -> Any:
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices()[:4])


def test_an_out_sharding_of_the_users_own_line_is_the_reason(tmp_path: Path) -> None:
    with jax.set_mesh(mesh(AxisType.Explicit)):
        operands = jax.device_put(X, P("b")), jax.device_put(IDS, P("a"))
        [why] = gathers(gathered.looked_up_whole, operands, tmp_path)
        assert gathers(gathered.looked_up_divided, operands, tmp_path) == []
    where = line("out_sharding=P(None, None)")
    assert why == f"the out_sharding in {where} wants all of dimension 0, which arrays.ids.spec shards over a"


def test_a_constraint_in_the_users_function_is_the_reason(tmp_path: Path) -> None:
    given = {"mesh": mesh(AxisType.Auto), "in_specs": P("a", "b")}
    [why] = gathers(gathered.constrained_whole, (X,), tmp_path, **given)
    assert gathers(gathered.constrained_divided, (X,), tmp_path, **given) == []
    assert why.startswith(f"the with_sharding_constraint in {line('constraint(h, P(None')} wants all of dimension 0")


def test_a_slice_that_devices_cannot_share_is_the_reason(tmp_path: Path) -> None:
    given = {"mesh": mesh(AxisType.Auto), "in_specs": P()}
    [why] = gathers(gathered.padded, (X[:6],), tmp_path / "six", **given)
    assert gathers(gathered.padded, (X,), tmp_path, out_specs=P(("a", "b")), **given) == []
    where = line("[: x.shape[0]]")
    assert why.startswith(f"the slice in {where} keeps 6 of 8 along dimension 0, which")
    assert "4 devices do not divide 6" in why


def test_top_k_needs_its_own_dimension_and_not_the_batch(tmp_path: Path) -> None:
    given = {"mesh": mesh(AxisType.Auto), "in_specs": P("a", "b"), "out_specs": P("a")}
    own, batch = gathers(gathered.largest, (X,), tmp_path, **given)
    where = line("top_k(x, 3)")
    assert own == f"{where} needs all of dimension 1 of x, which arrays.x.spec shards over b"
    assert batch == (
        f"XLA gathers dimension 0 of x, which arrays.x.spec shards over a, for top_k in {where}, "
        "which does not need it whole"
    )
