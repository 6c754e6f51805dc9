"""The plan of a graph in; each of its lines in the scaling book's notation, with what it communicates and why, out.

`hidden[B_data, F_model] = gelu(x[B_data, D] · w1[D, F_model])`: a dimension's name and the mesh axes that cut it.

Source: How to Scale Your Model (Austin et al., 2025), "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from runner.experiment.model import Experiment, expressions
from runner.layout import SpecEntries
from runner.sharding.plan import Operand, Plan, PlannedCollective, PlannedLine, PlannedOperation
from runner.why import needs
from runner.words import bytes_text

_NAME = re.compile(r"(?<![\w.'\"])([A-Za-z_][\w.]*)(?![\w.]*\s*\()(?!\s*=(?!=))(?!['\"])")


def lines(experiment: Experiment, plan: Plan) -> list[PlannedLine]:
    """The lines of the graph in their order; none where there is no plan."""
    if plan.missing is not None:
        return []
    values: dict[str, str] = {}
    for array in experiment.arrays:
        dims = [name or str(size) for name, size in zip(array.dims, array.shape, strict=True)]
        values[array.name] = written(dims, array.layout.spec.padded(len(array.shape)).json())
    last: dict[str, Operand] = {}
    for operation in plan.operations:
        if operation.line is not None and not operation.gradient and operation.results:
            last[operation.line] = operation.results[0]
    told = [one.told() for one in plan.collectives if one.kind not in ("slice",)]
    operations = plan.summary().operations
    promised = {line: f"outputs.{line}" for line in experiment.outputs}
    promised |= {line: f"constraints.{line}" for line in experiment.constraints}
    names = {line.path: str(line) for line, _ in expressions(experiment.graph)}
    found: list[PlannedLine] = []
    for line, expression in expressions(experiment.graph):
        if line.path in last:
            values[line.name] = _of(last[line.path])
        text = f"{line}{values.get(line.name, '')} = {_expression(expression.text, values, line.name)}"
        mine = [one for one in told if one.line == line.path]
        moves = [_collective(one, operations, promised, names) for one in mine]
        found.append(PlannedLine(line=str(line), text=text, collectives=moves))
    return found


def written(dims: Sequence[str], spec: SpecEntries) -> str:
    """`[B_data, F_{data,model}]`; a dimension without a name has its size."""
    parts: list[str] = []
    for name, entry in zip(dims, spec, strict=False):
        axes = [] if entry is None else [entry] if isinstance(entry, str) else entry
        over = axes[0] if len(axes) == 1 else f"{{{','.join(axes)}}}"
        parts.append(f"{name}_{over}" if axes else name)
    return f"[{', '.join(parts)}]" if parts else ""


def _of(value: Operand) -> str:
    dims = [name or str(size) for name, size in zip(value.dims, value.shape, strict=True)]
    return written(dims, value.spec.json())


def _expression(text: str, values: Mapping[str, str], own: str) -> str:
    """An expression with the layout of each value in it; `·` is the product of matrices."""

    def named(found: re.Match[str]) -> str:
        name = found[1]
        return name + (values.get(name, "") if name != own else "")

    return _NAME.sub(named, text).replace(" @ ", " · ")


def _collective(
    one: PlannedCollective,
    operations: Sequence[PlannedOperation],
    promised: Mapping[str, str],
    names: Mapping[str, str],
) -> str:
    of = names.get(one.of, one.of)
    over = f"over {', '.join(one.axes)}"
    why = needs.of_collective(one, operations, promised).text
    dims = [name or str(at) for at, name in enumerate(one.dims)]
    backward = " (backward)" if one.gradient else ""
    if one.before == one.after or not one.dims:
        return f"{one.kind}{backward} {over}, {bytes_text(one.bytes_in)}: {why}"
    change = f"{of}{written(dims, one.before)} → {of}{written(dims, one.after)}"
    sizes = " → ".join(dict.fromkeys(bytes_text(size) for size in (one.bytes_in, one.bytes_out)))
    return f"{one.kind}{backward} of {of} {over}: {change}, {sizes}; {why}"
