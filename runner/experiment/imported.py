"""Reads an experiment whose Python functions have been traced into their lines, calls and source places.

A worker has traced each function that a line calls, `loss: llama.loss(params, tokens)`: its equations are the lines of
a function of the experiment (`traced.py`), for all code that needs lines. Programs call the user's own function
instead; this module also has that call, and the place of each line in the user's file.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from runner.base import codec, dtypes
from runner.base.faults import Key, invalid
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping, is_sequence
from runner.experiment.config import schema
from runner.experiment.config.sources import one_by_one
from runner.experiment.expect import SUBJECTS
from runner.experiment.functions import DefinedFunction
from runner.experiment.source_text import NO_SOURCE, NamedByReader, SourceText, names_of_values
from runner.experiment.traced import TracedLines, UserSpelling
from runner.experiment.written import BOTH
from runner.graph.inlining import Enclosing, enclosed
from runner.graph.language.syntax import parse
from runner.graph.model import Graph
from runner.graph.source import Frame, FunctionCall, Line
from runner.graph.term import Name, Term, substituted

CALLED = "called.py"
"""The module in a run folder with the arguments of `runner.check`."""

DEEPEST = 100
"""The most levels of a tree: Python parses at most 200 nested parentheses, and a program writes several for each."""

SETTINGS_OF_THE_RUN: Mapping[str, Any] = {
    "jax_disable_jit": False,
    "jax_transfer_guard": None,
    "jax_transfer_guard_host_to_device": None,
    "jax_transfer_guard_device_to_device": None,
    "jax_transfer_guard_device_to_host": None,
}
"""The settings of `jax.config` that a run depends on, with the values that it needs."""

SETTINGS_OF_A_PROCESS = (
    *SETTINGS_OF_THE_RUN,
    "jax_platforms",
    "jax_platform_name",
    "jax_num_cpu_devices",
    "jax_default_device",
    "jax_cpu_collectives_implementation",
)
"""The settings that the caller of `runner.check` does not pass on."""

TREES = "trees"
SMALLER_TREES = "trees_verification"
"""The folders in a run folder with the values of the leaves of trees, at the file's sizes and at `verify_dims`."""

KEY = "imported"
"""The key of a definition that no file has: a worker adds it."""


_OF_LINES = ("imports", "references", "specs", BOTH, "functions", "constraints")
"""The keys that contain lines, or refer to lines."""

_WITH_LINES = (BOTH, "graph", "per_device", "functions")
"""The keys whose values are lines."""

_OF_NO_LINE = tuple(name for name, subject in SUBJECTS.items() if not subject.lines)
"""The keys of `expect` that name neither lines nor outputs."""


@dataclass(frozen=True)
class Imported:
    """A function of the experiment whose lines were traced from a Python function.

    - `call`: the call as the file has it: `llama.loss`.
    - `returned`: a Python expression for what the program's function of that name returns, with `$name` for each of its
      parameters.
    - `lines`: the function as it was read.
    - `frames`: the places of the lines in the user's files, by their names.
    - `differentiated`: whether it takes the derivative of a collective.
    - `inside`: the paths of the constrained values inside it, by the names of their lines; `constraints`: the keys of
      `constraints` that name them, by the same names.
    - `spelled`: how the user's source spells values and expressions of the lines.
    - `rules`: the places of the functions inside with a derivative of their own, which the lines do not have.
    - `added`: the lines of sums that JAX adds to a derivative for operands that do not vary over mesh axes, each with
      the operand's name in the user's function, or an empty text.
    - `paths`: for lines at a place that several calls lead to, the user's lines that do, the innermost first.
    """

    call: str
    returned: str
    lines: TracedLines
    frames: Mapping[str, Frame] = field(default_factory=dict[str, Frame])
    differentiated: bool = False
    inside: Mapping[str, str] = field(default_factory=dict[str, str])
    constraints: Mapping[str, str] = field(default_factory=dict[str, str])
    spelled: UserSpelling = field(default_factory=UserSpelling)
    rules: tuple[str, ...] = ()
    added: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict[str, "tuple[tuple[str, int], ...]"])

    def text(self, parameters: Mapping[str, str]) -> str:
        """The expression that it returns, with these names for its parameters."""
        return string.Template(self.returned).substitute(parameters)

    def values(self, lines: Mapping[str, str]) -> Iterator[NamedByReader]:
        """The values of its lines, with the names that these have in a section, by their own."""
        sources, wishes = self.spelled.sources, self.spelled.wishes
        for name, given in lines.items():
            yield NamedByReader(given, sources.get(Name(name), ""), wishes.get(name, name))


@dataclass(frozen=True)
class Imports:
    """The result of tracing the functions that an experiment imports.

    - `functions`: by the names of the experiment's functions that have their lines.
    - `preamble`: the lines of a program that import what it calls, and say how its trees are built; `names`: the names
      that they give.
    - `paths`: of the leaves of trees, by the names of the arrays and outputs that they are.
    - `written`: the calls of references in lines of `graph`, each with one of the function itself in its place, where
      that contains a `shard_map`.
    - `referred`: the functions of which only their references were read.
    - `x64`: `jax_enable_x64` as it was when the functions were traced; the user's files may set it.
    - `within`: whether the functions are called within `jax.set_mesh`, since JAX accepts what they do only there.
    - `held`: the outputs whose layouts the caller of `runner.check` asked for, which every program gives them; `open`:
      those whose layouts nobody asked for, which the compiler or the types choose.
    - `donated`: the arrays whose memory the outputs may take.
    - `state`: for outputs that are the next values of arrays, as those of a training step, these.
    - `refused`: why JAX accepts the functions on Explicit axes alone; "" if it does not.
    """

    functions: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    preamble: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Mapping[str, str] = field(default_factory=dict[str, str])
    referred: tuple[str, ...] = ()
    x64: bool = False
    within: bool = False
    held: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    donated: tuple[str, ...] = ()
    state: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: str = ""

    def source_text(self, call: FunctionCall) -> SourceText:
        """How the user's Python spells the values of a called function, in the function's names."""
        function = self.functions.get(call.function)
        if function is None:
            return NO_SOURCE
        given = {name: self.paths.get(argument, argument) for name, argument in call.arguments}
        values = function.values({name: name for name in function.lines.values})
        names = names_of_values(values, given, as_written=True)
        return SourceText(function.spelled.sources, function.frames, names)

    def with_line(self, key: Key, text: str | int) -> Imports | None:
        """The functions with another text at the key of one of their lines; None where they cannot have it."""
        _, name, *path = key
        function = self.functions[str(name)]
        lines = function.lines.with_line(path, parse(text).term if isinstance(text, str) else text)
        if lines is None:
            return None
        return replace(self, functions={**self.functions, str(name): replace(function, lines=lines)})

    @property
    def defined(self) -> dict[str, DefinedFunction]:
        """The functions of the experiment that have the lines."""
        return {name: DefinedFunction.traced_as(name, function.lines) for name, function in self.functions.items()}


def inside(graph: Graph, imports: Imports) -> Iterator[tuple[Line, Enclosing, Imported]]:
    """The lines of a section that are in calls of Python functions, each with the call and the function."""
    for line, around in enclosed(graph):
        innermost = around[-1]
        if innermost.call.function in imports.functions:
            yield line, innermost, imports.functions[innermost.call.function]


def frames(graph: Graph, imports: Imports) -> dict[Line, Frame]:
    """The places in the user's files of a section's lines that come from Python functions."""
    return {
        line: function.frames[line.label]
        for line, _, function in inside(graph, imports)
        if line.label in function.frames
    }


def source_text(graph: Graph, imports: Imports) -> SourceText:
    """How the user's source spells values and expressions of a section's lines, in the section's names."""
    calls: list[tuple[Enclosing, Imported, dict[str, Line]]] = []
    for line, around, function in inside(graph, imports):
        # The lines of a call inside may stand between those of this one.
        lines = next((lines for call, _, lines in reversed(calls) if call is around), None)
        if lines is None:
            calls.append((around, function, lines := {}))
        # The origin of an initial value is that of its loop.
        lines[line.name if line.first else line.label] = line
    spelled: dict[Term, str] = {}
    values: list[NamedByReader] = []
    given = dict(imports.paths)
    for around, function, lines in calls:
        own = {label: line.name for label, line in lines.items()}
        names = {name: Name(argument) for name, argument in {**dict(around.call.arguments), **own}.items()}
        for term, source in function.spelled.sources.items():
            spelled.setdefault(substituted(term, names.get), source)
        values += function.values(own)
        given |= {argument: imports.paths.get(argument, argument) for _, argument in around.call.arguments}
    names_of = names_of_values(values, given)
    names_of |= {str(line): names_of[line.name] for _, _, lines in calls for line in lines.values()}
    places = {str(line): frame for line, frame in frames(graph, imports).items()}
    return SourceText(spelled, places, names_of)


def added_sums(graph: Graph, imports: Imports) -> dict[str, str]:
    """The lines of a section that are sums of JAX's own, each with the name of the operand that it sums for."""
    return {
        str(line): function.added[line.label]
        for line, _, function in inside(graph, imports)
        if line.label in function.added
    }


def constrained(graph: Graph, imports: Imports) -> dict[str, str]:
    """The constrained values inside calls, each with the key of `constraints` that names it."""
    return {
        str(line): function.constraints[line.label]
        for line, _, function in inside(graph, imports)
        if line.label in function.constraints
    }


def read_imported(config: Mapping[str, Any]) -> Imports:
    """Return what the worker added to a definition; empty if no file is imported."""
    return codec.build(Imports, config[KEY]) if KEY in config else Imports()


def imports(config: Mapping[str, Any]) -> bool:
    """Whether a configuration imports Python functions that have not been traced yet."""
    return bool(config.get("imports")) and KEY not in config


def outline(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that can be read without a worker: all of it if nothing is imported."""
    return skeleton(config) if imports(config) else config


def skeleton(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with stubs in place of lines and trees; the rest can be read before they are known."""
    whole = schema.whole({name: value for name, value in config.items() if name != KEY})
    arrays: Mapping[str, Mapping[str, Any] | None] = whole["arrays"]
    expected: Mapping[str, Any] = whole["expect"] or {}
    names = (name for written in whole["outputs"] for name in one_by_one(written) or [written])
    # A name with a dot is the result of a repeat or a gradient.
    outputs: dict[str, Any] = {name: [] for name in names if "." not in str(name)}
    if leaf := next((name for name in outputs if "/" in str(name)), None):
        root = leaf.partition("/")[0]
        message = f"an output is a whole result: write outputs: {{{root}: []}}, and the layouts of its leaves as specs:"
        raise invalid(("outputs", leaf), f"{message} {{{leaf!r}: …}}")
    outputs = outputs or {"probe_": []}
    lines: dict[str, Any] = dict.fromkeys(outputs, "zeros(1)")
    values: Mapping[str, Any] = expected.get("values") or {}
    return {
        **whole,
        "arrays": {name: {"shape": [1]} if (array or {}).get("tree") else array for name, array in arrays.items()},
        "graph": lines if whole["graph"] or whole[BOTH] else {},
        "per_device": lines if whole["per_device"] else {},
        "outputs": outputs,
        "expect": {
            **{name: expected.get(name) for name in _OF_NO_LINE},
            "values": {name: value for name, value in values.items() if name in outputs},
        },
        **{key: dict[str, Any]() for key in _OF_LINES},
        "remat": None,
        "show": "none",
        "trace": False,
        "profile": False,
        KEY: codec.plain(Imports(x64=any(map(_names_wide, map(whole.get, _WITH_LINES))))),
    }


def _names_wide(value: Any) -> bool:
    """Whether a line names a dtype that needs `jax_enable_x64`."""
    if is_mapping(value):
        return any(map(_names_wide, value.values()))
    if is_sequence(value):
        return any(map(_names_wide, value))
    return isinstance(value, str) and not dtypes.WIDE.isdisjoint(re.findall(r"['\"](\w+)['\"]", value))
