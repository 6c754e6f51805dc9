"""Asks for layouts that nobody wrote: those of intermediate values, and those of a function's results.

A program that also returns the intermediate values is compiled, not run. A returned value is not fused away, and its
layout comes from the same propagation.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from jax.sharding import PartitionSpec

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.sharding.propagation import whole_axes
from runner.link.events import ValueLayout
from runner.worker import calls, ready, shardy
from runner.worker.modules import Walk
from runner.worker.specs import partition, spec_of
from runner.worker.versions import PROPAGATED, propagated


def layouts(
    experiment: Experiment, program: Program, module: ModuleType, devices: list[Any] | None = None
) -> dict[str, ValueLayout]:
    """The layout of each value whose layout `expect` names.

    `devices` are those of an absent topology.
    """
    probing = experiment.probing(program)
    assert probing is not None
    prepared = ready.abstract(experiment, program, module, devices)
    with prepared.within():
        lowered = prepared.function.lower(*prepared.operands)
        shardings = lowered.compile().output_shardings
    by_name: dict[str, ValueLayout] = {}
    for name, info, sharding in zip(probing.outputs, lowered.out_info, shardings, strict=True):
        if name in experiment.expected[program].layouts:
            by_name[name] = ValueLayout(spec=spec_of(sharding), shape=list(info.shape), text=str(sharding))
    return by_name


def of_results(lowered: Any) -> list[PartitionSpec]:
    """The layouts of a lowered function's results, by Shardy's propagation; a whole compilation takes far longer.

    They are those of the compiled module, except where XLA's partitioner knows more of an operation than Shardy does.
    """
    module = propagated(lowered, PROPAGATED)
    if isinstance(module, str):
        # A result that depends on no array is on a single device and has no PartitionSpec.
        of_compiled = calls.tree.leaves(lowered.compile().output_shardings)
        return [getattr(sharding, "spec", PartitionSpec()) for sharding in of_compiled]
    attributes = Walk(module).main.attributes
    texts = map(str, attributes["res_attrs"]) if "res_attrs" in attributes else ()
    specs = [shardy.read_spec(text) for text in texts]
    # Shardy writes nothing at a result that is whole.
    specs += [None] * (len(calls.tree.leaves(lowered.out_info)) - len(specs))
    return [PartitionSpec() if spec is None else partition(whole_axes(spec)) for spec in specs]
