"""The surroundings of an experiment: Hydra's own settings, other files in its folder, environment variables.

Every fault there gives one message, in the words of the runner, Hydra or JAX, and no traceback.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.app.testing import session
from tests.command import ROOT, run_whole
from tests.faults import GOOD
from tests.server import Done, command

RUN = ("+experiment=case3_allreduce", "program=shard_map", "show=none", "hydra.run.dir=run")
SWEEP = ("-m", "+experiment=case3_allreduce", "program=shard_map", "dims.J=4,8", "hydra.sweep.dir=sweep")

# What Hydra's, OmegaConf's or Python's message names.
SETTINGS = {
    "hydra.job_logging.root.level=LOUD": "'LOUD'",
    "hydra.job_logging.version=9": "9",
    "hydra.job_logging.handlers.file.class=nosuch.X": "'nosuch.X'",
    "+hydra.job_logging.handlers.more=5": "'more'",
    "hydra.verbose=[x,1]": "A logger name must be a string",
    "hydra.job.env_copy=[NO_SUCH_VARIABLE]": "'NO_SUCH_VARIABLE'",
    "hydra.run.dir=${nope}": "'nope'",
}
SETTINGS_OF_SWEEPS = {
    "hydra.hydra_logging.root.level=LOUD": "'LOUD'",
    "hydra.sweep.dir=${nope}": "'nope'",
}


def _is_one_message(done: Done, override: str, words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    place, message = done.stderr.splitlines()
    assert place.startswith(f"command line: {override}")
    assert words in message


@pytest.mark.in_turn
@pytest.mark.parametrize("override", SETTINGS)
def test_a_setting_that_hydra_cannot_use_is_one_message(tmp_path: Path, override: str) -> None:
    _is_one_message(command(tmp_path, *RUN, override), override, SETTINGS[override])


@pytest.mark.parametrize("override", SETTINGS_OF_SWEEPS)
def test_an_unusable_setting_of_a_sweep_is_one_message(tmp_path: Path, override: str) -> None:
    _is_one_message(command(tmp_path, *SWEEP, override), override, SETTINGS_OF_SWEEPS[override])


@pytest.mark.in_turn
@pytest.mark.parametrize("override", [name for name in SETTINGS if "job_logging" in name])
def test_the_logging_of_a_sweeps_points_is_validated_too(tmp_path: Path, override: str) -> None:
    _is_one_message(command(tmp_path, *SWEEP, override), override, SETTINGS[override])


@pytest.mark.in_turn
def test_the_logging_of_a_sweeps_points_is_applied(tmp_path: Path) -> None:
    done = command(tmp_path, *SWEEP, "hydra.job_logging.formatters.simple.format='mine %(message)s'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "sweep" / "0" / "runner.log").read_text(encoding="utf-8").startswith("mine ")


@pytest.mark.in_turn
def test_an_invalid_setting_is_reported_for_each_point(tmp_path: Path) -> None:
    done = command(tmp_path, *SWEEP, "hydra.job.id=${nope}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "'nope'" in done.stdout
    assert "2 points: 2 invalid" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


OF_THE_FILE = {
    "hydra: {job_logging: {root: {level: LOUD}}}": "hydra.job_logging\n  an experiment may set only "
    "hydra.sweeper.params",
    "hydra: {verbose: [x, 1]}": "hydra.verbose\n  Hydra cannot use this: A logger name",
}


@pytest.mark.parametrize("setting", OF_THE_FILE)
def test_a_setting_of_the_file_has_its_place(tmp_path: Path, setting: str) -> None:
    folder = _folder(tmp_path)
    (folder / "experiment" / "mine.yaml").write_text(f"{GOOD}{setting}\n")
    done = command(tmp_path, "--config-dir", "conf", "+experiment=mine", "hydra.run.dir=run")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith(f"conf/experiment/mine.yaml:21:9  {OF_THE_FILE[setting]}")
    assert "Traceback" not in done.stderr


@pytest.mark.in_turn
@pytest.mark.parametrize("line", [RUN, SWEEP], ids=["run", "sweep"])
@pytest.mark.parametrize("name", ["/", "../x", "a/b", ".."])
def test_hydras_folder_must_be_directly_in_the_run_folder(tmp_path: Path, line: tuple[str, ...], name: str) -> None:
    done = command(tmp_path, *line, f"hydra.output_subdir={name}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        done.stderr
        == f"command line: hydra.output_subdir\n  {name!r} is not the name of a folder inside the run folder\n"
    )


# Files.


def _folder(home: Path) -> Path:
    folder = home / "conf"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "good.yaml").write_text(GOOD)
    return folder


def _unread(folder: Path) -> dict[str, str]:
    """Put unreadable files beside the good one; return the expected message for each."""
    inside = folder / "experiment"
    (inside / "latin.yaml").write_bytes(b"# @package _global_\nsummary: caf\xe9\n")
    (inside / "wide.yaml").write_bytes(GOOD.encode("utf-16"))
    (inside / "circle.yaml").symlink_to("circle.yaml")
    (inside / "nowhere.yaml").symlink_to("nosuch.yaml")
    os.mkfifo(inside / "pipe.yaml")
    no_file = "this is no regular file, but a folder, a pipe or a dangling link"
    return {
        "latin": ":2:13\n  not UTF-8: invalid continuation byte; save the file as UTF-8",
        "wide": ":1:1\n  not UTF-8: invalid start byte; save the file as UTF-8",
        **dict.fromkeys(("circle", "nowhere", "pipe"), f":1:1\n  {no_file}"),
    }


def test_an_unreadable_file_is_listed_as_unreadable(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    unread = _unread(folder)
    (folder / "experiment" / "folder.yaml").mkdir()
    (folder / "experiment" / "up").symlink_to("..")
    done = command(tmp_path, "--config-dir", "conf", limit=30)
    assert (done.returncode, done.stderr) == (0, "")
    listed = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert all("(this file cannot be read)" in listed[name] for name in unread)
    assert "good" in listed
    assert "folder" not in listed


@pytest.mark.parametrize("name", ["latin", "wide", "circle", "nowhere", "pipe"])
def test_running_an_unreadable_file_is_one_message(tmp_path: Path, name: str) -> None:
    unread = _unread(_folder(tmp_path))
    done = command(tmp_path, "--config-dir", "conf", f"+experiment={name}", "hydra.run.dir=run", limit=30)
    assert done.returncode == 2
    assert done.stderr == f"conf/experiment/{name}.yaml{unread[name]}\n"


@pytest.mark.in_turn
def test_an_editors_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    file = _folder(tmp_path) / "experiment" / "marked.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    done = command(tmp_path, str(file), "hydra.run.dir=run", limit=60)
    assert done.returncode == 0, done.stderr
    wrong = file.with_name("wrong.yaml")
    wrong.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("name:", "nme:").encode())
    assert "experiment/wrong.yaml:" in command(tmp_path, str(wrong), "hydra.run.dir=run", limit=60).stderr


def test_a_misspelt_name_is_suggested_despite_unreadable_files(tmp_path: Path) -> None:
    _unread(_folder(tmp_path))
    done = command(tmp_path, "--config-dir", "conf", "+experiment=goood", "hydra.run.dir=run", limit=30)
    assert done.stderr == "command line: +experiment=goood\n  no experiment 'goood'; did you mean 'good'?\n"


def test_the_editor_reports_unreadable_files_and_does_the_others(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    unread = _unread(folder)
    done = command(tmp_path, "conf", module="runner editor", limit=30)
    assert done.returncode == 2
    assert done.stderr == "".join(f"conf/experiment/{name}.yaml{unread[name]}\n" for name in sorted(unread))
    assert "yaml-language-server" in (folder / "experiment" / "good.yaml").read_text()


def test_the_plugin_skips_non_files(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    _unread(folder)
    (folder / "experiment" / "folder.yaml").mkdir()
    assert session._by_argument(folder / "experiment") == [folder]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("name: a\ngraph: {C: A + 1}\narays: {A: {shape: [4]}}\n", True),
        ("defaults: [base]\ngraph: {C: A + 1}\n", True),
        ("optimizer: adam\nlr: 0.1\ngraph: dense\n", False),
        ("seed: 1\nname: run\n", False),
    ],
)
def test_the_plugin_tells_an_experiment_from_another_tools_file(tmp_path: Path, text: str, ours: bool) -> None:
    file = tmp_path / "experiment" / "a.yaml"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    assert session._by_argument(file.parent) == ([tmp_path] if ours else [])


# The environment.


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("JAX_ENABLE_X64", "maybe", "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"),
        ("JAX_NUM_CPU_DEVICES", "x", 'Invalid value "x" for JAX flag jax_num_cpu_devices'),
        ("JAX_TRACEBACK_FILTERING", "x", 'Invalid value "x" for JAX flag jax_traceback_filtering'),
    ],
)
def test_a_variable_that_jax_refuses_is_one_sentence(tmp_path: Path, name: str, value: str, words: str) -> None:
    done = run_whole(*RUN, folder=tmp_path, **{name: value})
    assert done.returncode == 3
    assert done.stderr == f"JAX does not start: the environment has {name}={value}: {words}\n"
    assert "Traceback" in (tmp_path / "run" / "worker.log").read_text()


@pytest.mark.in_turn
def test_an_error_of_all_processes_is_reported_once(tmp_path: Path) -> None:
    done = run_whole(*RUN, "target.processes=2", folder=tmp_path, JAX_ENABLE_X64="maybe")
    assert done.returncode == 3
    assert done.stderr.startswith("process ")
    assert len(done.stderr.splitlines()) == 1
    assert "JAX does not start: the environment has JAX_ENABLE_X64=maybe" in done.stderr


@pytest.mark.in_turn
@pytest.mark.parametrize("module", ["runner derive", "runner mutate", "runner plan"])
def test_other_commands_report_a_wrong_environment_too(tmp_path: Path, module: str) -> None:
    wanted = ("per_device=null", "expect=null", "arrays.A.spec=auto") if module == "runner plan" else ()
    done = command(tmp_path, "+experiment=case3_allreduce", *wanted, module=module, JAX_ENABLE_X64="maybe")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("JAX does not start: the environment has JAX_ENABLE_X64=maybe")
    assert "Traceback" not in done.stderr
    assert "bug in shardproof" not in done.stderr


def test_a_python_without_the_libraries_is_told_in_one_sentence(tmp_path: Path) -> None:
    """The `.venv` of a checkout is easily forgotten. `-S` leaves out the installed packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "runner", "case3_allreduce"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 3
    assert re.fullmatch(rf"{re.escape(sys.executable)} has no module '\w+', which Shardproof needs: .*\n", done.stderr)
