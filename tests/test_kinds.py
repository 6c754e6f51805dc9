"""A kind of check is one file; registry, flow, record, terminal, page and pytest need no other change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.checks import kinds, registry
from runner.experiment.program import Program
from runner.reports.record import record
from runner.reports.record.verdicts import Checks, NotRun
from runner.reports.show.page import run as page
from tests import harness
from tests.command import ROOT

FILE = '''
from __future__ import annotations

from dataclasses import dataclass

from runner.checks.kind import Case, CheckKind, Needs
from runner.experiment.program import Program
from runner.reports.record.verdicts import Judged, NotRun


@dataclass(frozen=True, kw_only=True)
class SmallVerdict(Judged):
    """`small`: the largest value of any output."""

    largest: float


def check(case: Case) -> SmallVerdict:
    largest = max(float(output.whole().max()) for output in case.run.outputs.values())
    if largest > 100:
        reason = f"there is a value of {largest:g}"
        return SmallVerdict(status="failed", reason=reason, details=["none is above 100"], largest=largest)
    return SmallVerdict(status="passed", note="all are below 100", largest=largest)


KINDS = (
    CheckKind(
        name="small",
        verdict=SmallVerdict | NotRun,
        needs=Needs.VALUES,
        says="no value is above 100",
        order=1000,
        check=check,
        applies=lambda _, program: program is not Program.CONSTRAINT,
    ),
)
'''

EXPERIMENT: dict[str, Any] = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "arrays": {"A": {"shape": [4, 2], "spec": ["x"]}},
    "graph": {"B": "A * 0 + SCALE"},
    "outputs": {"B": ["x"]},
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add one file to the folder of checks, and nothing else."""
    (tmp_path / "small.py").write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    registry.kinds.cache_clear()
    yield
    registry.kinds.cache_clear()
    sys.modules.pop("runner.checks.kinds.small", None)
    kinds.__dict__.pop("small", None)


def run(folder: Path, scale: int, **more: Any) -> Any:
    text = json.dumps(EXPERIMENT).replace("SCALE", str(scale))
    return runner.run({**json.loads(text), **more}, folder=folder)


@pytest.mark.in_turn
@pytest.mark.usefixtures("planted")
def test_a_check_is_one_file(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", 700, program=["auto", "constraint"])
    assert outcome.status == "failed"
    small = outcome.compiled["auto"].checks.small
    assert (small.status, small.reason, small.largest) == ("failed", "there is a value of 700", 700.0)
    assert outcome.compiled["constraint"].checks.small is None
    # The record, and reading it back.
    plain = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert plain["programs"]["auto"]["checks"]["small"]["largest"] == 700.0
    assert runner.read(tmp_path / "run") == outcome
    schema = json.loads(record.schema_text())["$defs"]
    assert {"$ref": "#/$defs/SmallVerdict"} in schema["Checks"]["properties"]["small"]["anyOf"]
    # The terminal.
    head, auto = (line.split() for line in str(outcome).splitlines() if line.startswith(("program ", "auto ")))
    assert auto[head.index("small")] == "failed"
    assert "auto: small failed\n  there is a value of 700\n  none is above 100\n" in str(outcome)
    # The page.
    text = page.page(record.read(tmp_path / "run"), tmp_path / "run")
    assert "<th>small</th>" in text.replace(' scope="col"', "")
    assert "auto: small failed" in text
    assert "| `small` | no value is above 100 |\n" in registry.table()


@pytest.mark.in_turn
@pytest.mark.usefixtures("planted")
def test_a_new_check_is_a_pytest_item_and_waits_for_a_verification(tmp_path: Path) -> None:
    experiment = harness.experiment(json.dumps(EXPERIMENT).replace("SCALE", "2"))
    assert [kind.name for kind in registry.applying(experiment, Program.AUTO)][-1] == "small"
    assert "small" not in [kind.name for kind in registry.applying(experiment, Program.CONSTRAINT)]
    assert "small" in registry.of_values()
    outcome = run(tmp_path / "run", 2, program=["auto"], target={"topology": "v5e:2x2"})
    small = outcome.compiled["auto"].checks.small
    assert isinstance(small, NotRun)
    assert "which is not here" in str(small.reason)


def test_an_unregistered_check_does_not_exist() -> None:
    with pytest.raises(TypeError, match="there is no check small"):
        Checks(small=NotRun(reason="nobody asked"))
    with pytest.raises(AttributeError, match="there is no check small"):
        Checks().small  # noqa: B018


def test_each_check_has_its_row_in_the_documentation() -> None:
    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    assert registry.table() in text


def test_every_kind_of_check_is_in_the_folder_and_has_a_place_of_its_own() -> None:
    files = [path for path in (ROOT / "runner" / "checks").rglob("*.py") if "\nKINDS = " in path.read_text()]
    assert {path.parent.name for path in files} == {"kinds"}
    orders = {kind.order for kind in registry.kinds()}
    assert len(orders) == len(files)
