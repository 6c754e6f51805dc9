"""`python -m runner list GROUP` prints the names in a config group, `list case` the experiments with `case` in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from runner.app.cli import subcommands
from runner.app.cli.answers import answered
from runner.base import plain
from runner.base.faults import BadInput, nearest
from runner.base.words import shown
from runner.experiment.config import config_errors, shape
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.slices import slices
from runner.reports.show import report
from runner.reports.show.console import print_table, room, say
from runner.reports.show.table import Table


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0, or 2 if there is no such group or folder."""
    parser = subcommands.parser("list")
    parser.add_argument(
        "group",
        metavar="GROUP",
        nargs="?",
        default="experiment",
        help="a config group, by default experiment; or a part of the names of experiments",
    )
    parser.add_argument(
        "--config-dir", metavar="DIR", type=Path, help="a folder of your own, whose names are listed too"
    )
    options = parser.parse_args(list(arguments))
    if options.config_dir is not None and not options.config_dir.is_dir():
        raise BadInput(f"--config-dir {options.config_dir}\n  there is no such folder")
    folders = [*([options.config_dir] if options.config_dir else []), conf_folder()]
    if options.group == "experiment":
        report.listing(folders)
        return 0
    names = described(options.group, folders)
    if not names and report.listing(folders, options.group):
        return 0
    if not names:
        groups = sorted(config_errors.config_groups(folders) - {"hydra"})
        meant = nearest(options.group, groups) or shape.listed(groups)
        raise BadInput(f"there is no config group '{options.group}'{meant}")
    left = (room() or 10_000) - max(map(len, (options.group, *names))) - 2
    rows = [(name, shorten(text, max(left, 20), placeholder=" …")) for name, text in names.items()]
    print_table(Table((options.group, "says"), rows))
    there = files(options.group, folders)
    made = f", and {len(names) - len(there)} slices of TPUs" if len(names) > len(there) else ""
    say(f"\n{len(there)} in {', '.join(sorted({shown(file.parent) for file in there.values()}))}{made}")
    return 0


def described(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Map the options of a config group to what they say of themselves."""
    texts = {name: says(file) for name, file in files(group, folders).items()}
    made = {name: each.says for name, each in slices().items()} if group == "target" else {}
    return dict(sorted({**made, **texts}.items()))


def files(group: str, folders: Sequence[Path]) -> dict[str, Path]:
    """Map names to the files of a config group; the first folder with a name wins."""
    names: dict[str, Path] = {}
    for folder in folders:
        for file in sorted((folder / group).glob("*.yaml")):
            names.setdefault(file.stem, file)
    return names


def says(file: Path) -> str:
    """Return the first comment of a file; if it has none, its keys; or why it cannot be read."""
    try:
        text = plain.read_text(file, "replace")
    except OSError as error:
        return error.strerror or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#") and "@package" not in line]
    return comments[0] if comments else ", ".join(lines)
