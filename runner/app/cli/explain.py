"""`python -m runner explain FILE` prints what is known of a module that somebody compiled, or of a profile.

Neither JAX nor devices are needed for the text of a module, and nothing is run.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.app.cli import subcommands
from runner.app.cli.answers import answered
from runner.base.words import of_system, shown
from runner.compiled.explanation import files, meshes
from runner.compiled.explanation.files import SeveralModules, Wanted
from runner.compiled.explanation.meshes import InvalidMesh
from runner.compiled.explanation.model import Explanation
from runner.compiled.explanation.modules import Known
from runner.reports.record.writing import write_text
from runner.reports.show import annotated, console, explained
from runner.reports.show.page import explanation as page


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0; 2 for bad input; 3 if a file cannot be written."""
    parser = subcommands.parser("explain")
    parser.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", help="a module, a folder of dumps, or a saved explanation"
    )
    parser.add_argument(
        "--profile", metavar="LOGDIR", type=Path, help="what a profiler left: the times of lines and collectives"
    )
    parser.add_argument("--lowered", metavar="FILE", type=Path, help="the module as JAX lowered it, for the reasons")
    parser.add_argument("--module", metavar="NAME", help="the module of a folder, by a part of its name")
    parser.add_argument("--mesh", metavar="A=4,B=2", type=_mesh, help="the mesh, if the module does not name its axes")
    parser.add_argument("--hardware", metavar="NAME", help="estimate the least time there: v5p, h100, …")
    parser.add_argument("--config-dir", metavar="DIR", type=Path, help="a folder of your own, which holds hardware/")
    parser.add_argument("--annotate", action="store_true", help="print your source, each line with its collectives")
    parser.add_argument("--full", action="store_true", help="print all rows and columns, and the whole reasons")
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the explanation as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write it as a page")
    options = parser.parse_args(list(arguments))
    if options.file is None and options.profile is None:
        parser.error("name a FILE, or --profile LOGDIR")
    known = Known(mesh=options.mesh or _mesh_of_run(options.file))
    wanted = Wanted(known, options.module, options.hardware, options.config_dir, options.profile, options.lowered)
    try:
        explanation = files.explain(options.file, wanted)
    except SeveralModules as several:
        explained.modules(several.modules)
        return 0
    if options.annotate:
        width = console.room() or console.PLAIN
        console.show_lines([[(line, "")] for line in annotated.text_of(explanation, min(width, console.PLAIN))])
    else:
        explained.text(explanation, complete=options.full)
    return _write(explanation, options.save, options.html)


def _mesh_of_run(file: Path | None) -> dict[str, int] | None:
    """The mesh of the run in whose folder a module lies, which has the names that the module may have lost."""
    if file is None or file.is_dir() or not (file.parent / "result.json").is_file():
        return None
    from runner.reports.record.record import UnreadableRecord, read

    with contextlib.suppress(OSError, UnreadableRecord):
        mesh = read(file.parent).mesh
        return mesh and dict(zip(mesh.axes, mesh.shape, strict=True))
    # A module is explained without its run, too.
    return None


def _mesh(text: str) -> dict[str, int]:
    try:
        return meshes.parsed(text)
    except InvalidMesh as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _write(explanation: Explanation, save: Path | None, html: Path | None) -> int:
    """Write the files that were asked for; say where they are."""
    for path, text in ((save, files.document), (html, page.document)):
        if path is None:
            continue
        try:
            write_text(path, text(explanation))
        except OSError as error:
            print(of_system(error, path), file=sys.stderr)
            return 3
        print(shown(path))
    return 0
