"""Gives the collectives of a module their reasons, by Shardy's plan of what was lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner.base.layout import Mesh, Spec
from runner.compiled.evidence.model import Collective, Reason
from runner.compiled.explanation import meshes, places
from runner.compiled.explanation.model import Argument, Explanation, PlacedCollective, SourcePlace
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
    return at_asking_lines(replace(explanation, placed=reasoned))


def at_asking_lines(explanation: Explanation) -> Explanation:
    """The explanation with each collective for which a line of the user's asks, as by `reshard`, at that line."""
    lines = dict(explanation.lines)
    names = {(place.file, place.line): name for name, place in lines.items()}
    asking = [frame for entry in explanation.placed or () if (frame := entry.asking) is not None]
    named = places.Places([*(place.file for place in lines.values()), *(frame.file for frame in asking)])
    placed: list[PlacedCollective] = []
    for entry in explanation.placed or ():
        if (frame := entry.asking) is not None:
            at = frame.file, frame.line
            name = names.setdefault(at, named.name(at))
            lines.setdefault(name, SourcePlace(file=frame.file, line=frame.line))
            entry = replace(entry, node=name, nodes=[name], callers=[*reversed(frame.path)])
        placed.append(entry)
    sources = {**places.sources(lines.values()), **explanation.sources}
    return replace(explanation, placed=explanation.placed and placed, lines=lines, sources=sources)


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
