"""The page of the difference of two plans: layouts, a pair of bars for each line, totals, both fronts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runner.app.cli import plan, report
from runner.reports.record import plan_file, record
from runner.reports.show.page import plan_section, plans
from runner.reports.show.page.markup import joined
from runner.reports.show.plan_layouts import differing
from tests import evidence
from tests.test_page import Page

SMALL: dict[str, Any] = {
    "least": "bytes",
    "best": {
        "layouts": {"arrays.x.spec": ["data", None], "arrays.w.spec": [None, "model"], "arrays.b.spec": []},
        "cost": 300.0, "sent": 300.0, "held": 128.0, "needed": 256.0,
    },
    "bound": 300.0,
    "proved": True,
    "alternatives": [],
    "lines": [
        {"line": "y", "what": "partial sums of matmul", "cost": 200.0},
        {"line": "h", "what": "resharding w for matmul", "cost": 60.0},
        {"line": "loss", "what": "partial sums of mean", "cost": 40.0},
    ],
    "axes": [{"axes": ["model"], "kind": "all-reduce", "bytes": 300.0, "count": 2}],
    "front": [
        {"layouts": {"arrays.x.spec": ["data", None]}, "costs": {"bytes": 300.0, "memory": 256.0}},
        {"layouts": {"arrays.x.spec": ["data", "model"]}, "costs": {"bytes": 500.0, "memory": 200.0}},
    ],
    "parallelism": ["tensor parallelism over model", "the batch is <sharded>"],
}  # fmt: skip

LARGE: dict[str, Any] = {
    **SMALL,
    "best": {
        "layouts": {"arrays.x.spec": ["model", None], "arrays.w.spec": [None, "model"], "constraints.y": ["data"]},
        "cost": 1060.0, "sent": 1060.0, "held": 128.0, "needed": 512.0,
    },
    "lines": [
        {"line": "y", "what": "partial sums of matmul", "cost": 1000.0},
        {"line": "h", "what": "resharding w for matmul", "cost": 20.0},
        {"line": "loss", "what": "partial sums of mean", "cost": 40.0},
    ],
    "axes": [{"axes": ["model", "data"], "kind": "all-gather", "bytes": 1060.0, "count": 1}],
    "front": [{"layouts": {"arrays.x.spec": ["model", None]}, "costs": {"bytes": 1060.0, "memory": 512.0}}],
    "parallelism": ["tensor parallelism over model", "expert parallelism over data"],
}  # fmt: skip


def write_plans(folder: Path, **changed: Any) -> tuple[str, str]:
    """Write two plans, the second with fields changed; return their paths."""
    for name, fields in (("small", SMALL), ("large", LARGE | changed)):
        (folder / name).mkdir()
        text = json.dumps({"plan": fields, "labels": {"arrays.w.spec": "params/w"}})
        (folder / name / "plan.json").write_text(text, encoding="utf-8")
    return str(folder / "small"), str(folder / "large" / "plan.json")


def write_page(folder: Path, **changed: Any) -> Path:
    """Write the page of two plans; return its path."""
    page = folder / "plans.html"
    assert plan.main([plan.COMPARE, *write_plans(folder, **changed), "-o", str(page)]) == 0
    return page


def test_the_page_draws_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_page(tmp_path)
    assert capsys.readouterr().out.endswith(f"\n{file}\n")
    html = file.read_text("utf-8")
    page = Page(html)
    for sentence in (
        f"A: {tmp_path}/small B: {tmp_path}/large/plan.json",
        "least bytes, by the model B costs 760 B more A 300 B, B 1.1 kB",
        "a device sends 300 B – 1.1 kB a device holds of arrays and outputs 128 B",
        "3 of 4 layouts differ.",
        "x [data, null] [model, null] b [] – y – [data]",
        "y partial sums of matmul A 200 B B 1.0 kB +800 B h resharding w for matmul A 60 B B 20 B −40 B",
        "a device needs 256 B 512 B +256 B",
        "all-reduce over model 300 B – −300 B all-gather over model and data – 1.1 kB +1.1 kB",
        "both: tensor parallelism over model only A: the batch is <sharded> only B: expert parallelism over data",
    ):
        assert sentence in page.text
    # A line that costs the same has no bars; a bar is as long as its cost.
    widths = [float(width) for width in re.findall(r'class="bar (?:first|second)" style="width:([\d.]+)rem"', html)]
    assert [width / widths[1] for width in widths] == pytest.approx([0.2, 1.0, 0.06, 0.02], abs=1e-3)
    assert [a["data-p"] for name, a in page.elements if name == "g" and "data-p" in a] == [
        "fronts-B1", "fronts-A1", "fronts-A2",
    ]  # fmt: skip
    assert file.read_bytes() == html.encode()


def test_equal_plans_and_other_objectives_have_no_bars(tmp_path: Path) -> None:
    (tmp_path / "equal").mkdir()
    text = Page(write_page(tmp_path / "equal", **SMALL).read_text("utf-8")).text
    assert "both cost the same 300 B in both" in text
    assert "All 3 layouts are the same." in text
    assert "Cost by line" not in text
    text = Page(write_page(tmp_path, least="time", front=[]).read_text("utf-8")).text
    assert "not compared A has the least bytes, B the least time" in text
    assert "Cost by line" not in text
    assert "The fronts" not in text


def test_a_page_that_cannot_be_written_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = write_plans(tmp_path)
    (tmp_path / "folder").mkdir()
    assert plan.main([plan.COMPARE, *plans, "-o", str(tmp_path / "folder")]) == 2
    assert capsys.readouterr().err == f"command line: --compare\n  -o {tmp_path}/folder: this is not a regular file\n"
    assert plan.main([plan.COMPARE, *plans, "-o", str(tmp_path / "nowhere" / "page.html")]) == 3
    assert "No such file or directory" in capsys.readouterr().err


def test_two_plans_name_their_meshes_and_the_layouts_of_their_fronts(tmp_path: Path) -> None:
    small, large = (Path(path) for path in write_plans(tmp_path))
    for file, mesh in ((small / "plan.json", {"data": 2, "model": 4}), (large, {"data": 8})):
        file.write_text(json.dumps({"mesh": mesh, **json.loads(file.read_text("utf-8"))}), encoding="utf-8")
    text = Page(plans.page(plan_file.read(small), plan_file.read(large))).text
    assert "small, mesh data=2 × model=4" in text
    assert "large/plan.json, mesh data=8" in text
    assert "A1 300 B 256 B x=[data, null] A2 500 B 200 B x=[data, model] B1 1.1 kB 512 B x=[model, null]" in text


def candidate(folder: str, x: list[str | None], **program: Any) -> dict[str, Any]:
    """Return a candidate as `plan.json` has it, with one compiled program."""
    layouts = {"arrays.x.spec": x, "arrays.w.spec": [None, "model"], "arrays.b.spec": []}
    return {
        "folder": folder, "candidate": {"layouts": layouts, "cost": 300.0},
        "programs": [{"program": "auto", "status": "passed", **program}],
    }  # fmt: skip


def part_of(folder: Path, **fields: Any) -> str:
    """Return the text of the section of a plan with further fields, on the page of the plan's folder."""
    file = folder / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **fields}), encoding="utf-8")
    part = plan_section.part(folder, lambda name: f"{name}/report.html")
    assert part is not None
    return Page(f"<div>{joined(part.inside)}</div>").text


def test_the_page_of_a_plan_says_which_layouts_to_take_and_why(tmp_path: Path) -> None:
    small = Path(write_plans(tmp_path)[0])
    text = part_of(small)
    assert text.startswith("Take these layouts x: [data, null]; params/w: [null, model]; b: []")
    assert "By the model a device sends 300 B. By the model no other plan is better" in text
    first, second = (
        candidate("candidate_2", ["model"], bytes_sent=200),
        candidate("candidate_1", ["data"], bytes_sent=300),
    )
    text = part_of(small, tried=[first, second])
    assert text.startswith("Take candidate_2 x: [model]; params/w: [null, model]; b: []")
    assert "As compiled (auto), a device sends 200 B, in the next best 300 B." in text
    large = candidate("candidate_1", ["data"], bytes_sent=300, memory_bytes=4096)
    text = part_of(small, tried=[large], limit=2048.0)
    assert "As compiled (auto), a device needs 4.1 kB. No candidate fits the limit of 2.0 kB." in text
    assert re.search(r"\bauto\W+passed\b", text)
    assert re.search(r"\bauto\W+compiled\b", part_of(small, tried=[large], verified=False))
    failed = candidate("candidate_1", ["data"], status="failed")
    assert "No candidate passed its checks. By the model a device sends 300 B." in part_of(small, tried=[failed])


def test_a_plan_without_compiled_candidates_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = Path(write_plans(tmp_path)[0])
    assert report.main([str(small)]) == 0
    assert capsys.readouterr().out == f"{small / report.PAGE}\n"
    text = Page((small / report.PAGE).read_text("utf-8")).text
    assert "no candidate was compiled" in text
    assert "Take these layouts" in text


def test_a_plan_has_one_page_whoever_makes_it(tmp_path: Path) -> None:
    small = Path(write_plans(tmp_path)[0])
    (small / "candidate_1").mkdir()
    record.write(evidence.record({"auto": evidence.program()}), small / "candidate_1")
    assert report.main([str(small)]) == 0
    made = (small / report.PAGE).read_text("utf-8")
    # It links to the candidate's page, which was made first.
    assert made == plan_section.page(small)
    assert (small / "candidate_1" / report.PAGE).is_file()


def test_the_page_of_a_run_draws_the_front_of_its_plan(tmp_path: Path) -> None:
    small, _ = write_plans(tmp_path)
    part = plan_section.part(Path(small))
    assert part is not None
    page = Page(f"<div>{joined(part.inside)}</div>")
    assert page.text.startswith("The layouts of this run x: [data, null]")
    assert [a["data-p"] for name, a in page.elements if name == "g" and "data-p" in a] == ["front-1", "front-2"]
    assert "1 300 B 256 B x=[data, null] 2 500 B 200 B x=[data, model]" in page.text


def test_below_a_candidate_stand_the_layouts_of_some_lines_and_the_number_of_the_others() -> None:
    layouts = {"arrays.w.spec": "[a]"} | {f"constraints.h{n}": "[null]" for n in range(6)}
    assert differing([layouts], {}, 4) == ["w=[a] h0=[null] h1=[null] h2=[null] h3=[null] and 2 more lines"]
    assert differing([layouts, {**layouts, "constraints.h5": "[a]"}], {}, 4)[1] == "h5=[a]"


def test_the_page_of_a_plan_begins_with_what_it_costs_as_compiled(tmp_path: Path) -> None:
    """The units of bytes keep their letters."""
    text = json.dumps({"plan": SMALL, "caveat": "as compiled a device sends 1.3 MB, and 329 kB by the model"})
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    made = plan_section.page(tmp_path).replace("\xa0", " ")
    assert "As compiled a device sends 1.3 MB, and 329 kB by the model." in made
