"""Patterns of paths: what they match, and how paths are folded into them."""

from __future__ import annotations

import pytest

from runner.experiment.patterns import fits, folded


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("layers/{0..11}/q", "layers/0/q", True),
        ("layers/{0..11}/q", "layers/11/q", True),
        ("layers/{0..11}/q", "layers/12/q", False),
        ("layers/{0..11}/q", "layers/01/q", False),
        ("layers/{norm,0..2}/q", "layers/norm/q", True),
        ("layers/{norm,0..2}/q", "layers/3/q", False),
        ("layers/{2..0}/q", "layers/1/q", False),
        ("layers/{2..0}/q", "layers//q", False),
        ("layers/{q,k}", "layers/k", True),
        ("**/q", "layers/3/q", True),
    ],
)
def test_a_pattern_matches_its_paths(pattern: str, path: str, expected: bool) -> None:
    assert fits(pattern, path) is expected


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        ([f"p/{i}/{name}" for i in range(12) for name in "qk"], ["p/{0..11}/{q,k}"]),
        (["p/0/q", "p/1/q"], ["p/{0,1}/q"]),
        (["p/9/q", "p/10/q", "p/11/q", "p/20/q"], ["p/{9..11,20}/q"]),
        (["p/01/q", "p/02/q", "p/03/q"], ["p/{01,02,03}/q"]),
        (["p/2/q", "p/1/q", "p/0/q"], ["p/{2,1,0}/q"]),
        (["a", "b", "p/q"], ["a", "b", "p/q"]),
    ],
)
def test_folded_paths_match_these_paths_and_no_others(paths: list[str], patterns: list[str]) -> None:
    assert folded(paths) == patterns
    others = [f"p/{i}/{name}" for i in range(30) for name in "qkv"]
    for path in {*paths, *others}:
        assert any(fits(pattern, path) for pattern in patterns) is (path in paths)
