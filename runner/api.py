"""An experiment by its name, its file or as a mapping in; its record, which notebooks and terminals show, out.

This is what `runner` offers to Python. The command does the same by the same flow.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.compose import Configuration, InvalidConfiguration
from runner.config.compose import compose as _compose
from runner.config.folders import InvalidName, added, conf_folder, located
from runner.experiment.imported import outline
from runner.experiment.model import Experiment
from runner.faults import InvalidExperiment
from runner.printable import Page
from runner.record import model
from runner.swept import Overrides, dated, name_of, sweep, texts, written

if TYPE_CHECKING:
    from rich.text import Text

    from runner.link.workers import Workers

__all__ = [
    "Configuration",
    "Experiment",
    "InvalidConfiguration",
    "InvalidExperiment",
    "Record",
    "check",
    "compose",
    "read",
    "run",
    "sweep",
    "validate",
]


class Record(model.Record):
    """What one run found (docs/record.md), and the `folder` in which its files are.

    As text it is what the command prints; a notebook shows its verdicts and pictures.
    """

    folder: Path

    @classmethod
    def of(cls, found: model.Record, folder: Path) -> Record:
        """The record of a run folder."""
        record = cls(**vars(found))
        record.folder = folder
        return record

    @property
    def collectives(self) -> dict[str, int]:
        """How many collectives of each kind the first program has: `{"all-gather": 2}`.

        Raises `ValueError` where no program was compiled, or its module could not be read.
        """
        programs = (program for program in self.programs.values() if isinstance(program, model.CompiledProgram))
        first = next(programs, None)
        if first is None or first.collectives is None:
            raise ValueError(self.error or "no program was compiled, or its module could not be read")
        return dict(Counter(collective.kind for collective in first.collectives))

    def __repr__(self) -> str:
        passed = sum(program.status == "passed" for program in self.programs.values())
        return f"<Record of {self.experiment}: {self.status}, {passed} of {len(self.programs)} programs passed>"

    def __str__(self) -> str:
        from runner.show import report

        out, wrong = Page(), Page()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            report.run(self, self.folder, brief=False, show=self.show)
        return wrong.getvalue() + out.getvalue()

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        from runner.show import html

        return html.fragment(self)


def compose(
    experiment: str | Path, overrides: Overrides = (), *, config_dir: str | Path | None = None
) -> Configuration:
    """The resolved configuration of an experiment, and where its values stand.

    - `experiment`: its name, or the path of its file, `CONFIG_DIR/experiment/NAME.yaml`.
    - `overrides`: as on the command line, one or several: `["mesh.shape=[4,2]", "program=shard_map"]`; or keys with
      their values: `{"mesh.shape": [4, 2], "program": "shard_map"}`.
    - `config_dir`: the folder of your own experiments, as in `--config-dir`.

    Raises `InvalidConfiguration` for what cannot be composed.
    """
    folder = conf_folder() if config_dir is None else Path(config_dir)
    if isinstance(experiment, Path) or experiment.endswith((".yaml", ".yml")):
        if config_dir is not None:
            raise InvalidConfiguration("config_dir belongs to a name; a path says by itself where the experiment is")
        try:
            folder, experiment = located(Path(experiment))
        except InvalidName as error:
            raise InvalidConfiguration(f"{experiment}: {error}") from None
    elif not (folder / "experiment").is_dir():
        raise InvalidConfiguration(f"{folder} has no folder 'experiment', in which NAME.yaml would be")
    return _compose(experiment, folder, texts(overrides))


def validate(configuration: Configuration) -> Experiment:
    """The experiment that a configuration describes, as far as it can be checked without JAX.

    One that imports functions of Python has no lines before a worker has read these.

    Raises `InvalidExperiment`; `configuration.sources.report(error.fault)` says where in the file.
    """
    from runner.experiment.reader import read

    return read(outline(configuration.plain))


def run(
    experiment: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    config_dir: str | Path | None = None,
    folder: str | Path | None = None,
) -> Record:
    """Run an experiment as the command does, in a worker process of its own, and write its run folder.

    - `experiment`, `overrides`, `config_dir`: as for `compose`; a mapping is what an experiment's file would say.
    - `folder`: the run folder, which is empty or not there, or a run's, whose files then go; by default
      `outputs/NAME/DATE_TIME`.

    Raises `FileExistsError` where the folder has anything that no run wrote. What is wrong with an experiment, its
    configuration or its programs does not raise: it is in the record.
    """
    where = Path(folder) if folder is not None else dated(name_of(experiment))
    _begin(where)
    return _run(experiment, texts(overrides), config_dir, where)


def _run(
    experiment: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    config_dir: str | Path | None,
    where: Path,
    used: Workers | None = None,
) -> Record:
    """Run an experiment in a folder that is its own, by workers that are kept if they are `used` elsewhere."""
    from runner.flow import run as flow
    from runner.link.process import Worker
    from runner.link.workers import Workers
    from runner.record import manifest
    from runner.record import record as records

    # It loads its modules while the configuration is composed.
    workers = used or Workers(Worker())
    try:
        if isinstance(experiment, Mapping):
            experiment = written(experiment, str(experiment.get("name") or "experiment"), where)
        try:
            composed = compose(experiment, overrides, config_dir=config_dir)
        except InvalidConfiguration as error:
            folders = [] if config_dir is None else added([Path(config_dir)])
            record = records.ended(where, "invalid", str(error), overrides, folders)
        else:
            record = flow.run(composed.plain, where, lambda: composed.sources, composed.sources.overrides, workers)
        manifest.end(where)
    finally:
        if used is None:
            workers.close()
    return Record.of(record, where)


def check(
    function: Callable[..., Any],
    operands: Sequence[Any],
    *,
    mesh: Mapping[str, int] | Any = None,
    in_specs: Sequence[Any] | None = None,
    out_specs: Any = None,
    reference: Callable[..., Any] | None = None,
    program: str | Sequence[str] = "auto",
    quiet: bool = False,
    folder: str | Path | None = None,
    **keys: Any,
) -> Record:
    """Check what JAX makes of a function under a sharding: is it right, and what does it communicate?

    - `function`: of JAX; it may be jitted, and stand in a script or a notebook. It runs in a process of its own.
    - `operands`: what it is called with, by position: arrays, pytrees of them, or anything else, which stays as it is.
    - `mesh`: names with sizes, `{"data": 2, "model": 2}`, a `Mesh` or an `AbstractMesh`; None: that of the operands.
    - `in_specs`: for each operand a `PartitionSpec`, or a tree of them that may end early; None: as the operands lie.
    - `out_specs`: the same of the result; None, also in a leaf: what the compiler chooses.
    - `reference`: a function that computes the same, where the inside of `function` cannot be read, such as that of a
      kernel or of a `shard_map`.
    - `program`: `auto` (`jit`), others, or `all`; `keys`: other keys of an experiment, `expect={...}`.

    What the command would print is printed unless it is to be `quiet`. What is wrong with the function, or comes of it,
    does not raise: it is in the record. Raises `ValueError` for a call that says no mesh, or too few specs.
    """
    record = checked(
        function,
        operands,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        reference=reference,
        program=program,
        folder=folder,
        **keys,
    )
    if not quiet:
        print(record)
    return record


def checked(
    function: Callable[..., Any],
    operands: Sequence[Any],
    *,
    folder: str | Path | None = None,
    workers: Workers | None = None,
    **arguments: Any,
) -> Record:
    """Do what `check` does with these `arguments`, and print nothing; `workers` are kept for whatever else they do."""
    from runner import called

    name = getattr(function, "__name__", "function")
    name = name if name.isidentifier() else "function"
    where = Path(folder) if folder is not None else dated(name)
    _begin(where)
    hardware = arguments.get("hardware")
    # A name is the group's file, as on the command line.
    overrides = [f"hardware={arguments.pop('hardware')}"] if isinstance(hardware, str) else []
    config = called.experiment(function, operands, where, **arguments)
    return _run({"name": name, "program": "auto", **config}, overrides, None, where, workers)


def _begin(folder: Path) -> None:
    """Begin a run in a folder, of which the runs go that were there."""
    from runner.record import manifest

    others = manifest.delete(folder) if manifest.read(folder) is not None else []
    if others:
        raise FileExistsError(f"{folder} is the folder of a run, and has {others[0]}, which no run wrote as it is now")
    try:
        manifest.begin(folder, "run")
    except manifest.Occupied as occupied:
        raise FileExistsError(str(occupied)) from None


def read(folder: str | Path) -> Any:
    """The record of a run folder, or the table of a sweep's: see `sweep`. Their files may be given as well.

    Raises `UnreadableRecord` for what is neither, or of another version's schema.
    """
    from runner import swept
    from runner.record import folders
    from runner.record import record as records

    path = Path(folder)
    if path.name in (swept.TABLE, folders.RECORD) and path.is_file():
        path = path.parent
    if (path / folders.RECORD).is_file():
        return Record.of(records.read(path), path)
    if (path / swept.TABLE).is_file():
        return swept.read(path)
    if not path.is_dir():
        raise records.UnreadableRecord(f"{path}: there is no such folder")
    runs = sorted(str(each.parent) for each in path.glob(f"*/{folders.RECORD}"))
    latest = f"; the latest run in it is {runs[-1]}" if runs else ""
    raise records.UnreadableRecord(
        f"{path} is no run: a run's folder has {folders.RECORD}, a sweep's {swept.TABLE}{latest}"
    )
