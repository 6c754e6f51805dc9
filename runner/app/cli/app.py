"""Runs a command line, and starts the worker before this process's own imports."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.app.cli.answers import answered
from runner.app.cli.arguments import asks_for_listing, folders, parsed
from runner.app.cli.experiment_names import with_experiment, with_specs
from runner.experiment.config.folders import InvalidName
from runner.link.process import Worker
from runner.version import __version__

if TYPE_CHECKING:
    from runner.app.cli.jobs import Task


@answered
def main(arguments: Sequence[str], task: Task | None = None) -> int:
    """Compose the configuration of the command line and pass it to `task`, which by default runs it.

    Returns 0 if every check passed, 1 if one failed, 2 for invalid input, 3 if a program could not be run.
    """
    # A log that cannot be written needs no traceback: the files beside it cannot be written either and are reported.
    logging.raiseExceptions = False
    arguments = with_specs(arguments)
    known, overrides = parsed(arguments)
    if known.config_dir and not Path(known.config_dir).is_dir():
        raise InvalidName(f"command line: --config-dir {known.config_dir}\n  there is no such folder")
    arguments, overrides = with_experiment(arguments, known, overrides)
    if known.version:
        print(f"shardproof {__version__}")
        return 0
    if known.help:
        from runner.app.cli import help

        print(help.text(folders(known, overrides)))
        return 0
    if asks_for_listing(known, overrides):
        from runner.reports.show import report

        report.listing(folders(known, overrides))
        return 0
    # The worker imports JAX's dependencies while this process continues.
    worker = None if known.asks else Worker()
    from runner.app.cli import composing

    return composing.run(arguments, task, worker)
