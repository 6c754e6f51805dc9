"""Writes explain.svg, the annotated source of a saved report: python docs/images/annotated.py STEP.json"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

import runner

WIDTH = 100
"""In columns."""


def drawn(report: runner.Explained) -> str:
    """An SVG of the annotated source, as a terminal shows it."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print("[bold green]$[/] shardproof explain step.json --annotate", highlight=False)
    for line in report.annotated(WIDTH).splitlines():
        margin, bar, source = line.partition("│")
        shown = Text.assemble((margin, "cyan"), (bar, "dim"), source) if bar else Text(line, style="dim")
        console.print(shown, highlight=False, soft_wrap=True)
    svg = console.export_svg(title="shardproof", unique_id="explain", clear=True)
    # Rich fetches a font; a picture in a page may not, and a monospaced font of the reader's does.
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    Path(__file__).with_name("explain.svg").write_text(drawn(runner.explain(sys.argv[1])), encoding="utf-8")
