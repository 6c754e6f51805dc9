"""A plan in; sentences that name the kind of parallelism over each mesh axis out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from runner.derivation.rules import Dimensions
from runner.planning.model import Layable, RuledOperation
from runner.planning.network import Choice
from runner.planning.tables import NumberedAssignment, Tables
from runner.words import bytes_text, listed

_COMPLETED = {"all-reduce": "all-reduced", "reduce-scatter": "reduce-scattered"}


@dataclass
class _Axis:
    """What one mesh axis splits: lines with products, by the role of the split factor, and values between them."""

    rows: dict[int, list[str]] = field(default_factory=lambda: defaultdict[int, list[str]](list))
    """Lines by the dimension of the activations."""
    columns: list[str] = field(default_factory=list[str])
    contracted: list[str] = field(default_factory=list[str])
    experts: list[str] = field(default_factory=list[str])
    heads: list[str] = field(default_factory=list[str])
    vocabulary: list[str] = field(default_factory=list[str])
    between: list[str] = field(default_factory=list[str])
    """Values sharded along a dimension between the batch and the last one."""
    gathered: dict[str, float] = field(default_factory=dict[str, float])
    """The bytes of all-gathers of weights for products, by weight."""
    gradients: dict[str, float] = field(default_factory=dict[str, float])
    """The bytes of the weights' gradients, by kind of collective."""


def parallelism(tables: Tables, choice: Choice) -> Iterator[str]:
    """Yield sentences such as `tensor parallelism (Megatron) over model: …`, by mesh axes."""
    weights = _weights(tables.layable)
    axes: dict[str, _Axis] = defaultdict(_Axis)
    stationary: list[str] = []
    for number, operation in enumerate(tables.layable.operations):
        way = tables.ways[number][choice[tables.variable(number)]]
        line = tables.layable.place(operation.line)
        roles = list(_split(tables.layable, operation, way, weights))
        for axis, kind, d in roles:
            each = axes[axis]
            match kind:
                case "rows":
                    each.rows[d].append(line)
                case "columns":
                    each.columns.append(line)
                case "contracted":
                    each.contracted.append(line)
                case "experts":
                    each.experts.append(line)
                case "heads":
                    each.heads.append(line)
                case _:
                    each.vocabulary.append(line)
        kinds = {kind: axis for axis, kind, _ in roles}
        if {"columns", "contracted"} <= set(kinds) and not any(kind == "rows" for kind in kinds):
            stationary.append(line)
    for at in tables.layable.named.values():
        tensor = tables.layable.tensors[at]
        spec = tables.lying[at].spec(choice[at])
        if len(tensor.shape) > 2 and at not in weights:
            for entry in spec[1:-1]:
                for axis in entry:
                    axes[axis].between.append(tables.layable.label(at))
    for each in tables.sendings(choice):
        if each.tensor is None or each.tensor not in weights:
            continue
        kind, sent = each.sending.kind, each.sending.sent
        for axis in each.sending.axes:
            if each.backward and kind in _COMPLETED:
                gradients = axes[axis].gradients
                gradients[kind] = gradients.get(kind, 0.0) + sent
            elif not each.backward and kind == "all-gather":
                gathered, label = axes[axis].gathered, tables.layable.label(each.tensor)
                gathered[label] = gathered.get(label, 0.0) + sent
    for axis in tables.mesh.axes:
        if axis in axes:
            yield from _sentences(axis, axes[axis])
    if stationary:
        yield (
            f"2-D weight-stationary: {_lines(stationary)} sharded by columns and by rows over different axes, so that "
            "activations are sent and weights stay"
        )


def _sentences(axis: str, each: _Axis) -> Iterator[str]:
    weights, tensor = sum(each.gathered.values()), {*each.columns, *each.contracted}
    if each.rows.get(0):
        then = ""
        if each.gradients:
            kinds = " and ".join(_COMPLETED[kind] for kind in sorted(each.gradients))
            then = f"; gradients of weights are {kinds} ({bytes_text(round(sum(each.gradients.values())))})"
        yield f"data parallelism over {axis}: the batch is sharded in {_lines(each.rows[0])}{then}"
    if each.gathered:
        many = len(each.gathered)
        lie = f"{many} weights are sharded and" if many > 1 else f"{next(iter(each.gathered))} is sharded and"
        yield (f"FSDP (ZeRO-3) over {axis}: {lie} gathered for use ({bytes_text(round(weights))})")
    if each.columns and each.contracted:
        yield (
            f"tensor parallelism (Megatron) over {axis}: by columns in {_lines(each.columns)}, "
            f"by rows in {_lines(each.contracted)}"
        )
    elif tensor:
        how = "columns" if each.columns else "rows"
        yield f"tensor parallelism over {axis}: weights are sharded by {how} in {_lines(sorted(tensor))}"
    if each.heads:
        yield f"attention by heads over {axis}: {_lines(each.heads)}"
    sequence = {line for d, lines in each.rows.items() if d for line in lines}
    if each.between and tensor:
        yield f"sequence parallelism over {axis}: {_lines(each.between)} sharded along the sequence between products"
    elif sequence:
        yield f"sequence (context) parallelism over {axis}: the sequence is sharded in {_lines(sorted(sequence))}"
    if each.vocabulary:
        yield f"vocabulary sharded over {axis}: {_lines(each.vocabulary)}"
    if each.experts:
        yield f"expert parallelism over {axis}: each device has experts of its own in {_lines(each.experts)}"


def _lines(lines: Sequence[str]) -> str:
    """A list of at most three lines, and the number of others."""
    names = list(dict.fromkeys(lines))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return listed([f"'{name}'" for name in names[:3]]) + more


def _weights(layable: Layable) -> set[int]:
    """The tensors that are weights, or computed from weights alone.

    Weights are the arrays with a gradient. Without gradients they are the arrays of rank 2 or more that the first
    operand of the first product does not depend on.
    """
    arrays = [at for at, tensor in enumerate(layable.tensors) if tensor.copies and tensor.line == tensor.name]
    given = {at for at in arrays if layable.tensors[at].differentiated}
    if not given:
        # The weights are applied to the first operand of the first product.
        products = (operation for operation in layable.operations if operation.work.flops and operation.operands)
        first = next(products, None)
        data = _sources(layable, first.operands[0].tensor) if first else set[int]()
        given = {at for at in arrays if at not in data and len(layable.tensors[at].shape) > 1}
    weights = set(given)
    steps = [
        ([each.tensor for each in operation.operands], list(operation.results)) for operation in layable.operations
    ]
    steps += [([transfer.before], [transfer.after]) for transfer in layable.transfers]
    more = True
    while more:
        new = {at for before, after in steps if before and set(before) <= weights for at in after} - weights
        weights |= new
        more = bool(new)
    return weights


def _sources(layable: Layable, tensor: int) -> set[int]:
    """The tensors that a tensor is computed from, itself included."""
    sources, queue = {tensor}, [tensor]
    while queue:
        at = queue.pop()
        before = [
            each.tensor for operation in layable.operations if at in operation.results for each in operation.operands
        ]
        before += [transfer.before for transfer in layable.transfers if transfer.after == at]
        queue += [each for each in before if each not in sources]
        sources |= set(before)
    return sources


def _split(
    layable: Layable, operation: RuledOperation, way: NumberedAssignment, weights: set[int]
) -> Iterator[tuple[str, str, int]]:
    """Yield each axis that splits an operation, the role of its factor, and the dimension of the activations."""
    rule = operation.rule
    placed = [(each.tensor, rule.operands[each.place]) for each in operation.operands if each.place is not None]
    mine = [dimensions for at, dimensions in placed if at in weights]
    others = [dimensions for at, dimensions in placed if at not in weights]
    for factor, axes in way.assignment.items():
        for axis in axes:
            activation = next((d for dims in others if (d := _dimension(dims, factor)) is not None), None)
            weight = next((d for dims in mine if (d := _dimension(dims, factor)) is not None), None)
            result = _dimension(rule.result, factor)
            classes = rule.exponentials | rule.looked_up
            if factor in classes and activation is not None and activation + 1 == len(others[0]):
                yield axis, "vocabulary", activation
            elif weight == 0 and factor in rule.looked_up:
                yield axis, "vocabulary", 0
            elif not operation.work.flops:
                continue
            elif not mine:
                both = sum(_dimension(dims, factor) is not None for dims in others) > 1
                if both and result and activation:
                    yield axis, "heads", activation
                elif activation is not None and result is not None:
                    yield axis, "rows", activation
            elif activation is not None and weight is not None:
                yield axis, "contracted" if result is None else "experts", activation
            elif activation is not None:
                yield axis, "rows", activation
            elif weight is not None and result is not None:
                yield axis, "columns", 0


def _dimension(dimensions: Dimensions, factor: int) -> int | None:
    return next((d for d, factors in enumerate(dimensions) if factor in factors), None)
