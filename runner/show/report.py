"""Records in; what a run tells its user on the terminal out: with colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from textwrap import shorten

from runner.config.sources import listing as experiments
from runner.config.sources import shown
from runner.experiment.expect import CHECKED
from runner.experiment.showing import Show, names
from runner.link.events import Devices, Timing
from runner.printable import Page
from runner.record.folders import PAGE
from runner.record.model import CompiledProgram, MeshShape, Pictures, Record
from runner.record.verdicts import (
    AgreementVerdict,
    Checks,
    LeftOut,
    Undecided,
    ValueOutput,
    ValueVerdict,
    Verdict,
)
from runner.show import absent, collectives, figures, keeping, logical, modes, refused, values
from runner.show.console import PLAIN, print_table, room, say, show_lines
from runner.show.status import status_cell
from runner.show.table import Cell
from runner.words import listed


def listing(folders: Sequence[Path]) -> None:
    """Every experiment in `folders`, one line each; on a terminal with as much of its summary as there is room for."""
    found = experiments(folders)
    told = [summary for _, summary, _ in found]
    if width := room():
        left = width - max(len(name) for name in ("experiment", *(name for name, *_ in found))) - 2
        told = [shorten(summary, max(left, 20), placeholder=" …") for summary in told]
    rows = [(name, summary) for (name, *_), summary in zip(found, told, strict=True)]
    print_table(("experiment", "summary"), rows)
    say(f"\n{len(found)} experiments. Run one: python -m runner +experiment={found[0][0] if found else 'NAME'}")
    if any(summary.endswith(" …") for summary in told):
        say("Summaries that end in … go on: python -m runner | cat has them whole.")


def story(found: Record, folder: Path) -> str:
    """All that a run tells, as plain text: every picture, every row."""
    page = Page()
    with redirect_stdout(page), redirect_stderr(page):
        run(found, folder, brief=False, complete=True)
    return page.getvalue()


def run(found: Record, folder: Path, *, brief: bool, show: Show = "auto", complete: bool = False) -> None:
    """What one run found; `brief` is one line, for a sweep; `show` says which pictures; `complete`: all."""
    if brief:
        point = " ".join(_short(found.overrides))
        text, style = status_cell(found.status)
        say(f"[{folder.name}] {text}  {point}", style)
        return
    if found.experiment and found.mesh and found.target:
        _head(found, found.mesh, found.target)
    print(refused.plain(found), end="")
    if found.logical:
        head, rows = logical.table(found.logical)
        print_table(head, rows)
        say()
    if found.pictures:
        _pictures(found.pictures, show, complete=complete)
    _values(found, show)
    traced_on = found.verification.target if found.verification else found.target
    if found.trace and found.mesh and traced_on:
        from runner.show import trace

        show_lines(trace.lines(found.trace, found.mesh.axes, traced_on.platform, room()))
        say()
    if found.programs:
        _programs(found)
        _collectives(found, complete=complete)
        _modes(found)
        _profiles(found)
        _estimates(found, complete=complete)
    for warning in found.warnings:
        say(f"warning: {warning}", "yellow")
    _failures(found)
    if found.error:
        sys.stdout.flush()
        print(found.error, file=sys.stderr)
    _verdict(found, folder)


def _pictures(drawn: Pictures, wanted: Show, *, complete: bool) -> None:
    mesh, arrays = figures.read(drawn)
    show_lines(figures.shown(mesh, arrays, wanted, room() or PLAIN, None if complete else figures.MOST))


def _values(found: Record, wanted: Show) -> None:
    chosen = names(wanted)
    outputs = {program: result.outputs for program, result in found.compiled.items()}
    for line in values.lines(outputs, lambda name: wanted != "none" and name in (chosen or (name,)), room() or PLAIN):
        say(line)


def _head(found: Record, mesh: MeshShape, target: Devices) -> None:
    say(f"{found.experiment}: {found.summary}" if found.summary else f"{found.experiment}", "bold")
    axes = " × ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.shape, strict=True))
    simulated = "simulated " if target.platform == "cpu" else ""
    count = target.devices
    jax = f", jax {found.environment.jax}" if found.environment.jax else ""
    devices = f"{count} {simulated}{target.kind or target.platform} device{'s' if count != 1 else ''}"
    if target.topology:
        absent = "which is not here" if count == 1 else "which are not here"
        say(f"mesh {axes}, compiled for {devices} ({target.topology}), {absent}{jax}\n")
    else:
        say(f"mesh {axes} on {devices}{jax}\n")


def programs(found: Record) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """The head and the rows of the table of programs, with their checks, what was measured, and times."""
    names: list[str] = []
    for program in found.programs.values():
        names += [name for name, _ in program.checks.named() if name not in names]
    expected = [name for name in names if name in CHECKED]
    names = [name for name in names if name not in expected]
    rows: list[list[Cell]] = []
    for program, result in found.programs.items():
        row = [(program, ""), status_cell(result.status)]
        for name in names:
            check = result.checks.get(name)
            status = "not run" if check is None or check.status == "not_run" else check.status
            row.append(status_cell(status, "–" if status == "not run" else status))
        if expected:
            row.append(_expectations([check for name, check in result.checks.named() if name in expected]))
        row += [(text, "") for text in _measured(result.checks)]
        timing = result.timing if isinstance(result, CompiledProgram) else None
        row.append((f"{timing.compile_s * 1e3:.0f} ms" if timing else "–", ""))
        row.append((_run_time(timing) if timing else "–", ""))
        rows.append(row)
    head = ("program", "status", *names, *(["expect"] if expected else []), *_MEASURED, "compile", "run")
    return head, rows


def _programs(found: Record) -> None:
    print_table(*programs(found))
    say()
    undecided = _undecided(found)
    for line in undecided:
        say(line)
    if undecided:
        say()
    if found.target and found.target.topology:
        absent.show(found, found.target)


_MEASURED = ("largest error", "notices")


def _compared(checks: Checks) -> dict[str, ValueOutput]:
    """What the `value` check says of the outputs that it compared."""
    return checks.value.compared if isinstance(checks.value, ValueVerdict) else {}


def _measured(checks: Checks) -> tuple[str, str]:
    """Of a `value` check the worst output's error, and the bluntest's power, each with the name of its output."""
    outputs = _compared(checks)
    if not outputs:
        return "–", "–"
    worst = max(outputs, key=lambda name: _badness(outputs[name]))
    error = f"{outputs[worst].max_abs_error:.1e} in {worst}"
    powers = {name: output.power for name, output in outputs.items() if output.power is not None}
    if not powers:
        return error, "–"
    # Of several that are as blunt, the one that is named already.
    bluntest = max(powers, key=lambda name: (powers[name], outputs[name].undecided is not None, name == worst))
    exactly = "all but undecided" if outputs[bluntest].undecided else "anything"
    power = f"{powers[bluntest]:.1e} rms" if powers[bluntest] else exactly
    return error, power if bluntest == worst else f"{power} in {bluntest}"


def _badness(output: ValueOutput) -> tuple[int, float, float]:
    """What failed, what is known to, what is weak; of those that are alike, what used most of its tolerance."""
    status = ("passed", "weak", "known", "failed").index(output.status)
    return status, output.max_abs_error if output.wrong else 0.0, output.share


_PLACES = 3
"""Of so many lines that decide, each is named."""


def _undecided(found: Record) -> list[str]:
    """What hangs on decisions that rounding may take otherwise, and where those stand, program by program."""
    told: dict[str, list[str]] = {}
    for program, result in found.programs.items():
        for name, output in _compared(result.checks).items():
            if output.undecided:
                told.setdefault(_open(name, output, output.undecided), []).append(program)
    ran = [program for program, result in found.programs.items() if isinstance(result.checks.value, ValueVerdict)]
    return [text if programs == ran else f"{', '.join(programs)}: {text}" for text, programs in told.items()]


def _open(name: str, output: ValueOutput, undecided: Undecided) -> str:
    places = [f"{place.operation} in {place.line}" for place in undecided.places]
    if len(places) > _PLACES:
        places = [*places[: _PLACES - 1], f"{len(places) - _PLACES + 1} more"]
    are = "is" if undecided.count == 1 else "are"
    text = f"{undecided.count} of {output.of} elements of {name} {are} undecided"
    text += f": {listed(places)} may fall to either side by rounding" if places else ""
    if undecided.between or undecided.excused:
        text += f"; of these {undecided.between} lie between what that leads to, {undecided.excused} beyond"
    return text


def _expectations(checks: Sequence[Verdict]) -> Cell:
    """All expectations of a program in one cell; which one failed is said below the table."""
    statuses = {check.status for check in checks}
    status = next((status for status in ("failed", "passed") if status in statuses), "not run")
    return status_cell(status, "–" if status == "not run" else status)


def _collectives(found: Record, *, complete: bool) -> None:
    table, rest = collectives.shortened(collectives.rows(found), most=None if complete else collectives.SHOWN)
    if table:
        print_table(collectives.HEAD, table)
    explain = collectives.reasons(found) if complete or found.explain else []
    beneath = [*([rest] if rest else []), *collectives.lines(found), *explain]
    for line in beneath:
        say(line)
    if table or beneath:
        say()
    for program, result in found.compiled.items():
        for warning in result.compiler_warnings or ():
            of = f" of {warning.node}" if warning.node else ""
            say(f"{program}: the compiler warns: {warning.kind}{of}: {warning.text}", "yellow")
            if warning.reshard is not None:
                say(f"  {collectives.way(warning.reshard)}")


def _modes(found: Record) -> None:
    if table := modes.rows(found):
        print_table(modes.HEAD, table)
        for line in modes.lines(found):
            say(line)
        print()
    if told := keeping.lines(found):
        for line in told:
            say(line)
        print()


def _profiles(found: Record) -> None:
    """Where the time of each program goes, where that was asked for."""
    taken = {program: result.profile for program, result in found.compiled.items() if result.profile}
    if not taken:
        return
    from runner.show import profile

    rows = [(program, *row) for program, of in taken.items() for row in profile.rows(of)]
    if rows:
        say("profile: the median time of a run on one device; a collective's includes waiting for other devices")
        print_table(("program", *profile.HEAD), rows)
        say()


def _estimates(found: Record, *, complete: bool) -> None:
    """What a run takes at least on the hardware that the experiment names."""
    told = {program: result.estimate for program, result in found.compiled.items() if result.estimate}
    if not told:
        return
    from runner.show import estimates

    for line in estimates.head(told):
        say(line)
    print_table(estimates.HEAD, estimates.rows(told))
    for line in estimates.beneath(told, complete=complete):
        say(line)
    say()


def _run_time(timing: Timing) -> str:
    return "not run" if timing.run_s is None else f"{timing.run_s.median * 1e3:.2f} ms"


def failures(found: Record) -> list[tuple[Cell, list[str]]]:
    """What failed, each with its reasons: the sections first, then what failed alike in one program or several."""
    told: list[tuple[Cell, list[str]]] = [
        ((f"{name} {FAULTS[check.status]}", "red"), check.lines())
        for name, check in found.checks.named()
        if check.status in FAULTS
    ]
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for program, result in found.programs.items():
        if result.error:
            told.append(((f"{program}: {result.error}", "red"), []))
        for name, check in result.checks.named():
            if check.status in FAULTS:
                alike.setdefault((name, check.status, tuple(check.lines())), []).append(program)
    for (name, status, lines), programs in alike.items():
        style = "yellow" if status == "known" else "red"
        told.append(((f"{listed(programs)}: {name} {FAULTS[status]}", style), list(lines)))
    return told


def _failures(found: Record) -> None:
    for (text, style), lines in failures(found):
        say(text, style)
        for line in lines:
            say(f"  {line}")
    left_out: dict[str, list[str]] = {}
    for result in found.programs.values():
        agreement = result.checks.agreement
        for output, programs in agreement.left_out.items() if isinstance(agreement, AgreementVerdict | LeftOut) else ():
            there = left_out.setdefault(output, [])
            there += [program for program in programs if program not in there]
    if left_out:
        told = "; ".join(f"{output} of {listed(programs)}" for output, programs in left_out.items())
        say(f"agreement leaves out what expect.wrong knows: {told}", "yellow")


FAULTS = {"failed": "failed", "weak": "is weak", "known": "failed, as expect.wrong knows"}
"""The statuses of a check that found something to say, in words."""


def _verdict(found: Record, folder: Path) -> None:
    programs = found.programs
    passed = sum(program.status == "passed" for program in programs.values())
    done = "compiled, values not run" if _only_compiled(found) else "passed"
    failed = [f"{name} failed" for name, check in found.checks.named() if check.status == "failed"]
    counted = [*failed, *([f"{passed} of {len(programs)} programs {done}"] if programs else [])]
    known = sum(program.status == "known" for program in programs.values())
    count = f": {', '.join(counted)}" if counted else ""
    count += f", {known} {'is' if known == 1 else 'are'} wrong as expect.wrong knows" if known else ""
    text, style = status_cell(found.status)
    page = f" and its {PAGE}" if (folder / PAGE).is_file() else ""
    say(f"{text}{count}; {shown(folder / 'result.json')}{page}", style)


def _only_compiled(found: Record) -> bool:
    return found.target is not None and bool(found.target.topology) and found.verification is None


def _short(overrides: Iterable[str]) -> list[str]:
    return [override.lstrip("+") for override in overrides]


def mutants(rows: Iterable[tuple[str, str, str]]) -> None:
    """For each mutant its outcome, the checks that noticed it, and what was changed."""
    styles = {"noticed": "green", "survived": "bold red"}
    print_table(
        ("mutant", "by", "change"),
        [((outcome, styles.get(outcome, "dim")), (by, ""), (change, "")) for outcome, by, change in rows],
    )
