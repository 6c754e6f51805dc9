"""`python -m runner` and the console script `shardproof`."""

from __future__ import annotations

import os
import signal
import sys

_READER_LEFT = 128 + 13
"""What a shell reports of a program that SIGPIPE ended."""


def main() -> None:
    """Run the command line and leave with its exit status."""
    from runner.cli import signals
    from runner.cli.app import main as run

    try:
        with signals.handled():
            status = run(sys.argv[1:])
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = signals.status(signal.SIGINT)
    except signals.Ended as ended:
        status = signals.status(ended.number)
    except BrokenPipeError:
        # `| head` has read enough. Python must not try to write the rest when it leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _READER_LEFT
    sys.exit(status)


if __name__ == "__main__":
    main()
