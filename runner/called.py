"""A Python function, its operands and their layouts in; the experiment that calls it out.

The function may be defined anywhere: in a module, a script, a notebook or another function. It is pickled with its
operands to `called.pkl` in the run folder; `called.py` beside it is a module that unpickles them, which the experiment
and the programs import.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import keyword
import os
import sys
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from pathlib import Path
from types import CellType
from typing import Any, cast

from runner.experiment.forms import IDENTIFIER
from runner.experiment.imported import CALLED, SETTINGS_OF_A_PROCESS
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.record.files import write_text
from runner.untyped import is_mapping

MODULE = Path(CALLED).stem

_SOURCE = '''"""The arguments of runner.check: a function, its operands, and the specs of its operands and results."""

import pickle
import sys
from contextlib import nullcontext
from pathlib import Path

import jax

sys.path += [folder for folder in FOLDERS if folder not in sys.path]


class _Unpickler(pickle.Unpickler):
    auto = False

    def persistent_load(self, key):
        kind, *parts = key
        if kind == "device":
            return jax.devices()[parts[0]]
        lie, names, types, more = parts
        types = (jax.sharding.AxisType.Auto,) * len(names) if self.auto else types
        make = jax.sharding.AbstractMesh if kind == "abstract" else jax.sharding.Mesh
        return make(lie, names, axis_types=types, **more)

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


def _loaded():
    with Path(__file__).with_name("called.pkl").open("rb") as file:
        # JAX's settings in the process that called runner.check; another version of JAX may not have all of them.
        settings = _Unpickler(file).load()
        for name in settings.keys() & jax.config.values.keys():
            if jax.config.values[name] != settings[name]:
                jax.config.update(name, settings[name])
        # What a script makes a pytree is none where the script has not run.
        for kind, *how in _Unpickler(file).load():
            if not jax.tree_util.is_tree_node(kind):
                _register(kind, *how)
        return _Unpickler(file).load()


_function, _operands, _in_specs, _out_specs, _reference, _mesh = _loaded()


def _is_array(leaf):
    return hasattr(leaf, "shape") and getattr(getattr(leaf, "dtype", None), "kind", "V") not in "OSUMm"


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
        if not _is_array(own):
            return own
        array = next(given)
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(own)) if _is_key(own) else array

    return jax.tree.map(leaf, tree)


def _called(own, arrays):
    """What a function gives; own: whether it is the function itself, or its reference."""
    global _function, _operands, _reference, _mesh
    try:
        return _given(_function if own else _reference, arrays)
    except RuntimeError as error:
        if _NO_CONTEXT not in str(error):
            raise
        raise RuntimeError(
            "a jit inside has PartitionSpecs as in_shardings or out_shardings, for which JAX takes the mesh from a "
            "context; here there is none: give it NamedShardings, NamedSharding(mesh, P(...))"
        ) from error
    except ValueError as error:
        # Operands whose types have shardings on Explicit axes, as a shard_map asks for, only `explicit` gives.
        if _Unpickler.auto or not any(text in str(error) for text in _EXPLICIT):
            raise
    _Unpickler.auto = True
    _function, _operands, _, _, _reference, _mesh = _loaded()
    return _given(_function if own else _reference, arrays)


def _given(function, arrays):
    """What a function gives, as `jit` has it, of these arrays in the place of its operands' own."""
    given = iter(arrays)
    whole = [
        _whole(operand, next(given)) if jax.tree.leaves(part) else operand
        for operand, part in zip(_operands, operands, strict=True)
    ]
    with jax.sharding.use_abstract_mesh(_mesh) if _mesh else nullcontext():
        result = function(*whole)
        return jax.tree.map(lambda x: _array(jax.numpy.asarray(x) if isinstance(x, _NUMBERS) else x), result)


_NO_CONTEXT = "requires a non-empty mesh in context"
_EXPLICIT = ("does not match the specs of the input", "should match the aval mesh")
_NUMBERS = (bool, int, float, complex)
operands = [jax.tree.map(_array, operand) for operand in _operands]
in_specs = _in_specs
out_specs = _out_specs


def function(*arrays):
    return _called(True, arrays)


def reference(*arrays):
    return _called(False, arrays)
'''


class Unpicklable(ValueError):
    """The function, or something that it refers to, cannot be pickled for another process."""


def experiment(
    function: Callable[..., Any],
    operands: Sequence[Any],
    folder: Path,
    *,
    mesh: Any = None,
    in_specs: Any = None,
    out_specs: Any = None,
    reference: Callable[..., Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Write `called.py` and `called.pkl` to `folder`, and return the mapping of the experiment that calls the function.

    `keys` are further keys of the experiment; the other arguments are those of `runner.check`. Raises `Unpicklable`,
    and `ValueError` for an invalid mesh or invalid specs.
    """
    if not callable(function):
        raise ValueError(f"{function!r} is not a function")
    if not isinstance(operands, list | tuple) or hasattr(operands, "_fields"):
        raise ValueError(
            f"the operands are a tuple, runner.check({_name(function)}, (x, w)), not {_described(operands)}"
        )
    leaves, shardings, laid_out = _leaves(function, operands)
    context = _context()
    axes = _axes(mesh, shardings, context)
    specs = laid_out if in_specs is None else _specs(in_specs, len(operands))
    called = _on_mesh(function, axes)
    try:
        with _by_value(function):
            pickled = _pickled(_settings(), _nodes(), (called, tuple(operands), specs, out_specs, reference, context))
    except Exception as error:  # A pickled object's own code may raise anything.
        message = f"{_name(function)} cannot be pickled for the worker process: {type(error).__name__}: {error}"
        raise Unpicklable(message) from error
    folders = [str(Path(each).resolve()) for each in sys.path]
    # Whoever can read it sees what the function refers to, and whoever can write it runs code in the programs.
    with open(folder / f"{MODULE}.pkl", "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(pickled)
    write_text(folder / CALLED, _SOURCE.replace("FOLDERS", repr(folders)))
    own = _name(function)
    names = _names(function, len(operands), {own, "result", MODULE})
    arrays = {
        name: {"tree": f"{MODULE}.operands[{i}]", "specs": f"{MODULE}.in_specs[{i}]"}
        for i, name in enumerate(names)
        if any(_is_array(leaf) for leaf in leaves[i])
    }
    file = str((folder / CALLED).resolve())
    return {
        "mesh": {"axes": list(axes), "shape": list(axes.values())},
        "imports": {MODULE: file, own: f"{file}:function"},
        "references": {} if reference is None else {own: f"{file}:reference"},
        "arrays": arrays,
        "graph": {"result": f"{own}({', '.join(arrays)})"},
        "outputs": {"result": f"{MODULE}.out_specs"},
        # The caller's own precision: nothing is overridden.
        "precision": "default",
        **keys,
    }


def _described(value: Any) -> str:
    """Return the class of a value with its article: `an Array`, `a dict`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _specs(specs: Any, count: int) -> tuple[Any, ...]:
    """Return the specs of each operand; a single PartitionSpec applies to all. Raises `ValueError`."""
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(specs, jax.sharding.PartitionSpec):
        return (specs,) * count
    if not isinstance(specs, Sequence) or isinstance(specs, str):
        raise ValueError(f"in_specs is {specs!r}; give a PartitionSpec, or a tree of them, for each operand")
    given = tuple(cast("Sequence[Any]", specs))
    if len(given) != count:
        entries, operands = (
            f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((len(given), "spec"), (count, "operand"))
        )
        message = f"in_specs has {entries}, and the function is called with {operands}; give one for each"
        raise ValueError(message + ", and None for one that is replicated")
    return given


def _context() -> Any:
    """The caller's ambient mesh: that of `jax.set_mesh` or of `with mesh:`, an empty one, or None without JAX."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return None
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.axis_names:
        return mesh
    # JAX has no public access to the mesh of the older `with mesh:`.
    resources: Any = getattr(importlib.import_module("jax._src.mesh"), "thread_resources", None)
    return mesh if resources is None else resources.env.physical_mesh.abstract_mesh


def _on_mesh(function: Any, axes: Mapping[str, int]) -> Any:
    """The function; if it is jitted with PartitionSpecs, the same jitted with these on a mesh of `axes`.

    JAX takes the mesh of PartitionSpecs from a context that cannot be set within a trace. Raises `ValueError` for an
    axis that the mesh does not have.
    """
    info, jax = getattr(function, "_jit_info", None), cast("Any", sys.modules.get("jax"))
    if info is None:
        return function
    kind = jax.sharding.PartitionSpec
    if not any(isinstance(part, kind) for part in (*info.in_shardings_leaves, *info.out_shardings_leaves)):
        return function
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types)

    def placed(structure: Any, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(structure, [on_mesh(part) if isinstance(part, kind) else part for part in leaves])

    def on_mesh(spec: Any) -> Any:
        try:
            return jax.sharding.NamedSharding(mesh, spec)
        except ValueError as error:
            raise ValueError(
                f"{getattr(function, '__name__', 'the function')} is jitted with {spec}; the mesh has {', '.join(axes)}"
            ) from error

    return jax.jit(
        function.__wrapped__,
        in_shardings=placed(info.in_shardings_treedef, info.in_shardings_leaves),
        out_shardings=placed(info.out_shardings_treedef, info.out_shardings_leaves),
        static_argnums=info.static_argnums,
        static_argnames=info.static_argnames,
    )


def _settings() -> dict[str, Any]:
    """The caller's settings of JAX that a run takes over."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return {}
    given = {name: getattr(value, "value", value) for name, value in jax.config.values.items()}
    simple = (bool, int, float, str, type(None))
    return {
        name: value for name, value in given.items() if name not in SETTINGS_OF_A_PROCESS and isinstance(value, simple)
    }


def _pickled(*values: Any) -> bytes:
    """Pickle values for another process; JAX devices and meshes are replaced by what they are made of."""
    # Imported late, since few runs need it; it has no type stubs.
    cloudpickle: Any = importlib.import_module("cloudpickle")
    jax: Any = sys.modules.get("jax")

    class Pickler(cloudpickle.CloudPickler):
        def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
            if jax is None:
                return None
            if isinstance(obj, jax.Device):
                return "device", obj.id
            if isinstance(obj, jax.sharding.Mesh) and obj.axis_names:
                return "mesh", obj.devices, obj.axis_names, obj.axis_types, dict[str, Any]()
            if isinstance(obj, jax.sharding.AbstractMesh) and obj.axis_names:
                device = {"abstract_device": obj.abstract_device}
                return "abstract", obj.axis_sizes, obj.axis_names, obj.axis_types, device
            return None

        def reducer_override(self, obj: Any) -> Any:
            if jax is not None and isinstance(obj, jax.custom_vjp):
                # Its class cannot make one without the function, which its attributes hold.
                return object.__new__, (type(obj),), vars(obj)
            cloudpickles: Any = super()
            return cloudpickles.reducer_override(obj)

    stream = io.BytesIO()
    for value in values:
        Pickler(stream).dump(value)
    return stream.getvalue()


@contextlib.contextmanager
def _by_value(function: Any) -> Generator[None]:
    """Pickle the functions of the function's module by value, if it has a mesh with `Explicit` axes.

    In the worker process its axes can then be `Auto`; where the module is imported there, it makes the mesh anew.
    """
    jax: Any = sys.modules.get("jax")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if jax is None or module is None or module.__name__ == "__main__":
        yield
        return
    cells = (cell for each in (function, inspect.unwrap(function)) for cell in getattr(each, "__closure__", None) or ())
    kinds = jax.sharding.Mesh, jax.sharding.AbstractMesh
    near = (*vars(module).values(), *(cell.cell_contents for cell in cells if cell != CellType()))
    if not any(isinstance(each, kinds) and jax.sharding.AxisType.Explicit in each.axis_types for each in near):
        yield
        return
    cloudpickle: Any = importlib.import_module("cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _nodes() -> list[tuple[type, Any, Any]]:
    """Return the registered pytree classes that are pickled by value, with their flatten and unflatten functions."""
    if "jax" not in sys.modules:
        return []
    # JAX has no public access to the pytree registry.
    registry: Mapping[type, Any] = importlib.import_module("jax._src.tree_util")._registry
    by_value: Container[str] = importlib.import_module("cloudpickle").list_registry_pickle_by_value()
    return [(kind, how.to_iter, how.from_iter) for kind, how in registry.items() if _travels(kind, by_value)]


def _travels(kind: type, by_value: Container[str]) -> bool:
    """Whether a class is pickled by value: one of a module that is, or that no module has under its name."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__" or kind.__module__ in by_value:
        return True
    attribute: Any = module
    for part in kind.__qualname__.split("."):
        attribute = getattr(attribute, part, None)
    return attribute is not kind and kind is not type(None)


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers, not of strings or objects."""
    return hasattr(leaf, "shape") and getattr(getattr(leaf, "dtype", None), "kind", "V") not in "OSUMm"


def _array(leaf: Any) -> Any:
    return leaf if _is_array(leaf) else None


def _leaves(function: Any, operands: Sequence[Any]) -> tuple[list[list[Any]], list[Any], tuple[Any, ...]]:
    """Return the leaves of each operand, the shardings of those that are arrays, and their specs in the operands' tree.

    A jitted function's `in_shardings` come before the shardings of the arrays.
    """
    # Without JAX imported, an operand is a NumPy array, not a pytree.
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return [[operand] for operand in operands], [], (None,) * len(operands)
    flat = [jax.tree.leaves(operand) for operand in operands]
    arrays = jax.tree.map(_array, tuple(operands))
    leaves, structure = jax.tree.flatten(arrays)
    asked = _in_shardings(jax, function, arrays) or [None] * len(leaves)
    shardings = [own or getattr(leaf, "sharding", None) for own, leaf in zip(asked, leaves, strict=True)]
    empty = jax.sharding.PartitionSpec()

    def spec(sharding: Any) -> Any:
        given = sharding if isinstance(sharding, jax.sharding.PartitionSpec) else getattr(sharding, "spec", None)
        return empty if given is None else given

    return flat, shardings, jax.tree.unflatten(structure, map(spec, shardings))


def _in_shardings(jax: Any, function: Any, arrays: tuple[Any, ...]) -> list[Any]:
    """Return the `in_shardings` of a jitted function for each leaf of its operands; none if it has none."""
    # JAX's public API gives them only by tracing and lowering the function.
    info = getattr(function, "_jit_info", None)
    if info is None or not getattr(info, "user_specified_in_shardings", False):
        return []
    static = {number % len(arrays) for number in info.static_argnums if arrays}
    traced = tuple(array for number, array in enumerate(arrays) if number not in static)
    kinds = (jax.sharding.Sharding, jax.sharding.PartitionSpec, type(None))

    def is_given(part: object) -> bool:
        return isinstance(part, kinds)

    try:
        prefix = jax.tree.unflatten(info.in_shardings_treedef, info.in_shardings_leaves)
        whole = jax.tree.broadcast(prefix, traced, is_leaf=is_given)
    except ValueError:
        # They do not fit the operands: JAX says so when the function is traced.
        return []
    # A leaf without one has an object of JAX's own.
    return [part if is_given(part) else None for part in jax.tree.leaves(whole, is_leaf=is_given)]


def _axes(mesh: Any, shardings: Sequence[Any], context: Any) -> dict[str, int]:
    """Return the axis sizes of a mapping, a `Mesh`, an `AbstractMesh`, the operands' mesh, or else that of the context.

    Raises `ValueError`.
    """
    if mesh is None:
        mesh = next((own for each in shardings if (own := getattr(each, "mesh", None)) is not None), None)
    if mesh is None and context is not None and context.axis_names:
        mesh = context
    if mesh is None:
        raise ValueError(
            'no operand lies on a mesh, and none is given; give one: mesh={"data": 2, "model": 2}, or call within '
            "jax.set_mesh(mesh)"
        )
    sizes: object = cast("object", mesh) if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not is_mapping(sizes) or not all(isinstance(size, int) for size in sizes.values()):
        raise ValueError(f'{mesh!r} is not a mesh; give names with sizes, such as {{"data": 2, "model": 2}}, or a Mesh')
    return {str(name): size for name, size in sizes.items()}


def _name(function: Callable[..., Any]) -> str:
    """Return the function's name, with `_` appended if the name is taken in the language."""
    name = getattr(function, "__name__", type(function).__name__)
    name = name if IDENTIFIER.match(name) else "function"
    return f"{name}_" if name in (*OPERATIONS, *CONSTANTS, "result", MODULE) else name


def _names(function: Callable[..., Any], count: int, taken: set[str]) -> list[str]:
    """Return the operands' names: the function's parameters if known; `_` is appended to a name that is taken."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for i in range(count):
        known = i < len(parameters) and parameters[i].kind is not inspect.Parameter.VAR_POSITIONAL
        name = parameters[i].name.strip("_") if known else f"operand{i}"
        while not name or name in taken or name in (*OPERATIONS, *CONSTANTS) or keyword.iskeyword(name):
            name += "_"
        taken.add(name)
        names.append(name)
    return names
