"""A file in, the text of a module or a saved explanation; its explanation out, and an explanation as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner import codec
from runner.explanation import modules
from runner.explanation.model import SCHEMA, Explanation
from runner.explanation.modules import NOTHING, Known, UnreadableModule
from runner.record import plain
from runner.untyped import is_dict

LARGEST = 2_000_000_000
"""The most bytes of a file that is read."""


def explain(path: Path, known: Known = NOTHING) -> Explanation:
    """The explanation of a file. Raises `UnreadableModule`, also for what is no file, and `meshes.InvalidMesh`."""
    text = read_text(path)
    if text.lstrip()[:1] == "{":
        return saved(text, str(path))
    return modules.explain(text, str(path), known)


def read_text(path: Path) -> str:
    """The text of a file. Raises `UnreadableModule` if it is none that can be read."""
    try:
        if not path.is_file():
            what = "it is not a regular file" if path.exists() else "there is no such file"
            raise UnreadableModule(f"{path}: {what}")
        if path.stat().st_size > LARGEST:
            raise UnreadableModule(f"{path}: a file of more than {LARGEST // 1_000_000_000} GB is not read")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableModule(f"{path}: this is no text in UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UnreadableModule(f"{path}: {error.strerror or error}") from None


def document(explanation: Explanation) -> str:
    """An explanation as JSON."""
    return json.dumps(codec.plain(explanation), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def saved(text: str, source: str) -> Explanation:
    """The explanation that `document` wrote. Raises `UnreadableModule` if the text is none, or of another schema."""
    try:
        data: Any = plain.parse(text)
    except plain.NotJson as error:
        raise UnreadableModule(f"{source}: {error}") from None
    schema = data.get("schema") if is_dict(data) else None
    if schema != SCHEMA:
        raise UnreadableModule(f"{source}: this is no explanation: its schema is {schema!r}, not {SCHEMA!r}")
    try:
        return codec.build(Explanation, data)
    except codec.Misfit as error:
        raise UnreadableModule(f"{source}: {error}") from None
