"""Makes the arrays' values, and their NumPy source, of their `init`.

A program prints the source into its `inputs()`. The values are made by running that very source, so that a program and
the oracles start from the same numbers. NumPy is imported where values are made: to check an `init` needs none.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.base import dtypes
from runner.base.faults import Fault, InvalidExperiment, invalid, nearest
from runner.base.lazy import dataclass
from runner.base.untyped import is_list
from runner.experiment.model import Array, Experiment
from runner.experiment.plain import located, rectangular, size_text
from runner.graph.language import static
from runner.graph.language.check import callee
from runner.graph.language.lines import value_of
from runner.graph.language.operations.row import signature
from runner.graph.language.operators import BY_NAME, COMPARISONS
from runner.graph.language.printing import text
from runner.graph.language.syntax import Expression, SyntaxFault
from runner.graph.model import literal
from runner.graph.term import Apply, Const, Group, Term, bare, calls, children, mapped, operates, within

if TYPE_CHECKING:
    import numpy as np

    from runner.experiment.config.sources import Sources

Arrays: TypeAlias = "dict[str, np.ndarray]"

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

_SOURCES = frozenset(source for _, source in _MAKERS.values())
"""The modules and functions that a source uses."""

_SHAPED = frozenset(_MAKERS) - {"arange", "linspace", "load"}
"""The functions that take the array's shape, so that their results need no reshape."""

_ARITHMETIC = BY_NAME.keys() - COMPARISONS - {"matmul", "invert"}
"""The operators of `init`."""


@dataclass(frozen=True)
class ArraySource:
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


def source(array: Array, sizes: dict[str, int], folder: Path) -> ArraySource:
    """The source of `array`; `folder` is where `load('file.npy')` looks.

    Raises `InvalidExperiment` for an invalid `init`.
    """
    key = ("arrays", array.name, "init")
    dtype = dtypes.dtype(array.dtype).source
    if not isinstance(array.init, Expression):
        shape = rectangular(array.init, key)
        if not shape:
            return ArraySource(f"np.full({array.shape}, {_literal(array.init)}, dtype={dtype})")
        if shape != array.shape:
            raise invalid(key, f"the values have shape {list(shape)}, but '{array.name}' has shape {list(array.shape)}")
        return ArraySource(f"np.array({_literal(array.init)}, dtype={dtype})")
    try:
        static.check(array.init, sizes)
        term = _emit(array.init, array.init.term, array, sizes, folder)
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, array.init.text, fault)) from None
    typed = f".astype({dtype})"
    made = [part.operation for part in within(term) if calls(part, _SOURCES)]
    if not made:
        return ArraySource(f"np.full({array.shape}, {text(term)})", "", typed)
    return ArraySource(
        text(term) if calls(term, _SOURCES) else f"({text(term)})",
        "" if calls(array.init.term, _SHAPED) else f".reshape({array.shape})",
        typed,
        draws=any(operation.startswith("rng.") for operation in made),
    )


def _literal(value: Any) -> str:
    """A number or nested list of numbers as NumPy source."""
    if is_list(value):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "np.nan" if math.isnan(value) else "np.inf" if value > 0 else "-np.inf"
    return repr(value)


def make(experiment: Experiment, folder: Path) -> Arrays:
    """The values of every array, in their order.

    Raises `InvalidExperiment` for a size that does not fit, a missing file, and NumPy's errors.
    """
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(experiment.seed)
    made: Arrays = {}
    for array in experiment.arrays:
        made_by = source(array, dict(experiment.dims), folder)
        made[array.name] = _run(made_by, array, {"np": np, "ml_dtypes": ml_dtypes, "rng": rng})
    return made


def loading(experiment: Experiment) -> tuple[str, ...] | None:
    """The key of the first array that is read from a file; None if there is none."""
    for array in experiment.arrays:
        if isinstance(array.init, Expression) and any(calls(part, ("load",)) for part in within(array.init.term)):
            return ("arrays", array.name, "init")
    return None


def folder(experiment: Experiment, sources: Sources) -> Path:
    """The folder in which `load` looks; `sources` is read only if something is loaded.

    Raises `InvalidExperiment` for an invalid `init` anywhere.
    """
    loads = loading(experiment)
    folder_of_file = sources.folder(loads) if loads else Path.cwd()
    check(experiment, folder_of_file)
    return folder_of_file


def check(experiment: Experiment, folder: Path) -> None:
    """Raise `InvalidExperiment` for an invalid `init`; no values are made."""
    for array in experiment.arrays:
        source(array, dict(experiment.dims), folder)


_REFUSALS = (ValueError, TypeError, ArithmeticError, OSError, EOFError)
"""NumPy's words for a refused value; the last is for a file without an array."""


def _run(made_by: ArraySource, array: Array, namespace: dict[str, Any]) -> np.ndarray:
    import numpy as np

    key = ("arrays", array.name, "init")
    shown = array.init.text if isinstance(array.init, Expression) else None

    def fault(message: str) -> InvalidExperiment:
        return InvalidExperiment(Fault(key, message, shown, 0, len(shown or "")))

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            # The text is safe: `source` builds it from a checked term.
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


def _natural_size(made_by: ArraySource, namespace: dict[str, Any]) -> int | None:
    """The number of values that the expression makes before a reshape; None if it makes none."""
    if not made_by.shaped:
        return None
    import numpy as np

    try:
        return int(np.size(eval(made_by.values, {"__builtins__": {}, **namespace})))
    except (*_REFUSALS, MemoryError):
        return None


def _emit(expression: Expression, term: Term, array: Array, sizes: dict[str, int], folder: Path) -> Term:
    """The NumPy expression for a term of an array's `init`."""

    def walk(inner: Term) -> Term:
        return _emit(expression, inner, array, sizes, folder)

    if calls(term):
        return _emit_call(expression, term, array, walk, folder)
    if operates(term, _ARITHMETIC):
        emitted = mapped(term, walk)
        if term.operation in ("divide", "floor_divide", "remainder") and _number(children(emitted)[1]) == 0:
            # NumPy makes it 0, infinity or NaN, with a warning.
            raise expression.fault("NumPy refuses it: division by zero", term)
        return emitted
    if isinstance(literal(term), int | float | complex):
        return term
    name = bare(term) or ""
    if name in sizes:
        return Const(sizes[name])
    if name in _MAKERS:
        return walk(Apply(name, (), at=term.at))
    module, _, function = name.rpartition(".")
    if module and function in _MAKERS:
        raise expression.fault(f"the functions of an init have no module: write {function}", term)
    if module or not name:
        raise expression.fault("an init is made of numbers, dims, + - * / // % ** and its functions", term)
    drawn = "; an init draws with the experiment's seed, so it has no key: normal(0, 0.02)" if name in _KEYS else ""
    hint = drawn or nearest(name, [*sizes, *_MAKERS]) or f"; an init is made of dims and {', '.join(_MAKERS)}"
    raise expression.fault(f"no dim or function '{name}'{hint}", term)


_KEYS = ("key", "keys", "subkey", "rng", "rng_key", "PRNGKey")
"""What people call a key of `jax.random`."""


_MAGIC = b"\x93NUMPY"
"""The first bytes of a .npy file."""


def _unloadable(file: Path) -> str | None:
    """Why a file cannot be loaded, if that shows before NumPy tries: a pipe would never end."""
    try:
        if not file.exists():
            return None
        if not file.is_file():
            return "load takes a .npy file, not a folder, a pipe or a device"
        with open(file, "rb") as begin:
            return None if begin.read(len(_MAGIC)) == _MAGIC else "load takes a .npy file, and this is not one"
    except OSError:
        # NumPy reports it.
        return None


def _number(term: Term) -> Any:
    """The number that a term without calls is; None for other terms."""
    try:
        return value_of(term)
    except _REFUSALS:
        return None


def _emit_call(expression: Expression, call: Apply, array: Array, walk: Callable[[Term], Term], folder: Path) -> Term:
    name = call.operation
    if name not in _MAKERS:
        hint = nearest(name, _MAKERS) or f"; there are {', '.join(_MAKERS)}"
        raise expression.fault(f"no function '{name}' in an init{hint}", callee(expression, call))
    takes, dotted = _MAKERS[name]
    try:
        bound = takes.bind(*call.operands, **dict(call.named))
    except TypeError as error:
        raise expression.fault(f"{name}(): {error}; it takes {takes}", call) from None

    def made(*operands: Term) -> Term:
        return Apply(dotted, operands)

    shape = Group(tuple(map(Const, array.shape)))
    if name == "load":
        (path,) = call.arguments
        written = literal(path)
        if not isinstance(written, str):
            raise expression.fault("load takes a file name in quotes", call)
        if "\0" in written:
            raise expression.fault("no file has a NUL in its name", path)
        if written.endswith(".npz"):
            raise expression.fault("load takes one array, in a .npy file; a .npz file holds several", path)
        file = (folder / written).resolve()
        if (message := _unloadable(file)) is not None:
            raise expression.fault(message, path)
        return made(Const(str(file)))
    arguments = {key: walk(value) for key, value in bound.arguments.items()}
    if name in ("normal", "uniform", "integers"):
        bound.apply_defaults()
        return made(*(arguments.get(key, Const(value)) for key, value in bound.arguments.items()), shape)
    if name in ("zeros", "ones"):
        return made(shape)
    if name == "full":
        return made(shape, *arguments.values())
    if name == "eye":
        if len(array.shape) != 2:
            raise expression.fault(f"eye makes a matrix, but '{array.name}' has rank {len(array.shape)}", call)
        return made(*map(Const, array.shape))
    if name == "linspace" and "num" not in arguments:
        return made(*arguments.values(), Const(math.prod(array.shape)))
    if name == "linspace" and (count := _number(arguments["num"]) or 0) > math.prod(array.shape):
        # Later operations do not make them fewer, so they need not be made.
        raise expression.fault(f"it makes {count} values, but '{array.name}' has {size_text(array.shape)}", call)
    if name == "arange" and "stop" not in arguments and "step" in arguments:
        raise expression.fault("arange with a step needs start and stop", call)
    return made(*arguments.values())
