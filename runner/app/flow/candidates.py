"""Prints the candidates of a plan as compiled: what each program sends and needs, and the layouts below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.app.flow.filled_layouts import Planning
from runner.app.flow.planning import Tried, exceeds
from runner.base.layout import Spec
from runner.base.words import bytes_text
from runner.experiment import remat
from runner.reports.show.console import say_all
from runner.reports.show.plan_layouts import amount, differing, layout_texts, verdict
from runner.reports.show.plan_table import show_table
from runner.reports.show.table import Table

_LINES = 4
"""The most layouts of lines that are shown below a candidate; the table of the plan, its page and its file have all."""


def show(planning: Planning, tried: Sequence[Tried], spelled: Callable[[Spec], str] = Spec.yaml) -> None:
    """Print a table of the candidates of a plan as compiled, with layouts in YAML syntax or spelled otherwise."""
    least = planning.plan.least
    layouts = differing([layout_texts(each.candidate.layouts, spelled) for each in tried], planning.labels, _LINES)
    saves = [_saves(each, planning) for each in tried]
    parts = zip(layouts, tried, saves, strict=True)
    layouts = [" ".join(filter(None, (text, each.written, mine))) for text, each, mine in parts]
    timed = any(program.seconds is not None for each in tried for program in each.programs)
    rows = [
        (
            *(("", "") if number else (each.by_hand or each.folder, amount(each.candidate.cost, least))),
            program.program,
            verdict(program.status, planning.verified),
            bytes_text(program.bytes_sent) if program.bytes_sent is not None else "–",
            *([amount(program.seconds, "time")] if timed else []),
            amount(program.memory_bytes, "bytes") + (" (over the limit)" if exceeds(program, planning.request) else ""),
        )
        for each in tried
        for number, program in enumerate(each.programs)
    ]
    # The layouts are long: below their candidate they leave the figures together.
    beneath = [
        part for each, text in zip(tried, layouts, strict=True) for part in (*[""] * (len(each.programs) - 1), text)
    ]
    head = ("candidate", "planned", "program", "status", "sent", *(["estimate"] if timed else []), "memory")
    show_table(Table(head, rows, beneath=beneath))
    for each in tried:
        for program in each.programs:
            if program.error is not None:
                say_all(f"{each.by_hand or each.folder}: {program.error}".splitlines())


def _saves(tried: Tried, planning: Planning) -> str:
    """What a candidate saves for the backward pass, in words, if that was to be chosen and a choice was made."""
    saved = tried.candidate.saved
    return "" if saved is None or len(planning.choices) < 2 else f"saving {remat.words(saved)}"
