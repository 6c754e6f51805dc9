"""A command of the runner in; the exit status of its process out, whatever streams, disk and signals do.

Every command begins here: `python -m runner`, its subcommands, and the console script.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys

_READER_LEFT = 128 + 13
"""What a shell reports of a program that SIGPIPE ended."""

_INTERRUPTED = 128 + signal.SIGINT
"""What a shell reports of a program that Ctrl-C ended."""

_YOUNG = (100_000, 2, 2)
"""After how many new objects Python looks for garbage, and after how many looks it looks further: a command loads
hundreds of modules, which leave none."""

_MACHINE = 3
"""The exit status where the machine is in the way: a full disk, no permission."""


def older(name: str) -> None:
    """Run the command line of `python -m runner.NAME`, after a line that says how it is spelled now."""
    _say(f"python -m runner.{name} is now: python -m runner {name}")
    main(f"runner.cli.{name}")


def main(module: str | None = None) -> None:
    """Run this process's command line by the `main` of a module, by default of the one that the command line names.

    Leaves with its exit status.
    """
    gc.set_threshold(*_YOUNG)
    try:
        status = _run(module)
    except KeyboardInterrupt:
        _say("interrupted")
        status = _INTERRUPTED
    except BrokenPipeError:
        # `| head` has read enough.
        status = _READER_LEFT
    except OSError as error:
        _say(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
        status = _MACHINE
    _let_go()
    # Python then does not search all that is there for garbage once more before it ends.
    gc.freeze()
    sys.exit(status)


def _run(module: str | None) -> int:
    """The exit status of the command line; what can be interrupted is imported where that is handled."""
    from runner.cli import signals

    try:
        with signals.handled():
            from runner import printable
            from runner.cli import streams, subcommands

            named, arguments = subcommands.chosen(sys.argv[1:]) if module is None else (module, sys.argv[1:])
            run = importlib.import_module(named).main

            try:
                streams.ready()
            except streams.Closed:
                _say("standard output is closed")
                return _MACHINE
            try:
                status = run(arguments)
            except SystemExit as left:
                # A parser of arguments has printed its help, or what is wrong with them.
                status = left.code if isinstance(left.code, int) else int(left.code is not None)
            printable.require_written(sys.stdout)
            return status
    except signals.Ended as ended:
        return signals.status(ended.number)


def _say(message: str) -> None:
    """Print on standard error, where anybody can hear it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(message, file=sys.stderr)


def _let_go() -> None:
    """See to it that Python, when it leaves, does not try again to write what could not be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
