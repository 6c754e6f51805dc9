"""Dataclasses that are compiled at their first use behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass as standard
from dataclasses import field, replace
from typing import Any

import pytest

from runner.base.lazy import dataclass as lazy
from runner.base.lazy import pattern as lazy_pattern

Decorator = Callable[..., Any]


def classes(dataclass: Decorator) -> dict[str, type[Any]]:
    """Classes with all that is used of dataclasses here."""

    @dataclass(frozen=True)
    class Point:
        """Two coordinates, and what is not compared, shown or given."""

        x: int
        y: tuple[int, ...] = ()
        names: list[str] = field(default_factory=lambda: ["a"], hash=False)
        note: str = field(default="n", compare=False, repr=False)
        own: int = field(default=7, init=False)
        made: dict[str, int] = field(default_factory=dict, init=False, compare=False)
        last: int = field(default=0, kw_only=True)

    @dataclass(frozen=True)
    class Solid(Point):
        z: int = 3

        def __post_init__(self) -> None:
            if self.z < 0:
                raise ValueError("z is negative")

    @dataclass
    class Count:
        number: int

        def __repr__(self) -> str:
            return "a count"

        def __hash__(self) -> int:
            return 5

    @dataclass(kw_only=True)
    class Named:
        name: str
        size: int = 1

    @dataclass(frozen=True, eq=False)
    class Identity:
        value: int

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class Compared:
        value: int

        def __eq__(self, other: object) -> bool:
            return True

    return {name: each for name, each in locals().items() if isinstance(each, type)}


ATTEMPTS: dict[str, Callable[[dict[str, type[Any]]], Any]] = {
    "defaults": lambda of: vars(of["Point"](1)),
    "all arguments": lambda of: vars(of["Point"](1, (2,), ["b"], "m", last=4)),
    "own defaults of each object": lambda of: of["Point"](1).names is not of["Point"](1).names,
    "shown": lambda of: repr(of["Solid"](1, z=9)),
    "shown within itself": lambda of: (point := of["Point"](1), point.names.append(point), repr(point))[2],
    "equal": lambda of: [of["Point"](1) == of["Point"](1, note="m"), of["Point"](1) == of["Point"](2)],
    "not of one class": lambda of: of["Solid"](1) == of["Point"](1),
    "same hash": lambda of: hash(of["Point"](1, names=["c"])) == hash(of["Point"](1)),
    "in a set": lambda of: len({of["Point"](1), of["Point"](1), of["Solid"](1)}),
    "one value in a set": lambda of: len({of["Compared"](1), of["Compared"](2)}),
    "nothing in it": lambda of: [of["Empty"]() == of["Empty"](), repr(of["Empty"]())],
    "by identity": lambda of: [of["Identity"](1) == of["Identity"](1), len({of["Identity"](1), of["Identity"](1)})],
    "methods of its own": lambda of: [repr(of["Count"](1)), hash(of["Count"](1)), of["Count"](1) == of["Count"](1)],
    "mutable": lambda of: (count := of["Count"](1), setattr(count, "number", 2), count.number)[2],
    "no hash": lambda of: hash(of["Named"](name="a")),
    "changed": lambda of: vars(replace(of["Solid"](1), z=4)),
    "as a mapping": lambda of: dataclasses.asdict(of["Solid"](1)),
    "copied": lambda of: copy.deepcopy(of["Solid"](1)) == of["Solid"](1),
    "fields": lambda of: [(each.name, each.type, each.kw_only) for each in dataclasses.fields(of["Solid"])],
    "matched": lambda of: of["Solid"].__match_args__,
    "checked at the end": lambda of: of["Solid"](1, z=-1),
    "changed to what is refused": lambda of: replace(of["Solid"](1), z=-1),
    "an argument missing": lambda of: of["Point"](),
    "an argument too many": lambda of: of["Empty"](1),
    "an unknown argument": lambda of: of["Point"](1, colour="red"),
    "a name missing": lambda of: of["Named"]("a"),
    "assigned": lambda of: setattr(of["Point"](1), "x", 2),
    "assigned in a subclass": lambda of: setattr(of["Solid"](1), "z", 2),
    "deleted": lambda of: delattr(of["Point"](1), "x"),
    "ordered": lambda of: of["Point"](1) < of["Point"](2),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_lazy_dataclass_does_what_one_of_the_standard_library_does(attempt: str) -> None:
    def outcome(dataclass: Decorator) -> str:
        # Each attempt is the first use of its classes; its second finds them compiled.
        of, outcomes = classes(dataclass), list[str]()
        for _ in range(2):
            try:
                outcomes.append(repr(ATTEMPTS[attempt](of)))
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    assert outcome(lazy) == outcome(standard)


@lazy(frozen=True)
class Sent:
    """One that another process can import."""

    value: int


def test_a_lazy_dataclass_is_compiled_at_its_first_use_and_crosses_to_other_processes() -> None:
    assert "value" not in Sent.__init__.__code__.co_varnames
    assert pickle.loads(pickle.dumps(Sent(3))) == Sent(3)
    assert "value" in Sent.__init__.__code__.co_varnames


@pytest.mark.parametrize("base", [lazy, standard])
@pytest.mark.parametrize("derived", [lazy, standard])
@pytest.mark.parametrize("frozen", [(True, True), (True, False), (False, True), (False, False)])
def test_one_inherits_from_the_other_where_both_of_the_standard_library_could(
    base: Decorator, derived: Decorator, frozen: tuple[bool, bool]
) -> None:
    def outcome(base: Decorator, derived: Decorator) -> str:
        @base(frozen=frozen[0])
        class First:
            x: int

        try:

            @derived(frozen=frozen[1])
            class Second(First):
                y: int = 2

            made = Second(1)
            made.x = 3
        except (TypeError, dataclasses.FrozenInstanceError) as error:
            return f"{type(error).__name__}: {error}"
        return repr(made)

    assert outcome(base, derived) == outcome(standard, standard)


def test_a_pattern_is_what_re_compile_gives_from_its_first_use_on() -> None:
    text = "x0 = y1 = X2"
    for method in ("match", "fullmatch", "search", "findall", "split"):
        pattern = lazy_pattern(r"x(\d)", re.IGNORECASE)
        expected = getattr(re.compile(r"x(\d)", re.IGNORECASE), method)(text)
        assert str(getattr(pattern, method)(text)) == str(expected)
        assert pattern.sub("z", text) == "z = y1 = z"
        assert pattern.groups == 1


def test_a_wrong_pattern_is_refused_at_its_first_use() -> None:
    pattern = lazy_pattern("(")
    with pytest.raises(re.error, match="unterminated subpattern"):
        pattern.search("x")
