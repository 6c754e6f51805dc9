"""Reads the text of the user's files that a module names, as far as they are on this machine."""

from __future__ import annotations

import linecache
from collections.abc import Iterable

from runner.compiled.explanation.model import SourcePlace

_LARGEST = 400_000
"""The most characters of one file that an explanation keeps."""

_ALL = 2_000_000
"""The most characters of all files."""


def sources(lines: Iterable[SourcePlace]) -> dict[str, str]:
    """The text of each of the user's files, by the name that the compiler has for it.

    Cells of notebooks are found too, where they were run in this process.
    """
    texts: dict[str, str] = {}
    left = _ALL
    for file in dict.fromkeys(place.file for place in lines if not place.library):
        if "\0" in file:
            continue
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        if text and len(text) <= min(_LARGEST, left):
            texts[file] = text
            left -= len(text)
    return texts
