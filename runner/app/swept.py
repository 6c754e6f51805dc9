"""Sweeps an experiment over overrides, and returns a table with one row per point and program: `runner.sweep`.

The table is a `DataFrame` if pandas is installed; else `Rows`, which has the same columns.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from runner.app import given
from runner.base import plain
from runner.base.untyped import is_dict, is_tuple
from runner.experiment.config.compose import InvalidConfiguration
from runner.experiment.config.folders import InvalidName, dated, folder_name, located
from runner.experiment.config.quoting import for_hydra
from runner.experiment.config.shape import GROUPS
from runner.link import lifeline
from runner.link.process import ISOLATED
from runner.reports.record.record import UnreadableRecord
from runner.reports.show.console import captured, print_table
from runner.reports.show.table import Table

TABLE = "results.jsonl"
"""The file with the rows in the folder of a sweep."""

_GRACE = 3.0
"""Seconds in which an interrupted sweep may end in order."""

Overrides: TypeAlias = "str | Sequence[str] | Mapping[str, Any]"
"""Overrides as text, one or several, or a mapping from keys of an experiment to values."""


class Rows(Sequence[dict[str, Any]]):
    """The rows of a sweep, each a mapping of `columns` to values; `folder` is the sweep's."""

    def __init__(self, rows: Sequence[dict[str, Any]], folder: Path) -> None:
        self._rows = list(rows)
        self.columns = list(rows[0]) if rows else []
        self.folder = folder

    def __getitem__(self, index: Any) -> Any:
        """Return a row by its number, several by a slice, or a column by its name."""
        if isinstance(index, str):
            if index not in self.columns:
                raise KeyError(index)
            return [row[index] for row in self._rows]
        return cast("Any", self._rows)[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return captured(lambda: print_table(self._table())).rstrip()

    def _repr_html_(self) -> str:
        from runner.reports.show.page.markup import grid

        # A notebook's cell is narrower than most tables.
        return f'<div style="overflow-x: auto; max-width: 100%">{grid(self._table())}</div>'

    def _table(self) -> Table[str]:
        """The columns that have any value."""
        columns = [name for name in self.columns if any(row[name] not in (None, 0) for row in self._rows)]
        return Table(columns, [[_cell(row[name]) for name in columns] for row in self._rows])


def _cell(value: Any) -> str:
    """A value of a row as a table shows it: a float to four digits."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else str(value)


def texts(overrides: Overrides, keys: Mapping[str, Any] | None = None) -> list[str]:
    """Return overrides as the command line has them, and then those of the `keys`.

    In a mapping a list is a value, a tuple the several values of a sweep, and a string may choose a file of a group.
    """
    if keys:
        return [*texts(overrides), *texts(keys)]
    several = given.overrides(overrides)
    if isinstance(several, Mapping):
        return [f"{_plus(name, value)}{name}={for_hydra(_several(name, value))}" for name, value in several.items()]
    return several


def _several(name: str, value: Any) -> Any:
    """Return a value as a file has it; a tuple stays one."""
    plain_value = given.plain(value, name)
    return tuple(plain_value) if is_tuple(value) and not given.is_spec(value) else plain_value


def _plus(name: str, value: Any) -> str:
    """Return the prefix of an override in Hydra's syntax: none where strings choose files of a group."""
    chosen: tuple[Any, ...] = value if is_tuple(value) else (value,)
    return "" if name in GROUPS and all(isinstance(each, str) for each in chosen) else "++"


def sweep(
    experiment: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    config_dir: str | Path | None = None,
    folder: str | Path | None = None,
    **keys: Any,
) -> Any:
    """Run a sweep as `python -m runner -m` does, in its own process, and return its table.

    - `experiment`, `config_dir`: as for `runner.run`; `folder`: of the sweep, which is empty or not there.
    - `overrides`, `keys`: those with several values are swept over: `["dims.J=4,8"]`, `{"dims.J": (4, 8)}`, or
      `program=("auto", "derived")`.

    An error in a point is in its row. Raises `InvalidConfiguration` if there is no point to run, and `ValueError` for
    an argument that is none of these.
    """
    name = name_of(experiment)
    where = dated(name) if folder is None else given.path(folder, "folder", "the path of a folder, or None")
    if config_dir is not None:
        config_dir = given.path(config_dir, "config_dir", "the path of a folder")
    arguments = [*texts(overrides, keys), f"hydra.sweep.dir={for_hydra(str(where))}"]
    for argument in arguments:
        if "\0" in argument:
            raise InvalidConfiguration(f"{given.shown(argument)} has a NUL character, which no command line has")
        if argument.encode(errors="ignore").decode() != argument:
            raise InvalidConfiguration(f"{given.shown(argument)} has a character that is not UTF-8")
    if isinstance(experiment, Mapping):
        request = {"name": name, "text": text_of(experiment, name), "config_dir": config_dir and str(config_dir)}
    else:
        arguments, request = [*_named(experiment, config_dir), *arguments], None
    message = _ended(arguments, json.dumps(request))
    if not (where / TABLE).is_file():
        raise InvalidConfiguration(message)
    return read(where)


def _ended(arguments: Sequence[str], request: str) -> str:
    """Run a sweep's command line to its end, and return what it said; it ends with this process, however that ends.

    `request` goes to its standard input: the experiment, if it has no file.
    """
    here = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [*ISOLATED, "runner.app.cli.of_caller", lifeline.owner(), "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": here},
    ) as process:
        try:
            out, err = process.communicate(request)
        except BaseException:
            # An orderly end removes its temporary files.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            process.kill()
            raise
    return err.strip() or out.strip()


def content(experiment: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the content of the file of an experiment that was given as a mapping."""
    return given.plain({"name": name, **experiment})


def written(experiment: Mapping[str, Any], name: str, folder: Path) -> Path:
    """Write an experiment that was given as a mapping into the run folder, so that the command can run it too."""
    # A shipped experiment may have the same name.
    file = folder / "conf" / "experiment" / f"{name}_.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(experiment, name), encoding="utf-8")
    return file


def text_of(experiment: Mapping[str, Any], name: str) -> str:
    """Return the text of the file of an experiment that was given as a mapping."""
    import yaml

    try:
        text = yaml.safe_dump(content(experiment, name), sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise ValueError(f"{error.args[1]!r} cannot be written to an experiment's file") from None
    return f"# @package _global_\n{text}"


def name_of(experiment: str | Path | Mapping[str, Any]) -> str:
    """Return the name of an experiment's files, where it is given by its name, its file, or as a mapping."""
    experiment = given.experiment(experiment)
    if isinstance(experiment, Mapping):
        return folder_name(experiment.get("name"))
    return folder_name(Path(experiment).stem)


def _named(experiment: str | Path, config_dir: str | Path | None) -> list[str]:
    """Return the arguments of a command line that choose an experiment."""
    if isinstance(experiment, Path) or experiment.endswith((".yaml", ".yml")):
        try:
            own, name = located(Path(experiment), Path(config_dir) if config_dir is not None else None)
        except InvalidName as error:
            raise InvalidConfiguration(f"{experiment}: {error}") from None
        return ["--config-dir", str(own), f"+experiment={for_hydra(name)}"]
    return [*([] if config_dir is None else ["--config-dir", str(config_dir)]), f"+experiment={for_hydra(experiment)}"]


def read(folder: Path) -> Any:
    """Return the table in a sweep's folder. Raises `UnreadableRecord` if there is no readable one."""
    rows: list[dict[str, Any]] = []
    for line in plain.read_text(folder / TABLE).splitlines():
        try:
            row = plain.parse(line)
        except plain.NotJson as error:
            raise UnreadableRecord(f"{folder / TABLE} is {error}") from None
        if not is_dict(row):
            raise UnreadableRecord(f"{folder / TABLE} has a line that is not a row of a sweep")
        rows.append(row)
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        return Rows(rows, folder)
    table = pandas.DataFrame(rows)
    table.attrs["folder"] = str(folder)
    return table
