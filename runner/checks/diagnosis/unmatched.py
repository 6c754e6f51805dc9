"""Finds in a function the values that its reference has not, though the reference has all that they are made of.

A mistake is most often where such a value is computed, or in what that reads besides: an index, a mask, a number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from runner.checks.reference import PerDevice
from runner.graph.model import Equation, Graph, walk

_RUNS = 4
"""The largest number of values of an equation of a loop that are looked at."""


def strange(
    graph: Graph, ran: Mapping[int, Sequence[PerDevice]], has: Callable[[PerDevice], bool | None]
) -> tuple[set[int], set[int]]:
    """Return the numbers of these values, and of the values that they are made of or that are made of them.

    - `ran`: the values of equations and inputs by number, one for each time that they ran.
    - `has`: whether the reference has a value; None if nothing tells, as of integers. Those that nothing tells of are
      followed to what they are made of.
    """
    given = {value.number for value in graph.inputs}
    known = {number: True if number in given else _known(runs, has) for number, runs in ran.items()}
    equations = [equation for equation in walk(graph) if equation.form is None]
    made = {result.number: equation for equation in equations for result in equation.results}
    first, after = set[int](), {number for number, is_known in known.items() if is_known is False}
    for number, equation in made.items():
        follows = not after.isdisjoint(equation.reads)
        if known.get(number) is False and not follows:
            first.add(number)
        if known.get(number) is None and follows:
            # Nothing tells of it, as of a masked value, but it is made of what the reference has not.
            after.add(number)
    reading = {number for number, equation in made.items() if not first.isdisjoint(equation.reads)}
    return first, _read(first, made, known) | (reading - first)


def _read(numbers: Collection[int], made: Mapping[int, Equation], known: Mapping[int, bool | None]) -> set[int]:
    """What values are made of; through what nothing tells of, to what that is made of."""
    read, following = set[int](), [*numbers]
    while following:
        equation = made.get(following.pop())
        new = set[int]() if equation is None else {*equation.reads} - read
        read |= new
        following += (number for number in new if known.get(number) is None)
    return read


def _known(runs: Sequence[PerDevice], has: Callable[[PerDevice], bool | None]) -> bool | None:
    every = [has(value) for value in runs[:_RUNS]]
    return False if False in every else True if True in every else None
