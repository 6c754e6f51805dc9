"""Holds a fault of an experiment: its key, its message, its span of an expression. `experiment/config/sources.py`
words it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from runner.base.lazy import dataclass

LEFT_OUT = "a psum or another reduction is left out, or the spec is wrong"
"""The hint for an output whose spec replicates it although JAX cannot infer that it is replicated."""

Key = tuple[str | int, ...]
"""A path through the configuration: `("arrays", "A", "spec", 1)`."""


@dataclass(frozen=True)
class Fault:
    """A fault: its key, its message, and, in an expression, the half-open span of characters at fault."""

    key: Key
    message: str
    expression: str | None = None
    start: int = 0
    end: int = 0
    uses: tuple[Key, ...] = ()
    """The keys of the lines that call the function with the line at `key`, innermost first."""
    also: tuple[tuple[str, Key], ...] = ()
    """Related keys, each with a label such as `the rule`."""


class BadInput(Exception):
    """Something that its user has to write otherwise; the message says where, what, and what instead."""


class InvalidExperiment(Exception):
    """The experiment is invalid; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{key_text(fault.key)}: {fault.message}")
        self.fault = fault


def invalid(key: Key, message: str) -> InvalidExperiment:
    """Return an `InvalidExperiment` for a key."""
    return InvalidExperiment(Fault(key, message))


def key_text(key: Key) -> str:
    """Format a key as users write it: `arrays.A.spec[1]`; of a line with many names, the first ones."""
    text = ""
    for part in key:
        names = part.split(", ") if isinstance(part, str) else []
        shown = f"{', '.join(names[:_NAMES])}, …" if len(names) > _NAMES + 1 else part
        text += f"[{shown}]" if isinstance(part, int) else f".{shown}" if text else str(shown)
    return text


_NAMES = 3
"""The number of names of a line that a key shows."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'psum'?` if one of `candidates` is close to `name`, else "".

    Several that continue the name, as those of `float8`, are all named.
    """
    names = [str(candidate) for candidate in candidates]
    family = [candidate for candidate in names if candidate.startswith(f"{name}_")]
    if len(family) > 1:
        return f"; there are {', '.join(family)}"
    folded = [candidate for candidate in names if candidate.casefold() == str(name).casefold()]
    turned = [candidate for candidate in names if sorted(candidate) == sorted(str(name))]
    close = folded or turned or difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    # `v5` may be the beginning of `v5e` or `v5p`; of more, one is a guess.
    longer = [candidate for candidate in names if candidate[:-1] == name]
    close = longer if not folded and len(longer) == 2 else close[:1]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
