"""Makes the NumPy counterparts of operations that are defined by others, from those of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runner.graph.language.counterparts.indexing import getitem
from runner.graph.language.definitions import compiled
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.operations.deferred import evaluated
from runner.graph.language.operations.row import signature
from runner.graph.language.operators import BY_NAME
from runner.graph.term import Apply


def counterpart(definition: str, arguments: str) -> Callable[..., Any]:
    """The counterpart by a definition that reads the parameters `arguments`."""
    compute, parameters = compiled(definition, _counterpart_of), signature(arguments)

    def computed(*values: Any, **named: Any) -> Any:
        bound = parameters.bind(*values, **named)
        bound.apply_defaults()
        with np.errstate(all="ignore"):
            return compute(bound.arguments)

    return computed


def _counterpart_of(call: Apply) -> Callable[..., Any]:
    match call.spelled:
        case "operator":
            return BY_NAME[call.operation].numpy
        case "index":
            return getitem
        case _:
            return evaluated(OPERATIONS[call.operation].counterpart)
