"""Turns the text of a module before XLA's passes, as `--xla_dump_to` writes it, back into StableHLO with its layouts.

XLA keeps Shardy's layouts in attributes of its own; jaxlib converts the rest of a module.

Source: xla/service/spmd/shardy, whose import jaxlib does not register.
"""

from __future__ import annotations

import re

from runner.worker import manual_computations, versions

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
        lines = manual_computations.restored(converted.splitlines())
    except ValueError as error:
        return str(error)
    return versions.stablehlo("\n".join(_lines(lines, _spelled(meshes.pop()))))


def _lines(written: list[str], mesh: str) -> list[str]:
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
