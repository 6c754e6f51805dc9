"""Compiles, verifies and ranks a plan's best candidates, and layouts by hand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.flow import functions
from runner.app.flow.filled_layouts import Planning, filled, typed
from runner.app.flow.memory_limit import Round, next_limit
from runner.app.flow.run import run
from runner.base import plain
from runner.base.faults import Key, invalid, key_text
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.base.words import long_text
from runner.experiment import effort, topology
from runner.experiment.open_layouts import Least, PlanRequest
from runner.experiment.patterns import fits
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link.workers import Workers
from runner.programs.planning.plan import Candidate, NoPlan, Wanted, plan
from runner.reports.record.model import CompiledProgram, ProgramRecord, Record, Status
from runner.reports.show.plan_table import exceeds_model, gains_nothing, refuses

if TYPE_CHECKING:
    from runner.experiment.config.sources import Sources
    from runner.experiment.model import Experiment

_PROGRAMS = (Program.AUTO, Program.CONSTRAINT)
"""The programs that a candidate is compiled as unless the file names others."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The results of one program of a candidate.

    - `status`, `error`: of its run; `bytes_sent`, `seconds`, `memory_bytes`, `flops`: from the compiled module, per
      device; None if unknown.
    """

    program: str
    status: Status
    error: str | None = None
    bytes_sent: int | None = None
    seconds: float | None = None
    memory_bytes: int | None = None
    flops: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate, the folder of its run, and the results of its programs, the best first.

    `by_hand`: the file with the layouts of a competitor; `written`: how the plan is written otherwise than first.
    """

    candidate: Candidate
    folder: str
    programs: tuple[Compiled, ...]
    by_hand: str | None = None
    written: str | None = None


@dataclass(frozen=True)
class Ranked:
    """The tried candidates, the best first; the plan with the best one; the plans within the memory limit.

    `smallest`: if nothing is within the limit, the candidate that needs the least memory as compiled, and its bytes.
    `simplest`: the layouts that were open, all replicated, as compiled; None where the plan is what the model said.
    """

    planning: Planning
    tried: tuple[Tried, ...]
    rounds: tuple[Round, ...]
    smallest: tuple[Tried, int] | None
    simplest: Compiled | None = None

    @property
    def caveat(self) -> str | None:
        """A sentence if the best candidate, as compiled, is not what the model says; else None."""
        own = [attempt for attempt in self.tried if attempt.by_hand is None]
        if not own:
            return None
        best, request, refused = own[0], self.planning.request, [each for each in own if _is_refused(each)]
        if refused and not _is_refused(best):
            return refuses(min(each.folder for each in refused), best.folder)
        mine, simplest = best.programs[0], self.simplest
        compiled, planned = measure(mine, request.least), _planned(best.candidate, request)
        if mine.status != "passed" or compiled is None:
            return None
        passed = simplest is not None and simplest.status == "passed"
        if simplest is None or not passed or _rank(mine, request) < _rank(simplest, request):
            return exceeds_model(request.least, compiled, planned) if compiled > _FAR * planned else None
        replicated, more = measure(simplest, request.least), (simplest.flops or 0.0) / max(mine.flops or 0.0, 1.0)
        if more <= _MORE:
            return gains_nothing(request.least, compiled, replicated)
        # Simpler layouts with which a device computes more are no competitors.
        return exceeds_model(request.least, compiled, planned, replicated, more) if compiled > _FAR * planned else None


_FAR = 1.25
"""How many times what the model says the best compiled program costs, if the plan is shown with a sentence on it."""

_MORE = 1.01
"""How many times what the model says a compiled program may cost and still be the plan."""


def affordable(planning: Planning) -> tuple[Planning, str | None]:
    """Return the plan with the candidates that are compiled, and whether they are run; why not, in words.

    If the oracle of a candidate takes longer than the `timeout`, or than planning, only the best one is compiled, and
    it is not run, unless `plan.verify` says otherwise. A target that is not here is compiled without an oracle.
    """
    request, experiment = planning.request, planning.graph
    if not request.candidates or experiment.target.topology is not None or request.verify:
        return planning, None
    why = note = ""
    if request.verify is None:
        seconds = effort.effort(experiment, {"graph": planning.values}).seconds
        if seconds <= min(experiment.timeout, _VERIFYING):
            return planning, None
        why = f"verifying one here takes about {long_text(seconds)}; "
        note = f"the best candidate is compiled and not run: {why}plan.verify=true verifies candidates"
        request = replace(request, candidates=1)
    if _compiled_only(experiment) is None:
        note = (
            f"no candidate is compiled: {why}choose smaller dims, or a target that is not here (target=v5e_4x4), for "
            "which candidates are compiled and not run"
        )
        request = replace(request, candidates=0)
    return replace(planning, request=replace(request, verify=False)), note or None


def _compiled_only(experiment: Experiment) -> dict[str, Any] | None:
    """Return the target for which programs are compiled for the devices here, and not run; None if there is none."""
    target, devices = experiment.target, experiment.mesh.size
    if target.platform == "gpu" and not target.cluster:
        return {"platform": "gpu", "topology": f"1x1x{devices}"}
    if target.platform == "cpu" and not target.cluster and devices <= topology.MOST_CPUS:
        return {"platform": "cpu", "topology": f"cpu:{devices}"}
    return None


_VERIFYING = 5.0
"""The seconds that the oracle may take for a candidate: each is verified, and a plan takes no longer."""


def ranked(planning: Planning, folder: Path, sources: Sources, workers: Workers) -> Ranked:
    """Compile, verify and rank the best candidates and the competitors by the compiled programs.

    With a memory limit, plan again with a limit in the model that is moved by what the compiler needs, as in
    `next_limit`.
    """
    request = planning.request
    rivals = list(competitors(planning, folder, sources, workers)) if request.candidates else []
    plannings, tried, rounds = [planning], list[Tried](), list[Round]()
    for number, (file, candidate) in enumerate(rivals, start=1):
        own = folder / f"competitor_{number}"
        each = _tried(planning, candidate, own, sources, workers)
        tried.append(replace(each, by_hand=file))
    while request.candidates:
        mine, again = list[Tried](), True
        for candidate in _candidates(planning):
            known = [attempt for attempt in tried if attempt.by_hand is None]
            attempt = next((each for each in known if _same_programs(planning, each.candidate, candidate)), None)
            if attempt is None:
                own = folder / f"candidate_{len(known) + 1}"
                attempt, again = _tried(planning, candidate, own, sources, workers), False
                tried.append(attempt)
            mine.append(attempt)
        if request.memory is None:
            break
        rounds.append(_round(planning, mine, again=again and bool(mine)))
        if mine and not any(_is_of_limit(program) for attempt in mine for program in attempt.programs):
            break
        limit = next_limit(rounds, request.memory, planning.plan.unlimited)
        if limit is None:
            break
        planning = _again(planning, limit)
        plannings.append(planning)
    simplest, attempt = None, functools.partial(_tried, sources=sources, workers=workers)
    if tried and all(map(_is_refused, tried)):
        tried += _further(planning, tried, folder, attempt)
    if (best := _best(tried, request)) is not None and not _reached(best, request):
        tried += _written_otherwise(planning, best, tried, folder, attempt)
        best = _best(tried, request) or best
        if not _reached(best, request):
            simplest = _simplest(planning, folder / "simplest", attempt).programs[0]
    tried.sort(key=lambda attempt: _rank(attempt.programs[0], request, _flops(tried, request)))
    first = next((attempt.candidate for attempt in tried if attempt.by_hand is None), None)
    # The last plan may not be the best one as compiled.
    planning = next((each for each in plannings if first and _same_programs(each, each.plan.best, first)), plannings[0])
    return Ranked(planning, tuple(tried), tuple(rounds), _smallest(tried, request), simplest)


# One plan, written in several ways: the compiler lays out what a program leaves open.


def _best(tried: Sequence[Tried], request: PlanRequest) -> Tried | None:
    """Return the best compiled candidate that is not written by hand, if one passed, or needs too much memory."""
    own = [attempt for attempt in tried if attempt.by_hand is None and _is_of_limit(attempt.programs[0])]
    return min(own, key=lambda attempt: _rank(attempt.programs[0], request, _flops(own, request)), default=None)


def _reached(attempt: Tried, request: PlanRequest) -> bool:
    """Return whether a candidate is within the limit and costs, as compiled, what the model says, or is unknown."""
    compiled, candidate = attempt.programs[0], attempt.candidate
    if compiled.status != "passed" or exceeds(compiled, request):
        return False
    cost = measure(compiled, request.least)
    return cost is None or cost <= _MORE * _planned(candidate, request)


def _planned(candidate: Candidate, request: PlanRequest) -> float:
    """Return the quantity to minimise, by the model."""
    return {"bytes": candidate.sent, "time": candidate.cost, "memory": candidate.needed}[request.least]


def _is_refused(attempt: Tried) -> bool:
    """Return whether JAX's types refuse the programs of a candidate."""
    return all(compiled.status == "invalid" for compiled in attempt.programs)


def _further(
    planning: Planning, tried: Sequence[Tried], folder: Path, attempt: Callable[..., Tried]
) -> Iterator[Tried]:
    """Yield the next best candidates, last that with all that was open replicated, until JAX accepts one."""
    known, number = [each.candidate for each in tried], len(tried)
    others = [
        each
        for each in planning.plan.others
        if not any(_same_programs(planning, each, tried_before) for tried_before in known)
    ]
    for candidate in others[:_FURTHER]:
        number += 1
        own = attempt(planning, candidate, folder / f"candidate_{number}")
        yield own
        if not _is_refused(own):
            return
    own = _simplest(planning, folder / f"candidate_{number + 1}", attempt)
    yield replace(own, written="with all that is auto replicated")


_FURTHER = 3
"""How many of the next best candidates are tried if JAX refuses those that were to be compiled."""


def _written_otherwise(
    planning: Planning, best: Tried, tried: Sequence[Tried], folder: Path, attempt: Callable[..., Tried]
) -> Iterator[Tried]:
    """Yield the best candidate written in other ways, until one costs what the model says.

    They are the arrays' layouts alone, and the derived lines of one device; of functions on Explicit axes there are
    none.
    """
    if planning.typed:
        return
    candidate, number = best.candidate, sum(each.by_hand is None for each in tried)
    known = {compiled.program for compiled in best.programs}
    ways = {
        Program.AUTO: "as auto, without the layouts of lines",
        Program.DERIVED: "as derived, by the lines of one device",
    }
    for program, words in ways.items():
        if program.value in known:
            continue
        number += 1
        own = attempt(planning, candidate, folder / f"candidate_{number}", programs=(program.value,))
        own = replace(own, written=words)
        yield own
        if _reached(own, planning.request):
            return


def _simplest(planning: Planning, own: Path, attempt: Callable[..., Tried]) -> Tried:
    """Return the simplest layouts as compiled: what was open is replicated, lines are left to what compiles them."""
    layouts = {key: Spec([()] * len(spec)) for key, spec in planning.plan.best.layouts.items()}
    whole = planning.graph.at(layouts={key: spec.json() for key, spec in layouts.items()})
    costs = plan(whole, planning.types, Wanted(planning.request.least, (), None, planning.request.seconds)).best
    bare = replace(costs, layouts=layouts, constraints={}, saved=planning.plan.best.saved)
    program = Program.EXPLICIT if planning.typed else Program.AUTO
    return attempt(planning, bare, own, programs=(program.value,))


def _candidates(planning: Planning) -> list[Candidate]:
    """Return the candidates of a plan to compile, the best first, as many as the request says.

    A plan without a limit has none if arrays and outputs alone exceed the one of the request.
    """
    plan_, request = planning.plan, planning.request
    if request.memory is not None and plan_.memory is None and plan_.best.held > request.memory:
        return []
    plans = [plan_.best, *(plan_.front or plan_.others)]
    # The first plan of a front is the best one.
    plans = [
        each for n, each in enumerate(plans) if not any(_same_programs(planning, each, other) for other in plans[:n])
    ]
    return plans[: request.candidates]


def _same_programs(planning: Planning, a: Candidate, b: Candidate) -> bool:
    """Return whether the programs of two candidates are the same: `auto` has no layouts of lines."""
    lines = any(program is not Program.AUTO for program in _programs(planning))
    same = dict(a.layouts) == dict(b.layouts) and a.saved == b.saved
    return same and (not lines or dict(a.constraints) == dict(b.constraints))


def _programs(planning: Planning) -> Sequence[Program]:
    experiment = planning.experiment
    return experiment.programs if experiment.chosen else _PROGRAMS


def _is_of_limit(compiled: Compiled) -> bool:
    """Return whether a program passed, or failed for want of memory alone: else no other limit mends it."""
    return compiled.status == "passed" or "RESOURCE_EXHAUSTED" in (compiled.error or "")


def _round(planning: Planning, tried: Sequence[Tried], *, again: bool) -> Round:
    """Return what the best candidate of a plan needs in the model and as compiled."""
    plan_, request = planning.plan, planning.request
    best = min(tried, key=lambda attempt: _rank(attempt.programs[0], request, _flops(tried, request)), default=None)
    candidate = plan_.best if best is None else best.candidate
    return Round(
        limit=plan_.memory,
        planned=candidate.needed,
        held=candidate.held,
        cost=candidate.cost,
        needed=None if best is None or best.programs[0].status != "passed" else best.programs[0].memory_bytes,
        candidate=None if best is None else best.folder,
        again=again,
        exceeds=plan_.exceeds,
    )


def _again(planning: Planning, limit: float) -> Planning:
    """Return the plan within another limit, or that which needs the least."""
    if math.isinf(limit):
        return planning.again(None)
    try:
        return planning.again(limit)
    except NoPlan as error:
        if error.least is None:
            raise
        return planning.again(error.least)


def _smallest(tried: Sequence[Tried], request: PlanRequest) -> tuple[Tried, int] | None:
    passed = [(attempt, each) for attempt in tried for each in attempt.programs if each.status == "passed"]
    if request.memory is None or any(not exceeds(program, request) for _, program in passed):
        return None
    sizes = [(attempt, each.memory_bytes) for attempt, each in passed if each.memory_bytes is not None]
    return min(sizes, key=lambda pair: pair[1], default=None)


def _tried(
    planning: Planning,
    candidate: Candidate,
    own: Path,
    sources: Sources,
    workers: Workers,
    programs: Sequence[str] = (),
) -> Tried:
    programs = list(programs) or [program.value for program in _programs(planning)]
    own.mkdir()
    definition = {**filled(planning, candidate), "program": programs}
    if planning.request.verify is False and planning.graph.target.topology is None:
        definition["target"] = _compiled_only(planning.graph)
    record = run(definition, own, sources, workers)
    return Tried(candidate=candidate, folder=own.name, programs=_came_to(record, planning.request))


def _came_to(record: Record, request: PlanRequest) -> tuple[Compiled, ...]:
    if not record.programs:
        return (Compiled(program="", status=record.status, error=record.error),)
    programs = [as_compiled(name, program) for name, program in record.programs.items()]
    most = most_flops(programs, request.least)
    return tuple(sorted(programs, key=lambda compiled: _rank(compiled, request, most)))


def as_compiled(name: str, program: ProgramRecord) -> Compiled:
    """Return what a plan's program sends, takes and needs as compiled; None for what is not known."""
    compiled = Compiled(program=str(name), status=program.status, error=program.error)
    if not isinstance(program, CompiledProgram):
        return compiled
    # A module whose collectives cannot be read has an estimate of its computation alone.
    estimate = None if program.bytes_sent is None else program.estimate
    return replace(
        compiled,
        bytes_sent=program.bytes_sent,
        seconds=estimate.seconds if estimate else None,
        memory_bytes=program.memory.needed_bytes if program.memory else None,
        flops=program.cost.flops if program.cost else None,
    )


def _rank(compiled: Compiled, request: PlanRequest, most: float = math.inf) -> tuple[bool, bool, bool, float]:
    """Return a sort key: passed first, then within the memory limit, then by the quantity to minimise.

    Those that exceed the limit are sorted by the memory that they need. A program with which a device computes more
    than `most` flops comes after those that divide the work.
    """
    over = exceeds(compiled, request)
    value = measure(compiled, "memory" if over else request.least)
    undivided = (compiled.flops or 0.0) > most
    return compiled.status != "passed", over, undivided, float("inf") if value is None else float(value)


def most_flops(programs: Iterable[Compiled], least: Least) -> float:
    """Return how many flops a device may compute in a program that is the best: about as few as in any.

    A time has the computation in it, so any number may be.
    """
    flops = [each.flops for each in programs if each.status == "passed" and each.flops]
    return math.inf if least == "time" else _UNDIVIDED * min(flops, default=math.inf)


_UNDIVIDED = 1.25
"""How many times the fewest flops of a device are taken for the same division of the work."""


def _flops(tried: Iterable[Tried], request: PlanRequest) -> float:
    return most_flops((program for attempt in tried for program in attempt.programs), request.least)


def measure(compiled: Compiled, least: Least) -> float | None:
    """Return the quantity to minimise, as compiled."""
    return {"bytes": compiled.bytes_sent, "time": compiled.seconds, "memory": compiled.memory_bytes}[least]


def exceeds(compiled: Compiled, request: PlanRequest) -> bool:
    """Return whether a device needs more memory, according to the compiler, than the limit."""
    return request.memory is not None and compiled.memory_bytes is not None and compiled.memory_bytes > request.memory


# Layouts by hand.


def competitors(
    planning: Planning, folder: Path, sources: Sources, workers: Workers
) -> Iterator[tuple[str, Candidate]]:
    """Yield the files that `plan.competitors` names, each with its layouts and their cost in the plan's model.

    Raises `InvalidExperiment` for a file that is not an experiment, or that lacks a layout.
    """
    home = sources.folder(("plan", "competitors")) if planning.request.competitors else folder
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
        written: Any = yaml.safe_load(plain.read_text(path))
    except OSError as error:
        raise invalid(key, f"{file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise invalid(key, f"{file} is not YAML: {error}") from None
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
