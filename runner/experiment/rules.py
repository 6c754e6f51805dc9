"""Resolves specs with logical names to PartitionSpecs by `rules:`, and says which rules gave them.

The first rule whose mesh axes are free applies, in the order of the rules and not of the dimensions, as in Flax's
`logical_to_mesh_axes`. Flax and MaxText leave a dimension unsharded if no rule is left for it; here that is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.faults import Fault, InvalidExperiment, Key, invalid, nearest
from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.experiment.forms import ALLOWED, AXES, OF_MAXTEXT, RULES, SPEC, check, choices
from runner.graph.language.check import missing_axis

KEY = "rules"


@dataclass(frozen=True)
class LogicalAxisRule:
    """A logical name, and the mesh axes that a dimension of that name is sharded over if they are free."""

    name: str
    axes: tuple[str, ...]
    key: Key

    def __str__(self) -> str:
        return f"{self.name} → {listed(self.axes)}"


def listed(axes: Sequence[str]) -> str:
    """Mesh axes in the notation of a spec's entry: `null`, `x`, `[x, y]`."""
    return "null" if not axes else axes[0] if len(axes) == 1 else f"[{', '.join(axes)}]"


@dataclass(frozen=True)
class Logical:
    """A spec that is written with logical names.

    - `spec`: the mesh axes that the rules give.
    - `rules`: per dimension the rule that gave them; None if the entry names mesh axes itself, or is null.
    - `dropped`: the rules without effect, because an earlier rule took one of their axes.
    """

    written: Spec
    spec: Spec
    rules: tuple[LogicalAxisRule | None, ...]
    dropped: tuple[LogicalAxisRule, ...]


@dataclass(frozen=True)
class Rules:
    """The rules, in their order.

    - `axes`: the mesh axes that a MaxText file declares; those that the mesh lacks shard nothing.
    - `allowed`: the logical names that may remain without a rule.
    """

    rules: tuple[LogicalAxisRule, ...] = ()
    axes: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The logical names."""
        return tuple(dict.fromkeys(rule.name for rule in self.rules))

    def assign(self, entries: Sequence[str | tuple[str, ...]], mesh: Mesh, key: Key) -> Logical:
        """The PartitionSpec of entries in which texts are logical names and other entries are mesh axes.

        Raises `InvalidExperiment` if a name remains without a rule, unless that is allowed or has no effect.
        """
        axes_of: dict[int, tuple[str, ...]] = {
            i: entry for i, entry in enumerate(entries) if not isinstance(entry, str)
        }
        by: dict[int, LogicalAxisRule] = {}
        dropped: list[LogicalAxisRule] = []
        at = {entry: i for i, entry in enumerate(entries) if isinstance(entry, str)}
        for rule in self.rules:
            i = at.get(rule.name)
            if i is None or i in by:
                continue
            if any(axis in axes for axes in axes_of.values() for axis in rule.axes):
                dropped.append(rule)
                continue
            axes_of[i], by[i] = rule.axes, rule
        for name, i in at.items():
            if i not in by and name not in self.allowed:
                lost = [
                    rule for rule in dropped if rule.name == name and any(mesh.sizes.get(a, 1) > 1 for a in rule.axes)
                ]
                if lost:
                    raise _of_dropped(lost[0], i, axes_of, by, key)
        there = [tuple(axis for axis in axes_of.get(i, ()) if axis in mesh.axes) for i in range(len(entries))]
        return Logical(Spec.of(entries), Spec(there), tuple(by.get(i) for i in range(len(entries))), tuple(dropped))


def _of_dropped(
    rule: LogicalAxisRule,
    dimension: int,
    axes_of: Mapping[int, tuple[str, ...]],
    by: Mapping[int, LogicalAxisRule],
    key: Key,
) -> InvalidExperiment:
    """The error for a dimension that would stay unsharded because a rule is dropped."""
    i, axis = next((i, axis) for axis in rule.axes for i, axes in axes_of.items() if axis in axes)
    taken = f"dimension {i} has '{axis}'" + (f" by the rule {by[i]}" if i in by else "")
    message = (
        f"the rule {rule} is dropped: {taken}, and no other rule shards this dimension; to leave it "
        f"replicated, end with the rule [{rule.name}, null], or allow it: {KEY}.{ALLOWED}: [{rule.name}]"
    )
    also = [("the rule", rule.key), *([("the rule before it", by[i].key)] if i in by else [])]
    return InvalidExperiment(Fault((*key, dimension), message, also=tuple(also)))


def read_rules(config: Any, mesh: Mesh) -> Rules:
    """The rules of a configuration: a list of them, or a mapping as in MaxText's files.

    Raises `InvalidExperiment` for invalid rules.
    """
    if config is None:
        return Rules()
    if is_mapping(config):
        _check_keys(config)
    check(config, (KEY,))
    if is_list(config):
        return Rules(_rules(config, (KEY,), mesh.axes, mesh))
    given: Mapping[str, Any] = config
    axes = _mesh_axes(given.get(AXES), mesh)
    rules = _rules(given[RULES], (KEY, RULES), axes or mesh.axes, mesh)
    return Rules(rules, axes, _allowed(given.get(ALLOWED), tuple(rule.name for rule in rules)))


def _check_keys(given: Mapping[str, Any]) -> None:
    """Raise `InvalidExperiment` for a misspelt key; MaxText's files have many other keys."""
    keys = tuple(OF_MAXTEXT.keys)
    for key in given:
        if key in keys:
            continue
        close = difflib.get_close_matches(str(key), keys, n=1, cutoff=0.85)
        if AXES not in given or close:
            hint = f"; did you mean '{close[0]}'?" if close else choices(keys)
            raise invalid((KEY, key), f"rules have no key '{key}'{hint}")


def _mesh_axes(value: Sequence[str] | None, mesh: Mesh) -> tuple[str, ...]:
    if value is None:
        return ()
    key = (KEY, AXES)
    for i, axis in enumerate(mesh.axes):
        if axis not in value:
            hint = nearest(axis, value) or f"; they have {', '.join(value)}"
            message = f"the rules have no mesh axis '{axis}'{hint}"
            raise InvalidExperiment(Fault(("mesh", "axes", i), message, also=(("the axes of the rules", key),)))
    return tuple(value)


def _rules(value: Sequence[Any], key: Key, axes: Sequence[str], mesh: Mesh) -> tuple[LogicalAxisRule, ...]:
    rules: list[LogicalAxisRule] = []
    for i, (name, over) in enumerate(value):
        at = (*key, i)
        named: list[Any] = [] if over is None else over if is_list(over) else [over]
        for axis in named:
            if axis not in axes:
                there = missing_axis(axis, mesh) if axes == mesh.axes else f"{AXES} has no '{axis}'"
                raise invalid((*at, 1), there + nearest(axis, axes))
        if len(set(named)) < len(named):
            raise invalid((*at, 1), f"a mesh axis appears twice in the rule for '{name}'")
        rules.append(LogicalAxisRule(name, tuple(named), at))
    return tuple(rules)


def _allowed(value: Sequence[str] | bool | None, names: Sequence[str]) -> frozenset[str]:
    key = (KEY, ALLOWED)
    if value is None or isinstance(value, bool):
        return frozenset(names if value else ())
    for i, name in enumerate(value):
        if name not in names:
            raise invalid((*key, i), f"there is no rule for '{name}'{nearest(str(name), names)}")
    return frozenset(value)


class Specs:
    """Reads the specs of one configuration, and remembers those that are written with logical names."""

    def __init__(self, mesh: Mesh, rules: Rules) -> None:
        self.mesh = mesh
        self.logical: dict[Key, Logical] = {}
        self._rules = rules

    def read(self, value: Any, key: Key) -> Spec:
        """The PartitionSpec at `key`. Raises `InvalidExperiment`."""
        check(value, key, SPEC)
        entries: list[str | tuple[str, ...]] = []
        for i, entry in enumerate(value):
            axes: list[Any] = [] if entry is None else entry if is_list(entry) else [entry]
            for axis in axes:
                self._check(axis, (*key, i), alone=len(axes) == 1)
                used = [axis for earlier in entries for axis in ([earlier] if isinstance(earlier, str) else earlier)]
                if axis in used or axes.count(axis) > 1:
                    raise invalid((*key, i), _twice(axis, axis in self.mesh.axes))
            logical = len(axes) == 1 and axes[0] not in self.mesh.axes
            entries.append(axes[0] if logical else tuple(axes))
        if not any(isinstance(entry, str) for entry in entries):
            return Spec(entry for entry in entries if not isinstance(entry, str))
        self.logical[key] = self._rules.assign(entries, self.mesh, key)
        return self.logical[key].spec

    def _check(self, axis: str, key: Key, *, alone: bool) -> None:
        """Raise `InvalidExperiment` for an unknown or ambiguous axis, or a logical name that is not `alone`."""
        names = self._rules.names
        if axis in names and axis in (*self.mesh.axes, *self._rules.axes):
            rule = next(rule for rule in self._rules.rules if rule.name == axis)
            message = f"'{axis}' is a mesh axis and a logical name; a name means one thing"
            raise InvalidExperiment(Fault(key, message, also=(("the rule", rule.key),)))
        if axis in names and not alone:
            raise invalid(
                key, f"'{axis}' is a logical name, and a dimension has only one; a rule may give it several axes"
            )
        if axis in names or axis in self.mesh.axes:
            return
        if not names:
            raise invalid(key, missing_axis(axis, self.mesh) + nearest(axis, self.mesh.axes))
        known = (*self.mesh.axes, *names)
        hint = nearest(axis, known) or f"; a dimension of that name that is not sharded has the rule [{axis}, null]"
        raise invalid(key, f"no mesh axis '{axis}', and no rule for such a name{hint}")


def _twice(axis: str, of_mesh: bool) -> str:
    if of_mesh:
        return f"the mesh axis '{axis}' is used twice; each axis shards at most one dimension"
    return f"the logical name '{axis}' appears twice; its rules can shard at most one dimension"
