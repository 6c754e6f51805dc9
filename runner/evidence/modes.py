"""The programs of a record in; what each leaves to the compiler, and what it costs to say the rest, out."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_VIEW = {
    "auto": "global",
    "constraint": "global",
    "explicit": "global",
    "derived": "per device",
    "shard_map": "per device",
}
_PLACED_BY = {
    "auto": "compiler",
    "constraint": "constraints",
    "explicit": "types",
    "derived": "specs",
    "shard_map": "specs",
}
"""What decides where the values lie that are computed: where constraints are silent, the compiler."""


def modes(programs: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Per program on the mesh its view, who places values and who communicates, the bytes, the lines of its file.

    `programs` are those of a record, whose files lie in `folder`. Not known, and None, is who communicates and how much
    where the compiled module may communicate more than was found.
    """
    ran = {name: found for name, found in programs.items() if name in _VIEW and found["error"] is None}
    return [
        {
            "program": name,
            "view": _VIEW[name],
            "placed_by": _PLACED_BY[name],
            "communicated_by": _asked(found),
            "bytes": _bytes(found),
            "lines": _lines(folder / f"program_{name}.py"),
        }
        for name, found in ran.items()
    ]


def _known(found: Mapping[str, Any]) -> bool:
    return found.get("collectives") is not None and not found["collectives_missing"]


def _asked(found: Mapping[str, Any]) -> list[str] | None:
    """Who asked for the collectives: the `compiler`, the `program`, JAX's `differentiation` of it."""
    if not _known(found):
        return None
    asked = {_by(one) for one in found["collectives"]}
    return [by for by in ("program", "differentiation", "compiler") if by in asked]


def _by(one: Mapping[str, Any]) -> str:
    return "compiler" if one["inserted"] else "differentiation" if one["gradient"] else "program"


def _bytes(found: Mapping[str, Any]) -> int | None:
    """What the collectives move on one device, over all their executions."""
    if not _known(found) or any(one["count"] is None or one["bytes"] is None for one in found["collectives"]):
        return None
    return sum(one["count"] * one["bytes"] for one in found["collectives"])


def _lines(file: Path) -> int:
    """The lines of code of the function `program` in a program's file."""
    text = file.read_text(encoding="utf-8")
    function = next(
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "program"
    )
    lines = (line.strip() for line in text.splitlines()[function.lineno - 1 : function.end_lineno])
    return sum(bool(line) and not line.startswith("#") for line in lines)
