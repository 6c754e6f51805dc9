"""The advice of a message that refuses a file, a call or a command is followed, and what was refused is taken."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import runner
from runner.app import api, given
from runner.app.called import experiment as called_experiment
from runner.app.cli import explain, measure
from runner.app.cli.arguments import parsed
from runner.app.cli.experiment_names import with_experiment
from runner.base.faults import InvalidExperiment
from runner.compiled.explanation import files
from runner.compiled.explanation.files import Wanted
from runner.experiment.config import sweep_size, text_size
from runner.experiment.config.configuration import InvalidConfiguration
from runner.experiment.config.folders import InvalidName
from runner.experiment.imported import read_imported
from runner.link import wire
from runner.reports.record import manifest
from runner.worker.functions import tracing
from tests import explained, harness
from tests.faults import ROOT

X = np.ones((4, 2), np.float32)

FILE: dict[str, Any] = {
    "mesh": {"axes": ["x"], "shape": [2]},
    "dims": {"N": 4},
    "arrays": {
        "A": {"shape": ["N"], "spec": ["x"]},
        "B": {"shape": ["N", "N"]},
        "w": {"tree": "followed.tree()"},
    },
    "imports": {"followed": "followed.py"},
    "graph": {"C": "A * 2"},
    "outputs": {"C": ["x"]},
}
MODULE = """
from typing import NamedTuple

import jax
import jax.numpy as jnp

calls = []


def tree(n=4):
    return {"a": jnp.ones(n), "b": jnp.ones(n)}


def double(x, by=2):
    return x * by


def drawn(x, noise=None):
    calls.append(x)
    return x * (len(calls) if noise is None else noise)


def named(x):
    with jax.named_scope("mlp"):
        return jnp.tanh(x)


def sent(x, devices):
    return jax.lax.ppermute(x, "x", [(i, (i + 1) % devices) for i in range(2)])


def random(x):
    return x + jax.random.normal(jax.random.key(0), x.shape)


def made():
    class State(NamedTuple):
        x: jax.Array

    return State


State = made()


def halves(x):
    return x[:2], x[2:]


def state(x):
    return State(x)


def used(state):
    return state.x * 2


def both(x):
    return used(state(x))
"""
NAMED = {"result": "checkpoint_name(x * 2, 'mid')"}
LOOP = {"repeat": 4, "over": {"v": "B"}, "carry": {"g": "A"}, "body": {"g": "g * 2"}}
WHILE = {"while": "on", "carry": {"h": "A", "on": "True"}, "body": {"h": "h * 0.5", "on": "max(h) > 1"}}
BOTH = {
    "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
    "arrays.A.spec": [["x", "y"]],
    "outputs.C": [["x", "y"]],
}
SHARED = "cond(A[0] > 0, lambda: A * sum(B), lambda: A)"
SUMMED = {
    "graph": {"C": "where(A[0] > 0, A * sum(B), A)", "l": "sum(C)"},
    "outputs.l": [],
    "grad": {"of": "l", "wrt": ["B"]},
}
LOSS = "psum(sum(C), 'x')"
SLICED = {"topology": "v5e:2x2", "slices": 2}
MESH_OF_SLICES = {"axes": ["slices", "x"], "shape": [2, 4]}
HARDWARE = yaml.safe_load((ROOT / "conf" / "hardware" / "v5e.yaml").read_text())
LINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a comprehension is not part of the language; write the list out, or use a repeat": (
        {"graph.C": "sum(stack(A * k for k in [1, 2]), axis=0)"},
        {"graph.C": "sum(stack([A * 1, A * 2]), axis=0)"},
    ),
    "nested more than 100 levels deep; give a part of it a name": (
        {"graph.C": "A" + ".T" * 120},
        {"graph": {"half": "A" + ".T" * 60, "C": "half" + ".T" * 60}},
    ),
    "a map gives one array; for several, write a repeat with 'over' and 'stack'": (
        {"graph": {"C, D": "map(lambda a: a * 2, A)"}},
        {
            "graph": {
                "both": {"repeat": "N", "over": {"a": "A"}, "body": {"v": "a * 2"}, "stack": {"c": "v", "d": "v"}},
                "C": "both.c + both.d",
            }
        },
    ),
    "; write a, b: cond(p, f, g, x) where both give (a, b)": (
        {"graph": {"C": "cond(A[0] > 0, lambda a: (a, a), lambda a: (a, a), A)"}},
        {"graph": {"C, D": "cond(A[0] > 0, lambda a: (a, a), lambda a: (a, a), A)"}},
    ),
    "' cannot be used in a call of Python; give it a line, or a function, of its own": (
        {"graph.C": "followed.double([A for k in [1]][0])"},
        {"graph": {"part": "A * 1", "C": "followed.double(part)"}},
    ),
    'in it is a lone surrogate: write "\\U0001F600", or the character': (
        {"summary": "\ud83d"},
        {"summary": "\U0001f600"},
    ),
    "2.5 is not a shape; write a list of the sizes of axes, or auto": ({"mesh.shape": 2.5}, {"mesh.shape": [2]}),
    "never reach this psum; move it before the choice": (
        {"per_device": {"C": "cond(A[0] > 0, lambda: psum(A, 'x'), lambda: A)"}},
        {
            "per_device": {
                "all": "pcast(psum(A, 'x'), 'x', to='varying')",
                "C": "cond(A[0] > 0, lambda: all, lambda: A)",
            }
        },
    ),
    "a tree has the shapes of its leaves; leave it out": (
        {"arrays.w": {"tree": "followed.tree()", "shape": ["N"]}},
        {"arrays.w": {"tree": "followed.tree()"}},
    ),
    "gives all its leaves their specs; the first pattern that fits counts: write 'w/a' first": (
        {"specs": {"w/*": [], "w/a": ["x"]}},
        {"specs": {"w/a": ["x"], "w/*": []}},
    ),
    "; choose smaller dims, or a target that is not here, such as target=v5e_4x4": (
        {"arrays.w": {"tree": "followed.tree(N)"}, "dims.N": 1 << 12},
        {"arrays.w": {"tree": "followed.tree(N)"}},
    ),
    "write a lambda that calls it with lines, such as lambda: double(x); for map, call jax.lax.map": (
        {"functions": {"double(a)": "followed.double(a)"}, "graph.C": "cond(A[0] > 0, double, lambda a: a, A)"},
        {"functions": {"double(a)": "followed.double(a)"}, "graph.C": "cond(A[0] > 0, lambda: double(A), lambda: A)"},
    ),
    "followed.double cannot be called here; call it in a line of a section, or of the body of a repeat": (
        {"graph.C": {"repeat": 2, "carry": {"h": "followed.double(A)"}, "body": {"h": "h * 2"}}},
        {
            "graph": {
                "first": "followed.double(A)",
                "loop": {"repeat": 2, "carry": {"h": "first"}, "body": {"h": "h * 2"}},
                "C": "loop.h",
            }
        },
    ),
    "or NumPy's generator; pass that as an argument": (
        {"graph.C": "followed.drawn(A)"},
        {"graph.C": "followed.drawn(A, noise=A)"},
    ),
    "graph computes no 'mlp'; write 'C/mlp'": (
        {"graph.C": "followed.named(A)", "constraints": {"mlp": ["x"]}},
        {"graph.C": "followed.named(A)", "constraints": {"C/mlp": ["x"]}},
    ),
    "' is what programs call something of their own; choose another name": (
        {"imports.jax": "followed.py"},
        {"imports.mine": "followed.py"},
    ),
    "polygamma takes arrays only: write asarray(1.0) for 1.0": (
        {"graph.C": "polygamma(1.0, A)"},
        {"graph.C": "polygamma(asarray(1.0), A)"},
    ),
    "are 0 to 1; write % 2 to come back to the first": (
        {"per_device": {"C": "followed.sent(A, 3)"}},
        {"per_device": {"C": "followed.sent(A, 2)"}},
    ),
    "' has classes that only its own function can make; call both in one function": (
        {"graph": {"state": "followed.state(A)", "C": "followed.used(state)"}},
        {"graph.C": "followed.both(A)"},
    ),
    "let it take a number of steps that is known, as a scan or a fori_loop does, or stop_gradient": (
        {
            "graph": {
                "loop": {
                    "while": "on",
                    "carry": {"h": "A", "on": "True"},
                    "body": {"h": "h * 0.5", "on": "max(h) > 1"},
                },
                "C": "loop.h",
                "l": "sum(C)",
            },
            "outputs.l": [],
            "grad": {"of": "l", "wrt": ["A"]},
        },
        {
            "graph": {
                "loop": {"repeat": 3, "carry": {"h": "A"}, "body": {"h": "h * 0.5"}},
                "C": "loop.h",
                "l": "sum(C)",
            },
            "outputs.l": [],
            "grad": {"of": "l", "wrt": ["A"]},
        },
    ),
    "save_only_these_names' takes names: write {save_only_these_names: [NAME]}": (
        {"functions": {"f(x)": {"result": "x * 2", "checkpoint": "save_only_these_names"}}, "graph.C": "f(A)"},
        {"functions": {"f(x)": NAMED | {"checkpoint": {"save_only_these_names": ["mid"]}}}, "graph.C": "f(A)"},
    ),
    "nothing says what is saved: write remat: auto, and the planner finds it, or remat: [NAME]": (
        {"functions": {"f(x)": NAMED | {"checkpoint": "auto"}}, "graph.C": "f(A)"},
        {"functions": {"f(x)": NAMED | {"checkpoint": "auto"}}, "graph.C": "f(A)", "remat": ["mid"]},
    ),
    "nothing reads it: write checkpoint: auto in a function or a repeat": (
        {"functions": {"f(x)": NAMED}, "graph.C": "f(A)", "remat": ["mid"]},
        {"functions": {"f(x)": NAMED | {"checkpoint": "auto"}}, "graph.C": "f(A)", "remat": ["mid"]},
    ),
    "is carried already; give the stacked values another name": (
        {"graph": {"loop": LOOP | {"stack": {"g": "g"}}, "C": "loop.g"}},
        {"graph": {"loop": LOOP | {"stack": {"gs": "g"}}, "C": "loop.g"}},
    ),
    "is a slice in each step; choose another name": (
        {"graph": {"loop": LOOP | {"body": {"v": "g", "g": "v * 2"}}, "C": "loop.g"}},
        {"graph": {"loop": LOOP | {"body": {"u": "g", "g": "u * 2"}}, "C": "loop.g"}},
    ),
    "the number of steps cannot depend on arrays: write it with integers, dims, or lines of these": (
        {"graph": {"loop": LOOP | {"repeat": "A"}, "C": "loop.g"}},
        {"graph": {"loop": LOOP | {"repeat": "N"}, "C": "loop.g"}},
    ),
    "the predicate of a while is float32; make it bool": (
        {"graph": {"loop": WHILE | {"carry": {"h": "A", "on": "max(A)"}}, "C": "loop.h"}},
        {"graph": {"loop": WHILE | {"carry": {"h": "A", "on": "max(A) > 0"}}, "C": "loop.h"}},
    ),
    "devices that have left it never reach this psum; make all decide alike, for example by its pmax": (
        {"per_device": {"loop": WHILE | {"body": {"h": "h / psum(max(h), 'x')", "on": "max(h) > 1"}}, "C": "loop.h"}},
        {
            "per_device": {
                "loop": WHILE | {"body": {"h": "h / psum(max(h), 'x')", "on": "pmax(max(h), 'x') > 1"}},
                "C": "loop.h",
            }
        },
    ),
    "varies over 'y' but is the same along 'x', and JAX does not accept a mixture; leave 'x' out, or use "
    "pcast(…, 'x', to='varying') first": (
        BOTH | {"per_device": {"C": "A + psum(psum(sum(A), 'x'), ('x', 'y'))"}},
        BOTH | {"per_device": {"C": "A + psum(psum(sum(A), 'x'), 'y')"}},
    ),
    "in the gradient of 'B'; add a line before it: B_here: pcast(B, 'x', to='varying')": (
        SUMMED | {"per_device": {"C": SHARED, "l": LOSS}},
        SUMMED
        | {
            "per_device": {
                "B_here": "pcast(B, 'x', to='varying')",
                "C": SHARED.replace("B", "B_here"),
                "l": LOSS,
            },
        },
    ),
    "the gradients are called grad.…; choose another name": (
        {"graph": {"grad": "A * 2", "C": "sum(grad)"}, "outputs.C": [], "grad": {"of": "C", "wrt": ["A"]}},
        {"graph": {"slope": "A * 2", "C": "sum(slope)"}, "outputs.C": [], "grad": {"of": "C", "wrt": ["A"]}},
    ),
    "'l' is not among the outputs; give it a PartitionSpec there: []": (
        {"graph": {"C": "A * 2", "l": "sum(C)"}, "grad": {"of": "l", "wrt": ["A"]}},
        {"graph": {"C": "A * 2", "l": "sum(C)"}, "outputs.l": [], "grad": {"of": "l", "wrt": ["A"]}},
    ),
    "'^' is Python's exclusive or: for a power write A ** 2": ({"graph.C": "A ^ 2"}, {"graph.C": "A ** 2"}),
    "a lambda is not part of the language; write another line with a name instead": (
        {"graph.C": "(lambda: A * 2)()"},
        {"graph": {"doubled": "A * 2", "C": "doubled + 0"}},
    ),
    "calls of functions nest more than 50 deep: f0 → f1 → … → f50; write some of them as one": (
        {"functions": {f"f{i}(x)": f"f{i + 1}(x) + 1" for i in range(60)} | {"f60(x)": "x"}, "graph.C": "f0(A)"},
        {"functions": {"f0(x)": "x + 60"}, "graph.C": "f0(A)"},
    ),
    "4 slices, but the target has 2; leave it out": (
        {"target": SLICED, "mesh": MESH_OF_SLICES, "hardware": HARDWARE | {"slices": 4}},
        {"target": SLICED, "mesh": MESH_OF_SLICES, "hardware": HARDWARE},
    ),
    "followed.halves(A) gives 2 arrays; give it a line of its own": (
        {"graph.C": "sum(followed.halves(A))"},
        {"graph": {"halves": "followed.halves(A)", "C": "halves[0]"}},
    ),
}
"""What refuses a change of the file above, the change, and one that follows the message."""


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the file with values at dotted keys; without the imported module where they do not read it."""
    words = str(changes)
    file = copy.deepcopy(FILE)
    if not re.search("followed|w/", words):
        del file["imports"], file["arrays"]["w"]
    for key, value in changes.items():
        *parents, last = key.split(".")
        at: Any = file
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("followed")
    (folder / "followed.py").write_text(MODULE, encoding="utf-8")
    return folder


@pytest.mark.parametrize("says", LINES)
def test_a_file_that_follows_the_advice_is_read(says: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.worker.functions.tree_arrays.available", lambda: 1 << 12)

    def read(changes: dict[str, Any]) -> None:
        config = harness.config(changed(changes))
        if config["imports"]:
            read_imported(tracing.traced(config, folder, folder))
        else:
            harness.types(config)

    wrong, right = LINES[says]
    with pytest.raises(InvalidExperiment) as refused:
        read(wrong)
    assert says in refused.value.fault.message
    read(right)


def dumps(folder: Path) -> Path:
    """Return a folder with the dumps of two modules."""
    for number, name in enumerate(("jit_step", "jit_other")):
        text = explained.STEP.replace("jit_step", name)
        (folder / f"module_000{number}.{name}.cpu_after_optimizations.txt").write_text(text, encoding="utf-8")
    return folder


def random_bits(folder: Path, partitionable: bool) -> None:
    with jax.threefry_partitionable(partitionable):
        (folder / "drawing.py").write_text(MODULE, encoding="utf-8")
        file = changed({"graph.C": "drawing.random(A)"}) | {"imports": {"drawing": "drawing.py"}}
        tracing.traced(harness.config(file), folder, folder)


def lowered(folder: Path, debug_info: bool) -> None:
    mesh = jax.make_mesh((1,), ("x",))
    x = jax.device_put(X, NamedSharding(mesh, P("x")))
    (folder / "step.mlir").write_text(jax.jit(jnp.sum).lower(x).as_text(debug_info=debug_info), encoding="utf-8")
    notes = files.explain(folder / "step.mlir").notes
    if "the file names no lines" in str(notes):
        raise ValueError(notes)


def key(folder: Path, mode: int) -> None:
    file = folder / "key"
    file.write_bytes(b"0" * 64)
    file.chmod(mode)
    wire.read(file)


def unused(folder: Path) -> None:
    if why := manifest.refusal(folder):
        raise ValueError(why)


def measuring(folder: Path, *words: str) -> None:
    """Call the command up to its first use of a device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "measure", lambda _: (_ for _ in ()).throw(measure.NotMeasured("no device")))
        patch.chdir(folder)
        assert measure.main(words) == 3


def deep(levels: int) -> Any:
    tree: Any = X
    for _ in range(levels):
        tree = {"inner": tree}
    return tree


def called(folder: Path, *operands: Any, **arguments: Any) -> None:
    called_experiment.experiment(jax.tree.leaves, operands, folder, **({"mesh": {"x": 2}, "in_specs": P()} | arguments))


def of_text(text: str) -> None:
    if refused := text_size.refusal(text):
        raise ValueError(refused[2])


def swept(*overrides: str) -> None:
    sweep_size.require_few(OverridesParser.create().parse_overrides(list(overrides)), 10)


REFUSALS = (
    ValueError,
    TypeError,
    InvalidConfiguration,
    InvalidExperiment,
    InvalidName,
    manifest.Occupied,
    wire.Unusable,
    SystemExit,
)
Call = Callable[[Path], Any]


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


CALLS: dict[str, tuple[Call, Call]] = {
    "this is no module; to explain an experiment write python -m runner ": (
        lambda folder: files.explain(written(folder, "mine.yaml", "name: mine")),
        lambda folder: api.compose(folder / "mine.yaml", ["explain=true"]),
    ),
    "in a script write print(runner.explain(step, …))": (
        lambda folder: files.explain(written(folder, "mine.py", "import runner")),
        lambda _: runner.explain(jnp.multiply, X, X),
    ),
    "is 3; give the path of a folder": (
        lambda _: given.path(3, "folder", "the path of a folder"),
        lambda _: given.path("3", "folder", "the path of a folder"),
    ),
    "which has a NUL character; give the path of a folder": (
        lambda _: given.path("a\0b", "folder", "the path of a folder"),
        lambda _: given.path("ab", "folder", "the path of a folder"),
    ),
    "width is 0; give the number of columns, at least 1": (lambda _: given.columns(0), lambda _: given.columns(1)),
    "it has 2 modules; choose one by its name: module=jit_": (
        lambda folder: files.explain(dumps(folder)),
        lambda folder: files.explain(dumps(folder), Wanted(module="jit_step")),
    ),
    "NumPy computes numpy.multiply, which jit cannot trace; give jax.numpy.multiply": (
        lambda _: runner.explain(np.multiply, X, X),
        lambda _: runner.explain(jnp.multiply, X, X),
    ),
    "jax_threefry_partitionable is False: the oracle draws as JAX does by default; leave it as it is": (
        lambda folder: random_bits(folder, False),
        lambda folder: random_bits(folder, True),
    ),
    "the file names no lines: write it with lowered.as_text(debug_info=True)": (
        lambda folder: lowered(folder, False),
        lambda folder: lowered(folder, True),
    ),
    "key must be a file that its user alone can read and write": (
        lambda folder: key(folder, 0o644),
        lambda folder: key(folder, 0o600),
    ),
    "could overwrite; name a folder that is empty, or not there": (
        lambda folder: unused(folder),
        lambda folder: unused(folder / "new"),
    ),
    " is the folder of another run; name another one": (
        lambda folder: [manifest.mark(folder, "run") for _ in range(2)],
        lambda folder: [*map(manifest.begin, (folder / "a", folder / "b"), ("run", "run"))],
    ),
    "'my-cpu' cannot name a file of hardware; use letters, digits and '_'": (
        lambda folder: measuring(folder, "my-cpu", "--config-dir", "."),
        lambda folder: measuring(folder, "my_cpu", "--config-dir", "."),
    ),
    "there is no folder conf for the file; make it, or name another with --config-dir": (
        lambda folder: measuring(folder, "cpu"),
        lambda folder: measuring(folder, "cpu", "--config-dir", "."),
    ),
    "is not a size; write 1k, 16M, 1G or a number of bytes": (
        lambda folder: measuring(folder, "cpu", "--config-dir", ".", "--smallest", "1 kB"),
        lambda folder: measuring(folder, "cpu", "--config-dir", ".", "--smallest", "1k"),
    ),
    "pass its leaves in a list, and build the tree in the function": (
        lambda folder: called(folder, deep(200)),
        lambda folder: called(folder, jax.tree.leaves(deep(200))),
    ),
    "this is a lone surrogate: write the character, or one escape of eight digits": (
        lambda _: of_text('a: "\\ud83d"'),
        lambda _: of_text('a: "\\U0001F600"'),
    ),
    "1.5 MB; keep many numbers in a .npy file, and write init: load('FILE.npy')": (
        lambda _: of_text(f"init: {[0.5] * 300_000}"),
        lambda _: of_text("init: load('FILE.npy')"),
    ),
    "an interval is for sweepers that draw from it (hydra/sweeper=…); write a range or a list of values": (
        lambda _: swept("seed=interval(0,1)"),
        lambda _: swept("seed=range(0,1)", "dims.I=4,8"),
    ),
    'is not a mesh; give names with sizes, such as {"data": 2, "model": 2}, or a Mesh': (
        lambda folder: called(folder, X, mesh=[2, 2]),
        lambda folder: called(folder, X, mesh={"data": 2, "model": 2}),
    ),
    "3 is no override; give texts, ['dims.B=8'], or a mapping, {'dims.B': 8}": (
        lambda _: given.overrides(3),
        lambda _: [given.overrides(["dims.B=8"]), given.overrides({"dims.B": 8})],
    ),
    "hardware is ['v5p']; give a name": (
        lambda _: runner.explain(jnp.sin, X, hardware=["v5p"]),  # type: ignore[arg-type]
        lambda _: runner.explain(jnp.sin, X, hardware="v5p"),
    ),
    "is no mesh; write its axes and their sizes: {'data': 4, 'model': 2}": (
        lambda folder: runner.explain(stepped(folder), mesh={}),
        lambda folder: runner.explain(stepped(folder), mesh={"data": 4, "model": 2}),
    ),
    "'4,2' is no mesh; write its axes and their sizes: data=4,model=2": (
        lambda folder: explain.main([str(stepped(folder)), "--mesh", "4,2"]),
        lambda folder: explain.main([str(stepped(folder)), "--mesh", "data=4,model=2"]),
    ),
    "is a file, or below one; name a folder that is empty, or not there": (
        lambda folder: manifest.begin(folder / "there.txt", "run"),
        lambda folder: manifest.begin(folder / "new", "run"),
    ),
    "'trace' is a key without its value: write trace=true": (
        lambda _: overrides_of("case3_allreduce", "trace"),
        lambda _: overrides_of("case3_allreduce", "trace=true"),
    ),
    "the shell splits this at its spaces; write 'graph.C=A @ B'": (
        lambda _: overrides_of("case3_allreduce", "graph.C=A", "@", "B"),
        lambda _: overrides_of("case3_allreduce", "graph.C=A @ B"),
    ),
    "case3_allreduce.yaml\n  there is no such file; write case3_allreduce for the experiment of that name": (
        lambda _: overrides_of("case3_allreduce.yaml"),
        lambda _: overrides_of("case3_allreduce"),
    ),
    "did you mean the file 'my.yaml'?": (
        lambda folder: overrides_of("my", within=written(folder, "my.yaml", "name: my").parent),
        lambda folder: overrides_of("my.yaml", within=folder),
    ),
}


def stepped(folder: Path) -> Path:
    return written(folder, "step.txt", explained.STEP)


def overrides_of(*words: str, within: Path | None = None) -> list[str]:
    """Return the overrides that a command line stands for, as the command reads it in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        if within is not None:
            patch.chdir(within)
        known, overrides = parsed(words)
        return with_experiment(words, known, overrides)[0]


@pytest.mark.in_turn
@pytest.mark.parametrize("says", CALLS)
def test_a_call_that_follows_the_advice_is_taken(says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, right = CALLS[says]
    (tmp_path / "there.txt").touch()
    with pytest.raises(REFUSALS) as refused:
        wrong(tmp_path)
    assert says in f"{refused.value}{capsys.readouterr().err}"
    right(tmp_path)
