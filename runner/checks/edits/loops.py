"""The edits of a section for the mistakes that people make in the steps of loops.

A scan over `arange(n)` that is a step short or long, one that runs the wrong way, and a value that a loop reads in each
step as it was before the first, where the loop permutes another: `return lax.ppermute(k, "x", ring), v`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from runner.checks.edits.section import Edit, Edits, EditSite
from runner.graph.language.lines import RepeatLines, at_index, axes_of, called, operator, parts, with_argument
from runner.graph.language.python_source import returned_as_it_is
from runner.graph.source import Frame
from runner.graph.term import (
    Apply,
    Const,
    Group,
    Name,
    Term,
    bare,
    calls,
    mapped,
    names,
    names_outside_tuples,
    substituted,
)

_STEPS = 8
"""The largest number of steps for which what each of them reads is written out."""

_READ = 8
"""The largest number of values of which one may lack its permutation."""


def in_steps(edits: Edits) -> Iterator[Edit]:
    """The edits of loops."""
    for loop in edits.loops:
        yield from _longer(edits, loop)
        yield from _reversed(edits, loop)
        if loop.index and loop.form.steps is not None and loop.form.steps <= _STEPS:
            inside = [site for site in edits.sites if site.path[:-1] == (*loop.line.loops, loop.name)]
            yield from _unmoved(edits, loop, loop.form.steps, inside)
            yield from _still(edits, loop, loop.form.steps, inside)
    for moving in edits.unrolled:
        # The first step permutes the value from around the loop itself.
        for call, second in zip(*(_permutes(site.term) for site in moving[:2]), strict=False):
            yield from _unmoved_unrolled(edits, moving, call, read=_is_read(second, edits.every))


def _longer(edits: Edits, loop: RepeatLines) -> Iterator[Edit]:
    """A loop over the numbers of its steps with one more or less: `scan(step, start, jnp.arange(n + devices - 1))`."""
    steps = loop.form.steps
    lines = edits.firsts(loop, "over")
    if not lines or steps is None or any(site is None or site.frame is None for site in lines):
        return
    for by in (1, -1):
        terms = [(site, _counting(site.term, steps, steps + by)) for site in lines if site is not None]
        if steps + by > 0 and all(term != site.term for site, term in terms):
            yield edits.stepped(loop, by, terms)


def _counting(term: Term, now: int, wanted: int) -> Term:
    """A term in which what counts to a number counts to another."""

    def counting(part: Term) -> Term:
        row = called(part)
        if calls(part) and row.counts:
            at = [*row.signature.parameters].index(row.counts)
            if at < len(part.operands) and part.operands[at] == Const(now):
                return with_argument(part, at, Const(wanted))
        return mapped(part, counting)

    return counting(term)


def _reversed(edits: Edits, loop: RepeatLines) -> Iterator[Edit]:
    """A scan that takes its slices from the last, and stacks its results so: `scan(step, start, x, reverse=True)`."""
    steps, frame = loop.form.steps, edits.frame(loop)
    if steps is None or frame is None or not loop.index or not loop.over:
        return
    last = operator("subtract", Const(steps - 1), Name(loop.index))
    slices = {name: at_index(whole, last) for name, whole in edits.operands(loop, "over").items()}
    stacks: dict[str, Term] = {
        name: Apply("flip", (Name(name), Const(0)))
        for name in (f"{loop.line.label}.{stacked}" for stacked in loop.stack)
    }
    terms = list[tuple[EditSite, Term]]()
    for site in edits.every:
        inside = site.path[:-1] == (*loop.line.loops, loop.name)
        values: dict[str, Term] = {**slices} if inside else stacks
        terms.append((site, substituted(site.term, values.get)))
    changed = [(site, term) for site, term in terms if term != site.term]
    if changed:
        message = f"{frame}: the loop runs the wrong way: from the last to the first it equals the graph"
        yield edits.of_terms(changed, frame, "order", partial(str, message), 3.0)


def _permutes(term: Term) -> Iterator[Apply]:
    """The permutations of values in a term."""
    for part in parts(term):
        if called(part).over.does == "permute" and calls(part) and bare(part.operands[0]) is not None:
            yield part


def _is_read(call: Apply, inside: Sequence[EditSite]) -> bool:
    """Whether the steps of a loop read a value elsewhere than in the call that permutes it.

    Otherwise the value from around the loop is read where the permuted one is meant.
    """
    (value, *_) = names(call.operands[0])
    return sum(names(site.term).count(value) for site in inside) > names(call).count(value)


def _unmoved(edits: Edits, loop: RepeatLines, steps: int, inside: Sequence[EditSite]) -> Iterator[Edit]:
    """A value from around a loop, in each step as if it had been permuted with another."""
    own = {*loop.bound, *(site.label for site in inside)}
    read = dict.fromkeys(name for site in inside for name in names(site.term) if name not in own)
    for moving in inside:
        permutes = [call for call in _permutes(moving.term) if _is_read(call, inside)]
        for call, name in itertools.product(permutes, [*read][:_READ]):
            yield from _permuted(edits, moving, call, Name(name), _stepped(loop, steps, inside, call, name))


def _stepped(
    loop: RepeatLines, steps: int, inside: Sequence[EditSite], call: Apply, name: str
) -> list[tuple[EditSite, Term]]:
    """The lines of a loop that read a value in each step as if it had been permuted."""
    stepped, *later = _in_each_step(call, name, steps)
    for step, moved in enumerate(later, 1):
        stepped = Apply("where", (operator("equal", Name(loop.index), Const(step)), moved, stepped))
    return [(site, substituted(site.term, {name: stepped}.get)) for site in inside]


def _still(edits: Edits, loop: RepeatLines, steps: int, inside: Sequence[EditSite]) -> Iterator[Edit]:
    """A value that a loop over devices returns as it is in each step, where a ring is meant: `return k, out`."""
    if any(True for site in inside for _ in _permutes(site.term)):
        return
    own = {*loop.bound, *(site.label for site in inside)}
    read = {name: site for site in inside for name in names(site.term) if name not in own}
    for axes, (name, site) in itertools.product(edits.combinations, [*read.items()][:_READ]):
        size = edits.experiment.mesh.axis_size(axes)
        frame = None if site.frame is None else returned_as_it_is(site.frame, site.text(Name(name)))
        if frame is None or size != steps:
            continue
        for by in (1, -1):
            pairs = (Group((Const(at), Const((at + by) % size))) for at in range(size))
            call = Apply("ppermute", (Name(name), axes_of(axes), Group((*pairs,))))
            message = f"{frame} gives {site.text(Name(name))} as it is: with {site.text(call)} it equals the graph"
            terms = [each for each in _stepped(loop, steps, inside, call, name) if each[0].term != each[1]]
            yield edits.of_terms(terms, frame, "unmoved", partial(str, message), 3.0)


def _unmoved_unrolled(edits: Edits, moving: Sequence[EditSite], call: Apply, *, read: bool) -> Iterator[Edit]:
    """The same where Python runs the steps of a loop one by one; `read`: whether any step reads the permuted value."""
    lines: dict[Frame, list[EditSite]] = {}
    for site in edits.every:
        if site.frame is not None and site.path[:-1] == moving[0].path[:-1] and site.frame != moving[0].frame:
            lines.setdefault(site.frame, []).append(site)
    counts = {frame: Counter(name for site in sites for name in names(site.term)) for frame, sites in lines.items()}
    # A position in a tuple, as the index of an update, is no block that devices pass on.
    blocks = {name for sites in lines.values() for site in sites for name in names_outside_tuples(site.term)}
    (own, *_) = names(call.operands[0])
    passed = [*dict.fromkeys(name for count in counts.values() for name in count if name in blocks)]
    for name in passed[:_READ] if read else [own]:
        terms, frames = list[tuple[EditSite, Term]](), list[Frame]()
        for frame, count in counts.items():
            # The last step need not permute what no other follows.
            steps = next((n for n in (len(moving), len(moving) + 1) if count[name] and count[name] % n == 0), 0)
            if 1 < steps <= _STEPS:
                times = count[name] // steps
                values = iter([moved for moved in _in_each_step(call, name, steps) for _ in range(times)])
                terms += [(site, _one_by_one(site.term, name, values)) for site in lines[frame]]
                frames.append(frame)
        if read:
            yield from _permuted(edits, moving[0], call, Name(name), terms)
        elif len(frames) == 1:
            message = partial(_unpermuted, frames[0], moving[0], call)
            changed = [(site, term) for site, term in terms if term != site.term]
            yield edits.of_terms(changed, frames[0], "unmoved", message, 2.0)


def _in_each_step(call: Apply, name: str, steps: int) -> list[Term]:
    """A value as it is in each step of a loop that permutes it as another."""
    moved: list[Term] = [Name(name)]
    for _ in range(1, steps):
        moved.append(with_argument(call, 0, moved[-1]))
    return moved


def _one_by_one(term: Term, name: str, values: Iterator[Term]) -> Term:
    """A term in which each place of a name has the next of these values."""
    return next(values) if term == Name(name) else mapped(term, lambda part: _one_by_one(part, name, values))


def _unpermuted(frame: Frame, moving: EditSite, call: Apply) -> str:
    return (
        f"{frame} reads {moving.text(call.operands[0])} as it is before the loop, and no step reads what "
        f"{moving.named} gives: with that it equals the graph"
    )


def _permuted(
    edits: Edits, moving: EditSite, call: Apply, value: Name, terms: Sequence[tuple[EditSite, Term]]
) -> Iterator[Edit]:
    def message() -> str:
        beside = moving.text(call.operands[0])
        return (
            f"{moving.named}: {moving.text(value)} is not permuted from step to step, as {beside} is: with "
            f"{moving.text(with_argument(call, 0, value))} it equals the graph"
        )

    changed = [(site, term) for site, term in terms if term != site.term]
    if changed and moving.frame is not None:
        yield edits.of_terms(changed, moving.frame, "unmoved", message, 2.0)
