"""A command of the runner in; the exit status of its process out, whatever streams, disk and signals do."""

from __future__ import annotations

import importlib
import os
import signal
import sys

_READER_LEFT = 128 + 13
"""What a shell reports of a program that SIGPIPE ended."""

_INTERRUPTED = 128 + signal.SIGINT
"""What a shell reports of a program that Ctrl-C ended."""

_MACHINE = 3
"""The exit status where the machine is in the way: a full disk, no permission."""


def main(module: str = "runner.cli.app") -> None:
    """Run this process's command line by the `main` of a module, and leave with its exit status."""
    try:
        status = _run(module)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = _INTERRUPTED
    except BrokenPipeError:
        # `| head` has read enough. Python must not try to write the rest when it leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _READER_LEFT
    except OSError as error:
        print(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
        # What could not be written cannot be when Python leaves either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _MACHINE
    sys.exit(status)


def _run(module: str) -> int:
    """The exit status of the command line; what can be interrupted is imported where that is handled."""
    from runner.cli import signals

    try:
        with signals.handled():
            from runner.cli import streams

            run = importlib.import_module(module).main

            try:
                streams.ready()
            except streams.Closed:
                print("standard output is closed", file=sys.stderr)
                return _MACHINE
            status = run(sys.argv[1:])
            sys.stdout.flush()
            return status
    except signals.Ended as ended:
        return signals.status(ended.number)
