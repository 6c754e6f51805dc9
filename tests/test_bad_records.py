"""A corrupted record costs only its own point, in every command that reads records.

A session tries a few corruptions; `make faults` tries a thousand.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import Case, Home, cases, real
from runner.app.cli import report, runs
from runner.reports.record import record
from runner.reports.show.page.layered import Name, Size, place
from tests.server import command

EVERY = 4
"""`make faults` tries every case of this stride of two records: more than a thousand."""

SAMPLE = 421
"""The stride of the cases in every session."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    folder = tmp_path_factory.mktemp("records")
    single = command(folder, "+experiment=case3_allreduce", "hydra.run.dir=one")
    assert single.returncode == 0, single.stderr
    two = command(
        folder, "-m", "+experiment=case3_allreduce", "dims.J=4,8", "program=shard_map", "hydra.sweep.dir=sweep"
    )
    assert two.returncode == 0, two.stderr
    return real(folder / "one", folder / "sweep")


def _tried(records: tuple[Any, Any, Any], folder: Path, every: int) -> int:
    first, middle, last = records
    count = 0
    for number, data in enumerate((middle, first)):
        home = Home(folder / str(number), (first, data, last))
        for case in itertools.islice(cases(data, number), number, None, every):
            outcome = home.tried(case)
            assert not outcome.raised, "\n".join(outcome.raised)
            assert not outcome.silent, "\n".join(outcome.silent)
            count += 1
    return count


@pytest.mark.in_turn
def test_a_hostile_record_costs_its_own_point(records: tuple[Any, Any, Any], tmp_path: Path) -> None:
    assert _tried(records, tmp_path, SAMPLE) > 8


@pytest.mark.whole
def test_a_thousand_hostile_records_cost_their_own_points(records: tuple[Any, Any, Any], tmp_path: Path) -> None:
    assert _tried(records, tmp_path, EVERY) > 1000


WRONG = {
    "NaN": ('"time": "', '"more": NaN, "time": "', "not valid JSON: it has no NaN"),
    "1e999": ('"time": "', '"more": 1e999, "time": "', "not valid JSON: 1e999 is beyond float64"),
    "deep": ('"time": "', '"more": ' + "[" * 100_000 + "]" * 100_000 + ', "time": "', "it is nested too deeply"),
    "digits": ('"time": "', '"more": ' + "9" * 5000 + ', "time": "', "an integer of 5000 digits"),
    "mesh": ('"axes": ["x", "y"]', '"axes": ["x", "y", "z"]', "mesh has 3 axes and 2 sizes"),
    "no key": ('"summary": ', '"sumary": ', "it has no 'summary'"),
    "program": ('"timing": ', '"timeing": ', "programs.shard_map has no 'timing'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_command_names_the_file_and_the_fault(
    records: tuple[Any, Any, Any], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, words = WRONG[name]
    text = json.dumps(records[0])
    assert old in text
    home = Home(tmp_path, (records[0], records[0], records[2]))
    assert not home.tried(Case(name, text.replace(old, new, 1))).raised
    with pytest.raises(record.UnreadableRecord, match=r"1/result\.json\n  .*") as error:
        record.read(tmp_path / "sweep" / "1")
    assert words in str(error.value)
    assert report.main([str(tmp_path / "sweep")]) == 0
    assert f"{tmp_path}/sweep/1/result.json\n  " in capsys.readouterr().err
    page = (tmp_path / "sweep" / "report.html").read_text("utf-8")
    assert "0/report.html" in page
    assert "2/report.html" in page
    runs.main([str(tmp_path / "sweep")])
    assert words in capsys.readouterr().err


@pytest.mark.in_turn
def test_a_written_record_is_read(records: tuple[Any, Any, Any], tmp_path: Path) -> None:
    home = Home(tmp_path, records)
    for data in records:
        outcome = home.tried(Case("as it is", json.dumps(data)))
        assert not outcome.unreadable
        assert not outcome.raised


def test_lines_that_read_each_other_or_nothing_that_is_there_are_drawn(
    records: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    for number, reads in enumerate((["C"], ["nowhere"], ["C", "A", "C/body/x"], [""])):
        data = json.loads(json.dumps(records[0]))
        for line in data["lines"]["graph"]:
            line["reads"] = reads
        home = Home(tmp_path / str(number), (records[0], data, records[2]))
        outcome = home.tried(Case("reads", json.dumps(data)))
        assert not outcome.raised, outcome.raised


def test_boxes_in_a_circle_are_placed() -> None:
    sizes: dict[Name, Size] = dict.fromkeys("abcd", (10.0, 10.0))
    placed = place(
        sizes, [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "nowhere"), ("nowhere", "a"), ("a", "a")]
    )
    assert placed.corners.keys() == sizes.keys()
    assert ("a", "a") not in placed.paths
