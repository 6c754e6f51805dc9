"""The lines of a function that was read from Python cross between processes as data, and mean what their text would."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from runner.base import codec
from runner.base.layout import Spec
from runner.experiment.functions import RESULT
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop, TracedTerm, UserSpelling
from runner.graph.language.lines import every_line
from runner.graph.language.printing import text
from runner.graph.language.syntax import parse
from runner.graph.model import LoopForm, Region
from runner.graph.source import Checkpoint
from runner.graph.term import Const, Name, Term
from tests import harness, traced
from tests.command import ROOT

ARRAYS = {name: {"shape": [4, 4], "spec": []} for name in ("a", "b")}


def term(written: str) -> Term:
    return parse(written).term


def terms(**texts: str) -> dict[str, Term]:
    return {name: term(written) for name, written in texts.items()}


def lines(**texts: str) -> tuple[TracedLine, ...]:
    return tuple(TracedTerm(name, term) for name, term in terms(**texts).items())


STEP = (*lines(h="tanh(carry @ slice)", next_carry="h * 0.5"), TracedTerm("carry", Name("next_carry")))
SCAN = TracedLoop(
    "scan", LoopForm(4, "step", {"stacked": "h"}), STEP, terms(carry="a + 1.0"), terms(slice="stack((a, b, a, b))")
)  # fmt: skip
WHILE = TracedLoop(
    "until",
    LoopForm(None, going="going"),
    (
        *lines(next_x="x * 2", more="sum(next_x) < 9"),
        TracedTerm("x", Name("next_x")),
        TracedTerm("going", Name("more")),
    ),
    terms(x="b", going="True"),
)  # fmt: skip
LINES = TracedLines(
    ("a", "b"),
    (
        SCAN,
        *lines(
            y="einsum('ij,jk->ik', scan.carry, b)",
            noise="normal(wrap_key_data(zeros((2,), 'uint32')), (4, 4))",
            z="where(y[..., None, 1:] < -inf, -1.5, y.at[0].add(3))[0, 0]",
        ),
        WHILE,
    ),
    ("scan.carry", "scan.stacked", "z", "until.x"),
)
REGION = Region(("x",), (Spec.of(["x"]), Spec.of([None, ["x", "y"]])), (Spec(),), check_vma=False)


def crossed(kind: type[Any], value: Any) -> Any:
    return codec.build(kind, json.loads(json.dumps(codec.plain(value))))


def test_lines_cross_as_they_are() -> None:
    assert crossed(TracedLines, LINES) == LINES


def test_a_shard_map_crosses_with_its_specs() -> None:
    loop = TracedLoop(
        "shard_map",
        LoopForm(1, stack={"joined": "y"}, region=REGION),
        lines(y="psum(shard, 'x')"),
        over=terms(shard="a"),
    )
    function = TracedLines(("a",), (loop,), ("shard_map.joined",))
    assert crossed(TracedLines, function) == function


@pytest.mark.parametrize(
    "written",
    ["1e309", "-1e309", "1e309 - 1e309", "2j", "1 + 1e309j", "True", "None", "x[...]", "x[:, ::2, -1]", "x.T", "'a b'",
     "[(0, 1), (1, 0)]", "()", "associative_scan(lambda p, q: p * q, x, axis=-1)", "x.at[i, None].set(0, mode='drop')"],
)  # fmt: skip
def test_a_term_crosses_as_it_is(written: str) -> None:
    spelling = UserSpelling({term(written): "it"})
    assert crossed(UserSpelling, spelling) == spelling


def test_a_number_that_is_not_a_number_crosses() -> None:
    nan = TracedLines((), (TracedTerm("y", Const(float("nan"))),), ("y",))
    assert crossed(TracedLines, nan) == nan


def yaml_of(lines: Iterable[TracedLine]) -> dict[str, Any]:
    """Return what a user would write for the lines."""
    return {line.name: _yaml_of_loop(line) if isinstance(line, TracedLoop) else text(line.term) for line in lines}


def _yaml_of_loop(loop: TracedLoop) -> dict[str, Any]:
    form = loop.form
    kind = {"while": form.going} if form.steps is None else {"repeat": form.steps, "index": form.index, "unroll": False}
    begins = {"carry": loop.carry, "over": loop.over}
    parts = {part: {name: text(first) for name, first in given.items()} for part, given in begins.items() if given}
    stack = {"stack": dict(form.stack)} if form.stack else {}
    return {**kind, **parts, "body": yaml_of(loop.body), **stack}


def written(lines: TracedLines) -> Experiment:
    """Return the experiment whose function a user has written with these lines."""
    results = [f"result_{position}" for position in range(len(lines.results))]
    result = f"({', '.join(lines.results)})"
    return harness.experiment(
        {
            "arrays": ARRAYS,
            "functions": {"called": {"of": ["a", "b"], **yaml_of(lines.lines), RESULT: result}},
            "graph": {", ".join(results): "called(a, b)"},
            "outputs": {result: [] for result in results},
            "program": "auto",
        }
    )


def test_a_function_that_was_read_has_the_lines_that_its_text_would_have() -> None:
    read, _ = traced.experiment(LINES, "graph", ARRAYS, program="auto")
    assert read.graph == written(LINES).graph
    assert read.computed("graph") == written(LINES).computed("graph")
    origins, of_text = ([line.origin for line in every_line(each.computed("graph"))] for each in (read, written(LINES)))
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
    scan, every = edited.lines[0], traced.texts({line.name: line for line in edited.lines})
    assert isinstance(scan, TracedLoop)
    values = {"y": every["y"], "carry": every["scan"]["carry"]["carry"], "h": every["scan"]["body"]["h"]}
    before = {"y": "einsum('ij,jk->ik', scan.carry, b)", "carry": "a + 1.0", "h": "tanh(carry @ slice)", "repeat": 4}
    assert {**values, "repeat": scan.form.steps} == {**before, path[-1]: changed}


@pytest.mark.parametrize("path", [("no",), ("scan",), ("scan", "body"), ("y", "repeat"), ("scan", "body", "no")])
def test_a_line_that_a_function_does_not_have_cannot_be_edited(path: tuple[str, ...]) -> None:
    assert LINES.with_line(path, term("a")) is None


def test_other_results_of_a_function_are_names() -> None:
    edited = LINES.with_line((RESULT,), term("(scan.carry, z, z, until.x)"))
    assert edited is not None
    assert edited.results == ("scan.carry", "z", "z", "until.x")
    assert LINES.with_line((RESULT,), term("(scan.carry, z * 2, z, until.x)")) is None


def test_how_a_loop_of_derived_lines_is_taken_crosses_too() -> None:
    loop = replace(SCAN, form=replace(SCAN.form, unroll=True, checkpoint=Checkpoint("save_only_these_names", ("h",))))
    derived = TracedLines((), (loop,), ())
    assert TracedLines.of(json.loads(json.dumps(derived.json()))) == derived


PARSING = {
    # What a user's YAML has.
    "experiment/plain.py", "experiment/sections.py", "experiment/repeats.py",
    "experiment/functions.py", "experiment/enumeration.py", "experiment/reader.py",
    "worker/functions/lines_with_calls.py",
    # What an edit of a line is to be in the file; a result's part of the text of several.
    "experiment/imported.py", "checks/edits/inscribed.py", "app/flow/recording.py",
    # Templates of terms, which are constants of the module.
    "programs/derivation/terms.py", "checks/edits/missing.py",
}  # fmt: skip
"""The modules that make terms of text."""

PRINTING = {
    # Programs, derived lines, and what a person sees.
    "programs/emit.py", "programs/derivation/section.py", "worker/types.py",
    "experiment/data.py", "experiment/source_text.py", "compiled/why/notation.py", "compiled/why/asked_for.py",
    # Edits, in words and as a file has them.
    "checks/edits/section.py", "checks/edits/changed_parts.py", "checks/edits/missing.py",
    # Lines that a file is spread out to, or that a trace names.
    "experiment/enumeration.py", "experiment/repeats.py", "experiment/value_names.py",
}  # fmt: skip
"""The modules that make text of terms."""

PARSES = {
    "runner.graph.language.syntax": {"parse"},
    "runner.experiment.plain": {"read_expression"},
    "runner.experiment.sections": {"read_section"},
}
PRINTS = {"runner.graph.language.printing": {"text", "written"}}


def importing(tree: ast.AST, functions: Mapping[str, set[str]]) -> set[str]:
    """Return which of these functions a module imports, by name or with their module."""
    imported: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        names = {alias.name for alias in node.names}
        imported |= names & functions.get(node.module, set())
        imported |= names & {module.rpartition(".")[2] for module in functions if module.startswith(f"{node.module}.")}
    return imported


def users(functions: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that import one of these functions, apart from the language's own."""
    folder = ROOT / "runner"
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    return {
        name
        for name, file in files.items()
        if not name.startswith("graph/language/") and importing(ast.parse(file.read_text(encoding="utf-8")), functions)
    }


@pytest.mark.in_turn
def test_text_is_parsed_only_where_a_user_wrote_it() -> None:
    assert users(PARSES) == PARSING


@pytest.mark.in_turn
def test_terms_are_printed_only_for_programs_files_and_persons() -> None:
    assert users(PRINTS) == PRINTING


@pytest.mark.parametrize("text_of_module", [
    "from runner.graph.language.printing import is_within, text\n",
    "from runner.graph.language import printing\n",
])  # fmt: skip
def test_the_search_finds_modules_that_print(text_of_module: str) -> None:
    assert importing(ast.parse(text_of_module), PRINTS)
    assert not importing(ast.parse("from runner.graph.language.printing import is_within\n"), PRINTS)
