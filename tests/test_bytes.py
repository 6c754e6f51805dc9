"""The bytes that compiled programs move, against textbook formulas, at several sizes and meshes.

V is counted as in "How to Scale Your Model": per device the operands and the results of all collectives of a kind over
the same axes, since XLA may merge some into one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.compiled.evidence.gather import gather
from runner.experiment.program import Program
from tests import harness
from tests.command import ROOT

Moved = dict[tuple[str, str], tuple[int, ...]]
"""The bytes into and out of each device, by the kind of the collectives and the axes that they communicate over."""

FLOAT = 4


def shipped(name: str, program: str, mesh: Mapping[str, int], dims: Mapping[str, int]) -> Any:
    """Return a shipped experiment at other sizes."""
    given = yaml.safe_load((ROOT / "conf" / "experiment" / f"{name}.yaml").read_text())
    for key in ("defaults", "expect", "hydra"):
        given.pop(key, None)
    sizes = {**given["dims"], **dims}
    return harness.config(
        yaml.safe_dump(given, sort_keys=False),
        mesh={"axes": list(mesh), "shape": list(mesh.values())},
        dims=sizes,
        program=program,
    )


def volumes(evidence: Any) -> Moved:
    """Return the total bytes that the collectives of a record move."""
    moved: Moved = {}
    for entry in evidence.collectives:
        key = entry.kind, " ".join(entry.axes)
        into, out = moved.get(key, (0, 0))
        moved[key] = into + entry.count * entry.bytes_in, out + entry.count * entry.bytes_out
    return moved


def case3(I: int, K: int, **_: int) -> Moved:  # noqa: E741
    """[I, J_x] times [J_x, K]: an all-reduce of the product."""
    return {("all-reduce", "x"): (I * K * FLOAT,) * 2}


def all_gathered(M: int, K: int, x: int, **_: int) -> Moved:
    """[M_x, K] times [K, N]: the input is a shard, the output is whole."""
    return {("all-gather", "x"): (M * K * FLOAT // x, M * K * FLOAT)}


def scattered(M: int, N: int, x: int, **_: int) -> Moved:
    """[M, K_x] times [K_x, N] to [M_x, N]: the input is the whole partial product, the output is a shard."""
    return {("reduce-scatter", "x"): (M * N * FLOAT, M * N * FLOAT // x)}


def gathered_in_a_ring(M: int, K: int, x: int, **_: int) -> Moved:
    """Each shard of the first operand visits all other devices."""
    return {("collective-permute", "x"): ((x - 1) * M * K * FLOAT // x,) * 2}


def scattered_in_a_ring(M: int, N: int, x: int, **_: int) -> Moved:
    """Each shard of the result is summed along the ring."""
    return {("collective-permute", "x"): ((x - 1) * M * N * FLOAT // x,) * 2}


def data_parallel(D: int, F: int, O: int, **_: int) -> Moved:  # noqa: E741
    """The gradients of all weights, and the loss."""
    return {("all-reduce", "data"): ((D * F + F + F * O + O + 1) * FLOAT,) * 2}


def fsdp(D: int, F: int, data: int, **_: int) -> Moved:
    """The forward pass gathers both weights, the backward pass scatters their gradients; the loss is reduced."""
    shards, weights = 2 * D * F * FLOAT // data, 2 * D * F * FLOAT
    return {
        ("all-gather", "data"): (shards, weights),
        ("reduce-scatter", "data"): (weights, shards),
        ("all-reduce", "data"): (FLOAT, FLOAT),
    }


def megatron(T: int, D: int, model: int, **_: int) -> Moved:
    """The block's output in the forward pass, the gradient of its input in the backward pass."""
    return {("all-reduce", "model"): (2 * T * D * FLOAT,) * 2}


def megatron_on_parts(B: int, D: int, F: int, data: int, model: int, **_: int) -> Moved:
    """The same for a part of the batch; over data each device's parts of the weights' gradients, and the loss."""
    weights = (D * F + F + F * D) // model + D
    return {
        ("all-reduce", "model"): (2 * B * D * FLOAT // data,) * 2,
        ("all-reduce", "data"): ((weights + 1) * FLOAT,) * 2,
    }


def ulysses(B: int, H: int, S: int, K: int, seq: int, **_: int) -> Moved:
    """q, k, v and the heads are exchanged forward, their gradients backward; sizes do not change."""
    return {
        ("all-to-all", "seq"): (8 * B * H * S * K * FLOAT // seq,) * 2,
        ("all-reduce", "seq"): (FLOAT, FLOAT),
    }


def hierarchical(N: int, node: int, device: int, **_: int) -> Moved:
    """Within a node the gradient is scattered and gathered; only a part of it crosses between nodes."""
    part, whole = N * FLOAT // device, N * FLOAT
    return {
        ("reduce-scatter", "device"): (whole, part),
        ("all-reduce", "node"): (part, part),
        ("all-gather", "device"): (part, whole),
    }


CASES: list[tuple[str, tuple[str, ...], Callable[..., Moved], list[tuple[dict[str, int], dict[str, int]]]]] = [
    (
        "case3_allreduce",
        ("shard_map", "auto", "explicit"),
        case3,
        [({"x": 2, "y": 2}, {"I": 4, "J": 4, "K": 4}), ({"x": 4, "y": 2}, {"I": 12, "J": 8, "K": 20})],
    ),
    (
        "collective_allgather_matmul",
        ("shard_map", "constraint"),
        all_gathered,
        [({"x": 4, "y": 1}, {"M": 64, "K": 8, "N": 16}), ({"x": 8, "y": 1}, {"M": 48, "K": 12, "N": 40})],
    ),
    (
        "collective_psum_scatter_matmul",
        ("shard_map",),
        scattered,
        [({"x": 4, "y": 1}, {"M": 64, "K": 8, "N": 16}), ({"x": 2, "y": 2}, {"M": 6, "K": 10, "N": 14})],
    ),
    (
        "collective_allgather_matmul_overlapped",
        ("shard_map",),
        gathered_in_a_ring,
        [({"x": 4, "y": 1}, {"M": 64, "K": 8, "N": 16}), ({"x": 8, "y": 1}, {"M": 48, "K": 12, "N": 40})],
    ),
    (
        "collective_psum_scatter_matmul_overlapped",
        ("shard_map",),
        scattered_in_a_ring,
        [({"x": 4, "y": 1}, {"M": 64, "K": 8, "N": 16}), ({"x": 3, "y": 1}, {"M": 36, "K": 12, "N": 40})],
    ),
    (
        "data_parallel",
        ("shard_map", "auto"),
        data_parallel,
        [({"data": 4}, {"B": 16, "D": 8, "F": 32, "O": 4}), ({"data": 8}, {"B": 24, "D": 6, "F": 10, "O": 3})],
    ),
    (
        "fsdp",
        ("shard_map",),
        fsdp,
        [({"data": 4}, {"B": 16, "D": 8, "F": 32}), ({"data": 2}, {"B": 6, "D": 10, "F": 14})],
    ),
    (
        "tensor_parallel_mlp",
        ("shard_map", "constraint"),
        megatron,
        [({"model": 4}, {"T": 16, "D": 8, "F": 32}), ({"model": 8}, {"T": 6, "D": 10, "F": 24})],
    ),
    (
        "data_tensor_parallel",
        ("shard_map", "constraint"),
        megatron_on_parts,
        [
            ({"data": 2, "model": 4}, {"B": 16, "D": 8, "F": 32}),
            ({"data": 4, "model": 2}, {"B": 12, "D": 10, "F": 24}),
        ],
    ),
    (
        "ulysses_attention",
        ("shard_map",),
        ulysses,
        [({"seq": 4}, {"B": 2, "H": 4, "S": 16, "K": 8}), ({"seq": 2}, {"B": 1, "H": 6, "S": 8, "K": 4})],
    ),
    (
        "hierarchical_all_reduce",
        ("shard_map",),
        hierarchical,
        [({"node": 2, "device": 4}, {"N": 64}), ({"node": 4, "device": 2}, {"N": 24})],
    ),
]

POINTS = [
    pytest.param(name, program, formula, mesh, dims, id=f"{name}-{program}-{number}")
    for name, programs, formula, settings in CASES
    for program in programs
    for number, (mesh, dims) in enumerate(settings)
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "program", "formula", "mesh", "dims"), POINTS)
def test_the_bytes_equal_the_formula(name, program, formula, mesh, dims, tmp_path: Path):
    outcome = harness.run(shipped(name, program, mesh, dims), tmp_path)
    assert outcome.failures() == []
    evidence = gather(outcome.experiment, Program(program), tmp_path, None).evidence
    assert evidence.collectives_unknown == []
    assert volumes(evidence) == formula(**mesh, **dims)
