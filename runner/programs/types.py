"""The results of JAX's abstract evaluation as plain data, from `runner/worker/types.py`, for the writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.layout import Spec, Typed
from runner.sharding.plan import Derivation
from runner.sharding.repairs import Repair


@dataclass(frozen=True)
class Repairs:
    """The repairs of a whole section.

    - `calls`: for the path of each line, the repair of the call that is each part of it, by its number.
    - `reshard`: the spec to which an array, what a line gives, or what a loop carries on is resharded, by their paths.
    - `returned`: the spec to which an output is resharded last, where the graph goes on with another.
    - `gathered`: how carries that begin unsharded lie before each step gathers them, by their paths.
    - `makes`: whether calls make arrays that no array enters, or of numbers: outside of a mesh these are of none.
    - `constant`: whether no output depends on an array, so that nothing but the outputs tells JAX the mesh.
    """

    calls: Mapping[str, Mapping[int, Repair]] = field(default_factory=dict[str, Mapping[int, Repair]])
    reshard: Mapping[str, Spec] = field(default_factory=dict[str, Spec])
    returned: Mapping[str, Spec] = field(default_factory=dict[str, Spec])
    gathered: Mapping[str, Spec] = field(default_factory=dict[str, Spec])
    makes: bool = False
    constant: bool = False


Floats = dict[str, dict[int, str]]
"""The dtypes of floats that are neither float32 nor complex64: for each line, by the number of the part."""


@dataclass(frozen=True)
class InferredTypes:
    """The results of JAX's abstract evaluation of an experiment.

    - `outputs`: the whole outputs.
    - `nodes`: every named value of each section (in `per_device` as one device sees it).
    - `repairs`: what explicit sharding asks for.
    - `unsupported`: the programs that JAX cannot express, with the reason.
    - `floats`: for each section, and for `derived`, the dtypes of what its expressions are made of.
    - `differing`: for the values that the lines of a program pass over its gradients, the mesh axes over which each
      may differ between devices.
    - `derived`: the experiment with the lines derived from its graph as `per_device`; `derivation` is the same as the
      record has it, with what there is to say of it. None where they were not asked for, or there are none.
    - `not_derived`: why there are no derived lines, where they were asked for.
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
