"""`python -m experiments.operations`: the table of operations as Markdown, which is `docs/operations.md`."""

from __future__ import annotations

from collections import Counter

from runner.graph.language.forms import CALLING
from runner.graph.language.jax_spellings import INSTEAD, METHODS
from runner.graph.language.operations import OPERATIONS, Operation

_TITLES = {
    "array": "Arrays: in `graph` and in `per_device`",
    "collective": "Collectives: in `per_device`",
    "static": "Static values: Python's own numbers, known while JAX traces",
}

_NOT_HERE = """
## What is not in the language, and what to write instead

| JAX or Python | here |
|---|---|
{rows}
| `jax.lax.scan` | a [repeat](language.md#scans) with `over` and `stack` |
| `jax.lax.scan(..., reverse=True)` | the same `over` `flip(xs, axis=0)`; flip the stacked results back |
| `jax.lax.while_loop` until a condition | a [while](language.md#until-a-condition) |
| `jax.lax.while_loop` of a known number of steps | a [repeat](language.md#loops) with `unroll: false` |
| `jax.checkpoint` | [`checkpoint`](language.md#rematerialisation) of a function or a repeat |
| `lambda`, `def` | a [function](language.md#functions) of the experiment's own |
| `jax.grad` | [`grad`](language.md#gradients), whose gradients lines read |
| `jax.lax.associative_scan(f, x)` where `f` takes trees | arrays, or one tuple of them |
| `jax.nn.initializers` | [`init`](language.md#arrays) of an array |
| `jax.random.gamma`, `beta`, `dirichlet`, `poisson` | an imported [function](functions.md#in-a-file) that draws |
| `jax.scipy.linalg.lu`, `lu_factor` | `lu(a)`, both triangles, the swaps, the order of the rows |
| `jnp.linalg.eig`, `jax.scipy.linalg.expm`, `betainc`, `map_coordinates` | nothing |
| `jax.image.resize` by `'linear'` or `'cubic'` | a product with the matrix of its weights, an array |
| `jax.lax.conv_general_dilated_patches` | `conv_general_dilated` with a kernel that is an identity |
| `jax.lax.bitcast_convert_type` to a dtype of another size, `jnp.frexp` | the bits as an unsigned integer, and shifts |
| `jnp.issubdtype`, `jnp.result_type`, `jnp.isscalar` | write the dtype: it is known when the line is written |
| `jnp.nonzero`, `jnp.unique`, `x[mask]` | nothing: their shapes depend on values |
| `jax.lax.psend`, `precv` | `ppermute` |
| `pcast(x, 'x', to='unreduced')`, `P(unreduced=…)` | `psum` or `psum_scatter` in the lines that sum it |
| `jax.shard_map(..., axis_names=...)` | [`manual: [x]`](language.md#manual-over-some-axes) |
| Pallas, `jax.pure_callback`, `jax.custom_vjp` | a [function and a reference](functions.md#what-cannot-be-read) |

`where` and `select` compute all branches: one that is not taken also costs time, and must be finite if a gradient is
taken. `eigh` and `svd` leave the sign of a vector open, and its direction if values are equal. Compare something that
depends on neither: `v * v`, or `v @ (w[:, None] * v.T)`. If an index occurs twice, `x.at[i].set(v)` keeps
either value, as in JAX. `ragged_dot` is unsupported by the types of `explicit` and by `jax.vmap`.

`ragged_all_to_all` writes into its `output`, and keeps the rows that no device writes. XLA has it for GPUs and TPUs,
and `jax.vmap` does not support it: on simulated devices `shard_map` and `vmap` are omitted, with that reason, while
`sections` compares the lines with `graph`; `target=v5e_2x2` compiles it. Sizes that disagree between two devices,
slices outside an array and rows that two devices write are errors. The bytes that it sends are known only when it
runs: the record's `bytes_sent` is null, and an estimate has its latency only. JAX gives the result the type of
`output`, which must vary over all axes over which the result may: `pcast(zeros((T, D)), 'x', to='varying')`. JAX's
gradient with respect to `output` (not to `operand`) is wrong if an empty slice begins where another one does.
"""


def markdown() -> str:
    """Return the page as Markdown: the operations, a section per kind, and alternatives to what the language lacks."""
    lines = [
        "# The operations",
        "",
        "Names, argument names and meaning are JAX's. Arguments that are not in this table are unsupported.",
        "JAX's own spellings are read too, `jnp.sum(A)`, `jax.nn.relu(x)`, `lax.psum(x, 'x')`, `jnp.bfloat16`, and the",
        f"methods of arrays {', '.join(f'`{name}`' for name in METHODS)}.",
        f"There are {len(OPERATIONS)}: {_counted()}; and {len(CALLING)} calls that take functions. `python -m "
        "experiments.operations` prints this page.",
    ]
    for kind, title in _TITLES.items():
        lines += ["", f"## {title}", "", "| operation | JAX |", "|---|---|"]
        lines += [_line(operation) for operation in OPERATIONS.values() if operation.kind == kind]
    rows = "\n".join(f"| `{theirs}` | `{ours}` |" for theirs, ours in INSTEAD.items())
    lines += ["", "## Calls that take functions: [choices](language.md#choices) and [maps](language.md#maps)", ""]
    lines += ["| call | JAX |", "|---|---|"]
    lines += [f"| `{name}({arguments})` | `{theirs}` |" for name, (arguments, theirs) in CALLING.items()]
    return "\n".join(lines) + "\n" + _NOT_HERE.format(rows=rows)


def _counted() -> str:
    """Format the number of rows of each table: `363 of arrays, 13 collectives, 4 static values`."""
    kinds = Counter(operation.kind for operation in OPERATIONS.values())
    return f"{kinds['array']} of arrays, {kinds['collective']} collectives, {kinds['static']} static values"


def _line(operation: Operation) -> str:
    arguments = operation.arguments.replace("|", "\\|")
    if operation.method is not None:
        return f"| `{operation.jax}({arguments.partition('index, ')[2].removeprefix('/, ')})` | `jax.Array.at` |"
    return f"| `{operation.name}({arguments})` | `{operation.jax}` |"


if __name__ == "__main__":
    print(markdown(), end="")
