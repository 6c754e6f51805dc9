"""The arrays' `init` in; their NumPy source and their values out.

The source is what a program prints into its `inputs()`; the values are made by running that very source, so that a
program and the oracles start from the same numbers.
"""

from __future__ import annotations

import ast
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from runner import dtypes
from runner.experiment.model import Array, Experiment
from runner.experiment.plain import literal_shape, located, size_text
from runner.faults import Fault, InvalidExperiment, invalid, nearest
from runner.language import bounds
from runner.language.signatures import signature
from runner.language.syntax import Expression, SyntaxFault
from runner.untyped import is_list

if TYPE_CHECKING:
    from runner.config.sources import Sources

Arrays = dict[str, np.ndarray]

_MAKERS: dict[str, tuple[inspect.Signature, str]] = {
    name: (signature(arguments), source)
    for name, arguments, source in (
        ("arange", "start, stop=None, step=None", "np.arange"),
        ("linspace", "start, stop, num=None", "np.linspace"),
        ("zeros", "", "np.zeros"),
        ("ones", "", "np.ones"),
        ("full", "fill_value", "np.full"),
        ("eye", "", "np.eye"),
        ("normal", "loc=0, scale=1", "rng.normal"),
        ("uniform", "low=0, high=1", "rng.uniform"),
        ("integers", "low, high=None", "rng.integers"),
        ("load", "file", "np.load"),
    )
}
"""The functions of `init`: their arguments and their NumPy names. Those of `rng` draw in the order of the arrays."""


@dataclass(frozen=True)
class Source:
    """NumPy's source of one array, given `np`, `ml_dtypes` and `rng`.

    - `values`: an expression; `shaped`, `typed`: what gives the values the array's shape and dtype, where they need it.
    - `draws`: whether it draws from `rng`.
    """

    values: str
    shaped: str = ""
    typed: str = ""
    draws: bool = False

    def __str__(self) -> str:
        return f"{self.values}{self.shaped}{self.typed}"


def source(array: Array, sizes: dict[str, int], folder: Path) -> Source:
    """What makes `array`; `folder` is where `load('file.npy')` looks.

    Raises `InvalidExperiment` for what no `init` can have.
    """
    key = ("arrays", array.name, "init")
    dtype = dtypes.dtype(array.dtype).source
    if not isinstance(array.init, Expression):
        shape = literal_shape(array.init, key)
        if not shape:
            return Source(f"np.full({array.shape}, {_literal(array.init)}, dtype={dtype})")
        if shape != array.shape:
            raise invalid(key, f"the values have shape {list(shape)}, but '{array.name}' has shape {list(array.shape)}")
        return Source(f"np.array({_literal(array.init)}, dtype={dtype})")
    try:
        bounds.check(array.init, sizes)
        tree = _emit(array.init, array.init.tree, array, sizes, folder)
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, array.init.text, fault)) from None
    text, typed = ast.unparse(tree), f".astype({dtype})"
    if not any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        return Source(f"np.full({array.shape}, {text})", "", typed)
    whole = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute)
    shaped = isinstance(array.init.tree, ast.Call) and _shaped(array.init.tree)
    return Source(
        text if whole else f"({text})",
        "" if shaped else f".reshape({array.shape})",
        typed,
        draws=any(isinstance(node, ast.Name) and node.id == "rng" for node in ast.walk(tree)),
    )


def _literal(value: Any) -> str:
    """A number or nested list of numbers as NumPy source."""
    if is_list(value):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "np.nan" if math.isnan(value) else "np.inf" if value > 0 else "-np.inf"
    return repr(value)


def make(experiment: Experiment, folder: Path) -> Arrays:
    """The values of every array, in the order in which they stand.

    Raises `InvalidExperiment` for a size that does not fit, a file that is missing, and whatever NumPy refuses.
    """
    rng = np.random.default_rng(experiment.seed)
    made: Arrays = {}
    for array in experiment.arrays:
        made_by = source(array, dict(experiment.dims), folder)
        made[array.name] = _run(made_by, array, {"np": np, "ml_dtypes": ml_dtypes, "rng": rng})
    return made


def loading(experiment: Experiment) -> tuple[str, ...] | None:
    """The key of the first array that is read from a file; None where none is."""
    for array in experiment.arrays:
        if isinstance(array.init, Expression) and any(map(_loads, ast.walk(array.init.tree))):
            return ("arrays", array.name, "init")
    return None


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load"


def folder(experiment: Experiment, sources: Callable[[], Sources]) -> Path:
    """Where `load` looks; `sources` is asked only where something is loaded.

    Raises `InvalidExperiment` for an `init` that no array can have, wherever that is.
    """
    loads = loading(experiment)
    found = sources().folder(loads) if loads else Path.cwd()
    check(experiment, found)
    return found


def check(experiment: Experiment, folder: Path) -> None:
    """Raise `InvalidExperiment` for what no `init` can have; nothing is made."""
    for array in experiment.arrays:
        source(array, dict(experiment.dims), folder)


_REFUSALS = (ValueError, TypeError, ArithmeticError, OSError, EOFError)
"""How NumPy refuses a value; the last is a file without an array in it."""


def _run(made_by: Source, array: Array, namespace: dict[str, Any]) -> np.ndarray:
    key = ("arrays", array.name, "init")
    shown = array.init.text if isinstance(array.init, Expression) else None

    def fault(message: str) -> InvalidExperiment:
        return InvalidExperiment(Fault(key, message, shown, 0, len(shown or "")))

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            # The text is ours: `source` builds it from a checked tree, node by node.
            value = eval(str(made_by), {"__builtins__": {}, **namespace})
    except FileNotFoundError as error:
        raise fault(f"there is no file '{error.filename}'") from None
    except np.exceptions.ComplexWarning:
        raise fault(f"it makes complex values, which {array.dtype} cannot hold") from None
    except MemoryError:
        raise fault(f"{size_text(array.shape)} values of {array.dtype} do not fit into memory") from None
    except _REFUSALS as error:
        size = _natural_size(made_by, namespace)
        if size is not None and size != int(np.prod(array.shape)):
            message = (
                f"it makes {size} values, but '{array.name}' has shape {list(array.shape)}: {size_text(array.shape)}"
            )
            raise fault(message) from None
        raise fault(f"NumPy refuses it: {error}") from None
    return value


def _natural_size(made_by: Source, namespace: dict[str, Any]) -> int | None:
    """How many values the expression makes before it is reshaped, if it makes any."""
    if not made_by.shaped:
        return None
    try:
        return int(np.size(eval(made_by.values, {"__builtins__": {}, **namespace})))
    except (*_REFUSALS, MemoryError):
        return None


def _shaped(call: ast.Call) -> bool:
    """Whether a maker takes the array's own shape, so that its result needs no reshape."""
    return isinstance(call.func, ast.Name) and call.func.id not in ("arange", "linspace", "load")


def _emit(expression: Expression, node: ast.expr, array: Array, sizes: dict[str, int], folder: Path) -> ast.expr:
    def walk(inner: ast.expr) -> ast.expr:
        return _emit(expression, inner, array, sizes, folder)

    match node:
        case ast.Constant(value=int() | float() | complex()):
            return node
        case ast.Name(id=name):
            if name in sizes:
                return ast.Constant(sizes[name])
            if name in _MAKERS:
                return walk(ast.copy_location(ast.Call(node, [], []), node))
            hint = nearest(name, [*sizes, *_MAKERS]) or "; an init knows the dims and its own functions"
            raise expression.fault(f"no dim or function '{name}'{hint}", node)
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            emitted = ast.BinOp(walk(left), op, walk(right))
            if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) and _number(emitted.right) == 0:
                # NumPy makes 0, infinity or NaN of it, with a warning.
                raise expression.fault("NumPy refuses it: division by zero", node)
            return emitted
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            return ast.UnaryOp(op, walk(operand))
        case ast.Call(func=ast.Name(id=name) as function):
            return _emit_call(expression, node, name, function, array, walk, folder)
        case _:
            raise expression.fault("an init is made of numbers, dims, + - * / // % ** and its functions", node)


_MAGIC = b"\x93NUMPY"
"""How a .npy file begins."""


def _unloadable(file: Path) -> str | None:
    """Why a file is not one to load, where that can be told before NumPy tries: a pipe would never end."""
    try:
        if not file.exists():
            return None
        if not file.is_file():
            return "load takes a .npy file, and this is none: a folder, a pipe or a device"
        with open(file, "rb") as begin:
            return None if begin.read(len(_MAGIC)) == _MAGIC else "load takes a .npy file, and this is none"
    except OSError:
        # NumPy says which.
        return None


def _number(node: ast.expr) -> Any:
    """The number that a part which calls nothing is; None where it is none."""
    if any(isinstance(part, ast.Call | ast.Name | ast.Attribute) for part in ast.walk(node)):
        return None
    try:
        return eval(ast.unparse(node), {"__builtins__": {}})
    except _REFUSALS:
        return None


def _emit_call(
    expression: Expression, node: ast.Call, name: str, function: ast.Name, array: Array, walk: Any, folder: Path
) -> ast.expr:
    if name not in _MAKERS:
        hint = nearest(name, _MAKERS) or f"; there are {', '.join(_MAKERS)}"
        raise expression.fault(f"no function '{name}' in an init{hint}", function)
    takes, dotted = _MAKERS[name]
    try:
        bound = takes.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
    except TypeError as error:
        raise expression.fault(f"{name}(): {error}; it takes {takes}", node) from None
    call = ast.parse(f"{dotted}()", mode="eval").body
    assert isinstance(call, ast.Call)
    shape = ast.parse(repr(tuple(array.shape)), mode="eval").body
    if name == "load":
        path = node.args[0] if node.args else node.keywords[0].value
        if not (isinstance(path, ast.Constant) and isinstance(path.value, str)):
            raise expression.fault("load takes a file name in quotes", node)
        if "\0" in path.value:
            raise expression.fault("no file has a NUL in its name", path)
        if path.value.endswith(".npz"):
            raise expression.fault("load takes one array, in a .npy file; a .npz file holds several", path)
        file = (folder / path.value).resolve()
        if (message := _unloadable(file)) is not None:
            raise expression.fault(message, path)
        call.args = [ast.Constant(str(file))]
        return call
    arguments = {key: walk(value) for key, value in bound.arguments.items()}
    if name in ("normal", "uniform", "integers"):
        bound.apply_defaults()
        order = [arguments.get(key, ast.Constant(value)) for key, value in bound.arguments.items()]
        call.args = [*order, shape]
    elif name in ("zeros", "ones"):
        call.args = [shape]
    elif name == "full":
        call.args = [shape, *arguments.values()]
    elif name == "eye":
        if len(array.shape) != 2:
            raise expression.fault(f"eye makes a matrix, but '{array.name}' has rank {len(array.shape)}", node)
        call.args = [ast.Constant(size) for size in array.shape]
    elif name == "linspace" and "num" not in arguments:
        call.args = [*arguments.values(), ast.Constant(math.prod(array.shape))]
    elif name == "linspace" and (count := _number(arguments["num"]) or 0) > math.prod(array.shape):
        # Nothing that is done with them makes fewer: they need not be made.
        raise expression.fault(f"it makes {count} values, but '{array.name}' has {size_text(array.shape)}", node)
    else:
        call.args = [arguments[key] for key in bound.arguments]
        if name == "arange" and "stop" not in bound.arguments and "step" in bound.arguments:
            raise expression.fault("arange with a step needs start and stop", node)
    return call
