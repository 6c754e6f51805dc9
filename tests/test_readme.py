"""The README is true: every command in it is run, and prints what the README shows."""

from __future__ import annotations

import html
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import server
from tests.command import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\w*\n(.*?)\n```", README, re.DOTALL)
# A command, then the block that it prints.
SHOWN = [(block.removeprefix("$ "), BLOCKS[i + 1]) for i, block in enumerate(BLOCKS) if block.startswith("$ ")]


def settled(text: str) -> str:
    """Return the text without what changes between runs and CPUs: times, dates, versions and rounding errors."""
    text = re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", "TIME", text)
    text = re.sub(r"\d+(\.\d+)? ms", "N ms", text)
    text = re.sub(r"jax \d+\.\d+[\d.]*", "jax VERSION", text)
    text = re.sub(r"\d\.\de-\d\d in ", "ERROR in ", text)
    text = re.sub(r"\d\.\de-\d\d rms", "SHARE rms", text)
    return re.sub(r" +", " ", text)


def printed(command: str, folder: Path) -> str:
    """Return the output of a command of the README, with `python` as this interpreter."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "runner"] and not any(word.startswith("target=") for word in words):
        done = server.command(folder, *words[3:])
        return done.stdout + done.stderr
    command = re.sub(r"^python ", f"{sys.executable} ", command)
    # A script that makes JAX arrays looks for a TPU if libtpu is installed, as for these tests.
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False, env=env)
    return result.stdout + result.stderr


def test_the_readme_shows_commands() -> None:
    assert len(SHOWN) >= 4


@pytest.mark.parametrize("shown", SHOWN, ids=[command.split("+")[-1][:40] for command, _ in SHOWN])
def test_a_command_prints_what_the_readme_says(shown: tuple[str, str]) -> None:
    command, output = shown
    # A terminal, and the README, wrap long lines.
    assert " ".join(settled(output).split()) in " ".join(settled(printed(command, ROOT)).split())


def test_the_function_in_the_readme_is_checked_as_it_says(tmp_path: Path) -> None:
    at = next(i for i, block in enumerate(BLOCKS) if "runner.check(" in block)
    (tmp_path / "script.py").write_text(BLOCKS[at], encoding="utf-8")
    assert settled(BLOCKS[at + 1]) in settled(printed("python script.py", tmp_path))


@pytest.mark.parametrize("page", ["README.md", "docs/explain.md"])
def test_the_first_step_of_a_page_is_explained_as_it_says(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```\w*\n(.*?)\n```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    at = next(i for i, block in enumerate(blocks) if "runner.explain(" in block)
    (tmp_path / "step.py").write_text(blocks[at], encoding="utf-8")
    shown = printed("python step.py", tmp_path)
    assert settled(blocks[at + 1]) in settled(shown)
    assert "Error" not in shown


def test_a_file_in_the_readme_is_the_file() -> None:
    shown = re.findall(r"^`([\w/]+\.yaml)`:\n\n```yaml\n(.*?)```", README, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    for path, text in shown:
        assert text in (ROOT / path).read_text(encoding="utf-8"), path


def test_the_pictures_and_the_program_shown_are_what_the_runner_writes(tmp_path: Path) -> None:
    command = f"python -m runner +experiment=case3_allreduce hydra.run.dir={tmp_path}"
    printed(command, ROOT)
    picture = (tmp_path / "shardings.svg").read_text(encoding="utf-8")
    assert picture == (ROOT / "docs" / "images" / "case3_allreduce.svg").read_text(encoding="utf-8")
    program = (tmp_path / "program_shard_map.py").read_text(encoding="utf-8").strip()
    assert program in (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


def test_the_cast_of_a_run_shows_what_the_command_prints() -> None:
    script = ROOT / "docs" / "images" / "cast.py"
    cast = runpy.run_path(str(script))
    assert words(script.with_name("run.svg").read_text(encoding="utf-8")) == words(cast["drawn"](cast["printed"]()))


def words(picture: str) -> list[str]:
    """Return the settled text of a picture, without alignment."""
    lines = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return settled(html.unescape("".join(lines)).replace("\xa0", " ")).split()
