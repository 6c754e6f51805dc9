"""`python -m runner` and the console script `shardproof`."""

from __future__ import annotations

import os
import signal
import sys

_READER_LEFT = 128 + 13
"""What a shell reports of a program that SIGPIPE ended."""

_MACHINE = 3
"""The exit status where the machine is in the way: a full disk, no permission."""


def main() -> None:
    """Run the command line and leave with its exit status."""
    from runner.cli import signals, streams
    from runner.cli.app import main as run

    try:
        streams.ready()
        with signals.handled():
            status = run(sys.argv[1:])
            sys.stdout.flush()
    except streams.Closed:
        print("standard output is closed", file=sys.stderr)
        status = _MACHINE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = signals.status(signal.SIGINT)
    except signals.Ended as ended:
        status = signals.status(ended.number)
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


if __name__ == "__main__":
    main()
