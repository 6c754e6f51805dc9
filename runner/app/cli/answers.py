"""Answers bad input to a command with its message and the exit status 2."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

from runner.base.faults import BadInput

Parameters = ParamSpec("Parameters")


def answered(run: Callable[Parameters, int]) -> Callable[Parameters, int]:
    """Let a function that returns an exit status raise `BadInput`."""

    @functools.wraps(run)
    def main(*arguments: Parameters.args, **named: Parameters.kwargs) -> int:
        try:
            return run(*arguments, **named)
        except BadInput as error:
            print(error, file=sys.stderr)
            return 2

    return main
