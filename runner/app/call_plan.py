"""Plans the layouts of a call of a Python function: specs to paste or use, the lines to constrain, why, and a page."""

from __future__ import annotations

import difflib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.called.open_specs import experiment_of
from runner.app.flow import candidates
from runner.app.flow.plan_run import FinishedPlan
from runner.app.flow.planning import Compiled, measure, most_flops
from runner.base.chosen import AUTO
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.words import listed, shown
from runner.experiment import remat
from runner.experiment.open_layouts import Least
from runner.experiment.program import Program
from runner.graph.language.python_source import around_products
from runner.graph.source import Frame
from runner.programs.planning.plan import Alternative
from runner.programs.spelling import CONSTRAIN
from runner.reports.record.folders import PAGE
from runner.reports.show import plan_table as showing
from runner.reports.show.console import captured, tell

if TYPE_CHECKING:
    from runner.app.called.experiment import CalledExperiment


@dataclass(frozen=True)
class LineConstraint:
    """The layout of the result of one operation of the caller's function.

    - `frame`: the file, the number and the text of its line; `operation`: its name with its number in the function,
      `dot_general.3`; `spec`: a `PartitionSpec`.
    """

    frame: Frame | None
    operation: str
    spec: Any

    def __str__(self) -> str:
        where = f"{self.frame.place} {self.frame.text}" if self.frame else self.operation
        return f"{where}: {self.spec}"


@dataclass(frozen=True)
class Plan:
    """The layouts that the planner found for a call.

    - `in_specs`, `out_specs`: trees of `PartitionSpec`, as `jax.jit` and `runner.check` take them on `mesh`.
    - `constraints`: the layouts of products by the lines of the caller's files; `diff()`: these as a change of the
      files.
    - `next_best`: for each path of a leaf that was open the second best layout, what it costs more, and why.
    - `parallelism`: its kinds of parallelism, in words; `cost`, in the unit of `least`; `bytes_sent`, `held`,
      `needed`: bytes of a device, by the model; `proved`: whether no other plan is better, by the model.
    - `saved`, `policy`: with `remat="auto"` the names of the values that the policy `runner.AUTO` of the function's
      checkpoints saves, or `everything`; and the policy of `jax.checkpoint` that does so, to paste.
    - `compiled`: by program, what was compiled: `auto`, the function with `in_specs` and `out_specs` alone, and
      `constraint`, with the layouts of products as well; each with `bytes_sent`, `seconds` and `memory_bytes`.
    - `worse`: whether `constraint` has more than `auto` of what is to be small, as compiled, although a device computes
      as much with both, and no limit of memory asks for it.
    - `status`: `passed`, or that of the best candidate's run; `folder`: of its files; `page`: of its report.

    `str()` gives what the command prints; a notebook shows the same.
    """

    mesh: Mapping[str, int]
    in_specs: tuple[Any, ...]
    out_specs: Any
    constraints: tuple[LineConstraint, ...]
    next_best: Mapping[str, Alternative]
    parallelism: tuple[str, ...]
    least: str
    cost: float
    bytes_sent: float
    held: float
    needed: float
    proved: bool
    compiled: Mapping[str, Compiled]
    status: str
    folder: Path
    text: str
    saved: tuple[str, ...] | str | None = None
    policy: str | None = None
    worse: bool = False

    @property
    def page(self) -> Path:
        """The page of the plan."""
        return self.folder / PAGE

    def diff(self) -> str:
        """The change of the caller's files that constrains the products of the plan, as a unified diff.

        Of a line that calls a layer of a library the value of the call is constrained. Products of the backward pass
        are laid out by the transpose of these; `constraints` has them too. Lines under `jax.vmap` are left as they
        are: a value there lacks the dimension that the map adds, and the spec has it. The diff is empty if `worse`.
        """
        return "" if self.worse else "".join(_diffs(self.constraints))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Plan: least {self.least} {self.cost:.6g}, {'; '.join(self.parallelism) or 'no kind of parallelism'}>"

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.text)}</pre>"


def of_finished(
    finished: FinishedPlan,
    function: Callable[..., Any],
    operands: Sequence[Any],
    called: CalledExperiment,
    folder: Path,
) -> Plan:
    """The plan of a call, from what the planner left: `called` is the experiment that it planned."""
    planning, best = finished.planning, finished.best
    specs = _Specs(finished)
    plan, labels = planning.plan, planning.labels
    on_explicit = planning.experiment.programs == (Program.EXPLICIT,)
    text = captured(lambda: showing.show(plan, labels, planning.request, str))
    compiled = {each.program: each for tried in finished.own for each in tried.programs if tried.candidate == best}
    worse = planning.request.memory is None and _is_worse(compiled, plan.least)
    if finished.own:
        programs = _EXPLICIT if on_explicit else _PROGRAMS
        if own := [tried for tried in finished.own if tried.programs[0].program == Program.DERIVED.value]:
            programs += f"{_DERIVED}: {shown(folder / own[0].folder / 'program_derived.py')}"
        text = f"{text.rstrip()}\n\n{captured(lambda: candidates.show(planning, finished.own, str))}"
        text += captured(lambda: tell(programs))
        text += f"{_WORSE}\n" if worse else ""
    constraints = tuple(specs.constraints())
    for sentence in () if worse else _unchanged(constraints):
        text = f"{text.rstrip()}\n\n{captured(lambda sentence=sentence: tell(sentence))}"
    if finished.unverified is not None:
        # A caller gives the key as an argument.
        unverified = finished.unverified.replace("plan.verify=true", "verify=True")
        text = f"{text.rstrip()}\n\n{captured(lambda: tell(unverified))}"
    refused = _ON_AUTO_AXES if called.keys["program"] == Program.EXPLICIT.value and not on_explicit else None
    for sentence in (finished.ranked.caveat, refused):
        text = text if sentence is None else f"{captured(lambda sentence=sentence: tell(sentence))}\n{text}"
    return Plan(
        mesh=planning.experiment.mesh.sizes,
        in_specs=specs.of_operands(operands, called),
        out_specs=specs.of_result(function, operands),
        constraints=constraints,
        next_best={labels.get(alternative.key, alternative.key): alternative for alternative in plan.alternatives},
        parallelism=plan.parallelism,
        least=plan.least,
        cost=best.cost,
        bytes_sent=best.sent,
        held=best.held,
        needed=best.needed,
        proved=plan.proved,
        saved=best.saved,
        policy=None if best.saved is None else remat.policy(best.saved),
        compiled=compiled,
        status=finished.status,
        folder=folder,
        text=text,
        worse=worse,
    )


_PROGRAMS = "auto is your function with in_specs and out_specs alone; constraint has the layouts of products too"
_DERIVED = "; derived is a shard_map, and has its lines of one device"
_EXPLICIT = (
    "explicit is your function on Explicit axes with in_specs and out_specs. diff() is empty: the layouts inside are "
    "those that it states, and those that follow from them by JAX's types"
)
"""What the programs of the candidates are, of a call."""

_ON_AUTO_AXES = "JAX refuses the function on Explicit axes: the plan is one for a mesh with Auto axes"
"""What the text says if the caller's axes are Explicit, and the plan's are not."""

_WORSE = "with the layouts of products the program is worse than with the specs alone: diff() changes nothing"
"""What the text says if they make the compiled program worse."""


def _is_worse(compiled: Mapping[str, Compiled], least: Least) -> bool:
    """Whether a program with the layouts of products has more of what is to be small than with the specs alone.

    It is not worse if with the specs alone a device computes more.
    """
    alone, constrained = (compiled.get(name) for name in ("auto", "constraint"))
    if alone is None or constrained is None or (alone.flops or 0.0) > most_flops([alone, constrained], least):
        return False
    less, more = measure(alone, least), measure(constrained, least)
    return less is not None and more is not None and more > less


class _Specs:
    """The layouts of a plan, as PartitionSpecs in the caller's trees."""

    def __init__(self, finished: FinishedPlan) -> None:
        self._jax: Any = sys.modules["jax"]
        self._experiment = finished.planning.experiment
        self._layouts = finished.best.layouts
        self._saved = finished.best.saved
        self._paths = self._experiment.imports.paths

    def of_operands(self, operands: Sequence[Any], called: CalledExperiment) -> tuple[Any, ...]:
        """A tree of specs for each operand; None for one without arrays."""
        own = {array.name: array.layout.spec for array in self._experiment.arrays}
        numbers = {str(array["tree"]): name for name, array in called.keys["arrays"].items()}
        trees: list[Any] = []
        for at, operand in enumerate(operands):
            name = next((name for tree, name in numbers.items() if tree.endswith(f"operands[{at}]")), None)
            leaves = [each for each in own if self._paths.get(each, each).partition("/")[0] == name]
            chosen = iter([self._layouts.get(f"arrays.{leaf}.spec", own[leaf]) for leaf in leaves])

            def of_leaf(leaf: Any, given: Iterator[Spec] = chosen) -> Any:
                return self._partition(next(given)) if hasattr(leaf, "shape") else None

            trees.append(None if name is None else self._jax.tree.map(of_leaf, operand))
        return tuple(trees)

    def of_result(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """A tree of specs for the result; by paths where a leaf of it is no array."""
        outputs = {
            self._paths.get(name, name): self._partition(self._layouts.get(f"outputs.{name}", spec))
            for name, spec in self._experiment.outputs.items()
        }
        # Names of mesh axes in the function mean those of the plan's mesh, as where it was planned.
        mesh = self._experiment.mesh
        of_types = self._jax.sharding.AxisType
        typed = any(program.typed for program in self._experiment.programs)
        types = tuple(of_types.Explicit if typed and axis in mesh.explicit else of_types.Auto for axis in mesh.axes)
        abstract = self._jax.sharding.AbstractMesh(mesh.shape, mesh.axes, axis_types=types)
        operands = self._jax.tree.map(self._without_layout, operands)
        with self._jax.sharding.use_abstract_mesh(abstract), AUTO.saving(self._saved):
            shapes = self._jax.eval_shape(function, *operands)
        leaves, structure = self._jax.tree.flatten(shapes)
        return self._jax.tree.unflatten(structure, outputs.values()) if len(leaves) == len(outputs) else outputs

    def _without_layout(self, leaf: Any) -> Any:
        """A leaf's type without the caller's mesh, which may be another than the plan's."""
        return self._jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf

    def constraints(self) -> Iterator[LineConstraint]:
        """Yield the layouts of products that were open, with their lines."""
        lines = {path: line for line, path in self._experiment.patterned.items()}
        frames = self._experiment.frames["graph"]
        for key, spec in self._layouts.items():
            section, _, path = key.partition(".")
            if section == "constraints":
                frame = frames.get(lines.get(path, path))
                yield LineConstraint(frame, path.rpartition("/")[2], self._partition(spec))

    def _partition(self, spec: Spec) -> Any:
        entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec]
        while entries and entries[-1] is None:
            entries.pop()
        return self._jax.sharding.PartitionSpec(*entries)


# The change of the caller's files.


def _diffs(constraints: Sequence[LineConstraint]) -> Iterator[str]:
    """Yield a unified diff for each file."""
    for file, before, changed in _changed(constraints):
        yield from difflib.unified_diff(before, changed, file, file)


def _changed(constraints: Sequence[LineConstraint]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each file with its lines, and with these changed."""
    files: dict[str, dict[int, list[LineConstraint]]] = {}
    for constraint in constraints:
        if constraint.frame is not None and not constraint.frame.mapped:
            files.setdefault(constraint.frame.file, {}).setdefault(constraint.frame.line, []).append(constraint)
    for file, lines in files.items():
        before = linecache.getlines(file)
        specs = {line: [_written(each.spec) for each in own] for line, own in lines.items()}
        yield file, before, around_products("".join(before), CONSTRAIN, specs).splitlines(keepends=True)


def _unchanged(constraints: Sequence[LineConstraint]) -> Iterator[str]:
    """Yield what has to be written by hand: a sentence on the lines that `jax.vmap` maps, and one on other lines."""
    frames = [each.frame for each in constraints if each.frame and any(each.spec) and not each.frame.derivative]
    if mapped := {frame.place: None for frame in frames if frame.mapped}:
        yield (
            f"diff() does not change {listed(list(mapped))}, which jax.vmap maps: a value there lacks the dimension "
            "that the map adds, and its layout in constraints has it; constrain the result of the map, or give "
            "jax.vmap spmd_axis_name= and constrain the value by the other entries"
        )
    files = {file: (before, after) for file, before, after in _changed(constraints)}
    other = dict[str, None]()
    for frame in frames:
        before, after = files.get(frame.file, ([], []))
        if not frame.mapped and before[frame.line - 1 : frame.line] == after[frame.line - 1 : frame.line]:
            other[frame.place] = None
    if other:
        yield (
            f"diff() does not change {listed(list(other))}, where it finds no call that computes the product: "
            "constrain the value by hand, as constraints has it"
        )


def _written(spec: Any) -> str:
    """A PartitionSpec as a user's file has it: `P('data', None)`."""
    return f"P({', '.join(map(repr, spec))})"


__all__ = ["LineConstraint", "Plan", "experiment_of", "of_finished"]
