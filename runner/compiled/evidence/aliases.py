"""Reads which parameters of a compiled module give their memory to its results."""

from __future__ import annotations

import re

_ALIASES = re.compile(r"input_output_alias=\{((?:[^{}]|\{[^{}]*\})*)\}")
_PARAMETER = re.compile(r"\{[\d, ]*\}: \((\d+),")
_ENTRY = re.compile(r"^ENTRY .*?^\}", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"parameter\((\d+)\).*?op_name=\"([^\"]*)\"")


def aliased(text: str) -> frozenset[str]:
    """The names of the arguments whose memory results take, in the text of a compiled module."""
    head = _ALIASES.search(text.partition("\n")[0])
    entry = _ENTRY.search(text)
    if head is None or entry is None:
        return frozenset()
    numbers = {int(number) for number in _PARAMETER.findall(head[1])}
    return frozenset(name for number, name in _NAMED.findall(entry[0]) if int(number) in numbers)
