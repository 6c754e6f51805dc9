"""Explains a step that is compiled in this process, or a file: `runner.explain`."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.app import given
from runner.base.printable import Page
from runner.base.untyped import is_mapping
from runner.compiled.explanation import differences, expecting, files, meshes, model, profiles
from runner.compiled.explanation.files import Wanted
from runner.compiled.explanation.modules import Known
from runner.reports.record.writing import write_text

_FILE = "the path of the file to write"


class Explained(model.Explanation):
    """What is known of one compiled module; `str()` is what the command prints, a notebook shows the page's tables."""

    @classmethod
    def of(cls, plain: model.Explanation) -> Explained:
        """Build from a plain explanation."""
        return cls(**vars(plain))

    def save(self, path: str | Path) -> Path:
        """Write the explanation as JSON, which `runner.explain` and `shardproof explain` read. Returns the path."""
        where = given.path(path, "path", _FILE)
        write_text(where, files.document(self))
        return where

    def html(self, path: str | Path | None = None) -> str:
        """The page of the explanation; it is written to `path`, if that is given."""
        from runner.reports.show.page import explanation

        page = explanation.document(self)
        if path is not None:
            write_text(given.path(path, "path", _FILE), page)
        return page

    def annotated(self, width: int | None = None) -> str:
        """Your source, with the collectives, bytes and work of each line in its margin.

        - `width`: the most columns, by default the terminal's, or 100.
        """
        from runner.reports.show import annotated, console

        columns = (console.room() or console.PLAIN) if width is None else given.columns(width)
        return "\n".join(annotated.text_of(self, columns)) + "\n"

    def __repr__(self) -> str:
        from runner.reports.show import explained

        return f"<Explained {explained.head(self)[0]}; {explained.totals(self)[0]}>"

    def text(self, *, full: bool = False, width: int | None = None) -> str:
        """The tables in at most `width` columns, by default the terminal's, or 100.

        - `full`: with all rows and columns, and the whole reasons.
        """
        from runner.reports.show import console, explained

        columns = (console.room() or console.PLAIN) if width is None else given.columns(width)
        out = Page()
        with contextlib.redirect_stdout(out), console.within(columns):
            explained.text(self, complete=full)
        return out.getvalue()

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from runner.reports.show.page import explanation

        return explanation.fragment(self)


def explain(
    step: Any,
    *arguments: Any,
    mesh: Mapping[str, int] | Any = None,
    hardware: str | None = None,
    module: str | None = None,
    expect: Mapping[str, Any] | None = None,
    profile: str | Path | None = None,
) -> Explained:
    """Explain what a step was compiled to: its collectives with their lines, its memory, what it computes.

    - `step`: a function, jitted or not, with its `arguments`, which are arrays or `ShapeDtypeStruct`s with shardings;
      or what `jit` lowered or compiled; or the path of a module, of a folder of dumps, of a saved explanation or of
      what `jax.profiler.trace` wrote.
    - `mesh`: the axes and their sizes, `{"data": 4, "model": 2}`, or a `Mesh`, where the module has lost them.

    - `hardware`: the name of a hardware file, for an estimate; by default that of the devices that it is compiled for.
    - `module`: of a folder of dumps or of a profile, the module with this name.
    - `expect`: what must hold, as in an experiment's file: `collectives`, how often each kind runs; `no_collectives`;
      `max_bytes_per_device`, `max_memory_bytes`.
    - `profile`: what `jax.profiler.trace` wrote while the step ran: then the times of lines and collectives are said.

    The step is lowered and compiled on the devices that are here, unless it is compiled already. Nothing runs.

    Raises `AssertionError` where `expect` is not met, with the report; `TypeError` for what is no step;
    `UnreadableModule` (a `ValueError`) for a file that is no module, `InvalidMesh` (a `ValueError`) for a mesh of
    another size, `InvalidHardware` and `InvalidExpectation` (`ValueError`s), and what JAX raises when it lowers and
    compiles.
    """
    axes = _axes(mesh)
    hardware, module = given.text(hardware, "hardware"), given.text(module, "module")
    if profile is not None:
        profile = given.path(profile, "profile", "the path of what jax.profiler.trace wrote")
    if isinstance(step, str | Path):
        step = given.path(step, "step", "the path of a module")
        if arguments:
            raise TypeError("a file has no arguments: runner.explain(path)")
        wanted = Wanted(Known(mesh=axes), module, hardware, profile=profile)
        report = Explained.of(files.explain(step, wanted))
    else:
        if module is not None:
            raise TypeError(f"module={module!r} chooses one of a folder's; a step is compiled to one module")
        from runner.reports.show.progress import Progress
        from runner.worker import explained

        recording = None if profile is None else profiles.read(profile)
        with Progress(str(getattr(step, "__name__", type(step).__name__))) as progress:
            report = Explained.of(explained.explained(step, arguments, axes, hardware, recording, progress.tell))
    unmet = expecting.unmet(report, {} if expect is None else expect)
    if unmet:
        raise AssertionError("\n".join([*unmet, "", str(report)]))
    return report


def compare(old: Any, new: Any) -> list[str]:
    """What differs between two explanations, a sentence each; none if nothing does.

    Each is an explanation, or what `explain` takes as its `step` without arguments.

    Raises as `explain` does.
    """
    return differences.between(*(side if isinstance(side, model.Explanation) else explain(side) for side in (old, new)))


def _axes(mesh: Any) -> dict[str, int] | None:
    if mesh is None:
        return None
    shape: Any = getattr(mesh, "shape", mesh)
    sizes: list[Any] = [*shape.values()] if is_mapping(shape) else [None]
    if not sizes or not all(hasattr(size, "__index__") and operator.index(size) > 0 for size in sizes):
        raise meshes.InvalidMesh(f"{mesh!r} is no mesh; write its axes and their sizes: {{'data': 4, 'model': 2}}")
    return {str(axis): operator.index(size) for axis, size in shape.items()}
