"""A status in; how it is shown, on the terminal, in a notebook and on a page, out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hue:
    """What says good or bad in colour.

    - `terminal`: its name there; `anywhere`: one that can be read on light and on dark, for notebooks.
    - `ink`, `ground`: of text and of what is behind it, each on a light and on a dark page.
    """

    terminal: str
    anywhere: str
    ink: tuple[str, str]
    ground: tuple[str, str]


HUES = {
    "good": Hue("green", "#1a7f37", ("#0b6b3f", "#5ccb94"), ("#e6f4ec", "#10291d")),
    "bad": Hue("red", "#cf222e", ("#b02a0c", "#ff8f6e"), ("#fdece7", "#33170f")),
    "warn": Hue("yellow", "#9a6700", ("#7a5200", "#e8b64c"), ("#fdf4dc", "#2c2310")),
    "odd": Hue("magenta", "#8250df", ("#6d2fa3", "#cda3f5"), ("#f4ebfb", "#261a33")),
}


@dataclass(frozen=True)
class Look:
    """How a status is shown.

    - `mark`: so that it is told by no colour alone; `hue`: the name of its colour; `bold`: whether on a terminal.
    - `fault`: what a check of that status did, in words, where it found something to say.
    """

    mark: str
    hue: str | None = None
    bold: bool = False
    fault: str | None = None

    @property
    def style(self) -> str:
        """Its style on the terminal."""
        return f"bold {self.colour}" if self.bold else self.colour or "dim"

    @property
    def colour(self) -> str:
        """Its colour on the terminal, where what is said of it need not stand out."""
        return HUES[self.hue].terminal if self.hue else ""


LOOKS = {
    "passed": Look("✓", "good"),
    "known": Look("≈", "warn", fault="failed, as expect.wrong knows"),
    "weak": Look("!", "warn", bold=True, fault="is weak"),
    "failed": Look("✗", "bad", bold=True, fault="failed"),
    "invalid": Look("⊘", "warn", bold=True),
    "error": Look("✗", "odd", bold=True),
    "not run": Look("–"),
    "not known": Look("?"),
}
"""The statuses of a run, from the best to the worst; that of a check that was not run, and of what nobody knows."""

WARNING = HUES["warn"].terminal
"""The colour of a warning on the terminal."""

FAULTS = {status: look.fault for status, look in LOOKS.items() if look.fault}
"""The statuses of a check that found something to say, in words."""


def look(status: str) -> Look:
    """How a status is shown, or a text that is none."""
    return LOOKS.get(status.replace("_", " "), Look("·"))


def style_sheet() -> str:
    """The colours of a page as variables, and the rules for what has a status on it: badges, signs and callouts."""
    variables = "".join(
        f"--{name}:light-dark({','.join(hue.ink)});--{name}-bg:light-dark({','.join(hue.ground)});"
        for name, hue in HUES.items()
    )
    rules = "".join(
        f".badge.{status}{{color:var(--{look.hue});background:var(--{look.hue}-bg)}}"
        f".sign.{status}{{color:var(--{look.hue})}}"
        f".callout.{status}{{border-left-color:var(--{look.hue})}}"
        for status, look in LOOKS.items()
        if look.hue
    )
    return f":root{{{variables}}}{rules}"
