"""Writes run.svg, the run of case3_allreduce as a terminal shows it: python docs/images/cast.py"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = ("-m", "runner", "case3_allreduce")
WIDTH = 96
"""In columns: on a page the text is then about as large as the page's own."""


def printed() -> str:
    """Run the command in a terminal of `WIDTH` columns; return what it prints, with its colours."""
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (60, WIDTH))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *COMMAND, f"hydra.run.dir={folder}"]
        # The terminal's own size holds, not that of the terminal in which this runs.
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        with subprocess.Popen(command, stdin=end, stdout=end, stderr=subprocess.DEVNULL, env=environment):
            os.close(end)
            chunks = b"".join(_read(terminal))
        os.close(terminal)
        return (
            chunks.decode()
            .replace("\r\n", "\n")
            .replace(f"{folder}/", "outputs/case3_allreduce/2026-11-24_12-00-00-000000/")
        )


def _read(terminal: int) -> Iterator[bytes]:
    """What is written to a terminal until nobody has it open any more, which Linux says by an error."""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 65536):
            yield chunk


def drawn(text: str) -> str:
    """An SVG of the text, which stands still."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print("[bold green]$[/] shardproof case3_allreduce", highlight=False)
    for line in text.splitlines():
        console.print(Text.from_ansi(line), highlight=False, soft_wrap=True, crop=True, overflow="crop")
    svg = console.export_svg(title="shardproof", unique_id="run", clear=True)
    # Rich fetches a font; a picture in a page may not, and a monospaced font of the reader's does.
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    Path(__file__).with_name("run.svg").write_text(drawn(printed()), encoding="utf-8")
