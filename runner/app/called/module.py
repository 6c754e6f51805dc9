"""The source of `called.py`, the module in a run folder by which the worker and the programs have a call."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from runner.app.called import pickling
from runner.compiled.evidence.source_lines import is_library
from runner.experiment.imported import CALLED
from runner.reports.record.writing import write_text

MODULE = Path(CALLED).stem

_SOURCE = '''"""The arguments of runner.check: a function, its operands, and the specs of its operands and results.

name: the function's. The mesh of the call has the axes AXES of these TYPES; context: whether it is made within
jax.set_mesh; donated: the operands whose memory the results may take; elsewhere: whether the devices are not here.
"""

import functools
import gc
import importlib.util
import io
import itertools
import linecache
import os
import pickle
import sys
from pathlib import Path

import jax

ARGUMENTS_OF_THE_CALL

sys.path += [folder for folder in FOLDERS if folder not in sys.path]


class _OfCaller:
    """Finds the modules for which this process would take another file, or none."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, FILES[name]) if name in FILES else None


sys.meta_path.insert(0, _OfCaller)


gave = []
"""What the latest call gave in the place of arrays, by the names of the types."""

captured = {}
"""The sharded arrays that functions read from around them, described, by their names there."""


class _Unpickler(pickle.Unpickler):
    """Makes arrays, devices and meshes anew; the meshes of the call with the types and the kind of device given."""

    types = None
    device = None

    def persistent_load(self, key):
        kind, *parts = key
        return getattr(self, f"_{kind}")(*parts)

    def _global(self, module, name):
        return getattr(importlib.import_module(module), name)

    def _numpy(self, number):
        return _arrays[number]

    def _array(self, number, weak, sharding, name):
        array = _arrays[number]
        if name is not None and sharding is not None:
            captured[name] = f"{name} ({array.dtype}{list(array.shape)}, {sharding.spec})"
        if weak and not array.shape:
            return jax.numpy.asarray(array.item())
        return jax.numpy.asarray(array) if sharding is None or elsewhere else jax.device_put(array, sharding)

    def _device(self, number):
        # The devices of the caller's mesh are not those of a target, and may not be here.
        return None if elsewhere else jax.devices()[number]

    def _mesh(self, devices, names, types):
        if elsewhere:
            return self._abstract(devices.shape, names, types, None)
        return jax.sharding.Mesh(devices, names, axis_types=self._types(devices.shape, names, types))

    def _abstract(self, sizes, names, types, device):
        mine = names == tuple(AXES) and sizes == tuple(AXES.values())
        device = self.device if mine and device is None else device
        return jax.sharding.AbstractMesh(
            sizes, names, axis_types=self._types(sizes, names, types), abstract_device=device
        )

    def _types(self, sizes, names, types):
        mine = names == tuple(AXES) and sizes == tuple(AXES.values())
        return self.types if mine and self.types is not None else types

    def find_class(self, module, name):
        value = super().find_class(module, name)
        return _unregistered(value) if name == "_make_skeleton_class" else value


def _unregistered(make):
    """Make a class without registering it: its metaclass would, before it has the attributes that are its leaves."""

    def made(*arguments):
        register = jax.tree_util.register_pytree_with_keys
        jax.tree_util.register_pytree_with_keys = lambda *_, **named: None
        try:
            return make(*arguments)
        finally:
            jax.tree_util.register_pytree_with_keys = register

    return made


def _register(kind, flatten, unflatten):
    """Register a class as a pytree whose leaves are named by its attributes."""

    def flatten_with_keys(tree):
        children, rest = flatten(tree)
        attributes = getattr(tree, "__dict__", {})
        names = [next((name for name in attributes if attributes[name] is child), None) for child in children]
        keys = [
            jax.tree_util.SequenceKey(at) if name is None else jax.tree_util.GetAttrKey(name)
            for at, name in enumerate(names)
        ]
        return list(zip(keys, children)), rest

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)


def _begin():
    """Read the caller's settings of JAX and classes, the operands and their specs; return what calls them, pickled."""
    global _arrays
    with Path(__file__).with_name("called.pkl").open("rb") as file:
        settings = pickle.load(file)
        # Another version of JAX may not have all settings of the process that called runner.check.
        for name in settings.keys() & jax.config.values.keys():
            if jax.config.values[name] != settings[name]:
                jax.config.update(name, settings[name])
        # Without their lines a notebook's cells, which are no files, would have nothing to show.
        for cell, lines in pickle.load(file).items():
            linecache.cache[cell] = len("".join(lines)), None, lines, cell
        _arrays = pickle.load(file)
        # What a script makes a pytree is none where the script has not run.
        for kind, *how in _Unpickler(file).load():
            if not jax.tree_util.is_tree_node(kind):
                _register(kind, *how)
        specs = _Unpickler(file).load()
        return specs, file.read()


(in_specs, out_specs), _rest = _begin()
_HOLDS_MESHES = b"mesh" in _rest or b"abstract" in _rest


@functools.cache
def _loaded(types, device):
    """The function, its operands, those by keyword, and its reference, with meshes of these axis types."""
    unpickler = _Unpickler(io.BytesIO(_rest))
    unpickler.types, unpickler.device = types, device
    with jax.ensure_compile_time_eval():
        return unpickler.load()


def _variant(arrays):
    """The axis types and the kind of device for the meshes that the function holds.

    A mesh is as the caller has it; where a program has other types than the caller, it has those of the program.
    """
    mesh = next((own for array in jax.tree.leaves(arrays) if (own := jax.typeof(array).sharding.mesh).axis_names), None)
    context = jax.sharding.get_abstract_mesh()
    if not _HOLDS_MESHES:
        return None, None
    of_call = [each for each in (mesh, context) if each is not None and each.axis_names == tuple(AXES)]
    types = of_call[0].axis_types if of_call else None
    own = tuple(getattr(jax.sharding.AxisType, kind) for kind in TYPES)
    manual = jax.sharding.AxisType.Manual
    # A device's code is traced within a shard_map.
    types = None if types is None or manual in types or types == own else types
    return types, context.abstract_device if context.axis_names == tuple(AXES) else None


def _is_array(leaf):
    kind = getattr(getattr(leaf, "dtype", None), "kind", "V")
    return hasattr(leaf, "shape") and kind not in "OSUMm"


def _is_passed(leaf):
    """Whether an operand's leaf is an array that a program passes: one without elements stays as it is."""
    return _is_array(leaf) and 0 not in leaf.shape


def _is_key(leaf):
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _array(leaf):
    """The array of a leaf: for a PRNG key its key data; None if the leaf is not an array."""
    if not _is_array(leaf):
        return None
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _whole(tree, arrays):
    """Return the tree with its arrays replaced by these."""
    given = iter(jax.tree.leaves(arrays))

    def leaf(own):
        if not _is_passed(own):
            return own
        array = next(given)
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(own)) if _is_key(own) else array

    return jax.tree.map(leaf, tree)


_CACHED = type(functools.cache(len))
_INSTALLED = ("site-packages", "dist-packages", os.path.dirname(os.__file__))


def _of_trace(value, depth=4):
    """Whether an object is, or holds, a value of a trace."""
    if isinstance(value, jax.core.Tracer):
        return True
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif type(value).__name__ == "_lru_list_elem":
        parts = gc.get_referents(value)
    else:
        parts = () if isinstance(value, type) else getattr(value, "__dict__", {}).values()
    return depth > 0 and any(_of_trace(part, depth - 1) for part in [*itertools.islice(parts, 1000)])


def _forget(*functions):
    """Empty the caches by functools that hold values of a trace, which has ended, in the caller's own modules.

    JAX calls a function once for each program, and the caller's process once for all calls.
    """
    spaces = [
        vars(module)
        for name, module in list(sys.modules.items())
        if not name.startswith("runner.")
        and (file := getattr(module, "__file__", None))
        and not any(folder in file for folder in _INSTALLED)
    ]
    spaces += [getattr(getattr(function, "__wrapped__", function), "__globals__", {}) for function in functions]
    classes = [vars(value) for space in spaces for value in list(space.values()) if isinstance(value, type)]
    for space in [*spaces, *classes]:
        for value in list(space.values()):
            if isinstance(value, _CACHED) and any(map(_of_trace, gc.get_referents(value))):
                value.cache_clear()


def _called(own, arrays):
    """What a function gives, as `jit` has it, of these arrays in the place of its operands' own.

    own: whether it is the function itself, or its reference.
    """
    function, reference, operands_, keywords = _loaded(*_variant(arrays))
    given = iter(arrays)
    whole = [
        _whole(operand, next(given)) if jax.tree.leaves(part) else operand
        for operand, part in zip(operands_, operands, strict=True)
    ]
    _forget(function, reference)
    count = len(whole) - len(keywords)
    named = dict(zip(keywords, whole[count:]))
    result = (function if own else reference)(*whole[:count], **named)
    gave[:] = dict.fromkeys(type(leaf).__name__ for leaf in jax.tree.leaves(result, is_leaf=_is_none))
    return jax.tree.map(lambda x: _array(jax.numpy.asarray(x) if isinstance(x, _NUMBERS) else x), result)


def _is_none(leaf):
    return leaf is None


_NUMBERS = (bool, int, float, complex)
operands = [
    jax.tree.map(lambda leaf: _array(leaf) if _is_passed(leaf) else None, operand)
    for operand in _loaded(None, None)[2]
]


def function(*arrays):
    return _called(True, arrays)


def reference(*arrays):
    return _called(False, arrays)
'''


def files_of_caller(folders: Sequence[str]) -> dict[str, str]:
    """The files of the user's modules in this process for which a process with these folders would take others.

    Of several folders with a `helpers.py` this process has the one that was the first when it was imported.
    """
    return {
        name: file
        for name, module in list(sys.modules.items())
        if "." not in name and (file := _users_file(module)) is not None and _file(name, folders) != file
    }


def _users_file(module: Any) -> str | None:
    """The file of a module that is the user's Python."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin if isinstance(origin, str) and origin.endswith(".py") and not is_library(origin) else None


def _file(name: str, folders: Sequence[str]) -> str | None:
    spec = PathFinder.find_spec(name, [*folders])
    return None if spec is None else spec.origin


def write(
    folder: Path,
    *,
    settings: dict[str, Any],
    specs: tuple[Any, Any],
    call: tuple[Any, Any, tuple[Any, ...], tuple[str, ...]],
    axes: dict[str, int],
    explicit: Iterable[str],
    ambient: bool,
    donated: Sequence[str],
    elsewhere: bool,
    folders: Sequence[str],
) -> None:
    """Write `called.py` and `called.pkl`.

    - `call`: the function, its reference, the operands, and the names of those that are given by keyword.
    - `specs`: those of the operands, and those of the results.
    - `donated`: the names of the operands whose memory the results may take.
    - `elsewhere`: whether the programs are compiled for devices that are not here.

    Raises what the pickling of an object raises.
    """
    objects, arrays, cells = pickling.pickled(pickling.nodes(), specs, call)
    content = [*map(pickle.dumps, (settings, cells)), pickle.dumps(arrays, pickle.HIGHEST_PROTOCOL), objects]
    # Whoever can read it sees what the function refers to, and whoever can write it runs code in the programs.
    with open(folder / f"{MODULE}.pkl", "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(b"".join(content))
    values = {
        "name": getattr(call[0], "__name__", type(call[0]).__name__),
        "FOLDERS": [*folders],
        "FILES": files_of_caller(folders),
        "AXES": axes,
        "TYPES": tuple("Explicit" if axis in set(explicit) else "Auto" for axis in axes),
        "context": ambient,
        "donated": [*donated],
        "elsewhere": elsewhere,
    }
    lines = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    write_text(folder / CALLED, _SOURCE.replace("ARGUMENTS_OF_THE_CALL", lines))
