"""The mistakes in the documentation are noticed, and the page quotes the runner's messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import ROOT, run_command

FOLDER = ROOT / "experiments" / "mistakes"
MESSAGES = re.findall(
    r"^\| \[(\w+)\]\(\1\.yaml\) \| .+ \| `(.+)` \|$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
)


def test_the_page_has_every_file() -> None:
    assert sorted(name for name, _ in MESSAGES) == sorted(file.stem for file in FOLDER.glob("*.yaml"))


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "message"), MESSAGES, ids=[name for name, _ in MESSAGES])
def test_the_mistake_is_named(tmp_path: Path, name: str, message: str) -> None:
    run = f"hydra.run.dir={tmp_path}"
    done = run_command("--config-dir", "experiments", f"+mistakes={name}", "program=shard_map", "show=none", run)
    assert done.returncode == 1, done.stderr
    assert message in done.stdout
    assert "failed: sections failed" in done.stdout
