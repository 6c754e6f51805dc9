"""Finds the flags and overrides of a command line that matter before Hydra parses them.

Hydra's own parser needs Hydra, whose import takes longer than starting the worker.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from runner.base.invocation import invocation
from runner.experiment.config.folders import conf_folder

_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
"""The flags with which Hydra prints information about itself."""

_HYDRAS = ("multirun", "config_path", "config_name", "resolve", "package", "experimental_rerun")
"""The flags that only Hydra's own command implements."""

VALUED = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--cfg", "-c", "--package", "-p"),
    "--experimental-rerun",
)
"""The flags that take a value."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one message: what is wrong, an `example`, and where the help is."""

    def __init__(self, example: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._example = example
        self._words: Sequence[str] = ()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the values of the arguments; exits with status 2 and a message for those that are invalid."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2, after the message."""
        missing = message.removeprefix("the following arguments are required: ")
        if missing != message:
            # An unknown flag is the mistake even where something is missing too.
            unknown = [word for word in self._words if self._is_unknown(word)]
            missing = f"{missing} {'are' if ', ' in missing else 'is'} missing"
            message = f"unrecognized arguments: {' '.join(unknown)}" if unknown else missing
        self.exit(2, f"{self.prog}: {message}\n  for example: {self._example}\n  all arguments: {self.prog} --help\n")

    def _is_unknown(self, word: str) -> bool:
        flags = self._option_string_actions
        return len(word) > 1 and word.startswith("-") and not {word.partition("=")[0], word[:2]} & flags.keys()


def _instead(arguments: Sequence[str], flag: str, flags: Iterable[str]) -> str:
    """Return what to write for an unknown flag: another one of the `flags`, an experiment's name, a key; or ""."""
    from runner.experiment.config import shape

    key, _, value = flag.lstrip("-").partition("=")
    following = [*arguments[arguments.index(flag) + 1 :], ""][0]
    if (dashed := f"--{key.replace('_', '-')}") in flags:
        return f"; write {dashed} {value or following}".rstrip()
    if key == "experiment":
        return f"; an experiment is named without a flag: {invocation()} {value or following or 'NAME'}"
    return "" if shape.at((key.partition(".")[0],)) is None else f"; a key has no dashes: {key}={value or '…'}"


def parsed(arguments: Sequence[str], of: argparse.ArgumentParser | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags that matter before Hydra is imported, and the overrides.

    `of` is the parser of a subcommand, whose message an unknown flag gets. Raises `SystemExit` with a message for an
    unknown flag or an invalid value.
    """
    command = invocation()
    parser = Parser(f"{command} case3_allreduce dims.J=8", prog=command, add_help=False, allow_abbrev=False)
    for flag in ("--help", "-h"):
        parser.add_argument(flag, action="store_true", dest="help")
    parser.add_argument("--version", "-V", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--multirun", "-m", action="store_true")
    # Hydra's own flags.
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--experimental-rerun")
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=_INFO)
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    options, rest = parser.parse_known_args(list(arguments))
    overrides = [argument for argument in rest if not argument.startswith("-")]
    if unknown := [argument for argument in rest if argument.startswith("-")]:
        flags = re.findall(r"--[\w-]+", (of or parser).format_help()) + list(VALUED)
        (of or parser).error(
            f"unrecognized arguments: {' '.join(unknown)}{_instead(list(arguments), unknown[0], flags)}"
        )
    options.asks = bool(options.hydra_help or options.cfg or options.info or options.shell_completion)
    options.others = any(getattr(options, name) for name in _HYDRAS)
    return options, overrides


def asks_for_listing(options: argparse.Namespace, overrides: list[str]) -> bool:
    """Return whether the command line names nothing to run."""
    return not (options.asks or options.config_name) and all(
        override.startswith("hydra.searchpath=") for override in overrides
    )


def folders(options: argparse.Namespace, overrides: list[str]) -> list[Path]:
    """Return the folders that may hold `experiment/`, the user's first."""
    folders = [Path(options.config_dir)] if options.config_dir else []
    for override in overrides:
        if override.startswith("hydra.searchpath="):
            entries = override.split("=", 1)[1].strip("[]").split(",")
            folders += [Path(entry.strip().removeprefix("file://")) for entry in entries if entry.strip()]
    return [*folders, conf_folder()]
