"""Messages spell values and expressions of a Python function as its source does."""

from pathlib import Path

import jax
import pytest
from jax import ShapeDtypeStruct, numpy
from jax.sharding import PartitionSpec as P

from runner.base.layout import Mesh
from runner.compiled.evidence.model import Collective
from runner.experiment.source_text import NamedByReader, SourceText, names_of_values
from runner.graph.language.printing import text
from runner.graph.language.syntax import parse
from runner.graph.source import Frame
from runner.graph.term import Name
from runner.reports.record import differences, golden
from runner.worker.jaxpr import jaxprs
from runner.worker.versions import abstract_mesh
from tests import evidence
from tests.evidence import collective, program
from tests.user_functions import spelled

LINE = Frame("/models/llama.py", 41, "q = x @ w.q")


@pytest.fixture(scope="module")
def lines() -> jaxprs.FunctionLines:
    def called(down: object, up: object, x: object) -> object:
        return spelled.forward({"down": down, "up": up}, x)

    shapes = {"params_down": (16, 8), "params_up": (8, 16), "x": (4, 8)}
    return jaxprs.read(called, {name: ShapeDtypeStruct(shape, numpy.float32) for name, shape in shapes.items()})


def test_values_are_spelled_as_variables_or_expressions(lines: jaxprs.FunctionLines) -> None:
    assert {*lines.spelled.sources.values()} >= {
        'x @ params["up"]',
        'jax.nn.gelu(x @ params["up"])',
        "jnp.mean(hidden, axis=-1, keepdims=True)",
        "hidden - jnp.mean(hidden, axis=-1, keepdims=True)",
        'hidden @ params["down"]',
        "q",
        "k",
        "jnp.tanh(q) * k",
    }
    assigned = [name for name, source in lines.spelled.sources.items() if source == "hidden"]
    assert len(assigned) == 3, "once after gelu, and once after each step"


def test_the_parts_of_a_librarys_function_have_no_spelling(lines: jaxprs.FunctionLines) -> None:
    assert not [term for term in lines.spelled.sources if text(term).startswith("tanh(0.79")]


def test_a_changed_term_has_the_source_of_its_parts() -> None:
    spelled = {"y_3": "y", "y_3 @ w_2": 'y @ w["v"]', "h_2": "a + b"}
    terms = {parse(written).term: source for written, source in spelled.items()}
    values = [NamedByReader(name, source, name) for name, source in (("y_3", "y"), ("h_2", "a + b"))]
    names = names_of_values([*values, NamedByReader("mul_7", "", "mul")], {"w_q": "w/q"})
    source = SourceText(terms, {"mul_7": LINE}, names)
    spelling = {
        "psum(y_3 @ w_2, 'x')": "psum(y @ w[\"v\"], 'x')",
        "y_3 - h_2 * 2.0": "y - (a + b) * 2.0",
        "sum(h_2, axis=0)": "sum(a + b, axis=0)",
        "mul_7 @ w_q.T": "mul @ w/q.T",
    }
    assert {written: source.of(parse(written).term) for written in spelling} == spelling


def test_values_of_one_name_are_told_apart() -> None:
    lines = [("x_2", "x", "x"), ("lse_2", "", "lse"), ("lse_3", "", "lse"), ("lse_4", "lse", "lse"), ("x_3", "x", "x")]
    values = [NamedByReader(*line) for line in [*lines, ("add", "", "add"), ("sum_2", "a + b", "sum")]]
    assert names_of_values(values, {"w_q": "w/q", "x": "x"}) == {
        "w_q": "w/q",
        "x": "x",
        "x_2": "x#2",
        "lse_4": "lse",
        "x_3": "x#3",
        "sum_2": "a + b",
        "lse_2": "lse#2",
        "lse_3": "lse#3",
        "add": "add",
    }
    written = names_of_values(values, {"w_q": "w/q", "x": "x"}, as_written=True)
    assert [written[name] for name in ("x_2", "x_3", "lse_2", "lse_4")] == ["x", "x", "lse#2", "lse"]


def test_values_of_which_none_is_the_variables_are_all_numbered() -> None:
    values = [NamedByReader(name, "", "lse") for name in ("lse", "lse_2")]
    assert names_of_values(values, {}) == {"lse": "lse#1", "lse_2": "lse#2"}


def test_a_parameter_of_a_device_function_has_its_own_name() -> None:
    mesh = Mesh(("x",), (2,))

    def whole(weights: object, bias: object) -> object:
        def device(weights: object, bias: object) -> object:
            return jax.lax.psum(weights, "x") + bias  # type: ignore[operator]

        return jax.shard_map(device, mesh=abstract_mesh(mesh), in_specs=(P("x"), P()), out_specs=P())(weights, bias)

    shapes = {"weights": (4,), "bias": (2,)}
    structs = {name: ShapeDtypeStruct(shape, numpy.float32) for name, shape in shapes.items()}
    sources = jaxprs.read(whole, structs, mesh=mesh).spelled.sources
    assert sources[Name("bias_2")] == "bias"


def pins(number: int, line: str, *collectives: Collective) -> golden.Pinned:
    names = {line: f"llama.py:{number} q = x @ w.q", "other": "llama.py:9 k = 1"}
    return golden.pinned(program(*collectives), names=names)


def test_a_golden_that_differs_names_lines_of_python() -> None:
    before = pins(41, "q_2", collective(node="q_2", nodes=["q_2"], axes=["x"]))
    after = pins(43, "q_3", collective(node="q_3", nodes=["q_3"], axes=["x"], bytes_in=128))
    assert before["names"] == {"q_2": "llama.py:41 q = x @ w.q"}, "names that are not pinned are left out"
    (change,) = differences.of_program("auto", before, after)
    assert "llama.py:43 q = x @ w.q" in change
    assert "q_2" not in change
    assert "q_3" not in change


def test_a_line_of_python_that_only_moved_is_no_difference() -> None:
    before, after = (
        pins(number, name, collective(node=name, nodes=[name])) for number, name in ((41, "q_2"), (43, "q_3"))
    )
    assert differences.of_program("auto", before, after) == []


def test_a_golden_without_names_is_read(tmp_path: Path) -> None:
    pinned = golden.pinned(evidence.program(collective()))
    golden.pin(tmp_path / "g.json", ("jax 0.10", "cpu", "auto"), pinned)
    assert golden.entry(golden.read(tmp_path / "g.json"), ("jax 0.10", "cpu", "auto")) == pinned


def test_a_call_in_an_experiment_is_placed_by_its_key_and_one_in_a_notebook_by_its_cell() -> None:
    assert Frame("<graph.result>", 1, "attention(q, k, v)").place == "graph.result"
    assert Frame("<stdin>", 3, "return x").place == "<stdin>:3"
