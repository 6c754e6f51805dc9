"""A record and its run folder in; the page of the run out."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.record.files import write_text
from runner.record.folders import PAGE
from runner.record.model import Record
from runner.show import values
from runner.show.console import PLAIN
from runner.show.page import estimated, layouts, moves, sources, traced, verdicts
from runner.show.page.badge import badge
from runner.show.page.frame import Part, document
from runner.show.page.markup import Inside, Markup, scrolling, table, tag

_LARGEST = 2_000_000
"""A record of so many characters is not in the page a second time."""


def write(found: Record, folder: Path, file: Path | None = None) -> Path:
    """Write the page of a run, beside its record or elsewhere; return its path. Raises `OSError`."""
    file = file or folder / PAGE
    way = Path(os.path.relpath(folder, file.parent)).as_posix()
    write_text(file, page(found, folder, "" if way == "." else quote(way) + "/"))
    return file


def page(found: Record, folder: Path, way: str = "") -> str:
    """The page of a run; `way` leads from where it is to lie to the files in `folder`, and ends in a slash."""
    parts: list[Part | None] = [
        verdicts.part(found),
        *layouts.parts(found),
        *moves.parts(found),
        sources.part(found, folder, way),
        estimated.part(found),
        _outputs(found),
        traced.part(found),
        _unknown(found),
        _about(found, folder, way),
    ]
    title = f"{found.experiment or 'no experiment'}: {found.status}"
    return document(title, _head(found), [part for part in parts if part], _data(folder), _foot(found))


def _data(folder: Path) -> Any:
    """The record itself, so that who has the page has the data; null where it would make the page too large."""
    text = (folder / "result.json").read_text(encoding="utf-8")
    return json.loads(text) if len(text) <= _LARGEST else None


def _head(found: Record) -> list[Inside]:
    facts: list[str] = []
    if found.mesh:
        facts.append("mesh " + " × ".join(f"{a}={n}" for a, n in zip(found.mesh.axes, found.mesh.shape, strict=True)))
    if found.target:
        target = found.target
        simulated = "simulated " if target.platform == "cpu" else ""
        where = f" of {target.topology}, not here: compiled only" if target.topology else ""
        plural = "" if target.devices == 1 else "s"
        facts.append(f"{target.devices} {simulated}{target.kind or target.platform} device{plural}{where}")
    if found.environment.jax:
        facts.append(f"jax {found.environment.jax}")
    facts.append(found.time.replace("T", " ").replace("+00:00", " UTC"))
    return [
        tag("p", "Shardproof run", class_="over"),
        tag("h1", found.experiment or "no experiment", " ", badge(found.status, large=True)),
        tag("p", found.summary, class_="summary") if found.summary else None,
        tag("ul", [tag("li", fact) for fact in facts], class_="facts"),
        tag("pre", tag("code", command(found)), class_="command") if found.overrides else None,
    ]


def command(found: Record) -> str:
    """The command that runs it again."""
    first, others = found.config_folders[:1], found.config_folders[1:]
    quoted = (folder.replace("\\", "\\\\").replace("'", "\\'") for folder in others)
    searched = ",".join(f"'file://{folder}'" for folder in quoted)
    where = [*(["--config-dir", *first] if first else []), *([f"hydra.searchpath=[{searched}]"] if others else [])]
    return " ".join(["python -m runner", *map(shlex.quote, [*where, *found.overrides])])


def _foot(found: Record) -> Inside:
    return f"Made by shardproof {found.environment.runner} from result.json, schema {found.schema}."


def _outputs(found: Record) -> Part | None:
    """The values of small outputs."""
    outputs = {program: result.outputs for program, result in found.compiled.items()}
    lines = values.lines(outputs, lambda _: True, PLAIN)
    if not lines:
        return None
    text = "\n".join(lines).rstrip("\n")
    return Part("values", "Values", scrolling(tag("pre", text), "values of the outputs"))


def _unknown(found: Record) -> Part | None:
    """What the record does not know, and why: a page that left it out would look complete."""
    told: dict[str, list[str]] = {}
    for program, result in found.programs.items():
        for name, check in result.checks.named():
            if check.status == "not_run":
                told.setdefault(f"{name} was not run: {check.reason}", []).append(program)
    for program, result in found.compiled.items():
        for sentence in result.collectives_unknown:
            told.setdefault(sentence, []).append(program)
        if result.collectives is None:
            told.setdefault("the collectives: the compiled module could not be read", []).append(program)
        if result.memory is None:
            told.setdefault("memory: the backend does not say", []).append(program)
        if result.cost is None:
            told.setdefault("flops and bytes accessed: the backend does not say", []).append(program)
        if result.timing.run_s is None:
            told.setdefault("how long it runs: it was only compiled", []).append(program)
        if result.compiler_warnings is None:
            told.setdefault("what the compiler warned of: nobody could hear it", []).append(program)
        if result.plan is not None and result.plan.missing is not None:
            told.setdefault(f"what Shardy plans: {result.plan.missing}", []).append(program)
        for sentence in result.profile.unknown if result.profile else ():
            told.setdefault(f"profile: {sentence}", []).append(program)
    told |= estimated.unknown(found)
    for program, reason in found.not_supported.items():
        told.setdefault(f"program {program} was left out: {reason}", [])
    if found.compiled and not found.lines:
        told["the graph: an older version wrote this record, without its lines; run the experiment again"] = []
    if not told:
        return None
    items = [tag("li", tag("b", f"{', '.join(of)}: ") if of else None, text) for text, of in told.items()]
    return Part("unknown", "Not known", tag("ul", items))


def _about(found: Record, folder: Path, way: str) -> Part:
    environment = found.environment
    git = environment.git
    rows: list[tuple[str, Inside]] = [
        ("jax", environment.jax or "never imported"),
        ("jaxlib", environment.jaxlib or "never imported"),
        ("Python", environment.python),
        ("shardproof", environment.runner),
        ("git", f"{git.sha}{', with changes' if git.dirty else ''}" if git else "no checkout"),
    ]
    target = found.target
    if target and target.device_order:
        reason = f", since {target.device_order_reason}" if target.device_order_reason else ""
        rows.append(("device order", target.device_order + reason))
    if found.verification:
        verified = found.verification
        dims = ", ".join(f"{name}={size}" for name, size in verified.dims.items())
        told = f"{verified.status} at {dims} on {verified.target.devices} simulated devices"
        rows.append(("verification", [told, ", ", tag("a", verified.folder, href=f"{way}{verified.folder}/")]))
    rows.append(("files", list(_files(folder, way))))
    return Part("about", "About", table("What it ran with, and its files", ("what", ""), rows, kind="about"))


_FILES = ("result.json", "runner.log", "worker.log", "shardings.svg", "shardings.txt", "collectives.svg")
_OF_PROGRAMS = ("program_*.py", "stablehlo_*.txt", "hlo_*.txt", "plan_*.json")


def _files(folder: Path, way: str) -> Iterator[Markup]:
    """Links to what lies beside the page."""
    names = [name for name in _FILES if (folder / name).is_file()]
    for pattern in _OF_PROGRAMS:
        names += sorted(file.name for file in folder.glob(pattern))
    for name in names:
        yield tag("span", tag("a", name, href=f"{way}{name}"), " ", class_="file")
