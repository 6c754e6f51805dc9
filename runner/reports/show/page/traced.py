"""Makes the section of a trace: every line, its collective, and each device's values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from runner.base.words import devices_text, on_devices
from runner.reports.record.model import Record, Trace, TracedNode, TracedValue
from runner.reports.show import exchange, values
from runner.reports.show.page import drawing
from runner.reports.show.page.markup import Inside, Markup, Part, badge, code, table, tag
from runner.reports.show.pictures import mesh_place
from runner.reports.show.table import Table
from runner.reports.show.trace import origin, shown

_DEVICES = 16
"""The most devices on which a value is shown."""


def part(record: Record) -> Part | None:
    """Return the section; None if the record has no trace."""
    trace = record.trace
    if trace is None or record.mesh is None or record.target is None:
        return None
    if trace.taken_from is None:
        return Part("trace", "Trace", tag("p", f"There is no trace: {trace.reason}."))
    platform = record.verification.target.platform if record.verification else record.target.platform
    about = " ".join(f"{clause[0].upper()}{clause[1:]}." for clause in origin(trace))
    inside: list[Inside] = [tag("p", about, class_="lead")]
    if trace.dims:
        inside.append(tag("p", "At " + ", ".join(f"{name}={size}" for name, size in trace.dims.items()) + "."))
    if trace.first_difference is not None:
        inside.append(tag("p", badge("failed"), " ", trace.first_difference.text))
    inside += [_node(trace, node, record.mesh.axes, platform, number) for number, node in shown(trace)]
    inside += [tag("p", f"Not in the trace: {left}") for left in trace.left_out]
    return Part("trace", "Trace", inside)


def _node(trace: Trace, node: TracedNode, axes: Sequence[str], platform: str, number: int) -> Markup:
    name, expression = exchange.titled(node)
    inside: list[Inside] = [
        tag("h3", name, " ", tag("code", f"{node.dtype}{node.shape}", class_="type")),
        tag("p", code(expression)),
    ]
    if node.agrees is False:
        fault = f"differs from the SPMD interpreter's by at most {node.max_abs_error:.3g} on {on_devices(node.devices)}"
        inside.append(tag("p", badge("failed"), " ", fault))
    drawn = exchange.read(node, trace.devices, axes)
    if drawn is not None:
        title = f"{name}: {node.collective.operation if node.collective else 'collective'} {drawn.over}"
        box = exchange.figure(drawn, platform)
        words = [f"{drawn.over}; from each device before to each device after"]
        caption = f"{drawn.over}: each device's operand has a colour, which moves with its values"
        inside.append(drawing.figure(drawing.svg(box, f"trace-{number}", title, words), title, caption))
    inside += list(_values(trace, node, axes, platform, drawn=drawn is not None))
    return tag("div", inside, class_="node", id=f"trace-of-{number}")


def _values(trace: Trace, node: TracedNode, axes: Sequence[str], platform: str, *, drawn: bool) -> Iterator[Inside]:
    shown: list[tuple[str, TracedValue | None, Any]] = []
    if node.collective and node.before:
        shown.append(("before", node.before, node.before.values))
    shown.append(("after" if shown else "value", node, node.values))
    if node.expected is not None:
        shown.append(("SPMD interpreter", None, node.expected))
    if all(held is None or math.prod(node.shape) > values.ELEMENTS for _, _, held in shown):
        size = math.prod(node.shape)
        there = "; they are in the record" if node.values is not None else ""
        yield tag("p", f"{size} elements on each device, too many to print{there}", class_="told")
        return
    rows = [
        [
            f"{platform.upper()} {device.id}",
            mesh_place(axes, device.coordinates),
            *(_text(of, held, k) for _, of, held in shown),
        ]
        for k, device in enumerate(trace.devices[:_DEVICES])
    ]
    if left := trace.devices[_DEVICES:]:
        ids = devices_text([device.id for device in left])
        rows.append([f"{platform.upper()} {ids}", "–", *("in the record" for _ in shown)])
    head = ("device", "at", *(title for title, _, _ in shown))
    content = table(f"{exchange.titled(node)[0]} on each device", Table(head, rows), kind="values")
    yield tag("details", tag("summary", "Values"), content, open=not drawn or None)


def _text(of: TracedValue | None, held: Any, device: int) -> Inside:
    if held is None or device >= len(held) or (of is not None and math.prod(of.shape) > values.ELEMENTS):
        return "too many to print"
    return tag("pre", values.text(held[device], of.dtype if of else None))
