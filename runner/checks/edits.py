"""A section of an experiment in; every single edit of it that people make by mistake, out.

A collective missing, doubled, of another kind, over another axis, in the other direction, on another dimension, before
instead of after; a loop one step short or long; another edge of a mask; a missing scale, term or sign. A program is
broken with them (`runner/cli/mutate.py`) and, as most of them undo each other, mended (`runner/checks/diagnosis.py`);
`runner/checks/mends.py` has those that put back what is missing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from runner.experiment.model import Experiment, Loop, Node, Section, Statement
from runner.language import trees
from runner.language.operations import OPERATIONS
from runner.language.syntax import Expression

REDUCTIONS = ("psum", "pmean", "pmax", "pmin")
_OVER_AXES = (*REDUCTIONS, "psum_scatter", "all_gather", "all_to_all", "ppermute", "axis_index")
_MOVING = (*_OVER_AXES[:-1],)

_DIMENSIONS = ("axis", "scatter_dimension", "split_axis", "concat_axis", "dimension")
"""The arguments that name a dimension."""

_EDGES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """One change of a section.

    - `line`: where it is (`ring.acc`); `statements`: the section after it; `first`: the first statement that changes.
    - `kind`: what is changed; `before`, `after`: the part and what stands in its place.
    - `mend`: what it says of a program that it mends; `rank`: the lower, the likelier that is what somebody means.
    """

    line: str
    statements: tuple[Statement, ...]
    first: int
    kind: str
    before: str
    after: str
    mend: str
    rank: float


@dataclass(frozen=True)
class Site:
    """One expression of the program: where it stands (`("ring", "acc")`), what stands before it, its loop's index."""

    path: tuple[str, ...]
    expression: Expression
    before: dict[str, Expression]
    index: str | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


class Edits:
    """The edits of one section of an experiment.

    - `sites`: its expressions; `combinations`: the axes of more than one device, each and all.
    """

    def __init__(self, experiment: Experiment, section: Section) -> None:
        self.experiment = experiment
        self._section: Section = section
        self._statements = experiment.section(section)
        axes = [axis for axis, size in experiment.mesh.sizes.items() if size > 1]
        self.combinations = [*((axis,) for axis in axes), *([tuple(axes)] if len(axes) > 1 else [])]
        self.sites = list(_sites(self._statements))

    def changing(self) -> list[Edit]:
        """The edits that change, leave out or double what is there."""
        found: list[Edit] = []
        for site in self.sites:
            for node in trees.nodes(site.expression.tree):
                found += self._of_node(site, node)
        return [*found, *self._of_loops(self._statements, ())]

    def edit(self, site: Site, old: ast.expr, new: ast.expr, kind: str, mend: str, rank: float) -> Edit:
        """The section with `new` in the place of `old`."""
        tree = trees.swapped(site.expression.tree, old, new)
        changed = Expression(trees.text(tree), tree)
        rank += 0.25 if len(site.path) > 1 else 0.0
        return Edit(
            site.name,
            _changed(self._statements, site.path, lambda line: replace(line, expression=changed)),
            self._first(site.path),
            kind,
            trees.text(old),
            trees.text(new),
            mend,
            rank,
        )

    def _first(self, path: tuple[str, ...]) -> int:
        return next(i for i, statement in enumerate(self._statements) if statement.name == path[0])

    def _of_node(self, site: Site, node: ast.expr) -> Iterator[Edit]:
        where, shown = f"{self._section}.{site.name}", trees.text(node)

        def edit(new: ast.expr, kind: str, meaning: str, rank: float) -> Edit:
            return self.edit(site, node, new, kind, f"{where}: {meaning} it equals the graph", rank)

        match node:
            case ast.Call(func=ast.Name(id=name)) if name in _OVER_AXES:
                yield from self._of_collective(site, node, name, edit)
                yield from _dimensions(node, edit)
            case ast.Call(func=ast.Name(id="where"), args=[condition, yes, no]):
                yield edit(ast.Call(node.func, [condition, no, yes], []), "edge",
                           f"the branches of {shown} are the wrong way round: exchanged,", 6)  # fmt: skip
            case ast.Call():
                yield from _dimensions(node, edit)
                yield from self._before_instead(site, node, edit)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                for other in _EDGES[type(op)]:
                    new = ast.Compare(left, [other()], [right])
                    rank = 3.5 if isinstance(op, ast.Eq | ast.NotEq) else 5.0
                    yield edit(new, "edge", f"{shown} has the wrong edge: with {trees.text(new)}", rank)
                for by in (1, -1):
                    new = ast.Compare(left, [op], [trees.plus(right, by)])
                    yield edit(new, "edge", f"{shown} has the wrong edge: with {trees.text(new)}", 6)
            case ast.BinOp(left=left, op=op, right=right):
                yield from _of_operator(node, left, op, right, edit)
                yield from self._inside_instead(site, node, edit)
            case ast.Subscript(value=value, slice=index):
                for new in _shifted_index(index):
                    changed = ast.Subscript(value, new, ast.Load())
                    yield edit(changed, "number", f"{shown} takes the wrong part: with {trees.text(changed)}", 7)
            case ast.Attribute(value=value, attr="T"):
                yield edit(value, "dimension", f"{shown} is transposed once too often: without it,", 5)

    def _of_collective(
        self, site: Site, call: ast.Call, name: str, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        shown = trees.text(call)
        call = trees.axes_by_position(call)
        at = 0 if name == "axis_index" else 1
        if len(call.args) <= at:
            return
        for axes in self.combinations:
            if trees.text(trees.axes_node(axes)) != trees.text(call.args[at]):
                over = f"over {trees.axes_text(axes)} instead of {trees.text(call.args[at])}"
                new = trees.with_argument(call, at, trees.axes_node(axes))
                yield edit(new, "axis", f"{shown} runs over the wrong axis: {over}", 3)
        if name == "axis_index":
            return
        operand = call.args[0]
        again = is_reduced(site, operand)
        yield edit(operand, "missing", f"{shown} is one {name} too many: without it,", 0.5 if again else 2)
        yield edit(trees.with_argument(call, 0, call), "doubled", f"{shown} is left out once: with it twice,", 9)
        if name in REDUCTIONS:
            for other in REDUCTIONS:
                if other != name:
                    new = ast.Call(ast.Name(other), call.args, call.keywords)
                    rank = 1.0 if {name, other} == {"psum", "pmean"} else 2.5
                    meaning = f"{shown} is a {name} where a {other} is meant: with {other}"
                    yield edit(new, "kind", meaning, rank)
            yield from self._after_instead(site, call, edit)
        for i, keyword in enumerate(call.keywords):
            if name == "ppermute" and keyword.arg == "shift":
                new = trees.with_keyword(call, i, ast.UnaryOp(ast.USub(), keyword.value))
                yield edit(new, "direction", f"{shown} shifts the wrong way: with the opposite shift", 4)
                for shift in range(1, max(self.experiment.mesh.shape)):
                    if trees.text(keyword.value) != str(shift):
                        new = trees.with_keyword(call, i, ast.Constant(shift))
                        meaning = f"{shown} shifts by the wrong number: with shift={shift}"
                        yield edit(new, "direction", meaning, 6)
            if name == "ppermute" and keyword.arg == "perm" and isinstance(keyword.value, ast.Tuple):
                pairs = [pair.elts for pair in keyword.value.elts if isinstance(pair, ast.Tuple)]
                turned = ast.Tuple([ast.Tuple(list(reversed(pair))) for pair in pairs])
                meaning = f"{shown} sends the wrong way: with every pair (source, destination) turned round"
                yield edit(trees.with_keyword(call, i, turned), "direction", meaning, 4)
        if name == "all_to_all" and len(call.args) >= 4:
            new = ast.Call(call.func, [*call.args[:2], call.args[3], call.args[2], *call.args[4:]], call.keywords)
            yield edit(new, "dimension", f"{shown} splits what it should join: with both exchanged", 4)

    def _after_instead(
        self, site: Site, call: ast.Call, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        """psum(product + bias) counts the bias once per device; psum(tanh(x)) sums what is not partial."""
        assert isinstance(call.func, ast.Name)
        name, over = call.func.id, trees.text(call.args[1])
        summed = call.args[0]
        if isinstance(summed, ast.Name) and summed.id in site.before:
            summed = site.before[summed.id].tree
        if isinstance(summed, ast.BinOp) and isinstance(summed.op, ast.Add | ast.Sub):
            size = self.experiment.mesh.axis_size(ast.literal_eval(call.args[1]))
            counts = f"so that it counts {size} times; " if name == "psum" else ""
            for inside, outside, left in ((summed.left, summed.right, True), (summed.right, summed.left, False)):
                reduced = trees.with_argument(call, 0, inside)
                new = ast.BinOp(reduced, summed.op, outside) if left else ast.BinOp(outside, summed.op, reduced)
                meaning = f"{trees.text(outside)} is added before the {name} over {over}, {counts}added after it,"
                yield edit(new, "order", meaning, 1.5)
        if isinstance(summed, ast.Call) and len(summed.args) == 1 and _is_plain(summed):
            new = ast.Call(summed.func, [trees.with_argument(call, 0, summed.args[0])], summed.keywords)
            yield edit(new, "order", f"{trees.text(summed)} stands before the {name} over {over}; after it,", 4)

    def _before_instead(
        self, site: Site, call: ast.Call, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        """tanh(psum(x)) as psum(tanh(x))."""
        if not (_is_plain(call) and len(call.args) == 1 and is_reduction(call.args[0])):
            return
        inner = call.args[0]
        assert isinstance(inner, ast.Call)
        new = trees.with_argument(inner, 0, ast.Call(call.func, [inner.args[0]], call.keywords))
        yield edit(new, "order", f"{trees.text(call)} stands after the collective; before it,", 4)

    def _inside_instead(
        self, site: Site, node: ast.BinOp, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        """psum(x) + b as psum(x + b)."""
        if not isinstance(node.op, ast.Add | ast.Sub):
            return
        for reduced, other, left in ((node.left, node.right, True), (node.right, node.left, False)):
            if is_reduction(reduced):
                assert isinstance(reduced, ast.Call)
                inside = reduced.args[0]
                new = ast.BinOp(inside, node.op, other) if left else ast.BinOp(other, node.op, inside)
                meaning = f"{trees.text(other)} is added after the {trees.text(reduced.func)}; added before it,"
                yield edit(trees.with_argument(reduced, 0, new), "order", meaning, 4)

    def _of_loops(self, statements: tuple[Statement, ...], path: tuple[str, ...]) -> Iterator[Edit]:
        for statement in statements:
            if not isinstance(statement, Loop):
                continue
            here = (*path, statement.name)
            for by, what in ((1, "one step short"), (-1, "one step long")):
                if statement.steps + by < 0:
                    continue
                longer = replace(statement, steps=statement.steps + by)
                changed = _changed(self._statements, here, lambda _, longer=longer: longer)
                first = next(i for i, s in enumerate(self._statements) if s.name == here[0])
                steps = f"{statement.steps + by} step{'s' if statement.steps + by != 1 else ''}"
                mend = f"per_device.{'.'.join(here)}: the repeat is {what}: with {steps} it equals the graph"
                yield Edit(".".join(here), changed, first, "loop", f"{statement.steps} steps", steps, mend, 1.0)
            yield from self._of_loops(statement.body, here)


def _sites(
    statements: tuple[Statement, ...],
    path: tuple[str, ...] = (),
    outer: Mapping[str, Expression] | None = None,
    index: str | None = None,
) -> Iterator[Site]:
    before = dict(outer or {})
    for statement in statements:
        if isinstance(statement, Node):
            yield Site((*path, statement.name), statement.expression, dict(before), index)
            before[statement.name] = statement.expression
        else:
            yield from _sites(statement.body, (*path, statement.name), before, statement.index)


def indices(experiment: Experiment, section: Section) -> frozenset[str]:
    """The lines that no array's values enter: sizes, positions, counts of devices."""
    data = {array.name for array in experiment.arrays}

    def visit(statements: Iterable[Statement], path: str) -> set[str]:
        without = set[str]()
        for statement in statements:
            if isinstance(statement, Node):
                if data.isdisjoint(_read(statement.expression.tree)):
                    without.add(f"{path}{statement.name}")
                else:
                    data.add(statement.name)
                continue
            data.update(name for name, first in statement.carry if not data.isdisjoint(_read(first.tree)))
            # What one step computes, the next one reads.
            visit(statement.body, path)
            without |= visit(statement.body, f"{path}{statement.name}.")
            data.update(f"{statement.name}.{name}" for name, _ in statement.carry if name in data)
        return without

    return frozenset(visit(experiment.section(section), ""))


def _read(tree: ast.AST) -> Iterator[str]:
    """The names whose values an expression reads, not their shapes alone."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "shape":
        return
    if isinstance(tree, ast.Attribute):
        yield ast.unparse(tree)
    if isinstance(tree, ast.Name):
        yield tree.id
    for child in ast.iter_child_nodes(tree):
        yield from _read(child)


def _of_operator(
    node: ast.BinOp,
    left: ast.expr,
    op: ast.operator,
    right: ast.expr,
    edit: Callable[[ast.expr, str, str, float], Edit],
) -> Iterator[Edit]:
    shown = trees.text(node)
    opposite = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}.get(type(op))
    if opposite is not None:
        what = "sign" if isinstance(op, ast.Add | ast.Sub) else "scale"
        new = ast.BinOp(left, opposite(), right)
        yield edit(new, what, f"{shown} should be {trees.text(new)}: with that", 3)
    if isinstance(op, ast.Sub):
        new = ast.BinOp(right, op, left)
        yield edit(new, "sign", f"{shown} should be {trees.text(new)}: with that", 3.5)
    if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        what = "term" if isinstance(op, ast.Add | ast.Sub) else "scale"
        yield edit(left, what, f"{trees.text(right)} in {shown} is one {what} too many: without it,", 3)
        if isinstance(op, ast.Add | ast.Mult):
            yield edit(right, what, f"{trees.text(left)} in {shown} is one {what} too many: without it,", 3.5)
    if isinstance(op, ast.Add | ast.Sub) and isinstance(right, ast.Constant) and isinstance(right.value, int):
        for by in (1, -1):
            new = ast.BinOp(left, op, ast.Constant(right.value + by))
            yield edit(new, "number", f"{shown} is off by one: with {trees.text(new)}", 5)
    if isinstance(op, ast.MatMult):
        for new in (
            ast.BinOp(right, op, left),
            ast.BinOp(trees.transposed(left), op, right),
            ast.BinOp(left, op, trees.transposed(right)),
        ):
            yield edit(new, "dimension", f"{shown} should be {trees.text(new)}: with that", 6)


def _dimensions(call: ast.Call, edit: Callable[[ast.expr, str, str, float], Edit]) -> Iterator[Edit]:
    """The same call on another dimension, or with a diagonal beside its own."""
    assert isinstance(call.func, ast.Name)
    shown, operation = trees.text(call), OPERATIONS[call.func.id]
    if call.func.id == "all_gather" and all(keyword.arg != "axis" for keyword in call.keywords):
        call = ast.Call(call.func, call.args, [*call.keywords, ast.keyword("axis", ast.Constant(0))])
    names = list(operation.signature.parameters)
    places = [(i, name) for i, name in enumerate(names[: len(call.args)]) if name in (*_DIMENSIONS, "k")]
    for i, name in places:
        for value in _others(call.args[i], name):
            changed = trees.with_argument(call, i, ast.Constant(value))
            yield edit(changed, "dimension", f"{shown} works on the wrong dimension: with {trees.text(changed)}", 5)
    for i, keyword in enumerate(call.keywords):
        if keyword.arg in (*_DIMENSIONS, "k"):
            for value in _others(keyword.value, keyword.arg):
                changed = trees.with_keyword(call, i, ast.Constant(value))
                what = "has the wrong diagonal" if keyword.arg == "k" else "works on the wrong dimension"
                yield edit(changed, "dimension", f"{shown} {what}: with {keyword.arg}={value}", 5)


def _others(value: ast.expr, argument: str) -> list[int]:
    try:
        now = ast.literal_eval(value)
    except ValueError:
        return []
    if not isinstance(now, int) or isinstance(now, bool):
        return []
    return [now + 1, now - 1] if argument == "k" else [other for other in (0, 1, 2, -1) if other != now]


def _shifted_index(index: ast.expr) -> Iterator[ast.expr]:
    """An index or slice that is one off."""
    match index:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield from (ast.Constant(number + by) for by in (1, -1))
        case ast.Slice(lower=lower, upper=upper, step=step):
            for by in (1, -1):
                if lower is not None:
                    yield ast.Slice(trees.plus(lower, by), upper, step)
                if upper is not None:
                    yield ast.Slice(lower, trees.plus(upper, by), step)
        case ast.Tuple(elts=parts):
            for i, part in enumerate(parts):
                for new in _shifted_index(part):
                    yield ast.Tuple([*parts[:i], new, *parts[i + 1 :]])
        case ast.Name() | ast.BinOp():
            yield from (trees.plus(index, by) for by in (1, -1))


def is_reduction(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REDUCTIONS


def is_collective(node: ast.expr) -> bool:
    """Whether a part is a collective that moves or combines values."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MOVING


def is_reduced(site: Site, node: ast.expr) -> bool:
    """Whether a part, or the line that it names, is a reduction over devices already."""
    if isinstance(node, ast.Name) and node.id in site.before:
        node = site.before[node.id].tree
    return is_reduction(node)


def _is_plain(call: ast.Call) -> bool:
    """Whether a call is of one array alone, such as `tanh(x)`."""
    return isinstance(call.func, ast.Name) and call.func.id not in _MOVING and len(call.args) == 1


def _changed(
    statements: tuple[Statement, ...], path: tuple[str, ...], change: Callable[[Statement], Statement]
) -> tuple[Statement, ...]:
    """The statements with that at `path` changed."""
    done: list[Statement] = []
    for statement in statements:
        if statement.name != path[0]:
            done.append(statement)
        elif len(path) == 1:
            done.append(change(statement))
        else:
            assert isinstance(statement, Loop)
            done.append(replace(statement, body=_changed(statement.body, path[1:], change)))
    return tuple(done)
