"""An experiment with `grad` and its arrays in; the gradients of the unsharded graph, in float64 on one device, out.

They are the oracle of every program's gradients: JAX's rules of differentiation, but no mesh, no sharding, no
partitioner, no collective. `runner/reference/gradient.py` holds them against differences of the NumPy reference.
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from runner import dtypes
from runner.data import Arrays
from runner.experiment import Experiment, Loop, Node, Statement
from runner.language.operations import OPERATIONS
from runner.language.syntax import Expression
from runner.reference.gradient import nudged
from runner.worker.walk import Walker

_WIDE = {
    name: {"float": "float64", "complex": "complex128"}.get(dtypes.dtype(name).kind, name) for name in dtypes.NAMES
}


def unsharded(experiment: Experiment, arrays: Arrays) -> tuple[list[np.ndarray], list[float]]:
    """The gradients in float64, in the order of `grad.wrt`, and what rounding changes in each, at most.

    That is measured in two ways: by the same gradient in the experiment's own dtypes, and, since a small gradient may
    be lucky there, by the float64 one of arrays that are moved by one rounding.
    """
    names = [array.name for array in experiment.arrays]
    operands = [arrays[name] for name in names]
    with _on_one_device():
        own = [np.asarray(gradient).astype(np.float64) for gradient in jax.jit(_gradients(experiment))(*operands)]
        with jax.enable_x64(True):
            function = jax.jit(_gradients(_widened(experiment)))
            wide = [dtypes.dtype(_WIDE[array.dtype]).numpy for array in experiment.arrays]

            def evaluate(arrays: Arrays) -> list[np.ndarray]:
                operands = [arrays[name].astype(dtype) for name, dtype in zip(names, wide, strict=True)]
                return [np.asarray(gradient) for gradient in function(*operands)]

            oracle = evaluate(arrays)
            others = [own, *(evaluate(nudged(experiment, arrays, seed)) for seed in range(2))]
    lost = [0.0] * len(oracle)
    for other in others:
        for i, off in enumerate(np.abs(a - b) for a, b in zip(other, oracle, strict=True)):
            lost[i] = max(lost[i], float(np.max(off, initial=0.0, where=np.isfinite(off))))
    return oracle, lost


def of_graph(experiment: Experiment) -> None:
    """Differentiate the graph abstractly: JAX raises here what it would raise later."""
    structs = [jax.ShapeDtypeStruct(a.shape, dtypes.dtype(a.dtype).numpy) for a in experiment.arrays]
    jax.eval_shape(_gradients(experiment), *structs)


def places(experiment: Experiment) -> tuple[int, ...]:
    """The positions among the arrays of those with respect to which the gradients are."""
    assert experiment.grad is not None
    names = [array.name for array in experiment.arrays]
    return tuple(names.index(name) for name in experiment.grad.wrt)


def _gradients(experiment: Experiment) -> Callable[..., tuple[Any, ...]]:
    assert experiment.grad is not None
    of = experiment.grad.of

    def scalar(*arrays: Any) -> Any:
        walker = Walker(experiment, dict(zip((a.name for a in experiment.arrays), arrays, strict=True)))
        walker.run(experiment.graph, ("graph",))
        return walker.values[of]

    return jax.grad(scalar, argnums=places(experiment))


@contextlib.contextmanager
def _on_one_device() -> Iterator[None]:
    try:
        device = jax.devices("cpu")[0]
    except RuntimeError:
        device = jax.devices()[0]
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        yield


def _widened(experiment: Experiment) -> Experiment:
    """The experiment without the narrow floats that its graph names, as the reference keeps every float in float64."""
    return replace(experiment, graph=tuple(map(_wide_statement, experiment.graph)))


def _wide_statement(statement: Statement) -> Statement:
    if isinstance(statement, Node):
        return Node(statement.name, _wide_expression(statement.expression))
    assert isinstance(statement, Loop)
    return replace(
        statement,
        carry=tuple((name, _wide_expression(first)) for name, first in statement.carry),
        body=tuple(map(_wide_statement, statement.body)),
    )


def _wide_expression(expression: Expression) -> Expression:
    tree = _Widen().visit(copy.deepcopy(expression.tree))
    return Expression(ast.unparse(tree), tree)


class _Widen(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        # Random numbers are other numbers in another dtype.
        random = isinstance(node.func, ast.Name) and OPERATIONS[node.func.id].jax.startswith("jax.random.")
        return node if random else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node.value in _WIDE:
            return ast.copy_location(ast.Constant(_WIDE[node.value]), node)
        return node
