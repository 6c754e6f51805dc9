"""What passes without having been looked at is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runner.checks import unseen
from runner.checks.context import Context
from runner.reports.record.verdicts import AgreementVerdict, Checks, OutputVerdict
from tests import evidence, harness

TEXT = """
mesh: {axes: [x], shape: [2]}
arrays:
  A: {shape: [4, 6], spec: [x]}
graph: {C: A * 2, E: "A[:, :0]"}
outputs: {C: [x], E: [x]}
"""


def test_an_output_without_elements(tmp_path: Path) -> None:
    result = harness.run(TEXT, tmp_path, program="auto")
    assert result.record.status == "passed"
    assert result.record.warnings == [
        "output 'E' has no elements (its shape is [4, 0]): there is nothing to compare",
    ]


def test_outputs_that_are_compared_have_no_warning(tmp_path: Path) -> None:
    result = harness.run(TEXT, tmp_path, program="auto", graph={"C": "A * 2"}, outputs={"C": ["x"]})
    assert result.record.warnings == []


UNCOMPARED = "no check compared output 'C'"


@pytest.mark.parametrize(
    ("agreement", "wording"),
    [
        (None, [f"{UNCOMPARED}: the oracle is not known"]),
        (AgreementVerdict(status="passed", others=["vmap"]), []),
        (AgreementVerdict(status="passed", others=["vmap"], left_out={"C": ["vmap"]}), [UNCOMPARED]),
    ],
)
def test_an_output_that_no_check_compared(agreement: AgreementVerdict | None, wording: list[str]) -> None:
    value = evidence.value(outputs={"C": OutputVerdict(status="not_run", reason="the oracle is not known")})
    program = evidence.program(checks=Checks(value=value, agreement=agreement))
    context = cast("Context", SimpleNamespace(outputs={"C": ((4, 6), "float32")}))
    warnings = list(unseen.warnings(context, {"auto": program}))
    assert [warning[: len(start)] for warning, start in zip(warnings, wording, strict=True)] == wording
