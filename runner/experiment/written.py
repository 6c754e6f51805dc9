"""The lines of a section, a repeat or a function of the YAML, one by one with their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.faults import Key, invalid
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.experiment.config import schema
from runner.experiment.config.sources import one_by_one
from runner.experiment.forms import FORMS, check
from runner.experiment.plain import check_name
from runner.graph.source import SECTIONS, Section

BOTH = "both"
"""The key of the lines that both sections begin with."""


@dataclass(frozen=True)
class WrittenLine:
    """A line: the names that it defines, an expression or a repeat, and its key."""

    names: tuple[str, ...]
    value: Any
    key: Key


def of_section(config: Mapping[str, Any], section: Section) -> list[WrittenLine]:
    """The lines of a section: those of `both`, then its own."""
    return [*of(config[BOTH], (BOTH,), section, shared=True), *of(config[section], (section,), section, shared=False)]


def of(config: Mapping[str, Any], key: Key, section: Section, *, shared: bool) -> list[WrittenLine]:
    """The lines of a mapping, for a section.

    In a mapping that the sections share (`shared`), a line may differ between them, or belong to one of them.
    """
    lines: list[WrittenLine] = []
    for name, value in config.items():
        names, at = targets(name, (*key, name)), (*key, name)
        if is_choice(value):
            _check_choice(value, at, shared)
            if section not in value:
                continue
            value, at = value[section], (*at, section)
        lines.append(WrittenLine(names, value, at))
    return lines


def is_choice(value: Any) -> bool:
    """Whether a line is written as `{graph: …, per_device: …}`."""
    return isinstance(value, Mapping) and any(section in value for section in SECTIONS)


def _check_choice(value: Mapping[str, Any], key: Key, shared: bool) -> None:
    check(value, key, FORMS["choice"])
    if not shared:
        message = "a line of one section cannot differ between the sections; lines that do belong in 'both'"
        raise invalid(key, message)


def targets(name: object, key: Key) -> tuple[str, ...]:
    """The names before a line: `q`, or `q, k` if it defines several values."""
    names: list[Any] = name.split(",") if isinstance(name, str) else [name]
    names = [target.strip() if isinstance(target, str) else target for target in names]
    for i, target in enumerate(names):
        check_name(target, key)
        if target in names[:i]:
            raise invalid(key, f"'{target}' appears twice")
    return tuple(map(str, names))


def spread(config: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """The entry of each name, where `w1, w3: …` is an entry for both.

    Several such lines may name one value, with different keys; the line of a single name has precedence. The names are
    in the order in which they are first written.
    """
    values_of: dict[str, list[Any]] = {}
    alone: dict[str, Any] = {}
    for written, value in config.items():
        several = one_by_one(written)
        for name in several or [written]:
            before = values_of.setdefault(name, [])
            if not several:
                alone[name] = value
                continue
            if not name:
                raise invalid((*key, written), "a name is missing beside a comma")
            if several.count(name) > 1:
                raise invalid((*key, written), f"'{name}' appears twice")
            for earlier in before:
                twice = sorted(_given(earlier).keys() & _given(value).keys())
                if twice or not is_mapping(value):
                    what = f", with '{twice[0]}' in both" if twice else ""
                    raise invalid((*key, written), f"'{name}' appears twice{what}")
            before.append(value)
    return {
        name: _together([*several, *([alone[name]] if name in alone else [])]) for name, several in values_of.items()
    }


def _given(value: Any) -> dict[str, Any]:
    return schema.given(value) if is_mapping(value) else {}


def _together(configs: list[Any]) -> Any:
    """The entries of several lines for one name as one; the last line has precedence."""
    if len(configs) > 1 and all(map(is_mapping, configs)):
        return {entry: value for line in configs for entry, value in _given(line).items()}
    return configs[-1]


def all_names(config: Mapping[str, Any], key: Key) -> Iterator[tuple[str, Key]]:
    """Every name that the lines of a mapping define, those of repeats and their bodies too, with its key."""
    for name, value in config.items():
        yield from ((entry, (*key, name)) for entry in targets(name, (*key, name)))
        values = [value[section] for section in SECTIONS if section in value] if is_choice(value) else [value]
        for entry in values:
            body = entry.get("body") if is_mapping(entry) else None
            if is_mapping(body):
                yield from all_names(body, (*key, name, "body"))
