"""Finds the layouts of a call's results that nobody asked for, and which results are the next values of operands.

A result is an operand's next value if it is a tree of the same structure and types, and comes of it by element-wise
operations and updates: new parameters are the parameters plus something; gradients are not.

For the layouts of intermediate values a program that also returns them is compiled, not run. A returned value is not
fused away, and its layout comes from the same propagation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from runner.base.faults import Key, invalid
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.experiment.imported import skeleton
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.graph.sharding.propagation import whole_axes
from runner.link.events import ValueLayout
from runner.worker import calls, phases, ready, shardy
from runner.worker.functions.trees import Tree, plain_spec, spec_entry
from runner.worker.modules import Walk
from runner.worker.refusing import reported
from runner.worker.setting import CallSettings, Setting
from runner.worker.specs import partition, spec_of
from runner.worker.versions import PROPAGATED, Literal, bodies, propagated


def layouts(
    experiment: Experiment, program: Program, module: ModuleType, devices: list[Any] | None = None
) -> dict[str, ValueLayout]:
    """The layout of each value whose layout `expect` names.

    `devices` are those of an absent topology.
    """
    probing = experiment.probing(program)
    assert probing is not None
    prepared = ready.abstract(experiment, program, module, devices)
    with prepared.within():
        lowered = prepared.function.lower(*prepared.operands)
        shardings = lowered.compile().output_shardings
    by_name: dict[str, ValueLayout] = {}
    for name, info, sharding in zip(probing.outputs, lowered.out_info, shardings, strict=True):
        if name in experiment.expected[program].layouts:
            by_name[name] = ValueLayout(spec=spec_of(sharding), shape=list(info.shape), text=str(sharding))
    return by_name


def of_results(lowered: Any) -> list[PartitionSpec]:
    """The layouts of a lowered function's results, by Shardy's propagation; a whole compilation takes far longer.

    They are those of the compiled module, except where XLA's partitioner knows more of an operation than Shardy does.
    """
    module = propagated(lowered, PROPAGATED)
    if isinstance(module, str):
        # A result that depends on no array is on a single device and has no PartitionSpec.
        of_compiled = calls.tree.leaves(lowered.compile().output_shardings)
        return [getattr(sharding, "spec", PartitionSpec()) for sharding in of_compiled]
    attributes = Walk(module).main.attributes
    texts = map(str, attributes["res_attrs"]) if "res_attrs" in attributes else ()
    specs = [shardy.read_spec(text) for text in texts]
    # Shardy writes nothing at a result that is whole.
    specs += [None] * (len(calls.tree.leaves(lowered.out_info)) - len(specs))
    return [PartitionSpec() if spec is None else partition(whole_axes(spec)) for spec in specs]


@dataclass(frozen=True)
class CompilableCall:
    """A call of arrays alone: its function, the types of its operands by name, and how it was traced."""

    function: Callable[..., Any]
    structs: Mapping[str, Any]
    how: Setting
    gives: Any
    """The tree of its results, with their numbers."""


@dataclass(frozen=True)
class ResultLayouts:
    """The layouts of the results of calls; `arrays` are those that were read so far, as in the definition."""

    experiment: Experiment
    definition: Mapping[str, Any]
    arrays: Mapping[str, Any]
    settings: CallSettings

    def next_values(
        self,
        call: CompilableCall,
        tree: Tree,
        specs: Mapping[str, list[Any] | None] | None,
        operands: Mapping[str, Tree],
        alone: Sequence[str],
    ) -> Iterator[tuple[str, str]]:
        """Yield the results that are the next values of arrays, with these.

        `specs`: their layouts, None if open; `alone`: the arrays that may be a state by themselves.
        """
        types: list[Any] = []

        def alike(array: str, number: int) -> bool:
            if not types:
                with self.settings.context(call.how):
                    types.extend(calls.eval_shape(call.function, *call.structs.values()))
            own, other = call.structs.get(array), types[number]
            return own is not None and (own.shape, own.dtype) == (other.shape, other.dtype)

        parts = {name: (of.structure, of.leaves) for name, of in operands.items()}
        pairs = [*candidates(parts, call.gives, alike, alone)]
        moved = [
            (array, number)
            for array, number in pairs
            if specs is None or self._moves(self.arrays[array]["spec"], specs[tree.leaves[number]])
        ]
        is_next: Callable[[str, int], bool] | None = None
        if moved:
            with self.settings.context(call.how):
                is_next = updates(call.function, call.structs)
        for array, number in pairs:
            # One that lies as its operand needs no proof that it is its next value.
            if (array, number) not in moved or (is_next is not None and is_next(array, number)):
                yield tree.leaves[number], array

    def _moves(self, before: Any, after: Any) -> bool:
        """Whether two specs are of different layouts."""
        sizes = self.experiment.mesh.sizes
        pair = [Spec.of(spec or ()) for spec in (before, after)]
        rank = max(map(len, pair))
        kept = [[[axis for axis in axes if sizes.get(axis, 2) > 1] for axes in spec.padded(rank)] for spec in pair]
        return kept[0] != kept[1]

    def chosen(
        self, name: str, call: CompilableCall | None, tree: Tree, asked: Mapping[str, list[Any] | None], key: Key
    ) -> dict[str, list[Any] | None]:
        """The specs of the leaves of the result `name`, with those that were asked for.

        Raises `InvalidExperiment` at `key` if the line calls no function, or it does not compile.
        """
        if call is None:
            why = "the line calls no function of arrays alone"
            raise invalid(key, f"'{name}' has no PartitionSpec, and the compiler cannot choose one: {why}")
        if self.experiment.target.topology is not None and not call.how.explicit:
            # The compiled module says what its compiler chose; nothing runs that a layout here would matter to.
            return {leaf: [] if entries is None else entries for leaf, entries in asked.items()}
        phases.tell("the layouts of results were asked for", "XLA is compiling, which chooses the layouts of results")
        mesh = self.settings.mesh(call.how.explicit)
        shardings = [
            None if entries is None else NamedSharding(mesh, PartitionSpec(*map(spec_entry, entries)))
            for entries in (asked[leaf] for leaf in tree.leaves)
        ]
        try:
            with self.settings.context(call.how):
                specs = _of_types(call) if call.how.explicit else self._propagated(call, shardings)
        except BaseException as error:
            raise reported(error, f"compiling '{name}'", key) from None
        chosen = dict(zip(tree.leaves, map(plain_spec, specs), strict=True))
        return {leaf: chosen[leaf] if entries is None else entries for leaf, entries in asked.items()}

    def _propagated(self, call: CompilableCall, shardings: list[NamedSharding | None]) -> list[PartitionSpec]:
        """The layouts that the compiler chooses for the results, beside those that are given."""
        alone: dict[str, Any] = {"arrays": self.arrays, "grad": {}, "expect": {}}
        layouts = {a.name: a.layout.spec for a in read({**skeleton(self.definition), **alone}).arrays}
        mesh = self.settings.mesh(call.how.explicit)
        given = [NamedSharding(mesh, partition(layouts[operand])) for operand in call.structs]
        jitted = calls.jit(call.function, in_shardings=given, out_shardings=shardings)
        return of_results(jitted.lower(*call.structs.values()))


def _of_types(call: CompilableCall) -> list[PartitionSpec]:
    """The layouts of the results in their types on Explicit axes."""
    return [aval.sharding.spec for aval in calls.jit(call.function).trace(*call.structs.values()).jaxpr.out_avals]


_KEEPING = (
    "add", "add_any", "sub", "mul", "div", "max", "min", "neg", "select_n", "clamp", "convert_element_type",
    "sharding_constraint", "reshard", "copy", "optimization_barrier", "dynamic_update_slice", "scatter", "scatter-add",
    "name", "mesh_cast", "pvary",
)  # fmt: skip
"""The primitives whose result is the next value of an operand of its shape."""


def candidates(
    operands: Mapping[str, tuple[Any, tuple[str, ...]]],
    result: Any,
    alike: Callable[[str, int], bool],
    alone: Sequence[str],
) -> Iterator[tuple[str, int]]:
    """Yield the pairs of an array and the number of the result's leaf that may be its next value.

    - `operands`: the structure and the leaves of each.
    - `result`: its tree, with numbers for leaves.
    - `alike`: whether an array and a leaf of the result have the same type.

    A tree of several arrays may be a state, and a single array if it is among those `alone`.
    """
    parts: list[Any] = [result]
    for part in parts:
        if isinstance(part, tuple | list | dict):
            parts += part.values() if isinstance(part, dict) else part
    taken: set[int] = set()
    for structure, leaves in operands.values():
        if len(leaves) < 2 and not set(leaves) <= {*alone}:
            continue
        for part in parts:
            numbers: list[int] = calls.tree.leaves(part)
            if calls.tree.structure(part) != structure or not taken.isdisjoint(numbers):
                continue
            pairs = [*zip(leaves, numbers, strict=True)]
            if all(alike(*pair) for pair in pairs):
                taken.update(numbers)
                yield from pairs
                break


def updates(function: Callable[..., Any], structs: Mapping[str, Any]) -> Callable[[str, int], bool]:
    """Return whether a result of a function, by its number, is the next value of an operand, by its name."""
    closed = calls.make_jaxpr(function)(*structs.values())
    names = [*structs]
    reached: dict[int, frozenset[int]] = {}

    def is_next(array: str, number: int) -> bool:
        if number not in reached:
            reached[number] = _origins(closed.jaxpr, number)
        return names.index(array) in reached[number]

    return is_next


def _origins(jaxpr: Any, number: int) -> frozenset[int]:
    """The inputs of a jaxpr of which an output is the next value."""
    producers = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    inputs = {variable: at for at, variable in enumerate(jaxpr.invars)}
    origins: set[int] = set()
    left, known = [jaxpr.outvars[number]], set[Any]()
    while left:
        variable = left.pop()
        if isinstance(variable, Literal) or variable in known:
            continue
        known.add(variable)
        if variable in inputs:
            origins.add(inputs[variable])
        elif variable in producers:
            left += _before(producers[variable], variable)
    return frozenset(origins)


def _before(equation: Any, variable: Any) -> list[Any]:
    """The operands of which a result of an equation may be the next value."""
    name = equation.primitive.name
    number = equation.outvars.index(variable)
    if name in _KEEPING:
        same = [invar for invar in equation.invars if invar.aval.shape == variable.aval.shape]
        return same[:1] if "scatter" in name or name == "dynamic_update_slice" else same
    if name == "cond":
        called, operands = [body for _, body in bodies(equation)], equation.invars[1:]
    elif name == "scan" and number < len(equation.outvars):
        called, operands = [body for _, body in bodies(equation)], equation.invars
        if number >= len(called[0].outvars) or called[0].outvars[number].aval.shape != variable.aval.shape:
            return []
    else:
        called = [body for key, body in bodies(equation) if key.endswith("jaxpr")][:1]
        if not called or name in ("shard_map", "while", "custom_linear_solve"):
            return []
        operands = equation.invars
    given: list[Any] = []
    for body in called:
        count = len(body.invars)
        if number >= len(body.outvars) or count > len(operands):
            continue
        own = operands[len(operands) - count :]
        given += [own[at] for at in _origins(body, number)]
    return given
