"""An experiment, its types and prices in; the cheapest layouts of its graph's values, all specs being given, out."""

from __future__ import annotations

from runner.derivation.expressions import Hints
from runner.estimate.prices import Prices
from runner.experiment.model import Experiment
from runner.layout import Parts
from runner.planning import elimination
from runner.planning.reading import layable
from runner.planning.tables import Tables

_VARIABLES = 256
"""The most tensors and operations of a graph for which this is solved: the tables of more take too long."""

_LARGEST = 1_000_000
"""The most entries of the largest table."""


def inner_layouts(experiment: Experiment, types: Parts, prices: Prices) -> Hints | None:
    """The layouts of values and the assignments of operations with the least total cost, backward pass included.

    They are found by variable elimination; None for a graph that is too large for it. Raises `NotDerived`.
    """
    graph = layable(experiment, types, ())
    if len(graph.tensors) + len(graph.operations) > _VARIABLES:
        return None
    tables = Tables(experiment.mesh, graph, prices, divided=False, partitioned=False)
    network = tables.network
    if elimination.ordered([len(costs) for costs in network.alone], network.pairs)[1] > _LARGEST:
        return None
    choice = elimination.eliminated(network).choice
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
