"""One operation that is being written: its call, its rule and the assignment in; what one device computes out."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from runner.derivation.calls import Call
from runner.derivation.laying import Layouts
from runner.derivation.rules import Assignment, Factors, Rule
from runner.derivation.statics import Statics
from runner.derivation.trees import arguments, built, rebuilt
from runner.derivation.values import Value
from runner.layout import Mesh, Spec


@dataclass(frozen=True)
class Site:
    """One operation under an assignment, and what may be asked of the writer of lines.

    - `values`: all arguments that arrays enter, by their places, as they lie.
    - `layouts`: the lines that are written, and the layouts of their values; `statics`: what is known without arrays.
    - `trees`: the operands in the layouts that the assignment asks for, by their places.
    """

    call: Call
    rule: Rule
    node: ast.expr
    values: Mapping[str, Value]
    layouts: Layouts
    statics: Statics
    assignment: Assignment = field(default_factory=dict[int, tuple[str, ...]])
    trees: Mapping[str, ast.expr] = field(default_factory=dict[str, ast.expr])

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.layouts.mesh

    @property
    def x(self) -> ast.expr:
        """The first operand's block."""
        return next(iter(self.trees.values()))

    def over(self, *factors: int) -> tuple[str, ...]:
        """The mesh axes that split factors, in this order."""
        return tuple(axis for factor in factors for axis in self.assignment.get(factor, ()))

    def parts(self, factors: Factors) -> int:
        """Into how many parts factors are split."""
        return self.mesh.axis_size(self.over(*factors))

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of one device's block of the result."""
        shape = self.call.result.shape
        return tuple(size // self.parts(factors) for size, factors in zip(shape, self.rule.result, strict=True))

    # What is written.

    def rewritten(self, others: Mapping[str, ast.expr] = MappingProxyType({})) -> ast.expr:
        """The operation as it stands: of its operands' blocks, `others` by their places, and the whole of the rest."""
        trees = {**self.trees, **others}
        return rebuilt(self.node, lambda place, part: self.part(place, part, trees))

    def part(self, place: str, part: ast.expr, trees: Mapping[str, ast.expr] = MappingProxyType({})) -> ast.expr:
        """An argument, or a part of one, with what `trees` have in its place or in it, and the whole of the rest."""
        if place in trees:
            return trees[place]
        if isinstance(part, ast.Tuple | ast.List):
            return type(part)([self.part(f"{place}[{i}]", each, trees) for i, each in enumerate(part.elts)])
        if isinstance(part, ast.Slice):
            parts = enumerate((part.lower, part.upper, part.step))
            return ast.Slice(*(None if p is None else self.part(f"{place}[{i}]", p, trees) for i, p in parts))
        static = self.statics.tree(part)
        return self.layouts.whole(self.values[place]) if static is None else static

    def argument(self, place: str) -> ast.expr | None:
        """An argument, or a part of one, as the call has it."""
        given = dict(arguments(self.node))
        if place in given or not place.endswith("]"):
            return given.get(place)
        outer, _, at = place[:-1].rpartition("[")
        inside = self.argument(outer)
        return inside.elts[int(at)] if isinstance(inside, ast.Tuple | ast.List) else None

    def tree(self, place: str) -> ast.expr:
        """An argument of which every device has the whole."""
        part = self.argument(place)
        assert part is not None
        return self.part(place, part)

    def define(self, what: str, tree: ast.expr) -> ast.expr:
        """Write a line that is a part of this one: `out_max`."""
        names = self.layouts.names
        return names.define(names.fresh(f"{names.line}_{what}"), Value(tree, None, Spec())).tree

    def named(self, what: str, tree: ast.expr) -> ast.expr:
        """An expression by a name, so that it can be read twice."""
        return tree if isinstance(tree, ast.Name | ast.Attribute | ast.Constant) else self.define(what, tree)

    def ours(self, what: str) -> None:
        """Note that a part of the line is not the plan's, which leaves it to the partitioner."""
        names = self.layouts.names
        names.note(f"{what} in '{names.line}' is Shardproof's own; the plan leaves it to the partitioner")

    def gathered(self, tree: ast.expr, over: tuple[str, ...], **keywords: Any) -> ast.expr:
        """What all devices along some axes have, of which JAX may be told that it is the same on all of them."""
        more = "".join(f", {name}={value!r}" for name, value in keywords.items())
        return built("all_gather({x}, {over}" + more + self.layouts.invarying + ")", x=tree, over=over)

    def start(self, over: tuple[str, ...], size: int) -> ast.expr:
        """Where the block of this device begins, in a dimension of `size` that is split over some axes."""
        return self.layouts.offset(over, ast.Constant(size // self.mesh.axis_size(over)))

    def within(self, size: int, over: tuple[str, ...], local: ast.expr) -> ast.expr:
        """Indices within a block as those of the whole: `arange(8) + axis_index('x') * 8`."""
        return built("{local} + {start}", local=local, start=self.start(over, size)) if over else local

    def indices(self, size: int, over: tuple[str, ...]) -> ast.expr:
        """The indices of the whole that lie in this device's block."""
        return self.within(size, over, built("arange({n})", n=size // self.mesh.axis_size(over)))
