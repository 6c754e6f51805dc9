"""`python -m runner.worker.protos FILE` prints the text of a module that XLA serialized.

`-` is standard input.
It runs in a process of its own, since a broken file may end it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any


def field_of(data: bytes, wanted: int) -> bytes | None:
    """The first field of a protocol buffer with this number, if it is a message. Raises `ValueError`."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        match key & 7:
            case 0:
                _, at = _number(data, at)
            case 1:
                at += 8
            case 2:
                size, at = _number(data, at)
                if at + size > len(data):
                    raise ValueError("it ends early")
                if key >> 3 == wanted:
                    return data[at : at + size]
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("it is no protocol buffer")
    return None


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("it ends early")


def text_of(data: bytes) -> str:
    """The text of a serialized module, or of a module in an `HloProto`. Raises `ValueError`."""
    module: Any = importlib.import_module("jaxlib._hlo").HloModule
    reasons: list[str] = []
    for part in (field_of(data, 1), data):
        try:
            if part is not None:
                return module.from_serialized_hlo_module_proto(part).to_string()
        except (RuntimeError, ValueError) as error:
            reasons.append(str(error).strip().split("\n")[0])
    raise ValueError(reasons[0] if reasons else "it has no module")


def main(path: str) -> int:
    """Print the text. Returns 0; 1 with a sentence on standard error if there is none."""
    try:
        text = text_of(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes())
    except (OSError, ValueError) as error:
        print(f"shardproof: {error}", file=sys.stderr)
        return 1
    with os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
