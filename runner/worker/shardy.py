"""Reads the attributes of Shardy's dialect: layouts, sharding rules, origins and axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from runner.base.layout import Spec
from runner.base.lazy import dataclass, pattern
from runner.compiled.evidence.opcodes import REDUCTIONS
from runner.graph.sharding.propagation import parsed_rule
from runner.worker.modules import shape_of

_DIMENSION = pattern(r"\{([^}]*)\}")
_AXIS = pattern(r'"([^"]+)"(?::(\(\d+\)\d+))?')
_SHARDING = pattern(r"<@\w*, (\[[^\]]*\])[^>]*>")
_RULE = pattern(r"op_sharding_rule<(.*?) ?\{([^}]*)\}(.*)>$")

Dims = tuple[str | None, ...]
"""The names of an array's dimensions, as far as they have names."""


@dataclass(frozen=True)
class ShardingRule:
    """A sharding rule: the factors of each dimension of operands and results, their sizes, and their kinds.

    - `reduced`: summed over, or reduced otherwise; `whole`: not to be sharded; `permuted`: not computed block by block.
    - `names`, `results`: the names of the factors and of the results' dimensions, if the operands' are known.
    """

    text: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    reduced: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    permuted: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    results: tuple[Dims, ...] = ()

    def named(self, operands: Sequence[Dims]) -> ShardingRule:
        """The rule with dimension names that follow from the operands'."""
        if self.text is None:
            return self
        of_operands, of_results = parsed_rule(self.text)
        names: dict[str, str] = {}
        for term, dims in zip(of_operands, operands, strict=False):
            for factors, name in zip(term, dims, strict=False):
                if name is not None and len(factors) == 1:
                    names.setdefault(factors[0], name)
        results = tuple(
            tuple(names.get(factors[0]) if len(factors) == 1 else None for factors in term) for term in of_results
        )
        return replace(self, names=names, results=results)


def rule(operation: Any) -> ShardingRule:
    """The sharding rule of an operation; an empty one where it has none."""
    if "sdy.sharding_rule" not in operation.attributes:
        return ShardingRule()
    match = _RULE.search(str(operation.attributes["sdy.sharding_rule"]))
    if match is None:
        return ShardingRule()
    sizes = {
        name: int(size) for name, _, size in (factor.strip().partition("=") for factor in match[2].split(",") if factor)
    }

    def special(what: str) -> tuple[str, ...]:
        listed = re.search(what + r"=\{([^}]*)\}", match[3])
        return tuple(name.strip() for name in listed[1].split(",")) if listed else ()

    return ShardingRule(match[1], sizes, special("reduction"), special("need_replication"), special("permutation"))


def spec(text: str) -> Spec:
    """Parse the layout in a sharding's text: `[{"data"}, {}]`."""
    return Spec(map(_axes, _DIMENSION.findall(text)))


def _axes(text: str) -> tuple[str, ...]:
    """The mesh axes in a text, and parts of them: `"data"`, `"data":(2)4`."""
    return tuple(f"{axis}:{part}" if part else axis for axis, part in _AXIS.findall(text))


def read_spec(text: str) -> Spec | None:
    """The first sharding in an attribute."""
    match = _SHARDING.search(text)
    return None if match is None else spec(match[1])


def shardings(operation: Any) -> list[Spec]:
    """The layouts of an operation's results."""
    for key in ("sdy.sharding", "out_shardings"):
        if key in operation.attributes:
            return [spec(text) for text in _SHARDING.findall(str(operation.attributes[key]))]
    return []


def origins(operation: Any) -> tuple[Mapping[str, str], ...]:
    """For each result the mesh axes and Shardy's origin of each: `input: 1`, `constraint_0`, `self`."""
    if "sdy.sharding_origins" not in operation.attributes:
        return ()
    listed = re.findall(r"\{[^}]*\}", str(operation.attributes["sdy.sharding_origins"]))
    return tuple(dict(re.findall(r'"?([^\s"{,]+)"? = "([^"]*)"', part)) for part in listed)


def name_of(location: str) -> str | None:
    """The name in a location: `loc("w1")`."""
    match = re.match(r'loc\("([^"]*)"', location)
    return match[1] if match else None


def collective_axes(operation: Any, before: Spec, after: Spec) -> tuple[str, ...]:
    """The mesh axes of one of Shardy's collectives."""
    for key in ("reduction_axes", "reduce_scatter_axes", "gathering_axes", "slicing_axes", "params"):
        if key in operation.attributes:
            return _axes(str(operation.attributes[key]))
    axes_before, axes_after = ({axis for axes in spec for axis in axes} for spec in (before, after))
    moved = {axis for a, b in zip(before, after, strict=False) for axis in {*a, *b} if a != b}
    return tuple(sorted((axes_before | axes_after) & moved))


def reduction(operation: Any, operand: Any) -> str | None:
    """The reduction of an all-reduce: from Shardy's text, else from the operation that it completes."""
    if "reduction_kind" in operation.attributes:
        kind = str(operation.attributes["reduction_kind"]).strip('"').lower()
        known = next((name for name in REDUCTIONS.values() if name in kind), None)
        if known:
            return known
    owner = getattr(operand.owner, "operation", operand.owner)
    while owner is not None and owner.name.startswith("sdy.") and len(owner.operands):
        owner = getattr(owner.operands[0].owner, "operation", None)
    if owner is None or not hasattr(owner, "regions"):
        return None
    return next(_combining(owner), "sum")


def _combining(operation: Any) -> Iterator[str]:
    """The ways in which the body of an operation may combine two values: `sum`, `max`, …."""
    for region in operation.regions:
        for block in region.blocks:
            kinds = (inner.operation.name.partition(".")[2] for inner in block.operations)
            yield from (REDUCTIONS[kind] for kind in kinds if kind in REDUCTIONS)


_CUMULATIVE = {
    "sum": "cumulative sum",
    "prod": "cumulative product",
    "max": "running maximum",
    "min": "running minimum",
}


def computes(operation: Any) -> str | None:
    """What an operation computes, if its name does not say it: a window over all before or behind it is cumulative."""
    if operation.name != "stablehlo.reduce_window" or len(operation.results) != 1:
        return None
    windows = [int(size) for size in operation.attributes["window_dimensions"]]
    edges = [int(edge) for edge in operation.attributes["padding"]] if "padding" in operation.attributes else []
    along = [at for at, size in enumerate(windows) if size > 1]
    shapes = [shape_of(value) for value in (operation.operands[0], operation.results[0])]
    if len(along) != 1 or shapes[0] != shapes[1] or windows[along[0]] != shapes[0][along[0]]:
        return None
    if 0 not in edges[2 * along[0] : 2 * along[0] + 2]:
        return None
    kinds = list(_combining(operation))
    return _CUMULATIVE.get(kinds[0], "cumulative reduction") if len(kinds) == 1 else "cumulative reduction"
