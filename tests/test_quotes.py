"""Strings in a program's source have double quotes wherever Python's own tokenizer finds a string that can."""

import io
import tokenize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.programs import source


def by_tokens(text):
    """Return the same from Python's tokenizer, which takes ten times as long."""
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        string = token.string
        if token.type == tokenize.STRING and string[0] == "'" and string[:3] != "'''" and '"' not in string:
            token = token._replace(string=f'"{string[1:-1]}"')
        tokens.append(token)
    return tokenize.untokenize(tokens)


PIECES = (
    "'x'", "''", '"it\'s"', '""', "'a \"b\"'", r"'it\'s'", r'"a \" \' b"', r"'\\'", r'"\\"', "r'raw'", "rb'\\''",
    "f'{a}'", "b'x'", "'''three ' in it'''", '"""it\'s \' three"""', r'"""\""" and \' more"""',
    "r'''\\''''", "''''a'''",
    '"""a\nb \'c\'\n"""', "(1, 'x', None)", "P('x', ('y', 'z'))", "name", "1.5e-3", "['a']", "{'a': 'b'}",
)  # fmt: skip
COMMENTS = ("", "  # the user's", "  # 'quoted'", '  # a " alone', "  # ''' and \"\"\"")


def test_strings_are_in_double_quotes():
    assert (
        source.module("P('x', None)", "a = 'it is'  # a 'comment'")
        == 'P("x", None)\n\n\na = "it is"  # a \'comment\'\n'
    )


@pytest.mark.parametrize("piece", PIECES)
def test_each_way_to_write_a_string(piece):
    assert source.module(f"a = {piece}") == by_tokens(f"a = {piece}\n")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.text("'\"\\#ab ", max_size=5), st.sampled_from(COMMENTS))))
def test_the_text_equals_the_tokenizers(lines):
    text = "\n".join(f"a = [{piece}, {written!r}]{comment}" for piece, written, comment in lines) + "\n"
    assert source.module(text.removesuffix("\n")) == by_tokens(text)
