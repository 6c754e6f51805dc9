"""Finds the cheapest layouts of a graph's values where all specs are given."""

from __future__ import annotations

from runner.base.layout import Parts
from runner.compiled.estimate.prices import Prices
from runner.experiment.model import Experiment
from runner.programs.derivation.expressions import Hints
from runner.programs.planning.reading import layable
from runner.programs.planning.solving import cheap
from runner.programs.planning.tables import Tables

_CHOICES = 32_768
"""The most layouts of all tensors and operations of a graph for which this is solved.

Each counts as many as a value of three dimensions has: the tables of more take too long.
"""


def inner_layouts(experiment: Experiment, types: Parts, prices: Prices) -> Hints | None:
    """The layouts of values and the assignments of operations with the least total cost, backward pass included.

    The least of all is only known where the tables are small; otherwise it is the least that message passing meets.
    None for a graph that is too large. Raises `NotDerived`.
    """
    graph = layable(experiment, types, ())
    if (len(graph.tensors) + len(graph.operations)) * 4 ** len(experiment.mesh.axes) > _CHOICES:
        return None
    tables = Tables(experiment.mesh, graph, prices, divided=False, partitioned=False)
    choice = cheap(tables.network)
    if choice is None:
        return None
    layouts = {
        number: tables.lying[tensors[0]].spec(choice[tensors[0]])
        for number, tensors in graph.values.items()
        if tensors is not None and len(tensors) == 1
    }
    assignments = {
        operation.number: tables.ways[at][choice[tables.variable(at)]].assignment
        for at, operation in enumerate(graph.operations)
    }
    return Hints(layouts, assignments)
