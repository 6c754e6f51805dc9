"""`python -m runner.language`: the table of operations as Markdown, which is `docs/operations.md`."""

from __future__ import annotations

from runner.language.operations import OPERATIONS, Operation

_TITLES = {
    "array": "Arrays: in `graph` and in `per_device`",
    "collective": "Collectives: in `per_device`",
    "static": "Static values: Python's own numbers, known while JAX traces",
}


def markdown() -> str:
    """The whole table, one section per kind."""
    lines = [
        "# The operations",
        "",
        "Names, argument names and meaning are JAX's. An argument that JAX has and this table does not is not allowed.",
        f"There are {len(OPERATIONS)}. This page is what `python -m runner.language` prints.",
    ]
    for kind, title in _TITLES.items():
        lines += ["", f"## {title}", "", "| operation | JAX |", "|---|---|"]
        lines += [_line(operation) for operation in OPERATIONS.values() if operation.kind == kind]
    return "\n".join(lines) + "\n"


def _line(operation: Operation) -> str:
    arguments = operation.arguments.replace("|", "\\|")
    return f"| `{operation.name}({arguments})` | `{operation.jax}` |"


if __name__ == "__main__":
    print(markdown(), end="")
