"""Any text in a file or on the command line gives an experiment or one message with its place, and nothing else.

Hypothesis generates the inputs; none is run. A session tries a few; `make faults` tries many.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.app.api import validate
from runner.base.faults import InvalidExperiment
from runner.experiment.config.compose import InvalidConfiguration, compose
from runner.experiment.config.sources import Sources
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.graph.language.operations import OPERATIONS
from tests.faults import GOOD

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
FEW = settings(max_examples=150, deadline=None, suppress_health_check=LARGE, database=None)
MANY = settings(FEW, max_examples=5_000)
FEW_FILES = settings(FEW, max_examples=25)
MANY_FILES = settings(FEW, max_examples=1_500)

HUNG = 30.0
"""Seconds of computation after which reading counts as hung."""

_PLACE = re.compile(r"\S+:\d+:\d+(  |\n)|\S+\.yaml(  |\n)|command line: |configuration(  |\n)")
_FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect", "os.remove")


class Executed(BaseException):
    """Code in the input was executed."""


class Trap:
    """Detects calls that input makes while it is armed; a computation that takes too long is interrupted."""

    def __init__(self) -> None:
        self.armed = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.armed and event in _FORBIDDEN:
            raise Executed(event, arguments)

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """Arm it."""
        before = signal.signal(signal.SIGVTALRM, _late)
        signal.setitimer(signal.ITIMER_VIRTUAL, HUNG)
        self.armed = True
        try:
            yield
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)


def _late(*_: object) -> None:
    raise TimeoutError(f"it is not read after {HUNG} s")


def _pwned(*_: object, **__: object) -> None:
    raise Executed


@pytest.fixture(scope="module")
def trap() -> Generator[Trap]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "pwned", _pwned, raising=False)
        yield Trap()


# Expressions.

NAMES = (
    "A",
    "B",
    "I",
    "J",
    "C",
    "partial",
    "x",
    "inf",
    "pwned",
    "eval",
    "exec",
    "open",
    "__import__",
    "self",
    "ß",
    "𝑥",
)
ATTRIBUTES = ("T", "shape", "__class__", "__globals__", "mro", "real", "_", "dtype")
LITERALS = (
    *("0", "1", "-1", "2.5", "1e999", "1j", "0x10", "9" * 400, "9" * 5000, "1_000", "00", "1if 1else 2"),
    *("'x'", "'y'", '"z"', "''", "b'x'", "r'\\'", "f'{pwned()}'", "f'{A!r:{B}}'", "'\\x00'", "'\\ud800'", "'''a'''"),
    *("None", "True", "...", "NotImplemented", "()", "[]", "{}", "{1, 2}", "{'a': pwned()}", "[[1], [2, 3]]"),
    *(
        "'f'" * 50,
        "\x00",
        "\ud800",
        "\u202e",
        "😀",
        "#",
        "\\",
        ";",
        "\n",
        "\t",
        "yield",
        "await A",
        "*A",
        "**A",
        "`ls`",
    ),
)
OPERATORS = (
    *("+", "-", "*", "/", "//", "%", "**", "@", "<<", ">>", "&", "|", "^", "<", "==", "!=", "is", "in", "not in"),
    *("and", "or", ":=", "=", ",", ":", "if", "->", "!", "<>"),
)
atoms = st.sampled_from(NAMES) | st.sampled_from(LITERALS) | st.integers().map(str) | st.floats().map(repr)
called = st.sampled_from([*sorted(OPERATIONS), "load", "normal", "zeros", "full", "eye", "uniform", *NAMES])
keywords = st.sampled_from(["axis", "axis_name", "dtype", "shape", "shift", "perm", "tiled", "to", "nosuch", "class"])


def _deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def call(function: str, given: list[str], named: Mapping[str, str]) -> str:
        return f"{function}({', '.join([*given, *(f'{name}={value}' for name, value in named.items())])})"

    return st.one_of(
        st.builds(lambda a, op, b: f"{a} {op} {b}", inner, st.sampled_from(OPERATORS), inner),
        st.builds(lambda op, a: f"{op}{a}", st.sampled_from(["-", "~", "not ", "+", "lambda: ", "lambda x: "]), inner),
        st.builds(call, called, st.lists(inner, max_size=4), st.dictionaries(keywords, inner, max_size=2)),
        st.builds(lambda a, name: f"{a}.{name}", inner, st.sampled_from(ATTRIBUTES)),
        st.builds(lambda a, b: f"{a}[{b}]", inner, inner),
        st.builds(lambda a, b, c: f"{a}[{b}:{c}, None, ::-1]", inner, inner, inner),
        st.builds(lambda a: f"({a})", inner),
        st.builds(lambda a: f"[{', '.join(a)}]", st.lists(inner, max_size=4)),
        st.builds(lambda a, b: f"[{a} for q in {b}]", inner, inner),
        st.builds(lambda a, b, c: f"({a} if {b} else {c})", inner, inner, inner),
        st.builds(lambda a: f"(q := {a})", inner),
    )


# Made of atoms alone: nested repetition would be unbounded.
repeated = st.one_of(
    st.builds(lambda a, n: "(" * n + a + ")" * n, atoms, st.integers(1, 300)),
    st.builds(lambda a, n: "-" * n + a, atoms, st.integers(1, 3000)),
    st.builds(lambda a, n: f"{a}{'.T' * n}", atoms, st.integers(1, 3000)),
    st.builds(lambda a, n: " ** ".join([a] * n), atoms, st.integers(1, 60)),
    st.builds(lambda a, n: " + ".join([a] * n), atoms, st.integers(1, 500)),
)
well_formed = st.recursive(atoms | repeated, _deeper, max_leaves=12)
expressions = (
    well_formed | st.text(max_size=40) | st.lists(atoms | st.sampled_from(OPERATORS), max_size=8).map(" ".join)
)
PLACES = (
    ("graph", "C"),
    ("per_device", "C"),
    ("arrays", "A", "init"),
    ("dims", "J"),
    ("arrays", "A", "shape"),
    ("per_device", "C", "repeat"),
    ("expect", "max_bytes_per_device"),
)


def experiment() -> dict[str, Any]:
    """Return the configuration of the good experiment, to plant a mistake in."""
    known: dict[str, Any] = yaml.safe_load(GOOD)
    del known["defaults"]
    return {**known, "mesh": {"axes": ["x", "y"], "shape": [2, 2]}, "expect": {}, "test": {}, "target": {}, "grad": {}}


def with_expression(place: tuple[str, ...], text: str) -> dict[str, Any]:
    """Return the configuration with a text in place of an expression."""
    config = experiment()
    if place[-1] == "shape":
        config["arrays"]["A"]["shape"] = [text, 4]
    elif place[-1] == "repeat":
        config["per_device"] = {"r": {"repeat": text, "carry": {"a": "A"}, "body": {"a": "a + 1"}}, "C": "r.a"}
    else:
        at = config
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = text
    return config


def _message(trap: Trap, read: Callable[[], Experiment], sources: Sources) -> str | None:
    """Return the message with which an experiment is refused; None if it is valid."""
    try:
        with trap.reading():
            read()
    except InvalidExperiment as error:
        return sources.report(error.fault)
    return None


def _is_one_message(message: str | None) -> None:
    """Check that a message has a place and a text, in characters that streams accept."""
    if message is not None:
        assert _PLACE.match(message), message
        assert message.partition("\n")[2].strip(), message
        assert message.encode("utf-8", "backslashreplace")


def _reads(trap: Trap, place: tuple[str, ...], text: str) -> None:
    _is_one_message(_message(trap, lambda: read(with_expression(place, text)), Sources()))


@pytest.mark.in_turn
@FEW
@given(place=st.sampled_from(PLACES), text=expressions)
def test_an_expression_is_read_or_refused(trap: Trap, place: tuple[str, ...], text: str) -> None:
    _reads(trap, place, text)


@pytest.mark.whole
@MANY
@given(place=st.sampled_from(PLACES), text=expressions)
def test_many_expressions_are_read_or_refused(trap: Trap, place: tuple[str, ...], text: str) -> None:
    _reads(trap, place, text)


# Files and command lines.

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(2**63), 2**64, math.nan, math.inf, -0.0, 5e-324]),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.dates() | st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    expressions,
    st.sampled_from(
        ["${nope}", "${", "${oc.env:HOME}", "${oc.decode:'1'}", "${hydra:run.dir}", "???", "x", "[x]", "~"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.integers() | st.booleans() | st.none(), inner, max_size=4)
        | st.sets(st.integers(0, 3), max_size=2)
        | st.builds(lambda a, n: _nested(a, n), inner, st.integers(1, 120))
    ),
    max_leaves=8,
)
KEYS = (
    *("name", "summary", "source", "mesh", "mesh.axes", "mesh.shape", "target", "target.platform", "target.devices"),
    *("target.topology", "dims", "dims.J", "verify_dims", "arrays", "arrays.A", "arrays.A.shape", "arrays.A.dtype"),
    *("arrays.A.init", "arrays.A.spec", "graph", "graph.C", "graph.C.repeat", "per_device", "per_device.C", "grad"),
    *("constraints", "outputs", "outputs.C", "grad.of", "grad.wrt", "expect", "expect.values", "expect.collectives"),
    *("expect.wrong", "expect.weak", "expect.invalid", "expect.layouts", "expect.sections", "expect.overlapped"),
    *(
        "test",
        "test.targets",
        "program",
        "seed",
        "precision",
        "check_vma",
        "trace",
        "profile",
        "report",
        "show",
        "timeout",
    ),
    *(
        "defaults",
        "hydra",
        "hardware",
        "hardware.name",
        "nosuch",
        "arrays.nosuch",
        "dims.psum",
        "hydra.run.dir",
        "hydra.sweeper",
    ),
)
RAW = (
    *("!!python/object/apply:builtins.pwned []", "!!python/name:builtins.pwned", "!!python/object/new:os.system [ls]"),
    *("!pwned x", "!!set {a, b}", "!!omap [a: 1]", "!!binary '='", "!!timestamp 0", "!!int x", "!!float .", "!!null x"),
    *("&a [*a]", "*nosuch", "<<: *nosuch", "{<<: {a: 1}}", "{<<: [1]}", "{? [1, 2] : 3}", "{a: 1, a: 2}", "{'': 1}"),
    *(
        "|\n    a\n    b",
        ">-\n    A @\n    B",
        "\t- a",
        "{",
        "]",
        "'",
        '"\\x',
        "%TAG",
        "--- 1",
        "...",
        "@",
        "`",
        "1:30",
        "=",
        "<<",
    ),
    *("\x00", "\ufeff", "\x85", "\u2028", "\ud800", "0o17", "0b1", "1_0", ".inf", "-.inf", ".nan", "no", "on", "~"),
)


def _nested(value: Any, levels: int) -> Any:
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def _bomb(levels: int, wide: int) -> str:
    lines = [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else 'x'] * wide)}]\n" for n in range(levels)]
    return "".join(lines)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw the bytes of an experiment's file, mostly with a mistake in it."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
    data: dict[str, Any] = yaml.safe_load(GOOD)
    mark = "@@@"
    for _ in range(draw(st.integers(0, 2))):
        *parents, last = draw(st.sampled_from(KEYS)).split(".")
        at = data
        for parent in parents:
            if not isinstance(at.get(parent), dict):
                at[parent] = {}
            at = at[parent]
        at[last] = mark if draw(st.booleans()) else draw(values)
    text = yaml.dump(data, sort_keys=False, allow_unicode=draw(st.booleans()))
    text = text.replace(f"'{mark}'", draw(st.sampled_from(RAW) | st.text(max_size=12)))
    cuts = draw(st.integers(0, 3))
    if cuts == 1:
        at_character = draw(st.integers(0, len(text)))
        text = text[:at_character] + draw(st.sampled_from(RAW) | st.text(max_size=4)) + text[at_character:]
    if cuts == 2:
        text += draw(st.builds(_bomb, st.integers(1, 12), st.integers(1, 12)))
    header = draw(
        st.sampled_from(["# @package _global_\n"] * 8 + ["", "\ufeff# @package _global_\n", "# @package a\n"])
    )
    return (header + text).encode("utf-8", draw(st.sampled_from(["surrogatepass", "replace"])))


overrides = st.lists(
    st.builds(
        lambda plus, key, value: f"{plus}{key}={value}",
        st.sampled_from(["", "+", "++", "~"]),
        st.sampled_from(KEYS) | st.text(max_size=8),
        expressions | values.map(str) | st.sampled_from(RAW),
    )
    | st.text(max_size=20),
    max_size=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conf")


def _composed(trap: Trap, folder: Path, content: bytes, given: list[str]) -> None:
    file = folder / "experiment" / "mine.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    _is_one_message(_refused(trap, folder, given))


def _refused(trap: Trap, folder: Path, given: list[str]) -> str | None:
    try:
        with trap.reading():
            configuration = compose("mine", folder, given)
    except InvalidConfiguration as error:
        return str(error)
    return _message(trap, lambda: validate(configuration), configuration.sources)


@pytest.mark.in_turn
@FEW_FILES
@given(content=files())
def test_a_file_is_read_or_refused(trap: Trap, folder: Path, content: bytes) -> None:
    _composed(trap, folder, content, [])


@pytest.mark.whole
@MANY_FILES
@given(content=files())
def test_many_files_are_read_or_refused(trap: Trap, folder: Path, content: bytes) -> None:
    _composed(trap, folder, content, [])


@pytest.mark.in_turn
@FEW_FILES
@given(given=overrides)
def test_an_override_is_read_or_refused(trap: Trap, folder: Path, given: list[str]) -> None:
    _composed(trap, folder, GOOD.encode(), given)


@pytest.mark.whole
@MANY_FILES
@given(given=overrides)
def test_many_overrides_are_read_or_refused(trap: Trap, folder: Path, given: list[str]) -> None:
    _composed(trap, folder, GOOD.encode(), given)


# The traps work.


def test_the_trap_detects_execution(trap: Trap) -> None:
    with pytest.raises(Executed):
        eval("pwned()")
    with trap.reading(), pytest.raises(Executed):
        subprocess.run(["true"], check=False)
    with pytest.raises(Executed):
        yaml.unsafe_load("!!python/object/apply:builtins.pwned []")
