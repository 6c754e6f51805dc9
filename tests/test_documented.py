"""The pages of `docs/` are true: each command in them is run, or is listed as not run, with a reason.

`make test` runs those whose output is on the page and a sample of the others, `make whole` all. They run in a temporary
folder, in which the names that pages use as examples (`my_conf`, a folder of last week) exist.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runner.base.untyped import is_dict
from runner.experiment.config import files, shape
from runner.graph.language import printing
from runner.graph.language.syntax import parse
from tests.command import ROOT
from tests.server import Done, command
from tests.test_cluster import ended, free_port, of_open_mpi, of_slurm, started
from tests.test_readme import settled

PAGES = sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "quickstart.md"})
"""All pages but the quickstart, whose commands depend on each other: `tests/test_quickstart.py` runs them."""
SAMPLE = 6
"""Every session runs one in this many commands whose output no page shows."""

BEGINNINGS = ("python -m ", "pytest ", "make ", "srun ", "mpirun ", "gcloud ", "pip ")


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the output that the page shows, if any."""

    page: str
    line: str
    output: str | None

    @property
    def name(self) -> str:
        return f"{self.page}: {self.line}"


def shown(page: Path) -> list[Shown]:
    """Return the commands of a page: lines in code blocks that begin like one.

    A following code block without a language in the same section is the output of the last command, or a part of it.
    """
    page_commands: list[Shown] = []
    for section in re.split(r"^##+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        last = None
        for language, block in blocks(section):
            lines = [line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]
            commands = [re.sub(r"\s+#.*$", "", line) for line in lines if line.startswith(BEGINNINGS)]
            page_commands += [Shown(page.name, line, None) for line in commands]
            if commands:
                last = len(page_commands) - 1
            # A command may have its output in its own block; text that begins with a plus is an override to add to one.
            answer = block if not commands else "\n".join(lines[1:]) if block.startswith("$ ") else ""
            if answer and not language and last is not None and not answer.startswith("+"):
                before = page_commands[last].output
                page_commands[last] = replace(
                    page_commands[last], output=answer if before is None else f"{before}\n…\n{answer}"
                )
    return page_commands


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Return the unindented code blocks with their languages."""
    inside: list[str] | None = None
    language = ""
    for line in text.splitlines():
        fence = re.match(r"\s*```(\w*)\s*$", line)
        if fence is None:
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside, language = [], fence[1]
        else:
            yield language, textwrap.dedent("\n".join(inside))
            inside = None


COMMANDS = list(dict.fromkeys(each for page in PAGES for each in shown(page)))


def not_run() -> dict[str, str]:
    """Return the commands that the page on tests lists as not run, with the reasons."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    table = page.split("## Commands that no test runs")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", table, re.MULTILINE))


NOT_RUN = not_run()


def excused(line: str) -> str | None:
    """Return why a command is not run, from the entry with whose words it begins."""
    for beginning, why in NOT_RUN.items():
        end = "" if beginning[-1] in " /" else r"(?!\S)"
        if re.match(re.escape(beginning) + end, line):
            return why
    return None


RUN = [each for each in COMMANDS if excused(each.line) is None]

RUNS = {
    "outputs/mine/2026-11-21_01-30-43-685693": (),
    "outputs/mine/2026-11-22_09-12-01-120034": ("arrays.B.spec=[null,y]",),
    "outputs/mine/2026-11-23_18-30-00-512340": ("profile=true",),
}
"""The runs that pages compare, and the overrides of each."""

SHORTER = {
    "python -m benchmarks.fuzz --seconds 600": "python -m benchmarks.fuzz --seconds 5",
    "python -m benchmarks.derived --out": "python -m benchmarks.derived --count 3 --out",
    "python -m benchmarks.derived_bytes": "python -m benchmarks.derived_bytes case3_allreduce fsdp",
}
"""The commands that take minutes, by their beginnings, and what runs instead: a few of the same cases."""

SWEEP = "outputs/case3_allreduce/2026-01-31_12-00-00-000000"


_OF_ITS_OWN = (
    "target.processes", "target.cluster", "target=v", "topology", "hydra/launcher", "runner measure", "benchmarks.",
    "--experiments conf tests",
)  # fmt: skip
"""The commands that start processes which a fork of the server cannot start, import JAX themselves, or need libtpu
exclusively."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which the commands run, with the files that readers of the pages have."""
    for name in ("conf", "tests/goldens"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    shutil.copytree(ROOT / "conf" / "mesh", tmp_path / "my_conf" / "mesh")
    (tmp_path / "my_conf" / "experiment").mkdir()
    text = (ROOT / "conf" / "experiment" / "case3_allreduce.yaml").read_text(encoding="utf-8")
    (tmp_path / "my_conf" / "experiment" / "mine.yaml").write_text(text.replace("case3_allreduce", "mine"))
    for _, block in YAML:
        if block.startswith("name: feedforward\n"):
            (tmp_path / "feedforward.yaml").write_text(block, encoding="utf-8")
    return tmp_path


def make_project(folder: Path) -> None:
    """Make the project of docs/ci.md: its experiment, its test, and its goldens of two series of JAX."""
    code = list(blocks((ROOT / "docs" / "ci.md").read_text(encoding="utf-8")))
    for name in ("conf", "tests"):
        shutil.rmtree(folder / name)
    for name, kind in (("conf/experiment/spectrum.yaml", "yaml"), ("tests/test_step.py", "python")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(next(text for language, text in code if language == kind), encoding="utf-8")
    shutil.copytree(ROOT / "tests" / "two_series", folder / "tests" / "goldens")


def run(folder: Path, line: str) -> Done:
    """Run a command of a page, with its preconditions met."""
    if SWEEP in line or "FOLDER…" in line:
        at = "hydra.sweep.dir=" + SWEEP
        command(folder, "-m", "+experiment=case3_allreduce", "dims.K=8,16", "program=auto", at, limit=600)
        line = line.replace("FOLDER…", SWEEP)
    for each, overrides in RUNS.items():
        if each in line:
            mine = ("--config-dir", "my_conf", "+experiment=mine", "program=constraint", "expect=null")
            command(folder, *mine, *overrides, f"hydra.run.dir={each}", limit=600)
    if line.startswith("make "):
        line = recipe(line.removeprefix("make "))
    for long, short in SHORTER.items():
        if line.startswith(long):
            line = short + line.removeprefix(long)
    if re.search(r"runner[. ]runs", line):
        command(folder, "+experiment=case3_allreduce", "program=auto", limit=600)
    words = shlex.split(line.replace(" FOLDER", " build"))
    if words[0] == "pytest":
        words = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *words[1:]]
    if words[0] in CLUSTERS:
        return in_a_cluster(words, folder)
    assert words[:2] == ["python", "-m"], line
    if any(word in line for word in _OF_ITS_OWN):
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-m", *words[2:]],
            cwd=folder, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return Done(ran.returncode, ran.stdout, ran.stderr, 0.0, 0.0, jax=False, forked=False)
    return command(folder, *words[3:], module=words[2], limit=600)


CLUSTERS = {"srun": of_slurm, "mpirun": of_open_mpi}
"""The variables that a cluster's command sets for each process that it starts, by its name."""


def in_a_cluster(words: list[str], folder: Path) -> Done:
    """Start the processes of an `srun` or `mpirun` on this machine; return how they ended, as one."""
    at = words.index("python")
    flags = dict(re.findall(r"(-n|--nodes|--ntasks-per-node)[ =](\d+)", " ".join(words[:at])))
    count = int(flags.get("-n") or int(flags["--nodes"]) * int(flags["--ntasks-per-node"]))
    port, variables = free_port(), CLUSTERS[words[0]]
    # They share the folder of the run, as on a file system that all machines of a cluster have.
    arguments = (*words[at + 1 :], f"hydra.run.dir={folder / 'run'}")
    members = [started(n, port, *arguments, variables=variables, count=count) for n in range(count)]
    statuses, out, err = zip(*ended(members), strict=True)
    return Done(max(statuses), "".join(out), "".join(err), 0.0, 0.0, jax=False, forked=False)


def recipe(target: str) -> str:
    """Return the command of a target of the Makefile, whose virtual environment is not made."""
    made = ["-o", ".venv/.tests", "-o", ".venv/.installed"]
    done = subprocess.run(["make", "-n", *made, target], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1].replace(".venv/bin/python", "python")


def _sampled(number: int, line: str) -> bool:
    """Return whether a command without output runs in every session; those that need their own processes are slow."""
    return number % SAMPLE == 0 and not any(word in line for word in _OF_ITS_OWN)


def test_every_command_is_run_or_listed_as_not_run() -> None:
    assert len(COMMANDS) >= 35
    assert len(RUN) >= 20
    stale = [beginning for beginning in NOT_RUN if not any(each.line.startswith(beginning) for each in COMMANDS)]
    assert stale == []
    assert all(each.line.startswith(("python -m ", "pytest ", "make ", *CLUSTERS)) for each in RUN)
    stale = [long for long in SHORTER if not any(each.line.startswith(long) for each in RUN)]
    assert stale == []


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "each",
    [
        pytest.param(each, id=each.name, marks=[] if each.output or _sampled(number, each.line) else pytest.mark.whole)
        for number, each in enumerate(RUN)
    ],
)
def test_a_command_of_a_page_does_what_the_page_says(folder: Path, each: Shown) -> None:
    if each.page == "ci.md":
        make_project(folder)
    done = run(folder, each.line)
    output = done.stdout + done.stderr
    # The shown output of a command may be a refusal.
    assert done.returncode in ((0, 1, 2, 3) if each.output else (0, 1)), output
    assert "Traceback" not in output
    # An ellipsis marks an omission; lines are wrapped to the page's width.
    text = flowing(output)
    for part in filter(None, map(flowing, (each.output or "").split("…"))):
        assert part in text, f"{part}\n----\n{output}"


def flowing(text: str) -> str:
    """Return a text on one line without the parts that change between runs."""
    return " ".join(settled(text).split())


FRAGMENTS = {
    "apiVersion: v1": "a Kubernetes manifest; there is no cluster here",
    "# conf/hardware/v5e.yaml": "a file of the group hardware, which tests/test_estimate.py holds to the shipped one",
    "# my_conf/rules/fsdp_tensor.yaml": "a file of the group rules: tests/test_rules.py reads such files",
    "ring:": "lines of per_device, without the section that they are in",
    "arrays: {x: [data], w1: [null, model], w2: [model, null]}": "a layout by hand, which tests/test_plan.py reads",
    "'+hydra.callbacks.own=": "an override, which tests/test_track.py makes",
    "name: sharding": "a workflow of GitHub",
}
"""The YAML blocks that are no part of an experiment, by their beginnings, and why."""

YAML = [
    (page.name, block)
    for page in sorted({ROOT / "README.md", *(ROOT / "docs").glob("*.md")})
    for language, block in blocks(page.read_text(encoding="utf-8"))
    if language == "yaml"
]


def test_every_block_of_yaml_is_a_part_of_an_experiment_or_says_why_not() -> None:
    excused = {begin for begin in FRAGMENTS for _, block in YAML if block.lstrip("\n").startswith(begin)}
    assert excused == set(FRAGMENTS)
    checked = 0
    for page, block in YAML:
        if block.lstrip("\n").startswith(tuple(FRAGMENTS)):
            continue
        content = files.load(block)
        options = files.options(content)
        assert all((ROOT / "conf" / group / f"{option}.yaml").is_file() for group, option in options.items()), block
        content = {key: value for key, value in content.items() if key not in options}
        assert [misfit.fault.message for misfit in shape.misfits(content)] == [], (page, block)
        # Calls of imported functions are read after these are traced.
        for section in () if "imports" in content else ("functions", "both", "graph", "per_device"):
            for text in texts(content.get(section, {})):
                parse(text)
                checked += 1
    assert checked >= 40


def texts(value: object) -> Iterator[str]:
    """Return the expressions in the lines of a section; an ellipsis stands for lines of the reader's."""
    if is_dict(value):
        for name, part in value.items():
            yield from texts(part) if name not in ("of", "checkpoint", "stack", "index") else ()
    elif value != "…":
        yield str(value)


def test_a_line_as_jax_spells_it_is_the_line_beside_it() -> None:
    table = (ROOT / "docs" / "language.md").read_text(encoding="utf-8").split("| in JAX | the same line |")[1]
    rows = re.findall(r"^\| (`.+`) \| `(.+)` \|$", table.split("\n\n")[0], re.MULTILINE)
    assert len(rows) >= 6
    for spelled, line in rows:
        for text in re.findall(r"`([^`]+)`", spelled):
            assert printing.text(parse(text).term) == printing.text(parse(line).term), text


def test_the_number_of_operations_is_what_the_readme_says() -> None:
    from runner.graph.language.operations import OPERATIONS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\[(\d+) operations\]\(docs/operations.md\)", readme) == [str(len(OPERATIONS))]


def test_the_commands_in_the_readme_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        # `python -m benchmarks.` stands for all of them.
        named = re.findall(r"python -m ((?:runner|benchmarks|experiments)(?:\.\w+)*)(?!\.`)", page.read_text("utf-8"))
        for module in named:
            file = ROOT / module.replace(".", "/")
            assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), (page.name, module)
