"""Finds the limit that the text of a YAML file exceeds, before Hydra and OmegaConf expand its aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import yaml

_BYTES = 1_000_000
"""The largest size of a file: OmegaConf takes a minute for 10 MB. That many numbers belong in a `.npy` file."""

_LEVELS = 100
"""The deepest nesting of lists and mappings: the functions that walk them recurse."""

_PARTS = 5_000
"""The largest number of parts of a list or mapping in an override: the time that Hydra takes grows with their square,
here to four seconds.
"""

_NODES = 100_000
"""The largest number of lists, mappings and values in a file, with its aliases expanded."""

_DIGITS = 1_000
"""The largest number of digits of a number: Python refuses to print much larger ones, and no dtype has more than 64
bits.
"""

_NUMBER = re.compile(rf"[-+]?(?:0[xob][0-9a-fA-F_]{{{_DIGITS},}}|[0-9][0-9_:]{{{_DIGITS},}})\Z")

_HALF = r'this is a lone surrogate: write the character, or one escape of eight digits: "\U0001F600"'

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def refusal(text: str) -> tuple[int, int, str] | None:
    """Return the line, the column and the message of the first limit that a file exceeds; None where it exceeds none.

    Also None for text that is not YAML: its reader reports that.
    """
    size = len(text.encode())
    if size > _BYTES:
        return (
            1,
            1,
            f"the file has {size / 1e6:.1f} MB; keep many numbers in a .npy file, and write init: load('FILE.npy')",
        )
    try:
        return _expanded(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if mark is not None and "invalid Unicode character" in str(error.problem):
            # PyYAML's Python loader would read a lone surrogate here, which cannot be encoded.
            return mark.line + 1, mark.column + 1, _HALF
        return None
    except yaml.YAMLError:
        return None


def too_much(text: str) -> str | None:
    """The message for an override with too many brackets in one another, or parts; None for any other text."""
    if text[:1] in ("[", "{") and text.count(",") > _PARTS:
        return f"a value of more than {_PARTS:,} parts belongs in a file: a command line with it is read slowly"
    level = deepest = 0
    for character in text:
        level += (character in "[{(") - (character in "]})")
        deepest = max(deepest, level)
    return None if deepest <= _LEVELS else f"nested more than {_LEVELS} levels deep"


def digits(text: str) -> str | None:
    """The message for a number with too many digits; None for a shorter one or any other text."""
    if not _NUMBER.match(text):
        return None
    return (
        f"a number of {len(text.lstrip('+-')):,} digits; the limit is {_DIGITS:,}, and no dtype has more than 64 bits"
    )


def _expanded(text: str) -> tuple[int, int, str] | None:
    """Check the limits on nesting, values and digits as if aliases were expanded, by counting parser events."""
    anchored: dict[str, int | None] = {}
    open_: list[tuple[str | None, int]] = [(None, 0)]
    events: Iterable[Any] = cast("Any", yaml).parse(text, _Loader)
    for event in events:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.CollectionStartEvent):
            if event.anchor:
                anchored[event.anchor] = None
            open_.append((event.anchor, 1))
            if len(open_) - 1 > _LEVELS:
                return line, column, f"nested more than {_LEVELS} levels deep"
            continue
        if isinstance(event, yaml.AliasEvent):
            nodes = anchored.get(event.anchor, 1)
            if nodes is None:
                return line, column, f"'*{event.anchor}' is inside the value that it names, so it would never end"
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes = open_.pop()
            if anchor:
                anchored[anchor] = nodes
        elif isinstance(event, yaml.ScalarEvent):
            nodes = 1
            # A quoted scalar is a string.
            if event.style in (None, "") and (message := digits(event.value)) is not None:
                return line, column, message
            if event.anchor:
                anchored[event.anchor] = nodes
        else:
            continue
        outer, before = open_[-1]
        open_[-1] = outer, before + nodes
        if before + nodes > _NODES:
            aliases = ", with every alias expanded" if anchored else ""
            return line, column, f"the file holds more than {_NODES:,} values{aliases}"
    return None
