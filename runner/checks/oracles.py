"""Takes an experiment, its arrays and its types; returns the oracles of a run, which every check reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from runner.base.faults import InvalidExperiment, invalid
from runner.base.layout import Typed, distinct
from runner.base.words import quoted
from runner.checks.context import Context
from runner.checks.reference import CannotInterpret, Oracle, PerDevice, Rounding, gradient, interpret, measure
from runner.checks.reference.arithmetic import Arithmetic, Floats
from runner.checks.reference.decisions import Recording
from runner.checks.reference.rounding import machine, of_float64
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment, Section
from runner.experiment.plain import located
from runner.graph.language.lines import reached
from runner.graph.language.syntax import fault_at
from runner.graph.model import Graph
from runner.graph.source import SECTIONS


def consult(
    experiment: Experiment,
    arrays: Arrays | None,
    outputs: Mapping[str, Typed],
    floats: Mapping[str, Floats],
    released: Mapping[str, str] = MappingProxyType({}),
) -> Context:
    """Interpret both sections, in float64 and as the target rounds; neither without `arrays`.

    `outputs` has each output's whole shape and dtype, `floats` the dtypes of each section's expressions. Lines that
    need gradients are left to `consult_gradients`.

    Raises `InvalidExperiment` for a line whose values do not fit the collective that it calls.
    """
    context = Context(experiment, arrays or {}, outputs, floats, None, None, released=released)
    if arrays is not None and experiment.reads_gradients:
        context.experiment = experiment.forward
        _interpret(context)
        context.experiment = experiment
    elif arrays is not None:
        _interpret(context)
    return context


def _interpret(context: Context, drawn: Mapping[Section, Sequence[Arrays]] | None = None) -> None:
    """Interpret both sections; `drawn` are the arrays for their rounded interpretations, if these differ."""
    experiment, arrays = context.experiment, context.arrays
    sections: dict[Section, Oracle | None] = {"graph": None, "per_device": None}
    for section in sections:
        if experiment.section(section):
            try:
                sections[section] = measure(
                    experiment,
                    section,
                    arrays,
                    context.floats.get(section, {}),
                    keep=experiment.alone(section).results,
                    whole=lambda name, value, section=section: _whole(context, section, name, value),
                    machine=machine(experiment),
                    drawn=(drawn or {}).get(section, ()),
                )
            except CannotInterpret as error:
                raise _located(experiment, section, error) from None
    context.graph, context.per_device = sections["graph"], sections["per_device"]
    if context.graph is not None and context.per_device is not None:
        both: dict[Section, Oracle] = {"graph": context.graph, "per_device": context.per_device}
        context.in_float64 = {section: in_float64(context, section) for section in both}
        if any(oracle.casts for oracle in both.values()):
            context.uncast = {section: uncast(context, section) for section in both}


def _located(experiment: Experiment, section: Section, error: CannotInterpret) -> InvalidExperiment:
    """A misfit of a collective's values, as a message about the line, or about the user's line of Python."""
    key, uses = error.source.line.written(section)
    frame = experiment.frames[section].get(str(error.source.line))
    if frame is not None and uses:
        return invalid(uses[-1], f"{frame}: {error}")
    return InvalidExperiment(located(key, error.source.text, fault_at(str(error), error.source), uses))


def in_float64(
    context: Context, section: Section, *, casts: bool = True, place: int | None = None
) -> dict[str, Rounding]:
    """What float64's own rounding does to each output of an interpreted section.

    `casts` is whether casts round; `place` 0 tells numbers from two places apart (`Machine`).
    """
    oracle, floats = context.oracle(section), context.floats.get(section, {})
    keep, experiment = context.experiment.results, context.experiment
    if not casts:
        script = Recording()
        exact = interpret(
            experiment, section, context.arrays, keep=keep, arithmetic=Arithmetic(floats, casts=False), script=script
        )
        oracle = replace(oracle, values=exact.values, recorded=script)
    return of_float64(
        experiment, section, context.arrays, floats, oracle, keep, context.known_as, casts=casts, place=place
    )


def uncast(context: Context, section: Section, graph: Graph | None = None) -> dict[str, PerDevice]:
    """The outputs of a section, or of `graph` in its place, with casts that do not round."""
    arithmetic = Arithmetic(context.floats.get(section, {}), casts=False)
    keep = context.experiment.results
    return interpret(context.experiment, section, context.arrays, graph, keep=keep, arithmetic=arithmetic).values


def _whole(context: Context, section: Section, name: str, value: PerDevice) -> np.ndarray | None:
    known = name in context.outputs and name in context.experiment.outputs
    return context.whole(section, name, value) if known else None


def consult_gradients(
    context: Context,
    by_jax: Arrays,
    draws: Sequence[Arrays],
    error: str | None = None,
    by_rules: Sequence[Arrays] = (),
) -> None:
    """Add the gradients: JAX's of the unsharded graph, or differences.

    `draws` are the measured roundings of JAX's; `error` is why there are none. `by_rules`: the gradients by the rules
    of the user's functions, if they have such, and draws of their rounding.
    """
    sections: dict[Section, Oracle | None] = {"graph": context.graph, "per_device": context.per_device}
    followed: Mapping[str, str] = {}
    if by_rules:
        by_jax, draws, followed = gradient.ruled(context.experiment, by_jax, draws, by_rules)
        error = None
    context.gradients = gradient.consult(
        context.experiment, context.arrays, sections, context.floats, by_jax, draws, followed
    )
    if followed or (context.experiment.rules and context.graph is None):
        followed = followed or dict.fromkeys(context.experiment.grad.wrt if context.experiment.grad else (), "")
        context.without_rules = _reading(context.experiment, (f"grad.{name}" for name in followed))
    if error is not None:
        context.gradients.faults.append(f"the oracle of the gradients could not be computed: {error}")
    if context.experiment.reads_gradients:
        _interpret_after(context, by_jax, draws)


def _reading(experiment: Experiment, gradients: Iterable[str]) -> frozenset[str]:
    """The names of these gradients, and of the outputs that depend on them."""
    depends = set(gradients)
    for section in SECTIONS:
        graph = experiment.computed(section)
        entered = reached(graph, depends)
        depends |= {name for name, number in graph.names.items() if number in entered}
    return frozenset(name for name in experiment.outputs if name in depends)


def _interpret_after(context: Context, by_jax: Arrays, draws: Sequence[Arrays]) -> None:
    """Interpret the lines that read the gradients. Without gradients, these lines have no oracle."""
    experiment, before = context.experiment, (context.graph, context.per_device)
    known = {name: by_jax[array] for name, array in _gradients(experiment).items() if array in by_jax}
    lost: dict[str, float] = {}
    if not known and context.per_device is not None:
        for name in _gradients(experiment):
            if name in context.per_device.values:
                known[name] = _assembled(experiment, name, context.per_device.values[name])
                lost[name] = context.per_device.rounding[name].error
    if len(known) < len(_gradients(experiment)):
        # The check of the gradients says why; lines that read them cannot be checked.
        context.experiment = experiment.forward
        return
    exact = {name: value for name, value in context.arrays.items() if name not in known}
    context.arrays = exact | known
    apart: list[Arrays] = []
    if not lost:
        apart = [{name: draw[array] for name, array in _gradients(experiment).items()} for draw in draws]
    most = apart or [{name: np.full(value.shape, lost.get(name, 0.0)) for name, value in known.items()}]
    # An element may also be off in the other direction; the draws of JAX's gradient resemble each other.
    rng = np.random.default_rng(0)
    turned = [
        {name: rng.choice([-1.0, 1.0], off.shape) * off for name, off in shift.items()}
        for shift in itertools.islice(itertools.cycle(most), _SIGNS)
    ]
    beside = [{name: known[name] + shift[name] for name in known} for shift in (*apart, *turned)]
    context.drawn = drawn = [exact | shift for shift in beside]
    if experiment.apart:
        # Lines that this section's replacement takes from the other section do not have its error.
        context.known_as = exact | {name: known[name] + most[-1][name] for name in known}
    # If per_device sums shares, only its own gradient is a share.
    _interpret(context, {"graph": drawn[1:] if gradient.shares(experiment) > 1 else drawn, "per_device": drawn})
    for oracle, own in zip((context.graph, context.per_device), before, strict=True):
        for name in _gradients(experiment):
            if oracle is not None and own is not None and name in own.values:
                oracle.values[name], oracle.rounding[name] = own.values[name], own.rounding[name]


_SIGNS = 4
"""The number of draws in which each element of a gradient is moved up or down by its measured error."""


def _gradients(experiment: Experiment) -> dict[str, str]:
    """The gradients and the arrays that they are with respect to."""
    return dict(zip(experiment.grad.names, experiment.grad.wrt, strict=True)) if experiment.grad else {}


def _assembled(experiment: Experiment, name: str, held: PerDevice) -> np.ndarray:
    """A gradient assembled from the devices' values."""
    shape = experiment.array(_gradients(experiment)[name]).shape
    return experiment.blocks(shape, name).assembled(held)


_SINGLY = 4
"""The most outputs of one kind of doubt that each have a sentence."""


def doubts(context: Context) -> list[str]:
    """The reasons why a comparison with the reference may prove little, a sentence each."""
    reasons: list[str] = []
    proving: dict[str, list[str]] = {}
    constants = {section: _constants(context.experiment, section) for section in SECTIONS}
    for name in context.outputs:
        if any(name in names for names in constants.values()):
            continue
        oracle = next((o for o in (context.graph, context.per_device) if o is not None and name in o.values), None)
        if oracle is None:
            continue
        arrays = [np.asarray(held) for held in distinct(oracle.values[name])]
        first = arrays[0].ravel()[:1]
        size = sum(held.size for held in arrays)
        if not size:
            continue
        floating = arrays[0].dtype.kind in "fc"
        if floating and all(np.isnan(held).all() for held in arrays):
            proving.setdefault("NaN everywhere, which proves nothing", []).append(name)
        elif floating and not any(np.isfinite(held).any() for held in arrays):
            proving.setdefault("infinite everywhere, which proves nothing", []).append(name)
        elif not any(held.any() for held in arrays):
            proving.setdefault("all zero, which proves nothing", []).append(name)
        elif size > 1 and all((held == first).all() for held in arrays):
            proving.setdefault("one value everywhere, which proves little", []).append(name)
    reasons += (text for what, names in proving.items() for text in _proving_little(what, names))
    for section in SECTIONS:
        for line in _endless(context, section):
            place = context.experiment.place(section, line)
            reasons.append(f"rounding may keep the while of {place} from ending, by keeping its condition true")
        if names := constants[section]:
            verb = "does" if len(names) == 1 else "do"
            reasons.append(f"{_outputs(names)} of {section} {verb} not depend on any array")
    return reasons


def _outputs(names: Sequence[str]) -> str:
    """The first outputs by name, and how many more there are."""
    if len(names) <= _SINGLY:
        return quoted(names)
    first = ", ".join(f"'{name}'" for name in names[:3])
    return f"{first} and {len(names) - 3} other outputs"


def _proving_little(what: str, names: Sequence[str]) -> list[str]:
    """A sentence for each output whose reference is `what`, or one for all if there are many."""
    verb, verbs = ("has", "have") if what.startswith("one ") else ("is", "are")
    if len(names) <= _SINGLY:
        return [f"the reference of '{name}' {verb} {what}" for name in names]
    return [f"the references of {_outputs(names)} {verbs} {what}"]


def _endless(context: Context, section: Section) -> list[str]:
    """The whiles of a section that did not end in rounded arithmetic, and did in float64."""
    oracle = context.graph if section == "graph" else context.per_device
    rounding = {} if oracle is None else oracle.rounding
    places = (place for value in rounding.values() for place in value.places)
    return list(dict.fromkeys(p.line for p in places if p.least_steps is not None and p.most_steps is None))


def _constants(experiment: Experiment, section: Section) -> list[str]:
    """The results that do not depend on any array."""
    graph = experiment.computed(section)
    # A loop's results depend on everything that its lines read.
    depends = reached(graph, (array.name for array in experiment.given))
    return [name for name in experiment.results if graph.equations and graph.names[name] not in depends]
