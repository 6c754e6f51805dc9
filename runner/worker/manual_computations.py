"""Turns what XLA's dump keeps of a `shard_map` back into Shardy's `manual_computation`, in the text of StableHLO.

XLA calls the body as a function between two custom calls. The layouts and the manual axes are attributes of these; or,
as newer versions have it, shardings of the results, and the layouts of the operands are those of `Sharding` in front.

Source: the passes `shard_map_export` of `xla/service/spmd/shardy`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BEGIN = "xla.sdy.GlobalToLocalShape"
_BODY, _END = "xla.sdy.manual_computation_body", "xla.sdy.LocalToGlobalShape"

_OPERATION = re.compile(
    r"\s*(?P<result>%\w+)(?::\d+)? = (?:stablehlo\.custom_call|(?:func\.)?call) "
    rf"@(?P<of>Sharding\b|{_BEGIN}|{_END}|{_BODY}[\w.]*)"
    r"\((?P<operands>[^)]*)\) (?P<attributes>\{.*\}) : (?P<given>\(.*\)) -> (?P<type>.*?)(?P<location> loc\(.*\))?$"
)
_ELEMENT = re.compile(r"\s*(?P<result>%\w+) = stablehlo\.get_tuple_element (?P<of>%\w+)\[(?P<at>\d+)\]")
_SHARDINGS = re.compile(r'xla\.sdy\.(?:in|out)_shardings = "#sdy\.sharding_per_value<\[([^"]*)\]>"')
_AXES = re.compile(r'xla\.sdy\.manual_axes = "#sdy<manual_axes\{([^"]*)\}>"')
_ON_MESH = re.compile(
    r"\{mesh\[(?P<mesh>[^\]]*)\], (?:(?P<layout>\[(?:\{[^{}]*\}(?:, )?)*\])|manual|replicated)"
    r"(?:, manual=\{(?P<manual>[^{}]*)\})?\}"
)
_TENSOR = re.compile(r"tensor<(?:\d+x)*[^>]+>")
_UNUSED = re.compile(r"\s*%\w+ = stablehlo\.tuple ")
"""A tuple that the conversion makes of a branch's operands, reads nowhere, and Shardy refuses."""
_RESULT, _USED = re.compile(r"\s*(%\w+)(?::\d+)? = "), re.compile(r"%\w+(?![\w#])")
_NAME = re.compile(r"'[^']+'")


def restored(lines: Sequence[str]) -> list[str]:
    """The lines of a module with a `manual_computation` for each call of a body. Raises `ValueError` for another form.

    Names in layouts stand in single quotes in the lines that are given, and in double quotes in those of Shardy.
    """
    reading = _Reading()
    for line in lines:
        reading.line(line)
    return [line for line in reading.written if line is not None]


class _Reading:
    """Reads lines in order. A region has the names of the one before it again: a name is what it was last."""

    def __init__(self) -> None:
        self.written: list[str | None] = []
        self._operations: dict[str, tuple[re.Match[str], int]] = {}
        self._elements: dict[str, re.Match[str]] = {}
        self._renamed: dict[str, str] = {}

    def line(self, line: str) -> None:
        result = _RESULT.match(line)
        head, rest = ("", line) if result is None else (result[0], line[result.end() :])
        line = head + _USED.sub(lambda name: self._renamed.get(name[0], name[0]), rest)
        if result is not None:
            for names in (self._operations, self._elements, self._renamed):
                names.pop(result[1], None)
        operation, element = _OPERATION.match(line), _ELEMENT.match(line)
        if operation is not None:
            self._operations[operation["result"]] = operation, len(self.written)
            if operation["of"] == _BEGIN:
                self._forget_layouts(operation)
            elif operation["of"] == _END:
                self.written += self._computation(operation)
            elif operation["of"] == "Sharding":
                self.written.append(line)
        elif element is not None and (of := self._operation(element["of"])) is not None:
            if of["of"] == _END:
                self._renamed[element["result"]] = f"{element['of']}#{element['at']}"
            self._elements[element["result"]] = element
        elif not _UNUSED.match(line):
            self.written.append(line)

    def _operation(self, name: str) -> re.Match[str] | None:
        return self._operations[name][0] if name in self._operations else None

    def _forget_layouts(self, begin: re.Match[str]) -> None:
        """Take out the operations that lay the operands out, where the layouts of these are not attributes."""
        for name in [] if _SHARDINGS.search(begin["attributes"]) else _names(begin):
            if name in self._operations:
                self.written[self._operations[name][1]] = None

    def _computation(self, end: re.Match[str]) -> list[str]:
        """The lines of one `manual_computation`, in which the body is called."""
        call = self._operation(_names(end)[0].partition("#")[0])
        if call is None:
            raise ValueError("it has a shard_map whose results are not those of one call")
        here, begin, passed = end["result"].lstrip("%"), None, list[str]()
        for name in _names(call):
            element = self._elements.get(name)
            begin = self._operation(name if element is None else element["of"])
            passed.append(f"%in{here}_{0 if element is None else element['at']}")
        outside, into, kinds = self._operands(begin)
        local = _TENSOR.findall(call["type"])
        arguments = (f"%in{here}_{at}: {kind} loc(unknown)" for at, kind in enumerate(kinds))
        head = (
            f"    {end['result']}:{len(local)} = sdy.manual_computation({', '.join(outside)}) in_shardings="
            f"[{', '.join(into)}] out_shardings=[{', '.join(_layouts(end))}] manual_axes={{{_axes(end, call)}}} "
        ).replace("'", '"')
        returned = ", ".join(f"%out{here}#{at}" for at in range(len(local)))
        given = "()" if begin is None else begin["given"]
        return [
            f"{head}({', '.join(arguments)}) {{",
            f"%out{here}:{len(local)} = func.call @{call['of']}({', '.join(passed)}) : "
            f"{call['given']} -> {call['type']} loc(unknown)",
            f"sdy.return {returned} : {', '.join(local)} loc(unknown)",
            f"    }} : {given} -> ({', '.join(_TENSOR.findall(end['type']))}){call['location'] or ''}",
        ]

    def _operands(self, begin: re.Match[str] | None) -> tuple[list[str], list[str], list[str]]:
        """The operands outside, their layouts, and their types inside."""
        if begin is None:
            return [], [], []
        kinds = _TENSOR.findall(begin["type"])
        if _SHARDINGS.search(begin["attributes"]):
            return _names(begin), _layouts(begin), kinds
        asked = [sharding for sharding in map(self._operation, _names(begin)) if sharding is not None]
        return [name for sharding in asked for name in _names(sharding)], [*map(_layout, asked)], kinds


def _names(operation: re.Match[str]) -> list[str]:
    return operation["operands"].split(", ") if operation["operands"] else []


def _layouts(operation: re.Match[str]) -> list[str]:
    """Shardy's layout of each operand or result."""
    shardy = _SHARDINGS.search(operation["attributes"])
    if shardy is not None:
        return [shardy[1]]
    kinds = _TENSOR.findall(operation["type"])
    shardings = _ON_MESH.finditer(operation["attributes"])
    return [
        f"<@mesh, {sharding['layout'] or '[' + ', '.join(['{}'] * kind.count('x')) + ']'}>"
        for sharding, kind in zip(shardings, kinds, strict=True)
    ]


def _layout(operation: re.Match[str]) -> str:
    return _layouts(operation)[0]


def _axes(end: re.Match[str], call: re.Match[str]) -> str:
    """The manual axes, as an attribute of the end has them, or the shardings of the call."""
    shardy, sharding = _AXES.search(end["attributes"]), _ON_MESH.search(call["attributes"])
    if shardy is not None:
        return shardy[1]
    if sharding is None:
        raise ValueError("its shardings are those of GSPMD")
    return sharding["manual"] or ", ".join(_NAME.findall(sharding["mesh"]))
