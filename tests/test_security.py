"""docs/security.md is true: the file of an experiment is data, whatever it contains."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.app.cli.sweep import clear
from runner.base.faults import InvalidExperiment
from runner.experiment import data
from runner.experiment.config.compose import InvalidConfiguration, compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.reader import read
from runner.reports.record import manifest, record
from tests import swept
from tests.command import ROOT, recorded, run_command, run_whole
from tests.server import command

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
    assert refused() == f"experiment/mine.yaml:8:14  hydra.callbacks\n  {ONLY}"


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
    assert not Path("called").exists()


@pytest.mark.in_turn
def test_in_a_sweep_only_the_points_are_lost_that_set_hydras_settings() -> None:
    names = ("callbacks", "launcher", "run", "job_logging")
    bad = {f"experiment/{name}.yaml": f"{HEAD}{BODY}hydra:\n  {name}: {SETTINGS[name]}\n" for name in names}
    written(bad | {"experiment/good.yaml": f"{HEAD}{BODY}"})
    choice = f"+experiment=good,{','.join(names)}"
    swept = run_command("-m", "--config-dir", ".", choice, "seed=1,2", "hydra.sweep.dir=out", folder=Path.cwd())
    assert swept.returncode == 2
    assert "10 points: 2 passed, 8 invalid" in swept.stdout
    points = [recorded(Path("out", str(number))) for number in range(10)]
    assert [point["status"] for point in points] == ["passed"] * 2 + ["invalid"] * 8
    for name, point in zip(names, points[2::2], strict=True):
        assert point["error"].startswith(f"experiment/{name}.yaml:")
        assert point["error"].endswith(f"  hydra.{name}\n  {ONLY}")
    assert not Path("called").exists()


@pytest.mark.in_turn
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


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [["++imports.m=theirs.py"], ["--config-dir=.", "+experiment=mine"]])
def test_a_resumed_folder_names_python_only_where_the_user_trusts_it(how: list[str]) -> None:
    written({"experiment/mine.yaml": f"{HEAD}{IMPORTING}", "experiment/theirs.py": "open('called', 'w')"})
    written({"theirs.py": "open('called', 'w')"})
    arguments = ["-m", *([] if "+experiment=mine" in how else ["+experiment=case3_allreduce"]), *how, "seed=1,2"]
    written({"out/sweep.json": json.dumps({"arguments": arguments}), "out/manifest.json": '{"kind": "sweep"}'})
    done = run_command("resume=out", folder=Path.cwd())
    assert done.returncode == 2
    assert done.stderr.endswith(
        "  the folder of the sweep names this Python, which would be run; if you trust out, say so: "
        "resume=out trust=true\n"
    )
    assert "imports.m\n" in done.stderr
    assert not Path("called").exists()
    run_command("resume=out", "trust=true", folder=Path.cwd())
    assert Path("called").exists()


def test_a_resumed_sweep_names_all_settings_that_it_wants() -> None:
    arguments = ["-m", "+experiment=case3_allreduce", "hydra/launcher=joblib", "hydra.launcher.n_jobs=4"]
    written({"out/sweep.json": json.dumps({"arguments": arguments})})
    done = run_command("resume=out", folder=Path.cwd())
    assert done.stderr == (
        "command line: resume=out\n  out/sweep.json sets Hydra's hydra/launcher, hydra.launcher.n_jobs, and a sweep's "
        "folder may not; to set them again, type them too:\n    hydra/launcher=joblib hydra.launcher.n_jobs=4\n"
    )


@pytest.mark.in_turn
def test_a_sweep_without_manifests_is_resumed_where_its_points_passed_or_are_missing() -> None:
    words = ("case3_allreduce", "dims.J=4,8", "program=shard_map", "hydra.sweep.dir=out")
    assert command(Path.cwd(), "-m", *words).returncode == 0
    for file in Path("out").rglob("manifest.json"):
        file.unlink()
    shutil.rmtree("out/1")
    before = Path("out/0/result.json").read_bytes()
    done = command(Path.cwd(), "resume=out")
    assert done.returncode == 0, done.stderr
    assert "1 of them had passed before" in done.stdout
    assert Path("out/0/result.json").read_bytes() == before
    Path("out/0/result.json").write_text("{}")
    left = sorted(path.name for path in Path("out/0").iterdir())
    done = command(Path.cwd(), "resume=out")
    assert done.returncode == 2
    assert "this point must run again, but out/0/manifest.json was not written by a run" in done.stderr
    assert sorted(path.name for path in Path("out/0").iterdir()) == left


def test_a_repeated_point_begins_with_an_empty_folder() -> None:
    point = swept.write(Path("out"), 2)[1]
    clear(point)
    clear(point)
    assert not point.exists()


CANARY = "import os\nopen(os.environ['CALLED'], 'a').write(__name__)\n"
REPLACED = ("runner/__init__", "hydra_plugins/theirs/__init__", "jax", "jaxlib", "ml_dtypes", "numpy", "hydra", "types")
"""Modules of a folder that would replace what a command needs, were they imported."""


def with_canaries(*names: str) -> dict[str, str]:
    """Write modules that leave a file where they are imported; return an environment that does not name the folder."""
    written({f"{name}.py": CANARY for name in (*names, "json", "signal", "queue", "random", "scipy", "cloudpickle")})
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "CALLED": str(Path("called").absolute())}


@pytest.mark.in_turn
def test_no_module_of_the_folder_is_imported_where_the_command_is_a_script() -> None:
    environment = with_canaries(*REPLACED)
    script = Path(sysconfig.get_path("scripts")) / "shardproof"
    done = subprocess.run(
        [script, "case3_allreduce", "program=derived"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not Path("called").exists()


@pytest.mark.in_turn
def test_python_m_runner_imports_modules_of_the_folder_after_libraries_only() -> None:
    # Python itself imports a `types.py` of the folder, and a `runner.py` is what the command then names.
    environment = with_canaries("jax", "jaxlib", "ml_dtypes", "numpy", "hydra")
    command = [sys.executable, "-m", "runner", "case3_allreduce", "program=auto"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path("called").exists()


@pytest.mark.whole
def test_a_sweep_from_python_imports_no_module_of_the_folder() -> None:
    environment = with_canaries(*REPLACED)
    code = "import sys, runner\nrunner.sweep('case3_allreduce', ['program=auto'], folder='out')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path("out/results.jsonl").exists()
    assert not Path("called").exists()


IMPORTING = """name: importing
mesh: {axes: [x], shape: [2]}
imports: {m: theirs.py}
arrays: {A: {shape: [4], spec: [x]}}
graph: {C: m.twice(A)}
outputs: {C: [x]}
program: auto
"""


@pytest.mark.in_turn
def test_what_lies_beside_an_imported_file_replaces_no_library(tmp_path: Path) -> None:
    written(
        {
            "experiment/mine.yaml": f"{HEAD}{IMPORTING}",
            "experiment/theirs.py": "import beside, queue\ndef twice(x): return beside.two * x",
            "experiment/beside.py": "two = 2",
            "experiment/queue.py": CANARY,
        }
    )
    done = run_whole("experiment/mine.yaml", "hydra.run.dir=out", folder=tmp_path, CALLED=str(tmp_path / "called"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not Path("called").exists()


@pytest.mark.parametrize(("name", "whose"), [("types", "Python"), ("jax", "a library")])
def test_an_imported_file_has_no_name_of_a_module_that_programs_need(name: str, whose: str) -> None:
    written({"experiment/mine.yaml": HEAD + IMPORTING.replace("theirs", name), f"experiment/{name}.py": CANARY})
    done = run_command("experiment/mine.yaml", "hydra.run.dir=out", folder=Path.cwd(), CALLED="called")
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"  '{name}.py' has the name of a module of {whose}, which programs may need: rename the file\n"
    )
    assert not Path("called").exists()


# What names make paths of.


@pytest.mark.parametrize("name", ["{home}/VICTIM", "../../../y", "..", "a/b", "", "x" * 300, "\0", 3, None])
def test_a_name_makes_no_path(name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "VICTIM_.yaml").write_text("mine")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    given = name.format(home=home) if isinstance(name, str) else name
    record = runner.run({"name": given, "mesh": {"axes": ["x"], "shape": [2]}})
    assert record.status == "invalid"
    assert record.folder.resolve().is_relative_to(tmp_path / "here" / "outputs")
    assert [path.name for path in home.iterdir()] == ["VICTIM_.yaml"]
    assert (home / "VICTIM_.yaml").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "here"}


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


@pytest.mark.in_turn
def test_a_checked_function_is_its_owners_and_is_unpickled_by_its_programs_only() -> None:
    record = runner.check(jnp.negative, [np.ones(4, "f4")], mesh={"x": 2}, in_specs=P("x"), quiet=True, folder="out")
    assert record.status == "passed", str(record)
    file = Path("out/called.pkl")
    assert file.stat().st_mode & 0o777 == 0o600
    theirs = pickle.dumps(Calls())
    for content in (theirs, None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        for words in (["report", "out"], ["compare", "out", "out"], ["runs", "."]):
            done = command(Path.cwd(), *words[1:], module=f"runner {words[0]}")
            assert done.returncode == 0, done.stdout + done.stderr
        for folder in (".", "out"):
            assert (
                command(Path.cwd(), *QUIETLY, folder, module="pytest").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
            )
        assert str(runner.read("out")) == str(record)
        assert not Path("called").exists()
    file.write_bytes(theirs)
    subprocess.run([sys.executable, "out/program_auto.py"], capture_output=True, check=False)
    assert Path("called").exists()


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


# Which files are read, and which code is not run.


QUIETLY = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider")
PIPES = {
    "an experiment": ("experiment/mine.yaml", "runner", ["--config-dir", ".", "mine"]),
    "the list of experiments": ("experiment/mine.yaml", "runner", ["--config-dir", "."]),
    "a mesh": ("mesh/mine.yaml", "runner", ["--config-dir", ".", "case3_allreduce", "mesh=mine"]),
    "the list of meshes": ("mesh/mine.yaml", "runner list", ["mesh", "--config-dir", "."]),
    "a record": ("out/result.json", "runner report", ["out"]),
    "a record to compare": ("out/result.json", "runner compare", ["out", "out"]),
    "records to list": ("out/result.json", "runner runs", ["."]),
    "a manifest": ("out/manifest.json", "runner runs", ["."]),
    "the rows of a sweep": ("out/results.jsonl", "runner report", ["out"]),
    "a sweep": ("out/sweep.json", "runner", ["resume=out"]),
    "a plan": ("out/plan.json", "runner plan", ["--compare", "out", "out"]),
    "a module": ("module.txt", "runner explain", ["module.txt"]),
    "a serialized module": ("module.hlo.pb", "runner explain", ["module.hlo.pb"]),
    "a file that pytest sees": ("mine.yaml", "pytest", [*QUIETLY, "."]),
    "a file for editors": ("experiment/mine.yaml", "runner editor", ["."]),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("what", PIPES)
def test_no_command_waits_for_a_pipe(what: str, here: Path) -> None:
    file, module, words = PIPES[what]
    written(mine() if file != "experiment/mine.yaml" else {})
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(file)
    done = command(here, *words, module=module, limit=60)
    assert done.returncode >= 0, "it waited, and was killed"
    assert "Traceback" not in done.stdout + done.stderr


def test_a_file_of_more_than_256_mib_is_not_read(here: Path) -> None:
    for name, says in (("result.json", "it has more than 256 MiB"), ("plan.json", "it has more than 256 MiB")):
        Path("out").mkdir(exist_ok=True)
        with open(f"out/{name}", "wb") as file:
            file.truncate((256 << 20) + 1)
        done = command(here, "out", module="runner report")
        assert done.returncode == 2
        assert says in done.stderr
        Path(f"out/{name}").unlink()


def test_no_program_in_a_run_folder_is_run_by_what_reads_the_folder() -> None:
    assert command(Path.cwd(), "case3_allreduce", "program=auto", "hydra.run.dir=out").returncode == 0
    for name in ("program_auto.py", "conftest.py", "called.py", "__init__.py", "jax.py"):
        Path("out", name).write_text("open('called', 'w')\n")
    for words in (["report", "out"], ["compare", "out", "out"], ["runs", "."], ["runs", "--delete", "--yes", "out"]):
        command(Path.cwd(), *words[1:], module=f"runner {words[0]}")
    runner.read("out")
    assert not Path("called").exists()


@pytest.mark.in_turn
def test_a_module_is_read_without_modules_of_the_folder() -> None:
    environment = with_canaries(*REPLACED, "typing", "enum")
    script = Path(sysconfig.get_path("scripts")) / "shardproof"
    written({"module.hlo.pb": "x", "module.mlir": "module @x {\n}\n"})
    for file in ("module.hlo.pb", "module.mlir"):
        done = subprocess.run([script, "explain", file], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"{file}: th"), done.stderr
        assert "this is no serialized module" in done.stderr or "no function called main" in done.stderr
    assert not Path("called").exists()


@pytest.mark.parametrize(
    "wrong", ["seed: x", "nope: 1", "arrays: {A: {shape: [4], spec: [y]}}", "mesh: {axes: [x], shape: [0]}"]
)
def test_nothing_is_imported_while_the_rest_of_the_file_is_invalid(wrong: str) -> None:
    kept = [line for line in IMPORTING.splitlines() if line.partition(":")[0] != wrong.partition(":")[0]]
    written({"experiment/mine.yaml": HEAD + "\n".join([*kept, wrong, ""]), "experiment/theirs.py": CANARY})
    done = run_command("experiment/mine.yaml", "hydra.run.dir=out", folder=Path.cwd(), CALLED="called")
    assert done.returncode == 2, done.stdout + done.stderr
    assert not Path("called").exists()


def test_a_list_of_experiments_imports_none_of_their_modules() -> None:
    written({"experiment/mine.yaml": HEAD + IMPORTING, "experiment/theirs.py": CANARY})
    for words in (["--config-dir", "."], ["--config-dir", ".", "--cfg", "job", "+experiment=mine"]):
        done = run_command(*words, folder=Path.cwd(), CALLED="called")
        assert done.returncode == 0, done.stdout + done.stderr
    assert command(Path.cwd(), "experiment", "--config-dir", ".", module="runner list").returncode == 0
    assert runner.compose("experiment/mine.yaml").plain["name"] == "importing"
    assert not Path("called").exists()


def test_git_starts_no_program_of_the_folder_but_a_filter() -> None:
    def git(*words: str) -> None:
        author = ["-c", "user.name=x", "-c", "user.email=x@y"]
        subprocess.run(["git", *author, *words], check=True, capture_output=True)

    git("init")
    Path("weights").write_text("x")
    git("add", "weights")
    git("commit", "-m", "x")
    hook = Path(".git/hooks/post-index-change")
    hook.parent.mkdir(exist_ok=True)
    for program, name in ((Path("watching"), "called"), (hook, "hooked")):
        program.write_text(f"#!/bin/sh\ntouch {name}\n")
        program.chmod(0o755)
    git("config", "core.fsmonitor", str(Path("watching").absolute()))
    git("config", "filter.ours.clean", "touch filtered; cat")
    Path(".gitattributes").write_text("weights filter=ours\n")
    os.utime("weights", (1, 1))
    commit = record.git()
    assert commit is not None
    assert len(commit.sha) == 40
    assert [name for name in ("called", "hooked", "filtered") if Path(name).exists()] == ["filtered"]
    os.utime("weights", (2, 2))
    git("status")
    assert Path("called").exists(), "this git has no such setting"
    assert Path("hooked").exists(), "this git has no such hook"


@pytest.mark.in_turn
def test_the_command_line_may_name_what_hydra_calls() -> None:
    written({"theirs.py": f"from hydra.experimental.callback import Callback\n{CANARY}class Theirs(Callback): pass\n"})
    asked = ["case3_allreduce", "program=auto", "hydra.run.dir=out", "+hydra.callbacks.a._target_=theirs.Theirs"]
    run_whole(*asked, folder=Path.cwd(), PYTHONPATH=f".:{ROOT}", CALLED="called")
    assert Path("called").exists()


@pytest.mark.parametrize("file", sorted((conf_folder() / "experiment").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_experiments_that_come_with_the_runner_set_nothing_else(file: Path) -> None:
    from runner.experiment.config import files, trust

    assert trust.of_file(files.content(file)) is None
