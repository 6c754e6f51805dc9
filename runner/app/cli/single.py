"""Does the work of a command on one experiment, with one message per fault."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from runner.app.cli import app, subcommands
from runner.app.cli.arguments import parsed
from runner.app.cli.jobs import Job
from runner.base.faults import BadInput, InvalidExperiment
from runner.base.words import of_system
from runner.experiment.config.compose import Configuration, InvalidConfiguration
from runner.link.workers import WorkerEnded, Workers

if TYPE_CHECKING:
    from runner.reports.record.model import Status

Action: TypeAlias = "Callable[[Configuration, Job, Workers], Status]"
"""Works on a configuration. Raises `InvalidExperiment`."""


def main(name: str, arguments: Sequence[str], work: Action, of_one: str) -> int:
    """Run the command line of a subcommand; `of_one` is the start of the message that refuses a sweep."""
    if any(argument in ("-h", "--help") for argument in arguments):
        subcommands.parser(name).print_help()
        return 0
    if any(argument in ("-m", "--multirun") for argument in arguments):
        raise BadInput(f"command line: --multirun\n  {of_one} one experiment: name one point")
    if not arguments:
        subcommands.parser(name).error("the following arguments are required: NAME")
    parsed(arguments, subcommands.parser(name))
    return app.main(arguments, functools.partial(_task, work))


def _task(work: Action, job: Job, workers: Workers) -> Status:
    """Run one Hydra job. Returns its status; never raises."""
    try:
        return work(job.resolved(), job, workers)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
    except InvalidExperiment as error:
        print(job.sources.report(error.fault), file=sys.stderr)
    except WorkerEnded as error:
        print(error, file=sys.stderr)
        return "error"
    except OSError as error:
        print(of_system(error, job.folder), file=sys.stderr)
        return "error"
    except Exception as error:
        traceback.print_exc()
        print(f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return "error"
    return "invalid"
