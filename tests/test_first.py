"""The summary of a run: bytes sent by each program, totals of collectives, each reason once, cures of weak checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.compiled.evidence.model import Collective, Reason
from runner.reports.record.model import Record
from runner.reports.record.verdicts import Checks, Undecided, ValueVerdict
from runner.reports.show import collectives, modes, remarks, report
from tests import evidence


def sending(**of: int | None) -> Record:
    """Return a record of programs that send these bytes."""
    return evidence.record({name: evidence.program(bytes_sent=count) for name, count in of.items()})


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        ({"auto": 36_900}, None),
        ({"auto": 64, "shard_map": 64}, None),
        ({"auto": 64, "shard_map": None}, None),
        ({"auto": 64, "vmap": 0}, None),
        (
            {"auto": 36_900, "explicit": 36_900, "derived": 28_700},
            "derived sends 28.7 kB, the compiler's programs 36.9 kB: 1.29 ×",
        ),
        (
            {"auto": 400, "constraint": 200, "derived": 200, "shard_map": 100},
            "shard_map sends 100 B, constraint and derived 200 B, auto 400 B: 4 ×",
        ),
        ({"auto": 64, "derived": 0, "shard_map": 0}, "derived and shard_map send nothing, auto 64 B"),
    ],
)
def test_programs_that_send_different_bytes_are_compared_in_one_line(
    sent: dict[str, int | None], line: str | None
) -> None:
    assert modes.compared(sending(**sent)) == line


def test_the_comparison_is_below_the_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    report.run(sending(auto=200, shard_map=100), tmp_path, brief=False)
    verdict, line = capsys.readouterr().out.splitlines()[-2:]
    assert verdict.startswith("passed: 2 of 2 programs passed; ")
    assert line == "shard_map sends 100 B, auto 200 B: 2 ×"


def moved(kind: str, axes: list[str], sent: int | None, count: int = 1) -> Collective:
    return evidence.collective(kind, axes=axes, bytes_sent=sent, count=count)


@pytest.mark.parametrize(
    ("listed", "lines"),
    [
        ([moved("all-reduce", ["x"], 64)], []),
        ([moved("all-reduce", ["x"], 64, 4)], ["total: all-reduce over x 256 B"]),
        ([moved("all-reduce", ["x"], 64), moved("all-reduce", ["x"], 100, 2)], ["total: all-reduce over x 264 B"]),
        (
            [moved("all-reduce", ["x"], 64), moved("all-gather", ["x"], 10, 3), moved("all-gather", ["x", "y"], 5)],
            ["total: all-reduce 64 B, all-gather 35 B; over x 94 B, over x and y 5 B"],
        ),
    ],
)
def test_totals_are_of_kinds_and_of_axes(listed: list[Collective], lines: list[str]) -> None:
    assert collectives.totals(evidence.record({"auto": evidence.program(*listed)})) == lines


def test_programs_with_the_same_totals_share_a_line() -> None:
    two, three = [moved("all-reduce", ["x"], 64)] * 2, [moved("all-reduce", ["x"], 64)] * 3
    of = {"auto": two, "explicit": two, "shard_map": three}
    record = evidence.record({name: evidence.program(*listed) for name, listed in of.items()})
    assert collectives.totals(record) == [
        "total of auto and explicit: all-reduce over x 128 B",
        "total of shard_map: all-reduce over x 192 B",
    ]


def test_a_reason_is_told_once_with_all_collectives_that_have_it() -> None:
    why = Reason(text="A is sharded over x, and its line needs all of it", by="operation", keys=[])
    listed = [replace(moved("all-gather", ["x"], 64), node=node, nodes=[node], why=why) for node in ("C", "D")]
    (line,) = collectives.reasons(evidence.record({"auto": evidence.program(*listed)}))
    assert line == (
        "auto: all-gather of C over x; all-gather of D over x: A is sharded over x, and its line needs all of it"
    )


def test_derived_does_not_repeat_the_reason_of_another_program() -> None:
    needs = "the product in C sums over J, which A.spec shards over x"
    auto = Reason(text=needs, by="operation", keys=[], planned=True)
    derived = Reason(text=f"derived: psum(A @ B, 'x'); {needs}", by="program", keys=[], planned=True)
    of = {"auto": auto, "derived": derived}
    programs = {name: evidence.program(replace(moved("all-reduce", ["x"], 64), why=why)) for name, why in of.items()}
    assert collectives.reasons(evidence.record(programs)) == [
        f"auto: all-reduce of C over x: {needs}; Shardy plans it too",
        "derived: all-reduce of C over x: derived: psum(A @ B, 'x'), for the reason given for auto",
    ]
    alone = evidence.record({"derived": programs["derived"]})
    assert collectives.reasons(alone) == [f"derived: all-reduce of C over x: derived: psum(A @ B, 'x'); {needs}"]


def weakly(**more: Any) -> Record:
    """Return a record with a weak output."""
    output = evidence.compared(status="weak", **more)
    value = ValueVerdict(
        status="weak", max_abs_error=0.0, max_rel_error=0.0, rtol=0.0, atol=1.0, outputs={"C": output}, power=0.2
    )
    return evidence.record({"auto": replace(evidence.program(), status="weak", checks=Checks(value=value))})


@pytest.mark.parametrize(
    ("output", "way"),
    [
        ({"power": 0.2}, "rounding hides smaller mistakes: use more elements (dims)"),
        ({"overflowing": 3}, "values overflow the dtype: use smaller ones (init)"),
        (
            {"undecided": Undecided(count=3, between=3, excused=0, places=[])},
            "rounding alone decides some elements: use another seed (seed=1)",
        ),
    ],
)
def test_a_weak_check_says_what_to_change_and_why(output: dict[str, Any], way: str) -> None:
    first, last = remarks.weak_advice(weakly(**output))
    assert first.startswith(f"weak: it passed, and a wrong program might have passed too, since {way}")
    assert last == "expect.weak: NAME accepts it of an output"


def test_a_check_that_is_not_weak_gets_no_advice() -> None:
    assert remarks.weak_advice(evidence.record()) == []
