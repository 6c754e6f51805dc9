"""An experiment in; Shardy's plan of its graph, part by part, and the per-device lines derived from it, out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import NamedSharding

from runner.derivation.derive import TRIES, NotDerived, derive, settled
from runner.derivation.scopes import element
from runner.experiment.model import Experiment
from runner.graph.model import Equation, Operand, Ref
from runner.language.syntax import SyntaxFault
from runner.layout import Spec
from runner.programs.types import Floats, Typed
from runner.sharding.plan import Derivation, Plan, whole_axes
from runner.untyped import is_sequence
from runner.why import notation
from runner.worker import calls
from runner.worker.plan import NOWHERE, Names, Place, plan
from runner.worker.refusing import refusal
from runner.worker.specs import partition, structs
from runner.worker.versions import abstract_mesh
from runner.worker.walk import REFUSALS, Walker

_SCOPE = re.compile(r"(?:^|/)line(\d+)(?=/|$)")
_PLACE = re.compile(r"(?<=/)at(\d+)-(\d+)(?=/|$)")


@dataclass
class _Planner(Walker):
    """Evaluates a graph with a named scope for each line and each part, as `constraint` constrains it."""

    parts: dict[str, dict[str, Typed | None]] | None = None
    paths: list[str] | None = None

    def equation(self, equation: Equation) -> Any:
        assert self.paths is not None
        self.paths.append(equation.source.line.path)
        with jax.named_scope(f"line{len(self.paths) - 1}"):
            return super().equation(equation)

    def computed(self, equation: Equation) -> Any:
        source = equation.source
        if source.place is None:
            return super().computed(equation)
        with jax.named_scope(f"at{source.place.replace(':', '-')}"):
            value = super().computed(equation)
        self._record(source.line.path, source.place, value)
        return value

    def read(self, operand: Operand) -> Any:
        value = super().read(operand)
        if isinstance(operand, Ref) and operand.source is not None and operand.source.place is not None:
            self._record(operand.source.line.path, operand.source.place, value)
        return value

    def _record(self, path: str, where: str, value: Any) -> None:
        assert self.parts is not None
        for index, each in enumerate(value if is_sequence(value) else ()):
            self._record(path, element(where, index), each)
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return
        kind = jax.typeof(value)
        typed = Typed(tuple(kind.shape), str(kind.dtype))
        line = self.parts.setdefault(path, {})
        line[where] = typed if line.get(where, typed) == typed else None

    def settle(self, path: str, value: Any) -> Any:
        spec = self.experiment.constrained.get(path, self.experiment.results.get(path))
        return value if spec is None else self.laid_out(value, spec)

    def laid_out(self, value: Any, spec: Spec) -> Any:
        """A value as a constraint or an output asks for it."""
        mesh = abstract_mesh(self.experiment.mesh)
        return calls.with_sharding_constraint(value, NamedSharding(mesh, partition(spec)))


def planned(experiment: Experiment) -> tuple[Plan, dict[str, dict[str, Typed | None]]]:
    """Shardy's plan of the graph with its constraints, and the types of all parts of its expressions."""
    parts: dict[str, dict[str, Typed | None]] = {}
    paths: list[str] = []
    mesh = abstract_mesh(experiment.mesh)

    def whole(*arrays: Any) -> Any:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        planner = _Planner(experiment, values, parts=parts, paths=paths, flat=True)
        for array in experiment.arrays:
            if array.name in experiment.constraints:
                values[array.name] = planner.laid_out(values[array.name], experiment.constraints[array.name])
        planner.run(experiment.graph, "graph")
        return tuple(planner.values[name] for name in experiment.results)

    with jax.sharding.use_abstract_mesh(mesh):
        traced = calls.jit(whole).trace(*structs(experiment, mesh))
        try:
            lowered = traced.lower(lowering_platforms=("cpu",))
        except REFUSALS as error:
            return Plan(missing=f"the graph cannot be lowered: {refusal(error, [])}"), parts

    def where(stack: str) -> Place:
        found = list(_SCOPE.finditer(stack))
        if not found:
            return NOWHERE
        at = list(_PLACE.finditer(stack, found[-1].end()))
        return paths[int(found[-1][1])], f"{at[-1][1]}:{at[-1][2]}" if at else None, False

    arrays = {f"arrays[{at}]": array.name for at, array in enumerate(experiment.given)}
    return plan(lowered, experiment, Names(where, arrays.get, tuple(experiment.results))), parts


def derived(
    experiment: Experiment, refused: Callable[[Experiment, Floats], str | None]
) -> tuple[Experiment, Derivation] | str:
    """The experiment with the lines of one device, and what there is to say of them; or why there are none.

    `refused` says what JAX's types have against lines, and collects the dtypes in them.
    """
    found, parts = planned(experiment)
    hints = {line: {where: whole_axes(spec) for where, spec in places.items()} for line, places in found.values.items()}
    reason = None
    try:
        hints = settled(experiment, parts, hints)
        every = [derive(experiment, parts, hints, typing) for typing in TRIES[:1]]
    except NotDerived as error:
        return str(error)
    except SyntaxFault as fault:
        # What is derived says more than the line that it is derived from.
        return f"a line of it would be {fault}"
    for typing in TRIES:
        one = every.pop() if every else derive(experiment, parts, hints, typing)
        written, floats = one.experiment(experiment), Floats()
        reason = refused(written, floats)
        if reason is None:
            return written, replace(one.told(found, floats), notation=notation.lines(experiment, found))
    return f"JAX refuses the lines: {reason}"
