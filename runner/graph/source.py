"""Source locations of a graph's equations and values: the line, the calls and repeats around it, the columns."""

from __future__ import annotations

import re
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from runner.base.faults import Key
from runner.base.lazy import dataclass
from runner.graph.term import Span, characters

Section = Literal["graph", "per_device"]
"""The section on whole arrays, or the section that each device runs."""

SECTIONS: tuple[Section, ...] = ("graph", "per_device")


@dataclass(frozen=True)
class Checkpoint:
    """What a function or a repeat's body saves for the backward pass, which recomputes the rest.

    - `policy`: the name of one of `jax.checkpoint_policies`; None: JAX's default, which saves nothing.
    - `names`: the names (of `checkpoint_name`) that the policy is built with, if it takes any.
    """

    policy: str | None = None
    names: tuple[str, ...] = ()

    @property
    def written(self) -> Any:
        """The value of the YAML key `checkpoint`."""
        if self.policy is None:
            return True
        return {self.policy: list(self.names)} if self.names else self.policy


_CALLED = re.compile(f"<((?:{'|'.join(SECTIONS)})[.].+)>")
"""The file name under which a line of an experiment is compiled."""

_MOST = 60
"""How many characters of a line of Python are shown."""


@dataclass(frozen=True)
class Frame:
    """A line of the user's Python: its file, its number and its text.

    - `caller`: the line that calls the function around it, as it is printed; empty in the outermost function.
    - `path`: the places of the calls, outermost first, that tell what the line computes from what it computes in other
      calls; `call`: the text of the first.
    - `mapped`: whether a value there lacks a dimension that `jax.vmap` adds.
    - `derivative`: whether it is of the backward pass, of which the line has the forward pass.
    """

    file: str
    line: int
    text: str
    caller: str = field(default="", compare=False)
    path: tuple[str, ...] = field(default=(), compare=False)
    call: str = field(default="", compare=False)
    mapped: bool = field(default=False, compare=False)
    derivative: bool = field(default=False, compare=False)

    @property
    def place(self) -> str:
        """The file's name and the line's number, behind those of callers: `llama.py:12`, `llama.py:88 → ops.py:44`.

        The call of a function in an experiment has the key of its line, `graph.C`.
        """
        called = _CALLED.fullmatch(self.file)
        own = called[1] if called else f"{self.file.rpartition('/')[2]}:{self.line}"
        return " → ".join((*self.path, own))

    def __str__(self) -> str:
        """The first line as it is written, and the places of those that it calls."""
        outer = self.call if self.path else self.text
        text = outer if len(outer) <= _MOST else f"{outer[: _MOST - 1]}…"
        first, arrow, rest = self.place.partition(" → ")
        return f"{f'{first} {text}'.rstrip()}{arrow}{rest}"


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of the experiment's own functions, or of `cond` or `switch` with the predicate or index.

    - `label`: the caller's name for its result; `results`: the caller's names for all of its results.
    - `arguments`: for each parameter that is given a value, the caller's name of that value.
    - `checkpoint`: what it saves for the backward pass; None: everything.
    """

    function: str
    label: str
    results: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class Origin:
    """The place where a line is written.

    - `key`: its key in the configuration; `uses`: the keys of the lines that call its function, innermost first.
    - `scopes`: the named scopes of its operations, outermost first; `label`: its name in its function.
    - `parts`: the number of names into which the lines after it unpack its value; 0: it is not unpacked.
    """

    key: Key
    uses: tuple[Key, ...] = ()
    scopes: tuple[str, ...] = ()
    label: str = ""
    parts: int = 0


Start: TypeAlias = Literal["carry", "over"]
"""An initial value of a repeat: of a carry, or an array of which each step takes a slice."""


@dataclass(frozen=True)
class Line:
    """The identity of a line of a section, or, if `first` is set, of an initial value of a repeat.

    `loops` are the repeats around it, outermost first. It is printed as in evidence and messages: `C`, `ring.acc`.
    `origin` is the place where it is written, which equality ignores; None for a line that the runner generates.
    """

    name: str
    loops: tuple[str, ...] = ()
    first: Start | None = None
    origin: Origin | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return ".".join((*self.loops, self.name))

    @cached_property
    def key(self) -> Key:
        """Its key below the section: `("ring", "body", "acc")`."""
        within = ["body"] * (len(self.loops) - 1) + [self.first or "body"]
        return (*(part for pair in zip(self.loops, within, strict=False) for part in pair), self.name)

    @cached_property
    def path(self) -> str:
        """Its key as a string that is unique in the section: `ring/body/acc`."""
        return "/".join(map(str, self.key))

    def inside(self, name: str, *, first: Start | None = None) -> Line:
        """A line of the body of the repeat at this line, or, with `first`, one of its initial values."""
        origin = None if self.origin is None or not first else replace(self.origin, key=(*self.origin.key, first, name))
        return Line(name, (*self.loops, self.name), first, origin)

    @property
    def label(self) -> str:
        """Its name in its function, or in the section."""
        return self.origin.label if self.origin is not None and self.origin.label else self.name

    @property
    def scopes(self) -> tuple[str, ...]:
        """The named scopes of its operations, outermost first: `("y", "gate")`; for a call's result, the call's."""
        return (self.name,) if self.origin is None or not self.origin.scopes else self.origin.scopes

    def written(self, section: Section) -> tuple[Key, tuple[Key, ...]]:
        """Its key in the configuration, and the keys of the lines that call its function."""
        return ((section, *self.key), ()) if self.origin is None else (self.origin.key, self.origin.uses)


@dataclass(frozen=True)
class Source:
    """The place where an equation is written or a value is read: a line, its text, and a half-open span of bytes in it.

    - `start`, `end`: None for an equation that is not in the text.
    - `part`: its number among the parts of the line, in reading order; 0 is the whole line. It depends on the line's
      text alone, so it is stable where other lines change or only some of them are read.
    - `whole`: whether it is the whole line, or the whole of a function in it that combines two values.
    """

    line: Line
    text: str = ""
    start: int | None = None
    end: int | None = None
    part: int = 0
    whole: bool = False

    @property
    def at(self) -> Span | None:
        """The span of bytes; None for what is not in the text."""
        return None if self.start is None or self.end is None else (self.start, self.end)

    @property
    def span(self) -> tuple[int, int]:
        """The half-open span of characters; the whole text where `start` is None."""
        return characters(self.text, self.at)
