"""Evaluates the shape and dtype of every node by JAX's own abstract evaluation: no devices, no data.

This is the last validation: errors that only JAX can find become messages about a line of the YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax

from runner.base import dtypes
from runner.base.faults import LEFT_OUT, InvalidExperiment, invalid, key_text
from runner.base.layout import Layout, Spec, Typed
from runner.base.untyped import is_sequence
from runner.base.words import listed, quoted
from runner.experiment.arrays import fits
from runner.experiment.changing import ChangingGraph
from runner.experiment.imported import inside
from runner.experiment.model import GRADIENTS, Array, Experiment, Section
from runner.experiment.program import Program
from runner.graph.language import printing
from runner.graph.language.lines import called, expressions, paths
from runner.graph.model import Repeat, literal, walk
from runner.graph.source import Source
from runner.graph.term import Apply, Const, Term, children, mapped
from runner.graph.term import calls as is_call
from runner.programs.types import Floats, InferredTypes, Repairs
from runner.worker import calls, explicit, gradient, support
from runner.worker.lowered import Requested, requested
from runner.worker.refusing import raised, refusal
from runner.worker.specs import partition
from runner.worker.versions import abstract_mesh, varying_axes
from runner.worker.walk import REFUSALS, Walker


def infer(experiment: Experiment, *, derives: bool = False) -> InferredTypes:
    """Evaluate every section abstractly.

    With `derives` the graph's lines for one device are derived even if `derived` is not among the programs to run.

    Raises `InvalidExperiment` for shapes and dtypes that JAX refuses, outputs that their specs cannot lay out, values
    that differ between devices where an output promises copies.
    """
    nodes: dict[str, dict[str, Typed]] = {}
    floats: dict[str, Floats] = {"graph": {}, "per_device": {}}
    outputs: dict[str, Typed] = {}
    differing: dict[Program, Mapping[str, tuple[str, ...]]] = {}
    for name in experiment.grad.names if experiment.grad else ():
        _fits_array(experiment, name)
    unsupported = {
        program: experiment.imports.refused
        for program in experiment.programs
        if experiment.imports.refused and program.section == "graph" and program.whole and not program.typed
    }
    unwritten: dict[Program, str] = {}
    repairs = Repairs()
    graph, own = experiment.alone("graph"), experiment.alone("per_device")
    if experiment.graph:
        nodes["graph"] = whole(graph, floats["graph"])
        for name, spec in experiment.results.items():
            key = ("outputs", name)
            fits(spec, nodes["graph"][name].shape, (), experiment.mesh, key, name, experiment.logical.get(key))
        known = {array.name: _array_type(experiment, array.name) for array in experiment.arrays} | nodes["graph"]
        named = {array.name: array.name for array in experiment.arrays} | dict(paths(experiment.computed("graph")))
        for path, spec in experiment.constrained.items():
            # Lines in a repeat without steps have no type.
            if path in known:
                key = ("constraints", experiment.patterned.get(named[path], named[path]))
                fits(spec, known[path].shape, (), experiment.mesh, key, named[path], experiment.logical.get(key))
        outputs = {name: nodes["graph"][name] for name in experiment.results}
        if experiment.grad:
            _differentiable(experiment, "graph", nodes["graph"])
            if reason := _refused(lambda: gradient.of_graph(experiment)):
                raise invalid(("grad", "of"), _of_gradient(experiment, "graph", reason))
        if Program.EXPLICIT in experiment.programs:
            try:
                repairs = explicit.repairs(graph)
            except InvalidExperiment as fault:
                unsupported[Program.EXPLICIT] = _reason(fault)
            except Exception as error:
                unwritten[Program.EXPLICIT] = raised("repairing the types of explicit sharding", error)
    deriving: dict[str, Any] = {}
    if derives or Program.DERIVED in experiment.programs:
        # Imported here: it lowers the graph, which few other evaluations need.
        from runner.worker import derive

        try:
            derivation = derive.derived(graph, derive.Judge(_refused_lines, _requested))
        except Exception as error:
            unwritten[Program.DERIVED] = derivation = raised("deriving the lines of one device", error)
        if isinstance(derivation, str):
            deriving = {"not_derived": derivation}
            if Program.DERIVED in experiment.programs and Program.DERIVED not in unwritten:
                unsupported[Program.DERIVED] = derivation
        else:
            deriving = {"derived": derivation[0], "derivation": derivation[1]}
            floats[Program.DERIVED] = derivation[2]
            differing[Program.DERIVED] = _differing(derivation[0], per_device(derivation[0], {})[1])
    if experiment.per_device:
        nodes["per_device"], varying = per_device(own, floats["per_device"])
        differing[Program.SHARD_MAP] = _differing(own, varying)
        for name, spec in experiment.results.items():
            local = nodes["per_device"][name]
            of_all = _whole(experiment, local, spec, name)
            if name in outputs and of_all.shape != outputs[name].shape:
                raise invalid(
                    ("outputs", name),
                    f"{_place(experiment, name)} gives {list(local.shape)} on each device, which under {spec.yaml()} "
                    f"is {list(of_all.shape)} in all; graph gives {list(outputs[name].shape)}"
                    f"{_scattered(experiment, name, spec, outputs[name].shape)}",
                )
            outputs[name] = of_all
            if experiment.check_vma:
                _check_varying(experiment, name, spec, varying[name])
        if own.grad:
            _differentiable(experiment, "per_device", nodes["per_device"])
        for program, refused in _REFUSED.items():
            reason = refused(own, nodes["per_device"]) if program in experiment.programs else None
            if reason:
                unsupported[program] = reason
    if experiment.grad:
        for name, array in zip(experiment.grad.names, experiment.grad.wrt, strict=True):
            outputs[name] = _array_type(experiment, array)
        outputs = {name: outputs[name] for name in experiment.outputs}
    if not experiment.chosen and all(program in unsupported for program in experiment.programs):
        of_lines = support.not_here(experiment) is not None or not experiment.grad
        raise invalid(("per_device",) if of_lines else ("grad", "of"), unsupported[experiment.programs[0]])
    return InferredTypes(outputs, nodes, repairs, unsupported, floats, differing, unwritten=unwritten, **deriving)


def _place(experiment: Experiment, output: str) -> str:
    """The readers' name of the line of `per_device` that computes an output."""
    frame = experiment.given_frames["per_device"].get(output)
    return "per_device" if frame is None else f"per_device ({frame})"


def _scattered(experiment: Experiment, output: str, spec: Spec, whole: tuple[int, ...]) -> str:
    """The end of a message: the line that leaves each device its part of an output that is a psum; "" for any other.

    `whole`: the output's global shape.
    """
    graph = experiment.computed("per_device")
    terms = dict(expressions(graph))
    line = next((line for line in terms if str(line) == output), None)
    sharded = [(dimension, axes) for dimension, axes in enumerate(spec) if axes]
    term = None if line is None else terms[line].term
    if line is None or term is None or not is_call(term, ("psum",)) or len(children(term)) != 2 or len(sharded) != 1:
        return ""
    (summed, over), ((dimension, axes),) = children(term), sharded
    if literal(over) != axes[0] or len(axes) != 1:
        return ""
    named = (("scatter_dimension", Const(dimension)), ("tiled", Const(True)))
    scattered = Apply("psum_scatter", (summed, over), named)
    changed = ChangingGraph(graph).changed({line: scattered})
    try:
        part = per_device(replace(experiment, per_device=changed), {})[0][output]
        mends = _whole(experiment, part, spec, output).shape == whole
    except InvalidExperiment:
        return ""
    what = "a psum leaves the whole sum on every device; for a part on each write"
    return f"; {what} {printing.text(scattered)}" if mends else ""


def _fits_array(experiment: Experiment, gradient: str) -> None:
    """Raise `InvalidExperiment` where a gradient cannot have the layout of its spec."""
    shape = experiment.array(gradient.removeprefix(f"{GRADIENTS}.")).shape
    key = ("outputs", gradient)
    fits(experiment.outputs[gradient], shape, (), experiment.mesh, key, gradient, experiment.logical.get(key))


def _differing(experiment: Experiment, varying: Mapping[str, frozenset[str]]) -> dict[str, tuple[str, ...]]:
    """The axes over which values passed across the gradients may differ; all axes without `check_vma`."""
    return {
        name: tuple(axis for axis in experiment.manual.axes if axis in varying[name] or not experiment.check_vma)
        for name in experiment.passed("per_device")
    }


def _reason(error: InvalidExperiment) -> str:
    """The line of the YAML, the call at fault and the problem, in one line."""
    fault = error.fault
    call = f"{fault.expression[fault.start : fault.end]}: " if fault.expression else ""
    return f"{key_text(fault.key)}: {call}{fault.message}"


def _array_type(experiment: Experiment, name: str) -> Typed:
    array = experiment.array(name)
    return Typed(array.shape, array.dtype)


def _typed(value: Any) -> Typed:
    kind = jax.typeof(value)
    return Typed(tuple(kind.shape), str(kind.dtype))


def _recorder(into: dict[str, Typed]) -> Callable[[str, Any], None]:
    def record(path: str, value: Any) -> None:
        if hasattr(value, "shape") or isinstance(value, bool | int | float | complex):
            into[path] = _typed(value)

    return record


_USUAL = ("float32", "complex64")


def _floats_recorder(into: Floats) -> Callable[[Source, Any], None]:
    """A recorder of the dtypes of an expression's parts: of floats other than float32 and complex64, and of weak types.

    Python numbers are no arrays of a weak type: the oracle has the same numbers.
    """

    def record(source: Source, value: Any) -> None:
        value = value[0] if is_sequence(value) and value else value
        if not (hasattr(value, "dtype") or isinstance(value, float | complex)):
            return
        kind = jax.typeof(value)
        name, weak = str(kind.dtype), hasattr(value, "dtype") and kind.weak_type
        if name not in dtypes.NAMES:
            return
        if weak or (dtypes.dtype(name).kind in ("float", "complex") and name not in _USUAL):
            into.setdefault(source.line.path, {})[source.part] = f"{dtypes.WEAK if weak else ''}{name}"

    return record


def _structs(experiment: Experiment, shape: Callable[[Layout], tuple[int, ...]]) -> list[jax.ShapeDtypeStruct]:
    """The inputs of a section's lines, with the types that the lines see."""
    return [jax.ShapeDtypeStruct(shape(a.layout), dtypes.dtype(a.dtype).numpy) for a in experiment.given]


def _must_be_array(experiment: Experiment, section: Section, types: Mapping[str, Typed]) -> None:
    for name in experiment.results:
        if name in types and types[name].dtype.startswith("key<"):
            message = f"'{name}' of {section} is a random key; an output is an array of numbers: key_data({name})"
            raise invalid(("outputs", name), message)
        if name not in types:
            raise invalid(("outputs", name), f"'{name}' of {section} is not an array; an output is one array")


def whole(experiment: Experiment, floats: Floats) -> dict[str, Typed]:
    """The types of the values of `graph`; the dtypes of the parts of expressions are added to `floats`."""
    types: dict[str, Typed] = {}

    def walked(*arrays: Any) -> tuple[()]:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        Walker(experiment, values, _recorder(types), _floats_recorder(floats)).run(experiment.graph, "graph")
        return ()

    calls.eval_shape(walked, *_structs(experiment, lambda layout: layout.shape))
    _must_be_array(experiment, "graph", types)
    return types


def per_device(experiment: Experiment, floats: Floats) -> tuple[dict[str, Typed], dict[str, frozenset[str]]]:
    """The types as one device sees them, and the mesh axes over which each output may differ between devices.

    The dtypes of the parts of expressions are added to `floats`.
    """
    types: dict[str, Typed] = {}
    varying: dict[str, frozenset[str]] = {}
    record = _recorder(types)

    def shard(*arrays: Any) -> tuple[()]:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        # A value passed across the gradients may be inside a call, where it has a path and no name.
        held = dict(values)

        def keep(path: str, value: Any) -> None:
            held[path] = value
            record(path, value)

        Walker(experiment, values, keep, _floats_recorder(floats)).run(experiment.per_device, "per_device")
        for name in (*experiment.results, *experiment.passed("per_device")):
            leaves = jax.tree.leaves(held[name])
            varying[name] = frozenset[str]().union(*(varying_axes(jax.typeof(leaf)) for leaf in leaves))
        return ()

    mapped = _over_devices(experiment, shard, experiment.given, ())
    calls.eval_shape(mapped, *_structs(experiment, lambda layout: layout.shape))
    _must_be_array(experiment, "per_device", types)
    return types, varying


def _over_devices(
    experiment: Experiment, shard: Callable[..., Any], arrays: Iterable[Array], out_specs: Any
) -> Callable[..., Any]:
    """A function of the blocks of `arrays` under the `shard_map` of the per-device code."""
    return calls.shard_map(
        shard,
        mesh=abstract_mesh(experiment.mesh),
        in_specs=tuple(partition(experiment.block(a.layout).spec) for a in arrays),
        out_specs=out_specs,
        axis_names=set(experiment.manual.axes),
        check_vma=experiment.check_vma,
    )


def _whole(experiment: Experiment, local: Typed, spec: Spec, name: str) -> Typed:
    """The type of the whole output whose shard is `local`."""
    if len(spec) > len(local.shape):
        entries = f"{len(spec)} {'entry' if len(spec) == 1 else 'entries'}"
        raise invalid(("outputs", name), f"the spec has {entries}, but '{name}' has rank {len(local.shape)}")
    # A block is whole over the automatic axes, which the compiler lays out at the end of the program.
    whole = Layout.of_shards(experiment.mesh, local.shape, spec.over(experiment.manual.axes)).shape
    fits(spec, whole, (), experiment.mesh, (key := ("outputs", name)), name, experiment.logical.get(key))
    return Typed(whole, local.dtype)


def _check_varying(
    experiment: Experiment, name: str, spec: Spec, varying: frozenset[str], *, remedy: bool = True
) -> None:
    """Raise `InvalidExperiment` if a replicated output may differ between devices.

    `remedy`: whether to look for a gather that mends it, for which all lines are evaluated once for each of them.
    """
    loose = [axis for axis in experiment.mesh.axes if axis in varying and axis not in spec.axes]
    if loose:
        over = quoted(loose)
        trivial = [axis for axis in loose if experiment.mesh.sizes[axis] == 1]
        sizes = f" (JAX ignores that {quoted(trivial)} has size 1)" if trivial else ""
        why = (_known_gathered(experiment, name, frozenset(loose)) if remedy else None) or LEFT_OUT
        raise invalid(
            ("outputs", name),
            f"{spec.yaml()} promises the same '{name}' on every device along {over}, but in "
            f"{_place(experiment, name)} it may differ along {over}{sizes}: {why}",
        )


def _known_gathered(experiment: Experiment, name: str, loose: frozenset[str]) -> str | None:
    """The lines with `to='invarying'`, if JAX then knows an output to be replicated along `loose`; else None."""
    graph = experiment.computed("per_device")
    terms = {line: expression.term for line, expression in expressions(graph) if not line.loops}
    gathered = {line: new for line, term in terms.items() if (new := _invarying(term)) != term}
    for lines in (*([line] for line in gathered), list(gathered)):
        changed = ChangingGraph(graph).changed({line: gathered[line] for line in lines})
        try:
            varying = per_device(replace(experiment, per_device=changed), {})[1]
        except InvalidExperiment:
            continue
        if lines and not varying[name] & loose:
            written = ((experiment.place("per_device", str(line)), printing.text(gathered[line])) for line in lines)
            changes = ", ".join(f"{place}: {text}" for place, text in written)
            return f"JAX infers that the copies are equal with: {changes}"
    return None


def _invarying(term: Term) -> Term:
    """An expression whose collectives return invarying values where they can."""
    term = mapped(term, _invarying)
    if not is_call(term) or "invarying" not in called(term).over.to:
        return term
    others = (argument for argument in term.named if argument[0] != "to")
    return replace(term, named=(*others, ("to", Const("invarying"))))


def _differentiable(experiment: Experiment, section: Section, types: Mapping[str, Typed]) -> None:
    """Raise `InvalidExperiment` unless the differentiated value is a real scalar."""
    assert experiment.grad is not None
    of, typed = experiment.grad.of, types[experiment.grad.of]
    if typed.shape:
        message = f"'{of}' of {section} is {typed.dtype}{list(typed.shape)}; a gradient needs a scalar: take its sum"
        raise invalid(("grad", "of"), message)
    if typed.dtype not in dtypes.NAMES or dtypes.dtype(typed.dtype).kind != "float":
        raise invalid(("grad", "of"), f"'{of}' of {section} is {typed.dtype}; a gradient needs a floating-point scalar")


def _refused_lines(experiment: Experiment, floats: Floats) -> str | None:
    """JAX's refusal of an experiment's per-device lines, or None; records their dtypes in `floats`."""

    def evaluate() -> None:
        _, varying = per_device(experiment, floats)
        for name, spec in experiment.results.items() if experiment.check_vma else ():
            _check_varying(experiment, name, spec, varying[name], remedy=False)

    return _refused(evaluate) or _refused_by_shard_map(experiment, {})


def _refused(evaluate: Callable[[], Any]) -> str | None:
    """The reason why JAX refuses an abstract evaluation; None where it does not."""
    try:
        evaluate()
    except InvalidExperiment as fault:
        return _reason(fault)
    except (*REFUSALS, AssertionError) as error:
        return refusal(error, [])
    return None


def _requested(experiment: Experiment) -> Iterator[tuple[Requested, int]]:
    """The collectives of per-device code and of its derivative, each with 1, or -1 to cancel one that is in both."""
    mesh, structs = experiment.mesh, _structs(experiment, lambda layout: layout.shape)
    yield from ((each, 1) for each in requested(calls.make_jaxpr(_lines_mapped(experiment))(*structs), mesh))
    if experiment.grad is not None:
        mapped = _differentiated_lines(experiment)
        structs = structs[: len(experiment.arrays)]
        differentiated = calls.grad(mapped, argnums=gradient.places(experiment))
        yield from ((each, 1) for each in requested(calls.make_jaxpr(differentiated)(*structs), mesh))
        yield from ((each, -1) for each in requested(calls.make_jaxpr(mapped)(*structs), mesh))


def _lines_mapped(experiment: Experiment) -> Callable[..., Any]:
    """The whole per-device code under `shard_map`, without results."""

    def shard(*arrays: Any) -> tuple[()]:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        Walker(experiment, values).run(experiment.per_device, "per_device")
        return ()

    return _over_devices(experiment, shard, experiment.given, ())


def _differentiated_lines(experiment: Experiment) -> Callable[..., Any]:
    """The per-device code up to the value that is differentiated, under `shard_map`."""
    assert experiment.grad is not None
    of = experiment.grad.of

    def shard(*arrays: Any) -> Any:
        walker = Walker(experiment, dict(zip((a.name for a in experiment.arrays), arrays, strict=True)))
        walker.run(experiment.before("per_device"), "per_device")
        return walker.values[of]

    return _over_devices(experiment, shard, experiment.arrays, partition(experiment.outputs[of]))


def _refused_by_shard_map(experiment: Experiment, types: Mapping[str, Typed]) -> str | None:
    """The reason why `shard_map` does not support the per-device code or its derivative; None where it does."""
    if (reason := support.not_here(experiment)) is not None or experiment.grad is None:
        return reason
    differentiated = calls.grad(_differentiated_lines(experiment), argnums=gradient.places(experiment))
    structs = _structs(experiment, lambda layout: layout.shape)[: len(experiment.arrays)]
    reason = _refused(lambda: calls.eval_shape(differentiated, *structs))
    return _of_gradient(experiment, "per_device", reason) if reason else None


def _of_gradient(experiment: Experiment, section: Section, reason: str) -> str:
    """The message for a gradient that JAX refuses for a `reason`; it refuses the reverse mode of a while."""
    assert experiment.grad is not None
    whiles = [
        experiment.place(section, str(equation.source.line))
        for equation in walk(experiment.computed(section))
        if isinstance(equation.form, Repeat) and equation.form.going is not None
    ]
    if whiles and "while_loop" in reason:
        reason = (
            f"JAX cannot differentiate a while in reverse ({listed(whiles)}): let it take a number of steps that is "
            "known, as a scan or a fori_loop does, or stop_gradient what it reads; if it has a derivative of its own, "
            "write that as a jax.custom_vjp in a Python function"
        )
    return f"the gradient of '{experiment.grad.of}': {reason}"


def _refused_by_vmap(experiment: Experiment, types: Mapping[str, Typed]) -> str | None:
    """The reason why `vmap` does not support the per-device code, or None. `types`: those under `shard_map`."""
    for _, _, function in inside(experiment.per_device, experiment.imports):
        if function.differentiated:
            return f"{function.call} takes the derivative of a collective, which jax.vmap differentiates differently"
    experiment = experiment.inside
    recorded: dict[str, Typed] = {}

    def shard(*arrays: Any) -> Any:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        walker = Walker(experiment, values, _recorder(recorded), under_vmap=True)
        walker.run(experiment.per_device, "per_device")
        return walker.values[experiment.grad.of] if experiment.grad else ()

    mapped: Callable[..., Any] = shard
    structs = _structs(experiment, lambda layout: layout.shard_shape)
    for axis in reversed(experiment.mesh.axes):
        size = experiment.mesh.sizes[axis]
        # Every device has its own block of a gradient, though several may be equal.
        in_axes = tuple(
            None if a.init is not None and axis in a.layout.replicated_over else 0 for a in experiment.given
        )
        mapped = jax.vmap(mapped, in_axes=in_axes, axis_name=axis, axis_size=size)
        structs = [
            s if i is None else jax.ShapeDtypeStruct((size, *s.shape), s.dtype)
            for s, i in zip(structs, in_axes, strict=True)
        ]
    if reason := _refused(lambda: calls.eval_shape(mapped, *structs)):
        return reason
    for name, typed in types.items():
        if recorded.get(name) != typed:
            there = list(recorded[name].shape) if name in recorded else None
            return (
                f"per_device.{name}: jax.vmap gives it the shape {there} instead of {list(typed.shape)}; "
                "it has no all_to_all of an operand that is the same along an axis"
            )
    if experiment.grad:
        first = (0,) * len(experiment.mesh.axes)

        def scalar(*blocks: Any) -> Any:
            return mapped(*blocks)[first]

        differentiated = calls.grad(scalar, argnums=gradient.places(experiment))
        if reason := _refused(lambda: calls.eval_shape(differentiated, *structs)):
            return _of_gradient(experiment, "per_device", reason)
    return None


_REFUSED: Mapping[Program, Callable[[Experiment, Mapping[str, Typed]], str | None]] = {
    Program.SHARD_MAP: _refused_by_shard_map,
    Program.VMAP: _refused_by_vmap,
}
"""Why JAX cannot express a program of `per_device`, from the types of its values, where JAX does not say."""
