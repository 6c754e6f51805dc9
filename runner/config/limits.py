"""A YAML file in; why it is more than an experiment can be out. Read before Hydra and OmegaConf expand the aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import yaml

_BYTES = 1_000_000
"""OmegaConf takes a minute for 10 MB; numbers that many belong in a file of NumPy's."""

_LEVELS = 100
"""How deep lists and mappings may nest: whatever walks them recurses."""

_NODES = 100_000
"""How many lists, mappings and values there may be when every alias stands for what it names."""

_DIGITS = 1_000
"""How many digits a number may have: Python prints no much larger ones, and no dtype has more than 64 bits."""

_NUMBER = re.compile(rf"[-+]?(?:0[xob][0-9a-fA-F_]{{{_DIGITS},}}|[0-9][0-9_:]{{{_DIGITS},}})\Z")

_HALF = r'this is half of a character, and no text: write the character, or one escape of eight digits: "\U0001F600"'

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def refusal(text: str) -> tuple[int, int, str] | None:
    """The line, the column and the message of what is too much; None where nothing is.

    What is not YAML at all is nobody's fault here: whoever reads it says so.
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
            # YAML's slower reader makes half a character of it, which is no text.
            return mark.line + 1, mark.column + 1, _HALF
        return None
    except yaml.YAMLError:
        return None


def digits(text: str) -> str | None:
    """Why a text that is to be a number is too long for one; None where it is not, or is no number."""
    if not _NUMBER.match(text):
        return None
    return (
        f"a number of {len(text.lstrip('+-')):,} digits; {_DIGITS:,} are the most, and no dtype has more than 64 bits"
    )


def _expanded(text: str) -> tuple[int, int, str] | None:
    """What is too much once every alias is replaced by what it names. Counts, and expands nothing."""
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
                return line, column, f"'*{event.anchor}' stands inside of what it names: it would never end"
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes = open_.pop()
            if anchor:
                anchored[anchor] = nodes
        elif isinstance(event, yaml.ScalarEvent):
            nodes = 1
            # What is quoted is a text.
            if event.style in (None, "") and (message := digits(event.value)) is not None:
                return line, column, message
            if event.anchor:
                anchored[event.anchor] = nodes
        else:
            continue
        outer, before = open_[-1]
        open_[-1] = outer, before + nodes
        if before + nodes > _NODES:
            aliases = ", every alias replaced by what it names" if anchored else ""
            return line, column, f"the file holds more than {_NODES:,} values{aliases}"
    return None
