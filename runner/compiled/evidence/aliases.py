"""Reads which parameters of a compiled module give their memory to its results."""

from __future__ import annotations

import re

_ALIASES = re.compile(r"\binput_output_alias=\{(.*?) \}(?=,|$)")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}(?:, (?:may|must)-alias)?\)")
_ENTRY = re.compile(r"^ENTRY .*?^\}", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"parameter\((\d+)\).*?op_name=\"([^\"]*)\"")


def aliases(head: str) -> dict[int, str]:
    """The result, such as `1` or `0, 1`, that takes the memory of each such parameter, in a module's first line."""
    return {int(number): output for part in _ALIASES.findall(head) for output, number in _ALIAS.findall(part)}


def aliased(text: str) -> frozenset[str]:
    """The names of the arguments whose memory results take, in the text of a compiled module."""
    numbers, entry = aliases(text.partition("\n")[0]), _ENTRY.search(text)
    named = _NAMED.findall(entry[0]) if entry is not None and numbers else ()
    return frozenset(name for number, name in named if int(number) in numbers)
