"""The ways to name an experiment on a command line: by name, by file, with and without Hydra's plus."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.app.cli.arguments import parsed
from runner.app.cli.experiment_names import with_experiment
from runner.experiment.config.folders import InvalidName
from tests.command import ROOT, recorded
from tests.faults import GOOD
from tests.server import command

ROW = ("program=auto", "show=none")


def spelled(*arguments: str) -> list[str]:
    """Return the arguments of a command line with the experiment chosen in Hydra's syntax."""
    known, overrides = parsed(arguments)
    spelled, left = with_experiment(arguments, known, overrides)
    assert parsed(spelled)[1] == left
    return spelled


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an experiment in a file, and one in a config folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "two words.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "conf" / "experiment" / "deep").mkdir(parents=True)
    for name in ("mine", "deep/er"):
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(GOOD, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("case3_allreduce", "+experiment=case3_allreduce"),
        ("experiment=case3_allreduce", "+experiment=case3_allreduce"),
        ("+experiment=case3_allreduce", "+experiment=case3_allreduce"),
        ("+experiment=whatever", "+experiment=whatever"),
        ("program=auto case3_allreduce", "program=auto +experiment=case3_allreduce"),
        ("-m case3_allreduce,case1_no_communication", "-m +experiment=case3_allreduce,case1_no_communication"),
        ("--config-dir conf mine", "--config-dir conf +experiment=mine"),
        ("--config-dir conf deep/er", "--config-dir conf +experiment=deep/er"),
        ("my.yaml", "--config-dir . +experiment=../my"),
        ("experiment=./my.yaml", "--config-dir . +experiment=../my"),
        ("conf/experiment/mine.yaml", "--config-dir conf +experiment=mine"),
        ("conf/experiment/deep/er.yaml", "--config-dir conf +experiment=deep/er"),
        ("--config-dir conf my.yaml", "--config-dir conf +experiment=../../my"),
        ("-m my.yaml,conf/experiment/mine.yaml", "--config-dir . -m +experiment=../my,../conf/experiment/mine"),
        ("experiment=glob(*)", "experiment=glob(*)"),
        ("--config-name mine case3", "--config-name mine case3"),
        ("dims.J=8", "dims.J=8"),
        ("~graph", "~graph"),
    ],
)
def test_a_name_or_file_becomes_an_override(here: Path, typed: str, meant: str) -> None:
    assert spelled(*typed.split()) == meant.split()


def test_a_path_is_quoted_if_hydras_grammar_requires_it(here: Path) -> None:
    assert spelled("two words.yaml") == ["--config-dir", ".", "+experiment='../two words'"]


def test_a_shipped_file_is_chosen_by_its_name(here: Path) -> None:
    file = ROOT / "conf" / "experiment" / "case3_allreduce.yaml"
    assert spelled(str(file)) == ["+experiment=case3_allreduce"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("case3_alreduce", "no experiment 'case3_alreduce'; did you mean 'case3_allreduce'?"),
        ("experiment=case3_alreduce", "no experiment 'case3_alreduce'; did you mean 'case3_allreduce'?"),
        (
            "case4",
            "no experiment 'case4'; did you mean 'case4_forbidden', 'case4a_allgather_b' or 'case4b_allgather_a'?",
        ),
        ("case33", "no experiment 'case33'; did you mean 'case3_allreduce'?"),
        ("my", "no experiment 'my'; did you mean the file 'my.yaml'?"),
        ("comparr", "no experiment 'comparr'; did you mean the subcommand 'compare'?"),
        ("qqqq", "no experiment 'qqqq'; python -m runner list names those there are"),
        ("case3_allreduce,qqqq", "no experiment 'qqqq'; python -m runner list names those there are"),
        ("nosuch.yaml", "there is no such file"),
        ("mi.yaml", "there is no such file; did you mean 'my.yaml'?"),
        (
            "case3_allreduce.yaml",
            "there is no such file; write case3_allreduce for the experiment of that name that comes with Shardproof",
        ),
        ("init", "no experiment 'init'; python -m runner list names those there are"),
        ("conf.yaml", "this is a folder, not a file"),
        ("my.yml", "the file of an experiment ends in .yaml: rename it"),
        (
            "case3_allreduce fsdp",
            "one experiment is run at a time; a sweep runs all: -m case3_allreduce,fsdp",
        ),
    ],
)
def test_a_word_that_names_no_experiment_is_one_message(here: Path, typed: str, message: str) -> None:
    (here / "my.yml").write_text(GOOD)
    (here / "conf.yaml").mkdir()
    with pytest.raises(InvalidName) as refused:
        spelled(*typed.split())
    assert str(refused.value) == f"command line: {typed}\n  {message}"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("case3_allreduce dims.J", "dims.J\n  'dims.J' is a key without its value: write dims.J=…"),
        ("case3_allreduce trace", "trace\n  'trace' is a key without its value: write trace=true"),
        (
            "sweep my.yaml",
            "sweep\n  there is no subcommand 'sweep': "
            "python -m runner -m NAME KEY=A,B runs every combination of the values",
        ),
        ("diff A B", "diff\n  there is no subcommand 'diff': python -m runner compare A B says what differs"),
        *(
            (f"case3_allreduce {typed}", f"{typed}\n  the shell splits this at its spaces; write {whole}")
            for typed, whole in {
                "dims.J=4, 8": "dims.J=4,8",
                "dims.J = 8": "dims.J=8",
                "dims.J= 8": "dims.J=8",
                "dims.J =8": "dims.J=8",
                "graph.C=A @ B": "'graph.C=A @ B'",
                "arrays.A.spec=[x, null]": "'arrays.A.spec=[x, null]'",
            }.items()
        ),
    ],
)
def test_a_word_that_is_a_key_or_a_value_names_no_experiment(here: Path, typed: str, message: str) -> None:
    with pytest.raises(InvalidName) as refused:
        spelled(*typed.split())
    assert str(refused.value) == f"command line: {message}"


def test_a_file_by_itself_is_run_with_the_meshes_that_come_with_the_runner(here: Path) -> None:
    ran = command(here, "my.yaml", *ROW, "mesh=x4_y2", "hydra.run.dir=run")
    assert ran.returncode == 0, ran.stderr
    assert recorded(here / "run")["mesh"]["shape"] == [4, 2]


def test_a_fault_in_a_file_given_by_path_has_its_place(here: Path) -> None:
    (here / "my.yaml").write_text(GOOD.replace("C: A @ B", "C: A @ BB", 1))
    ran = command(here, "my.yaml", *ROW, "hydra.run.dir=run")
    assert ran.returncode == 2
    assert ran.stderr.startswith("my.yaml:13:6  graph.C\n  no array, dim or earlier name 'BB'")
    (here / "my.yaml").write_text(GOOD.replace("_global_", "mine", 1))
    ran = command(here, "my.yaml", *ROW, "hydra.run.dir=run2")
    assert (ran.returncode, ran.stderr) == (
        2,
        "my.yaml:1:1\n  this line must be: # @package _global_; or leave it out\n",
    )


def test_a_folder_called_like_a_key_is_no_config_group(here: Path) -> None:
    (here / "outputs").mkdir()
    ran = command(here, "my.yaml", *ROW, "outputs=null", "hydra.run.dir=run")
    assert ran.returncode == 2
    assert ran.stderr.startswith("command line: outputs=null  outputs\n  the experiment has no outputs; write")


def test_an_experiment_without_a_name_takes_that_of_its_file(here: Path) -> None:
    (here / "my.yaml").write_text(GOOD.replace("name: mine\n", "", 1), encoding="utf-8")
    ran = command(here, "my.yaml", *ROW)
    assert ran.returncode == 0, ran.stderr
    (folder,) = (here / "outputs" / "my").iterdir()
    assert recorded(folder)["experiment"] == "my"
    none = command(here, "mesh=x2_y2")
    assert (none.returncode, none.stderr) == (
        2,
        "configuration  name\n"
        "  no experiment is chosen: write its name or file first, such as case3_allreduce, or give name=…\n",
    )


@pytest.mark.in_turn
def test_a_sweep_over_a_file_can_be_resumed(here: Path) -> None:
    swept = command(here, "-m", "my.yaml", *ROW, "seed=1,2", "hydra.sweep.dir=sweep")
    assert swept.returncode == 0, swept.stderr
    resumed = command(here, "resume=sweep")
    assert resumed.returncode == 0, resumed.stderr
    assert "2 of them had passed before" in resumed.stdout


@pytest.mark.parametrize("module", ["runner derive", "runner mutate"])
def test_a_subcommand_takes_names_and_files_too(here: Path, module: str) -> None:
    by_name = command(here, "case3_allreduce", "hydra.run.dir=a", module=module)
    assert by_name.returncode == 0, by_name.stderr
    by_file = command(here, "my.yaml", "hydra.run.dir=b", module=module)
    assert by_file.returncode == 0, by_file.stderr
