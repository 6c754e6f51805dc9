"""The README is true: every command in it is run, and prints what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\w*\n(.*?)\n```", README, re.DOTALL)
# A command, then the block that it prints.
SHOWN = [(block.removeprefix("$ "), BLOCKS[i + 1]) for i, block in enumerate(BLOCKS) if block.startswith("$ ")]


def settled(text: str) -> str:
    """What does not change from run to run, nor from CPU to CPU: without times, dates, versions and rounding errors."""
    text = re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", "TIME", text)
    text = re.sub(r"\d+(\.\d+)? ms", "N ms", text)
    text = re.sub(r"jax \d+\.\d+[\d.]*", "jax VERSION", text)
    text = re.sub(r"\d\.\de-\d\d in ", "ERROR in ", text)
    text = re.sub(r"\d\.\de-\d\d rms", "SHARE rms", text)
    return re.sub(r" +", " ", text)


def printed(command: str, folder: Path) -> str:
    """What a command of the README prints, the README's `python` being this one."""
    command = re.sub(r"^python ", f"{sys.executable} ", command)
    # A script that makes arrays of JAX's looks for a TPU where libtpu is installed, as it is for these tests.
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False, env=env)
    return result.stdout + result.stderr


def test_the_readme_shows_commands() -> None:
    assert len(SHOWN) >= 4


@pytest.mark.parametrize("shown", SHOWN, ids=[command.split("+")[-1][:40] for command, _ in SHOWN])
def test_a_command_prints_what_the_readme_says(shown: tuple[str, str]) -> None:
    command, output = shown
    assert settled(output) in settled(printed(command, ROOT))


def test_the_function_in_the_readme_is_checked_as_it_says(tmp_path: Path) -> None:
    at = next(i for i, block in enumerate(BLOCKS) if "runner.check" in block)
    (tmp_path / "script.py").write_text(BLOCKS[at], encoding="utf-8")
    assert settled(BLOCKS[at + 1]) in settled(printed("python script.py", tmp_path))


def test_the_experiment_in_the_readme_is_the_file() -> None:
    shown = next(block for block in BLOCKS if block.startswith("# @package _global_"))
    assert shown == (ROOT / "conf" / "experiment" / "case3_allreduce.yaml").read_text(encoding="utf-8").strip()


def test_the_picture_in_the_readme_is_what_the_runner_draws(tmp_path: Path) -> None:
    command = f"python -m runner +experiment=case3_allreduce hydra.run.dir={tmp_path}"
    printed(command, ROOT)
    drawn = (tmp_path / "shardings.svg").read_text(encoding="utf-8")
    assert drawn == (ROOT / "docs" / "images" / "case3_allreduce.svg").read_text(encoding="utf-8")
    program = (tmp_path / "program_shard_map.py").read_text(encoding="utf-8").strip()
    assert program in BLOCKS
