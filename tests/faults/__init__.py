"""Bad input as data: one line of `inputs.jsonl` in; the experiment and the command line with that mistake out.

A line has the change to the good experiment, and the expected message:

- `key` and `value`: the YAML value of a key; `expression`: a text for it; `overrides`: words appended to the command
  line; `text`: the bytes of the whole file, in base64.
- `module`: the module whose command line it is, by default `runner`; `alone`: whether `overrides` are the whole command
  line.
- `environment`: environment variables.
- `status`: the exit status, by default 2; `place`: the line of the message with the place of the mistake and the key;
  null if there is none. `says`: for about a hundred lines, one for each kind of message, a part of the message.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.server import ROOT, Done, command

GOOD = """\
# @package _global_
defaults:
  - override /mesh: x2_y2

name: mine
dims: {I: 4, J: 4, K: 4}

arrays:
  A: {shape: [I, J], init: "arange(16)", spec: [null, x]}
  B: {shape: [J, K], init: "arange(16)", spec: [x, null]}

graph:
  C: A @ B

per_device:
  partial: A @ B
  C: psum(partial, 'x')

outputs:
  C: [null, null]
"""

_HERE = "@@@"

NOT_PINNED = "?"
"""The place of an input for which only the message is pinned."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mistake, and the expected message."""

    says: str = ""
    place: str | None = "?"
    status: int = 2
    key: str | None = None
    value: str = ""
    expression: str | None = None
    overrides: tuple[str, ...] = ()
    text: str | None = None
    module: str = "runner"
    alone: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The name of its test."""
        text = self.expression if self.expression is not None else self.value
        whose = "" if self.module == "runner" else f"{self.module} "
        if self.key is not None:
            return f"{whose}{self.key}: {text}"[:60]
        words = [*(f"{name}={value}" for name, value in self.environment), *self.overrides]
        return f"{whose}{' '.join(words)}"[:60] or "a file"

    def file(self) -> bytes:
        """Return the experiment's file."""
        if self.text is not None:
            return base64.b64decode(self.text)
        if self.key is None:
            return GOOD.encode()
        data: dict[str, Any] = yaml.safe_load(GOOD)
        *parents, last = self.key.split(".")
        at = data
        for parent in parents:
            if not isinstance(at.get(parent), dict):
                at[parent] = {}
            at = at[parent]
        at[last] = _HERE
        raw = self.value if self.expression is None else json.dumps(self.expression, ensure_ascii=False)
        dumped = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        return f"# @package _global_\n{dumped.replace(repr(_HERE), raw)}".encode()

    def done(self, folder: Path, limit: float) -> Done:
        """Run the command on it in an empty folder."""
        (folder / "conf" / "experiment").mkdir(parents=True)
        (folder / "conf" / "experiment" / "mine.yaml").write_bytes(self.file())
        named = any(override.lstrip("+").startswith("experiment=") for override in self.overrides)
        chosen = () if named else ("+experiment=mine",)
        around = () if self.alone else ("--config-dir", "conf", *chosen, "hydra.run.dir=run")
        variables = dict(self.environment)
        return command(folder, *around, *self.overrides, module=self.module, limit=limit, **variables)


_PLACE = re.compile(r"(?:\S+\.yaml(?::\d+){0,2}|command line: .*?|the command line)(?:  \S.*)?\Z")


def place(fault: Fault, done: Done) -> str | None:
    """Return the first line of a command's output with the place of the mistake: file, line, column and key."""
    lines = (done.stderr if fault.status != 1 else done.stdout + done.stderr).splitlines()
    line = next((line for line in lines if _PLACE.match(line)), None)
    return None if line is None else line.replace(f"{ROOT}/", "")[:200]


def read() -> list[Fault]:
    """Return all mistakes."""
    lines = (Path(__file__).parent / "inputs.jsonl").read_text(encoding="utf-8").splitlines()
    return [of(json.loads(line)) for line in lines]


def of(line: Mapping[str, Any]) -> Fault:
    """Return the mistake in a line of the file."""
    environment = tuple(line.get("environment", {}).items())
    return Fault(**{**line, "overrides": tuple(line.get("overrides", ())), "environment": environment})
