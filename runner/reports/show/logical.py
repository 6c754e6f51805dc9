"""Makes the table of the mesh axes that logical names resolve to, and why."""

from __future__ import annotations

from collections.abc import Mapping

from runner.reports.record.model import AppliedRule, LogicalSpec
from runner.reports.show.table import Table

_HEAD = ("logical names", "mesh axes", "of", "by the rules", "dropped")


def table(specs: Mapping[str, LogicalSpec]) -> Table[str]:
    """Return one row for each distinct spec, with everything that has this spec."""
    rows = _rows(specs)
    last = len(_HEAD) - (0 if any(row[-1] for row in rows) else 1)
    return Table(_HEAD[:last], [row[:last] for row in rows])


def _rows(specs: Mapping[str, LogicalSpec]) -> list[list[str]]:
    alike: dict[str, tuple[LogicalSpec, list[str]]] = {}
    for key, spec in specs.items():
        alike.setdefault(spec.written.yaml(), (spec, []))[1].append(_of(key))
    return [
        [
            written,
            str(spec.spec),
            ", ".join(names),
            "; ".join(dict.fromkeys(described(rule) for rule in spec.rules if rule is not None)),
            "; ".join(map(described, spec.dropped)),
        ]
        for written, (spec, names) in alike.items()
    ]


def described(rule: AppliedRule) -> str:
    """Return a rule and its place: `embed → x (conf/rules/fsdp.yaml:3:5)`."""
    axes = "null" if not rule.axes else rule.axes[0] if len(rule.axes) == 1 else f"[{', '.join(rule.axes)}]"
    return f"{rule.name} → {axes} ({rule.place or rule.key})"


def _of(key: str) -> str:
    """Return the array, output or value of a spec; for an entry of `expect.layouts` the key."""
    section, _, name = key.partition(".")
    return name.removesuffix(".spec") if section in ("arrays", "outputs") else key
