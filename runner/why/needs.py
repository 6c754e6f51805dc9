"""What Shardy plans in a line in; what its operations need of values that specs shard, in words, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.evidence.model import Collective
from runner.experiment.model import Array, Experiment
from runner.experiment.program import Program
from runner.layout import Spec, SpecEntries
from runner.sharding.plan import Planned, PlannedCollective, PlannedOperation, PlannedValue, terms
from runner.words import listed


@dataclass(frozen=True)
class Need:
    """What an operation needs: in words, of which dimensions, and the keys that shard them."""

    text: str
    operation: str
    line: str | None
    dims: tuple[str, ...]
    keys: tuple[str, ...]


_WORDS = {
    "dot_general": "product", "convolution": "convolution", "gather": "lookup", "scatter": "update",
    "dynamic_slice": "slice", "dynamic_update_slice": "update", "reduce_window": "window", "fft": "transform",
    "concatenate": "concatenation", "broadcast_in_dim": "broadcast", "select_and_scatter": "window",
    "reshard": "derivative of the reshard",
}  # fmt: skip
_REDUCTIONS = {"sum": "sum", "max": "maximum", "min": "minimum", "prod": "product"}

_WINDOWED = frozenset({"convolution", "reduce_window", "select_and_scatter"})
"""The operations that reduce over a dimension along which a window slides: they need what lies at its edges."""

_NAMED = 3
"""Keys, at least, that a reason names in its text."""

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


def promised(experiment: Experiment, program: Program) -> dict[str, str]:
    """The keys that lay out the lines of a program."""
    keys = {line: f"constraints.{line}" for line in experiment.constraints}
    if program.places:
        keys |= {line: experiment.key_of_layout(line) for line in experiment.outputs}
    return keys


def renamed(one: PlannedCollective, names: Mapping[str, str]) -> PlannedCollective:
    """A collective whose lines are told by their paths, with their `names` instead."""
    return replace(one, line=names.get(one.line or "", one.line), of=names.get(one.of, one.of))


def of_collective(
    one: PlannedCollective,
    operations: Sequence[PlannedOperation],
    promised: Mapping[str, str],
    axes: set[str] | None = None,
) -> Need:
    """Why Shardy plans a collective; `promised` has the keys that lay lines out.

    Of an all-reduce that was compiled axis by axis, why it is over these `axes`.
    """
    there = next((operation for operation in operations if operation.number == one.needed_by), None)
    if one.kind in ("all-reduce", "reduce-scatter"):
        return _summed(one, there, axes or axes_of(one))
    return _laid_out(one, there, promised)


def of_operation(operation: PlannedOperation, axes: Iterable[str] | None, *, reducing: bool = False) -> Need | None:
    """What an operation needs that the plan leaves to the partitioner; None where nothing over these axes shards it.

    `reducing` is whether what it needs may be a reduction, rather than values of other devices.
    """
    slid = operation.reduced if operation.name in _WINDOWED else []
    moving = (
        ([*operation.permuted, *slid], "does not go block by block along {dims}"),
        (operation.whole, "needs all of {dims}"),
    )
    for factors, says in ((operation.reduced, "reduces over {dims}"),) if reducing else moving:
        sharded = [factor for factor in factors if _over(operation, factor, axes)]
        if sharded:
            dims = _names(operation, sharded)
            keys = _keys(operation, sharded, axes)
            over = sorted({axis for factor in sharded for axis in _over(operation, factor, axes)})
            told = (
                f"{word(operation.name)} in {_line(operation.line, operation.gradient)} "
                f"{says.format(dims=listed(dims))}, {_by(keys, over)}"
            )
            return Need(told, operation.name, operation.line, dims, keys)
    return None


_TAKEN = {"all-gather": "all of {dims} of {name}", "all-to-all": "{name} sharded otherwise than along {dims}"}
"""What a collective that moves a value gives to those who read it."""


def of_values(one: Collective, experiment: Experiment, plan: Planned) -> Need | None:
    """Why a collective moves what it moves: how its sources lie; None where nobody knows that."""
    if one.between is None or one.kind in ("all-reduce", "reduce-scatter"):
        return None
    return of_sources(one.between.source, one.nodes or one.between.to, one, experiment, plan)


def of_sources(
    names: Sequence[str], lines: Sequence[str], one: Collective, experiment: Experiment, plan: Planned
) -> Need | None:
    """Why values of these names are moved for some lines."""
    axes = set(one.axes or ())
    # What is moved within a line may lie otherwise than the line's value.
    names = [name for name in names if name not in lines]
    values = {array.name: _array(array, experiment) for array in experiment.arrays if array.name in names}
    for operation in plan.operations:
        for value in (*operation.results, *operation.operands):
            if value.of in names and value.origins.keys() & axes:
                values.setdefault(value.of, value)
    for name, value in values.items():
        over = {
            at: mine
            for at, entry in enumerate(value.spec)
            if (mine := {a.partition(":")[0] for a in _axes(entry)} & axes)
        }
        keys = tuple(dict.fromkeys(key for axis in sorted(axes) for key in value.origins.get(axis, ())))
        if not over or not keys:
            continue
        dims = tuple(value.dims[at] or f"dimension {at}" for at in over)
        says = _TAKEN.get(one.kind, "blocks of {name} that others have along {dims}").format(
            dims=listed(dims), name=name
        )
        who = _line(listed(lines), one.gradient)
        by = _by(keys, sorted({axis for mine in over.values() for axis in mine}))
        return Need(
            f"{who} need{'s' if len(lines) < 2 else ''} {says}, {by}", "", lines[0] if lines else None, dims, keys
        )
    return None


def _array(array: Array, experiment: Experiment) -> PlannedValue:
    spec = array.layout.spec
    return PlannedValue(
        of=array.name,
        shape=list(array.shape),
        dims=list(array.dims),
        spec=spec.json(),
        origins={axis: [experiment.key_of_layout(array.name)] for axis in spec.axes},
    )


def _summed(one: PlannedCollective, there: PlannedOperation | None, axes: set[str]) -> Need:
    dims: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    if there is not None:
        sharded = [factor for factor in there.reduced if _over(there, factor, axes)]
        dims, keys = _names(there, sharded), _keys(there, sharded, axes)
    name = word(one.operation, one.reduction)
    over = f" over {listed(list(dims))}" if dims else ""
    does = {"sum": "sums", "max": "takes the largest", "min": "takes the least"}.get(one.reduction or "", "reduces")
    text = f"{name} in {_at(one)} {does}{over}, {_by(keys, sorted(axes))}"
    return Need(text, one.operation, one.line, dims, keys)


def _laid_out(one: PlannedCollective, there: PlannedOperation | None, promised: Mapping[str, str]) -> Need:
    before, after = one.before, one.after
    gone = [at for at, (a, b) in enumerate(zip(before, after, strict=False)) if set(_axes(a)) - set(_axes(b))]
    come = [at for at, (a, b) in enumerate(zip(before, after, strict=False)) if set(_axes(b)) - set(_axes(a))]
    dims, others = _told_apart(one, gone), _told_apart(one, come)
    if set(dims) & set(others):
        dims, others = tuple(f"dimension {at}" for at in gone), tuple(f"dimension {at}" for at in come)
    lost = {axis.partition(":")[0] for at in gone for axis in set(_axes(before[at])) - set(_axes(after[at]))}
    if not gone:
        lost = axes_of(one)
    keys = tuple(dict.fromkeys(key for axis, by in one.origins.items() if axis in lost for key in by))
    by = _by(keys, sorted(lost))
    given = one.operation in NOBODY and not one.gradient
    asking = one.asked_by or (promised.get(one.line or one.of) if given else None)
    returned = one.operation in NOBODY and asking is None
    who = f"{word(one.operation)} in {_at(one)} needs"
    if asking:
        who = f"{asking} wants"
        keys = tuple(dict.fromkeys([asking, *keys]))
    elif returned:
        who = f"what returns {f'a gradient from {_at(one)}' if one.gradient else one.of} needs"
    other = "" if one.of == one.line or returned else f" of {one.of}"
    if one.kind == "all-to-all" and come and gone:
        text = f"{who} {listed(others)}{other} sharded in place of {listed(dims)}, {by}"
    elif one.kind == "collective-permute" or not gone:
        text = f"{who} the blocks{other} in another order, as {_spec(after)} and not {_spec(before)}, {by}"
    else:
        since = "" if asking or there is None else _since(there, lost, dims)
        text = f"{who} all of {listed(dims)}{other}, {by}{since}"
    return Need(text, one.operation, one.line, dims, keys)


def _told_apart(one: PlannedCollective, places: Sequence[int]) -> tuple[str, ...]:
    """The names of some dimensions; the number of each that has none, or that of another one."""
    return tuple(
        name
        if (name := one.dims[at] if at < len(one.dims) else None) and one.dims.count(name) == 1
        else f"dimension {at}"
        for at in places
    )


def _spec(entries: SpecEntries) -> str:
    return str(Spec.of(entries))


def _since(operation: PlannedOperation, axes: set[str], dims: Sequence[str]) -> str:
    """What else the axes shard in an operation, for which they are needed."""
    for factor in operation.factors:
        over = _over(operation, factor, axes)
        name = _name(operation, factor)
        if over and name not in dims:
            keys = _keys(operation, [factor], axes)
            by = f" ({_keyed(keys)})" if keys else ""
            return f"; {listed(sorted(over))} shard{'s' if len(over) == 1 else ''} {name} there{by}"
    return ""


def _line(line: str | None, gradient: bool) -> str:
    return f"{line or 'no line'}{' (backward)' if gradient else ''}"


def _at(one: PlannedCollective) -> str:
    return _line(one.line, one.gradient)


def _axes(entry: str | list[str] | None) -> list[str]:
    return [] if entry is None else [entry] if isinstance(entry, str) else entry


def _name(operation: PlannedOperation, factor: str) -> str:
    return operation.names.get(factor) or f"a dimension of {operation.factors.get(factor, 'unknown size')}"


def _names(operation: PlannedOperation, factors: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_name(operation, factor) for factor in factors))


def _by(keys: Sequence[str], axes: Sequence[str]) -> str:
    """`which arrays.w.spec shards over x`."""
    over = listed(axes)
    if not keys:
        return f"which is sharded over {over}"
    return f"which {_keyed(keys)} shard{'s' if len(keys) == 1 else ''} over {over}"


def _keyed(keys: Sequence[str]) -> str:
    """The first keys in words; a reason's `keys` has all."""
    more = len(keys) - _NAMED
    return listed(list(keys)) if more < 2 else f"{', '.join(keys[:_NAMED])} and {more} other keys"


def _places(operation: PlannedOperation, factor: str) -> Iterable[tuple[PlannedValue, int]]:
    """The values of an operation and their dimensions along which a factor runs."""
    given, _, made = (operation.rule or "").partition("->")
    for side, values in ((given, operation.operands), (made, operation.results)):
        for value, term in zip(values, terms(side), strict=False):
            for at, factors in enumerate(term):
                if factor in factors and at < len(value.spec):
                    yield value, at


def _over(operation: PlannedOperation, factor: str, axes: Iterable[str] | None) -> set[str]:
    """The mesh axes, of these, that shard a factor."""
    found = {axis.partition(":")[0] for value, at in _places(operation, factor) for axis in _axes(value.spec[at])}
    return found if axes is None else found & set(axes)


def _keys(operation: PlannedOperation, factors: Iterable[str], axes: Iterable[str] | None) -> tuple[str, ...]:
    """The keys of the file that shard these factors, those of the operands first."""
    wanted = None if axes is None else set(axes)
    found: dict[str, None] = {}
    for factor in factors:
        for value, at in _places(operation, factor):
            for axis in (axis.partition(":")[0] for axis in _axes(value.spec[at])):
                if wanted is None or axis in wanted:
                    found |= dict.fromkeys(value.origins.get(axis, ()))
    return tuple(found)
