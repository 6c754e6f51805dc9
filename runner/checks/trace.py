"""Compares every device's values with the SPMD interpreter's; returns the trace and the first difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from runner.base import codec, dtypes
from runner.base.words import on_devices
from runner.checks import origins
from runner.checks.compare import SAME, Alternatives, Difference, difference, tolerance
from runner.checks.context import Context
from runner.checks.reference import interpret, measure
from runner.checks.reference.arithmetic import ANY
from runner.experiment import value_names
from runner.experiment.program import Program
from runner.experiment.value_names import NamedCode
from runner.graph.language.lines import expressions
from runner.link.target import ProgramRun
from runner.reports.record.model import (
    PLACED,
    FirstDifference,
    Trace,
    TracedCollective,
    TracedDevice,
    TracedNode,
    TracedOrigins,
    TracedValue,
)

RECORDED = 256
"""The largest number of elements of a value, on each device, that the record has."""


def take(
    context: Context,
    program: Program,
    traced: NamedCode | None,
    held: Mapping[str, np.ndarray] | None,
    reason: str | None,
    device_ids: list[int],
    run: ProgramRun | None,
    process_of: Mapping[int, int] = MappingProxyType({}),
) -> Trace:
    """Return the trace of one run.

    `program` is the program that is traced, and `traced` its named code. If that is None there is no trace, for this
    `reason`. `held` is each device's part of each value of the named code, by position; if it is None, no program
    returned it, for this `reason`, and the values are the SPMD interpreter's. `run` is the run of `program`;
    `process_of` gives the process of each device, if there are several.
    """
    mesh = context.experiment.mesh
    devices = [
        TracedDevice(id=i, coordinates=list(at), process=process_of.get(i))
        for i, at in zip(device_ids, mesh.coordinates, strict=True)
    ]
    if traced is None:
        return _trace(None, reason, devices)
    if held is None:
        values_of = interpret(traced.of, "per_device", context.arrays).values
        elements = sum(np.size(value) for values in values_of.values() for value in values)
        if elements > value_names.ELEMENTS:
            return _trace(None, reason or value_names.too_large(elements), devices)
    comparison = _Comparison(context, program, traced, held, device_ids)
    nodes: list[TracedNode] = []
    left_out: list[str] = []
    for value in comparison.traced.values:
        node = comparison.node(value)
        if node is None:
            left_out.append(f"{comparison.place(value.line) or value.name}: it is not an array")
        else:
            nodes.append(node)
    left_out += [f"the steps of {comparison.place(name) or name}: {why}" for name, why in comparison.traced.whole]
    # Results of a whole program are no lines of a device.
    compared = held is not None and run is not None and run.error is None and not program.whole
    same = comparison.same_outputs(run) if compared and run is not None else None
    return replace(
        _trace("interpreter" if held is None else _taken_from(program), reason, devices),
        nodes=nodes,
        first_difference=next((_difference(node) for node in nodes if node.agrees is False), None),
        same_outputs=same,
        steps_one_by_one=[comparison.place(name) or name for name in comparison.traced.stepped],
        left_out=left_out,
    )


def _taken_from(program: Program) -> Literal["shard_map", "derived", "auto"]:
    return "derived" if program is Program.DERIVED else "auto" if program is Program.AUTO else "shard_map"


def _trace(
    taken_from: Literal["shard_map", "derived", "auto", "interpreter"] | None,
    reason: str | None,
    devices: list[TracedDevice],
) -> Trace:
    return Trace(
        taken_from=taken_from,
        reason=reason,
        devices=devices,
        nodes=[],
        first_difference=None,
        same_outputs=None,
        steps_one_by_one=[],
        left_out=[],
    )


def _difference(node: TracedNode) -> FirstDifference:
    assert node.max_abs_error is not None
    devices = node.devices
    expression, _, place = node.expression.partition(PLACED)
    value = f"{place}: {expression}" if place else f"{node.name} = {expression}"
    text = (
        f"the first value that differs between JAX and the SPMD interpreter is {value}, "
        f"on {on_devices(devices)}, by at most {node.max_abs_error:.3g}"
    )
    return FirstDifference(
        node=node.name, expression=node.expression, devices=devices, max_abs_error=node.max_abs_error, text=text
    )


class _Comparison:
    """The named code as the SPMD interpreter runs it, beside the devices' values."""

    def __init__(
        self,
        context: Context,
        program: Program,
        traced: NamedCode,
        held: Mapping[str, np.ndarray] | None,
        device_ids: list[int],
    ) -> None:
        self._context = context
        self._device_ids = device_ids
        self._held = held
        self.traced = traced
        floats = {node: {ANY: value.dtype.name} for node, value in (held or {}).items()}
        self._oracle = measure(self.traced.experiment, "per_device", context.arrays, floats, drawn=context.drawn)
        self._terms = {
            line.name: (line, expression.term) for line, expression in expressions(traced.experiment.per_device)
        }
        self._shown = {value.node: value.name for value in self.traced.values}
        # A derived line has the name of the line that it is derived from.
        given = context.experiment.given_frames[program.section]
        self._frames = {**given, **traced.of.given_frames["per_device"]}

    def place(self, line: str) -> str | None:
        """The place of a line, or of the steps of a loop, in the user's file, if it was read from one."""
        frame = self._frames.get(value_names.without_steps(line))
        return None if frame is None else str(frame)

    def node(self, value: value_names.NamedValue) -> TracedNode | None:
        """Return a line of the trace; None if its value is not an array."""
        described = self._described(value.node)
        if described is None:
            return None
        collective = None
        if value.operation is not None:
            collective = TracedCollective(operation=value.operation, axes=list(value.axes))
        line = TracedNode(
            name=value.name,
            shape=described.shape,
            dtype=described.dtype,
            values=described.values,
            expression=self._expression(value),
            collective=collective,
            before=None if value.before is None else self._described(value.before),
            origins=self._origins(value),
            agrees=None,
            max_abs_error=None,
            devices=[],
            expected=None,
        )
        return line if self._held is None else self._compared(value.node, self._held[value.node], line)

    def _expression(self, value: value_names.NamedValue) -> str:
        """The expression of a line, and its place in the user's file if it was read from one."""
        frame = self._frames.get(value.line)
        return value.expression if frame is None else f"{value.expression}{PLACED}{frame}"

    def _origins(self, value: value_names.NamedValue) -> TracedOrigins | None:
        """The devices between which a collective moves values; None for other lines, and if too many to draw."""
        if value.operation is None or value.before is None:
            return None
        line, term = self._terms[value.node]
        blocks = origins.of_collective(
            self.traced.experiment, line, term, value.operation, value.before, self._oracle.values
        )
        return None if blocks is None else origins.recorded(blocks, value.operation, self._device_ids)

    def _described(self, node: str) -> TracedValue | None:
        if self._held is not None:
            if node not in self._held:
                return None
            values = [np.asarray(value) for value in self._held[node]]
        else:
            if not all(_is_numbers(value) for value in self._oracle.values[node]):
                return None
            values = [np.asarray(value) for value in self._oracle.values[node]]
        return TracedValue(
            name=self._shown.get(node, node),
            shape=list(values[0].shape),
            dtype=values[0].dtype.name,
            values=_plain(values),
        )

    def _compared(self, node: str, held: np.ndarray, line: TracedNode) -> TracedNode:
        expected = self._oracle.values[node]
        total, wrong = self._apart(node, held, expected)
        return replace(
            line,
            agrees=not wrong,
            max_abs_error=total.max_abs,
            devices=[self._device_ids[position] for position in wrong],
            expected=_plain([np.asarray(value) for value in expected]) if wrong else None,
        )

    def _apart(self, node: str, held: np.ndarray, expected: list[Any]) -> tuple[Difference, list[int]]:
        """The largest difference on any device, and the positions of the devices where it is beyond the tolerance."""
        dtype, rounding = held.dtype.name, self._oracle.rounding[node]
        allowed = tolerance(dtype, rounding)
        total, wrong = SAME, list[int]()
        for position, (actual, wanted) in enumerate(zip(held, expected, strict=True)):
            apart = difference(
                actual,
                wanted,
                dtype,
                allowed,
                Alternatives.of(rounding, lambda value, at=position: np.asarray(value[at])),
            )
            total = total.joined(apart)
            if apart.wrong:
                wrong.append(position)
        return total, wrong

    def same_outputs(self, run: ProgramRun) -> bool:
        """Whether the traced code's outputs equal the program's, bit by bit; if XLA fuses differently, they may not."""
        assert self._held is not None
        for name, output in run.outputs.items():
            # Lines that read a gradient without an oracle are not compared.
            node = self.traced.results.get(name)
            if node is None or node not in self._held:
                continue
            for held in output.held:
                if held.value.tobytes() != self._held[node][held.position].tobytes():
                    return False
        return True


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | bool | int | float | complex)


def _plain(values: list[np.ndarray]) -> list[Any] | None:
    """Nested lists, one for each device, of values that are small enough to be recorded."""
    if values[0].size > RECORDED:
        return None
    return [codec.one_nan(_widened(value).tolist()) for value in values]


def _widened(value: np.ndarray) -> np.ndarray:
    kind = dtypes.dtype(value.dtype.name).kind
    return value.astype(np.float64) if kind == "float" else value.astype(object) if kind == "int" else value
