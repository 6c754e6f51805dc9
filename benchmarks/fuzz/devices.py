"""Writes a case's graph as a computation on shards, with the collectives that it needs.

Every value has a PartitionSpec. Elementwise operations keep the layout; sums and matmuls over a sharded dimension end
in a `psum`; for everything else the operands are gathered, and the result may be sharded again.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass, field
from typing import Any

from runner.base.layout import Spec

Config = dict[str, Any]

_ELEMENTWISE_NAMES = """
add subtract multiply divide true_divide maximum minimum fmax fmin hypot arctan2 equal not_equal
less less_equal greater greater_equal square reciprocal negative positive abs absolute sign
stop_gradient floor ceil trunc rint exp exp2 expm1 sin cos tan arctan atan sinh cosh tanh arcsinh
erf erfc logistic isnan isinf isfinite signbit relu relu6 sigmoid silu swish gelu softplus
log_sigmoid leaky_relu elu selu celu hard_tanh hard_sigmoid soft_sign sqrt log log1p rsqrt
logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not invert
where real imag conj nan_to_num copysign logaddexp clip
"""
ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
REDUCTIONS = {"sum": "psum", "mean": "pmean", "max": "pmax", "min": "pmin", "amax": "pmax", "amin": "pmin"}


@dataclass
class _State:
    rng: random.Random
    sizes: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    specs: dict[str, Spec]
    lines: Config = field(default_factory=dict)
    gathered: dict[str, str] = field(default_factory=dict)


def per_device(rng: random.Random, plain: Config, shapes: dict[str, tuple[int, ...]]) -> None:
    """Add a `per_device` to a case, and the layouts of its values to the outputs.

    `shapes` are those of the arrays and of the values of `graph`.
    """
    sizes = dict(zip(plain["mesh"]["axes"], plain["mesh"]["shape"], strict=True))
    arrays = {name: Spec.of(array["spec"]).padded(len(array["shape"])) for name, array in plain["arrays"].items()}
    state = _State(rng, sizes, shapes, arrays)
    for name, line in plain["graph"].items():
        if isinstance(line, dict):
            _loop(state, name, line)
        else:
            _line(state, name, ast.parse(str(line), mode="eval").body)
    plain["per_device"] = state.lines
    plain["outputs"] = {name: state.specs[name].json() for name in plain["outputs"]}
    # JAX does not know that a gathered value is equal on all devices.
    plain["check_vma"] = not state.gathered


def _names(tree: ast.AST, state: _State) -> list[str]:
    names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    return [name for name in names if name in state.specs]


def _line(state: _State, name: str, tree: ast.expr) -> None:
    spec = _elementwise(state, tree)
    if spec is not None and len(spec) == len(state.shapes[name]):
        state.lines[name] = ast.unparse(tree)
        state.specs[name] = spec
        return
    for special in (_reduction, _matmul, _transpose):
        written = special(state, tree)
        if written is not None:
            state.lines[name], state.specs[name] = written
            return
    text = _on_whole(state, tree)
    state.specs[name] = Spec().padded(len(state.shapes[name]))
    cut = _cut(state, name)
    if cut is None:
        state.lines[name] = text
        return
    dimension, axis = cut
    length = state.shapes[name][dimension] // state.sizes[axis]
    state.lines[f"{name}_whole"] = text
    start = f"axis_index('{axis}') * {length}"
    state.lines[name] = f"dynamic_slice_in_dim({name}_whole, {start}, {length}, axis={dimension})"
    state.specs[name] = Spec((axis,) if d == dimension else () for d in range(len(state.shapes[name])))


def _loop(state: _State, name: str, line: Config) -> None:
    """Write a repeat over replicated values."""
    carry = {carried: _whole(state, first) for carried, first in line["carry"].items()}
    body = {inner: _on_whole(state, ast.parse(text, mode="eval").body) for inner, text in line["body"].items()}
    state.lines[name] = {**line, "carry": carry, "body": body}
    for carried in carry:
        state.specs[f"{name}.{carried}"] = Spec().padded(len(state.shapes[f"{name}.{carried}"]))


def _cut(state: _State, name: str) -> tuple[int, str] | None:
    """In half of the cases, return a dimension and an axis over which to shard a replicated result."""
    choices = [
        (d, axis) for d, n in enumerate(state.shapes[name]) for axis, size in state.sizes.items() if n % size == 0
    ]
    return state.rng.choice(choices) if choices and state.rng.random() < 0.5 else None


def _on_whole(state: _State, tree: ast.expr) -> str:
    """Return the expression over gathered operands."""
    wholes = {name: _whole(state, name) for name in _names(tree, state)}

    class Replaced(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Name(wholes.get(node.id, node.id))

        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            return node if ast.unparse(node) in wholes else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replaced().visit(tree)))


def _whole(state: _State, name: str) -> str:
    """Return the name of a value gathered over every axis that it is sharded over."""
    if not any(state.specs[name]):
        return name
    if name not in state.gathered:
        text = name
        for dimension, axes in enumerate(state.specs[name]):
            # vmap does not support all_gather over several axes at once.
            at_once = state.rng.random() < 0.2
            for over in [axes] * bool(axes) if at_once else [(axis,) for axis in reversed(axes)]:
                text = f"all_gather({text}, {_axes(over)}, axis={dimension}, tiled=True)"
        state.gathered[name] = f"{name}_all"
        state.lines[state.gathered[name]] = text
    return state.gathered[name]


def _axes(axes: tuple[str, ...]) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


def _elementwise(state: _State, tree: ast.expr) -> Spec | None:
    """Return the spec of an elementwise expression; None for any other."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called not in ELEMENTWISE:
                return None
            case ast.BinOp(op=ast.MatMult()) | ast.Subscript() | ast.Tuple() | ast.List():
                return None
            case ast.Attribute() if ast.unparse(node) not in state.specs:
                return None
    names = _names(tree, state)
    rank = max((len(state.shapes[name]) for name in names), default=0)
    result: list[tuple[str, ...] | None] = [None] * rank
    extents: list[int] = [1] * rank
    for name in names:
        for back in range(1, len(state.shapes[name]) + 1):
            size, entry = state.shapes[name][-back], state.specs[name][-back]
            if size == 1 and not entry:
                continue
            if result[-back] is not None and (result[-back] != entry or extents[-back] != size):
                return None
            result[-back], extents[-back] = entry, size
    used = [axis for entry in result if entry for axis in entry]
    return Spec(entry or () for entry in result) if len(used) == len(set(used)) else None


def _reduction(state: _State, tree: ast.expr) -> tuple[str, Spec] | None:
    """Write a reduction of one value with only an axis and `keepdims`, and the collective over the reduced axes."""
    match tree:
        case ast.Call(func=ast.Name(id=called), args=[operand, *positional], keywords=keywords) if called in REDUCTIONS:
            spec = _elementwise(state, operand)
        case _:
            return None
    named = {str(k.arg): k.value for k in keywords}
    if (
        spec is None
        or positional
        or not isinstance(operand, ast.Name | ast.Attribute)
        or set(named) - {"axis", "keepdims"}
    ):
        return None
    try:
        axis = ast.literal_eval(named["axis"]) if "axis" in named else None
        keep = ast.literal_eval(named["keepdims"]) if "keepdims" in named else False
    except ValueError:
        return None
    over = range(len(spec)) if axis is None else (axis,) if isinstance(axis, int) else axis
    reduced = {d % len(spec) for d in over} if spec else set()
    axes = tuple(a for d in sorted(reduced) for a in spec[d])
    text = ast.unparse(tree)
    if axes:
        text = f"{REDUCTIONS[called]}({text}, {_axes(axes)})"
    return text, Spec(() if d in reduced else entry for d, entry in enumerate(spec) if keep or d not in reduced)


def _matmul(state: _State, tree: ast.expr) -> tuple[str, Spec] | None:
    """Write a product of two matrices whose contracting dimensions are sharded alike."""
    match tree:
        case ast.BinOp(left=ast.Name(id=left), op=ast.MatMult(), right=ast.Name(id=right)):
            first, second = state.specs[left], state.specs[right]
        case _:
            return None
    if len(first) != 2 or len(second) != 2 or first[1] != second[0] or set(first[0]) & set(second[1]):
        return None
    text = f"{left} @ {right}"
    return (f"psum({text}, {_axes(first[1])})" if first[1] else text), Spec((first[0], second[1]))


def _transpose(state: _State, tree: ast.expr) -> tuple[str, Spec] | None:
    match tree:
        case (
            ast.Attribute(value=ast.Name(id=name), attr="T")
            | ast.Call(func=ast.Name(id="transpose"), args=[ast.Name(id=name)], keywords=[])
        ):
            return ast.unparse(tree), Spec(state.specs[name][::-1])
    return None
