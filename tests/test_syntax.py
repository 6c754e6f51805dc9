"""The language: the valid parts of an expression, and the refused ones, with the span of the mistake."""

from __future__ import annotations

import ast
import builtins
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.graph.language import printing
from runner.graph.language.syntax import Expression, SyntaxFault, on_one_line, parse
from runner.graph.term import heads, names

ACCEPTED = [
    "A",
    "1",
    "-1.5e3",
    "2j",
    "True",
    "None",
    "'x'",
    "A @ B",
    "A + B - C * D / E // F % G ** H",
    "A & B | C ^ ~D << 1 >> 2",
    "A == B",
    "(a < b) & (b >= c)",
    "A.T",
    "(A @ B).T",
    "A.T.T",
    "ring.acc",
    "A[0]",
    "A[1:2, ::-1]",
    "A[i, None]",
    "A[i:i + 1]",
    "f()",
    "f(x, axis=0)",
    "f(g(x), (1, 2), [3, [4]])",
    "psum(A @ B, ('x', 'y'))",
    "größe * 2",
    "((((A))))",
    "  A  ",
    "A @\n  B",
    "f('#')",
]

REFUSED = {
    "lambda x: x": "a lambda is not part of the language",
    "a if b else c": "an if-expression is not part of the language; use where(condition, a, b)",
    "a and b": "'and'/'or' do not work on arrays; use & and |, with parentheses",
    "a or b": "'and'/'or' do not work on arrays",
    "not a": "'not' does not work on arrays; use ~ or logical_not",
    "(a := b)": "':=' is not part of the language",
    "[x for x in y]": "a comprehension is over one range: [(i, (i + 1) % n) for i in range(n)]",
    "[i for i in range(3) if i]": "a comprehension is over one range: [(i, (i + 1) % n) for i in range(n)]",
    "[i + j for i in range(3) for j in range(3)]": "a comprehension is over one range",
    "x + ...": "'...' belongs in an index only: x[..., 0]",
    "x[..., 0, ...]": "'...' appears twice in one index",
    "(x for x in y)": "a comprehension is not part of the language",
    "{x for x in y}": "a comprehension is not part of the language",
    "{x: x for x in y}": "a comprehension is not part of the language",
    "{1: 2}": "a dict is not part of the language",
    "{1, 2}": "a set is not part of the language",
    "f'{x}'": "an f-string is not part of the language",
    "f(*a)": "'*' before an argument is not part of the language",
    "[*a]": "'*' before an argument is not part of the language",
    "f(**a)": "'**' is not part of the language",
    "f(x=1, x=2)": "the argument 'x' is given twice",
    "a < b < c": "a chained comparison does not work on arrays; use (a < b) & (b < c)",
    "a is b": "'is' and 'in' are not part of the language",
    "a not in b": "'is' and 'in' are not part of the language",
    "b'x'": "b'x' is not part of the language",
    "...": "'...' belongs in an index only: x[..., 0]",
    "await x": "Await is not part of the language",
    "(yield)": "Yield is not part of the language",
    "a.__class__": "attribute '.__class__' is not part of the language",
    "a._x": "attribute '._x' is not part of the language",
    "(a + b).shape": "attribute '.shape' is not part of the language; write shape(a + b)",
    "a.b.c": "attribute '.c' is not part of the language",
    "a.nosuch()": "only operations can be called, by their name: exp(x), not x.exp()",
    "f(x)(y)": "only operations can be called",
    "(lambda: 0)()": "a lambda is not part of the language",
    "a; b": "not a Python expression",
    "a = b": "a line is one expression, and its key the name: write a: b",
    "import os": "not a Python expression",
    "a b": "not a Python expression",
    "(a": "not a Python expression",
    "'a": "not a Python expression",
    "1if": "not a Python expression",
    r"'\d'": "not a Python expression: invalid escape sequence",
    "a # b": "a comment is not part of an expression",
    "": "the expression is empty",
    " \n ": "the expression is empty",
}


def refusal(text: str) -> SyntaxFault:
    with pytest.raises(SyntaxFault) as caught:
        parse(text)
    return caught.value


def outcome(text: str) -> Expression | SyntaxFault:
    try:
        return parse(text)
    except SyntaxFault as fault:
        return fault


def marked(text: str) -> str:
    """Return the text above the carets."""
    fault = refusal(text)
    return on_one_line(text)[fault.start : fault.end]


@pytest.mark.parametrize("text", ACCEPTED)
def test_is_part_of_the_language(text: str) -> None:
    assert printing.text(parse(text).term) == ast.unparse(ast.parse(f"({text.strip()})", mode="eval"))


@pytest.mark.parametrize("text", REFUSED)
def test_python_outside_the_language_is_refused(text: str) -> None:
    assert refusal(text).message.startswith(REFUSED[text])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("A + [x for x in y]", "[x for x in y]"),
        ("größe + ä.__é__", "ä.__é__"),
        ("'日本' + (λ := 1)", "λ := 1"),
        ("日本 @ (ä @ ö).ü", "(ä @ ö).ü"),
        ("f(é, *ß)", "*ß"),
        ("sum(A,\n    axis = lambda: 0)", "lambda: 0"),
        ("A @\n\n  é.size() + 1", "é.size"),
        ("日本 b", "b"),
        ("é @ +", "+"),
        ("A @ @ B", "@"),
        ("sum(A, axis=0, axis=1)", "axis=1"),
        ("A\n# the bias\n+ B", "# the bias + B"),
    ],
)
def test_the_carets_are_under_the_fault(text: str, part: str) -> None:
    assert marked(text) == part


def test_a_comment_does_not_swallow_the_lines_below_it() -> None:
    # Joined to one line, this would read `A`.
    assert "comment" in refusal("A\n# twice\n+ A").message


@pytest.mark.parametrize(
    "text",
    [
        "-" * 5000 + "a",
        "+".join(["a"] * 5000),
        "a" + "[0]" * 3000,
        "f(" * 150 + "a" + ")" * 150,
        "(" * 5000 + "a",
        "~" * 200 + "a",
    ],
)
def test_expressions_nested_too_deep_are_refused(text: str) -> None:
    assert refusal(text)


def test_a_sum_of_a_hundred_terms_is_not_too_deep() -> None:
    text = " + ".join(["a"] * 100)
    assert printing.text(parse(text).term) == text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text("ab.()[]{}:=,*'\"#\\ \n\tlambdifor1+-@<é日", max_size=30))
@example("a\x00b")
@example("\ud800")
@example("a\rb")
@example("\f\\")
@example("9" * 5000)
@example("'\\N{x}'")
def test_any_text_gives_an_expression_or_a_fault_inside_it(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed = outcome(text)
    if isinstance(parsed, SyntaxFault):
        assert parsed.message
        assert 0 <= parsed.start < parsed.end <= max(len(on_one_line(text)), 1)
    else:
        assert parsed.text == on_one_line(text)


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "open('x')", "exec('1')", "print(1)"])
def test_parsing_runs_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_: object, **__: object) -> None:
        raise AssertionError("ran")

    for name in ("open", "exec", "eval", "print"):
        monkeypatch.setattr(builtins, name, ran)
    assert outcome(text)


def test_the_names_that_an_expression_reads_stand_leftmost_first() -> None:
    term = parse("psum(B @ A, 'x') + ring.acc[i] + A").term
    assert names(term) == ["B", "A", "ring.acc", "i", "A"]
    assert heads(term) == ["B", "A", "ring", "i", "A"]
