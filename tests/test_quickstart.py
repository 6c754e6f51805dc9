"""The quickstart works: its file is written, its commands run in order, and they print what the page shows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.command import ROOT
from tests.server import command
from tests.test_documented import blocks, flowing


@pytest.mark.in_turn
def test_the_quickstart_leads_to_an_experiment_that_is_tested(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    file = tmp_path / "my_conf" / "experiment" / "mlp.yaml"
    file.parent.mkdir(parents=True)
    printed = None
    shown = 0
    for language, block in blocks(page):
        if language == "yaml":
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"\n{block}\n")
        elif block.startswith("$ "):
            words = shlex.split(block.removeprefix("$ "))
            module = "pytest" if words[0] == "pytest" else words[2]
            arguments = words[1:] if module == "pytest" else words[3:]
            done = command(tmp_path, *arguments, module=module, limit=600, PYTHONDONTWRITEBYTECODE="1")
            assert done.returncode in (0, 1), done.stdout + done.stderr
            printed = done.stdout + done.stderr
        elif not language and printed is not None:
            # The page marks omissions by an ellipsis.
            for part in map(flowing, block.split("…")):
                assert part in flowing(printed), f"{part}\n----\n{printed}"
            shown += 1
    assert shown == 7
