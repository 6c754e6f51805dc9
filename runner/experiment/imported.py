"""The definition of an experiment whose Python functions have been read in; what the other rooms need of them out.

A function that a line calls, `loss: llama.loss(params, tokens)`, has been traced by a worker: its equations are the
lines of a function of the experiment, so whoever needs lines has them. What a program calls is the user's own function,
and where a line of that stands in the user's file is here too.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner import codec
from runner.config import schema
from runner.config.sources import one_by_one
from runner.experiment.lines import Invocation, Line, Statement, enclosed
from runner.experiment.written import BOTH
from runner.graph.source import Frame

CALLED = "called.py"
"""The module of a run folder that has what `runner.check` was called with."""

TREES = "trees"
SMALLER_TREES = "trees_verification"
"""The folders of a run folder in which the values of the leaves of trees are, and those at `verify_dims`."""

KEY = "imported"
"""The key of a definition that no file has: a worker writes it."""


_OF_LINES = ("imports", "references", "specs", BOTH, "functions", "constraints")
"""The keys that are lines, or speak of such."""

_OF_NO_LINE = ("collectives", "no_collectives", "max_bytes_per_device", "max_memory_bytes")
"""What an experiment may expect without naming a line or an output."""


class UnreadFunctions(Exception):
    """The functions were not read, since the worker ended; the text says how."""


@dataclass(frozen=True)
class Imported:
    """A function of the experiment whose lines come of a function of Python.

    - `call`: what is called, as the file has it: `llama.loss`.
    - `returned`: what the program's function of that name returns, as Python, with `$name` for each of its parameters.
    - `frames`: where the lines stand in the user's files, by their names.
    - `differentiated`: whether it takes the derivative of a collective.
    - `inside`: the paths of the values inside of it that are constrained, by the names of their lines; `constraints`:
      the keys of `constraints` that name them, by the same.
    """

    call: str
    returned: str
    frames: Mapping[str, Frame] = field(default_factory=dict[str, Frame])
    differentiated: bool = False
    inside: Mapping[str, str] = field(default_factory=dict[str, str])
    constraints: Mapping[str, str] = field(default_factory=dict[str, str])

    def text(self, parameters: Mapping[str, str]) -> str:
        """What it returns, given what the program calls its parameters."""
        return string.Template(self.returned).substitute(parameters)


@dataclass(frozen=True)
class Imports:
    """All that a worker read of the functions that an experiment imports.

    - `functions`: by the names of the experiment's functions that have their lines.
    - `preamble`: the lines of a program that import what it calls, and say how its trees are built; `names`: the names
      that they give.
    - `modules`: what is imported of the user's own files.
    - `paths`: of the leaves of trees, by the names of the arrays and outputs that they are.
    - `written`: the calls of references in lines of `graph`, each with one of the function itself in its place, where
      that contains a `shard_map`.
    """

    functions: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    preamble: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Mapping[str, str] = field(default_factory=dict[str, str])


def inside(statements: Iterable[Statement], imports: Imports) -> Iterator[tuple[Line, Invocation, Imported]]:
    """The lines of a section that stand in calls of functions of Python, each with the call and the function."""
    for line, around in enclosed(statements):
        innermost = around[-1]
        if isinstance(innermost, Invocation) and innermost.call.function in imports.functions:
            yield line, innermost, imports.functions[innermost.call.function]


def frames(statements: Iterable[Statement], imports: Imports) -> dict[Line, Frame]:
    """Where the lines of a section stand in the user's files that come of functions of Python."""
    return {
        line: function.frames[line.label]
        for line, _, function in inside(statements, imports)
        if line.label in function.frames
    }


def constrained(statements: Iterable[Statement], imports: Imports) -> dict[str, str]:
    """The values inside of calls that are constrained, each with the key of `constraints` that names it."""
    return {
        str(line): function.constraints[line.label]
        for line, _, function in inside(statements, imports)
        if line.label in function.constraints
    }


def read_imported(config: Mapping[str, Any]) -> Imports:
    """What a definition has of them; nothing where no file is imported."""
    return codec.build(Imports, config[KEY]) if KEY in config else Imports()


def imports(config: Mapping[str, Any]) -> bool:
    """Whether a configuration imports functions of Python that nobody has read yet."""
    return bool(config.get("imports")) and KEY not in config


def outline(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a configuration can be read without a worker: all of it where nothing is imported."""
    return skeleton(config) if imports(config) else config


def skeleton(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with stubs in the place of lines and trees: what else it says can be read before these are."""
    whole = schema.whole({name: value for name, value in config.items() if name != KEY})
    arrays: Mapping[str, Mapping[str, Any] | None] = whole["arrays"]
    expected: Mapping[str, Any] = whole["expect"] or {}
    names = (name for written in whole["outputs"] for name in one_by_one(written) or [written])
    # What has a dot in its name a repeat gives, or a gradient is.
    outputs: dict[str, Any] = {name: [] for name in names if "." not in str(name)}
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
        "show": "none",
        "trace": False,
        "profile": False,
    }
