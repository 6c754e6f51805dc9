"""Finds the matrix of a linear system that an equation solves, and the layout of its right-hand side.

JAX has the product with the matrix, and the solvers, as jaxprs. If the product is a `dot_general` of an array with the
unknown, the array is the matrix. This holds only for solvers that factorize it: an iterative one, such as `cg`, is read
as its steps.
"""

from __future__ import annotations

from typing import Any

from runner.base.lazy import dataclass
from runner.graph.language.operations import row_of


@dataclass(frozen=True)
class System:
    """A linear system with a matrix, or a stack of these.

    - `matrix`: the variable of the matrix; `transposed`: whether the system has its transpose.
    - `order`: the dimensions of the right-hand side, in the order: of the stack, of an equation, of columns.
    - `columns`: whether the right-hand side has columns.
    """

    matrix: Any
    transposed: bool
    order: tuple[int, ...]
    columns: bool


def system(equation: Any) -> System | None:
    """The system of a `custom_linear_solve`; None if it has no matrix."""
    lengths, product = equation.params["const_lengths"], equation.params["jaxprs"].matvec
    jaxpr = getattr(product, "jaxpr", product)
    if len(equation.outvars) != 1 or lengths.matvec != 1 or getattr(product, "consts", ()):
        return None
    solving = getattr(equation.params["jaxprs"].solve, "jaxpr", equation.params["jaxprs"].solve)
    if [eqn.params.get("name") for eqn in solving.eqns] != ["_lu_solve"]:
        return None
    matrix, unknown = jaxpr.invars
    steps = [e for e in jaxpr.eqns if e.primitive.name != "reduce_sum" or tuple(e.params["axes"])]
    steps = [e for e in steps if e.primitive.name != "copy"]
    if not steps or row_of(steps[0].primitive.name).contraction is None or {*steps[0].invars} != {matrix, unknown}:
        return None
    (left, right), (left_batch, right_batch) = steps[0].params["dimension_numbers"]
    swapped = steps[0].invars[0] is unknown
    if swapped:
        left, right, left_batch, right_batch = right, left, right_batch, left_batch
    stack, rank = len(left_batch), len(unknown.aval.shape)
    if len(left) != 1 or tuple(left_batch) != tuple(range(stack)) or len(matrix.aval.shape) != stack + 2:
        return None
    # Labels of the unknown's dimensions: numbers for the stack, "j" for the contracting one, "f" for a free one.
    labels: list[Any] = ["f"] * rank
    for number, at in enumerate(right_batch):
        labels[at] = number
    labels[right[0]] = "j"
    free = [label for label in labels if label == "f"]
    given: list[Any] = [*range(stack), *([*free, "i"] if swapped else ["i", *free])]
    for step in steps[1:]:
        if step.primitive.name != "transpose":
            return None
        given = [given[at] for at in step.params["permutation"]]
    if len(free) > 1 or given != ["i" if label == "j" else label for label in labels]:
        return None
    order = [labels.index(number) for number in range(stack)] + [labels.index("j")]
    order += [labels.index("f")] if free else []
    return System(equation.invars[0], left[0] == stack, tuple(map(int, order)), bool(free))
