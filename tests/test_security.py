"""docs/security.md is true: the file of an experiment is data, whatever it contains."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from runner.cli.sweep import clear
from runner.config.compose import InvalidConfiguration, compose
from runner.config.folders import conf_folder
from runner.experiment import data
from runner.experiment.reader import read
from runner.faults import InvalidExperiment
from runner.record import manifest
from tests import swept
from tests.command import ROOT, recorded, run_command, run_whole

HEAD = "# @package _global_\n"
BODY = """name: mine
mesh: {axes: [x], shape: [2]}
arrays: {A: {shape: [4], spec: [x]}}
graph: {C: A * 2}
outputs: {C: [x]}
program: auto
"""
CALLS = "{a: {_target_: os.system, command: touch called}}"
ONLY = "an experiment may set only hydra.sweeper.params and hydra.verbose; the command line sets the rest of Hydra"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary folder to which all paths are relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def mine(settings: str = "", defaults: str = "") -> dict[str, str]:
    return {"experiment/mine.yaml": f"{HEAD}{defaults}{BODY}{settings}"}


def refused(*overrides: str) -> str:
    with pytest.raises(InvalidConfiguration) as error:
        compose("mine", Path(), overrides)
    return str(error.value)


SETTINGS = {
    "callbacks": CALLS,
    "hydra_logging": "{handlers: {a: {(): os.system, command: touch called}}}",
    "job": "{env_set: {LD_PRELOAD: /tmp/theirs.so}}",
    "job_logging": "{handlers: {a: {(): os.system, command: touch called}}}",
    "launcher": "{_target_: os.system, command: touch called}",
    "mode": "MULTIRUN",
    "output_subdir": "/tmp",
    "overrides": "{hydra: [hydra.run.dir=/tmp]}",
    "run": "{dir: /tmp}",
    "runtime": "{output_dir: /tmp}",
    "searchpath": "['file:///tmp']",
    "sweep": "{dir: /tmp}",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_experiment_may_not_set_hydra_settings_that_run_code(name: str) -> None:
    written(mine(f"hydra:\n  {name}: {SETTINGS[name]}\n"))
    where, _, message = refused().partition("\n")
    assert where.startswith("experiment/mine.yaml:9:")
    assert where.endswith(f"  hydra.{name}")
    assert message == f"  {ONLY}"


@pytest.mark.parametrize("name", ["_target_: os.system", "max_batch_size: 1"])
def test_an_experiment_may_set_only_the_sweepers_parameters(name: str) -> None:
    written(mine(f"hydra: {{sweeper: {{{name}}}}}\n"))
    assert refused() == f"experiment/mine.yaml:8:19  hydra.sweeper.{name.partition(':')[0]}\n  {ONLY}"


@pytest.mark.parametrize(
    "key", ["hydra.job.chdir", "+hydra.callbacks.a", "hydra/launcher", "+target@hydra.callbacks.a", "seed=1 hydra.mode"]
)
def test_a_sweeps_parameters_in_a_file_are_keys_of_experiments(key: str) -> None:
    written(mine(f"hydra: {{sweeper: {{params: {{'{key}': 1}}}}}}\n"))
    assert refused() == (
        "experiment/mine.yaml:8:19  hydra.sweeper.params\n"
        f"  a sweep's parameters are keys of experiments, and '{key}' is not one"
    )


def test_an_experiment_may_set_harmless_hydra_settings() -> None:
    written(mine("hydra: {verbose: true, sweeper: {params: {seed: '1,2', +dims.J: 4}}}\n"))
    assert compose("mine", Path()).plain["name"] == "mine"


WAYS = {
    "default": mine(defaults="defaults: [override /hydra/callbacks: theirs]\n")
    | {"hydra/callbacks/theirs.yaml": CALLS},
    "package of a default": mine(defaults="defaults: ['/target@hydra.callbacks.a': cpu]\n"),
    "other file": mine(defaults="defaults: [{override /mesh: theirs}]\n")
    | {"mesh/theirs.yaml": f"{HEAD}hydra: {{callbacks: {CALLS}}}\n"},
    "package of a file": mine(defaults="defaults: [{override /mesh: theirs}]\n")
    | {"mesh/theirs.yaml": f"# @package hydra.callbacks\n{CALLS}\n"},
    "file elsewhere": mine(defaults="defaults: [{override /mesh: ../elsewhere/theirs}]\n")
    | {"elsewhere/theirs.yaml": f"{HEAD}hydra: {{callbacks: {CALLS}}}\n"},
    "escaped key": mine(f'"\\x68ydra": {{callbacks: {CALLS}}}\n'),
    "file without a group": mine(defaults="defaults: [theirs]\n")
    | {"experiment/theirs.yaml": f"{HEAD}hydra: {{callbacks: {CALLS}}}\n"},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_set_them_in_a_file_is_refused_with_its_place(way: str) -> None:
    written(WAYS[way])
    message = refused()
    assert ".yaml:" in message.splitlines()[0]
    assert "hydra.callbacks" in message.splitlines()[0]
    assert message.splitlines()[1:] == [f"  {ONLY}"]


def test_a_merge_key_is_refused_too() -> None:
    written(mine(f"<<: {{hydra: {{callbacks: {CALLS}}}}}\n"))
    assert refused() == f"experiment/mine.yaml  hydra.callbacks\n  {ONLY}"


@pytest.mark.parametrize(
    ("name", "owner"),
    [("schema.yaml", "the runner's"), ("hydra/config.yaml", "Hydra's"), ("hydra/launcher/basic.yaml", "Hydra's")],
)
def test_a_config_folder_replaces_nothing_that_is_defined_in_python(name: str, owner: str) -> None:
    written(mine() | {name: CALLS})
    assert refused() == f"{name}:1:1\n  this file would replace {owner} own {name}; rename it"


def test_a_config_yaml_of_a_folder_is_not_read() -> None:
    written(mine() | {"config.yaml": f"hydra: {{callbacks: {CALLS}}}\n"})
    assert compose("mine", Path()).plain["name"] == "mine"


def test_hydras_own_command_refuses_such_a_file() -> None:
    written(mine(f"hydra: {{callbacks: {CALLS}}}\n") | {"experiment/good.yaml": f"{HEAD}{BODY}"})
    for how in (["+experiment=mine"], ["-m", "+experiment=mine", "seed=1,2"], ["+experiment=mine", "--cfg", "all"]):
        done = run_command("--config-dir", ".", *how, folder=Path.cwd())
        assert done.returncode == 2, done.stdout
        assert done.stderr.endswith(f"hydra.callbacks\n  {ONLY}\n")
    swept = run_command("-m", "--config-dir", ".", "+experiment=good,mine", "hydra.sweep.dir=out", folder=Path.cwd())
    assert "2 points: 1 passed, 1 invalid" in swept.stdout
    assert ONLY in recorded(Path("out/1"))["error"]
    assert not Path("called").exists()


def test_another_sweeper_cannot_choose_such_a_file() -> None:
    sweeper = "from hydra._internal.core_plugins.basic_sweeper import BasicSweeper\nclass Theirs(BasicSweeper): pass\n"
    written(
        mine(f"hydra: {{job_logging: {SETTINGS['job_logging']}}}\n")
        | {"experiment/good.yaml": f"{HEAD}{BODY}"}
        | {"hydra_plugins/theirs/__init__.py": sweeper}
        | {"hydra/sweeper/theirs.yaml": "_target_: hydra_plugins.theirs.Theirs\nmax_batch_size: null\nparams: null\n"}
    )
    for launcher in ("shardproof", "basic"):
        asked = ("hydra/sweeper=theirs", f"hydra/launcher={launcher}", "+experiment=good,mine")
        done = run_whole("-m", "--config-dir", ".", *asked, folder=Path.cwd(), PYTHONPATH=f".:{ROOT}")
        assert done.returncode == 2, done.stdout
        assert done.stderr == f"experiment/mine.yaml:8:9  hydra.job_logging\n  {ONLY}\n"
    assert not Path("called").exists()


# A sweep's folder.


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("+hydra.callbacks.a={_target_:os.system,command:touch called}", "sets Hydra's hydra.callbacks.a"),
        ("hydra/launcher=basic", "sets Hydra's hydra/launcher"),
        ("+target@hydra.callbacks.a=cpu", "sets Hydra's target@hydra.callbacks.a"),
        (
            "--config-path=theirs",
            "has --config-path=theirs; only sweeps with no flags but -m and --config-dir can be resumed",
        ),
        ("--experimental-rerun=job.pickle", "has --experimental-rerun=job.pickle; only sweeps"),
    ],
)
def test_a_resumed_folder_may_set_only_keys_of_experiments(argument: str, says: str) -> None:
    written({"out/sweep.json": json.dumps({"arguments": ["-m", "+experiment=case3_allreduce", argument]})})
    done = run_command("resume=out", folder=Path.cwd())
    assert done.returncode == 2
    assert done.stderr.startswith(f"command line: resume=out\n  out/sweep.json {says}")
    assert not Path("called").exists()


@pytest.mark.parametrize("left", ["notes.txt", "program_auto.py", "link", "no manifest"])
def test_a_repeated_point_does_not_delete_foreign_files(left: str) -> None:
    point = swept.write(Path("out"), 2)[1]
    if left == "no manifest":
        (point / manifest.FILE).unlink()
    elif left == "link":
        point.rename("elsewhere")
        point.symlink_to(Path("elsewhere").absolute())
    else:
        (point / left).write_text("mine")
    before = sorted(path.name for path in point.iterdir())
    with pytest.raises(InvalidConfiguration) as error:
        clear(point)
    named = point / {"no manifest": manifest.FILE, "link": manifest.FILE}.get(left, left)
    assert str(error.value) == (
        f"{point}\n  this point must run again, but {named} was not written by a run, or has changed since: move it"
    )
    assert sorted(path.name for path in point.iterdir()) == before


def test_a_repeated_point_begins_with_an_empty_folder() -> None:
    point = swept.write(Path("out"), 2)[1]
    clear(point)
    clear(point)
    assert not point.exists()


def test_no_module_of_the_folder_is_read_where_the_command_is_a_script() -> None:
    import sysconfig

    script = Path(sysconfig.get_path("scripts")) / "shardproof"
    written({"runner/__init__.py": "open('called', 'w')", "hydra_plugins/theirs/__init__.py": "open('called', 'w')"})
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([script, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path("called").exists()


# Other files.


def test_a_yaml_tag_creates_no_object() -> None:
    written(mine('summary: !!python/object/apply:os.system ["touch called"]\n'))
    assert refused().startswith("experiment/mine.yaml:8:10\n  not YAML: could not determine a constructor for the tag")
    assert not Path("called").exists()


def test_a_target_key_outside_hydras_settings_is_not_instantiated() -> None:
    written(mine(f"dims: {CALLS}\n"))
    done = run_command("--config-dir", ".", "+experiment=mine", "hydra.run.dir=out", folder=Path.cwd())
    assert done.returncode == 2
    assert not Path("called").exists()


def test_an_experiment_reads_environment_variables() -> None:
    written(mine("summary: ${oc.env:HOME}\n"))
    assert compose("mine", Path()).plain["summary"] == str(Path.home())


class Calls:
    """An object whose pickle makes a call when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return Path.touch, (Path("called"),)  # type: ignore[return-value]


def test_load_takes_files_of_numbers_and_reads_no_pickle() -> None:
    np.save("objects.npy", np.array([Calls()], dtype=object), allow_pickle=True)
    os.mkfifo("pipe.npy")
    written({"words.npy": "root:x:0:0"})
    none = "load takes a .npy file, and this is not one"
    for name, says in (
        ("objects.npy", "NumPy refuses it: Object arrays cannot be loaded when allow_pickle=False"),
        ("words.npy", none),
        ("pipe.npy", "load takes a .npy file, not a folder, a pipe or a device"),
        ("/dev/zero", "load takes a .npy file, not a folder, a pipe or a device"),
    ):
        plain = compose("case3_allreduce", conf_folder(), [f"arrays.A.init=\"load('{name}')\""]).plain
        with pytest.raises(InvalidExperiment) as error:
            data.make(read(plain), Path())
        assert error.value.fault.message == says
    assert not Path("called").exists()


@pytest.mark.parametrize("file", sorted((conf_folder() / "experiment").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_experiments_that_come_with_the_runner_set_nothing_else(file: Path) -> None:
    from runner.config import files, trust

    assert trust.of_file(files.content(file)) is None
