"""A user's function and the shapes of its operands in; a definition that imports it, as a worker writes it, out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.base import codec
from runner.experiment.imported import KEY, Imported, Imports
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.worker.jaxpr import jaxprs
from tests import harness

FOLDER = Path(__file__).parent / "user_functions"
"""The folder of the users' files, which programs import."""


def functions(
    module: str, texts: Mapping[str, str], operands: Mapping[str, Mapping[str, Sequence[Any]]], axes: Any = None
) -> dict[str, Any]:
    """Return the keys of a definition that calls functions of a module of the `user_functions`.

    - `texts`: the Python call of each function of the experiment: `{"loss": "mlp.loss({'w': w}, x)"}`.
    - `operands`: the operand shapes of each; the last entry may be a dtype.
    - `axes`: the sizes of mesh axes, for functions that run on one device.
    """
    preamble = ("import sys", f"sys.path.append({str(FOLDER)!r})", f"import {module}")
    space: dict[str, Any] = {}
    exec("\n".join(preamble), space)
    imported: dict[str, Imported] = {}
    for name, text in texts.items():
        structs = {operand: _struct(shape) for operand, shape in operands[name].items()}
        called = eval(f"lambda {', '.join(structs)}: {text}", space)
        graph = jaxprs.read(called, structs)
        assert not graph.arrays
        returned = text
        for operand in structs:
            returned = _filled(returned, operand)
        imported[name] = Imported(text.partition("(")[0], returned, graph.traced(structs), graph.frames)
    return {"functions": {}, KEY: codec.plain(Imports(imported, preamble, ("sys", module)))}


def _filled(text: str, operand: str) -> str:
    """Replace each `$name` in a Python text by a name."""
    return re.sub(rf"(?<![\w'\".$]){operand}(?![\w'\"(=])", f"${operand}", text)


def _struct(shape: Sequence[Any]) -> jax.ShapeDtypeStruct:
    *sizes, last = shape if shape and isinstance(shape[-1], str) else (*shape, "float32")
    return jax.ShapeDtypeStruct(tuple(sizes), np.dtype(last))


def definition(text: harness.Text, imports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of an experiment that calls imported functions."""
    config = harness.config(text, functions=imports["functions"])
    return {**config, KEY: imports[KEY]}


def experiment(text: harness.Text, imports: Mapping[str, Any]) -> Experiment:
    """Return such an experiment."""
    return read(definition(text, imports))
