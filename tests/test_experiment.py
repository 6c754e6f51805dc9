"""A resolved configuration becomes one frozen experiment, or one fault at one key."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import omegaconf
import pytest
import yaml
from omegaconf import OmegaConf

from runner.base.faults import InvalidExperiment, key_text
from runner.experiment.config import schema
from runner.experiment.config.schema import ExperimentConfig
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.graph.language.lines import every_line, expressions, lines, repeat

BASE = """
name: mine
mesh: {axes: [x, y], shape: [2, 4]}
dims: {I: 8, J: 2 * I}
arrays:
  A: {shape: [I, J], init: normal(), spec: [x, y]}
  B: {shape: [J, I], init: normal(), spec: [y]}
graph: {C: A @ B}
per_device: {C: "psum(A @ B, 'y')"}
outputs: {C: [x, null]}
"""


def given(text: str = "", **keys: Any) -> dict[str, Any]:
    """Return the base with top-level keys replaced by those of `text` and `keys`; arrays get the schema's defaults."""
    config = yaml.safe_load(BASE) | (yaml.safe_load(text) or {}) | keys
    defaults = {"dtype": "float32", "init": "normal()", "spec": []}
    arrays = {name: defaults | array for name, array in (config.get("arrays") or {}).items()}
    return config | {"arrays": arrays, "expect": config.get("expect") or {}}


def valid(text: str = "", **keys: Any) -> Experiment:
    return read(given(text, **keys))


def fault(text: str = "", **keys: Any) -> tuple[str, str]:
    """Return the key and the message of the fault."""
    with pytest.raises(InvalidExperiment) as caught:
        read(given(text, **keys))
    return key_text(caught.value.fault.key), caught.value.fault.message


def test_dims_are_expressions_of_earlier_dims() -> None:
    assert valid("dims: {I: 8, J: 2 * I, K: J // 4 + I % 3}").dims == {"I": 8, "J": 16, "K": 6}


def test_a_shape_is_made_of_numbers_dims_and_expressions() -> None:
    experiment = valid(
        "arrays: {A: {shape: [2, I, I + J, '2*J'], spec: [null, [x, y]]}}\ngraph: {C: A}\nper_device: {}"
    )
    (array,) = experiment.arrays
    assert array.shape == (2, 8, 24, 32)
    assert array.dims == (None, "I", "I + J", "2*J")
    assert array.layout.spec == ((), ("x", "y"), (), ())


def test_a_scalar_is_an_array() -> None:
    assert valid("arrays: {s: {shape: []}}\ngraph: {C: s + 1}\nper_device: {}").arrays[0].shape == ()


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("", ("auto", "constraint", "explicit", "derived", "shard_map", "vmap")),
        ("per_device: {}", ("auto", "constraint", "explicit", "derived")),
        ("graph: null", ("shard_map", "vmap")),
        ("program: vmap", ("vmap",)),
    ],
)
def test_the_programs_are_those_whose_section_is_there(text: str, programs: tuple[str, ...]) -> None:
    experiment = valid(text)
    assert experiment.programs == programs
    assert experiment.chosen == ("program" in text)


def test_constraints_may_stand_on_arrays_and_on_results_of_graph() -> None:
    graph = "{r: {repeat: 2, carry: {a: A}, body: {a: a + 1}}, C: r.a @ B}"
    experiment = valid(f"graph: {graph}\nper_device: {{}}\nconstraints: {{A: [y], r.a: [null, x], C: null}}")
    assert experiment.constraints == {"A": (("y",),), "r.a": ((), ("x",)), "C": ()}


def test_an_experiment_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        valid().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("", False),
        ("arrays: {A: {shape: [8], dtype: int64}}\ngraph: {C: A}\nper_device: {}", True),
        ("graph: {C: \"astype(A, 'float64')\"}\nper_device: {}", True),
        ("graph: {C: 'astype(A, \"bfloat16\")'}\nper_device: {}", False),
    ],
)
def test_64_bits_are_switched_on_where_a_dtype_needs_them(text: str, wide: bool) -> None:
    assert valid(text).x64 == wide


LOOP = """
per_device:
  r:
    repeat: axis_size('y') - 1
    index: k
    carry: {a: A, n: I}
    body:
      t: a * k
      s: {repeat: I // 4, carry: {u: t}, body: {u: u + n + k + i}, unroll: false}
      a: s.u
  C: psum(r.a @ B, 'y') + r.n
"""


def test_a_loop_may_nest_and_its_carries_are_names_afterwards() -> None:
    graph = valid(LOOP).computed("per_device")
    (loop,) = filter(None, map(repeat, lines(graph)))
    assert (loop.form.steps, loop.index, loop.form.unroll) == (3, "k", True)
    (inner,) = filter(None, map(repeat, lines(loop.body)))
    assert (inner.form.steps, inner.index, inner.form.unroll) == (2, "i", False)
    body_lines = [line for line, _ in expressions(graph) if line.loops]
    assert [key_text(line.key) for line in body_lines] == [
        "r.carry.a", "r.carry.n", "r.body.t", "r.body.s.carry.u", "r.body.s.body.u", "r.body.a",
    ]  # fmt: skip
    assert len({line.path for line in body_lines}) == len(body_lines)
    assert [str(line) for line in body_lines] == ["r.a", "r.n", "r.t", "r.s.u", "r.s.u", "r.a"]


def test_lines_that_are_called_as_the_keys_of_a_loop_are_lines() -> None:
    loop = "{repeat: 2, carry: {carry: A}, body: {carry: carry + 1, body_: carry}}"
    graph = valid(f"graph: {{body: {loop}, C: body.carry @ B}}").computed("graph")
    assert [line.path for line, _ in expressions(graph)] == [
        "body/carry/carry", "body/body/carry", "body/body/body_", "C",
    ]  # fmt: skip
    assert list(map(str, every_line(graph))) == ["body", "body.carry", "body.body_", "C"]


def test_a_loop_of_no_steps_is_a_loop() -> None:
    graph = valid("graph: {r: {repeat: 0, carry: {a: A}, body: {a: a + 1}}, C: r.a @ B}").graph
    assert [loop.form.steps for loop in map(repeat, lines(graph)) if loop is not None] == [0]


def loop(**changes: Any) -> dict[str, Any]:
    """Return a graph with one loop `r` in it."""
    whole = {"repeat": 2, "carry": {"a": "A"}, "body": {"a": "a + 1"}} | changes
    return {"graph": {"r": {k: v for k, v in whole.items() if v is not None}, "C": "r.a @ B"}}


LOOP_FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": (loop(times=2), "graph.r.times", "a repeat has no key 'times'; a repeat has repeat, index"),
    "no steps": (loop(repeat=None), "graph.r", "the repeat 'r' has no 'repeat'"),
    "no body": (loop(body=None), "graph.r", "the repeat 'r' has no 'body'"),
    "empty carry": (loop(carry={}), "graph.r.carry", "the carry of a repeat maps names to expressions"),
    "body a list": (loop(body=["a"]), "graph.r.body", "the body of a repeat maps names to expressions"),
    "negative steps": (loop(repeat="I - 9"), "graph.r.repeat", "the repeat 'r' has -1 steps"),
    "steps of arrays": (loop(repeat="A"), "graph.r.repeat", "no dim 'A'"),
    "steps of devices in graph": (loop(repeat="axis_size('x')"), "graph.r.repeat", "a size is made of integers, dims"),
    "unroll": (loop(unroll="no"), "graph.r.unroll", "unroll is true (a Python loop) or false (jax.lax.fori_loop)"),
    "index assigned": (loop(index="a"), "graph.r.index", "'a' counts the steps and cannot be assigned"),
    "index a dim": (loop(index="I"), "graph.r.index", "'I' is a dim already; a name means one thing"),
    "index no name": (loop(index=True), "graph.r.index", "True is not a name; use letters, digits and '_'; YAML reads"),
    "carry of its own body": (loop(carry={"a": "b"}), "graph.r.carry.a", "no array, dim or earlier name 'b'"),
    "carry reads carry": (loop(carry={"a": "A", "b": "a"}), "graph.r.carry.b", "no array, dim or earlier name 'a'"),
    "outer name assigned": (
        loop(body={"B": "a + 1", "a": "B"}), "graph.r.body.B",
        "'B' is a name outside the repeat already; carry it, or choose another name",
    ),
    "body in the wrong order": (
        loop(body={"a": "t + A", "t": "A"}), "graph.r.body.a", "'t' is used before it is assigned",
    ),
    "nested into a carry": (
        loop(body={"a": {"repeat": 1, "carry": {"b": "a"}, "body": {"b": "b"}}}), "graph.r.body.a",
        "'a' is carried; a repeat cannot be assigned to it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", LOOP_FAULTS)
def test_a_mistake_in_a_loop(mistake: str) -> None:
    keys, key, message = LOOP_FAULTS[mistake]
    refusal = fault(**keys, per_device={})
    assert refusal[0] == key
    assert refusal[1].startswith(message)


@pytest.mark.parametrize("name", ["t", "k", "a"])
def test_names_of_a_body_are_not_visible_outside(name: str) -> None:
    text = LOOP.replace("psum(r.a @ B, 'y')", f"psum({name} @ B, 'y')")
    key, message = fault(text)
    assert key == "per_device.C"
    assert message.startswith(f"no array, dim or earlier name '{name}'")


FAULTS: dict[str, tuple[str, str, str]] = {
    "no name": ("name: null", "name", "no experiment is chosen"),
    "name of a folder": ("name: a/b", "name", "'a/b' cannot name a folder; use letters, digits, '_', '-', '.'"),
    "name up": ("name: ..", "name", "'..' cannot name a folder"),
    "a shape alone": (
        "mesh: {axes: null, shape: [4]}", "mesh.shape",
        "there is mesh.shape without mesh.axes; write both: {axes: [x, y], shape: [2, 4]}",
    ),
    "axes alone": ("mesh: {axes: [x], shape: null}", "mesh.axes", "there is mesh.axes without mesh.shape; write both"),
    "specs of an array": (
        "arrays: {A: {shape: [2], specs: '[x]'}}", "arrays.A.specs",
        "'specs' is a call that gives the specs of a tree's leaves; 'A' is an array, which has a 'spec'",
    ),
    "no axes": ("mesh: {axes: [], shape: []}", "mesh.axes", "the mesh has no axes"),
    "axis twice": ("mesh: {axes: [x, x], shape: [2, 2]}", "mesh.axes[1]", "the mesh axis 'x' appears twice"),
    "axis a boolean": ("mesh: {axes: [y, on], shape: [2, 2]}", "mesh.axes[1]", "True is not an axis name; YAML reads"),
    "axis with a blank": ("mesh: {axes: ['a b'], shape: [2]}", "mesh.axes[0]", "'a b' is not an axis name"),
    "sizes": ("mesh: {axes: [x, y], shape: [2]}", "mesh.shape", "1 size for 2 axes"),
    "size true": ("mesh: {axes: [x], shape: [true]}", "mesh.shape[0]", "True is not the size of an axis"),
    "size 2.0": ("mesh: {axes: [x], shape: [2.0]}", "mesh.shape[0]", "2.0 is not the size of an axis"),
    "dim 0": ("dims: {I: 0}", "dims.I", "the dim 'I' is 0; a size is at least 1"),
    "dim of a later dim": ("dims: {I: J, J: 2}", "dims.I", "no dim 'J'; there are no dims before it"),
    "dim 1.5": ("dims: {I: 1.5}", "dims.I", "1.5 is not a size; write an integer, a dim, or an expression of dims"),
    "dim true": ("dims: {I: true}", "dims.I", "True is not a size"),
    "dim named true": ("dims: {true: 2}", "", "True is not a name; use letters, digits and '_'; YAML reads yes"),
    "dim a keyword": ("dims: {in: 2}", "dims.in", "'in' is a keyword of Python and cannot be a name"),
    "array a keyword": ("arrays: {lambda: {shape: [2]}}", "arrays.lambda", "'lambda' is a keyword of Python"),
    "dim a collective": (
        "dims: {psum: 2}",
        "dims.psum",
        "'psum' is a collective in every expression; a name means one thing",
    ),
    "array a collective": ("arrays: {pmax: {shape: [2]}}", "arrays.pmax", "'pmax' is a collective in every expression"),
    "node a collective": ("graph: {all_gather: A}", "graph.all_gather", "'all_gather' is a collective in every"),
    "carry a collective": (
        "graph: {r: {repeat: 2, carry: {ppermute: A}, body: {ppermute: ppermute + 1}}}",
        "graph.r.carry",
        "'ppermute' is a collective in every expression",
    ),
    "node a keyword": ("graph: {if: A}", "graph.if", "'if' is a keyword of Python"),
    "array inf": ("arrays: {inf: {shape: [2]}}", "arrays.inf", "'inf' is a number in every expression; a name means"),
    "node with a dash": ("graph: {a-b: A}", "graph.a-b", "'a-b' is not a name; use letters, digits and '_'"),
    "array and dim": ("arrays: {I: {shape: [2]}}", "arrays.I", "'I' is a dim already; a name means one thing"),
    "node and dim": ("graph: {I: A}", "graph.I", "'I' is a dim already; a name means one thing"),
    "no shape": ("arrays: {A: {init: '1'}}", "arrays.A", "the array 'A' has no shape"),
    "dimension 0": ("arrays: {A: {shape: [I - 8]}}", "arrays.A.shape[0]", "dimension 0 of 'A' has size 0"),
    "dimension null": ("arrays: {A: {shape: [null]}}", "arrays.A.shape[0]", "None is not a size"),
    "dtype": ("arrays: {A: {shape: [2], dtype: complex}}", "arrays.A.dtype", "no dtype 'complex'; did you mean"),
    "spec a string": ("arrays: {A: {shape: [2], spec: x}}", "arrays.A.spec", "'x' is not a PartitionSpec"),
    "spec of a number": ("arrays: {A: {shape: [2], spec: [0]}}", "arrays.A.spec[0]", "0 is not a mesh axis, null"),
    "spec of a boolean": (
        "arrays: {A: {shape: [2], spec: [on]}}", "arrays.A.spec[0]",
        "True is not a mesh axis, null, or a list of axes; YAML reads yes, no, on and off",
    ),
    "two axes that do not divide": (
        "arrays: {A: {shape: [12], spec: [[x, y]]}}", "arrays.A.spec[0]",
        "dimension 0 of 'A' has size 12, which x=2 × y=4 does not divide",
    ),
    "expression a list": ("graph: {C: [A]}", "graph.C", "['A'] is not an expression"),
    "expression a boolean": ("graph: {C: yes}", "graph.C", "True is not an expression; YAML reads yes, no, on and off"),
    "expression null": ("graph: {C: null}", "graph.C", "None is not an expression"),
    "nothing": ("graph: {}\nper_device: {}", "", "there is nothing to run: the experiment needs a graph, a per_device"),
    "no outputs": ("outputs: {}", "outputs", "the experiment has no outputs"),
    "output an array": ("outputs: {A: [x]}", "outputs.A", "graph computes no 'A'"),
    "output of one section": (
        "graph: {C: A @ B, D: A}\noutputs: {D: [x]}", "outputs.D", "per_device computes no 'D'",
    ),
    "output spec": ("outputs: {C: [[x, z]]}", "outputs.C[0]", "mesh axis 'z' does not exist; the mesh has x, y"),
    "constraint": ("constraints: {Q: [x]}", "constraints.Q", "graph computes no 'Q'"),
    "constraint on per_device": ("graph: {}\nconstraints: {C: [x]}", "constraints.C", "graph computes no 'C'"),
    "platform": ("target: {platform: gpus}", "target.platform", "no platform 'gpus'; did you mean 'gpu'?"),
    "devices of a gpu": ("target: {platform: gpu, devices: 8}", "target.devices", "only CPU devices can be simulated"),
    "devices 0": ("target: {devices: 0}", "mesh.shape", "the mesh x=2 × y=4 needs 8 devices, but target.devices is 0"),
    "seed": ("seed: -1", "seed", "the seed must not be negative"),
    "show misspelt": ("show: al", "show", "nothing is called 'al'; did you mean 'all'?"),
    "show strange": ("show: 7", "show", "7 is not the name of an array or output; there are auto, all, none"),
    "show no": ("show: no", "show", "False is not the name of an array or output; YAML reads yes"),
    "show a list": ("show: [A, Z]", "show[1]", "no array or output is called 'Z'; there are mesh, A"),
    "timeout": ("timeout: 0.0", "timeout", "the timeout is a number of seconds above 0"),
    "timeout nan": ("timeout: .nan", "timeout", "the timeout is a number of seconds above 0"),
    "pinned text": ("expect: {values: {C: [one]}}", "expect.values.C[0]", "'one' is not a number"),
    "pinned mapping": ("expect: {values: {C: {a: 1}}}", "expect.values.C", "{'a': 1} is not a number"),
    "pinned nothing": ("expect: {values: {C: []}}", "expect.values.C", "'C' has no value to be compared"),
    "pinned ragged": ("expect: {values: {C: [[1], 2]}}", "expect.values.C[1]", "the rows have different shapes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", FAULTS)
def test_a_mistake_is_refused_at_its_key(mistake: str) -> None:
    text, key, message = FAULTS[mistake]
    refusal = fault(text)
    assert refusal[0] == (key or refusal[0])
    assert refusal[1].startswith(message)


def test_a_cycle_is_named_whole() -> None:
    _, message = fault("graph: {C: D + 1, D: E * 2, E: A + C}\nper_device: {}")
    assert message == "a cycle: C → D → E → C; no order of the lines can compute it"


def test_the_span_of_a_size_skips_leading_blanks() -> None:
    with pytest.raises(InvalidExperiment) as caught:
        read(given(dims={"I": 8, "J": "  I / 2"}))
    mistake = caught.value.fault
    assert mistake.expression is not None
    assert mistake.expression[mistake.start : mistake.end] == "I / 2"


def test_the_first_fault_in_reading_order_is_the_one_reported() -> None:
    assert fault("dims: {I: 0}\noutputs: {}")[0] == "dims.I"


def test_a_key_that_is_not_there_has_the_default_of_the_schema() -> None:
    bare = {
        "name": "bare",
        "mesh": {"axes": ["x"], "shape": [2]},
        "arrays": {"A": {"shape": [4]}},
        "graph": {"C": "A + 1"},
        "outputs": {"C": ["x"]},
    }
    merged = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(ExperimentConfig), bare))
    mine, theirs = read(bare), read(cast("dict[str, Any]", merged))
    assert mine.array("A").dtype == theirs.array("A").dtype == "float32"
    for name in ("seed", "precision", "check_vma", "trace", "profile", "timeout", "tested", "target", "programs"):
        assert getattr(mine, name) == getattr(theirs, name)


def test_mandatory_keys_are_omegaconfs_missing() -> None:
    assert schema.MISSING == omegaconf.MISSING
    with pytest.raises(omegaconf.MissingMandatoryValue):
        OmegaConf.structured(ExperimentConfig).name  # noqa: B018 - reading it is what raises
