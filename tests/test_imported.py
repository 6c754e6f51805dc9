"""A user's own Python functions: the programs call them, and collectives are attributed to their lines."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.app.flow import run as flow
from runner.base import codec
from runner.checks import step_state
from runner.compiled.evidence import compiler_warnings, hlo, words
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.model import Collective
from runner.compiled.evidence.nodes import OperationOrigin, Origins
from runner.compiled.why.least import Gap
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.sources import Sources
from runner.experiment.identifiers import Identifiers
from runner.experiment.imported import KEY, Imported, Imports
from runner.experiment.model import Experiment
from runner.experiment.reader import read as read_experiment
from runner.experiment.traced import TracedLines, TracedTerm
from runner.graph.language.syntax import parse
from runner.graph.source import Frame
from runner.link.workers import Workers
from runner.reports.record.model import Mode, Record
from runner.reports.record.readable import readable
from runner.reports.show import collectives as table
from runner.reports.show import report
from runner.reports.show.page import run as page
from runner.worker.functions import tracing
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
    """Return the number of the line of the user's file that contains a text."""
    (number,) = [i for i, each in enumerate(FILE.read_text().splitlines(), 1) if text in each]
    return number


def place(text: str) -> str:
    """Return the readers' name of that line."""
    return f"transformer.py:{line(text)} {FILE.read_text().splitlines()[line(text) - 1].strip()}"


Q, OUT, LOGITS, LAST = 'q = x @ w["q"]', '@ w["o"]', 'logits = h @ params["out"]', "logsumexp(logits"


def examined(config: dict[str, Any], folder: Path) -> Record:
    return flow.run(config, folder, Sources(), workers=Workers(harness.Telling()))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    folder = tmp_path_factory.mktemp("imported")
    hardware = compose("case3_allreduce", conf_folder(), ["hardware=h100"]).plain["hardware"]
    config = imported.definition(TEXT, LOSS) | {"program": "all", "hardware": hardware}
    record = examined(config, folder)
    assert record.status == "passed", (record.error, record.programs)
    return record, folder


def collectives(record: Record, program: str) -> list[Collective]:
    """Return the collectives of a program, attributed to the user's lines."""
    listed = readable(record).compiled[program].collectives
    assert listed is not None
    return listed


def entries(record: Record, program: str, kind: str) -> set[tuple[Any, ...]]:
    """Return for each collective its operands, its lines, whether it is in the backward pass, and its count."""
    return {
        (*(each.between.source if each.between else ()), "for", *each.nodes, each.gradient, each.count)
        for each in collectives(record, program)
        if each.kind == kind
    }


def test_the_record_names_a_collective_as_the_tables_do(ran: tuple[Record, Path]) -> None:
    for program in ("auto", "derived"):
        listed = json.loads((ran[1] / "result.json").read_text())["programs"][program]["collectives"]
        shown = collectives(ran[0], program)
        assert [(each["of"], each["why"]["text"]) for each in listed] == [
            (words.subject(each), each.why and each.why.text) for each in shown
        ]
        assert any(place(Q) in each["of"] for each in listed)


def test_a_table_names_several_lines_of_one_file_in_short(ran: tuple[Record, Path]) -> None:
    rows = table.explained(readable(ran[0]), table.in_brief)
    names = [row.cells[1] for row in rows]
    assert any(re.search(r"transformer\.py:\d+, :\d+", name) for name in names), names
    assert not any(re.search(r"\.py:\d+ and transformer\.py", name) for name in names), names


# The programs.


@pytest.mark.in_turn
def test_a_program_calls_the_users_function_and_imports_it(ran: tuple[Record, Path]) -> None:
    source = (ran[1] / "program_auto.py").read_text()
    assert (
        '    def model(q, o, out, x):\n        return transformer.loss({"layers": {"q": q, "o": o}, "out": out}, x)\n'
    ) in source
    assert "tanh" not in source
    configured, imports = source.index("jax.config.update"), source.index("\nimport transformer\n")
    assert configured < imports < source.index("def inputs()")


@pytest.mark.in_turn
def test_a_program_runs_by_itself(ran: tuple[Record, Path]) -> None:
    done = subprocess.run([sys.executable, ran[1] / "program_auto.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loss = ran[0].compiled["auto"].outputs["loss"]
    first = done.stdout.splitlines()[:2]
    assert first[0].startswith("loss  float32[]")
    assert loss.text is not None
    assert float(first[1]) == pytest.approx(float(loss.text), rel=1e-6)


def test_derived_calls_no_function_of_the_user(ran: tuple[Record, Path]) -> None:
    assert "transformer" not in (ran[1] / "program_derived.py").read_text()


def test_names_of_a_program_differ_from_its_imports() -> None:
    text = (
        TEXT.replace("q: {", "transformer: {").replace("model(q,", "model(transformer,").replace("[q,", "[transformer,")
    )
    experiment = imported.experiment(text, LOSS)
    assert Identifiers(experiment)["transformer"] == "transformer_"


def test_a_program_without_user_functions_imports_none(tmp_path: Path) -> None:
    config = imported.definition(
        TEXT.replace('"model(q, o, out, x * 1.0)"', '"sum(q) + sum(o) + sum(out) + sum(x)"'), LOSS
    )
    record = examined(config | {"program": "auto"}, tmp_path)
    assert record.status == "passed", record.error
    assert "transformer" not in (tmp_path / "program_auto.py").read_text()


# Compiled programs.


def test_collectives_belong_to_the_lines_of_the_users_file_forward_and_backward(ran: tuple[Record, Path]) -> None:
    gathers = entries(ran[0], "auto", "all-gather")
    assert gathers == {
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


def test_recomputed_collectives_belong_to_their_line(ran: tuple[Record, Path]) -> None:
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


def test_a_report_names_the_users_place_and_text(ran: tuple[Record, Path]) -> None:
    text = report.story(ran[0], ran[1])
    assert f"all-gather of q for {place(Q)} over data: the product in transformer.py:{line(Q)} needs" in text
    assert "loss_q" not in text.partition("as Shardy plans the graph")[0]


# Which line it is.


def test_a_comparison_of_what_programs_send_names_the_users_lines(ran: tuple[Record, Path]) -> None:
    record = ran[0]
    first, *_ = (each.line for each in record.lines["graph"] if str(each.frame) == place(Q))
    gap = Gap(program="derived", times=2.0, lines={first: [8, 4], f"{first} and out": [2, 4], "x": [3, 5]})
    mode = Mode(
        program="constraint",
        view="global",
        placed_by="constraints",
        communicated_by=None,
        bytes_sent=13,
        gap=gap,
        lines=3,
    )
    (readable_mode,) = readable(replace(record, modes=[mode])).modes or []
    assert readable_mode.gap is not None
    assert readable_mode.gap.lines == {place(Q): [8, 4], f"{place(Q)} and out": [2, 4], "x": [3, 5]}
    assert table.places(["f.py:9 g(x) → f.py:5 y = x", "f.py:6 z", "C"]) == "f.py:5, :6 and C"


def experiment() -> Experiment:
    return imported.experiment(TEXT, LOSS)


def origin(stack: str, *texts: str) -> tuple[OperationOrigin, ...]:
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
        # The slices of a loop.
        ("jit(test)/jvp(loss)/while/body/dynamic_slice", ["h, _ ="], "scan", None, False),
    ],
)
def test_an_operation_belongs_to_the_line_of_its_innermost_frame(
    stack: str, texts: list[str], label: str, primitive: str, gradient: bool
) -> None:
    (source,) = origin(stack, *texts)
    assert source.node.rpartition(".")[2].removeprefix("loss_").rstrip("_0123456789") == label
    assert (source.primitive, source.gradient) == (primitive, gradient)


def test_an_operation_without_a_frame_belongs_to_the_call() -> None:
    assert origin("jit(test)/jvp(loss)/add") == (OperationOrigin("loss", "add", False),)


def test_frames_are_used_only_within_a_call() -> None:
    assert origin("jit(test)/jvp(loss_x)/mul", Q) == (OperationOrigin("loss_x", "mul", False),)
    assert origin("jit(test)/jvp(other)/mul", Q) == ()


# Refusals.


@pytest.mark.parametrize("key", ["constraints", "outputs"])
def test_values_inside_a_users_function_are_refused_as_outputs(key: str) -> None:
    config = imported.definition(TEXT, LOSS)
    config[key] = {**config[key], "loss_logits": []}
    how = {
        "constraints": "give it a checkpoint_name there, and constrain 'loss/**/NAME'",
        "outputs": "return it there",
    }[key]
    with pytest.raises(harness.InvalidExperiment) as refused:
        harness.read(config)
    assert refused.value.fault.key == (key, "loss_logits")
    assert refused.value.fault.message == (
        f"'loss_logits' is a value inside transformer.loss ({place(LOGITS)}), which no program can reach; "
        f"{how}, or name what the call gives: 'loss'"
    )


def test_explicit_says_which_line_of_the_users_its_types_refuse(ran: tuple[Record, Path]) -> None:
    assert (
        ran[0]
        .not_supported["explicit"]
        .startswith(
            "graph.loss: JAX's sharding types need a change inside transformer.loss, which no program can make. "
            f"{place(OUT)}: JAX refuses it: Contracting dimensions are sharded"
        )
    )


@pytest.mark.in_turn
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


# A device's own function, and functions that give several values.

DEVICE = imported.FOLDER / "device.py"


def written(function: str, lines: dict[str, str], results: tuple[str, ...], of: str) -> Imported:
    """Return a function of `device.py` as a worker reads it; `of` maps names to the beginnings of its lines."""
    file = DEVICE.read_text().splitlines()
    start = file.index(f"def {function}(x, w1, w2):")
    frames: dict[str, Frame] = {}
    for name, begins in (each.split(": ", 1) for each in of.split("; ")):
        (at,) = [i for i, text in enumerate(file) if i > start and text.strip().startswith(begins)][:1]
        frames[name] = Frame(str(DEVICE), at + 1, file[at].strip())
    read = tuple(TracedTerm(name, parse(text).term) for name, text in lines.items())
    traced = TracedLines(("x", "w1", "w2"), read, results)
    return Imported(f"device.{function}", f"device.{function}($x, $w1, $w2)", traced, frames)


BLOCK = written(
    "block", {"h": "tanh(x @ w1)", "y": "h @ w2", "total": "psum(y, 'y')"}, ("total",), "h: h =; y: y =; total: return"
)
BOTH = written("both", {"h": "tanh(x @ w1)", "product": "h @ w2", "sums": "sum(h, axis=1)"}, ("product", "sums"),
               "h: h =; product: return; sums: return")  # fmt: skip


def of_device() -> dict[str, Any]:
    preamble = ("import sys", f"sys.path.append({str(imported.FOLDER)!r})", "import device")
    imports = Imports({"block": BLOCK, "both": BOTH}, preamble, ("sys", "device"))
    return {"functions": {}, KEY: codec.plain(imports)}


MLP = """
arrays:
  a: {shape: [8, 8], spec: [x, null]}
  w1: {shape: [8, 16], spec: [null, y]}
  w2: {shape: [16, 8], spec: [y, null]}
graph:
  b, s: both(a, w1, w2)
  c: both(b, w1, w2)[0] + s[:, None]
per_device:
  b: block(a, w1, w2)
  s: psum(sum(tanh(a @ w1), axis=1), 'y')
  c: block(b, w1, w2) + s[:, None]
outputs: {c: [x, null]}
explain: true
"""


@pytest.fixture(scope="module")
def of_mlp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    folder = tmp_path_factory.mktemp("device")
    record = examined(imported.definition(MLP, of_device()), folder)
    assert record.status == "passed", (record.error, record.programs)
    return record, folder


@pytest.mark.in_turn
def test_a_function_that_gives_several_values_is_unpacked(of_mlp: tuple[Record, Path]) -> None:
    source = (of_mlp[1] / "program_auto.py").read_text()
    assert "b, s = both(a, w1, w2)" in source
    assert source.count("return device.both(x, w1, w2)") == 1


def test_a_devices_function_is_called_on_each_device(of_mlp: tuple[Record, Path]) -> None:
    for program in ("shard_map", "vmap"):
        source = (of_mlp[1] / f"program_{program}.py").read_text()
        assert source.count("return device.block(x, w1, w2)") == 1
        assert "import device" in source


def test_a_collective_that_a_devices_function_asks_for_belongs_to_its_line(of_mlp: tuple[Record, Path]) -> None:
    listed = of_mlp[0].compiled["shard_map"].collectives
    assert listed is not None
    asked = {node: each for each in listed for node in each.nodes}
    assert asked.keys() == {"b_total", "s", "c_block_total"}
    assert not any(each.inserted for each in listed)
    psum = asked["b_total"]
    assert psum.why is not None
    number = BLOCK.frames["total"].line
    assert psum.why.text.startswith(f"device.py:{number} asks for it: psum(b_y, 'y')")
    assert psum.why.keys == ["per_device.b"]


def test_each_call_of_a_function_has_lines_of_its_own(of_mlp: tuple[Record, Path]) -> None:
    listed = of_mlp[0].compiled["auto"].collectives
    assert listed is not None
    nodes = {node for each in listed for node in each.nodes}
    assert {"b_s_2_product", "c_both_product"} <= nodes
    texts = {node for each in collectives(of_mlp[0], "auto") for node in each.nodes}
    assert f"device.py:{BOTH.frames['product'].line} return h @ w2, h.sum(axis=1)" in texts


AROUND = """
arrays:
  a: {shape: [8, 8], spec: [x, null]}
  w1: {shape: [8, 16], spec: [null, y]}
  w2: {shape: [16, 8], spec: [y, null]}
graph:
  ring:
    repeat: 2
    carry: {h: a}
    body: {h: "both(h, w1, w2)[0]"}
  total: sum(ring.h)
  c: "cond(total > 0, lambda: first(ring.h, w1, w2), lambda: ring.h * 2)"
outputs: {c: [x, null]}
program: [auto, constraint]
"""


OWN = {"first(x, w1, w2)": "both(x, w1, w2)[0]"}


def test_functions_are_called_in_repeats_and_in_choices(tmp_path: Path) -> None:
    imports = of_device()
    config = imported.definition(AROUND, {**imports, "functions": {**imports["functions"], **OWN}})
    record = examined(config, tmp_path)
    assert record.status == "passed", (record.error, record.programs)
    listed = record.compiled["auto"].collectives
    assert listed is not None
    nodes = {node for each in listed for node in each.nodes}
    assert "ring.h_both_product" in nodes
    assert any(node.startswith("c_true_first") and node.endswith("product") for node in nodes)
    where = f"device.py:{BOTH.frames['product'].line} return h @ w2, h.sum(axis=1)"
    assert where in {node for each in collectives(record, "auto") for node in each.nodes}


def test_the_page_tells_the_users_places(ran: tuple[Record, Path]) -> None:
    text = html.unescape(page.page(ran[0], ran[1]))
    assert f"q for transformer.py:{line(Q)}" in text
    (number,) = re.findall(rf"(\d+)\D*{re.escape(LOGITS)}", re.sub(r"<[^>]*>", "", text))[:1]
    assert int(number) == line(LOGITS)


LOG = (
    "W1121 06:32:17.200001    5192 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization. The compiler "
    'cannot go from sharding {} to {} for HLO operation: %c = f32[8]{0} copy(%b), metadata={op_name="jit(test)/jvp('
    'loss)/dot_general" stack_frame_id=2}'
)


def test_a_warning_belongs_to_the_line_of_its_frame() -> None:
    tables = f"""HloModule m

FileNames
1 "{FILE}"
2 "program.py"

FunctionNames
1 "loss"
2 "forward"

FileLocations
1 {{file_name_id=2 function_name_id=2 line=3 end_line=3 column=1 end_column=2}}
2 {{file_name_id=1 function_name_id=1 line={line(LOGITS)} end_line=9 column=1 end_column=2}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}

"""
    frames = hlo.read(tables).stack_frames
    assert frames.of(2) == ((str(FILE), line(LOGITS)), ("program.py", 3))
    assert frames.of(0) == frames.of(9) == ()
    (warning,) = compiler_warnings.read(LOG, Origins(experiment(), "graph"), frames)
    assert warning.node == "loss_logits"


STEP = """
mesh: {axes: [data, model], shape: [2, 2]}
arrays:
  w1: {shape: [2, 16, 16], spec: [null, data, model]}
  w2: {shape: [16, 8], spec: [model, data]}
  x: {shape: [8, 16], spec: [data, null]}
  y: {shape: [8, 8], spec: [data, null]}
graph: {"value, n1, n2": "train(w1, w2, x, y)"}
outputs: {value: [], n1: [null, data, model], n2: [model, data]}
program: auto
"""


def test_a_step_with_a_gradient_and_a_jitted_helper_of_its_own_is_attributed(tmp_path: Path) -> None:
    shapes = {"w1": (2, 16, 16), "w2": (16, 8), "x": (8, 16), "y": (8, 8)}
    imports = imported.functions("stepper", {"train": "stepper.step(w1, w2, x, y)"}, {"train": shapes})
    record = examined(imported.definition(STEP, imports), tmp_path)
    assert record.status == "passed", (record.error, record.programs)
    moved = collectives(record, "auto")
    assert moved
    assert all(node.startswith("stepper.py:") for each in moved for node in each.nodes)
    product = [each for each in moved if all(node.endswith(" → stepper.py:11") for node in each.nodes)]
    assert {each.gradient for each in product} == {False, True}
    assert all(each.why is not None and each.why.by == "operation" for each in moved)


def test_an_estimate_names_the_users_line_as_what_takes_longest(ran: tuple[Record, Path]) -> None:
    estimate, own = (each.compiled["auto"].estimate for each in (readable(ran[0]), ran[0]))
    assert estimate is not None
    assert own is not None
    assert estimate.bottleneck is not None
    assert own.bottleneck is not None
    assert "transformer.py:" in estimate.bottleneck
    assert "transformer.py:" not in own.bottleneck


STATED = """
import jax, jax.numpy as jnp

def init(n): return {"w": jnp.ones((n, 4)), "b": jnp.ones(4)}

def step(params, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
"""


def test_a_file_may_expect_that_the_state_of_its_step_keeps_its_layout(tmp_path: Path) -> None:
    (tmp_path / "stated_steps.py").write_text(STATED)

    def moved(outputs: str) -> set[str]:
        config = harness.config(
            f"""
            mesh: {{axes: [x], shape: [2]}}
            imports: {{stated_steps: stated_steps.py}}
            arrays:
              params: {{tree: stated_steps.init(8)}}
              v: {{shape: [6, 8]}}
            specs: {{params/w: [null, x], new/w: {outputs}, new/b: []}}
            graph:
              new, loss: stated_steps.step(params, v)
            outputs: {{new: [], loss: []}}
            expect: {{state_layout: kept}}
            """
        )
        read = read_experiment(tracing.traced(config, tmp_path, tmp_path))
        assert read.imports.state == {"new_w": "params_w", "new_b": "params_b"}
        return {output for _, output, _, _ in step_state.moved(read, read.outputs)}

    assert moved("[null, x]") == set()
    assert moved("[x, null]") == {"new_w"}
