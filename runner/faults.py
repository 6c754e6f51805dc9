"""What is wrong with an experiment: a key, a message, where in an expression. `runner/config/sources.py` draws it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

LEFT_OUT = "a psum or another reduction is left out, or the spec is wrong"
"""What may be wrong where an output is promised to be the same on devices of which JAX does not know it."""

Key = tuple[str | int, ...]
"""A path through the configuration: `("arrays", "A", "spec", 1)`."""


@dataclass(frozen=True)
class Fault:
    """One fault: the key at which it stands, what is wrong, and the span at fault where the value is an expression."""

    key: Key
    message: str
    expression: str | None = None
    start: int = 0
    end: int = 0
    uses: tuple[Key, ...] = ()
    """Where what stands at `key` is used, innermost first: the lines that call the function that it is a line of."""
    also: tuple[tuple[str, Key], ...] = ()
    """What else there is to look at, each with what it is: `the rule`."""


class InvalidExperiment(Exception):
    """The experiment cannot be run as it stands."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{key_text(fault.key)}: {fault.message}")
        self.fault = fault


def invalid(key: Key, message: str) -> InvalidExperiment:
    """An `InvalidExperiment` for one key."""
    return InvalidExperiment(Fault(key, message))


def key_text(key: Key) -> str:
    """A key as users write it: `arrays.A.spec[1]`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(name: str, candidates: Iterable[str]) -> str:
    """`; did you mean 'psum'?` when one of `candidates` is close to `name`, else an empty string."""
    close = difflib.get_close_matches(str(name), [str(c) for c in candidates], n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
