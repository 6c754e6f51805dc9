"""The rules of all operations, from the files where they stand."""

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
