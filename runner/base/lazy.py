"""Dataclasses and regular expressions that compile nothing until their first use: compiling took a quarter of a start.

`dataclasses.dataclass` compiles six functions for each class as its module is imported; most of the classes of a run
make no object, and most of the patterns match nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from reprlib import recursive_repr
from typing import Any, TypeVar, cast, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type[Any])


@overload
def dataclass(cls: _Class, /) -> _Class: ...
@overload
def dataclass(*, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Callable[[_Class], _Class]: ...
@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
def dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
    """Make a class a dataclass, with the options and the behaviour that they have in `dataclasses.dataclass`."""

    def make(cls: type[Any]) -> type[Any]:
        own = {name for name, value in vars(cls).items() if name != "__hash__" or value is not None}
        inherits = any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
        dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen and inherits, kw_only=kw_only)(cls)
        # A frozen class of the standard library inherits from frozen ones alone.
        cls.__dataclass_params__.frozen = frozen
        methods: dict[str, Any] = {"__init__": _first(cls, "__init__", _init, frozen), "__repr__": _repr}
        if frozen:
            methods |= {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        if eq:
            methods["__eq__"] = _first(cls, "__eq__", _eq, frozen)
            methods["__hash__"] = _first(cls, "__hash__", _hash, frozen) if frozen else None
        for name, method in methods.items():
            if name not in own:
                setattr(cls, name, method)
        return cls

    return make if cls is None else make(cls)


def _first(cls: type[Any], name: str, write: Callable[[type[Any], bool, dict[str, Any]], str], frozen: bool) -> Any:
    """The method `name` of a class until its first call, which compiles it, with what `write` gives it to read."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        names: dict[str, Any] = {}
        exec(write(cls, frozen, names), names)
        compiled = names[name]
        compiled.__qualname__ = f"{cls.__qualname__}.{name}"
        compiled.__module__ = cls.__module__
        setattr(cls, name, compiled)
        return compiled(self, *args, **kwargs)

    method.__name__ = name
    return method


def _init(cls: type[Any], frozen: bool, names: dict[str, Any]) -> str:
    """The text of `__init__`."""
    names |= {"_put": object.__setattr__, "_made": object()}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body = list[str]()
    for field in dataclasses.fields(cls):
        name = value = field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_factory_{name}"] = field.default_factory
            default, value = "=_made", f"_factory_{name}() if {name} is _made else {name}"
        if field.init:
            parameters[bool(field.kw_only)].append(f"{name}{default}")
        elif field.default_factory is dataclasses.MISSING:
            # Its default is an attribute of the class.
            continue
        else:
            value = f"_factory_{name}()"
        body.append(f"_put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    signature = ["self", *parameters[False], *(["*", *parameters[True]] if parameters[True] else [])]
    return f"def __init__({', '.join(signature)}):\n " + "\n ".join(body or ["pass"])


def _eq(cls: type[Any], frozen: bool, names: dict[str, Any]) -> str:
    """The text of `__eq__`."""
    compared = [field for field in dataclasses.fields(cls) if field.compare]
    equal = f"{_values('self', compared)} == {_values('other', compared)}"
    return f"def __eq__(self, other):\n return {equal} if other.__class__ is self.__class__ else NotImplemented"


def _hash(cls: type[Any], frozen: bool, names: dict[str, Any]) -> str:
    """The text of `__hash__`."""
    hashed = [field for field in dataclasses.fields(cls) if (field.compare if field.hash is None else field.hash)]
    return f"def __hash__(self):\n return hash({_values('self', hashed)})"


def _values(of: str, fields: list[dataclasses.Field[Any]]) -> str:
    return f"({''.join(f'{of}.{field.name}, ' for field in fields)})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_to_assign(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """What `re.compile` gives, for the calls of its methods; compiled at the first of them."""
    return cast("re.Pattern[str]", _Pattern(text, flags))


class _Pattern:
    """A regular expression until its first use, from which on it has the methods of the compiled one."""

    def __init__(self, text: str, flags: int) -> None:
        self._written = text, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(*self._written)
        for method in ("match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)
