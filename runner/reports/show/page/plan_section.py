"""Makes the section of a `plan.json`: the layouts to take, the front, the cost of lines.

A plan none of whose candidates was compiled has a page of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from runner.base.invocation import invocation
from runner.base.words import shown
from runner.experiment.config import quoting
from runner.experiment.open_layouts import LineCost
from runner.programs.planning.costs import costs_the_same
from runner.reports.record import plan_file
from runner.reports.record.folders import PAGE, PLAN, PLANNED
from runner.reports.record.plan_file import BestPlan, CompiledCandidate, Least, OnFront, PlanFile
from runner.reports.show.page import chart, drawing
from runner.reports.show.page.chart import Axis, Dot, scale
from runner.reports.show.page.markup import Inside, Markup, Part, document, joined, table, tag
from runner.reports.show.plan_layouts import (
    CHOICES,
    EXCEEDS,
    ROUNDS,
    amount,
    choice_cells,
    differing,
    grouped,
    layout_texts,
    round_cells,
    short,
    verdict,
)
from runner.reports.show.table import StatusCell, Table

_WIDEST = 10.0
"""The width of the bar of the costliest line, in rem."""

_LINES = 30
"""The most costs of lines that are shown, the largest first."""


_MEASURED = {
    "bytes": ("bytes_sent", "a device sends"),
    "time": ("seconds", "a run is estimated to take"),
    "memory": ("memory_bytes", "a device needs"),
}
"""The measure of a compiled program for each quantity that a plan minimises, and the words before it."""

_MODELLED = {"bytes": "a device sends", "time": "a run takes", "memory": "a device holds"}
"""The words before each quantity in the plan's model."""


_LARGEST = 2_000_000
"""The most characters of a plan that is embedded in its page."""


def page(folder: Path, home: Path | None = None) -> str:
    """Return the page of a plan, with links to the pages of its candidates. Raises `UnreadablePlan`.

    - `home`: the folder of the page; by default the plan's.
    """
    saved = plan_file.read(folder)
    file, mesh = saved.file, saved.file.mesh_text
    none = "" if file.tried else "no candidate was compiled"
    name = file.experiment or folder.name
    head: list[Inside] = [
        tag("p", "Shardproof plan", class_="over"),
        tag("h1", name),
        tag("ul", [tag("li", fact) for fact in (mesh and f"mesh {mesh}", none) if fact],
            class_="facts"),
    ]  # fmt: skip
    foot = f"Made by shardproof from {PLAN}."
    data = saved.plain if len(json.dumps(saved.plain)) <= _LARGEST else None
    return document(f"{name}: plan", head, [_part(file, _links(folder, home or folder), folder)], data, foot)


def _links(folder: Path, home: Path) -> Callable[[str], str] | None:
    """Return the links from a page in `home` to the pages of candidates, if these have pages."""
    pages = list(folder.glob(f"candidate_*/{PAGE}"))
    return (lambda name: quote(Path(os.path.relpath(folder / name / PAGE, home)).as_posix())) if pages else None


def part(folder: Path, link: Callable[[str], str] | None = None) -> Part | None:
    """Return the section; None if no layouts were planned in the folder.

    `link` returns the link to the page of a candidate, by the name of its folder; None for the page of the run with
    these layouts.
    """
    if not (folder / PLAN).exists():
        return None
    try:
        file = plan_file.read(folder).file
    except plan_file.UnreadablePlan as error:
        return Part("plan", "Plan", tag("p", f"{error}", class_="lead"))
    return _part(file, link, folder if link else None)


def _part(file: PlanFile, link: Callable[[str], str] | None, folder: Path | None) -> Part:
    """Return the section; `folder` is that of a plan, and None for that of a run with these layouts."""
    plan, least, best = file.plan, file.plan.least, file.plan.best
    bound = "no other plan is better" if plan.proved else f"no plan costs less than {amount(plan.bound, least)}"
    sent, held, needed = (amount(size, "bytes") for size in (best.sent, best.held, best.needed))
    lead = f"By the model {bound}: a device sends {sent}, holds {held} of arrays and outputs, and needs {needed}."
    inside: list[Inside] = [_take(file, link, folder), tag("p", lead, class_="lead")]
    if file.caveat:
        inside.insert(0, tag("p", f"{file.caveat[0].upper()}{file.caveat[1:]}.", class_="lead"))
    if plan.parallelism:
        inside.append(tag("ul", [tag("li", sentence) for sentence in plan.parallelism]))
    head = ("of", "layout", "next best", "costs more by", "since")
    planned = Table(head, list(_layouts(plan, file.labels)), right=frozenset({3}))
    inside.append(table("Planned layouts", planned, kind="planned"))
    if file.tried:
        inside.append(_tried(file, link))
    if file.rounds:
        rows = [round_cells(each, file.limit) for each in file.rounds]
        inside.append(table("Plans within the memory limit, in the order in which they were made", Table(ROUNDS, rows)))
    if len(file.choices) > 1:
        rows = [choice_cells(each, least) for each in file.choices]
        inside.append(table("Choices of what is saved for the backward pass, the best first", Table(CHOICES, rows)))
    if plan.front:
        inside.append(_front(plan.front, file.labels))
    if file.shapes:
        rows = [
            (str(list(of.shape)), of.error or amount(of.cost, least), amount(of.sent, "bytes")) for of in file.shapes
        ]
        inside.append(table("Shapes of the mesh, the best first", Table(("mesh.shape", least, "sent"), rows)))
    inside.append(_lines(plan.lines, least))
    return Part("plan", "Plan", inside)


def _take(file: PlanFile, link: Callable[[str], str] | None, folder: Path | None) -> Markup:
    """Return the layouts to take, why, and the command that runs them: of the best candidate, or else of the plan."""
    passed = [(tried, tried.programs[0]) for tried in file.tried if tried.programs[0].status == "passed"]
    chosen = passed[0][0] if passed else None
    layouts = "; ".join(
        f"{', '.join(names)}: {spec}"
        for spec, names in grouped(layout_texts((chosen.candidate if chosen else file.plan.best).layouts), file.labels)
    )
    named: Inside = "these layouts"
    if chosen is not None:
        named = chosen.by_hand or chosen.folder
        named = tag("a", named, href=link(chosen.folder)) if link else named
    title = tag("p", ["Take ", named] if folder else "The layouts of this run", class_="title")
    command: Inside = None
    if folder is not None and (folder / PLANNED).is_file():
        home = quoting.for_shell(shown(folder / PLANNED.parts[0]))
        line = f"{invocation()} --config-dir {home} +experiment={PLANNED.stem}"
        command = tag("pre", tag("code", line), class_="command")
    reason = tag("p", _since(file, [program for _, program in passed]))
    return tag("div", title, tag("p", tag("code", layouts)), reason, command, class_="callout take")


def _since(file: PlanFile, passed: Sequence[CompiledCandidate]) -> str:
    """Return the reason for the layouts, from the best programs of the candidates that passed."""
    if not passed:
        return ("No candidate passed its checks. " if file.tried else "") + _by_model(file.plan)
    first, *others = passed
    over = file.limit is not None and (first.memory_bytes or 0) > file.limit
    measure = "memory" if over else file.plan.least
    key, words = _MEASURED[measure]
    sentence = f"As compiled ({first.program}), {words} {amount(getattr(first, key), measure)}"
    if others:
        sentence += f", in the next best {amount(getattr(others[0], key), measure)}"
    if over:
        sentence += f". No candidate fits the limit of {amount(file.limit, 'bytes')}"
    return sentence + "."


def _by_model(plan: BestPlan) -> str:
    least, cost = plan.least, plan.best.cost
    sentence = f"By the model {_MODELLED[least]} {amount(cost, least)}"
    if plan.others:
        following = min(other.cost for other in plan.others)
        same = costs_the_same(following, cost)
        sentence += f", in the next best plan {'as much' if same else f'{amount(following - cost, least)} more'}"
    return f"{sentence}." + (f" {EXCEEDS.capitalize()}." if plan.exceeds else "")


def _wide(layouts: str) -> Markup:
    """Return several layouts as a cell that the other columns leave room to read."""
    return tag("div", layouts, class_="layouts")


def _layouts(plan: BestPlan, labels: Mapping[str, str]) -> Iterator[tuple[str, str, str, str, str]]:
    for each in plan.alternatives:
        following = "" if each.next is None else each.next.yaml()
        more = amount(each.more, plan.least) if each.more else "–"
        yield short(each.key, labels), each.spec.yaml(), following, more, each.since


def _front(points: Sequence[OnFront], labels: Mapping[str, str]) -> Markup:
    """Return the plans that no other plan beats in every measure."""
    kinds = list(points[0].costs)
    layouts = differing([layout_texts(point.layouts) for point in points], labels)
    rows = [
        (str(number), *(amount(point.costs[kind], kind) for kind in kinds), _wide(text))
        for number, (point, text) in enumerate(zip(points, layouts, strict=True), 1)
    ]
    caption = "The front: no other plan is better in every measure"
    right = frozenset(range(1, 1 + len(kinds)))
    listed = table(caption, Table(("plan", *kinds, "layouts"), rows, right=right), kind="small")
    return joined([fronts("front", {"front": [point.costs for point in points]}), listed])


def _tried(file: PlanFile, link: Callable[[str], str] | None) -> Markup:
    """Return the candidates that were compiled, the best first, with the layouts that differ from the first one's."""
    least, limit = file.plan.least, file.limit
    layouts = differing([layout_texts(tried.candidate.layouts) for tried in file.tried], file.labels)
    programs = [program for tried in file.tried for program in tried.programs]
    columns = {"sent": ("bytes_sent", "bytes"), "estimate": ("seconds", "time"), "memory": ("memory_bytes", "bytes")}
    columns = {name: of for name, of in columns.items() if any(getattr(each, of[0]) is not None for each in programs)}
    rows: list[tuple[StatusCell | Inside, ...]] = []
    for tried, text in zip(file.tried, layouts, strict=True):
        name: Inside = tried.by_hand or tried.folder
        name = tag("a", name, href=link(tried.folder)) if link else name
        text = " ".join(filter(None, (text, tried.written)))
        head, layout = (name, amount(tried.candidate.cost, least)), _wide(text)
        for number, program in enumerate(tried.programs):
            values = [amount(getattr(program, key), unit) for key, unit in columns.values()]
            if limit is not None and (program.memory_bytes or 0) > limit:
                values[-1] += " (over the limit)"
            first, last = (("", ""), "") if number else (head, layout)
            rows.append((*first, program.program, verdict(program.status, file.verified), *values, last))
    heading = ("candidate", "planned", "program", "status", *columns, "layouts")
    candidates = Table(heading, rows, right=frozenset({1, *range(4, 4 + len(columns))}))
    return table("Candidates as compiled, the best first", candidates, kind="small")


def _lines(lines: Sequence[LineCost], least: str) -> Markup:
    """Return a bar for each cost of a line, the largest first."""
    most = max((line.cost for line in lines), default=0.0) or 1.0
    rows = [
        [line.line, line.what, joined([_bar(line.cost / most), f" {amount(line.cost, least)}"])]
        for line in lines[:_LINES]
    ]
    return table("What each line costs", Table(("line", "what", least), rows))


def _bar(share: float) -> Markup:
    return tag("span", class_="bar communicates", style=f"width: {_WIDEST * share:.2f}rem", aria_hidden="true")


_TITLES: Mapping[Least, str] = {
    "bytes": "bytes that a device sends",
    "memory": "memory of a device",
    "time": "estimated time",
}


def fronts(id: str, fronts: Mapping[str, Sequence[Mapping[Least, float]]]) -> Markup | None:
    """Return the chart of the fronts of one or several plans, by their names; None for fewer than two points.

    The axes are the first two quantities of the first point. A dot has the number of its plan on its front, after the
    name of the front if there are several.
    """
    points = [(name, number, costs) for name, front in fronts.items() for number, costs in enumerate(front, 1)]
    if len(points) < 2 or len(points[0][2]) < 2:
        return None
    across, up = list(points[0][2])[:2]
    names = list(fronts)
    dots: list[Dot] = []
    for name, number, costs in points:
        short = f"{name}{number}" if len(fronts) > 1 else str(number)
        values = f"{amount(costs[across], across)}, {amount(costs[up], up)}"
        dots.append(
            Dot(costs[across], costs[up], names.index(name), f"{short}: {values}", None, f"{id}-{short}", short, short)
        )
    x, y = _axis(across, [dot.x for dot in dots]), _axis(up, [dot.y for dot in dots])
    label = f"{x.title} against {y.title} of {len(dots)} plans"
    image = drawing.svg(chart.scatter(dots, x, y), id, label, [dot.name for dot in dots])
    return drawing.figure(image, label, None)


def _axis(kind: Least, values: Sequence[float]) -> Axis:
    return Axis(_TITLES[kind], lambda value: amount(value, kind) if value else "0", scale(values))
