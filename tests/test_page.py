"""The pages as text: well formed, self-contained, deterministic, complete, and safe from injection."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.app.cli import report
from runner.base.layout import Spec
from runner.base.printable import printable
from runner.compiled.estimate.model import CollectiveTime, Estimate, LineTime
from runner.compiled.evidence.model import Collective, Reason
from runner.reports.record import record
from runner.reports.record.model import STATUSES, ArrayRecord, MeshShape, Record, RecordedLine
from runner.reports.record.verdicts import FileChecks, NotRun, RefusalVerdict
from runner.reports.show.page import chart, graph, headline, heat, measured, run, sweep, timeline
from runner.reports.show.page.chart import Dot
from runner.reports.show.page.layered import place
from runner.reports.show.page.markup import Markup, joined, tag
from runner.reports.show.status import LOOKS, style_sheet
from tests import evidence, swept
from tests.command import ROOT, run_command
from tests.harness import run as ran

VOID = {"meta", "link", "input", "br", "wbr"}


class Page(HTMLParser):
    """A strictly parsed page: every element must be closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} is there twice"
        self.elements.append((tag, dict(attrs)))
        if (id := dict(attrs).get("id")) is not None:
            self.ids.append(id)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def of_sweep(folder: Path, count: int = 60) -> str:
    swept.write(folder, count)
    assert report.main([str(folder)]) == 0
    return (folder / report.PAGE).read_text("utf-8")


@pytest.fixture(scope="module")
def ran_with_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of every program, with a gradient and a trace, and its page."""
    folder = tmp_path_factory.mktemp("run")
    text = """
    name: little
    summary: What it shows.
    arrays:
      x: {shape: [8, 4], spec: [x]}
      w: {shape: [4, 8], spec: [null, y]}
    graph: {y: tanh(x @ w), loss: mean(y ** 2)}
    per_device: {y: tanh(x @ w), loss: "pmean(mean(y ** 2), ('x', 'y'))"}
    outputs: {y: [x, y], loss: [], grad.w: [null, y]}
    grad: {of: loss, wrt: [w]}
    """
    ran(text, folder, trace=True)
    assert report.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def pages(ran_with_trace: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "run": (ran_with_trace / report.PAGE).read_text("utf-8"),
        "sweep": of_sweep(tmp_path_factory.mktemp("sweep")),
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_a_page_is_well_formed_and_its_references_exist(pages: dict[str, str], kind: str) -> None:
    page = Page(pages[kind])
    assert len(page.ids) == len(set(page.ids))
    for name, attributes in page.elements:
        for key in ("aria-labelledby", "for"):
            assert set((attributes.get(key) or "").split()) <= set(page.ids), (name, attributes)
        if (href := attributes.get("href") or "").startswith("#"):
            assert href[1:] in page.ids
        if name == "svg" and attributes.get("aria-hidden") != "true":
            assert attributes["role"] in ("img", "group")
        if name == "table":
            assert attributes.get("class") != ""
    tables = sum(name == "table" for name, _ in page.elements)
    assert tables == sum(name == "caption" for name, _ in page.elements)
    assert all(attributes.get("scope") in ("row", "col") for name, attributes in page.elements if name == "th")


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_a_page_is_self_contained(pages: dict[str, str], kind: str) -> None:
    page = Page(pages[kind])
    for name, attributes in page.elements:
        assert name not in ("img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert not any(key.startswith("on") for key in attributes), "no script stands in an attribute"
        href = attributes.get("href") or ""
        assert href == "data:," or not re.match(r"[a-z]+:|//|/", href), href
    assert not re.search(r"url\(|@import|@font-face|fetch\(|XMLHttpRequest|https?://", pages[kind].split("<body>")[0])
    script = pages[kind].rsplit("<script>", 1)[1]
    assert not re.search(r"fetch|XMLHttpRequest|import\(|https?:|eval", script)


def test_the_links_of_a_page_lead_to_files(ran_with_trace: Path, tmp_path: Path) -> None:
    of_sweep(tmp_path / "a b", 12)
    for folder in (ran_with_trace, tmp_path / "a b"):
        links = [a["href"] or "" for name, a in Page((folder / report.PAGE).read_text("utf-8")).elements if name == "a"]
        files = {link for link in links if not link.startswith("#")}
        assert files
        assert [link for link in files if not (folder / link).exists()] == []


NASTY = "</script><script>alert(1)</script> \" ' & <b> \u2028 ünï𝛼 ]]> -->"


def test_no_text_breaks_out_of_the_page(tmp_path: Path) -> None:
    line = RecordedLine(path="C", line="C", expression=f"A @ '{NASTY}'", reads=["A"])
    moved = evidence.collective(node="C", axes=[NASTY])
    checks = evidence.CHECKS.but(layout=NotRun(reason=NASTY))
    made = evidence.program(moved, collectives_unknown=[NASTY], checks=checks)
    run_record = evidence.record(
        {"shard_map": made},
        experiment=NASTY,
        summary=NASTY,
        mesh=MeshShape(axes=[NASTY], shape=[4]),
        overrides=[f"summary={NASTY}"],
        warnings=[NASTY],
        not_supported={NASTY: NASTY},
        lines={"per_device": [line]},
    )
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        each = replace(run_record, overrides=[f"+a.b={NASTY}{number}"], status="failed", error=NASTY)
        record.write(each if number else run_record, tmp_path / str(number))
    assert report.main([str(tmp_path)]) == 0
    for file in (tmp_path / "0" / report.PAGE, tmp_path / "1" / report.PAGE, tmp_path / report.PAGE):
        text = file.read_text("utf-8")
        page = Page(text)
        assert sum(name == "script" for name, _ in page.elements) == 2
        assert " ".join(printable(NASTY).split()) in page.text
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
        assert data is not None
        assert NASTY in json.dumps(json.loads(data[1]), ensure_ascii=False).replace('\\"', '"')


def test_everything_in_the_record_is_on_the_page(ran_with_trace: Path, pages: dict[str, str]) -> None:
    run_record = record.read(ran_with_trace)
    text = Page(pages["run"]).text
    assert run_record.mesh is not None
    assert run_record.trace is not None
    assert run_record.environment.jax is not None
    expected = [
        run_record.experiment, run_record.summary, run_record.status,
        run_record.environment.jax, run_record.environment.python,
        *run_record.mesh.axes, *run_record.arrays, *run_record.programs, *run_record.warnings,
        *(check.note for program in run_record.programs.values() for check in program.checks if check.note),
        *(check.reason for program in run_record.programs.values() for check in program.checks if check.reason),
        *(name for program in run_record.programs.values() for name, _ in program.checks.named()),
        *(name for program in run_record.compiled.values() for name in program.outputs),
        *(collective.kind for program in run_record.compiled.values() for collective in program.collectives or ()),
        *(line.line for lines in run_record.lines.values() for line in lines),
        *(line.expression for lines in run_record.lines.values() for line in lines),
        *(node.expression for node in run_record.trace.nodes),
        *(f"program_{program}.py" for program in run_record.compiled),
    ]  # fmt: skip
    assert [each for each in expected if each is None or " ".join(each.split()) not in text] == []


@pytest.mark.in_turn
def test_the_same_records_give_the_same_bytes(tmp_path: Path, pages: dict[str, str]) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    written: list[bytes] = []
    swept.write(folder, 24)
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-W", "error", "-m", "runner", "report", str(folder)],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        written.append((folder / "report.html").read_bytes() + (folder / "3" / "report.html").read_bytes())
    assert written[0] == written[1]


@pytest.mark.in_turn
def test_no_jax_is_imported(tmp_path: Path) -> None:
    swept.write(tmp_path, 3)
    script = (
        "import sys\n"
        "from runner.app.cli import report, runs\n"
        f"assert report.main([{str(tmp_path)!r}]) == 0\n"
        f"assert runs.main([{str(tmp_path)!r}]) == 0\n"
        "assert not {'jax', 'jaxlib', 'hydra', 'scipy'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.in_turn
def test_three_hundred_points_are_a_megabyte_and_a_half_at_the_most(tmp_path: Path) -> None:
    swept.write(tmp_path, 300)
    assert report.main([str(tmp_path), "--only"]) == 0
    text = (tmp_path / report.PAGE).read_text("utf-8")
    assert len(text.encode()) < 1_500_000
    assert text.count("<tr data-p=") == 300


def test_unknown_facts_are_named_and_not_shown_as_empty() -> None:
    made = evidence.program(collectives=None, memory=None, cost=None, compiler_warnings=None)
    page = Page(run.page(evidence.record({"auto": made}), _folder(evidence.record({"auto": made}))))
    for sentence in (
        "the collectives: the compiled module could not be read",
        "memory: the backend does not report it",
        "flops and bytes accessed: the backend does not report them",
        "the graph: an older version wrote this record",
        "the compiler's warnings: standard error was not captured",
    ):
        assert sentence in page.text
    ids = {attributes.get("id") for name, attributes in page.elements if name == "section"}
    assert ids == {"verdicts", "programs", "unknown", "about"}


def _folder(run_record: Any) -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    record.write(run_record, folder)
    return folder


def test_a_run_page_has_numbers_first_and_collectives_before_layouts(pages: dict[str, str]) -> None:
    text = Page(pages["run"]).text
    passed = re.search(r"programs passed 6 of 6 a device sends (\S+ k?B)", text)
    assert passed
    ids = re.findall(r'<section id="(\w+)"', pages["run"])
    assert ids.index("verdicts") < ids.index("collectives") < ids.index("graph") < ids.index("arrays")


def test_the_numbers_name_the_program_that_sends_least_and_omit_vmap() -> None:
    sending = {"auto": 300, "shard_map": 100, "derived": 100, "vmap": 0}
    made = {
        name: evidence.program(evidence.collective(bytes_sent=sent), status="failed" if name == "auto" else "passed")
        for name, sent in sending.items()
    }
    text = Page(str(headline.numbers(evidence.record(made)))).text
    assert "programs passed 3 of 4 failed: auto" in text
    assert "a device sends 100 B – 300 B least: shard_map and derived; most: auto" in text


def test_a_verdict_is_a_sign_with_its_word_as_title(pages: dict[str, str]) -> None:
    page = Page(pages["run"])
    titles = [a["title"] for name, a in page.elements if name == "span" and (a.get("class") or "").startswith("sign ")]
    assert {"value: passed", "layout: not run", "status: passed"} <= set(titles)
    assert "What was checked of each program: ✓ passed, – not run" in page.text
    assert "auto ✓ passed ✓ passed" in page.text


def test_arrays_with_equal_layouts_share_a_card(ran_with_trace: Path, pages: dict[str, str]) -> None:
    names = re.findall(r'<figure data-name="([^"]+)"', pages["run"])
    assert "w, grad.w" in names
    assert len(names) == len(set(names))


def test_collectives_are_drawn_beside_the_lines_computed_meanwhile() -> None:
    def line(name: str, *, gradient: bool = False) -> LineTime:
        return LineTime(nodes=[name], gradient=gradient, flops=1, bytes=1, seconds=2.0, bound="flops")

    def taken(kind: str, seconds: float) -> CollectiveTime:
        return CollectiveTime(
            instruction="i", kind=kind, nodes=[], axes=["x"], count=1, seconds=seconds, bound="bandwidth", over="x",
            hidden=0,
        )  # fmt: skip

    moved = [
        evidence.collective("all-gather", node="B", overlapped=["A"], asynchronous=True),
        evidence.collective("all-reduce", node="C"),
        evidence.collective("all-reduce", node="A", gradient=True),
    ]
    made = Estimate(
        hardware="H100", seconds=0, compute=0, communication=0, hidden=0, overlapped=0, bottleneck=None, fits=None,
        lines=[line("A"), line("B"), line("A", gradient=True)],
        collectives=[taken("all-gather", 3.0), taken("all-reduce", 1.0), taken("all-reduce", 1.0)], unknown=[],
    )  # fmt: skip
    lines = [
        RecordedLine(path=path, line=path, expression="", reads=reads)
        for path, reads in (("A", []), ("B", ["A"]), ("C", ["B"]))
    ]
    bars = timeline.bars(made, moved, lines)
    assert [(bar.lane, bar.name, bar.start, bar.stop) for bar in bars] == [
        ("communicates", "all-gather of B over x", 0, 3),
        ("computes", "A", 0, 2),
        ("computes", "B", 3, 5),
        ("communicates", "all-reduce of C over x", 5, 6),
        ("computes", "A (backward)", 6, 8),
        ("communicates", "all-reduce of A over x (backward)", 8, 9),
    ]
    assert timeline.bars(replace(made, lines=[replace(line("A"), seconds=None)]), moved, lines) == []
    body = timeline.draw(bars).body
    assert "all-reduce of C over x" in body


def test_a_run_that_ended_early_has_a_page_with_its_message(tmp_path: Path) -> None:
    record.ended(tmp_path, "invalid", "conf/a.yaml:3:4  arrays.A\n  it is <none>", ["+experiment=a"])
    assert report.main([str(tmp_path)]) == 0
    page = Page((tmp_path / report.PAGE).read_text("utf-8"))
    assert "conf/a.yaml:3:4 arrays.A it is <none>" in page.text
    assert "python -m runner +experiment=a" in page.text


# The parts.


def test_only_markup_is_not_escaped() -> None:
    assert tag("p", "a < b & c", Markup("<br>"), None, title='"x" <') == (
        '<p title="&quot;x&quot; &lt;">a &lt; b &amp; c<br></p>'
    )
    assert joined(["a", ["<", Markup("<i>")]]) == "a&lt;<i>"
    assert tag("input", disabled=True, checked=False, value=None, data_p="1") == '<input disabled data-p="1">'


EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=18).map(
    lambda pairs: [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
)
SIZES = st.lists(st.tuples(st.integers(10, 300), st.integers(10, 90)), min_size=10, max_size=10)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SIZES, EDGES)
def test_no_box_of_a_graph_covers_another_and_every_edge_leads_down(
    sizes: list[tuple[int, int]], edges: list[tuple[int, int]]
) -> None:
    placed = place(dict(enumerate(sizes)), edges)
    boxes = [(*placed.corners[name], *size) for name, size in enumerate(sizes)]
    box_of: dict[Hashable, tuple[float, float, float, float]] = dict(enumerate(boxes))
    for k, (x, y, w, h) in enumerate(boxes):
        assert x >= -1e-6
        assert x + w <= placed.width + 1e-6
        assert y >= -1e-6
        assert y + h <= placed.height + 1e-6
        for a, b, c, d in boxes[k + 1 :]:
            assert x + w <= a + 1e-6 or a + c <= x + 1e-6 or y + h <= b + 1e-6 or b + d <= y + 1e-6
    assert set(placed.paths) == set(edges)
    for (start, stop), path in placed.paths.items():
        assert [y for _, y in path] == sorted(y for _, y in path)
        for name, (x, y) in ((start, path[0]), (stop, path[-1])):
            left, top, width, height = box_of[name]
            assert left < x < left + width
            assert y == pytest.approx(top if name == stop else top + height)
        for (a, b), (c, d) in itertools.pairwise(path):
            # Upright at both ends, so that the curve stays between them.
            left, right = min(a, c), max(a, c)
            for x, y, w, h in boxes:
                beside = right <= x + 1e-6 or x + w <= left + 1e-6
                assert beside or d <= y + 1e-6 or y + h <= b + 1e-6, "an edge crosses no box"


ARRAYS = {
    name: ArrayRecord(
        shape=[4, 4], dtype="float32", spec=Spec.of(["x", None]), shard_shape=[2, 4], shards_from="spec", shards=None
    )
    for name in ("A", "B")
}
LINES = [
    RecordedLine(path="P", line="P", expression="A @ B", reads=["A", "B"], shape=[4, 4], dtype="float32"),
    RecordedLine(path="C", line="C", expression="psum(P, 'x')", reads=["P"], sent=["P"], shape=[4, 4], dtype="float32"),
]


@pytest.mark.parametrize(
    ("moved", "label"),
    [
        (evidence.collective(node="C"), "from P to C: all-reduce over x, 64 B · as written"),
        (
            evidence.collective("all-gather", "P", inserted=True, between={"from": ["B"], "to": ["P"]}),
            "from B to P: all-gather over x, 64 B · inserted by the compiler",
        ),
        (evidence.collective(node="P", inserted=True), "at P: all-reduce over x, 64 B · inserted by the compiler"),
        (evidence.collective(node="C", gradient=True), "at C: all-reduce over x, 64 B · of the backward pass"),
        (evidence.collective(node="A", inserted=True), "at A: all-reduce over x, 64 B · inserted by the compiler"),
        (evidence.collective(node=None), "in no line of it: all-reduce over x, 64 B · as written"),
        (
            evidence.collective(node="C", inserted=True, between={"from": ["A", "B"], "to": ["C"]}),
            "at C: all-reduce over x, 64 B · inserted by the compiler",
        ),
        # A device computes the terms of its sum itself, from everything that it reads.
        (
            evidence.collective(node="P", inserted=True, between={"from": ["B"], "to": ["P"]}),
            "at P: all-reduce over x, 64 B · inserted by the compiler",
        ),
        (
            evidence.collective(node="P", inserted=True, between={"from": ["P"], "to": ["C"]}),
            "from P to C: all-reduce over x, 64 B · inserted by the compiler",
        ),
        (
            evidence.collective(node="C", nodes=["C", "P"], backward=["P"]),
            "at C: all-reduce over x of C, P (backward), 64 B · as written",
        ),
        (evidence.collective(node="C", count=None, bytes=None), "from P to C: all-reduce over x, ? B × ? · as written"),
        (evidence.collective(count=8, axes=["x", "y"]), "from P to C: all-reduce over x, y, 64 B × 8 · as written"),
    ],
)  # fmt: skip
def test_a_collective_is_drawn_on_the_edge_whose_value_it_moves(moved: Collective, label: str) -> None:
    drawn = graph.draw(LINES, ARRAYS, {"C": "P()"}, [moved])
    assert label in drawn.words
    if "in no line" not in label:
        assert label.split(": ", 1)[1].split(", ")[0] in drawn.box.body


def test_in_a_large_section_the_lines_away_from_collectives_are_folded() -> None:
    def line(path: str, *reads: str) -> RecordedLine:
        repeat = path == "layers"
        return RecordedLine(path=path, line=path, expression=None if repeat else "", reads=list(reads), steps=4)

    chain = [line(f"n{k}", *([f"n{k - 1}"] if k else ["A"])) for k in range(150)]
    body = [line(f"layers/body/m{k}", f"layers/body/m{k - 1}" if k else "n70") for k in range(40)]
    lines = [*chain[:71], line("layers"), *body, *chain[71:], line("out", "layers/body/m39", "n149", "B")]
    moved = [evidence.collective(node=name, inserted=True) for name in ("n50", "layers/body/m20")]
    drawn = graph.draw(lines, ARRAYS, {}, moved)
    assert drawn.only == "of 192 lines those with collectives, and those beside them"
    named = {tuple(word.split(": ")[1].split(", ")) for word in drawn.words if re.match(r"\d+ lines: ", word)}
    assert named == {
        tuple(f"n{k}" for k in range(52, 150)),
        tuple(f"layers/body/m{k}" for k in range(19)),
        tuple(f"layers/body/m{k}" for k in range(22, 40)),
    }
    assert [word for word in drawn.words if word.startswith("at ")] == [
        "at n50: all-reduce over x, 64 B · inserted by the compiler",
        "at layers/body/m20: all-reduce over x, 64 B · inserted by the compiler",
    ]
    for name in ("98 lines", "19 lines", "18 lines", "n49", "n51", "layers × 4", "m19", "out"):
        assert f">{name}<" in drawn.box.body
    assert ">m3<" not in drawn.box.body
    assert ">n52, n53, " in drawn.box.body
    # The lines outside lead into the repeat: of the edges seven are outside of it, and five inside.
    assert drawn.box.body.count('class="ge"') == 7 + 5
    assert drawn.box.body.count(">98 lines<") == 2


def test_a_large_section_without_collectives_is_one_box() -> None:
    lines = [
        RecordedLine(path=f"n{k}", line=f"n{k}", expression="", reads=[f"n{k - 1}"] if k else ["A"]) for k in range(130)
    ]
    assert ">130 lines<" in graph.draw(lines, ARRAYS, {}, []).box.body


def test_collectives_that_are_alike_are_counted_and_none_is_lost() -> None:
    moved = [evidence.collective(node="C"), evidence.collective(node="C"), evidence.collective(node="P", inserted=True)]
    words = graph.draw(LINES, ARRAYS, {}, moved).words
    assert "from P to C: 2 × all-reduce over x, 64 B · as written" in words
    assert "at P: all-reduce over x, 64 B · inserted by the compiler" in words


def test_two_collectives_of_a_line_are_not_attributed_to_each_others_value() -> None:
    two = replace(LINES[1], expression="psum(P, 'x') + pmax(A @ B, 'x')", reads=["P", "A", "B"])
    moved = [evidence.collective(node="C"), evidence.collective(node="C", bytes=8)]
    words = graph.draw([LINES[0], two], ARRAYS, {}, moved).words
    assert [word for word in words if "all-reduce" in word] == [
        "at C: all-reduce over x, 64 B · as written",
        "at C: all-reduce over x, 8 B · as written",
    ]


DOTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=40)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DOTS)
def test_the_front_has_the_points_that_none_dominates(points: list[tuple[int, int]]) -> None:
    dots = [Dot(x, y, 0, "", None, str(k)) for k, (x, y) in enumerate(points)]
    front = {(dot.x, dot.y) for dot in chart.front(dots)}
    best = {
        (x, y)
        for x, y in points
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
    }  # fmt: skip
    assert front == best


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 1e18), min_size=1, max_size=20))
def test_a_scale_has_room_for_all_values_and_round_ticks(values: list[float]) -> None:
    made = chart.scale(values)
    assert all(-1e-9 <= made.at(value) <= 1 + 1e-9 for value in values)
    ticks = made.ticks()
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= made.at(tick) <= 1 + 1e-6 for tick in ticks)
    assert len(ticks) >= (1 if max(values) > 1e-300 else 0)


def swept_points(*overridden: tuple[str, ...]) -> measured.MeasuredSweep:
    """Return a sweep whose k-th point has this override, and sends 100 (k + 1) bytes."""
    made = [
        evidence.program(
            evidence.collective("collective-permute", bytes_sent=100 * (k + 1)), memory=evidence.memory(9, 0, 0)
        )
        for k in range(len(overridden))
    ]
    records = [evidence.record({"auto": each}, overrides=list(of)) for each, of in zip(made, overridden, strict=True)]
    points = [measured.MeasuredPoint(str(k), each, each.overrides, f"{k}/x.html") for k, each in enumerate(records)]
    return measured.gather(points)


def test_a_heat_map_prefers_layouts_then_meshes_then_other_keys() -> None:
    points = swept_points(
        ("dims.I=1", "mesh=a", "arrays.A.spec=[x]", "arrays.B.spec=[x]"),
        ("dims.I=2", "mesh=b", "arrays.A.spec=[y]", "arrays.B.spec=[x]"),
        ("dims.I=3", "mesh=b", "arrays.A.spec=[y]", "arrays.B.spec=[x]"),
    )
    assert heat.keys(points) == ("arrays.A.spec", "mesh")
    assert heat.keys(swept_points(("mesh=a",), ("mesh=b",))) is None


def test_a_heat_map_has_keys_whose_cells_differ() -> None:
    specs = ("[x]", "[y]")
    layouts = [(f"arrays.A.spec={a}", f"arrays.B.spec={b}") for a in specs for b in specs]
    # On the first mesh every layout sends least.
    points = swept_points(*((*layout, f"mesh={mesh}") for mesh in "ab" for layout in layouts))
    same = replace(points, rows=[_sending(row, 100 if row.keys["mesh"] == "a" else 300) for row in points.rows])
    assert heat.keys(points) == ("arrays.A.spec", "arrays.B.spec")
    assert heat.keys(same) == ("arrays.A.spec", "mesh")


def _sending(row: Any, sent: int) -> Any:
    return replace(row, measures={**row.measures, "bytes_sent": sent})


def test_a_heat_map_shows_the_least_over_the_other_keys() -> None:
    specs = ("[x]", "[y]")
    overridden = [
        (f"arrays.A.spec={a}", f"arrays.B.spec={b}", f"dims.I={i}") for i in (1, 2) for a in specs for b in specs
    ]
    points = swept_points(*overridden)
    keys = heat.keys(points)
    assert keys is not None
    (drawn, _) = heat.maps(points, keys)
    page = Page(str(drawn))
    assert page.text == (
        "auto : bytes sent per device, the least over dims.I arrays.A.spec ↓ arrays.B.spec → [x] [y] "
        "[x] 100 B 200 B [y] 300 B 400 B"
    )


def test_a_sweep_over_a_size_and_a_mesh_has_a_heat_map_a_scatter_plot_and_a_line_chart_of_each_measure() -> None:
    points = swept_points(*((f"dims.I={i}", f"mesh={mesh}") for i in (2, 4, 16) for mesh in "ab"))
    page = sweep.page("mine", points)
    assert re.findall("<h3>([^<]*)</h3>", page.partition('id="sizes"')[2]) == ["dims.I"]
    assert page.count("<figure") == 1 + len(points.measures)
    assert all(f'id="{part}"' in page for part in ("heat", "against", "sizes"))


def test_the_answer_is_given_for_each_size() -> None:
    points = swept_points(
        ("mesh=a", "dims.I=16"), ("mesh=b", "dims.I=16"), ("mesh=b", "dims.I=2"), ("mesh=a", "dims.I=2")
    )
    text = Page(sweep.page("mine", points)).text
    assert "For each size of dims.I the best by each measure, of the points that passed every check." in text
    assert "dims.I=2 300 B auto mesh=b the most 400 B dims.I=16 100 B auto mesh=a the most 200 B" in text


def test_runs_of_several_experiments_are_no_sweep_and_compare_no_bytes() -> None:
    records = [
        evidence.record(
            {"auto": evidence.program(bytes_sent=sent)}, experiment=name, overrides=[f"mesh={mesh}", f"dims.I={size}"]
        )
        for name, mesh, size, sent in (("mine", "a", 2, 100.0), ("yours", "b", 4, 200.0))
    ]
    points = [measured.MeasuredPoint(str(k), each, each.overrides, None) for k, each in enumerate(records)]
    text = Page(sweep.page("mine, yours", measured.gather(points))).text
    assert "Shardproof runs mine, yours" in text
    assert "they differ in mesh, dims.I" in text
    assert "The runs are of several experiments, mine and yours: no layout is the answer for all." in text
    assert "Layouts by bytes" not in text


def measured_points(*of: tuple[str, dict[str, Any]]) -> measured.MeasuredSweep:
    """Return a sweep over `mesh`, each point with one program's name and measures."""
    records = [
        evidence.record({name: evidence.program(**values)}, overrides=[f"mesh=m{k}", f"program={name}"])
        for k, (name, values) in enumerate(of)
    ]
    return measured.gather(
        [measured.MeasuredPoint(str(k), each, each.overrides, None) for k, each in enumerate(records)]
    )


def test_the_answer_ignores_times_of_simulated_devices() -> None:
    slow, quick = (evidence.timing(1.0, seconds) for seconds in (2.0, 1e-6))
    points = measured_points(
        ("auto", {"bytes_sent": 10, "timing": slow, "memory": evidence.memory(8, 0, 0)}),
        ("auto", {"bytes_sent": 90, "timing": quick, "memory": evidence.memory(8, 0, 0)}),
        ("vmap", {"bytes_sent": 0, "timing": quick, "memory": evidence.memory(1, 0, 0)}),
    )
    text = Page(sweep.page("mine", points)).text
    assert (
        "Take this layout: mesh=m0 , with program auto With it a device sends 10 B; with the next best layout 90 B."
        in text
    )
    assert "vmap, which has one device, is left out" in text
    answer = text[text.index("Answer Take") : text.index("Every point Show")]
    assert "time of a run" not in answer
    assert "time to compile" not in answer
    assert "Bytes against memory" in answer


def test_an_answer_says_which_numbers_of_devices_are_compared() -> None:
    points = measured_points(*(("auto", {"bytes_sent": sent}) for sent in (10, 90)))
    assert "other points have" not in Page(sweep.page("mine", points)).text
    record = replace(points.points[1].record, mesh=MeshShape(axes=["x"], shape=[9]))
    points = replace(points, points={**points.points, 1: replace(points.points[1], record=record)})
    assert "It has 4 devices, other points have 9." in Page(sweep.page("mine", points)).text


def test_a_layout_that_does_not_fit_is_no_answer() -> None:
    def estimate(seconds: float, *, fits: bool) -> Estimate:
        return Estimate(
            hardware="H100", compiled_for="simulated CPUs", seconds=seconds, compute=0, communication=0, hidden=0,
            overlapped=0, bottleneck=None, fits=fits, lines=[], collectives=[], unknown=[],
        )  # fmt: skip

    points = measured_points(
        ("auto", {"estimate": estimate(1.0, fits=False)}),
        ("auto", {"estimate": estimate(3.0, fits=True)}),
        ("auto", {"estimate": estimate(4.0, fits=True)}),
    )
    text = Page(sweep.page("mine", points)).text
    assert (
        "Take this layout: mesh=m1 , with program auto With it a run on H100, compiled for simulated CPUs, takes at "
        in text
    )
    points = measured_points(*(("auto", {"estimate": estimate(s, fits=False)}) for s in (1.0, 2.0)))
    assert "Nothing that passed fits into the memory." in Page(sweep.page("mine", points)).text


def test_a_heat_map_says_why_cells_are_empty() -> None:
    overridden = [["mesh=a", "arrays.A.spec=[x]"], ["mesh=b", "arrays.A.spec=[x]"], ["mesh=a", "arrays.A.spec=[y]"]]
    passed = evidence.record({"auto": evidence.program(evidence.collective())}, overrides=overridden[0])
    broken = [evidence.record({}, overrides=each, status="invalid", error="no such axis") for each in overridden[1:]]
    records = [passed, *broken]
    swept = measured.gather([measured.MeasuredPoint(str(k), r, r.overrides, None) for k, r in enumerate(records)])
    text = Page(sweep.page("mine", swept)).text
    assert "2 cells without a value: no such axis 1 cell without a value: not in the sweep" in text


def of_reasons(count: int) -> Record:
    """Return a record with `count` collectives of different lines, each with a reason."""
    moved = [
        evidence.collective(
            "all-gather" if k % 2 else "all-reduce", f"line{k}", why=Reason(text=f"reason {k}", by="operation")
        )
        for k in range(count)
    ]
    return evidence.record({"auto": evidence.program(*moved)})


def test_the_page_gives_every_collective_its_reason() -> None:
    shown = of_reasons(4)
    page = Page(run.page(shown, _folder(shown)))
    text = page.text[page.text.index("What the compiled programs communicate, and why") :]
    assert [text.index(f"line{k}") < text.index(f"reason {k}") for k in range(4)] == [True] * 4


def test_many_collectives_are_folded_by_kind_and_axes_with_what_they_send() -> None:
    shown = of_reasons(13)
    text = Page(run.page(shown, _folder(shown))).text
    assert "total: all-reduce 448 B, all-gather 384 B; over x 832 B" in text
    assert "all-reduce over x · 7 lines · a device sends 448 B" in text
    assert "all-gather over x · 6 lines · a device sends 384 B" in text
    assert text.index("line11") < text.index("reason 11")


def test_a_cell_without_a_value_says_why() -> None:
    broken = evidence.record({}, overrides=["mesh=b"], status="invalid", error="conf/a.yaml:1:1  mesh\n  no such mesh")
    made = evidence.record({"auto": evidence.program(memory=None)}, overrides=["mesh=a"])
    points = [measured.MeasuredPoint(str(k), each, each.overrides, None) for k, each in enumerate((broken, made))]
    page = Page(sweep.page("mine", measured.gather(points)))
    titles = [attributes.get("title") for name, attributes in page.elements if name in ("td", "span")]
    assert "conf/a.yaml:1:1 mesh: no such mesh" in [title and " ".join(title.split()) for title in titles]
    row = page.text[page.text.index("1 a auto") :]
    assert row.startswith("1 a auto ✓ passed")


def test_the_technical_words_of_the_verdicts_are_explained_once() -> None:
    explained = "notices: the smallest error of an output that would fail"
    for status, count in (("passed", 0), ("weak", 1)):
        record = evidence.record({"auto": evidence.program(status=status)}, status=status)
        assert Page(run.page(record, _folder(record))).text.count(explained) == count


def test_a_function_has_one_section_so_that_the_page_compares_none() -> None:
    alone = NotRun(reason="there is only graph")
    record = evidence.record(checks=FileChecks(sections=alone))
    assert "graph and per_device" not in Page(run.page(record, _folder(record))).text


def test_a_sweep_shows_its_command_and_the_one_that_resumes_it(tmp_path: Path) -> None:
    content = {"arguments": ["-m", "+experiment=case", "mesh=a,b", "arrays.A.spec=[x,null]"], "from": str(tmp_path)}
    home = tmp_path / "out"
    home.mkdir()
    (home / "sweep.json").write_text(json.dumps(content))
    text = Page(of_sweep(home, 4)).text
    assert "python -m runner -m +experiment=case mesh=a,b 'arrays.A.spec=[x,null]'" in text
    assert "To run missing points and those that failed: python -m runner resume=out" in text


def test_a_page_of_more_than_a_sweep_shows_no_command_of_the_sweep_alone(tmp_path: Path) -> None:
    swept, single = tmp_path / "swept", tmp_path / "single"
    for folder in (swept, single):
        folder.mkdir()
        (folder / "0").mkdir()
    (swept / "sweep.json").write_text(json.dumps({"arguments": ["-m", "+experiment=case"], "from": str(tmp_path)}))
    by_folder = {folder / "0": evidence.record() for folder in (swept, single)}
    page = report.write_sweep(by_folder, [swept, single], tmp_path / "page.html", [])
    assert "resume" not in Page(page.read_text()).text


def test_no_name_is_struck_by_the_line_of_the_front() -> None:
    axis = chart.Axis("", str, chart.Scale(0, 10, False))
    dots = [Dot(x, 10 - x, 0, "", None, str(x), f"p{x}", "") for x in range(1, 9)]
    dots += [Dot(x + 0.4, 10.3 - x, 0, "", None, f"{x}.4", f"a longer name {x}", "") for x in range(1, 9)]
    body = chart.scatter(dots, axis, axis).body
    (path,) = re.findall(r'<path class="front" d="M([^"]+)"', body)
    corners = [tuple(map(float, each.split())) for each in path.split("L")]
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="nm">([^<]+)<', body)
    assert len(names) > 8
    for left, baseline, name in names:
        x, y = float(left), float(baseline)
        box = (x, y - 10, x + 6 * len(name), y + 3)
        for (a, b), (c, d) in itertools.pairwise(corners):
            assert max(a, c) < box[0] or min(a, c) > box[2] or max(b, d) < box[1] or min(b, d) > box[3], name


def test_dots_have_the_names_of_their_points_and_no_name_covers_another() -> None:
    axis = chart.Axis("", str, chart.Scale(0, 10, False))
    dots = [Dot(x, y, 0, "", None, f"{x}.{y}", f"p{x}", f"p{x} at length") for x, y in ((1, 5), (5, 5), (5, 9), (2, 1))]
    body = chart.scatter(dots, axis, axis).body
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="nm">([^<]+)<', body)
    assert [name for *_, name in names] == ["p1 at length", "p2 at length", "p5", "p5"]
    crowd = [Dot(5, 5 + k / 100, 0, "", None, str(k), f"a long name {k}", "") for k in range(30)]
    placed = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="nm">', chart.scatter(crowd, axis, axis).body)
    assert len(placed) < 30


def test_the_command_runs_it_again_from_anywhere() -> None:
    run_record = evidence.record(overrides=["+experiment=case", "dims.I=4"])
    assert run.command(run_record) == "python -m runner +experiment=case dims.I=4"
    assert run.command(replace(run_record, config_folders=["/my conf"])) == (
        "python -m runner --config-dir '/my conf' +experiment=case dims.I=4"
    )
    words = shlex.split(run.command(replace(run_record, config_folders=["/a", "/b's", "/c"])))
    assert words[3:6] == ["--config-dir", "/a", "hydra.searchpath=['file:///b\\'s','file:///c']"]


def test_each_reason_for_failure_is_shown_once(tmp_path: Path) -> None:
    text = Page(of_sweep(tmp_path, 40)).text
    assert text.count("dimension 0 (I) of 'A' has size 64, which x=3 does not divide") >= 1
    assert "⊘ invalid" in text
    assert "3 of 40 rows" in text or "1 of 40 rows" in text


def test_a_point_that_never_reached_its_program_has_a_reason() -> None:
    refused = RefusalVerdict(status="failed", expected="too large", refused=None, reason="nothing refused it")
    failed = evidence.record({}, status="failed", overrides=["program=auto", "a=1"], checks=FileChecks(invalid=refused))
    made = evidence.record({"auto": evidence.program()}, overrides=["program=auto", "a=2"])
    points = [measured.MeasuredPoint(str(k), each, each.overrides, None) for k, each in enumerate((failed, made))]
    text = Page(sweep.page("mine", measured.gather(points))).text
    assert "✗ failed invalid failed: nothing refused it 1 of 2 rows" in text


def test_every_status_has_a_look_and_its_colours_on_a_page() -> None:
    assert [status for status, look in LOOKS.items() if look.hue] == list(STATUSES)
    for status in STATUSES:
        assert f".badge.{status}{{" in style_sheet()
        assert f".callout.{status}{{" in style_sheet()


def test_every_text_colour_is_readable_on_its_background() -> None:
    css = style_sheet() + (ROOT / "runner" / "reports" / "show" / "page" / "style.css").read_text("utf-8")
    colours = {name: pair for name, *pair in re.findall(r"--([\w-]+):light-dark\((#\w{6}),(#\w{6})\)", css)}
    on = {
        "ink": ("bg", "soft", "card", "good-bg", "warn-bg", "blue-bg", "odd-bg"),
        "muted": ("bg", "soft", "card", "good-bg"),
        "link": ("bg", "soft", "card"),
        "good": ("bg", "soft", "good-bg"),
        "bad": ("bg", "soft", "bad-bg"),
        "warn": ("bg", "soft", "warn-bg"),
        "odd": ("bg", "soft", "odd-bg"),
        "blue": ("bg", "soft", "card", "blue-bg"),
    }
    for name, grounds in on.items():
        for ground in grounds:
            for k in range(2):
                ratio = _contrast(colours[name][k], colours[ground][k])
                assert ratio >= 4.5, f"--{name} on --{ground} has {ratio:.2f}"


def _contrast(foreground: str, background: str) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""

    def luminance(colour: str) -> float:
        channels = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(foreground), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_an_estimate_is_shown_with_its_parts_and_what_is_unknown(tmp_path: Path) -> None:
    line = LineTime(nodes=["C"], gradient=False, flops=2e6, bytes=1e3, seconds=3e-6, bound="flops")
    moved = CollectiveTime(
        instruction="all-reduce.3", kind="all-reduce", nodes=["C"], axes=["x"], count=2, seconds=9e-6, bound="latency",
        over="the links of x", hidden=1e-6,
    )  # fmt: skip
    estimate = Estimate(
        hardware="H100", seconds=1.1e-5, compute=3e-6, communication=9e-6, hidden=1e-6, overlapped=9e-6,
        bottleneck="the all-reduce of C", fits=False, lines=[line], collectives=[moved],
        unknown=["a sort is not in it"],
    )  # fmt: skip
    record.write(evidence.record({"auto": evidence.program(estimate=estimate)}), tmp_path)
    assert report.main([str(tmp_path)]) == 0
    text = Page((tmp_path / report.PAGE).read_text("utf-8")).text
    assert "auto 11.0 µs and does not fit into the memory" in text
    assert "all-reduce of C over the links of x × 2 latency 9.00 µs 1.00 µs C 2.0 Mflop" in text
    assert "auto: estimate: a sort is not in it" in text
    record.write(evidence.record({"auto": evidence.program()}), tmp_path)
    assert report.main([str(tmp_path)]) == 0
    assert 'id="estimates"' not in (tmp_path / report.PAGE).read_text("utf-8")


def test_a_run_writes_its_page_if_report_is_set(tmp_path: Path) -> None:
    text = "{name: little, arrays: {x: {shape: [8], spec: [x]}}, graph: {y: x + 1}, outputs: {y: [x]}, program: auto}"
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
    ran(text, tmp_path / "without")
    assert not (tmp_path / "without" / report.PAGE).exists()
    ran(text, tmp_path / "with", report=True)
    left = (tmp_path / "with" / report.PAGE).read_bytes()
    assert report.main([str(tmp_path / "with")]) == 0
    assert (tmp_path / "with" / report.PAGE).read_bytes() == left
    (tmp_path / "full" / report.PAGE).mkdir(parents=True)
    run_record = ran(text, tmp_path / "full", report=True).record
    assert run_record.status == "passed"
    assert record.read(tmp_path / "full").warnings == run_record.warnings
    assert [
        warning for warning in run_record.warnings if warning.startswith("there is no page: ")
    ] == run_record.warnings[-1:]


def test_a_sweep_writes_the_pages_of_its_points_and_one_that_links_to_them(tmp_path: Path) -> None:
    points = ("-m", "+experiment=case3_allreduce", "program=auto", "dims.J=4,5", "report=true")
    done = run_command(*points, f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path / report.PAGE}\n" in done.stdout
    links = [a["href"] for name, a in Page((tmp_path / report.PAGE).read_text("utf-8")).elements if name == "a"]
    leading = {link for link in links if link and link.endswith(".html")}
    assert leading == {"0/report.html", "1/report.html"}
    texts = [Page((tmp_path / str(number) / report.PAGE).read_text("utf-8")).text for number in (0, 1)]
    assert texts[0].startswith("case3_allreduce: passed ")
    assert texts[1].startswith("case3_allreduce: invalid ")


def test_a_sentence_keeps_a_number_with_its_unit_and_a_command_is_as_it_is_typed() -> None:
    sentence = tag("p", "the most 24.6 kB, in ", tag("code", "plan.memory=16 GB"))
    assert sentence == "<p>the most 24.6\u00a0kB, in <code>plan.memory=16 GB</code></p>"
