"""`python -m tests.faults FILE`: the present output of each input's command; appends a line of FILE for each, and
resumes there.

With `--write` the lines of `inputs.jsonl` get the `place` that FILE has for them; those that represent a kind of
message, or have no place, also get the words.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from tests import faults

FILE = Path(__file__).parent / "inputs.jsonl"
WORDS = 110
"""The approximate number of inputs whose message is pinned."""

THEIRS = (
    "not YAML", "not a Python expression", "no viable alternative", "Interpolation", "Merge error", "Cannot convert",
    "token recognition", "mismatched input", "extraneous input", "missing EQUAL", "could not",
)  # fmt: skip
"""The beginnings of messages from YAML, Python, Hydra and OmegaConf."""


def kind(says: str) -> str:
    """Return a message without names, numbers and choices, equal for messages of one kind."""
    words = re.split(r"[;:]", says)[0]
    words = re.sub(r"'[^']*'?|\[[^\]]*\]?|\{[^}]*\}?|b'[^']*'?", "…", words)
    words = re.sub(r"\b(nan|inf|True|False|None)\b|-?\d[\d.,e+×]*", "…", words)
    return " ".join(words.split()[:4])


def observe(file: Path) -> None:
    """Append the missing results of the commands to a file: a number, the status, the place."""
    done = set(_observed(file)) if file.exists() else set[int]()
    with file.open("a", encoding="utf-8") as out:
        for number, fault in enumerate(faults.read()):
            if number in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                ran = fault.done(Path(folder), 120.0)
            line = [number, ran.returncode, faults.place(fault, ran)]
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            out.flush()


def write(file: Path) -> None:
    """Give each input its place from the file, and keep the words of one input for each kind of message."""
    lines = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    observed = _observed(file)
    kinds: set[str] = set()
    for number, line in enumerate(lines):
        words = line.get("says") or ""
        stands_for = bool(words) and not words.startswith(THEIRS) and kind(words) not in kinds and len(kinds) < WORDS
        if stands_for:
            kinds.add(kind(words))
        if number in observed:
            status, line["place"] = observed[number]
            assert status == line.get("status", 2), line
            if not stands_for and (line["place"] is not None or words.startswith(THEIRS)):
                line.pop("says", None)
    FILE.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def _observed(file: Path) -> dict[int, tuple[int, str | None]]:
    rows = map(json.loads, file.read_text("utf-8").splitlines())
    return {number: (status, place) for number, status, place in rows}


if __name__ == "__main__":
    (target,) = (Path(argument) for argument in sys.argv[1:] if argument != "--write")
    if "--write" in sys.argv:
        write(target)
    else:
        observe(target)
