"""The `plan.json` of a run folder in; its section of the page out: layouts, the Pareto front, the cost of each line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.record.folders import PLAN
from runner.show.page import fronts
from runner.show.page.frame import Part
from runner.show.page.markup import Inside, Markup, joined, table, tag
from runner.show.plan import amount, differing, spec_text
from runner.show.table import Table

_WIDEST = 10.0
"""The width of the bar of the costliest line, in rem."""

_LINES = 30
"""The most costs of lines that are shown, the largest first."""


def part(folder: Path) -> Part | None:
    """Return the section; None if the run did not plan layouts."""
    file = folder / PLAN
    if not file.exists():
        return None
    whole: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    plan, labels = whole["plan"], whole.get("labels", {})
    least, best = plan["least"], plan["best"]
    bound = "no other plan is better" if plan["proved"] else f"no plan costs less than {amount(plan['bound'], least)}"
    sent, held = (amount(best[key], "bytes") for key in ("sent", "held"))
    cost = amount(best["cost"], least)
    does = f"A device sends {sent} and holds {held} of arrays and outputs"
    lead = f"The least {least}: {cost}. {does}. By the model {bound}."
    inside: list[Inside] = [tag("p", lead, class_="lead")]
    if plan.get("parallelism"):
        inside.append(tag("ul", [tag("li", sentence) for sentence in plan["parallelism"]]))
    head = ("key", "layout", "next best", "since")
    inside.append(table("Planned layouts", Table(head, list(_layouts(plan, labels)))))
    if plan.get("front"):
        inside.append(_front(plan["front"], labels))
    if whole.get("tried"):
        inside.append(_tried(whole["tried"], least, labels))
    if whole.get("shapes"):
        rows = [
            (
                str(shape["shape"]),
                shape.get("error") or amount(shape.get("cost"), least),
                amount(shape.get("sent"), "bytes"),
            )
            for shape in whole["shapes"]
        ]
        inside.append(table("Shapes of the mesh, the best first", Table(("mesh.shape", least, "sent"), rows)))
    inside.append(_lines(plan["lines"], least))
    return Part("plan", "Plan", inside)


def _layouts(plan: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    for alternative in plan["alternatives"]:
        following = "" if alternative.get("next") is None else spec_text(alternative["next"])
        more = f" +{amount(alternative['more'], plan['least'])}" if alternative.get("more") else ""
        label = labels.get(alternative["key"], alternative["key"])
        yield label, spec_text(alternative["spec"]), following + more, alternative["since"]


def _front(points: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Markup:
    """Return the plans that no other plan beats in every measure."""
    kinds = list(points[0]["costs"])
    layouts = differing([_texts(point) for point in points], labels)
    rows = [
        (str(number), *(amount(point["costs"][kind], kind) for kind in kinds), text)
        for number, (point, text) in enumerate(zip(points, layouts, strict=True), 1)
    ]
    caption = "The front: no other plan is better in every measure"
    shown = table(caption, Table(("plan", *kinds, "layouts"), rows), kind="small")
    return joined([fronts.figure("front", {"front": [point["costs"] for point in points]}), shown])


def _tried(tried: Sequence[Mapping[str, Any]], least: str, labels: Mapping[str, str]) -> Markup:
    """Return the candidates that were compiled, the best first, with the layouts that differ from the first one's."""
    layouts = differing([_texts(each["candidate"]) for each in tried], labels)
    rows: list[tuple[str, ...]] = []
    for each, text in zip(tried, layouts, strict=True):
        head = each.get("by_hand") or each["folder"], text, amount(each["candidate"]["cost"], least)
        for number, program in enumerate(each["programs"]):
            measured = (("bytes_sent", "bytes"), ("seconds", "time"), ("memory_bytes", "bytes"))
            values = (amount(program.get(key), unit) for key, unit in measured)
            rows.append((*(("", "", "") if number else head), program["program"], program["status"], *values))
    columns = ("candidate", "layouts", "planned", "program", "status", "sent", "estimate", "memory")
    return table("Candidates as compiled, the best first", Table(columns, rows), kind="small")


def _texts(candidate: Mapping[str, Any]) -> dict[str, str]:
    """Return the layouts of a candidate as text, by key."""
    return {key: spec_text(spec) for key, spec in candidate["layouts"].items()}


def _lines(lines: Sequence[Mapping[str, Any]], least: str) -> Markup:
    """Return a bar for each cost of a line, the largest first."""
    most = max((line["cost"] for line in lines), default=0.0) or 1.0
    rows = [
        [
            line["line"],
            line["what"],
            joined([_bar(line["cost"] / most), f" {amount(line['cost'], least)}"]),
        ]
        for line in lines[:_LINES]
    ]
    return table("What each line costs", Table(("line", "what", least), rows))


def _bar(share: float) -> Markup:
    return tag("span", class_="bar communicates", style=f"width: {_WIDEST * share:.2f}rem", aria_hidden="true")
