"""An experiment at other sizes, meshes and layouts equals the one that a file with these would describe."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runner.base.faults import InvalidExperiment
from runner.base.layout import Spec
from runner.experiment.model import Experiment
from runner.graph.language import printing
from runner.graph.language.lines import expressions
from runner.graph.model import Repeat
from tests.harness import experiment

TEXT = """
dims: {I: 8, J: 4, HALF: I // 2}
arrays:
  "A, B": {shape: [I, J], spec: [x, null]}
functions: {twice(u): u + u}
graph:
  C: A * B
  r: {repeat: HALF, carry: {acc: C}, body: {acc: twice(acc)}}
  D: r.acc
outputs: {D: [x, null]}
constraints: {C: [x, null]}
expect: {values: {}}
"""


def described(given: Experiment) -> dict[str, Any]:
    """Return everything that an experiment contains, its trees as text."""
    names = {each.name for each in dataclasses.fields(given)} - {"graph", "per_device", "arrays", "reader"}
    return {
        **{name: getattr(given, name) for name in names},
        "arrays": [(array.name, array.layout, array.dims) for array in given.arrays],
        "lines": [
            (line.path, printing.text(expression.term)) for line, expression in expressions(given.computed("graph"))
        ],
    }


def test_other_sizes_apply_to_everything_computed_from_dims() -> None:
    given = experiment(TEXT).at(dims={"I": 16})
    assert given.dims == {"I": 16, "J": 4, "HALF": 8}
    assert [array.shape for array in given.arrays] == [(16, 4), (16, 4)]
    assert [equation.form.steps for equation in given.graph.equations if isinstance(equation.form, Repeat)] == [8]


def test_an_experiment_at_other_values_is_the_one_that_a_changed_file_describes() -> None:
    changed = TEXT.replace("I: 8", "I: 16").replace(
        'B": {shape: [I, J], spec: [x, null]}', 'B": {shape: [I, J], spec: [y]}'
    )
    at = experiment(TEXT).at(dims={"I": 16}, layouts={"arrays.A.spec": ["y"], "arrays.B.spec": ["y"]})
    assert described(at) == described(experiment(changed))


def test_unnamed_mesh_axes_are_unchanged() -> None:
    given = experiment(TEXT, mesh={"axes": ["x", "y"], "shape": [2, 2], "devices": [3, 2, 1, 0]}).at(mesh={"x": 4})
    assert (given.mesh.shape, given.mesh.devices, given.target.devices) == ((4, 2), None, 8)


def test_layouts_are_set_by_the_keys_of_the_file() -> None:
    before = experiment(TEXT)
    given = before.at(layouts={key: [None, "y"] for key in before.layout_keys})
    assert {array.layout.spec for array in given.arrays} == {Spec.of([None, "y"])}
    assert given.outputs["D"] == given.constraints["C"] == Spec.of([None, "y"])


def test_an_experiment_without_changes_is_equal() -> None:
    given = experiment(TEXT)
    assert described(given.at()) == described(given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": {"K": 2}}, "dims.K: no dim 'K'; there are I, J, HALF"),
        ({"mesh": {"z": 2}}, "mesh.axes.z: no axis 'z'; there are x, y"),
        ({"layouts": {"arrays.AA.spec": []}}, "arrays.AA: no array 'AA'; did you mean 'A'?"),
        (
            {"layouts": {"arrays.A": []}},
            "arrays.A: no layout 'arrays.A'; there are arrays.NAME.spec, outputs.NAME and constraints.NAME",
        ),
        ({"layouts": {"outputs.E": []}}, "outputs.E: graph computes no 'E'; it has C, D, r.acc"),
        ({"dims": {"I": 3}}, "arrays.A.spec[0]: dimension 0 (I) of 'A' has size 3, which x=2 does not divide"),
    ],
)
def test_invalid_changes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment) as error:
        experiment(TEXT).at(**changes)
    assert str(error.value) == message
