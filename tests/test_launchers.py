"""A sweep with Hydra's own launchers, each point in its own process, gives the results of this project's launcher."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

from tests.command import recorded, run_command, run_whole

SWEEP = (
    "-m",
    "+experiment=case3_allreduce",
    "program=auto",
    "arrays.A.spec=[null,x],[null,nope]",
    "hydra.sweep.dir=out",
)


def launcher(name: str, *more: str) -> object:
    missing = importlib.util.find_spec(f"hydra_plugins.hydra_{name.split('_')[0]}_launcher") is None
    extra = name.split("_")[0]
    skip = pytest.mark.skipif(missing, reason=f"hydra-{extra}-launcher is not installed: pip install '.[{extra}]'")
    return pytest.param((f"hydra/launcher={name}", *more), id=name, marks=skip)


LAUNCHERS = [launcher("joblib", "hydra.launcher.n_jobs=2"), launcher("submitit_local")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_point_has_a_record_and_a_row_in_the_table(launcher: tuple[str, ...], tmp_path: Path) -> None:
    swept = run_whole(*SWEEP, *launcher, folder=tmp_path)
    assert swept.returncode == 2, swept.stderr
    assert [recorded(tmp_path / "out" / str(n))["status"] for n in range(2)] == ["passed", "invalid"]
    assert "2 points: 1 passed, 1 invalid" in swept.stdout
    with open(tmp_path / "out" / "results.csv", encoding="utf-8", newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["passed", "invalid"]
    left = tmp_path / "out" / "0" / "kept"
    left.touch()
    asked = run_command("resume=out", folder=tmp_path)
    assert asked.returncode == 2
    again = "to set it again, type it too" if len(launcher) == 1 else "to set them again, type them too"
    assert f"{again}:\n    {' '.join(launcher)}" in asked.stderr
    resumed = run_whole("resume=out", *launcher, folder=tmp_path)
    assert resumed.returncode == 2, resumed.stderr
    assert "1 of them had passed before, and were not run again" in resumed.stdout
    assert left.exists()
