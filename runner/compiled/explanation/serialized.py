"""Reads a serialized module, or a lowered one, by a process that has jaxlib; this one needs none."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from runner.compiled.explanation.modules import UnreadableModule
from runner.link.process import ISOLATED

_LONGEST = 300
"""The seconds after which the process is ended."""


def text(path: Path) -> str:
    """The text of a serialized module. Raises `UnreadableModule`."""
    return _printed(["runner.worker.protos", str(path)], str(path))


def lowered(path: Path) -> str:
    """The saved explanation of a module before XLA's passes: StableHLO, or HLO of a dump. Raises `UnreadableModule`."""
    return _printed(["runner.worker.stablehlo", str(path)], str(path), what="")


def explained_by(path: Path, compiled: str, source: str) -> str:
    """The saved explanation of the text of what was `compiled`, with reasons by its module before XLA's passes.

    - `source`: where the compiled text is from.

    Raises `UnreadableModule`.
    """
    return _printed(["runner.worker.stablehlo", str(path), source], str(path), compiled.encode(), what="")


def text_of(module: bytes, source: str) -> str:
    """The text of a serialized module, which came from `source`. Raises `UnreadableModule`."""
    return _printed(["runner.worker.protos", "-"], source, module)


_MODULE = "this is no serialized module that jaxlib reads: "


def _printed(command: Sequence[str], source: str, content: bytes = b"", what: str = _MODULE) -> str:
    try:
        done = subprocess.run([*ISOLATED, *command], input=content, capture_output=True, timeout=_LONGEST, check=False)
    except subprocess.TimeoutExpired:
        raise UnreadableModule(f"{source}: it was not read within {_LONGEST} s") from None
    heard = done.stderr.decode("utf-8", "replace").strip().splitlines()
    ours = [line.removeprefix("shardproof: ") for line in heard if line.startswith("shardproof: ")]
    if done.returncode:
        why = ours[-1] if ours else heard[-1] if heard else f"the process that read it ended with {done.returncode}"
        raise UnreadableModule(f"{source}: {what}{why[:300]}" if what or not ours else why[:400])
    return done.stdout.decode("utf-8", "replace")
