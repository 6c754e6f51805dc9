"""Says in sentences what is wrong with a per-device program.

If the per-device program, run by the NumPy interpreter, does not compute what `graph` says, single edits of it are
tried until one makes it agree. Each edit is verified in float64 on the experiment's arrays and on random ones, and only
edits that the user can write are reported: the edited file is read again, its lines are interpreted, and JAX must
accept their types. Of several edits the likeliest is reported. A constant factor between the two sections is reported
as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np

from runner.base import dtypes
from runner.base.faults import InvalidExperiment
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.checks import output_differences
from runner.checks.context import Context
from runner.checks.diagnosis import alignment
from runner.checks.diagnosis.recognised import Recognising
from runner.checks.diagnosis.unmatched import strange
from runner.checks.edits.applied import ChangedGraphs
from runner.checks.edits.changed_parts import changing, removing
from runner.checks.edits.loops import in_steps
from runner.checks.edits.missing import SAME, inserting
from runner.checks.edits.operands import overlooking
from runner.checks.edits.python_numbers import computed, computes
from runner.checks.edits.section import Edit, Edits, indices
from runner.checks.edits.whole_lines import together
from runner.checks.kinds import sections
from runner.checks.reference import PerDevice, interpret
from runner.checks.reference.arithmetic import Arithmetic
from runner.checks.reference.rerun import Exhausted, Rerun, Work, same_values
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment, Section
from runner.experiment.narrowing import with_results
from runner.graph.language.lines import called, calls_in, expressions, line_of
from runner.graph.language.operations import CONSTANTS
from runner.graph.language.python_source import passed_on, passing_to, reading
from runner.graph.model import NAME, Graph, walk
from runner.graph.source import SECTIONS, Frame, Line
from runner.graph.term import Apply, Term, calls, children, names

RATE = 20_000
"""The work that counts as a second of the search, in equations (`Work`)."""

MISFITS = (TypeError, ValueError, IndexError, KeyError, ArithmeticError, AttributeError, MemoryError)
"""The exceptions that NumPy raises for an edit that does not fit the shapes, which is true of most, or the memory."""


Refused: TypeAlias = Callable[[Experiment], str | None]
"""Returns why JAX's types refuse an experiment; None if they accept it."""


@dataclass(frozen=True)
class Suspect:
    """A section that should compute what `graph` does, and the experiment that it is a section of.

    It is `per_device`, or a graph with a function of the user's own in the place of its reference.
    """

    experiment: Experiment
    section: Section = "per_device"


class NotInterpreted(Exception):
    """A function of the user's own cannot be evaluated in NumPy as it was read; the message says why."""


@dataclass(frozen=True)
class Parting:
    """The lines at which a function parts from its reference, and the line of the reference whose value mends it."""

    frames: tuple[Frame, ...]
    reference: Frame | None

    @property
    def places(self) -> tuple[str, ...]:
        """The lines, as users know them."""
        return tuple(map(str, self.frames))

    def __str__(self) -> str:
        of_line = "" if self.reference is None else f" in {self.reference.text}"
        reads = "reads what the reference has and gives what it has not"
        return (
            f"{listed(self.places, 'or')} {reads}: with the value that the reference has{of_line} the function equals "
            "its reference"
        )


def _places(experiment: Experiment, section: Section, graph: Graph) -> dict[int, Frame]:
    """The line of the user's file of each value of a graph."""
    frames = experiment.given_frames[section]
    lines = ((equation, line_of(equation)) for equation in walk(graph))
    return {
        result.number: frames[str(line)]
        for equation, line in lines
        for result in equation.results
        if str(line) in frames
    }


def diagnose_written(context: Context, refused: Refused | None) -> list[str]:
    """What is wrong with a function of the user's own that has a reference, if it does not compute it; nothing where it
    does. `refused` is as in `diagnose`.

    Raises `NotInterpreted` where the function, as it was read, cannot be evaluated in NumPy.
    """
    written = context.experiment.written
    if written is None or context.graph is None or context.experiment.reads_gradients:
        return []
    seconds = context.experiment.diagnose
    try:
        trial = Trial(context, Suspect(written, "graph"), seconds)
        if trial.suspect_is_right():
            return []
        narrow = trial.of_narrowest_result(_OF_ONE_RESULT * seconds)
    except MISFITS as misfit:
        described = f"{type(misfit).__name__}: {misfit}".rstrip(": ")
        raise NotInterpreted(described) from misfit
    who = f"in NumPy too, the function with its shard_map ({listed(written.regions)}) differs from its reference"
    if not written.regions:
        who = "in NumPy too, the function differs from its reference"
    sentences = None if narrow is None else _of_trial(narrow, refused)
    if sentences is None or not sentences.named:
        sentences = _of_trial(trial, refused)
    return [who, *sentences.texts]


@dataclass(frozen=True)
class _Sentences:
    """What is said of a function; `named`: whether a line is."""

    texts: Sequence[str]
    named: bool


def _of_trial(trial: Trial, refused: Refused | None) -> _Sentences:
    """Search for the line at which the function of a trial is wrong, and say what was found."""
    search, equal = _mends(trial, refused), trial.equal
    parting = trial.parting()
    mends = [f"{mend.mend.replace('it equals the graph', equal)}{trial.or_its_number(mend)}" for mend in search.mends]
    # What mends a function elsewhere than where it parts from its reference may make up for a mistake.
    of_edits = {frame for mend in search.mends for frame in (mend.frame, *trial.frames(mend))}
    vague = search.recognised and parting is not None and len(parting.places) > _NAMED
    if mends and (parting is None or vague or search.clear or not of_edits.isdisjoint(parting.frames)):
        return _Sentences([mends[0], *(f"or {other}" for other in mends[1:])], named=True)
    none = search.nothing("the function", "it equal its reference")
    if parting is None or len(mends) + len(parting.places) > _NAMED or search.lines > len(mends):
        texts = [f"the line could not be found: {none}", *trial.differences(), *trial.exchanges()]
        return _Sentences(texts, named=False)
    sentence = str(parting).replace(_EQUAL, equal)
    first = sentence if mends else f"{none}, but {sentence}"
    return _Sentences([first, *(f"or {other}" for other in mends), *trial.differences()], named=True)


_EQUAL = "the function equals its reference"

_OF_ONE_RESULT = 0.5
"""The part of the time of a search that is spent on the result that depends on the fewest lines."""

_NARROWER = 0.6
"""The largest part of the lines of a function on which a result depends that is looked at alone."""


def diagnose(context: Context, refused: Refused | None = None) -> list[str]:
    """Return sentences that say what is wrong with the per-device program, the most informative first.

    They say that nothing was found if no edit mends the program. Edits are tried for as long as the experiment's
    `diagnose` says. `refused` says why JAX refuses the edited experiment; without it, edits are not verified in the
    file.
    """
    results = context.experiment.results
    compared = [sections.compare(context, name) for name in results] if context.per_device is not None else []
    if context.uncast:
        compared += [sections.compare(context, name, before_casts=True) for name in results]
    if compared and all(comparison.agree for comparison in compared):
        # If only a gradient differs, the results are right already, so they cannot confirm an edit.
        return []
    trial = Trial(context, seconds=context.experiment.diagnose)
    search = _mends(trial, refused)
    factors = [text for name, factor in trial.factors.items() if (text := _factor(context, name, factor))]
    if search.mends:
        return [search.mends[0].mend, *(f"or {other.mend}" for other in search.mends[1:]), *factors]
    return [search.nothing("per_device", "it equal the graph"), *([] if factors else trial.differences()), *factors]


@dataclass(frozen=True)
class _Mend:
    """An edit that mends the program.

    - `score`: the lower, the likelier; `unlike`: the part of it that the values of the reference say.
    """

    score: float
    edit: Edit
    unlike: float


@dataclass(frozen=True)
class _Search:
    """What a search gave.

    - `mends`: the likeliest edits that mend the program, each of another line; none where those of too many lines do.
    - `lines`: the number of lines of which an edit mends it; `within`: what it says of its end, if not all were tried.
    - `recognised`: whether each of them gives the function values that the reference has, besides the results; `clear`:
      whether one that puts in no number gives it several.
    """

    mends: Sequence[Edit]
    lines: int
    within: str = ""
    recognised: bool = False
    clear: bool = False

    def nothing(self, program: str, result: str) -> str:
        """The sentence for a search that names no line."""
        if self.lines:
            of = f"{self.lines} lines" if self.lines > 1 else "one line"
            return f"edits of {of} of {program} make {result}, and none is likelier than others"
        return f"no single edit of {program} was found{self.within} that makes {result}"


def _mends(trial: Trial, refused: Refused | None) -> _Search:
    """Search for the edits that mend the program.

    The lines of a user's own `shard_map` have casts where JAX made them. If JAX's types refuse all edits that mend
    them, the likeliest of these is returned, and its message says that it needs more.
    """
    suspect, experiment = trial.suspect, trial.experiment
    graph = _lines(experiment.computed("graph"))
    own = suspect.section == "graph"
    # The lines of a function have other names than those of its reference.
    bonus, beside = (0.0, _BESIDE_IN_PYTHON) if own else (_LIKE + _ALIKE, _BESIDE)
    mends: list[_Mend] = []
    doubtful: list[_Mend] = []
    refused_mends: list[_Mend] = []
    lowest, ended, anywhere = math.inf, "", ""
    # Inside of a region right values may be blocks and partial sums, which the reference has not.
    whole = own and not suspect.experiment.regions
    try:
        proposed = _proposed(suspect, experiment, [*trial.factors.values()] if own else ())
        for edits in _nearest_first(proposed, trial.near) if own else [proposed]:
            for edit in edits:
                likely, also = edit.rank - bonus < lowest + beside, own and edit.kind == anywhere
                if not (likely or also) or not trial.mends(edit) or _vanishes(edit):
                    continue
                # An edit that mends the program is judged however late it is found.
                with trial.unlimited():
                    unlike = trial.unlike(edit) if own else 0.0
                    # What else may mend the program does not depend on what the values say for this edit.
                    lost = math.isinf(unlike)
                    if lost and edit.kind in _NUMBERS:
                        continue
                    score = _score(edit, graph) + trial.pointless(edit) + (0.0 if lost else max(0.0, unlike))
                if math.isinf(score) or (score >= lowest + beside and not also):
                    continue
                reason = None if refused is None else _refusal(trial, refused, edit)
                # The lines of a function are no lines of a file that could be read again.
                if reason is None or (own and not reason):
                    if score < lowest:
                        anywhere = edit.kind if edit.kind in _ANYWHERE else ""
                    (doubtful if lost else mends).append(_Mend(score + min(0.0, unlike), edit, unlike))
                    lowest = min(lowest, score)
                elif reason and (own or edit.frame is not None) and edit.kind not in _NUMBERS:
                    message = f"{edit.mend}; JAX rejects the edited line, so more must change: {reason}"
                    refused_edit = replace(edit, message=partial(str, message))
                    refused_mends.append(_Mend(score + min(0.0, unlike), refused_edit, 0.0 if lost else unlike))
            if whole and mends and all(mend.unlike < 0.0 and trial.is_first(mend.edit) for mend in mends):
                # They give values that the reference has where the first others are: no line further off does that.
                break
    except Exhausted:
        ended = f" within {trial.seconds:.2g} s"
    likeliest = _likeliest(mends, beside, own=own) or _likeliest(refused_mends, beside, own=own)
    if len(likeliest) > 1 and any(mend.edit.kind == "constant" for mend in likeliest):
        # A number may be left out anywhere between two lines: only the reference's values say where.
        least = min(mend.unlike for mend in likeliest)
        alike = [mend for mend in likeliest if least < 0.0 and mend.unlike <= least + _RECOGNISED]
        if not 0 < len(alike) <= _NAMED_OF_NUMBERS:
            return _Search([], len(likeliest), ended)
        likeliest = alike
    # The reference may go another way: what it says against an edit does not make the others likelier.
    places = {mend.edit.place for mend in likeliest}
    also_likely = (mend for mend in doubtful if mend.score < lowest + beside and mend.edit.place not in places)
    likeliest += [*{mend.edit.place: mend for mend in also_likely}.values()] if likeliest else []
    named = [mend.edit for mend in likeliest] if len(likeliest) <= _NAMED else []
    clear = any(mend.unlike <= -_CLEAR and mend.edit.kind not in _NUMBERS for mend in likeliest)
    return _Search(named, len(likeliest), ended, all(mend.unlike < 0.0 for mend in likeliest), clear)


def _nearest_first(edits: Sequence[Edit], near: Collection[str]) -> list[list[Edit]]:
    """The edits of the places that are near, and the others; of both the likeliest of each kind at each place first.

    A large function has thousands of likely ways to put a term in. They would take all of the time of a search.
    """
    turns, number = list[int](), Counter[tuple[str, str]]()
    for edit in edits:
        turns.append(number[edit.place, edit.kind] // _IN_A_TURN)
        number[edit.place, edit.kind] += 1
    in_turns = [edit for _, edit in sorted(zip(turns, edits, strict=True), key=lambda turn: turn[0])]
    return [[edit for edit in in_turns if (edit.place in near) is here] for here in (True, False)]


_IN_A_TURN = 32
"""The number of edits of one kind at one place that are tried before those of other kinds."""

_ANYWHERE = ("put back", "constant", "number")
"""The kinds of edits that mend a function as well at any line between two, whatever their ranks.

They put in a term or a factor, or another number.
"""


def _vanishes(edit: Edit) -> bool:
    """Whether an edit makes a part of which an operand vanishes: `x - x`, `maximum(x, max(x))`, `x - (x - y)`."""
    return any(
        call.operation in _OF_TWO
        # JAX writes inf - inf for what is not a number.
        and not CONSTANTS.keys() >= {*names(call)} > set()
        and (len(set(call.operands)) == 1 or _takes_off_again(call) or _bounds_itself(call))
        for edited in edit.changed.edited
        for call, _ in calls_in(edited.term)
    )


def _bounds_itself(part: Apply) -> bool:
    """Whether a part is the maximum or minimum of a value and of its own largest or smallest elements."""
    if part.operation not in ("maximum", "minimum"):
        return False
    own, other = (_reduced(operand) for operand in part.operands[:2])
    return own == other


def _reduced(term: Term) -> Term:
    """What a part is the largest or smallest elements of, in whatever shape; the part itself if it is not."""
    while (calls(term, ("max", "min")) or called(term).moves == "shape") and children(term):
        term = children(term)[0]
    return term


def _takes_off_again(part: Apply) -> bool:
    """Whether a part subtracts a sum or a difference from one of its terms."""
    total = part.operands[-1]
    return part.operation == "subtract" and called(total).adds and part.operands[0] in children(total)


_OF_TWO = ("subtract", "divide", "maximum", "minimum", "floor_divide", "remainder")


_NUMBERS = ("constant", "number")
"""The kinds of edits of a literal, which may stand in many lines: there the reference's values alone say which."""


_BESIDE = 0.75
"""By how much the rank of an edit of another line may be above the lowest for it to be as likely."""

_BESIDE_IN_PYTHON = 1.25
"""The same for a function, whose lines are not compared with those of its reference."""


def _likeliest(mends: Sequence[_Mend], beside: float, *, own: bool) -> list[_Mend]:
    """The edits with the lowest scores, one of each line; in a function all of a kind that may stand anywhere."""
    ordered = sorted(mends, key=lambda mend: mend.score)
    of_lines: dict[str, _Mend] = {}
    for mend in ordered:
        kind = ordered[0].edit.kind
        if mend.score < ordered[0].score + beside or (own and kind in _ANYWHERE and mend.edit.kind == kind):
            of_lines.setdefault(mend.edit.place, mend)
    return [*of_lines.values()]


_NAMED = 3
"""The largest number of lines that are named; where edits of more of them mend the program, any may be innocent."""

_NAMED_OF_NUMBERS = 2
"""The same for edits that put in a number, which may stand in most lines."""


def _proposed(suspect: Suspect, reference: Experiment, factors: Sequence[float]) -> list[Edit]:
    """All edits of a section, the likeliest first; `factors` as in `Edits`."""
    edits = Edits(suspect.experiment, suspect.section, alike=True, reference=reference, factors=factors)
    # A mistake in a line of indices is less likely, and a collective around one may mend the result by accident.
    counting = indices(suspect.experiment, suspect.section)
    put_back = (edit for edit in inserting(edits) if not _around_index(edit, counting))
    proposed = [*changing(edits), *overlooking(edits), *computed(edits), *together(edits), *in_steps(edits), *put_back]
    ranked = [
        replace(edit, rank=edit.rank + _INDICES * (edit.line in counting and edit.kind != "offset"))
        for edit in proposed
    ]
    return sorted(ranked, key=_rank)


def _around_index(edit: Edit, counting: frozenset[str]) -> bool:
    return edit.kind == "collective" and edit.line in counting


def _refusal(trial: Trial, refused: Refused, edit: Edit) -> str | None:
    """Why JAX's types refuse the edited file, None if they accept it; "" if it does not compute the graph either."""
    suspect = trial.suspect
    revised: Experiment | None = suspect.experiment
    try:
        for key, in_file in edit.changed.in_file:
            revised = None if revised is None else revised.with_line(suspect.section, key, in_file())
    except InvalidExperiment:
        return ""
    return "" if revised is None or not trial.agrees(revised) else refused(revised)


_OF_A_TRIAL = 10
"""The number of equations that are computed in the time that it takes to change a graph and to compare results."""

_OF_PARTING = 10.0
"""The largest number of seconds of a search for the lines at which a function parts from its reference."""

_OF_TYPES = 2_000
"""The same for JAX's types of an edited file."""

_LARGER = 8
"""An edit is rejected if a line then has more than this many times the elements of the largest array."""

_LITERALS = 4.0
"""How many units in the last place of its dtype the literals of a function may change a result, relative to its largest
element: 1 / 96 is rounded in the function, where the reference divides by 96.
"""

_CONSTANTS = 64.0
"""The same where a function is far from its reference: one of them may have constants that JAX or NumPy computed."""

_MOST_OFF = 1e-5
"""The most that such constants may change a result, whatever its dtype."""

_FAR = 1e-3
"""The least distance of such a function from its reference, relative to the largest element."""

_MOVING = ("collective", "exchange", "update")
"""The kinds of removals of what moves data: an edit that does the work of one is another program."""

_PLACING = ("exchange", "update")
"""Those of what brings blocks to their places, as a ring does."""

_REMOVED = 32
"""The largest number of parts that are left out of an edited program, to see whether they have an effect there."""

_MOST_IDLE = 1
"""The largest number of lines that an unlikely edit may leave without an effect, and no factor of 1.

A softmax is the same whatever it is shifted by, and a norm's direction whatever it is scaled by. A factor that the edit
made 1 is another matter.
"""

_SPECULATIVE = 3.75
"""The rank from which on an edit is unlikely."""

_RECOGNISED = 0.5
"""The bonus in rank of an edit of a function for each value of its reference that the function has by it."""

_CLEAR = 3 * _RECOGNISED
"""The bonus from which on such values say more than where a function parts from its reference."""

_AT_MOST = 4
"""The largest number of values that count."""

_INDICES = 0.5
"""The penalty in rank of an edit of a line that depends on no array, but of one that adds a device's offset to it."""

_LIKE = 4.0
"""The bonus in rank of an edit that makes a line read like the graph's line of the same name."""

_ALIKE = 0.5
"""The largest bonus in rank of an edit that makes a line resemble that line."""


def _rank(edit: Edit) -> float:
    return edit.rank


def _score(edit: Edit, graph: Mapping[str, str]) -> float:
    """Return the rank of an edit; the more the edited line resembles the graph's, the lower."""
    edited_line, graph_line = edit.written, graph.get(edit.line, "")
    alike = SequenceMatcher(None, edited_line, graph_line).ratio() if edited_line and graph_line else 0.0
    return edit.rank - _LIKE * (alike == 1.0) - _ALIKE * alike


def _lines(graph: Graph) -> dict[str, str]:
    """Return the text of each line of a graph, by its name (`ring.acc`)."""
    return {str(line): expression.text for line, expression in expressions(graph) if not line.first}


@dataclass(frozen=True)
class _Case:
    """Some arrays, and every value of each section; `suspect` is interpreted with edits."""

    arrays: Arrays
    arithmetic: Mapping[Section, Arithmetic]
    values: Mapping[Section, Mapping[str, PerDevice]]
    suspect: Rerun
    moved: bool


class Trial:
    """Tries edits of a section against the graph and against the unedited section.

    It uses the experiment's arrays and randomly scaled ones, since an edit may mend a program by accident of the
    values: if `x` has 4 devices, a constant factor of 4 looks like a superfluous psum.
    """

    def __init__(self, context: Context, suspect: Suspect | None = None, seconds: float = math.inf) -> None:
        self._context, self.experiment, self.seconds = context, context.experiment, seconds
        # What a mend gives.
        self.equal = _EQUAL
        self._work = Work()
        self.suspect = suspect or Suspect(context.experiment)
        exact, uncast = _arithmetic(context, casts=True), _arithmetic(context, casts=False)
        # A superfluous collective in a loop makes the carry grow with every step.
        self._most = most(context)
        self._idle: dict[int, bool] = {}
        self._changed = ChangedGraphs(self.suspect.experiment, self.suspect.section)
        # A constant of one of the two alone, as a table of sines, has its value for a reason.
        experiment = context.experiment
        read = self._changed.arrays(experiment.results)
        if "graph" in experiment.sections:
            read &= ChangedGraphs(experiment, "graph").arrays(experiment.results)
        self._scaled = partial(moved, experiment, context.arrays, names=read)
        self._cases = [self._case(context.arrays, uncast), self._case(self._scaled(1), uncast, moved=True)]
        if context.uncast:
            self._cases.insert(0, self._case(context.arrays, exact))
        # What was done so far is done once, and an edit is tried in a part of that.
        self._whole, self._work.done = self._work.done / len(self._cases), 0.0
        self._work.most = seconds * RATE

    def _case(self, arrays: Arrays, arithmetic: Mapping[Section, Arithmetic], *, moved: bool = False) -> _Case:
        experiment, suspect = self._context.experiment, self.suspect
        rerun = self._rerun(suspect, arrays, arithmetic)
        values: dict[Section, Mapping[str, PerDevice]] = {
            section: rerun.values
            if suspect.experiment is experiment and suspect.section == section
            else interpret(
                experiment, section, arrays, arithmetic=arithmetic[section], script=self._context.bounded(section)
            ).values
            for section in SECTIONS
            if experiment.section(section)
        }
        return _Case(arrays, arithmetic, values, rerun, moved)

    def _rerun(self, suspect: Suspect, arrays: Arrays, arithmetic: Mapping[Section, Arithmetic]) -> Rerun:
        section = suspect.section
        return Rerun(
            suspect.experiment, section, arrays, arithmetic[section], lambda: self._context.bounded(section),
            self._most, shaped=section == "graph" and bool(suspect.experiment.imports.functions), work=self._work,
        )  # fmt: skip

    def of_narrowest_result(self, seconds: float) -> Trial | None:
        """A trial of the wrong result that depends on the fewest lines; None where it depends on most of them.

        Where the function takes a derivative, its loss depends on no line of the backward pass, which has a mistake of
        the forward pass again.
        """
        # What a mistake leaves out of the function, as a zero gradient, is in the reference.
        graphs = self._changed, ChangedGraphs(self.experiment, "graph")
        by_lines = {name: max(len(graph.lines([name])) for graph in graphs) for name in self._wrong}
        name = min(by_lines, key=by_lines.__getitem__)
        if by_lines[name] > _NARROWER * min(len(graph.lines(self.experiment.results)) for graph in graphs):
            return None
        narrow = with_results(self.experiment, {name})
        written = None if narrow is None else narrow.written
        if narrow is None or written is None:
            return None
        outputs = {name: self._context.outputs[name]}
        trial = Trial(replace(self._context, experiment=narrow, outputs=outputs), Suspect(written, "graph"), seconds)
        trial.equal = f"{self.experiment.imports.paths.get(name, name)} equals its reference"
        return trial

    def suspect_is_right(self) -> bool:
        """Whether the suspect computes the graph as it is."""
        return not self._wrong

    def _agree(self, name: str, wanted: Mapping[str, PerDevice], actual: Mapping[str, PerDevice]) -> bool:
        own, eps = self.suspect.section == "graph", dtypes.dtype(self._context.outputs[name][1]).eps
        constants = min(_CONSTANTS * eps, _MOST_OFF) if own and self._is_far else 0.0
        literals = max(_LITERALS * eps, constants) if own else 0.0
        return sections.agree(self._context, name, wanted[name], actual[name], literals=literals)

    @property
    def factors(self) -> dict[str, float]:
        """The factors by which results are off on all arrays alike, by their names."""
        factors: dict[str, float] = {}
        for name in self._context.experiment.results:
            layout = self._context.blocks(name)
            first, *others = (
                output_differences.factor(layout, case.values["graph"][name], case.suspect.values[name])
                for case in self._cases
            )
            if first and all(other is not None and math.isclose(first, other, rel_tol=SAME) for other in others):
                factors[name] = first
        return factors

    @cached_property
    def _is_far(self) -> bool:
        """Whether a function is so far from its reference that a mend differs from what makes it a bit better."""
        return not all(
            sections.agree(self._context, name, case.values["graph"][name], case.suspect.values[name], literals=_FAR)
            for case in self._cases
            for name in self._context.experiment.results
        )

    @contextmanager
    def unlimited(self) -> Generator[None]:
        """Work that may take longer than the search."""
        most, self._work.most = self._work.most, math.inf
        try:
            yield
        finally:
            self._work.most = most

    def mends(self, edit: Edit) -> bool:
        """Whether the edited suspect computes the graph. Raises `Exhausted` if that would take too much work."""
        self._work.add(_OF_A_TRIAL)
        return all(self._mends(case, edit) for case in self._cases) and all(
            self._mends(case, edit) for case in self._others
        )

    def _mends(self, case: _Case, edit: Edit) -> bool:
        # Lines written by hand would have to give the gradients of other arrays too, and these are not known.
        apart = self._context.experiment.apart if case.moved else frozenset[str]()
        return self._computes(case, case.values["graph"], edit, but=apart)

    @cached_property
    def _others(self) -> list[_Case]:
        """Other arrays, for the few edits that mend the program on the first: a maximum may come to stand elsewhere."""
        uncast = _arithmetic(self._context, casts=False)
        return [self._case(self._scaled(seed), uncast, moved=True) for seed in _SEEDS]

    def pointless(self, edit: Edit) -> float:
        """The penalty in rank of an edit for what it makes pointless: nobody writes lines without an effect.

        Those are the equations on which no result depends any more; and the collectives, updates, terms and factors
        that may be left out of the edited program, though not of the unedited one. It is infinite if
        a collective is put in that makes others pointless: with a gather no ring is needed, but that is another
        program.
        """
        gone = self._changed.gone(edit, self._context.experiment.results)
        idle = [
            number
            for number in self._near(edit)
            if self._is_idle(edit, self._removals[number]) and not self._is_idle_unedited(number)
        ]
        moving = any(self._removals[number].kind in _MOVING for number in idle)
        if edit.kind == "collective" and (
            gone.collectives or moving or self._stays_idle(edit) or self._needs_no_other(edit)
        ):
            return math.inf
        lines = {self._removals[number].place for number in idle} - {edit.place}
        scales = any(self._is_one(edit, self._removals[number]) for number in idle)
        unlikely = edit.rank >= _SPECULATIVE and (scales or len(lines) > _MOST_IDLE)
        return math.inf if unlikely else gone.penalty

    def unlike(self, edit: Edit) -> float:
        """The penalty in rank of an edit of a function that makes its values less like those of its reference.

        It is infinite if the reference has what the line gave, and not what it gives: the mistake may be elsewhere.
        """
        evidence = self._recognising.evidence(
            self._cases[0].suspect.executed_in(self._changed.of(edit)),
            edit.changed.lines,
        )
        gained = evidence.covered - self._covered
        return math.inf if evidence.lost else -_RECOGNISED * max(-_AT_MOST, min(gained, _AT_MOST))

    @cached_property
    def _covered(self) -> int:
        return self._recognising.covered(self._cases[0].suspect.executed)

    @cached_property
    def _recognising(self) -> Recognising:
        case, experiment = self._cases[0], self._context.experiment
        reference = self._rerun(Suspect(experiment, "graph"), case.arrays, case.arithmetic)
        return Recognising(reference.executed, case.suspect.executed, experiment.mesh, reference.inputs)

    @property
    def near(self) -> frozenset[str]:
        """The places where the function first computes what its reference has not, and of what is beside that."""
        return frozenset[str]().union(*self._unmatched)

    def is_first(self, edit: Edit) -> bool:
        """Whether an edit stands where the function first computes what its reference has not."""
        return edit.place in self._unmatched[0] and edit.kind not in _ANYWHERE

    @cached_property
    def _unmatched(self) -> tuple[frozenset[str], frozenset[str]]:
        suspect = self._cases[0].suspect
        lines = {value.number: str(line_of(e)) for e in walk(suspect.graph) for value in e.results}

        def places(numbers: Collection[int]) -> frozenset[str]:
            named = (str(self._places[n]) if n in self._places else lines.get(n) for n in numbers)
            return frozenset(place for place in named if place is not None)

        first, beside = strange(suspect.graph, suspect.ran, self._recognising.has)
        return places(first), places(beside)

    def _stays_idle(self, edit: Edit) -> bool:
        """Whether a whole line that exchanges blocks, or that puts them in their places, has no effect once edited.

        A collective that mends a wrong ring by doing its work leaves the ring as idle as the mistake may have made it.
        A line on which no wrong result depends is not that ring.
        """
        lines: dict[tuple[str, str], Edit] = {}
        for removal in (self._removals[number] for number in self._near(edit)):
            line = (removal.place, removal.before)
            wrong = not self._wrong_lines.isdisjoint(removal.changed.lines)
            if wrong and removal.kind in _PLACING and len(removal.changed.edited) >= len(_edited(lines.get(line))):
                lines[line] = removal
        return any(self._is_idle(edit, removal) for removal in lines.values())

    def _needs_no_other(self, edit: Edit) -> bool:
        """Whether the collective that an edit puts in does the work of those that it is put around."""
        self._work.add(_OF_A_TRIAL)
        case = self._cases[0]
        try:
            graph = self._changed.without_inner(edit)
            after = None if graph is None else case.suspect.changed(graph, self._context.experiment.results)
        except MISFITS:
            return False
        return after is not None and all(
            self._agree(name, case.values["graph"], after) for name in self._context.experiment.results
        )

    def _near(self, edit: Edit) -> list[int]:
        """The numbers of the removals from other lines that are tried: those of the nearest lines."""
        at = self._order.get(edit.line, 0)
        edited = edit.changed.lines

        def rank(number: int) -> tuple[bool, int]:
            # An edit that does the work of a collective is the least likely of all.
            removal = self._removals[number]
            return removal.kind not in _MOVING, abs(self._order[removal.line] - at)

        apart = (number for number, removal in enumerate(self._removals) if edited.isdisjoint(removal.changed.lines))
        return sorted(apart, key=rank)[:_REMOVED]

    @cached_property
    def _wrong_lines(self) -> set[Line | None]:
        """The lines on which a wrong result of the suspect depends."""
        return self._changed.lines(self._wrong)

    @cached_property
    def _wrong(self) -> list[str]:
        """The results of the suspect that are wrong."""
        return [
            name
            for name in self._context.experiment.results
            if not all(self._agree(name, case.values["graph"], case.suspect.values) for case in self._cases)
        ]

    @cached_property
    def _removals(self) -> list[Edit]:
        """The removals of parts; of a line that was traced several times from all of its copies."""
        removals: dict[tuple[str, ...], Edit] = {}
        for removal in removing(self._edits):
            removals.setdefault((removal.place, removal.kind, removal.before, removal.after), removal)
        return [*removals.values()]

    @cached_property
    def _order(self) -> dict[str, int]:
        return {site.name: number for number, site in enumerate(self._edits.sites)}

    @cached_property
    def _edits(self) -> Edits:
        return Edits(self.suspect.experiment, self.suspect.section)

    def _is_idle(self, edit: Edit, removal: Edit) -> bool:
        """Whether the edited suspect computes the same without a part, as exactly as the unedited one has to.

        What a tolerance hides, as the epsilon under a root, has an effect.
        """
        self._work.add(_OF_A_TRIAL)
        results = self._context.experiment.results
        suspect = self._cases[0].suspect
        try:
            before, after = (suspect.changed(self._changed.of(*edits), results) for edits in ((edit,), (edit, removal)))
        except MISFITS:
            return False
        return same_values([*before.values()], [*after.values()])

    def _is_one(self, edit: Edit, removal: Edit) -> bool:
        """Whether a factor that may be left out of the edited suspect changes nothing of its own line either."""
        if removal.kind != "factor":
            return False
        suspect = self._cases[0].suspect
        before, after = (suspect.executed_in(self._changed.of(*edits)) for edits in ((edit,), (edit, removal)))
        # A line that nothing reads any more has no values.
        lines = removal.changed.lines
        return all(line in before and same_values(before[line], after.get(line, ())) for line in lines)

    def _is_idle_unedited(self, number: int) -> bool:
        """Whether the suspect as it is computes the same without the part of a removal."""
        if number not in self._idle:
            self._work.add(_OF_A_TRIAL)
            case = self._cases[0]
            try:
                self._idle[number] = case.suspect.unmoved(
                    self._changed.of(self._removals[number]), self._context.experiment.results
                )
            except MISFITS:
                self._idle[number] = False
        return self._idle[number]

    def same(self, edit: Edit) -> bool:
        """Whether the edited suspect computes what it computes as it is."""
        return all(self._computes(case, case.suspect.values, edit) for case in self._cases)

    def differences(self) -> list[str]:
        """Sentences on where the results differ from those of the graph, as they are."""
        case, context = self._cases[0], self._context
        shown = {
            context.experiment.imports.paths.get(name, name): output_differences.differences(
                context.blocks(name), case.values["graph"][name], case.suspect.values[name]
            )
            for name in context.experiment.results
            if not self._agree(name, case.values["graph"], case.suspect.values)
        }
        return output_differences.sentences({name: text for name, text in shown.items() if text is not None})

    def exchanges(self) -> list[str]:
        """A sentence on the line in which devices exchange what the wrong results are made of, if there is only one."""
        frames = self.suspect.experiment.given_frames[self.suspect.section]
        lines = self._changed.exchanging & self._wrong_lines
        places = {str(frames[str(line)]) for line in lines if str(line) in frames}
        return [f"devices exchange values in one line only, {places.pop()}"] if len(places) == 1 else []

    def parting(self) -> Parting | None:
        """The lines at which a function parts from its reference; None where no value of the reference mends it in the
        place of one of the function.
        """
        experiment, suspect = self._context.experiment, self._cases[0].suspect
        self._work.done, self._work.most = 0.0, min(self._work.most, _OF_PARTING * RATE)
        try:
            reruns = [self._rerun(Suspect(experiment, "graph"), case.arrays, case.arithmetic) for case in self._cases]
            places, own = _places(experiment, "graph", reruns[0].graph), self._places
            names = {e.results[0].number for e in walk(reruns[0].graph) if e.operation == NAME}
            computing = {number: frame for number, frame in places.items() if number not in names}
            aligned = alignment.Alignment(
                alignment.Aligned(suspect.graph, suspect.ran, own.get),
                alignment.Aligned(reruns[0].graph, reruns[0].ran, computing.get),
                experiment.mesh,
            )
            parted = aligned.parted(partial(self._with_values, [reference.ran for reference in reruns]))
        except Exhausted:
            return None
        if parted is None:
            return None
        lines = [own[number] for number in parted.values if number in own]
        passing = [each for line in lines for each in passing_to(line)]
        passed = [passed_on(own[number]) for number in parted.last if number in own]
        frames = tuple(dict.fromkeys(line for line in (*lines, *passing, *passed) if line is not None))
        return Parting(frames, places.get(parted.reference)) if lines else None

    @cached_property
    def _places(self) -> dict[int, Frame]:
        return _places(self.suspect.experiment, self.suspect.section, self._cases[0].suspect.graph)

    def frames(self, edit: Edit) -> list[Frame]:
        """The lines of the user's file whose operations an edit changes, as those that read a number."""
        frames = self.suspect.experiment.given_frames[self.suspect.section]
        return [frames[str(line)] for line in edit.changed.lines if str(line) in frames]

    def or_its_number(self, edit: Edit) -> str:
        """The end of a message that names the statements which compute a number that the line reads, for an edit of a
        permutation or of a factor.
        """
        if edit.kind not in ("direction", "constant") or edit.frame is None:
            return ""
        traced = {(frame.file, frame.line) for frame in self._places.values()}
        given = [each for each in reading(edit.frame).given if not each.passed and not computes(each, traced)]
        return "".join(f"; or {each.name} is wrong, {each.frame}" for each in given)

    def _with_values(
        self, references: Sequence[alignment.Ran], number: int, meant: alignment.Meant
    ) -> alignment.Ran | None:
        """The suspect's values if an equation gives these of the reference in each of the cases; None if they do not
        mend it.
        """
        self._work.add(_OF_A_TRIAL)
        results, every = self._context.experiment.results, list[alignment.Ran]()
        try:
            for case, reference in zip(self._cases, references, strict=True):
                values = meant.values(reference, self._context.experiment.mesh)
                after, ran = case.suspect.with_values(number, values, results)
                if not all(self._agree(name, case.values["graph"], after) for name in results):
                    return None
                every.append(ran)
        except MISFITS:
            return None
        return every[0]

    def agrees(self, revised: Experiment) -> bool:
        """Whether the suspect's section of another experiment computes the graph on the same arrays, interpreted from
        its first line.
        """
        self._work.add(_OF_TYPES + 2 * len(self._cases) * self._whole)
        try:
            return all(
                self._agree(name, wanted, values)
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

    def _computes(
        self, case: _Case, wanted: Mapping[str, PerDevice], *edits: Edit, but: frozenset[str] = frozenset()
    ) -> bool:
        """Whether the suspect with these edits gives the wanted results."""
        results = self._context.experiment.results
        try:
            after = case.suspect.changed(self._changed.of(*edits), results)
        except MISFITS:
            return False
        return all(self._agree(name, wanted, after) for name in results if name not in but)


def _edited(edit: Edit | None) -> Sequence[object]:
    return () if edit is None else edit.changed.edited


def most(context: Context) -> int:
    """The largest number of elements that an edited line may have on a device."""
    sizes = [math.prod(shape) for shape, _ in context.outputs.values()]
    return 4096 + _LARGER * max([*sizes, *(array.size for array in context.arrays.values())])


def _arithmetic(context: Context, *, casts: bool) -> dict[Section, Arithmetic]:
    return {section: Arithmetic(context.floats.get(section, {}), casts=casts) for section in SECTIONS}


def moved(experiment: Experiment, arrays: Arrays, seed: int, names: Collection[str]) -> Arrays:
    """Return the arrays with every float scaled by its own random number between one half and three halves.

    Arrays that are not among the `names` stay, and those of zeros and ones, of both: they are masks.
    """
    rng = np.random.default_rng(seed)
    changed: dict[str, np.ndarray] = {}
    for array in experiment.given:
        value = arrays[array.name]
        if array.name in names and not dtypes.dtype(array.dtype).exact and {*np.unique(value)} != {0, 1}:
            factor = rng.uniform(0.5, 1.5, value.shape)
            wide = np.complex128 if dtypes.dtype(array.dtype).kind == "complex" else np.float64
            value = _alike(value, value.astype(wide) * factor).astype(value.dtype)
        changed[array.name] = value
    return changed


def _alike(value: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    """A scaled array that is symmetric, in order or of sums of 1 if the other is: what reads it may rely on that."""
    if value.ndim > 1 and value.shape[-1] == value.shape[-2] and np.array_equal(value, value.swapaxes(-1, -2)):
        scaled = (scaled + scaled.swapaxes(-1, -2)) / 2
    if value.ndim and value.shape[-1] > 1 and value.dtype.kind == "f":
        if (value[..., 1:] >= value[..., :-1]).all():
            scaled = np.sort(scaled, axis=-1)
        for axis in (-1, None):
            if np.allclose(value.sum(axis=axis), 1.0, rtol=0.0, atol=_SUMS) and (value >= 0).all():
                return scaled / scaled.sum(axis=axis, keepdims=True)
    return scaled


_SEEDS = (2, 3)
"""The seeds of the arrays on which an edit that mends a program is tried again."""

_SUMS = 1e-5
"""How far from 1 the sums of shares may be."""


def _factor(context: Context, name: str, factor: float) -> str | None:
    """A sentence on the constant factor by which every element of an output is off on every device."""
    if math.prod(context.outputs[name][0]) < output_differences.FEWEST:
        return None
    mesh = context.experiment.manual
    over = [axis for axis, size in mesh.sizes.items() if size > 1 and math.isclose(size, factor, rel_tol=1e-3)]
    under = [axis for axis, size in mesh.sizes.items() if size > 1 and math.isclose(1 / size, factor, rel_tol=1e-3)]
    why = f": summed once too often over {' or '.join(over)}?" if over else ""
    why = f": a mean over {' or '.join(under)} where a sum is meant?" if under else why
    return f"{name} is {factor:.4g}× the reference on every element of every device{why}"
