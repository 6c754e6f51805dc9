"""Makes dataclasses as the standard library does, in a quarter of the time.

A run defines hundreds of them before it begins, and the standard decorator compiles up to six methods for each. Here
only `__init__` is compiled; the others read the names of the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound="type[Any]")

_MADE: Any = object()
"""The default of a parameter whose value a factory makes."""


@overload
def dataclass(cls: _Class, /) -> _Class: ...


@overload
def dataclass(*, frozen: bool = False, kw_only: bool = False) -> Callable[[_Class], _Class]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(cls: Any = None, /, *, frozen: bool = False, kw_only: bool = False) -> Any:
    """Like `dataclasses.dataclass`; the bases of a class are made by the same one of the two decorators."""

    def made(cls: Any) -> Any:
        if cls.__doc__ is None:
            # The standard library would take the signature for it.
            cls.__doc__ = cls.__name__
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        fields = dataclasses.fields(cls)
        compared = _values([field.name for field in fields if field.compare])
        methods: dict[str, Any] = {
            "__init__": _init(cls, fields, frozen=frozen),
            "__repr__": _repr([field.name for field in fields if field.repr]),
            "__eq__": _eq(compared),
            "__hash__": _hash(compared) if frozen else None,
        }
        if frozen:
            methods |= {"__setattr__": _refuse_setting, "__delattr__": _refuse_deleting}
        for name, method in methods.items():
            # A class that has `__eq__` and no `__hash__` has None for it.
            if cls.__dict__.get(name) is None:
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


def _init(cls: type[Any], fields: Sequence[dataclasses.Field[Any]], *, frozen: bool) -> Callable[..., None]:
    """The only method that is compiled: its parameters are the fields."""
    space: dict[str, Any] = {"__made__": _MADE, "__set_field__": object.__setattr__}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    lines: list[str] = []
    for field in fields:
        name, parameter = field.name, field.name
        value = name if field.init else None
        if field.default_factory is not dataclasses.MISSING:
            space[make := f"__make_{name}__"] = field.default_factory
            parameter = f"{name}=__made__"
            value = f"{make}() if {name} is __made__ else {name}" if field.init else f"{make}()"
        elif field.default is not dataclasses.MISSING:
            space[default := f"__default_{name}__"] = field.default
            parameter = f"{name}={default}"
        if field.init:
            parameters[bool(field.kw_only)].append(parameter)
        if value is not None:
            lines.append(f"__set_field__(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *named])}):"
    exec("\n ".join([head, *(lines or ["pass"])]), space)  # as the standard library does
    space["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return space["__init__"]


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _eq(compared: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def __eq__(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(compared: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(compared(self))

    return __hash__


def _refuse_setting(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
