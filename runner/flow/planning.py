"""A configuration in which layouts are to be found in; the plan, and what its best candidates came to, out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config import schema
from runner.derivation.scopes import NotDerived
from runner.experiment import auto, data
from runner.experiment.auto import PlanRequest
from runner.experiment.imported import TREES
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.experiment.written import BOTH, all_names
from runner.faults import Key, invalid, key_text
from runner.flow import functions
from runner.flow.run import run
from runner.link.target import value_types_of
from runner.link.workers import Workers
from runner.planning.plan import Candidate, NoPlan, Plan, Wanted, plan
from runner.record.model import CompiledProgram, Record, Status
from runner.words import bytes_text, time_text

if TYPE_CHECKING:
    from runner.config.sources import Sources

_PROGRAMS = (Program.AUTO, Program.CONSTRAINT)
"""What a candidate is compiled as unless the file names programs: with its layouts, and with those of lines as well."""


@dataclass(frozen=True)
class Planning:
    """An experiment whose layouts are to be found, what is wanted of them, and the plan.

    - `definition`: what it is read from, everything whole where a layout is to be found; what it imports is not read.
    - `left_open`: the patterns of `specs` that say `auto`.
    """

    experiment: Experiment
    definition: Mapping[str, Any]
    left_open: frozenset[str]
    request: PlanRequest
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a program of a candidate came to.

    - `status`, `error`: of its run; `bytes_sent`, `seconds`, `memory_bytes`: by the compiled module, of one device;
      null where these are not known.
    """

    program: str
    status: Status
    error: str | None = None
    bytes_sent: int | None = None
    seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate, the folder of its run, and what its programs came to, the best first."""

    candidate: Candidate
    folder: str
    programs: tuple[Compiled, ...]


def planned(config: Mapping[str, Any], folder: Path, sources: Callable[[], Sources], workers: Workers) -> Planning:
    """Find the layouts of a configuration. Raises `InvalidExperiment` where there are none to be found."""
    keys = list(auto.keys(config))
    if not keys:
        raise invalid((), "there is no layout to find: say auto where one is wanted, spec: auto")
    request = auto.read_plan(config)
    definition = auto.without(config)
    experiment = read(functions.traced(definition, folder / TREES, sources, workers))
    left_open = frozenset(str(key[1]) for key in keys if key[0] == "specs")
    keys = list(auto.of_traced(config, experiment.imports.paths))
    _require_possible(experiment, keys)
    # Their types are the same in every layout, and no other program is asked for.
    graph = experiment.at(program=Program.AUTO.value)
    types = value_types_of(workers, graph, folder, data.folder(experiment, sources))
    wanted = Wanted(request.least, tuple(key_text(key) for key in keys), request.memory)
    try:
        return Planning(experiment, definition, left_open, request, plan(graph, types, wanted))
    except NoPlan as error:
        key = ("plan", "least" if request.least == "time" and experiment.hardware is None else "memory")
        raise invalid(key, str(error)) from None
    except NotDerived as error:
        raise invalid(keys[0], f"the graph cannot be planned: {error}") from None


def _require_possible(experiment: Experiment, keys: Sequence[Key]) -> None:
    """Raise `InvalidExperiment` where layouts say nothing, or somebody has said already how blocks lie."""
    if experiment.mesh.size == 1:
        raise invalid(keys[0], f"the mesh {experiment.mesh} has one device: there is nothing to lay out")
    if "per_device" in experiment.sections:
        message = (
            "per_device computes with the blocks of one layout, so none can be found: leave it out, or say the layout"
        )
        raise invalid(keys[0], message)
    if not experiment.graph:
        raise invalid(keys[0], "layouts are found for a graph, and this experiment has none")


def filled(planning: Planning, candidate: Candidate) -> dict[str, Any]:
    """The definition with the layouts of a candidate, and those of the lines as constraints."""
    definition, defaults = schema.whole(planning.definition), schema.whole({})["plan"]
    arrays: dict[str, Any] = dict(definition["arrays"])
    sections = {section: dict(definition[section] or {}) for section in ("constraints", "outputs")}
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
        # What stands in a function has no name that a constraint could use.
        if name in lines and name not in sections["outputs"]:
            sections["constraints"].setdefault(name, spec.json())
    # The first pattern that a path fits counts.
    return {**definition, **sections, "arrays": arrays, "specs": paths | patterns, "plan": defaults}


def anywhere(definition: Mapping[str, Any], sources: Callable[[], Sources]) -> dict[str, Any]:
    """A definition for a file that may lie anywhere: files of Python by their whole paths."""
    folder = functions.beside(definition, sources)

    def whole(source: str) -> str:
        file, colon, attribute = source.partition(":")
        return f"{(folder / file).resolve()}{colon}{attribute}" if folder and file.endswith(".py") else source

    named = {
        key: {name: whole(source) for name, source in definition[key].items()} for key in ("imports", "references")
    }
    return {**definition, **named}


def tried(
    planning: Planning, folder: Path, sources: Callable[[], Sources], overrides: Sequence[str], workers: Workers
) -> list[Tried]:
    """The best candidates, compiled and verified, the best by what was compiled first."""
    experiment, request = planning.experiment, planning.request
    programs = [program.value for program in (experiment.programs if experiment.chosen else _PROGRAMS)]
    found: list[Tried] = []
    for number, candidate in enumerate([planning.plan.best, *planning.plan.others][: request.candidates], start=1):
        own = folder / f"candidate_{number}"
        own.mkdir()
        config = {**filled(planning, candidate), "program": programs}
        record = run(config, own, sources, overrides, workers)
        found.append(Tried(candidate=candidate, folder=own.name, programs=_came_to(record, request)))
    return sorted(found, key=lambda one: _rank(one.programs[0], request) if one.programs else _LAST)


def _came_to(record: Record, request: PlanRequest) -> tuple[Compiled, ...]:
    if not record.programs:
        return (Compiled(program="", status=record.status, error=record.error),)
    each: list[Compiled] = []
    for name, program in record.programs.items():
        one = Compiled(program=name, status=program.status, error=program.error)
        if isinstance(program, CompiledProgram):
            one = Compiled(
                program=name,
                status=program.status,
                error=program.error,
                bytes_sent=program.bytes_sent,
                seconds=program.estimate.seconds if program.estimate else None,
                memory_bytes=program.memory.needed_bytes if program.memory else None,
            )
        each.append(one)
    return tuple(sorted(each, key=lambda one: _rank(one, request)))


_LAST = (True, True, float("inf"))


def _rank(one: Compiled, request: PlanRequest) -> tuple[bool, bool, float]:
    """What passed first, then what is within the memory limit, then by what is to be least."""
    value = {"bytes": one.bytes_sent, "time": one.seconds, "memory": one.memory_bytes}[request.least]
    return one.status != "passed", exceeds(one, request), float("inf") if value is None else float(value)


def exceeds(one: Compiled, request: PlanRequest) -> bool:
    """Whether a device needs more memory, by the compiler, than the limit is."""
    return request.memory is not None and one.memory_bytes is not None and one.memory_bytes > request.memory


def amount(value: float | None, least: str) -> str:
    """A number in the unit of what is least, in words."""
    if value is None:
        return "–"
    return time_text(value) if least == "time" else bytes_text(round(value))
