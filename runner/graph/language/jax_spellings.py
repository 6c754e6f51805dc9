"""Rewrites a Python tree in the language's own spelling: `jnp.sum(A)` and `A.sum()` become `sum(A)`.

A JAX function whose path is in the table of operations becomes that operation, as does an array method with the same
arguments. For other functions of JAX, a message names the alternative.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence

from runner.base import dtypes
from runner.base.faults import nearest
from runner.graph.language.operations import OPERATIONS

_MODULES = {
    "jax.numpy": "jnp", "numpy": "jnp", "np": "jnp", "jnp": "jnp", "jax.lax": "jax.lax", "lax": "jax.lax",
    "jax.nn": "jax.nn", "nn": "jax.nn", "jax.random": "jax.random", "jr": "jax.random", "jrandom": "jax.random",
    "jax.scipy": "jax.scipy", "jsp": "jax.scipy", "jax": "jax", "math": "math", "torch": "torch", "tf": "tf",
}  # fmt: skip
"""Common names of modules, longest paths first, and the names of JAX's in the table."""

_BY_PATH = {operation.jax: operation.name for operation in OPERATIONS.values()}

_ON_ARRAYS = {
    **{row.name: row.name for row in OPERATIONS.values() if row.on_arrays is not None},
    "flatten": "ravel",
    "mT": "matrix_transpose",
}
"""The names of the methods and attributes of arrays that equal an operation, and the operation."""

METHODS: Mapping[str, str] = {
    name: operation for name, operation in _ON_ARRAYS.items() if OPERATIONS[operation].on_arrays != "attribute"
}
"""The array methods that equal an operation on the array and their arguments, and the operation."""

_VALUES = {"pi": math.pi, "e": math.e, "newaxis": None}
_DTYPES = {**{name: name for name in dtypes.NAMES}, "bool_": "bool"}

INSTEAD = {
    "x.at[i].apply(f)": "x.at[i].set(f(x[i]))",
    "x[mask] = v": "where(mask, v, x)",
    "a if c else b": "where(c, a, b)",
    "a and b": "a & b",
    "jax.vmap(f)(x)": "f(x)",
    "jnp.vectorize(f)(x)": "f(x)",
    "jnp.block([[A, B], [B, A]])": "concatenate([concatenate([A, B], axis=1), concatenate([B, A], axis=1)])",
    "jnp.cov(A)": "(A - mean(A, axis=1, keepdims=True)) @ (A - mean(A, axis=1, keepdims=True)).T / (shape(A)[1] - 1)",
    "jnp.linalg.lstsq(A, B)[0]": "solve(A.T @ A, A.T @ B)",
    "jnp.linalg.pinv(A)": "solve(A.T @ A, A.T)",
    "jnp.linalg.multi_dot([A, B, A])": "A @ B @ A",
    "jax.scipy.linalg.solve(A, B)": "solve(A, B)",
    "jax.scipy.linalg.cho_solve((L, True), B)": "solve_triangular(L.T, solve_triangular(L, B, lower=True))",
    "jax.scipy.stats.norm.logpdf(x)": "-(x ** 2) / 2 - log(2 * 3.141592653589793) / 2",
    "jax.lax.select(c, a, b)": "where(c, a, b)",
    "jax.lax.max(a, b)": "maximum(a, b)",
    "jax.lax.dot(A, B)": "A @ B",
    "jax.lax.reduce(A, 0.0, jax.lax.add, (0,))": "sum(A, axis=0)",
    "jax.lax.pad(A, 0.0, [(0, 3, 0), (1, 0, 0)])": "pad(A, ((0, 3), (1, 0)))",
    "jax.lax.rev(A, (0,))": "flip(A, axis=0)",
    "jax.lax.convert_element_type(x, 'int32')": "astype(x, 'int32')",
    "jax.lax.approx_max_k(x, 2)": "top_k(x, 2)",
    "jax.image.resize(A, (6, 6), 'nearest')": "repeat(repeat(A, 2, axis=0), 2, axis=1)",
    "jax.random.multivariate_normal(k, v, C)": "v + cholesky(C) @ normal(k, shape(v))",
    "flax.linen.avg_pool(p, (2,), (2,))": "reduce_window(p, 0.0, 'add', (1, 2, 1), (1, 2, 1), 'VALID') / 2",
}
"""Alternatives to what the language lacks; `f` is one of the experiment's own functions."""

_GRADIENT = "a gradient is the key grad: {of: loss, wrt: [w]}"
_LAYOUT = "layouts are keys: spec of an array, constraints and outputs of lines"

AS_KEYS = {
    "with_sharding_constraint": "a line is constrained by the key constraints: {h: [x, null]}",
    "grad": _GRADIENT,
    "value_and_grad": _GRADIENT,
    "jit": "every program is compiled whole; write the lines of the function",
    "pjit": "every program is compiled whole; write the lines of the function",
    "shard_map": "the body of a shard_map is the section per_device",
    "device_put": _LAYOUT,
    "NamedSharding": _LAYOUT,
    "PartitionSpec": _LAYOUT,
}
"""Functions of JAX in whose place an experiment has a key, and how that is written."""


RENAMED = {"pvary": ("pcast", ("to='varying'",)), "pbroadcast": ("pcast", ("to='varying'",))}
"""Collectives that JAX has renamed: the name of today, and the arguments that it takes besides."""


def renamed(name: str, arguments: Sequence[str]) -> str:
    """Return the message for a collective of `RENAMED`, with its call of today."""
    today, more = RENAMED[name]
    return f"{name} is {today} today; write {today}({', '.join([*arguments, *more])})"


def plain(tree: ast.expr) -> ast.expr:
    """Replace JAX functions and array methods by operations; nodes keep their source positions."""
    try:
        return _Plain().visit(tree)
    except RecursionError:
        # The check of the tree reports that it is too deep.
        return tree


class _Plain(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        path = _path(node.func)
        name = _BY_PATH.get(path) if path else None
        if name is not None:
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        elif path is None and isinstance(node.func, ast.Attribute) and _is_method(node.func):
            node = _of_method(node, node.func)
        return self.generic_visit(node)  # pyright: ignore[reportReturnType]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = _path(node) or ""
        module, _, name = path.rpartition(".")
        if module == "jnp" and name in _DTYPES:
            return ast.copy_location(ast.Constant(_DTYPES[name]), node)
        if module == "jnp" and name in _VALUES:
            return ast.copy_location(ast.Constant(_VALUES[name]), node)
        if path == "jnp.inf":
            return ast.copy_location(ast.Name("inf", ast.Load()), node)
        return self.generic_visit(node)  # pyright: ignore[reportReturnType]


def _of_method(node: ast.Call, method: ast.Attribute) -> ast.Call:
    arguments = node.args
    several = OPERATIONS[METHODS[method.attr]].on_arrays == "method of a tuple"
    if several and len(arguments) > 1 and not any(isinstance(argument, ast.Starred) for argument in arguments):
        shape = ast.Tuple(arguments, ast.Load())
        shape.lineno, shape.col_offset = arguments[0].lineno, arguments[0].col_offset
        shape.end_lineno, shape.end_col_offset = arguments[-1].end_lineno, arguments[-1].end_col_offset
        arguments = [shape]
    name = ast.copy_location(ast.Name(METHODS[method.attr], ast.Load()), method)
    return ast.copy_location(ast.Call(name, [method.value, *arguments], node.keywords), node)


def _is_method(function: ast.Attribute) -> bool:
    """Whether an attribute is an array method; `x.at[index].max` is not."""
    match function:
        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(attr="at"))):
            return False
        case _:
            return function.attr in METHODS


def _path(node: ast.expr) -> str | None:
    """The path of a function as in the table, `jnp.sum`; None for a node that is no such path."""
    written = _dotted(node)
    if written is None or "." not in written:
        return None
    for name, module in _MODULES.items():
        if written.startswith(f"{name}."):
            return f"{module}.{written.removeprefix(f'{name}.')}"
    return None


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            inner = _dotted(value)
            return None if inner is None else f"{inner}.{attribute}"
        case _:
            return None


def attribute(value: str, name: str) -> str | None:
    """Return the message for an array attribute that an operation replaces, such as `x.shape`; None for any other."""
    operation = _ON_ARRAYS.get(name, "")
    if operation not in OPERATIONS or OPERATIONS[operation].on_arrays != "attribute":
        return None
    return f"attribute '.{name}' is not part of the language; write {operation}({value})"


def refusal(function: ast.expr, call: ast.Call) -> str:
    """Return the message for a call of a function that is no operation, with the alternative."""
    path = _path(function)
    if path is not None:
        written = ast.unparse(function)
        arguments = [*map(ast.unparse, call.args), *map(ast.unparse, call.keywords)]
        if (name := path.removeprefix("jax.lax.")) in RENAMED:
            return renamed(name, arguments)
        instead = next((INSTEAD[theirs] for theirs in INSTEAD if theirs.startswith(f"{path}(")), None)
        if instead is not None:
            theirs = next(theirs for theirs in INSTEAD if theirs.startswith(f"{path}("))
            return f"there is no {written}; for {theirs} write {instead}"
        name = path.rpartition(".")[2]
        if name in AS_KEYS:
            return f"there is no {written}; {AS_KEYS[name]}"
        if path.startswith("jax.nn.") and name[:1].isupper():
            return (
                f"there is no {written}; layers belong in a Python function that the experiment imports (functions.md)"
            )
        if name in OPERATIONS:
            return f"there is no {written}; {name} is {OPERATIONS[name].jax}"
        meant = nearest(path, _BY_PATH) or nearest(name, OPERATIONS)
        return f"there is no {written}{meant or '; docs/operations.md has the operations'}"
    part_of = f".{_dotted(function)}"
    if (name := next((_BY_PATH[path] for path in _BY_PATH if path.endswith(part_of)), None)) is not None:
        arguments = [*map(ast.unparse, call.args), *map(ast.unparse, call.keywords)]
        return f"'{part_of[1:]}' is no operation; write {name}({', '.join(arguments)})"
    if isinstance(function, ast.Attribute) and function.attr in OPERATIONS:
        arguments = [*map(ast.unparse, (function.value, *call.args)), *map(ast.unparse, call.keywords)]
        return f"arrays have no method '{function.attr}'; write {function.attr}({', '.join(arguments)})"
    if isinstance(function, ast.Attribute) and (meant := nearest(function.attr, METHODS)):
        return f"arrays have no method '{function.attr}'{meant}"
    return "only operations can be called, by their name: exp(x), not x.exp()"
