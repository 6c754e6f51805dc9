"""Arrays that exceed the machine's memory are refused before they are made."""

from __future__ import annotations

from typing import Any

import pytest

from runner.base.faults import InvalidExperiment
from runner.base.layout import Typed
from runner.experiment import memory
from tests import harness

TEXT = """
dims: {N: 1000}
arrays:
  A: {shape: [N, N], init: "1", spec: [x, null]}
  b: {shape: [N], init: "1", spec: []}
graph: {C: A @ b}
outputs: {C: [x]}
"""

LEAST = 1000 * 1000 * (4 + 8 + 4 + 2 * 4) + 1000 * (4 + 8 + 4 + 4 * 4)
"""A in this process, in float64, in the worker, and half of it on each of four devices; b on all of them."""


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda count: monkeypatch.setattr(memory, "available", lambda: count)


@pytest.mark.parametrize("have", [LEAST, None])
def test_arrays_that_fit_pass_and_so_does_unknown_memory(free: Any, have: int | None) -> None:
    free(have)
    memory.check(harness.experiment(TEXT))


def test_arrays_that_do_not_fit_are_refused_with_bytes_and_a_remedy(free: Any) -> None:
    free(LEAST - 1)
    with pytest.raises(InvalidExperiment) as caught:
        memory.check(harness.experiment(TEXT))
    assert caught.value.fault.key == ("arrays", "A", "shape")
    assert caught.value.fault.message == (
        "the arrays do not fit into memory: 'A' alone has 4.0 MB; with the reference in float64 and what the devices "
        "hold the run takes at least 24.0 MB, and 24.0 MB are free; arrays with 1/2 of the elements would fit"
    )


def test_arrays_on_accelerators_do_not_count_as_this_machines_memory(free: Any) -> None:
    free(1000 * 1000 * 12 + 12000)
    memory.check(harness.experiment(TEXT, target={"platform": "gpu"}))


def test_a_value_of_a_line_counts_too(free: Any) -> None:
    free(8 * 10**6)
    experiment = harness.experiment(TEXT)
    memory.check_values(experiment, {"graph": {"C": Typed((1000, 1000), "float32")}})
    with pytest.raises(InvalidExperiment) as caught:
        memory.check_values(experiment, {"graph": {"ring.acc": Typed((10**6, 10), "float32")}})
    assert caught.value.fault.key == ("graph", "ring", "acc")
    assert caught.value.fault.message == (
        "'ring.acc' has 10,000,000 elements: 80.0 MB in the reference's float64, and 8.0 MB are free; "
        "1/10 of them would fit"
    )


def test_this_machine_has_memory() -> None:
    have = memory.available()
    assert have is not None
    assert have > 10**8
