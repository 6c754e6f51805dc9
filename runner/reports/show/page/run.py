"""Makes the HTML page of a run from its record and its run folder."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.base import plain
from runner.base.grouping import by_key
from runner.reports.record.folders import PAGE, PICTURES
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.record.readable import readable
from runner.reports.record.writing import write_text
from runner.reports.show import summary, values
from runner.reports.show.console import PLAIN
from runner.reports.show.page import estimated, headline, layouts, moves, plan_section, sources, traced, verdicts
from runner.reports.show.page.markup import Inside, Markup, Part, badge, document, scrolling, table, tag
from runner.reports.show.table import Table

_LARGEST = 2_000_000
"""The most characters of a record that is embedded in the page."""

_FEW_LINES = 40
"""The most lines of values that are shown unfolded."""


def write(record: Record, folder: Path, file: Path | None = None) -> Path:
    """Write the page of a run, by default beside its record; return its path. Raises `OSError`."""
    file = file or folder / PAGE
    way = Path(os.path.relpath(folder, file.parent)).as_posix()
    write_text(file, page(record, folder, "" if way == "." else quote(way) + "/"))
    return file


def page(record: Record, folder: Path, way: str = "") -> str:
    """Return the page; `way` is the path from the page to the files in `folder` and ends in a slash."""
    parts: list[Part | None] = [
        verdicts.part(readable(record)),
        *moves.parts(record, folder),
        estimated.part(record),
        *layouts.parts(readable(record)),
        sources.part(record, folder, way),
        plan_section.part(folder),
        _outputs(record),
        traced.part(record),
        _unknown(record),
        _about(record, folder, way),
    ]
    title = f"{record.experiment or 'no experiment'}: {record.status}"
    return document(title, _head(record), [part for part in parts if part], _data(folder), _foot(record))


def _data(folder: Path) -> Any:
    """Return the record to embed in the page; None if it would make the page too large."""
    text = plain.read_text(folder / "result.json")
    return json.loads(text) if len(text) <= _LARGEST else None


def _head(record: Record) -> list[Inside]:
    facts: list[str] = []
    if record.mesh:
        facts.append("mesh " + " × ".join(f"{a}={n}" for a, n in zip(record.mesh.axes, record.mesh.shape, strict=True)))
    if record.target:
        target = record.target
        where = f" of {target.topology}, compiled only" if target.topology else ""
        facts.append(f"{summary.devices(target)}{where}")
    if record.environment.jax:
        facts.append(f"jax {record.environment.jax}")
    facts.append(record.time.replace("T", " ").replace("+00:00", " UTC"))
    return [
        tag("p", "Shardproof run", class_="over"),
        tag("h1", record.experiment or "no experiment", " ", badge(record.status, large=True)),
        tag("p", record.summary, class_="summary") if record.summary else None,
        tag("ul", [tag("li", fact) for fact in facts], class_="facts"),
        headline.numbers(record),
        tag("pre", tag("code", command(record)), class_="command") if record.overrides else None,
    ]


def command(record: Record) -> str:
    """Return the command that repeats the run."""
    first, others = record.config_folders[:1], record.config_folders[1:]
    quoted = (folder.replace("\\", "\\\\").replace("'", "\\'") for folder in others)
    searched = ",".join(f"'file://{folder}'" for folder in quoted)
    where = [*(["--config-dir", *first] if first else []), *([f"hydra.searchpath=[{searched}]"] if others else [])]
    return " ".join(["python -m runner", *map(shlex.quote, [*where, *record.overrides])])


def _foot(record: Record) -> Inside:
    return f"Made by shardproof {record.environment.runner} from result.json, schema {record.schema}."


def _outputs(record: Record) -> Part | None:
    """Return the section with the values of small outputs."""
    outputs = {program: result.outputs for program, result in record.compiled.items()}
    lines = values.lines(outputs, lambda _: True, PLAIN)
    if not lines:
        return None
    shown = scrolling(tag("pre", "\n".join(lines).rstrip("\n")), "values of the outputs")
    if len(lines) > _FEW_LINES:
        shown = tag("details", tag("summary", f"{len(lines):,} lines of numbers"), shown)
    return Part("values", "Values", shown)


_LACKING: tuple[tuple[str, Callable[[CompiledProgram], bool]], ...] = (
    ("the collectives: the compiled module could not be read", lambda program: program.collectives is None),
    ("memory: the backend does not report it", lambda program: program.memory is None),
    ("flops and bytes accessed: the backend does not report them", lambda program: program.cost is None),
    ("how long it runs: it was only compiled", lambda program: program.timing.run_s is None),
    ("the compiler's warnings: standard error was not captured", lambda program: program.compiler_warnings is None),
)
"""What a program may lack, and whether it does."""


def _lacking(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what is not known of each program, with its name."""
    for name, program in record.programs.items():
        for check, verdict in program.checks.named():
            if verdict.status == "not_run":
                yield f"{check} was not run: {verdict.reason}", name
    for name, program in record.compiled.items():
        planned = program.plan and (program.plan.missing or program.plan.unknown)
        sentences = [
            *program.collectives_unknown,
            *(sentence for sentence, is_lacking in _LACKING if is_lacking(program)),
            *([f"what Shardy plans: {planned}"] if planned is not None else []),
            *(f"profile: {sentence}" for sentence in (program.profile.unknown if program.profile else ())),
        ]
        yield from ((sentence, name) for sentence in sentences)


def _unknown(record: Record) -> Part | None:
    """Return the section on what the record does not know and why: without it the page would look complete."""
    programs_of = by_key(_lacking(record))
    programs_of |= estimated.unknown(record)
    for program, reason in record.not_supported.items():
        programs_of.setdefault(f"program {program} was left out: {reason}", [])
    if record.compiled and not record.lines:
        programs_of["the graph: an older version wrote this record, without its lines; run the experiment again"] = []
    if not programs_of:
        return None
    items = [tag("li", tag("b", f"{', '.join(of)}: ") if of else None, text) for text, of in programs_of.items()]
    return Part("unknown", "Not known", tag("ul", items))


def _about(record: Record, folder: Path, way: str) -> Part:
    environment = record.environment
    git = environment.git
    rows: list[tuple[str, Inside]] = [
        ("jax", environment.jax or "never imported"),
        ("jaxlib", environment.jaxlib or "never imported"),
        ("Python", environment.python),
        ("shardproof", environment.runner),
        ("git", f"{git.sha}{', with changes' if git.dirty else ''}" if git else "no checkout"),
    ]
    if environment.worker is not None:
        because = f", since {environment.worker_reason}" if environment.worker_reason else ""
        how = "a copy of the process that called Shardproof" if environment.worker == "copy" else "a new process"
        rows.append(("ran in", how + because))
    target = record.target
    if target and target.device_order:
        reason = f", since {target.device_order_reason}" if target.device_order_reason else ""
        rows.append(("device order", target.device_order + reason))
    if record.verification:
        verified = record.verification
        dims = ", ".join(f"{name}={size}" for name, size in verified.dims.items())
        outcome = f"{verified.status} at {dims} on {verified.target.devices} simulated devices"
        rows.append(("verification", [outcome, ", ", tag("a", verified.folder, href=f"{way}{verified.folder}/")]))
    rows.append(("files", list(_files(folder, way))))
    return Part("about", "About", table("What it ran with, and its files", Table(("what", ""), rows), kind="about"))


_FILES = ("result.json", "runner.log", "worker.log", *PICTURES)
_OF_PROGRAMS = ("program_*.py", "stablehlo_*.txt", "hlo_*.txt", "plan_*.json")


def _files(folder: Path, way: str) -> Iterator[Markup]:
    """Return links to the files beside the page."""
    names = [name for name in _FILES if (folder / name).is_file()]
    for pattern in _OF_PROGRAMS:
        names += sorted(file.name for file in folder.glob(pattern))
    for name in names:
        yield tag("span", tag("a", name, href=f"{way}{name}"), " ", class_="file")
