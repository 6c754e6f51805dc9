"""Gives the collectives of a module their reasons, by Shardy's plan of what was lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner.base.layout import Mesh, Spec
from runner.compiled.evidence.model import Collective, Reason
from runner.compiled.explanation import meshes
from runner.compiled.explanation.model import Argument, Explanation
from runner.compiled.why.needs import Keys
from runner.compiled.why.reasons import of_inserted
from runner.graph.sharding.propagation import KeyedArray, Planned, PlannedValue


def arrays_of(arguments: Sequence[Argument], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, KeyedArray]:
    """The arguments as whoever reads a plan wants them, with their names as keys; `shapes` are the global ones."""
    return {
        argument.name: KeyedArray(
            (None,) * len(shapes.get(argument.name, argument.shape)), argument.spec, argument.name
        )
        for argument in arguments
    }


def explained(explanation: Explanation, plan: Planned, arrays: Mapping[str, KeyedArray]) -> Explanation:
    """The explanation with the reason of each collective that the compiler inserted.

    - `arrays`: the arguments that are planned.
    """
    placed = explanation.placed or []
    if plan.collectives is None:
        missing = f"the reasons are not known: {plan.missing}"
        return replace(explanation, notes=[*explanation.notes, missing])
    reason = of_plan(placed, plan, arrays, meshes.layout_mesh(explanation.mesh, explanation.partitions))
    reasoned = [replace(entry, why=reason(entry)) if entry.inserted else entry for entry in placed]
    return replace(explanation, placed=reasoned)


def of_plan(
    placed: Sequence[Collective], plan: Planned, arrays: Mapping[str, KeyedArray], mesh: Mesh
) -> Callable[[Collective], Reason]:
    """Gives the reasons of collectives that the compiler inserts; the plan has collectives."""
    return of_inserted(placed, plan, _keys(arrays, mesh), mesh)


def constraint(names: Sequence[str], layout: Spec | None) -> str | None:
    """The key of a constraint: the line that asks for the layout."""
    return f"the layout asked for at {names[0]}" if names and layout is not None else None


def _keys(arrays: Mapping[str, KeyedArray], mesh: Mesh) -> Keys:
    specs = {name: array.spec or Spec() for name, array in arrays.items()}
    values = {
        name: PlannedValue(
            of=name,
            shape=(),
            dims=arrays[name].dims,
            spec=spec.padded(len(arrays[name].dims)),
            origins={axis: [name] for axis in spec.axes},
        )
        for name, spec in specs.items()
    }
    by_axis = {name: {axis: tuple[str | None, ...]() for axis in spec.axes} for name, spec in specs.items()}
    return Keys(lines={}, arrays=by_axis, places={}, values=values, sizes=mesh.sizes)
