"""A table fits its width: cells continue below, columns move below, and nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.reports.show import table
from runner.reports.show.table import StatusCell, Table, status_cell


def printed(head: list[str], rows: list[list[str]], room: int | None = None) -> list[str]:
    lines = table.lines(Table(head, rows), room)
    return ["".join(text for text, _ in line) for line in lines]


HEAD = ["name", "what it says", "n"]
ROWS = [["a", "some words that are long", "1"], ["b", "few", "22"]]


def test_a_table_is_as_wide_as_it_needs() -> None:
    expected = [
        "name  what it says              n",
        "a     some words that are long  1",
        "b     few                       22",
    ]
    assert printed(HEAD, ROWS) == printed(HEAD, ROWS, 34) == expected


def test_a_text_stands_under_its_row() -> None:
    beneath = Table(["name", "n"], [["a", "1"], ["b", "2"]], beneath=["", "why b is here at all"])
    lines = ["".join(text for text, _ in line) for line in table.lines(beneath, 20)]
    assert lines == ["name  n", "a     1", "b     2", "    why b is here at", "    all"]


def test_a_long_cell_continues_below() -> None:
    assert printed(HEAD, ROWS, 28) == [
        "name  what it says        n",
        "a     some words that     1",
        "      are long",
        "b     few                 22",
    ]


def test_a_wide_table_is_split_into_several_with_the_same_first_column() -> None:
    rows = [["auto", "passed", "passed"], ["vmap", "failed", "failed"]]
    assert printed(["program", "status", "value"], rows, 18) == [
        "program  status",
        "auto     passed",
        "vmap     failed",
        "",
        "program  value",
        "auto     passed",
        "vmap     failed",
    ]


def test_rows_are_numbered_if_the_first_column_is_not_unique() -> None:
    assert printed(["kind", "of", "how"], [["all-reduce", "C", "inserted"], ["all-reduce", "D", "written"]], 20) == [
        "#  kind        of",
        "1  all-reduce  C",
        "2  all-reduce  D",
        "",
        "#  how",
        "1  inserted",
        "2  written",
    ]


def test_styles_stay_with_their_texts() -> None:
    assert table.lines(Table(["status"], [[status_cell("passed")]])) == [[("status", "bold")], [("passed", "green")]]


words = st.text("abcdefgh", min_size=1, max_size=12)
cells = st.lists(words, max_size=6).map(" ".join)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=5)))
def test_nothing_is_lost_and_no_line_is_too_wide(rows: list[list[str]]) -> None:
    head = [f"h{k}" for k in range(len(rows[0]))]
    for room in (30, 40, 80):
        lines = printed(head, rows, room)
        assert max(map(len, lines)) <= room
        letters = re.findall("[a-h]+", " ".join(lines))
        for row in rows:
            for cell in row[1:]:
                assert all(word in letters for word in cell.split())


@pytest.mark.parametrize("room", [None, 20])
def test_a_table_without_rows_has_its_head(room: int | None) -> None:
    assert printed(HEAD, [], room)[0].startswith("name")


def test_a_table_in_markdown_has_its_texts_alone() -> None:
    assert table.markdown(Table(["name", "status"], [["a|b", StatusCell("most", "failed")]])) == [
        "| name | status |",
        "|---|---|",
        "| a\\|b | most |",
    ]


def test_columns_of_one_value_become_a_sentence_where_the_table_is_too_wide() -> None:
    rows = [["w1", "all-gather", "inserted", "64 B"], ["w2", "all-gather", "inserted", "96 B"]]
    assert printed(["of", "collective", "how", "sends"], rows, 26) == [
        "of  sends",
        "w1  64 B",
        "w2  96 B",
        "in every row: collective",
        "  all-gather, how inserted",
    ]


def test_a_column_becomes_headings_where_the_table_is_too_wide() -> None:
    rows = [["gather", "w1", "auto"], ["reduce", "y", "auto, explicit"], ["gather", "w2", "auto"]]
    grouped = Table(["collective", "of", "programs"], rows, grouping=("programs",))
    assert ["".join(text for text, _ in line) for line in table.lines(grouped, 20)] == [
        "collective  of",
        "programs: auto",
        "gather      w1",
        "gather      w2",
        "programs: auto,",
        "    explicit",
        "reduce      y",
    ]


@pytest.mark.parametrize("width", range(20, 60))
def test_no_number_is_parted_from_its_unit_and_no_shape_is_broken(width: int) -> None:
    whole = ("24.6 kB", "[2, 32, 8]", "P('x', None)", "852,016 flops", "6 more", "1.2 ms")
    text = f"w3 {whole[1]} {whole[2]} sends {whole[0]}, computes {whole[3]} in {whole[5]}; {whole[4]}"
    broken = table.wrapped(text, width)
    assert all(any(part in line for line in broken) for part in whole)
    assert " ".join(line.strip() for line in broken) == text
    assert max(map(len, broken)) <= width
