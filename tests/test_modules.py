"""Stored compiled modules of several compilers: everything that each communicates, to the last byte.

The numbers follow from the shapes and meshes of the experiments, which are stored beside the modules.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.layout import Mesh
from runner.compiled.evidence import hlo
from runner.graph.sharding.ring import sent as sent_on_a_ring
from tests.compiled import MODULES, collectives_in, experiment, stored
from tests.evidence import as_json

OLD, NEW = "jax-0.10.2", "jax-0.12.0.1"


def written(kind: str, node: str, axes: Any, bytes_in: int, bytes_out: int | None = None, **more: Any) -> Any:
    """Return a collective that the line `node` asks for; `axes` are names, or a dict of `axes` and `groups`."""
    given = {"axes": axes.split(), "groups": ...} if isinstance(axes, str) else axes
    bytes_out = bytes_in if bytes_out is None else bytes_out
    return {
        "kind": kind,
        "node": node,
        "nodes": [node],
        "gradient": False,
        "inserted": False,
        "between": None,
        **given,
        "dtype": "float32",
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "bytes": max(bytes_in, bytes_out),
        "count": 1,
        "asynchronous": False,
        "overlapped": [],
        **more,
    }


def inserted(*given: Any, moves: list[str], to: list[str], **more: Any) -> Any:
    """Return a collective that the compiler inserted."""
    return written(*given, inserted=True, between={"from": moves, "to": to}, **more)


def meanwhile(*lines: str) -> dict[str, Any]:
    """Return the fields of an asynchronous collective that these lines overlap."""
    return {"asynchronous": True, "overlapped": list(lines)}


def ring(size: int, shift: int) -> list[list[int]]:
    """Return the pairs of a permute that shifts by this much along one axis, ordered by sender."""
    return [[i, (i + shift) % size] for i in range(size)]


# [8, 8] of A on each of 2 by 4 devices is 256 bytes, [4] of H in bfloat16 is 8.
SHIFTED = {"axes": ["y"], "groups": [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4]]}
TURNED = {"axes": ["x"], "groups": [[0, 4], [4, 0], [1, 5], [5, 1], [2, 6], [6, 2], [3, 7], [7, 3]]}
ON_BOTH = [
    written("all-reduce", "summed", "x", 256),
    written("all-reduce", "largest", "y", 256, reduction="max"),
    written("all-reduce", "total", "x y", 4),
    written("all-gather", "gathered", "y", 256, 1024),
    written("all-to-all", "swapped", "x", 256),
]
EVERY_ON_CPUS = [
    *ON_BOTH,
    written("reduce-scatter", "scattered", "y", 256, 64),
    written("collective-permute", "shifted", SHIFTED, 256),
    written("all-reduce", "halves", "y", 16),  # promoted to float32
    written("collective-permute", "ring.h", TURNED, 256, count=5),
]

# x, w1 and w2 are [32, 32] on each device, 4096 bytes. The gradients of w1 and w2 and the loss are reduced as one.
MERGED: dict[str, Any] = {"nodes": ["loss", "hidden", "out"], "backward": ["hidden", "out"]}
STEP = [
    written("all-reduce", "out", "model", 4096),
    written("all-reduce", "hidden", "model", 4096, gradient=True),
    written("all-reduce", "loss", "data", 4096 + 4096 + 4, **MERGED),
]
STEP_OF_A_GRAPH = [
    inserted("all-reduce", "out", "model", 4096, moves=["out"], to=["loss"]),
    inserted("all-reduce", "hidden", "model", 4096, moves=["hidden"], to=[], gradient=True),
    inserted("all-reduce", "loss", "data", 8196, moves=["loss", "hidden", "out"], to=["loss"], **MERGED),
]

# [32, 32] of x and out on each device, [32, 64] of w1, [64, 32] of w2, all of b2. Without check_vma psum's transpose is
# psum, and shard_map's sums the cotangents over the axes on which an array is replicated: x's, w1's and w2's, b2's.
UNCHECKED = [
    written("all-reduce", "out", "model", 4096),
    written("all-reduce", "out", "model", 4096, gradient=True),
    written("all-reduce", "hidden", "model", 4096, gradient=True),
    written("all-reduce", "out", "data model", 32 * 4, gradient=True),
]
WEIGHTS = 2 * 64 * 32 * 4
GATHERED = ("model", 64 * 32 * 4, 2 * 64 * 32 * 4)

UNCHECKED_ON_CPUS = [
    *UNCHECKED,
    # Forward and backward.
    written("all-reduce", "loss", "data", 4 + 4),
    written("all-reduce", "hidden", "data", WEIGHTS, gradient=True, nodes=["hidden", "out"]),
]

# A quarter of A, [128, 64], passes around the ring.
BACK = {"axes": ["x"], "groups": ring(4, -1)}
CHUNK = 128 * 64 * 4
RING = [
    written("collective-permute", "ring.lhs", BACK, CHUNK, **meanwhile("start")),
    written("collective-permute", "ring.lhs", BACK, CHUNK, **meanwhile("ring.result")),
    written("collective-permute", "ring.lhs", BACK, CHUNK, **meanwhile("ring.result")),
]

# A quarter of w1, [8, 128], and of w2, [32, 32].
FIRST = inserted("all-gather", "hidden", "data", 4096, 16384, moves=["w1"], to=["hidden"])
SECOND = inserted("all-gather", "out", "data", 4096, 16384, moves=["w2"], to=["out"])

FORWARD = {"axes": ["stage"], "groups": ring(4, 1)}
STEPS = 8 + 4 - 1

HALVES = {"axes": None, "groups": [[0, 1, 2, 3], [4, 5, 6, 7]]}
ACROSS = {"axes": None, "groups": [[0, 4], [1, 5], [2, 6], [3, 7]]}
PART_OF_AN_AXIS = [
    inserted("all-reduce", "rows", HALVES, 32 * 4, moves=["rows"], to=[]),
    inserted("all-gather", "rows", ACROSS, 32 * 4, 2 * 32 * 4, moves=["rows"], to=[]),
]

MANY = [
    inserted("all-reduce", "C", "x", 1024 * 64 * 4, moves=["C"], to=["E"], groups=None),
    inserted("all-reduce", "E", "y", 1024 * 512 * 4, moves=["E"], to=[], groups=None),
]

REMATERIALIZED = [
    inserted("all-gather", "scaled", "x", 16 * 8 * 4, 16 * 16 * 4, moves=["A"], to=["scaled"]),
]

# [2, 4] of A, gathered [8, 4], times [4, 16] of W is [8, 16].
ROUND = {"axes": ["x"], "groups": [[0, 2], [2, 4], [4, 6], [6, 0], [1, 3], [3, 5], [5, 7], [7, 1]]}

EXPECTED: dict[str, list[Any]] = {
    f"every_collective/shard_map.cpu.{OLD}": EVERY_ON_CPUS,
    f"every_collective/shard_map.cpu.{NEW}": EVERY_ON_CPUS,
    f"every_collective/shard_map.v5e_2x4.{NEW}": [
        *ON_BOTH,
        # The TPU compiler replaces such a small reduce-scatter by an all-reduce.
        written("all-reduce", "scattered", "y", 256),
        written("collective-permute", "shifted", SHIFTED, 256, **meanwhile("total")),
        written("all-reduce", "halves", "y", 8, dtype="bfloat16"),
        written("collective-permute", "ring.h", TURNED, 256, count=5, **meanwhile()),
    ],
    f"gradient_step/constraint.cpu.{OLD}": STEP_OF_A_GRAPH,
    f"gradient_step/constraint.v5e_2x4.{OLD}": STEP_OF_A_GRAPH,
    f"gradient_step/shard_map.cpu.{NEW}": STEP,
    f"gradient_step/shard_map.v5e_2x4.{NEW}": STEP,
    f"unchecked_gradient/shard_map.cpu.{OLD}": [
        *UNCHECKED_ON_CPUS,
        inserted("all-gather", "grad.w1", *GATHERED, moves=["hidden"], to=[]),
    ],
    f"unchecked_gradient/shard_map.cpu.{NEW}": [
        *UNCHECKED_ON_CPUS,
        inserted("all-gather", "hidden", *GATHERED, moves=["hidden"], to=[], gradient=True),
    ],
    # The loss of the forward pass is merged with the weights' gradients; that of the backward pass was reduced before.
    f"unchecked_gradient/shard_map.v5e_2x2.{NEW}": [
        *UNCHECKED,
        written("all-reduce", "loss", "data", 4, gradient=True),
        written("all-reduce", "loss", "data", 4 + WEIGHTS, **MERGED),
        inserted("all-gather", "hidden", *GATHERED, moves=["hidden"], to=[], gradient=True, **meanwhile("hidden")),
    ],
    f"ring_matmul/shard_map.v5e_2x2.{OLD}": RING,
    f"ring_matmul/shard_map.v5e_2x2.{NEW}": RING,
    f"ring_matmul/constraint.v5e_2x2.{NEW}": [
        inserted("all-gather", "C", "x", CHUNK, 4 * CHUNK, moves=["A"], to=["C"]),
    ],
    f"gathered_weights/constraint.cpu.{OLD}": [FIRST, SECOND],
    # An async collective fusion: the second gather starts in one fusion, overlaps with the product, ends in another.
    f"gathered_weights/constraint.v5e_2x2.{NEW}": [FIRST, SECOND | meanwhile("hidden")],
    f"gathered_weights/shard_map.v5e_2x2.{OLD}": [
        written("all-gather", "w1_full", "data", 4096, 16384),
        written("all-gather", "w2_full", "data", 4096, 16384, **meanwhile("hidden")),
    ],
    f"scattered_matmul/constraint.cpu.{OLD}": [
        inserted("all-reduce", "C", "x", 512 * 128 * 4, moves=["C"], to=["C"]),
    ],
    # A fusion of an all-reduce and a slice.
    f"scattered_matmul/constraint.v5e_2x2.{OLD}": [
        inserted("reduce-scatter", "C", "x", 512 * 128 * 4, 128 * 128 * 4, moves=["C"], to=[]),
    ],
    f"scattered_matmul/shard_map.v5e_2x2.{NEW}": [
        written("reduce-scatter", "C", "x", 512 * 128 * 4, 128 * 128 * 4),
    ],
    # Of [16384, 2048], padded to four times [4104, 2048], each device keeps a quarter, and passes 24 rows on.
    f"scattered_matmul_large/constraint.v5e_2x2.{NEW}": [
        inserted("reduce-scatter", "C", "x", 4 * 4104 * 2048 * 4, 4104 * 2048 * 4, moves=["C"], to=[]),
        inserted(
            "collective-permute", "C", {"axes": ["x"], "groups": [list(pair) for pair in pairwise(range(4))]},
            24 * 2048 * 4, moves=["C"], to=[], **meanwhile(),
        ),
    ],
    f"pipeline/shard_map.cpu.{OLD}": [
        written("collective-permute", "pipeline.arrived", FORWARD, 4 * 16 * 4, count=STEPS),
        written("all-reduce", "result", "stage", 32 * 16 * 4),
    ],
    f"pipeline/shard_map.v5e_2x2.{NEW}": [
        written("collective-permute", "pipeline.arrived", FORWARD, 4 * 16 * 4, count=STEPS, **meanwhile()),
        written("all-reduce", "result", "stage", 32 * 16 * 4),
    ],
    # Two of the eight [16, 16] on each device: gathered before the loop on CPUs, in every step of it on TPUs.
    f"pipeline/auto.cpu.{NEW}": [
        inserted("all-gather", "layers.h", "stage", 2048, 8192, moves=["w"], to=["layers.h"]),
    ],
    f"pipeline/auto.v5e_2x2.{NEW}": [
        inserted("all-gather", "layers.h", "stage", 2048, 8192, moves=["w"], to=["layers.h"], count=8),
    ],
    f"loop_of_matmuls/constraint.cpu.{NEW}": [
        inserted("all-reduce", "layers.h", "x", 32 * 64 * 4, moves=["layers.h"], to=["layers.h"], count=6),
        inserted("all-gather", "layers", "x", 32 * 16 * 4, 32 * 64 * 4, moves=["layers"], to=[]),
    ],
    # Its loop has no known_trip_count; the count is read off its condition.
    f"loop_of_matmuls/constraint.v5e_2x2.{OLD}": [
        inserted("reduce-scatter", "layers.h", "x", 8192, 2048, moves=["layers.h"], to=["layers.h"], count=6),
        inserted("all-gather", "layers", "x", 2048, 8192, moves=["layers"], to=[]),
    ],
    f"part_of_an_axis/auto.cpu.{OLD}": PART_OF_AN_AXIS,
    f"part_of_an_axis/auto.cpu.{NEW}": PART_OF_AN_AXIS,
    f"many_devices/auto.v5e_16x16.{OLD}": MANY,
    f"many_devices/auto.v5e_16x16.{NEW}": MANY,
    f"rematerialized/constraint.cpu.{OLD}": REMATERIALIZED,
    f"rematerialized/constraint.cpu.{NEW}": REMATERIALIZED,
    "by_hand/shard_map.gpu": [
        written("all-gather", "gathered", "x", 32, 128, **meanwhile("squared")),
        written("all-reduce", "summed", "y", 512, **meanwhile()),
        written("reduce-scatter", "scattered", "x", 512, 128, **meanwhile()),
        written("all-reduce", "largest", "x", 256, reduction="max", **meanwhile()),
        written("collective-permute", "shifted", ROUND, 128, **meanwhile()),
    ],
    "by_hand/auto.gpu": [
        inserted("all-reduce", "product", "y", 128, moves=["product"], to=["shifted"], **meanwhile()),
        # It has no name, and its result is not used.
        inserted("all-gather", "A", "x", 32, 128, moves=["A"], to=[], **meanwhile()),
    ],
}  # fmt: skip


def in_order(collectives: list[Any]) -> list[Any]:
    """Sort collectives: schedules differ, but the communication does not depend on them."""
    return sorted(
        ({**as_json(entry), "instruction": ""} for entry in collectives),
        key=lambda entry: json.dumps(entry, sort_keys=True),
    )


def spelt_out(expected: Any, mesh: Mesh) -> Any:
    """Return a collective with its groups in full, the bytes sent on a ring, and the sum of a reduction."""
    groups = mesh.groups(expected["axes"]) if expected["groups"] is ... else expected["groups"]
    # With many devices no groups are listed, and the groups of a permute are pairs.
    size = len(groups[0]) if groups else mesh.axis_size(expected["axes"])
    sent = sent_on_a_ring(expected["kind"], size, expected["bytes_in"], expected["bytes_out"])
    reduction = {"reduction": "sum"} if expected["kind"] in ("all-reduce", "reduce-scatter") else {}
    return reduction | expected | {"groups": groups, "bytes_sent": sent}


def test_every_stored_module_is_expected_to_hold_something():
    names = {str(path.relative_to(MODULES).with_suffix("")) for path in MODULES.glob("*/*.txt")}
    assert names == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_collective_of_a_module_is_read(name):
    mesh = experiment(name.split("/")[0]).mesh
    module = stored(name)
    expected = [{**spelt_out(entry, mesh), "instruction": ""} for entry in EXPECTED[name]]
    assert in_order([replace(entry, parts=[]) for entry in module.entries]) == in_order(expected)
    assert module.unknown == []
    for entry in module.entries:
        # Only a merged collective has parts, one for each operand.
        assert not entry.parts or sum(part.bytes or 0 for part in entry.parts) == entry.bytes_in


@pytest.mark.parametrize("name", EXPECTED)
def test_a_collective_names_its_instruction(name):
    text = (MODULES / f"{name}.txt").read_text()
    instructions = [entry.instruction for entry in stored(name).entries]
    assert len(set(instructions)) == len(instructions)
    for instruction in instructions:
        assert re.search(rf"^  (ROOT )?%?{re.escape(instruction)} = ", text, re.MULTILINE)


@pytest.mark.parametrize("name", EXPECTED)
def test_without_a_schedule_overlaps_are_unknown(name):
    text = (MODULES / f"{name}.txt").read_text().replace("is_scheduled=true, ", "")
    folder, _, file = name.partition("/")
    for entry in collectives_in(text, experiment(folder), file.split(".")[0]).entries:
        assert entry.overlapped == (None if entry.asynchronous else [])


@pytest.mark.parametrize("name", EXPECTED)
def test_every_line_of_a_module_is_read(name):
    text = (MODULES / f"{name}.txt").read_text()
    module = hlo.read(text)
    assert module.unread == []
    assert sum(len(c.instructions) for c in module.computations.values()) == len(
        re.findall(r"^ .* = ", text, re.MULTILINE)
    )


@pytest.mark.in_turn
@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(name for name in EXPECTED if EXPECTED[name])), st.data())
def test_a_collective_whose_line_is_damaged_does_not_vanish(name, data):
    folder, _, file = name.partition("/")
    text = (MODULES / f"{name}.txt").read_text()
    victim = data.draw(st.sampled_from([entry.instruction for entry in stored(name).entries]))
    line = re.search(rf"^  (ROOT )?%?{re.escape(victim)} = .*$", text, re.MULTILINE)
    assert line is not None
    start = data.draw(st.integers(line.start() + 2, min(line.end(), line.start() + 300)))
    cut = data.draw(st.integers(1, 8))
    damaged = text[:start] + text[min(start + cut, line.end()) :]
    module = collectives_in(damaged, experiment(folder), file.split(".")[0])
    assert len(module.entries) == len(EXPECTED[name]) or module.unknown


def test_the_modules_hold_every_spelling_of_groups():
    text = "".join(path.read_text() for path in MODULES.glob("*/*.txt"))
    groups = ("{{0,2,4,6},", "[2,4]<=[4,2]T(1,0)", "mesh['x'=2,'y'=4] {'x','y'}", "mesh['a'=2,'b'=4], device_ids=(")
    for spelling in (*groups, "mesh['x'=8] {'x':(2)4}"):
        assert f"replica_groups={spelling}" in text


def test_no_module_names_a_folder_of_the_machine_that_compiled_it():
    for path in MODULES.glob("*/*.txt"):
        names = path.read_text().partition("FileNames\n")[2].partition("\n\n")[0]
        assert "/" not in names, path
