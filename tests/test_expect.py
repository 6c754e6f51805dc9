"""Expectations of the compiler: how `expect` is read, what passes, what fails, and the messages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.base import codec
from runner.base.faults import InvalidExperiment
from runner.base.layout import Spec
from runner.checks.kinds import expectations
from runner.compiled.evidence import compiler_warnings
from runner.compiled.evidence.nodes import Origins
from runner.experiment import expect
from runner.experiment.expect import Expectations
from runner.experiment.forms import KINDS
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import Memory
from runner.reports.record.model import CompiledProgram
from tests import compiled
from tests.command import run_command
from tests.evidence import as_json, collective
from tests.evidence import program as of_program
from tests.harness import experiment

TEXT = """
arrays:
  A: {shape: [4, 4], spec: [null, x]}
  B: {shape: [4, 4], spec: [x, null]}
graph:
  C: A @ B
  D: tanh(C)
per_device:
  partial: A @ B
  ring:
    repeat: 1
    carry: {h: partial}
    body:
      h: psum(h, 'x')
  D: tanh(ring.h)
outputs:
  D: [null, null]
check_vma: false
"""
HERE: dict[str, Any] = {}
TPU = {"target": {"platform": "tpu", "topology": "v5e:2x2"}}


def expecting(expectations: str, **changes: Any) -> Experiment:
    """Return an experiment with these expectations."""
    return experiment(TEXT, expect=yaml.safe_load(expectations), **changes)


def check(given: Experiment, program: Program, evidence: dict[str, Any]) -> Any:
    """Return the checks of one program with this evidence, as in `result.json`."""
    compiled = codec.build(CompiledProgram, as_json({**vars(of_program()), "layouts": None, **evidence}))
    return as_json(expectations.check(given, program, compiled))


def verdicts(given: str, *collectives: Any, program: str = "auto", on: Any = HERE, **evidence: Any) -> Any:
    """Return the checks of one program that compiled to these collectives."""
    defaults = {
        "collectives": list(collectives),
        "collectives_unknown": [],
        "collectives_missing": [],
        "memory": codec.plain(Memory.of(128, 64, 32, 0, None)),
    }
    return check(expecting(given, **on), Program(program), defaults | evidence)


def inserted(kind: str = "all-reduce", moves: str = "C", to: str | None = "D", **more: Any) -> Any:
    """Return a collective that the compiler inserted."""
    between = {"from": [moves], "to": [to] if to else []}
    return collective(kind, inserted=True, between=between, **more)


# Reading.


def test_nothing_is_expected_by_default():
    assert expecting("{}").expected[Program.AUTO] == Expectations()
    assert verdicts("{}", collective()) == {}


def test_everything_that_can_be_expected():
    every = """
      collectives: {all-reduce: 1}
      max_bytes_per_device: 64
      max_memory_bytes: 1000
      state_layout: kept
      accuracy: 8
      overlapped: [C]
      not_overlapped: [D]
      layouts: {C: [x]}
      lowered: {collectives: {all-gather: 1}, max_bytes_per_device: 8}
      planned: {collectives: {all-reduce: 2}, max_bytes_per_device: 9}
    """
    expected = expecting(every).expected[Program.CONSTRAINT]
    assert expected == Expectations(
        collectives={"all-reduce": 1},
        max_bytes_per_device=64,
        max_memory_bytes=1000,
        state_layout="kept",
        accuracy=8.0,
        overlapped=("C",),
        not_overlapped=("D",),
        layouts={"C": Spec.of(["x"])},
        lowered_collectives={"all-gather": 1},
        lowered_max_bytes_per_device=8,
        planned_collectives={"all-reduce": 2},
        planned_max_bytes_per_device=9,
    )
    assert expected.named == tuple(name for name in expect.CHECKED if not name.endswith("no_collectives"))


@pytest.mark.parametrize(
    ("scoped", "on", "expected"),
    [
        ("{all-reduce: 1}", HERE, {"auto": {"all-reduce": 1}, "shard_map": {"all-reduce": 1}}),
        ("{all-reduce: 1, auto: {}}", HERE, {"auto": {}, "shard_map": {"all-reduce": 1}}),
        ("{auto: {all-gather: 2}}", HERE, {"auto": {"all-gather": 2}, "shard_map": None}),
        ("{tpu: {reduce-scatter: 1}}", HERE, {"auto": None, "shard_map": None}),
        ("{tpu: {reduce-scatter: 1}}", TPU, {"auto": {"reduce-scatter": 1}, "shard_map": {"reduce-scatter": 1}}),
        (
            "{all-reduce: 1, tpu: {reduce-scatter: 1}, auto: {all-gather: 1}}",
            TPU,
            {"auto": {"all-gather": 1}, "shard_map": {"reduce-scatter": 1}},
        ),
        (
            "{auto: {all-gather: 1, tpu: {all-to-all: 1}}, all-reduce: 1}",
            TPU,
            {"auto": {"all-to-all": 1}, "shard_map": {"all-reduce": 1}},
        ),
        (
            "{tpu: {all-gather: 1, auto: {all-to-all: 1}}, all-reduce: 1}",
            TPU,
            {"auto": {"all-to-all": 1}, "shard_map": {"all-gather": 1}},
        ),
    ],
)
def test_the_closest_program_or_platform_counts(scoped, on, expected):
    by_program = expecting(f"collectives: {scoped}", **on).expected
    assert {program: by_program[program].collectives for program in expected} == expected


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ("collectives: 1", "collectives", "1 is not a mapping of kinds to numbers, such as {all-reduce: 1}"),
        (
            "collectives: {all-redcue: 1}",
            "collectives.all-redcue",
            "there is no collective 'all-redcue'; did you mean 'all-reduce'?",
        ),
        (
            "collectives: {shuffle: 1}",
            "collectives.shuffle",
            f"there is no collective 'shuffle'; there are {', '.join(KINDS)}",
        ),
        ("collectives: {all-reduce: -1}", "collectives.all-reduce", "-1 is not a number of all-reduces"),
        (
            "collectives: {all-reduce: 'axis_size(x) - 4'}",
            "collectives.all-reduce",
            "axis_size takes the name of a mesh axis, in quotes",
        ),
        (
            "collectives: {all-reduce: true}",
            "collectives.all-reduce",
            "True is not a size; write an integer, a dim, or an expression of dims",
        ),
        (
            "collectives: {gpu: {all-redcue: 1}}",
            "collectives.gpu.all-redcue",
            "there is no collective 'all-redcue'; did you mean 'all-reduce'?",
        ),
        ("no_collectives: 1", "no_collectives", "1 is neither true nor false"),
        (
            "{collectives: {all-reduce: 1}, no_collectives: true}",
            "no_collectives",
            "expect.collectives contradicts it for program auto",
        ),
        ("max_bytes_per_device: 1 MB", "max_bytes_per_device", "not a Python expression: invalid syntax"),
        ("max_memory_bytes: -5", "max_memory_bytes", "-5 is not a number of bytes"),
        ("overlapped: C", "overlapped", "'C' is not a list of lines, such as [C, ring.lhs]"),
        ("overlapped: [rimg.h]", "overlapped[0]", "there is no line 'rimg.h'; did you mean 'ring.h'?"),
        (
            "not_overlapped: [C, zzz]",
            "not_overlapped[1]",
            "there is no line 'zzz'; there are C, D, partial, ring, ring.h",
        ),
        (
            "overlapped: [[]]",
            "overlapped[0]",
            "there is no line []; there are C, D, partial, ring, ring.h",
        ),
        (
            "{overlapped: [C], not_overlapped: [D, C]}",
            "not_overlapped",
            "'C' is among expect.overlapped as well",
        ),
        ("layouts: [x]", "layouts", "['x'] is not a mapping of names to PartitionSpecs"),
        ("layouts: {partial: [x]}", "layouts.partial", "graph computes no 'partial'; there are C, D"),
        ("layouts: {C: [z]}", "layouts.C[0]", "mesh axis 'z' does not exist; the mesh has x, y"),
    ],
)
def test_invalid_expectations_are_refused(given, key, message):
    with pytest.raises(InvalidExperiment, match=f"^{re.escape(f'expect.{key}: {message}')}$"):
        expecting(given)


def test_numbers_may_follow_dims_and_the_mesh():
    text = "{collectives: {collective-permute: axis_size('y') * 2 - 1}, max_bytes_per_device: 4 * 3}"
    expected = expecting(text).expected[Program.SHARD_MAP]
    assert expected.collectives == {"collective-permute": 3}
    assert expected.max_bytes_per_device == 12


def test_an_expectation_of_a_per_device_line_applies_to_its_programs_only():
    by_program = expecting("overlapped: [ring.h]").expected
    assert by_program[Program.SHARD_MAP].overlapped == ("ring.h",)
    assert by_program[Program.AUTO].overlapped == ()


# Collectives.


def test_expected_collectives_pass():
    assert verdicts("collectives: {all-reduce: 1}", collective()) == {
        "collectives": {"status": "passed", "found": {"all-reduce": 1}}
    }
    assert verdicts("collectives: {all-reduce: 7}", collective(), collective(count=6))["collectives"]["found"] == {
        "all-reduce": 7
    }
    assert verdicts("collectives: {}")["collectives"]["status"] == "passed"
    assert verdicts("collectives: {all-gather: 0}")["collectives"]["status"] == "passed"


def test_a_collective_that_is_missing_is_named():
    assert verdicts("collectives: {all-reduce: 1, all-gather: 1}", collective())["collectives"] == {
        "status": "failed",
        "reason": "expected 1 all-reduce, 1 all-gather, found 1 all-reduce",
        "details": ["no all-gather was compiled"],
        "found": {"all-reduce": 1},
    }


def test_an_unexpected_collective_that_the_compiler_inserted_is_explained():
    moved = inserted("all-gather", "w", "C", axes=["y"], bytes_out=2_100_000, bytes=2_100_000)
    verdict = verdicts("collectives: {all-reduce: 1}", collective(), moved)["collectives"]
    assert verdict["reason"] == "expected 1 all-reduce, found 1 all-reduce, 1 all-gather"
    assert verdict["details"] == ["1 × all-gather of w for C over y: a device sends 2.1 MB, inserted by the compiler"]


def test_every_collective_of_a_kind_that_was_miscounted_is_shown():
    other = collective(node="ring.h", count=5, gradient=True, axes=["x", "y"])
    verdict = verdicts("collectives: {all-reduce: 1}", collective(), other, collective("all-gather", "D"))[
        "collectives"
    ]
    assert verdict["reason"] == "expected 1 all-reduce, found 6 all-reduce, 1 all-gather"
    assert verdict["details"] == [
        "1 × all-reduce of C over x: a device sends 64 B",
        "5 × all-reduce of ring.h (backward) over x, y: a device sends 64 B",
        "1 × all-gather of D over x: a device sends 64 B",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_counted(kind):
    assert verdicts(f"collectives: {{{kind}: 2}}", collective(kind), collective(kind))["collectives"] == {
        "status": "passed",
        "found": {kind: 2},
    }
    one_more = verdicts(f"collectives: {{{kind}: 1}}", collective(kind), collective(kind))["collectives"]
    assert one_more["reason"] == f"expected 1 {kind}, found 2 {kind}"
    assert verdicts("no_collectives: true", collective(kind))["no_collectives"]["status"] == "failed"
    assert verdicts(f"collectives: {{{kind}: 1}}")["collectives"]["details"] == [f"no {kind} was compiled"]


def test_every_kind_that_is_missing_is_named():
    verdict = verdicts("collectives: {all-reduce: 1, all-gather: 2, all-to-all: 1}")["collectives"]
    assert verdict["reason"] == "expected 1 all-reduce, 2 all-gather, 1 all-to-all, found no collectives"
    assert verdict["details"] == [f"no {kind} was compiled" for kind in ("all-reduce", "all-gather", "all-to-all")]


def test_a_collective_in_a_loop_without_steps_is_not_counted():
    assert verdicts("no_collectives: true", collective(count=0))["no_collectives"]["status"] == "passed"
    assert verdicts("max_bytes_per_device: 0", collective(count=0))["max_bytes_per_device"]["found"] == 0


def test_a_collective_with_an_unknown_count_fails_the_expectation():
    verdict = verdicts("collectives: {all-reduce: 1}", collective(), collective(node="D", count=None))["collectives"]
    assert verdict["status"] == "failed"
    assert verdict["reason"] == "expected 1 all-reduce; how often these run is not known: all-reduce of D over x"
    two = (collective(node="D", count=None), collective("all-gather", count=None))
    reason = verdicts("no_collectives: true", *two)["no_collectives"]["reason"]
    assert reason.endswith("is not known: all-reduce of D over x, all-gather of C over x")


def test_a_collective_fails_where_none_is_expected():
    assert verdicts("no_collectives: true")["no_collectives"]["status"] == "passed"
    assert verdicts("no_collectives: true", inserted(to=None))["no_collectives"] == {
        "status": "failed",
        "reason": "expected no collectives, found 1 all-reduce",
        "details": ["1 × all-reduce of C over x: a device sends 64 B, inserted by the compiler"],
        "found": {"all-reduce": 1},
    }
    assert verdicts("no_collectives: false", collective()) == {}


MISSING = ["g calls NcclAllGather, which may communicate", "1 line of the module could not be read"]
IN_PART = "the collectives that could be read are as expected, but others may be missing"


@pytest.mark.parametrize(
    ("given", "entries", "facts"),
    [
        ("collectives: {all-reduce: 1}", [collective()], {"found": {"all-reduce": 1}}),
        ("collectives: {}", [], {"found": {}}),
        ("no_collectives: true", [], {"found": {}}),
        ("max_bytes_per_device: 0", [], {"found": 0, "allowed": 0}),
        ("max_bytes_per_device: 1000", [collective()], {"found": 64, "allowed": 1000}),
        ("overlapped: [C]", [collective(asynchronous=True, overlapped=["D"])], {}),
        ("not_overlapped: [C]", [collective(overlapped=[])], {}),
    ],
)
def test_an_expectation_fails_if_collectives_may_be_missing(given, entries, facts):
    (name,) = yaml.safe_load(given)
    more: dict[str, Any] = {"collectives_unknown": MISSING, "collectives_missing": MISSING}
    assert verdicts(given, *entries, on=TPU)[name]["status"] == "passed"
    assert verdicts(given, *entries, on=TPU, **more)[name] == {
        "status": "failed",
        "reason": IN_PART,
        "details": MISSING,
        **facts,
    }


LIBRARY = """
HloModule jit_test, is_scheduled=true, num_partitions=4

ENTRY %main (A: f32[4,2]) -> f32[4,2] {
  %A = f32[4,2]{1,0} parameter(0), metadata={op_name="A"}
  ROOT %c = f32[4,2]{1,0} custom-call(%A), custom_call_target="TARGET", metadata={op_name="jit(test)/C/dot_general"}
}
"""


@pytest.mark.parametrize("given", ["no_collectives: true", "collectives: {}", "max_bytes_per_device: 0"])
@pytest.mark.parametrize(
    ("target", "status"),
    [("lapack_sgetrf_ffi", "passed"), ("__cublas$gemm", "passed"), ("NcclAllReduce", "failed"), ("mpi_ffi", "failed")],
)
def test_a_library_call_that_may_communicate_fails_no_collectives(given, target, status):
    module = compiled.collectives_in(LIBRARY.replace("TARGET", target), experiment(TEXT), "auto")
    read: dict[str, Any] = {"collectives_unknown": module.unknown, "collectives_missing": module.missing}
    (verdict,) = verdicts(given, *module.entries, **read).values()
    assert verdict["status"] == status
    if status == "failed":
        assert verdict["details"] == [f"c calls {target}, which may communicate"]


def test_a_certain_violation_is_reported_before_unreadable_parts():
    more: dict[str, Any] = {"collectives_unknown": MISSING, "collectives_missing": MISSING}
    verdict = verdicts("no_collectives: true", collective(), **more)["no_collectives"]
    assert verdict["reason"] == "expected no collectives, found 1 all-reduce"
    assert verdict["details"] == ["1 × all-reduce of C over x: a device sends 64 B", *MISSING]


@pytest.mark.parametrize(
    ("given", "entries"),
    [
        ("collectives: {all-reduce: 1}", [collective(axes=None, groups=None)]),
        ("collectives: {all-reduce: 1}", [collective(node=None)]),
        ("collectives: {all-reduce: 1}", [collective(bytes_out=None, bytes=None)]),
        ("max_bytes_per_device: 64", [collective(node=None)]),
        ("max_bytes_per_device: 64", [collective(bytes_out=None, bytes=None, bytes_sent=64)]),
        ("overlapped: [C]", [collective(asynchronous=True, overlapped=["D"], count=None, bytes=None)]),
        ("not_overlapped: [C]", [collective(overlapped=[], count=None, bytes=None)]),
    ],
)
def test_an_unknown_fact_fails_only_expectations_that_depend_on_it(given, entries):
    (verdict,) = verdicts(
        given, *entries, on=TPU, collectives_unknown=["which devices all-reduce.3 connects …"]
    ).values()
    assert verdict["status"] == "passed"


def test_memory_and_layouts_do_not_depend_on_the_module():
    more: dict[str, Any] = {"collectives_unknown": MISSING, "collectives_missing": MISSING, "collectives": None}
    assert verdicts("max_memory_bytes: 1000", **more)["max_memory_bytes"]["status"] == "passed"
    assert verdicts("layouts: {C: [x]}", **more, **lies("x"))["layouts"]["status"] == "passed"


@pytest.mark.parametrize("given", ["collectives: {}", "no_collectives: true", "max_bytes_per_device: 9"])
@pytest.mark.parametrize(
    "unread", [["the backend does not show the compiled module"], ["the module has no entry", "…"]]
)
def test_an_unreadable_module_fails_every_expectation(given, unread):
    (verdict,) = verdicts(given, collectives=None, collectives_unknown=unread).values()
    assert verdict == {"status": "failed", "reason": unread[0], **({"details": unread[1:]} if unread[1:] else {})}


@pytest.mark.parametrize("given", ["collectives: {}", "no_collectives: true", "overlapped: [ring.h]"])
def test_one_device_communicates_with_none(given):
    (verdict,) = verdicts(given, program="vmap").values()
    assert verdict == {"status": "not_run", "reason": "vmap runs on one device, which communicates with none"}


# Bytes and memory.


def test_the_bytes_of_all_that_runs_are_counted():
    two = [collective(bytes=64), collective("collective-permute", "ring.h", count=5, bytes=100)]
    assert verdicts("max_bytes_per_device: 564", *two)["max_bytes_per_device"] == {
        "status": "passed",
        "found": 564,
        "allowed": 564,
    }
    assert verdicts("max_bytes_per_device: 563", *two)["max_bytes_per_device"] == {
        "status": "failed",
        "reason": "each device sends 564 bytes for collectives, on a ring (564 B), more than 563",
        "details": [
            "5 × collective-permute of ring.h over x: a device sends 100 B",
            "1 × all-reduce of C over x: a device sends 64 B",
        ],
        "found": 564,
        "allowed": 563,
    }


def test_the_largest_four_are_shown():
    six = [collective(node=f"n{size}", bytes=size) for size in (1, 5, 3, 6, 2, 4)]
    verdict = verdicts("max_bytes_per_device: 20", *six)["max_bytes_per_device"]
    assert verdict["found"] == 21
    assert [line.split(" over ")[0] for line in verdict["details"]] == [f"1 × all-reduce of n{n}" for n in (6, 5, 4, 3)]


def test_zero_bytes_is_an_expectation():
    assert verdicts("max_bytes_per_device: 0")["max_bytes_per_device"]["status"] == "passed"
    assert verdicts("max_bytes_per_device: 0", collective())["max_bytes_per_device"]["status"] == "failed"


def test_bytes_of_an_unknown_count_fail():
    checks = verdicts("max_bytes_per_device: 1000", collective(), collective(node="D", count=None))
    assert checks["max_bytes_per_device"] == {
        "status": "failed",
        "reason": "the bytes sent cannot be added up: these run an unknown number of times",
        "details": ["an unknown number of × all-reduce of D over x: a device sends 64 B"],
    }


def test_bytes_of_an_unknown_size_fail():
    checks = verdicts("max_bytes_per_device: 1000", collective(), collective(node="D", bytes_out=None, bytes=None))
    assert checks["max_bytes_per_device"] == {
        "status": "failed",
        "reason": "the bytes sent cannot be added up: how much these send is not known",
        "details": ["1 × all-reduce of D over x: a device sends an unknown number of bytes"],
    }


def test_a_program_that_needs_more_memory_than_expected_fails():
    assert verdicts("max_memory_bytes: 224")["max_memory_bytes"] == {"status": "passed", "found": 224, "allowed": 224}
    assert verdicts("max_memory_bytes: 200")["max_memory_bytes"] == {
        "status": "failed",
        "reason": "each device needs 224 bytes of memory (224 B), more than 200: "
        "arguments 128 B, outputs 64 B, temps 32 B",
        "found": 224,
        "allowed": 200,
    }


def test_a_peak_does_not_count_since_a_tpu_has_on_chip_memory_in_it():
    memory = codec.plain(Memory.of(128, 64, 32, 0, 1900))
    assert verdicts("max_memory_bytes: 224", memory=memory)["max_memory_bytes"]["status"] == "passed"


def test_memory_that_outputs_share_with_arguments_counts_once():
    memory = codec.plain(Memory.of(128, 64, 32, 60, None))
    verdict = verdicts("max_memory_bytes: 100", memory=memory)["max_memory_bytes"]
    assert (verdict["found"], verdict["reason"][-48:]) == (
        164,
        "arguments 128 B, outputs 64 B, temps 32 B, aliased 60 B"[-48:],
    )


def test_memory_of_one_device_is_checked_too():
    assert verdicts("max_memory_bytes: 100", program="vmap")["max_memory_bytes"]["status"] == "failed"


@pytest.mark.parametrize("part", range(3))
def test_an_expectation_of_memory_fails_where_the_backend_does_not_tell_a_part(part):
    sizes = [128, 64, 32]
    memory = codec.plain(Memory.of(sizes[0], sizes[1], sizes[2], 0, -1))
    assert verdicts("max_memory_bytes: 224", memory=memory)["max_memory_bytes"]["found"] == 224
    sizes[part] = -1
    verdict = verdicts("max_memory_bytes: 1000", memory=codec.plain(Memory.of(sizes[0], sizes[1], sizes[2], 0, -1)))[
        "max_memory_bytes"
    ]
    assert verdict == {"status": "failed", "reason": "the backend does not report the memory"}


def test_an_expectation_of_memory_fails_where_the_backend_tells_none():
    verdict = verdicts("max_memory_bytes: 100", memory=None)["max_memory_bytes"]
    assert verdict == {"status": "failed", "reason": "the backend does not report the memory"}


# Overlap.


def behind(*lines: str, **more: Any) -> Any:
    """Return an asynchronous collective of C that these lines overlap."""
    return collective(asynchronous=True, overlapped=list(lines), **more)


def test_expected_overlaps_pass():
    assert verdicts("overlapped: [C]", behind("D"), on=TPU) == {"overlapped": {"status": "passed"}}
    assert verdicts("not_overlapped: [C]", behind(), collective(overlapped=[]), on=TPU) == {
        "not_overlapped": {"status": "passed"}
    }


@pytest.mark.parametrize(
    ("given", "entries", "why"),
    [
        ("overlapped", [behind()], ["1 × all-reduce of C over x: a device sends 64 B: nothing is computed meanwhile"]),
        (
            "overlapped",
            [collective(overlapped=[])],
            ["1 × all-reduce of C over x: a device sends 64 B: it is synchronous"],
        ),
        (
            "overlapped",
            [behind("D"), behind(count=2), replace(behind(), overlapped=None)],
            [
                "2 × all-reduce of C over x: a device sends 64 B: nothing is computed meanwhile",
                "1 × all-reduce of C over x: a device sends 64 B: the computation that overlaps with it is not known",
            ],
        ),
        ("overlapped", [behind("C", node="D")], ["C has no collective"]),
        (
            # This one could not be attributed.
            "overlapped",
            [behind("D"), behind(node=None)],
            [
                "1 × all-reduce of no line that the module names over x: a device sends 64 B: "
                "nothing is computed meanwhile"
            ],
        ),
        (
            "not_overlapped",
            [behind(), behind("D", node=None)],
            ["1 × all-reduce of no line that the module names over x: a device sends 64 B: it overlaps with D"],
        ),
        (
            "not_overlapped",
            [behind("D", "partial")],
            ["1 × all-reduce of C over x: a device sends 64 B: it overlaps with D, partial"],
        ),
        (
            "not_overlapped",
            [replace(behind(), overlapped=None)],
            ["1 × all-reduce of C over x: a device sends 64 B: the computation that overlaps with it is not known"],
        ),
        ("not_overlapped", [], ["C has no collective"]),
    ],
)
def test_unexpected_overlaps_fail(given, entries, why):
    (verdict,) = verdicts(f"{given}: [C]", *entries, on=TPU).values()
    negated = "not " if given == "not_overlapped" else ""
    assert verdict == {
        "status": "failed",
        "reason": f"expected {negated}to overlap with computation",
        "details": why,
    }


@pytest.mark.parametrize("given", ["overlapped", "not_overlapped"])
def test_every_line_of_an_expectation_needs_a_collective(given):
    (verdict,) = verdicts(f"{given}: [C, D]", behind(*(["D"] if given == "overlapped" else [])), on=TPU).values()
    assert verdict["details"] == ["D has no collective"]


@pytest.mark.parametrize(("given", "lines"), [("overlapped", ["D"]), ("not_overlapped", [])])
def test_an_equal_collective_without_a_line_changes_nothing(given, lines):
    (verdict,) = verdicts(f"{given}: [C]", behind(*lines), behind(*lines, node=None), on=TPU).values()
    assert verdict == {"status": "passed"}


def test_a_merged_collective_belongs_to_all_its_lines():
    merged = behind("partial", nodes=["C", "D"])
    assert verdicts("overlapped: [D]", merged, on=TPU)["overlapped"]["status"] == "passed"


@pytest.mark.parametrize(
    ("program", "line", "name", "status"),
    [
        ("shard_map", "ring.lhs", "overlapped", "passed"),
        ("shard_map", "ring.lhs", "not_overlapped", "failed"),
        ("constraint", "C", "overlapped", "failed"),
        ("constraint", "C", "not_overlapped", "passed"),
    ],
)
def test_a_collective_matmul_overlaps_on_tpus_as_a_ring_alone(program, line, name, status):
    module = compiled.stored(f"ring_matmul/{program}.v5e_2x2.jax-0.12.0.1")
    text = (compiled.MODULES / "ring_matmul" / "experiment.yaml").read_text()
    ring = experiment(text, expect={name: [line]}, **TPU)
    evidence = {"collectives": module.entries, "collectives_unknown": module.unknown, "memory": None}
    evidence["collectives_missing"] = module.missing
    assert check(ring, Program(program), evidence)[name]["status"] == status


@pytest.mark.parametrize("given", ["overlapped", "not_overlapped"])
def test_nothing_overlaps_on_cpus(given):
    (verdict,) = verdicts(f"{given}: [C]", collective()).values()
    assert verdict == {"status": "not_run", "reason": "CPU devices communicate synchronously; nothing can overlap"}


# Layouts.


def lies(*spec: Any, shape: tuple[int, ...] = (4, 4)) -> dict[str, Any]:
    """Return the layout that the compiler chose for C."""
    return {"layouts": {"C": {"spec": list(spec), "shape": list(shape), "text": "GSPMDSharding({…})"}}}


def test_a_line_in_the_expected_layout_passes():
    assert verdicts("layouts: {C: [x, y]}", **lies("x", "y")) == {"layouts": {"status": "passed"}}
    assert verdicts("layouts: {C: [[x, y]]}", **lies(["x", "y"], None))["layouts"]["status"] == "passed"
    assert verdicts("layouts: {C: []}", **lies())["layouts"]["status"] == "passed"


@pytest.mark.parametrize(
    ("given", "layouts", "why"),
    [
        ("[x]", lies("y"), "C is laid out as P('y'), expected P('x')"),
        ("[[y, x]]", lies(["x", "y"], None), "C is laid out as P(('x', 'y'), None), expected P(('y', 'x'))"),
        ("[null, null]", lies("x", None), "C is laid out as P('x', None), expected P(None, None)"),
        (
            "[x]",
            {"layouts": {"C": {"spec": None, "shape": [4, 4], "text": "GSPMDSharding({…})"}}},
            "C has no PartitionSpec: GSPMDSharding({…})",
        ),
    ],
)
def test_outputs_in_other_layouts_than_expected_fail(given, layouts, why):
    assert verdicts(f"layouts: {{C: {given}}}", **layouts)["layouts"] == {
        "status": "failed",
        "reason": why,
    }


def test_an_axis_of_one_device_makes_no_difference():
    mesh = {"mesh": {"axes": ["x", "y"], "shape": [4, 1]}}
    checks = verdicts("layouts: {C: [x, y]}", on=mesh, **lies("x", None))
    assert checks["layouts"]["status"] == "passed"


def test_every_layout_is_compared():
    layout = {"spec": ["x", None], "shape": [4, 4], "text": ""}
    verdict = verdicts("layouts: {C: [x], D: [y]}", layouts={"C": layout, "D": layout})["layouts"]
    assert verdict["reason"] == "D is laid out as P('x', None), expected P('y')"
    both = verdicts("layouts: {C: [y], D: [y]}", layouts={"C": layout, "D": layout})["layouts"]["reason"]
    assert both == "C is laid out as P('x', None), expected P('y'); D is laid out as P('x', None), expected P('y')"


def test_an_axis_may_have_a_long_name():
    mesh = {"mesh": {"axes": ["data", "model"], "shape": [2, 2]}}
    text = TEXT.replace("[null, x]", "[null, data]").replace("[x, null]", "[data, null]").replace("'x'", "'data'")
    given = experiment(text, expect={"layouts": {"C": ["data", ["model"]]}}, **mesh)
    assert check(given, Program("auto"), lies("data", ["model"]))["layouts"] == {"status": "passed"}
    verdict = check(given, Program("auto"), lies(["data", "model"]))["layouts"]
    assert verdict["reason"] == "C is laid out as P(('data', 'model')), expected P('data', 'model')"


def test_an_expected_layout_with_too_many_dimensions_fails():
    verdict = verdicts("layouts: {C: [null, null, null]}", **lies(None, None))["layouts"]
    assert verdict["reason"] == "C is laid out as P(None, None), expected P(None, None, None)"


@pytest.mark.parametrize(
    ("given", "spec", "shape"),
    [
        # The same blocks on all devices but the last ones, and the same numbers of shards with other blocks.
        ("[[x, y]]", [["y", "x"], None], (4, 4)),
        ("[x, y]", ["y", "x"], (4, 4)),
        ("[x]", [None, "x"], (4, 4)),
        ("[null, y]", ["y", None], (4, 4)),
    ],
)
def test_a_layout_must_match_on_every_device(given, spec, shape):
    verdict = verdicts(f"layouts: {{C: {given}}}", **lies(*spec, shape=shape))["layouts"]
    assert verdict["status"] == "failed"


def test_values_of_per_device_have_no_layout():
    verdict = verdicts("layouts: {C: [x]}", program="shard_map")["layouts"]
    assert verdict == {
        "status": "not_run",
        "reason": "a value of per_device is what each device holds; it has no layout",
    }


# Compiler warnings.

FULL = (
    "[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding {devices=[1,2,2]<=[4] "
    "last_tile_dim_replicate} to {devices=[4,1]<=[2,2]T(1,0)} efficiently for HLO operation %mul.3 = f32[16,8]{1,0} "
    'copy(%mul.2), sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}, metadata={op_name="jit(test)/C/mul" '
    "stack_frame_id=9}. As the last resort, SPMD will replicate the tensor and then partition it to obtain the target "
    "sharding, which is inefficient. This issue will be fixed by Shardy partitioner in the future, which is tracked in "
    "b/433785288. Contact Shardy or XLA team for help."
)
OTHER = "Sharding propagation does not converge after 64 iterations"
LOG = f"""
W1121 06:32:17.191390    5192 spmd_partitioner.cc:666] {FULL}
I1121 06:32:17.191390    5192 spmd_partitioner.cc:666] [SPMD] is told for nobody to read
W1121 06:32:17.200001    5192 spmd_partitioner.cc:666] {FULL}
E0101 00:00:00.000000       1 sharding_propagation.cc:12] {OTHER}
W1121 06:32:17.273431    5192 cpu_feature_guard.cc:210] This machine has more instructions than are used
Traceback (most recent call last): sharding
"""


def test_warnings_about_shardings_are_read_with_their_lines():
    origins = Origins(experiment(TEXT), "graph")
    assert as_json(compiler_warnings.read(LOG, origins)) == [
        {"kind": "involuntary full rematerialization", "node": "C", "text": FULL, "times": 2},
        {"kind": "sharding", "node": None, "text": OTHER, "times": 1},
    ]
    assert compiler_warnings.read("", origins) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("W0101 00:00:00.000000       1 spmd_partitioner.cc:12] nothing in the words", "sharding"),
        ("W0101 00:00:00.000000       1 hlo_pass.cc:12] the Sharding is lost", "sharding"),
        ("E0101 00:00:00.000000       1 hlo_pass.cc:12] Rematerialization did not help", "sharding"),
        ("F0101 00:00:00.000000       1 hlo_pass.cc:12] [SPMD] INVOLUNTARY FULL rematerialization.", None),
        ("W0101 00:00:00.000000       1 hlo_pass.cc:12] The pass did not converge", "none"),
        ("I0101 00:00:00.000000       1 spmd_partitioner.cc:12] sharding", "none"),
    ],
)
def test_a_warning_is_about_shardings_by_its_file_or_by_its_words(line, kind):
    entries = as_json(compiler_warnings.read(line, Origins(experiment(TEXT), "graph")))
    expected = [] if kind == "none" else [kind or "involuntary full rematerialization"]
    assert [warning["kind"] for warning in entries] == expected
    assert all(warning["text"] == line.partition("] ")[2] for warning in entries)


REMATERIALIZED = """
# @package _global_
name: mine
mesh: {axes: [x, y, z], shape: [2, 2, 2]}
arrays:
  A: {shape: [16, 16], spec: [null, x]}
graph:
  scaled: A * 2
  B: tanh(scaled)
constraints:
  scaled: [[y, x], null]
outputs:
  B: [[y, x], null]
"""


def run(folder: Path, text: str, *overrides: str) -> tuple[int, str, Any]:
    """Run an experiment of the user's own; return the exit status, the output, the record."""
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text(text.lstrip())
    command = ["--config-dir", str(folder), "+experiment=mine", f"hydra.run.dir={folder}/run", *overrides]
    result = run_command(*command)
    return result.returncode, result.stdout, json.loads((folder / "run" / "result.json").read_text())


def test_a_rematerialization_is_in_the_record(tmp_path: Path):
    status, _, record = run(tmp_path, REMATERIALIZED, "program=constraint")
    assert status == 0
    (warning,) = record["programs"]["constraint"]["compiler_warnings"]
    assert warning["kind"] == "involuntary full rematerialization"
    # The compiler names the operand, which it moves before it scales it.
    assert warning["node"] == "A"
    assert warning["text"].startswith("[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding")
    assert warning["times"] == 1


EXPECTING = """
# @package _global_
defaults:
  - override /mesh: x2_y2
name: mine
arrays:
  A: {shape: [4, 4], spec: [null, x]}
  B: {shape: [4, 4], spec: [x, null]}
graph:
  C: A @ B
  D: C * 2
per_device:
  C: psum(A @ B, 'x')
  D: C * 2
outputs:
  D: [null, null]
expect:
  collectives: {all-reduce: 1, vmap: {}}
  max_bytes_per_device: 64
  max_memory_bytes: 100000
  layouts: {C: [null, null]}
"""


def test_a_run_with_met_expectations_passes(tmp_path: Path):
    status, _, record = run(tmp_path, EXPECTING)
    assert status == 0
    names = ("collectives", "max_bytes_per_device", "max_memory_bytes", "layouts")
    initials = {
        program: "".join(result["checks"][name]["status"][0] for name in names)
        for program, result in record["programs"].items()
    }
    assert initials == {
        "auto": "pppp",
        "constraint": "pppp",
        "explicit": "pppp",
        "derived": "pppn",
        "shard_map": "pppn",
        "vmap": "nnpn",
    }


def test_a_run_with_unmet_expectations_fails(tmp_path: Path):
    overrides = ("program=auto", "expect.collectives.all-reduce=2", "expect.layouts.C=[x,null]")
    status, printed, record = run(tmp_path, EXPECTING, *overrides, "expect.max_bytes_per_device=63")
    assert status == 1
    assert record["status"] == "failed"
    checks = record["programs"]["auto"]["checks"]
    assert checks["collectives"]["reason"] == "expected 2 all-reduce, found 1 all-reduce"
    assert (
        checks["max_bytes_per_device"]["reason"]
        == "each device sends 64 bytes for collectives, on a ring (64 B), more than 63"
    )
    assert checks["layouts"]["reason"] == "C is laid out as P(), expected P('x', None)"
    for name in ("collectives", "max_bytes_per_device", "layouts"):
        assert checks[name]["reason"] in " ".join(printed.split())
