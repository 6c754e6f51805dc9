"""The wheel, installed in an environment with only its dependencies, works from any folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from runner.reports.record import record
from tests.command import EXPERIMENTS, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("shardproof-*.whl")
    return built


@pytest.mark.in_turn
def test_the_wheel_holds_the_configuration(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [f"runner/conf/experiment/{name}.yaml" in names for name in EXPERIMENTS] == [True] * len(EXPERIMENTS)
    assert "hydra_plugins/shardproof_sweeper/__init__.py" in names
    assert "hydra_plugins/shardproof_launcher/__init__.py" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "conf/"))]


@pytest.mark.in_turn
def test_the_source_distribution_holds_the_studies(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = tmp_path.glob("shardproof-*.tar.gz")
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files", "experiments"], cwd=ROOT, check=True, capture_output=True, text=True)
    studies = set(tracked.stdout.splitlines())
    assert {"experiments/__main__.py", "experiments/wrong_answers/README.md"} <= studies
    assert studies <= held


@pytest.mark.in_turn
def test_the_installed_command_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)
    # The dependencies are those of this environment. A path in a .pth file is not searched for further .pth files, so
    # that a checkout which is installed here in editable mode stays out.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [environment / "bin" / "shardproof", "-m", "+experiment=case3_allreduce,layer", "hydra.sweep.dir=out"]
    result = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [record.read(elsewhere / "out" / point).status for point in ("0", "1")] == ["passed", "passed"]
    where = subprocess.run(
        [python, "-c", "import runner; print(runner.__file__)"],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(environment)
