"""The name of a config group's option at the top of an experiment: `hardware: v5p`, `mesh: x2_y2`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import runner
from runner import InvalidConfiguration
from runner.experiment.config.compose import Configuration
from runner.reports.record.model import CompiledProgram
from tests.command import ROOT, run_command

MINE = """\
# @package _global_
name: mine
mesh: x2_y2
hardware: v5p
target: cpu
arrays: {A: {shape: [8, 4], spec: [x, y]}}
graph: {C: A + 1}
outputs: {C: [x, y]}
program: auto
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The path of an experiment of a user's own."""
    file = tmp_path / "mine.yaml"
    file.write_text(MINE, encoding="utf-8")
    return file


def chosen(configuration: Configuration) -> tuple[Any, ...]:
    plain = configuration.plain
    return plain["mesh"]["axes"], plain["mesh"]["shape"], plain["hardware"]["name"], plain["target"]["platform"]


def test_a_name_chooses_the_option_and_is_located_in_its_file(mine: Path) -> None:
    configuration = runner.compose(mine)
    assert chosen(configuration) == (["x", "y"], [2, 2], "TPU v5p", "cpu")
    assert configuration.sources.choices["mesh"] == "x2_y2"
    place = configuration.sources.place(("mesh", "shape"))
    assert place is not None
    assert place.file == ROOT / "conf" / "mesh" / "x2_y2.yaml"


def test_the_command_line_overrides_the_option_and_its_keys(mine: Path) -> None:
    configuration = runner.compose(mine, ["hardware=v5e", "mesh.shape=[4,2]"])
    assert chosen(configuration) == (["x", "y"], [4, 2], "TPU v5e", "cpu")
    assert chosen(runner.compose(mine, mesh="x8"))[:2] == (["x"], [8])


def test_a_choice_by_its_group_is_that_of_the_defaults_list(mine: Path, tmp_path: Path) -> None:
    groups = ("mesh", "hardware", "target", "rules")
    text = MINE.replace("x2_y2", "data2_model4").replace("name:", "rules: data_tensor\nname:")
    mine.write_text(text, encoding="utf-8")
    options = [line for line in text.splitlines() if line.startswith(groups)]
    others = [line for line in text.splitlines()[1:] if line not in options]
    listed = ["# @package _global_", "defaults:", *(f"  - override /{line}" for line in options), *others, ""]
    other = tmp_path / "listed.yaml"
    other.write_text("\n".join(listed), encoding="utf-8")
    assert runner.compose(mine).plain == runner.compose(other).plain
    assert runner.compose(mine).plain["rules"]


def test_an_experiment_that_builds_on_it_chooses_anew(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(MINE, encoding="utf-8")
    (folder / "other.yaml").write_text("# @package _global_\ndefaults: [mine]\nmesh: x4_y2\n", encoding="utf-8")
    assert chosen(runner.compose("other", config_dir=tmp_path)) == (["x", "y"], [4, 2], "TPU v5p", "cpu")


def test_a_users_own_option_is_found(tmp_path: Path) -> None:
    for group, text in (("experiment", MINE.replace("x2_y2", "pair")), ("mesh", "axes: [y, x]\nshape: [1, 2]\n")):
        (tmp_path / group).mkdir()
        (tmp_path / group / ("mine.yaml" if group == "experiment" else "pair.yaml")).write_text(text, encoding="utf-8")
    assert chosen(runner.compose("mine", config_dir=tmp_path))[:2] == (["y", "x"], [1, 2])


@pytest.mark.in_turn
def test_a_mapping_in_python_may_name_it_and_the_record_says_which(tmp_path: Path) -> None:
    record = runner.run(yaml.safe_load(MINE), folder=tmp_path / "run")
    assert record.status == "passed"
    assert record.mesh is not None
    assert record.mesh.shape == [2, 2]
    (program,) = record.programs.values()
    assert isinstance(program, CompiledProgram)
    assert program.estimate is not None
    assert program.estimate.hardware == "TPU v5p"
    wrong = runner.run({**yaml.safe_load(MINE), "hardware": "v5q"}, folder=tmp_path / "wrong")
    assert wrong.status == "invalid"
    assert wrong.error is not None
    assert wrong.error.endswith("no hardware 'v5q'; did you mean 'v5p'?")


@pytest.mark.in_turn
def test_a_sweep_ranges_over_it_and_the_file_runs_directly(mine: Path, tmp_path: Path) -> None:
    result = run_command("-m", str(mine), "hardware=v5e,v5p", "mesh=x2_y2,x4_y2", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "4 points: 4 passed" in result.stdout
    assert "on TPU v5e" in result.stdout
    assert "on TPU v5p" in result.stdout


WRONG = {
    "a misspelt option": (
        "hardware: v5p",
        "hardware: v5q",
        "{}:4:11  hardware\n  no hardware 'v5q'; did you mean 'v5p'?",
    ),
    "a mesh by its sizes": (
        "mesh: x2_y2",
        'mesh: "2x2"',
        "{}:3:7  mesh\n  no mesh '2x2'; with the names of your axes write mesh: {{axes: [x, y], shape: [2, 2]}}",
    ),
    "an option that is nothing like any": (
        "target: cpu",
        "target: none",
        "{}:5:9  target\n  no target 'none'; there are ",
    ),
    "two options": (
        "name: mine\n",
        "defaults: [override /mesh: x8]\n",
        "{}:3:7  mesh\n  'mesh' is chosen in 'defaults' too: keep one of them",
    ),
    "a number": ("mesh: x2_y2", "mesh: 4", "{}:3:7  mesh\n  'mesh' is a mapping of 'axes', 'shape', "),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_name_is_reported_with_its_place(mine: Path, mistake: str) -> None:
    before, after, message = WRONG[mistake]
    mine.write_text(MINE.replace(before, after), encoding="utf-8")
    with pytest.raises(InvalidConfiguration) as raised:
        runner.compose(mine)
    assert message.format(mine) in str(raised.value)


BASED = "# @package _global_\nname: based\n"
BASE_WITH_MAPPING = MINE.replace("mesh: x2_y2", "mesh: {axes: [x, y], shape: [2, 2]}")

HIDDEN = {
    "the command line's, by the file's own mapping": (
        MINE,
        "defaults: [mine]\nmesh: {shape: [4, 1]}\n",
        ["mesh=x4_y2"],
        "command line: mesh=x4_y2\n  {}/experiment/based.yaml:4:8 sets mesh.shape, and wins over this choice: "
        "override its keys, mesh.axes=[x,y] mesh.shape=[4,2], or write mesh: x4_y2 in the file",
    ),
    "the command line's, by the base's mapping": (
        BASE_WITH_MAPPING,
        "defaults: [mine]\n",
        ["mesh=x4_y2"],
        "command line: mesh=x4_y2\n  {}/experiment/mine.yaml:3:22 sets mesh.shape, and wins over this choice: ",
    ),
    "the command line's, by the mapping of a base with a package": (
        BASE_WITH_MAPPING,
        "defaults: [/experiment@_global_: mine]\n",
        ["mesh=x4_y2"],
        "command line: mesh=x4_y2\n  {}/experiment/mine.yaml:3:22 sets mesh.shape, and wins over this choice: ",
    ),
    "the file's, by the base's mapping": (
        BASE_WITH_MAPPING,
        "defaults: [mine]\nmesh: x4_y2\n",
        [],
        "{}/experiment/based.yaml:4:1  mesh\n  {}/experiment/mine.yaml:3:22 sets mesh.shape, and wins over "
        "this choice: override its keys here, mesh: {{axes: [x, y], shape: [4, 2]}}",
    ),
    "an override in the file's defaults, by the base's mapping": (
        BASE_WITH_MAPPING,
        "defaults: [mine, override /mesh: x4_y2]\n",
        [],
        "{}/experiment/based.yaml:3:28  mesh\n  {}/experiment/mine.yaml:3:22 sets mesh.shape",
    ),
}


def compose_based(folder: Path, base: str, own: str, *overrides: str) -> runner.Configuration:
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text(base, encoding="utf-8")
    (folder / "experiment" / "based.yaml").write_text(BASED + own, encoding="utf-8")
    return runner.compose("based", overrides, config_dir=folder)


@pytest.mark.parametrize("case", HIDDEN)
def test_an_option_that_a_mapping_hides_is_one_message(tmp_path: Path, case: str) -> None:
    base, own, overrides, message = HIDDEN[case]
    with pytest.raises(InvalidConfiguration) as raised:
        compose_based(tmp_path, base, own, *overrides)
    assert message.format(tmp_path, tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("own", "overrides", "shape"),
    [
        # The own mapping has what the option has, although the base's has not.
        ("mesh: {shape: [4, 2]}\n", ["mesh=x4_y2"], [4, 2]),
        ("mesh: {shape: [4, 1]}\n", ["mesh=x4_y2", "mesh.shape=[2,4]"], [2, 4]),
        ("mesh: x4_y2\n", ["mesh.shape=[4,1]"], [4, 1]),
    ],
)
def test_an_option_that_a_mapping_does_not_change_has_its_effect(
    tmp_path: Path, own: str, overrides: list[str], shape: list[int]
) -> None:
    based = compose_based(tmp_path, BASE_WITH_MAPPING, "defaults: [mine]\n" + own, *overrides)
    assert based.plain["mesh"]["shape"] == shape


@pytest.mark.parametrize("name", ["devices", "num_devices"])
def test_the_number_of_devices_is_that_of_the_mesh(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        compose_based(tmp_path, MINE, "defaults: [mine]\n", f"{name}=8")
    assert str(raised.value) == (
        f"command line: {name}=8  {name}\n  there is no key '{name}'; there are as many devices as the mesh has: "
        "mesh.shape=[4,2], or a mesh by its name, mesh=x4_y2; target.devices=16 simulates more than these"
    )


@pytest.mark.in_turn
def test_an_experiment_needs_no_line_of_hydras(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "experiment" / "team"
    folder.mkdir(parents=True)
    header, _, plain = MINE.partition("\n")
    (folder / "plain.yaml").write_text(plain, encoding="utf-8")
    (folder / "headed.yaml").write_text(f"{header}\n{plain}", encoding="utf-8")
    (folder / "late.yaml").write_text(f"# Mine.\n{header}\n{plain}", encoding="utf-8")
    (folder / "based.yaml").write_text("defaults: [team/plain]\nname: mine\nmesh: {shape: [4, 1]}\n", encoding="utf-8")
    plain_, headed, late, based = (
        runner.compose(f"team/{name}", config_dir=tmp_path / "conf").plain
        for name in ("plain", "headed", "late", "based")
    )
    assert plain_ == headed == late
    assert based == {**plain_, "mesh": {**plain_["mesh"], "shape": [4, 1]}}


@pytest.mark.in_turn
def test_a_file_anywhere_needs_no_line_of_hydras(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE.partition("\n")[2], encoding="utf-8")
    assert chosen(runner.compose(file)) == (["x", "y"], [2, 2], "TPU v5p", "cpu")
    result = run_command(str(file), "show=none", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    sweep = run_command("-m", str(file), "mesh.shape=[2,2],[4,1]", "show=none", folder=tmp_path)
    assert sweep.returncode == 0, sweep.stderr
