"""Explains the text of a compiled module. Neither an experiment nor JAX is needed.

The lines that ask for a collective, which the program itself then has, are found by the names that JAX gave it.
"""

from __future__ import annotations

import contextlib
import gc
import re
import traceback
from collections.abc import Generator, Iterable, Mapping
from dataclasses import field, replace

from runner.base.faults import BadInput
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.compiled.evidence import collectives, hlo, work
from runner.compiled.evidence.collectives import Collectives
from runner.compiled.evidence.hlo import Instruction, Module
from runner.compiled.evidence.model import Collective, MergedPart, Reason
from runner.compiled.evidence.nodes import asked, served, stacks
from runner.compiled.evidence.source_lines import IsUsers, is_users
from runner.compiled.explanation import arguments, living, meshes, places
from runner.compiled.explanation.model import (
    Argument,
    Buffer,
    ComputedLine,
    ExplainedMesh,
    Explanation,
    MemoryUse,
    PlacedCollective,
)
from runner.compiled.explanation.places import Places
from runner.graph.language.operations import COMMUNICATING
from runner.link.events import Memory


def reason(entry: Collective, op_name: str) -> Reason:
    """The reason of a collective that the program, or JAX's differentiation, asks for.

    - `op_name`: the name stack of its instruction; of one that XLA merged the stacks of all its parts.
    """
    every = stacks(op_name)
    parts = [*zip(entry.parts, every, strict=True)] if len(entry.parts) == len(every) else []
    asked_parts = [part for part, stack in parts if asked(stack)]
    asked_parts = asked_parts or [MergedPart(nodes=entry.nodes, gradient=entry.gradient, bytes=entry.bytes)]
    forward, backward = (
        _nodes(part for part in asked_parts if part.gradient == gradient) for gradient in (False, True)
    )
    backward = [node for node in backward if node not in forward]
    who = listed(forward) or ("" if backward else "the program")
    derived = f"JAX's differentiation of {listed(backward)}" if backward else ""
    ask = "ask" if len(forward) + bool(backward) > 1 else "asks"
    names = (stack.rpartition("/")[2].removesuffix("_start") for stack in every if asked(stack))
    calls = dict.fromkeys(COMMUNICATING.get(name, name) for name in names)
    what = f": {', '.join(calls)}" if calls else ""
    text = f"{' and '.join(filter(None, [who, derived]))} {ask} for it{what}"
    besides = _nodes(
        part for part, stack in parts if not asked(stack) and set(part.nodes).isdisjoint(_nodes(asked_parts))
    )
    if besides:
        text += f"; XLA merged it with the sums that it inserts for {listed(besides)}"
    by = "differentiation" if backward and not forward else "program"
    return Reason(text=text, by=by, line=next(iter(_nodes(asked_parts)), None))


def _nodes(parts: Iterable[MergedPart]) -> list[str]:
    return list(dict.fromkeys(node for part in parts for node in part.nodes))


HEAD = re.compile(r"^HloModule .*", re.MULTILINE)

LARGEST = 20
"""The most buffers that an explanation lists."""


DEVICES = 1 << 20
"""The most devices that a module may run on."""


class UnreadableModule(BadInput, ValueError):
    """A text is no module that can be read; the message says why."""


@dataclass(frozen=True)
class Known:
    """What a caller knows of a module besides its text.

    - `mesh`: its axes and their sizes; `memory`: the compiler's figures.
    - `platform`, `device`: what it is compiled for; `versions`: of JAX and its libraries.
    - `users`: which files are the user's.
    """

    mesh: Mapping[str, int] | None = None
    memory: Memory | None = None
    platform: str | None = None
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    users: IsUsers = is_users


NOTHING = Known()


@dataclass(frozen=True)
class ReadModule:
    """A module that was read, with what later readers of it need: names of lines, collectives, work, its text."""

    explanation: Explanation
    module: Module
    places: Places
    communication: Collectives
    work: work.ModuleWork | None
    text: str


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Pause the collection of garbage, which takes a third of the time with so many objects, none of them garbage.

    As a decorator it covers the end of a function too: what it has read is gone when the collection goes on.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@uncollected()
def explain(text: str, source: str, known: Known = NOTHING) -> Explanation:
    """The explanation of a module's text, which came from `source`. Raises as `read` does."""
    return read(text, source, known).explanation


def read(text: str, source: str, known: Known = NOTHING) -> ReadModule:
    """Read a module. Raises `UnreadableModule` if the text is none, and `meshes.InvalidMesh`."""
    try:
        return _read(text, source, known)
    except (UnreadableModule, meshes.InvalidMesh):
        raise
    except (ArithmeticError, LookupError, ValueError, RecursionError) as error:
        # A text that no compiler wrote may contradict itself in any place.
        place = _place(error, text) or f": {type(error).__name__}: {error}"
        raise UnreadableModule(
            f"{source}: the module contradicts itself{place}; if a compiler wrote it as it stands here, please report "
            "it"
        ) from error


def _place(error: Exception, text: str) -> str | None:
    """Where a module contradicts itself: the instruction that was read when the error was raised, and its line.

    The reader's own variables have it; None if it was reading none.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = (value for frame in reversed(frames) for value in reversed(frame.f_locals.values()))
    instruction = next((value for value in values if isinstance(value, Instruction)), None)
    if instruction is None:
        return None
    line = re.search(rf"^\s*(?:ROOT )?%?{re.escape(instruction.name)} = ", text, re.MULTILINE)
    # The match may begin with empty lines.
    number = "" if line is None else f"line {text.count(chr(10), 0, line.end()) + 1}, "
    return f" at {number}{instruction.name}, {instruction.opcode}"


def _read(text: str, source: str, known: Known) -> ReadModule:
    module = _module(text, source)
    if module.partitions * module.replicas == 1:
        # A serialized module has lost the number.
        module.partitions = meshes.devices_of(text)
    devices = module.partitions * module.replicas
    mesh = meshes.mesh_of(text, devices, known.mesh)
    grid = meshes.layout_mesh(mesh, devices)
    lines = places.of_module(module, known.users)
    communication = collectives.read(module, lines, grid)
    computed = work.read(module, lines)
    head = HEAD.search(text)
    taken = arguments.read(module, "" if head is None else head[0], grid)
    placed = _placed(module, lines, communication)
    moment = living.Living(module).peak() if module.scheduled else None
    explanation = Explanation(
        source=source,
        module=module.name,
        # The backends schedule a module last: what has a schedule is what devices run.
        stage="compiled" if module.scheduled else "lowered",
        platform=known.platform or ("tpu" if module.tiled else None),
        device=known.device,
        partitions=devices,
        instructions=sum(len(computation.instructions) for computation in module.computations.values()),
        versions=known.versions,
        mesh=mesh,
        placed=placed if module.entry is not None else None,
        unknown=list(dict.fromkeys([*communication.unknown, *(computed.unknown if computed else ())])),
        missing=list(dict.fromkeys(communication.missing)),
        memory=_memory(module, known.memory, taken, moment),
        buffers=_buffers(module, lines, taken, moment),
        arguments=taken,
        computed=None if computed is None else _computed(computed),
        notes=_notes(module, mesh),
        lines=lines.lines,
        sources=places.sources(lines.lines.values()),
    )
    return ReadModule(explanation, module, lines, communication, computed, text)


def _module(text: str, source: str) -> Module:
    if HEAD.search(text) is None:
        raise UnreadableModule(f"{source}: this is no text of an HLO module: no line of it begins with 'HloModule'")
    module = hlo.read(text)
    cycle, behind = hlo.calls_itself(module), hlo.disordered(module)
    if cycle is not None:
        raise UnreadableModule(f"{source}: the computation {cycle} calls itself, which no module of XLA's does")
    if behind is not None:
        raise UnreadableModule(f"{source}: {behind}, which no module of XLA's has")
    if not 0 < module.partitions * module.replicas <= DEVICES:
        raise UnreadableModule(f"{source}: the module runs on {module.partitions * module.replicas} devices")
    if module.entry is None:
        why = module.unread[0] if module.unread else "no computation is marked ENTRY"
        raise UnreadableModule(f"{source}: the module has no entry computation that could be read: {why[:200]}")
    return module


def _placed(module: Module, lines: Places, communication: Collectives) -> list[PlacedCollective]:
    placed: list[PlacedCollective] = []
    for entry in communication.entries:
        metadata = module.instructions[entry.instruction].metadata
        why = None if entry.inserted else reason(entry, metadata.op_name)
        callers = lines.callers(metadata, entry.node)
        placed.append(PlacedCollective(**vars(replace(entry, why=why)), callers=callers))
    return placed


def _computed(computed: work.ModuleWork) -> list[ComputedLine]:
    worked = [line for line in computed.lines if line.flops or line.bytes]
    flops = [float(sum(line.flops.values())) for line in worked]
    return [
        ComputedLine(nodes=list(line.nodes), gradient=line.gradient, flops=number, bytes=line.bytes)
        for line, number in zip(worked, flops, strict=True)
    ]


def _memory(module: Module, reported: Memory | None, taken: list[Argument], moment: living.Moment | None) -> MemoryUse:
    if reported is not None:
        return MemoryUse(
            arguments=reported.argument_bytes,
            outputs=reported.output_bytes,
            temporaries=reported.temp_bytes,
            aliased=reported.alias_bytes,
            peak=reported.needed_bytes,
            by="compiler",
        )
    size = sum(argument.bytes for argument in taken)
    aliased = sum(argument.bytes for argument in taken if argument.output is not None)
    returned = sum(shape.bytes for shape in arguments.results(module))
    temporaries = None if moment is None else moment.bytes
    peak = None if temporaries is None else size + returned - aliased + temporaries
    return MemoryUse(
        arguments=size, outputs=returned, temporaries=temporaries, aliased=aliased, peak=peak, by="schedule"
    )


def _buffers(module: Module, lines: Places, taken: list[Argument], moment: living.Moment | None) -> list[Buffer]:
    """The largest arrays at the moment when the most is alive, and of the arguments and results."""
    buffers = [
        Buffer(what="argument", name=a.name, node=None, dtype=a.dtype, shape=a.shape, bytes=a.bytes) for a in taken
    ]
    aliased = {argument.output for argument in taken}
    buffers += [
        Buffer(what="output", name=f"result {{{at}}}", node=None, dtype=s.dtype, shape=s.dims, bytes=s.bytes)
        for at, s in enumerate(arguments.results(module))
        if str(at) not in aliased
    ]
    for _, instruction, size in moment.holding if moment else ():
        buffers.append(_temporary(module, lines, instruction, size))
    return sorted(buffers, key=lambda buffer: -buffer.bytes)[:LARGEST]


def _temporary(module: Module, lines: Places, instruction: Instruction, size: int) -> Buffer:
    origins = lines.of(instruction.metadata)
    if not origins and instruction.opcode == "fusion":
        origins = tuple(o for inner in module.inside(instruction) if inner.root for o in lines.of(inner.metadata))
    largest = max(instruction.shapes, key=lambda shape: shape.bytes, default=hlo.Shape("token", (), 0))
    nodes, gradient = served(origins)
    return Buffer(
        what="temporary",
        name=instruction.name,
        node=next(iter(nodes), None),
        dtype=largest.dtype,
        shape=largest.dims,
        bytes=size,
        gradient=gradient,
    )


def _notes(module: Module, mesh: ExplainedMesh | None) -> list[str]:
    notes: list[str] = []
    if not module.scheduled:
        notes.append(
            "the module has no schedule: it is not what devices run, and the compiler may insert, merge and move "
            "collectives after it"
        )
    if mesh is not None and mesh.source == "groups":
        sizes = ",".join(f"NAME={size}" for size in mesh.shape)
        notes.append(f"the module does not name its mesh axes; name them, the slowest first: --mesh {sizes}")
    return notes
