"""The worth of a green run: each mutant of an experiment is noticed, refused, equivalent, or reported to survive."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.checks.diagnosis.mutants import Mutant, mutants
from runner.experiment.config.folders import conf_folder
from tests import harness
from tests.command import EXPERIMENTS, REFUSED, ROOT
from tests.server import Done, command

SHIPPED = [name for name in EXPERIMENTS if name not in REFUSED]


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", SHIPPED)
def test_no_mutant_of_a_shipped_experiment_survives(name: str, tmp_path: Path) -> None:
    experiment, released = harness.shipped(name, conf_folder())
    judgements = mutants(harness.consulted(experiment, tmp_path, released))
    assert [mutant.edit for mutant in judgements if mutant.outcome == "survived"] == []
    # A program with a collective can be broken.
    text = str(experiment.computed("per_device"))
    assert any(mutant.noticed for mutant in judgements) or not ("psum(" in text or "pmean(" in text)


TEXT = """
arrays:
  A: {shape: [4, 8], spec: [null, x], init: "INIT"}
  B: {shape: [4, 8], spec: [null, x]}
graph: {C: "sum(A * B, axis=1)"}
per_device: {part: "sum(A * B, axis=1)", C: "psum(part, 'x')"}
outputs: {C: []}
"""


def of(text: str, folder: Path, **changes: Any) -> dict[str, Mutant]:
    judgements = mutants(harness.consulted(harness.experiment(text, **changes), folder))
    return {f"{mutant.edit.line}: {mutant.edit.after}": mutant for mutant in judgements}


def test_each_mutant_is_judged(tmp_path: Path) -> None:
    by_edit = of(TEXT.replace("INIT", "uniform(0.5, 1)"), tmp_path)
    assert by_edit["C: part"].noticed == ("sections", "value", "replicas")
    assert by_edit["C: pmean(part, 'x')"].noticed == ("sections", "value")
    assert by_edit["part: A / B"].noticed == ("sections", "value")
    refused = by_edit["part: sum(A * B, axis=2)"]
    assert refused.outcome == "refused"
    assert refused.refused is not None
    assert refused.refused.startswith("AxisError: ")
    assert by_edit["part: sum(A * B, axis=-1)"].equivalent == "part is the same on every device"
    assert "survived" not in {mutant.outcome for mutant in by_edit.values()}


def test_a_mutant_that_the_arrays_cannot_distinguish_survives(tmp_path: Path) -> None:
    by_edit = of(TEXT.replace("INIT", "ones"), tmp_path)
    survived = {name for name, mutant in by_edit.items() if mutant.outcome == "survived"}
    assert survived == {"part: B"}


def test_a_mutant_of_an_unread_line_is_equivalent(tmp_path: Path) -> None:
    text = TEXT.replace("INIT", "uniform(0.5, 1)").replace('C: "psum(', 'spare: "part * 2", C: "psum(')
    assert of(text, tmp_path)["spare: part / 2"].equivalent == "spare differs, but in nothing that an output reads"


CALLED = """
arrays: {x: {shape: [8, 4], dtype: DTYPE, init: normal, spec: [x]}}
graph: {mean: "mean(x, axis=-1)"}
per_device: {mean: "mean(x, axis=-1)"}
outputs: {mean: [x]}
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_line_that_is_called_like_its_operation_is_edited_in_its_own_dtype(dtype: str, tmp_path: Path) -> None:
    by_edit = of(CALLED.replace("DTYPE", dtype), tmp_path)
    assert by_edit["mean: mean(x, axis=1)"].outcome == "equivalent"


ALONE = """
arrays: {A: {shape: [8], spec: [x]}}
per_device: {C: "psum(sum(A), 'x') * 2"}
outputs: {C: []}
"""


def test_a_mutant_of_a_single_section_is_compared_with_its_own_values(tmp_path: Path) -> None:
    by_edit = of(ALONE, tmp_path)
    assert by_edit["C: psum(sum(A), 'x') / 2"].noticed == ("value",)


def test_a_graph_alone_is_compared_with_its_pinned_values(tmp_path: Path) -> None:
    text = """
arrays: {A: {shape: [4, 8], spec: [null, x], init: "2"}}
graph: {C: "sum(A * A, axis=1)"}
outputs: {C: []}
"""
    by_edit = of(text, tmp_path, expect={"values": {"C": [32.0]}})
    assert by_edit["C: A / A"].noticed == ("value", "values")
    assert by_edit["C: sum(A * A, axis=-1)"].outcome == "equivalent"


def mutate(*arguments: str, folder: Path) -> Done:
    return command(ROOT, *arguments, f"hydra.run.dir={folder}", module="runner mutate")


def test_the_command_reports_the_outcome_of_each_mutant(tmp_path: Path) -> None:
    ran = mutate("+experiment=case3_allreduce", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "noticed  sections value replicas values  C: psum(partial, 'x') → partial\n" in ran.stdout
    line = (
        "10 mutants of case3_allreduce's per_device: 7 noticed (sections 7, value 7, replicas 2, values 7), "
        "3 refused, 0 equivalent, 0 survived"
    )
    assert line in ran.stdout
    plain = json.loads((tmp_path / "mutants.json").read_text())
    assert Counter(mutant["outcome"] for mutant in plain) == {"noticed": 7, "refused": 3}


def test_mutants_are_judged_whichever_program_runs_their_lines(tmp_path: Path) -> None:
    ran = mutate("+experiment=case3_allreduce", "program=vmap", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (
        "10 mutants of case3_allreduce's per_device: 7 noticed (sections 7, value 7, replicas 2, values 7)"
        in ran.stdout
    )


def test_released_pinned_numbers_notice_nothing(tmp_path: Path) -> None:
    ran = mutate("+experiment=case3_allreduce", "dims.J=8", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (
        "values is not checked: the file pins them for its own dims.J, which the command line overrides\n" in ran.stdout
    )
    plain = json.loads((tmp_path / "mutants.json").read_text())
    assert not any("values" in mutant["noticed"] for mutant in plain)


def test_the_command_fails_where_one_survives(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    head = "# @package _global_\ndefaults: [{override /mesh: x4}]\nname: mine\n"
    (folder / "mine.yaml").write_text(head + TEXT.replace("INIT", "ones"))
    ran = mutate("--config-dir", str(tmp_path), "+experiment=mine", folder=tmp_path / "out")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "survived                             part: A * B → B" in ran.stdout
    assert ran.stdout.rstrip().splitlines()[-3].endswith("1 survived")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "+experiment=case3_allreduce"], "command line: --multirun\n  mutants are made of one experiment"),
        (["+experiment=case3_alreduce"], "did you mean 'case3_allreduce'?"),
        (["+experiment=case3_allreduce", "dims.J=7"], "has size 7, which x=2 does not divide"),
    ],
)
def test_bad_input_has_one_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    ran = mutate(*arguments, folder=tmp_path)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


STEP = """
arrays:
  x: {shape: [8, 4], spec: [x, null]}
  w: {shape: [4, 4], spec: [null, null]}
  m: {shape: [4, 4], init: "normal(0, 0.1)"}
both:
  loss: {graph: mean((x @ w) ** 2), per_device: "pmean(mean((x @ w) ** 2), 'x')"}
  new_m: 0.9 * m + grad.w
  new: w - 0.1 * new_m
outputs: {loss: [], new_m: [], new: []}
grad: {of: loss, wrt: w}
"""


def test_lines_that_read_gradients_are_broken_too(tmp_path: Path) -> None:
    by_edit = of(STEP, tmp_path)
    for broken in ("new_m: 0.9 * m - grad.w", "new_m: 0.9 * m", "new_m: grad.w", "new: w + 0.1 * new_m", "new: w"):
        assert by_edit[broken].noticed == ("sections", "value")
    assert by_edit["loss: mean((x @ w) ** 2)"].noticed == ("sections", "value", "replicas")
    assert "survived" not in {mutant.outcome for mutant in by_edit.values()}


def test_the_command_breaks_lines_that_read_gradients(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    head = "# @package _global_\ndefaults: [{override /mesh: x4}]\nname: mine\n"
    (folder / "mine.yaml").write_text(head + STEP)
    ran = mutate("--config-dir", str(tmp_path), "+experiment=mine", folder=tmp_path / "out")
    assert (ran.returncode, ran.stderr) == (0, "")
    line = next(line for line in ran.stdout.splitlines() if line.endswith("  new: w - 0.1 * new_m → w + 0.1 * new_m"))
    assert line.split()[:3] == ["noticed", "sections", "value"]


NARROW = """
arrays: {A: {shape: [4, 8], spec: [x, null], init: "uniform(0.5, 1)"}}
both: {n: "astype(A / (sum(A) + 1e-9), 'bfloat16')", C: "n * 2"}
outputs: {C: [x, null]}
"""


def test_a_mutant_hidden_by_a_cast_is_noticed_before_it(tmp_path: Path) -> None:
    text = NARROW.replace("sum(A)", "sum(A, axis=1, keepdims=True)")
    assert of(text, tmp_path)["n: sum(A, axis=1, keepdims=True)"].noticed == ("sections",)
