"""A hostile `plan.json` is shown or refused with one message, in every command that reads plans.

A session tries a few; `make faults` tries six hundred.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.app.cli import plan, report
from tests.server import command
from tests.test_plans_page import LARGE, SMALL, candidate

CASES = 600
SAMPLE = 12
"""Every session tries one in this many cases."""

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 10**400, "", "x", "\0\x1b[31m", "NaN", "Infinity", [], {}, [[]], {"a": {}}, "<script>",
    [None], 3.5, "a" * 5000, [1, 2, 3], {"": None},
)  # fmt: skip

PLAN: dict[str, Any] = {
    "experiment": "mine", "mesh": {"data": 2, "model": 2}, "limit": 700.0, "labels": {"arrays.w.spec": "params/w"},
    "plan": {
        **LARGE, "memory": 800.0, "others": [{"cost": 2000.0}],
        "alternatives": [{"key": "arrays.w.spec", "spec": [], "next": ["data"], "more": 3.0, "since": "it sends more"}],
    },
    "tried": [candidate("candidate_1", ["data"], bytes_sent=300)],
    "shapes": [{"shape": [2, 2], "cost": 3.0, "sent": 3.0}, {"shape": [4, 1], "error": "too much"}],
    "rounds": [{"limit": None, "planned": 3.0, "needed": 4, "candidate": "candidate_1"}],
}  # fmt: skip

TEXTS = {
    "empty": "",
    "list": "[]",
    "null": "null",
    "no plan": "{}",
    "deep": "[" * 100_000,
    "deep below": '{"plan":' * 5000 + "1" + "}" * 5000,
    "NaN": json.dumps({"plan": {**SMALL, "bound": float("nan")}}),
    "1e999": json.dumps({"plan": SMALL}).replace("300.0", "1e999", 1),
    "no UTF-8": "\udcff",
    "byte order mark": "\ufeff{}",
}
"""Contents of which none is a plan."""


def tried(folder: Path, content: str) -> str:
    """Show a plan in every way; return what is printed on standard error."""
    for name, text in (("bad", content), ("good", json.dumps(PLAN))):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "plan.json").write_text(text, "utf-8", errors="surrogateescape")
    bad, good = str(folder / "bad"), str(folder / "good")
    status = report.main([bad]), plan.main(["--compare", bad, good, "-o", str(folder / "page.html")])
    assert status in ((0, 0), (2, 2))
    assert plan.main(["--compare", good, bad]) == status[1]
    return "refused" if status[0] else "shown"


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in plain data."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*at, key)
        yield from places(value, (*at, key))


def edited(case: int) -> str:
    """Return the plan with one value replaced, or left out."""
    draw, data = random.Random(case), copy.deepcopy(PLAN)
    *above, last = draw.choice(list(places(PLAN)))
    at: Any = data
    for key in above:
        at = at[key]
    if draw.random() < 0.15:
        del at[last]
    else:
        at[last] = draw.choice(VALUES)
    return json.dumps(data)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_plan_is_refused_with_one_message(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, TEXTS[name]) == "refused"
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 5
    assert f"{tmp_path / 'bad' / 'plan.json'} is not" in errors


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.whole] if case % SAMPLE else []) for case in range(CASES)]
)
def test_an_edited_plan_is_shown_or_refused(case: int, tmp_path: Path) -> None:
    tried(tmp_path, edited(case))


def test_a_plan_as_it_is_written_is_shown(tmp_path: Path) -> None:
    assert tried(tmp_path, json.dumps(PLAN)) == "shown"


def test_a_plan_that_misfits_is_refused_with_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"plan": {**SMALL, "best": {**SMALL["best"], "cost": "much"}}}))
    assert report.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"{tmp_path / 'plan.json'} is not a plan, such as python -m runner plan writes: "
        "plan.best.cost is 'much', not a number\n"
    )


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_nothing_waits_for_what_is_no_file(what: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs"
    if what == "pipe":
        os.mkfifo(file)
    elif what == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    for name in ("plan.json", "result.json", "sweep.json", "results.jsonl", "manifest.json"):
        (tmp_path / name).symlink_to(file)
    none = "it is no regular file, but a folder, a pipe or a device"
    experiment = "case3_allreduce", "arrays.A.spec=auto", "per_device=null", "expect=null"
    for words, module in (
        (("--compare", str(tmp_path), str(tmp_path)), "runner plan"),
        ((*experiment, "plan.competitors=[theirs]", "hydra.run.dir=out"), "runner plan"),
        (("resume=.",), "runner"),
        # What is called as a golden and leads to a folder is none.
        *([((".", "."), "runner compare")] if what != "folder" else []),
    ):
        done = command(tmp_path, *words, module=module, limit=60)
        assert done.returncode in (2, 3), (words, done)
        assert none in done.stderr, (words, done.stderr)
    for module in ("runner report", "runner runs"):
        assert command(tmp_path, ".", module=module, limit=60).returncode in (0, 2)
