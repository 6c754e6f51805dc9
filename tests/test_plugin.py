"""Experiments as pytest items: whole sessions of pytest, in temporary folders."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from runner.base import codec
from runner.reports.record import golden
from runner.reports.record.model import Record
from runner.reports.record.record import started
from runner.reports.record.verdicts import FileChecks, NotRun, SectionsVerdict, Verdict
from tests.command import ROOT
from tests.evidence import CHECKS, as_json, collective, died, on, output, program, record, value
from tests.server import command

MINE = """\
# @package _global_
defaults:
  - override /mesh: x2
name: mine
summary: A matmul whose contracting dimension is sharded.
arrays:
  A: {shape: [4, 8], init: "arange(32)", spec: [null, x]}
  B: {shape: [8, 4], init: "arange(32)", spec: [x, null]}
graph:
  C: A @ B
per_device:
  partial: A @ B
  C: psum(partial, 'x')
outputs:
  C: [null, null]
"""

FAKE = """\
import json
from pathlib import Path
from runner.base import codec
from runner.app.flow import run
from runner.reports.record.model import Record

def replayed(config, folder, sources, workers=None):
    # The records in records.json that replace runs, by experiment and target.
    with open("runs.txt", "a") as runs:
        runs.write(config["name"] + "\\n")
    target = next((o.split("=")[1] for o in sources.overrides if o.startswith("target=")), "cpu")
    return codec.build(Record, json.loads(Path("records.json").read_text())[config["name"]][target])

run.run = replayed
"""
"""A conftest.py whose sessions use a test's records instead of running JAX."""


# The entry point is there where the project is installed as it stands; a test must not depend on that.
_INSTALLED = any(point.name == "shardproof" for point in entry_points(group="pytest11"))
PLUGIN = () if _INSTALLED else ("-p", "runner.app.testing.plugin")


class Project:
    """A user's folder: `my_conf/experiment/`, goldens, and optionally records that replace the runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.goldens = folder / "goldens"
        self.write("my_conf/experiment/mine.yaml", MINE)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def tell(self, name: str = "mine", target: str = "cpu", **more: Any) -> None:
        """Make the run of an experiment return this record."""
        self.write("conftest.py", FAKE)
        file = self.folder / "records.json"
        records = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        records.setdefault(name, {})[target] = as_json(record(**{"programs": COMPILED, **more}))
        file.write_text(json.dumps(records), encoding="utf-8")

    def pytest(self, *arguments: str, status: int | None = None, folder: str = ".") -> str:
        """Return the output of a session from a folder of the project; `status` is its expected exit status."""
        done = command(
            self.folder / folder, *PLUGIN, "-p", "no:cacheprovider", *arguments, module="pytest", COLUMNS="200"
        )
        printed = done.stdout + done.stderr
        assert status is None or done.returncode == status, printed
        return printed

    def process(self, *arguments: str) -> str:
        """Return the output of a passing session in a process that was started and not forked."""
        result = subprocess.run(
            [sys.executable, "-W", "error", "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def pin(self) -> None:
        """Write goldens that match the records."""
        for name, targets in json.loads((self.folder / "records.json").read_text(encoding="utf-8")).items():
            for target, plain in targets.items():
                run_record = codec.build(Record, plain)
                for program_name, result in run_record.programs.items():
                    place = (golden.series(run_record.environment.jax or ""), target, program_name)
                    golden.pin(self.goldens / f"{name}.json", place, golden.pinned(result))

    def golden(self, name: str = "mine") -> golden.Goldens:
        """Return the content of a golden file."""
        return golden.read(self.goldens / f"{name}.json")


COMPILED = {
    "auto": program(collective(inserted=True)),
    "constraint": program(collective(inserted=True)),
    "explicit": program(collective()),
    "derived": program(collective(), checks=CHECKS.but(derivation=Verdict(status="passed"))),
    "shard_map": program(collective()),
    "vmap": program(outputs={"C": output(spec=None)}),
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def recorded(project: Project) -> Project:
    """Return a project whose experiment has the record `FOUND`, with matching goldens."""
    project.tell()
    project.pin()
    return project


# Goldens of real runs.


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Project]:
    """Return a project with goldens from repeated real runs."""
    first = Project(tmp_path_factory.mktemp("ran"))
    first.write("my_conf/experiment/mine.yaml", MINE + "check_vma: false\n")
    first.write("my_conf/experiment/steered.yaml", STEERED)
    missing = first.pytest("--experiments", "my_conf", status=1)
    assert len(re.findall(r"^there was no golden of \w+, so it was written", missing, re.MULTILINE)) == 10
    first.pytest("--experiments", "my_conf", status=0)

    def copy(folder: Path) -> Project:
        project = Project(folder)
        for file in first.folder.rglob("*.*"):
            if file.suffix in (".yaml", ".json"):
                project.write(str(file.relative_to(first.folder)), file.read_text(encoding="utf-8"))
        return project

    return copy


STEERED = """\
# @package _global_
defaults:
  - override /mesh: x2
name: steered
summary: Where the value in the middle lies decides what is communicated.
arrays:
  x: {shape: [8, 8], init: "normal", spec: [x, null]}
  w: {shape: [8, 8], init: "normal", spec: []}
graph:
  h: sin(x)
  y: h @ w
constraints:
  h: [x, null]
outputs:
  y: [x, null]
"""


LOST = """\
# @package _global_
defaults:
  - override /mesh: x2
name: {name}
summary: Most digits are lost to rounding.
arrays:
  x: {{shape: [8, 6], init: "uniform(0.5, 1)", spec: [x, null]}}
graph:
  out: (x + 1e6) - 1e6
outputs:
  out: [x, null]
program: auto
verify: {verify}
"""


@pytest.mark.in_turn
def test_twins_decide_in_a_session_too(project: Project) -> None:
    for verify in ("auto", "rounding"):
        project.write(f"my_conf/experiment/{verify}.yaml", LOST.format(name=verify, verify=verify))
    items = [f"my_conf/experiment/{verify}.yaml::auto::value" for verify in ("auto", "rounding")]
    printed = project.pytest(*items, status=1)
    assert re.search(r"1 failed, 1 passed", printed)
    assert re.search(r"FAILED my_conf/experiment/rounding.yaml::auto::value", printed)
    assert "auto: value is weak" in printed


def test_a_psum_that_was_removed_is_named(ran: Callable[[Path], Project], tmp_path: Path) -> None:
    project = ran(tmp_path)
    project.write(
        "my_conf/experiment/mine.yaml", MINE.replace("psum(partial, 'x')", "partial + 0") + "check_vma: false\n"
    )
    printed = project.pytest("my_conf/experiment/mine.yaml", status=1)
    assert "FAILED my_conf/experiment/mine.yaml::sections" in printed
    assert "a psum over 'x' is left out: with per_device.C: psum(partial, 'x') + 0 it equals the graph" in printed
    assert "to run it: python -m runner --config-dir my_conf +experiment=mine program=shard_map" in printed
    assert "FAILED my_conf/experiment/mine.yaml::shard_map::golden" in printed
    assert "all-reduce of C over x disappeared from shard_map: -64 B sent per device" in printed


def test_an_all_gather_that_a_changed_constraint_forces_is_named(
    ran: Callable[[Path], Project], tmp_path: Path
) -> None:
    project = ran(tmp_path)
    project.write("my_conf/experiment/steered.yaml", STEERED.replace("h: [x, null]", "h: [null, null]"))
    printed = project.pytest("my_conf/experiment/steered.yaml")
    assert "FAILED my_conf/experiment/steered.yaml::constraint::golden" in printed
    appeared = "all-gather of x for h over x appeared in constraint: +128 B sent per device, inserted by the compiler"
    assert f"  {appeared}\n" in printed


def test_a_golden_that_was_doctored_is_named(ran: Callable[[Path], Project], tmp_path: Path) -> None:
    project = ran(tmp_path)
    file = project.goldens / "steered.json"
    text = file.read_text(encoding="utf-8")
    assert '"spec": ["x", null]' in text
    file.write_text(text.replace('"spec": ["x", null]', '"spec": [null, "x"]', 1), encoding="utf-8")
    printed = project.pytest("my_conf/experiment/steered.yaml", status=1)
    assert "auto is not what goldens/steered.json (jax " in printed
    assert "  output y of auto: spec P(None, 'x') → P('x', None)\n" in printed
    assert "pytest my_conf/experiment/steered.yaml::auto::golden --update-golden" in printed
    assert "Traceback" not in printed
    kept = Path(re.findall(r"run folder: (\S+)", printed)[0])
    assert (kept / "result.json").is_file()
    assert (kept / "program_auto.py").is_file()


# The same with synthetic records.


def test_a_collective_that_disappeared_is_named(recorded: Project) -> None:
    recorded.tell(programs={**COMPILED, "shard_map": program()})
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert re.findall(r"^FAILED (\S+)", printed, re.MULTILINE) == ["my_conf/experiment/mine.yaml::shard_map::golden"]
    assert "shard_map is not what goldens/mine.json (jax 0.10 on cpu) pins:\n" in printed
    assert "\n  all-reduce of C over x disappeared from shard_map: -64 B sent per device\n" in printed


def test_a_collective_that_appeared_is_named(recorded: Project) -> None:
    gather = collective("all-gather", "w", bytes_out=2097152, bytes_sent=1048576, inserted=True)
    recorded.tell(programs={**COMPILED, "constraint": program(collective(inserted=True), gather)})
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert re.findall(r"^FAILED (\S+)", printed, re.MULTILINE) == ["my_conf/experiment/mine.yaml::constraint::golden"]
    assert (
        "\n  all-gather of w over x appeared in constraint: +1.0 MB sent per device, inserted by the compiler\n"
        in printed
    )


def test_an_invalid_golden_is_named(recorded: Project) -> None:
    (recorded.goldens / "mine.json").write_text('{"jax 0.10": 1}')
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert "goldens/mine.json  'jax 0.10' is not a mapping of targets; restore the file" in printed


def test_ids_name_the_file_the_program_and_the_check(project: Project) -> None:
    printed = project.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    lines = [line for line in printed.splitlines() if "::" in line]
    programs = ("auto", "constraint", "explicit", "derived", "shard_map", "vmap")
    checks = ("value", "layout", "replicas", "agreement", "golden")
    assert lines == [
        "my_conf/experiment/mine.yaml::sections",
        *(
            f"my_conf/experiment/mine.yaml::{p}::{c}"
            for p in programs
            for c in (*checks[:-1], *(["derivation"] if p == "derived" else []), checks[-1])
        ),
    ]


def test_the_gradient_and_the_expectations_are_items(project: Project) -> None:
    project.write(
        "my_conf/experiment/mine.yaml",
        MINE.replace("graph:\n  C: A @ B\n", "graph:\n  C: sum(A @ B)\n").split("per_device")[0]
        + "outputs:\n  C: []\ngrad: {of: C, wrt: A}\nexpect:\n  values: {C: 1}\nprogram: auto\n",
    )
    printed = project.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    checks = re.findall(r"mine\.yaml::auto::(\w+)", printed)
    assert checks == ["value", "layout", "replicas", "agreement", "gradient", "values", "golden"]


@pytest.mark.in_turn
def test_an_argument_that_is_a_folder_of_experiments_is_collected(project: Project) -> None:
    printed = project.pytest("my_conf/experiment/mine.yaml::shard_map::value", "--collect-only", "-q", status=0)
    assert "my_conf/experiment/mine.yaml::shard_map::value\n" in printed
    assert "1 test collected" in printed
    assert project.pytest("my_conf/experiment", "--collect-only", "-q", status=0).count("mine.yaml::") == 32


@pytest.mark.whole
def test_no_other_yaml_file_is_collected(project: Project) -> None:
    project.write("tests/experiment/data.yaml", "a: [1, 2")
    project.write("other/experiment/model.yaml", "# @package _global_\nlr: 0.1\n")
    for arguments in ((), (".",), ("tests/experiment",), ("other/experiment",), ("my_conf",)):
        assert "no tests collected" in project.pytest(*arguments, "--collect-only", "-q", status=5), arguments


@pytest.mark.in_turn
def test_experiments_on_the_command_line_run_alone_and_in_addopts_by_default(
    project: Project,
) -> None:
    project.write("tests/test_own.py", "def test_own(): pass\n")
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
    alone = project.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    assert "test_own" not in alone
    assert "mine.yaml" in alone
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\naddopts = --experiments my_conf/experiment\n")
    both = project.pytest("--collect-only", "-q", status=0)
    assert "test_own" in both
    assert "mine.yaml" in both
    named = project.pytest("tests/test_own.py", "--collect-only", "-q", status=0)
    assert "test_own" in named
    assert "mine.yaml" not in named
    # Paths in a project's configuration are relative to the project.
    below = project.pytest("--rootdir", "..", "-c", "../pytest.ini", "--collect-only", "-q", folder="tests", status=0)
    assert "mine.yaml" in below


@pytest.mark.parametrize(("named", "status"), [("loose", 5), ("loose/mine.yaml", 4)])
def test_an_experiment_outside_a_folder_experiment_is_not_passed_over_silently(
    project: Project, named: str, status: int
) -> None:
    project.write("loose/mine.yaml", MINE)
    assert (
        "loose/mine.yaml is not in a folder called experiment, so it is not collected: move it to "
        "loose/experiment/mine.yaml, or run it with python -m runner loose/mine.yaml"
    ) in project.pytest(named, status=status)


def test_collecting_imports_no_jax(project: Project) -> None:
    project.write(
        "conftest.py",
        "import sys\ndef pytest_collection_finish():\n"
        "    loaded = [m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')]\n"
        "    print('loaded:', loaded, 'hydra' in sys.modules)\n",
    )
    printed = project.pytest("--experiments", "my_conf", "--collect-only", "-q", "-s", status=0)
    assert "loaded: [] True" in printed


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINE.replace("[null, x]", "[null, z]"), "mine.yaml:7:55  arrays.A.spec[1]\n  mesh axis 'z' does not exist"),
        (MINE.replace("graph:", "grahp:"), "mine.yaml:9:1  grahp\n  there is no key 'grahp'; did you mean 'graph'?"),
        (MINE.replace("x2", "nosuch"), "mine.yaml:3:21\n  no mesh 'nosuch'; there are"),
        (MINE.replace("[null, x]", "[null, x"), "not YAML: "),
        (MINE.replace("arange(32)", "randint(9)"), "mine.yaml:7:28  arrays.A.init\n  no function 'randint' in an init"),
        (MINE + "test: {targets: [gpus]}\n", "no target 'gpus'; did you mean 'gpu'?"),
        (MINE + "test: {targets: []}\n", "test.targets\n  there is no target to test; the default is [cpu]"),
        (MINE + "test: {targets: [cpu, cpu]}\n", "the target 'cpu' appears twice"),
        (MINE + "test: {targets: [no]}\n", "False is not the name of a target; YAML reads yes, no"),
        (MINE + "test: {target: [cpu]}\n", "there is no key 'target'; did you mean 'targets'?"),
    ],
)
def test_a_file_that_is_wrong_is_one_message(project: Project, text: str, message: str) -> None:
    project.write("my_conf/experiment/mine.yaml", text)
    printed = project.pytest("--experiments", "my_conf", "--collect-only", status=2)
    assert message in printed
    assert "Traceback" not in printed
    assert "runner/" not in printed


@pytest.mark.in_turn
def test_a_file_that_is_only_a_base_of_others_has_no_items(project: Project) -> None:
    base, own = MINE.replace("name: mine\n", ""), "# @package _global_\ndefaults: [base, _self_]\nname: mine\n"
    project.write("my_conf/experiment/base.yaml", base)
    project.write("my_conf/experiment/mine.yaml", own)
    printed = project.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    assert printed.count("mine.yaml::") == 32
    assert "base.yaml" not in printed
    project.write("my_conf/experiment/mine.yaml", MINE)
    alone = project.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    assert alone.count("base.yaml::") == alone.count("mine.yaml::") == 32


def test_an_experiment_hidden_by_a_shipped_one_is_refused(project: Project) -> None:
    project.write("my_conf/experiment/layer.yaml", MINE)
    printed = project.pytest("--experiments", "my_conf", "--collect-only", status=2)
    assert "shardproof has an experiment 'layer', which hides this one; give the file another name" in printed


def test_two_experiments_with_one_golden_file_are_refused(project: Project) -> None:
    project.write("other/experiment/mine.yaml", MINE)
    printed = project.pytest("--experiments", "my_conf", "--experiments", "other", "--collect-only", status=2)
    assert "my_conf/experiment/mine.yaml has its goldens in the same file, goldens/mine.json" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--experiments", "nosuch"), "nosuch is not a folder; it takes a folder that holds experiment/NAME.yaml"),
        (("--experiments", "."), "has no folder 'experiment'; it takes a folder that holds experiment/NAME.yaml"),
        (("--experiments", "my_conf", "--targets", "cpu,gpus"), "--targets: no target 'gpus'; did you mean 'gpu'?"),
    ],
)
def test_a_wrong_option_is_one_message(project: Project, arguments: tuple[str, ...], message: str) -> None:
    printed = project.pytest(*arguments, status=4)
    assert message in printed
    assert "Traceback" not in printed


@pytest.mark.in_turn
def test_a_missing_golden_fails_once_and_is_written(project: Project) -> None:
    project.tell()
    printed = project.pytest("--experiments", "my_conf", status=1)
    assert len(re.findall(r"^FAILED .*::golden", printed, re.MULTILINE)) == 6
    assert (
        "there was no golden of vmap, so it was written: look at goldens/mine.json (jax 0.10 on cpu) and commit it"
        in printed
    )
    assert project.golden()["jax 0.10"]["cpu"]["shard_map"] == golden.pinned(COMPILED["shard_map"])
    project.pytest("--experiments", "my_conf", status=0)


@pytest.mark.in_turn
def test_a_program_that_fails_its_checks_is_not_pinned(project: Project) -> None:
    wrong = program(status="failed", checks=CHECKS.but(value=value(status="failed", reason="so")))
    project.tell(programs={**COMPILED, "auto": wrong}, status="failed")
    for arguments in ((), ("--update-golden",)):
        printed = project.pytest("--experiments", "my_conf", *arguments, status=1)
        assert "auto is not pinned in goldens/mine.json (jax 0.10 on cpu) while its value failed" in printed
        assert "auto: value failed\n  so\n" in printed
        assert "auto" not in project.golden()["jax 0.10"]["cpu"]


@pytest.mark.in_turn
def test_update_rewrites_and_prints_what_changed(recorded: Project) -> None:
    before = (recorded.goldens / "mine.json").read_text()
    recorded.tell(environment=on("0.12.0.1"))
    recorded.pytest("--experiments", "my_conf", "--update-golden", status=0)
    recorded.tell(programs={**COMPILED, "shard_map": program()})
    printed = recorded.pytest("--experiments", "my_conf", "--update-golden", status=0)
    assert " goldens ===" in printed
    expected = (
        "updated: goldens/mine.json (jax 0.10 on cpu)\n"
        "  all-reduce of C over x disappeared from shard_map: -64 B sent per device\n"
    )
    assert expected in printed
    assert printed.count("updated:") == 1
    content = recorded.golden()
    assert content["jax 0.10"]["cpu"]["shard_map"]["collectives"] == []
    assert content["jax 0.12"]["cpu"] == json.loads(before)["jax 0.10"]["cpu"]
    recorded.pytest("--experiments", "my_conf", status=0)


@pytest.mark.in_turn
def test_unused_goldens_are_reported(recorded: Project) -> None:
    from importlib.metadata import version

    current = golden.series(version("jax"))
    other = "jax 0.10" if current != "jax 0.10" else "jax 0.12"
    recorded.tell(environment=on(version("jax")))
    recorded.pin()
    for place in ((current, "cpu", "pmap"), (current, "v4", "auto"), (other, "v4", "auto")):
        golden.pin(recorded.goldens / "mine.json", place, golden.pinned(program()))
    golden.pin(recorded.goldens / "gone.json", (current, "cpu", "auto"), golden.pinned(program()))
    # That of a test with the fixture `sharded`, which this session does not collect.
    golden.pin(recorded.goldens / "test_mine" / "test_product.json", (current, "cpu", "auto"), golden.pinned(program()))
    unused = [
        f"unused: goldens/mine.json ({current} on cpu) pins pmap, which my_conf/experiment/mine.yaml does not test",
        f"unused: goldens/mine.json ({current} on v4) pins auto, which my_conf/experiment/mine.yaml does not test",
        "unused: goldens/gone.json; there is no experiment gone",
    ]
    printed = recorded.pytest("--experiments", "my_conf", status=0)
    assert [line for line in printed.splitlines() if line.startswith("unused")] == unused
    assert recorded.pytest("--experiments", "my_conf", "-n", "2", status=0).count("unused: ") == 3
    # A run of a part of the folder does not concern the rest.
    recorded.write("my_conf/experiment/second.yaml", MINE.replace("name: mine", "name: second"))
    assert recorded.pytest("my_conf/experiment/mine.yaml::auto", status=0).count("unused: ") == 2


def test_the_goldens_of_other_config_folders_are_not_reported(recorded: Project) -> None:
    recorded.write("other/experiment/theirs.yaml", MINE)
    golden.pin(recorded.goldens / "theirs.json", ("jax 0.10", "cpu", "auto"), golden.pinned(program()))
    assert "unused" not in recorded.pytest("--experiments", "my_conf", status=0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dist", ["load", "loadgroup", "loadscope"])
def test_an_experiment_is_run_once_also_by_several_workers(recorded: Project, dist: str) -> None:
    for name in ("second", "third"):
        recorded.write(f"my_conf/experiment/{name}.yaml", MINE.replace("name: mine", f"name: {name}"))
        recorded.tell(name)
    printed = recorded.pytest("--experiments", "my_conf", "-n", "2", "--dist", dist, "--update-golden", status=0)
    assert "96 passed" in printed
    assert sorted((recorded.folder / "runs.txt").read_text().split()) == ["mine", "second", "third"]
    assert sorted(path.name for path in recorded.goldens.iterdir()) == ["mine.json", "second.json", "third.json"]


@pytest.mark.whole
def test_other_targets_have_ids_and_goldens_of_their_own(recorded: Project) -> None:
    recorded.write("my_conf/target/my_tpu.yaml", "platform: tpu\n")
    recorded.tell(target="my_tpu", programs={**COMPILED, "shard_map": program()})
    printed = recorded.pytest("--experiments", "my_conf", "--targets", "cpu,my_tpu", status=1)
    failed = re.findall(r"^FAILED (\S+)", printed, re.MULTILINE)
    programs = ("auto", "constraint", "explicit", "derived", "shard_map", "vmap")
    assert failed == [f"my_conf/experiment/mine.yaml::my_tpu::{p}::golden" for p in programs]
    assert "python -m runner --config-dir my_conf +experiment=mine target=my_tpu program=auto" in printed
    assert sorted(recorded.golden()["jax 0.10"]) == ["cpu", "my_tpu"]
    recorded.write("my_conf/experiment/mine.yaml", MINE + "test: {targets: [cpu, my_tpu]}\n")
    assert "64 passed" in recorded.pytest("--experiments", "my_conf", status=0)
    listed = recorded.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    assert "my_conf/experiment/mine.yaml::my_tpu::sections\n" in listed


@pytest.mark.in_turn
def test_an_unsupported_program_is_skipped_unless_a_golden_exists(recorded: Project) -> None:
    without = {name: result for name, result in COMPILED.items() if name != "vmap"}
    recorded.tell(programs=without, not_supported={"vmap": "no axis_index_groups (JAX 0.10.2)"})
    printed = recorded.pytest("--experiments", "my_conf", "-rs", status=1)
    assert "JAX cannot express vmap: no axis_index_groups (JAX 0.10.2)\n  but goldens/mine.json" in printed
    updated = recorded.pytest("--experiments", "my_conf", "--update-golden", "-k", "golden", status=0)
    assert "  vmap is not pinned any more: JAX cannot express it" in updated
    after = recorded.pytest("--experiments", "my_conf", "-rs", status=0)
    assert re.search(r"SKIPPED \[5\] .* no axis_index_groups \(JAX 0\.10\.2\)", after)


@pytest.mark.in_turn
def test_a_check_that_was_not_run_is_skipped_with_its_reason(recorded: Project) -> None:
    checks = CHECKS.but(layout=NotRun(reason="vmap runs on one device"))
    result = program(outputs={"C": output(spec=None)}, checks=checks)
    recorded.tell(programs={**COMPILED, "vmap": result})
    printed = recorded.pytest("--experiments", "my_conf", "-rs", status=0)
    assert re.search(r"SKIPPED \[1\] .* vmap runs on one device", printed)
    recorded.tell(programs={**COMPILED, "vmap": result}, status="error", error="the process was ended by SIGKILL")
    printed = recorded.pytest("--experiments", "my_conf", "-rs", status=1)
    assert "vmap: layout was not run, since the run ended: the process was ended by SIGKILL" in printed
    assert "SKIPPED" not in printed


@pytest.mark.in_turn
def test_sections_that_differ_fail_an_item_of_their_own(recorded: Project) -> None:
    diagnosis, reason = ["a psum is left out"], "C is not graph's"
    differ = SectionsVerdict(status="failed", diagnosis=diagnosis, reason=reason, outputs={})
    recorded.tell(checks=FileChecks(sections=differ), status="failed")
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert re.findall(r"^FAILED (\S+)", printed, re.MULTILINE) == ["my_conf/experiment/mine.yaml::sections"]
    assert "\nmine: sections failed\n  a psum is left out\n  C is not graph's\nrun folder: " in printed
    assert re.search(r"^to run it: python -m runner --config-dir my_conf \+experiment=mine$", printed, re.MULTILINE)
    programs = {**COMPILED, "shard_map": replace(COMPILED["shard_map"], status="failed")}
    recorded.tell(programs=programs, checks=FileChecks(sections=differ), status="failed")
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    failed = re.findall(r"^FAILED \S+yaml::(\S+)", printed, re.MULTILINE)
    assert failed == ["sections", "shard_map::value"]
    own = "shard_map: it computes what per_device says, but sections failed"
    assert f"\n{own}\n  a psum is left out\n  C is not graph's\n" in printed
    recorded.tell(checks=FileChecks())
    assert "the record has no check 'sections' of mine" in recorded.pytest("--experiments", "my_conf", status=1)
    recorded.tell(checks=FileChecks(sections=NotRun(reason="not here")))
    assert re.search(r"SKIPPED \[1\] .* not here", recorded.pytest("--experiments", "my_conf", "-rs", status=0))


def test_a_single_section_has_no_sections_item(project: Project) -> None:
    project.write("my_conf/experiment/mine.yaml", re.sub(r"per_device:.*?(?=outputs)", "", MINE, flags=re.DOTALL))
    printed = project.pytest("--experiments", "my_conf", "--collect-only", "-q", status=0)
    assert "sections" not in printed
    assert "mine.yaml::auto::value" in printed


def checked(status: str, reason: str) -> Any:
    """Return the `vmap` of `FOUND` with this status of the check `value`."""
    return replace(COMPILED["vmap"], status=status, checks=CHECKS.but(value=value(status=status, reason=reason)))


@pytest.mark.in_turn
def test_a_weak_check_fails_and_is_not_pinned(recorded: Project) -> None:
    recorded.tell(programs={**COMPILED, "vmap": checked("weak", "C: it would not notice 20 %")}, status="weak")
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert re.findall(r"^FAILED (\S+)", printed, re.MULTILINE) == ["my_conf/experiment/mine.yaml::vmap::value"]
    assert "\nvmap: value is weak\n  C: it would not notice 20 %\n" in printed
    (recorded.goldens / "mine.json").unlink()
    printed = recorded.pytest("--experiments", "my_conf", "--update-golden", status=1)
    assert "vmap is not pinned in goldens/mine.json (jax 0.10 on cpu) while its value is weak" in printed
    assert "vmap" not in recorded.golden()["jax 0.10"]["cpu"]


def test_a_known_wrong_output_is_an_xfail(recorded: Project) -> None:
    recorded.tell(programs={**COMPILED, "vmap": checked("known", "C is wrong")}, status="known")
    printed = recorded.pytest("--experiments", "my_conf", "-rx", status=0)
    assert "31 passed, 1 xfailed" in printed
    assert "XFAIL my_conf/experiment/mine.yaml::vmap::value - failed, as expect.wrong says; C is wrong" in printed


def test_a_check_that_the_record_lacks_fails(recorded: Project) -> None:
    result = program(collective(), checks=CHECKS.but(replicas=None))
    recorded.tell(programs={**COMPILED, "shard_map": result})
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert "the record has no check 'replicas' of shard_map" in printed


@pytest.mark.in_turn
def test_a_program_or_worker_that_died_fails_with_its_last_output(recorded: Project) -> None:
    recorded.tell(programs={**COMPILED, "auto": died("the process was ended by SIGABRT")}, status="error")
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert "auto: the process was ended by SIGABRT\n" in printed
    early = started("mine", ())
    error = "the process ended with status 1"
    recorded.tell(programs={}, checks=early.checks, status="error", error=error, environment=early.environment)
    printed = recorded.pytest("--experiments", "my_conf", status=1)
    assert printed.count("\nthe process ended with status 1\n") == 32
    assert "Traceback" not in printed


@pytest.mark.in_turn
def test_smaller_dims_are_what_is_run_and_pinned(project: Project) -> None:
    text = MINE.replace("arrays:", "dims: {K: 65536}\nverify_dims: {K: K // 8192}\narrays:")
    text = text.replace("[4, 8]", "[4, K]").replace("[8, 4]", "[K, 4]").replace("arange(32)", "arange(4 * K)")
    project.write("my_conf/experiment/mine.yaml", text)
    printed = project.pytest("--experiments", "my_conf", status=1)
    assert "+experiment=mine dims.K=8 '~verify_dims' program=auto" in printed
    (series,) = project.golden().values()
    assert series["cpu"]["auto"]["dims"] == {"K": 8}
    assert series["cpu"]["auto"]["bytes"]["argument"] == 128


def test_the_folder_of_the_goldens_can_be_chosen(project: Project) -> None:
    project.tell()
    project.write("pytest.ini", "[pytest]\nshardproof_goldens = pinned/here\n")
    project.pytest("--experiments", "my_conf", "--update-golden", status=0)
    assert (project.folder / "pinned" / "here" / "mine.json").is_file()
    assert not project.goldens.exists()


@pytest.mark.in_turn
def test_run_folders_of_passed_items_are_removed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = project.folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    project.tell()
    project.pin()
    project.process("--experiments", "my_conf")
    assert list(scratch.iterdir()) == []


@pytest.mark.in_turn
def test_the_next_session_removes_files_of_a_killed_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = project.folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    project.tell()
    project.pin()
    # The run folder of a failure is kept for inspection; one of a running session is in use.
    for name in ("abandoned", "failed", "used", "new", "unmarked"):
        folder = scratch / f"shardproof-run-{name}"
        (folder / "run").mkdir(parents=True)
        if name != "unmarked":
            state = folder.stat()
            (folder / ".shardproof-scratch").write_text(f"{state.st_dev}:{state.st_ino}", "ascii")
        if name != "new":
            os.utime(folder, (1, 1))
    (scratch / "shardproof-run-failed" / ".kept").touch()
    os.utime(scratch / "shardproof-run-failed", (1, 1))
    (scratch / "shardproof-run-link").symlink_to(project.folder)
    (scratch / "shardproof-of-somebody-else").mkdir()
    used = os.open(scratch / "shardproof-run-used", os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_EX)
    project.process("--experiments", "my_conf")
    os.close(used)
    left = {path.name for path in scratch.iterdir()}
    assert left == {f"shardproof-run-{name}" for name in ("failed", "used", "new", "unmarked", "link")} | {
        "shardproof-of-somebody-else"
    }


@pytest.mark.in_turn
def test_without_experiments_the_plugin_changes_nothing(project: Project) -> None:
    project.write("test_own.py", "def test_own(): pass\n")
    printed = project.pytest("test_own.py", "-n", "2", status=0)
    assert "1 passed" in printed
    assert "goldens" not in printed
    project.write(
        "conftest.py",
        "import sys\ndef pytest_unconfigure():\n"
        "    print('loaded:', sorted(m for m in sys.modules if m.split('.')[0] in ('runner', 'numpy')))\n",
    )
    # Hydra has a plugin of its own.
    printed = project.process("test_own.py", "-s", "-p", "no:hydra_pytest")
    ours = (
        "app", "app.fixtures", "app.testing", "app.testing.plugin", "app.testing.session", "base", "base.faults",
        "base.lazy", "experiment", "experiment.config", "experiment.config.folders", "version",
    )  # fmt: skip
    assert f"loaded: {['runner', *(f'runner.{name}' for name in ours)]}" in printed
