"""Imports all modules with rules, which completes the registry."""

from runner.graph.language.operations import OPERATIONS
from runner.programs.derivation import (
    combining,
    creation,
    defined,
    indexing,
    lookups,
    matrices,
    pointwise,
    products,
    reductions,
    several,
    shaping,
    sliding,
    updating,
    windows,
)
from runner.programs.derivation.registry import WAYS

FILES = (
    combining, creation, defined, indexing, lookups, matrices, pointwise, products, reductions, several, shaping,
    sliding, updating, windows,
)  # fmt: skip

__all__ = ["FILES", "WAYS"]

for _row in OPERATIONS.values():
    if _row.definition and _row.key not in WAYS:
        WAYS[_row.key] = defined.WAYS
