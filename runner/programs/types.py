"""The results of JAX's abstract evaluation as plain data, from `runner/worker/types.py`, for the writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.sharding.propagation import Derivation
from runner.graph.sharding.repairs import Repair


@dataclass
class Repairs:
    """The repairs of a whole section.

    - `calls`: for the path of each line, the repairs of its calls, by their part numbers.
    - `reshard`: the spec to which an array, a line's value, or a loop's carry is resharded, by their paths.
    - `returned`: the spec to which an output is resharded at the end, if the graph continues with another.
    - `gathered`: for carries that begin unsharded, the layout before each step gathers them, by their paths.
    - `makes`: whether calls create arrays from numbers alone, which need a mesh to be set.
    - `constant`: whether no output depends on an array, so that only the outputs tell JAX the mesh.
    """

    calls: dict[str, dict[int, Repair]] = field(default_factory=dict[str, dict[int, Repair]])
    reshard: dict[str, Spec] = field(default_factory=dict[str, Spec])
    returned: dict[str, Spec] = field(default_factory=dict[str, Spec])
    gathered: dict[str, Spec] = field(default_factory=dict[str, Spec])
    makes: bool = False
    constant: bool = False


Floats = dict[str, dict[int, str]]
"""The dtypes of floats that are neither float32 nor complex64, and of values of a weak type (`weak int32`): for each
line, by the number of the part."""


@dataclass(frozen=True)
class InferredTypes:
    """The results of JAX's abstract evaluation of an experiment.

    - `outputs`: the types of the whole outputs.
    - `nodes`: those of every named value of each section (in `per_device` as one device sees it).
    - `repairs`: the changes that explicit sharding requires.
    - `unsupported`: the programs that JAX cannot express, with the reason.
    - `unwritten`: the programs that the runner itself failed to write, with what it raised.
    - `floats`: for each section, and for `derived`, the dtypes in its expressions.
    - `differing`: for the values that a program's lines pass across its gradients, the mesh axes over which each may
      differ between devices.
    - `derived`: the experiment with the lines derived from its graph as `per_device`; `derivation`: the same for the
      record, with notes. None if they were not asked for, or there are none.
    - `not_derived`: why there are no derived lines, if they were asked for.
    """

    outputs: Mapping[str, Typed]
    nodes: Mapping[str, Mapping[str, Typed]]
    repairs: Repairs
    unsupported: Mapping[Program, str]
    floats: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    differing: Mapping[Program, Mapping[str, tuple[str, ...]]] = field(
        default_factory=dict[Program, Mapping[str, tuple[str, ...]]]
    )
    derived: Experiment | None = None
    derivation: Derivation | None = None
    not_derived: str | None = None
    unwritten: Mapping[Program, str] = field(default_factory=dict[Program, str])
