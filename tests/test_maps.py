"""`map`: the repeat that it becomes, its values in every program, and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from runner.base.faults import InvalidExperiment
from runner.checks.reference import interpret
from runner.graph.language.lines import lines, repeat
from tests.harness import experiment, run

TEXT = """\
mesh: {axes: [x], shape: [2]}
dims: {N: 3, D: 4}
arrays:
  xs: {shape: [N, 4, D], spec: [null, x, null]}
  w: {shape: [D, D], spec: []}
functions:
  one(x):
    a: tanh(x)
    result: a * 2
  block(x, w): "map(lambda row: one(row) @ w, x)"
both:
  y: map(one, xs)
  z: "1 + map(lambda row: row @ w + one(row), y)"
  u: "map(lambda row: sum(row ** 2), z * 2, length=N)"
  v: block(xs, w)
  l: {graph: mean(u) + mean(v), per_device: "psum(mean(u) / 2, 'x') * 2 + pmean(mean(v), 'x')"}
outputs: {y: [null, x], v: [null, x], l: []}
grad: {of: l, wrt: [w, xs]}
"""


def test_a_map_is_a_repeat_over_the_slices() -> None:
    checked = experiment(TEXT)
    loops = filter(None, map(repeat, lines(checked.computed("graph"))))
    assert {loop.name: (loop.form.steps, loop.results) for loop in loops} == {
        "y_map": (3, ("y",)),
        "z_map_map": (3, ("z_map",)),
        "u_map": (3, ("u",)),
        "v_map_map": (3, ("map",)),
    }
    drawn = np.random.default_rng(0)
    xs, w = drawn.normal(size=(3, 4, 4)), drawn.normal(size=(4, 4))
    values = {name: each[0] for name, each in interpret(checked, "graph", {"xs": xs, "w": w}).values.items()}
    y = 2 * np.tanh(xs)
    z = 1 + y @ w + 2 * np.tanh(y)
    np.testing.assert_allclose(values["y"], y, rtol=1e-12)
    np.testing.assert_allclose(values["z"], z, rtol=1e-12)
    np.testing.assert_allclose(values["u"], (4 * z**2).sum((1, 2)), rtol=1e-12)
    np.testing.assert_allclose(values["v"], y @ w, rtol=1e-12)


@pytest.mark.in_turn
def test_every_program_and_its_gradients_are_right(tmp_path: Path) -> None:
    outcome = run(TEXT, tmp_path)
    assert outcome.failures() == []
    # JAX 0.12 has no types for the gradient of a product in `explicit`, with or without a map.
    assert set(outcome.checks) >= {"auto", "constraint", "derived", "shard_map", "vmap"}
    assert outcome.sources["auto"].count("jax.lax.scan(") == 4


def test_explicit_types_a_map(tmp_path: Path) -> None:
    outcome = run(TEXT, tmp_path, grad=None, program="explicit")
    assert outcome.failures() == []
    assert set(outcome.checks) == {"explicit"}


BAD = {
    "map(one)": "map takes a function and an array",
    "map(one, xs, batch_size=2)": "map takes a function and an array",
    "map(tanh, xs)": "map takes a function of the experiment, or a lambda",
    "map(ones, xs)": "map takes a function of the experiment, or a lambda",
    "map(lambda a, b: a, xs)": "the mapped function takes one slice",
    "map(one, xs * 2)": "give it: map(f, xs, length=N)",
    "map(one, xs * 2, length=sum(w))": "a size is made of integers, dims",
    "map(block, xs)": "missing a required argument: 'w'",
    "map(one, nothing)": "no array, dim or earlier name 'nothing'",
    "map(lambda row: row @ q, xs)": "no array, dim or earlier name 'q'",
    "associative_scan(lambda a, b: map(one, a), xs)": "'map' cannot be used in a function that combines two values",
}


def changed(line: str) -> dict[str, Any]:
    return {**yaml.safe_load(TEXT), "both": {"y": line}, "outputs": {"y": []}, "grad": None}


@pytest.mark.parametrize("line", BAD)
def test_invalid_maps_are_refused(line: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        experiment(changed(line))
    assert BAD[line] in caught.value.fault.message
    assert caught.value.fault.key == ("both", "y")


def test_several_names_of_a_map_are_refused() -> None:
    with pytest.raises(InvalidExperiment, match="a map gives one array"):
        experiment({**changed("xs"), "both": {"y, z": "map(one, xs)"}})
