"""Bad input gets one message: where, what, what instead; status 2; JAX is only imported if it is needed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from tests.faults import GOOD
from tests.server import Done, command


def run(folder: Path, text: str, *overrides: str) -> Done:
    """Run the experiment `text` as `mine`, from `folder`."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    arguments = ["--config-dir", ".", "+experiment=mine", "hydra.run.dir=run", *overrides]
    return command(folder, *arguments)


def edited(old: str, new: str) -> str:
    """Return the good experiment with one mistake in it."""
    assert GOOD.count(old) >= 1, old
    return GOOD.replace(old, new, 1)


def expect(result: Done, message: str) -> None:
    """Expect the whole message, status 2, no traceback, and no import of JAX in this process."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr == message + "\n"
    assert "Traceback" not in result.stdout + result.stderr
    assert not result.jax


WITHOUT_JAX = {
    "unknown key": (
        edited("graph:", "grpah:"),
        "experiment/mine.yaml:12:1  grpah\n  there is no key 'grpah'; did you mean 'graph'?",
    ),
    "unknown key of an array": (
        edited('init: "arange(16)", spec', 'int: "arange(16)", spec'),
        "experiment/mine.yaml:9:22  arrays.A.int\n  there is no key 'int'; did you mean 'init'?",
    ),
    "None in a list": (
        edited("spec: [null, x]}", "spec: [None, x]}"),
        "experiment/mine.yaml:9:49  arrays.A.spec[0]\n"
        "  mesh axis 'None' does not exist; the mesh has x, y; YAML writes None as null",
    ),
    "specs for spec": (
        edited("spec: [null, x]}", "specs: [null, x]}"),
        "experiment/mine.yaml:9:49  arrays.A.specs\n"
        "  an array has one layout: write spec: [null,x]; specs are those of the leaves of a tree",
    ),
    "misspelt operation": (
        edited("psum(partial", "psumm(partial"),
        "experiment/mine.yaml:17:6  per_device.C\n  no operation 'psumm'; did you mean 'psum'?\n"
        "    psumm(partial, 'x')\n    ^^^^^",
    ),
    "misspelt array": (
        edited("C: A @ B", "C: A @ BB"),
        "experiment/mine.yaml:13:6  graph.C\n  no array, dim or earlier name 'BB'; did you mean 'B'?\n"
        "    A @ BB\n        ^^",
    ),
    "misspelt axis in a spec": (
        edited("spec: [null, x]", "spec: [null, z]"),
        "experiment/mine.yaml:9:55  arrays.A.spec[1]\n  mesh axis 'z' does not exist; the mesh has x, y",
    ),
    "misspelt axis in a collective": (
        edited("'x'", "'z'"),
        "experiment/mine.yaml:17:6  per_device.C\n  mesh axis 'z' does not exist; the mesh has x, y\n"
        "    psum(partial, 'z')\n                  ^^^",
    ),
    "misspelt dim": (
        edited("shape: [I, J]", "shape: [I, JJ]"),
        "experiment/mine.yaml:9:18  arrays.A.shape[1]\n  no dim 'JJ'; did you mean 'J'?",
    ),
    "misspelt config group's option": (
        edited("x2_y2", "x2_y22"),
        "experiment/mine.yaml:3:21\n  no mesh 'x2_y22'; did you mean 'x2_y2'?",
    ),
    "a mesh of the file by its sizes": (
        edited("x2_y2", "2x2"),
        "experiment/mine.yaml:3:21\n"
        "  no mesh '2x2'; with the names of your axes write mesh: {axes: [x, y], shape: [2, 2]}",
    ),
    "an array that is indented too far": (
        edited("  B: {", "   B: {"),
        "experiment/mine.yaml:10:4\n"
        "  not YAML: this key is indented by 3 spaces, and the keys above by 2; a mapping's keys begin in one column",
    ),
    "quotes inside of quotes": (
        edited("C: A @ B", 'C: "einsum("ij,jk->ik", A, B)"'),
        "experiment/mine.yaml:13:15\n"
        "  not YAML: the text in quotes ends before this; inside of double quotes write single ones",
    ),
    "subscripts of einsum without quotes": (
        edited("C: A @ B", "C: einsum(ij,jk->ik, A, B)"),
        "experiment/mine.yaml:13:6  graph.C\n  the subscripts of einsum are a text: einsum('ij,jk->ik', …)\n"
        "    einsum(ij,jk->ik, A, B)\n                ^^",
    ),
    "an expression that a comment ends": (
        edited("C: A @ B", "C: A @ B + #bias"),
        "experiment/mine.yaml:13:6  graph.C\n  the expression ends after '+'; in YAML ' #' begins a comment\n"
        "    A @ B +\n          ^",
    ),
    "a star for a dimension": (
        edited("spec: [null, x]", "spec: [*, x]"),
        "experiment/mine.yaml:9:50\n"
        "  not YAML: '*' begins the name of an alias; a dimension that no axis shards is null",
    ),
    "a dtype of Python": (
        edited("shape: [I, J],", "shape: [I, J], dtype: float,"),
        "experiment/mine.yaml:9:29  arrays.A.dtype\n  no dtype 'float'; did you mean 'float32'?",
    ),
    "spec longer than the rank": (
        edited("spec: [null, x]", "spec: [null, x, y]"),
        "experiment/mine.yaml:9:48  arrays.A.spec\n  the spec has 3 entries, but 'A' has rank 2",
    ),
    "axis used twice in a spec": (
        edited("spec: [null, x]", "spec: [x, x]"),
        "experiment/mine.yaml:9:52  arrays.A.spec[1]\n"
        "  the mesh axis 'x' is used twice; each axis shards at most one dimension",
    ),
    "axis used twice within one entry": (
        edited("spec: [null, x]", "spec: [null, [x, x]]"),
        "experiment/mine.yaml:9:55  arrays.A.spec[1]\n"
        "  the mesh axis 'x' is used twice; each axis shards at most one dimension",
    ),
    "dimension that the axis does not divide": (
        edited("J: 4", "J: 5").replace("arange(16)", "normal()"),
        "experiment/mine.yaml:9:53  arrays.A.spec[1]\n  dimension 1 (J) of 'A' has size 5, which x=2 does not divide",
    ),
    "cycle": (
        edited("  C: A @ B\n", "  C: D + A\n  D: C * 2\n"),
        "experiment/mine.yaml:13:6  graph.C\n  a cycle: C → D → C; no order of the lines can compute it\n"
        "    D + A\n    ^",
    ),
    "a name used before it is assigned": (
        edited("  C: A @ B\n", "  C: D + A\n  D: A * 2\n"),
        "experiment/mine.yaml:13:6  graph.C\n"
        "  'D' is used before it is assigned; the lines run in order, so move it up\n    D + A\n    ^",
    ),
    "collective in graph": (
        edited("C: A @ B", "C: psum(A @ B, 'x')"),
        "experiment/mine.yaml:13:6  graph.C\n"
        "  'psum' is a collective; graph computes on whole arrays and has none; it belongs in per_device\n"
        "    psum(A @ B, 'x')\n    ^^^^",
    ),
    "init of the wrong size": (
        edited('"arange(16)"', '"arange(15)"'),
        "experiment/mine.yaml:9:28  arrays.A.init\n  it makes 15 values, but 'A' has shape [4, 4]: 4 × 4 = 16\n"
        "    arange(15)\n    ^^^^^^^^^^",
    ),
    "literal init of the wrong shape": (
        edited('"arange(16)"', "[1, 2]"),
        "experiment/mine.yaml:9:28  arrays.A.init\n  the values have shape [2], but 'A' has shape [4, 4]",
    ),
    "division by zero": (
        edited('"arange(16)"', '"arange(16) % (2 - 2)"'),
        "experiment/mine.yaml:9:28  arrays.A.init\n  NumPy refuses it: division by zero\n"
        "    arange(16) % (2 - 2)\n    ^^^^^^^^^^^^^^^^^^^^",
    ),
    "a target that there is not": (
        GOOD + "test: {targets: [cpu, tpus]}\n",
        "experiment/mine.yaml:21:23  test.targets[1]\n  no target 'tpus'; did you mean 'tpu'?",
    ),
    "a cast that the language has not": (
        edited("psum(partial, 'x')", "all_gather(partial, 'x', to='reduced')"),
        "experiment/mine.yaml:17:6  per_device.C\n  the argument 'to' must be one of 'varying', 'invarying'\n"
        "    all_gather(partial, 'x', to='reduced')\n                                ^^^^^^^^^",
    ),
    "a carry that is a word of Python's": (
        edited("  C: psum(partial, 'x')", "  r: {repeat: 2, carry: {as: partial}, body: {as: as + 1}}"),
        "experiment/mine.yaml:17:18  per_device.r.carry\n  'as' is a keyword of Python and cannot be a name",
    ),
    "ragged literal init": (
        edited('"arange(16)"', "[[1, 2], [3]]"),
        "experiment/mine.yaml:9:37  arrays.A.init[1]\n  the rows have different shapes: [2] and [1]",
    ),
    "missing file": (
        edited('"arange(16)"', "load('none.npy')"),
        "experiment/mine.yaml:9:28  arrays.A.init\n  there is no file 'FOLDER/experiment/none.npy'\n"
        "    load('none.npy')\n    ^^^^^^^^^^^^^^^^",
    ),
    "YAML that does not parse": (
        edited("shape: [I, J]", "shape: [I, J"),
        "experiment/mine.yaml:9:56\n  not YAML: expected ',' or ']', to go on in the '[' at 9:14 or close it",
    ),
    "tab": (
        edited("  C: A @ B", "\tC: A @ B"),
        "experiment/mine.yaml:13:1\n  not YAML: a tab; YAML is indented with spaces",
    ),
    "duplicate key": (
        edited("dims:", "name: yours\ndims:"),
        "experiment/mine.yaml:6:1\n  the key 'name' appears twice",
    ),
    "__import__": (
        edited("C: A @ B", "C: __import__('os')"),
        "experiment/mine.yaml:13:6  graph.C\n  no operation '__import__'\n    __import__('os')\n    ^^^^^^^^^^",
    ),
    "attribute": (
        edited("C: A @ B", "C: A.shape"),
        "experiment/mine.yaml:13:6  graph.C\n"
        "  attribute '.shape' is not part of the language; write shape(A)\n"
        "    A.shape\n    ^^^^^^^",
    ),
    "private attribute": (
        edited("C: A @ B", "C: A.__class__"),
        "experiment/mine.yaml:13:6  graph.C\n  attribute '.__class__' is not part of the language\n"
        "    A.__class__\n    ^^^^^^^^^^^",
    ),
    "method": (
        edited("C: A @ B", "C: A.exp()"),
        "experiment/mine.yaml:13:6  graph.C\n  arrays have no method 'exp'; write exp(A)\n    A.exp()\n    ^^^^^",
    ),
    "lambda": (
        edited("C: A @ B", 'C: "(lambda: A)()"'),
        "experiment/mine.yaml:13:6  graph.C\n"
        "  a lambda is not part of the language; write another line with a name instead\n"
        "    (lambda: A)()\n     ^^^^^^^^^",
    ),
    "expression that is not Python": (
        edited("C: A @ B", "C: A @ @ B"),
        "experiment/mine.yaml:13:6  graph.C\n  not a Python expression: invalid syntax\n    A @ @ B\n        ^",
    ),
    "wrong argument": (
        edited("C: A @ B", "C: sum(A, axes=0)"),
        "experiment/mine.yaml:13:6  graph.C\n"
        "  sum(): got an unexpected keyword argument 'axes'; "
        "it takes (a, axis=None, dtype=None, *, keepdims=False, initial=None, where=None)\n"
        "    sum(A, axes=0)\n    ^^^^^^^^^^^^^^",
    ),
    "output that nothing computes": (
        edited("  C: [null, null]", "  D: [null, null]"),
        "experiment/mine.yaml:20:6  outputs.D\n  graph computes no 'D'; it has C",
    ),
    "no mesh": (
        edited("defaults:\n  - override /mesh: x2_y2\n", ""),
        "experiment/mine.yaml  mesh\n  there is no mesh; write mesh: {axes: [x], shape: [4]}, or choose one: mesh=x4",
    ),
    "dtype": (
        edited("spec: [null, x]}", "spec: [null, x], dtype: flaot32}"),
        "experiment/mine.yaml:9:66  arrays.A.dtype\n  no dtype 'flaot32'; did you mean 'float32'?",
    ),
    "a name for two things": (
        edited("  partial: A @ B", "  A: A @ B"),
        "experiment/mine.yaml:16:6  per_device.A\n  'A' is an array already; a name means one thing",
    ),
    "pin of something that is no output": (
        GOOD + "expect:\n  values: {D: [1]}\n",
        "experiment/mine.yaml:22:15  expect.values.D\n  'D' is not an output",
    ),
    "an output that cannot be wrong": (
        GOOD + "expect:\n  wrong: {auto: [C, D]}\n",
        "experiment/mine.yaml:22:21  expect.wrong.auto[1]\n"
        "  'D' is neither an output, nor a program or platform; the outputs are C",
    ),
    "a list for a mapping": (
        edited("dims: {I: 4, J: 4, K: 4}", "dims: [I, J, K]"),
        "experiment/mine.yaml:6:7  dims\n  'dims' is a mapping of names, not a list; for example {B: 8, D: 16}",
    ),
    "a number for a mapping": (
        edited("dims:", "mesh: 4\ndims:"),
        "experiment/mine.yaml:6:7  mesh\n"
        "  'mesh' is a mapping of 'axes', 'shape', 'devices', 'types', not 4; "
        "for example {axes: [x, y], shape: [2, 4]}",
    ),
    "the name of a group's file in two places": (
        edited("dims:", "mesh: x4\ndims:"),
        "experiment/mine.yaml:6:7  mesh\n  'mesh' is chosen in 'defaults' too: keep one of them",
    ),
    "a text for a list": (
        edited("spec: [null, x]", "spec: x"),
        "experiment/mine.yaml:9:48  arrays.A.spec\n  'spec' is a list, not 'x'; write [x]",
    ),
    "a key that is a boolean": (
        edited("outputs:", "off: 3\noutputs:"),
        "experiment/mine.yaml:19:1\n  False is not a name; YAML reads yes, no, on and off as true and false: "
        "put it in quotes",
    ),
    "a line that is a boolean": (
        edited("  C: A @ B", "  on: A @ B"),
        "experiment/mine.yaml:13:3  graph\n  True is not a name; YAML reads yes, no, on and off as true and false: "
        "put it in quotes",
    ),
    "a line that is a number": (
        edited("  C: A @ B", "  3: A @ B"),
        "experiment/mine.yaml:13:3  graph\n  3 is not a name; use letters, digits and '_'",
    ),
    "no mesh for its specs": (
        edited("defaults:\n  - override /mesh: x2_y2\n", "").replace("[x, null]", "[x, y]"),
        "experiment/mine.yaml  mesh\n"
        "  there is no mesh; write mesh: {axes: [x, y], shape: [2, 2]}, or choose one: mesh=x4",
    ),
    "another package": (
        edited("_global_", "experiment"),
        "experiment/mine.yaml:1:1\n  this line must be: # @package _global_; or leave it out",
    ),
    "an empty file": ("", "experiment/mine.yaml:1:1\n  the file is empty"),
    "a file that is a list": (
        "- a\n",
        "experiment/mine.yaml:1:1\n  the file holds a list, not a mapping of keys to values",
    ),
    "a defaults list that is none": (
        edited("defaults:\n  - override /mesh: x2_y2", "defaults: x2_y2"),
        "experiment/mine.yaml:2:11  defaults\n  'defaults' is a list, such as [override /mesh: x2_y2], not 'x2_y2'",
    ),
    "a misspelt config group": (
        edited("override /mesh", "override /mehs"),
        "experiment/mine.yaml:3:15\n  there is no config group 'mehs' to override here; did you mean 'mesh'?",
    ),
    "a config group that is not overridden": (
        edited("override /mesh", "/mesh"),
        "experiment/mine.yaml:3:12\n  there is a mesh already; to choose another write: override /mesh: x2_y2",
    ),
    "a config group without its place": (
        edited("override /mesh", "mesh"),
        "experiment/mine.yaml:3:11\n  there is no config group 'experiment/mesh'; write: override /mesh: …",
    ),
    "versions that are none": (
        GOOD + "expect:\n  wrong: {auto: {C: 0.12}}\n",
        "experiment/mine.yaml:22:21  expect.wrong.auto.C\n"
        "  0.12 names no versions of JAX; write '<0.12' or '>=0.10, !=0.11.1'",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("mistake", WITHOUT_JAX)
def test_a_mistake_gets_its_message_before_jax_is_imported(tmp_path: Path, mistake: str) -> None:
    text, message = WITHOUT_JAX[mistake]
    result = run(tmp_path, text)
    expect(result, message.replace("FOLDER", str(tmp_path.resolve())))
    assert "simulated" not in result.stdout


OVERRIDES = {
    "unknown key": (["foo=1"], "command line: foo=1  foo\n  there is no key 'foo'; there are name, summary, source,"),
    "misspelt key": (["sede=1"], "command line: sede=1  sede\n  there is no key 'sede'; did you mean 'seed'?"),
    "unknown dim": (
        ["dims.L=1"],
        "command line: dims.L=1  dims.L\n  there is no key 'L'; there are I, J, K; to add a name, write ++dims.L=1",
    ),
    "topology without a size": (
        ["target=v5e"],
        "command line: target=v5e\n  no target 'v5e'; there are v5e_16x16, v5e_1x1, v5e_2x2, v5e_2x4, v5e_4x4",
    ),
    "misspelt group": (["mehs=x2"], "command line: mehs=x2  mehs\n  there is no key 'mehs'; did you mean 'mesh'?"),
    "a mesh by its sizes": (
        ["mesh=2x2"],
        "command line: mesh=2x2\n  no mesh '2x2'; for the sizes of its axes write mesh.shape=[2,2]",
    ),
    "a mesh by a list of its sizes": (
        ["mesh=[2,2]"],
        "command line: mesh=[2,2]\n"
        "  'mesh' is the name of a file in mesh/, not a list; for the sizes of its axes write mesh.shape=[2,2]",
    ),
    "a dimension without its mapping": (
        ["I=8"],
        "command line: I=8  I\n  there is no key 'I'; a dimension's size is dims.I, an array's layout arrays.I.spec",
    ),
    "hardware of which there are two kinds": (
        ["hardware=v5"],
        "command line: hardware=v5\n  no hardware 'v5'; did you mean 'v5e' or 'v5p'?",
    ),
    "a key of a list": (
        ["mesh.shape.x=3"],
        "command line: mesh.shape.x=3  mesh.shape.x\n"
        "  'shape' is a list and has no key 'x'; write it whole, mesh.shape=[…]",
    ),
    "a key of an array that is not there": (
        ["arrays.D.shape=[4]"],
        "command line: arrays.D.shape=[4]  arrays.D\n"
        "  there is no array 'D'; there are A, B; to add an array, write it whole: "
        "'++arrays={D: {shape: [4], spec: [x]}}'",
    ),
    "a key of an array that is added": (
        ["+arrays.D.shape=[4]"],
        "command line: +arrays.D.shape=[4]  arrays.D\n"
        "  there is no array 'D'; there are A, B; to add an array, write it whole: "
        "'++arrays={D: {shape: [4], spec: [x]}}'",
    ),
    "an interpolation of a text for a mapping": (
        ["expect=${name}"],
        "command line: expect=${name}  expect\n"
        "  'expect' is a mapping of 'values', 'collectives', 'no_collectives', 'max_bytes_per_device', …, "
        "not 'mine'",
    ),
    "an interpolation for a file's name": (
        ["mesh=${name}"],
        "command line: mesh=${name}\n  'mesh' chooses a file by its name, which cannot be an interpolation",
    ),
    "a group by plus": (["++mesh=x4"], "command line: ++mesh=x4\n  'mesh' chooses a file: write mesh=x4"),
    "misspelt option": (["mesh=x2y2"], "command line: mesh=x2y2\n  no mesh 'x2y2'; did you mean 'x2_y2'?"),
    "misspelt program": (
        ["program=shardmap"],
        "command line: program=shardmap  program\n  no program 'shardmap'; did you mean 'shard_map'?",
    ),
    "constraint without a graph": (
        ["~graph", "program=constraint"],
        "command line: program=constraint  program\n"
        "  program 'constraint' is written from graph, which this experiment does not have; there are shard_map, vmap",
    ),
    "a mesh larger than the devices": (
        ["target.devices=2"],
        "ROOT/conf/mesh/x2_y2.yaml:2:8  mesh.shape\n  the mesh x=2 × y=2 needs 4 devices, but target.devices is 2",
    ),
    "wrong type": (["seed=many"], "command line: seed=many  seed\n  'seed' is an integer, not 'many'\n"),
    "wrong value": (
        ["precision=best"],
        "command line: precision=best  precision\n  no precision 'best'; there are def",
    ),
    "override that does not parse": (
        ["dims.I=[4"],
        "command line: dims.I=[4\n  Hydra reads a value that begins with [ as a list or mapping, and this is not one; "
        "quote the value for Hydra, and the whole for the shell:\n    'dims.I=\"[4\"'\n",
    ),
    "a call that is not quoted": (
        ["++summary=psum(partial, 'x')"],
        "command line: ++summary=psum(partial, 'x')\n  Hydra reads psum(…) as a function of its own, and has none "
        'of that name; quote the value for Hydra, and the whole for the shell:\n    "++summary=\\"psum(partial, '
        "'x')\\\"\"\n",
    ),
    "no value": (["seed"], "command line: seed\n  an override is KEY=VALUE; ~KEY deletes a key\n"),
    "several values": (
        ["dims.I=4,8"],
        "command line: dims.I=4,8\n  these are several values: add -m to run them all; "
        "for one list write 'dims.I=[4,8]', for one text 'dims.I=\"4,8\"'\n",
    ),
    "a key that is added and unknown": (
        ["+bogus=1"],
        "command line: +bogus=1  bogus\n  there is no key 'bogus'; there are name, summary, source,",
    ),
    "a mapping that is added and unknown": (
        ["++bogus.x=1"],
        "command line: ++bogus.x=1  bogus\n  there is no key 'bogus'; there are name, summary, source,",
    ),
    "a misspelt key that is added": (
        ["+arrays.A.dtpe=int32"],
        "command line: +arrays.A.dtpe=int32  arrays.A.dtpe\n  there is no key 'dtpe'; did you mean 'dtype'?\n",
    ),
    "a list for a mapping": (
        ["arrays.A=[1]"],
        "command line: arrays.A=[1]  arrays.A\n  'A' is a mapping of 'shape', 'dtype', 'init', 'spec', …, not a list; "
        "write A: {shape: [1]}\n",
    ),
    "no list": (
        ["arrays.A.spec=x"],
        "command line: arrays.A.spec=x  arrays.A.spec\n  'spec' is a list, not 'x'; write [x]\n",
    ),
    "null where something has to be": (
        ["seed=null"],
        "command line: seed=null  seed\n  'seed' cannot be null: it is an integer\n",
    ),
    "a group without a name": (
        ["target=[2,2]"],
        "command line: target=[2,2]\n"
        "  'target' is the name of a file in target/, not a list; to choose one write target=",
    ),
    "a group chosen twice": (
        ["+experiment=layer"],
        "command line: +experiment=mine +experiment=layer\n  'experiment' is chosen twice; name one\n",
    ),
    "sizes": (["mesh.shape=[2,0]"], "command line: mesh.shape=[2,0]  mesh.shape[1]\n  0 is not the size of an axis;"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("mistake", OVERRIDES)
def test_a_mistake_on_the_command_line_names_the_override(tmp_path: Path, mistake: str) -> None:
    overrides, message = OVERRIDES[mistake]
    result = run(tmp_path, GOOD, *overrides)
    assert result.returncode == 2, result.stdout + result.stderr
    root = os.path.relpath(Path(__file__).parent.parent, tmp_path)
    root = str(Path(__file__).parent.parent) if root.startswith("..") else root
    assert result.stderr.startswith(message.replace("ROOT", root))
    assert "Traceback" not in result.stdout + result.stderr
    assert not result.jax
    assert "simulated" not in result.stdout


KEYS = edited(
    "defaults:\n  - override /mesh: x2_y2\n",
    "mesh: {axes: [x, y], shape: [2, 2]}\nhardware: {flops: {float32: 1e+9}}\n",
)
"""The good experiment, with the keys of two config groups in the file."""

CHOICES = {
    "another shape": (
        ["mesh=x4_y2"],
        "command line: mesh=x4_y2\n  experiment/mine.yaml:2:22 sets mesh.shape, and wins over this choice: "
        "override its keys, mesh.axes=[x,y] mesh.shape=[4,2], or write mesh: x4_y2 in the file",
    ),
    "other axes, of which one key is overridden": (
        ["mesh=x4", "mesh.shape=[4]"],
        "command line: mesh=x4\n  experiment/mine.yaml:2:8 sets mesh.axes, and wins over this choice: "
        "override its keys, mesh.axes=[x] mesh.shape=[4], or write mesh: x4 in the file",
    ),
    "hardware": (
        ["hardware=v5p"],
        "command line: hardware=v5p\n  experiment/mine.yaml:3:20 sets hardware.flops.float32, and wins over "
        "this choice: override its keys, hardware.flops.float32=…, or write hardware: v5p in the file",
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_an_option_that_the_file_overrides_is_refused(tmp_path: Path, choice: str) -> None:
    overrides, message = CHOICES[choice]
    expect(run(tmp_path, KEYS, *overrides), message)


@pytest.mark.in_turn
def test_an_option_beside_other_keys_of_the_file_is_taken(tmp_path: Path) -> None:
    text = edited("  - override /mesh: x2_y2\n", "  - override /mesh: x2\nmesh: {devices: [1, 0, 3, 2]}\n")
    result = run(tmp_path, text, "mesh=x2_y2", "program=auto", "show=none")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.in_turn
def test_the_keys_that_the_message_names_are_valid(tmp_path: Path) -> None:
    (tmp_path / "refused").mkdir()
    text = KEYS.replace("hardware: {flops: {float32: 1e+9}}\n", "")
    refused = run(tmp_path / "refused", text, "mesh=x4_y2").stderr
    (keys,) = re.findall("override its keys, (.*), or write", refused)
    result = run(tmp_path, text, *keys.split(), "program=auto", "show=none")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.in_turn
def test_a_suggested_override_is_valid_for_hydra(tmp_path: Path) -> None:
    # The last line of the message, as a shell takes it apart.
    refused = run(tmp_path, GOOD, "++summary=psum(partial, 'y')", "program=auto", "show=none")
    typed = shlex.split(refused.stderr.splitlines()[-1])
    result = run(tmp_path, GOOD, *typed, "program=auto", "show=none")
    assert result.stdout.startswith("mine: psum(partial, 'y')\n"), result.stdout + result.stderr


@pytest.mark.in_turn
def test_a_line_with_a_call_is_read_as_it_is_typed(tmp_path: Path) -> None:
    assert run(tmp_path, GOOD, "++per_device.C=psum(partial, 'y')").stderr.endswith("it equals the graph\n")


@pytest.mark.in_turn
def test_a_suggested_array_is_valid(tmp_path: Path) -> None:
    (tmp_path / "refused").mkdir()
    refused = run(tmp_path / "refused", GOOD, "+arrays.D.shape=[4]").stderr
    (whole,) = re.findall("write it whole: (.*)", refused)
    result = run(tmp_path, GOOD, *shlex.split(whole), "program=auto", "show=none")
    assert result.returncode == 0, result.stdout + result.stderr


def test_null_switches_an_optional_key_off(tmp_path: Path) -> None:
    text = GOOD + "  s: []\ngrad: {of: s, wrt: [A]}\nexpect: {no_collectives: true}\n"
    text = text.replace("  C: A @ B\n", "  C: A @ B\n  s: sum(C)\n", 1)
    result = run(tmp_path, text, "~per_device", "program=constraint", "grad=null", "expect=null")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "grad.A" not in result.stdout
    assert "no_collectives" not in result.stdout


def test_a_binary_file_is_reported_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_bytes(b"# @package _global_\nname: \xff\n")
    result = command(tmp_path, "--config-dir", ".", "+experiment=mine")
    expect(result, "experiment/mine.yaml:2:7\n  not UTF-8: invalid start byte; save the file as UTF-8")


def test_a_misspelt_experiment_names_the_nearest(tmp_path: Path) -> None:
    result = command(tmp_path, "+experiment=case3_alreduce")
    message = "no experiment 'case3_alreduce'; did you mean 'case3_allreduce'?"
    expect(result, f"command line: +experiment=case3_alreduce\n  {message}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (
            "matmul_case4_allgather_B",
            "'case4a_allgather_b' (MinText, Tutorial 1, section 3.5, matmul_case4_allgather_B)",
        ),
        (
            "matmul_case4_allgather_A",
            "'case4b_allgather_a' (MinText, Tutorial 1, section 3.5, matmul_case4_allgather_A)",
        ),
        ("f_contract_2", "'intro_contract_constraint' (Introduction to sharded computation, section 2, f_contract_2)"),
        ("ppermute_exmple", "'distributed_ppermute' (learn_jax, intro_to_distributed.py, ppermute_example)"),
        ("Case3_Allreduce", "'case3_allreduce'"),
    ],
)
def test_an_experiment_is_suggested_for_the_name_in_its_source(tmp_path: Path, name: str, meant: str) -> None:
    result = command(tmp_path, f"+experiment={name}")
    expect(result, f"command line: +experiment={name}\n  no experiment '{name}'; did you mean {meant}?")


def test_an_unknown_name_says_where_the_names_are(tmp_path: Path) -> None:
    result = command(tmp_path, "+experiment=zzz")
    assert result.returncode == 2
    assert "no experiment 'zzz'; python -m runner list names those there are" in result.stderr
    # A source that several experiments share does not name one of them.
    assert "did you mean" not in command(tmp_path, "+experiment=MinText").stderr


WITH_JAX = {
    "shapes that do not match": (
        edited("  C: A @ B\n", "  C: A[:, :3] @ B\n"),
        "experiment/mine.yaml:13:6  graph.C\n",
        ["float32[4, 3], float32[4, 4]", "    A[:, :3] @ B\n    ^^^^^^^^^^^^"],
    ),
    "a power written ^": (
        edited("  C: A @ B\n", "  C: A @ B ^ 2\n"),
        "experiment/mine.yaml:13:6  graph.C\n  JAX refuses it: ",
        ["; '^' is Python's exclusive or: for a power write A @ B ** 2\n"],
    ),
    "output spec longer than the rank": (
        edited("  C: [null, null]", "  C: [null, null, null]"),
        "experiment/mine.yaml:20:6  outputs.C\n  the spec has 3 entries, but 'C' has rank 2\n",
        [],
    ),
    "graph and per_device of different shapes": (
        edited("psum(partial, 'x')", "psum(partial, 'x')[:2]"),
        "experiment/mine.yaml:20:6  outputs.C\n"
        "  per_device gives [2, 4] on each device, which under [null, null] is [2, 4] "
        "in all; graph gives [4, 4]\n",
        [],
    ),
    "a psum left out": (
        edited("psum(partial, 'x')", "partial"),
        "experiment/mine.yaml:20:6  outputs.C\n  [null, null] promises the same 'C' on every device along 'x'",
        ["a psum over 'x' is left out: with per_device.C: psum(partial, 'x') it equals the graph"],
    ),
    "the wrong axis": (
        edited("psum(partial, 'x')", "psum(partial, 'y')"),
        "experiment/mine.yaml:20:6  outputs.C\n  [null, null] promises the same 'C' on every device along 'x'",
        ["per_device.C: psum(partial, 'y') runs over the wrong axis: over 'x' instead of 'y' it equals the graph"],
    ),
    "a psum left out of equal values": (
        edited("psum(partial, 'x')", "partial").replace("arange(16)", "ones()"),
        "experiment/mine.yaml:20:6  outputs.C\n  [null, null] promises the same 'C' on every device along 'x'",
        ["a psum over 'x' is left out: with per_device.C: psum(partial, 'x') it equals the graph"],
    ),
    "copies of an all_gather": (
        edited("psum(partial, 'x')", "whole").replace(
            "  partial: A @ B\n",
            "  gathered: all_gather(A, 'x', axis=1, tiled=True)\n  whole: gathered @ all_gather(B, 'x', tiled=True)\n",
        ),
        "experiment/mine.yaml:21:6  outputs.C\n  [null, null] promises the same 'C' on every device along 'x', but in "
        "per_device it may differ along 'x': JAX infers that the copies are equal with: per_device.gathered: "
        "all_gather(A, 'x', axis=1, tiled=True, to='invarying'), per_device.whole: gathered @ "
        "all_gather(B, 'x', tiled=True, to='invarying')\n",
        [],
    ),
    "copies that JAX cannot know": (
        edited("psum(partial, 'x')", "ppermute(psum(partial, 'x') + 0 * axis_index('x'), 'x', [(0, 1), (1, 0)])"),
        "experiment/mine.yaml:20:6  outputs.C\n  [null, null] promises the same 'C' on every device along 'x', but in "
        "per_device it may differ along 'x': by the reference it is the same there, but JAX cannot infer it: "
        "add a psum or pmax, or check_vma: false\n",
        [],
    ),
    "a pinned block that does not fit": (
        GOOD + "expect:\n  values: {C: [1, 2]}\n",
        "experiment/mine.yaml:22:15  expect.values.C\n  the pinned values have shape [2], but 'C' has shape [4, 4]\n",
        [],
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("mistake", WITH_JAX)
def test_errors_that_only_jax_finds_name_the_line(tmp_path: Path, mistake: str) -> None:
    text, beginning, more = WITH_JAX[mistake]
    result = run(tmp_path, text)
    assert result.returncode == 2, result.stdout + result.stderr
    assert beginning in result.stderr
    for part in more:
        assert part in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert not result.jax


def test_an_invalid_experiment_leaves_a_record(tmp_path: Path) -> None:
    from runner.reports.record import record

    run(tmp_path, edited("spec: [null, x]", "spec: [null, z]"))
    result = record.read(tmp_path / "run")
    assert result.status == "invalid"
    assert result.error is not None
    assert "mesh axis 'z' does not exist" in result.error
    assert result.programs == {}


@pytest.mark.in_turn
def test_nan_in_data_is_a_warning_and_the_check_says_so(tmp_path: Path) -> None:
    from runner.reports.record import record

    values = "[[.nan, 1, 2, 3], [4, 5, 6, 7], [8, 9, 1, 2], [3, 4, 5, 6]]"
    result = run(tmp_path, edited('"arange(16)", spec: [null', f"{values}, spec: [null"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "warning: 1 of the 16 values of 'A' are NaN" in result.stdout
    check: Any = record.read(tmp_path / "run").programs["auto"].checks.value
    assert "count as equal" in check.note
    assert check.outputs["C"].nan == 16


def test_a_line_that_nothing_reads_is_a_warning(tmp_path: Path) -> None:
    lost = (
        "  lost: psum(A, 'x')\n  of: lost * 2\n  r: {repeat: 2, carry: {a: B}, body: {b: \"pmax(a, 'x')\", a: a + 1}}\n"
    )
    text = edited("  partial: A @ B\n", lost + "  partial: A @ B + 0 * sum(r.a)\n")
    result = run(tmp_path, text.replace("graph:\n", "graph:\n  unread: A + 1\n"), "program=shard_map")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("warning")] == [
        "warning: nothing reads 'unread' of graph: the compiler removes it",
        "warning: nothing reads 'lost' of per_device: the compiler removes it, and its psum, which no check counts",
        "warning: nothing reads 'of' of per_device: the compiler removes it",
        "warning: nothing reads 'r.b' of per_device: the compiler removes it, and its pmax, which no check counts",
    ]


@pytest.mark.in_turn
def test_operands_of_four_bits_run(tmp_path: Path) -> None:
    text = """\
# @package _global_
mesh: {axes: [x], shape: [2]}
name: mine
arrays:
  A: {shape: [4, 4], init: arange(16) % 7, spec: [x, null], dtype: int4}
  B: {shape: [4, 4], init: arange(16) % 5, spec: [x, null], dtype: float4_e2m1fn}
graph: {C: "astype(A, 'int32') + 1", D: "astype(B, 'float32') * 2"}
per_device: {C: "astype(A, 'int32') + 1", D: "astype(B, 'float32') * 2"}
outputs: {C: [x, null], D: [x, null]}
"""
    result = run(tmp_path, text)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 of 6 programs passed" in result.stdout


CARRIED = """\
# @package _global_
mesh: {axes: [x], shape: [2]}
name: mine
arrays:
  A: {shape: [4, 4], spec: [x, null]}
graph:
  z: zeros((4, 4))
  r: {repeat: 3, carry: {a: z}, body: {a: a + A}, unroll: false}
  B: r.a * 1
outputs:
  B: [x, null]
"""


@pytest.mark.in_turn
def test_a_carry_that_every_step_gathers_is_a_warning_with_a_remedy(tmp_path: Path) -> None:
    gathered = run(tmp_path, CARRIED, "program=explicit")
    warning = (
        "warning: explicit gathers the carry r.a at every step, since it starts unsharded: "
        "compute its start in a line of its own, and constrain that to [x, null]"
    )
    assert warning in gathered.stdout.splitlines()
    assert "all-gather" in gathered.stdout
    cured = run(tmp_path, CARRIED + "constraints: {z: [x, null]}\n", "program=explicit", "hydra.run.dir=cured")
    assert cured.returncode == 0, cured.stdout + cured.stderr
    assert "warning" not in cured.stdout
    assert "no collectives" in cured.stdout


@pytest.mark.parametrize("written", ["mesh.shape=4x2", "mesh.shape=4*2", "mesh=4,2"])
def test_sizes_written_otherwise_are_answered_with_an_override_that_works(written: str, tmp_path: Path) -> None:
    say = command(tmp_path, "+experiment=case3_allreduce", written, "hydra.run.dir=out").stderr
    advice = re.search(r"write (\S+)", say)
    assert advice is not None, say
    (override,) = shlex.split(advice[1])
    override = override if "=" in override else f"{written.partition('=')[0]}={override}"
    assert compose("case3_allreduce", conf_folder(), [override]).plain["mesh"]["shape"] == [4, 2]
