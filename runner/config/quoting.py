"""An override in; whether it is of Hydra's own settings out, and how to type one that its grammar refuses."""

from __future__ import annotations

import re
import shlex
from typing import Any, cast

from runner.untyped import is_list, is_mapping


def name(override: str) -> str:
    """The key that an override sets: `per_device.C`."""
    return override.partition("=")[0].lstrip("+~")


WORD = re.compile(r"\+*(?:(?P<mesh>mesh\.shape)|arrays\.(?P<array>\w+)\.spec|specs\.(?P<leaf>\w+(?:\.\w+)*))=all\Z")
"""The override that stands for every mesh of the devices, or for every layout of an array or of a leaf of a tree."""

_OF_HYDRA = re.compile(r"[+~]*\s*(?:hydra\b|[^=]*[@:]\s*(?:_global_\.)?hydra\b)")
"""How an override of Hydra's settings begins: with their key, a group below `hydra`, or either as a package."""


def of_hydra(override: str) -> bool:
    """Whether an override sets, or chooses a file for, what is Hydra's own."""
    return _OF_HYDRA.match(override.strip()) is not None


def refused(override: str) -> str:
    """The message for an override that Hydra cannot parse."""
    key, equals, value = override.partition("=")
    where = f"command line: {override}"
    if not equals:
        return f"{where}\n  an override is KEY=VALUE; ~KEY deletes a key"
    typed = _quoted(key, value)
    if typed is None:
        return f"{where}\n  Hydra's grammar has no such override; one is KEY=VALUE"
    return f"{where}\n  {_why(value)}; quote the value for Hydra, and the whole for the shell:\n    {typed}"


def ambiguous(override: str) -> str:
    """The message for an override with several values where there is no sweep."""
    key, _, value = override.partition("=")
    typed = _quoted(key, value)
    text = f", for one text {typed}" if typed else ""
    return (
        f"command line: {override}\n  these are several values: add -m to run them all; "
        f"for one list write {for_shell(f'{key}=[{value}]')}{text}"
    )


_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)\Z)[A-Za-z_./][\w./-]*", re.IGNORECASE)
"""A text that Hydra's grammar takes as it is, for a text."""


def for_hydra(value: Any) -> str:
    """A value as Hydra's grammar has it; a tuple is several values, as of a sweep."""
    if isinstance(value, tuple):
        return ",".join(map(for_hydra, cast("tuple[Any, ...]", value)))
    if is_list(value):
        return f"[{','.join(map(for_hydra, value))}]"
    if is_mapping(value):
        return f"{{{','.join(f'{for_hydra(name)}:{for_hydra(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    if not isinstance(value, str) or _PLAIN.fullmatch(text):
        return text
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def _why(value: str) -> str:
    if call := re.match(r"\s*(\w+)\(", value):
        return f"Hydra reads {call.group(1)}(…) as a function of its own, and has none of that name"
    if value.lstrip()[:1] in tuple("[{"):
        return f"Hydra reads what begins with {value.lstrip()[0]} as a list or mapping, and this is none"
    return "Hydra's grammar does not take the value as it is"


def _quoted(key: str, value: str) -> str | None:
    """The override as it is typed, its value quoted; None where Hydra does not take it like that either."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    # A backslash is itself, save before a quote and at the end.
    escaped = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + (r"\"" if match[2] else ""), value)
    whole = f'{key}="{escaped}"'
    try:
        (parsed,) = OverridesParser.create().parse_overrides([whole])
    except OverrideParseException:
        return None
    return for_shell(whole) if parsed.value() == value else None


def for_shell(text: str) -> str:
    """A word of a command line, in double quotes where it has single ones in it."""
    if "'" in text and not re.search(r"[$`\\!]", text):
        return '"' + text.replace('"', r"\"") + '"'
    return shlex.quote(text)
