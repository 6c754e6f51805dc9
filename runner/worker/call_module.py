"""Calls the function that `runner.check` was given, and has its operands and the specs of its operands and results.

It reads `called.pkl` beside it. The file `called.py` of a run folder is this text with the values of the call, so it
uses JAX alone; nothing imports this module itself.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import io
import itertools
import linecache
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import jax

name: str = ""
"""The function's name."""
FOLDERS: list[str] = []
"""Where the caller's process looks for modules."""
FILES: dict[str, str] = {}
"""The files of the caller's modules for which this process would take another one, or none."""
AXES: dict[str, int] = {}
TYPES: tuple[str, ...] = ()
"""The mesh of the call has the axes AXES of these types."""
context: bool = False
"""Whether the call is made within jax.set_mesh."""
NAMES: tuple[str, ...] = ()
"""The operands."""
donated: list[str] = []
"""The operands whose memory the results may take."""
elsewhere: bool = False
"""Whether the devices are not here."""

_jax: Any = jax

sys.path += [folder for folder in FOLDERS if folder not in sys.path]


class _OfCaller:
    """Finds the modules of FILES."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, FILES[name]) if name in FILES else None


sys.meta_path.insert(0, _OfCaller)


gave: list[str] = []
"""What the latest call gave in the place of arrays, by the names of the types."""

changes: list[str] = []
"""The operands that the latest call changed: it gave its result and a mapping of their new values."""

captured: dict[str, str] = {}
"""The sharded arrays that functions read from around them, described, by their names there."""


class _Unpickler(pickle.Unpickler):
    """Makes arrays, devices and meshes anew; the meshes of the call with the types and the kind of device given."""

    types: Any = None
    device: Any = None
    meshes = 0
    """How many meshes it has made."""

    def persistent_load(self, key: Any) -> Any:
        kind, *parts = key
        return getattr(self, f"_{kind}")(*parts)

    def _global(self, module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    def _numpy(self, number: int) -> Any:
        return _arrays[number]

    def _array(self, number: int, weak: bool, sharding: Any, name: str | None) -> Any:
        array = _arrays[number]
        if name is not None and sharding is not None:
            captured[name] = f"{name} ({array.dtype}{list(array.shape)}, {sharding.spec})"
        if weak and not array.shape:
            return _jax.numpy.asarray(array.item())
        return _jax.numpy.asarray(array) if sharding is None or elsewhere else _jax.device_put(array, sharding)

    def _device(self, number: int) -> Any:
        # The devices of the caller's mesh are not those of a target, and may not be here.
        return None if elsewhere else _jax.devices()[number]

    def _mesh(self, devices: Any, names: Any, types: Any) -> Any:
        if elsewhere:
            return self._abstract(devices.shape, names, types, None)
        self.meshes += 1
        return _jax.sharding.Mesh(devices, names, axis_types=self._types(devices.shape, names, types))

    def _abstract(self, sizes: Any, names: Any, types: Any, device: Any) -> Any:
        self.meshes += 1
        mine = names == tuple(AXES) and sizes == tuple(AXES.values())
        device = self.device if mine and device is None else device
        return _jax.sharding.AbstractMesh(
            sizes, names, axis_types=self._types(sizes, names, types), abstract_device=device
        )

    def _types(self, sizes: Any, names: Any, types: Any) -> Any:
        mine = names == tuple(AXES) and sizes == tuple(AXES.values())
        return self.types if mine and self.types is not None else types

    def find_class(self, module: str, name: str, /) -> Any:
        value = super().find_class(module, name)
        return _unregistered(value) if name == "_make_skeleton_class" else value


def _unregistered(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make a class without registering it: its metaclass would, before it has the attributes that are its leaves."""

    def made(*arguments: Any) -> Any:
        register = _jax.tree_util.register_pytree_with_keys
        _jax.tree_util.register_pytree_with_keys = _nothing
        try:
            return make(*arguments)
        finally:
            _jax.tree_util.register_pytree_with_keys = register

    return made


def _nothing(*_: Any, **named: Any) -> None:
    """Register no class."""


def _register(kind: type, flatten: Callable[[Any], Any], unflatten: Callable[..., Any]) -> None:
    """Register a class as a pytree whose leaves are named by its attributes."""

    def flatten_with_keys(tree: Any) -> Any:
        children, rest = flatten(tree)
        attributes = getattr(tree, "__dict__", {})
        names = [next((name for name in attributes if attributes[name] is child), None) for child in children]
        keys = [
            _jax.tree_util.SequenceKey(at) if name is None else _jax.tree_util.GetAttrKey(name)
            for at, name in enumerate(names)
        ]
        return list(zip(keys, children, strict=True)), rest

    _jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)


_arrays: list[Any] = []
"""The arrays of the pickles, by their numbers there."""


def _begin() -> bytes:
    """Read the caller's settings of JAX, the lines of its cells and its arrays; return the pickles of its objects."""
    with Path(__file__).with_name("called.pkl").open("rb") as file:
        settings = pickle.load(file)
        # Another version of JAX may not have all settings of the process that called runner.check.
        for name in settings.keys() & _jax.config.values.keys():
            if _jax.config.values[name] != settings[name]:
                _jax.config.update(name, settings[name])
        # Without their lines a notebook's cells, which are no files, would have nothing to show.
        for cell, lines in pickle.load(file).items():
            linecache.cache[cell] = len("".join(lines)), None, lines, cell
        _arrays[:] = pickle.load(file)
        return file.read()


_objects = _begin()


@functools.cache
def _loaded(types: Any, device: Any) -> tuple[Any, Any, bool]:
    """The specs in and out, the call, with meshes of these axis types, and whether the call holds any mesh.

    The call is the function, its operands, those by keyword, and its reference.
    """
    unpickler = _Unpickler(io.BytesIO(_objects))
    unpickler.types, unpickler.device = types, device
    with _jax.ensure_compile_time_eval():
        # What a script makes a pytree is none where the script has not run.
        for kind, *how in unpickler.load():
            if not _jax.tree_util.is_tree_node(kind):
                _register(kind, *how)
        specs = unpickler.load()
        meshes = unpickler.meshes
        call = unpickler.load()
    return specs, call, unpickler.meshes > meshes


(in_specs, out_specs), _, _holds_meshes = _loaded(None, None)


def _variant(arrays: Any) -> tuple[Any, Any]:
    """The axis types and the kind of device for the meshes that the function holds.

    A mesh is as the caller has it; where a program has other types than the caller, it has those of the program.
    """
    meshes = (_jax.typeof(array).sharding.mesh for array in _jax.tree.leaves(arrays))
    mesh = next((own for own in meshes if own.axis_names), None)
    around = _jax.sharding.get_abstract_mesh()
    if not _holds_meshes:
        return None, None
    of_call = [each for each in (mesh, around) if each is not None and each.axis_names == tuple(AXES)]
    types = of_call[0].axis_types if of_call else None
    own = tuple(getattr(_jax.sharding.AxisType, kind) for kind in TYPES)
    manual = _jax.sharding.AxisType.Manual
    # A device's code is traced within a shard_map.
    types = None if types is None or manual in types or types == own else types
    return types, around.abstract_device if around.axis_names == tuple(AXES) else None


def _is_array(leaf: Any) -> bool:
    kind = getattr(getattr(leaf, "dtype", None), "kind", "V")
    return hasattr(leaf, "shape") and kind not in "OSUMm"


def _is_passed(leaf: Any) -> bool:
    """Whether an operand's leaf is an array that a program passes: one without elements stays as it is."""
    return _is_array(leaf) and 0 not in leaf.shape


def _is_key(leaf: Any) -> bool:
    return _jax.dtypes.issubdtype(leaf.dtype, _jax.dtypes.prng_key)


def _array(leaf: Any) -> Any:
    """The array of a leaf: for a PRNG key its key data; None if the leaf is not an array."""
    if not _is_array(leaf):
        return None
    return _jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _whole(tree: Any, arrays: Any) -> Any:
    """Return the tree with its arrays replaced by these."""
    given = iter(_jax.tree.leaves(arrays))

    def leaf(own: Any) -> Any:
        if not _is_passed(own):
            return own
        array = next(given)
        return _jax.random.wrap_key_data(array, impl=_jax.random.key_impl(own)) if _is_key(own) else array

    return _jax.tree.map(leaf, tree)


_CACHED: Any = type(functools.cache(len))
_INSTALLED = ("site-packages", "dist-packages", os.path.dirname(os.__file__))


def _of_trace(value: Any, depth: int = 4) -> bool:
    """Whether an object is, or holds, a value of a trace."""
    if isinstance(value, _jax.core.Tracer):
        return True
    return depth > 0 and any(_of_trace(part, depth - 1) for part in [*itertools.islice(_parts(value), 1000)])


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return _values(value)
    if isinstance(value, list | tuple):
        return cast("Any", value)
    if type(value).__name__ == "_lru_list_elem":
        return gc.get_referents(value)
    return () if isinstance(value, type) else getattr(value, "__dict__", {}).values()


def _values(mapping: Any) -> list[Any]:
    """The values of a mapping, which another thread may change."""
    return list(mapping.values())


def _forget(*functions: Any) -> None:
    """Empty the caches by functools that hold values of a trace, which has ended, in the caller's own modules.

    JAX calls a function once for each program, and the caller's process once for all calls.
    """
    spaces = [vars(module) for module in _modules_of_caller()]
    spaces += [getattr(getattr(function, "__wrapped__", function), "__globals__", {}) for function in functions]
    classes = [vars(value) for space in spaces for value in _values(space) if isinstance(value, type)]
    for space in [*spaces, *classes]:
        for value in _values(space):
            if isinstance(value, _CACHED) and any(map(_of_trace, gc.get_referents(value))):
                value.cache_clear()


def _modules_of_caller() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        file = None if name.startswith("runner.") else getattr(module, "__file__", None)
        if file and not any(folder in file for folder in _INSTALLED):
            yield module


def _called(own: bool, arrays: Any) -> Any:
    """What a function gives, as `jit` has it, of these arrays in the place of its operands' own.

    A function that changes operands gives its result and their new values, by their names.
    own: whether it is the function itself, or its reference.
    """
    _, (function, reference, operands_, keywords), _ = _loaded(*_variant(arrays))
    given = iter(arrays)
    whole = [
        _whole(operand, next(given)) if _jax.tree.leaves(part) else operand
        for operand, part in zip(operands_, operands, strict=True)
    ]
    passed = [_jax.tree.leaves(operand) for operand in whole]
    _forget(function, reference)
    count = len(whole) - len(keywords)
    named = dict(zip(keywords, whole[count:], strict=True))
    result = (function if own else reference)(*whole[:count], **named)
    after = {
        operand: tree for operand, tree, leaves in zip(NAMES, whole, passed, strict=True) if _is_changed(tree, leaves)
    }
    changes[:] = after
    if after:
        result = result, after
    gave[:] = dict.fromkeys(type(leaf).__name__ for leaf in _jax.tree.leaves(result, is_leaf=_is_none))
    return _jax.tree.map(_array_or_number, result)


def _is_changed(tree: Any, leaves: list[Any]) -> bool:
    """Whether a tree has other leaves than these, as a module has whose method has assigned to its variables."""
    now = _jax.tree.leaves(tree)
    return len(now) != len(leaves) or any(leaf is not before for leaf, before in zip(now, leaves, strict=True))


def _array_or_number(leaf: Any) -> Any:
    return _array(_jax.numpy.asarray(leaf) if isinstance(leaf, bool | int | float | complex) else leaf)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _passed(leaf: Any) -> Any:
    return _array(leaf) if _is_passed(leaf) else None


operands: list[Any] = [_jax.tree.map(_passed, operand) for operand in _loaded(None, None)[1][2]]


def function(*arrays: Any) -> Any:
    """The caller's function of these arrays."""
    return _called(True, arrays)


def reference(*arrays: Any) -> Any:
    """Its reference."""
    return _called(False, arrays)
