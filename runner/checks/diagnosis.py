"""A wrong per-device program in; what is wrong with it, in words, out.

When the per-device program, run by the NumPy interpreter, does not compute what `graph` says, single edits of it are
tried (a psum added, left out, over another axis, after the bias instead of before it, …) until one computes the graph's
result. What is reported has therefore been verified. A plain factor between the two is reported as well.
"""

from __future__ import annotations

import ast
import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner import dtypes
from runner.checks import sections
from runner.checks.context import Context
from runner.experiment import Experiment, Loop, Node, Statement
from runner.language.syntax import Expression
from runner.reference import PerDevice, interpret
from runner.reference.interpreter import Arithmetic

SECONDS = 5.0
"""How long edits are tried before the search gives up, and says so."""

_REDUCTIONS = ("psum", "pmean", "psum_scatter", "pmax", "pmin")
_OVER_AXES = (*_REDUCTIONS, "all_gather", "all_to_all", "ppermute")


@dataclass(frozen=True)
class Edit:
    """One change of the per-device program: the statements after it, what it means, and how late it is tried."""

    statements: tuple[Statement, ...]
    meaning: str
    rank: int


def diagnose(context: Context) -> list[str]:
    """What is wrong with the per-device program: sentences, most telling first; empty if nothing was found."""
    results = context.experiment.results
    if context.per_device is not None and all(
        _equals_graph(context, context.per_device.values, name) for name in results
    ):
        # Only a gradient differs: that an edit leaves the results right says nothing of it.
        return []
    found = []
    start = time.perf_counter()
    complete = True
    for edit in edits(context.experiment):
        if time.perf_counter() - start > SECONDS:
            complete = False
            break
        if _mends(context, edit):
            found.append(edit.meaning)
            break
    found += [text for name in context.experiment.results if (text := _factor(context, name))]
    if not found and not complete:
        found.append(f"no single edit tried within {SECONDS:g} s mends it")
    return found


def _mends(context: Context, edit: Edit) -> bool:
    try:
        after = interpret(
            context.experiment,
            "per_device",
            context.arrays,
            edit.statements,
            keep=context.experiment.results,
            arithmetic=Arithmetic(context.floats.get("per_device", {})),
        )
    except (TypeError, ValueError, IndexError, KeyError, ArithmeticError, AttributeError):
        # Most edits do not fit the shapes; NumPy says so.
        return False
    return all(_equals_graph(context, after.values, name) for name in context.experiment.results)


def _equals_graph(context: Context, after: Mapping[str, PerDevice], name: str) -> bool:
    return sections.compare(context, name, after[name]).agree


def _factor(context: Context, name: str) -> str | None:
    """The one factor by which an output is off on every element and device, if there is one."""
    assert context.per_device is not None
    layout = context.layout(name)
    if dtypes.dtype(context.outputs[name][1]).kind == "complex":
        return None
    ratios = []
    for position in range(context.experiment.mesh.size):
        expected = np.asarray(context.expected("graph", name, position, layout.ranges(position)), np.float64)
        value = np.asarray(context.per_device.values[name][position], np.float64)
        if not (np.isfinite(expected).all() and np.isfinite(value).all()):
            return None
        if value.shape != expected.shape:
            return None
        there = np.abs(expected) > 0
        if not there.any() or np.abs(value[~there]).any():
            return None
        ratios.append(value[there] / expected[there])
    ratio = np.concatenate([r.ravel() for r in ratios])
    factor = float(np.median(ratio))
    if not math.isfinite(factor) or abs(factor - 1) < 1e-3 or np.abs(ratio - factor).max() > 1e-3 * abs(factor):
        return None
    mesh = context.experiment.mesh
    over = [axis for axis, size in mesh.sizes.items() if size > 1 and math.isclose(size, factor, rel_tol=1e-3)]
    under = [axis for axis, size in mesh.sizes.items() if size > 1 and math.isclose(1 / size, factor, rel_tol=1e-3)]
    why = f": summed once too often over {' or '.join(over)}?" if over else ""
    why = f": a mean over {' or '.join(under)} where a sum is meant?" if under else why
    return f"{name} is {factor:.4g}× the reference on every element of every device{why}"


def edits(experiment: Experiment) -> list[Edit]:
    """Single edits of the per-device program, the commonest mistakes first."""
    axes = [axis for axis, size in experiment.mesh.sizes.items() if size > 1]
    combinations = [*((axis,) for axis in axes), *([tuple(axes)] if len(axes) > 1 else [])]
    sites = list(_sites(experiment.per_device))
    found: list[Edit] = []
    # Of two sites at which one edit helps, the one nearer the outputs is the likelier mistake.
    for site in reversed(sites):
        found += _missing(experiment, site, combinations)
        for place, call in enumerate(ast.walk(site.expression.tree)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                found += _of_call(experiment, site, place, call, combinations)
    return sorted(found, key=lambda edit: edit.rank)


@dataclass(frozen=True)
class _Site:
    """One expression of the program: where it stands (`("ring", "acc")`) and what stands before it at its level."""

    path: tuple[str, ...]
    expression: Expression
    before: dict[str, Expression]

    @property
    def name(self) -> str:
        return ".".join(self.path)


def _sites(statements: tuple[Statement, ...], path: tuple[str, ...] = ()) -> Iterator[_Site]:
    before: dict[str, Expression] = {}
    for statement in statements:
        if isinstance(statement, Node):
            yield _Site((*path, statement.name), statement.expression, dict(before))
            before[statement.name] = statement.expression
        else:
            yield from _sites(statement.body, (*path, statement.name))


def _replaced(statements: tuple[Statement, ...], path: tuple[str, ...], tree: ast.expr) -> tuple[Statement, ...]:
    done: list[Statement] = []
    for statement in statements:
        if statement.name != path[0]:
            done.append(statement)
        elif isinstance(statement, Loop):
            done.append(replace(statement, body=_replaced(statement.body, path[1:], tree)))
        else:
            done.append(Node(statement.name, Expression(ast.unparse(ast.fix_missing_locations(tree)), tree)))
    return tuple(done)


def _edit(experiment: Experiment, site: _Site, place: int, new: ast.expr, meaning: str, rank: int) -> Edit:
    tree = _swap(site.expression.tree, place, new)
    return Edit(_replaced(experiment.per_device, site.path, tree), meaning, rank)


def _swap(tree: ast.expr, place: int, new: ast.expr) -> ast.expr:
    """A copy of `tree` with the node at `place` in `ast.walk` order replaced."""
    if place == 0:
        return new
    copied = copy.deepcopy(tree)
    old = list(ast.walk(copied))[place]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    Replace().visit(copied)
    return copied


def _axes_text(axes: tuple[str, ...]) -> str:
    return " and ".join(f"'{axis}'" for axis in axes)


def _axes_node(axes: tuple[str, ...]) -> ast.expr:
    constants: list[ast.expr] = [ast.Constant(axis) for axis in axes]
    return constants[0] if len(constants) == 1 else ast.Tuple(constants)


def _call(name: str, operand: ast.expr, axes: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name), [operand, axes], [])


_MEANT = {
    **dict.fromkeys(("matmul", "dot", "einsum", "tensordot", "vdot", "inner", "sum"), "psum"),
    **dict.fromkeys(("mean", "average"), "pmean"),
    **dict.fromkeys(("max", "amax"), "pmax"),
    **dict.fromkeys(("min", "amin"), "pmin"),
}
"""The operations whose result over a sharded dimension is partial, and the collective that completes it.

A softmax with the psum of its devices' largest values equals the graph too, and is not what anybody means.
"""


def _missing(experiment: Experiment, site: _Site, combinations: list[tuple[str, ...]]) -> Iterator[Edit]:
    """A reduction around the whole expression, or around a product or a sum inside it."""
    for place, node in enumerate(ast.walk(site.expression.tree)):
        meant = "psum" if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            meant = _MEANT.get(node.func.id)
        if place and not meant:
            continue
        assert isinstance(node, ast.expr)
        likely = list(dict.fromkeys([meant or "psum", "psum"]))
        for reduction in [*likely, *(() if place else sorted({"pmax", "pmin"} - {*likely}))]:
            for axes in combinations:
                new = _call(reduction, node, _axes_node(axes))
                text = ast.unparse(ast.fix_missing_locations(_swap(site.expression.tree, place, new)))
                over = _axes_text(axes)
                meaning = (
                    f"a {reduction} over {over} is left out: with per_device.{site.name}: {text} it equals the graph"
                )
                yield _edit(experiment, site, place, new, meaning, rank=0 if reduction in likely else 6)


def _of_call(
    experiment: Experiment, site: _Site, place: int, call: ast.Call, combinations: list[tuple[str, ...]]
) -> Iterator[Edit]:
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    where = f"per_device.{site.name}"
    shown = ast.unparse(call)
    call = _axes_by_position(call)

    def edit(new: ast.expr, meaning: str, rank: int) -> Edit:
        return _edit(experiment, site, place, new, f"{where}: {meaning} it equals the graph", rank)

    if name in _OVER_AXES and len(call.args) >= 2:
        for axes in combinations:
            new = copy.deepcopy(call)
            new.args[1] = _axes_node(axes)
            if ast.dump(new.args[1]) != ast.dump(call.args[1]):
                over = f"over {_axes_text(axes)} instead of {ast.unparse(call.args[1])}"
                yield edit(new, f"{shown} runs over the wrong axis: {over}", 3)
    if name in ("psum", "pmean") and len(call.args) >= 2:
        for new, bias, times, over in _bias(experiment, site, call):
            counts = f"so that it counts {times} times; added after it,"
            yield edit(new, f"{bias} is added before the {name} over {over}, {counts}", 1)
        yield edit(call.args[0], f"{shown} is one {name} too many: without it,", 2)
        other = "pmean" if name == "psum" else "psum"
        new = copy.deepcopy(call)
        new.func = ast.Name(other)
        yield edit(new, f"{shown} is a {name} where a {other} is meant: with {other}", -1 if name == "pmean" else 4)
    if name == "all_gather" and not any(keyword.arg == "axis" for keyword in call.keywords):
        call = copy.copy(call)
        call.keywords = [*call.keywords, ast.keyword("axis", ast.Constant(0))]
    for i, keyword in enumerate(call.keywords):
        if name == "ppermute" and keyword.arg == "shift":
            new = copy.deepcopy(call)
            new.keywords[i].value = ast.UnaryOp(ast.USub(), keyword.value)
            yield edit(new, f"{shown} shifts the wrong way: with the opposite shift", 5)
            for shift in range(1, max(experiment.mesh.shape)):
                new = copy.deepcopy(call)
                new.keywords[i].value = ast.Constant(shift)
                yield edit(new, f"{shown} shifts by the wrong number: with shift={shift}", 6)
        if name == "ppermute" and keyword.arg == "perm" and isinstance(keyword.value, ast.Tuple):
            new = copy.deepcopy(call)
            pairs = [pair.elts for pair in keyword.value.elts if isinstance(pair, ast.Tuple)]
            new.keywords[i].value = ast.Tuple([ast.Tuple(list(reversed(pair))) for pair in pairs])
            yield edit(new, f"{shown} sends the wrong way: with every pair (source, destination) turned round", 5)
        if keyword.arg in ("axis", "scatter_dimension") and isinstance(keyword.value, ast.Constant):
            for dimension in range(3):
                if dimension != keyword.value.value:
                    new = copy.deepcopy(call)
                    new.keywords[i].value = ast.Constant(dimension)
                    yield edit(new, f"{shown} works on the wrong dimension: with {keyword.arg}={dimension}", 5)


def _axes_by_position(call: ast.Call) -> ast.Call:
    """`psum(x, axis_name='x')` as `psum(x, 'x')`."""
    named = [keyword for keyword in call.keywords if keyword.arg == "axis_name"]
    if not named or len(call.args) != 1:
        return call
    rest = [keyword for keyword in call.keywords if keyword is not named[0]]
    return ast.Call(call.func, [*call.args, named[0].value], rest)


def _bias(experiment: Experiment, site: _Site, call: ast.Call) -> Iterator[tuple[ast.expr, str, int, str]]:
    """psum(product + bias) counts the bias once per device: the sum after the reduction instead, and what it mends."""
    summed = call.args[0]
    if isinstance(summed, ast.Name) and summed.id in site.before:
        summed = site.before[summed.id].tree
    if not (isinstance(summed, ast.BinOp) and isinstance(summed.op, ast.Add | ast.Sub)):
        return
    axes = ast.literal_eval(call.args[1])
    over = _axes_text((axes,) if isinstance(axes, str) else tuple(axes))
    for inside, outside, left in ((summed.left, summed.right, True), (summed.right, summed.left, False)):
        reduced = copy.deepcopy(call)
        reduced.args[0] = inside
        tree = ast.BinOp(reduced, summed.op, outside) if left else ast.BinOp(outside, summed.op, reduced)
        yield tree, ast.unparse(outside), experiment.mesh.axis_size(axes), over
