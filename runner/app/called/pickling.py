"""Pickles the objects of a call for the worker process.

What a module exports by its name goes by that name, and the worker imports it; only what is of `__main__`, a notebook,
`exec` or another function goes by value. Of such a function the globals that JAX or another library keeps in its own
modules go by their names. Devices, meshes and sharded arrays go as what they are made of, arrays apart, once each.
"""

from __future__ import annotations

import functools
import importlib
import io
import linecache
import os
import sys
from collections.abc import Container, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from runner.compiled.evidence.source_lines import cell_name
from runner.link import jax_internals

_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type, FunctionType, ModuleType)
"""The kinds of a library's globals that pickle as they are."""


class _OfObjects:
    """What is known of objects that may have no hash; each is kept, so that no other gets its address."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def put(self, value: Any, known: Any) -> None:
        self._known[id(value)] = value, known

    def of(self, value: Any) -> Any:
        """What is known of an object; None if nothing is."""
        return self._known.get(id(value), (None, None))[1]


_NO_FILE = "<dynamic-code>"
"""The file of all code in the pickles of some versions of cloudpickle."""

_CACHED: Any = type(functools.cache(len))
"""The class of functions with a cache."""


def pickled(*values: Any) -> tuple[bytes, list[Any], dict[str, list[str]]]:
    """Return the pickles of several values, for one unpickler, and the arrays that they refer to, in NumPy.

    Also the lines of the cells of a notebook whose functions are among the values, by the cells' names.
    """
    # Imported late, since few runs need it; it has no type stubs.
    cloudpickle: Any = importlib.import_module("cloudpickle")
    jax: Any = sys.modules.get("jax")
    np: Any = sys.modules.get("numpy")
    arrays: list[Any] = []
    cells: dict[str, list[str]] = {}
    numbers, of_libraries, names = _OfObjects(), _OfObjects(), _OfObjects()

    def number(array: Any) -> int:
        known = numbers.of(array)
        if known is None:
            known = len(arrays)
            numbers.put(array, known)
            arrays.append(np.asarray(array))
        return known

    def of_array(array: Any) -> tuple[Any, ...] | None:
        if type(array) is np.ndarray:
            return None if array.dtype.hasobject else ("numpy", number(array))
        if not isinstance(array, jax.Array) or jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            return None
        if not getattr(array, "is_fully_addressable", False):
            return None
        mesh = getattr(array.sharding, "mesh", None)
        spread = mesh is not None and mesh.size > 1
        return "array", number(array), array.aval.weak_type, array.sharding if spread else None, names.of(array)

    class Pickler(cloudpickle.CloudPickler):
        def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
            if (exported := of_libraries.of(obj)) is not None:
                return "global", *exported
            if np is not None and type(obj) is np.ndarray:
                return of_array(obj)
            if jax is None:
                return None
            if isinstance(obj, jax.Array):
                return of_array(obj)
            if isinstance(obj, jax.Device):
                return "device", obj.id
            if isinstance(obj, jax.sharding.Mesh) and obj.axis_names:
                return "mesh", obj.devices, obj.axis_names, obj.axis_types
            if isinstance(obj, jax.sharding.AbstractMesh) and obj.axis_names:
                return "abstract", obj.axis_sizes, obj.axis_names, obj.axis_types, obj.abstract_device
            return None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CodeType):
                make, parts = self.dispatch_table[CodeType](obj)
                file = cell_name(obj.co_filename)
                if not os.path.exists(obj.co_filename) and (lines := linecache.getlines(obj.co_filename)):
                    cells[file] = lines
                # cloudpickle 3.1.3 leaves out the file, by which messages name lines.
                return make, tuple(file if part in (_NO_FILE, obj.co_filename) else part for part in parts)
            if jax is not None and isinstance(obj, jax.custom_vjp):
                # Its class cannot make one without the function, which its attributes hold.
                return object.__new__, (type(obj),), vars(obj)
            if _is_wrapper(obj) and _exported(obj):
                return obj.__qualname__
            if type(obj) is _CACHED:
                size = obj.cache_parameters()
                return _CACHED, (obj.__wrapped__, size["maxsize"], size["typed"], vars(functools)["_CacheInfo"])
            if isinstance(obj, FunctionType) and not _exported(obj):
                for value, place in _of_library(obj):
                    of_libraries.put(value, place)
                for value, name in _captured(obj):
                    names.put(value, name)
            cloudpickles: Any = super()
            return cloudpickles.reducer_override(obj)

    with by_value():
        stream = io.BytesIO()
        # One pickler, so that what several values hold is one object for whoever reads them too.
        pickler = Pickler(stream)
        for value in values:
            pickler.dump(value)
    return stream.getvalue(), arrays, cells


class by_value:
    """A context in which modules that no other process can import are pickled by value."""

    def __enter__(self) -> None:
        cloudpickle: Any = importlib.import_module("cloudpickle")
        known = cloudpickle.list_registry_pickle_by_value()
        self._modules = [module for module in list(sys.modules.values()) if _made_here(module)]
        self._modules = [module for module in self._modules if module.__name__ not in known]
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)

    def __exit__(self, *_: object) -> None:
        cloudpickle: Any = importlib.import_module("cloudpickle")
        for module in self._modules:
            cloudpickle.unregister_pickle_by_value(module)


def _made_here(module: Any) -> bool:
    """Whether a module was made by this process, and not imported from anywhere; a library's extension makes some."""
    if type(module) is not ModuleType or module.__name__ in ("__main__", "__mp_main__", "builtins"):
        return False
    root = sys.modules.get(module.__name__.partition(".")[0], module)
    return all(each.__spec__ is None and getattr(each, "__file__", None) is None for each in (module, root))


def _is_wrapper(value: Any) -> bool:
    """Whether an object is called as a function is, as `jax.nn.silu` is: its class would pickle what it wraps."""
    return callable(value) and not isinstance(value, _PLAIN)


def _exported(value: Any) -> bool:
    """Whether a module has an object under its name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _made_here(module):
        return False
    attribute: Any = module
    for part in getattr(value, "__qualname__", "").split("."):
        attribute = getattr(attribute, part, None)
    return attribute is value


def _of_library(function: FunctionType) -> Iterator[tuple[Any, tuple[str, str]]]:
    """The globals that a function of a library reads and that pickle by their names alone."""
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    if module is None or module.__name__ == "__main__" or _made_here(module):
        return
    for name in names_of(function.__code__):
        value = function.__globals__.get(name)
        if value is not None and not isinstance(value, _PLAIN) and vars(module).get(name) is value:
            yield value, (module.__name__, name)


def _captured(function: FunctionType) -> Iterator[tuple[Any, str]]:
    """The objects that a function reads from around it, with the names that it has for them."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():
            yield cell.cell_contents, name
    for name in names_of(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name], name


def names_of(code: CodeType) -> Iterator[str]:
    """The names that a function and those inside of it read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def nodes() -> list[tuple[type, Any, Any]]:
    """Return the registered pytree classes that are pickled by value, with their flatten and unflatten functions."""
    known: Container[str] = importlib.import_module("cloudpickle").list_registry_pickle_by_value()
    return [
        (kind, how.to_iter, how.from_iter)
        for kind, how in jax_internals.pytree_nodes().items()
        if _travels(kind, known)
    ]


def _travels(kind: type, known: Container[str]) -> bool:
    """Whether a class is pickled by value: one of a module that is, or that no module has under its name."""
    if kind.__module__ in known:
        return True
    return not _exported(kind) and kind is not type(None)
