"""Makes the rows of a record's table of collectives, one for equal collectives of several programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.base import executions
from runner.base.executions import Count, Part, Range
from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.base.words import bytes_text
from runner.base.words import listed as names_listed
from runner.compiled.evidence import words
from runner.compiled.evidence.model import Collective, CompilerWarning
from runner.compiled.evidence.words import Subject
from runner.compiled.explanation.model import over
from runner.compiled.why.least import joined
from runner.experiment.patterns import folded
from runner.experiment.program import Program
from runner.graph.sharding import ring
from runner.graph.sharding.propagation import Reshard
from runner.reports.record.model import Record
from runner.reports.show.table import Table

HEAD = ("collective", "of", "over", "runs", "in → out per device", "sends", "dtype", "how", "programs")

SHOWN = 24
"""The most rows on a terminal; more are folded."""

_NAMED = 3
"""The most values that a folded row names."""


@dataclass(frozen=True)
class ExplainedRow:
    """A row of the table of collectives, with the reasons for its collectives and what each program sends for them.

    - `cells`: the texts under `HEAD`; `reasons`: each once; `brief`: the first of them in brief, or nothing.
    - `subjects`: whose values the collectives communicate, and for which lines.
    - `parts`: by program, how often each collective runs, in which branches, and the bytes that a device sends for it.
    """

    cells: tuple[str, ...]
    reasons: tuple[str, ...]
    brief: str
    subjects: tuple[Subject, ...]
    parts: Mapping[str, Sequence[Part]]

    @property
    def way(self) -> str:
        """The kind and the axes: `all-gather over data`."""
        return f"{self.cells[0]} over {self.cells[2]}"


def rows(record: Record) -> list[tuple[str, ...]]:
    """Return the rows under `HEAD`."""
    return [row.cells for row in explained(record)]


def brief(record: Record) -> tuple[Table[str], str | None]:
    """Return the table of collectives for a terminal, and a sentence if its rows are folded.

    A line of Python is named by its place, and a column of one value is left out. More rows than a screen has are
    folded by kind, axes, programs and who asks for them, unless the run explains each.
    """
    rows = explained(record, in_brief)
    folds = len(rows) > SHOWN and not record.explain
    of_places = _ways(explained(record, _innermost)) if folds else []
    table = [_folded(group) for group in of_places] if folds else [row.cells for row in rows]
    alike = {k for k in (HEAD.index("dtype"),) if len({row[k] for row in table}) == 1}
    alike |= {HEAD.index("in → out per device")} if folds else set()
    alike |= {HEAD.index("programs")} if len(record.programs) == 1 else set()
    kept = [k for k in range(len(HEAD)) if k not in alike]
    head = [name.removesuffix(" per device") for name in HEAD]
    beneath = [row.brief for row in rows] if record.explain else []
    grouping = () if any(beneath) else ("programs", "how")
    cells = [[row[k] for k in kept] for row in table]
    shown = Table([head[k] for k in kept], cells, beneath=beneath if any(beneath) else (), grouping=grouping)
    return shown, f"{len(rows)} collectives are folded into these rows; explain=true lists each" if folds else None


def _ways(rows: Sequence[ExplainedRow]) -> list[list[ExplainedRow]]:
    """Group rows by kind, axes, dtype, who asks for them, and programs."""
    return list(by_key(((row.cells[0], row.cells[2], *row.cells[6:]), row) for row in rows).values())


def _folded(group: Sequence[ExplainedRow]) -> tuple[str, ...]:
    """Return the cells of one row for a group of rows."""
    kind, _, over, _, _, _, *others = group[0].cells
    names = _named_together(subject for row in group for subject in row.subjects)
    text = _in_one_file(", ".join(names[:_NAMED])) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    every = [
        executions.total([(often, branches, 1) for often, branches, _ in parts])
        for parts in _by_program(group).values()
    ]
    runs = "unknown" if None in every else executions.short(max(every, key=_most))
    return kind, text, over, runs, "", together(group), *others


def _named_together(subjects: Iterable[Subject]) -> list[str]:
    """Name each subject once: the leaves of a tree that the same lines read as patterns of their paths."""
    together: dict[Subject, dict[str, None]] = {}
    for subject in subjects:
        (leaf, *others) = subject.values or ("",)
        folds = subject.readers and not others and not _LINE.match(leaf)
        together.setdefault(replace(subject, values=()) if folds else subject, {}).setdefault(leaf)
    names = (
        str(replace(subject, values=(pattern,))) if not subject.values and pattern else str(subject)
        for subject, leaves in together.items()
        for pattern in folded(leaves)
    )
    return list(dict.fromkeys(map(_in_one_file, names)))


def in_brief(entry: Collective) -> Collective:
    """Name the lines of a collective by their places: `fun.py:5` for `fun.py:5 q, k, v = x @ w`."""
    return _named(entry, _places)


def _innermost(entry: Collective) -> Collective:
    """Name the lines of a collective by their places alone: `ops.py:8` for `fun.py:5 gather(w) → ops.py:8`."""
    return _named(entry, _last)


def _named(entry: Collective, names: Callable[[Sequence[str]], list[str]]) -> Collective:
    between = entry.between and replace(entry.between, source=names(entry.between.source), to=names(entry.between.to))
    return replace(entry, nodes=names(entry.nodes), between=between)


def several_in_brief(entry: Collective) -> Collective:
    """Name the lines of a collective that is of several by their places; one line keeps its text."""
    lines = {*entry.nodes, *(entry.between.source if entry.between else ())}
    return in_brief(entry) if len(lines) > 1 else entry


def _places(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(_LINE.sub(r"\1", line) for line in lines))


def _last(lines: Sequence[str]) -> list[str]:
    return _places([line.rpartition(" → ")[2] for line in lines])


def places(lines: Sequence[str]) -> str:
    """Name lines by their places alone: `fun.py:5, :6` for `fun.py:9 f(x) → fun.py:5` and `fun.py:6 y = x`."""
    return _in_one_file(joined(_last(lines)))


def _in_one_file(named: str) -> str:
    return _IN_ONE_FILE.sub(lambda lines: re.sub(f"(?:,| and) {re.escape(lines[1])}", ", ", lines[0]), named)


_LINE = re.compile(r"(\S+\.py:\d+)(?: (?!→)[^→]*[^→\s])?")
"""A place in a file of Python, and the line there."""

_IN_ONE_FILE = re.compile(r"(\S+\.py):\d+(?:(?: \(backward\))?(?:,| and) \1:\d+)+")
"""Several places in one file, which are shown as `fun.py:5, :6`."""


def explained(record: Record, named: Callable[[Collective], Collective] = lambda entry: entry) -> list[ExplainedRow]:
    """Return the rows of the table, each with its reasons; `named` gives a collective other names of its lines."""
    grouped: dict[tuple[str, ...], dict[str, list[Collective]]] = {}
    programs = _compiled(record)
    for program, listed in programs.items():
        alike = by_key((_alike(named(entry)), entry) for entry in listed)
        for cells, entries in alike.items():
            row = (*cells[:3], words.runs(entries), *cells[3:])
            grouped.setdefault(row, {})[program] = entries
    rows: list[ExplainedRow] = []
    for row, by_program in grouped.items():
        known = [(entry, entry.why) for entries in by_program.values() for entry in entries if entry.why is not None]
        brief = next((words.summary(why, named(entry).nodes) for entry, why in known), "")
        reasons = tuple(dict.fromkeys(words.because(why) for _, why in known))
        parts = {program: _parts(entries) for program, entries in by_program.items()}
        subjects = tuple(dict.fromkeys(Subject.of(named(each)) for of in by_program.values() for each in of))
        rows.append(ExplainedRow((*row, _all_or([*by_program], programs)), reasons, brief, subjects, parts))
    return rows


def together(group: Sequence[ExplainedRow]) -> str:
    """Return what a device sends for all of a group of rows; what the programs send at least and at most if unequal."""
    totals = [executions.total(parts) for parts in _by_program(group).values()]
    if None in totals:
        return "an unknown number of bytes"
    texts = [words.total(total) for total in sorted(totals, key=_most)]
    if any(isinstance(total, Range) for total in totals):
        return texts[-1]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def sent(group: Sequence[ExplainedRow]) -> int:
    """Return the bytes that a device sends at most for a group of rows, as far as they are known."""
    known = ([part for part in parts if None not in (part[0], part[2])] for parts in _by_program(group).values())
    return max(_most(executions.total(parts)) for parts in known)


def _by_program(group: Sequence[ExplainedRow]) -> dict[str, list[Part]]:
    """By program the executions of all rows of a group: branches of several rows may be alternatives."""
    parts: dict[str, list[Part]] = {}
    for row in group:
        for program, own in row.parts.items():
            parts.setdefault(program, []).extend(own)
    return parts


def _parts(entries: Sequence[Collective]) -> list[Part]:
    """The executions of collectives with the bytes of each; those that move nothing count nothing."""
    return [(entry.count, entry.branches, entry.bytes_sent) for entry in entries if not entry.alone]


def totals(record: Record) -> list[str]:
    """Return lines with the bytes that a device sends per kind and per axis, where these are not those of one row."""
    by_text: dict[str, list[str]] = {}
    programs = _compiled(record)
    for program, listed in programs.items():
        moving = [entry for entry in listed if entry.bytes_sent is not None and not entry.alone]
        if not moving or (len(moving) == 1 and moving[0].count in (None, 1)):
            continue
        kinds = by_key((entry.kind, entry) for entry in moving)
        axes = by_key((f"over {over(entry)}", entry) for entry in moving)
        if len(kinds) == len(axes) == 1:
            text = f"{moving[0].kind} over {over(moving[0])} {words.total(ring.total(moving))}"
        else:
            sides = ([f"{name} {words.total(ring.total(of))}" for name, of in side.items()] for side in (kinds, axes))
            text = "; ".join(map(", ".join, sides))
        by_text.setdefault(text, []).append(program)
    return [
        f"total: {text}" if names == list(programs) else f"total of {names_listed(names)}: {text}"
        for text, names in by_text.items()
    ]


def _most(sent: Count) -> int:
    return sent.max if isinstance(sent, Range) else sent or 0


def _all_or(names: list[str], programs: dict[str, list[Collective]]) -> str:
    """Return `all`, or the names of the programs."""
    return "all" if names == list(programs) and len(names) > 1 else ", ".join(names)


def lines(record: Record) -> list[str]:
    """Return the lines below the table: programs without communication, and what is unknown."""
    programs = _compiled(record)
    sentences: list[str] = []
    silent = [program for program, listed in programs.items() if all(entry.alone for entry in listed)]
    if silent:
        sentences.append("no collectives" + ("" if len(silent) == len(programs) else f": {', '.join(silent)}"))
    for program, result in record.compiled.items():
        sentences += [f"{program}: {sentence}" for sentence in result.collectives_unknown]
    return sentences


def reasons(record: Record) -> list[str]:
    """Return one line for each reason, with its collectives and the places of the keys that it names."""
    of_collective: dict[tuple[str, str], list[str]] = {}
    named: dict[str, None] = {}
    programs = _compiled(record)
    for program, listed in programs.items():
        for entry in listed:
            if entry.why is not None:
                programs_of = of_collective.setdefault((words.because(entry.why), words.collective(entry)), [])
                programs_of += [program] if program not in programs_of else []
                named |= dict.fromkeys(entry.why.keys)
    by_reason = by_key(((reason, _all_or(names, programs)), text) for (reason, text), names in of_collective.items())
    texts: list[str] = []
    programs_of_part: dict[str, str] = {}
    for (reason, names), collectives in by_reason.items():
        texts.append(f"{names}: {'; '.join(collectives)}: {_unrepeated(reason, names, programs_of_part)}")
        programs_of_part |= {part: names for part in reason.split("; ") if part not in programs_of_part}
    planned: list[str] = []
    for line in record.derivation.notation if record.derivation else ():
        planned += [f"  {line.text}", *(f"      {_unsaid(entry, texts)}" for entry in line.collectives)]
    places = [f"{key}: {record.places[key]}" for key in named if key in record.places]
    return [*texts, *places, *(["as Shardy plans the graph:", *planned] if planned else [])]


def _unrepeated(reason: str, names: str, programs_of_part: Mapping[str, str]) -> str:
    """Return the reason of a derived line without the operation that needs it, if other programs have that reason."""
    call, *rest = reason.split("; ")
    if names != str(Program.DERIVED) or not rest or not all(part in programs_of_part for part in rest):
        return reason
    return f"{call}, for the reason given for {programs_of_part[rest[0]]}"


def _unsaid(planned: str, texts: Sequence[str]) -> str:
    """Return what the plan says of a collective, without the reason if one of the `texts` gives it."""
    for mark in re.finditer(r"[:;] ", planned):
        if any(planned[mark.end() :] in text for text in texts):
            return planned[: mark.start()]
    return planned


def way(reshard: Reshard) -> str:
    """Describe what the compiler reshards by gathering the whole array, and whether the gather can be avoided."""
    what = f"{reshard.dtype}{list(reshard.shape)} goes from {reshard.before} to {reshard.after}"
    if reshard.through is None:
        return f"{what}; no intermediate specs were found that avoid gathering the whole array"
    steps = ", then ".join(map(str, reshard.through))
    proof = "compiled without a warning" + (", and run: the values are the same" if reshard.ran else "")
    return f"{what}; by way of {steps} a device sends {bytes_text(reshard.bytes_sent)} ({proof})"


@dataclass(frozen=True)
class WarnedMove:
    """The compiler's warnings about equal moves, by their kind and lines, with a way around the move.

    `text`: the compiler's words, of the first; a reader needs none where the move is known.
    """

    about: str
    text: str
    way: str | None


def compiler_warnings(record: Record, *, complete: bool) -> list[tuple[list[str], WarnedMove]]:
    """Return the warnings with the programs that have them; those about equal moves are one unless `complete`.

    The layers of a model, and programs, give the compiler's words again.
    """
    moves = [
        (program, move)
        for program, result in record.compiled.items()
        for move in _warned(result.compiler_warnings or (), complete=complete)
    ]
    if complete:
        return [([program], move) for program, move in moves]
    by_words = by_key(((move.about, move.way or move.text), (program, move)) for program, move in moves)
    return [(list(dict.fromkeys(program for program, _ in group)), group[0][1]) for group in by_words.values()]


def _warned(warnings: Sequence[CompilerWarning], *, complete: bool) -> Iterator[WarnedMove]:
    moves = ((at if complete or warning.reshard is None else warning.reshard) for at, warning in enumerate(warnings))
    for group in by_key(zip(moves, warnings, strict=True)).values():
        first, several = group[0], len(group) > 1
        times: Counter[str] = Counter()
        for warning in group:
            place = warning.node or "no line that it names"
            times[_places([place])[0] if several and warning.node else place] += warning.times
        named = [f"{place} ({count} times)" if count > 1 else place for place, count in times.items()]
        of = f" of {names_listed(named)}" if several or first.node else ""
        around = None if first.reshard is None else way(first.reshard)
        yield WarnedMove(f"{first.kind}{of}", first.text, around)


def _compiled(record: Record) -> dict[str, list[Collective]]:
    """Return the collectives of each program that runs on the mesh and whose module could be read."""
    programs = {name: result.collectives for name, result in record.compiled.items() if Program(name).on_mesh}
    return {name: listed for name, listed in programs.items() if listed is not None}


def _alike(entry: Collective) -> tuple[str, ...]:
    return (
        entry.kind,
        _in_one_file(words.subject(entry)),
        words.over(entry),
        words.sizes(entry),
        "unknown" if entry.bytes_sent is None else bytes_text(entry.bytes_sent),
        entry.dtype,
        _how(entry),
    )


def _how(entry: Collective) -> str:
    parts = ["in a branch"] if isinstance(entry.count, Range) else []
    if entry.inserted:
        parts.append("inserted")
    if entry.asynchronous:
        others = entry.overlapped
        parts.append(
            "overlap unknown" if others is None else f"overlaps {', '.join(others)}" if others else "no overlap"
        )
    if not entry.inserted and not entry.asynchronous:
        parts.append("by differentiation" if entry.gradient else "as written")
    return ", ".join(parts)
