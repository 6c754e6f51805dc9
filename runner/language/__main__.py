"""`python -m runner.language`: the table of operations as Markdown, which is `docs/operations.md`."""

from __future__ import annotations

from runner.language.forms import CHOICES
from runner.language.operations import OPERATIONS, Operation

_TITLES = {
    "array": "Arrays: in `graph` and in `per_device`",
    "collective": "Collectives: in `per_device`",
    "static": "Static values: Python's own numbers, known while JAX traces",
}


INSTEAD = {
    "x.at[i].apply(f)": "x.at[i].set(f(x[i]))",
    "x[mask] = v": "where(mask, v, x)",
    "jax.lax.select(c, a, b)": "where(c, a, b)",
    "jax.lax.map(f, x), jax.vmap(f)(x)": "f(x)",
    "a if c else b": "where(c, a, b)",
    "a and b": "a & b",
    "x.sum(axis=0)": "sum(x, axis=0)",
    "flax.linen.avg_pool(x, (2,), (2,))": "reduce_window(x, 0.0, 'add', (1, 2, 1), (1, 2, 1), 'VALID') / 2",
}
"""For what the language does not have, an expression that does it; `f` and `g` are the experiment's own functions."""

_NOT_HERE = """
## What is not in the language, and what to write instead

| JAX or Python | here |
|---|---|
{rows}
| `jax.lax.scan` | a [repeat](language.md#scans) with `over` and `stack` |
| `jax.lax.while_loop` of a known number of steps | a [repeat](language.md#loops) with `unroll: false` |
| `jax.checkpoint` | [`checkpoint`](language.md#rematerialisation) of a function or a repeat |
| `lambda`, `def` | a [function](language.md#functions) of the experiment's own |
| `jax.grad` | [`grad`](language.md#gradients), whose gradients lines read |
| `jax.lax.associative_scan(f, x)` where `f` takes trees | arrays, or one tuple of them |
| `jnp.linalg.svd` | `eigh` of `a.T @ a`; the singular values alone are `svdvals(a)` |
| `jnp.nonzero`, `jnp.unique`, `x[mask]` | nothing: their shapes depend on values |
| `jax.lax.ragged_all_to_all` | `all_to_all` of blocks of the largest size; XLA has the former on no CPU |
| `shard_map` over some axes (`axis_names`) | a program is manual over all axes, or over none |
| Pallas, `jax.pure_callback`, `jax.custom_vjp` | nothing |

Of `where` and `select` all branches are computed: one that is not taken costs what it costs, and has to be finite where
a gradient is taken. Of an eigenvector `eigh` says no sign, and where eigenvalues are equal no direction; what is
compared must not depend on it: `v * v`, or `v @ (w[:, None] * v.T)`. Where one index stands twice, `x.at[i].set(v)`
takes either value, in JAX too. `ragged_dot` has no types in `explicit`, and JAX does not map it in `vmap`.
"""


def markdown() -> str:
    """The whole table, one section per kind, and what there is not."""
    lines = [
        "# The operations",
        "",
        "Names, argument names and meaning are JAX's. An argument that JAX has and this table does not is not allowed.",
        f"There are {len(OPERATIONS)}. This page is what `python -m runner.language` prints.",
    ]
    for kind, title in _TITLES.items():
        lines += ["", f"## {title}", "", "| operation | JAX |", "|---|---|"]
        lines += [_line(operation) for operation in OPERATIONS.values() if operation.kind == kind]
    rows = "\n".join(f"| `{theirs}` | `{ours}` |" for theirs, ours in INSTEAD.items())
    lines += ["", "## Choices between functions: [`cond` and `switch`](language.md#choices)", ""]
    lines += ["| call | JAX |", "|---|---|"]
    lines += [f"| `{name}({arguments})` | `{theirs}` |" for name, (arguments, theirs) in CHOICES.items()]
    return "\n".join(lines) + "\n" + _NOT_HERE.format(rows=rows)


def _line(operation: Operation) -> str:
    arguments = operation.arguments.replace("|", "\\|")
    if operation.method is not None:
        return f"| `{operation.jax}({arguments.partition('index, ')[2].removeprefix('/, ')})` | `jax.Array.at` |"
    return f"| `{operation.name}({arguments})` | `{operation.jax}` |"


if __name__ == "__main__":
    print(markdown(), end="")
