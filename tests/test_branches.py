"""Operations in branches have a correct range of executions, in every part of the tool that counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base import executions
from runner.base.executions import InBranch, Part, Range
from runner.checks import communication
from runner.experiment.expect import Expectations
from runner.experiment.program import Program
from runner.reports.record import differences, golden, measures
from runner.reports.record.model import CompiledProgram
from runner.reports.show import collectives, modes, sweep
from tests import evidence
from tests.compiled import collectives_in as read
from tests.evidence import collective, record
from tests.harness import experiment, run

# The arithmetic, against every way in which the branches can be taken.


@dataclass(frozen=True)
class Sends:
    bytes: int


@dataclass(frozen=True)
class Chooses:
    times: int
    branches: tuple[Any, ...]


def programs() -> st.SearchStrategy[tuple[Any, ...]]:
    leaf = st.builds(Sends, st.integers(0, 3))
    return st.recursive(
        st.lists(leaf, max_size=2).map(tuple),
        lambda inner: st.lists(
            leaf | st.builds(Chooses, st.integers(0, 2), st.lists(inner, min_size=2, max_size=3).map(tuple)), max_size=2
        ).map(tuple),
        max_leaves=6,
    )


def outcomes(program: tuple[Any, ...]) -> set[int]:
    """Return all possible totals: every choice taken every way, independently each time."""
    sums = {0}
    for part in program:
        if isinstance(part, Sends):
            each = {part.bytes}
        else:
            once = set().union(*(outcomes(branch) for branch in part.branches))
            each = {sum(taken) for taken in itertools.product(once, repeat=part.times)}
        sums = {a + b for a in sums for b in each}
    return sums


def parts(program: tuple[Any, ...], around: tuple[InBranch, ...], names: Iterator[int]) -> Iterator[Part]:
    for part in program:
        if isinstance(part, Sends):
            yield executions.count(1, around), around, part.bytes
        else:
            name = str(next(names))
            for number, branch in enumerate(part.branches):
                inside = InBranch(choice=name, branch=number, of=len(part.branches), times=part.times)
                yield from parts(branch, (*around, inside), names)


@settings(max_examples=60)
@given(programs())
def test_a_range_has_exactly_the_possible_counts(program: tuple[Any, ...]) -> None:
    can = outcomes(program)
    totals = executions.total(parts(program, (), itertools.count()))
    assert executions.ends(totals) == (min(can), max(can))


def test_an_unknown_count_stays_unknown() -> None:
    inside = (InBranch(choice="c", branch=0, of=2, times=1),)
    assert executions.total([(1, (), 4), (None, inside, 4)]) is None
    assert executions.total([(executions.count(1, inside), inside, None)]) is None


# The text of a compiled module.

HLO = """\
HloModule jit_test, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%d (p.4: f32[2,4]) -> f32[2,4] {
  %p.4 = f32[2,4]{1,0} parameter(0)
  ROOT %rd = f32[2,4]{1,0} all-reduce(%p.4), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
}

%e (p.5: f32[2,4]) -> f32[2,4] {
  %p.5 = f32[2,4]{1,0} parameter(0)
  ROOT %n.5 = f32[2,4]{1,0} negate(%p.5)
}

%first (p.1: f32[2,4]) -> f32[2,4] {
  %p.1 = f32[2,4]{1,0} parameter(0)
  ROOT %ra = f32[2,4]{1,0} all-reduce(%p.1), channel_id=2, replica_groups=[1,4]<=[4], to_apply=%add
}

%second (p.2: f32[2,4]) -> f32[2,4] {
  %p.2 = f32[2,4]{1,0} parameter(0)
  %which = pred[] constant(true)
  ROOT %inner = f32[2,4]{1,0} conditional(%which, %p.2, %p.2), true_computation=%d, false_computation=%e
}

%third (p.3: f32[2,4]) -> f32[2,4] {
  %p.3 = f32[2,4]{1,0} parameter(0)
  %ga = f32[8,4]{1,0} all-gather(%p.3), channel_id=3, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %rc = f32[2,4]{1,0} all-reduce(%p.3), channel_id=4, replica_groups=[1,4]<=[4], to_apply=%add
}

%body (p: (s32[], f32[2,4])) -> (s32[], f32[2,4]) {
  %p = (s32[], f32[2,4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[2,4]{1,0} get-tuple-element(%p), index=1
  %r = f32[2,4]{1,0} conditional(%i, %v, %v, %v), branch_computations={%first, %second, %third}
  ROOT %t = (s32[], f32[2,4]) tuple(%i, %r)
}

%condition (q: (s32[], f32[2,4])) -> pred[] {
  %q = (s32[], f32[2,4]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  ROOT %less = pred[] compare(%j, %j), direction=LT
}

ENTRY %main (A: f32[2,4]) -> (s32[], f32[2,4]) {
  %A = f32[2,4]{1,0} parameter(0), metadata={op_name="A"}
  %zero = s32[] constant(0)
  %init = (s32[], f32[2,4]) tuple(%zero, %A)
  ROOT %while = (s32[], f32[2,4]) while(%init), condition=%condition, body=%body, KNOWN
}
"""
NINE = HLO.replace("KNOWN", 'backend_config={"known_trip_count":{"n":"9"}}')
PLAIN = """\
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [8, 4], spec: [x]}
graph:
  C: A + 1
outputs:
  C: [x]
"""


def test_a_choice_in_a_loop_runs_in_every_step_and_a_nested_choice_if_reached() -> None:
    module = read(NINE, experiment(PLAIN), "auto")
    assert {entry.instruction: (entry.count, len(entry.branches)) for entry in module.entries} == {
        "ra": (Range(min=0, max=9), 1), "rd": (Range(min=0, max=9), 2), "ga": (Range(min=0, max=9), 1),
        "rc": (Range(min=0, max=9), 1),
    }  # fmt: skip
    assert not any("how often" in sentence for sentence in module.unknown)
    # One of the branches in every step; the second has an all-reduce in a branch of its own.
    assert executions.by_kind((entry.kind, entry.count, entry.branches) for entry in module.entries) == {
        "all-reduce": Range(min=0, max=9),
        "all-gather": Range(min=0, max=9),
    }
    # If both of these have it, every path has one: nine in all cases.
    reduced = "ROOT %re = f32[2,4]{1,0} all-reduce(%p.5), channel_id=5, replica_groups=[1,4]<=[4], to_apply=%add"
    always = read(NINE.replace("ROOT %n.5 = f32[2,4]{1,0} negate(%p.5)", reduced), experiment(PLAIN), "auto")
    assert executions.by_kind((entry.kind, entry.count, entry.branches) for entry in always.entries) == {
        "all-reduce": 9,
        "all-gather": Range(min=0, max=9),
    }


def test_a_loop_of_unknown_length_around_a_branch_has_no_count() -> None:
    module = read(HLO.replace(", KNOWN", ""), experiment(PLAIN), "auto")
    assert {entry.count for entry in module.entries} == {None}
    assert "how often rc runs is not known" in module.unknown


# Expectations.

MAYBE = InBranch(choice="c", branch=0, of=2, times=1)
REDUCTION = collective(count=Range(min=0, max=1), branches=[MAYBE])
OTHER = collective(count=Range(min=0, max=1), branches=[replace(MAYBE, branch=1)], node="D")


def test_rows_of_alternative_branches_are_added_as_the_total_under_the_table_is() -> None:
    of_two = record({"shard_map": evidence.program(replace(REDUCTION, bytes_sent=64), replace(OTHER, bytes_sent=96))})
    rows = collectives.explained(of_two)
    assert [row.cells[1] for row in rows] == ["C", "D"]
    assert collectives.totals(of_two) == ["total: all-reduce over x at most 96 B"]
    assert (collectives.together(rows), collectives.sent(rows)) == ("at most 96 B", 96)
    always = record({"shard_map": evidence.program(*(replace(each, bytes_sent=64) for each in (REDUCTION, OTHER)))})
    assert collectives.together(collectives.explained(always)) == "64 B"


def verdict(wanted: dict[str, Any], *entries: Any) -> Any:
    return communication.counts(
        Expectations(collectives=wanted), Program.SHARD_MAP, evidence.program(*entries), "compiled", none=False
    )


@pytest.mark.parametrize(
    ("wanted", "entries", "status"),
    [
        (1, [REDUCTION], "failed"),
        (0, [REDUCTION], "failed"),
        (Range(min=0, max=1), [REDUCTION], "passed"),
        (Range(min=0, max=0), [REDUCTION], "failed"),
        (Range(min=1, max=1), [REDUCTION], "failed"),
        (Range(min=0, max=3), [REDUCTION], "passed"),
        (1, [REDUCTION, OTHER], "passed"),
        (Range(min=1, max=1), [REDUCTION, OTHER], "passed"),
        (Range(min=2, max=3), [REDUCTION, OTHER], "failed"),
        (Range(min=1, max=2), [REDUCTION, collective(node="E")], "passed"),
        (2, [REDUCTION, collective(node="E")], "failed"),
        (Range(min=1, max=2), [collective(), collective()], "passed"),
    ],
)
def test_a_number_expects_exactly_itself_and_a_range_any_count_within(
    wanted: Any, entries: list[Any], status: str
) -> None:
    assert verdict({"all-reduce": wanted}, *entries).status == status


def test_a_range_is_formatted_as_text() -> None:
    failed = verdict({"all-reduce": 1}, REDUCTION)
    assert failed.reason == "expected 1 all-reduce, found between 0 and 1 all-reduce"
    assert failed.details == ["between 0 and 1 (in a branch) × all-reduce of C over x: a device sends 64 B"]
    assert evidence.as_json(failed)["found"] == {"all-reduce": {"min": 0, "max": 1}}
    none = communication.counts(
        Expectations(no_collectives=True), Program.SHARD_MAP, evidence.program(REDUCTION), "compiled", none=True
    )
    assert none.reason == "expected no collectives, found between 0 and 1 all-reduce"
    limit = communication.sent(
        Expectations(max_bytes_per_device=63), Program.SHARD_MAP, evidence.program(REDUCTION, OTHER), "compiled"
    )
    assert limit.reason == "each device sends 64 bytes for collectives, on a ring (64 B), more than 63"
    limit = communication.sent(
        Expectations(max_bytes_per_device=63), Program.SHARD_MAP, evidence.program(REDUCTION), "compiled"
    )
    assert limit.reason == (
        "each device can send, where branches decide, 64 bytes for collectives, on a ring (64 B), more than 63"
    )


# Reports.


def test_tables_goldens_and_sweeps_show_the_range() -> None:
    program = replace(evidence.program(REDUCTION, collective("all-gather")), bytes_sent=128, bytes_sent_min=64)
    ranged = record({"shard_map": program})
    rows = collectives.rows(ranged)
    assert [(row[0], row[3], row[7]) for row in rows] == [
        ("all-reduce", "0 to 1", "in a branch, as written"),
        ("all-gather", "1", "as written"),
    ]
    # Two equal collectives in alternative branches count as one.
    (row,) = collectives.rows(record({"shard_map": evidence.program(REDUCTION, replace(OTHER, node="C", nodes=["C"]))}))
    assert row[3] == "1"
    (entry,) = measures.rows(0, ranged, [])
    assert entry.value("all-reduce") == 1
    assert sweep.collectives_text(entry.collectives) == "all-gather, 0 to 1 all-reduce"
    shown, _ = sweep.table([entry])
    (cells,) = shown.rows
    assert cells[shown.head.index("sent")].text == "at most 128 B"
    pins = golden.pinned(program)
    assert [each["count"] for each in pins["collectives"]] == [1, {"min": 0, "max": 1}]
    assert golden.text({"jax 0.10": {"cpu": {"shard_map": pins}}})
    taken = golden.pinned(evidence.program(collective(), collective("all-gather")))
    (change,) = differences.of_program("shard_map", pins, taken)
    assert change == "all-reduce of C over x changed in shard_map: runs between 0 and 1 times → once"
    (came,) = differences.of_program(
        "shard_map", golden.pinned(evidence.program()), golden.pinned(evidence.program(REDUCTION))
    )
    assert came.endswith("appeared in shard_map: +64 B sent per device at most, since it runs between 0 and 1 times")


def test_a_golden_with_an_invalid_range_is_refused(tmp_path: Path) -> None:
    pins = golden.pinned(evidence.program(REDUCTION))
    pins["collectives"][0]["count"] = {"min": 0}
    path = tmp_path / "g.json"
    path.write_text(golden.text({"jax 0.10": {"cpu": {"auto": pins}}}), encoding="utf-8")
    with pytest.raises(golden.InvalidGolden, match="'collectives'\\[0\\], 'count' is not what --update-golden writes"):
        golden.read(path)


# From the file to the verdict.

STEP = """\
mesh: {axes: [x], shape: [4]}
arrays:
  h: {shape: [8, 8], spec: [x, null]}
  w: {shape: [8, 8], spec: [x, null]}
  s: {shape: [], init: 1.0}
functions:
  whole(a, w): a @ all_gather(w, 'x', tiled=True)
per_device:
  l:
    repeat: 3
    carry: {h: h}
    body:
      h: "cond(s > i, whole, lambda a, w: a, h, w)"
    unroll: false
  z: "cond(s > 2, lambda: psum(l.h, 'x'), lambda: psum(l.h, 'x') + 1)"
outputs:
  z: [null, null]
expect:
  collectives: {all-gather: {max: 3}, all-reduce: 1}
  max_bytes_per_device: 3 * 192 + 96
  lowered: {collectives: {all-gather: {min: 0, max: 3}, all-reduce: 1}}
"""


@pytest.mark.in_turn
def test_a_program_is_compared_with_an_expected_range(tmp_path: Path) -> None:
    outcome = run(STEP, tmp_path)
    assert outcome.failures() == []
    program = outcome.record.programs["shard_map"]
    assert isinstance(program, CompiledProgram)
    assert program.collectives_unknown == []
    runs = {"all-gather": Range(min=0, max=3), "all-reduce": 1}
    assert measures.counts(program) == runs
    assert executions.by_kind((entry.kind, entry.count, entry.branches) for entry in program.lowered or ()) == runs
    assert (program.bytes_sent, program.bytes_sent_min) == (3 * 192 + 96, 96)
    mode = next(mode for mode in outcome.record.modes or () if mode.program == "shard_map")
    assert (mode.bytes_sent, mode.bytes_sent_min) == (672, 96)
    assert modes.rows(replace(outcome.record, modes=[mode, mode]))[0][4] == "at most 672 B"
    # Two false expectations: an exact number, which the branch does not guarantee, and one gather less.
    outcome = run(STEP.replace("{max: 3}, all-reduce: 1}", "3, all-reduce: 1}"), tmp_path, program="shard_map")
    assert [line.split(": ", 1)[1] for line in outcome.failures() if "collectives" in line]
