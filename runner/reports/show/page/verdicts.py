"""Makes the section of verdicts: the checks of each program, what failed, and notes."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.words import accuracy_text, error_text
from runner.reports.record.model import Record
from runner.reports.record.verdicts import OutputVerdict, SectionsVerdict, ValueOutput, ValueVerdict
from runner.reports.show import report
from runner.reports.show.page.markup import Inside, Markup, Part, badge, breakable, table, tag
from runner.reports.show.status import LOOKS, look
from runner.reports.show.table import StatusCell, Table


def part(record: Record) -> Part:
    """Return the section; every record has one."""
    inside: list[Inside] = []
    if record.error:
        inside.append(callout("failed", "The run ended here", tag("pre", record.error)))
    if (message := record.refused) is not None:
        inside.append(callout("passed", "Refused, as expect.invalid expects", tag("pre", message)))
    inside += [callout(status, head, _lines(lines)) for status, head, lines in report.failures(record)]
    if record.programs:
        explained = report.legend(record, noticed=False)
        inside += [_programs(record), tag("p", explained, class_="told") if explained else None]
    sections = record.checks.sections
    if sections is not None and not (sections.reason or "").startswith("there is only "):
        status = tag(
            "p", tag("b", "graph and per_device: "), badge(sections.status), " ", sections.note or sections.reason
        )
        inside.append(status)
    inside += [callout("weak", "Warning", tag("p", warning)) for warning in record.warnings]
    noted: dict[str, list[str]] = {}
    for program, result in record.programs.items():
        for name, check in result.checks.named():
            if check.note:
                noted.setdefault(f"{name}: {check.note}", []).append(program)
    inside += [tag("p", tag("b", ", ".join(of), ": "), note, class_="told") for note, of in noted.items()]
    inside.append(_outputs(record))
    return Part("verdicts", "Verdicts", inside)


def callout(status: str, title: str, inside: Inside) -> Markup:
    """Return a box with a title in the colour of a status."""
    return tag("div", tag("p", title, class_="title"), inside, class_=f"callout {status}")


def _lines(lines: list[str]) -> Markup | None:
    return tag("ul", [tag("li", line) for line in lines], class_="plain") if lines else None


def _programs(record: Record) -> Markup:
    """Return the table of programs with signs for statuses; other tables have times, and what each check notices."""
    shown = report.programs(record)
    weak = any(row[1].status == "weak" for row in shown.rows)
    kept = [k for k, name in enumerate(shown.head) if name not in _ELSEWHERE or (weak and name == "notices")]
    rows = [[_sign(row[k], shown.head[k]) if k else row[k] for k in kept] for row in shown.rows]
    met = [name for name in LOOKS if any(cell.status == name for row in shown.rows for cell in row)]
    key = ", ".join(f"{look(name).mark} {name}" for name in met)
    return table(
        f"What was checked of each program: {key}", Table([shown.head[k] for k in kept], rows), kind="verdicts"
    )


_ELSEWHERE = ("notices", "compile", "run")


def _sign(cell: StatusCell, column: str) -> StatusCell | Markup:
    """Return a status as a sign, for a narrow column in which failures stand out; the word is its title."""
    if cell.status not in LOOKS:
        return cell if cell.status else breakable(cell.text)
    mark = tag("span", look(cell.status).mark, aria_hidden="true")
    words = tag("span", cell.status, class_="aloud")
    return tag("span", mark, words, class_=f"sign {cell.status.replace(' ', '-')}", title=f"{column}: {cell.status}")


def _outputs(record: Record) -> Markup | None:
    """Return what the checks of values measured of every output."""
    rows = list(_measures(record))
    if not rows:
        return None
    head = (
        "output", "of", "status", "against", "largest error", "allowed", "share used", "rounding", "accuracy", "wrong",
        "notices", "undecided",
    )  # fmt: skip
    summary = tag("summary", "What was measured for each output")
    shown = Table(head, [cells for cells, _ in rows], beneath=[notes for _, notes in rows])
    return tag("details", summary, table("Errors are absolute; shares are of what is allowed", shown, kind="small"))


def _measures(record: Record) -> Iterator[tuple[list[Inside], str]]:
    """Yield the cells of each output, with what stands beneath them."""
    sections = record.checks.sections
    for name, output in sections.outputs.items() if isinstance(sections, SectionsVerdict) else ():
        allowed = f"{output.atol:.1e} + {output.rtol:.1e}·|x|"
        error, wrong = error_text(output.max_abs_error), f"{output.wrong} of {output.of}"
        undecided = str(output.undecided.count) if output.undecided else "–"
        cells = [name, "per_device", badge(output.status), "graph", error, allowed, *"–––", wrong, "–", undecided]
        yield cells, output.reason or ""
    for program, result in record.programs.items():
        value = result.checks.value
        for name, output in value.outputs.items() if isinstance(value, ValueVerdict) else ():
            cells, notes = _measured(output)
            yield [name, program, badge(output.status), *cells], notes


def _measured(output: OutputVerdict) -> tuple[list[Inside], str]:
    if not isinstance(output, ValueOutput):
        return [*"–––––––––"], output.reason or ""
    whole = ", ".join(f"{name} {m.found:.1e} in {m.least:.1e} … {m.most:.1e}" for name, m in output.whole.items())
    notes = [
        whole and f"of the whole output: {whole}",
        f"{output.nan} NaN in both" if output.nan else "",
        f"{output.overflowing} overflow" if output.overflowing else "",
    ]
    cells: list[Inside] = [
        output.oracle,
        "0" if not output.max_abs_error else f"{output.max_abs_error:.1e} ({output.max_rel_error:.1e} relative)",
        f"{output.atol:.1e} + {output.rtol:.1e}·|x|",
        f"{output.share:.1%}",
        f"{output.rounding:.1e}",
        accuracy_text(output.accuracy),
        f"{output.wrong} of {output.of}",
        "not known" if output.noticed is None else f"{output.noticed:.1e} rms{', twin' if output.by_twin else ''}",
        str(output.undecided.count) if output.undecided else "–",
    ]
    return cells, "; ".join(filter(None, [*notes, output.reason or ""]))
