"""Changes the definition of an experiment: other sizes, another mesh, other layouts.

A definition is plain data: every key of the file with its value, or with its default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from runner.base.faults import Key, invalid, nearest
from runner.base.layout import SpecEntries
from runner.base.untyped import is_mapping
from runner.graph.source import Section


def at(
    definition: Mapping[str, Any],
    dims: Mapping[str, int] = MappingProxyType({}),
    mesh: Mapping[str, int] = MappingProxyType({}),
    layouts: Mapping[str, SpecEntries] = MappingProxyType({}),
) -> dict[str, Any]:
    """The definition with other sizes of dims and mesh axes, and other layouts.

    A mesh of other sizes takes its devices in their order. Raises `InvalidExperiment` for an unknown name.
    """
    changed = dict(definition)
    if dims:
        _require(dims, definition["dims"], ("dims",), "dim")
        changed["dims"] = {**definition["dims"], **dims}
    if mesh:
        axes: Sequence[str] = definition["mesh"]["axes"]
        _require(mesh, axes, ("mesh", "axes"), "axis")
        sizes = [mesh.get(axis, size) for axis, size in zip(axes, definition["mesh"]["shape"], strict=True)]
        changed["mesh"] = {**definition["mesh"], "shape": sizes, "devices": None}
    for key, spec in layouts.items():
        section, _, name = key.partition(".")
        if section == "arrays" and name.endswith(".spec"):
            name = name.removesuffix(".spec")
            _require([name], changed["arrays"], ("arrays",), "array")
            changed["arrays"] = {**changed["arrays"], name: {**changed["arrays"][name], "spec": spec}}
        elif section in ("outputs", "constraints"):
            changed[section] = {**changed[section], name: spec}
        else:
            raise invalid((key,), f"no layout '{key}'; there are arrays.NAME.spec, outputs.NAME and constraints.NAME")
    return changed


def with_line(definition: Mapping[str, Any], section: Section, key: Key, text: str | int) -> dict[str, Any] | None:
    """The definition with another text for one line; None if the value of the key is not an expression."""
    changed = inside = dict(definition)
    for part in key[:-1]:
        below = inside.get(str(part))
        if not is_mapping(below):
            return None
        inside[str(part)] = inside = dict(below)
    last = str(key[-1])
    if is_mapping(inside.get(last)) and section in inside[last]:
        inside[last] = inside = dict(inside[last])
        last = section
    if isinstance(inside.get(last), bool) or not isinstance(inside.get(last), str | int | float):
        return None
    inside[last] = text
    return changed


def _require(names: Iterable[str], there: Collection[str], key: Key, what: str) -> None:
    for name in names:
        if name not in there:
            known = f"; there are {', '.join(there)}" if there else ""
            raise invalid((*key, name), f"no {what} '{name}'{nearest(name, there) or known}")
