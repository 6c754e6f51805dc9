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
    ("mixed", "nucleus", 0), ("mixed", "nucleus", 1), ("mixed", "variational", 0), ("mixed", "clusters", 1),
    ("mixed", "correlated", 0), ("mixed", "largest", 1), ("mixed", "checkerboard", 0), ("mixed", "checkerboard", 1),
    ("parallel", "sharded_state", 0), ("parallel", "grouped_heads", 1), ("steps", "gathered_weights", 0),
    ("steps", "passed_messages", 1), ("steps", "recurrent", 0), ("styles", "tensor_grads", 0),
    ("solvers", "upwind", 0), ("solvers", "router", 1), ("solvers", "gated_rnn", 0), ("solvers", "rotary_attention", 1),
    ("solvers", "router", 0), ("models", "sharded_adagrad", 0), ("sciences", "v_trace", 0),
    ("heldout", "allgather_matmul", 1), ("blocks", "masked_loss", 1),
    ("practice", "low_rank", 1), ("practice", "advantages", 0), ("practice", "contrastive", 0),
    ("blocks", "clipped_gradient", 1), ("assorted", "microbatched", 0),
    ("assorted", "striped", 2), ("assorted", "lanczos", 1), ("assorted", "expert_choice", 1),
    ("assorted", "power_compressed", 0), ("assorted", "weighted_bound", 0), ("training", "fsdp_step", 0),
    ("blocks", "selective_scan", 1), ("practice", "viterbi", 0), ("heldout", "moe_all_to_all", 1),
    ("heldout", "flash_decode", 1),
]  # fmt: skip
"""Functions of the families of `benchmarks.mistakes`, and the numbers of their mistakes."""

LONGEST = [pytest.param("solvers", "triplet", 0, marks=pytest.mark.whole)]
"""A diagnosis that takes as long as all others of a session together."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


def lines_of(kind: str, name: str, number: int, folder: Path, workers: Workers) -> tuple[str, int, list[int]]:
    """The status of a function with a mistake, the mistake's line, and the lines that are named."""
    family = importlib.import_module(f"benchmarks.mistakes.{kind}")
    cases: tuple[Case, ...] = family.CASES
    at, case = next((at, case) for at, case in enumerate(cases) if case.name == name)
    broken, line = case.broken(Path(str(family.__file__)).read_text("utf-8"), case.mistakes[number])
    module = mistakes.imported(broken, f"{kind}_{name}", folder, number)
    record = mistakes.run(module.CASES[at], folder / "run", workers)
    return record.status, line, mistakes.lines(mistakes.diagnosis(record), f"{kind}_{name}_{number}.py")


@pytest.mark.sample(7)
@pytest.mark.parametrize(("kind", "name", "number"), [*NAMED, *LONGEST])
def test_the_changed_line_is_named(
    kind: str, name: str, number: int, tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    status, line, named = lines_of(kind, name, number, tmp_path, workers)
    assert status == "failed"
    assert line in named


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [
        ("mixed", "group_norm", 0),
        ("shards", "merged_top", 1), ("sciences", "butterfly", 0),
        ("practice", "whitened", 1),
    ],
)  # fmt: skip
def test_no_line_is_named_where_no_edit_mends_the_function(
    kind: str, name: str, number: int, tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    status, _, named = lines_of(kind, name, number, tmp_path, workers)
    assert (status, named) == ("failed", [])
