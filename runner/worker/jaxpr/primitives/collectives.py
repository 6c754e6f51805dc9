"""Writes collectives in the language, and finds what is wrong with the mesh axes that they name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from runner.base.words import quoted
from runner.graph.language.lines import axes_of
from runner.graph.language.operations import COMMUNICATING, OPERATIONS
from runner.graph.term import Apply, Const, Group, Term
from runner.programs.derivation.terms import constant
from runner.worker.jaxpr.primitives.registry import Application, axes_part, filled, plain, reads


def over_axes(name: str, params: Mapping[str, Any]) -> frozenset[str]:
    """The mesh axes of a collective; empty for other primitives."""
    return frozenset(named_axes(name, params))


def named_axes(name: str, params: Mapping[str, Any]) -> tuple[str, ...]:
    """The mesh axes of a collective as it names them; empty for other primitives."""
    return _axis_names(params) if name in _OVER_AXES else ()


def _axis_names(params: Mapping[str, Any]) -> tuple[str, ...]:
    given: Any = params["axes"] if "axes" in params else params["axis_name"]
    axes = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,)
    return tuple(axis for axis in axes if isinstance(axis, str))


def _collective(operation: str, application: Application, x: Term, **given: Any) -> Term:
    """The call of a collective, with the arguments that differ from their defaults."""
    parameters = OPERATIONS[operation].signature.parameters
    given["axis_index_groups"] = _groups(application.params.get("axis_index_groups"))
    named = [(name, constant(plain(value))) for name, value in given.items() if parameters[name].default != value]
    return Apply(operation, (x, axes_of(_axis_names(application.params))), tuple(named))


def _groups(groups: Any) -> list[list[int]] | None:
    return None if groups is None else [list(map(int, group)) for group in groups]


_REDUCING = {"psum": "psum", "psum_invariant": "psum", "pmax": "pmax", "pmin": "pmin"}


@reads(*_REDUCING)
def _over_devices(application: Application) -> Term:
    """A reduction over mesh axes, and over the dimensions that `vmap` makes of its own axis."""
    over = OPERATIONS[_REDUCING[application.name]].over
    axes = application.params["axes"]
    places = tuple(int(axis) for axis in axes if not isinstance(axis, str))
    results: list[Term] = []
    for operand in application.operands:
        x = filled(f"{over.reduction}({{x}}, axis={{a}})", x=operand, a=axes_part(places)) if places else operand
        names = _axis_names(application.params)
        results.append(_collective(_REDUCING[application.name], application, x) if names else x)
    return results[0] if len(results) == 1 else Group(tuple(results))


@reads("all_gather", "all_gather_invariant")
def _gathered_over(application: Application) -> Term:
    params = application.params
    to = "invarying" if application.name == "all_gather_invariant" else "varying"
    how = {"axis": params["all_gather_dimension"], "tiled": params["tiled"], "to": to}
    return _collective("all_gather", application, application.x, **how)


@reads("reduce_scatter")
def _scattered_over(application: Application) -> Term:
    how = {"scatter_dimension": application.params["scatter_dimension"], "tiled": application.params["tiled"]}
    return _collective("psum_scatter", application, application.x, **how)


@reads("all_to_all")
def _exchanged(application: Application) -> Term:
    params = application.params
    over, split, joined = axes_of(_axis_names(params)), params["split_axis"], params["concat_axis"]
    # Without `tiled`, JAX adds the dimension that is joined and removes the one that is split, around the primitive.
    named = {"axis_index_groups": _groups(params.get("axis_index_groups")), "tiled": params["tiled"] or split != joined}
    given = tuple((name, constant(value)) for name, value in named.items() if value)
    return Apply("all_to_all", (application.x, over, Const(split), Const(joined)), given)


@reads("ragged_all_to_all")
def _ragged_exchange(application: Application) -> Term:
    groups = _groups(application.params.get("axis_index_groups"))
    named = (("axis_name", axes_of(_axis_names(application.params))),)
    named += () if groups is None else (("axis_index_groups", constant(groups)),)
    return Apply("ragged_all_to_all", application.operands, named)


@reads("ppermute")
def _permuted(application: Application) -> Term:
    perm = [(int(source), int(target)) for source, target in application.params["perm"]]
    return Apply("ppermute", (application.x, axes_of(_axis_names(application.params)), constant(perm)))


@reads("pbroadcast", "pcollectivebroadcast")
def _broadcast_over(application: Application) -> Term:
    return _collective("pbroadcast", application, application.x, source=application.params["source"])


@reads("axis_index")
def _place(application: Application) -> Term:
    return Apply("axis_index", (axes_of(_axis_names(application.params)),))


_OVER_AXES = {*COMMUNICATING, "axis_index", "pvary"}


def fault(name: str, params: Mapping[str, Any], sizes: Mapping[str, int]) -> str | None:
    """What is wrong with the axes and devices of an application of the primitive `name`; None if nothing is.

    `sizes` are those of the mesh axes.
    """
    axes = named_axes(name, params)
    twice = [axis for axis, count in Counter(axes).items() if count > 1]
    if twice:
        return f"{COMMUNICATING.get(name, name)} is over {quoted(axes)}: name '{twice[0]}' once"
    if name != "ppermute" or not sizes.keys() >= set(axes):
        return None
    count = math.prod(sizes[axis] for axis in axes)
    pairs = [(int(source), int(target)) for source, target in params["perm"]]
    for source, target in pairs:
        for device in (source, target):
            if not 0 <= device < count:
                return (
                    f"ppermute has the pair {source, target}, and there is no device {device}: the {count} along "
                    f"{' and '.join(axes)} are 0 to {count - 1}; write % {count} to come back to the first"
                )
    for side, devices in (("sends from", [pair[0] for pair in pairs]), ("sends to", [pair[1] for pair in pairs])):
        several = [device for device, times in Counter(devices).items() if times > 1]
        if several:
            return f"ppermute {side} device {several[0]} twice, in {pairs}; a device sends once and receives once"
    return None
