"""Terms: an expression as data, its printing, and the substitution of its names."""

from __future__ import annotations

import ast

import pytest

from runner.graph.language.printing import text
from runner.graph.language.syntax import Expression, SyntaxFault, parse
from runner.graph.term import Apply, Const, Name, Term, calls, characters, placed, substituted, within
from tests.samples import SAMPLES

VALUES: dict[str, Term] = {
    "A": Name("a"), "ring": Name("outer_ring"), "n": Const(3), "loop.acc": Name("acc_2"), "loop.T": Name("turned"),
}  # fmt: skip


WRITTEN = [each for some in SAMPLES.values() for each in some]


def test_a_term_is_printed_as_python_prints_it() -> None:
    for written in WRITTEN:
        assert text(parse(written).term) == ast.unparse(ast.parse(written, mode="eval"))


@pytest.mark.parametrize(
    ("written", "put"),
    [
        ("A @ B + n", "a @ B + 3"),
        ("sum(A, axis=n)", "sum(a, axis=3)"),
        ("A.T", "a.T"),
        ("ring.acc + ring.T", "outer_ring.acc + outer_ring.T"),
        ("loop.acc + loop.T + loop.other", "acc_2 + turned + loop.other"),
        ("n.acc", "n.acc"),
        ("A[n:, ..., :n]", "a[3:, ..., :3]"),
        ("A.at[n].add(ring.acc)", "a.at[3].add(outer_ring.acc)"),
        ("associative_scan(lambda A, b: A * b + n, A)", "associative_scan(lambda A, b: A * b + 3, a)"),
        ("[(n, n + i) for n in range(n)]", "[(n, n + i) for n in range(3)]"),
        ("A(A)", "A(a)"),
    ],
)
def test_values_replace_names(written: str, put: str) -> None:
    assert text(substituted(parse(written).term, VALUES.get)) == put


def test_a_term_without_replaced_names_is_the_same_object() -> None:
    term = parse("tanh(B)[0] + 1").term
    assert substituted(term, VALUES.get) is term


def test_a_replacement_has_the_span_of_the_name() -> None:
    term = substituted(parse("1 + ä * A").term, {"A": parse("b + c * d").term}.get)
    assert isinstance(term, Apply)
    product = term.operands[1]
    assert isinstance(product, Apply)
    assert {part.at for part in within(product.operands[1])} == {(9, 10)}
    assert characters("1 + ä * A", (9, 10)) == (8, 9)


def test_a_placed_term_is_equal() -> None:
    term = parse("A.at[i, 1:].set(v, mode='drop')").term
    moved = placed(term, (2, 5))
    assert moved == term
    assert {part.at for part in within(moved)} == {(2, 5)}
    assert {part.at for part in within(placed(term, None))} == {None}


def test_a_call_has_the_name_that_is_called_and_not_that_of_an_operator() -> None:
    assert calls(parse("add(a, b)").term, ("add",))
    assert not calls(parse("a + b").term, ("add",))
    assert not calls(parse("index[0]").term, ("index",))


def test_a_printed_term_has_the_spans_of_the_parsed_text() -> None:
    for written in WRITTEN:
        printed = Expression.of(parse(written).term)
        read = parse(printed.text)
        assert printed == read
        assert [part.at for part in within(printed.term)] == [part.at for part in within(read.term)], written


def test_a_term_nested_too_deep_is_refused_before_printing() -> None:
    term: Term = Name("A")
    for _ in range(101):
        term = Apply("tanh", (term,))
    with pytest.raises(SyntaxFault, match="nested more than 100 levels deep"):
        Expression.of(term)


def test_literals_that_python_calls_equal_are_distinct() -> None:
    literals = [Const(1), Const(1.0), Const(True), Const(0.0), Const(-0.0), Const("1"), Const(float("nan")), Const(...)]
    assert len(set(literals)) == len(literals)
    assert Const(1, at=(0, 1)) == Const(1)
    assert parse("full(4, 1)").term != parse("full(4, 1.0)").term
