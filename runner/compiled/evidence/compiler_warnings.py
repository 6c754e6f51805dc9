"""Reads XLA's warnings about shardings from its standard error, with their lines."""

from __future__ import annotations

import re
from dataclasses import replace

from runner.base.layout import Mesh
from runner.compiled.evidence import hlo, hlo_sharding
from runner.compiled.evidence.model import CompilerWarning
from runner.compiled.evidence.nodes import Attribution
from runner.graph.sharding.propagation import Reshard

_LINE = re.compile(r"^[WEF]\d{4} [\d:.]+ +\d+ ([\w./\-]+\.cc):\d+\] (.*)$")
"""A warning or an error of XLA's: `W1121 04:49:57.685833 21960 spmd_partitioner.cc:666] [SPMD] …`."""

_SHARDING = re.compile(r"spmd|shard|sdy|partition|replicat|rematerializ", re.IGNORECASE)
_REMATERIALIZATION = "involuntary full rematerialization"


def read(messages: str, origins: Attribution, stack_frames: hlo.StackFrames = hlo.NO_FRAMES) -> list[CompilerWarning]:
    """The warnings, each once, with the number of `times` that it occurred; `stack_frames` are the module's.

    `kind` is "involuntary full rematerialization", or "sharding" for all others.
    """
    by_text: dict[str, CompilerWarning] = {}
    for line in messages.splitlines():
        warning = _LINE.match(line)
        if warning is None or not (_SHARDING.search(warning.group(1)) or _SHARDING.search(warning.group(2))):
            continue
        text = warning.group(2)
        if text in by_text:
            by_text[text] = replace(by_text[text], times=by_text[text].times + 1)
            continue
        kind = _REMATERIALIZATION if _REMATERIALIZATION in text.lower() else "sharding"
        lines = origins.of(hlo.metadata(text, stack_frames))
        node = lines[0].node if lines else None
        by_text[text] = CompilerWarning(kind=kind, node=node, text=text, times=1)
    return list(by_text.values())


_CHANGE = re.compile(r"from sharding (\{.*?\}) to (\{.*?\}) (?:efficiently|without).*?HLO operation:? %?\S+ = (\S+)")


def change(text: str, mesh: Mesh) -> Reshard | None:
    """The two layouts of a rematerialization, and the array that changes its layout.

    None if the warning does not have them, or they have no PartitionSpec.
    """
    match = _CHANGE.search(text)
    if match is None:
        return None
    shapes = hlo.shapes(match[3])
    if len(shapes) != 1 or not shapes[0].bits:
        return None
    held = shapes[0].dims
    before, after = (hlo_sharding.spec(part, len(held), mesh) for part in match.group(1, 2))
    if before is None or after is None:
        return None
    whole = tuple(size * mesh.axis_size(axes) for size, axes in zip(held, before, strict=True))
    return Reshard(before=before, after=after, shape=whole, dtype=shapes[0].dtype)
