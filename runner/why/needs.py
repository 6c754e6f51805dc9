"""What Shardy plans in a line in; what its operations need of values that specs cut, in words, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.sharding.plan import PlannedCollective, PlannedOperation, PlannedValue, terms
from runner.words import listed


@dataclass(frozen=True)
class Need:
    """What an operation needs: in words, of which dimensions, and the keys that cut them."""

    text: str
    operation: str
    line: str | None
    dims: tuple[str, ...]
    keys: tuple[str, ...]


_WORDS = {
    "dot_general": "product", "convolution": "convolution", "gather": "lookup", "scatter": "update",
    "dynamic_slice": "slice", "dynamic_update_slice": "update", "reduce_window": "window", "fft": "transform",
    "concatenate": "concatenation", "broadcast_in_dim": "broadcast", "select_and_scatter": "window",
}  # fmt: skip
_REDUCTIONS = {"sum": "sum", "max": "maximum", "min": "minimum", "prod": "product"}

NOBODY = frozenset({"", "return"})
"""The operations that only hand a value on."""


def word(operation: str, reduction: str | None = None) -> str:
    """What an operation of StableHLO is called: `the product`, `the sum`."""
    if operation == "reduce":
        return f"the {_REDUCTIONS.get(reduction or '', 'reduction')}"
    return f"the {_WORDS.get(operation, operation)}"


def axes_of(one: PlannedCollective) -> set[str]:
    """The mesh axes of a planned collective, where it uses a part of one, that one."""
    return {axis.partition(":")[0] for axis in one.axes}


def of_collective(one: PlannedCollective, operations: Sequence[PlannedOperation], promised: Mapping[str, str]) -> Need:
    """Why Shardy plans a collective; `promised` has the keys that lay lines out."""
    there = [
        operation
        for operation in operations
        if (operation.line, operation.gradient) == (one.line, one.gradient) and operation.name == one.operation
    ]
    if one.kind in ("all-reduce", "reduce-scatter"):
        return _summed(one, there)
    return _laid_out(one, there, promised)


def of_operation(operation: PlannedOperation, axes: Iterable[str] | None) -> Need | None:
    """What an operation needs that the plan leaves to the partitioner; None where nothing over these axes cuts it."""
    for factors, says in (
        (operation.permuted, "does not go block by block along {dims}"),
        (operation.whole, "needs all of {dims}"),
        (operation.reduced, "reduces over {dims}"),
    ):
        cut = [factor for factor in factors if _cut(operation, factor, axes)]
        if cut:
            dims = tuple(dict.fromkeys(_name(operation, factor) for factor in cut))
            keys = _keys(operation, cut, axes)
            over = sorted({axis for factor in cut for axis in _cut(operation, factor, axes)})
            told = f"{word(operation.name)} in {operation.line} {says.format(dims=listed(dims))}, {_by(keys, over)}"
            return Need(told, operation.name, operation.line, dims, keys)
    return None


def _summed(one: PlannedCollective, there: Sequence[PlannedOperation]) -> Need:
    axes = axes_of(one)
    dims: dict[str, None] = {}
    keys: dict[str, None] = {}
    for operation in there:
        cut = [factor for factor in operation.reduced if _cut(operation, factor, axes)]
        dims |= dict.fromkeys(_name(operation, factor) for factor in cut)
        keys |= dict.fromkeys(_keys(operation, cut, axes))
    name = word(one.operation, one.reduction)
    over = f" over {listed(list(dims))}" if dims else ""
    does = {"sum": "sums", "max": "takes the largest", "min": "takes the least"}.get(one.reduction or "", "reduces")
    text = f"{name} in {_at(one)} {does}{over}, {_by(tuple(keys), sorted(axes))}"
    return Need(text, one.operation, one.line, tuple(dims), tuple(keys))


def _laid_out(one: PlannedCollective, there: Sequence[PlannedOperation], promised: Mapping[str, str]) -> Need:
    before, after = one.before, one.after
    gone = [at for at, (a, b) in enumerate(zip(before, after, strict=False)) if set(_axes(a)) - set(_axes(b))]
    come = [at for at, (a, b) in enumerate(zip(before, after, strict=False)) if set(_axes(b)) - set(_axes(a))]
    dims = tuple(_dim(one, at) for at in gone)
    lost = {axis.partition(":")[0] for at in gone for axis in _axes(before[at])}
    keys = tuple(dict.fromkeys(one.origins[axis] for axis in one.origins if axis.partition(":")[0] in lost))
    cut = _by(keys, sorted(lost))
    returned = one.operation in NOBODY
    asking = promised.get(one.line or one.of) if returned else None
    who = f"{word(one.operation)} in {_at(one)} needs"
    if returned:
        who = f"{asking} wants" if asking else f"what returns {one.of} needs"
        keys = (*([asking] if asking else []), *keys)
    other = "" if one.of == one.line or returned else f" of {one.of}"
    if one.kind == "all-to-all" and come:
        text = f"{who} {listed([_dim(one, at) for at in come])}{other} cut in place of {listed(dims)}, {cut}"
    elif one.kind == "collective-permute" or not gone:
        text = f"{who} the blocks{other} in another order, as {after} and not {before}"
    else:
        text = f"{who} all of {listed(dims)}{other}, {cut}{_since(there, lost, dims)}"
    return Need(text, one.operation, one.line, dims, keys)


def _since(there: Sequence[PlannedOperation], axes: set[str], dims: Sequence[str]) -> str:
    """What else the axes cut in the operation, for which they are needed."""
    for operation in there:
        for factor in operation.factors:
            cut = _cut(operation, factor, axes)
            name = _name(operation, factor)
            if cut and name not in dims:
                keys = _keys(operation, [factor], axes)
                by = f" ({listed(keys)})" if keys else ""
                return f"; {listed(sorted(cut))} cut{'s' if len(cut) == 1 else ''} {name} there{by}"
    return ""


def _at(one: PlannedCollective) -> str:
    return f"{one.line or 'no line'}{' (backward)' if one.gradient else ''}"


def _axes(entry: str | list[str] | None) -> list[str]:
    return [] if entry is None else [entry] if isinstance(entry, str) else entry


def _dim(one: PlannedCollective, at: int) -> str:
    name = one.dims[at] if at < len(one.dims) else None
    return name or f"dimension {at}"


def _name(operation: PlannedOperation, factor: str) -> str:
    return operation.names.get(factor) or f"a dimension of {operation.factors.get(factor, 'unknown size')}"


def _by(keys: Sequence[str], axes: Sequence[str]) -> str:
    """`which arrays.w.spec cuts over x`."""
    over = listed(axes)
    if not keys:
        return f"which is cut over {over}"
    return f"which {listed(keys)} cut{'s' if len(keys) == 1 else ''} over {over}"


def _places(operation: PlannedOperation, factor: str) -> Iterable[tuple[PlannedValue, int]]:
    """The values of an operation and their dimensions along which a factor runs."""
    given, _, made = (operation.rule or "").partition("->")
    for side, values in ((given, operation.operands), (made, operation.results)):
        for value, term in zip(values, terms(side), strict=False):
            for at, factors in enumerate(term):
                if factor in factors and at < len(value.spec):
                    yield value, at


def _cut(operation: PlannedOperation, factor: str, axes: Iterable[str] | None) -> set[str]:
    """The mesh axes, of these, that cut a factor."""
    found = {axis.partition(":")[0] for value, at in _places(operation, factor) for axis in _axes(value.spec[at])}
    return found if axes is None else found & set(axes)


def _keys(operation: PlannedOperation, factors: Iterable[str], axes: Iterable[str] | None) -> tuple[str, ...]:
    """The keys of the file that cut these factors, those of the operands first."""
    wanted = None if axes is None else set(axes)
    found: dict[str, None] = {}
    for factor in factors:
        for value, at in _places(operation, factor):
            for axis in _axes(value.spec[at]):
                if axis in value.origins and (wanted is None or axis.partition(":")[0] in wanted):
                    found[value.origins[axis]] = None
    return tuple(found)
