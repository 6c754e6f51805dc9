"""Programs for absent devices use the device order of the mesh, whatever an argument says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import recorded, run_command
from tests.server import Done

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

TEXT = """\
# @package _global_
name: mine
mesh: {axes: [x, y], shape: [2, 2]}
arrays:
  A: {shape: [64, 64], spec: [x, null]}
  B: {shape: [64, 64], spec: [null, y]}
graph: {C: A @ B}
per_device: {C: A @ B}
outputs: {C: [x, y]}
"""

CONSTANT = """\
# @package _global_
name: mine
mesh: {axes: [x, y], shape: [4, 2]}
graph: {C: arange(16)}
per_device: {C: "dynamic_slice_in_dim(arange(16), 2 * axis_index(('x', 'y')), 2)"}
outputs: {C: [[x, y]]}
"""


def _written(folder: Path, text: str) -> None:
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")


def _run(folder: Path, *given: str) -> Done:
    return run_command("--config-dir", "conf", "+experiment=mine", "hydra.run.dir=run", *given, folder=folder)


SPLIT = {
    "a topology": ("target=v5p_4x4x4", "mesh.shape=[32,2]"),
    "slices": ("target=v5e_4x4", "target.slices=2", "mesh.shape=[16,2]"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", SPLIT)
def test_derived_lines_follow_the_order_of_split_physical_axes(name: str, tmp_path: Path) -> None:
    _written(tmp_path, TEXT)
    done = _run(tmp_path, *SPLIT[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert recorded(tmp_path / "run")["target"]["device_order"] == "topology-aware, physical axes split"
    for program in ("auto", "derived", "shard_map"):
        source = (tmp_path / "run" / f"program_{program}.py").read_text(encoding="utf-8")
        assert "allow_split_physical_axes=True" in source, program


@pytest.mark.sample(2)
@pytest.mark.parametrize("program", ["all", "vmap"])
def test_a_program_without_arguments_is_compiled_for_the_absent_devices(program: str, tmp_path: Path) -> None:
    _written(tmp_path, CONSTANT)
    done = _run(tmp_path, "target=v5e_2x2", "target.slices=2", f"program={program}")
    assert done.returncode == 0, done.stdout + done.stderr
    for file in (tmp_path / "run").glob("hlo_*.txt"):
        # Only TPUs have tiles.
        assert "T(" in file.read_text(encoding="utf-8").split("\n")[0], file.name
    alone = next((tmp_path / "run").glob("program_auto.py" if program == "all" else "program_vmap.py"))
    ran = subprocess.run([sys.executable, alone], capture_output=True, text=True, check=True)
    assert "optimal_seconds" in ran.stdout
