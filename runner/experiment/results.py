"""Checks the outputs, the gradients, the constraints and the expected values of a configuration."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from runner.base import dtypes
from runner.base.faults import Key, invalid, nearest
from runner.base.layout import Mesh, Spec
from runner.base.untyped import is_list
from runner.experiment.forms import check, choices
from runner.experiment.imported import Imports
from runner.experiment.model import GRADIENTS, Array, Gradient, Section
from runner.experiment.plain import rectangular
from runner.graph.inlining import Enclosing, enclosed
from runner.graph.language.lines import line_of, lines, paths
from runner.graph.model import Graph, dependencies
from runner.graph.source import Line


def known_result(name: str, section: str, known: set[str], where: str, generated: Collection[str]) -> None:
    """Raise `InvalidExperiment` for a name that is not among those that `where` knows.

    Names that were `generated` for lines of Python functions are known, but not suggested.
    """
    if name not in known:
        written = known - {*generated}
        raise invalid((section, name), f"{where} computes no '{name}'{nearest(name, written) or _there(written)}")


def _there(known: set[str]) -> str:
    names = sorted(known)
    return f"; it has {', '.join(names[:12])}{', …' if names[12:] else ''}" if names else ""


def check_constraints(
    constraints: Mapping[str, Spec],
    named: set[str],
    per_device: Graph | None,
    mesh: Mesh,
    automatic: tuple[str, ...],
    generated: Collection[str] = (),
) -> None:
    """Raise `InvalidExperiment` for a constraint that cannot be applied.

    `named` are the arrays and the values of `graph`; `per_device` is None unless some axes are `automatic` in it.
    """
    alone = {name for _, name in paths(per_device)} - named if per_device is not None else set[str]()
    for name, spec in constraints.items():
        if name not in alone:
            known_result(name, "constraints", named | alone, "the experiment" if automatic else "graph", generated)
            continue
        for i, axes in enumerate(spec):
            for axis in axes:
                if axis not in automatic:
                    left = ", ".join(axis for axis in mesh.axes if axis in automatic)
                    message = f"'{name}' is only in per_device, which is manual over '{axis}': its values are blocks"
                    raise invalid(("constraints", name, i), f"{message}, and can be sharded over {left} only")


def check_inside(key: Key, names: Iterable[str], graph: Graph, imports: Imports) -> None:
    """Raise `InvalidExperiment` if a key names a value inside a function that no program can reach.

    That is any value inside a Python function; for an output, also any inside the experiment's own functions.
    """
    given: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        # `ring.acc` is a value inside the line `ring`.
        given |= {".".join(parts[: count + 1]): name for count in range(len(parts))}
    last: Enclosing | None = None
    given_by: frozenset[Line] = frozenset()
    for line, around in enclosed(graph) if given else ():
        call, outer = around[-1], around[-2:-1]
        name = given.get(str(line))
        if name is None or call.chooses:
            continue
        python = imports.functions.get(call.call.function)
        if python is None and key != ("outputs",):
            continue
        if call is not last:
            last, given_by = call, frozenset(call.gives)
        # The results of a branch do not exist before the choice.
        if line in given_by and not any(enclosing.chooses for enclosing in outer):
            continue
        gives = str(around[0].gives[0])
        frame = None if python is None else python.frames.get(line.label)
        where = f" ({frame})" if frame else ""
        how = "return it there"
        if key == ("constraints",):
            how = f"give it a checkpoint_name there, and constrain '{call.call.label}/**/NAME'"
        function = call.call.function if python is None else python.call
        message = f"'{name}' is a value inside {function}{where}, which no program can reach"
        raise invalid((*key, name), f"{message}; {how}, or name what the call gives: '{gives}'")


def check_outputs(
    outputs: Mapping[str, Spec],
    sections: Mapping[Section, Graph],
    grad: Gradient | None,
    generated: Collection[str] = (),
) -> None:
    if not outputs:
        raise invalid(
            ("outputs",),
            "the experiment has no outputs; write the names of its results with their specs, outputs: {C: [x, null]}",
        )
    known = {section: results(graph) for section, graph in sections.items() if graph}
    for name in outputs:
        if grad and name.startswith(f"{GRADIENTS}."):
            if name not in grad.names:
                raise invalid(("outputs", name), f"grad.wrt has no '{name.removeprefix(f'{GRADIENTS}.')}'"
                                                 f"{nearest(name, grad.names) or choices(grad.names)}")  # fmt: skip
            continue
        for section, values in known.items():
            known_result(name, "outputs", values, section, generated)


DIFFERENCES = 1000
"""The largest number of elements for which the oracle takes central differences one by one."""


def results(graph: Graph) -> set[str]:
    """The names that the lines of a section define."""
    return {*graph.names} - {value.name for value in graph.inputs}


def read_gradient(
    config: Mapping[str, Any],
    arrays: tuple[Array, ...],
    outputs: Mapping[str, Spec],
    sections: Mapping[Section, Graph],
) -> Gradient | None:
    of, given = config["of"], config["wrt"]
    wrt: list[Any] = given if is_list(given) else [] if given is None else [given]
    if of is None and not wrt:
        return None
    if of is None:
        raise invalid(("grad",), "grad.of is missing: the scalar output that is differentiated")
    if not wrt:
        raise invalid(("grad",), "grad.wrt is missing: the arrays with respect to which the gradient is taken")
    if of not in outputs:
        known = any(of in results(graph) for graph in sections.values())
        hint = "; give it a PartitionSpec there: []" if known else nearest(of, outputs)
        raise invalid(("grad", "of"), f"'{of}' is not among the outputs{hint}")
    named = {array.name: array for array in arrays}
    for i, name in enumerate(wrt):
        key = ("grad", "wrt", i) if isinstance(config["wrt"], list) else ("grad", "wrt")
        if not isinstance(name, str) or name not in named:
            raise invalid(key, f"there is no array {name!r}{nearest(str(name), named) or choices(tuple(named))}")
        if name in wrt[:i]:
            raise invalid(key, f"'{name}' appears twice")
        if dtypes.dtype(named[name].dtype).kind != "float":
            raise invalid(
                key, f"'{name}' is {named[name].dtype}; a gradient is taken with respect to a floating-point array"
            )
    for section, graph in sections.items():
        if any(line_of(equation).name == GRADIENTS for equation in lines(graph)):
            raise invalid((section, GRADIENTS), f"the gradients are called {GRADIENTS}.…; choose another name")
    elements = sum(math.prod(named[name].shape) for name in wrt)
    if not sections["graph"] and elements > DIFFERENCES:
        raise invalid(
            ("grad", "wrt"),
            f"without a graph the gradient's oracle is a central difference for every element, and {elements} are more "
            f"than {DIFFERENCES}: add a graph, or make the arrays smaller",
        )
    return Gradient(of, tuple(wrt))


def gradient_names(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The gradients that an expression may read, before they are checked."""
    wrt = config["wrt"]
    names: list[Any] = wrt if is_list(wrt) else [] if wrt is None else [wrt]
    return {GRADIENTS: tuple(map(str, names))} if names else {}


def check_gradients(grad: Gradient | None, sections: Mapping[Section, Graph]) -> None:
    """Raise `InvalidExperiment` if the differentiated value depends on one of its own gradients."""
    for section, graph in sections.items() if grad else ():
        assert grad is not None
        known = {value.number: value.name for value in graph.inputs if value.name in grad.names}
        for equation in graph.equations:
            entered = known.keys() & dependencies(equation)
            if not entered:
                continue
            by = min(known[number] for number in entered)
            if any(value.name == grad.of for value in equation.results):
                message = f"'{grad.of}' is differentiated, and needs its own gradient {by}"
                raise invalid(line_of(equation).written(section)[0], message)
            known |= {value.number: by for value in equation.results}


def undeclared(grad: Gradient | None, arrays: tuple[Array, ...], outputs: Mapping[str, Spec]) -> dict[str, Spec]:
    """The PartitionSpecs of the gradients that `outputs` does not name: each is that of its array."""
    if grad is None:
        return {}
    specs = {f"{GRADIENTS}.{array.name}": array.layout.spec for array in arrays}
    return {name: specs[name] for name in grad.names if name not in outputs}


def by_hand(sections: Mapping[Section, Graph], implied: frozenset[str]) -> dict[Section, frozenset[str]]:
    """For each section, the gradients that only the other section reads, as this one computes them in lines of its own.

    Only those that are `implied`: gradients that `outputs` names are computed by every program.
    """
    read = {name: graph.needed for name, graph in sections.items()}
    every = implied & frozenset[str]().union(*read.values())
    return {name: every - read[name] if graph else frozenset() for name, graph in sections.items()}


def read_values(config: Mapping[str, Any], outputs: Mapping[str, Spec]) -> dict[str, Any]:
    for name, value in config.items():
        if name not in outputs:
            raise invalid(("expect", "values", name), f"'{name}' is not an output{nearest(name, outputs)}")
        if 0 in rectangular(value, ("expect", "values", name)):
            raise invalid(("expect", "values", name), f"'{name}' has no value to be compared with")
    return dict(config)


def read_approximate(
    config: Mapping[str, Any], outputs: Mapping[str, Spec], sections: Mapping[Section, Graph]
) -> dict[str, float]:
    for name, share in config.items():
        key = ("expect", "sections", name)
        if name not in outputs:
            raise invalid(key, f"'{name}' is not an output{nearest(name, outputs)}")
        if not (sections["graph"] and sections["per_device"]):
            raise invalid(key, "there is only one section, so none can differ")
        check(share, key)
    return {name: float(share) for name, share in config.items()}


def read_weak(config: Any, outputs: Mapping[str, Spec]) -> frozenset[str]:
    names: list[Any] = [] if config is None else config if is_list(config) else [config]
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in outputs:
            key = ("expect", "weak", i) if isinstance(config, list) else ("expect", "weak")
            raise invalid(key, f"{name!r} is not an output{nearest(str(name), outputs)}")
    return frozenset(names)
