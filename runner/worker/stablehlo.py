"""`python -m runner.worker.stablehlo FILE [SOURCE]` prints the explanation of a module before XLA's passes.

FILE is StableHLO as JAX lowers it, or HLO that XLA dumped before its passes. Shardy plans it. With SOURCE, standard
input is the text of what was compiled of it, from SOURCE: then the explanation is that of this text, with reasons and
layouts by the plan. It runs in a process of its own, since a broken file may end it.

What XLA's dump keeps of a `shard_map` is turned back into Shardy's `manual_computation`, in the text of StableHLO. XLA
calls the body as a function between two custom calls. The layouts and the manual axes are attributes of these; or,
as newer versions have it, shardings of the results, and the layouts of the operands are those of `Sharding` in front.

Source: the passes `shard_map_export` of `xla/service/spmd/shardy`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.model import Between
from runner.compiled.evidence.nodes import OperationOrigin
from runner.compiled.evidence.source_lines import is_users
from runner.compiled.explanation import files, meshes, modules, reasons
from runner.compiled.explanation.model import Argument, ExplainedMesh, Explanation, PlacedCollective, layouts_of
from runner.compiled.explanation.modules import Known, UnreadableModule
from runner.compiled.explanation.places import Places, sources
from runner.graph.sharding.propagation import AskedCollective, LayoutKeys, Plan, PlannedCollective
from runner.worker import lowered, propagation, protos, shardy, versions
from runner.worker import modules as mlir

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
_AXIS_NAME = re.compile(r"'[^']+'")


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
    return sharding["manual"] or ", ".join(_AXIS_NAME.findall(sharding["mesh"]))


_FILE = re.compile(r'"([^"]+)":\d+:\d+')
_NAME = re.compile(r"module @(\S+)")
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_ITSELF = "-"
_OLDER = "mhlo.sharding"
_BETTER = "JAX_DUMP_IR_TO=DIR writes it as JAX lowers it, for --lowered"


@dataclass(frozen=True)
class LoweredModule:
    """A module that was read, with what its plan is made of."""

    lowered: versions.ReadStableHlo
    text: str
    mesh: Mesh
    arguments: list[Argument]
    shapes: dict[str, tuple[int, ...]]


_MAIN = re.compile(r'@main\b|sym_name = "main"')


def read(path: Path) -> LoweredModule:
    """Read a file of StableHLO, or of HLO before XLA's passes. Raises `UnreadableModule`."""
    text = _text(path)
    if modules.HEAD.search(text):
        module = stablehlo(text)
        if isinstance(module, str):
            raise UnreadableModule(f"{path}: Shardy cannot plan this module: {module}; {_BETTER}")
        text = module.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    else:
        module = versions.stablehlo(text)
    if isinstance(module, str):
        raise UnreadableModule(f"{path}: this is no StableHLO that JAX reads: {module}")
    if not _MAIN.search(text):
        # Shardy would end this process.
        raise UnreadableModule(f"{path}: the module has no function called main, where JAX's begin")
    axes = meshes.of_lowered(text)
    partitions = _PARTITIONS.search(text)
    devices = int(partitions[1]) if partitions else 1
    if axes is None and devices > 1:
        why = "its shardings are those of GSPMD" if _OLDER in text else "it names no mesh"
        raise UnreadableModule(f"{path}: Shardy cannot plan this module, since {why}; explain what was compiled of it")
    mesh = Mesh(tuple(axes), tuple(axes.values())) if axes else Mesh(("devices",), (1,))
    arguments, shapes = _arguments(module.compiler_ir("stablehlo"), mesh)
    return LoweredModule(module, text, mesh, arguments, shapes)


def _text(path: Path) -> str:
    if not path.name.endswith(".pb"):
        return files.read_text(path)
    try:
        return protos.text_of(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnreadableModule(f"{path}: this is no serialized module that jaxlib reads: {error}") from None


def _arguments(module: Any, mesh: Mesh) -> tuple[list[Argument], dict[str, tuple[int, ...]]]:
    main = mlir.Walk(module).main
    if main is None:
        return [], {}
    attributes = list(main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else []
    arguments: list[Argument] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for at, argument in enumerate(main.regions[0].blocks[0].arguments):
        text = str(attributes[at]) if at < len(attributes) else ""
        shape = mlir.shape_of(argument)
        spec = (shardy.read_spec(text) or Spec()).padded(len(shape))
        name = shardy.name_of(str(argument.location)) or f"argument {at}"
        parts = mesh.axis_size(tuple(axis for axis in spec.axes if axis in mesh.sizes))
        local = tuple(-(-size // mesh.axis_size(axes)) for size, axes in zip(shape, spec, strict=True))
        donated = "jax.buffer_donor" in text or "tf.aliasing_output" in text
        size = mlir.bytes_of(argument, parts)
        arguments.append(
            Argument(name=name, dtype=mlir.dtype_of(argument), shape=local, bytes=size, spec=spec, donated=donated)
        )
        shapes[name] = shape
    return arguments, shapes


def explained(path: Path) -> Explanation:
    """The explanation of a lowered module by Shardy's plan. Raises `UnreadableModule`."""
    module = read(path)
    places = Places(set(_FILE.findall(module.text)))
    arrays = reasons.arrays_of(module.arguments, module.shapes)
    planned = _plan(module, places)
    if planned.missing is not None:
        raise UnreadableModule(f"{path}: {planned.missing}")

    def where(metadata: Metadata) -> tuple[str | None, bool]:
        lines = _lines(places, metadata)
        return (lines[0].node, lines[0].gradient) if lines else (None, False)

    written = lowered.asked(module.lowered.compiler_ir("stablehlo"), module.mesh, where)
    summary = planned.summary()
    placed = [_placed(entry, at) for at, entry in enumerate(written)]
    placed += [_placed(entry, at) for at, entry in enumerate(summary.collectives or ())]
    name = _NAME.search(module.text)
    explanation = Explanation(
        source=str(path),
        module=name[1] if name else path.name,
        stage="lowered",
        partitions=module.mesh.size,
        instructions=len(planned.operations),
        mesh=ExplainedMesh(axes=[*module.mesh.axes], shape=[*module.mesh.shape], source="module"),
        placed=placed,
        arguments=module.arguments,
        lines=places.lines,
        layouts=layouts_of(planned.operations),
        notes=[
            "these are the collectives that the program asks for, and those that Shardy plans: the compiler may insert "
            "others, merge and move them"
        ],
    )
    if not places.lines:
        explanation.notes.append(
            "the file names no lines: write it with lowered.as_text(debug_info=True), or set JAX_DUMP_IR_TO"
        )
    reason = reasons.of_plan([entry for entry in placed if entry.inserted], summary, arrays, module.mesh)
    return replace(
        explanation,
        placed=[replace(entry, why=reason(entry)) if entry.inserted else entry for entry in placed],
        sources=sources(places.lines.values()),
    )


def _lines(places: Places, metadata: Metadata) -> tuple[OperationOrigin, ...]:
    """The lines of an operation; where the file has no locations, MLIR's are those of the file itself."""
    return places.of(replace(metadata, frames=tuple(frame for frame in metadata.frames if frame[0] != _ITSELF)))


def _plan(module: LoweredModule, places: Places) -> Plan:
    arrays = reasons.arrays_of(module.arguments, module.shapes)

    def where(metadata: Metadata) -> propagation.Place:
        return propagation.place(_lines(places, metadata))

    def array(name: str) -> str | None:
        return name if name in arrays else None

    keys = LayoutKeys(
        mesh=module.mesh, keys=[*arrays], arrays=arrays, constraint=reasons.constraint, typed=False, users=is_users
    )
    return propagation.read(module.lowered, keys, propagation.ModuleNames(where, array))


def _placed(entry: AskedCollective | PlannedCollective, at: int) -> PlacedCollective:
    """The collective that a program asks for, or that Shardy plans, as one of an explanation."""
    planned = entry if isinstance(entry, PlannedCollective) else None
    nodes = [entry.line] if entry.line else []
    return PlacedCollective(
        kind=entry.kind,
        node=entry.line,
        nodes=nodes,
        gradient=entry.gradient,
        inserted=planned is not None,
        between=planned and Between(source=[planned.of], to=nodes),
        axes=None if entry.axes is None else [*entry.axes],
        groups=None,
        dtype=planned.dtype if planned else "",
        bytes_in=entry.bytes_in,
        bytes_out=entry.bytes_out,
        bytes=max(entry.bytes_in, entry.bytes_out),
        bytes_sent=entry.bytes_sent,
        count=entry.count,
        branches=[*entry.branches],
        asynchronous=False,
        overlapped=None,
        instruction=f"{'planned' if planned else 'written'} {at}",
        reduction=planned and planned.reduction,
        alone=entry.alone,
    )


def compiled(path: Path, text: str, source: str) -> Explanation:
    """The explanation of the text of what was compiled, with reasons by the plan of what was lowered.

    Raises `UnreadableModule`.
    """
    module = read(path)
    axes = dict(zip(module.mesh.axes, module.mesh.shape, strict=True))
    taken = modules.read(text, source, Known(mesh=axes))
    planned = _plan(module, taken.places)
    specs = {argument.name: argument.spec for argument in module.arguments}
    arguments = [replace(a, spec=specs.get(a.name, a.spec)) for a in taken.explanation.arguments]
    explanation = replace(taken.explanation, arguments=arguments, layouts=layouts_of(planned.operations))
    return reasons.explained(explanation, planned.summary(), reasons.arrays_of(module.arguments, module.shapes))


def main(arguments: Sequence[str]) -> int:
    """Print the explanation. Returns 0; 1 with a sentence on standard error if there is none."""
    path, *compiled_from = arguments
    try:
        known = compiled(Path(path), sys.stdin.read(), compiled_from[0]) if compiled_from else explained(Path(path))
        text = files.document(known)
    except (UnreadableModule, meshes.InvalidMesh) as error:
        print(f"shardproof: {error}", file=sys.stderr)
        return 1
    with os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(text)
    return 0


_MESH = re.compile(r"\bmesh\[([^\]]*)\]|#sdy\.mesh<\[([^\]]*)\]>")
_LAYOUT = re.compile(
    r'mhlo\.frontend_attributes = \{xla\.sdy\.sharding = "#sdy\.sharding(?:_per_value<\[)?<@\w+, '
    r'(?P<shardy>\[[^">]*\])>(?:\]>)?"\}|mhlo\.sharding = "\{mesh\[[^\]]*\], (?P<hlo>\[[^"]*\])\}"'
)
_ATTRIBUTE = re.compile(r'(?P<begin>\{|, )mhlo\.sharding = "[^"]*"(?P<end>, )?')
_ATTRIBUTES = re.compile(r'(\{mhlo\.[^"]*"[^"]*"\})')
_CONSTRAINT = re.compile(
    r"(?P<result>\s*%\S+ = )stablehlo\.custom_call @(?P<target>Sharding|xla\.sdy\.FuncResultSharding)\((?P<of>%\S+)\) "
    r"(?P<attributes>\{.*\}) : \(.*\) -> (?P<type>tensor<.*?>)(?P<location> loc\(.*\))?$"
)


def stablehlo(text: str) -> versions.ReadStableHlo | str:
    """The StableHLO of a module's text; a sentence if it cannot be made of it."""
    converted = versions.converted(text)
    if isinstance(converted, versions.NotConverted):
        return converted.why
    # The quotes in XLA's attributes, escaped there.
    converted = converted.replace("\\22", "'")
    meshes = {(hlo or shardy).replace(" ", "") for hlo, shardy in _MESH.findall(converted)}
    if len(meshes) != 1:
        return "its layouts are on several meshes" if meshes else "its shardings are those of GSPMD"
    if "@SPMDFullToShardShape" in converted:
        return "its shard_map is that of GSPMD"
    try:
        lines = restored(converted.splitlines())
    except ValueError as error:
        return str(error)
    return versions.stablehlo("\n".join(_module_lines(lines, _spelled(meshes.pop()))))


def _module_lines(written: list[str], mesh: str) -> list[str]:
    """The lines of a module with Shardy's attributes in place of XLA's."""
    lines = [_line(line) for line in _with_results(written)]
    if not any(line.lstrip().startswith("sdy.mesh @mesh") for line in lines):
        begin = next((at for at, line in enumerate(lines) if line.startswith("module ")), 0)
        lines.insert(begin + 1, f"  sdy.mesh @mesh = <[{mesh}]>")
    return lines


def _with_results(lines: list[str]) -> list[str]:
    """The lines with the layouts of the results where `main` names them, not in operations in front of its end."""
    main = next((at for at, line in enumerate(lines) if line.lstrip().startswith("func.func @main(")), None)
    end = next((at for at in range(main or 0, len(lines)) if lines[at].startswith("    return ")), None)
    if main is None or end is None:
        return lines
    asked = {
        constraint["result"].split()[0]: constraint
        for constraint in map(_CONSTRAINT.match, lines[main:end])
        if constraint is not None and constraint["target"] == "xla.sdy.FuncResultSharding"
    }
    returned = re.findall(r"%[\w#]+", lines[end].partition(" : ")[0])
    head, arrow, results = lines[main].partition(") -> ")
    parts = _ATTRIBUTES.split(results)
    if not asked or not set(asked) <= set(returned) or len(parts) != 2 * len(returned) + 1:
        return lines
    for at, name in enumerate(returned):
        layout = _LAYOUT.search(asked[name]["attributes"]) if name in asked else None
        parts[2 * at + 1] = f"{{{layout[0]}}}" if layout is not None else parts[2 * at + 1]
    name_used = re.compile(rf"(?:{'|'.join(map(re.escape, asked))})(?![\w#])")
    body = [
        name_used.sub(lambda name: asked[name[0]]["of"], line)
        for line in lines[main + 1 : end + 1]
        if line.split(" = ")[0].strip() not in asked
    ]
    return [*lines[:main], f"{head}{arrow}{''.join(parts)}", *body, *lines[end + 1 :]]


def _line(line: str) -> str:
    constraint = _CONSTRAINT.match(line)
    if constraint is not None:
        return _constrained(constraint)
    each = not line.lstrip().startswith("func.func")
    line = _LAYOUT.sub(lambda layout: f"sdy.sharding = {_sharding(layout, each)}", line)
    return _ATTRIBUTE.sub(lambda rest: rest["begin"] if rest["end"] or rest["begin"] == "{" else "", line)


def _constrained(constraint: re.Match[str]) -> str:
    """A layout that the program asks for; a value as it is where XLA's attribute has none that Shardy knows."""
    layout = _LAYOUT.search(constraint["attributes"])
    spec = "" if layout is None else f"<@mesh, {_spelled(layout['shardy'] or layout['hlo'])}>"
    operation = f"sdy.sharding_constraint {constraint['of']} {spec}" if spec else ""
    if not operation:
        operation = f"stablehlo.optimization_barrier {constraint['of']}"
    return f"{constraint['result']}{operation} : {constraint['type']}{constraint['location'] or ''}"


def _sharding(layout: re.Match[str], each: bool) -> str:
    """Shardy's attribute: of an argument, or of each result of an operation."""
    spec = f"<@mesh, {_spelled(layout['shardy'] or layout['hlo'])}>"
    return f"#sdy.sharding_per_value<[{spec}]>" if each else f"#sdy.sharding{spec}"


def _spelled(names: str) -> str:
    """Names in double quotes, as Shardy has them."""
    return names.replace("'", '"')


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
