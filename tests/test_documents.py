"""The values of the experiments from the source documents equal those of the documents, computed without the runner."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from tests.command import ROOT


def definition(name: str) -> Any:
    return yaml.safe_load((ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))


def test_case_1_has_the_documents_matrices() -> None:
    arrays = definition("case1_no_communication")["arrays"]
    a, b = (np.array(arrays[name]["init"]).astype(np.float32) for name in "AB")
    drawn = np.asarray(jax.random.uniform(jax.random.PRNGKey(42), (4, 4)))
    assert (a == drawn).all()
    assert (b == drawn + np.float32(1)).all()


@pytest.mark.parametrize("name", ["distributed_tanh", "distributed_single_device"])
def test_the_pinned_tanh_is_that_of_0_to_7(name: str) -> None:
    pinned = definition(name)["expect"]["values"]["out"]
    assert pinned == pytest.approx([math.tanh(i) for i in range(8)], abs=1e-9)


def test_the_pinned_sums_are_those_of_the_columns() -> None:
    scatter = definition("distributed_scatter")
    assert scatter["expect"]["values"]["out"] == [
        sum(column) for column in zip(*scatter["arrays"]["x"]["init"], strict=True)
    ]


def test_the_pinned_indices_count_the_last_axis_fastest() -> None:
    assert definition("distributed_axis_index")["expect"]["values"]["out"] == [
        [i, j] for i in range(4) for j in range(2)
    ]


def test_the_pinned_keys_are_those_that_the_document_folds() -> None:
    key = jax.random.PRNGKey(0)
    folded = [np.asarray(jax.random.fold_in(key, i)).tolist() for i in range(4)]
    assert definition("distributed_fold_rng")["expect"]["values"]["out"] == [n for pair in folded for n in pair * 2]


def test_the_second_mesh_of_the_document_is_both_axes_of_the_first() -> None:
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    first = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    second = jax.sharding.Mesh(np.asarray(jax.devices()[:8]), ("x",))
    (spec,) = definition("intro_contract_constraint")["outputs"]["total"]
    assert NamedSharding(first, P(tuple(spec))).is_equivalent_to(NamedSharding(second, P("x")), 1)
