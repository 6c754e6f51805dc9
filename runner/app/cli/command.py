"""Runs a command and returns its exit status, also after broken streams, full disks and signals.

Every command begins here: `python -m runner`, its subcommands, and the console script.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import signal
import sys

_READER_LEFT = 128 + 13
"""The exit status that a shell reports after SIGPIPE."""

_INTERRUPTED = 128 + signal.SIGINT
"""The exit status that a shell reports after Ctrl-C."""

_YOUNG = (300_000, 2, 2)
"""High thresholds for the garbage collector: a command loads hundreds of modules, which leave no garbage."""

_BAD_INPUT = 2
"""The exit status for what a user has to write otherwise."""

_OF_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR)
"""The errors of the system that are those of a path that was given: a long name, a folder below a file."""

_MACHINE = 3
"""The exit status for a failure of the machine: a full disk, no permission, a library that is not installed."""


def main(module: str | None = None) -> None:
    """Run `main` of a module on this process's arguments; by default of the module that the arguments select.

    Exits with its status.
    """
    gc.set_threshold(*_YOUNG)
    try:
        status = _run(module)
    except KeyboardInterrupt:
        _say("interrupted")
        status = _INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does.
        status = _READER_LEFT
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "runner":
            raise
        _say(
            f"{sys.executable} has no module '{error.name}', which Shardproof needs: activate the environment in which "
            "it is installed (source .venv/bin/activate), or install it: pip install -e ."
        )
        status = _MACHINE
    except OSError as error:
        from runner.base.words import of_system

        _say(of_system(error, None) if error.filename else error.strerror or str(error))
        status = _BAD_INPUT if error.errno in _OF_NAMES else _MACHINE
    _let_go()
    # Spares Python a last garbage collection over all objects at exit.
    gc.freeze()
    sys.exit(status)


def _run(module: str | None) -> int:
    """Return the exit status of the command line; imports run where an interrupt is handled."""
    from runner.app.cli import signals

    try:
        with signals.handled():
            from runner.app.cli import streams, subcommands
            from runner.base import printable

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
                # An argument parser has printed its help, or an error.
                status = left.code if isinstance(left.code, int) else int(left.code is not None)
            printable.require_written(sys.stdout)
            return status
    except signals.Ended as ended:
        return signals.status(ended.number)
    finally:
        # Again: the signal may have come while the command ended.
        signals.leave_nothing()


def _say(message: str) -> None:
    """Print on standard error, if it is open."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(message, file=sys.stderr)


def _let_go() -> None:
    """Discard unwritable output, so that Python does not try to flush it again on exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
