"""One way into every command: what streams and signals do to one of them they do to all."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from runner.cli import command
from tests.command import ROOT
from tests.server import command as done
from tests.test_machine import started

MODULES = sorted(
    file
    for file in [*(ROOT / "runner").glob("*.py"), *(ROOT / "runner").glob("*/__main__.py")]
    if 'if __name__ == "__main__":' in file.read_text("utf-8") and file.parent.name != "worker"
)
"""The files that are commands; the worker is none of the user's."""


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_begins_in_one_place(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    (begins,) = (node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    *imports, call = begins.body
    imported = [ast.unparse(node) for node in [*tree.body, *imports] if isinstance(node, ast.ImportFrom)]
    assert {"from runner.cli.command import main", "from runner.cli import command"} & {*imported}
    assert ast.unparse(call).startswith(("main(", "command.main("))


def test_there_are_as_many_commands_as_the_readers_know() -> None:
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for file in MODULES}
    also = {"compare", "derive", "editor", "measure", "mutate", "plan", "runs", "report", "catalogue", "record"}
    assert names == {"runner", "runner.language", *(f"runner.{name}" for name in also)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    ran = done(folder, "+experiment=case3_allreduce", "program=shard_map", "hydra.run.dir=outputs/run")
    assert ran.returncode == 0, ran.stderr
    return folder


COMMANDS = {
    "runner": (),
    "runner.runs": (),
    "runner.report": ("outputs",),
    "runner.compare": ("outputs/run", "outputs/run"),
    "runner.catalogue": (),
    "runner.record": (),
    "runner.language": (),
    "runner.editor": ("--help",),
    "runner.measure": ("--help",),
}
"""What prints something soon."""

SOON = [pytest.param(name, marks=pytest.mark.whole if name == "runner.catalogue" else ()) for name in COMMANDS]
"""The same; the catalogue, which reads every experiment first, is tried by one test in every session."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("module", COMMANDS)
def test_whoever_reads_a_little_ends_it_silently(runs: Path, module: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        process = started(*COMMANDS[module], folder=runs, module=module, stdout=pipe)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


@pytest.mark.sample(4)
@pytest.mark.parametrize("module", SOON)
def test_a_full_disk_is_one_message(runs: Path, module: str) -> None:
    with open("/dev/full", "w") as full:
        process = started(*COMMANDS[module], folder=runs, module=module, stdout=full)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (3, "No space left on device\n")


@pytest.mark.sample(4)
@pytest.mark.parametrize("module", SOON)
def test_a_terminal_of_ascii_alone_is_given_no_other_character(runs: Path, module: str) -> None:
    process = started(*COMMANDS[module], folder=runs, module=module, env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()


@pytest.mark.parametrize("full", ["1", "2"])
def test_no_stream_is_needed_to_say_that_there_is_none(tmp_path: Path, full: str) -> None:
    process = started(
        "nosuch", folder=tmp_path, module="runner.runs", before=f"os.dup2(os.open('/dev/full', 1), {full})"
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == (2 if full == "1" else 3)
    assert "Traceback" not in out + err


def test_an_interrupt_is_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.cli.runs.main", interrupted)
    with pytest.raises(SystemExit) as left:
        command.main("runner.cli.runs")
    assert left.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
