"""What people bring from JAX, Flax and pjit: each is answered with how an experiment writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.base.faults import InvalidExperiment, Key
from runner.experiment import data
from runner.experiment.config import config_errors, quoting, shape
from runner.graph.language.syntax import SyntaxFault, parse
from tests import harness

KEYS: dict[Key, str] = {
    ("in_specs",): "the layout of an operand is in arrays: {A: {shape: [4, 8], spec: [x, null]}}",
    ("out_shardings",): "the layouts of results are in outputs: {C: [x, null]}",
    ("axis_names",): "a mesh is written {axes: [x, y], shape: [2, 4]}",
    ("mesh", "axis_names"): "a mesh is written {axes: [x, y], shape: [2, 4]}",
    ("donate_argnums",): "nothing is donated: a program runs several times on the same operands",
    ("shard_map",): "what one device computes is in per_device, what all compute together in graph",
    ("dtype",): "each array has its own: arrays.A.dtype",
    ("loss",): "a gradient is written grad: {of: loss, wrt: [w]}",
    ("params",): "operands are arrays: {A: {shape: [4, 8], spec: [x, null]}}",
    ("arrays", "A", "sharding"): "the layout of an array is its 'spec'",
}

VALUES: list[tuple[Key, Any, str]] = [
    (("mesh",), [2, 4], "for example {axes: [x, y], shape: [2, 4]}"),
    (("dims",), [8, 16], "for example {B: 8, D: 16}"),
    (("grad",), "out", "for example {of: loss, wrt: [w]}"),
    (("graph",), "out = x @ w + b", "write out: x @ w + b"),
    (("arrays", "A", "shape"), "(B", "a list is in square brackets: [B, …]"),
    (("arrays", "A", "shape"), "(B, D)", "a list is in square brackets: [B, D]"),
    (("arrays", "A", "spec"), "None", "write [] for a replicated array"),
    (("arrays", "A", "spec"), "replicated", "write [] for a replicated array"),
    (
        ("arrays", "A", "spec"),
        "NamedSharding(mesh, P(('x', 'y'), None))",
        "a spec is the PartitionSpec alone: \"P(('x', 'y'), None)\"",
    ),
    (("arrays", "A", "spec"), "x", "write [x]"),
]

LINES = {
    "with_sharding_constraint(A, P('x'))": "a line is constrained by the key constraints: {h: [x, null]}",
    "jax.lax.with_sharding_constraint(A, P('x'))": "a line is constrained by the key constraints: {h: [x, null]}",
    "jax.grad(A)(A)": "a gradient is the key grad: {of: loss, wrt: [w]}",
    "jax.jit(A)": "every program is compiled whole; write the lines of the function",
    "nn.Dense(32)(A)": "layers belong in a Python function that the experiment imports (functions.md)",
    "jnp.matmul(A, A, precision='highest')": "precision is a key of the experiment",
}

ASSIGNED = {
    "h = A @ A": "write h: A @ A",
    "h = A @ A\nreturn h + 1": "write h: A @ A",
}

MESHES = {
    "(2, 4)": "{axes: [x, y], shape: [2, 4]}",
    "jax.make_mesh((2, 4), ('data', 'model'))": "{axes: [data, model], shape: [2, 4]}",
    "Mesh(devices, ('data', 'model'))": "{axes: [data, model], shape: [2, 4]}",
    "jax.make_mesh((8,), ('x',))": "{axes: [x], shape: [8]}",
}

INITS = {
    "jnp.zeros": "the functions of an init have no module: write zeros",
    "jax.random.normal(key, (4, 4))": "an init draws with the experiment's seed, so it has no key: normal(0, 0.02)",
}

TEXT = "name: mine\narrays: {A: {shape: [4, 4], spec: [x]}}\ngraph: {C: A}\noutputs: {C: []}\n"


@pytest.mark.parametrize("key", KEYS, ids=shape.key_text)
def test_a_key_of_another_tool_is_answered_with_ours(key: Key) -> None:
    (misfit,) = shape.misfits([1], key)
    assert misfit.fault.message == f"there is no key '{key[-1]}'; {KEYS[key]}"


@pytest.mark.parametrize(("key", "value", "cure"), VALUES)
def test_a_value_in_the_form_of_another_tool_is_answered_with_ours(key: Key, value: Any, cure: str) -> None:
    (misfit,) = shape.misfits(value, key)
    assert misfit.fault.message.endswith(f"; {cure}")


@pytest.mark.parametrize("line", LINES)
def test_a_function_of_jax_that_is_a_key_here_names_the_key(line: str) -> None:
    with pytest.raises(InvalidExperiment) as refused:
        harness.experiment(TEXT.replace("{C: A}", f'{{C: "{line}"}}'))
    assert refused.value.fault.message.endswith(f"; {LINES[line]}")


@pytest.mark.parametrize("text", ASSIGNED)
def test_an_assignment_is_answered_with_the_key_of_a_line(text: str) -> None:
    with pytest.raises(SyntaxFault, match="a line is one expression") as refused:
        parse(text)
    assert str(refused.value).endswith(ASSIGNED[text])


@pytest.mark.parametrize("text", MESHES)
def test_a_mesh_in_python_is_answered_with_one_in_yaml(text: str) -> None:
    assert config_errors.mesh_in(text) == MESHES[text]


def test_a_tuple_on_the_command_line_is_answered_with_a_list(tmp_path: Path) -> None:
    assert quoting.refused("mesh=(2,4)").endswith("\n  a list is in square brackets: 'mesh.shape=[2,4]'")
    assert quoting.refused("arrays.A.shape=(4, 4,)").endswith(": 'arrays.A.shape=[4, 4]'")
    assert "this is a folder: name an experiment's file in it" in quoting.refused(str(tmp_path))


@pytest.mark.parametrize("init", INITS)
def test_an_init_of_jax_is_answered_with_ours(init: str, tmp_path: Path) -> None:
    experiment = harness.experiment(TEXT.replace("spec: [x]", f'spec: [x], init: "{init}"'))
    with pytest.raises(InvalidExperiment) as refused:
        data.make(experiment, tmp_path)
    assert refused.value.fault.message.endswith(INITS[init])
