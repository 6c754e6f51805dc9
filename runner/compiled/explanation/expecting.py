"""Finds the expectations that an explanation does not meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runner.base import executions
from runner.base.executions import Count, Range
from runner.base.faults import nearest
from runner.base.grouping import by_key
from runner.base.untyped import is_mapping
from runner.base.words import bytes_text
from runner.compiled.explanation.model import Explanation
from runner.experiment.forms import KINDS
from runner.graph.sharding import ring


class InvalidExpectation(ValueError):
    """There is no such expectation, or its value is none; the message says which there are."""


def unmet(explanation: Explanation, expected: Mapping[str, Any]) -> list[str]:
    """The expectations that a module does not meet, a sentence each.

    An expectation that cannot be decided, since a collective may be missing or a count is not known, is not met.

    Raises `InvalidExpectation`.
    """
    if not is_mapping(expected):
        raise InvalidExpectation(f"expect is a mapping, {{'max_bytes_per_device': 4096}}, not {expected!r}")
    sentences: list[str] = []
    for name, value in expected.items():
        if name not in _EXPECTATIONS:
            hint = nearest(name, _EXPECTATIONS) or f"; there are {', '.join(_EXPECTATIONS)}"
            raise InvalidExpectation(f"there is no expectation {name!r}{hint}")
        sentence = _EXPECTATIONS[name](explanation, value)
        if sentence is not None:
            sentences.append(f"{name}: {sentence}")
    return sentences


def _collectives(explanation: Explanation, value: Any) -> str | None:
    """How often each kind runs, with the steps of loops; zero for kinds that are not named."""
    if not is_mapping(value) or not all(isinstance(count, int) or is_mapping(count) for count in value.values()):
        raise InvalidExpectation(f"collectives is a mapping of kinds to counts, {{'all-reduce': 2}}, not {value!r}")
    unknown = next((kind for kind in value if kind not in KINDS), None)
    if unknown is not None:
        raise InvalidExpectation(f"no collective is called {unknown!r}; there are {', '.join(KINDS)}")
    if explanation.missing:
        return explanation.missing[0]
    kinds = by_key((entry.kind, entry) for entry in explanation.moving)
    runs = {kind: ring.runs(kinds[kind]) for kind in explanation.collectives}
    wanted = {kind: _count(kind, count) for kind, count in value.items()}
    wrong = [
        f"{kind} runs {executions.text(runs.get(kind, 0))} times, expected {executions.text(wanted.get(kind, 0))}"
        for kind in dict.fromkeys([*wanted, *runs])
        if runs.get(kind, 0) != wanted.get(kind, 0) or runs.get(kind, 0) is None
    ]
    return "; ".join(wrong) or None


def _count(kind: Any, value: Any) -> Count:
    if not is_mapping(value):
        return int(value)
    if set(value) != {"min", "max"}:
        raise InvalidExpectation(f"the range of {kind} has the keys min and max, not {', '.join(map(str, value))}")
    return Range(min=int(value["min"]), max=int(value["max"]))


def _none(explanation: Explanation, value: Any) -> str | None:
    if value is not True:
        raise InvalidExpectation(f"no_collectives is True, or left out, not {value!r}")
    if explanation.missing:
        return explanation.missing[0]
    counts = [f"{count} {kind}" for kind, count in explanation.collectives.items()]
    return f"expected no collectives, there are {', '.join(counts)}" if counts else None


def _sent(explanation: Explanation, value: Any) -> str | None:
    return _at_most(explanation, executions.most(explanation.sent()), value, "a device sends", explanation.missing)


def _needed(explanation: Explanation, value: Any) -> str | None:
    needed = None if explanation.memory is None else explanation.memory.peak
    return _at_most(explanation, needed, value, "a device needs", [])


def _at_most(explanation: Explanation, size: int | None, limit: Any, does: str, missing: list[str]) -> str | None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidExpectation(f"a limit is a number of bytes, not {limit!r}")
    if missing or size is None:
        return missing[0] if missing else f"how much {does} is not known"
    return None if size <= limit else f"{does} {bytes_text(size)}, at most {bytes_text(limit)} are allowed"


_EXPECTATIONS: dict[str, Callable[[Explanation, Any], str | None]] = {
    "collectives": _collectives,
    "no_collectives": _none,
    "max_bytes_per_device": _sent,
    "max_memory_bytes": _needed,
}
"""The expectations that a module alone decides, with the names and meanings of an experiment's `expect`."""
