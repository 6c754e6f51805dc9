"""The arrays' `init` in; their NumPy source and their values out.

The source is what a program prints into its `inputs()`; the values are made by running that very source, so that a
program and the oracles start from the same numbers.
"""

from __future__ import annotations

import ast
import inspect
import math
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from runner import dtypes
from runner.experiment.model import Array, Experiment
from runner.experiment.plain import literal_shape, located, size_text
from runner.faults import Fault, InvalidExperiment, invalid, nearest
from runner.language import bounds
from runner.language.counterparts import signature
from runner.language.syntax import Expression, SyntaxFault

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


def source(array: Array, sizes: dict[str, int], folder: Path) -> str:
    """One NumPy expression that makes `array`, given `np`, `ml_dtypes` and `rng`.

    `folder` is where `load('file.npy')` looks. Raises `InvalidExperiment` for what no `init` can have.
    """
    key = ("arrays", array.name, "init")
    dtype = dtypes.dtype(array.dtype).source
    if not isinstance(array.init, Expression):
        shape = literal_shape(array.init, key)
        if not shape:
            return f"np.full({array.shape}, {_literal(array.init)}, dtype={dtype})"
        if shape != array.shape:
            raise invalid(key, f"the values have shape {list(shape)}, but '{array.name}' has shape {list(array.shape)}")
        return f"np.array({_literal(array.init)}, dtype={dtype})"
    try:
        bounds.check(array.init, sizes)
        tree = _emit(array.init, array.init.tree, array, sizes, folder)
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, array.init.text, fault)) from None
    text = ast.unparse(tree)
    if not any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        return f"np.full({array.shape}, {text}).astype({dtype})"
    whole = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute)
    text = text if whole else f"({text})"
    if not (isinstance(array.init.tree, ast.Call) and _shaped(array.init.tree)):
        text = f"{text}.reshape({array.shape})"
    return f"{text}.astype({dtype})"


def _literal(value: Any) -> str:
    """A number or nested list of numbers as NumPy source."""
    if isinstance(value, list):
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
        text = source(array, dict(experiment.dims), folder)
        made[array.name] = _run(text, array, {"np": np, "ml_dtypes": ml_dtypes, "rng": rng})
    return made


def loading(experiment: Experiment) -> tuple[str, ...] | None:
    """The key of the first array that is read from a file; None where none is."""
    for array in experiment.arrays:
        if "load(" in getattr(array.init, "text", ""):
            return ("arrays", array.name, "init")
    return None


def check(experiment: Experiment, folder: Path) -> None:
    """Raise `InvalidExperiment` for what no `init` can have; nothing is made."""
    for array in experiment.arrays:
        source(array, dict(experiment.dims), folder)


_REFUSALS = (ValueError, TypeError, ArithmeticError, OSError, EOFError)
"""How NumPy refuses a value; the last is a file without an array in it."""


def _run(text: str, array: Array, namespace: dict[str, Any]) -> np.ndarray:
    key = ("arrays", array.name, "init")
    shown = array.init.text if isinstance(array.init, Expression) else None

    def fault(message: str) -> InvalidExperiment:
        return InvalidExperiment(Fault(key, message, shown, 0, len(shown or "")))

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            # The text is ours: `source` builds it from a checked tree, node by node.
            value = eval(text, {"__builtins__": {}, **namespace})
    except FileNotFoundError as error:
        raise fault(f"there is no file '{error.filename}'") from None
    except np.exceptions.ComplexWarning:
        raise fault(f"it makes complex values, which {array.dtype} cannot hold") from None
    except MemoryError:
        raise fault(f"{size_text(array.shape)} values of {array.dtype} do not fit into memory") from None
    except _REFUSALS as error:
        size = _natural_size(array, text, namespace)
        if size is not None and size != int(np.prod(array.shape)):
            message = (
                f"it makes {size} values, but '{array.name}' has shape {list(array.shape)}: {size_text(array.shape)}"
            )
            raise fault(message) from None
        raise fault(f"NumPy refuses it: {error}") from None
    return value


def _natural_size(array: Array, text: str, namespace: dict[str, Any]) -> int | None:
    """How many values the expression makes before it is reshaped, if it makes any."""
    head, found, _ = text.rpartition(".reshape(")
    if not found:
        return None
    try:
        return int(np.size(eval(head, {"__builtins__": {}, **namespace})))
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
            return ast.BinOp(walk(left), op, walk(right))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            return ast.UnaryOp(op, walk(operand))
        case ast.Call(func=ast.Name(id=name) as function):
            return _emit_call(expression, node, name, function, array, walk, folder)
        case _:
            raise expression.fault("an init is made of numbers, dims, + - * / // % ** and its functions", node)


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
        if path.value.endswith(".npz"):
            raise expression.fault("load takes one array, in a .npy file; a .npz file holds several", path)
        call.args = [ast.Constant(str((folder / path.value).resolve()))]
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
        count = int(np.prod(array.shape))
        call.args = [*arguments.values(), ast.Constant(count)]
    else:
        call.args = [arguments[key] for key in bound.arguments]
        if name == "arange" and "stop" not in bound.arguments and "step" in bound.arguments:
            raise expression.fault("arange with a step needs start and stop", node)
    return call
