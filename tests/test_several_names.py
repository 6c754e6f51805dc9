"""`wk, wv: …` among arrays, outputs and constraints: one entry for several names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.app.flow import dimensions
from runner.base.faults import InvalidExperiment
from runner.experiment import data
from runner.experiment.config.compose import InvalidConfiguration, compose
from runner.experiment.config.sources import Layer, Sources
from runner.experiment.reader import read
from tests import harness

TEXT = """\
mesh: {axes: [x, y], shape: [2, 2]}
dims: {I: 4, J: 8}
arrays:
  a, b, c: {shape: [I, J], spec: [x, null], dtype: float64}
  d: {shape: [J]}
  a, c: {init: "normal(0, 2)"}
  c: {spec: [], dtype: float32}
graph:
  p: a + b
  q: a * c + d
constraints:
  p, q: [null, y]
outputs:
  p, q: [x, y]
"""

ONE_BY_ONE = """\
mesh: {axes: [x, y], shape: [2, 2]}
dims: {I: 4, J: 8}
arrays:
  a: {shape: [I, J], spec: [x, null], dtype: float64, init: "normal(0, 2)"}
  b: {shape: [I, J], spec: [x, null], dtype: float64}
  c: {shape: [I, J], init: "normal(0, 2)"}
  d: {shape: [J]}
graph:
  p: a + b
  q: a * c + d
constraints:
  p: [null, y]
  q: [null, y]
outputs:
  p: [x, y]
  q: [x, y]
"""


def test_several_names_are_what_each_of_them_would_be(tmp_path: Path) -> None:
    several, single = harness.experiment(TEXT), harness.experiment(ONE_BY_ONE)
    assert several.outputs == single.outputs
    assert several.constraints == single.constraints
    for name in ("a", "b", "c", "d"):
        assert several.array(name).layout == single.array(name).layout
        assert several.array(name).dtype == single.array(name).dtype
    assert str(several.array("c").layout.spec) == "P(None, None)"
    drawn = [data.make(each, tmp_path) for each in (several, single)]
    assert [list(each) for each in drawn] == [["a", "b", "c", "d"]] * 2
    for name in drawn[0]:
        np.testing.assert_array_equal(drawn[0][name], drawn[1][name])


def test_the_dimensions_of_their_results_have_names() -> None:
    fitting = dimensions.fitting(harness.experiment(TEXT))
    assert fitting == {"p": ({"I"}, {"J"}), "q": ({"I"}, {"J"})}


BAD = {
    "a name twice in one line": (("a, b, c:", "a, b, a:"), "e.yaml:4:3  arrays.a, b, a\n  'a' appears twice"),
    "a thing said twice": (
        ("{init: ", "{spec: [y], init: "),
        "e.yaml:6:3  arrays.a, c\n  'a' appears twice, with 'spec' in both",
    ),
    "a layout twice": (
        ("  p, q: [null, y]", "  p, q: [null, y]\n  q, p: [x, null]"),
        "e.yaml:13:9  constraints.q, p\n  'q' appears twice",
    ),
    "no name": (("a, b, c:", "a, b, c,:"), "e.yaml:4:3  arrays.a, b, c,\n  a name is missing beside a comma"),
    "no shape": (("  d: {shape: [J]}", "  d, e: {}"), "e.yaml:5:3  arrays.d\n  the array 'd' has no shape"),
    "a spec of several that does not fit": (
        ("spec: [x, null]", "spec: [x, z]"),
        "e.yaml:4:38  arrays.a.spec[1]\n  mesh axis 'z' does not exist; the mesh has x, y",
    ),
    "a spec of one that does not fit": (
        ("c: {spec: []", "c: {spec: [z]"),
        "e.yaml:7:14  arrays.c.spec[0]\n  mesh axis 'z' does not exist; the mesh has x, y",
    ),
    "an init of some": (
        ('init: "normal(0, 2)"', 'init: "normol(0, 2)"'),
        "e.yaml:6:16  arrays.a.init\n  no function 'normol' in an init; did you mean 'normal'?\n"
        "    normol(0, 2)\n    ^^^^^^",
    ),
    "an output that there is not": (
        ("  p, q: [x, y]", "  p, r: [x, y]"),
        "e.yaml:14:9  outputs.r\n  graph computes no 'r'; it has p, q",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_fault_names_the_place_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    (old, new), message = BAD[case]
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    (tmp_path / "e.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidExperiment) as error:
        data.make(read(harness.config(text)), tmp_path)
    assert Sources((Layer(tmp_path / "e.yaml"),)).report(error.value.fault) == message


def test_the_command_line_changes_one_of_several_names(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(f"# @package _global_\nname: mine\n{TEXT}", encoding="utf-8")
    changed = read(compose("mine", tmp_path, ["arrays.c.spec=[x]", "++outputs.q=[x]"]).plain)
    assert str(changed.array("c").layout.spec) == "P('x', None)"
    assert {name: str(spec) for name, spec in changed.outputs.items()} == {"p": "P('x', 'y')", "q": "P('x')"}
    with pytest.raises(InvalidConfiguration) as error:
        compose("mine", tmp_path, ["arrays.b.spec=[y]"])
    assert str(error.value).endswith(
        "arrays.b\n  'b' is in 'a, b, c'; to change it alone, give it a line of its own: b: {}"
    )
