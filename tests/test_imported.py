"""Functions of the user's own Python: the programs call them, and what the compiler did leads to their lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.config.sources import Sources
from runner.evidence.hlo import Metadata
from runner.evidence.model import Collective
from runner.evidence.nodes import Origin, Origins
from runner.experiment.model import Experiment
from runner.flow import run as flow
from runner.link.workers import Workers
from runner.programs.names import Names
from runner.record.model import Record
from runner.record.told import told
from runner.show import report
from tests import harness, imported

FILE = imported.FOLDER / "transformer.py"

LOSS = imported.functions(
    "transformer",
    {"model": "transformer.loss({'layers': {'q': q, 'o': o}, 'out': out}, x)"},
    {"model": {"q": (3, 8, 16), "o": (3, 16, 8), "out": (8, 32), "x": (8, 8)}},
)

TEXT = """
mesh: {axes: [data, model], shape: [2, 2]}
arrays:
  q: {shape: [3, 8, 16], spec: [null, data, model]}
  o: {shape: [3, 16, 8], spec: [null, model, data]}
  out: {shape: [8, 32], spec: [data, model]}
  x: {shape: [8, 8], spec: [data, null]}
graph: {loss: "model(q, o, out, x * 1.0)"}
outputs: {loss: []}
grad: {of: loss, wrt: [q, o, out]}
explain: true
"""


def line(text: str) -> int:
    """The number of the line of the user's file that holds a text."""
    (number,) = [i for i, each in enumerate(FILE.read_text().splitlines(), 1) if text in each]
    return number


def place(text: str) -> str:
    """What readers know that line by."""
    return f"transformer.py:{line(text)} {FILE.read_text().splitlines()[line(text) - 1].strip()}"


Q, OUT, LOGITS, LAST = 'q = x @ w["q"]', '@ w["o"]', 'logits = h @ params["out"]', "logsumexp(logits"


def examined(config: dict[str, Any], folder: Path) -> Record:
    return flow.run(config, folder, Sources, workers=Workers(harness.Telling()))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    folder = tmp_path_factory.mktemp("imported")
    config = imported.definition(TEXT, LOSS) | {"program": ["auto", "constraint", "derived"]}
    record = examined(config, folder)
    assert record.status == "passed", (record.error, record.programs)
    return record, folder


def collectives(record: Record, program: str) -> list[Collective]:
    """The collectives of a program, told by the user's lines."""
    listed = told(record).compiled[program].collectives
    assert listed is not None
    return listed


def entries(record: Record, program: str, kind: str) -> set[tuple[Any, ...]]:
    """For each collective what it takes, its lines, whether it is in the backward pass, and how often it runs."""
    return {
        (*(each.between.source if each.between else ()), "for", *each.nodes, each.gradient, each.count)
        for each in collectives(record, program)
        if each.kind == kind
    }


# The programs.


def test_a_program_calls_the_users_function_and_imports_it(ran: tuple[Record, Path]) -> None:
    source = (ran[1] / "program_auto.py").read_text()
    assert (
        '    def model(q, o, out, x):\n        return transformer.loss({"layers": {"q": q, "o": o}, "out": out}, x)\n'
    ) in source
    assert "tanh" not in source
    configured, imports = source.index("jax.config.update"), source.index("\nimport transformer\n")
    assert configured < imports < source.index("def inputs()")


def test_a_program_runs_by_itself(ran: tuple[Record, Path]) -> None:
    done = subprocess.run([sys.executable, ran[1] / "program_auto.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loss = ran[0].compiled["auto"].outputs["loss"]
    first = done.stdout.splitlines()[:2]
    assert first[0].startswith("loss  float32[]")
    assert first[1] == loss.text


def test_what_is_derived_calls_no_function_of_the_users(ran: tuple[Record, Path]) -> None:
    assert "transformer" not in (ran[1] / "program_derived.py").read_text()


def test_names_of_a_program_are_none_that_it_imports() -> None:
    text = (
        TEXT.replace("q: {", "transformer: {").replace("model(q,", "model(transformer,").replace("[q,", "[transformer,")
    )
    experiment = imported.experiment(text, LOSS)
    assert Names(experiment)["transformer"] == "transformer_"


def test_a_program_that_calls_none_imports_none(tmp_path: Path) -> None:
    config = imported.definition(
        TEXT.replace('"model(q, o, out, x * 1.0)"', '"sum(q) + sum(o) + sum(out) + sum(x)"'), LOSS
    )
    record = examined(config | {"program": "auto"}, tmp_path)
    assert record.status == "passed", record.error
    assert "transformer" not in (tmp_path / "program_auto.py").read_text()


# What the compiler did.


def test_collectives_belong_to_the_lines_of_the_users_file_forward_and_backward(ran: tuple[Record, Path]) -> None:
    found = entries(ran[0], "auto", "all-gather")
    assert found == {
        ("out", "for", place(LOGITS), False, 1),
        ("out", "for", place(LOGITS), True, 1),
        ("q", "for", place(Q), False, 3),
        ("q", "for", place(Q), True, 3),
        ("o", "for", place(OUT), False, 3),
        ("o", "for", place(OUT), True, 3),
    }
    reduced = {(nodes, gradient) for _, *nodes, gradient, _ in ((e[0], *e[e.index("for") + 1 :]) for e in
               entries(ran[0], "auto", "all-reduce")) for nodes in nodes}  # fmt: skip
    assert (place(OUT), False) in reduced
    assert (place(Q), True) in reduced
    assert (place(LAST), False) in reduced
    assert not ran[0].compiled["auto"].collectives_unknown


def test_what_a_checkpoint_computes_again_belongs_to_its_line(ran: tuple[Record, Path]) -> None:
    again = [each.nodes for each in collectives(ran[0], "auto") if each.again]
    assert again in ([[place(Q)]], [])


def test_reasons_are_found_for_the_users_lines(ran: tuple[Record, Path]) -> None:
    for each in collectives(ran[0], "auto"):
        assert each.why is not None
        assert each.why.by == "operation", each.why.text
    texts = {each.why.text for each in collectives(ran[0], "auto") if each.why and place(Q) in each.nodes}
    number = line(Q)
    assert any(
        text.startswith(f"the product in transformer.py:{number} needs all of dimension 0 of q, which arrays.q.spec")
        for text in texts
    ), texts


def test_a_report_tells_the_users_place_and_text(ran: tuple[Record, Path]) -> None:
    text = report.story(ran[0], ran[1])
    assert f"all-gather of q for {place(Q)} over data: the product in transformer.py:{line(Q)} needs" in text
    assert "loss_q" not in text.partition("as Shardy plans the graph")[0].replace("loss_q_2", "")


# Which line it is.


def experiment() -> Experiment:
    return imported.experiment(TEXT, LOSS)


def origin(stack: str, *texts: str) -> tuple[Origin, ...]:
    frames = tuple((str(FILE), line(text)) for text in texts)
    return Origins(experiment(), "graph").of(Metadata(stack, frames))


@pytest.mark.parametrize(
    ("stack", "texts", "label", "primitive", "gradient"),
    [
        ("jit(test)/jvp(loss)/dot_general", [LOGITS], "logits", "dot_general", False),
        ("jit(test)/transpose(jvp(loss))/dot_general", [LOGITS], "logits", "dot_general", True),
        # The innermost frame that is known, whatever calls it.
        ("jit(test)/jvp(loss)/while/body/mul", ["return x * jax", "x = rms(h)", "h, _ ="], "mul", "mul", False),
        # Of several lines in one place, that with the operation.
        ("jit(test)/jvp(loss)/reduce_max", [LAST], "max", "reduce_max", False),
        ("jit(test)/jvp(loss)/reduce_sum", [LAST], "reduce_sum", "reduce_sum", False),
        # The user's own named scope is the name of another line.
        ("jit(test)/jvp(loss)/while/body/closed_call/logits/dot_general", [Q, "h, _ ="], "q", "dot_general", False),
        ("jit(test)/jvp(loss)/loss_logits/dot_general", [Q], "q", "dot_general", False),
        # What a loop does with its slices.
        ("jit(test)/jvp(loss)/while/body/dynamic_slice", ["h, _ ="], "scan", None, False),
    ],
)
def test_an_operation_belongs_to_the_line_of_its_innermost_frame(
    stack: str, texts: list[str], label: str, primitive: str, gradient: bool
) -> None:
    (found,) = origin(stack, *texts)
    assert found.node.rpartition(".")[2].removeprefix("loss_").rstrip("_0123456789") == label
    assert (found.primitive, found.gradient) == (primitive, gradient)


def test_an_operation_without_a_frame_belongs_to_the_call() -> None:
    assert origin("jit(test)/jvp(loss)/add") == (Origin("loss", "add", False),)


def test_a_frame_counts_within_the_call_alone() -> None:
    assert origin("jit(test)/jvp(loss_x)/mul", Q) == (Origin("loss_x", "mul", False),)
    assert origin("jit(test)/jvp(other)/mul", Q) == ()


# What cannot be.


@pytest.mark.parametrize("key", ["constraints", "outputs"])
def test_what_is_inside_of_a_users_function_cannot_be_reached(key: str) -> None:
    config = imported.definition(TEXT, LOSS)
    config[key] = {**config[key], "loss_logits": []}
    how = {"constraints": "constrain it there", "outputs": "return it there"}[key]
    with pytest.raises(harness.InvalidExperiment) as refused:
        harness.read(config)
    assert refused.value.fault.key == (key, "loss_logits")
    assert refused.value.fault.message == (
        f"'loss_logits' is a value inside of transformer.loss ({place(LOGITS)}), which no program can reach; "
        f"{how}, or name what the call gives: 'loss'"
    )


def test_explicit_says_which_line_of_the_users_its_types_refuse(tmp_path: Path) -> None:
    record = examined(imported.definition(TEXT, LOSS) | {"program": "all"}, tmp_path)
    assert record.not_supported["explicit"].startswith(
        "graph.loss: JAX's sharding types ask for a change inside of transformer.loss, which no program can make. "
        f"{place(OUT)}: JAX refuses it: Contracting dimensions are sharded"
    )


def test_explicit_repairs_what_is_outside_of_the_users_function(tmp_path: Path) -> None:
    text = (
        TEXT.replace("[null, data, model]", "[]").replace("[null, model, data]", "[]").replace("[data, model]}", "[]}")
    )
    text = text.replace("x: {shape: [8, 8], spec: [data, null]}", "x: {shape: [8, 8], spec: [data, model]}")
    text = text.replace("x * 1.0", "x @ transpose(x) @ x")
    record = examined(imported.definition(text, LOSS) | {"program": ["auto", "explicit"]}, tmp_path)
    assert record.status == "passed", (record.error, record.not_supported)
    source = (tmp_path / "program_explicit.py").read_text()
    assert "out_sharding" in source
    assert "transformer.loss(" in source
