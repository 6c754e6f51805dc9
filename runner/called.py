"""A function of Python, what it is called with and how that lies in; the experiment that calls it out.

The function may stand anywhere: in a module, in a script, in a notebook, inside of another function. It is left in the
run folder with its operands, as `called.pkl`; `called.py` beside it is a module that the experiment imports, as any
experiment imports modules, and that the programs import too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from runner.experiment.forms import IDENTIFIER
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.record.files import write_text
from runner.untyped import is_mapping

MODULE = "called"

_SOURCE = '''"""What runner.check was called with: a function, its operands, and how these and the results lie."""

import sys
from pathlib import Path

import jax

sys.path += [folder for folder in {folders!r} if folder not in sys.path]

import cloudpickle

_function, _operands, _in_specs, _out_specs, reference_of_all = cloudpickle.loads(
    Path(__file__).with_name("called.pkl").read_bytes()
)


def _is_array(leaf):
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _arrays(tree):
    """The tree with None in the place of what is no array."""
    return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else None, tree)


def _whole(tree, arrays):
    """The tree with these arrays in the place of its own."""
    given = iter(jax.tree.leaves(arrays))
    return jax.tree.map(lambda leaf: next(given) if _is_array(leaf) else leaf, tree)


operands = [_arrays(operand) for operand in _operands]
in_specs = _in_specs
out_specs = _out_specs


def _given(arrays):
    """All operands, with these in the place of those that have arrays."""
    given = iter(arrays)
    return [
        _whole(operand, next(given)) if jax.tree.leaves(part) else operand
        for operand, part in zip(_operands, operands, strict=True)
    ]


def function(*arrays):
    return _arrays(_function(*_given(arrays)))


def reference(*arrays):
    return _arrays(reference_of_all(*_given(arrays)))
'''


class Unpicklable(ValueError):
    """The function, or something that it reads, cannot be given to another process."""


def experiment(
    function: Callable[..., Any],
    operands: Sequence[Any],
    folder: Path,
    *,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    reference: Callable[..., Any] | None,
) -> dict[str, Any]:
    """What an experiment's file says of the call; `called.py` and `called.pkl` are written into `folder`.

    Raises `Unpicklable`, and `ValueError` for a mesh or for specs that are none.
    """
    # Few who run experiments call functions. It has no types.
    cloudpickle: Any = importlib.import_module("cloudpickle")

    leaves, laid_out = _leaves(operands)
    axes = _axes(mesh, leaves)
    specs = laid_out if in_specs is None else tuple(in_specs)
    if len(specs) != len(operands):
        message = f"in_specs has {len(specs)} entries, and there are {len(operands)} operands; give one for each"
        raise ValueError(message + ", and None for one that lies whole on every device")
    try:
        pickled = cloudpickle.dumps((function, tuple(operands), specs, out_specs, reference))
    except Exception as error:  # whatever the user's objects raise
        message = f"{_name(function)} cannot be given to another process: {type(error).__name__}: {error}"
        raise Unpicklable(message) from error
    (folder / f"{MODULE}.pkl").write_bytes(pickled)
    write_text(folder / f"{MODULE}.py", _SOURCE.format(folders=[str(Path(each).resolve()) for each in sys.path]))
    own = _name(function)
    names = _names(function, len(operands), {own, "result", MODULE})
    arrays = {
        name: {"tree": f"{MODULE}.operands[{i}]", "specs": f"{MODULE}.in_specs[{i}]"}
        for i, name in enumerate(names)
        if any(_is_array(leaf) for leaf in leaves[i])
    }
    file = str((folder / f"{MODULE}.py").resolve())
    return {
        "mesh": {"axes": list(axes), "shape": list(axes.values())},
        "imports": {MODULE: file, own: f"{file}:function"},
        "references": {} if reference is None else {own: f"{file}:reference"},
        "arrays": arrays,
        "graph": {"result": f"{own}({', '.join(arrays)})"},
        "outputs": {"result": f"{MODULE}.out_specs"},
        # What runs is what the caller would run.
        "precision": "default",
    }


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _array(leaf: Any) -> Any:
    return leaf if _is_array(leaf) else None


def _leaves(operands: Sequence[Any]) -> tuple[list[list[Any]], tuple[Any, ...]]:
    """The leaves of each operand, and how they lie where they are arrays of a mesh."""
    # Who has a pytree has imported JAX; without it there are only arrays of NumPy's.
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return [[operand] for operand in operands], (None,) * len(operands)
    flat = [jax.tree.leaves(operand) for operand in operands]

    def spec(leaf: Any) -> Any:
        return getattr(getattr(leaf, "sharding", None), "spec", None) or jax.sharding.PartitionSpec()

    return flat, jax.tree.map(spec, jax.tree.map(_array, tuple(operands)))


def _axes(mesh: Any, leaves: Sequence[Sequence[Any]]) -> dict[str, int]:
    """The axes of a mesh with their sizes: of a mapping, of a `Mesh` or an `AbstractMesh`, or of the operands."""
    if mesh is None:
        shardings = (getattr(leaf, "sharding", None) for each in leaves for leaf in each)
        mesh = next((own for each in shardings if (own := getattr(each, "mesh", None)) is not None), None)
    if mesh is None:
        raise ValueError('no operand lies on a mesh, and none is given; give one: mesh={"data": 2, "model": 2}')
    sizes: object = cast("object", mesh) if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not is_mapping(sizes):
        raise ValueError(f'{mesh!r} is no mesh; give names with sizes, such as {{"data": 2, "model": 2}}, or a Mesh')
    return {str(name): int(size) for name, size in sizes.items()}


def _name(function: Callable[..., Any]) -> str:
    """What the function is called; what means something else already gets another ending."""
    name = getattr(function, "__name__", type(function).__name__)
    name = name if IDENTIFIER.match(name) else "function"
    return f"{name}_" if name in (*OPERATIONS, *CONSTANTS, "result", MODULE) else name


def _names(function: Callable[..., Any], count: int, taken: set[str]) -> list[str]:
    """The names of the operands: those of the function's parameters, where they are known."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for i in range(count):
        known = i < len(parameters) and parameters[i].kind is not inspect.Parameter.VAR_POSITIONAL
        name = parameters[i].name.strip("_") if known else f"operand{i}"
        while not name or name in taken or name in OPERATIONS:
            name += "_"
        taken.add(name)
        names.append(name)
    return names
