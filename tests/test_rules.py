"""Specs by logical names: how the rules resolve them, what is refused and where, and the report of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.app.flow import run as flow
from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh, Spec
from runner.experiment import enumeration
from runner.experiment.config.compose import compose
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.experiment.rules import Logical, LogicalAxisRule, Rules
from runner.reports.show import report
from tests.command import run_command
from tests.harness import run

GOOD = """\
# @package _global_
defaults:
  - override /mesh: x2_y2
  - override /rules: ours

name: mine
dims: {B: 8, D: 8, F: 8}
arrays:
  a: {shape: [B, D], spec: [batch, null]}
  w: {shape: [D, F], spec: [embed, mlp]}
graph:
  y: a @ w
constraints:
  a: [batch, null]
outputs:
  y: [batch, mlp]
"""
OURS = """\
logical_axis_rules:
  - [batch, x]
  - [embed, x]
  - [mlp, y]
"""
# In the form of MaxText's custom_mesh_and_rule/*.yml.
THEIRS = """\
mesh_axes: ['data', 'stage', 'x', 'y']
data_sharding: [['data', 'stage', 'x']]
context_sharding: 'x'
logical_axis_rules: [
                      # Activations
                      ['batch', ['data', 'stage', 'x']],
                      ["vocab", []],
                      ['mlp', ['y']],
                      ['embed', 'x'],
                    ]
"""


def folder(tmp_path: Path, text: str = GOOD, **rules: str) -> Path:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "rules").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    for name, content in {"ours": OURS, "theirs": THEIRS, **rules}.items():
        (tmp_path / "rules" / f"{name}.yaml").write_text(content)
    return tmp_path


def composed(at: Path, *overrides: str) -> Experiment:
    return read(compose("mine", at, overrides).plain)


def refused(at: Path, *overrides: str) -> str:
    """Return the message of the refusal, without the folder in its places."""
    composition = compose("mine", at, overrides)
    with pytest.raises(InvalidExperiment) as caught:
        read(composition.plain)
    return composition.sources.report(caught.value.fault).replace(f"{at}/", "")


def test_every_spec_may_have_logical_names(tmp_path: Path) -> None:
    experiment = composed(folder(tmp_path), "++expect.layouts.y=[batch,mlp]")
    assert experiment.array("w").layout.spec == Spec.of(["x", "y"])
    assert experiment.constraints["a"] == Spec.of(["x", None])
    assert experiment.outputs["y"] == Spec.of(["x", "y"])
    assert {expected.layouts["y"] for expected in experiment.expected.values() if expected.layouts} == {
        Spec.of(["x", "y"])
    }
    assert {".".join(map(str, key)) for key in experiment.logical} == {
        "arrays.a.spec", "arrays.w.spec", "constraints.a", "outputs.y", "expect.layouts.y"
    }  # fmt: skip


def test_a_file_of_maxtext_is_read_as_it_is(tmp_path: Path) -> None:
    experiment = composed(folder(tmp_path), "rules=theirs")
    assert experiment.outputs["y"] == Spec.of(["x", "y"])
    assert experiment.array("w").layout.spec == Spec.of(["x", "y"])


def test_the_mesh_may_have_all_axes_of_the_rules(tmp_path: Path) -> None:
    overrides = ["rules=theirs", 'mesh.axes="${rules.mesh_axes}"', "mesh.shape=[1,1,2,2]"]
    experiment = composed(folder(tmp_path), *overrides)
    assert experiment.mesh.axes == ("data", "stage", "x", "y")
    assert experiment.outputs["y"] == Spec.of([["data", "stage", "x"], "y"])


def test_rules_may_be_in_the_experiments_file(tmp_path: Path) -> None:
    text = GOOD.replace("  - override /rules: ours\n", "") + "rules: [[batch, [x, y]], [embed, null], [mlp, null]]\n"
    assert composed(folder(tmp_path, text)).outputs["y"] == Spec.of([["x", "y"], None])


# Each as Flax has it: flax.linen.logical_to_mesh_axes says the same of all of them.
@pytest.mark.parametrize(
    ("rules", "names", "spec"),
    [
        ([("p", ("a",)), ("q", ("a",))], ["p", "q"], [["a"], None]),
        ([("q", ("a",)), ("p", ("a",))], ["p", "q"], [None, ["a"]]),
        ([("p", ("a",)), ("q", ("a",)), ("q", ("b",))], ["p", "q"], [["a"], ["b"]]),
        ([("p", ("a", "b")), ("q", ("b", "c")), ("q", ("c",))], ["q", "p"], [["c"], ["a", "b"]]),
        ([("p", ()), ("p", ("a",))], ["p"], [None]),
    ],
)
def test_the_first_rule_whose_axes_are_free_wins(rules: Any, names: list[str], spec: Any) -> None:
    assert assigned(rules, names, allowed=frozenset("pq")).spec == Spec.of(spec)


def assigned(rules: list[tuple[str, tuple[str, ...]]], names: list[Any], **options: Any) -> Logical:
    mesh = Mesh(("a", "b", "c"), (2, 2, 2))
    ordered = tuple(LogicalAxisRule(name, axes, ("rules", i)) for i, (name, axes) in enumerate(rules))
    return Rules(ordered, **options).assign(names, mesh, ("here",))


AXES = st.lists(st.sampled_from("abc"), unique=True, max_size=2).map(tuple)


@given(
    st.lists(st.tuples(st.sampled_from("pqr"), AXES), max_size=6),
    st.lists(st.sampled_from("pqr"), unique=True, min_size=1, max_size=3),
)
def test_a_rule_is_taken_or_dropped_for_a_reason(rules: list[tuple[str, tuple[str, ...]]], names: list[str]) -> None:
    logical = assigned(rules, names, allowed=frozenset("pqr"))
    assert len(set(logical.spec.axes)) == len(logical.spec.axes)
    taken = {rule.key[1]: rule for rule in logical.rules if rule}
    for rule in (*taken.values(), *logical.dropped):
        earlier = {axis for at, other in taken.items() for axis in other.axes if at < rule.key[1]}  # type: ignore[operator]
        assert (rule in logical.dropped) == bool(earlier & set(rule.axes))
    for i, name in enumerate(names):
        own = [at for at, (of, _) in enumerate(rules) if of == name]
        dropped = [rule.key[1] for rule in logical.dropped if rule.name == name]
        chosen = logical.rules[i]
        assert own[: len(dropped)] == dropped
        assert own[len(dropped) :][:1] == ([chosen.key[1]] if chosen else [])


def test_a_mesh_axis_that_a_spec_names_is_taken_before_any_rule() -> None:
    assert assigned([("p", ("a",)), ("p", ("b",))], ["p", ("a",)]).spec == Spec.of(["b", "a"])


@pytest.mark.in_turn
def test_a_rule_that_is_dropped_is_refused_with_both_places(tmp_path: Path) -> None:
    at = folder(tmp_path)
    assert refused(at, "outputs.y=[batch,embed]") == (
        "command line: outputs.y=[batch,embed]  outputs.y[1]\n"
        "  the rule embed → x is dropped: dimension 0 has 'x' by the rule batch → x, and no other rule shards this "
        "dimension; to leave it replicated, end with the rule [embed, null], or allow it: "
        "rules.allow_dropped: [embed]\n"
        "  the rule: rules.logical_axis_rules[1] (rules/ours.yaml:3:5)\n"
        "  the rule before it: rules.logical_axis_rules[0] (rules/ours.yaml:2:5)"
    )
    # The place is that of the file which was chosen, also where the experiment names another.
    assert "(rules/theirs.yaml:9:23)" in refused(at, "rules=theirs", "outputs.y=[batch,embed]")
    for allowed in ("[embed]", "true"):
        experiment = composed(at, "outputs.y=[batch,embed]", f"+rules.allow_dropped={allowed}")
        assert experiment.outputs["y"] == Spec.of(["x", None])
    assert refused(at, "outputs.y=[batch,embed]", "+rules.allow_dropped=[mlp]").startswith("command line: outputs.y=")


def test_a_rule_that_is_dropped_for_axes_of_size_1_loses_nothing(tmp_path: Path) -> None:
    at = folder(tmp_path)
    assert composed(at, "outputs.y=[batch,embed]", "mesh.shape=[1,4]").outputs["y"] == Spec.of(["x", None])


def test_a_layout_that_rules_make_impossible_names_the_rule(tmp_path: Path) -> None:
    at = folder(tmp_path)
    assert refused(at, "dims.B=7") == (
        "experiment/mine.yaml:9:29  arrays.a.spec[0]\n"
        "  dimension 0 (B) of 'a' has size 7, which x=2 does not divide\n"
        "  by the rule: rules.logical_axis_rules[0] (rules/ours.yaml:2:5)"
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["outputs.y=[batch,enbed]"], "no mesh axis 'enbed', and no rule for such a name; did you mean 'embed'?"),
        (["outputs.y=[heads]"], "a dimension of that name that is not sharded has the rule [heads, null]"),
        (
            ["outputs.y=[[mlp,x]]"],
            "'mlp' is a logical name, and a dimension has only one; a rule may give it several axes",
        ),
        (["outputs.y=[mlp,mlp]"], "the logical name 'mlp' appears twice; its rules can shard at most one dimension"),
        (["outputs.y=[mlp,y]"], "the rule mlp → y is dropped: dimension 1 has 'y', and no other rule"),
        (["rules.logical_axis_rules=[[batch,z]]"], "mesh axis 'z' does not exist; the mesh has x, y"),
        (["rules.logical_axis_rules=[[batch,[x,x]]]"], "a mesh axis appears twice in the rule for 'batch'"),
        (["rules.logical_axis_rules=[[batch,7]]"], "7 is not a mesh axis, null, or a list of axes"),
        (
            ["rules.logical_axis_rules=[[batch]]"],
            "['batch'] is not a rule; write a logical name and mesh axes, such as",
        ),
        (["rules.logical_axis_rules=[[7,x]]"], "7 is not a logical name"),
        (["rules.logical_axis_rules=7"], "'logical_axis_rules' is a list of rules such as [embed, x], not 7"),
        (["+rules.allow_dropped=[nope]"], "there is no rule for 'nope'"),
        (["+rules.allow_dropped=7"], "7 is not true, or a list of logical names"),
        (["+rules.allow_droped=[mlp]"], "rules have no key 'allow_droped'; did you mean 'allow_dropped'?"),
        (
            ["rules=theirs", "+rules.logical_axis_rule=[]"],
            "no key 'logical_axis_rule'; did you mean 'logical_axis_rules'?",
        ),
        (["rules=theirs", "mesh.axes=[x,z]"], "the rules have no mesh axis 'z'; they have data, stage, x, y"),
        (["rules=theirs", "rules.logical_axis_rules=[[batch,z]]"], "mesh_axes has no 'z'"),
        (["rules=empty"], "the rules have no 'logical_axis_rules': a list of rules such as [embed, x]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_rules_are_refused(tmp_path: Path, overrides: list[str], says: str) -> None:
    assert says in refused(folder(tmp_path, empty="mesh_axes: [x, y]\n"), *overrides)


def test_ambiguous_names_are_refused_where_they_are_used(tmp_path: Path) -> None:
    at = folder(tmp_path, both=OURS + "  - [y, null]\n")
    assert composed(at, "rules=both").outputs["y"] == Spec.of(["x", "y"])
    assert refused(at, "rules=both", "outputs.y=[null,y]").endswith(
        "'y' is a mesh axis and a logical name; a name means one thing\n"
        "  the rule: rules.logical_axis_rules[3] (rules/both.yaml:5:5)"
    )


@pytest.mark.in_turn
def test_the_record_and_the_terminal_show_the_resolved_specs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    at = folder(tmp_path)
    composition = compose("mine", at, ["program=auto"])
    (tmp_path / "out").mkdir()
    record = flow.run(composition.plain, tmp_path / "out", composition.sources)
    assert record.status == "passed"
    written = json.loads((tmp_path / "out" / "result.json").read_text())["logical"]["arrays.w.spec"]
    place = f"{at}/rules/ours.yaml:3:5"
    rule = {"name": "embed", "axes": ["x"], "key": "rules.logical_axis_rules[1]", "place": place}
    assert written["written"] == ["embed", "mlp"]
    assert written["spec"] == ["x", "y"]
    assert written["rules"][0] == rule
    report.run(record, tmp_path / "out", brief=False)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"[embed, mlp] P('x', 'y') w embed → x ({place}); mlp → y" in printed


def test_programs_are_written_with_the_mesh_axes(tmp_path: Path) -> None:
    text = GOOD.replace("  - override /rules: ours\n", "").replace("defaults:\n  - override /mesh: x2_y2\n", "")
    outcome = run(
        text + "mesh: {axes: [x, y], shape: [2, 2]}\nrules: [[batch, x], [embed, null], [mlp, y]]\n", tmp_path
    )
    assert outcome.record.status == "passed"
    for program in ("auto", "explicit"):
        assert 'P(None, "y")' in outcome.sources[program].replace("'", '"')
    assert all(name not in outcome.sources["auto"] for name in ("batch", "embed", "mlp"))


def test_experiments_with_rules_are_identified_up_to_axis_names() -> None:
    def identity(axes: list[str], rules: Any) -> str:
        return enumeration.identity({"mesh": {"axes": axes, "shape": [2, 2]}, "rules": rules, "outputs": {"y": ["p"]}})

    here = identity(["x", "y"], [["p", "x"], ["q", ["y", "x"]]])
    assert here == identity(["x", "y"], [["p", "y"], ["q", ["x", "y"]]])
    assert here != identity(["x", "y"], [["p", "x"], ["q", ["x", "y"]]])
    assert identity(["x", "y"], {"logical_axis_rules": [["p", "x"]], "mesh_axes": ["x", "y"]}) == identity(
        ["x", "y"], {"logical_axis_rules": [["p", "y"]], "mesh_axes": ["y", "x"]}
    )


@pytest.mark.in_turn
def test_rules_are_swept(tmp_path: Path) -> None:
    at = folder(tmp_path, whole="logical_axis_rules: [[batch, x], [embed, null], [mlp, null]]\n")
    swept = ("-m", f"--config-dir={at}", "+experiment=mine", "rules=ours,whole", "program=auto")
    done = run_command(*swept, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 points: 2 passed" in done.stdout
