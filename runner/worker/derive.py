"""An experiment in; Shardy's plan of its graph, by value, and the per-device lines derived from it, out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import NamedSharding

from runner.derivation.derive import TRIES, NotDerived, derive, section, settled
from runner.evidence.hlo import Metadata
from runner.experiment.model import Experiment
from runner.graph.model import Equation, Operand, Ref
from runner.language.syntax import SyntaxFault
from runner.layout import Parts, Spec
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

_SCOPE = re.compile(r"(?:^|/)equation(\d+)(/value)?(?=/|$)")


@dataclass
class _Planner(Walker):
    """Evaluates a graph with a named scope for each equation and value, and constrains values as requested."""

    types: dict[int, Typed | tuple[Typed, ...] | None] = field(
        default_factory=dict[int, Typed | tuple[Typed, ...] | None]
    )

    def equation(self, equation: Equation) -> Any:
        with jax.named_scope(f"equation{equation.results[0].number}"):
            return super().equation(equation)

    def computed(self, equation: Equation) -> Any:
        with jax.named_scope("value"):
            value = super().computed(equation)
        self._record(equation.results[0].number, value)
        return value

    def read(self, operand: Operand) -> Any:
        value = super().read(operand)
        if isinstance(operand, Ref):
            self._record(operand.number, value)
        return value

    def _record(self, number: int, value: Any) -> None:
        parts = value if is_sequence(value) else (value,)
        arrays = tuple(itertools.takewhile(lambda part: hasattr(part, "shape") and hasattr(part, "dtype"), parts))
        if not arrays:
            return
        types = tuple(Typed(tuple((kind := jax.typeof(array)).shape), str(kind.dtype)) for array in arrays)
        typed = types if is_sequence(value) else types[0]
        self.types[number] = typed if self.types.get(number, typed) == typed else None

    def settle(self, path: str, value: Any) -> Any:
        spec = self.experiment.constrained.get(path, self.experiment.results.get(path))
        return value if spec is None else self.laid_out(value, spec)

    def laid_out(self, value: Any, spec: Spec) -> Any:
        """Return a value with a sharding constraint."""
        mesh = abstract_mesh(self.experiment.mesh)
        return calls.with_sharding_constraint(value, NamedSharding(mesh, partition(spec)))


def _traced(experiment: Experiment) -> tuple[jax.stages.Traced, dict[int, Typed | tuple[Typed, ...] | None]]:
    """Trace the graph with its constraints; returns it with the types of all of its values."""
    types: dict[int, Typed | tuple[Typed, ...] | None] = {}
    graph, mesh = experiment.computed("graph"), abstract_mesh(experiment.mesh)

    def whole(*arrays: Any) -> Any:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        planner = _Planner(experiment, values, types=types)
        for array in experiment.arrays:
            if array.name in experiment.constraints:
                values[array.name] = planner.laid_out(values[array.name], experiment.constraints[array.name])
        planner.run_graph(graph, "graph")
        return tuple(planner.values[name] for name in experiment.results)

    with jax.sharding.use_abstract_mesh(mesh):
        return calls.jit(whole).trace(*structs(experiment, mesh)), types


def value_types(experiment: Experiment) -> Parts:
    """The types of all values of the graph, by number."""
    return _traced(experiment)[1]


def planned(experiment: Experiment) -> tuple[Plan, Parts]:
    """Shardy's plan of the graph with its constraints, and the types of all of its values, by number."""
    traced, types = _traced(experiment)
    graph = experiment.computed("graph")
    with jax.sharding.use_abstract_mesh(abstract_mesh(experiment.mesh)):
        try:
            lowered = traced.lower(lowering_platforms=("cpu",))
        except REFUSALS as error:
            return Plan(missing=f"the graph cannot be lowered: {refusal(error, [])}"), types

    def where(metadata: Metadata) -> Place:
        scopes = list(_SCOPE.finditer(metadata.op_name))
        if not scopes:
            return NOWHERE
        number = int(scopes[-1][1])
        return graph.producers[number].source.line.path, number if scopes[-1][2] else None, False

    arrays = {f"arrays[{at}]": array.name for at, array in enumerate(experiment.given)}
    return plan(lowered, experiment, Names(where, arrays.get, tuple(experiment.results))), types


def derived(
    experiment: Experiment, refused: Callable[[Experiment, Floats], str | None]
) -> tuple[Experiment, Derivation, Floats] | str:
    """The experiment with per-device lines, their derivation and their dtypes; or the reason why there are none.

    `refused`: gives JAX's objection to lines, if any, and collects the dtypes in them.
    """
    shardy, types = planned(experiment)
    hints = {number: whole_axes(spec) for number, spec in shardy.values.items()}
    reason = None
    try:
        hints = settled(experiment, types, hints)
        every = [derive(experiment, types, hints, typing) for typing in TRIES[:1]]
    except NotDerived as error:
        return str(error)
    except SyntaxFault as fault:
        # A derived line is longer than its source, and may exceed the language's limits.
        return f"a line of it would be {fault}"
    tried: list[dict[str, Any]] = []
    for typing in TRIES:
        one = every.pop() if every else derive(experiment, types, hints, typing)
        lines = section(one.statements)
        if typing.check_vma and lines in tried:
            continue
        tried.append(lines)
        written, floats = one.experiment(experiment), Floats()
        reason = refused(written, floats)
        if reason is None:
            return written, replace(one.summary(shardy), notation=notation.lines(experiment, shardy)), floats
    return f"JAX refuses the lines: {reason}"
