"""The collectives of a program are matched with those of its plan, each only with those of its lines."""

from __future__ import annotations

from typing import Any

import pytest

from runner.base.layout import Mesh, Spec
from runner.compiled.evidence.model import Collective
from runner.compiled.why import matching
from runner.graph.sharding.propagation import Planned, PlannedCollective

MESH = Mesh(("x",), (2,))


def planned(line: str, size: int = 8) -> PlannedCollective:
    return PlannedCollective(
        kind="all-reduce", axes=("x",), line=line, operation="dot_general", of=line, before=Spec(), after=Spec(),
        bytes_in=size, bytes_out=size, reduction="sum", gradient=False,
    )  # fmt: skip


def compiled(line: str, size: int = 8) -> Collective:
    return Collective(
        kind="all-reduce", node=line, nodes=[line], gradient=False, inserted=True, between=None, axes=["x"],
        groups=None, dtype="float32", bytes_in=size, bytes_out=size, bytes=size, count=1, asynchronous=False,
        overlapped=None, instruction=f"all-reduce.{line}", reduction="sum",
    )  # fmt: skip


def plan(collectives: list[PlannedCollective]) -> Planned:
    return Planned(collectives=tuple(collectives))


def test_each_collective_is_matched_with_that_of_its_line() -> None:
    sums = [planned(name) for name in "abc"]
    made = [compiled(name) for name in "cab"]
    matches = matching.Matching(made, plan(sums), MESH)
    assert [matches.of(each, each.nodes).planned for each in made] == [(sums[2],), (sums[0],), (sums[1],)]


def test_what_is_unmatched_is_offered_instead() -> None:
    sums = [planned("a"), planned("a", size=16)]
    made = [compiled("a"), compiled("a", size=4)]
    matches = matching.Matching(made, plan(sums), MESH)
    assert matches.of(made[1], ["a"]).planned == ()
    assert matches.instead(made[1], ["a"]) == [sums[1]]


@pytest.mark.parametrize("count", [50, 200])
def test_only_collectives_of_its_lines_are_compared_with_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    concerns = matching.concerns

    def counted(*arguments: Any) -> bool:
        compared.append(arguments[1].instruction)
        return concerns(*arguments)

    monkeypatch.setattr(matching, "concerns", counted)
    made = [compiled(f"l{at}") for at in range(count)]
    matches = matching.Matching(made, plan([planned(f"l{at}") for at in range(count)]), MESH)
    for each in made:
        matches.of(each, each.nodes)
        matches.instead(each, each.nodes)
    assert len(compared) == 2 * count
