"""Our dataclasses behave as those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from runner.base import dataclass as ours

DECORATORS = (dataclasses.dataclass, ours.dataclass)


def classes(**how: bool) -> list[type[Any]]:
    """Return the same class by both decorators."""

    def made(decorator: Callable[..., Any]) -> type[Any]:
        @decorator(**how)
        class Shape:
            made: int
            name: str = ""
            sizes: list[int] = field(default_factory=list[int])
            note: str = field(default="-", compare=False, repr=False)
            fixed: list[int] = field(default_factory=lambda: [1], init=False)
            constant: int = field(default=7, init=False)

            def __post_init__(self) -> None:
                self.sizes.append(self.made)

        return Shape

    return [made(decorator) for decorator in DECORATORS]


@pytest.mark.parametrize("how", [{}, {"frozen": True}, {"kw_only": True}, {"frozen": True, "kw_only": True}])
def test_values_are_as_the_standard_librarys(how: dict[str, bool]) -> None:
    shown: list[Any] = []
    for kind in classes(**how):
        value, same, other = kind(made=1), kind(made=1, note="else"), kind(made=2, name="b", sizes=[5])
        shown.append((
            repr(value), repr(other), value == same, value == other, value == 1, kind.__match_args__, vars(other),
            dataclasses.asdict(dataclasses.replace(value, name="c")) if not how.get("frozen") else None,
            [parameter.kind for parameter in inspect.signature(kind).parameters.values()],
            [*inspect.signature(kind).parameters], copy.deepcopy(other) == other, kind.__hash__ is None,
        ))  # fmt: skip
    assert shown[0] == shown[1]
    assert shown[1][2:4] == (True, False)


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_frozen_one_refuses_to_be_changed(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True)
    class Point:
        x: int
        y: int = 0

    @decorator(frozen=True)
    class Named(Point):
        name: str = ""

    point = Named(1, name="a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert {point: 1}[Named(1, 0, "a")] == 1
    assert hash(Point(1)) == hash((1, 0))
    assert Point(1) != Named(1)
    with pytest.raises(TypeError, match=r"Named\.__init__\(\) missing 1 required positional argument: 'x'"):
        Named()


def test_what_a_class_defines_is_kept() -> None:
    kept: list[Any] = []
    for decorator in DECORATORS:

        @decorator(frozen=True)
        class Loud:
            x: int

            def __repr__(self) -> str:
                return "loud"

            def __eq__(self, other: object) -> bool:
                return True

        kind: Any = Loud
        kept.append((repr(kind(1)), kind(1) == kind(2), hash(kind(1)) == hash((1,))))
    assert kept[0] == kept[1] == ("loud", True, True)


@ours.dataclass(frozen=True)
class Sent:
    x: int
    rest: tuple[int, ...] = ()


def test_it_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


def test_a_field_without_a_default_behind_one_with_a_default_is_refused() -> None:
    fields = {"__annotations__": {"x": "int", "y": "int"}, "x": 1, "__module__": __name__}
    with pytest.raises(SyntaxError, match="default"):
        ours.dataclass(type("Wrong", (), fields))
