"""Profiles some runs of a compiled program, and reads the events as plain data."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax

from runner.compiled.evidence import planes, xspace
from runner.experiment.program import Program
from runner.link.events import Profiled, RunTimes

_RUNS = 5
"""How many runs are profiled: a median needs no more, and the trace stays small."""

_LONG = 1.0
"""Seconds above which one run is enough."""

_SETTLING = 0.05
"""Seconds between the last run and the end of the trace, in which threads record that they are done."""


def take(program: Program, run: Callable[[], Any], seconds: float, folder: Path, arrays: Path) -> Profiled:
    """Profile blocked runs of a warm program, each of which took `seconds` before.

    The trace goes to `folder/profile/PROGRAM`, its events to a file in `arrays`. Raises any exception of the profiler.
    """
    runs = _RUNS if seconds < _LONG else 1
    kept = folder / "profile" / program
    taken = kept.with_name(f".{program}")
    try:
        times = _record(taken, run, runs)
        (path,) = taken.glob("plugins/profile/*/*.xplane.pb")
        recorded = planes.read(xspace.read(path.read_bytes()))
        # An earlier run may have used the folder.
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(taken, kept)
    finally:
        shutil.rmtree(taken, ignore_errors=True)
    run_s = RunTimes(median=statistics.median(times), min=min(times), max=max(times), n=runs)
    profile = planes.Capture(kept.relative_to(folder).as_posix(), runs, run_s, recorded)
    return planes.leave(arrays / f"profile_{program}.bin", profile)


def _record(folder: Path, run: Callable[[], Any], runs: int) -> list[float]:
    """Run under the profiler; returns seconds per run."""
    options = jax.profiler.ProfileOptions()
    # Calls of Python functions would be most of the trace.
    options.python_tracer_level = 0
    times: list[float] = []
    cast("Any", jax.profiler).start_trace(folder, create_perfetto_trace=True, profiler_options=options)
    try:
        for number in range(runs):
            start = time.perf_counter()
            with jax.profiler.StepTraceAnnotation(planes.ANNOTATION, step_num=number):
                run()
            times.append(time.perf_counter() - start)
        time.sleep(_SETTLING)
    finally:
        jax.profiler.stop_trace()
    return times
