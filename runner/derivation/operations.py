"""The rules of all operations, from the files where they stand."""

from runner.derivation import (  # noqa: F401  (each registers its own)
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

__all__ = ["WAYS", "WHOLE"]
