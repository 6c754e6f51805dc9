"""Explains, from Shardy's plan, why the operations of a line need values that specs shard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.compiled.evidence.model import REDUCING, Collective
from runner.experiment.model import Array, Experiment, Section
from runner.experiment.program import Program
from runner.graph.language.lines import calls_in, expressions
from runner.graph.language.operations import row_of
from runner.graph.sharding.propagation import Planned, PlannedCollective, PlannedOperation, PlannedValue, parsed_rule
from runner.graph.source import Frame
from runner.graph.term import name_of


@dataclass(frozen=True)
class Need:
    """The need of an operation: its text, the dimensions, the keys that shard them, and the user's line that asks."""

    text: str
    operation: str
    line: str | None
    dims: tuple[str, ...]
    keys: tuple[str, ...]
    at: Frame | None = None


_REGION = "manual_computation"
"""The operation of a `shard_map`, whose `in_specs` say how its operands lie."""

_WORDS = {
    "gather": "lookup", "scatter": "update", "update_slice": "update", "reduce_window": "window", "fft": "transform",
    "concatenate": "concatenation", "broadcast_in_dim": "broadcast", "select_and_scatter": "window",
    "reshard": "derivative of the reshard", _REGION: "shard_map", "while": "loop", "case": "choice",
}  # fmt: skip
_REDUCTIONS = {"sum": "sum", "max": "maximum", "min": "minimum", "prod": "product"}

_WINDOWED = frozenset({"convolution", "reduce_window", "select_and_scatter"})
"""The operations that reduce over a sliding window: they need the values next to a block's edges."""

_NAMED = 3
"""The number of keys that the text of a reason names."""

NOBODY = frozenset({"", "return"})
"""The operations that only pass a value on."""


def word(operation: str, reduction: str | None = None) -> str:
    """The name of a StableHLO operation for sentences: `the product`, `the sum`."""
    if operation == "reduce":
        return f"the {_REDUCTIONS.get(reduction or '', 'reduction')}"
    if row_of(operation).contraction is not None:
        return "the product"
    stem = operation.removeprefix("dynamic_")
    return f"the {_WORDS.get(stem, stem)}"


def _computing(operation: PlannedOperation) -> str:
    """What an operation computes, for sentences."""
    return word(operation.name) if operation.computes is None else f"the {operation.computes}"


def axes_of(planned: PlannedCollective) -> set[str]:
    """The mesh axes of a planned collective; a part of an axis counts as that axis."""
    return mesh_axes(planned.axes)


def mesh_axes(named: Iterable[str]) -> set[str]:
    """The mesh axes of some axes, of which Shardy may name parts: `x` for `x:(1)2`."""
    return {axis.partition(":")[0] for axis in named}


@dataclass(frozen=True)
class Keys:
    """The keys of a file that define layouts.

    - `lines`: for each line of a program its keys, and the layouts.
    - `arrays`: for each key of an array the mesh axes that it names, with the dimensions that each shards.
    - `places`: the users' names of lines that have no key in the file; see `Experiment.places`.
    - `values`: the arrays as the program gets them, by name, with the keys that shard them.
    - `sizes`: the sizes of the mesh axes.
    - `batched`: the lines of operations of which XLA may compute all batches on each device, with the operation, the
      name of its operand, and the number of that one's last dimensions that it needs whole.
    """

    lines: Mapping[str, tuple[str, Spec]]
    arrays: Mapping[str, Mapping[str, tuple[str | None, ...]]]
    places: Mapping[str, str]
    values: Mapping[str, PlannedValue]
    sizes: Mapping[str, int]
    batched: Mapping[str, tuple[str, str | None, int]] = field(default_factory=dict[str, "tuple[str, str | None, int]"])

    def named(self, line: str) -> str:
        """The readers' name of a line."""
        return self.places.get(line, line)

    def all_named(self, lines: Iterable[str]) -> str:
        """The readers' names of several lines, joined."""
        return listed(list(dict.fromkeys(map(self.named, lines))))


def keys_of(experiment: Experiment, program: Program | None = None) -> Keys:
    """The keys of a file; those of lines are for a `program`, or without one for the graph."""
    lines = {line: (experiment.key_of_constraint(line), spec) for line, spec in experiment.constraints.items()}
    if program is None or program.places:
        results = {
            line: (experiment.key_of_layout(line), spec)
            for line, spec in experiment.outputs.items()
            if line not in experiment.imports.open
        }
        lines = lines | results if program else results | lines
    arrays = {experiment.key_of_layout(array.name): _sharded(array) for array in experiment.given}
    values = {array.name: _array(array, experiment) for array in experiment.arrays}
    section = "graph" if program is None else program.section
    sizes = experiment.mesh.sizes
    return Keys(lines, arrays, experiment.places(section), values, sizes, _batched(experiment, section))


_NEEDED_WHOLE = {"top_k": 1}
"""How many last dimensions operations need whole, of those that XLA on CPUs computes in a call of its own."""


def _batched(experiment: Experiment, section: Section) -> dict[str, tuple[str, str | None, int]]:
    return {
        str(line): (row.name, name_of(call.operands[0]), _NEEDED_WHOLE[row.name])
        for line, expression in expressions(experiment.computed(section))
        for call, row in calls_in(expression.term)
        if row.name in _NEEDED_WHOLE
    }


def _sharded(array: Array) -> dict[str, tuple[str | None, ...]]:
    spec = array.layout.spec.padded(len(array.shape))
    return {
        axis: tuple(name for name, over in zip(array.dims, spec, strict=True) if axis in over) for axis in spec.axes
    }


def renamed(planned: PlannedCollective, names: Mapping[str, str]) -> PlannedCollective:
    """A collective with readers' `names` in place of the paths of its lines."""
    return replace(planned, line=names.get(planned.line or "", planned.line), of=names.get(planned.of, planned.of))


def of_collective(
    planned: PlannedCollective,
    operations: Sequence[PlannedOperation],
    index: Keys,
    axes: set[str] | None = None,
    *,
    kind: str | None = None,
) -> Need:
    """Why Shardy plans a collective.

    For an all-reduce that was compiled axis by axis, why it is over these `axes`; if another `kind` was compiled in its
    place, the purpose of that one.
    """
    there = next((operation for operation in operations if operation.number == planned.needed_by), None)
    if planned.kind in REDUCING:
        return _summed(planned, there, axes or axes_of(planned), index)
    return _laid_out(planned, there, index, gathered=kind == "all-gather")


def of_operation(
    operation: PlannedOperation, axes: Iterable[str] | None, index: Keys, *, reducing: bool = False
) -> Need | None:
    """The need of an operation that the plan leaves to the partitioner; None if none of these axes shards its values.

    `reducing` is whether it may be a reduction, rather than values of other devices.
    """
    slid = operation.reduced if operation.name in _WINDOWED else ()
    moving = (
        ([*operation.permuted, *slid], "does not go block by block along {dims}"),
        (operation.whole, "needs all of {dims}"),
    )
    sums = operation.name == "convolution" or row_of(operation.name).contraction is not None
    does = "sums" if sums else "reduces"
    for factors, says in ((operation.reduced, f"{does} over {{dims}}"),) if reducing else moving:
        sharded = [factor for factor in factors if _over(operation, factor, axes)]
        if sharded:
            dims = _names(operation, sharded)
            keys = _keys(operation, sharded, axes)
            over = sorted({axis for factor in sharded for axis in _over(operation, factor, axes)})
            words_of = (
                f"{_computing(operation)} in {_line(operation.line, operation.gradient, index)} "
                f"{says.format(dims=listed(dims))}, {_by(keys, over, dims, index)}"
            )
            return Need(words_of, operation.name, operation.line, dims, keys)
    return None


_TAKEN = {"all-gather": "all of {dims} of {name}", "all-to-all": "{name} sharded along other dimensions than {dims}"}
"""What the reader of a moved value gets, by the kind of collective."""


def of_values(compiled: Collective, plan: Planned, index: Keys) -> Need | None:
    """Why a collective moves its value: the layouts of its sources; None if unknown."""
    if compiled.between is None or compiled.kind in REDUCING:
        return None
    source, to = compiled.between.source, compiled.between.to
    # What computes a value does not need it moved.
    reading = to if to and {*compiled.nodes} <= {*source} else compiled.nodes or to
    return of_sources(source, reading, compiled, plan, index)


def of_parts(compiled: Collective, index: Keys) -> Need | None:
    """Why a value is gathered for which Shardy plans nothing: XLA computes it in parts; None for other collectives."""
    if compiled.kind != "all-gather" or compiled.between is None or not compiled.axes:
        return None
    source = compiled.between.source
    readers = [line for line in compiled.between.to if line not in source]
    if not readers or not source:
        return None
    who, reads = _line(index.all_named(readers), compiled.gradient, index), "reads" if len(readers) < 2 else "read"
    text = (
        f"{who} {reads} all of {index.all_named(source)}, for which Shardy plans nothing: "
        f"XLA computes it in parts over {listed(compiled.axes)} and gathers them"
    )
    return Need(text, "", readers[0], (), ())


def of_batches(compiled: Collective, lines: Sequence[str], plan: Planned, index: Keys) -> Need | None:
    """Why the batches of an operation are gathered that does not need them whole; None for any other collective."""
    axes = set(compiled.axes or ())
    calls = ((line, *index.batched[line]) for line in lines if line in index.batched)
    for line, operation, operand, last in calls if compiled.kind == "all-gather" else ():
        value = _value_of([operand or ""], plan, index, axes).get(operand or "")
        over = _sharded_dims(value, axes) if value else {}
        if value is None or not over or any(at >= len(value.spec) - last for at in over):
            continue
        dims = _dims_at(value, over)
        keys = tuple(dict.fromkeys(key for axis in sorted(axes) for key in value.origins.get(axis, ())))
        by = _by(keys, sorted({axis for each in over.values() for axis in each}), dims, index)
        text = (
            f"XLA gathers {listed(dims)} of {index.named(value.of)}, {by}, for {operation} in "
            f"{_line(line, compiled.gradient, index)}, which does not need {'them' if len(dims) > 1 else 'it'} whole"
        )
        return Need(text, operation, line, dims, keys)
    return None


def of_joint_reduction(operation: PlannedOperation, axes: Iterable[str] | None, index: Keys) -> Need | None:
    """Why the parts of a reduction of several values at once are gathered; None for any other operation.

    An all-reduce has one value: XLA's partitioner gathers what each device has of a value and its index.
    """
    if operation.name != "reduce" or len(operation.results) < 2:
        return None
    need = of_operation(operation, axes, index, reducing=True)
    return need and replace(
        need, text=f"{need.text}; it reduces {len(operation.results)} values at once, which no all-reduce does"
    )


def of_slice(operation: PlannedOperation, axes: Iterable[str], index: Keys) -> Need | None:
    """Why the operand of a slice is gathered of which devices cannot have equal parts; None for any other operation."""
    if operation.name != "slice":
        return None
    (value,), (result,) = operation.operands, operation.results
    for at in _sharded_dims(value, axes):
        over = {axis.partition(":")[0] for axis in value.spec[at]}
        kept, count = result.shape[at], math.prod(index.sizes[axis] for axis in over)
        if kept == value.shape[at] or kept % count == 0:
            continue
        keys = tuple(dict.fromkeys(key for axis in sorted(over) for key in value.origins.get(axis, ())))
        dims = _dims_at(value, [at])
        text = (
            f"the slice in {_line(operation.line, operation.gradient, index)} keeps {kept} of {value.shape[at]} along "
            f"{dims[0]}, {_by(keys, sorted(over), dims, index)}: {count} devices do not divide {kept}"
        )
        return Need(text, operation.name, operation.line, dims, keys)
    return None


def _sharded_dims(value: PlannedValue, axes: Iterable[str]) -> dict[int, set[str]]:
    """The dimensions of a value that some mesh axes shard, each with those axes."""
    wanted = set(axes)
    over = {at: {axis.partition(":")[0] for axis in entry} & wanted for at, entry in enumerate(value.spec)}
    return {at: sharded for at, sharded in over.items() if sharded}


def _dims_at(value: PlannedValue, places: Iterable[int]) -> tuple[str, ...]:
    return tuple(value.dims[at] or f"dimension {at}" for at in places)


def _value_of(names: Sequence[str], plan: Planned, index: Keys, axes: set[str]) -> dict[str, PlannedValue]:
    """What the file or the plan knows of the values of these names, where one of these axes shards them by a key."""
    values = {name: value for name, value in index.values.items() if name in names}
    for operation in plan.operations:
        for value in (*operation.results, *operation.operands):
            if value.of in names and value.origins.keys() & axes:
                values.setdefault(value.of, value)
    return values


def of_sources(
    names: Sequence[str], lines: Sequence[str], compiled: Collective, plan: Planned, index: Keys
) -> Need | None:
    """Why the values of these names are moved for some lines."""
    axes = set(compiled.axes or ())
    # Within a line a value may have another layout than the line's result.
    names = [name for name in names if name not in lines]
    for name, value in _value_of(names, plan, index, axes).items():
        over = _sharded_dims(value, axes)
        keys = tuple(dict.fromkeys(key for axis in sorted(axes) for key in value.origins.get(axis, ())))
        if not over or not keys:
            continue
        dims = _dims_at(value, over)
        says = _TAKEN.get(compiled.kind, "blocks of {name} that others have along {dims}").format(
            dims=listed(dims), name=index.named(name)
        )
        who = _line(index.all_named(lines), compiled.gradient, index)
        axes_here = sorted({axis for axes in over.values() for axis in axes})
        text = f"{who} need{'s' if len(lines) < 2 else ''} {says}, {_by(keys, axes_here, dims, index)}"
        return Need(text, "", lines[0] if lines else None, dims, keys)
    return None


def _array(array: Array, experiment: Experiment) -> PlannedValue:
    spec = array.layout.spec
    return PlannedValue(
        of=array.name,
        shape=array.shape,
        dims=array.dims,
        spec=spec,
        origins={axis: [experiment.key_of_layout(array.name)] for axis in spec.axes},
    )


def _summed(planned: PlannedCollective, there: PlannedOperation | None, axes: set[str], index: Keys) -> Need:
    dims: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    if there is not None:
        sharded = [factor for factor in there.reduced if _over(there, factor, axes)]
        dims, keys = _names(there, sharded), _keys(there, sharded, axes)
    name = word(planned.operation, planned.reduction)
    over = f" over {listed(list(dims))}" if dims else ""
    does = {"sum": "sums", "max": "takes the largest", "min": "takes the least"}.get(planned.reduction or "", "reduces")
    text = f"{name} in {_at(planned, index)} {does}{over}, {_by(keys, sorted(axes), dims, index)}"
    return Need(text, planned.operation, planned.line, dims, keys)


def _laid_out(planned: PlannedCollective, there: PlannedOperation | None, index: Keys, *, gathered: bool) -> Need:
    before, after = planned.before, planned.after
    gone = [at for at, (a, b) in enumerate(zip(before, after, strict=False)) if set(a) - set(b)]
    come = [at for at, (a, b) in enumerate(zip(before, after, strict=False)) if set(b) - set(a)]
    dims, other_dims = _dim_names(planned, gone), _dim_names(planned, come)
    if set(dims) & set(other_dims):
        dims, other_dims = tuple(f"dimension {at}" for at in gone), tuple(f"dimension {at}" for at in come)
    lost = {axis.partition(":")[0] for at in gone for axis in set(before[at]) - set(after[at])}
    if not gone:
        lost = axes_of(planned)
    keys = tuple(dict.fromkeys(key for axis, by in planned.origins.items() if axis in lost for key in by))
    by = _by(keys, sorted(lost), dims, index)
    asking = planned.asked_by or (_promise(planned, index) if planned.operation in NOBODY else None)
    returned, of = planned.operation in NOBODY and asking is None, index.named(planned.of)
    needing = word(planned.operation) if there is None or there.name != planned.operation else _computing(there)
    who = f"{needing} in {_at(planned, index)} needs"
    if planned.operation == _REGION and not planned.gradient:
        place = f" in {_at(planned, index)}" if planned.line in index.places else ""
        who = f"in_specs of the shard_map{place} want"
    if asking is None and planned.stated_by is not None:
        who, returned = f"{planned.stated_by} wants", False
    elif asking:
        who = f"{asking} wants"
        keys = tuple(dict.fromkeys([asking, *keys]))
    elif returned:
        who = f"what returns {f'a gradient from {_at(planned, index)}' if planned.gradient else of} needs"
    split = None if asking or planned.stated_by or there is None else _reshaped(planned, there, gone, by, index)
    if split is not None:
        return Need(f"the reshape in {_at(planned, index)} {split}", planned.operation, planned.line, dims, keys)
    own = planned.of == planned.line or planned.of == planned.stated_in
    of_value = "" if own or returned else f" of {of}"
    if planned.kind == "all-to-all" and come and gone:
        value = "it" if returned else "what it reads" if own else of
        text = f"{who} {value} split along {listed(other_dims)} instead of {listed(dims)}, {by}"
        # It is gathered as soon as one of the two layouts has the axes; a key that shards it through another dimension
        # is only one of several.
        roundabout = sum(map(len, _ways(keys, lost, dims, index).values())) == len(keys)
        wanted = _wanted(planned, there, lost) if gathered or roundabout else ()
        if wanted:
            text += f"; {listed(other_dims)} {'are' if len(other_dims) > 1 else 'is'} sharded by {_keyed(wanted)}"
            keys, dims = tuple(dict.fromkeys([*keys, *wanted])), (*dims, *other_dims)
    elif planned.kind == "collective-permute" or not gone:
        text = f"{who} the blocks{of_value} in another order, as {after} and not {before}, {by}"
    else:
        since = "" if asking or planned.stated_by or there is None else _since(there, lost, dims)
        text = f"{who} all of {listed(dims)}{of_value}, {by}{since}"
    return Need(text, planned.operation, planned.line, dims, keys, None if asking else planned.stated_at)


def _reshaped(
    planned: PlannedCollective, there: PlannedOperation, gone: Sequence[int], by: str, index: Keys
) -> str | None:
    """What a reshape does to a dimension that is gathered for it, which `by` shards; None for any other operation."""
    if there.name != "reshape" or planned.operation != "reshape" or not gone:
        return None
    at = gone[0]
    value = "" if planned.of == planned.line else f" of {index.named(planned.of)}"
    dim = f"{_dim_names(planned, [at])[0]}{value}, {by}"
    given, made = next(
        (group for group in _regrouped(planned.shape, there.results[0].shape) if at in group[0]), ((), ())
    )
    count = math.prod(_size(axis, index) for axis in planned.before[at])
    into = [there.results[0].shape[each] for each in made]
    if len(given) == 1 and len(into) > 1 and into[0] % count:
        return f"makes {' × '.join(map(str, into))} of {dim}: {count} devices do not divide {into[0]}"
    if len(given) > 1 and at > given[0]:
        before = listed(list(_dim_names(planned, [each for each in given if each < at])))
        return f"joins {dim}, to {before}: a device's part is not in one piece there"
    return None


def _regrouped(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The dimensions before and after a reshape of more than one element, in the smallest groups of equal size."""
    given, made = ([(at, size) for at, size in enumerate(shape) if size > 1] for shape in (before, after))
    while given and made:
        own, others = [given.pop(0)], [made.pop(0)]
        while (sizes := [math.prod(size for _, size in side) for side in (own, others)])[0] != sizes[1]:
            shorter, rest = (own, given) if sizes[0] < sizes[1] else (others, made)
            if not rest:
                return
            shorter.append(rest.pop(0))
        yield tuple(at for at, _ in own), tuple(at for at, _ in others)


def _size(axis: str, index: Keys) -> int:
    """The size of a mesh axis, or of a part of one."""
    name, _, part = axis.partition(":")
    return int(part.partition(")")[2]) if part else index.sizes[name]


def _promise(planned: PlannedCollective, index: Keys) -> str | None:
    """The key that requires this layout of an output."""
    key, spec = index.lines.get(planned.line or planned.of, (None, Spec()))
    return None if planned.gradient or spec.padded(len(planned.after)) != planned.after else key


def _wanted(planned: PlannedCollective, there: PlannedOperation | None, axes: set[str]) -> tuple[str, ...]:
    """The keys that ask for the layout that a value has after a collective."""
    taken = [
        value for value in (there.operands if there else ()) if value.of == planned.of and value.spec == planned.after
    ]
    keys = {key: None for value in taken for axis in sorted(axes) for key in value.origins.get(axis, ())}
    return tuple(keys)


def before_moves(operations: Sequence[PlannedOperation], moved: Sequence[PlannedCollective]) -> list[PlannedOperation]:
    """Operations with the layouts that their operands have before the planned collectives move them."""
    into: dict[int, list[PlannedCollective]] = {}
    for planned in moved:
        if planned.needed_by is not None and planned.kind not in REDUCING:
            into.setdefault(planned.needed_by, []).append(planned)

    def lying(value: PlannedValue, number: int) -> PlannedValue:
        for operation in into[number]:
            if (operation.of, operation.shape, operation.after) == (value.of, value.shape, value.spec):
                return replace(value, spec=operation.before, origins=operation.origins)
        return value

    return [
        replace(operation, operands=[lying(value, operation.number) for value in operation.operands])
        for operation in operations
        if operation.number in into
    ]


def _dim_names(planned: PlannedCollective, places: Sequence[int]) -> tuple[str, ...]:
    """The names of dimensions, or their numbers where the name is missing or not unique."""
    return tuple(
        name
        if (name := planned.dims[at] if at < len(planned.dims) else None) and planned.dims.count(name) == 1
        else f"dimension {at}"
        for at in places
    )


def _since(operation: PlannedOperation, axes: set[str], dims: Sequence[str]) -> str:
    """What else the axes shard in an operation, which is the reason for the need."""
    for factor in operation.factors:
        over = _over(operation, factor, axes)
        name = _name(operation, factor)
        if over and name not in dims:
            keys = _keys(operation, [factor], axes)
            by = f" ({_keyed(keys)})" if keys else ""
            return f"; {listed(sorted(over))} shard{'s' if len(over) == 1 else ''} {name} there{by}"
    return ""


def _line(line: str | None, gradient: bool, index: Keys) -> str:
    return f"{index.named(line) if line else 'no line'}{' (backward)' if gradient else ''}"


def _at(planned: PlannedCollective, index: Keys) -> str:
    return _line(planned.line, planned.gradient, index)


def _name(operation: PlannedOperation, factor: str) -> str:
    return operation.names.get(factor) or f"a dimension of {operation.factors.get(factor, 'unknown size')}"


def _names(operation: PlannedOperation, factors: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_name(operation, factor) for factor in factors))


def _by(keys: Sequence[str], axes: Sequence[str], dims: Sequence[str], index: Keys) -> str:
    """`which arrays.w.spec shards over x`; for arrays without these dimensions, through which dimension."""
    over = listed(axes)
    if not keys:
        return f"which is sharded over {over}"
    ways = _ways(keys, axes, dims, index)
    own = [key for key in keys if not any(key in through for through in ways.values())]
    shards = [f"{_keyed(own)} shard{'s' if len(own) == 1 else ''} over {over}"] if own else []
    for names, through in ways.items():
        does = "" if shards else f" shard{'s' if len(through) == 1 else ''} over {over}"
        shards.append(f"{_keyed(through)}{does} by way of {listed(names)}")
    return f"which {listed(shards)}"


def _ways(
    keys: Sequence[str], axes: Iterable[str], dims: Sequence[str], index: Keys
) -> dict[tuple[str, ...], list[str]]:
    """The keys of arrays without the dimensions, by the names of the array's own dimensions that these axes shard."""
    ways: dict[tuple[str, ...], list[str]] = {}
    if not dims or not all(map(str.isidentifier, dims)):
        return ways
    for key in keys:
        of_axes = index.arrays.get(key, {})
        names = tuple(dict.fromkeys(name for axis in axes for name in of_axes.get(axis, ())))
        if names and not set(names) & {None, *dims}:
            ways.setdefault(tuple(map(str, names)), []).append(key)
    return ways


def _keyed(keys: Sequence[str]) -> str:
    """The first keys as text; a reason's `keys` has all of them."""
    more = len(keys) - _NAMED
    return listed(list(keys)) if more < 2 else f"{', '.join(keys[:_NAMED])} and {more} other keys"


def _places(operation: PlannedOperation, factor: str) -> Iterable[tuple[PlannedValue, int]]:
    """The values and dimensions of an operation along which a factor runs."""
    given, made = parsed_rule(operation.rule)
    for side, values in ((given, operation.operands), (made, operation.results)):
        for value, term in zip(values, side, strict=False):
            for at, factors in enumerate(term):
                if factor in factors and at < len(value.spec):
                    yield value, at


def _over(operation: PlannedOperation, factor: str, axes: Iterable[str] | None) -> set[str]:
    """Those of the mesh axes that shard a factor."""
    names = {axis.partition(":")[0] for value, at in _places(operation, factor) for axis in value.spec[at]}
    return names if axes is None else names & set(axes)


def _keys(operation: PlannedOperation, factors: Iterable[str], axes: Iterable[str] | None) -> tuple[str, ...]:
    """The keys of the file that shard these factors, those of operands first."""
    wanted = None if axes is None else set(axes)
    keys: dict[str, None] = {}
    for factor in factors:
        for value, at in _places(operation, factor):
            for axis in (axis.partition(":")[0] for axis in value.spec[at]):
                if wanted is None or axis in wanted:
                    keys |= dict.fromkeys(value.origins.get(axis, ()))
    return tuple(keys)
