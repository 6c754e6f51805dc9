"""Says whether an override sets a Hydra setting, and quotes it for Hydra and the shell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any, cast

from runner.base.lazy import pattern
from runner.base.untyped import is_list, is_mapping


def name(override: str) -> str:
    """The key that an override sets, such as `per_device.C`."""
    return override.partition("=")[0].lstrip("+~")


WORD = pattern(r"\+*(?:(?P<mesh>mesh\.shape)|arrays\.(?P<array>\w+)\.spec|specs\.(?P<leaf>\w+(?:\.\w+)*))=all\Z")
"""An override with the value `all`: every mesh of the devices, or every layout of an array or of a leaf of a tree."""

_OF_HYDRA = pattern(r"[+~]*\s*(?:hydra\b|[^=]*[@:]\s*(?:_global_\.)?hydra\b)")
"""The beginning of an override of Hydra's settings: their key, a group below `hydra`, or either as a package."""


def of_hydra(override: str) -> bool:
    """Whether an override sets one of Hydra's settings, or chooses a file for them."""
    return _OF_HYDRA.match(override.strip()) is not None


def refused(override: str) -> str:
    """Return the message for an override that Hydra cannot parse."""
    key, equals, value = override.partition("=")
    where = f"command line: {override}"
    if not equals and os.path.isdir(override):
        return f"{where}\n  this is a folder: name an experiment's file in it, or the folder by --config-dir {override}"
    if not equals:
        return f"{where}\n  an override is KEY=VALUE; ~KEY deletes a key"
    if len(several := _several(override)) > 1:
        parts = ", ".join(f'"{part}"' for part in several)
        return f"{where}\n  these are {len(several)} overrides in one text: write each by itself, in Python [{parts}]"
    if (items := re.fullmatch(r"\(([\w\s,.]*?),?\s*\)", value)) is not None:
        key = f"{key}.shape" if key.lstrip("+") == "mesh" else key
        return f"{where}\n  a list is in square brackets: {for_shell(f'{key}=[{items[1]}]')}"
    typed = _quoted(key, value)
    if typed is None:
        return f"{where}\n  '{key.lstrip('+~')}' is no key; write names joined by dots, such as dims.I=8"
    if (lines := _one_by_one(key, value)) is not None:
        return f"{where}\n  Hydra reads an expression only in quotes; write each line by itself:\n    {lines}"
    return f"{where}\n  {_why(value)}; quote the value for Hydra, and the whole for the shell:\n    {typed}"


_OVERRIDE = pattern(r"[+~]{0,3}[\w./@-]+=\S*")


def _several(text: str) -> list[str]:
    """Split a text at its spaces if each part is an override whose brackets are closed; else return no parts."""
    parts = text.split()
    closed = (part.count(a) == part.count(b) for part in parts for a, b in ("()", "[]", "{}"))
    return parts if all(map(_OVERRIDE.fullmatch, parts)) and all(closed) else []


_LINE = pattern(r"\+{0,2}(?:graph|per_device|both|functions)\.[\w.]+\Z")
"""The key of an override that is a line of a section, or of a function."""

_LACKED = pattern(r"[(\[&|<>=~^]")
"""What lines have and unquoted values of Hydra's grammar lack."""

_HYDRAS = pattern(r"\s*(?:choice|range|interval|glob|sort|shuffle|tag|extend_list|int|float|str|bool|json_str)\s*\(")
"""A value that Hydra's grammar reads as a call of one of its functions."""


def line(override: str) -> str:
    """Quote a line's expressions for Hydra, whose grammar lacks their calls, indices and most of their operators.

    `graph.C=matmul(A, B),A @ B` becomes `graph.C="matmul(A, B)",A @ B`.
    """
    key, equals, value = override.partition("=")
    if not equals or not _LINE.match(key) or not _LACKED.search(value) or _HYDRAS.match(value) or "${" in value:
        return override
    if value.lstrip()[:1] in ("'", '"', "[", "{"):
        return override
    parts = ("".join(part) for part in _parts_of_sweep(value))
    return f"{key}={','.join(in_quotes(part.strip(), _DOUBLE) if _LACKED.search(part) else part for part in parts)}"


def _parts_of_sweep(value: str) -> list[list[str]]:
    """Split a value at the commas that are in no bracket and in no string."""
    parts: list[list[str]] = [[]]
    for token in re.findall(r"'[^']*'|\"[^\"]*\"|.", value, re.DOTALL):
        depth = sum(part in "([{" for part in parts[-1]) - sum(part in ")]}" for part in parts[-1])
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


_DOUBLE = '"'
"""The quote for an expression, which has single ones more often."""


def in_quotes(value: str, quote: str = "'") -> str:
    """Quote a text for Hydra, in whose grammar a quoted value may hold any character."""
    # A backslash escapes only before a quote and at the end.
    escaped = re.sub(rf"(\\*)({quote}|$)", lambda match: match[1] * 2 + (f"\\{quote}" if match[2] else ""), value)
    return f"{quote}{escaped}{quote}"


def refused_json(override: str) -> tuple[tuple[str, ...], Any] | None:
    """The key and the value of an override in JSON or in Python's syntax, which Hydra's grammar lacks; else None."""
    import yaml

    key, _, text = override.partition("=")
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return (tuple(key.lstrip("+").split(".")), value) if is_mapping(value) or is_list(value) else None


def sizes(text: str) -> str | None:
    """The list of sizes that a text such as `4x2` or `4,2` means; None for another text."""
    parts = re.split(r"[x×*,]", text)
    return f"[{','.join(parts)}]" if len(parts) > 1 and all(map(str.isdecimal, parts)) else None


def ambiguous(override: str, groups: Sequence[str]) -> str:
    """Return the message for an override with several values outside a sweep; the keys in `groups` choose files."""
    key, _, value = override.partition("=")
    typed = _quoted(key, value)
    text = f", for one text {typed}" if typed else ""
    if key.lstrip("+") == "mesh" and (shape := sizes(value)):
        # `mesh` is a group, of which `mesh=[4,2]` would name two options.
        return (
            f"command line: {override}\n  these are several values, and no mesh has such a name; "
            f"for the sizes of its axes write {for_shell(f'mesh.shape={shape}')}"
        )
    if key.lstrip("+") in groups:
        first = value.partition(",")[0]
        return (
            f"command line: {override}\n  these are several values: add -m to run them all, or name one: {key}={first}"
        )
    return (
        f"command line: {override}\n  these are several values: add -m to run them all; "
        f"for one list write {for_shell(f'{key}=[{value}]')}{text}"
    )


_PLAIN = pattern(r"(?!(?:null|true|false|nan|inf)\Z)[A-Za-z_./][\w./-]*", re.IGNORECASE)
"""A string that Hydra's grammar reads as a string without quotes."""


def for_hydra(value: Any) -> str:
    """Format a value in Hydra's grammar; a tuple becomes the several values of a sweep."""
    if isinstance(value, tuple):
        return ",".join(map(for_hydra, cast("tuple[Any, ...]", value)))
    if is_list(value):
        return f"[{','.join(map(for_hydra, value))}]"
    if is_mapping(value):
        return f"{{{','.join(f'{_key(name)}:{for_hydra(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    if not isinstance(value, str) or _PLAIN.fullmatch(text):
        return text
    return in_quotes(text)


def _key(name: Any) -> str:
    """Format a key, around which Hydra's grammar has no quotes: `f\\(x\\)`."""
    return re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", name) if isinstance(name, str) else for_hydra(name)


def _why(value: str) -> str:
    if call := re.match(r"\s*(\w+)\(", value):
        return f"Hydra reads {call.group(1)}(…) as a function of its own, and has none of that name"
    if value.lstrip()[:1] in tuple("[{"):
        return f"Hydra reads a value that begins with {value.lstrip()[0]} as a list or mapping, and this is not one"
    return "Hydra's grammar does not accept the value unquoted"


def _one_by_one(key: str, value: str) -> str | None:
    """Return the overrides that set the lines of a mapping, `{h: relu(x), C: h @ w}`, one by one; None for others."""
    inside = re.fullmatch(r"\s*\{(.*)\}\s*", value, re.DOTALL)
    parts = ["".join(part) for part in _parts_of_sweep(inside[1])] if inside else []
    lines = [re.fullmatch(r"\s*(\w+)\s*:\s*(.*\S)\s*", part, re.DOTALL) for part in parts]
    typed = [line and _quoted(f"{key}.{line[1]}", line[2].strip("'\"")) for line in lines]
    return " ".join(filter(None, typed)) if typed and all(typed) else None


def _quoted(key: str, value: str) -> str | None:
    """Return the override with its value quoted for Hydra and the shell; None where Hydra cannot parse that either."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    whole = f"{key}={in_quotes(value, _DOUBLE)}"
    try:
        (parsed,) = OverridesParser.create().parse_overrides([whole])
    except OverrideParseException:
        return None
    return for_shell(whole) if parsed.value() == value else None


def for_shell(text: str) -> str:
    """Quote one word of a command line; in double quotes where it contains single ones."""
    if "'" in text and not re.search(r"[$`\\!]", text):
        return '"' + text.replace('"', r"\"") + '"'
    return shlex.quote(text)
