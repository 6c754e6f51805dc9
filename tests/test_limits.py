"""YAML that is larger than any experiment is refused before anything expands it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runner.config import limits
from runner.config.limits import refusal
from tests.command import ROOT

BOMB = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + "".join(
    f"{here}: &{here} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, here in zip("abcdefghi", "bcdefghij", strict=True)
)

TOO_MUCH = {
    "a: " + "x" * 1_000_001: (
        1,
        1,
        "the file has 1.0 MB; keep many numbers in a .npy file, and write init: load('FILE.npy')",
    ),
    BOMB: (5, 44, "the file holds more than 100,000 values, with every alias expanded"),
    "a: " + "[" * 200 + "]" * 200: (1, 103, "nested more than 100 levels deep"),
    "a: &a\n  b: *a\n": (2, 6, "'*a' is inside the value that it names, so it would never end"),
    "a: [" + "1, " * 100_001 + "1]": (1, 300_002, "the file holds more than 100,000 values"),
}


@pytest.mark.parametrize("text", TOO_MUCH, ids=range(len(TOO_MUCH)))
def test_yaml_beyond_a_limit_is_refused(text: str) -> None:
    assert refusal(text) == TOO_MUCH[text]


@pytest.mark.parametrize(
    "text", ["", "a: [", "a: &a 1\nb: *a\n", "a: *nothing\n", "? [1, 2]\n: 3\n", "a: &a [1]\nb: [*a, *a]\n"]
)
def test_yaml_within_the_limits_is_accepted(text: str) -> None:
    assert refusal(text) is None


@pytest.mark.parametrize("file", sorted((ROOT / "conf").rglob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_files_are_within_the_limits(file: Path) -> None:
    assert refusal(file.read_text(encoding="utf-8")) is None


def count(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(count(each) for pair in value.items() for each in pair)
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


values = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", min_size=1), inner),
    max_leaves=30,
)


@given(values, st.integers(1, 40))
def test_the_limit_of_values_is_exact(value: object, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_NODES", most)
        excess = refusal(yaml.safe_dump(value))
    assert (excess is not None) == (count(value) > most)
