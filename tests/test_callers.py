"""What a caller of the package's functions gives is taken, or refused by one message before anything is started.

A session tries one in a few of them; `make faults` tries them all.
"""

from __future__ import annotations

import decimal
import enum
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.app import api
from runner.link.workers import Workers

X = np.ones((4, 2), np.float32)
CASE = "case3_allreduce"
PLAIN = {
    "name": "mine", "mesh": {"axes": ["x"], "shape": [2]}, "arrays": {"A": {"shape": [4], "spec": ["x"]}},
    "graph": {"C": "A * 2"}, "outputs": {"C": ["x"]}, "program": "auto",
}  # fmt: skip
SAMPLE = 4


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder to which all paths are relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class NeverStarted(Workers):
    """Workers that must not be needed, since what they would be given is refused before."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a worker was given a job")


def refusal(call: Callable[[], Any]) -> str:
    """Return the message that refuses a call: of what it raises, or of the record that it returns."""
    result: Any = None
    raised: Exception | None = None
    try:
        result = call()
    except (ValueError, TypeError, FileExistsError, runner.InvalidConfiguration, runner.InvalidExperiment) as error:
        raised = error
    if raised is not None:
        *_, innermost = traceback.extract_tb(raised.__traceback__)
        assert "/runner/" in innermost.filename, f"Python's own {raised!r}"
        return str(raised)
    message = getattr(result, "error", None)
    assert message, f"{result!r} is no refusal"
    assert result.status == "invalid"
    return str(message)


def levels(count: int, kind: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    """Return a value in so many containers."""
    value: Any = 1
    for _ in range(count):
        value = kind(value)
    return value


def in_itself() -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    mapping["a"] = mapping
    return mapping


class Words(str):
    """A text whose own `str` fails."""

    def __str__(self) -> str:
        raise ValueError("no text")


PATHS: dict[str, tuple[Any, str]] = {
    "a number": (3, "is 3; give the path of "),
    "bytes": (b"x", "is b'x'; give the path of "),
    "a list": (["."], "is ['.']; give the path of "),
    "a name of 300": ("a" * 300, "with a name of 300 bytes, where file systems have at most 255"),
    "a path of 6000": ("/".join(["a" * 200] * 30), "a path of 6029 bytes, where systems have less than 4096"),
    "NUL": ("a\0b", "which has a NUL character; give the path of "),
    "half a character": ("\ud800", "which is no text that a path can be; give the path of "),
}
USES: dict[str, Callable[[Any], Any]] = {
    "compose": lambda path: runner.compose(CASE, config_dir=path),
    "run": lambda path: runner.run(CASE, config_dir=path),
    "folder of run": lambda path: runner.run(CASE, folder=path),
    "folder of check": lambda path: runner.check(abs, (X,), mesh={"x": 2}, folder=path),
    "folder of sweep": lambda path: runner.sweep(CASE, ["seed=1,2"], folder=path),
    "read": runner.read,
    "explain": lambda path: runner.explain("absent.txt", profile=path),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", PATHS)
def test_a_path_that_no_file_system_has_is_refused(kind: str, use: str, here: Path) -> None:
    value, says = PATHS[kind]
    assert says in refusal(lambda: USES[use](value))
    assert not list(here.iterdir())


def test_a_folder_has_a_name_in_utf_8(here: Path) -> None:
    assert refusal(lambda: runner.sweep(CASE, ["seed=1,2"], folder="a\udcff")).endswith("a character that is not UTF-8")
    says = f"{here}/a? has bytes that are not UTF-8, which XLA and YAML cannot name"
    assert says in refusal(lambda: runner.run(CASE, folder="a\udcff"))
    assert says in refusal(lambda: runner.check(abs, (X,), mesh={"x": 2}, folder="a\udcff"))
    assert not list(here.iterdir())
    assert not list(here.iterdir())


EXPERIMENTS: dict[str, tuple[Any, str]] = {
    "none": (None, "None is no experiment; give its name, the path of its file, or a mapping of its keys"),
    "a number": (3, "3 is no experiment; give its name"),
    "bytes": (b"case3", "b'case3' is no experiment; give its name"),
    "a list": ([CASE], "is no experiment; give its name"),
    "a function": (abs, "a function is no experiment: write runner.check(abs, (x, w), …) with its operands"),
    "a name of 5000": ("a" * 5000, "with a name of 5000 bytes"),
    "NUL": ("a\0", "which has a NUL character"),
    "half a character": ("\ud800", "which is no text that a path can be"),
    "empty": ("", "no experiment ''"),
    "a folder up": ("../../etc/passwd", "there is no config group 'experiment/../../etc'"),
    "an absolute path": ("/dev/null", "there is no config group 'experiment//dev'"),
    "a device": ("/dev/null.yaml", "/dev/null.yaml: there is no such file"),
    "no file": (Path("absent.yaml"), "absent.yaml: there is no such file"),
    "a flag": ("-m", "no experiment '-m'"),
    "all": ("*", "no experiment '*'"),
    "an override": ("seed=3", "Hydra's grammar does not accept the value unquoted"),
    "an interpolation": ("${x}", "chooses a file by its name, which cannot be an interpolation"),
    "capitals": (CASE.upper(), f"did you mean '{CASE}'?"),
    "two lines": ("case3\nx", "Hydra's grammar does not accept the value unquoted"),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_what_is_no_experiment_is_refused(kind: str, here: Path) -> None:
    value, says = EXPERIMENTS[kind]
    assert says in refusal(lambda: runner.compose(value))
    assert not list(here.iterdir())


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", ["none", "a number", "bytes", "a list", "a name of 5000", "NUL", "half a character"])
def test_what_is_no_experiment_makes_no_folder(kind: str, here: Path) -> None:
    value, says = EXPERIMENTS[kind]
    for call in (lambda: runner.run(value), lambda: runner.sweep(value, ["seed=1,2"])):
        assert says in refusal(call)
    assert not list(here.iterdir())


UNWRITTEN: dict[str, tuple[Any, str]] = {
    "a function": (abs, "<built-in function abs> cannot be written to an experiment's file; a file has texts, numbers"),
    "a set": ({1}, "{1} cannot be written"),
    "bytes": (b"x", "b'x' cannot be written"),
    "a path": (Path("x"), "cannot be written"),
    "a decimal": (decimal.Decimal(3), "Decimal('3') cannot be written"),
    "a fraction": (Fraction(1, 2), "Fraction(1, 2) cannot be written"),
    "an enumeration": (enum.Enum("E", "auto").auto, "<E.auto: 1> cannot be written"),  # pyright: ignore
    "a generator": ((each for each in ()), "cannot be written"),
    "an array": (np.ones(2), "array([1., 1.]) cannot be written to an experiment's file; give its .tolist()"),
    "a complex number": (1j, "1j cannot be written"),
    "5000 digits": (10**5000, "a number of 16610 bits; no dtype has more than 64"),
    "200 levels": (levels(200), "it has more than 100 levels, or contains itself"),
    "5000 levels": (levels(5000, lambda inner: {"a": inner}), "it has more than 100 levels, or contains itself"),
    "itself": (in_itself(), "it has more than 100 levels, or contains itself"),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", UNWRITTEN)
def test_a_value_that_no_file_can_have_is_refused_with_its_key(kind: str, here: Path) -> None:
    value, says = UNWRITTEN[kind]
    for call in (
        lambda: runner.run({**PLAIN, "summary": value}),
        lambda: runner.compose(CASE, {"summary": value}),
        lambda: runner.compose(CASE, summary=value),
        lambda: runner.sweep({**PLAIN, "summary": value}, ["seed=1,2"]),
    ):
        message = refusal(call)
        assert message.startswith("summary: ")
        assert says in message
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("given", "plain"), [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.str_("a"), "a")]
)
def test_a_number_of_numpy_is_a_number(given: Any, plain: Any) -> None:
    assert runner.compose(CASE, {"++dims.Z": given} if plain is None else [], summary=str(given)).plain
    assert runner.compose(CASE, seed=np.int64(3)).plain["seed"] == 3
    assert api.content({**PLAIN, "summary": given}, "mine")["summary"] == plain
    assert type(api.content({**PLAIN, "summary": given}, "mine")["summary"]) is type(plain)


def test_a_subclass_of_str_is_taken_for_a_text() -> None:
    assert runner.compose(CASE, program=Words("auto")).plain["program"] == "auto"


OVERRIDES: dict[str, tuple[Any, str]] = {
    "a number": (3, "3 is no override; give texts, ['dims.B=8'], or a mapping, {'dims.B': 8}"),
    "none": (None, "None is no override"),
    "bytes": (b"seed=3", "b'seed=3' is no override"),
    "numbers": ([3], "3 is no override"),
    "a None": (["seed=3", None], "None is no override"),
    "a generator": ((each for each in ["seed=3"]), "is no override"),
    "numbers as keys": ({3: 4}, "3 is no key of an experiment; overrides are {'dims.B': 8}"),
    "no value": (["seed"], "an override is KEY=VALUE; ~KEY deletes a key"),
    "no key": (["=3"], "this has no key; an override is KEY=VALUE"),
    "two signs": (["seed=="], "Hydra's grammar does not accept the value unquoted"),
    "three signs": (["seed=1=2"], "Hydra's grammar does not accept the value unquoted"),
    "open": (["seed=["], "Hydra reads a value that begins with [ as a list or mapping, and this is not one"),
    "a quote": (["seed='"], "Hydra's grammar does not accept the value unquoted"),
    "NUL": (["seed=\0"], "Hydra's grammar does not accept the value unquoted"),
    "half a character": (["seed=\ud800"], "Hydra's grammar does not accept the value unquoted"),
    "no key to delete": (["~nope"], "there is no 'nope' to delete"),
    "a second value": (["+seed=3"], "'seed' has a value already; to change it, write seed=3"),
    "no such key": (["++nope=3"], "there is no key 'nope'"),
    "a flag": (["-m"], "an override is KEY=VALUE; ~KEY deletes a key"),
    "a flag with a value": (["--cfg=job"], "'--cfg' is no key; write names joined by dots, such as dims.I=8"),
    "several values": (["seed=1,2"], "these are several values: add -m to run them all"),
    "100,000 digits": (["seed=" + "1" * 100_000], "a number of 100,000 digits; the limit is 1,000"),
    "10,000 parts": (["mesh.shape=[" + "1," * 10_000 + "1]"], "a value of more than 5,000 parts belongs in a file"),
    "500 brackets": (["seed=" + "[" * 500 + "]" * 500], "nested more than 100 levels deep"),
    "500 braces": (["dims=" + "{a:" * 500 + "1" + "}" * 500], "nested more than 100 levels deep"),
    "no variable": (["name=${oc.env:NOPE}"], "Environment variable 'NOPE' not found"),
    "no resolver": (["name=${shell:ls}"], "Unsupported interpolation type shell"),
    "two lines": (["seed=1\nseed=2"], "these are 2 overrides in one text: write each by itself"),
    "a tab": (["\tseed=1"], "'\tseed' is no key; write names joined by dots, such as dims.I=8"),
    "a long s": (["ſeed=1"], "'ſeed' is no key; write names joined by dots, such as dims.I=8"),
    "two dots": (["a..b=1"], "'a..b' is no key; write names joined by dots, such as dims.I=8"),
    "not a number": (["seed=nan"], "'seed' is an integer, not nan"),
    "infinite": (["seed=1e400"], "'seed' is an integer, not inf"),
    "a truth": (["seed=true"], "'seed' is an integer, not True"),
    "nothing": (["seed=null"], "'seed' cannot be null: it is an integer"),
    "all": (["seed=*"], "'seed' is an integer, not '*'"),
    "empty": ([""], "an override is KEY=VALUE; ~KEY deletes a key"),
    "a package": (["a@b=c"], "there is no key 'a'"),
}  # fmt: skip


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", OVERRIDES)
def test_what_is_no_override_is_refused(kind: str, here: Path) -> None:
    value, says = OVERRIDES[kind]
    assert says in refusal(lambda: runner.compose(CASE, value))
    assert not list(here.iterdir())


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", ["a number", "none", "bytes", "numbers", "a None", "a generator", "numbers as keys"])
def test_what_is_no_override_starts_no_run_and_no_sweep(kind: str, here: Path) -> None:
    value, says = OVERRIDES[kind]
    assert says in refusal(lambda: runner.run(CASE, value))
    assert says in refusal(lambda: runner.sweep(CASE, value))
    assert not list(here.iterdir())


def test_a_command_line_has_no_nul() -> None:
    assert "has a NUL character, which no command line has" in refusal(lambda: runner.sweep(CASE, {"name": ("a\0",)}))


def checked(function: Any = abs, operands: Any = (X,), /, **arguments: Any) -> Callable[[], api.Record]:
    given: dict[str, Any] = {"mesh": {"x": 2}, "in_specs": P("x"), **arguments}
    return lambda: api.checked(function, operands, "out", NeverStarted(), **given)


NO_MESH = 'is not a mesh; give names with sizes, such as {"data": 2, "model": 2}, or a Mesh'
MESHES: dict[str, tuple[Any, str]] = {
    "none": (None, "no operand lies on a mesh, and none is given; give one"),
    "a text": ("x", NO_MESH),
    "a number": (3, NO_MESH),
    "sizes": ((4, 2), 'such as {"data": 4, "model": 2}'),
    "pairs": ([("x", 2)], NO_MESH),
    "a set": ({"x"}, NO_MESH),
    "half a device": ({"x": 2.5}, NO_MESH),
    "a text for a size": ({"x": "2"}, NO_MESH),
    "a truth for a size": ({"x": True}, NO_MESH),
    "a class": (jax.sharding.Mesh, NO_MESH),
    "a spec": (P("x"), NO_MESH),
    "an array": (np.ones(2), NO_MESH),
    "below zero": ({"x": -2}, "-2 is not the size of an axis; write an integer of at least 1"),
    "zero": ({"x": 0}, "0 is not the size of an axis; write an integer of at least 1"),
    "empty": ({}, "the mesh has no axes"),
    "a number for a name": ({3: 2}, "'3' is not an axis name"),
    "names for a name": ({("x", "y"): 2}, "is not an axis name"),
    "a space": ({"a b": 2}, "'a b' is not an axis name"),
    "no name": ({"": 2}, "'' is not an axis name"),
    "many": ({"x": 10**9}, "1,000,000,000 devices cannot be simulated here: the limit is 4,096"),
    "very many": ({"x": 10**40}, "devices cannot be simulated here: the limit is 4,096"),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", MESHES)
def test_what_is_no_mesh_is_refused(kind: str) -> None:
    value, says = MESHES[kind]
    assert says in refusal(checked(mesh=value, in_specs=None))


DEEP = "it is a tree of more than 100 levels, or contains itself"
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no function": (checked(None), "None is not a function"),
    "a name": (checked("abs"), "'abs' is not a function"),
    "a module": (checked(np), "is not a function"),
    "an array": (checked(abs, X), "the operands are a tuple, runner.check(abs_, (x, w)), not a ndarray"),
    "no operands": (checked(abs, None), "not a NoneType"),
    "a generator": (checked(abs, (x for x in [X])), "not a generator"),
    "a mapping": (checked(abs, {"a": X}), "not a dict"),
    "a deep operand": (checked(abs, (levels(3000),)), "is a tree of more than 100 levels"),
    "an operand in itself": (checked(abs, (in_itself(),)), "is a tree of more than 100 levels"),
    "keywords in a list": (checked(kwargs=[1]), "kwargs is [1]; give a mapping of the names of keyword arguments"),
    "numbered keywords": (checked(kwargs={3: X}), "give a mapping of the names of keyword arguments"),
    "specs as a number": (checked(in_specs=3), "in_specs is 3; give a PartitionSpec, or a tree of them, for each"),
    "specs as a text": (checked(in_specs="x"), "a spec is a PartitionSpec, not the text 'x': write P('x')"),
    "two specs": (checked(in_specs=[P(), P()]), "in_specs has 2 specs, and the function is called with 1 operand"),
    "deep specs": (checked(in_specs=levels(3000)), DEEP),
    "deep specs of results": (checked(out_specs=levels(3000)), DEEP),
    "specs in themselves": (checked(in_specs=in_itself()), DEEP),
    "arrays": (checked(arrays={}), "it is made of the call; leave arrays out"),
    "graph": (checked(graph={"C": "1"}), "it is made of the call; leave graph out"),
    "imports": (checked(imports={"m": "m.py"}), "it is made of the call; leave imports out"),
    "outputs": (checked(outputs={}), "it is made of the call; leave outputs out"),
    "constraints": (checked(constraints=3), "3 is no mapping of paths to specs"),
    "specs by path": (checked(specs=[P()]), "is no mapping of paths to specs"),
    "a set of programs": (checked(program={"auto"}), "cannot be written to an experiment's file"),
    "no program": (checked(program="fast"), "no program 'fast'; there are all, auto"),
    "a numbered program": (checked(program=3), "3 is not a program; there are all, auto"),
    "programs": (checked(program=["auto", 3]), "3 is not a program; there are all, auto"),
    "expectations": (checked(expect=3), "'expect' is a mapping of 'values', 'collectives'"),
    "no expectation": (checked(expect={"nope": 3}), "there is no key 'nope'; there are values, collectives"),
    "no bytes": (checked(expect={"max_bytes_per_device": float("nan")}), "nan is not a size; write an integer"),
    "deep expectations": (checked(expect=levels(3000, lambda inner: {"a": inner})), "more than 100 levels"),
    "no key": (checked(nope=1), "there is no key 'nope'; there are name, summary"),
    "an argument of ours": (checked(planned=3), "there is no key 'planned'"),
    "an argument within": (checked(caller="x"), "there is no key 'caller'"),
    "checks": (checked(checks=3), "what must hold is in expect: {max_bytes_per_device: 4096}"),
    "a seed": (checked(seed="x"), "'seed' is an integer, not 'x'"),
    "a timeout": (checked(timeout=-1), "the timeout is a number of seconds above 0, and not infinite"),
    "no timeout": (checked(timeout=None), "'timeout' cannot be null: it is a number"),
    "verify": (checked(verify=3), "no way to verify '3'; there are auto, twin, rounding"),
    "hardware": (checked(hardware="nope"), "no hardware 'nope'; there are a100"),
    "a target": (checked(target={"nope": 1}), "there is no key 'nope'; there are platform, devices"),
    "Hydra": (checked(hydra={"run": {"dir": "x"}}), "an experiment may set only hydra.sweeper.params"),
    "defaults": (checked(defaults=["x"]), "no experiment 'x'"),
    "half a character": (checked(summary="\ud800"), "is a lone surrogate"),
    "an interpolation": (checked(summary="${"), "summary\n  no viable alternative at input '${'"),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", CALLS)
def test_an_argument_of_check_is_refused_before_anything_is_traced(kind: str) -> None:
    call, says = CALLS[kind]
    assert says in refusal(call)


def test_jax_walks_trees_after_specs_that_were_too_deep() -> None:
    """A RecursionError within jaxlib leaves its count of levels too high for the rest of the process."""
    refusal(checked(in_specs=levels(3000)))
    assert jax.tree.leaves(levels(200)) == [1]


def planned(**arguments: Any) -> Callable[[], Any]:
    return lambda: runner.plan(abs, (X,), **{"mesh": {"x": 2}, "quiet": True, "folder": "out", **arguments})


PLANS: dict[str, tuple[Callable[[], Any], str]] = {
    "no devices": (planned(mesh="auto"), 'mesh="auto" takes the number of devices: devices=64'),
    "devices in words": (planned(mesh="auto", devices="x"), "takes the number of devices"),
    "zero devices": (planned(mesh="auto", devices=0), "takes the number of devices"),
    "devices below zero": (planned(mesh="auto", devices=-4), "takes the number of devices"),
    "half a device": (planned(mesh="auto", devices=2.5), "takes the number of devices"),
    "a truth": (planned(mesh="auto", devices=True), "takes the number of devices"),
    "another mesh": (planned(mesh="autos"), NO_MESH),
    "hold": (planned(hold=3), "3 is no mapping of paths to specs"),
    "a spec to hold": (planned(hold={"x": 3}), "hold['x']: 3 is not a PartitionSpec"),
    "a program": (
        planned(program="shard_map"),
        "a plan is compiled as the programs auto and constraint, or explicit; leave program out",
    ),
    "no key": (planned(nope=1), "nope\n  there is no key 'nope'; there are name"),
    "an argument within": (planned(planned=False), "there is no key 'planned'"),
    "an array": (lambda: runner.plan(abs, X, mesh={"x": 2}), "a tuple, runner.plan(abs_, (x, w))"),  # type: ignore[arg-type]
    "no operands": (lambda: runner.plan(abs, None, mesh={"x": 2}), "not a NoneType"),  # type: ignore[arg-type]
    "plan": (planned(plan={}), "the keys of plan are arguments here: least, memory, seconds, candidates, verify"),
    "specs": (planned(in_specs=3), "in_specs is 3; give a PartitionSpec"),
    "deep specs": (planned(in_specs=levels(3000)), DEEP),
    "constraints": (planned(constraints=3), "3 is no mapping of paths to specs"),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", PLANS)
def test_an_argument_of_plan_is_refused(kind: str) -> None:
    call, says = PLANS[kind]
    assert says in refusal(call)


MODULE = "HloModule x, num_partitions=2\n\nENTRY main {\n  ROOT a = f32[3] parameter(0)\n}\n"


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no text")


def of_two(x: Any, w: Any) -> Any:
    return x @ w


def explained(step: Any = "m.txt", **arguments: Any) -> Callable[[], Any]:
    return lambda: runner.explain(step, **arguments)


NO_STEP = "is neither a function nor what jit lowers or compiles"
NO_SIZES = "is no mesh; write its axes and their sizes: {'data': 4, 'model': 2}"
EXPLAINED: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (explained(None), NO_STEP),
    "a number": (explained(3), NO_STEP),
    "bytes": (explained(b"m.txt"), NO_STEP),
    "a list": (explained(["m.txt"]), NO_STEP),
    "a mapping": (explained({}), NO_STEP),
    "no repr": (explained(Mute()), "a value of the type Mute " + NO_STEP),
    "NumPy's": (lambda: runner.explain(np.sin, X), "jit cannot trace; give jax.numpy.sin"),
    "a list of hardware": (explained(hardware=["v5p"]), "hardware is ['v5p']; give a name"),
    "a numbered module": (explained(module=3), "module is 3; give a name"),
    "no axes": (explained(mesh={}), NO_SIZES),
    "no width": (lambda: runner.explain("m.txt").text(width=0), "width is 0; give the number of columns"),
    "a width below zero": (lambda: runner.explain("m.txt").annotated(-5), "width is -5; give the number of columns"),
    "no path to save": (lambda: runner.explain("m.txt").save(None), "path is None; give the path"),  # type: ignore[arg-type]
    "a path of a page": (lambda: runner.explain("m.txt").html("a\0"), "which has a NUL character; give the path"),
    "an array": (explained(X), NO_STEP),
    "no file": (explained("absent"), "absent: there is no such file"),
    "another machine": (explained("gs://bucket/a.hlo"), "there is no such file; copy it here: it is the address of"),
    "a long name": (explained("a" * 5000), "with a name of 5000 bytes"),
    "a folder": (explained(""), "no module was dumped here"),
    "a device": (explained("/dev/zero"), "/dev/zero: it is not a regular file"),
    "arguments": (lambda: runner.explain("m.txt", X), "a file has no arguments: runner.explain(path)"),
    "a tuple": (lambda: runner.explain(of_two, (X, X)), "given one by one: runner.explain(of_two, x, w)"),
    "too few": (lambda: runner.explain(of_two, X), "of_two: missing a required argument: 'w'"),
    "a module of a function": (explained(jax.jit(abs), module="f"), "a step is compiled to one module"),
    "a mesh": (explained(mesh=3), NO_SIZES),
    "a text": (explained(mesh="x"), NO_SIZES),
    "a size in words": (explained(mesh={"x": "a"}), NO_SIZES),
    "half a size": (explained(mesh={"x": 2.5}), NO_SIZES),
    "below zero": (explained(mesh={"x": -2}), NO_SIZES),
    "another size": (explained(mesh={"x": 3}), "the mesh x=3 has 3 devices, the module runs on 2"),
    "no hardware": (explained(hardware="nope"), "there is no hardware 'nope'; there are a100"),
    "a path of hardware": (explained(hardware="../x"), "there is no hardware '../x'"),
    "expectations": (explained(expect=3), "expect is a mapping, {'max_bytes_per_device': 4096}, not 3"),
    "no expectation": (explained(expect={"nope": 1}), "there is no expectation 'nope'; there are collectives"),
    "a limit below zero": (explained(expect={"max_bytes_per_device": -1}), "a limit is a number of bytes, not -1"),
    "a limit in words": (explained(expect={"max_bytes_per_device": "x"}), "a limit is a number of bytes, not 'x'"),
    "a limit without end": (explained(expect={"max_memory_bytes": float("inf")}), "a number of bytes, not inf"),
    "kinds": (explained(expect={"collectives": 3}), "collectives is a mapping of kinds to counts"),
    "no kind": (explained(expect={"collectives": {"nope": 1}}), "no collective is called 'nope'; there are all-reduce"),
    "no count": (explained(expect={"collectives": {"all-reduce": "x"}}), "a mapping of kinds to counts"),
    "none of three": (explained(expect={"no_collectives": 3}), "no_collectives is True, or left out, not 3"),
    "no profile": (explained(profile="absent"), "absent: no profile is here: jax.profiler.trace writes"),
    "a profile elsewhere": (explained(profile="s3://b/run"), "no profile is here; copy it here: it is the address of"),
}


@pytest.mark.sample(SAMPLE)
@pytest.mark.parametrize("kind", EXPLAINED)
def test_an_argument_of_explain_is_refused(kind: str) -> None:
    Path("m.txt").write_text(MODULE)
    call, says = EXPLAINED[kind]
    assert says in refusal(call)
