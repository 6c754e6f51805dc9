"""PartitionSpecs in JAX's syntax, in files and on the command line: what is read, and the messages for wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest
import yaml

from runner.base.layout import Mesh, Spec
from runner.experiment.config import specs
from runner.experiment.enumeration import specs as all_specs
from tests.command import recorded
from tests.faults import GOOD
from tests.server import Done, command


@pytest.mark.parametrize("spec", [*all_specs((4, 4, 4), Mesh(("x", "y"), (2, 2)))], ids=str)
def test_specs_printed_by_jax_and_records_are_read(spec: Spec) -> None:
    printed = str(spec), repr(jax.P(*spec)), str(jax.sharding.PartitionSpec(*(list(axes) or None for axes in spec)))
    for text in printed:
        assert specs.begins(text)
        assert Spec.of(specs.read(text)) == spec
    assert Spec.of(yaml.safe_load(specs.written(specs.read(str(spec))))) == spec


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("P()", []),
        ("P('x')", ["x"]),
        ("P(x, null)", ["x", None]),
        (" jax.P( None ,('x','y') ) ", [None, ["x", "y"]]),
        ("jax.sharding.PartitionSpec(['x', 'y'])", [["x", "y"]]),
        ("PartitionSpec(('x',), ())", [["x"], []]),
    ],
)
def test_common_spellings_of_specs_are_read(text: str, entries: list[Any]) -> None:
    assert specs.read(text) == entries


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("arrays.A.spec=P(None, 'x')", "arrays.A.spec=[null,x]"),
        ("arrays.A.spec=P(None,x)", "arrays.A.spec=[null,x]"),
        ("+outputs.C=jax.P(('x','y'))", "+outputs.C=[[x,y]]"),
        ("arrays.A.spec=P('x'),P(None,'x')", "arrays.A.spec=[x],[null,x]"),
        ("arrays.A.spec=choice(P('x'),P())", "arrays.A.spec=choice([x],[])"),
        ("arrays.A.spec=(None, ('x', 'y'))", "arrays.A.spec=[null, ['x', 'y']]"),
        ("arrays.A.spec=[None,('x',)]", "arrays.A.spec=[null,['x']]"),
        ("specs.params.up=P('x')", "specs.params.up=[x]"),
        ("++outputs={C: P('x', None)}", "++outputs={C: [x,null]}"),
        ("arrays.A={shape: [4], spec: P('x')}", "arrays.A={shape: [4], spec: [x]}"),
        ("expect.layouts.C=P('x')", "expect.layouts.C=[x]"),
        ("arrays.A.spec=[null,x]", "arrays.A.spec=[null,x]"),
        ("arrays.A.spec=all", "arrays.A.spec=all"),
        ("arrays.A.init=\"P('x')\"", "arrays.A.init=\"P('x')\""),
        ("graph.C=P(None)", "graph.C=P(None)"),
        ("~outputs.C", "~outputs.C"),
    ],
)
def test_specs_on_a_command_line_become_hydras_lists(typed: str, read: str) -> None:
    assert specs.override(typed) == read


_WAYS = "write P(None, 'x'), or [null, x]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("P(None, 3)", "an entry is None, a mesh axis or a tuple of axes, not 3; write P(None, ('x', 'y'))"),
        (
            "P(P.UNCONSTRAINED)",
            "an entry is None, a mesh axis or a tuple of axes, not P.UNCONSTRAINED; write P(None, ('x', 'y'))",
        ),
        (
            "P((None, 'x'))",
            "an entry is None, a mesh axis or a tuple of axes, not (None, 'x'); write P(None, ('x', 'y'))",
        ),
        ("P(x=1)", "it takes one entry per dimension, in order, and no keyword arguments; write P(None, 'x')"),
        ("P('x').update()", f"there is more than P(…); {_WAYS}"),
        ("P('x' 3)", f"it is not Python; {_WAYS}"),
        (
            "P(None",
            "its bracket is not closed; between { and } write it in quotes, \"P(None, 'x')\", or as [null, x]",
        ),
    ],
)
def test_an_invalid_spec_is_reported_with_the_right_spelling(text: str, reason: str) -> None:
    with pytest.raises(specs.NoSpec) as none:
        specs.read(text)
    assert str(none.value) == f"{text!r} is not a PartitionSpec: {reason}"


FILE = """\
# @package _global_
defaults:
  - override /mesh: x2_y2
name: mine
arrays:
  A:
    shape: [4, 4]
    init: "arange(16)"
    spec: P(None, ('x', 'y'))
  B: {shape: [4, 4], init: "arange(16)", spec: "P(('x', 'y'))"}
graph:
  C: A @ B
constraints:
  C: jax.P('x')
outputs:
  C: PartitionSpec('x')
expect:
  layouts: {C: P('x')}
"""


def _run(folder: Path, text: str, *more: str) -> Done:
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    return command(folder, "mine.yaml", "program=constraint", "show=none", "hydra.run.dir=run", *more)


def test_a_file_may_have_a_partition_spec_wherever_a_spec_is_allowed(tmp_path: Path) -> None:
    ran = _run(tmp_path, FILE)
    assert ran.returncode == 0, ran.stderr
    arrays = recorded(tmp_path / "run")["arrays"]
    assert [arrays[name]["spec"] for name in "AB"] == [[None, ["x", "y"]], [["x", "y"], None]]


def test_a_spec_on_the_command_line_replaces_the_files(tmp_path: Path) -> None:
    ran = _run(tmp_path, FILE, "arrays.A.spec=P('x', 'y')", "outputs.C=P('x', None)", "expect=null")
    assert ran.returncode == 0, ran.stderr
    assert recorded(tmp_path / "run")["arrays"]["A"]["spec"] == ["x", "y"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "spec: P(None, ('x', 'y'))",
            "spec: P(None, 3)",
            "mine.yaml:9:11  arrays.A.spec\n  'P(None, 3)' is not a PartitionSpec: an entry is None, a mesh axis or a "
            "tuple of axes, not 3; write P(None, ('x', 'y'))",
        ),
        (
            "C: PartitionSpec('x')",
            "C: P('x', y=3)",
            "mine.yaml:16:6  outputs.C\n  \"P('x', y=3)\" is not a PartitionSpec: it takes one entry per "
            "dimension, in order, and no keyword arguments; write P(None, 'x')",
        ),
        (
            "\"P(('x', 'y'))\"",
            "P(None, 'x')",
            "mine.yaml:10:59\n  not YAML: expected ',' or '}', to go on in the '{' at 10:6 or close it; "
            "between { and } a PartitionSpec is in quotes: \"P(None, 'x')\"",
        ),
        (
            "\"P(('x', 'y'))\"",
            "P(None, x)",
            "mine.yaml:10:48  arrays.B.spec\n  'P(None' is not a PartitionSpec: its bracket is not closed; between { "
            "and } write it in quotes, \"P(None, 'x')\", or as [null, x]",
        ),
        (
            "spec: P(None, ('x', 'y'))",
            "spec: P(None, 'z')",
            "mine.yaml:9:11  arrays.A.spec[1]\n  mesh axis 'z' does not exist; the mesh has x, y",
        ),
    ],
)
def test_an_invalid_spec_in_a_file_is_one_message_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FILE
    ran = _run(tmp_path, FILE.replace(old, new, 1))
    assert (ran.returncode, ran.stderr) == (2, f"{message}\n")


def test_an_invalid_spec_on_the_command_line_is_quoted_as_typed(tmp_path: Path) -> None:
    ran = _run(tmp_path, GOOD, "arrays.A.spec=P(None, 3)")
    assert ran.stderr == (
        "command line: arrays.A.spec=P(None, 3)\n  'P(None, 3)' is not a PartitionSpec: an entry is None, a mesh axis "
        "or a tuple of axes, not 3; write P(None, ('x', 'y'))\n"
    )
