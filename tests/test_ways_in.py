"""All commands start in one way: streams and signals affect them all alike."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.app.cli import command, subcommands
from runner.app.cli.arguments import parsed
from runner.app.cli.subcommands import SUBCOMMANDS, chosen
from runner.version import __version__
from tests.command import ROOT
from tests.server import command as done
from tests.test_machine import started

MODULES = sorted(
    file
    for file in {*(ROOT / "runner").glob("*.py"), *(ROOT / "runner").glob("**/__main__.py")}
    if 'if __name__ == "__main__":' in file.read_text("utf-8") and file.parent.name != "worker"
)
"""The files that are commands of the user, so without the worker."""


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_begins_in_one_place(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    (begins,) = (node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    *imports, call = begins.body
    imported = [ast.unparse(node) for node in [*tree.body, *imports] if isinstance(node, ast.ImportFrom)]
    assert {"from runner.app.cli.command import main", "from runner.app.cli import command"} & {*imported}
    assert ast.unparse(call).startswith(("main(", "command.main("))


def test_the_list_of_commands_is_complete() -> None:
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for file in MODULES}
    assert names == {"runner", "runner.compiled.explanation", "runner.reports.record"}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_has_help_of_one_screen_with_an_example(tmp_path: Path, name: str) -> None:
    outcome = done(tmp_path, "--help", module=f"runner {name}")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith(f"usage: python -m runner {name} ")
    assert f"\nexample:\n  python -m runner {name} " in outcome.stdout
    assert len(outcome.stdout.splitlines()) <= 32
    assert not outcome.jax


def test_the_help_of_all_fits_a_screen_and_says_where_the_names_are(tmp_path: Path) -> None:
    outcome = done(tmp_path, "--help")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert len(outcome.stdout.splitlines()) <= 40
    assert all(f"  {name} " in outcome.stdout for name in SUBCOMMANDS)
    count = len(list((ROOT / "conf" / "mesh").glob("*.yaml")))
    assert re.search(rf"^  mesh +{count}  the axes", outcome.stdout, re.MULTILINE)
    assert "python -m runner list GROUP" in outcome.stdout


def test_the_version_is_this_packages(tmp_path: Path) -> None:
    outcome = done(tmp_path, "--version")
    assert (outcome.returncode, outcome.stdout) == (0, f"shardproof {__version__}\n")


@pytest.mark.parametrize("arguments", [("--nosuch",), ("+experiment=case3_allreduce", "--nosuch"), ("--version=3",)])
def test_an_unknown_flag_is_bad_input_with_or_without_an_experiment(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    outcome = done(tmp_path, *arguments)
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    first, *others = outcome.stderr.splitlines()
    assert re.fullmatch(r"python -m runner: (unrecognized arguments: --nosuch|argument --version/-V: .*)", first)
    assert others == [
        "  for example: python -m runner case3_allreduce dims.J=8",
        "  all arguments: python -m runner --help",
    ]
    assert list(tmp_path.iterdir()) == []


NEEDED = {"compare": "A", "report": "FOLDER", "measure": "NAME", "derive": "NAME", "mutate": "NAME", "plan": "NAME"}
"""The subcommands that do nothing without an argument, and that argument."""


@pytest.mark.parametrize("name", ["derive", "mutate", "plan"])
def test_an_unknown_flag_of_a_subcommand_gets_the_subcommands_message(tmp_path: Path, name: str) -> None:
    outcome = done(tmp_path, "case3_allreduce", "--nosuch", module=f"runner {name}")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr.splitlines()[0] == f"python -m runner {name}: unrecognized arguments: --nosuch"
    assert outcome.stderr.endswith(f"\n  all arguments: python -m runner {name} --help\n")


@pytest.mark.parametrize("name", NEEDED)
def test_a_subcommand_without_its_arguments_says_which_with_an_example(tmp_path: Path, name: str) -> None:
    outcome = done(tmp_path, module=f"runner {name}")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == (
        f"python -m runner {name}: {NEEDED[name]} is missing\n"
        f"  for example: python -m runner {name} {SUBCOMMANDS[name].example}\n"
        f"  all arguments: python -m runner {name} --help\n"
    )


@pytest.mark.in_turn
def test_messages_suggest_the_command_that_was_typed(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "shardproof"
    script.parent.mkdir()
    script.write_text("from runner.app.cli.command import main\nmain()\n", encoding="utf-8")
    outputs = {}
    for words in ((), ("nosuch",), ("compare",)):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        line = [sys.executable, str(script), *words]
        process = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
        outputs[words] = process.stdout + process.stderr
    assert outputs[()].endswith("experiments. Run one: shardproof allreduce_as_scatter_gather\n")
    assert (
        outputs[("nosuch",)]
        == "command line: nosuch\n  no experiment 'nosuch'; shardproof list names those there are\n"
    )
    assert outputs[("compare",)].startswith("shardproof compare: A is missing\n  for example: shardproof compare ")


def test_a_group_lists_its_names_with_what_they_say(tmp_path: Path) -> None:
    outcome = done(tmp_path, "mesh", module="runner list")
    assert re.search(r"^x2_y4 +axes: \[x, y\], shape: \[2, 4\]$", outcome.stdout, re.MULTILINE)
    outcome = done(tmp_path, "target", module="runner list")
    assert re.search(r"^gpu +The GPUs of this machine\.$", outcome.stdout, re.MULTILINE)
    assert re.search(r"^tpu7x_2x2x1 +4 chips of TPU 7x: 8 devices, compile only\.$", outcome.stdout, re.MULTILINE)
    assert outcome.stdout.endswith(f"\n3 in {ROOT / 'conf' / 'target'}, and 49 slices of TPUs\n")
    assert done(tmp_path, module="runner list").stdout == done(tmp_path).stdout


def test_a_part_of_a_name_lists_the_experiments_that_have_it(tmp_path: Path) -> None:
    outcome = done(tmp_path, "case4", module="runner list")
    names = [line.split()[0] for line in outcome.stdout.splitlines() if line.startswith("case")]
    assert (outcome.returncode, names) == (0, ["case4_forbidden", "case4a_allgather_b", "case4b_allgather_a"])


def test_an_unknown_group_is_one_message(tmp_path: Path) -> None:
    outcome = done(tmp_path, "meshes", module="runner list")
    assert (outcome.returncode, outcome.stderr) == (2, "there is no config group 'meshes'; did you mean 'mesh'?\n")
    outcome = done(tmp_path, "mesh", "--config-dir", "nowhere", module="runner list")
    assert (outcome.returncode, outcome.stderr) == (2, "--config-dir nowhere\n  there is no such folder\n")


def test_a_name_of_a_subcommand_is_looked_for_in_the_first_word_alone() -> None:
    assert subcommands.chosen(["compare", "A", "B"]) == ("runner.app.cli.compare", ["A", "B"])
    assert subcommands.chosen(["+experiment=plan"]) == ("runner.app.cli.app", ["+experiment=plan"])
    assert subcommands.chosen(["mine", "plan"]) == ("runner.app.cli.app", ["mine", "plan"])
    assert subcommands.chosen([]) == ("runner.app.cli.app", [])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    ran = done(folder, "+experiment=case3_allreduce", "program=shard_map", "hydra.run.dir=outputs/run")
    assert ran.returncode == 0, ran.stderr
    return folder


COMMANDS = {
    "runner": (),
    "runner runs": (),
    "runner report": ("outputs",),
    "runner compare": ("outputs/run", "outputs/run"),
    "runner.reports.record": (),
    "runner editor": ("--help",),
    "runner measure": ("--help",),
}
"""Commands that print something soon."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("module", COMMANDS)
def test_a_reader_that_leaves_ends_it_silently(runs: Path, module: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        process = started(*COMMANDS[module], folder=runs, module=module, stdout=pipe)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


@pytest.mark.sample(4)
@pytest.mark.parametrize("module", COMMANDS)
def test_a_full_disk_is_one_message(runs: Path, module: str) -> None:
    with open("/dev/full", "w") as full:
        process = started(*COMMANDS[module], folder=runs, module=module, stdout=full)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (3, "No space left on device\n")


@pytest.mark.sample(4)
@pytest.mark.parametrize("module", COMMANDS)
def test_a_terminal_of_ascii_alone_is_given_no_other_character(runs: Path, module: str) -> None:
    process = started(*COMMANDS[module], folder=runs, module=module, env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()


@pytest.mark.parametrize("full", ["1", "2"])
def test_a_closed_or_full_stream_does_not_prevent_the_exit_status(tmp_path: Path, full: str) -> None:
    process = started(
        "nosuch", folder=tmp_path, module="runner runs", before=f"os.dup2(os.open('/dev/full', 1), {full})"
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == (2 if full == "1" else 3)
    assert "Traceback" not in out + err


def test_an_interrupt_prints_one_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.app.cli.runs.main", interrupted)
    # An interrupted command ends its workers: not those of other tests in this process.
    monkeypatch.setattr("runner.link.process._LIVE", set())
    monkeypatch.setattr("runner.link.scratch._OWN", set())
    with pytest.raises(SystemExit) as left:
        command.main("runner.app.cli.runs")
    assert left.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("help", "runner.app.cli.app --help"),
        ("help plan", "runner.app.cli.plan --help"),
        ("version", "runner.app.cli.app --version"),
        ("run case3_allreduce dims.J=8", "runner.app.cli.app case3_allreduce dims.J=8"),
        ("run", "runner.app.cli.app"),
        ("plan layer", "runner.app.cli.plan layer"),
    ],
)
def test_the_words_of_other_commands_are_understood(typed: str, meant: str) -> None:
    module, arguments = chosen(typed.split())
    assert " ".join([module, *arguments]) == meant


def test_a_key_with_dashes_is_answered_with_the_override(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["case3_allreduce", "--program=auto"])
    assert "unrecognized arguments: --program=auto; a key has no dashes: program=auto\n" in capsys.readouterr().err
