"""Says how the pins of two programs differ, in the field's words, one sentence each.

`all-gather of w for y over x appeared in constraint: +1.0 MB sent per device`. The messages of goldens and
`runner/app/cli/compare.py` use these sentences.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.base import codec, executions
from runner.base.executions import Count, Range
from runner.base.layout import Spec, spec_text
from runner.base.untyped import is_list, is_mapping
from runner.base.words import bytes_text
from runner.compiled.evidence import words
from runner.compiled.evidence.model import Between, Collective
from runner.reports.record.golden import NAMES, OPERANDS, OUTPUT, WHERE_SET, Pinned


def of_program(program: str, before: Pinned, after: Pinned) -> list[str]:
    """Return the differences between two pins of the program with that name; empty if there are none."""
    names: Mapping[str, str] = after.get(NAMES, {})
    before, after = _renamed(before, _moved_names(before.get(NAMES, names), names)), _renamed(after, names)
    lines: list[str] = []
    if (before.get("dims") or {}) != (after.get("dims") or {}):
        lines.append(f"{program} ran at {_dims(after)}, before at {_dims(before)}")
    lines += _of_operands(before.get(OPERANDS), after.get(OPERANDS))
    lines += _of_collectives(program, before, after)
    lines += _of_bytes(program, before.get("bytes"), after.get("bytes"))
    lines += _of_outputs(program, before.get("outputs"), after.get("outputs"))
    compared = ("dims", "collectives", "collectives_incomplete", "bytes", "outputs", NAMES, OPERANDS)
    lines += [
        f"{key} of {program}: {_change(before.get(key), after.get(key))}"
        for key in sorted({*before, *after} - set(compared))
        if before.get(key) != after.get(key)
    ]
    return lines


def _moved_names(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the names of `before` with the new place of each line of Python that only moved: its text is the same."""
    places: dict[str, set[str]] = {}
    for shown in after.values():
        places.setdefault(_without_number(shown), set()).add(shown)
    names: dict[str, str] = {}
    for name, shown in before.items():
        same = places.get(_without_number(shown), set())
        moved = after.get(name) if after.get(name) in same else next(iter(same)) if len(same) == 1 else None
        names[name] = moved or shown
    return names


def _without_number(shown: str) -> str:
    return _PLACE.sub(r"\1", shown)


_PLACE = re.compile(r"^([^\s:]+):\d+(?= )")
"""The place of a line of Python, `llama.py:41`, in its readers' name."""


def _renamed(pin: Pinned, names: Mapping[str, str]) -> Pinned:
    """Return a pin with the names that readers know; lines with one name are one line to them."""

    def renamed(value: Any) -> Any:
        if is_mapping(value):
            return {key: renamed(part) for key, part in value.items()}
        if is_list(value):
            return list(dict.fromkeys(map(renamed, value)))
        return names.get(value, value)

    if not names:
        return pin
    whole: dict[str, Any] = dict(pin)
    if pin.get("collectives") is not None:
        named = ("node", "nodes", "between", "overlapped")
        collectives = [
            {key: renamed(value) if key in named else value for key, value in collective.items()}
            for collective in pin["collectives"]
        ]
        # As in a golden, a single line has no list.
        whole["collectives"] = [
            {key: value for key, value in collective.items() if key != "nodes" or len(value) > 1}
            for collective in collectives
        ]
    for key in ("outputs", "bytes"):
        if pin.get(key) is not None:
            whole[key] = {names.get(name, name): value for name, value in pin[key].items()}
    return whole


def _dims(pin: Pinned) -> str:
    dims = pin.get("dims")
    return ", ".join(f"{name}={size}" for name, size in dims.items()) if dims else "the dims of its file"


def _plain(value: Any) -> str:
    if is_list(value) and all(isinstance(part, str) for part in value):
        return ", ".join(value) or "none"
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _change(before: Any, after: Any, text: Callable[[Any], str] = _plain) -> str:
    """Return `old → new`, each as a `text` or, if these are equal, as JSON."""
    texts = [text(before), text(after)]
    if texts[0] == texts[1]:
        texts = ["none" if value is None else json.dumps(value, ensure_ascii=False) for value in (before, after)]
    return " → ".join(texts)


# Bytes.


def bytes_change(before: int | None, after: int | None) -> str:
    """Return `64 B → 128 B`, with all digits if rounding would hide the change."""
    texts = ["unknown" if count is None else bytes_text(count) for count in (before, after)]
    if texts[0] == texts[1] and before is not None and after is not None:
        texts = [f"{before:,} B", f"{after:,} B"]
    return " → ".join(texts)


def _of_bytes(program: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    if before is None or after is None:
        return [] if before == after else [_one_sided(f"the bytes of {program}'s arguments and outputs", before)]
    return [
        f"{name}s of {program}: {bytes_change(before.get(name), after.get(name))} per device"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _one_sided(what: str, before: Any) -> str:
    return f"{what} are known only {'now' if before is None else 'before'}"


# Layouts.


def _spec(pinned: Sequence[Any] | None) -> str:
    return spec_text(None if pinned is None else Spec.of(pinned))


def _output(output: Mapping[str, Any]) -> str:
    return f"{output['dtype']}{output['shape']} {_spec(output['spec'])}"


def _of_operands(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """The operands that are given in other layouts, where both sides know them."""
    if before is None or after is None:
        return []
    return [
        f"operand {name}: {_spec(before[name])} → {_spec(spec)}"
        for name, spec in after.items()
        if name in before and before[name] != spec
    ]


def _of_outputs(program: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    if before is None or after is None:
        return [] if before == after else [_one_sided(f"the outputs of {program}", before)]
    lines: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None:
            lines.append(f"output {name} appeared in {program}: {_output(after[name])}")
            continue
        if new is None:
            lines.append(f"output {name} disappeared from {program}: {_output(old)}")
            continue
        changes = [
            f"{key.replace('_', ' ')} {_change(old.get(key), new.get(key), _spec if key == 'spec' else _plain)}"
            for key in sorted({*old, *new}, key=lambda key: ((*OUTPUT, key).index(key), key))
            if old.get(key) != new.get(key)
        ]
        if changes:
            lines.append(f"output {name} of {program}: {', '.join(changes)}")
    return lines


# Collectives.


def _of_collectives(program: str, before: Pinned, after: Pinned) -> list[str]:
    old, new = before.get("collectives"), after.get("collectives")
    lines: list[str] = []
    if before.get("collectives_incomplete", False) != after.get("collectives_incomplete", False):
        read = "only in part now" if after.get("collectives_incomplete") else "completely now, before only in part"
        lines.append(f"the compiled module of {program} is read {read}")
    if old is None or new is None:
        return lines if old == new else [*lines, _one_sided(f"the collectives of {program}", old)]
    # Older goldens do not have the bytes sent: that is not a difference.
    unsaid = () if all("bytes_sent" in pin for pin in (*old, *new)) else ("bytes_sent",)
    return lines + _changes(program, _units(old, unsaid), _units(new, unsaid))


def _units(listed: Sequence[Mapping[str, Any]], unsaid: Sequence[str]) -> Counter[str]:
    """Count equal collectives as JSON text, without the fields that some pins leave `unsaid`."""
    units: Counter[str] = Counter()
    for pin in listed:
        fields = {key: value for key, value in pin.items() if value or key not in WHERE_SET}
        fields = {key: value for key, value in fields.items() if key not in ("times", *unsaid)}
        units[json.dumps(fields, sort_keys=True)] += pin.get("times") or 1
    return units


def _entry(pin: Mapping[str, Any]) -> Collective:
    """Return a pinned collective in the record's form, with the fields that sentences need."""
    node, between = pin.get("node"), pin.get("between")
    return Collective(
        kind=pin["kind"],
        node=node,
        nodes=pin.get("nodes") or ([node] if node else []),
        gradient=pin.get("gradient", False),
        inserted=pin.get("inserted", False),
        between=Between(source=between["from"], to=between["to"]) if between else None,
        axes=pin.get("axes"),
        groups=pin.get("groups"),
        dtype=pin.get("dtype") or "",
        bytes_in=pin.get("bytes_in"),
        bytes_out=pin.get("bytes_out"),
        bytes=None,
        bytes_sent=pin.get("bytes_sent"),
        count=_count(pin),
        asynchronous=pin.get("asynchronous", False),
        overlapped=pin.get("overlapped"),
        instruction="",
    )


_ALIKE: tuple[Callable[[Pinned], Any], ...] = (
    lambda pin: (words.subject(_entry(pin)), pin["kind"], pin.get("axes"), pin.get("inserted")),
    lambda pin: (_line(pin), pin["kind"], pin.get("gradient"), pin.get("axes"), pin.get("inserted")),
    lambda pin: (_line(pin), pin["kind"], pin.get("gradient"), pin.get("axes")),
    lambda pin: (_line(pin), pin["kind"], pin.get("gradient")),
    lambda pin: (pin["kind"], pin.get("axes"), pin.get("dtype"), pin.get("bytes_in"), pin.get("bytes_out")),
)
"""The keys by which old and new collectives are matched, the strictest first."""


def _line(pin: Mapping[str, Any]) -> Any:
    return pin.get("nodes") or pin.get("node")


def _changes(program: str, before: Counter[str], after: Counter[str]) -> list[str]:
    gone, come = list((before - after).elements()), list((after - before).elements())
    pairs: Counter[tuple[str, str]] = Counter()
    for alike in _ALIKE:
        for text in list(gone):
            match = next(
                (candidate for candidate in come if alike(json.loads(candidate)) == alike(json.loads(text))), None
            )
            if match is not None:
                gone.remove(text)
                come.remove(match)
                pairs[text, match] += 1
    changes = [(json.loads(old), json.loads(new), n) for (old, new), n in pairs.items()]
    moved = [change for change in changes if _is_relined(*change[:2])]
    if len(moved) > 1:
        changes = [change for change in changes if change not in moved]
    lines = [_changed(program, *change) for change in changes]
    lines += [_relined(program, moved)] if len(moved) > 1 else []
    for texts, sign in ((gone, -1), (come, 1)):
        for text, n in Counter(texts).items():
            whole = before[text] if sign < 0 else after[text]
            lines.append(_appeared(program, json.loads(text), sign, n, whole))
    return lines


_OF_LINES = {"node", "nodes", "between", "overlapped", "backward", "gradient"}
"""The fields of a pinned collective that say which lines it belongs to."""


def _is_relined(old: Pinned, new: Pinned) -> bool:
    """Whether two collectives differ only in the lines to which they belong."""
    return all(old.get(key) == new.get(key) for key in {*old, *new} - _OF_LINES)


def _relined(program: str, changes: Sequence[tuple[Pinned, Pinned, int]]) -> str:
    """The sentence for several collectives that differ only in their lines."""
    count = sum(times for _, _, times in changes)
    named = ((old["kind"], _subject(old), _subject(new)) for old, new, _ in changes)
    first = next((f"; {kind} of {was} is now of {now}" for kind, was, now in named if was != now), "")
    return f"{count} collectives of {program} have the same kinds, axes and bytes, and belong to other lines{first}"


def _few(lines: Sequence[str]) -> list[str]:
    """The lines, or of more than two the place of the first and the number of others."""
    if len(lines) <= _NAMED:
        return list(lines)
    return [_PLACED.sub(r"\1", lines[0]), f"{len(lines) - 1} more"]


def _brief(pin: Pinned) -> Collective:
    entry = _entry(pin)
    between = entry.between and Between(source=_few(entry.between.source), to=_few(entry.between.to))
    return replace(entry, nodes=_few(entry.nodes), between=between)


def _subject(pin: Pinned) -> str:
    return words.subject(_brief(pin))


def _collective(pin: Pinned) -> str:
    return words.collective(_brief(pin))


_NAMED = 2
"""The most lines of a collective that are named with their texts."""

_PLACED = re.compile(r"^(\S+:\d+) .*")


def _appeared(program: str, pin: Pinned, sign: int, times: int, whole: int) -> str:
    if whole == times:
        several = f"{times} × " if times > 1 else ""
    else:
        several = f"{times} more " if sign > 0 else f"{times} of {whole} × "
    verb = "appeared in" if sign > 0 else "disappeared from"
    inserted = ", inserted by the compiler" if pin.get("inserted") and sign > 0 else ""
    return f"{several}{_collective(pin)} {verb} {program}: {_moved(pin, sign * times)}{inserted}"


def _moved(pin: Mapping[str, Any], times: int) -> str:
    """Return what a device sends: `+1.0 MB sent per device`, in a loop `+4.2 MB sent per device in 4 steps`."""
    sent = pin.get("bytes_sent")
    if sent is None:
        return f"{'+' if times > 0 else '-'}an unknown number of bytes sent per device"
    count = _count(pin)
    total = sent * times * (1 if count is None else executions.ends(count)[1])
    steps = " in every step of a loop of unknown length" if count is None else ""
    if isinstance(count, Range):
        steps = f" at most, since it runs {executions.text(count)} times"
    elif count is not None and count > 1:
        steps = f" in {count} steps"
    return f"{'+' if total >= 0 else ''}{bytes_text(total)} sent per device{steps}"


def _count(pin: Mapping[str, Any]) -> Count:
    return _executions(pin.get("count"))


def _executions(pinned: Any) -> Count:
    return codec.build(Range, pinned) if is_mapping(pinned) else pinned


_FIELDS = {
    "bytes_sent": "sends", "bytes_in": "takes", "bytes_out": "gives", "count": "runs",
    "overlapped": "overlapped with",
}  # fmt: skip
"""The names of fields in sentences about changes, where they differ from the keys."""


def _changed(program: str, old: Pinned, new: Pinned, times: int) -> str:
    changes: list[str] = []
    if words.subject(_entry(old)) != words.subject(_entry(new)):
        was, now = _subject(old), _subject(new)
        changes.append(f"now of {now}, before of {was}" if was != now else "now of other lines")
    for key in sorted({*old, *new} - {"node", "nodes", "between"}, key=lambda key: (*_ORDER, key).index(key)):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        if key in _CHANGES:
            changes.append(_CHANGES[key][bool(now)])
        elif key.startswith("bytes_"):
            changes.append(f"{_FIELDS[key]} {bytes_change(was, now)} per device")
        elif key == "count":
            changes.append(f"{_FIELDS[key]} {_change(was, now, _times)}")
        else:
            changes.append(f"{_FIELDS.get(key, key)} {_change(was, now)}")
    if not changes and _between(new) != _between(old):
        changes.append(f"is {_between(new)}, was {_between(old)}")
    if not changes:
        lines = [key for key in ("node", "nodes", "between") if old.get(key) != new.get(key)]
        changes += [f"{key} {_change(old.get(key), new.get(key))}" for key in lines]
    several = f", {times} of them" if times > 1 else ""
    return f"{_collective(old)} changed in {program}: {', '.join(changes)}{several}"


def _between(pin: Mapping[str, Any]) -> str:
    ends: Mapping[str, list[str]] = pin.get("between") or {}
    taken, needed = (" and ".join(_few(ends.get(end) or ["no line that the module names"])) for end in ("from", "to"))
    return f"between {taken} and {needed}"


_ORDER = (
    "kind",
    "gradient",
    "axes",
    "inserted",
    "dtype",
    "bytes_sent",
    "bytes_in",
    "bytes_out",
    "count",
    "asynchronous",
)
_CHANGES = {
    "inserted": ("the program calls it now", "the compiler inserts it now"),
    "asynchronous": ("synchronous now", "asynchronous now"),
    "gradient": ("in the forward pass now", "in the backward pass now"),
}


def _times(pinned: Any) -> str:
    count = _executions(pinned)
    if count is None:
        return "a number of times that is not known"
    return "once" if count == 1 else f"{executions.text(count)} times"
