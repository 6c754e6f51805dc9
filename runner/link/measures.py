"""Measures the speed of the local devices, in a separate process that imports JAX."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Iterator

from runner.base.lazy import dataclass
from runner.link import lifeline
from runner.link.process import ISOLATED


@dataclass(frozen=True, kw_only=True)
class MeasuringRequest:
    """What to measure: collectives of these `kinds` and `sizes` in bytes, products of these `dtypes`, a copy.

    `devices`: the number of devices; 0: all. Each is run `runs` times.
    """

    platform: str
    devices: int
    kinds: list[str]
    sizes: list[int]
    dtypes: list[str]
    runs: int


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """The median time of one run.

    - `kind`: a collective, or `dispatch` (a program that does nothing), `product`, `copy`.
    - `bytes`: for a gather and a scatter the whole array, for other collectives and a copy what each device moves; for
      a product its floating-point operations on each device.
    """

    kind: str
    dtype: str
    bytes: int
    seconds: float
    device: str
    devices: int


class NotMeasured(Exception):
    """The process ended before it finished; the message is its last output."""


def measure(wanted: MeasuringRequest) -> Iterator[MeasuredRun]:
    """Measure, in a process of its own. Raises `NotMeasured`."""
    command = [*ISOLATED, "runner.worker.measure", lifeline.owner(), json.dumps(dataclasses.asdict(wanted))]
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, text=True, encoding="utf-8")
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield MeasuredRun(**json.loads(line))
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if code:
            words.seek(0)
            last = words.read().decode(errors="replace").strip().splitlines()
            raise NotMeasured(last[-1] if last else f"the process that measures ended with {code}")
