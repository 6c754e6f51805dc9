"""Converts dataclasses to plain data for JSON and back, and describes them by a JSON Schema.

A field that equals its default is left out of the plain data, so only fields without a default are always present.
JSON has no NaN, infinities or complex numbers: the first two are written as the strings `NaN`, `Infinity` and
`-Infinity`, the last as `{real, imag}`. A class with the attribute `JSON`, the type that it is written as, is written
by its `json()` and read by its `of()`, as `runner.base.layout.Spec` is. A class with `members()`, a mapping of names to
types, is an object with these keys, as the checks of a record are.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

T = TypeVar("T")

Numbers: TypeAlias = Annotated[Any, "numbers"]
"""A number, or nested lists of numbers, complex ones among them."""

ALWAYS = {"always": True}
"""The metadata of a field that is written even if it equals its default."""


def named(name: str) -> dict[str, str]:
    """The metadata of a field whose JSON name is a Python keyword."""
    return {"json": name}


def one_nan(data: Any) -> Any:
    """Replace each NaN in nested lists by the object `math.nan`, as `build` does, so that both compare equal."""
    if isinstance(data, list):
        return [one_nan(item) for item in cast("list[Any]", data)]
    return math.nan if isinstance(data, float) and math.isnan(data) else data


class Misfit(Exception):
    """Plain data does not fit its type; the message says where, and what is expected."""


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# Writing.


def plain(value: Any) -> Any:
    """Convert a value to data that `json.dumps` accepts."""
    kind = cast("type[Any]", type(value))
    return value if kind in _AS_IT_IS else _writer(kind)(value)


_AS_IT_IS = frozenset({str, int, bool, types.NoneType})


@functools.cache
def _writer(kind: type[Any]) -> Callable[[Any], Any]:
    """The function that converts the values of a type."""
    if hasattr(kind, "json"):
        return lambda value: plain(value.json())
    if is_dataclass(kind):
        return functools.partial(_members, _written(kind))
    if issubclass(kind, Mapping):
        return lambda value: {key: plain(item) for key, item in value.items()}
    if issubclass(kind, list | tuple):
        # Most lists are of numbers, and long: a call for each would take most of the time.
        return lambda value: [item if type(item) in _AS_IT_IS else plain(item) for item in value]
    if issubclass(kind, complex):
        return lambda value: {"real": plain(value.real), "imag": plain(value.imag)}
    if issubclass(kind, StrEnum):
        return lambda value: value.value
    return _finite if issubclass(kind, float) else lambda value: value


def _members(written: tuple[tuple[str, str, bool, Any], ...], value: Any) -> dict[str, Any]:
    """The fields of a dataclass that `written` describes."""
    members: dict[str, Any] = {}
    for name, key, always, default in written:
        member = getattr(value, name)
        if always or member != default:
            members[key] = member if type(member) in _AS_IT_IS else plain(member)
    return members


def _finite(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _written(kind: type[Any]) -> tuple[tuple[str, str, bool, Any], ...]:
    """For each field: its name, its JSON name, whether it is always written, and its default, None without one."""
    return tuple(
        (
            member.name,
            _name(member),
            bool(member.metadata.get("always")) or _required(member),
            None if _required(member) else _default(member),
        )
        for member in fields(kind)
    )


def _name(member: Field[Any]) -> str:
    return member.metadata.get("json", member.name)


def _required(member: Field[Any]) -> bool:
    return member.default is MISSING and member.default_factory is MISSING


def _default(member: Field[Any]) -> Any:
    return member.default_factory() if member.default_factory is not MISSING else member.default


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


# Reading.


def build(kind: type[T], data: Any) -> T:
    """Build a value of type `kind` from plain data; unknown keys are ignored. Raises `Misfit`."""
    return _build(kind, data, "")


def build_at(kind: type[T], data: Any, at: str) -> T:
    """Like `build`, for data at the path `at` of a larger document, which messages name. Raises `Misfit`."""
    return _build(kind, data, at)


def _build(kind: Any, data: Any, at: str) -> Any:
    if kind is Any:
        return data
    if kind == Numbers:
        return _numbers(data, at)
    if (form := getattr(kind, "JSON", None)) is not None:
        return kind.of(_build(form, data, at))
    if (members := getattr(kind, "members", None)) is not None:
        mapping = _expect(isinstance(data, dict), data, at, "a mapping")
        present = ((name, hint) for name, hint in members().items() if name in mapping)
        return kind(**{name: _build(hint, mapping[name], _below(at, name)) for name, hint in present})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, data, at)
    if origin is Literal:
        return _expect(data in arguments, data, at, " or ".join(map(repr, arguments)))
    if origin is list:
        items = _expect(isinstance(data, list), data, at, "a list")
        if arguments[0] in _AS_IT_IS and all(type(item) is arguments[0] for item in items):
            return list(items)
        return [_build(arguments[0], item, f"{at}[{i}]") for i, item in enumerate(items)]
    if origin is tuple:
        whole = isinstance(data, list) and (arguments[-1] is ... or len(cast("list[Any]", data)) == len(arguments))
        items = _expect(whole, data, at, "a list" if arguments[-1] is ... else f"a list of {len(arguments)}")
        hints = [arguments[0]] * len(items) if arguments[-1] is ... else arguments
        return tuple(
            _build(argument, item, f"{at}[{i}]") for i, (argument, item) in enumerate(zip(hints, items, strict=True))
        )
    if origin in (dict, Mapping):
        mapping = _expect(isinstance(data, dict), data, at, "a mapping")
        keyed = ((_key(arguments[0], key, at), key, item) for key, item in mapping.items())
        return {name: _build(arguments[1], item, _below(at, key)) for name, key, item in keyed}
    if is_dataclass(kind):
        return _object(cast("type[Any]", kind), data, at)
    if kind is float:
        data = _SPECIAL.get(data, data) if isinstance(data, str) else data
        return float(_expect(isinstance(data, int | float) and not isinstance(data, bool), data, at, "a number"))
    if kind is types.NoneType:
        return _expect(data is None, data, at, "null")
    if issubclass(kind, StrEnum):
        names = [member.value for member in kind]
        return kind(_expect(data in names, data, at, " or ".join(map(repr, names))))
    exactly = type(data) is kind
    return _expect(exactly, data, at, {str: "a string", int: "an integer", bool: "true or false"}[kind])


def _key(kind: Any, key: str, at: str) -> Any:
    """Convert a key of a JSON object, which is a string, to `kind`."""
    return int(_expect(key.removeprefix("-").isdecimal(), key, at, "an integer")) if kind is int else key


def _object(kind: type[Any], data: Any, at: str) -> Any:
    _expect(isinstance(data, dict), data, at, "a mapping")
    arguments: dict[str, Any] = {}
    for field, name, hint, required in _read(kind):
        if name in data:
            arguments[field] = _build(hint, data[name], _below(at, name))
        elif required:
            raise Misfit(f"{at or 'it'} has no '{name}'")
    return kind(**arguments)


@functools.cache
def _read(kind: type[Any]) -> tuple[tuple[str, str, Any, bool], ...]:
    """For each field: its name, its JSON name, its type, and whether it is required."""
    hints = _hints(kind)
    return tuple((member.name, _name(member), hints[member.name], _required(member)) for member in fields(kind))


def _one_of(kinds: tuple[Any, ...], data: Any, at: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    misfits: list[str] = []
    for kind in kinds:
        try:
            return _build(kind, data, at)
        except Misfit as misfit:
            misfits.append(str(misfit))
    # Of a union, the first type is the usual one.
    raise Misfit(misfits[0])


def _expect(fits: bool, data: Any, at: str, what: str) -> Any:
    if not fits:
        raise Misfit(f"{at or 'it'} is {data!r:.60}, not {what}")
    return data


def _below(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _numbers(data: Any, at: str) -> Any:
    if isinstance(data, list):
        return [_numbers(item, f"{at}[{i}]") for i, item in enumerate(cast("list[Any]", data))]
    if isinstance(data, dict):
        parts = cast("dict[str, Any]", data)
        _expect(parts.keys() == {"real", "imag"}, data, at, "a number")
        return complex(*(_build(float, parts[part], _below(at, part)) for part in ("real", "imag")))
    data = _SPECIAL.get(data, data) if isinstance(data, str) else data
    return _expect(isinstance(data, int | float), data, at, "a number")


# The schema.

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    float: {"$ref": "#/$defs/number"},
}

_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": list(_SPECIAL)}]}
_COMPLEX: dict[str, Any] = {
    "type": "object",
    "properties": {"real": {"$ref": "#/$defs/number"}, "imag": {"$ref": "#/$defs/number"}},
    "required": ["real", "imag"],
}
_NUMBERS: dict[str, Any] = {
    "description": "A number, or nested lists of numbers.",
    "anyOf": [
        {"$ref": "#/$defs/number"},
        {"type": "boolean"},
        _COMPLEX,
        {"type": "array", "items": {"$ref": "#/$defs/numbers"}},
    ],
}


def schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a dataclass as `plain` writes it, with one definition for each dataclass in it."""
    definitions: dict[str, Any] = {"number": _NUMBER, "numbers": _NUMBERS}
    top = _schema(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_of_file(kind: type[Any], title: str, number: int | str) -> dict[str, Any]:
    """Return the JSON Schema of a file that holds a dataclass whose field `schema` is always `number`."""
    described = schema(kind)
    described["$defs"][kind.__name__]["properties"]["schema"] = {"const": number}
    return {"$schema": described.pop("$schema"), "title": title, **described}


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    def of(inner: Any) -> dict[str, Any]:
        return _schema(inner, definitions)

    if kind is Any:
        return {}
    if kind == Numbers:
        return {"$ref": "#/$defs/numbers"}
    if (form := getattr(kind, "JSON", None)) is not None:
        return of(form)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of(member) for member in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list or (origin is tuple and arguments[-1] is ...):
        return {"type": "array", "items": of(arguments[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [of(member) for member in arguments],
            "minItems": len(arguments),
            "items": False,
        }
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": of(arguments[1])}
    if is_dataclass(kind) or hasattr(kind, "members"):
        return _definition(cast("type[Any]", kind), definitions, of)
    if issubclass(kind, StrEnum):
        return {"enum": [member.value for member in kind]}
    return _SCALARS[kind]


def _definition(kind: type[Any], definitions: dict[str, Any], of: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        described: dict[str, Any] = {"description": inspect.getdoc(kind) or "", "type": "object"}
        definitions[kind.__name__] = described
        if hasattr(kind, "members"):
            described["properties"] = {name: of(hint) for name, hint in kind.members().items()}
            return {"$ref": f"#/$defs/{kind.__name__}"}
        hints = _hints(kind)
        described["properties"] = {_name(member): of(hints[member.name]) for member in fields(kind)}
        always = [_name(member) for member in fields(kind) if _required(member) or member.metadata.get("always")]
        described |= {"required": always} if always else {}
    return {"$ref": f"#/$defs/{kind.__name__}"}
