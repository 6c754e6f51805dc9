"""An explanation as text: a row for each collective, its reason in brief under it, within the columns."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest

from runner.app.explaining import Explained
from runner.compiled.evidence.model import Reason
from runner.compiled.evidence.words import summary
from runner.compiled.explanation import modules
from runner.compiled.explanation.model import Explanation
from runner.reports.show import explained
from runner.reports.show.page import explanation as page
from tests.explained import STEP

KEYS = ["params['w']", "params['b']", "params['emb']", "x", "y"]
LISTED = "params['w'], params['b'], params['emb'] and 2 other keys"
NEED = f"the product in model.py:7 (backward) sums over a dimension of 64, which {LISTED} shard over data"
WHOLE = f"{NEED}; the loop in model.py:9 needs all of dimension 0, which x shards over data; Shardy had planned a sum"


@pytest.fixture
def explanation() -> Explanation:
    plain = modules.explain(STEP, "step.txt")
    reason = Reason(text=WHOLE, by="operation", keys=KEYS, instead=["a sum"])
    return replace(plain, placed=[replace(entry, why=reason) for entry in plain.placed or []])


@pytest.mark.parametrize(
    ("text", "brief"),
    [
        (NEED, "the product sums over a dimension of 64, which params['w'] and 4 others shard over data"),
        ("the product in model.py:70 needs x", "the product in model.py:70 needs x"),
        ("a sum, which params['w'] and x shard over data", "a sum, which params['w'] and x shard over data"),
        ("a sum, which x, params['w'] and y shard over data", "a sum, which x and 2 others shard over data"),
        ("the sum in model.py:70, in model.py:7", "the sum in model.py:70"),
        ("model.py:7 needs all of dimension 0", "model.py:7 needs all of dimension 0"),
        ("not explained: Shardy plans nothing", "not explained: Shardy plans nothing"),
    ],
)
def test_a_reason_in_brief_names_its_first_key_and_not_the_collectives_own_line(text: str, brief: str) -> None:
    assert summary(Reason(text=text, by="operation", keys=KEYS), ["model.py:7"]) == brief


def test_a_reason_in_brief_says_that_there_is_more(explanation: Explanation) -> None:
    why = explanation.moving[0].why
    assert why is not None
    assert summary(why, ["model.py:7"]).endswith("shard over data (and 1 more reason) (Shardy plans otherwise)")


def test_each_reason_stands_under_its_collective(explanation: Explanation) -> None:
    _, _, head, row, beneath, *_ = Explained.of(explanation).text(width=200).splitlines()
    assert head.split()[:3] == ["collective", "line", "over"]
    assert row.split() == ["all-gather", "model.py:7", "data", "12", "18.4", "kB", "inserted"]
    assert beneath.startswith("    the product sums over a dimension of 64, which params['w'] and 4 others")


def test_where_a_reason_is_missing_the_moved_value_is_named(explanation: Explanation) -> None:
    first, *others = explanation.placed or []
    some = replace(explanation, placed=[first, *(replace(entry, why=None) for entry in others)])
    _, _, head, row, *_ = Explained.of(some).text(width=200).splitlines()
    assert head.split()[3] == "of"
    assert row.split()[3] == "params['w']"


def test_all_rows_have_the_whole_reason(explanation: Explanation) -> None:
    text = Explained.of(explanation).text(full=True, width=400)
    assert WHOLE in text
    assert "in brief" not in text


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("full", [False, True])
def test_an_explanation_fits_the_width_that_is_asked_for(explanation: Explanation, width: int, full: bool) -> None:
    lines = Explained.of(explanation).text(width=width, full=full).splitlines()
    assert max(map(len, lines)) <= width


def test_what_is_printed_without_a_terminal_fits_100_columns(explanation: Explanation) -> None:
    assert max(map(len, str(Explained.of(explanation)).splitlines())) <= 100


def test_lines_of_one_file_have_its_name_once(explanation: Explanation) -> None:
    entry = replace(explanation.moving[0], nodes=["a.py:1", "a.py:22", "b.py:3", "w"], gradient=True)
    assert explained.line_of(entry) == "a.py:1, :22, b.py:3, w (backward)"


def test_sentences_that_differ_in_an_instruction_are_one(explanation: Explanation) -> None:
    unknown = [f"call.{number} calls ring, which may communicate" for number in range(3)]
    assert explained.notes(replace(explanation, unknown=[*unknown, "a loop"], notes=[])) == [
        "call.0 calls ring, which may communicate (and so for 2 others)",
        "a loop",
    ]


def test_the_page_has_the_whole_reason_under_each_collective(explanation: Explanation) -> None:
    shown = page.document(explanation)
    _, gather, reduce = shown.split('<tr class="explained">')
    assert WHOLE in html.unescape(gather)
    assert WHOLE in html.unescape(reduce)
