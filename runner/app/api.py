"""Runs an experiment that is given by its name, its file or as a mapping, and returns its record: `runner.run`.

This is the Python API of `runner`; the command uses the same flow.
"""

from __future__ import annotations

import contextlib
import gc
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app import given
from runner.app.called.specs import AUTO, of_one_tuple, refuse
from runner.app.swept import Overrides, content, name_of, sweep, texts, written
from runner.base.faults import InvalidExperiment, Key
from runner.base.printable import Page
from runner.base.words import shortened
from runner.experiment.config import direct, python_files
from runner.experiment.config.compose import Configuration, InvalidConfiguration
from runner.experiment.config.compose import compose as _compose
from runner.experiment.config.folders import InvalidName, added, conf_folder, dated, folder_name, located
from runner.experiment.imported import outline
from runner.experiment.model import Experiment
from runner.reports.record import model

if TYPE_CHECKING:
    from rich.text import Text

    from runner.app.call_plan import Plan
    from runner.app.called.experiment import CalledExperiment
    from runner.app.flow.plan_run import FinishedPlan
    from runner.experiment.config.sources import Sources
    from runner.link.workers import Workers

__all__ = [
    "AUTO",
    "Configuration",
    "Experiment",
    "InvalidConfiguration",
    "InvalidExperiment",
    "InvalidPlan",
    "Record",
    "check",
    "compose",
    "plan",
    "read",
    "run",
    "sweep",
    "validate",
]


_IN_FILE = re.compile(r"^\S+\.yaml(?::\d+)*\s+", re.MULTILINE)
"""The place in a file before the key that a message is about."""


class Record(model.Record):
    """The record of one run (docs/record.md), with the `folder` of its files.

    `str()` gives what the command prints; a notebook shows the verdicts and pictures.
    """

    folder: Path

    @classmethod
    def of(cls, plain: model.Record, folder: Path) -> Record:
        """Build from a plain record and its run folder."""
        record = cls(**vars(plain))
        record.folder = folder
        return record

    @property
    def collectives(self) -> dict[str, int]:
        """The number of collectives of each kind in the first compiled program: `{"all-gather": 2}`.

        Raises `ValueError` if no program was compiled, or its module could not be read.
        """
        programs = (program for program in self.programs.values() if isinstance(program, model.CompiledProgram))
        first = next(programs, None)
        if first is None or first.collectives is None:
            raise ValueError(self.error or "no program was compiled, or its module could not be read")
        return dict(Counter(collective.kind for collective in first.collectives))

    def __repr__(self) -> str:
        of = f" of {self.experiment}" if self.experiment else ""
        if self.error is not None:
            place_and_message = (line.strip() for line in self.error.splitlines()[:2])
            return f"<Record{of}: {self.status}, {': '.join(place_and_message)}>"
        from runner.reports.show import summary

        return f"<Record{of}: {summary.line(self, ', ')}>"

    def __str__(self) -> str:
        from runner.reports.show import console, report

        out, wrong, columns = Page(), Page(), console.room()
        fitting = contextlib.nullcontext() if columns is None else console.within(columns)
        with fitting, contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            report.run(self, self.folder, brief=False, show=self.show)
        return wrong.getvalue() + out.getvalue()

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        from runner.reports.show import html

        return html.fragment(self, self.folder)


def compose(
    experiment: str | Path, overrides: Overrides = (), *, config_dir: str | Path | None = None, **keys: Any
) -> Configuration:
    """Compose the configuration of an experiment; return it resolved, with the places of its values.

    - `experiment`: its name, or the path of its file, `CONFIG_DIR/experiment/NAME.yaml`.
    - `overrides`: one or several as on the command line, `["mesh.shape=[4,2]", "program=shard_map"]`; or a mapping of
      keys to values, `{"mesh.shape": [4, 2], "program": "shard_map"}`.
    - `keys`: more of them, of an experiment's own keys: `program="shard_map", mesh="x4_y2"`.
    - `config_dir`: the folder of your own experiments, as in `--config-dir`.

    Raises `InvalidConfiguration`, and `ValueError` for an argument that is none of these.
    """
    if isinstance(given.experiment(experiment), Mapping):
        raise ValueError("compose takes an experiment's name or file; runner.run takes a mapping")
    folder = conf_folder() if config_dir is None else given.path(config_dir, "config_dir", "the path of a folder")
    if isinstance(experiment, Path) or experiment.endswith((".yaml", ".yml")):
        if config_dir is not None:
            raise InvalidConfiguration("config_dir is for an experiment's name; a path needs none")
        try:
            folder, experiment = located(Path(experiment))
        except InvalidName as error:
            raise InvalidConfiguration(f"{experiment}: {error}") from None
    elif (message := python_files.call(experiment)) is not None:
        raise InvalidConfiguration(f"{experiment}\n  {message}")
    elif not (folder / "experiment").is_dir():
        raise InvalidConfiguration(f"{folder} has no folder 'experiment', where NAME.yaml belongs")
    return _compose(experiment, folder, texts(overrides, keys))


def validate(configuration: Configuration) -> Experiment:
    """Check a configuration as far as possible without JAX, and return the experiment that it describes.

    An experiment that imports Python functions has no lines yet, since only a worker can trace them.

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
    quiet: bool = True,
    **keys: Any,
) -> Record:
    """Run an experiment as the command does, in its own worker process, and write its run folder.

    - `experiment`, `overrides`, `config_dir`, `keys`: as for `compose`; a mapping has the keys of an experiment's file.
    - `folder`: the run folder, by default `outputs/NAME/DATE_TIME`. It must be absent, empty, or the folder of an
      earlier run, whose files are deleted.
    - `quiet`: False to print what the command prints; a notebook shows the record that is returned.

    Raises `FileExistsError` if the folder has files that no run wrote, and `ValueError` for an argument that is none of
    these. Errors in the experiment, its configuration or its programs do not raise: they are in the record.
    """
    overrides = texts(overrides, keys)
    if config_dir is not None:
        config_dir = given.path(config_dir, "config_dir", "the path of a folder")
    if isinstance(experiment, Mapping):
        # Before the folder is made: nothing of it could be written there.
        content(experiment, name_of(experiment))
    where = _folder(folder, name_of(experiment))
    _begin(where)
    record = _run(experiment, overrides, config_dir, where)
    if not quiet:
        print(record)
    return record


def _run(
    experiment: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    config_dir: str | Path | None,
    where: Path,
    used: Workers | None = None,
    arguments: Mapping[Key, str] | None = None,
) -> Record:
    """Run an experiment in the prepared folder `where`, with the workers `used`, or new ones that it closes.

    `arguments`: what the caller of `runner.check` wrote for its keys.
    """
    from runner.app.flow import run as flow
    from runner.link import copied
    from runner.link.workers import Workers
    from runner.reports.record import manifest
    from runner.reports.record import record as records

    with _kept_objects():
        # Started first: it imports JAX, if this process has not, while the configuration is composed.
        workers = used or Workers(copied.worker())
        try:
            try:
                composed = _composed(experiment, overrides, config_dir, where)
                sources = replace(composed.sources, arguments=arguments or {})
            except InvalidConfiguration as error:
                folders = [] if config_dir is None else added([Path(config_dir)])
                text = str(error) if arguments is None else _of_argument(error)
                record = records.ended(where, "invalid", text, overrides, folders)
            else:
                record = flow.run(composed.plain, where, sources, workers, last=used is None)
            manifest.end(where)
        finally:
            if used is None:
                workers.close()
    return Record.of(record, where)


def _of_argument(error: InvalidConfiguration) -> str:
    """The message for a call, which has no file: what is wrong is an argument."""
    return _IN_FILE.sub("", str(error))


_YOUNG = (100_000, 20, 100)
"""The numbers of new objects, and of collections, after which garbage is collected during a run: less often than else.

A run makes many objects that stay, and at each collection JAX looks for its own garbage too.
"""


@contextlib.contextmanager
def _kept_objects() -> Generator[None]:
    """Exclude the caller's objects from garbage collection: JAX's modules alone would take a tenth of a second."""
    before = gc.get_threshold()
    # Objects that the caller has excluded stay excluded.
    excluded = gc.get_freeze_count() > 0
    if not excluded:
        gc.freeze()
    if before[0]:
        gc.set_threshold(*_YOUNG)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not excluded:
            gc.unfreeze()


def _composed(
    experiment: str | Path | Mapping[str, Any], overrides: Sequence[str], config_dir: str | Path | None, where: Path
) -> Configuration:
    """Compose the configuration of an experiment; write the file of one that is a mapping to the run folder `where`."""
    if isinstance(experiment, Mapping):
        name = name_of(experiment)
        file = written(experiment, name, where)
        whole = None
        if not overrides and config_dir is None:
            whole = direct.composed(content(experiment, name), file)
        if whole is not None:
            return whole
        experiment = file
    return compose(experiment, overrides, config_dir=config_dir)


@of_one_tuple
def check(
    function: Callable[..., Any],
    operands: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | Any = None,
    in_specs: Any = None,
    out_specs: Any = None,
    reference: Callable[..., Any] | None = None,
    program: str | Sequence[str] | None = None,
    quiet: bool = False,
    folder: str | Path | None = None,
    **keys: Any,
) -> Record:
    """Check a JAX function under a sharding: are its results right, and what does it communicate?

    - `function`: a JAX function, jitted or not, from a module, a script or a notebook. It runs in another process.
    - `operands`: its positional arguments: arrays, pytrees of arrays, or any other objects, which are passed unchanged.
    - `kwargs`: its keyword arguments, which are operands too.
    - `mesh`: a mapping `{"data": 2, "model": 2}`, a `Mesh` or an `AbstractMesh`; None: the mesh of these shardings, or
      that of `jax.set_mesh`. The function is traced and run on a mesh with its axis types.
    - `in_specs`: for each operand a `PartitionSpec` or a prefix tree of them, or one for all, and after them a mapping
      for `kwargs`; None: the `in_shardings` of a jitted function, or else the operands' own shardings.
    - `out_specs`: the same for the result; None, for all or for a leaf: the compiler or the types choose.
    - `reference`: a function that computes the same, for a `function` whose operations cannot be read, such as a kernel
      or a `shard_map`.
    - `program`: None: `explicit` on a mesh with Explicit axes, else `auto`, which is `jit`; other programs, or `all`.
    - `keys`: other keys of an experiment, such as `expect={...}`.
    - `quiet`: do not print what the command would print.
    - `folder`: the run folder, as for `run`.

    Failures of the function or its checks do not raise: they are in the record. Raises `ValueError` where there is no
    mesh, where specs are missing, or where `operands` is no tuple or list.
    """
    record = checked(
        function,
        operands,
        folder,
        kwargs=kwargs,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        reference=reference,
        program=program,
        **keys,
    )
    if not quiet:
        print(record)
    return record


@of_one_tuple
def plan(
    function: Callable[..., Any],
    operands: Sequence[Any],
    *,
    mesh: Mapping[str, int] | Any = None,
    devices: int | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    hold: Mapping[str, Any] | None = None,
    hardware: str | Mapping[str, Any] | None = None,
    least: str | Sequence[str] | None = None,
    memory: float | str | None = None,
    candidates: int = 1,
    seconds: float = 30.0,
    verify: bool | str = "auto",
    lines: bool = True,
    quiet: bool = False,
    folder: str | Path | None = None,
    **keys: Any,
) -> Plan:
    """Find the layouts of a JAX function's arguments, results and products, and say which lines of it to change.

    - `function`, `operands`, `mesh`: as for `check`; shapes (`jax.ShapeDtypeStruct`) suffice. `mesh="auto"`: the best
      shape of the axes `data` and `model` for this number of `devices`.
    - `in_specs`: as for `check`, with `runner.AUTO` for an operand, a leaf or a part of a tree that the planner lays
      out; None: all of them. `out_specs`: the same for the result.
    - `hold`: layouts that the plan keeps, by patterns of the paths of leaves, `params/**/embed`, `result/loss`, or by
      the operations inside of the function, `dot_general.3`, as `Plan.constraints` names them.
    - `hardware`: its name, `v5p`: then time is minimised, unless `least` says `bytes` or `memory`; `memory`: what a
      device may need, `90GiB`.
    - `candidates`: how many plans are compiled and verified; 0: none. `seconds`: the time limit of the search.
      `verify`: whether they are run to check their values; `"auto"`: if that takes no longer than five seconds.
    - `lines`: whether the products inside of the function are laid out too, for `with_sharding_constraint`.
    - `quiet`, `folder`, `keys`: as for `check`. The folder has the page of the plan, and an experiment that runs.

    Raises `InvalidPlan` where there is nothing to plan, or no plan within the limit; `ValueError` as `check` does.
    """
    arguments = {
        "in_specs": AUTO if in_specs is None else in_specs,
        "out_specs": out_specs,
        "constraints": {_PRODUCTS: "auto"} if lines else {},
        "hold": hold or {},
        **({} if hardware is None else {"hardware": hardware}),
        **keys,
    }
    if "plan" in keys:
        raise ValueError("the keys of plan are arguments here: least, memory, seconds, candidates, verify")
    if "program" in keys:
        raise ValueError("a plan is compiled as the programs auto and constraint, or explicit; leave program out")
    wanted = {"least": least, "memory": memory, "seconds": seconds, "verify": verify}
    if mesh == "auto":
        mesh = _best_mesh(function, operands, devices, plan=wanted, **arguments)
    wanted["candidates"] = candidates
    chosen = _planned(function, operands, folder, mesh=mesh, plan=wanted, **arguments)
    if not quiet:
        print(chosen)
    return chosen


_PRODUCTS = "**/{dot_general,conv_general_dilated}.*"
"""The pattern of the products inside of a function."""


def _best_mesh(
    function: Callable[..., Any],
    operands: Sequence[Any],
    devices: int | None,
    *,
    plan: Mapping[str, Any],
    **arguments: Any,
) -> dict[str, int]:
    """The shape of the axes `data` and `model` whose plan costs least by the model; none is compiled."""
    from runner.experiment.enumeration import factorisations

    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError('mesh="auto" takes the number of devices: devices=64')
    best: tuple[float, dict[str, int]] | None = None
    refused: InvalidPlan | None = None
    for sizes in sorted(factorisations(devices, 2), key=lambda sizes: max(sizes) / min(sizes)):
        mesh: dict[str, int] = dict(zip(("data", "model"), sizes, strict=True))
        try:
            with tempfile.TemporaryDirectory() as scratch:
                where, wanted = Path(scratch) / "run", {**plan, "candidates": 0}
                cost = _planned(function, operands, where, mesh=mesh, plan=wanted, **arguments).cost
        except InvalidPlan as error:
            refused = error
            continue
        best = (cost, mesh) if best is None or cost < best[0] else best
    if best is None:
        assert refused is not None
        raise refused
    return best[1]


def _planned(
    function: Callable[..., Any], operands: Sequence[Any], folder: str | Path | None, **arguments: Any
) -> Plan:
    """Plan a call in its own worker process, and leave the plan, its page and its candidates in the folder."""
    from runner.app import call_plan
    from runner.app.called.specs import WrongSpecs
    from runner.experiment import open_layouts
    from runner.link import copied
    from runner.link.workers import Workers
    from runner.reports.record import manifest

    name, where = _new_run(function, folder)
    try:
        called = _called(function, operands, where, True, arguments)
    except WrongSpecs as error:
        raise InvalidPlan(shortened(f"{error.argument}: {error}")) from None
    with _kept_objects():
        workers = Workers(copied.worker())
        try:
            composed = _composed({"name": name, **called.keys, **_ON_AUTO, "report": True}, (), None, where)
            if not open_layouts.is_open(composed.plain):
                raise InvalidPlan("there is no layout to plan; give runner.AUTO in place of a spec of in_specs")
            sources = replace(composed.sources, arguments=called.arguments)
            arrays = {key: of for key, of in called.keys["constraints"].items() if key != _PRODUCTS}
            try:
                result = _finished(composed.plain, where, sources, workers, arrays, called.keys["program"])
            except InvalidExperiment as error:
                refused = called.keys["program"] == "explicit" and error.fault.key[:1] == ("graph",)
                raise InvalidPlan(sources.report(error.fault) + (_REPLICATED if refused else "")) from None
        except InvalidConfiguration as error:
            raise InvalidPlan(_of_argument(error)) from None
        finally:
            manifest.end(where)
            workers.close()
    return call_plan.of_finished(result, function, operands, called, where)


def _finished(
    config: Mapping[str, Any],
    where: Path,
    sources: Sources,
    workers: Workers,
    arrays: Mapping[str, Any],
    program: str,
) -> FinishedPlan:
    """The plan of a call: on Explicit axes as JAX's types accept the function, else with the layouts of products.

    `arrays`: the constraints without those of products.
    """
    from runner.app.flow.plan_run import finished

    refused: InvalidExperiment | None = None
    if program == "explicit":
        try:
            return finished({**config, **_ON_EXPLICIT, "constraints": arrays}, where, sources, workers)
        except InvalidExperiment as error:
            if error.fault.key[:1] != ("graph",):
                raise
            # A function that JAX accepts on Auto axes alone, as one with a constraint.
            refused = error
    try:
        return finished(config, where, sources, workers)
    except InvalidExperiment as error:
        if error.fault.key == ("constraints", _PRODUCTS):
            # A function without products.
            return finished({**config, **_ON_AUTO, "constraints": arrays}, where, sources, workers)
        raise refused or error from None


_REPLICATED = (
    "\n  on Explicit axes arguments that are planned are replicated when the function is traced: if it needs another "
    'layout of one, give it, such as in_specs=(runner.AUTO, P("data"))'
)
"""What is added to the message of a function that JAX refuses on Explicit axes."""

_ON_AUTO: Mapping[str, Any] = {"program": ["auto", "constraint"]}
_ON_EXPLICIT: Mapping[str, Any] = {"program": ["explicit"]}
"""The programs of a plan, on Auto axes or on the caller's own."""


class InvalidPlan(ValueError):
    """There is nothing to plan, no plan within the limit, or the function cannot be read; the message says why."""


def checked(
    function: Callable[..., Any],
    operands: Sequence[Any],
    folder: str | Path | None = None,
    workers: Workers | None = None,
    /,
    **arguments: Any,
) -> Record:
    """Do what `check` does with these `arguments`, without printing; `workers` are not closed.

    Those that are no arguments of `check` are keys of an experiment, whatever their names.
    """
    from runner.app.called.specs import WrongSpecs
    from runner.reports.record import manifest
    from runner.reports.record import record as records

    name, where = _new_run(function, folder)
    try:
        called = _called(function, operands, where, False, arguments)
    except WrongSpecs as error:
        record = records.ended(where, "invalid", shortened(f"{error.argument}\n  {error}"), (), [])
        manifest.end(where)
        return Record.of(record, where)
    return _run({"name": name, **called.keys}, (), None, where, workers, called.arguments)


def _new_run(function: Callable[..., Any], folder: object) -> tuple[str, Path]:
    """The name of a call's experiment, and its run folder, which is begun."""
    from runner.experiment.identifiers import importable, name_of

    name = folder_name(importable(name_of(function)).strip("_"), "function")
    where = _folder(folder, name)
    _begin(where)
    return name, where


def _called(
    function: Callable[..., Any], operands: Sequence[Any], where: Path, planned: bool, arguments: Mapping[str, Any]
) -> CalledExperiment:
    """The experiment of a call. Raises `WrongSpecs`."""
    from runner.app.called.open_specs import experiment_of

    refuse(arguments)
    return experiment_of(function, operands, where, planned, **arguments)


def _folder(folder: object, name: str) -> Path:
    """The run folder that was asked for, or a new one. Raises `ValueError` for what is no path."""
    return (
        dated(name) if folder is None else given.path(folder, "folder", "the path of a folder, or None for a new one")
    )


def _begin(folder: Path) -> None:
    """Begin a run in a folder, and delete the files of earlier runs there. Raises `FileExistsError`."""
    from runner.reports.record import manifest

    others = manifest.delete(folder) if manifest.read(folder) is not None else []
    if others:
        raise FileExistsError(
            f"{folder} is the folder of a run, and has {others[0]}, which no run wrote or which was changed since: "
            "move it"
        )
    try:
        manifest.begin(folder, "run")
    except manifest.Occupied as occupied:
        raise FileExistsError(str(occupied)) from None


def read(folder: str | Path) -> Any:
    """Read the record of a run folder, or the table of a sweep's (see `sweep`), by the folder or its file.

    Raises `UnreadableRecord` for any other folder and for a record of another schema, `ValueError` for what is no path.
    """
    from runner.app import swept
    from runner.reports.record import folders
    from runner.reports.record import record as records

    path = given.path(folder, "folder", "the path of a run folder, or of a sweep's")
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
        f"{path} is not a run: a run's folder has {folders.RECORD}, a sweep's {swept.TABLE}{latest}"
    )
