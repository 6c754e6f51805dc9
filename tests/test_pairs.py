"""`benchmarks.pairs`: its cases, and its report."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pairs

CASE = {"experiment": "case3_allreduce", "target": "cpu", "program": "all", "option": "none", "mode": "run"}


def ended(number: int, status: int, **more: Any) -> dict[str, Any]:
    """Return a finished case, as a line of `pairs.jsonl`."""
    line = f"python -m runner number={number}"
    plain = {"why": None, "failed": [], "refused": None}
    return {"case": CASE, "commands": [line], "statuses": [status], "seconds": 1.0, "cpu": 1.0, **plain, **more}


def test_every_two_values_of_target_program_option_and_mode_share_a_case() -> None:
    cases = list(itertools.islice(pairs.cases(0), 320))
    covered = {pair for case in cases for pair in itertools.combinations(case.items(), 2)}
    for (first, ours), (second, theirs) in itertools.combinations(list(pairs.values().items())[1:], 2):
        assert [
            pair for pair in itertools.product(ours, theirs) if ((first, pair[0]), (second, pair[1])) not in covered
        ] == []


def test_an_error_is_printed_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert pairs.report([ended(0, 0), ended(1, 3, why="the worker was ended by SIGSEGV")]) == 1
    out = capsys.readouterr().out
    assert "the worker was ended by SIGSEGV; 1.0 s, 1.0 s of CPU\n  python -m runner number=1\n" in out
    assert "2 cases (status 0: 1, status 3: 1): 1 to look at, 0 of more than 60 s" in out


def test_a_long_run_is_printed_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert pairs.report([ended(0, 0, seconds=61.0)]) == 0
    assert "no error; 61.0 s, 1.0 s of CPU\n  python -m runner number=0\n" in capsys.readouterr().out


def test_one_of_each_kind_of_refusal_and_failed_expectation_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = [f"program '{name}' is written from per_device, which is missing" for name in ("vmap", "shard_map")]
    done = [ended(number, 2, refused=message) for number, message in enumerate(refused)]
    done += [ended(2, 1, failed=["shard_map: collectives", "auto: collectives"])]
    assert pairs.report(done) == 0
    out = capsys.readouterr().out
    assert f"refused, 2 ×: {refused[0]}\n  python -m runner number=0\n" in out
    assert refused[1] not in out
    assert "failed by expect alone, 1 ×: collectives\n" in out


def test_pairs_that_were_only_refused_do_not_count_as_run(capsys: pytest.CaptureFixture[str]) -> None:
    pairs.report([ended(0, 0), {**ended(1, 2, refused="no"), "case": {**CASE, "mode": "sweep"}}])
    assert "14 pairs, 10 of them in the 1 cases that were not refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("checks", "why"), [({"value": {"status": "failed"}}, "failed in auto: value"), ({"collectives": "failed"}, None)]
)
def test_wrong_values_are_reported_and_failed_expectations_alone_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: dict[str, Any], why: str | None
) -> None:
    record = json.dumps({"programs": {"auto": {"checks": checks}}})
    script = f"import sys; open(sys.argv[1], 'w').write({record!r}); print('failed'); sys.exit(1)"
    monkeypatch.setattr(
        pairs, "commands", lambda case, python, folder: [[python, "-c", script, str(folder / "result.json")]]
    )
    done = pairs.tried(CASE, "python3", tmp_path)
    assert done["why"] == why
    assert done["failed"] == [f"auto: {next(iter(checks))}"]
