"""What may be missing from a per-device program, put back: collectives, and the terms and scales of the graph."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

from runner.checks.edits import Edit, Edits, Site, is_collective, is_reduced, is_reduction
from runner.language import trees
from runner.language.bridge import called
from runner.language.operations import OPERATIONS, Does, Operation, OverAxes
from runner.words import quoted


def inserting(edits: Edits) -> list[Edit]:
    """The edits that put something back: collectives, terms and scales."""
    found: list[Edit] = []
    parts = _parts(edits)
    # Of two sites at which one edit helps, the one nearer the outputs is the likelier mistake.
    for site in reversed(edits.sites):
        found += _collectives_around(edits, site)
        found += _parts_around(edits, site, parts)
        found += _operands_back(edits, site, parts)
    return found


def _collectives_around(edits: Edits, site: Site) -> Iterator[Edit]:
    """A collective around the whole expression, or around a part of it whose result is partial."""
    tree = site.expression.tree
    bare, name = isinstance(tree, ast.Name), site.label
    # A carry that a loop gives as it got it was to be moved; what is reduced where it is read was meant to be partial.
    unmoved = isinstance(tree, ast.Name) and len(site.path) > 1 and tree.id == name
    reduced_later = any(
        is_reduction(node) and isinstance(node, ast.Call) and trees.text(node.args[0]) == name
        for other in edits.sites
        for node in trees.nodes(other.expression.tree)
    )
    collected = {id(node.args[0]) for node in trees.nodes(tree) if is_collective(node) and isinstance(node, ast.Call)}
    for node in trees.nodes(tree):
        whole = node is tree
        meant = _meant(node) or (_meant(site.before[node.id].tree) if _is_line(node, site) else None)
        named = isinstance(node, ast.Name) and node.id not in edits.experiment.dims
        if not (whole or meant or named):
            continue
        for new, collective, does, over in _wrapped(edits, node, meant, whole=whole):
            text = trees.text(trees.swapped(tree, node, new))
            with_it = f"with {site.named}: {text} it equals the graph"
            article = "an" if collective[0] in "ai" else "a"
            mend = f"{article} {collective} over {over} is left out: {with_it}"
            likely = (collective == meant if meant else does == "sum") or (unmoved and does == "permute")
            rank = (0.0 if likely else 3.5 if does in ("sum", "mean") else 4.0) - (0.5 if bare else 0.0)
            rank += 0.0 if meant or bare else 1.5 if whole else 3.0
            if not whole and _is_line(node, site):
                # People write `partial: A @ B` and `C: psum(partial, 'x')`, but `total: psum(sum(x), 'x')`.
                rank += -0.25 if _is_product(site.before[node.id].tree) else 0.5
            again = is_reduced(site, node) or is_collective(node) or id(node) in collected
            rank += 3.0 if again or (whole and reduced_later) else 0.0
            yield edits.edit(site, node, new, "collective", mend, rank)


def _is_line(node: ast.expr, site: Site) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id in site.before


@cache
def _collectives() -> list[tuple[Operation, OverAxes, ast.Call]]:
    """Each way to call a collective on something."""
    return [
        (operation, operation.over, trees.parsed_call(f"{operation.name}(_, _, {rest})"))
        for operation in OPERATIONS.values()
        if operation.over is not None
        for rest in operation.over.calls
    ]


def _wrapped(
    edits: Edits, node: ast.expr, meant: str | None, *, whole: bool
) -> Iterator[tuple[ast.expr, str, Does, str]]:
    """A part with each collective around it, the collective's name, what it does, and the axes."""
    for axes, (operation, over, call) in itertools.product(edits.combinations, _collectives()):
        if (operation.reduces and not (whole or meant)) or (over.does == "permute" and len(axes) > 1):
            continue
        arguments = [node, trees.axes_node(axes), *call.args[2:]]
        yield ast.Call(call.func, arguments, call.keywords), operation.name, over.does, quoted(axes)


@dataclass(frozen=True)
class _Part:
    """What is added, subtracted, multiplied or divided by somewhere; `own`: in the program itself, not in its graph."""

    left: ast.expr
    op: ast.operator
    right: ast.expr
    own: bool

    @property
    def what(self) -> str:
        return "term" if isinstance(self.op, ast.Add | ast.Sub) else "scale"


def _parts(edits: Edits) -> list[_Part]:
    found: dict[str, _Part] = {}
    for own, sites in ((False, Edits(edits.experiment, "graph").sites), (True, edits.sites)):
        for site in sites:
            for node in trees.nodes(site.expression.tree):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                    found.setdefault(trees.text(node), _Part(node.left, node.op, node.right, own))
    return list(found.values())


def _parts_around(edits: Edits, site: Site, parts: Sequence[_Part]) -> Iterator[Edit]:
    """What the graph adds or multiplies by, and lines that nothing reads, put back around the line or a product."""
    tree = site.expression.tree
    there = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    around = [node for node in trees.nodes(tree) if node is tree or is_reduction(node) or _meant(node)]
    operands: dict[str, tuple[ast.operator, ast.expr, bool]] = {}
    for part in parts:
        for side in (part.right,) if isinstance(part.op, ast.Sub | ast.Div) else (part.right, part.left):
            # A product of what the graph multiplies by may lack one factor.
            for each in (side, side.left, side.right) if isinstance(side, ast.BinOp) else (side,):
                operands.setdefault(f"{type(part.op).__name__} {trees.text(each)}", (part.op, each, part.own))
    for op, operand, own in operands.values():
        names = {node.id for node in ast.walk(operand) if isinstance(node, ast.Name)} - OPERATIONS.keys()
        for node in around if not own else [tree]:
            what = "term" if isinstance(op, ast.Add | ast.Sub) else "scale"
            rank = (1.0 if what == "scale" else 1.2) + (0.0 if node is tree else 0.5) + (1.5 if own else 0.0)
            yield _put_back(
                edits, site, node, ast.BinOp(node, op, operand), what, operand, rank + 2.0 * bool(names & there)
            )
    for name in _unread(edits, site):
        yield _put_back(edits, site, tree, ast.BinOp(ast.Name(name), ast.Add(), tree), "term", ast.Name(name), 0.8)


def _unread(edits: Edits, site: Site) -> list[str]:
    """The lines before this one, at its level, that no line reads and no output is."""
    read = {node.id for other in edits.sites for node in ast.walk(other.expression.tree) if isinstance(node, ast.Name)}
    level = [other for other in edits.sites if other.path[:-1] == site.path[:-1] and other.label in site.before]
    return [other.label for other in level if other.label not in read | set(edits.experiment.results)]


def _operands_back(edits: Edits, site: Site, parts: Sequence[_Part]) -> Iterator[Edit]:
    """`x - y` where the line has `x` or `y` alone; `axis_index('x') * rows` where it has `axis_index('x')`."""
    tree = site.expression.tree
    for node in trees.nodes(tree):
        shown = trees.text(node)
        for part in () if isinstance(node, ast.Constant) else parts:
            rank = 1.8 if part.own else 0.8
            if trees.text(part.left) == shown:
                new = ast.BinOp(node, part.op, part.right)
                yield _put_back(edits, site, node, new, part.what, part.right, rank)
            if trees.text(part.right) == shown:
                new = ast.BinOp(part.left, part.op, node)
                yield _put_back(edits, site, node, new, part.what, part.left, rank)
        if _counts_devices(node):
            indices = [ast.Name(site.index)] if site.index is not None else []
            for op, index in itertools.product((ast.Add(), ast.Sub()), indices):
                yield _put_back(edits, site, node, ast.BinOp(node, op, index), "term", index, 2.5)
            sizes = [name for name, line in site.before.items() if _is_size(line.tree)]
            for size in (*edits.experiment.dims, *sizes):
                new = ast.BinOp(node, ast.Mult(), ast.Name(size))
                yield _put_back(edits, site, node, new, "scale", ast.Name(size), 2.5)


def _counts_devices(node: ast.expr) -> bool:
    """Whether a part begins with the device's index: `axis_index('x')`, `axis_index('x') + i`."""
    while isinstance(node, ast.BinOp):
        node = node.left
    operation = called(node)
    return operation is not None and operation.over is not None and operation.over.does == "index"


def _is_size(tree: ast.expr) -> bool:
    """Whether a line says how large something is: `shape(A)[0]`, `M // axis_size('x')`."""
    calls = [called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return bool(calls) and all(operation is not None and operation.kind == "static" for operation in calls)


def _put_back(
    edits: Edits, site: Site, node: ast.expr, new: ast.expr, what: str, operand: ast.expr, rank: float
) -> Edit:
    text = trees.text(trees.swapped(site.expression.tree, node, new))
    shown = trees.text(operand)
    mend = f"the {what} {shown} is left out: with {site.named}: {text} it equals the graph"
    return edits.edit(site, node, new, "missing", mend, rank)


def _is_product(node: ast.expr) -> bool:
    operation = called(node)
    return operation is not None and operation.contraction is not None


def _meant(node: ast.expr) -> str | None:
    """The collective that completes a part whose result may be partial."""
    operation = called(node)
    return None if operation is None else operation.completed_by
