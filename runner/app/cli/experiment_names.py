"""Replaces names of experiments on a command line by Hydra overrides.

`case3_allreduce` and `experiment=case3_allreduce` become `+experiment=case3_allreduce`; `my.yaml` becomes the
experiment of that file.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.app.cli.arguments import VALUED, folders
from runner.app.cli.subcommands import SUBCOMMANDS
from runner.base.invocation import invocation
from runner.base.words import shown
from runner.experiment.config.folders import InvalidName, conf_folder, file_of, located
from runner.experiment.config.quoting import in_quotes

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")
_GROUP = "experiment="

_ELSEWHERE = {
    "check": "{command} NAME runs an experiment and checks it",
    "diff": "{command} compare A B says what differs",
    "sweep": "{command} -m NAME KEY=A,B runs every combination of the values",
    "test": "pytest NAME.yaml, or pytest --experiments DIR, runs experiments as tests",
    "validate": "{command} NAME runs an experiment and checks it",
}
"""What other tools have as subcommands, with the command that does it here."""


def with_experiment(
    arguments: Sequence[str], known: argparse.Namespace, overrides: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the arguments, and the overrides among them, with each experiment chosen in Hydra's syntax.

    Raises `InvalidName` if there is no such experiment or file, or several match.
    """
    if known.config_name or known.config_path:
        # A user's own primary configuration may use these words differently.
        return list(arguments), list(overrides)
    _refuse_split_values(overrides)
    named = [override for override in overrides if _names(override)]
    for word in overrides:
        if "=" not in word and word.partition(":")[0].endswith(".py"):
            from runner.experiment.config import python_files

            raise InvalidName(f"command line: {word}\n  {python_files.call(word)}")
    in_groups = [override for override in overrides if override.startswith(f"+{_GROUP}")]
    if named and in_groups and all(_is_there(word, folders(known, list(overrides))) for word in named):
        raise _several([*in_groups, *named])
    if not named or in_groups:
        return list(arguments), list(overrides)
    chosen = [_option(word, Path(known.config_dir) if known.config_dir else None) for word in named]
    for word, (folder, options) in zip(named, chosen, strict=True):
        _require_there(word, options, [folder] if folder else folders(known, list(overrides)))
    if len(named) > 1:
        raise _several(named)
    ((folder, options),) = chosen
    if len(options) > 1 and not known.multirun and not any(each.startswith("hydra.mode=") for each in overrides):
        raise InvalidName(f"command line: {named[0]}\n  these are several experiments: add -m to run them all")
    override = f"+{_GROUP}{','.join(map(_quoted, options))}"
    flags = [] if known.config_dir or folder is None or _is_own(folder) else ["--config-dir", shown(folder)]
    at = _place(arguments, named[0])
    return (
        [*flags, *arguments[:at], override, *arguments[at + 1 :]],
        [override if each == named[0] else each for each in overrides],
    )


def _several(words: Sequence[str]) -> InvalidName:
    """The message for experiments that are named by several words."""
    names = ",".join(word.removeprefix("+").removeprefix(_GROUP) for word in words).split(",")
    return InvalidName(
        f"command line: {' '.join(words)}\n  one experiment is run at a time; a sweep runs all: "
        f"-m {','.join(dict.fromkeys(names))}"
    )


def _refuse_split_values(overrides: Sequence[str]) -> None:
    """Raise `InvalidName` for an override that the shell split at its spaces: `dims.J = 8`, `graph.C=A @ B`."""
    for at, (before, word) in enumerate(itertools.pairwise(overrides)):
        open_value = _is_override(before) and (before.endswith(("=", ",")) or not _names(word))
        if not _is_override(word) and (word.startswith("=") or open_value):
            words = [before, *itertools.takewhile(lambda each: not _is_override(each), overrides[at + 1 :])]
            whole = re.sub(r" ?= ?", "=", " ".join(words), count=1)
            # A list has spaces after its commas; the values of a sweep have none.
            whole = whole if "[" in whole else whole.replace(", ", ",")
            raise InvalidName(
                f"command line: {' '.join(words)}\n  the shell splits this at its spaces; write {shlex.quote(whole)}"
            )


def _is_override(word: str) -> bool:
    """Return whether a word is `KEY=…` or `~KEY`; a single `=` and `=8` are parts of one."""
    return word.startswith("~") or "=" in word[1:]


def with_specs(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with PartitionSpecs in JAX's syntax replaced by Hydra's lists. Raises `InvalidName`."""
    if not any("(" in argument or "None" in argument for argument in arguments):
        return list(arguments)
    from runner.experiment.config import specs

    try:
        return specs.overrides(arguments)
    except specs.NoSpec as error:
        raise InvalidName(str(error)) from None


def _names(override: str) -> bool:
    """Return whether an override names one or several experiments, or a file."""
    if override.startswith(_GROUP):
        # Hydra's own functions, such as glob(*), stay unchanged.
        override = override.removeprefix(_GROUP)
        return _is_file(override) or all(_NAME.fullmatch(name) for name in override.split(","))
    return _is_file(override) or ("=" not in override and all(_NAME.fullmatch(name) for name in override.split(",")))


def _is_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) and "=" not in word


def _option(word: str, own: Path | None) -> tuple[Path | None, list[str]]:
    """Return the config folder that a word implies, and its options of the group `experiment`.

    The folder is None if it is the command line's or the runner's own.
    """
    text = word.removeprefix(_GROUP)
    names = [text] if Path(text).is_file() else text.split(",")
    if not any(_is_file(name) for name in names):
        return None, names
    folder, options = own, list[str]()
    for name in names:
        try:
            folder, option = located(Path(name), folder) if _is_file(name) else (folder, name)
        except InvalidName as error:
            raise InvalidName(f"command line: {word}\n  {error}") from None
        options.append(option)
    return folder, options


def _require_there(word: str, options: Sequence[str], folders: Sequence[Path]) -> None:
    for option in options:
        if not _is_there(option, folders):
            from runner.base.faults import nearest
            from runner.experiment.config.config_errors import elsewhere, experiment_meant

            if (meant := _no_name(word)) is not None:
                raise InvalidName(f"command line: {word}\n  {meant}")
            subcommand = "" if "=" in word else nearest(option, SUBCOMMANDS).replace("mean '", "mean the subcommand '")
            meant = experiment_meant(option, folders) or subcommand or elsewhere()
            raise InvalidName(f"command line: {word}\n  no experiment '{option}'{meant}")


def _is_there(option: str, folders: Sequence[Path]) -> bool:
    return any(file_of(folder, "experiment", option).is_file() for folder in folders)


def _no_name(word: str) -> str | None:
    """Return the message for a word that is no name: a key without its value, another tool's subcommand, or a file."""
    from runner.experiment.config import shape

    if word in _ELSEWHERE:
        return f"there is no subcommand '{word}': {_ELSEWHERE[word].format(command=invocation())}"
    if Path(word).is_file():
        return "an experiment is a .yaml file (JSON is YAML: rename it)"
    kind = shape.at((word.partition(".")[0],)) if "=" not in word else None
    if kind is None:
        return None
    value = "true" if kind.kind == "flag" else "…"
    return f"'{word}' is a key without its value: write {word}={value}"


def _place(arguments: Sequence[str], word: str) -> int:
    """Return the index of a word in the arguments that is not the value of a flag."""
    return next(i for i, each in enumerate(arguments) if each == word and (i == 0 or arguments[i - 1] not in VALUED))


def _is_own(folder: Path) -> bool:
    return folder.resolve() == conf_folder().resolve()


def _quoted(option: str) -> str:
    """Quote an option for Hydra's grammar."""
    return option if _NAME.fullmatch(option) else in_quotes(option)
