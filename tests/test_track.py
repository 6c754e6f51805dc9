"""The results of a sweep are reported to experiment trackers, point by point, through Hydra's callbacks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.reports.track import entry
from runner.reports.track.entry import Entry
from tests.command import ROOT, run_command

EXPERIMENT = """# @package _global_
defaults: [{override /mesh: x2_y2}]
name: summed
arrays: {A: {shape: [4, 4], spec: [x, y]}}
graph: {C: "sum(A, axis=1)"}
outputs: {C: [x]}
program: auto
"""

MINE = """
import json

class Mine:
    def __init__(self, file):
        self.file = file

    def log(self, entry):
        with open(self.file, "a") as told:
            told.write(json.dumps({**vars(entry), "folder": str(entry.folder)}) + "\\n")

    def close(self):
        with open(self.file, "a") as told:
            told.write("null\\n")
"""

FAILED = Entry(
    experiment="summed",
    group="2026-01-31",
    name="3 auto",
    params={"arrays.A.spec": "[x,y]", "program": "auto", "rules@other": "fsdp"},
    metrics={"bytes_sent": 96.0, "all-reduce": 1.0, "run_s": 0.25},
    status="failed",
    error="C differs",
    folder=Path("/runs/3"),
)


def installed(folder: Path) -> None:
    """Put a package with a tracker into the folder, as an installer does."""
    (folder / "mine.py").write_text(MINE)
    metadata = folder / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[shardproof.trackers]\nmine = mine:Mine\nmlflow = mine:Mine\n")


def command(folder: Path, *arguments: str) -> Any:
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "summed.yaml").write_text(EXPERIMENT)
    installed(folder)
    path = os.pathsep.join((str(folder), str(ROOT)))
    own = "+hydra.callbacks.own={_target_:runner.app.cli.tracking.Tracking,to:mine,file:calls.jsonl}"
    given = ("--config-dir", "conf", "+experiment=summed", own)
    return run_command(*given, *arguments, folder=folder, PYTHONPATH=path)


def calls(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


@pytest.mark.sample(2)
@pytest.mark.parametrize("launcher", ["shardproof", "basic"])
def test_each_point_is_tracked_by_shardproofs_and_hydras_launcher(launcher: str, tmp_path: Path) -> None:
    points = ("arrays.A.spec=[x,y],[x],[nosuch]", "hydra.sweep.dir=out/one", f"hydra/launcher={launcher}")
    done = command(tmp_path, "-m", *points)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "3 points: 2 passed, 1 invalid" in done.stdout
    *entries, closed = calls(tmp_path)
    assert closed is None
    assert [(entry["group"], entry["name"], entry["status"]) for entry in entries] == [
        ("one", "0 auto", "passed"), ("one", "1 auto", "passed"), ("one", "2 –", "invalid"),
    ]  # fmt: skip
    assert [entry["params"]["arrays.A.spec"] for entry in entries] == ["[x,y]", "[x]", "[nosuch]"]
    assert [Path(entry["folder"]) for entry in entries] == [tmp_path / "out" / "one" / str(k) for k in range(3)]
    assert [entry["metrics"].get("all-reduce") for entry in entries] == [1, 0, None]
    # Two of a row's partial sums are on each device: on a ring of two it sends 2 × 1/2 × 8 bytes.
    assert [entry["metrics"].get("bytes_sent") for entry in entries] == [8, 0, None]
    assert "nosuch" in entries[2]["error"]


def test_a_single_run_is_tracked_too(tmp_path: Path) -> None:
    done = command(tmp_path, "hydra.run.dir=out")
    assert done.returncode == 0, done.stdout + done.stderr
    entry, closed = calls(tmp_path)
    assert closed is None
    assert (entry["group"], entry["name"], entry["status"]) == ("out", "auto", "passed")


def test_a_missing_library_is_reported_before_anything_runs(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "tensorboardX"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join((str(missing.parent), str(ROOT)))
    for more in (("hydra.run.dir=out",), ("-m", "dims.J=4,8", "hydra.sweep.dir=out")):
        asked = ("+experiment=case3_allreduce", "hydra/callbacks=tensorboard", f"{more[-1]}")
        done = run_command(*asked, *more[:-1], folder=tmp_path, PYTHONPATH=path)
        assert done.returncode == 2
        assert done.stderr == (
            "hydra/callbacks=tensorboard\n"
            "  tensorboard is not installed (not here): pip install 'shardproof[tensorboard]'\n"
        )
        assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize("name", ["os.system", "mine.Mine", "runner.reports.track.mlflow.MLflow", "mine:Mine"])
def test_a_tracker_is_named_by_an_entry_point_and_never_by_a_dotted_name(name: str, tmp_path: Path) -> None:
    installed(tmp_path)
    asked = f"+hydra.callbacks.own={{_target_:runner.app.cli.tracking.Tracking,to:'{name}',command:'touch called'}}"
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = run_command("+experiment=case3_allreduce", asked, "hydra.run.dir=out", folder=tmp_path, PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr == (
        f"hydra.callbacks\n  there is no tracker '{name}'; there are mine, mlflow, tensorboard, wandb; "
        "one of your own is an entry point of an installed package, in the group shardproof.trackers\n"
    )
    assert not (tmp_path / "called").exists()


def test_an_installed_package_does_not_replace_a_tracker_that_comes_with_shardproof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in entry.SHIPPED:
        assert entry.maker(name).__module__ == f"runner.reports.track.{name}"


def needed(library: str, extra: str) -> Any:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'shardproof[{extra}]'")
    return importlib.import_module(library)


def test_tensorboard_has_a_session_with_its_hyperparameters_and_metrics(tmp_path: Path) -> None:
    needed("tensorboardX", "tensorboard")
    from runner.reports.track.tensorboard import TensorBoard

    protos: Any = importlib.import_module("tensorboardX.proto.event_pb2")
    hparams: Any = importlib.import_module("tensorboardX.proto.plugin_hparams_pb2")
    TensorBoard(str(tmp_path)).log(FAILED)
    (file,) = (tmp_path / "summed" / "2026-01-31" / "3_auto").iterdir()
    data, at = file.read_bytes(), 0
    scalars: dict[str, float] = {}
    parameters: dict[str, str] = {}
    while at < len(data):
        # A record of TensorFlow's: its length, a checksum of that, the event, a checksum of it.
        (length,) = struct.unpack_from("<Q", data, at)
        event = protos.Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                content = hparams.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                parameters |= {
                    name: parameter.string_value for name, parameter in content.session_start_info.hparams.items()
                }
            else:
                scalars[value.tag] = value.simple_value
    assert parameters == {**FAILED.params, "verdict": "failed", "folder": "/runs/3"}
    assert scalars == FAILED.metrics


def test_a_name_that_no_folder_can_have_does_not_lead_tensorboard_elsewhere(tmp_path: Path) -> None:
    needed("tensorboardX", "tensorboard")
    from runner.reports.track.tensorboard import TensorBoard

    TensorBoard(str(tmp_path / "board")).log(replace(FAILED, experiment="../../elsewhere"))
    assert [path.name for path in tmp_path.iterdir()] == ["board"]
    assert [path.name for path in (tmp_path / "board").iterdir()] == ["unnamed"]


# Its libraries warn about each other.
@pytest.mark.in_turn
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_failed_run_with_parameters_metrics_and_verdict(tmp_path: Path) -> None:
    needed("sqlalchemy", "mlflow")
    mlflow = needed("mlflow", "mlflow")
    from runner.reports.track.mlflow import MLflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = MLflow(uri)
    tracker.log(FAILED)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("summed").experiment_id])
    assert run.data.params == {"arrays.A.spec": "[x,y]", "program": "auto", "rules_other": "fsdp"}
    assert run.data.metrics == FAILED.metrics
    assert (run.info.run_name, run.info.status) == ("3 auto", "FAILED")
    assert {name: run.data.tags[name] for name in ("sweep", "verdict", "folder", "mlflow.note.content")} == {
        "sweep": "2026-01-31", "verdict": "failed", "folder": "file:///runs/3", "mlflow.note.content": "C differs",
    }  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.filterwarnings("ignore")
def test_wandb_has_an_offline_run_with_config_and_summary(tmp_path: Path) -> None:
    needed("wandb", "wandb")
    protos: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    # wandb's service writes the file, to its end at the latest when the process that started it ends.
    log = "import sys; from runner.reports.track.wandb import WandB; from tests.test_track import FAILED\n"
    log += "WandB('offline', None, sys.argv[1]).log(FAILED)"
    subprocess.run([sys.executable, "-c", log, str(tmp_path)], cwd=ROOT, check=True, timeout=120)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    data, at = file.read_bytes(), 7
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    run: Any = None
    while at < len(data):
        # A record of LevelDB's log: a checksum, its length, whether it is whole.
        _, length, whole = struct.unpack_from("<IHB", data, at)
        assert whole == 1
        record = protos.Record.FromString(data[at + 7 : at + 7 + length])
        at += 7 + length
        if record.HasField("run"):
            run = record.run
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
        history = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        summary |= {name: value for name, value in history.items() if not name.startswith("_")}
    assert (run.project, run.run_group, run.display_name) == ("summed", "2026-01-31", "3 auto")
    assert {name: config[name] for name in FAILED.params} == FAILED.params
    assert {name: summary[name] for name in FAILED.metrics} == FAILED.metrics
    assert (summary["verdict"], summary["folder"]) == ("failed", "/runs/3")
