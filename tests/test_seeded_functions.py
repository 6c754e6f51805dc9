"""A mistake in a function that has a reference is named by the line that was changed, or by no line."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.mistakes import __main__ as mistakes
from benchmarks.mistakes.case import Case
from runner.link.workers import Workers

NAMED = [
    ("nucleus", 0), ("nucleus", 1), ("variational", 0), ("clusters", 1), ("correlated", 0), ("largest", 1),
    ("checkerboard", 0), ("checkerboard", 1),
]  # fmt: skip
"""Functions of `benchmarks.mistakes.mixed`, and the numbers of their mistakes."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


def lines_of(name: str, number: int, folder: Path, workers: Workers) -> tuple[str, int, list[int]]:
    """The status of a function with a mistake, the mistake's line, and the lines that are named."""
    family = importlib.import_module("benchmarks.mistakes.mixed")
    cases: tuple[Case, ...] = family.CASES
    at, case = next((at, case) for at, case in enumerate(cases) if case.name == name)
    broken, line = case.broken(Path(str(family.__file__)).read_text("utf-8"), case.mistakes[number])
    module = mistakes.imported(broken, f"mixed_{name}", folder, number)
    record = mistakes.run(module.CASES[at], folder / "run", workers)
    return record.status, line, mistakes.lines(mistakes.diagnosis(record), f"mixed_{name}_{number}.py")


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "number"), NAMED)
def test_the_changed_line_is_named(
    name: str, number: int, tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    status, line, named = lines_of(name, number, tmp_path, workers)
    assert status == "failed"
    assert line in named


def test_no_line_is_named_where_no_edit_mends_the_function(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    status, _, named = lines_of("group_norm", 0, tmp_path, workers)
    assert (status, named) == ("failed", [])
