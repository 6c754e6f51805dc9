"""A value and the key at which it stands in; what the keys of `schema.py` do not allow of it out."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from runner.config import specs
from runner.config.quoting import WORD
from runner.config.schema import ExperimentConfig, Flag, Layout
from runner.faults import Fault, Key, key_text, nearest
from runner.untyped import is_mapping


@dataclass(frozen=True)
class Kind:
    """What may stand at a key: `text`, `integer`, `number`, `flag`, `list`, `mapping` or `anything`.

    Of a mapping, `keys` are the only ones there are; where the names are the user's own, `items` is what each holds.
    `words` are the texts that may stand there as well. `form` is the name of the form that says more, in
    `experiment/forms.py`, and `config` the class that has the keys.
    """

    name: str
    optional: bool = False
    keys: Mapping[str, Kind] | None = None
    items: Kind | None = None
    form: str | None = None
    config: str | None = None
    words: tuple[str, ...] = ()


_SCALARS = {str: "text", int: "integer", float: "number"}
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_IN_WORDS = {"text": "a text", "integer": "an integer", "number": "a number", "flag": "true or false"}
_FILES = ("defaults", "hydra")
"""What a file may hold besides the keys of an experiment."""


@functools.cache
def root() -> Kind:
    """The kind of a whole experiment."""
    return _kind(ExperimentConfig)


def _kind(hint: Any) -> Kind:
    if hint == Flag:
        return Kind("flag")
    if hint == Layout:
        return Kind("list", form="spec", words=("auto",))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return dataclasses.replace(_kind(arguments[0]), form=arguments[1])
    if origin in (types.UnionType, typing.Union):
        (held,) = (argument for argument in arguments if argument is not type(None))
        return dataclasses.replace(_kind(held), optional=True)
    if dataclasses.is_dataclass(hint):
        config = typing.cast("type[Any]", hint)
        hints = typing.get_type_hints(config, include_extras=True)
        keys = {name: _kind(inner) for name, inner in hints.items()}
        return Kind("mapping", keys=keys, config=config.__name__)
    if origin is dict:
        return Kind("mapping", items=_kind(arguments[1]))
    return Kind("list") if origin is list else Kind(_SCALARS.get(hint, "anything"))


def at(key: Key) -> Kind | None:
    """The kind of what may stand at `key`; None where there is no such key."""
    kind: Kind | None = root()
    for part in key:
        if kind is None or kind.name == "anything":
            return kind
        kind = kind.items if kind.keys is None else kind.keys.get(str(part))
    return kind


def siblings(key: Key) -> list[str]:
    """The keys that there are where `key` stands; none where the names are the user's own."""
    above = at(key[:-1])
    return list(above.keys or ()) if above else []


@dataclass(frozen=True)
class ShapeMisfit:
    """What cannot stand at a key; `name` is whether it is the key itself, and not its value."""

    fault: Fault
    name: bool


def misfits(value: Any, key: Key = ()) -> Iterator[ShapeMisfit]:
    """What is wrong with a value that stands at `key`, in the order in which it is written."""
    for length in range(1, len(key) + 1):
        if at(key[:length]) is None:
            yield ShapeMisfit(Fault(key[:length], _unknown(key[:length])), name=True)
            return
    kind = at(key)
    assert kind is not None
    yield from _misfits(value, key, kind)


def _misfits(value: Any, key: Key, kind: Kind) -> Iterator[ShapeMisfit]:
    if not _fits(value, kind):
        yield ShapeMisfit(Fault(key, _refusal(value, key, kind)), name=False)
        return
    if kind.name == "anything" or not is_mapping(value):
        return
    for name, inner in value.items():
        below = (*key, name)
        if not isinstance(name, str):
            yield ShapeMisfit(Fault(below, _not_a_name(name)), name=True)
        elif kind.keys is None:
            assert kind.items is not None
            yield from _misfits(inner, below, kind.items)
        elif name in kind.keys:
            yield from _misfits(inner, below, kind.keys[name])
        elif key or name not in _FILES:
            yield ShapeMisfit(Fault(below, _unknown(below)), name=True)


def _fits(value: Any, kind: Kind) -> bool:
    """Whether a value is of a kind. A text that holds a number is one, and an interpolation may become anything."""
    if kind.form == "sizes-of-axes" and is_mapping(value):
        # OmegaConf cannot merge it with the list of a mesh's file, and does not say where it is.
        return False
    if kind.name == "anything" or (isinstance(value, str) and ("${" in value or value == "???")):
        return True
    if value is None:
        return kind.optional
    match kind.name:
        case "mapping":
            return isinstance(value, Mapping)
        case "list":
            return isinstance(value, list) or value in kind.words or (kind.form == "spec" and _is_spec(value))
        case "text":
            return not isinstance(value, Mapping | list)
        case "flag":
            return isinstance(value, bool) or (isinstance(value, str) and value.lower() in _FLAGS)
        case _:
            return not isinstance(value, bool | Mapping | list) and _number(
                value, int if kind.name == "integer" else float
            )


def _is_spec(value: Any) -> bool:
    """Whether a value is a PartitionSpec as JAX has it."""
    if not specs.begins(value):
        return False
    try:
        specs.read(value)
    except specs.NoSpec:
        return False
    return True


def flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """What the keys of a configuration say that are true or false, and fit."""
    keys = [name for name, kind in (root().keys or {}).items() if kind.name == "flag" and name in config]
    return {name: _FLAGS[str(config[name]).lower()] for name in keys}


def _number(value: Any, read: type[int] | type[float]) -> bool:
    try:
        return read(value) == value or isinstance(value, str)
    except (ValueError, TypeError, OverflowError):
        return False


_GROUPS = ("hardware", "mesh", "rules", "target")
"""The keys that are config groups: a file chooses one of these by its defaults."""


def _refusal(value: Any, key: Key, kind: Kind) -> str:
    name = f"'{key[-1]}'" if key else "an experiment"
    if value is None:
        return f"{name} cannot be null: it is {_in_words(kind)}"
    if kind.form == "spec" and specs.begins(value):
        try:
            specs.read(value)
        except specs.NoSpec as error:
            return str(error)
    cure = ""
    if kind.name == "list" and not isinstance(value, Mapping):
        enumerated = WORD.match(f"{key_text(key)}={value}")
        cure = "; in a sweep that is all of them: add -m" if enumerated else f"; write [{value}]"
    if len(key) == 1 and key[0] in _GROUPS and isinstance(value, str):
        cure = f"; to choose a file write defaults: [override /{key[0]}: {value}]"
    if key[:1] == ("arrays",) and key[-1] == "specs":
        cure = "; the layout of one array is its 'spec'"
    return f"{name} is {_in_words(kind)}, not {described(value)}{cure}"


def _in_words(kind: Kind) -> str:
    if kind.name != "mapping":
        return _IN_WORDS.get(kind.name, "a list")
    keys = [f"'{key}'" for key in kind.keys or ()]
    return f"a mapping of {', '.join(keys[:4])}{', …' if len(keys) > 4 else ''}" if keys else "a mapping of names"


def described(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else "null" if value is None else f"{value!r}"


def listed(names: Sequence[str]) -> str:
    """`; there are x, y`: what there is instead, the first dozen of it."""
    if not names:
        return "; there is none yet"
    return f"; there are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"


def _unknown(key: Key) -> str:
    there = siblings(key)
    near = nearest(str(key[-1]), there)
    spelling = "; a mesh is written {axes: [x, y], shape: [2, 4]}" if key[:-1] == ("mesh",) and not near else ""
    return f"there is no key '{key[-1]}'{near or listed(there)}{spelling}"


def _not_a_name(name: Any) -> str:
    if isinstance(name, bool):
        return f"{name!r} is not a name; YAML reads yes, no, on and off as true and false: put it in quotes"
    return f"{name!r} is not a name; use letters, digits and '_'"
