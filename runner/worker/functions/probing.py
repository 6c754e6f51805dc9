"""Builds the lines that compute values inside repeats and functions, whose types are asked for while these are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from runner.base.lazy import dataclass


@dataclass(frozen=True)
class RepeatAround:
    """A repeat around a line: its name, its mapping in the file, and the lines of its body before that line."""

    name: str
    repeat: Mapping[str, Any]
    lines: dict[str, Any] = field(default_factory=dict[str, Any])
    stacks: int = 1

    def probing(self, probing: Probing) -> Probing:
        """The repeat as far as it is read, around what computes the probes, whose values are stacked."""
        kept = {part: value for part, value in self.repeat.items() if part not in ("stack", "checkpoint")}
        body = {**self.lines, **probing.lines, **probing.probes}
        stacked = {**kept, "body": body, "stack": {probe: probe for probe in probing.probes}}
        probes = {probe: f"{self.name}.{probe}" for probe in probing.probes}
        return Probing({self.name: stacked}, probes, probing.functions)


@dataclass(frozen=True)
class FunctionAround:
    """A function of the experiment around a line, in one of its calls.

    - `name`: the line of the call; `arguments`: the texts of its arguments, by parameter.
    - `lines`: those of the function before that line.
    """

    name: str
    arguments: Mapping[str, str]
    lines: dict[str, Any] = field(default_factory=dict[str, Any])
    stacks: int = 0

    def probing(self, probing: Probing) -> Probing:
        """The function as far as it is read, with the probes as its results, and its call."""
        name = f"probed{len(probing.functions)}_"
        probes = {probe: f"{probe}of_{name}" for probe in probing.probes}
        body = {**self.lines, **probing.lines, **probing.probes}
        function = {"of": [*self.arguments], **body, "result": tuple_of(probing.probes)}
        lines = {", ".join(probes.values()): f"{name}({', '.join(self.arguments.values())})"}
        return Probing(lines, probes, {**probing.functions, name: function})


@dataclass(frozen=True)
class Probing:
    """Lines that compute the values whose types are asked for, and the functions that these lines call.

    `probes` has the name that a value has behind the lines, by the name of its probe.
    """

    lines: Mapping[str, Any]
    probes: Mapping[str, str]
    functions: Mapping[str, Any]


def tuple_of(names: Iterable[str]) -> str:
    """The expression of several results, or of the only one."""
    several = list(names)
    return several[0] if len(several) == 1 else f"({', '.join(several)})"
