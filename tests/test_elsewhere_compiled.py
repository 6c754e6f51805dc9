"""Modules as the compilers of GPUs and TPUs write them, of several versions of XLA: see `tests/elsewhere/README.md`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.compiled.explanation import modules

FOLDER = Path(__file__).parent / "elsewhere"


@dataclass(frozen=True)
class Known:
    """What is known of a module by hand.

    - `flops`: two for each multiplication of its shapes; `sent`: the bytes that a device sends on a ring.
    - `asynchronous`: whether a collective is; `missing`: a part of the sentence about what may be missing.
    """

    flops: float = 0.0
    collectives: dict[str, int] = field(default_factory=dict[str, int])
    sent: int = 0
    asynchronous: bool = False
    missing: str = ""


MODULES = {
    "gpu_all_to_all_parameters_in_names": Known(collectives={"all-to-all": 1}, sent=1024, asynchronous=True),
    "gpu_cublas_quoted": Known(flops=2 * 64 * 32 * 16, collectives={"all-reduce": 1}, sent=3072),
    "gpu_cublaslt_beside_all_reduce": Known(
        flops=2 * 64 * 32 * 16, collectives={"all-reduce": 1}, sent=1536, asynchronous=True
    ),
    "gpu_cublaslt_float8": Known(flops=2 * 64 * 32 * 16, collectives={"reduce-scatter": 1}, sent=3072),
    "gpu_cudnn_convolution": Known(
        flops=2 * 2 * (10 * 19 * 29 * 8) * (2 * 2 * 40), collectives={"all-reduce": 1}, sent=3840
    ),
    "gpu_cudnn_attention": Known(flops=(2 + 5) * 2 * (2 * 4 * 64 * 64) * 16),
    "gpu_triton_and_async_gather": Known(
        flops=2 * 64 * 32 * 4, collectives={"all-gather": 1}, sent=1536, asynchronous=True
    ),
    "gpu_command_buffer": Known(flops=2 * 16**3, collectives={"all-reduce": 1}, sent=1536),
    "gpu_nccl_by_name": Known(missing="calls ncclAllReduce, which may communicate"),
    "tpu_all_reduce_scatter": Known(collectives={"reduce-scatter": 1}, sent=3072),
    "tpu_collective_matmul": Known(
        flops=2 * 128**3, collectives={"collective-permute": 1}, sent=32768, asynchronous=True
    ),
    "tpu_elements_by_number": Known(flops=0, collectives={"all-reduce": 1}, sent=5 * 96),
    "tpu_merged_by_number": Known(flops=2 * 2 * 8**3, collectives={"all-reduce": 2}, sent=288 + 544),
    "tpu_megascale": Known(collectives={"all-reduce": 1}, asynchronous=True),
    "tpu_sparsecore_calls": Known(flops=2 * 64**3, collectives={"all-reduce": 1}, sent=1536, asynchronous=True),
    "tpu_sparsecore": Known(collectives={"all-gather": 1}, sent=1536, asynchronous=True),
}


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", MODULES)
def test_products_and_collectives_of_modules_of_gpus_and_tpus(name: str) -> None:
    known = MODULES[name]
    explanation = modules.explain(text_of(name), name)
    assert sum(line.flops for line in explanation.computed or ()) == known.flops
    assert Counter(entry.kind for entry in explanation.placed or ()) == known.collectives
    assert any(entry.asynchronous for entry in explanation.placed or ()) == known.asynchronous
    assert [known.missing in sentence for sentence in explanation.missing] == [True] * bool(known.missing)
    if known.sent:
        assert explanation.sent() == known.sent
    assert not any("not counted" in sentence for sentence in explanation.unknown)


def test_a_collective_named_with_its_parameters_is_one_that_the_program_asks_for() -> None:
    (exchange,) = modules.explain(text_of("gpu_all_to_all_parameters_in_names"), "step.txt").moving
    assert (exchange.node, exchange.inserted) == ("fft.py:37", False)


def test_a_call_on_another_core_overlaps_with_what_runs_meanwhile() -> None:
    explanation = modules.explain(text_of("tpu_sparsecore_calls"), "step.txt")
    assert [entry.overlapped for entry in explanation.moving] == [["step.py:5"]]
    assert explanation.missing == []


def test_a_started_call_that_names_no_computation_may_communicate() -> None:
    text = text_of("tpu_sparsecore_calls").replace(", called_computations={%offloaded}", "")
    explanation = modules.explain(text, "step.txt")
    assert explanation.missing == ["launch starts a call of the compiler's own, which may communicate"]


def test_elements_that_are_read_by_their_numbers_are_elements() -> None:
    (entry,) = modules.explain(text_of("tpu_elements_by_number"), "step.txt").moving
    # Five steps of a loop, each with a part of 64 B of which three quarters are sent twice.
    assert (entry.count, entry.bytes_in, entry.bytes_sent) == (5, 64, 96)
    assert entry.node == "step.py:9"


def test_merged_sums_whose_elements_have_no_names_have_the_lines_of_their_operands() -> None:
    inserted, merged = modules.explain(text_of("tpu_merged_by_number"), "step.txt").moving
    assert inserted.nodes == ["step.py:17", "step.py:16"]
    assert merged.nodes == ["step.py:9", "step.py:16", "step.py:17"]
    assert [part.nodes for part in merged.parts] == [["step.py:9"], ["step.py:16"], ["step.py:17"]]


def test_a_merged_sum_says_which_part_of_it_the_program_asks_for() -> None:
    inserted, merged = modules.explain(text_of("tpu_merged_by_number"), "step.txt").moving
    assert inserted.why is None
    assert merged.why is not None
    assert merged.why.text == (
        "JAX's differentiation of step.py:9 asks for it: psum; XLA merged it with the sums that it inserts for "
        "step.py:16 and step.py:17"
    )


def test_a_product_of_a_library_moves_its_arrays_and_not_its_workspace() -> None:
    explanation = modules.explain(text_of("gpu_command_buffer"), "step.txt")
    assert sum(line.bytes for line in explanation.computed or ()) == 3 * 16 * 16 * 4


def test_a_causal_attention_counts_half() -> None:
    causal = modules.explain(text_of("gpu_cudnn_attention").replace("NO_MASK", "CAUSAL"), "step.txt")
    assert sum(line.flops for line in causal.computed or ()) == MODULES["gpu_cudnn_attention"].flops / 2


def test_a_product_that_cannot_be_read_is_no_product_of_nothing() -> None:
    text = text_of("gpu_command_buffer").replace("lhs_contracting_dimensions", "x")
    explanation = modules.explain(text, "step.txt")
    assert sum(line.flops for line in explanation.computed or ()) == 0
    assert "the operands of call could not be read" in explanation.unknown
