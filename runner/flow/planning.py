"""A plan in; its best candidates, and layouts by hand, compiled, verified and ranked, out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment import effort
from runner.experiment.auto import PlanRequest
from runner.experiment.patterns import fits
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.faults import Key, invalid, key_text
from runner.flow import functions
from runner.flow.layouts import Planning, filled, typed
from runner.flow.run import run
from runner.layout import Spec
from runner.link.workers import Workers
from runner.planning.costs import costs_more
from runner.planning.plan import Candidate, NoPlan, Wanted, plan
from runner.record.model import CompiledProgram, Record, Status
from runner.untyped import is_list, is_mapping
from runner.words import long_text

if TYPE_CHECKING:
    from runner.config.sources import Sources

_PROGRAMS = (Program.AUTO, Program.CONSTRAINT)
"""The programs that a candidate is compiled as unless the file names others."""

_ROUNDS = 3
"""How often a plan is made again because the compiled programs need more or less memory than the model has."""

_ROOM = 0.05
"""The share of a memory limit that a compiled plan may leave unused, if the limit costs something."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The results of one program of a candidate.

    - `status`, `error`: of its run; `bytes_sent`, `seconds`, `memory_bytes`: from the compiled module, per device;
      None if unknown.
    """

    program: str
    status: Status
    error: str | None = None
    bytes_sent: int | None = None
    seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate, the folder of its run, and the results of its programs, the best first.

    `by_hand`: the file with the layouts of a competitor.
    """

    candidate: Candidate
    folder: str
    programs: tuple[Compiled, ...]
    by_hand: str | None = None


@dataclass(frozen=True, kw_only=True)
class Relimited:
    """The reason to plan again: a candidate needs more memory as compiled than the limit, or leaves some unused.

    - `needed`: its bytes as compiled; `planned`: those in the plan's model; `limit`: theirs in the next plan.
    """

    needed: int
    planned: float
    limit: float


@dataclass(frozen=True)
class Ranked:
    """The tried candidates, the best first; the plan with the best one; the reasons for planning again.

    `least_memory`: if nothing is within the limit, the least memory that a candidate needs as compiled.
    """

    planning: Planning
    tried: tuple[Tried, ...]
    relimited: tuple[Relimited, ...]
    least_memory: int | None


def too_large(planning: Planning) -> str | None:
    """Return why no candidate is compiled here, if the oracle of one takes longer than the experiment's `timeout`.

    A target that is not here is compiled without an oracle. None for a graph of moderate size.
    """
    experiment = planning.graph
    if experiment.target.topology is not None:
        return None
    seconds = effort.effort(experiment, {"graph": planning.values}).seconds
    if seconds <= experiment.timeout:
        return None
    return (
        f"no candidate is compiled: verifying one here takes about {long_text(seconds)}; choose smaller dims, or a "
        "target that is not here (target=v5e_4x4), for which candidates are compiled and not run"
    )


def ranked(
    planning: Planning, folder: Path, sources: Callable[[], Sources], overrides: Sequence[str], workers: Workers
) -> Ranked:
    """Compile, verify and rank the best candidates and the competitors by the compiled programs.

    If the best candidate exceeds the memory limit, or the limit costs something and it leaves some unused, plan again
    with a limit in the model that is moved by the ratio, a few times.
    """
    request, relimited = planning.request, list[Relimited]()
    rivals = list(competitors(planning, folder, sources, workers)) if request.candidates else []
    plannings, tried = [planning], list[Tried]()
    for number, (file, candidate) in enumerate(rivals, start=1):
        own = folder / f"competitor_{number}"
        each = _tried(planning, candidate, own, sources, overrides, workers)
        tried.append(replace(each, by_hand=file))
    while True:
        plans = [planning.plan.best, *(planning.plan.front or planning.plan.others)]
        # The first plan of a front is the best one.
        plans = [plan for n, plan in enumerate(plans) if plan.layouts not in [each.layouts for each in plans[:n]]]
        for candidate in plans[: request.candidates]:
            known = [attempt.candidate.layouts for attempt in tried if attempt.by_hand is None]
            if dict(candidate.layouts) not in [dict(layouts) for layouts in known]:
                own = folder / f"candidate_{len(known) + 1}"
                tried.append(_tried(planning, candidate, own, sources, overrides, workers))
        tried.sort(key=lambda attempt: _rank(attempt.programs[0], request))
        reason = _relimited(tried, planning)
        if reason is None or len(relimited) == _ROUNDS:
            break
        other = _again(planning, reason.limit)
        if any(dict(attempt.candidate.layouts) == dict(other.plan.best.layouts) for attempt in tried):
            break
        planning = other
        plannings.append(planning)
        relimited.append(replace(reason, limit=planning.plan.memory or reason.limit))
    first = next((attempt.candidate.layouts for attempt in tried if attempt.by_hand is None), None)
    # The last plan, with the highest limit, may not fit as compiled.
    planning = next((each for each in plannings if each.plan.best.layouts == first), planning)
    return Ranked(planning, tuple(tried), tuple(relimited), _least_memory(tried, request))


def _relimited(tried: Sequence[Tried], planning: Planning) -> Relimited | None:
    """Return why to plan with another limit; None if a candidate is within the limit, and leaves little unused."""
    request, plan_ = planning.request, planning.plan
    best = plan_.best
    needed = [
        program.memory_bytes
        for attempt in tried
        if attempt.by_hand is None and attempt.candidate.layouts == best.layouts
        for program in attempt.programs
        if program.memory_bytes is not None and program.status == "passed"
    ]
    if request.memory is None or not needed:
        return None
    # What the compiler needs in another plan is taken to be in the same ratio to the model's.
    limit = max(best.needed * request.memory / min(needed), 1.0)
    if any(_is_within(program, request) for attempt in tried for program in attempt.programs):
        costs = costs_more(best.cost, plan_.unlimited)
        unused = 1 - min(needed) / request.memory
        if not (costs and unused > _ROOM and limit > (plan_.memory or limit)):
            return None
    return Relimited(needed=min(needed), planned=best.needed, limit=limit)


def _again(planning: Planning, limit: float) -> Planning:
    """Return the plan within another limit, or that which needs the least."""
    try:
        return planning.again(limit)
    except NoPlan as error:
        if error.least is None:
            raise
        return planning.again(error.least)


def _is_within(program: Compiled, request: PlanRequest) -> bool:
    return program.status == "passed" and not exceeds(program, request)


def _least_memory(tried: Sequence[Tried], request: PlanRequest) -> int | None:
    programs = [program for attempt in tried for program in attempt.programs if program.status == "passed"]
    if request.memory is None or any(not exceeds(program, request) for program in programs):
        return None
    return min((program.memory_bytes for program in programs if program.memory_bytes is not None), default=None)


def _tried(
    planning: Planning,
    candidate: Candidate,
    own: Path,
    sources: Callable[[], Sources],
    overrides: Sequence[str],
    workers: Workers,
) -> Tried:
    experiment, request = planning.experiment, planning.request
    programs = [program.value for program in (experiment.programs if experiment.chosen else _PROGRAMS)]
    own.mkdir()
    record = run({**filled(planning, candidate), "program": programs}, own, sources, overrides, workers)
    return Tried(candidate=candidate, folder=own.name, programs=_came_to(record, request))


def _came_to(record: Record, request: PlanRequest) -> tuple[Compiled, ...]:
    if not record.programs:
        return (Compiled(program="", status=record.status, error=record.error),)
    programs: list[Compiled] = []
    for name, program in record.programs.items():
        compiled = Compiled(program=name, status=program.status, error=program.error)
        if isinstance(program, CompiledProgram):
            compiled = replace(
                compiled,
                bytes_sent=program.bytes_sent,
                seconds=program.estimate.seconds if program.estimate else None,
                memory_bytes=program.memory.needed_bytes if program.memory else None,
            )
        programs.append(compiled)
    return tuple(sorted(programs, key=lambda compiled: _rank(compiled, request)))


def _rank(compiled: Compiled, request: PlanRequest) -> tuple[bool, bool, float]:
    """Return a sort key: passed first, then within the memory limit, then by the quantity to minimise.

    Those that exceed the limit are sorted by the memory that they need.
    """
    over = exceeds(compiled, request)
    value = {"bytes": compiled.bytes_sent, "time": compiled.seconds, "memory": compiled.memory_bytes}[
        "memory" if over else request.least
    ]
    return compiled.status != "passed", over, float("inf") if value is None else float(value)


def exceeds(compiled: Compiled, request: PlanRequest) -> bool:
    """Return whether a device needs more memory, according to the compiler, than the limit."""
    return request.memory is not None and compiled.memory_bytes is not None and compiled.memory_bytes > request.memory


# Layouts by hand.


def competitors(
    planning: Planning, folder: Path, sources: Callable[[], Sources], workers: Workers
) -> Iterator[tuple[str, Candidate]]:
    """Yield the files that `plan.competitors` names, each with its layouts and their cost in the plan's model.

    Raises `InvalidExperiment` for a file that is not an experiment, or that lacks a layout.
    """
    home = sources().folder(("plan", "competitors")) if planning.request.competitors else folder
    for number, file in enumerate(planning.request.competitors):
        key = ("plan", "competitors", number)
        layouts, constraints = _by_hand(planning, home / file, file, key)
        bare = Candidate(layouts=layouts, constraints=constraints, cost=0.0, sent=0.0, held=0.0, needed=0.0)
        trees = folder / f"trees_{number}"
        definition = functions.traced(filled(planning, bare), trees, sources, workers, values=False)
        graph, types = typed(read(definition), folder, sources, workers)
        costs = plan(graph, types, Wanted(planning.request.least, (), None, planning.request.seconds)).best
        yield file, replace(bare, cost=costs.cost, sent=costs.sent, held=costs.held, needed=costs.needed)


def _by_hand(planning: Planning, path: Path, file: str, key: Key) -> tuple[dict[str, Spec], dict[str, Spec]]:
    """Return the layouts of a file by key, and the layouts of its lines by name."""
    # Few plans have competitors.
    import yaml

    try:
        written: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise invalid(key, f"{file} cannot be read: {error}") from None
    sections = ("arrays", "constraints", "outputs", "specs")
    if not is_mapping(written) or not all(name in sections and is_mapping(part) for name, part in written.items()):
        raise invalid(key, f"{file} is not a file of layouts, which maps names to specs below {', '.join(sections)}")
    given = {name: dict(written.get(name) or {}) for name in sections}
    layouts: dict[str, Spec] = {}
    for name, array in given["arrays"].items():
        if name not in {each.name for each in planning.experiment.arrays}:
            raise invalid(key, f"{file}: the experiment has no array '{name}'")
        spec: Any = array.get("spec") if is_mapping(array) else array
        layouts[f"arrays.{name}.spec"] = _spec(spec, f"{file}: arrays.{name}", key)
    for name, spec in given["outputs"].items():
        layouts[f"outputs.{name}"] = _spec(spec, f"{file}: outputs.{name}", key)
    constraints = {name: _spec(spec, f"{file}: constraints.{name}", key) for name, spec in given["constraints"].items()}
    for each in planning.keys:
        name, path_of = key_text(each), planning.experiment.imports.paths.get(str(each[1]), "")
        fitting = (spec for pattern, spec in given["specs"].items() if path_of and fits(str(pattern), path_of))
        pattern_spec = next(fitting, None)
        if name not in layouts and pattern_spec is not None:
            layouts[name] = _spec(pattern_spec, f"{file}: specs of {path_of}", key)
        elif each[0] == "constraints" and each[1] in constraints:
            layouts[name] = constraints[str(each[1])]
        elif name not in layouts:
            raise invalid(key, f"{file} has no layout for {path_of or name}, which is auto in the experiment")
    return layouts, constraints


def _spec(value: Any, where: str, key: Key) -> Spec:
    entries: list[tuple[str, ...]] = []
    if not is_list(value):
        raise invalid(key, f"{where}: {value!r} is not a PartitionSpec; write a list such as [x, null]")
    for entry in value:
        axes = entry if is_list(entry) else [] if entry is None else [entry]
        if not all(isinstance(axis, str) for axis in axes):
            raise invalid(key, f"{where}: {entry!r} is not a mesh axis, null, or a list of axes")
        entries.append(tuple(map(str, axes)))
    return Spec(entries)
