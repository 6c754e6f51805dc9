"""Finds what to write where JAX's types refuse a line of a traced function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from runner.base import codec
from runner.base.faults import InvalidExperiment
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.experiment.frames import free
from runner.experiment.imported import KEY, Imported, Imports, skeleton
from runner.experiment.reader import read
from runner.graph.sharding.repairs import Repair
from runner.worker import calls, explicit
from runner.worker.functions import remedies
from runner.worker.functions.reading import Reading
from runner.worker.jaxpr import jaxprs
from runner.worker.setting import WITHIN
from runner.worker.specs import spec_of
from runner.worker.versions import varying_axes


@dataclass(frozen=True)
class RefusedCalls:
    """Finds the remedies for calls that JAX refuses on Explicit axes."""

    reading: Reading

    def remedy(
        self,
        error: BaseException,
        typed: Mapping[str, Any],
        untyped: Callable[[], tuple[jaxprs.FunctionLines, Mapping[str, Spec]]],
    ) -> str | None:
        """What to write where JAX's types refuse a line.

        `untyped` reads the function of whole arrays, whose types JAX accepts, and the layouts that it states itself.
        """
        if self.reading.section.around:
            return None
        place = remedies.refused_at(error)
        by_path = {self.reading.scope.paths.get(name, name): struct for name, struct in typed.items()}
        if (hint := remedies.of_in_specs(error, by_path) or remedies.of_control_flow(error, place)) is not None:
            return hint
        try:
            lines, stated = untyped()
        except Exception:
            # It is refused without types too, for the layouts that it states itself.
            return self._remedy_alone(error)
        if place is None:
            return None
        for path, repairs in self._repairs(lines, typed, self.reading.arrays, stated).items():
            # The path of a line of a call ends with the line's own name.
            own = max((label for label in lines.frames if path.endswith(label)), key=len, default="")
            frame = lines.frames.get(own)
            if frame is None or (frame.file, frame.line) != (place.filename, place.lineno):
                continue
            # Of several calls in a line JAX refuses the first.
            repair = next(iter(repairs.values()))
            text = remedies.written(repair, place)
            accepted = f"write {text}, which JAX's types accept"
            hint = accepted if text else remedies.on_auto_axes(repair, self.reading.probe.mesh)
            if hint is not None:
                return hint
        return self._remedy_alone(error)

    def _remedy_alone(self, error: BaseException) -> str | None:
        """What to write in the refused expression, of operands in the layouts that they have there."""
        refused = remedies.RefusedExpression.of(error)
        if refused is None or any(varying_axes(kind) for kind in refused.operands.values()):
            return None
        arrays = {
            name: {"shape": list(kind.shape), "dtype": str(kind.dtype), "spec": spec.json(), "init": 0}
            for name, kind in refused.operands.items()
            if (spec := spec_of(kind.sharding)) is not None
        }
        ways: list[tuple[str, str] | None] = []
        # What is refused without types too states layouts itself, or no operand's layout is at fault.
        with contextlib.suppress(Exception):
            lines = jaxprs.read(
                refused.function(), refused.operands, mesh=self.reading.probe.mesh, taken=self.reading.taken_inside
            )
            repairs = self._repairs(lines, refused.operands, arrays, {})
            ways += [refused.mended(next(iter(of_line.values()))) for of_line in repairs.values()]
        with contextlib.suppress(Exception), self.reading.settings.context(WITHIN):
            ways += refused.resharded(self.reading.probe.mesh)
        for way in ways:
            with contextlib.suppress(Exception), self.reading.settings.context(WITHIN):
                if way is not None:
                    calls.eval_shape(refused.function(way[1]), *refused.operands.values())
                    return f"write {way[0]}, which JAX's types accept"
        return None

    def _repairs(
        self,
        lines: jaxprs.FunctionLines,
        operands: Mapping[str, Any],
        arrays: Mapping[str, Any],
        stated: Mapping[str, Spec],
    ) -> dict[str, dict[int, Repair]]:
        """The repairs of a function's lines that make JAX's types accept them, by the paths of the lines."""
        name, arrays = free("refused", self.reading.taken), {**arrays}
        for captured, value in lines.arrays.items():
            arrays[captured] = {"shape": list(value.shape), "dtype": str(value.dtype), "spec": [], "init": 0}
        traced = lines.traced(operands)
        function = Imported(name, "", traced, lines.frames, inside=lines.marked, constraints=lines.marked)
        given = [f"{name}_{number}" for number in range(len(lines.results))]
        whole: dict[str, Any] = {
            **skeleton(self.reading.definition),
            "arrays": arrays,
            "functions": {**self.reading.plain, **self.reading.functions},
            "graph": {", ".join(given): f"{name}({', '.join(traced.parameters)})"},
            "outputs": {each: [] for each in given},
            "constraints": {path: spec.json() for path, spec in stated.items()},
            "per_device": {},
            "expect": {},
            "grad": {},
            KEY: codec.plain(Imports({name: function}, x64=calls.x64())),
        }
        chosen = explicit.Repairs()
        with contextlib.suppress(InvalidExperiment):
            # A later line may be one that no repair of ours mends.
            explicit.repairs(read(whole).alone("graph"), through=True, chosen=chosen)
        return chosen.calls
