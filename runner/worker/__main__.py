"""Reads jobs from standard input and writes events to standard output, one a line. The first job imports JAX.

The first argument is the parent (`lifeline.owner`): the worker ends when the parent does. Further arguments say which
of several processes it is; in a cluster it first reports its own place.

Everything else that is written to standard output (by XLA, or by a user's JAX configuration) goes to standard error,
whose end the parent reports if the worker crashes.
"""

from __future__ import annotations

import gc
import sys

from runner.link import lifeline

if __name__ == "__main__":
    # Before anything that takes long is imported.
    lifeline.die_with(lifeline.guard(sys.argv[1]))
    # Loaded modules leave no garbage; collecting would take a tenth of the time that JAX needs to be imported.
    gc.disable()

import json
import os
import re
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from typing import cast

from runner.link.events import Died, WorkerEvent, encoded
from runner.link.process import ANNOUNCED, CLUSTER

if "jax" not in sys.modules:
    # A new process has the time for it while the parent reads the YAML; a copy of the parent has its job at once.
    from runner.worker import preloaded as preloaded

_YOUNG = (10_000, 10, 10)
"""Thresholds of the garbage collector above Python's own: of the many objects of a trace, few are garbage in cycles."""


def main() -> None:
    """Run the jobs one after the other; return when standard input ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lifeline.keep_children(lambda: _let_go(channel.fileno()))
    # What a function prints is in the log even if its process ends at once.
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)

    def emit(event: WorkerEvent) -> None:
        channel.write(encoded(event) + "\n")
        channel.flush()

    try:
        if sys.argv[2:] == [CLUSTER]:
            _import_jax(emit)
            from runner.worker import processes

            emit(processes.called())
        for line in sys.stdin:
            task = json.loads(line)
            if ANNOUNCED in task:
                from runner.worker import announced

                if announced.is_valid(task[ANNOUNCED]):
                    _import_jax(emit)
                continue
            _import_jax(emit)
            from runner.worker import job, processes

            if not gc.isenabled():
                # Loaded modules are kept.
                gc.freeze()
                gc.set_threshold(*_YOUNG)
                gc.enable()
            processes.join(sys.argv[2:])
            job.run(task, emit)
    except Exception:
        # On exit, one of several processes would wait minutes for the others, which wait for it.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    channel.close()
    # JAX's and XLA's own teardown would only cost time.
    sys.stderr.flush()
    os._exit(0)


def _let_go(channel: int) -> None:
    """Leave the jobs and the events to this process in a child of it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, channel):
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _import_jax(emit: Callable[[WorkerEvent], None]) -> None:
    """Import JAX; if it refuses its environment variables, report that and exit."""
    try:
        import jax as jax
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        named = {word.upper() for word in re.findall(r"jax_\w+", str(error), re.IGNORECASE)}
        variables = ", ".join(f"{name}={os.environ[name]}" for name in sorted(named & os.environ.keys()))
        what = f"the environment has {variables}: {error}" if variables else f"{type(error).__name__}: {error}"
        emit(Died(error=f"JAX does not start: {what}"))
        os._exit(1)


if __name__ == "__main__":
    main()
