"""Says which lines ask for a collective that the program itself has, by the names that JAX gave it."""

from __future__ import annotations

from collections.abc import Iterable

from runner.base.words import listed
from runner.compiled.evidence.model import Collective, MergedPart, Reason
from runner.compiled.evidence.nodes import asked, stacks
from runner.graph.language.operations import COMMUNICATING


def reason(entry: Collective, op_name: str) -> Reason:
    """The reason of a collective that the program, or JAX's differentiation, asks for.

    - `op_name`: the name stack of its instruction; of one that XLA merged the stacks of all its parts.
    """
    every = stacks(op_name)
    parts = [*zip(entry.parts, every, strict=True)] if len(entry.parts) == len(every) else []
    asked_parts = [part for part, stack in parts if asked(stack)]
    asked_parts = asked_parts or [MergedPart(nodes=entry.nodes, gradient=entry.gradient, bytes=entry.bytes)]
    forward, backward = (
        _nodes(part for part in asked_parts if part.gradient == gradient) for gradient in (False, True)
    )
    backward = [node for node in backward if node not in forward]
    who = listed(forward) or ("" if backward else "the program")
    derived = f"JAX's differentiation of {listed(backward)}" if backward else ""
    ask = "ask" if len(forward) + bool(backward) > 1 else "asks"
    names = (stack.rpartition("/")[2].removesuffix("_start") for stack in every if asked(stack))
    calls = dict.fromkeys(COMMUNICATING.get(name, name) for name in names)
    what = f": {', '.join(calls)}" if calls else ""
    text = f"{' and '.join(filter(None, [who, derived]))} {ask} for it{what}"
    besides = _nodes(
        part for part, stack in parts if not asked(stack) and set(part.nodes).isdisjoint(_nodes(asked_parts))
    )
    if besides:
        text += f"; XLA merged it with the sums that it inserts for {listed(besides)}"
    by = "differentiation" if backward and not forward else "program"
    return Reason(text=text, by=by, line=next(iter(_nodes(asked_parts)), None))


def _nodes(parts: Iterable[MergedPart]) -> list[str]:
    return list(dict.fromkeys(node for part in parts for node in part.nodes))
