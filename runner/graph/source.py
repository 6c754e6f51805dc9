"""Where something of a graph is written: its line, the calls and repeats that it stands in, its columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from runner.faults import Key
from runner.graph.term import characters

Section = Literal["graph", "per_device"]
"""What is computed on whole arrays, or what each device does."""

SECTIONS: tuple[Section, ...] = ("graph", "per_device")


@dataclass(frozen=True)
class Checkpoint:
    """What is kept of a function or of a repeat's body for the backward pass, which computes the rest once more.

    - `policy`: the name of one of `jax.checkpoint_policies`; None: JAX's own, which keeps nothing.
    - `names`: what such a policy is made with, if it is: the names of `checkpoint_name`.
    """

    policy: str | None = None
    names: tuple[str, ...] = ()

    @property
    def written(self) -> Any:
        """As the YAML has it."""
        if self.policy is None:
            return True
        return {self.policy: list(self.names)} if self.names else self.policy


_MOST = 60
"""So many characters of a line of Python are told."""


@dataclass(frozen=True)
class Frame:
    """Where a line of Python stands: the user's file, the line's number, and what it says."""

    file: str
    line: int
    text: str

    @property
    def place(self) -> str:
        """The name of the file, and the number of the line."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place} {self.text if len(self.text) <= _MOST else f'{self.text[: _MOST - 1]}…'}"


@dataclass(frozen=True)
class Call:
    """A call of a function of the experiment's own, or of `cond` or `switch`, whose argument is what that hangs on.

    - `label`: what the lines around it call its result; `results`: the names there of all that it gives.
    - `arguments`: for each parameter that is given a value, the name there of that value.
    - `checkpoint`: what is kept of it for the backward pass; None: everything.
    """

    function: str
    label: str
    results: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class Origin:
    """Where a line is written.

    - `key`: in the configuration; `uses`: the lines that call the function that it stands in, innermost first.
    - `scopes`: the named scopes of its operations, outermost first; `label`: its name in the function.
    - `parts`: into how many names the lines after it take its value apart; 0: into none.
    """

    key: Key
    uses: tuple[Key, ...] = ()
    scopes: tuple[str, ...] = ()
    label: str = ""
    parts: int = 0


Start: TypeAlias = Literal["carry", "over"]
"""What a repeat begins with: what it carries, or what it takes a slice of in each step."""


@dataclass(frozen=True)
class Line:
    """The identity of a line of a section, or of what a repeat begins with: `first` says as what.

    `loops` are the repeats that it stands in, outermost first. Printed it is as evidence and messages have it: `C`,
    `ring.acc`. `origin` is where it is written, which is no part of its identity; None for a line that is the house's.
    """

    name: str
    loops: tuple[str, ...] = ()
    first: Start | None = None
    origin: Origin | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return ".".join((*self.loops, self.name))

    @cached_property
    def key(self) -> Key:
        """Where it stands in the section: `("ring", "body", "acc")`."""
        within = ["body"] * (len(self.loops) - 1) + [self.first or "body"]
        return (*(part for pair in zip(self.loops, within, strict=False) for part in pair), self.name)

    @cached_property
    def path(self) -> str:
        """Its key as one word, which no other line of the section has: `ring/body/acc`."""
        return "/".join(map(str, self.key))

    def inside(self, name: str, *, first: Start | None = None) -> Line:
        """A line of the body of the repeat that stands here, or what it begins with."""
        origin = None if self.origin is None or not first else replace(self.origin, key=(*self.origin.key, first, name))
        return Line(name, (*self.loops, self.name), first, origin)

    @property
    def label(self) -> str:
        """Its name in the function that it stands in."""
        return self.origin.label if self.origin is not None and self.origin.label else self.name

    @property
    def scopes(self) -> tuple[str, ...]:
        """The named scopes of its operations, outermost first: `("y", "gate")`; of what a call gives, the call's."""
        return (self.name,) if self.origin is None or not self.origin.scopes else self.origin.scopes

    def written(self, section: Section) -> tuple[Key, tuple[Key, ...]]:
        """Its key in the configuration, and the keys of the lines that call the function that it stands in."""
        return ((section, *self.key), ()) if self.origin is None else (self.origin.key, self.origin.uses)


@dataclass(frozen=True)
class Source:
    """Where an equation is written, or a value is read: a line, its text, and the half-open span of bytes there.

    - `start`, `end`: None for what stands nowhere in the text.
    - `part`: its number among the parts of the line, in the order in which they are read; all of the line is 0. It is
      the same wherever the line stands: in its section, in a part of that, in a section of which other lines changed.
    - `whole`: whether it is all that the line says, or all of a function that combines two values there.
    """

    line: Line
    text: str = ""
    start: int | None = None
    end: int | None = None
    part: int = 0
    whole: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """The half-open span of characters; of what stands nowhere, all of the text."""
        at = None if self.start is None or self.end is None else (self.start, self.end)
        return characters(self.text, at)
