"""The lines of a function that was read from Python cross between processes as data, and mean what their text would."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from runner import codec
from runner.experiment.functions import RESULT
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop, UserSpelling
from runner.graph.model import Region
from runner.graph.term import Const, Name, Term
from runner.language.printing import text
from runner.language.syntax import parse
from runner.layout import Spec
from tests import harness, traced
from tests.command import ROOT

ARRAYS = {name: {"shape": [4, 4], "spec": []} for name in ("a", "b")}


def term(written: str) -> Term:
    return parse(written).term


def terms(**texts: str) -> dict[str, Term]:
    return {name: term(written) for name, written in texts.items()}


STEP: dict[str, TracedLine] = {**terms(h="tanh(carry @ slice)", next_carry="h * 0.5"), "carry": Name("next_carry")}
SCAN = TracedLoop(
    4, STEP, "step", terms(carry="a + 1.0"), terms(slice="stack((a, b, a, b))"), {"stacked": "h"}
)  # fmt: skip
WHILE = TracedLoop(
    None, {**terms(next_x="x * 2", more="sum(next_x) < 9"), "x": Name("next_x"), "going": Name("more")},
    carry=terms(x="b", going="True"), going="going",
)  # fmt: skip
LINES = TracedLines(
    ("a", "b"),
    {
        "scan": SCAN,
        **terms(
            y="einsum('ij,jk->ik', scan.carry, b)",
            noise="normal(wrap_key_data(zeros((2,), 'uint32')), (4, 4))",
            z="where(y[..., None, 1:] < -inf, -1.5, y.at[0].add(3))[0, 0]",
        ),
        "until": WHILE,
    },
    ("scan.carry", "scan.stacked", "z", "until.x"),
)
REGION = Region(("x",), (Spec.of(["x"]), Spec.of([None, ["x", "y"]])), (Spec(),), check_vma=False)


def crossed(kind: type[Any], value: Any) -> Any:
    return codec.build(kind, json.loads(json.dumps(codec.plain(value))))


def test_lines_cross_as_they_are() -> None:
    assert crossed(TracedLines, LINES) == LINES


def test_a_shard_map_crosses_with_its_specs() -> None:
    loop = TracedLoop(1, terms(y="psum(shard, 'x')"), over=terms(shard="a"), stack={"joined": "y"}, region=REGION)
    lines = TracedLines(("a",), {"shard_map": loop}, ("shard_map.joined",))
    assert crossed(TracedLines, lines) == lines


@pytest.mark.parametrize(
    "written",
    ["1e309", "-1e309", "1e309 - 1e309", "2j", "1 + 1e309j", "True", "None", "x[...]", "x[:, ::2, -1]", "x.T", "'a b'",
     "[(0, 1), (1, 0)]", "()", "associative_scan(lambda p, q: p * q, x, axis=-1)", "x.at[i, None].set(0, mode='drop')"],
)  # fmt: skip
def test_a_term_crosses_as_it_is(written: str) -> None:
    spelling = UserSpelling({term(written): "it"})
    assert crossed(UserSpelling, spelling) == spelling


def test_a_number_that_is_not_a_number_crosses() -> None:
    nan = TracedLines((), {"y": Const(float("nan"))}, ("y",))
    assert crossed(TracedLines, nan) == nan


def yaml_of(lines: dict[str, Any]) -> dict[str, Any]:
    """Return what a user would write for the lines."""
    return {name: _yaml_of_loop(line) if isinstance(line, TracedLoop) else text(line) for name, line in lines.items()}


def _yaml_of_loop(loop: TracedLoop) -> dict[str, Any]:
    kind = {"while": loop.going} if loop.steps is None else {"repeat": loop.steps, "index": loop.index, "unroll": False}
    parts = {part: yaml_of(dict(given)) for part, given in (("carry", loop.carry), ("over", loop.over)) if given}
    stack = {"stack": dict(loop.stack)} if loop.stack else {}
    return {**kind, **parts, "body": yaml_of(dict(loop.body)), **stack}


def written(lines: TracedLines) -> Experiment:
    """Return the experiment whose function a user has written with these lines."""
    results = [f"result_{position}" for position in range(len(lines.results))]
    result = f"({', '.join(lines.results)})"
    return harness.experiment(
        {
            "arrays": ARRAYS,
            "functions": {"called": {"of": ["a", "b"], **yaml_of(dict(lines.lines)), RESULT: result}},
            "graph": {", ".join(results): "called(a, b)"},
            "outputs": {result: [] for result in results},
            "program": "auto",
        }
    )


def test_a_function_that_was_read_has_the_lines_that_its_text_would_have() -> None:
    read, _ = traced.experiment(LINES, "graph", ARRAYS, program="auto")
    assert read.lines("graph") == written(LINES).lines("graph")
    assert read.computed("graph") == written(LINES).computed("graph")
    origins, of_text = ([line.line.origin for line in each.lines("graph")] for each in (read, written(LINES)))
    assert origins == of_text


@pytest.mark.parametrize(
    ("path", "value", "changed"),
    [
        (("y",), term("a @ b"), "a @ b"),
        (("scan", "repeat"), 3, 3),
        (("scan", "carry", "carry"), term("b"), "b"),
        (("scan", "body", "h"), term("sin(slice)"), "sin(slice)"),
    ],
)
def test_a_line_of_a_function_is_edited_where_it_stands(path: tuple[str, ...], value: Any, changed: Any) -> None:
    edited = LINES.with_line(path, value)
    assert edited is not None
    scan = edited.lines["scan"]
    assert isinstance(scan, TracedLoop)
    values = traced.texts({"y": edited.lines["y"], "carry": scan.carry["carry"], "h": scan.body["h"]})
    before = {"y": text(LINES.lines["y"]), "carry": "a + 1.0", "h": "tanh(carry @ slice)", "repeat": 4}  # pyright: ignore[reportArgumentType]
    assert {**values, "repeat": scan.steps} == {**before, path[-1]: changed}


@pytest.mark.parametrize("path", [("no",), ("scan",), ("scan", "body"), ("y", "repeat"), ("scan", "body", "no")])
def test_a_line_that_a_function_does_not_have_cannot_be_edited(path: tuple[str, ...]) -> None:
    assert LINES.with_line(path, term("a")) is None


def test_other_results_of_a_function_are_names() -> None:
    edited = LINES.with_line((RESULT,), term("(scan.carry, z, z, until.x)"))
    assert edited is not None
    assert edited.results == ("scan.carry", "z", "z", "until.x")
    assert LINES.with_line((RESULT,), term("(scan.carry, z * 2, z, until.x)")) is None


READERS = ("jaxprs.py", "primitives.py", "functions.py", "spelled.py", "trips.py")
"""The modules of the worker that read a function."""

PRINTING = re.compile(r"language\.printing import (?!is_within$)|Expression\.of|read_expression|_writing", re.MULTILINE)


@pytest.mark.parametrize("name", READERS)
def test_what_reads_a_function_prints_no_line(name: str) -> None:
    assert PRINTING.findall((ROOT / "runner" / "worker" / name).read_text(encoding="utf-8")) == []


def test_the_search_for_printing_finds_it() -> None:
    assert PRINTING.search("from runner.language.printing import text\n")
    assert PRINTING.search("from runner.language.printing import is_within, text\n")
