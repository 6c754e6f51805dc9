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
from runner.reports.record import readable
from runner.reports.record.record import read
from runner.reports.show import explained_runs
from tests.user_functions import gathered

X = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
IDS = np.arange(8, dtype=np.int32)[::-1].copy()
WORKERS = Workers()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def moved(function: Any, operands: Any, folder: Path, kind: str | None = None, **more: Any) -> list[str]:
    """The reasons for the collectives of a function's program, which passes; those of one `kind` if it is given."""
    record = api.checked(function, operands, folder / function.__name__, WORKERS, **more)
    assert record.status == "passed", record
    [program] = readable.readable(record).compiled.values()
    listed = [entry for entry in program.collectives or () if kind in (None, entry.kind)]
    assert all(entry.inserted for entry in listed)
    return [entry.why.text for entry in listed if entry.why is not None]


def gathers(function: Any, operands: Any, folder: Path, **more: Any) -> list[str]:
    return moved(function, operands, folder, "all-gather", **more)


def line(part: str) -> str:
    lines = inspect.getsource(gathered).split("\n")
    [number] = [at for at, text in enumerate(lines, 1) if part in text]
    return f"gathered.py:{number}"


def mesh(kind: AxisType) -> Any:
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices()[:4])


@pytest.mark.in_turn
def test_an_out_sharding_of_the_users_own_line_is_the_reason(tmp_path: Path) -> None:
    with jax.set_mesh(mesh(AxisType.Explicit)):
        operands = jax.device_put(X, P("b")), jax.device_put(IDS, P("a"))
        [why] = gathers(gathered.looked_up_whole, operands, tmp_path)
        assert gathers(gathered.looked_up_divided, operands, tmp_path) == []
    where = line("out_sharding=P(None, None)")
    assert why == f"the out_sharding in {where} wants all of dimension 0, which ids shards over a"


def test_a_constraint_in_the_users_function_is_the_reason(tmp_path: Path) -> None:
    given = {"mesh": mesh(AxisType.Auto), "in_specs": P("a", "b")}
    [why] = gathers(gathered.constrained_whole, (X,), tmp_path, **given)
    assert gathers(gathered.constrained_divided, (X,), tmp_path, **given) == []
    assert why.startswith(f"the with_sharding_constraint in {line('constraint(h, P(None')} wants all of dimension 0")


def listed_at(function: Any, operands: Any, folder: Path, **more: Any) -> list[tuple[str, str]]:
    """The kind of each collective of a function's program, and what the table says of it."""
    record = api.checked(function, operands, folder / function.__name__, WORKERS, **more)
    assert record.status == "passed", record
    [program] = record.compiled.values()
    assert [entry.why.at and str(entry.why.at.place) for entry in program.collectives or () if entry.why] == [
        (entry.of or "").rpartition(" for ")[2] for entry in program.collectives or ()
    ]
    return [(entry.kind, entry.of or "") for entry in program.collectives or ()]


def test_what_a_reshard_of_the_user_moves_is_listed_at_its_line(tmp_path: Path) -> None:
    with jax.set_mesh(mesh(AxisType.Explicit)):
        operands = jax.device_put(X, P("a")), jax.device_put(X, P("a"))
        where = line("reshard(w, P(None, None))")
        # The result too is asked for as it lies: the reshard is what gathers.
        given = {"in_specs": (P("a"), P("a")), "out_specs": P("a")}
        assert listed_at(gathered.weights_gathered, operands, tmp_path, **given) == [("all-gather", f"w for {where}")]
        helper = line("reshard(x, spec)")
        there, back = line('exchanged(inputs, P(None, "a"))'), line('exchanged(jnp.tanh(there), P("a", None))')
        exchanges = listed_at(gathered.dispatched, operands, tmp_path, in_specs=(P("a"), P()), out_specs=P("a"))
        assert [(kind, of.rpartition(" for ")[2]) for kind, of in exchanges] == [
            ("all-to-all", f"{there} → {helper}"),
            ("all-to-all", f"{back} → {helper}"),
        ]
    record = read(tmp_path / "dispatched")
    [group] = explained_runs.explained(record, tmp_path / "dispatched")
    assert [(entry.node, entry.callers) for entry in group.explanation.placed or ()] == [
        (helper, [there]),
        (helper, [back]),
    ]


def test_what_is_read_later_is_no_reason_where_types_lay_out(tmp_path: Path) -> None:
    with jax.set_mesh(mesh(AxisType.Explicit)):
        operands = [jax.device_put(X, spec) for spec in (P(None, "b"), P("b"), P(None, "b"), P("a"))]
        reasons = moved(gathered.stepped, operands, tmp_path)
    assert any("which up and down shard over b" in why for why in reasons), reasons
    assert not any("momentum" in why for why in reasons), reasons


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
    assert own == f"{where} needs all of dimension 1 of x, which x shards over b"
    assert batch == (
        f"XLA gathers dimension 0 of x, which x shards over a, for top_k in {where}, which does not need it whole"
    )


def test_what_goes_along_a_sharded_dimension_is_the_reason_of_each_collective(tmp_path: Path) -> None:
    given = {"mesh": {"a": 4}, "in_specs": P("a")}
    assert moved(gathered.within, (X,) * 6, tmp_path, **given, out_specs=P("a")) == []
    reasons = moved(gathered.across, (X,) * 6, tmp_path, **given)
    words = [
        f"the cumulative sum in {line('cumsum(sums, 0)')} does not go block by block",
        f"the reduction in {line('argmax(scores, 0)')} reduces over a dimension of 8",
        f"the maximum in {line('log_softmax(logits, 0)')} takes the largest over a dimension of 8",
        f"the sum in {line('log_softmax(logits, 0)')} sums over a dimension of 8",
        f"the lookup in {line('take_along_axis(labels, jnp.zeros((1')} sums over a dimension of 8",
        f"the reshape in {line('joined.T.reshape(-1)')} joins dimension 1, which joined shards over a, to "
        "dimension 0: a device's part is not in one piece there",
        f"what returns {line('parts.reshape(2, 4, 8)')} needs all of dimension 0 and dimension 1",
    ]
    assert [text for text in words if not any(text in reason for reason in reasons)] == []
    assert not any("not explained" in reason for reason in reasons)
