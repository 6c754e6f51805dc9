"""Prints a run's report on the terminal: coloured there, plain text elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from textwrap import shorten

from runner.base.invocation import invocation
from runner.base.printable import Page
from runner.base.words import accuracy_text, bytes_text, error_text, listed, shown, time_text
from runner.experiment.config.sources import listing as experiments
from runner.experiment.expect import CHECKED
from runner.experiment.program import Program
from runner.experiment.showing import Show, names
from runner.experiment.topology import absence
from runner.link.events import Devices, Timing
from runner.reports.record.folders import PAGE
from runner.reports.record.model import CompiledProgram, MeshShape, Pictures, Record
from runner.reports.record.readable import readable
from runner.reports.record.verdicts import (
    AgreementVerdict,
    Checks,
    DecidingLine,
    LeftOut,
    Undecided,
    ValueOutput,
    ValueVerdict,
    Verdict,
)
from runner.reports.show import summary, values
from runner.reports.show.console import PLAIN, print_report, print_table, room, say, say_all, show_lines, within
from runner.reports.show.status import FAULTS, LOOKS, WARNING, look
from runner.reports.show.table import StatusCell, Table, status_cell


def listing(folders: Sequence[Path], part: str = "") -> bool:
    """Print every experiment in `folders` whose name has a part; a terminal shortens the summary to its width.

    Return whether there is one.
    """
    entries = [entry for entry in experiments(folders) if part in entry[0]]
    if part and not entries:
        return False
    summaries = [summary for _, summary, _ in entries]
    if width := room():
        left = width - max(len(name) for name in ("experiment", *(name for name, *_ in entries))) - 2
        summaries = [shorten(summary, max(left, 20), placeholder=" …") for summary in summaries]
    rows = [(name, summary) for (name, *_), summary in zip(entries, summaries, strict=True)]
    print_table(Table(("experiment", "summary"), rows))
    say(f"\n{len(entries)} experiments. Run one: {invocation()} {entries[0][0] if entries else 'NAME'}")
    if any(summary.endswith(" …") for summary in summaries):
        say(f"Summaries that end in … are shortened: {invocation()} | cat prints them whole.")
    return True


def story(record: Record, folder: Path) -> str:
    """Return the whole report as plain text: every picture, every row."""
    page = Page()
    with redirect_stdout(page), redirect_stderr(page), within(0):
        run(record, folder, brief=False, complete=True)
    return page.getvalue()


def run(record: Record, folder: Path, *, brief: bool, show: Show = "auto", complete: bool = False) -> None:
    """Print the report of one run; `brief`: one line, for a sweep; `show`: which pictures; `complete`: everything."""
    record = readable(record)
    show = show if isinstance(show, str) else [record.paths.get(name, name) for name in show]
    if brief:
        point = " ".join(_short(record.overrides))
        say(f"[{folder.name}] {record.status}  {point}", look(record.status).style)
        return
    if record.experiment and record.mesh and record.target:
        _head(record, record.mesh, record.target)
    _refusal(record)
    # Imported below, where a run needs it: invalid input is reported sooner.
    if record.logical:
        from runner.reports.show import logical

        print_report(logical.table(record.logical))
        say()
    if record.paths and show != "none":
        from runner.reports.show import trees

        leaves = trees.table(record, most=None if complete else trees.SHOWN)
        # The types of an invalid run are unknown.
        if leaves.rows:
            print_report(leaves)
            say()
    if record.pictures:
        _pictures(record.pictures, show, complete=complete)
    _values(record, show)
    traced_on = record.verification.target if record.verification else record.target
    if record.trace and record.mesh and traced_on:
        from runner.reports.show import trace

        show_lines(trace.lines(record.trace, record.mesh.axes, traced_on.platform, room()))
        say()
    if record.programs:
        _programs(record, complete=complete)
        _collectives(record, complete=complete)
        if complete or record.explain:
            _source(record, folder)
        _modes(record)
        _profiles(record)
        _estimates(record, complete=complete)
    for warning in record.warnings:
        say(f"warning: {_with_paths(warning, record.paths)}", WARNING)
    notes = (result.checks.named() for result in record.programs.values())
    for note in dict.fromkeys(check.note for named in notes for name, check in named if name == "value" and check.note):
        say(f"note: {note}")
    _failures(record)
    if record.error:
        sys.stdout.flush()
        print(record.error, file=sys.stderr)
    _verdict(record, folder)


def _refusal(record: Record) -> None:
    """Print the message with which an experiment was refused, if a refusal was expected."""
    if (text := record.refused) is not None:
        # Without a mesh the report has not named the experiment yet.
        title = [] if record.mesh else [": ".join(filter(None, (record.experiment, record.summary))), ""]
        print(
            "\n".join([*title, "refused, as expect.invalid has it:", *(f"  {line}" for line in text.splitlines()), ""])
        )


def _with_paths(text: str, paths: Mapping[str, str]) -> str:
    """Name the leaves of trees in a sentence by their paths: 'result/0' for 'result_0'."""
    return re.sub(r"'(\w+)'", lambda name: f"'{paths.get(name[1], name[1])}'", text)


def _pictures(drawn: Pictures, wanted: Show, *, complete: bool) -> None:
    from runner.reports.show import figures, pictures

    mesh, arrays = pictures.read(drawn)
    show_lines(figures.shown(mesh, arrays, wanted, room() or PLAIN, None if complete else figures.MOST))


def _values(record: Record, wanted: Show) -> None:
    chosen = names(wanted)
    outputs = {program: result.outputs for program, result in record.compiled.items()}
    leaves = frozenset(record.paths.values()) if chosen is None else frozenset[str]()

    def asked(name: str) -> bool:
        return wanted != "none" and name in (chosen or (name,)) and name not in leaves

    most = values.SHOWN if wanted == "auto" else None
    say_all(values.lines(outputs, asked, room() or PLAIN, most))


def _head(record: Record, mesh: MeshShape, target: Devices) -> None:
    say(f"{record.experiment}: {record.summary}" if record.summary else f"{record.experiment}", "bold")
    axes = " × ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.shape, strict=True))
    jax = f", jax {record.environment.jax}" if record.environment.jax else ""
    devices = summary.devices(target)
    if target.topology:
        absent = absence(target.topology, target.devices)
        # Topology.compiler_options
        quickly = ", without autotuning its products" if target.platform == "gpu" else ""
        say(f"mesh {axes}, compiled for {devices} ({target.topology}), {absent}{quickly}{jax}\n")
    else:
        say(f"mesh {axes} on {devices}{jax}\n")


def programs(record: Record) -> Table[StatusCell]:
    """Return the table of programs, with their checks, measured values, and times; a check that failed stands first."""
    rows: list[list[StatusCell]] = []
    columns, accurate = _checks(record), _beyond_rounding(record)
    for at, (program, result) in enumerate(record.programs.items()):
        row = [StatusCell(program), status_cell(result.status), *(cells[at] for _, cells in columns)]
        error, power = _measured(result.checks)
        row += map(StatusCell, (error, *([accuracy_text(_accuracy(result.checks))] if accurate else []), power))
        timing = result.timing if isinstance(result, CompiledProgram) else None
        row.append(StatusCell(_compile_time(timing) if timing else "–"))
        row.append(StatusCell(_run_time(timing) if timing else "–"))
        rows.append(row)
    measured = ("largest error", *(["accuracy"] if accurate else []), "notices")
    return Table(("program", "status", *(name for name, _ in columns), *measured, "compile", "run"), rows)


def _beyond_rounding(record: Record) -> bool:
    """Whether an output of a program is off by more than rounding was measured to cause: then accuracy has a column."""
    return any((_accuracy(result.checks) or 0.0) > 1 for result in record.programs.values())


def _accuracy(checks: Checks) -> float | None:
    return max((each.accuracy for each in _compared(checks).values() if each.accuracy is not None), default=None)


def _checks(record: Record) -> list[tuple[str, list[StatusCell]]]:
    """The columns of the checks, each with a cell per program: those that failed, those that are weak, the others."""
    of = [result.checks for result in record.programs.values()]
    names = list(dict.fromkeys(name for checks in of for name, _ in checks.named()))
    columns = [(name, [_cell(checks.get(name)) for checks in of]) for name in names if name not in CHECKED]
    if any(name in CHECKED for name in names):
        expected = [[check for name, check in checks.named() if name in CHECKED] for checks in of]
        columns.append(("expect", list(map(_expectations, expected))))
    sections = record.checks.sections
    if sections is not None and sections.status in FAULTS:
        columns = [(name, _as_written(record, name, cells)) for name, cells in columns]
        columns.insert(0, ("sections", [_cell(sections if _is_written(name) else None) for name in record.programs]))
    return sorted(columns, key=lambda column: min((_RANKS.get(cell.status or "", 2) for cell in column[1]), default=2))


_RANKS = {"failed": 0, "error": 0, "weak": 1, "known": 1}
"""The places of columns by their worst status; all others follow."""


def _cell(check: Verdict | None) -> StatusCell:
    status = "not run" if check is None or check.status == "not_run" else check.status
    return status_cell(status, "–" if status == "not run" else status)


_OF_SECTIONS = ("value", "agreement", "gradient")
"""The checks that compare a program with what its own section says."""

AS_WRITTEN = "as written"
"""What a program is that computes what its section says, where `sections` failed."""


def _as_written(record: Record, check: str, cells: Sequence[StatusCell]) -> list[StatusCell]:
    """The cells of a check, where `sections` failed: the programs of `per_device` are right by their section alone."""
    of_section = check in _OF_SECTIONS
    return [
        StatusCell(AS_WRITTEN) if of_section and cell.status == "passed" and _is_written(program) else cell
        for program, cell in zip(record.programs, cells, strict=True)
    ]


def _is_written(program: str) -> bool:
    """Whether a program is written from `per_device`, which `sections` compares with the graph."""
    return Program(program).section == "per_device"


def summary_of_programs(record: Record) -> Table[StatusCell]:
    """Return the table of programs in brief: a column for each check that not every program passed, and figures.

    `checks` counts those that a program passed; `memory` is what a device needs.
    """
    whole = programs(record)
    names = list(whole.head[: whole.head.index("largest error")])
    apart = [k for k in range(len(names)) if k < 2 or any(_stands_out(row[k]) for row in whole.rows)]
    weak = any(row[1].status == "weak" for row in whole.rows)
    hidden = () if weak else ("notices",)
    figures = [k for k, name in enumerate(whole.head) if k >= len(names) and name not in hidden]
    rows: list[list[StatusCell]] = []
    for row, of in zip(whole.rows, record.programs, strict=True):
        passed = sum(cell.text == "passed" for cell in row[2 : len(names)])
        counted = StatusCell(f"{passed} passed" if passed else "–")
        error, *others = (row[k] for k in figures)
        rows.append([*(row[k] for k in apart), counted, error, StatusCell(_memory(record, of)), *others])
    error, *others = (whole.head[k] for k in figures)
    return Table((*(whole.head[k] for k in apart), "checks", error, "memory", *others), rows)


def _stands_out(cell: StatusCell) -> bool:
    return cell.text not in ("passed", "–")


def _memory(record: Record, program: str) -> str:
    """What a device needs for a program, in words; unknown where the compiler does not say."""
    result = record.programs[program]
    memory = result.memory if isinstance(result, CompiledProgram) else None
    needed = None if memory is None else memory.needed_bytes
    return "–" if needed is None or not Program(program).on_mesh else bytes_text(needed)


def _programs(record: Record, *, complete: bool) -> None:
    print_report(programs(record) if complete else summary_of_programs(record))
    say()
    undecided = _undecided(record)
    say_all(undecided)
    if undecided:
        say()
    if room() is not None and (explained := legend(record, complete=complete)):
        # Readers of a file or a page have docs/language.md at hand.
        say(f"{explained}\n", "dim")
    if record.target and record.target.topology:
        from runner.reports.show import remarks

        remarks.show_checks_elsewhere(record, record.target)


_LEGEND = {
    "accuracy": "accuracy: the largest error as a multiple of the measured rounding",
    "notices": "notices: the smallest error of an output that would fail, as a share of its root mean square",
    "twin": "twin: the error of the program with float64 in the place of every float",
    "derivation": "derivation: whether the derived lines compute what the graph does",
    "as written": "as written: it is what its section says, which is not what the other section says",
    "known": "known: wrong as expect.wrong says",
}
"""The meaning of each technical word in the table of programs."""


def legend(record: Record, *, complete: bool = True, noticed: bool = True) -> str:
    """Return a line that explains the technical words of the table, `complete` or in brief.

    `noticed`: whether the table has a column for it, though no program is weak.
    """
    has_notices = (complete and noticed) or any(program.status == "weak" for program in record.programs.values())
    compared = [output for each in record.programs.values() for output in _compared(each.checks).values()]
    by_twin = has_notices and any(output.by_twin for output in compared)
    there = {"notices": has_notices and bool(compared), "twin": by_twin}
    names = {name for program in record.programs.values() for name, _ in program.checks.named()}
    known = any(program.status == "known" for program in record.programs.values())
    sections = record.checks.sections
    apart = sections is not None and sections.status in FAULTS and any(map(_is_written, record.programs))
    shown = {**there, "accuracy": _beyond_rounding(record), "derivation": complete and "derivation" in names}
    shown |= {AS_WRITTEN: apart, "known": known}
    return "; ".join(_LEGEND[word] for word, is_there in shown.items() if is_there)


def _compared(checks: Checks) -> dict[str, ValueOutput]:
    """Return the verdicts of the `value` check on the outputs that it compared."""
    return checks.value.compared if isinstance(checks.value, ValueVerdict) else {}


def _measured(checks: Checks) -> tuple[str, str]:
    """Return the worst error and the weakest power of a `value` check, each with the name of its output."""
    outputs = _compared(checks)
    if not outputs:
        return "–", "–"
    worst = max(outputs, key=lambda name: _badness(outputs[name]))
    error = f"{error_text(outputs[worst].max_abs_error)} in {worst}"
    powers = {name: output.noticed for name, output in outputs.items() if output.noticed is not None}
    if not powers:
        return error, "–"
    # Among equally weak outputs, take the one that is named already.
    bluntest = max(powers, key=lambda name: (powers[name], outputs[name].undecided is not None, name == worst))
    exactly = "all but undecided" if outputs[bluntest].undecided else "anything"
    of = ", twin" if outputs[bluntest].by_twin else ""
    power = f"{powers[bluntest]:.1e} rms{of}" if powers[bluntest] else exactly
    return error, power if bluntest == worst else f"{power} in {bluntest}"


def _badness(output: ValueOutput) -> tuple[int, float, float]:
    """Return a sort key: failed, known to fail, weak; among equals the largest share of the tolerance."""
    status = ("passed", "weak", "known", "failed").index(output.status)
    return status, output.max_abs_error if output.wrong else 0.0, output.share


_PLACES = 3
"""The most deciding lines that are named."""


def _undecided(record: Record) -> list[str]:
    """Say what depends on decisions that rounding may change, and on which lines, program by program."""
    texts: dict[str, list[str]] = {}
    for program, result in record.programs.items():
        for name, output in _compared(result.checks).items():
            if output.undecided:
                texts.setdefault(_open(name, output, output.undecided), []).append(program)
    ran = [program for program, result in record.programs.items() if isinstance(result.checks.value, ValueVerdict)]
    return [text if programs == ran else f"{', '.join(programs)}: {text}" for text, programs in texts.items()]


def _falling(place: DecidingLine) -> str:
    """The operation that rounding may turn, and its line."""
    if place.least_steps is None:
        return f"{place.operation} in {place.line}"
    if place.most_steps is None:
        return f"{place.operation} in {place.line} ({place.least_steps} steps or more, perhaps without end)"
    return f"{place.operation} in {place.line} ({place.least_steps} to {place.most_steps} steps)"


def _open(name: str, output: ValueOutput, undecided: Undecided) -> str:
    places = [_falling(place) for place in undecided.places]
    if len(places) > _PLACES:
        places = [*places[: _PLACES - 1], f"{len(places) - _PLACES + 1} more"]
    are = "is" if undecided.count == 1 else "are"
    text = f"{undecided.count} of {output.of} elements of {name} {are} undecided"
    text += f": {listed(places)} may fall to either side by rounding" if places else ""
    if undecided.between or undecided.excused:
        text += f"; {undecided.between} of them lie between the possible values, {undecided.excused} beyond"
    return text


def _expectations(checks: Sequence[Verdict]) -> StatusCell:
    """Return all expectations of a program in one cell; failures are named below the table."""
    statuses = {check.status for check in checks}
    status = next((status for status in ("failed", "passed") if status in statuses), "not run")
    return status_cell(status, "–" if status == "not run" else status)


def _collectives(record: Record, *, complete: bool) -> None:
    from runner.reports.show import collectives

    full = complete or record.explain == "full"
    if full:
        shown, folded = Table(collectives.HEAD, collectives.rows(record)), None
    else:
        shown, folded = collectives.brief(record)
    if shown.rows:
        print_report(shown)
    totals = collectives.totals(record) if len(shown.rows) > 1 else []
    explain = collectives.reasons(record) if full else []
    if shown.beneath:
        say("reasons in brief; in full: explain=full", "dim")
    beneath = [*([folded] if folded else []), *totals, *collectives.lines(record), *explain]
    say_all(beneath)
    if shown.rows or beneath:
        say()
    for programs, move in collectives.compiler_warnings(record, complete=full):
        words = f": {move.text}" if full or move.way is None else "; explain=full has the compiler's words"
        say(f"{listed(programs)}: the compiler warns: {move.about}{words}", WARNING)
        if move.way is not None:
            say(f"  {move.way}")


def _source(record: Record, folder: Path) -> None:
    """Print the source of Python functions with its collectives in the margin, once for all programs alike in it."""
    if all(line.frame is None for lines in record.lines.values() for line in lines):
        return
    # Experiments whose lines are all in their file need none of what explains modules.
    from runner.reports.show import annotated, explained_runs

    explained = explained_runs.explained(record, folder)
    for group in explained:
        if len(explained) > 1:
            say(f"{', '.join(group.names)}:", "bold")
        width = min(room() or PLAIN, PLAIN)
        show_lines([[(line, "")] for line in annotated.text_of(group.explanation, width)])
        for file in group.changed:
            say(f"{file} has changed since the run: only the lines that the record has are shown", WARNING)
        say()


def _modes(record: Record) -> None:
    from runner.reports.show import modes, remarks

    if table := modes.rows(record):
        print_report(Table(modes.HEAD, table))
        say_all(modes.lines(record))
        print()
    if lines := remarks.rematerialised(record):
        say_all(lines)
        print()


def _profiles(record: Record) -> None:
    """Print where the time of each program goes, if profiles were asked for."""
    taken = {program: result.profile for program, result in record.compiled.items() if result.profile}
    if not taken:
        return
    from runner.reports.show import profile

    rows = [(program, *row) for program, of in taken.items() for row in profile.rows(of)]
    if rows:
        say("profile: the median time of a run on one device; a collective's includes waiting for other devices")
        print_report(Table(("program", *profile.HEAD), rows))
        say_all(profile.head(taken))
        say()


def _estimates(record: Record, *, complete: bool) -> None:
    """Print the least time of a run on the hardware that the experiment names."""
    estimated = {program: result.estimate for program, result in record.compiled.items() if result.estimate}
    if not estimated:
        return
    from runner.reports.show import estimates

    say_all(estimates.head(estimated))
    print_report(estimates.compared(estimated))
    say_all(estimates.beneath(estimated, complete=complete))
    say()


def _compile_time(timing: Timing) -> str:
    return f"{timing.compile_s * 1e3:.0f} ms" if timing.compile_s < 1 else time_text(timing.compile_s)


def _run_time(timing: Timing) -> str:
    return "not run" if timing.run_s is None else f"{timing.run_s.median * 1e3:.2f} ms"


def failures(record: Record) -> list[tuple[str, str, list[str]]]:
    """Return each failure with its status and reasons: the sections first; equal failures of programs are joined."""
    failed: list[tuple[str, str, list[str]]] = [
        (check.status, f"{name} {FAULTS[check.status]}", check.lines())
        for name, check in record.checks.named()
        if check.status in FAULTS
    ]
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for program, result in record.programs.items():
        if result.error:
            failed.append(("failed", f"{program}: {result.error}", []))
        for name, check in result.checks.named():
            if check.status in FAULTS:
                alike.setdefault((name, check.status, tuple(check.lines())), []).append(program)
    for (name, status, lines), programs in alike.items():
        failed.append((status, f"{listed(programs)}: {name} {FAULTS[status]}", list(lines)))
    return failed


def _failures(record: Record) -> None:
    failed = failures(record)
    for status, text, lines in failed:
        say(text, LOOKS[status].colour)
        for line in lines:
            say(f"  {line}")
    if any(status == "weak" for status, *_ in failed):
        from runner.reports.show import remarks

        for line in remarks.weak_advice(record):
            say(f"  {line}")
    left_out: dict[str, list[str]] = {}
    for result in record.programs.values():
        agreement = result.checks.agreement
        for output, programs in agreement.left_out.items() if isinstance(agreement, AgreementVerdict | LeftOut) else ():
            there = left_out.setdefault(output, [])
            there += [program for program in programs if program not in there]
    if left_out:
        summary = "; ".join(f"{output} of {listed(programs)}" for output, programs in left_out.items())
        say(f"agreement does not compare the outputs in expect.wrong: {summary}", LOOKS["known"].colour)


def _verdict(record: Record, folder: Path) -> None:
    page = f" and its {PAGE}" if (folder / PAGE).is_file() else ""
    say(f"{summary.line(record)}; {shown(folder / 'result.json')}{page}", look(record.status).style)
    if len(record.programs) > 1:
        from runner.reports.show import modes

        if (line := modes.compared(record)) is not None:
            say(line)


def _short(overrides: Iterable[str]) -> list[str]:
    return [override.lstrip("+") for override in overrides]


def mutants(rows: Iterable[tuple[str, str, str]]) -> None:
    """Print for each mutant its outcome, the checks that noticed it, and the edit."""
    statuses = {"noticed": "passed", "survived": "failed"}
    cells = [(status_cell(statuses.get(outcome, "not run"), outcome), by, change) for outcome, by, change in rows]
    print_table(Table(("mutant", "by", "change"), cells))
