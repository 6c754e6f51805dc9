"""Prints a trace in the tutorials' format (device, mesh coordinates, value), and draws it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.reports.record.model import Record, Trace, TracedDevice, TracedNode, TracedValue
from runner.reports.show import exchange, table, values
from runner.reports.show.console import PLAIN, wrapped
from runner.reports.show.exchange import Exchange
from runner.reports.show.table import Line

_DEVICES = 16
"""The most devices on which a value is printed."""


def plain(trace: Trace, axes: Sequence[str], platform: str) -> str:
    """Return the whole trace as text without escape codes."""
    return table.text(lines(trace, axes, platform)) + "\n"


def exchanges(trace: Trace, axes: Sequence[str]) -> list[Exchange]:
    """Return the collectives of a trace that can be drawn."""
    all_exchanges = (exchange.read(node, trace.devices, axes) for node in trace.nodes)
    return [all_exchange for all_exchange in all_exchanges if all_exchange is not None]


def picture(record: Record) -> str | None:
    """Draw `collectives.svg`: what each collective of the trace moves; None if nothing was traced or can be drawn."""
    if record.trace is None or record.mesh is None or record.target is None:
        return None
    moved = exchanges(record.trace, record.mesh.axes)
    title = f"{record.experiment}: what the collectives do"
    return exchange.draw(moved, record.target.platform, title, record.summary) if moved else None


def lines(trace: Trace, axes: Sequence[str], platform: str, room: int | None = None) -> list[Line]:
    """Return the whole trace with drawn collectives; at most `room` columns wide on a terminal."""
    width = room or PLAIN
    if trace.taken_from is None:
        return _plain(f"no trace: {trace.reason}", room)
    about = origin(trace)
    blocks = [_plain("\n".join(["trace: " + about[0], *about[1:]]), room)]
    printer = _Printer(trace.devices, axes, platform, width)
    first = trace.first_difference
    for _, node in shown(trace):
        drawn = exchange.read(node, trace.devices, axes)
        picture = [] if drawn is None else exchange.lines(drawn, platform, width)
        head, values = _node(node, printer, first is not None and first.node == node.name)
        blocks.append([*_plain(head, room), *picture, *_plain(values, room)])
    blocks += [_plain(f"not in the trace: {left_out}", room) for left_out in trace.left_out]
    return [line for k, block in enumerate(blocks) for line in [*([Line()] if k else ()), *block]]


def _plain(text: str, room: int | None) -> list[Line]:
    lines = text.split("\n")
    return [[(part, "")] for line in lines for part in ([line] if room is None else wrapped(line, room))]


def shown(trace: Trace) -> Iterator[tuple[int, TracedNode]]:
    """Yield the nodes that are shown, with their numbers.

    A value that is only the operand of a collective is shown with the collective, as the value before it.
    """
    operands = {node.before.name for node in trace.nodes if node.before}
    for number, node in enumerate(trace.nodes):
        if not (node.name.endswith("/before") and node.name in operands and node.agrees is not False):
            yield number, node


def origin(trace: Trace) -> list[str]:
    """Return what the values of a trace are and how they were computed, a clause each."""
    if trace.taken_from == "interpreter":
        return [f"every value on every device, by the SPMD interpreter alone ({trace.reason})"]
    how = f"{trace.taken_from} computed it"
    if trace.taken_from == "auto":
        how = "the lines inside the function's own shard_map compute it in JAX"
    clauses = [f"every value on every device, as {how}, compared with the SPMD interpreter's"]
    if trace.steps_one_by_one:
        clauses.append(f"the steps of {', '.join(trace.steps_one_by_one)} ran one by one, without jax.lax.fori_loop")
    if trace.same_outputs is False:
        program = f"program_{trace.taken_from}.py"
        clauses.append(
            f"its outputs round differently from {program}'s: a program that returns more is fused differently"
        )
    return clauses


def _node(node: TracedNode, printer: _Printer, first: bool) -> tuple[str, str]:
    """Describe a node, and its value on every device."""
    title, expression = exchange.titled(node)
    head = f"{title} = {expression}" if title == node.name else f"{title}\n{expression}"
    if node.agrees is False:
        head += f"\nDIFFERS from the SPMD interpreter's by at most {node.max_abs_error:.3g}"
        head += ": the first value that does" if first else ""
    parts: list[str] = []
    if node.collective and node.before:
        parts += [f"BEFORE: {printer.text(node.before)}", f"\nAFTER: {printer.text(node)}"]
    else:
        parts.append(printer.text(node))
    if first:
        expected = replace(node, values=node.expected)
        parts.append(f"\nSPMD INTERPRETER: {printer.text(expected, held=False)}")
    return head, "\n".join(parts)


class _Printer:
    """Prints values in the tutorials' format, one block for each device."""

    def __init__(self, devices: Sequence[TracedDevice], axes: Sequence[str], platform: str, width: int) -> None:
        self._width = width
        names = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        self._where = [
            f"On {platform.upper()}_{device.id} at mesh coordinates {names} = {tuple(device.coordinates)}:"
            for device in devices
        ]

    def text(self, value: TracedValue, *, held: bool = True) -> str:
        """Return the values in the devices' dtype, or as the oracle has them."""
        size = math.prod(value.shape)
        if value.values is None or size > values.ELEMENTS:
            kind = f"{value.dtype if held else 'values of shape '}{value.shape}"
            return f"{kind} on each device: {size} elements, too many to print" + (
                "; they are in the record" if value.values is not None else ""
            )
        blocks = [
            f"{where}\n{values.text(each, value.dtype if held else None, self._width)}"
            for where, each in zip(self._where[:_DEVICES], value.values, strict=False)
        ]
        left = len(self._where) - len(blocks)
        return "\n\n".join([*blocks, *([f"and on {left} more devices, which are in the record"] if left else [])])
