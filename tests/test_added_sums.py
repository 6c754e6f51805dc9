"""The collectives of derivatives that a user's function takes: what JAX adds is told from what a rule asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from runner.app import api
from runner.compiled.evidence.model import Collective
from runner.link.workers import Workers
from runner.reports.record import readable
from tests.user_functions import copies, derivatives

MESH = AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto,))
PARAMETERS = np.array([1.0, 2.0], np.float32)
SAMPLES = np.array([[0, 1], [1, 1], [1, 0], [0.5, 0.3]], np.float32)
WORKERS = Workers()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def checked(function: Any, operands: Any, in_specs: Any, out_specs: Any, folder: Path, **more: Any) -> api.Record:
    mapped = jax.shard_map(
        function, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=more.pop("check_vma", True)
    )
    return api.checked(mapped, operands, folder, WORKERS, mesh=MESH, in_specs=in_specs, **more)


def collectives(record: api.Record) -> list[Collective]:
    [program] = readable.readable(record).compiled.values()
    return program.collectives or []


def line(module: Any, part: str) -> str:
    """`copies.py:25`, the line of a module with a text that stands there once."""
    lines = inspect.getsource(module).split("\n")
    [number] = [at for at, text in enumerate(lines, 1) if part in text]
    return f"{Path(module.__file__).name}:{number}"


def test_a_sum_that_jax_adds_for_a_replicated_operand_is_not_called_the_users(tmp_path: Path) -> None:
    specs = (P(), P("d"))
    record = checked(
        derivatives.per_sample, (PARAMETERS, SAMPLES), specs, P("d"), tmp_path, reference=derivatives.per_sample
    )
    [added] = collectives(record)
    assert added.why is not None
    place = line(derivatives, "jnp.tanh(p * s)")
    assert added.why.by == "differentiation"
    assert added.gradient
    assert added.why.text == (
        f"JAX adds it to the derivative, where it sums the cotangents of p, which is replicated over d, in {place}; "
        "with p = jax.lax.pcast(p, 'd', to='varying') before the derivative each device keeps its own"
    )
    assert record.status == "failed"
    [program] = record.compiled.values()
    assert "JAX adds a psum of the cotangents of p" in str(
        [why for verdict in (program.checks.value,) if verdict for why in verdict.diagnosis]
    )


def test_with_the_cast_that_the_reason_names_there_is_no_sum(tmp_path: Path) -> None:
    specs = (P(), P("d"))
    record = checked(
        derivatives.per_sample_of_its_own, (PARAMETERS, SAMPLES), specs, P("d"), tmp_path,
        reference=derivatives.per_sample,
    )  # fmt: skip
    assert record.status == "passed"
    assert collectives(record) == []


def test_the_rule_of_a_custom_vjp_has_its_own_line(tmp_path: Path) -> None:
    specs = (P(), P(None, "d"))
    record = checked(derivatives.with_a_rule, (SAMPLES, SAMPLES[:2]), specs, P(), tmp_path, check_vma=False)
    [asked] = collectives(record)
    place = line(copies, "jax.lax.psum(cotangent")
    assert asked.node is not None
    assert asked.node.startswith(place)
    assert asked.why is not None
    assert asked.why.text.startswith(f"in the backward pass {place} asks for it: psum(")


def test_a_sum_that_is_merged_with_a_users_is_told_from_it(tmp_path: Path) -> None:
    record = checked(derivatives.data_parallel, (PARAMETERS, SAMPLES), (P(), P("d")), (P(), P()), tmp_path)
    [merged] = collectives(record)
    assert merged.why is not None
    asked, _, rest = merged.why.text.partition("; ")
    assert asked.startswith(f"{line(derivatives, 'jax.lax.pmean')} asks for it: psum(")
    assert asked.count("psum(") == 1
    assert rest.startswith("it is merged with one that JAX adds to the derivative, where it sums the cotangents of w")


def test_calls_of_one_helper_are_told_apart_by_the_lines_that_call_it(tmp_path: Path) -> None:
    specs = (P(), P("d"), P("d"))
    more = {"check_vma": False}
    record = checked(derivatives.projected, (SAMPLES, SAMPLES[:2], SAMPLES[2:]), specs, P(), tmp_path, **more)
    helper = line(copies, "jax.lax.all_gather")
    named = [entry.node for entry in collectives(record) if entry.kind == "all-gather"]
    gathers = {line(derivatives, "q = x @"): "wq", line(derivatives, "k = x @"): "wk"}
    assert named == [f"{call} {name[1:]} = x @ copies.whole({name}) → {helper}" for call, name in gathers.items()]
    asked = [entry.why.text for entry in collectives(record) if entry.kind == "all-gather" and entry.why]
    places = [f"{call} → {helper} asks for it: all_gather({name}" for call, name in gathers.items()]
    assert all(text.startswith(place) for text, place in zip(asked, places, strict=True))
    sums = [entry.node for entry in collectives(record) if entry.kind == "all-reduce"]
    of_jitted = line(copies, 'jax.lax.psum(x, "d")')
    calls = [("product = ", "product = copies.summed(q * k)"), ("return copies", "return copies.summed(k * product)")]
    assert sums == [f"{line(derivatives, part)} {text} → {of_jitted}" for part, text in calls]
