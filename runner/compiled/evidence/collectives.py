"""Reads the communication of a compiled module: kinds, lines, axes, bytes, counts, overlap.

Each fact that cannot be read, attributed or counted becomes a sentence in `Collectives.unknown`; nothing is dropped.
Unknown facts of a collective are null in its entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.compiled.evidence import flow, groups, megascale, opcodes
from runner.compiled.evidence.counts import Counts
from runner.compiled.evidence.flow import MOVES, Flow
from runner.compiled.evidence.hlo import SILENT, STARTED, Computation, Instruction, Metadata, Module, size_of
from runner.compiled.evidence.model import Between, Collective
from runner.compiled.evidence.nodes import Attribution, OperationOrigin, again, asked, backward, served, stacks
from runner.compiled.evidence.opcodes import (
    DONE,
    HEAVY,
    IDLE,
    REDUCTIONS,
    START,
    done_with,
    doubts,
    keeps_a_part,
    kind_of,
    target_of,
)
from runner.compiled.evidence.source_lines import frame
from runner.graph.sharding import ring

_CALLING = ("call", "call-start")
"""Opcodes that run what they apply once, not for each element."""

_LISTED = 64
"""The largest number of devices for which groups are listed although the axes determine them."""


@dataclass
class Collectives:
    """The record's `collectives`, and sentences about facts that could not be read.

    `missing` are those of the sentences after which a collective may have no entry. `carriers` are the instructions
    during which a collective is in progress, each with the `instruction` of its entry.
    """

    entries: list[Collective] = field(default_factory=list[Collective])
    unknown: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    carriers: dict[str, str] = field(default_factory=dict[str, str])


def read(module: Module, origins: Attribution, mesh: Mesh, device_ids: Sequence[int] = ()) -> Collectives:
    """Return the collectives of a module; the entries are those of `docs/record.md`.

    `device_ids` are the ids of the devices in the mesh, by which a module with several slices names them.
    """
    return _CollectiveReader(module, origins, mesh, device_ids).read()


@dataclass(frozen=True)
class _Scheduled:
    """A collective: its instruction and computation, and where it starts and is done on the schedule."""

    kind: str
    computation: Computation
    instruction: Instruction
    start: tuple[Computation, Instruction]
    chain: tuple[Instruction, ...] = ()
    """The instructions after the start that carry it on; the last one completes it."""
    asynchronous: bool = False


class _CollectiveReader:
    def __init__(self, module: Module, origins: Attribution, mesh: Mesh, device_ids: Sequence[int]) -> None:
        self._module = module
        self._device_ids = device_ids
        self._origins = origins
        self._mesh = mesh
        self._flow = Flow(module, origins)
        self._result = Collectives()
        self._counts = Counts(module)
        # Most collectives of a module have the groups of another one.
        self._groups: dict[str, groups.Groups | None] = {}
        self._along: dict[str, tuple[str, ...] | None] = {}
        """The axes that groups follow, by their text."""

        self._continued: set[str] = set()
        """The computations in which a collective that started elsewhere continues."""

    def read(self) -> Collectives:
        module, result = self._module, self._result
        if module.entry is None:
            self._may_lack("the module has no entry computation that could be read")
            return result
        if module.unread:
            lines = "1 line" if len(module.unread) == 1 else f"{len(module.unread)} lines"
            self._may_lack(f"{lines} of the module could not be read, the first: {module.unread[0][:200]}")
        if module.replicas > 1:
            result.unknown.append(f"the module has {module.replicas} replicas; groups are read as if it had one")
        for computation in module.computations.values():
            self._find_chains(computation)
        visited: set[str] = set()
        for place in self._walk(module.entry, visited):
            result.entries.append(self._entry(place))
            carriers = (place.instruction, place.start[1], *place.chain)
            result.carriers |= {carrier.name: place.instruction.name for carrier in carriers}
        for computation in module.computations.values():
            if computation.name not in visited:
                for instruction in computation.instructions.values():
                    if kind_of(instruction) and computation.name not in self._continued:
                        self._may_lack(f"{instruction.name} is in {computation.name}, which nothing calls")
        return result

    def _may_lack(self, sentence: str) -> None:
        """Record that a collective may be missing."""
        self._result.unknown.append(sentence)
        self._result.missing.append(sentence)

    def _find_chains(self, computation: Computation) -> None:
        for instruction in computation.instructions.values():
            if instruction.opcode == "fusion" and self._contains(instruction, START):
                for later in self._carried_on(computation, instruction):
                    self._continued.update(name for _, name in later.called)

    def _contains(self, instruction: Instruction, target: str) -> bool:
        """Whether it is a fusion whose computation has a custom call to `target`."""
        inside = self._module.inside(instruction) if instruction.opcode == "fusion" else ()
        return any(target_of(inner) == target for inner in inside)

    def _carried_on(self, computation: Computation, start: Instruction) -> tuple[Instruction, ...]:
        """The fusions through which an async collective fusion continues, up to the one that completes it."""
        chain: dict[str, Instruction] = {}
        front = [start]
        while front:
            for user in computation.users.get(front.pop().name, ()):
                if user.opcode == "get-tuple-element":
                    front.append(user)
                elif user.opcode == "fusion" and user.name not in chain and self._communicates_inside(user):
                    chain[user.name] = user
                    if not self._contains(user, DONE):
                        front.append(user)
        return tuple(sorted(chain.values(), key=lambda instruction: instruction.position))

    def _communicates_inside(self, fusion: Instruction) -> bool:
        return any(kind_of(inner) for inner in self._module.inside(fusion))

    def _walk(self, computation: Computation, visited: set[str]) -> Iterator[_Scheduled]:
        """Every collective that runs, once, in the order of the schedule."""
        if computation.name in visited:
            return
        visited.add(computation.name)
        for instruction in computation.instructions.values():
            if instruction.opcode in SILENT:
                continue
            kind = kind_of(instruction)
            between_slices = megascale.kind(instruction)
            if between_slices is not None:
                if instruction.opcode == "send":
                    yield self._between_slices(between_slices, computation, instruction)
                continue
            if kind is not None:
                yield self._place(kind, computation, instruction)
                continue
            doubt = doubts(computation, instruction)
            if doubt is not None:
                self._may_lack(doubt)
            for role, name in instruction.called:
                inner = self._module.computations.get(name)
                if inner is None:
                    self._may_lack(f"{instruction.name} calls {name}, which the module does not have")
                elif name in self._continued:
                    visited.add(name)
                elif role not in ("to_apply", "comparator", "select", "scatter") or instruction.opcode in _CALLING:
                    yield from self._walk(inner, visited)

    def _place(self, kind: str, computation: Computation, instruction: Instruction) -> _Scheduled:
        if instruction.opcode.endswith("-start"):
            done = done_with(computation, instruction)
            if not done:
                self._result.unknown.append(f"{instruction.name} has no matching done instruction")
            return _Scheduled(kind, computation, instruction, (computation, instruction), done, True)
        caller = self._caller(computation)
        if caller is not None:
            outer, by = caller
            if by.opcode in STARTED:
                return self._started(kind, computation, instruction, outer, by)
            if self._contains(by, START):
                return _Scheduled(kind, computation, instruction, caller, self._carried_on(outer, by), True)
            if kind == "all-reduce" and keeps_a_part(computation, instruction):
                return _Scheduled("reduce-scatter", computation, instruction, caller)
        if kind in ("send", "recv"):
            done = done_with(computation, instruction)
            return _Scheduled(kind, computation, instruction, (computation, instruction), done, True)
        return _Scheduled(kind, computation, instruction, (computation, instruction))

    def _started(
        self, kind: str, computation: Computation, instruction: Instruction, outer: Computation, by: Instruction
    ) -> _Scheduled:
        """A collective in a computation that `by` starts, perhaps in one that another instruction started."""
        while (around := self._caller(outer)) is not None and around[1].opcode in STARTED:
            outer, by = around
        return _Scheduled(kind, computation, instruction, (outer, by), done_with(outer, by), True)

    def _between_slices(self, kind: str, computation: Computation, send: Instruction) -> _Scheduled:
        receiver = megascale.received(computation, send)
        if receiver is None:
            self._result.unknown.append(f"nothing receives what {send.name} sends to other slices")
        chain = () if receiver is None else (receiver, *done_with(computation, receiver))
        return _Scheduled(kind, computation, send, (computation, send), chain, True)

    def _caller(self, computation: Computation) -> tuple[Computation, Instruction] | None:
        callers = self._module.callers.get(computation.name, [])
        return callers[0][:2] if len(callers) == 1 else None

    def _entry(self, place: _Scheduled) -> Collective:
        instruction, computation = place.instruction, place.computation
        names = self._names(place)
        origins = list(dict.fromkeys(origin for name in names for origin in self._origins.of(name)))
        # Where the user's Python states a layout there is no line of the experiment.
        at = None if origins else next(filter(None, map(self._origins.stated, names)), None)
        if at is None:
            origins += [origin for origin in self._merged(place) if origin not in origins]
        axes, listed, devices = self._axes(place)
        # An instruction that prepares the operand of a collective may have the collective's name.
        every = [stack for name in names for stack in stacks(name.op_name)]
        inserted = self._origins.leave(axes or ()) or not any(map(asked, every))
        if megascale.kind(instruction):
            inserted = megascale.generated(instruction)
        between = None
        if inserted:
            taken = self._flow.producers(computation, instruction.operands)
            needed = self._flow.consumers(*self._result_of(place))
            between = Between(source=served(taken)[0], to=served(needed)[0])
            if at is not None:
                origins = taken or needed
            elif all(not origin.primitive for origin in origins) or _into_loop(origins, taken, needed):
                # It has only the name of the value that it moves; the operation that needs the value is the cause.
                origins = needed or origins or taken
        else:
            origins += [origin for origin in self._differentiated(place) if origin not in origins]
            # A transfer between slices has lost its name.
            origins = origins or self._flow.producers(computation, instruction.operands)
        if not origins:
            self._result.unknown.append(f"{instruction.name} {self._origins.unplaced}")
        nodes, gradient = served(origins)
        bytes_in, bytes_out, dtype = self._bytes(place)
        runs = self._counts.of(place.start[0].name)
        if runs.count is None:
            self._result.unknown.append(f"how often {instruction.name} runs is not known")
        forward = {origin.node for origin in origins if not origin.gradient}
        return Collective(
            kind=place.kind,
            node=nodes[0] if nodes else None,
            nodes=nodes,
            gradient=gradient,
            inserted=inserted,
            between=between,
            axes=None if axes is None else list(axes),
            groups=listed,
            dtype=dtype,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            bytes=None if bytes_in is None or bytes_out is None else max(bytes_in, bytes_out),
            bytes_sent=None if devices is None else ring.sent(place.kind, devices, bytes_in, bytes_out),
            count=runs.count,
            branches=list(runs.branches),
            asynchronous=place.asynchronous,
            overlapped=self._overlapped(place),
            instruction=instruction.name,
            reduction=self._reduction(place),
            at=None if at is None else frame(at),
            alone=devices == 1,
            backward=[node for node in nodes if forward and node not in forward],
            again=bool(names) and all(map(again, every)),
            parts=flow.parts(self._flow, self._origins, computation, instruction),
        )

    def _reduction(self, place: _Scheduled) -> str | None:
        """How a reducing collective combines values, from the computation that it applies."""
        if megascale.kind(place.instruction):
            return megascale.reduction(place.instruction)
        applied = list(self._module.inside(place.instruction, "to_apply"))
        return next(
            (REDUCTIONS[inner.opcode] for inner in applied if inner.root and inner.opcode in REDUCTIONS),
            None,
        )

    def _result_of(self, place: _Scheduled) -> tuple[Computation, Instruction]:
        """Where its result is first complete."""
        started_in, start = place.start
        if start.opcode in STARTED:
            # The instruction that completes the start may hold the results of a group.
            return place.computation, place.instruction
        return (started_in, place.chain[-1]) if place.chain else place.start

    def _names(self, place: _Scheduled) -> list[Metadata]:
        """The name stacks of the collective, with those of the results that are taken out of a merged one.

        A name stack without a line is used only if it is that of a collective that the program asks for.
        """

        def telling(instructions: Iterable[Instruction]) -> list[Metadata]:
            return [instruction.metadata for instruction in instructions if self._origins.tells(instruction.metadata)]

        names = telling((place.instruction, place.start[1], *place.chain[-1:]))[:1] + telling(self._elements(place))
        # The reduction still has the name that the collective lost.
        return names or telling(self._module.inside(place.instruction, "to_apply"))[:1]

    def _elements(self, place: _Scheduled) -> list[Instruction]:
        """The instructions that take the results of a merged collective apart, in their order."""
        instruction = place.instruction
        if len(instruction.shapes) < 2 or instruction.opcode.endswith("-start"):
            return []
        users = place.computation.users.get(instruction.name, ())
        return sorted((user for user in users if user.opcode == "get-tuple-element"), key=Instruction.index)

    def _merged(self, place: _Scheduled) -> list[OperationOrigin]:
        """The lines of a merged collective of whose results the module names none, by what makes its operands."""
        elements = self._elements(place)
        if not elements or any(self._origins.tells(element.metadata) for element in elements):
            return []
        return self._flow.producers(place.computation, place.instruction.operands)

    def _differentiated(self, place: _Scheduled) -> list[OperationOrigin]:
        """The lines whose cotangents it sums, where `shard_map`'s transpose asks for the sum without a line."""
        operands = place.instruction.operands
        parts = [(user.op_name, operands[user.index() : user.index() + 1]) for user in self._elements(place)]
        origins: list[OperationOrigin] = []
        for name, taken in parts or [(name.op_name, operands) for name in self._names(place)]:
            lost = self._origins.lost(name)
            if lost:
                lines = self._flow.producers(place.computation, taken) or self._flow.consumers(*self._result_of(place))
                origins += [replace(line, gradient=all(map(backward, lost))) for line in lines]
        return list(dict.fromkeys(origins))

    def _bytes(self, place: _Scheduled) -> tuple[int | None, int | None, str]:
        """Bytes into and out of one device, None if unknown, and the dtype."""
        instruction, computation = place.instruction, place.computation
        # The other operands of a ragged collective are offsets and sizes.
        named = instruction.operands[: 1 if place.kind == ring.RAGGED else None]
        operands = [computation.instructions.get(name) for name in named]
        taken = (
            None
            if None in operands
            else [shape for operand in operands if operand is not None for shape in operand.shapes]
        )
        results = list(instruction.shapes)
        if place.kind == "reduce-scatter" and instruction.opcode == "all-reduce":
            # The fusion keeps a part of what it reduces.
            results = list(place.start[1].shapes)
        if instruction.opcode.endswith("-start") or instruction.opcode in ("send", "recv"):
            results = list(place.chain[-1].shapes) if place.chain else None
        moved = (taken or []) + (results or [])
        for dtype in dict.fromkeys(shape.dtype for shape in moved if not shape.bits and shape.dtype != "token"):
            self._result.unknown.append(f"the size of a {dtype} in {place.instruction.name} is not known")
        if taken is None:
            self._result.unknown.append(f"an operand of {place.instruction.name} is not in {computation.name}")
        dtypes = dict.fromkeys(shape.dtype for shape in (taken or results or ()) if shape.dtype != "token")
        return size_of(taken), size_of(results), ", ".join(dtypes)

    def _axes(self, place: _Scheduled) -> tuple[tuple[str, ...] | None, list[list[int]] | None, int | None]:
        """The mesh axes; the groups or pairs, if there are no axes or few devices; and the devices in a group."""
        instruction = place.instruction
        text, who = instruction.attribute("replica_groups"), None
        sent = instruction.attribute("source_target_pairs")
        if sent is None and place.kind in ("send", "recv"):
            match = re.search(r'source_target_pairs="?(\{\{.*?\}\})', instruction.attributes)
            sent = match.group(1) if match else None
        order = instruction.attribute("device_ids")
        if text is not None and order is not None:
            # The only spelling with a comma outside of brackets.
            text = f"{text}, device_ids={order}"
        if megascale.kind(instruction):
            text = megascale.target(instruction) or ""
            who = megascale.groups(text, self._device_ids)
            sent = text if place.kind == "collective-permute" else None
        elif sent is not None:
            who = self._everywhere(groups.pairs(sent))
        elif text is not None:
            who = self._grouped(text)
        if who is None:
            self._result.unknown.append(f"which devices {instruction.name} connects could not be read: {sent or text}")
            return None, None, None
        inside = who.size == 0 or int(who.max()) < self._mesh.size
        if sent is None and who.size != self._mesh.size:
            self._result.unknown.append(
                f"the groups of {instruction.name} hold {who.size} devices, the mesh has {self._mesh.size}: {text}"
            )
        if sent is not None:
            axes = groups.axes_between(who, self._mesh) if inside else None
        else:
            axes = self._axes_along(text or "", who) if inside else None
        listed = axes is None or self._mesh.size <= _LISTED
        # In a permutation that moves nothing, no device has a partner.
        devices = 1 + bool((who[:, 0] != who[:, 1]).any()) if sent is not None else int(who.shape[-1])
        if sent is None and who.size != self._mesh.size:
            devices = None
        return axes, who.tolist() if listed else None, devices

    def _grouped(self, text: str) -> groups.Groups | None:
        if text not in self._groups:
            devices = max(self._module.partitions, self._module.replicas)
            self._groups[text] = self._everywhere(groups.read(text, devices))
        return self._groups[text]

    def _axes_along(self, text: str, who: groups.Groups) -> tuple[str, ...] | None:
        if text not in self._along:
            self._along[text] = groups.axes_of(who, self._mesh)
        return self._along[text]

    def _everywhere(self, who: groups.Groups | None) -> groups.Groups | None:
        return None if who is None else megascale.everywhere(who, self._module.partitions, self._device_ids)

    def _overlapped(self, place: _Scheduled) -> list[str] | None:
        if not place.asynchronous:
            return []
        if not self._module.scheduled or not place.chain:
            return None
        computation, start = place.start
        overlapped: dict[str, None] = {}
        for instruction in computation.order[start.position + 1 : place.chain[-1].position]:
            overlapped |= dict.fromkeys(self._computed(instruction))
        return list(overlapped)

    def _computed(self, instruction: Instruction) -> Iterator[str]:
        """The lines that an instruction computes, if it computes any."""
        opcode = instruction.opcode
        if opcode in IDLE or opcode in MOVES or kind_of(instruction) or opcode.endswith(("-start", "-done")):
            return
        if opcode == "custom-call" and not opcodes.computing(target_of(instruction) or ""):
            return
        inside = list(self._module.inside(instruction))
        reduces = any(fused.opcode == "reduce" for fused in (instruction, *inside))
        if not reduces and not any(shape.dims for shape in instruction.shapes):
            # The next step's number, or the start of a slice.
            return
        heavy = [
            origin
            for inner in inside
            if inner.opcode in HEAVY or opcodes.computing(target_of(inner) or "")
            for origin in self._origins.of(inner.metadata)
        ]
        if not heavy and not self._communicates_inside(instruction):
            heavy = self._origins.of(instruction.metadata)
        yield from (origin.node for origin in heavy)


def _into_loop(
    origins: Sequence[OperationOrigin], taken: Sequence[OperationOrigin], needed: Sequence[OperationOrigin]
) -> bool:
    """Whether a collective moves a slice of a stacked value, the origin, for lines of the loop over it alone."""
    values, lines = ({origin.node for origin in each} for each in (taken, needed))
    inside = bool(lines) and all("." in line for line in lines)
    return inside and values == {origin.node for origin in origins} and not any("." in value for value in values)
