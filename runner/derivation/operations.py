"""All modules with rules in; the complete registry of rules out."""

from runner.derivation import (
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
from runner.derivation.registry import WAYS, WHOLE

FILES = (
    combining, creation, draws, indexing, inner, lookups, matrices, pointwise, products, reductions, several, shaping,
    sliding, updating, windows,
)  # fmt: skip

__all__ = ["FILES", "WAYS", "WHOLE"]
