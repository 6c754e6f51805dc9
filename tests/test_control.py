"""Control characters in texts of users, files, compilers and records are escaped wherever they are shown."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from runner.app.api import Record
from runner.base import printable
from runner.reports.record import record
from runner.reports.show import html
from tests.command import ROOT
from tests.faults import GOOD
from tests.server import Done, command

BAD = "\x1b[31m\x07\x9b1m‮⁦\x7f\r\x08"
"""Red, a bell, red again, right to left, isolated, deleted, and over the line."""

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _is_clean(text: str, where: str) -> None:
    match = CONTROLS.search(text)
    assert match is None, f"{where}: {text[max(match.start() - 60, 0) : match.end() + 20]!r}"


def _run(folder: Path, *arguments: str, module: str = "runner") -> Done:
    done = command(folder, *arguments, module=module, limit=120)
    _is_clean(done.stdout, f"{module} {arguments}: stdout")
    _is_clean(done.stderr, f"{module} {arguments}: stderr")
    return done


def test_each_character_is_escaped_as_in_python() -> None:
    assert printable.printable(BAD) == r"\x1b[31m\x07\x9b1m\u202e\u2066\x7f\x0d\x08"
    assert printable.printable("plain → text\n\ttoo") == "plain → text\n\ttoo"
    assert json.loads(printable.json_text(json.dumps(BAD, ensure_ascii=False))) == BAD
    _is_clean(printable.json_text(json.dumps(BAD, ensure_ascii=False)), "json")


# An experiment.


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an experiment that has control characters in every free text, and a sweep of it."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "conf" / "experiment").mkdir(parents=True)
    summary = json.dumps(f"a {BAD} b")
    text = GOOD.replace("name: mine\n", f"name: mine\nsummary: {summary}\nsource: {summary}\nexplain: true\n")
    (folder / "conf" / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    _run(folder, "--config-dir", "conf")
    done = _run(folder, "--config-dir", "conf", "+experiment=mine", "hydra.run.dir=one", "report=true")
    assert done.returncode == 0, done.stderr
    assert r"a \x1b[31m\x07" in done.stdout
    sweep = ("-m", "+experiment=mine", "program=auto", "seed=1,2", "hydra.sweep.dir=sweep", "report=true")
    done = _run(folder, "--config-dir", "conf", *sweep)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.in_turn
def test_other_commands_escape_an_experiments_text(hostile: Path) -> None:
    _run(hostile, "--config-dir", "conf", "+experiment=mine", "hydra.run.dir=derived", module="runner derive")
    _run(hostile, "--config-dir", "conf", "+experiment=mine", "hydra.run.dir=mutated", module="runner mutate")
    _run(hostile, "conf", module="runner editor")
    for name in ("one", "sweep"):
        assert _run(hostile, name, module="runner report").returncode == 0
    assert _run(hostile, ".", module="runner runs").returncode == 0
    assert _run(hostile, ".", "--json", module="runner runs").returncode == 0
    assert _run(hostile, "one", "sweep/0", module="runner compare").returncode in (0, 1)


def test_the_files_of_a_run_have_no_control_characters(hostile: Path) -> None:
    files = [path for home in ("one", "sweep") for path in (hostile / home).rglob("*") if path.is_file()]
    assert len(files) > 20
    for file in files:
        if file.suffix in (".txt", ".log", ".html", ".svg", ".csv", ".json", ".jsonl"):
            _is_clean(file.read_text("utf-8"), str(file.relative_to(hostile)))
        if file.suffix == ".svg":
            ElementTree.parse(file)
    outcome = record.read(hostile / "one")
    assert outcome.summary == f"a {BAD} b"


MISTAKES = {
    "a name": ("name: mine", f"name: {json.dumps('x' + BAD)}"),
    "a key": ("graph:", f"{json.dumps('graph' + BAD)}:"),
    "an expression": ("C: A @ B", f"C: {json.dumps('A @ ' + BAD)}"),
    "a name in an expression": ("C: A @ B", f"C: {json.dumps(f'einsum({BAD!r}, A, B)')}"),
    "an axis": ("spec: [null, x]", f"spec: [null, {json.dumps('x' + BAD)}]"),
    "an array": ("  A: {", f"  {json.dumps('A' + BAD)}: {{"),
    "a dtype": ('init: "arange(16)", spec: [null, x]', f"dtype: {json.dumps(BAD)}, spec: [null, x]"),
    "a file": ('init: "arange(16)", spec: [null, x]', f"init: {json.dumps(f'load({BAD!r})')}"),
    "a target": ("graph:", f"target: {{platform: {json.dumps(BAD)}}}\ngraph:"),
    "YAML": ("graph:", "graph: \x07\n"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_about_a_control_character_has_none(tmp_path: Path, mistake: str) -> None:
    old, new = MISTAKES[mistake]
    assert old in GOOD
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    _run(tmp_path, "--config-dir", "conf")
    done = _run(tmp_path, "--config-dir", "conf", "+experiment=mine", "hydra.run.dir=run")
    assert done.returncode == 2, done.stdout + done.stderr
    for left in tmp_path.rglob("*.log"):
        _is_clean(left.read_text("utf-8"), left.name)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("runner", (f"+experiment=x{BAD}",)),
        ("runner", ("+experiment=case3_allreduce", f"dims.J={BAD}")),
        ("runner", ("+experiment=case3_allreduce", f"{BAD}=1")),
        ("runner", ("--config-dir", f"x{BAD}")),
        ("runner", (f"--x{BAD}", "+experiment=case3_allreduce")),
        ("runner", (f"resume=x{BAD}",)),
        ("runner runs", (f"x{BAD}",)),
        ("runner runs", (f"--x{BAD}",)),
        ("runner runs", (".", "--status", BAD)),
        ("runner report", (f"x{BAD}",)),
        ("runner compare", (f"x{BAD}", f"y{BAD}")),
        ("runner editor", (f"x{BAD}",)),
        ("runner measure", (f"--x{BAD}",)),
        ("runner derive", (f"+experiment=x{BAD}",)),
    ],
)
def test_a_message_about_a_command_line_has_none(tmp_path: Path, module: str, arguments: tuple[str, ...]) -> None:
    assert _run(tmp_path, *arguments, module=module).returncode == 2


# A record.


@pytest.mark.in_turn
def test_a_hostile_record_is_shown_without_control_characters(hostile: Path, tmp_path: Path) -> None:
    data = json.loads((hostile / "one" / "result.json").read_text("utf-8"))
    for number, name in enumerate(("0", "1")):
        home = tmp_path / "sweep" / name
        home.mkdir(parents=True)
        text = json.dumps(_everywhere(data) if number else data)
        (home / "result.json").write_text(text, encoding="utf-8")
    read = record.read(tmp_path / "sweep" / "1")
    assert BAD in read.summary
    _is_clean(str(Record.of(read, tmp_path)), "str")
    _is_clean(html.fragment(read), "notebook")
    for module, arguments in (
        ("runner runs", ("sweep",)),
        ("runner runs", ("sweep", "--json")),
        ("runner compare", ("sweep/0", "sweep/1")),
        ("runner compare", ("sweep", "sweep/1")),
        ("runner report", ("sweep",)),
        ("runner report", ("sweep/1",)),
    ):
        _run(tmp_path, *arguments, module=module)
    pages = [*(tmp_path / "sweep").rglob("*.html")]
    assert len(pages) == 3
    for page in pages:
        _is_clean(page.read_text("utf-8"), page.name)


def _everywhere(value: Any, at: str = "") -> Any:
    """Return a record with the text in every field that allows any."""
    if isinstance(value, dict):
        return {key: _everywhere(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_everywhere(each, at) for each in value]
    return (
        value + BAD
        if isinstance(value, str) and at in ("summary", "experiment", "overrides", "reason", "text")
        else value
    )


# A terminal, on which only the runner's own colours are allowed.


def test_a_terminal_gets_only_the_runners_own_colours(hostile: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "runs", "."],
        cwd=hostile,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "200"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.wait()
    text = shown.decode()
    assert "\x1b[" in text
    without = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n")
    _is_clean(without, "terminal")
