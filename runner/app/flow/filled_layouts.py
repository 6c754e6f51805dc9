"""Finds the layouts that a configuration leaves open, and puts them into it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.flow import functions, saving
from runner.app.flow.saving import OfSaved
from runner.base import codec
from runner.base.chosen import EVERYTHING
from runner.base.faults import InvalidExperiment, Key, invalid, key_text
from runner.base.layout import Parts, Typed
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.experiment import data, open_layouts, remat
from runner.experiment.config import schema
from runner.experiment.imported import TREES
from runner.experiment.model import Experiment
from runner.experiment.open_layouts import PlanRequest
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.experiment.remat import Saved
from runner.experiment.written import BOTH, all_names
from runner.graph.model import walk
from runner.link.jobs import kind
from runner.link.target import value_types_of
from runner.link.workers import Workers
from runner.programs.derivation.scopes import NotDerived
from runner.programs.planning import clock
from runner.programs.planning.costs import costs_the_same
from runner.programs.planning.model import Layable
from runner.programs.planning.plan import Candidate, LayoutPlan, NoPlan, Wanted, plan
from runner.programs.planning.reading import layable
from runner.reports.record import writing
from runner.reports.record.folders import PLAN

if TYPE_CHECKING:
    from runner.experiment.config.sources import Sources


@dataclass(frozen=True, kw_only=True)
class OfShape:
    """The plan for one mesh shape: its cost, and the bytes that a device sends and holds; or the error."""

    shape: tuple[int, ...]
    cost: float | None = None
    bound: float | None = None
    sent: float | None = None
    held: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Open:
    """An experiment with layouts to find, and the requirements.

    - `definition`: its source, replicated where a layout is to be found; what it imports is not read.
    - `left_open`: the patterns of `specs` and `constraints` that say `auto`; `keys`: the layouts to find.
    - `graph`: the experiment as its graph alone; `types`: the types of the graph's values.
    """

    experiment: Experiment
    graph: Experiment
    definition: Mapping[str, Any]
    left_open: frozenset[str]
    keys: tuple[Key, ...]
    types: Parts
    request: PlanRequest

    @property
    def typed(self) -> bool:
        """Whether functions are compiled on Explicit axes alone, where they may state layouts."""
        programs = self.experiment.programs if self.experiment.chosen else ()
        return bool(self.experiment.imports.functions and programs) and all(
            each is Program.EXPLICIT for each in programs
        )


@dataclass(frozen=True, kw_only=True)
class Planning(_Open):
    """An experiment with layouts to find, and the plan.

    - `shapes`: the results for each mesh shape, the best first, if the shape is to be found; `choices`: those for each
      choice of what is saved for the backward pass, if that is to be found, and `chosen`: makes that choice again.
    """

    plan: LayoutPlan
    shapes: tuple[OfShape, ...] = ()
    choices: tuple[OfSaved, ...] = ()
    chosen: Callable[[float | None], Planning] | None = None

    @property
    def verified(self) -> bool:
        """Whether the values of candidates are checked, and not only their compiled modules."""
        absent = self.graph.target.topology is not None and not self.graph.verify_dims
        return self.request.verify is not False and not absent

    @property
    def labels(self) -> dict[str, str]:
        """The paths of the leaves of trees, and the places of lines in Python, by the keys of their layouts."""
        lines = {path: line for line, path in self.experiment.patterned.items()}
        named = {key: key.partition(".")[2].removesuffix(".spec") for key in self.plan.best.layouts}
        frames = {path: self.experiment.frames["graph"].get(lines.get(path, path)) for path in named.values()}
        places = {path: f"{frame.place} {path.rpartition('/')[2]}" for path, frame in frames.items() if frame}
        labels = {**places, **self.experiment.imports.paths}
        return {key: labels[name] for key, name in named.items() if name in labels}

    @property
    def values(self) -> dict[str, Typed]:
        """The types of the values that have a name, by the paths of their lines."""
        named = (
            (equation.source.line.path, self.types.get(value.number))
            for equation in walk(self.graph.computed("graph"))
            for value in equation.results
            if value.name
        )
        return {path: typed for path, typed in named if isinstance(typed, Typed)}

    def again(self, memory: float | None) -> Planning:
        """Return a plan that needs at most `memory` bytes of a device, None for no limit. Raises `NoPlan`."""
        if self.chosen is not None:
            return self.chosen(memory)
        wanted = _wanted(self, self.request.seconds)
        return replace(self, plan=plan(self.graph, self.types, replace(wanted, memory=memory)))

    def saving(self, saved: Saved) -> Planning:
        """Return the same plan, whose candidates say what is saved."""
        of, best = self.plan, replace(self.plan.best, saved=saved)
        others, front = (tuple(replace(each, saved=saved) for each in some) for some in (of.others, of.front))
        return replace(self, plan=replace(of, best=best, others=others, front=front))


def planned(config: Mapping[str, Any], folder: Path, sources: Sources, workers: Workers) -> Planning:
    """Find the layouts of a configuration. Raises `InvalidExperiment` if it leaves none open or none can be found."""
    if not open_layouts.is_open(config):
        named = next((name for name in config["arrays"] if name.isidentifier()), None)
        example = f"arrays.{named}.spec=auto" if named else "spec: auto in the file"
        raise invalid((), f"there is no layout to plan: write auto in place of a spec, such as {example}")
    request = open_layouts.read_plan(config)
    if not open_layouts.shape_is_open(config):
        return _planned(config, folder, sources, workers, request, request.seconds)
    # If time is minimised, it matters which links an axis uses.
    shapes = open_layouts.shapes(config, alike=request.least != "time")
    until = clock.now() + request.seconds
    best, each, first = None, list[OfShape](), None
    for number, shape in enumerate(shapes):
        left = until - clock.now()
        if number and left < 0:
            each += [OfShape(shape=tuple(other), error="there was no time left") for other in shapes[number:]]
            break
        of_shape = {**config, "mesh": {**config["mesh"], "shape": shape}}
        try:
            planning = _planned(of_shape, folder, sources, workers, request, max(1.0, left / (len(shapes) - number)))
        except InvalidExperiment as error:
            first = first or error
            each.append(OfShape(shape=tuple(shape), error=error.fault.message))
            continue
        candidate = planning.plan.best
        each.append(
            OfShape(
                shape=tuple(shape),
                cost=candidate.cost,
                bound=planning.plan.bound,
                sent=candidate.sent,
                held=candidate.held,
            )
        )
        best = planning if best is None or _better(candidate, best.plan.best) else best
    if best is None:
        assert first is not None
        raise first
    return replace(
        best, shapes=tuple(sorted(each, key=lambda planning: float("inf") if planning.cost is None else planning.cost))
    )


def _better(candidate: Candidate, best: Candidate) -> bool:
    """Return whether `candidate` costs less, or costs the same and holds less."""
    if costs_the_same(candidate.cost, best.cost):
        return candidate.held < best.held
    return candidate.cost < best.cost


def _planned(
    config: Mapping[str, Any], folder: Path, sources: Sources, workers: Workers, request: PlanRequest, seconds: float
) -> Planning:
    """Return the plan on one mesh."""

    def opened(config: Mapping[str, Any], folder: Path) -> _Open:
        return _read(config, folder, sources, workers, request)

    try:
        if not remat.is_open(config):
            return _solved(opened(config, folder), request.memory, seconds)
        return _saving(config, folder, opened, request.memory, seconds)
    except NoPlan as error:
        by_time = "time" in (request.least, *request.beside) and error.least is None
        raise invalid(("plan", "least" if by_time else "memory"), str(error)) from None


def _saving(
    config: Mapping[str, Any],
    folder: Path,
    opened: Callable[[Mapping[str, Any], Path], _Open],
    memory: float | None,
    seconds: float,
) -> Planning:
    """Return the plan with the best choice of what is saved for the backward pass; each choice is `opened` once."""
    choices_opened = dict[Saved, tuple[_Open, Layable]]()

    def of(saved: Saved) -> tuple[_Open, Layable]:
        if saved not in choices_opened:
            own = folder / f"saved_{len(choices_opened)}"
            read = opened(remat.saving(config, saved), own)
            choices_opened[saved] = read, layable(read.graph, read.types, tuple(map(key_text, read.keys)))
        return choices_opened[saved]

    given = remat.names(of(())[0].graph.computed("graph"))
    if not given:
        raise invalid(("remat",), "no value has a name to save it by: give it one, checkpoint_name(x, 'hidden')")
    all_again = _computed(of(())[1])
    names = tuple(name for name in given if _computed(of((name,))[1]) < all_again)
    where = "checkpoint: auto in a file, policy=runner.AUTO in Python"
    idle = f"to save {listed(given)} changes nothing: is a checkpoint around open ({where})?"
    notes, names = () if names else (idle,), names or given
    many = saving.number_of_choices(names)

    def chosen(memory: float | None) -> Planning:
        def plan_of(saved: Saved) -> Planning:
            share = seconds if saved == EVERYTHING else max(1.0, seconds / _CHOICES)
            read, graph = of(saved)
            return _solved(read, memory, share, graph).saving(saved)

        _, best, choices = saving.best(names, plan_of)
        # The limit may cost a choice as well as layouts.
        unlimited = min(choice.unlimited for choice in choices)
        plan_ = replace(best.plan, unlimited=unlimited, unknown=(*best.plan.unknown, *notes))
        if len(choices) < many and not remat.are_few(names):
            note = f"{len(choices)} of {many:,} choices of what is saved were planned, names added one by one"
            plan_ = replace(plan_, unknown=(*plan_.unknown, note))
        return replace(best, plan=plan_, choices=choices, chosen=chosen)

    return chosen(memory)


def _computed(graph: Layable) -> int:
    """How many operations run, those that the backward pass computes again counted twice."""
    return len(graph.operations) + sum(operation.recomputed is not None for operation in graph.operations)


_CHOICES = 8
"""The share of the time for a plan that each choice of what is saved gets is one of so many."""


def _read(config: Mapping[str, Any], folder: Path, sources: Sources, workers: Workers, request: PlanRequest) -> _Open:
    """Read what is to be planned on one mesh."""
    definition = open_layouts.without(config)
    apart = open_layouts.apart(config)
    experiment = read(functions.traced(definition, folder / TREES, sources, workers, values=False, apart=apart))
    left_open = frozenset([*apart, *(str(key[1]) for key in open_layouts.keys(config) if key[0] == "specs")])
    inside = dict.fromkeys(experiment.patterned.values())
    keys = tuple(open_layouts.of_traced(config, experiment.imports.paths, inside))
    _require_possible(experiment, _key(keys), saving=config.get("remat") is not None)
    graph, types = typed(experiment, folder, sources, workers)
    return _Open(
        experiment=experiment,
        graph=graph,
        definition=definition,
        left_open=left_open,
        keys=keys,
        types=types,
        request=request,
    )


def _key(keys: Sequence[Key]) -> Key:
    """The key at which a fault of a plan is reported."""
    return keys[0] if keys else ("mesh", "shape")


def _solved(read: _Open, memory: float | None, seconds: float, graph: Layable | None = None) -> Planning:
    """Return the plan of what was read. Raises `NoPlan`."""
    wanted = replace(_wanted(read, seconds), memory=memory)
    try:
        solution = plan(read.graph, read.types, wanted, graph)
    except NotDerived as error:
        raise invalid(_key(read.keys), f"the graph cannot be planned: {error}") from None
    return Planning(**vars(read), plan=solution)


def typed(experiment: Experiment, folder: Path, sources: Sources, workers: Workers) -> tuple[Experiment, Parts]:
    """Return the experiment as its graph alone, and the types of its values, which do not depend on layouts."""
    graph = experiment.at(program=Program.AUTO.value)
    return graph, value_types_of(workers.aside(kind(graph)), graph, folder, data.folder(experiment, sources))


def _wanted(read: _Open, seconds: float) -> Wanted:
    request = read.request
    keys = tuple(map(key_text, read.keys))
    return Wanted(request.least, keys, request.memory, seconds, request.beside, typed=read.typed)


def leave(folder: Path, planning: Planning, **more: Any) -> None:
    """Write the plan into a run folder."""
    written = {
        "experiment": planning.experiment.name,
        "mesh": planning.experiment.mesh.sizes,
        "limit": planning.request.memory,
        "plan": codec.plain(planning.plan),
        "shapes": codec.plain(planning.shapes),
        "choices": codec.plain(planning.choices),
        "labels": planning.labels,
        "verified": planning.verified,
    }
    writing.write_text(folder / PLAN, json.dumps({**written, **more}, indent=1) + "\n")


def _require_possible(experiment: Experiment, key: Key, *, saving: bool) -> None:
    """Raise `InvalidExperiment` if layouts make no difference, or `per_device` fixes them already.

    `saving`: whether it is also chosen what is saved for the backward pass.
    """
    if experiment.mesh.size == 1 and not saving:
        raise invalid(key, f"the mesh {experiment.mesh} has one device: there is nothing to lay out")
    if "per_device" in experiment.sections:
        message = (
            "per_device assumes the blocks of one layout, so none can be planned: leave per_device out, or give the "
            "layout"
        )
        raise invalid(key, message)
    if not experiment.graph:
        raise invalid(key, "layouts are planned for a graph, and this experiment has none")


def filled(planning: Planning, candidate: Candidate) -> dict[str, Any]:
    """Return the definition with the layouts of a candidate, and those of lines as constraints."""
    definition, defaults = schema.whole(planning.definition), schema.whole({})["plan"]
    arrays: dict[str, Any] = dict(definition["arrays"])
    sections: dict[str, dict[str, Any]] = {
        section: dict(definition[section] or {}) for section in ("constraints", "outputs")
    }
    for pattern in planning.left_open & sections["constraints"].keys():
        del sections["constraints"][pattern]
    patterns = {name: spec for name, spec in definition["specs"].items() if name not in planning.left_open}
    paths: dict[str, Any] = {}
    for key, spec in candidate.layouts.items():
        section, _, name = key.partition(".")
        name = name.removesuffix(".spec") if section == "arrays" else name
        if name in planning.experiment.imports.paths:
            paths[planning.experiment.imports.paths[name]] = spec.json()
        elif section == "arrays":
            arrays[name] = {**arrays[name], "spec": spec.json()}
        else:
            sections[section][name] = spec.json()
    lines = {name for section in (BOTH, "graph") for name, _ in all_names(definition[section], (section,))}
    for name, spec in candidate.constraints.items():
        # A line in a function has no name that a constraint could use.
        if name in lines and name not in sections["outputs"]:
            sections["constraints"].setdefault(name, spec.json())
    sizes = _verified_sizes(planning, candidate)
    # The first pattern that matches a path counts.
    if candidate.saved is not None:
        definition = remat.saving(definition, candidate.saved)
    return {
        **definition, **sections, "arrays": arrays, "specs": paths | patterns, "verify_dims": sizes, "plan": defaults
    }  # fmt: skip


def expecting(planning: Planning, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition that expects programs to need no more memory than the plan's limit, unless it says more."""
    expect = dict(definition["expect"] or {})
    if planning.request.memory is not None and expect.get("max_memory_bytes") is None:
        expect["max_memory_bytes"] = int(planning.request.memory)
    return {**definition, "expect": expect}


def _verified_sizes(planning: Planning, candidate: Candidate) -> dict[str, int]:
    """Return `verify_dims`, with sizes raised to multiples that a candidate's layouts divide."""
    experiment, sizes = planning.experiment, planning.experiment.verify_dims
    shapes = {name: value.shape for name, value in planning.values.items()}
    shapes |= {array.name: array.shape for array in experiment.arrays}
    parts = dict.fromkeys(sizes, 1)
    for key, spec in (*candidate.layouts.items(), *candidate.constraints.items()):
        for size, axes in zip(shapes.get(key.removesuffix(".spec").rpartition(".")[2], ()), spec, strict=False):
            for name in sizes:
                if experiment.dims.get(name) == size:
                    parts[name] = math.lcm(parts[name], experiment.mesh.axis_size(axes))
    return {name: math.ceil(size / parts[name]) * parts[name] for name, size in sizes.items()}


def anywhere(definition: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return a definition that does not depend on the folder of its file: Python files by absolute paths."""
    folder = functions.beside(definition, sources)

    def whole(source: str) -> str:
        file, colon, attribute = source.partition(":")
        return f"{(folder / file).resolve()}{colon}{attribute}" if folder and file.endswith(".py") else source

    named = {
        key: {name: whole(source) for name, source in definition[key].items()} for key in ("imports", "references")
    }
    return {**definition, **named}
