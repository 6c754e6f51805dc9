"""Evidence of a program whose compiled module cannot be read: the unknown is reported, and the rest is there."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from runner.compiled.evidence.gather import gather
from runner.experiment.program import Program
from runner.worker import cost
from runner.worker.compilation import _text, compile_program
from tests import harness

TEXT = """
arrays: {A: {shape: [4], init: "arange(4)", spec: [x]}}
graph: {C: A + 1}
outputs: {C: [x]}
"""


class Unprintable:
    """An executable of a backend that cannot print an asynchronous update."""

    def as_text(self) -> str:
        raise jax.errors.JaxRuntimeError("INTERNAL: async-start expects 3 operands\nand more")


def test_a_module_that_cannot_be_printed_loses_only_its_text() -> None:
    assert _text(Unprintable()) == ("", "INTERNAL: async-start expects 3 operands")


def test_any_other_exception_is_a_bug_and_is_not_hidden() -> None:
    class Broken:
        def as_text(self) -> str:
            raise AttributeError("as_text")

    with pytest.raises(AttributeError):
        _text(Broken())


def test_memory_and_cost_are_known_of_a_module_that_cannot_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.stages.Compiled, "as_text", Unprintable.as_text)
    compiled = compile_program(Program.AUTO, jax.jit(lambda x: (x + 1,)), (jax.numpy.arange(4.0),))
    compiled.leave(Program.AUTO, tmp_path)
    assert compiled.unreadable == "INTERNAL: async-start expects 3 operands"
    assert compiled.memory() is not None
    assert cost.of(compiled.executable, compiled.text) is not None
    assert (tmp_path / "hlo_auto.txt").read_text() == ""


@pytest.mark.parametrize(
    ("unreadable", "reason"),
    [
        (None, "the backend does not show the compiled module"),
        ("INTERNAL: no", "the backend does not show the compiled module: INTERNAL: no"),
    ],
)
def test_without_a_module_collectives_are_unknown(tmp_path: Path, unreadable: str | None, reason: str) -> None:
    (tmp_path / "hlo_auto.txt").write_text("")
    evidence = gather(harness.experiment(TEXT), Program.AUTO, tmp_path, "", unreadable).evidence
    assert evidence.collectives is None
    assert evidence.collectives_unknown == [reason]
    assert evidence.collectives_missing == [reason]


def test_a_module_that_was_not_read_has_no_estimate(tmp_path: Path) -> None:
    (tmp_path / "hlo_auto.txt").write_text("")
    experiment = harness.experiment(TEXT + "hardware: {name: mine, flops: {float32: 1.0e+12}}\n")
    assert gather(experiment, Program.AUTO, tmp_path, "", "INTERNAL: no").work is None
