"""Gives a status its appearance on the terminal, in a notebook and on a page."""

from __future__ import annotations

from runner.base.lazy import dataclass


@dataclass(frozen=True)
class Hue:
    """A colour that means good or bad.

    - `terminal`: its name there; `anywhere`: readable on light and dark grounds, for notebooks.
    - `ink`, `ground`: text and background, each for a light and for a dark page.
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
    """The appearance of a status.

    - `mark`: a sign, so that colour is not the only cue; `hue`: the name of its colour; `bold`: whether on a terminal.
    - `fault`: a verb phrase for what a check with this status did, if it reports something.
    """

    mark: str
    hue: str | None = None
    bold: bool = False
    fault: str | None = None

    @property
    def style(self) -> str:
        """The style on the terminal."""
        return f"bold {self.colour}" if self.bold else self.colour or "dim"

    @property
    def colour(self) -> str:
        """The colour on the terminal for text that need not stand out."""
        return HUES[self.hue].terminal if self.hue else ""


LOOKS = {
    "passed": Look("✓", "good"),
    "known": Look("≈", "warn", fault="failed, as expect.wrong says"),
    "weak": Look("!", "warn", bold=True, fault="is weak"),
    "failed": Look("✗", "bad", bold=True, fault="failed"),
    "invalid": Look("⊘", "warn", bold=True),
    "error": Look("✗", "odd", bold=True),
    "not run": Look("–"),
    "not known": Look("?"),
}
"""The statuses of a run, from the best to the worst; then those of checks that were not run or are not known."""

WARNING = HUES["warn"].terminal
"""The colour of a warning on the terminal."""

FAULTS = {status: look.fault for status, look in LOOKS.items() if look.fault}
"""The verb phrases for statuses of checks that report something."""


def look(status: str) -> Look:
    """Return the appearance of a status, or of a text that is not a status."""
    return LOOKS.get(status.replace("_", " "), Look("·"))


def style_sheet() -> str:
    """Return CSS: the page's colours as variables, and the rules for badges, signs and callouts with a status."""
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
