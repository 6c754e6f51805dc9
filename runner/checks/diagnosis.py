"""A wrong per-device program in; sentences that say what is wrong with it out.

If the per-device program, run by the NumPy interpreter, does not compute what `graph` says, single edits of it are
tried until one makes it agree. Each edit is verified in float64 on the experiment's arrays and on random ones, and only
edits that the user can write are reported: the edited file is read again, its lines are interpreted, and JAX must
accept their types. Of several edits the likeliest is reported. A constant factor between the two sections is reported
as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from typing import TypeAlias

import numpy as np

from runner import dtypes
from runner.checks import departing
from runner.checks.context import Context
from runner.checks.departing import DeviceLines
from runner.checks.edits import Edit, Edits, indices
from runner.checks.kinds import sections
from runner.checks.mends import inserting
from runner.checks.slips import changing
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment, Flat, Section, expressions
from runner.faults import InvalidExperiment
from runner.reference import PerDevice, interpret
from runner.reference.arithmetic import Arithmetic
from runner.words import listed

SECTIONS: tuple[Section, ...] = ("graph", "per_device")

SHARE, LEAST, MOST = 0.25, 5.0, 30.0
"""The time for trying edits: a quarter of the run's time, at least 5 and at most 30 seconds.

It is that of the processor: what is found does not depend on what else the machine does.
"""

MISFITS = (TypeError, ValueError, IndexError, KeyError, ArithmeticError, AttributeError)
"""The exceptions that NumPy raises for an edit that does not fit the shapes, which is true of most."""


Refused: TypeAlias = Callable[[Experiment], str | None]
"""Returns why JAX's types refuse an experiment; None if they accept it."""


def budget(elapsed: float) -> float:
    """Return the number of seconds for trying edits, in a run that has taken this many."""
    return min(MOST, max(LEAST, SHARE * elapsed))


@dataclass(frozen=True)
class Suspect:
    """A section that should compute what `graph` does, and the experiment that it is a section of.

    It is `per_device`, or a graph with a function of the user's own in the place of its reference.
    """

    experiment: Experiment
    section: Section = "per_device"


def diagnose_written(context: Context, refused: Refused | None, seconds: float) -> list[str]:
    """What is wrong with a function of the user's own that contains a `shard_map`, if it does not compute its
    reference; nothing where it does. Edits are tried for so many `seconds`; `refused` is as in `diagnose`.
    """
    written = context.experiment.written
    if written is None or context.graph is None or context.experiment.reads_gradients:
        return []
    try:
        trial = Trial(context, Suspect(written, "graph"))
    except MISFITS:
        return []
    if trial.suspect_is_right():
        return []
    mend, complete = _mend(context, trial, refused, seconds)
    who = f"in NumPy too, the function with its shard_map ({listed(written.regions)}) differs from its reference"
    if mend is not None:
        return [who, mend.mend.replace("it equals the graph", "the function equals its reference")]
    within = "" if complete else f" within {seconds:.2g} s"
    away = trial.departure(max(seconds, LEAST))
    none = f"no single edit of the function was found{within} that makes it equal its reference"
    return [who, none, *([away] if away else [])]


def diagnose(context: Context, refused: Refused | None = None, seconds: float = LEAST) -> list[str]:
    """Return sentences that say what is wrong with the per-device program, the most informative first.

    They say that nothing was found if no edit mends the program. Edits are tried for this many `seconds`. `refused`
    says why JAX refuses the edited experiment; without it, edits are not verified in the file.
    """
    results = context.experiment.results
    compared = [sections.compare(context, name) for name in results] if context.per_device is not None else []
    if context.uncast:
        compared += [sections.compare(context, name, before_casts=True) for name in results]
    if compared and all(comparison.agree for comparison in compared):
        # If only a gradient differs, the results are right already, so they cannot confirm an edit.
        return []
    trial = Trial(context)
    mend, complete = _mend(context, trial, refused, seconds)
    factors = [text for name in results if (text := _factor(context, name))]
    if mend is not None:
        return [mend.mend, *factors]
    within = "" if complete else f" within {seconds:.2g} s"
    away = trial.departure(max(seconds, LEAST))
    none = f"no single edit of per_device was found{within} that makes it equal the graph"
    return [none, *([away] if away else []), *factors]


def _mend(context: Context, trial: Trial, refused: Refused | None, seconds: float) -> tuple[Edit | None, bool]:
    """Return the likeliest edit that mends the program, and whether all edits were tried.

    The lines of a user's own `shard_map` have casts where JAX made them. If JAX's types refuse all edits that mend
    them, the likeliest of these is returned, and its message says that it needs more.
    """
    start = time.thread_time()
    suspect = trial.suspect
    edits = Edits(suspect.experiment, suspect.section)
    best: Edit | None = None
    refused_edits: list[Edit] = []
    lowest = math.inf
    graph = _lines(context.experiment.lines("graph"))
    counting = indices(suspect.experiment, suspect.section)
    # A mistake in a line of indices is less likely, and a collective around one may mend the result by accident.
    proposed = [_proposed(candidates, start + seconds / 2) for candidates in (changing(edits), inserting(edits))]
    every = all(whole for _, whole in proposed)
    changed, putting_back = (
        [replace(edit, rank=edit.rank + _INDICES * (edit.line in counting and edit.kind != "offset")) for edit in group]
        for group, _ in proposed
    )
    putting_back = [edit for edit in putting_back if edit.line not in counting or edit.kind != "collective"]
    changed, putting_back = edits.in_all_copies(changed), edits.in_all_copies(putting_back)
    # The first edits are few; they are tried however long the others take.
    for edit in (*sorted(changed, key=_rank), *sorted(putting_back, key=_rank)):
        if time.thread_time() - start > seconds:
            return best or _likeliest(refused_edits, graph), False
        if edit.rank - _LIKE - _ALIKE >= lowest or (best is not None and _score(edit, graph) >= lowest):
            continue
        if not trial.mends(edit):
            continue
        reason = None if refused is None else _refusal(trial, refused, edit)
        if reason is None:
            best, lowest = edit, _score(edit, graph)
        elif reason and suspect.section == "graph":
            more = f"; JAX rejects the edited line, so more must change: {reason}"
            message = edit.mend + more
            refused_edits.append(replace(edit, message=partial(str, message)))
    return best or _likeliest(refused_edits, graph), every


def _likeliest(edits: Sequence[Edit], graph: Mapping[str, str]) -> Edit | None:
    return min(edits, key=lambda edit: _score(edit, graph), default=None)


def _proposed(edits: Iterator[Edit], until: float) -> tuple[list[Edit], bool]:
    """Return the edits that can be written in time, and whether these are all; long sections have very many."""
    proposed: list[Edit] = []
    for edit in edits:
        proposed.append(edit)
        if time.thread_time() > until:
            return proposed, False
    return proposed, True


def _refusal(trial: Trial, refused: Refused, edit: Edit) -> str | None:
    """Why JAX's types refuse the edited file, None if they accept it; "" if it does not compute the graph either."""
    suspect = trial.suspect
    revised: Experiment | None = suspect.experiment
    try:
        for key, text in ((edit.key, edit.text), *edit.others):
            revised = None if revised is None else revised.with_line(suspect.section, key, text)
    except InvalidExperiment:
        return ""
    return "" if revised is None or not trial.agrees(revised) else refused(revised)


_LARGER = 8
"""An edit is rejected if a line then has more than this many times the elements of the largest array."""

_INDICES = 1.5
"""The penalty in rank of an edit of a line that depends on no array, but of one that adds a device's offset to it."""

_LIKE = 4.0
"""The bonus in rank of an edit that makes a line read like the graph's line of the same name."""

_ALIKE = 0.5
"""The largest bonus in rank of an edit that makes a line resemble that line."""


def _rank(edit: Edit) -> float:
    return edit.rank


def _score(edit: Edit, graph: Mapping[str, str]) -> float:
    """Return the rank of an edit; the more the edited line resembles the graph's, the lower."""
    edited_line, graph_line = (
        lines.get(edit.line, "") for lines in (_lines(edit.statements[edit.first : edit.first + 1]), graph)
    )
    alike = SequenceMatcher(None, edited_line, graph_line).ratio() if edited_line and graph_line else 0.0
    return edit.rank - _LIKE * (alike == 1.0) - _ALIKE * alike


def _lines(statements: Sequence[Flat]) -> dict[str, str]:
    """Return the text of each line of the edited section, by its name (`ring.acc`)."""
    return {str(line): expression.text for line, expression in expressions(statements) if not line.first}


@dataclass(frozen=True)
class _Case:
    """Some arrays, and every value of each section and of the suspect as it is."""

    arrays: Arrays
    arithmetic: Mapping[Section, Arithmetic]
    values: Mapping[Section, Mapping[str, PerDevice]]
    suspect: Mapping[str, PerDevice]
    moved: bool


class Trial:
    """Tries edits of a section against the graph and against the unedited section.

    It uses the experiment's arrays and randomly scaled ones, since an edit may mend a program by accident of the
    values: if `x` has 4 devices, a constant factor of 4 looks like a superfluous psum.
    """

    def __init__(self, context: Context, suspect: Suspect | None = None) -> None:
        self._context = context
        self.suspect = suspect or Suspect(context.experiment)
        exact, uncast = _arithmetic(context, casts=True), _arithmetic(context, casts=False)
        # A superfluous collective in a loop makes the carry grow with every step.
        self._most = most(context)
        arrays = moved(context.experiment, context.arrays, 1)
        self._cases = [self._case(context.arrays, uncast), self._case(arrays, uncast, moved=True)]
        if context.uncast:
            self._cases.insert(0, self._case(context.arrays, exact))

    def _case(self, arrays: Arrays, arithmetic: Mapping[Section, Arithmetic], *, moved: bool = False) -> _Case:
        experiment, suspect = self._context.experiment, self.suspect
        values: dict[Section, Mapping[str, PerDevice]] = {
            section: interpret(
                experiment, section, arrays, arithmetic=arithmetic[section], script=self._context.bounded(section)
            ).values
            for section in SECTIONS
            if experiment.section(section)
        }
        if suspect.experiment is experiment:
            return _Case(arrays, arithmetic, values, values.get(suspect.section, {}), moved)
        of_suspect = interpret(
            suspect.experiment, suspect.section, arrays, arithmetic=arithmetic[suspect.section],
            script=self._context.bounded(suspect.section), copies=False,
        )  # fmt: skip
        return _Case(arrays, arithmetic, values, of_suspect.values, moved)

    def suspect_is_right(self) -> bool:
        """Whether the suspect computes the graph as it is."""
        return all(
            sections.agree(self._context, name, case.values["graph"][name], case.suspect[name])
            for case in self._cases
            for name in self._context.experiment.results
        )

    def mends(self, edit: Edit) -> bool:
        """Whether the edited suspect computes the graph."""
        # Lines written by hand would have to give the gradients of other arrays too, and these are not known.
        apart = self._context.experiment.apart
        return all(
            self._equal(
                case, self.suspect, case.suspect, edit, case.values["graph"], apart if case.moved else frozenset()
            )
            for case in self._cases
        )

    def same(self, edit: Edit, section: Section) -> bool:
        """Whether the edited section computes what it computes as it is."""
        itself = Suspect(self._context.experiment, section)
        return all(self._equal(case, itself, case.values[section], edit, case.values[section]) for case in self._cases)

    def departure(self, seconds: float) -> str | None:
        """Return a sentence on the first line of a device whose values `graph` lacks, on randomly scaled arrays."""
        context, case = self._context, self._cases[-1]
        wrong = [
            name
            for name in context.experiment.results
            if not sections.agree(context, name, case.values["graph"][name], case.suspect[name])
        ]
        if self.suspect.section == "per_device":
            lines, values = DeviceLines.of(self.suspect.experiment), case.suspect
        else:
            lines = DeviceLines.inside(self.suspect.experiment)
            arithmetic = case.arithmetic["graph"]
            values = interpret(
                lines.experiment, "per_device", case.arrays, arithmetic=arithmetic,
                script=self._context.bounded("graph"), copies=False,
            ).values  # fmt: skip
        return departing.departure(lines, case.values["graph"], values, wrong, seconds)

    def agrees(self, revised: Experiment) -> bool:
        """Whether the suspect's section of another experiment computes the graph on the same arrays, interpreted from
        its first line.
        """
        try:
            return all(
                sections.agree(self._context, name, wanted[name], values[name])
                for case in self._cases
                for wanted, values in [self._afresh(case, revised)]
                for name in revised.results
                if not (case.moved and name in revised.apart)
            )
        except MISFITS:
            return False

    def _afresh(self, case: _Case, revised: Experiment) -> tuple[Mapping[str, PerDevice], Mapping[str, PerDevice]]:
        """The values of the graph and of the suspect, in another experiment."""

        def values(section: Section) -> Mapping[str, PerDevice]:
            arithmetic, kept = case.arithmetic[section], revised.results
            return interpret(
                revised, section, case.arrays, keep=kept, arithmetic=arithmetic, most=self._most,
                script=self._context.bounded(section),
            ).values  # fmt: skip

        # In the place of references the graph is the suspect.
        wanted = values("graph") if self.suspect.section == "per_device" else case.values["graph"]
        return wanted, values(self.suspect.section)

    def _equal(
        self,
        case: _Case,
        suspect: Suspect,
        values: Mapping[str, PerDevice],
        edit: Edit,
        wanted: Mapping[str, PerDevice],
        but: frozenset[str] = frozenset(),
    ) -> bool:
        experiment = self._context.experiment
        # The lines after an edit are not known yet.
        later = {str(line).split(".")[0] for line, _ in expressions(edit.statements[edit.first :])}
        known = {name: value for name, value in values.items() if name.split(".")[0] not in later}
        try:
            after = interpret(
                suspect.experiment,
                suspect.section,
                case.arrays,
                edit.statements[edit.first :],
                keep=experiment.results,
                arithmetic=case.arithmetic[suspect.section],
                given=known,
                most=self._most,
                script=self._context.bounded(suspect.section),
            ).values
        except MISFITS:
            return False
        compared = [name for name in experiment.results if name not in but]
        return all(sections.agree(self._context, name, wanted[name], after[name]) for name in compared)


def most(context: Context) -> int:
    """The largest number of elements that an edited line may have on a device."""
    sizes = [math.prod(shape) for shape, _ in context.outputs.values()]
    return 4096 + _LARGER * max([*sizes, *(array.size for array in context.arrays.values())])


def _arithmetic(context: Context, *, casts: bool) -> dict[Section, Arithmetic]:
    return {section: Arithmetic(context.floats.get(section, {}), casts=casts) for section in SECTIONS}


def moved(experiment: Experiment, arrays: Arrays, seed: int) -> Arrays:
    """Return the arrays with every float scaled by its own random number between one half and three halves."""
    rng = np.random.default_rng(seed)
    changed: dict[str, np.ndarray] = {}
    for array in experiment.given:
        value = arrays[array.name]
        if not dtypes.dtype(array.dtype).exact:
            factor = rng.uniform(0.5, 1.5, value.shape)
            wide = np.complex128 if dtypes.dtype(array.dtype).kind == "complex" else np.float64
            value = (value.astype(wide) * factor).astype(value.dtype)
        changed[array.name] = value
    return changed


_MANY = 4
"""The fewest elements whose common factor is reported; fewer may share one by chance."""


def _factor(context: Context, name: str) -> str | None:
    """Return the constant factor by which every element of an output is off on every device; None if there is none."""
    assert context.per_device is not None
    layout = context.blocks(name)
    if dtypes.dtype(context.outputs[name][1]).kind == "complex":
        return None
    ratios: list[np.ndarray] = []
    for position in range(context.experiment.mesh.size):
        expected = np.asarray(context.expected("graph", name, position, layout.ranges(position)), np.float64)
        value = np.asarray(context.per_device.values[name][position], np.float64)
        if not (np.isfinite(expected).all() and np.isfinite(value).all()):
            return None
        if value.shape != expected.shape:
            return None
        there = np.abs(expected) > 0
        if not there.any() or np.abs(value[~there]).any():
            return None
        ratios.append(value[there] / expected[there])
    if math.prod(context.outputs[name][0]) < _MANY:
        # A single number always has a factor.
        return None
    ratio = np.concatenate([r.ravel() for r in ratios])
    factor = float(np.median(ratio))
    if not math.isfinite(factor) or abs(factor - 1) < 1e-3 or np.abs(ratio - factor).max() > 1e-3 * abs(factor):
        return None
    mesh = context.experiment.manual
    over = [axis for axis, size in mesh.sizes.items() if size > 1 and math.isclose(size, factor, rel_tol=1e-3)]
    under = [axis for axis, size in mesh.sizes.items() if size > 1 and math.isclose(1 / size, factor, rel_tol=1e-3)]
    why = f": summed once too often over {' or '.join(over)}?" if over else ""
    why = f": a mean over {' or '.join(under)} where a sum is meant?" if under else why
    return f"{name} is {factor:.4g}× the reference on every element of every device{why}"
