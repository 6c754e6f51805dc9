"""Imports all modules with rules, which completes the registry."""

from runner.programs.derivation import (
    combining,
    creation,
    draws,
    indexing,
    inner,
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
from runner.programs.derivation.registry import WAYS, WHOLE

FILES = (
    combining, creation, draws, indexing, inner, lookups, matrices, pointwise, products, reductions, several, shaping,
    sliding, updating, windows,
)  # fmt: skip

__all__ = ["FILES", "WAYS", "WHOLE"]
