"""Reads a PartitionSpec as JAX writes it, `P(None, ('x', 'y'))`, to a configuration's list, `[null, [x, y]]`.

Both forms are allowed wherever a spec is, in files and on the command line, whose grammar (Hydra's) lacks the first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from runner.base.faults import Key
from runner.base.untyped import is_dict, is_list
from runner.experiment.config import quoting
from runner.graph.language import python_source
from runner.graph.language.python_source import PythonPart

PATTERN = r"(?:\w+\.)*(?:P|PartitionSpec)\s*\("
"""The beginning of a `P(...)`."""

WRITTEN = rf"^\s*{PATTERN}"
"""The pattern of strings that are read as PartitionSpecs, for the JSON Schema that editors use."""

_BEGINS = re.compile(PATTERN)
_CALL = re.compile(rf"(?<![\w.]){PATTERN}")

_SECTIONS = ("arrays", "specs", "constraints", "outputs", "expect")
"""The top-level keys whose values may contain PartitionSpecs."""

_OF_ONE = re.compile(r"\+*(?:arrays\.\w+\.spec|(?:constraints|outputs)\.\w+|specs\.[^=]+|expect\.layouts\.[^=]+)\Z")
"""The keys of overrides whose value is a PartitionSpec."""

Entries: TypeAlias = "list[str | list[str] | None]"


class NoSpec(Exception):
    """A string begins like a PartitionSpec but is not a valid one; the message says why, and how to write one."""


def begins(text: object) -> bool:
    """Whether a value is a string that begins like a `P(...)`."""
    return isinstance(text, str) and _BEGINS.match(text.strip()) is not None


def quoted_in(line: str) -> str | None:
    """The first `P(...)` of a line of YAML that is not in quotes, in quotes; None if there is none."""
    bare = (call for call in _CALL.finditer(line) if line[call.start() - 1 : call.start()] not in ("'", '"'))
    for call in bare:
        rest = line[call.start() :]
        ends = (at + 1 for at, letter in enumerate(rest) if letter == ")")
        end = next((at for at in ends if rest[:at].count("(") == rest[:at].count(")")), None)
        if end is not None:
            return f"'{rest[:end]}'" if '"' in rest[:end] else f'"{rest[:end]}"'
    return None


def read(text: str) -> Entries:
    """Parse a `P(...)` to its entries: None, a mesh axis, or a list of axes. Raises `NoSpec`.

    `P(None, 'x')` gives `[None, "x"]`. An unquoted name is an axis too, since a shell may have removed the quotes.
    """
    try:
        call = python_source.expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if text.count("(") > text.count(")"):
            reason = "its bracket is not closed; between { and } write it in quotes, \"P(None, 'x')\", or as [null, x]"
            raise _none(text, reason) from None
        raise _none(text, "it is not Python; write P(None, 'x'), or [null, x]") from None
    if call.kind != "call" or not _BEGINS.fullmatch(f"{call.words[0]}("):
        raise _none(text, "there is more than P(…); write P(None, 'x'), or [null, x]")
    if call.words[1:]:
        raise _none(text, "it takes one entry per dimension, in order, and no keyword arguments; write P(None, 'x')")
    return [_entry(text, entry) for entry in call.inside]


def _entry(text: str, entry: PythonPart) -> str | list[str] | None:
    match entry:
        case PythonPart(kind="literal", value=None) | PythonPart(kind="name", text="null"):
            return None
        case PythonPart(kind="literal", value=str(axis)):
            return axis
        case PythonPart(kind="name", text=axis) if "." not in axis:
            return axis
        case PythonPart(kind="sequence", inside=axes):
            names = [_entry(text, axis) for axis in axes]
            if all(isinstance(name, str) for name in names):
                return [str(name) for name in names]
        case _:
            pass
    reason = f"an entry is None, a mesh axis or a tuple of axes, not {entry.text}; write P(None, ('x', 'y'))"
    raise _none(text, reason)


def _none(text: str, reason: str) -> NoSpec:
    return NoSpec(f"{text.strip()!r} is not a PartitionSpec: {reason}")


def normal(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with each `P(...)` as a list. Raises `NoSpec` for what `wrong` yields."""
    return {name: _below(value, (name,)) if name in _SECTIONS else value for name, value in config.items()}


def _below(value: Any, key: Key) -> Any:
    if is_dict(value):
        return {name: _below(inner, (*key, name)) for name, inner in value.items()}
    return read(value) if begins(value) and _holds(key) else value


def _holds(key: Key) -> bool:
    """Whether the value of a key may be a PartitionSpec; an array's `init`, for one, may not."""
    match key:
        case ("arrays", _, *_):
            return key[-1] == "spec"
        case ("expect", "layouts", _, *_) | ("specs" | "constraints" | "outputs", _, *_):
            return True
        case _:
            return False


def axes(config: Mapping[str, Any]) -> list[str]:
    """Return the mesh axes, or logical names, of a configuration's specs in the order in which they stand there.

    Reads what it can: malformed specs have none.
    """
    names: dict[str, None] = {}
    for key, value in _values(config):
        spec = value
        if begins(value):
            with contextlib.suppress(NoSpec):
                spec = read(value)
        if is_list(spec) and _holds(key):
            for entry in spec:
                names |= dict.fromkeys(axis for axis in (entry if is_list(entry) else [entry]) if isinstance(axis, str))
    return list(names)


def wrong(config: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Yield the keys of malformed PartitionSpecs, each with the message."""
    for key, value in _values(config):
        if begins(value) and _holds(key):
            try:
                read(value)
            except NoSpec as error:
                yield key, str(error)


def _values(config: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    """Yield the keys with values that are no mappings, of the sections that have specs."""
    left: list[tuple[Key, Any]] = [((name,), value) for name, value in config.items() if name in _SECTIONS]
    while left:
        key, value = left.pop(0)
        if is_dict(value):
            left += [((*key, name), inner) for name, inner in value.items()]
        else:
            yield key, value


def overrides(texts: Iterable[str]) -> list[str]:
    """Rewrite the specs of a command line's overrides, and quote the calls in lines: Hydra's grammar has neither.

    Raises `NoSpec`, whose message names the override.
    """
    rewritten: list[str] = []
    for text in texts:
        try:
            rewritten.append(quoting.line(override(text)))
        except NoSpec as error:
            raise NoSpec(f"command line: {text}\n  {error}") from None
    return rewritten


def override(text: str) -> str:
    """Rewrite each `P(...)` in an override as a list that Hydra's grammar has. Raises `NoSpec`.

    `arrays.A.spec=P(None, 'x')` becomes `arrays.A.spec=[null,x]`.
    """
    name, equals, value = text.partition("=")
    if not equals or name.lstrip("+").partition(".")[0] not in _SECTIONS:
        return text
    for start, end in reversed(list(_calls(value))):
        value = value[:start] + written(read(value[start:end])) + value[end:]
    return f"{name}={_in_brackets(value) if _OF_ONE.match(name) else value}"


def written(entries: Entries) -> str:
    """Format entries as a list, in the notation that YAML and Hydra's grammar share."""
    texts = ("null" if e is None else f"[{','.join(e)}]" if is_list(e) else str(e) for e in entries)
    return f"[{','.join(texts)}]"


def _calls(value: str) -> Iterator[tuple[int, int]]:
    """Yield the half-open spans of the unquoted `P(...)`s in a value. Raises `NoSpec` for an unclosed bracket."""
    at = 0
    while (call := _CALL.search(value, at)) is not None:
        before = value[: call.start()]
        if any(before.count(quote) % 2 for quote in "'\""):
            at = call.end()
            continue
        depth, at = 1, call.end()
        while depth and at < len(value):
            depth += {"(": 1, ")": -1}.get(value[at], 0)
            at += 1
        if depth:
            read(value[call.start() :])
        yield call.start(), at


def _in_brackets(value: str) -> str:
    """Rewrite Python's tuples as lists and None as null."""
    parts: list[str] = []
    closing: list[str] = []
    for token in re.findall(r"'[^']*'|\"[^\"]*\"|\w+\s*\(|\w+|.", value, re.DOTALL):
        if token == "(" or token.endswith("("):
            # `choice(…)` and the like are Hydra's functions and keep their parentheses.
            closing.append("]" if token == "(" else ")")
            token = "[" if token == "(" else token
        elif token == ")" and closing:
            token = closing.pop()
            if token == "]" and parts and parts[-1].strip() == ",":
                parts.pop()
        elif token == "None":
            token = "null"
        parts.append(token)
    return "".join(parts)
