"""Names the kinds of parallelism of a plan over each mesh axis, in sentences, by what the sharded dimensions mean.

A dimension whose meaning the graph does not tell is named as it is in the file, without a kind of parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from runner.base.lazy import dataclass
from runner.base.words import bytes_text, listed
from runner.programs.derivation.rules import Dimensions
from runner.programs.planning.meaning import Meaning, Meanings
from runner.programs.planning.model import RuledOperation
from runner.programs.planning.network import Choice
from runner.programs.planning.tables import NumberedAssignment, Tables

_COMPLETED = {"all-reduce": "all-reduced", "reduce-scatter": "reduce-scattered"}

Role: TypeAlias = Literal["columns", "rows", "each"]
"""How a factor of a product divides its weight: by what it adds, by what is summed, or by what both operands have."""


@dataclass
class _Axis:
    """What one mesh axis divides.

    - `split`: for each meaning the groups of dimensions that operations are divided along; `flops`: those of the
      products that are.
    - `roles`: for each array of weights its group that is divided, and in which role, in the first product that it is
      in.
    - `between`: the values between products that are sharded along positions of a batch or a sequence, with the
      dimension.
    - `gathered`, `gradients`, `sums`: the bytes of all-gathers of weights for use, by name; of collectives that
      complete the gradients of weights, and the products of weights, by kind.
    """

    split: dict[Meaning | None, list[int]] = field(default_factory=dict[Meaning | None, list[int]])
    flops: dict[Meaning | None, float] = field(default_factory=dict[Meaning | None, float])
    roles: dict[int, tuple[int, Role]] = field(default_factory=dict[int, tuple[int, Role]])
    between: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    gathered: dict[str, float] = field(default_factory=dict[str, float])
    gradients: dict[str, float] = field(default_factory=dict[str, float])
    sums: dict[str, float] = field(default_factory=dict[str, float])


_SMALL = 0.02
"""The share of the flops that an axis divides, below which what they are divided along has no name."""


def parallelism(tables: Tables, choice: Choice) -> Iterator[str]:
    """Yield sentences such as `tensor parallelism (Megatron) over model: …`, by mesh axes."""
    plan = _Plan(tables, choice)
    for axis in tables.mesh.axes:
        yield from plan.sentences(axis)
    if plan.stationary:
        yield (
            f"2-D weight-stationary: {_quoted(plan.stationary)} by columns and by rows over different axes, so that "
            "activations are sent and weights stay"
        )


class _Plan:
    """A choice of layouts, by what it divides over each mesh axis."""

    def __init__(self, tables: Tables, choice: Choice) -> None:
        self._tables, self._choice, self._layable = tables, choice, tables.layable
        self._meanings = Meanings(tables.layable)
        self._axes = {axis: _Axis() for axis in tables.mesh.axes}
        self.stationary: list[str] = []
        self._read_operations()
        for axis, each in self._axes.items():
            self._leave_out_small(axis, each)
        self._read_values()
        self._read_sendings()

    # What the choice divides.

    def _read_operations(self) -> None:
        tables = self._tables
        for number, operation in enumerate(self._layable.operations):
            way = tables.ways[number][self._choice[tables.variable(number)]]
            if operation.work.flops or operation.rule.looked_up or operation.rule.exponentials:
                self._read_operation(number, operation, way)

    def _leave_out_small(self, axis: str, each: _Axis) -> None:
        """Leave out what divides no array, and few of the flops: no one would name the plan after that."""
        most = sum(each.flops.values())
        for meaning, flops in each.flops.items():
            if flops < _SMALL * most and not self._divides_arrays(axis, each.split.get(meaning, [])):
                each.split.pop(meaning, None)

    def _divides_arrays(self, axis: str, groups: Sequence[int]) -> bool:
        of = self._meanings.groups.of
        specs = ((at, d, axes) for at in self._layable.arrays for d, axes in enumerate(self._spec(at)))
        return any(axis in axes and of(at, d) in groups for at, d, axes in specs)

    def _read_operation(self, number: int, operation: RuledOperation, way: NumberedAssignment) -> None:
        meanings, weights = self._meanings, self._meanings.roots
        placed = [(each.tensor, operation.rule.operands[each.place]) for each in operation.operands if each.place]
        mine = [(at, dimensions) for at, dimensions in placed if at in weights]
        others = [dimensions for at, dimensions in placed if at not in weights]
        roles: dict[str, Role | None] = {}
        for factor, axes in way.assignment.items():
            group = meanings.groups.of_factor(number, factor)
            if group is None:
                continue
            role = _role(factor, [dimensions for _, dimensions in mine], others, operation.rule.result)
            for axis in axes:
                each = self._axes[axis]
                meaning = meanings.of(group)
                lost = meaning == "features" and role is None and not operation.work.flops
                if not lost:
                    each.split.setdefault(meaning, []).append(group)
                if operation.work.flops:
                    each.flops[meaning] = each.flops.get(meaning, 0.0) + operation.work.flops * operation.steps
                roles[axis] = role
                if role is None or not operation.work.flops:
                    continue
                for array in (array for at, dimensions in mine if _has(dimensions, factor) for array in weights[at]):
                    each.roles.setdefault(array, (group, role))
        if {"columns", "rows"} <= set(roles.values()) and None not in roles.values() and operation.work.flops:
            self.stationary += [self._layable.label(array) for at, _ in mine for array in sorted(weights[at])]

    def _read_values(self) -> None:
        for at in self._layable.named.values():
            if at in self._meanings.roots:
                continue
            for d, axes in enumerate(self._spec(at)):
                if self._meanings.of(self._meanings.groups.of(at, d)) in ("batch", "sequence"):
                    for axis in axes:
                        self._axes[axis].between.append((self._layable.label(at), str(d)))

    def _read_sendings(self) -> None:
        rows = {group for each in self._axes.values() for group, role in each.roles.values() if role == "rows"}
        for sending in self._tables.sendings(self._choice):
            if sending.tensor is None:
                continue
            kind, sent = sending.sending.kind, sending.sending.sent * sending.times
            for axis in sending.sending.axes:
                mine = self._axes[axis]
                if sending.tensor in self._meanings.roots and not sending.backward and kind == "all-gather":
                    for array in sorted(self._meanings.roots[sending.tensor]):
                        if axis not in _axes(self._spec(array)):
                            continue
                        label = self._layable.label(array)
                        mine.gathered[label] = mine.gathered.get(label, 0.0) + sent
                elif kind in _COMPLETED and self._is_gradient(sending.tensor, backward=sending.backward):
                    mine.gradients[kind] = mine.gradients.get(kind, 0.0) + sent
                elif kind in _COMPLETED and not sending.backward and self._contracts(sending.tensor, rows):
                    mine.sums[kind] = mine.sums.get(kind, 0.0) + sent

    def _is_gradient(self, tensor: int, *, backward: bool) -> bool:
        """Whether what is completed is the gradient of a weight: by differentiation, or by an equation of the graph."""
        if backward:
            return tensor in self._meanings.roots
        meanings = [self._meanings.of(group) for group in self._meanings.groups.of_tensor(tensor)]
        return bool(meanings) and not {None, "batch", "sequence"} & set(meanings) and self._reduces_tokens(tensor)

    def _reduces_tokens(self, tensor: int) -> bool:
        """Whether a tensor is a sum over a batch or a sequence."""
        for number, operation in enumerate(self._layable.operations):
            if tensor in operation.results:
                groups = (self._meanings.groups.of_factor(number, factor) for factor in operation.rule.reduced)
                return any(self._meanings.of(group) in ("batch", "sequence") for group in groups)
        return False

    def _contracts(self, tensor: int, groups: set[int]) -> bool:
        for number, operation in enumerate(self._layable.operations):
            if tensor in operation.results:
                return any(
                    self._meanings.groups.of_factor(number, factor) in groups for factor in operation.rule.reduced
                )
        return False

    def _spec(self, tensor: int) -> Sequence[tuple[str, ...]]:
        return self._tables.lying[tensor].spec(self._choice[tensor])

    # In words.

    def sentences(self, axis: str) -> Iterator[str]:
        """Yield the kinds of parallelism over one mesh axis."""
        each = self._axes[axis]
        named = list(self._named(axis, each))
        yield from named
        unknown = each.split.get(None, []) + ([] if named else each.split.get("features", []))
        if (unknown or not named) and (text := self._dimensions(unknown or None, axis)):
            yield f"{text} is sharded over {axis}"

    def _named(self, axis: str, each: _Axis) -> Iterator[str]:
        tokens = [*each.split.get("batch", ()), *each.split.get("sequence", ())]
        if batch := each.split.get("batch"):
            yield f"data parallelism over {axis}: {self._dimensions(batch, axis)}{self._gradients(each)}"
        if sequence := each.split.get("sequence"):
            then = "" if batch else self._gradients(each)
            yield f"sequence (context) parallelism over {axis}: {self._dimensions(sequence, axis)}{then}"
        yield from self._gathered(axis, each, bool(tokens))
        yield from self._optimizer(axis, each, bool(tokens))
        yield from self._tensor_parallel(axis, each)
        # Values that lie as the batch do not change between products.
        if each.between and not batch and self._with_roles(axis, "features", "heads"):
            yield self._between(axis, each)
        for meaning, template in _KINDS.items():
            if groups := each.split.get(meaning):
                yield template.format(axis=axis, what=self._dimensions(groups, axis))

    def _gradients(self, each: _Axis) -> str:
        if not each.gradients or each.gathered:
            return ""
        kinds = " and ".join(_COMPLETED[kind] for kind in sorted(each.gradients))
        return f"; gradients of weights are {kinds} ({bytes_text(round(sum(each.gradients.values())))})"

    def _gathered(self, axis: str, each: _Axis, tokens: bool) -> Iterator[str]:
        if not each.gathered:
            return
        names, sent = list(each.gathered), bytes_text(round(sum(each.gathered.values())))
        what = f"{_some(names)} {'are' if len(names) > 1 else 'is'} gathered for use ({sent})"
        if not tokens:
            yield f"over {axis} {what}"
            return
        then = ""
        if each.gradients:
            kinds = " and ".join(_COMPLETED[kind] for kind in sorted(each.gradients))
            own = "their gradients are" if len(names) > 1 else "its gradient is"
            then = f"; {own} {kinds} ({bytes_text(round(sum(each.gradients.values())))})"
        yield f"FSDP (ZeRO-3) over {axis}: {what}{then}"

    def _optimizer(self, axis: str, each: _Axis, tokens: bool) -> Iterator[str]:
        """Yield a sentence on an optimizer's state that is sharded, of weights that are whole."""
        groups, tensors = self._meanings.groups, self._layable.tensors
        weights = [at for at in self._layable.arrays if at in self._meanings.roots]
        whole = [at for at in weights if axis not in _axes(self._spec(at))]
        like = {(tensors[at].shape, tuple(groups.of_tensor(at))) for at in whole}
        states = [
            at
            for at in self._layable.arrays
            if at not in weights
            and axis in _axes(self._spec(at))
            and (tensors[at].shape, tuple(groups.of_tensor(at))) in like
        ]
        if not states or not tokens:
            return
        gradients = (at for at, tensor in enumerate(tensors) if tensor.name.startswith("grad.") and tensor.copies)
        sharded = "reduce-scatter" in each.gradients or any(axis in _axes(self._spec(at)) for at in gradients)
        names = [self._layable.label(at) for at in states]
        names += ["the gradients"] if sharded else []
        are = "are" if len(names) > 1 else "is"
        yield f"ZeRO-{2 if sharded else 1} over {axis}: {_some(names)} {are} sharded, the weights are whole for use"

    def _with_roles(self, axis: str, *meanings: Meaning) -> list[tuple[int, int, Role]]:
        """The weights that are divided along dimensions with some meanings, their groups and roles.

        If some are sharded over the axis, whole ones that a product reads in parts are left out.
        """
        divided: list[tuple[int, int, Role]] = [
            (array, group, role)
            for array, (group, role) in self._axes[axis].roles.items()
            if self._meanings.of(group) in meanings and role != "each"
        ]
        return [each for each in divided if axis in _axes(self._spec(each[0]))] or divided

    def _tensor_parallel(self, axis: str, each: _Axis) -> Iterator[str]:
        sums = ""
        if each.sums:
            kinds = " and ".join(_COMPLETED[kind] for kind in sorted(each.sums))
            sums = f"; their products are {kinds} ({bytes_text(round(sum(each.sums.values())))})"
        if heads := self._with_roles(axis, "heads"):
            yield f"tensor parallelism by heads over {axis}: {self._by_roles(heads)}{sums}"
        elif groups := each.split.get("heads"):
            yield f"attention by heads over {axis}: {self._dimensions(groups, axis)}"
        if features := self._with_roles(axis, "features"):
            both = {role for _, _, role in features} == {"columns", "rows"}
            name = "tensor parallelism (Megatron)" if both else "tensor parallelism"
            yield f"{name} over {axis}: {self._by_roles(features)}{'' if heads else sums}"

    def _by_roles(self, weights: Iterable[tuple[int, int, Role]]) -> str:
        """`w1 and w3 by columns, w2 by rows`."""
        names: dict[Role, list[str]] = {}
        for array, _, role in weights:
            names.setdefault(role, []).append(self._layable.label(array))
        return ", ".join(f"{_some(names[role])} by {role}" for role in ("columns", "rows") if role in names)

    def _between(self, axis: str, each: _Axis) -> str:
        named = self._layable.named
        labels = {self._layable.label(at): at for at in named.values()}
        groups = {self._meanings.groups.of(labels[label], int(d)) for label, d in each.between if label in labels}
        values = list(dict.fromkeys(label for label, _ in each.between))
        if all(self._meanings.of(group) == "sequence" for group in groups):
            return f"sequence parallelism over {axis}: {_quoted(values)} sharded along the sequence between products"
        what = " and ".join(dict.fromkeys(d for _, d in each.between))
        return (
            f"over {axis} {_quoted(values)} sharded along dimension {what} between products, as in sequence parallelism"
        )

    def _dimensions(self, groups: Iterable[int] | None, axis: str) -> str:
        """`dimension B of x and t`: those of arrays, or else of lines, with the groups, that are sharded over an axis.

        None: all dimensions of arrays that are. If none is sharded, those that have the groups.
        """
        layable = self._layable
        wanted = None if groups is None else set(groups)
        arrays = sorted(layable.arrays, key=lambda at: at in self._meanings.roots)
        for tensors in (arrays, list(layable.named.values())):
            for sharded in (True, False) if wanted is not None else (True,):
                names: dict[str, list[str]] = {}
                for at in tensors:
                    own = layable.arrays.get(at, ())
                    for d, axes in enumerate(self._spec(at)):
                        of_groups = wanted is None or self._meanings.groups.of(at, d) in wanted
                        if of_groups and (axis in axes or not sharded) and layable.tensors[at].shape[d] > 1:
                            name = (own[d] if d < len(own) else None) or str(d)
                            names.setdefault(name, []).append(layable.label(at))
                if names:
                    return "; ".join(f"dimension {name} of {_some(of)}" for name, of in names.items())
        return ""


_KINDS: dict[Meaning | None, str] = {
    "vocabulary": "vocabulary sharded over {axis}: {what}",
    "experts": "expert parallelism over {axis}: {what}",
    "positions in space": "spatial parallelism over {axis}: {what}; the edges of blocks are sent",
    "stages": "pipeline parallelism over {axis}: {what}; each device has stages of its own",
}
"""The sentences on meanings that each make a kind of parallelism."""


def _role(factor: int, weights: Iterable[Dimensions], others: Iterable[Dimensions], result: Dimensions) -> Role | None:
    """How a factor divides the weights of a product; None if it does not."""
    if not any(_has(dimensions, factor) for dimensions in weights):
        return None
    if not any(_has(dimensions, factor) for dimensions in others):
        return "columns"
    return "each" if _has(result, factor) else "rows"


def _has(dimensions: Dimensions, factor: int) -> bool:
    return any(factor in factors for factors in dimensions)


def _axes(spec: Iterable[tuple[str, ...]]) -> set[str]:
    return {axis for axes in spec for axis in axes}


def _some(names: Sequence[str]) -> str:
    """A list of at most four names, or of three and the number of others."""
    names = list(dict.fromkeys(names))
    return listed([*names[:3], f"{len(names) - 3} more"]) if len(names) > 4 else listed(names)


def _quoted(names: Sequence[str]) -> str:
    return _some([f"'{name}'" for name in names])
