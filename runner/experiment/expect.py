"""Reads `expect` into the expectations of each program.

What the compiler must do, and which outputs are known to be `wrong`, may differ by program and by platform, as in
`collectives: {all-reduce: 1, tpu: {reduce-scatter: 1}, auto: {}}`. A value under a program or platform applies to that
one alone; the most specific value counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from runner.base.executions import Range
from runner.base.faults import Key, invalid, nearest
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.experiment.forms import FORMS, RANGE, check
from runner.experiment.program import Program
from runner.graph.source import Section

Value = TypeVar("Value")


@dataclass(frozen=True)
class Subject:
    """What an expectation is about.

    - `collectives`: those of the compiled module decide it, so a list of them that may be incomplete does not.
    - `lines`: it names lines or values of the experiment.
    - `one_device`: it is checked for a program on one device too.
    """

    collectives: bool = False
    lines: bool = False
    one_device: bool = False


def _about(default: Any = None, *, collectives: bool = False, lines: bool = False, one_device: bool = False) -> Any:
    return field(default=default, metadata={Subject: Subject(collectives, lines, one_device)})


@dataclass(frozen=True)
class Expectations:
    """The expectations of one program; None and empty if there are none.

    `collectives` is an exact count of every kind, zero for kinds that it does not name; a range is for branches.
    `layouts` are the specs of intermediate values of `graph`. `lowered_…` is about what the program asks for,
    `planned_…` about Shardy's plan, the others about the compiled module.
    """

    collectives: Mapping[str, int | Range] | None = _about(collectives=True)
    no_collectives: bool = _about(default=False, collectives=True)
    max_bytes_per_device: int | None = _about(collectives=True)
    max_memory_bytes: int | None = _about(one_device=True)
    state_layout: str | None = _about()
    accuracy: float | None = _about(one_device=True)
    overlapped: tuple[str, ...] = _about(default=(), collectives=True, lines=True)
    not_overlapped: tuple[str, ...] = _about(default=(), collectives=True, lines=True)
    layouts: Mapping[str, Spec] = field(default_factory=dict[str, Spec], metadata={Subject: Subject(lines=True)})
    lowered_collectives: Mapping[str, int | Range] | None = None
    lowered_no_collectives: bool = False
    lowered_max_bytes_per_device: int | None = None
    planned_collectives: Mapping[str, int | Range] | None = None
    planned_no_collectives: bool = False
    planned_max_bytes_per_device: int | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The names in `CHECKED` that apply to the program; an empty mapping of `collectives` and a zero count."""
        return tuple(name for name in CHECKED if getattr(self, name) != getattr(_NOTHING, name))


CHECKED = tuple(expectation.name for expectation in fields(Expectations))
"""The expectations of evidence, in the order in which they are checked and shown."""

SUBJECTS = {
    expectation.name: expectation.metadata[Subject]
    for expectation in fields(Expectations)
    if Subject in expectation.metadata
}
"""What each key of `expect` is about; `lowered_…` and `planned_…` are about what their last words are about."""

_NOTHING = Expectations()


@dataclass(frozen=True)
class ExpectableKeys:
    """The names that keys below an expectation may have."""

    programs: Collection[Program]
    platforms: Collection[str]
    lines: Mapping[Program, Collection[str]]
    """For each program the lines of its section: `C`, `ring.lhs`."""
    values: Collection[str]
    """The values of `graph`."""
    outputs: Collection[str]
    sections: Mapping[Program, Section]
    """The section of each program that the experiment does not have."""
    spec: Callable[[object, Key], Spec]
    """Reads the PartitionSpec at a key."""
    size: Callable[[object, Key], int]
    """Reads an integer, or an expression of dims and sizes of mesh axes."""
    generated: Collection[str] = ()
    """The names of lines of Python functions, which are known, but not suggested."""


def read(
    config: Mapping[str, Any], programs: Collection[Program], platform: str, names: ExpectableKeys
) -> dict[Program, Expectations]:
    """The expectations of each of `programs` on `platform`. Raises `InvalidExperiment` for invalid ones."""
    return {program: _of(config, program, platform, names) for program in programs}


def _of(config: Mapping[str, Any], program: Program, platform: str, names: ExpectableKeys) -> Expectations:
    def closest(name: str, read: Callable[[Any, Key], Value], of: str | None = None) -> Value | None:
        held: Mapping[str, Any] = config if of is None else config.get(of) or {}
        key = ("expect",) if of is None else ("expect", of)
        return _closest(held.get(name), (*key, name), program, platform, names, read)

    def communication(of: str | None = None) -> dict[str, Any]:
        expected = {
            "collectives": closest("collectives", lambda value, key: _counts(value, key, names), of),
            "no_collectives": closest("no_collectives", _flag, of) or False,
            "max_bytes_per_device": closest(
                "max_bytes_per_device", lambda value, key: _size(value, key, names, "bytes"), of
            ),
        }
        if expected["no_collectives"] and expected["collectives"]:
            prefix = "expect" if of is None else f"expect.{of}"
            key = ("expect", *([] if of is None else [of]), "no_collectives")
            raise invalid(key, f"{prefix}.collectives contradicts it for program {program}")
        return expected if of is None else {f"{of}_{name}": value for name, value in expected.items()}

    expectations = Expectations(
        **communication(),
        **communication("lowered"),
        **communication("planned"),
        max_memory_bytes=closest("max_memory_bytes", lambda value, key: _size(value, key, names, "bytes")),
        state_layout=closest("state_layout", _kept),
        accuracy=closest("accuracy", _number),
        overlapped=closest("overlapped", lambda value, key: _lines(value, key, names, program)) or (),
        not_overlapped=closest("not_overlapped", lambda value, key: _lines(value, key, names, program)) or (),
        layouts=closest("layouts", lambda value, key: _layouts(value, key, names)) or {},
    )
    both = next((line for line in expectations.overlapped if line in expectations.not_overlapped), None)
    if both is not None:
        raise invalid(("expect", "not_overlapped"), f"'{both}' is among expect.overlapped as well")
    return expectations


def _closest(
    value: Any, key: Key, program: Program, platform: str, names: ExpectableKeys, read: Callable[[Any, Key], Value]
) -> Value | None:
    """The expectation for the program on the platform; None if there is none."""
    plain = _plain(value, names)
    value_for = None if plain is None else read(plain, key)
    if is_mapping(value):
        # Every branch is read, so that faults are found whichever program runs.
        inner = {
            branch: _closest(value[branch], (*key, branch), program, platform, names, read)
            for branch in value
            if branch in names.programs or branch in names.platforms
        }
        for branch in (platform, program):
            if branch in inner:
                value_for = inner[branch]
    return value_for


def _plain(value: Any, names: ExpectableKeys) -> Any:
    """The value beside the programs and platforms; None if there is none."""
    if not is_mapping(value):
        return value
    rest = {k: v for k, v in value.items() if k not in names.programs and k not in names.platforms}
    return rest if rest or not value else None


def _kept(value: Any, key: Key) -> str:
    if value != "kept":
        raise invalid(key, f"{value!r} is not 'kept': the state of a step comes out laid out as it went in")
    return value


def _counts(value: Any, key: Key, names: ExpectableKeys) -> dict[str, int | Range]:
    check(value, key, FORMS["counts"])
    return {kind: _count(count, (*key, kind), names, f"{kind}s") for kind, count in value.items()}


def _count(value: Any, key: Key, names: ExpectableKeys, what: str) -> int | Range:
    if not is_mapping(value):
        return _size(value, key, names, what)
    least, most = (_size(value.get(end, 0), (*key, end), names, what) for end in RANGE.keys)
    if least > most:
        raise invalid(key, f"no number is at least {least} and at most {most}")
    return Range(min=least, max=most)


def _flag(value: Any, key: Key) -> bool:
    check(value, key, FORMS["promise"])
    return value


def _number(value: Any, key: Key) -> float:
    check(value, key, FORMS["accuracy"])
    return float(value)


def _size(value: Any, key: Key, names: ExpectableKeys, what: str) -> int:
    size = names.size(value, key)
    if size < 0:
        raise invalid(key, f"{size} is not a number of {what}")
    return size


def _lines(value: Any, key: Key, names: ExpectableKeys, program: Program) -> tuple[str, ...]:
    check(value, key, FORMS["some-lines"])
    every = {line for lines in names.lines.values() for line in lines}
    for i, line in enumerate(value):
        if not isinstance(line, str) or line not in every:
            written = sorted(every - {*names.generated})
            raise invalid((*key, i), f"there is no line {line!r}{nearest(str(line), written) or _list(written)}")
    # Expectations of per_device name lines that the graph does not have.
    return tuple(line for line in value if line in names.lines[program])


def _layouts(value: Any, key: Key, names: ExpectableKeys) -> dict[str, Spec]:
    check(value, key, FORMS["layouts"])
    for name in value:
        if name not in names.values:
            written = sorted({*names.values} - {*names.generated})
            hint = nearest(str(name), written) or _list(written)
            raise invalid((*key, name), f"graph computes no '{name}'{hint}")
    return {name: names.spec([] if spec is None else spec, (*key, name)) for name, spec in value.items()}


# Experiments that are expected to be refused.


def refusal(config: Mapping[str, Any]) -> str | None:
    """The text that the refusal's message must contain; None if no refusal is expected.

    It is read separately, since any other part of the configuration may be invalid. Raises `InvalidExperiment`.
    """
    expect: Mapping[str, Any] = config.get("expect") or {}
    refusal = expect.get("invalid")
    if refusal is None:
        return None
    check(refusal, ("expect", "invalid"))
    return refusal


# Outputs that are known to be wrong.


def known_wrong(
    config: Mapping[str, Any], programs: Collection[Program], platform: str, names: ExpectableKeys
) -> dict[Program, dict[str, str]]:
    """For each program the outputs that are known to be wrong on `platform`, with versions of JAX: "" for all.

    Raises `InvalidExperiment` for invalid entries.
    """
    key, value = ("expect", "wrong"), config["wrong"]
    _refuse_absent(value, key, names)

    def of(program: Program) -> dict[str, str]:
        return _closest(value, key, program, platform, names, lambda value, key: _wrong(value, key, names)) or {}

    return {program: of(program) for program in programs}


def _refuse_absent(value: Any, key: Key, names: ExpectableKeys) -> None:
    """Raise `InvalidExperiment` for a program that the experiment cannot have."""
    for branch in value if is_mapping(value) else ():
        if branch in names.sections:
            message = (
                f"program '{branch}' is written from {names.sections[branch]}, which this experiment does not have"
            )
            there = [program for program in names.programs if program not in names.sections]
            raise invalid((*key, branch), message + _list(there))
        if branch in names.programs or branch in names.platforms:
            _refuse_absent(value[branch], (*key, branch), names)


def _wrong(value: Any, key: Key, names: ExpectableKeys) -> dict[str, str]:
    if is_mapping(value):
        return {
            _output(name, (*key, name), names): _versions(versions, (*key, name)) for name, versions in value.items()
        }
    if is_list(value):
        return {_output(name, (*key, i), names): "" for i, name in enumerate(value)}
    return {_output(value, key, names): ""}


def _output(name: Any, key: Key, names: ExpectableKeys) -> str:
    if not isinstance(name, str) or name not in names.outputs:
        known = (*names.outputs, *names.programs, *names.platforms)
        hint = nearest(str(name), known) or f"; the outputs are {', '.join(names.outputs)}"
        raise invalid(key, f"{name!r} is neither an output, nor a program or platform{hint}")
    return name


def _versions(versions: Any, key: Key) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        if isinstance(versions, str) and len(SpecifierSet(versions)):
            return versions
    except InvalidSpecifier:
        pass
    raise invalid(key, f"{versions!r} names no versions of JAX; write '<0.12' or '>=0.10, !=0.11.1'")


def among(version: str, versions: str) -> bool:
    """Whether a version of JAX, even an unreleased one, satisfies a specifier; "" is satisfied by all."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(versions).contains(version, prereleases=True)


def _list(names: Collection[str]) -> str:
    return f"; there are {', '.join(names)}" if names else ""
