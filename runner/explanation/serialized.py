"""Reads a serialized module, or a lowered one, by a process that has jaxlib; this one needs none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.explanation.modules import UnreadableModule

_LONGEST = 300
"""The seconds after which the process is ended."""


def text(path: Path, reader: str = "protos") -> str:
    """What the process prints of a file. Raises `UnreadableModule`."""
    return _printed([f"runner.worker.{reader}", str(path)], str(path))


def text_of(module: bytes, source: str) -> str:
    """The text of a serialized module, which came from `source`. Raises `UnreadableModule`."""
    return _printed(["runner.worker.protos", "-"], source, module)


def _printed(command: Sequence[str], source: str, content: bytes = b"") -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command], input=content, capture_output=True, timeout=_LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnreadableModule(f"{source}: it was not read within {_LONGEST} s") from None
    heard = done.stderr.decode("utf-8", "replace").strip().splitlines()
    ours = [line.removeprefix("shardproof: ") for line in heard if line.startswith("shardproof: ")]
    if done.returncode:
        why = ours[-1] if ours else heard[-1] if heard else f"the process that read it ended with {done.returncode}"
        raise UnreadableModule(f"{source}: this is no serialized module that jaxlib reads: {why[:300]}")
    return done.stdout.decode("utf-8", "replace")
