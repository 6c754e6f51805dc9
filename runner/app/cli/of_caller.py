"""Runs a command line for `runner.sweep`, and ends in order when the process that called it has ended.

Standard input has JSON: `null`, or an experiment that has no file, which gets one in a temporary folder.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from runner.app.cli import command
from runner.link import lifeline


def main(arguments: list[str]) -> int:
    """Run a command line on the experiment that standard input has, if any; return its exit status."""
    request: Any = json.load(sys.stdin)
    if request is not None:
        from runner.experiment.config.folders import located
        from runner.experiment.config.quoting import for_hydra
        from runner.experiment.config.sources import OF_MAPPINGS
        from runner.link import scratch

        # The end of every command removes its temporary folders. `resume.leave` copies the file, which the last three
        # arguments name.
        file = scratch.Folder("sweep").path / "experiment" / f"{request['name']}_.yaml"
        file.parent.mkdir()
        file.write_text(request["text"], encoding="utf-8")
        OF_MAPPINGS.add(file)
        folder, name = located(file, request["config_dir"] and Path(request["config_dir"]))
        arguments = [*arguments, "--config-dir", str(folder), f"+experiment={for_hydra(name)}"]
    from runner.app.cli import app

    return app.main(arguments)


if __name__ == "__main__":
    # An end in order: the worker ends, and temporary files are removed.
    lifeline.die_with(sys.argv.pop(1), signal.SIGTERM)
    command.main("runner.app.cli.of_caller")
