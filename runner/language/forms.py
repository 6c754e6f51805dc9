"""A call that takes functions in; which functions, and what is handed to them, out.

`cond`, `switch` and `map` are none of the operations: what they call are functions of the experiment's own. The lines
of these stand in the place of the call (`runner/experiment/choosing.py`, `runner/experiment/mapping.py`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

CHOICES = {
    "cond": ("pred, true_fun, false_fun, *operands", "jax.lax.cond"),
    "switch": ("index, branches, *operands", "jax.lax.switch"),
}
"""The arguments of each, and its JAX function."""

MAP = "map"
"""The call that runs a function over the slices of an array."""

CALLING = {**CHOICES, MAP: ("f, xs, *, length=None", "jax.lax.map")}
"""Every call that takes functions."""

_FORMS = {"cond": "cond(p, f, g, x)", "switch": "switch(i, [f, g], x)"}


@dataclass(frozen=True)
class Asked:
    """What a call of `cond` or `switch` says.

    - `on`: the predicate or the index; `cases`: what is called, in the order of JAX's branches (of `cond` the false one
      first), each a name or a lambda; `operands`: of all of them.
    """

    name: str
    on: ast.expr
    cases: tuple[ast.expr, ...]
    operands: tuple[ast.expr, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """What the cases are called that have no name."""
        return ("false", "true") if self.name == "cond" else tuple(f"case{i}" for i in range(len(self.cases)))


def is_choice(node: ast.AST) -> bool:
    """Whether a node calls `cond` or `switch`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHOICES


def is_map(node: ast.AST) -> bool:
    """Whether a node calls `map`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == MAP


def called_in(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are functions; none where it takes none."""
    if is_map(call):
        return call.args[:1]
    if not is_choice(call):
        return []
    assert isinstance(call.func, ast.Name)
    if call.func.id == "cond":
        return call.args[1:3]
    branches = call.args[1] if len(call.args) > 1 else None
    return branches.elts if isinstance(branches, ast.List | ast.Tuple) else []


def read(call: ast.Call) -> Asked | str:
    """What a call says; or what is wrong with it."""
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    form = _FORMS[name]
    if call.keywords:
        return f"{name} has no argument '{call.keywords[0].arg}'; write {form}"
    cases = called_in(call)
    if name == "cond" and len(call.args) < 3:
        return f"{name} takes a predicate and two functions: {form}"
    if name == "switch" and not cases:
        return f"{name} takes an index and a list of functions: {form}"
    start = 3 if name == "cond" else 2
    ordered = reversed(cases) if name == "cond" else cases
    return Asked(name, call.args[0], tuple(ordered), tuple(call.args[start:]))
