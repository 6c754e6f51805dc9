"""The `expect` of a configuration in; what each program is held to out.

Every expectation but `values` may differ by program and by platform, as in
`collectives: {all-reduce: 1, tpu: {reduce-scatter: 1}, auto: {}}`. What stands under a program binds that program, what
stands under a platform that platform, and the closest one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from runner.faults import Key, invalid, nearest
from runner.layout import Spec

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast", "send", "recv",
)  # fmt: skip
"""The kinds of collectives, as XLA calls them."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Expectations:
    """What one program is held to; None and empty where nothing is expected.

    `collectives` counts every kind, those that it does not name being zero. `layouts` are the specs of values in the
    middle of `graph`.
    """

    collectives: Mapping[str, int] | None = None
    no_collectives: bool = False
    max_bytes_per_device: int | None = None
    max_memory_bytes: int | None = None
    overlapped: tuple[str, ...] = ()
    not_overlapped: tuple[str, ...] = ()
    layouts: Mapping[str, Spec] = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """Those of `CHECKED` that bind the program: an empty mapping of `collectives` and a zero promise something."""
        return tuple(name for name in CHECKED if getattr(self, name) != getattr(_NOTHING, name))


CHECKED = tuple(expectation.name for expectation in fields(Expectations))
"""The expectations of evidence, in the order in which they are checked and shown."""

_NOTHING = Expectations()


@dataclass(frozen=True)
class Names:
    """What the keys below an expectation may be."""

    programs: Collection[str]
    platforms: Collection[str]
    lines: Mapping[str, Collection[str]]
    """Per program the lines of its section: `C`, `ring.lhs`."""
    values: Collection[str]
    """The values of `graph`."""
    spec: Callable[[object, Key], Spec]
    """Reads a PartitionSpec that stands at a key."""
    size: Callable[[object, Key], int]
    """Reads an integer, or an expression of dims and sizes of mesh axes."""


def read(config: Mapping[str, Any], programs: Collection[str], platform: str, names: Names) -> dict[str, Expectations]:
    """What each of `programs` is held to on `platform`. Raises `InvalidExperiment` for what cannot be meant."""
    return {program: _of(config, program, platform, names) for program in programs}


def _of(config: Mapping[str, Any], program: str, platform: str, names: Names) -> Expectations:
    def closest(name: str, read: Callable[[Any, Key], Value]) -> Value | None:
        return _closest(config.get(name), ("expect", name), program, platform, names, read)

    found = Expectations(
        collectives=closest("collectives", lambda value, key: _counts(value, key, names)),
        no_collectives=closest("no_collectives", _flag) or False,
        max_bytes_per_device=closest("max_bytes_per_device", lambda value, key: _size(value, key, names, "bytes")),
        max_memory_bytes=closest("max_memory_bytes", lambda value, key: _size(value, key, names, "bytes")),
        overlapped=closest("overlapped", lambda value, key: _lines(value, key, names, program)) or (),
        not_overlapped=closest("not_overlapped", lambda value, key: _lines(value, key, names, program)) or (),
        layouts=closest("layouts", lambda value, key: _layouts(value, key, names)) or {},
    )
    if found.no_collectives and found.collectives:
        raise invalid(("expect", "no_collectives"), f"expect.collectives says otherwise for program {program}")
    both = next((line for line in found.overlapped if line in found.not_overlapped), None)
    if both is not None:
        raise invalid(("expect", "not_overlapped"), f"'{both}' is among expect.overlapped as well")
    return found


def _closest(
    value: Any, key: Key, program: str, platform: str, names: Names, read: Callable[[Any, Key], Value]
) -> Value | None:
    """What `value` says for the program on the platform; None where it says nothing."""
    plain = _plain(value, names)
    found = None if plain is None else read(plain, key)
    if isinstance(value, Mapping):
        # Every branch is read, so that a fault is found whichever program runs.
        inner = {
            branch: _closest(value[branch], (*key, branch), program, platform, names, read)
            for branch in value
            if branch in names.programs or branch in names.platforms
        }
        for branch in (platform, program):
            if branch in inner:
                found = inner[branch]
    return found


def _plain(value: Any, names: Names) -> Any:
    """What stands beside the programs and platforms; None where there are only such."""
    if not isinstance(value, Mapping):
        return value
    rest = {k: v for k, v in value.items() if k not in names.programs and k not in names.platforms}
    return rest if rest or not value else None


def _counts(value: Any, key: Key, names: Names) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise invalid(key, f"{value!r} is not a mapping of kinds to numbers, such as {{all-reduce: 1}}")
    for kind in value:
        if kind not in KINDS:
            raise invalid((*key, kind), f"there is no collective '{kind}'{nearest(str(kind), KINDS) or _list(KINDS)}")
    return {kind: _size(count, (*key, kind), names, f"{kind}s") for kind, count in value.items()}


def _flag(value: Any, key: Key) -> bool:
    if not isinstance(value, bool):
        raise invalid(key, f"{value!r} is neither true nor false")
    return value


def _size(value: Any, key: Key, names: Names, what: str) -> int:
    size = names.size(value, key)
    if size < 0:
        raise invalid(key, f"{size} is not a number of {what}")
    return size


def _lines(value: Any, key: Key, names: Names, program: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise invalid(key, f"{value!r} is not a list of lines, such as [C, ring.lhs]")
    every = {line for lines in names.lines.values() for line in lines}
    for i, line in enumerate(value):
        if line not in every:
            raise invalid((*key, i), f"there is no line {line!r}{nearest(str(line), every) or _list(sorted(every))}")
    # What is written for per_device names lines that the graph does not have.
    return tuple(line for line in value if line in names.lines[program])


def _layouts(value: Any, key: Key, names: Names) -> dict[str, Spec]:
    if not isinstance(value, Mapping):
        raise invalid(key, f"{value!r} is not a mapping of names to PartitionSpecs")
    for name in value:
        if name not in names.values:
            hint = nearest(str(name), names.values) or _list(sorted(names.values))
            raise invalid((*key, name), f"graph computes no '{name}'{hint}")
    return {name: names.spec([] if spec is None else spec, (*key, name)) for name, spec in value.items()}


def _list(names: Collection[str]) -> str:
    return f"; there are {', '.join(names)}" if names else ""
