"""Reads the mesh of a call: its axes and their types, its devices, and whether a mesh is set around the call.

JAX is not imported here: where the caller has not, there are only names and sizes.
"""

from __future__ import annotations

import functools
import operator
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType, ModuleType
from typing import Any, cast

from runner.app.called.pickling import names_of
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.link import jax_internals


@dataclass(frozen=True)
class CallMesh:
    """The mesh of a call.

    - `axes`: the size of each axis; `explicit`: those whose layouts are in types (`AxisType.Explicit`).
    - `devices`: the ids of the devices in their order, None for the order of `jax.make_mesh`.
    - `ambient`: whether the call is made within `jax.set_mesh`.
    """

    axes: Mapping[str, int]
    explicit: tuple[str, ...]
    devices: tuple[int, ...] | None
    ambient: bool

    @property
    def keys(self) -> dict[str, Any]:
        """The key `mesh` of an experiment."""
        keys: dict[str, Any] = {"axes": list(self.axes), "shape": list(self.axes.values())}
        if self.explicit and len(self.explicit) < len(self.axes):
            keys["types"] = ["explicit" if axis in self.explicit else "auto" for axis in self.axes]
        return keys if self.devices is None else {**keys, "devices": list(self.devices)}


def call_mesh(mesh: Any, shardings: Iterable[Any], functions: Sequence[Any]) -> CallMesh:
    """Return the mesh of a call.

    - `mesh`: a mapping, a `Mesh`, an `AbstractMesh`, or None: the first of `shardings`, of the context, or the one mesh
      that the functions hold, such as that of a `shard_map`.
    - `functions`: a mapping says no types; they are those of the first mesh with these axes that is in `shardings`, in
      the context or in one of the functions.

    Raises `ValueError`.
    """
    context, ambient = _context()
    near = [own for sharding in shardings if (own := getattr(sharding, "mesh", None)) is not None]
    near += [] if context is None else [context]
    if mesh is None:
        mesh = next(iter(near), None)
    if mesh is None:
        mesh = _only_mesh(functions)
    sizes: object = cast("object", mesh) if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not is_mapping(sizes) or not all(map(_is_size, sizes.values())):
        example = _with_names(mesh) or '{"data": 2, "model": 2}'
        raise ValueError(f"{mesh!r} is not a mesh; give names with sizes, such as {example}, or a Mesh")
    # A NumPy integer is a size too.
    axes = {str(name): operator.index(size) for name, size in sizes.items()}
    if isinstance(mesh, Mapping):
        alike = (each for each in (*near, *_own_meshes(functions)) if dict(each.shape) == axes)
        mesh = next(alike, None)
    ambient = ambient and context is not None and dict(context.shape) == axes
    return CallMesh(axes, _explicit(mesh), _devices(mesh), ambient)


def _only_mesh(functions: Sequence[Any]) -> Any:
    """The mesh that functions hold; raises `ValueError` if they hold none, or several."""
    meshes = list(dict.fromkeys(_own_meshes(functions)))
    if len(meshes) == 1:
        return meshes[0]
    advice = '; give one: mesh={"data": 2, "model": 2}, or call within jax.set_mesh(mesh)'
    if not meshes:
        raise ValueError(f"no operand lies on a mesh, and none is given{advice}")
    shapes = " and ".join(repr(dict(mesh.shape)) for mesh in meshes)
    raise ValueError(f"the function uses several meshes, {shapes}{advice}")


def _with_names(sizes: Any) -> str | None:
    """A mesh of sizes that are given without names; None for anything else."""
    if not isinstance(sizes, list | tuple):
        return None
    given = cast("Sequence[object]", sizes)
    if not 0 < len(given) <= len(_NAMES) or not all(map(_is_size, given)):
        return None
    named = (f'"{name}": {size}' for name, size in zip(_NAMES, given, strict=False))
    return f"{{{', '.join(named)}}}"


_NAMES = ("data", "model", "expert", "stage")


def _is_size(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _explicit(mesh: Any) -> tuple[str, ...]:
    """The axes of a mesh of JAX that are Explicit."""
    if mesh is None:
        return ()
    kind: Any = sys.modules["jax"].sharding.AxisType
    return tuple(name for name, each in zip(mesh.axis_names, mesh.axis_types, strict=True) if each is kind.Explicit)


def _devices(mesh: Any) -> tuple[int, ...] | None:
    """The ids of a mesh's CPU devices, if they are in another order than that of their ids."""
    jax: Any = sys.modules.get("jax")
    if jax is None or not isinstance(mesh, jax.sharding.Mesh):
        return None
    devices = list(mesh.devices.flat)
    ids = tuple(device.id for device in devices)
    return None if ids == tuple(range(len(ids))) or any(each.platform != "cpu" for each in devices) else ids


def _context() -> tuple[Any, bool]:
    """The mesh around the call, None without one, and whether `jax.set_mesh` or `use_abstract_mesh` has set it.

    That of the older `with mesh:` is one for names alone.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return None, False
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.axis_names:
        concrete = jax.sharding.get_mesh()
        return (concrete if concrete.axis_names else mesh), True
    return jax_internals.mesh_of_with(), False


_DEEPEST, _MOST = 6, 400
"""How far, and among how many objects, the meshes of a function are looked for."""


def _own_meshes(functions: Sequence[Any]) -> Iterator[Any]:
    """The meshes in functions' closures and in the globals that they name, nearest first."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return
    kinds = jax.sharding.Mesh, jax.sharding.AbstractMesh
    level, known = list(functions), list[Any]()
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for each in level:
            if len(known) > _MOST or any(each is other for other in known):
                continue
            known.append(each)
            if isinstance(each, kinds):
                yield each
            else:
                below += _parts(each)
        level = below


def _parts(value: Any) -> list[Any]:
    """The objects that a function is made of: what it wraps, closes over, and names of its module."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    parts = [getattr(value, name, None) for name in ("__wrapped__", "__func__", "__self__", "fun")]
    if not callable(value) or isinstance(value, type):
        return [part for part in parts if part is not None]
    cells = getattr(value, "__closure__", None) or ()
    parts += [cell.cell_contents for cell in cells if cell != CellType()]
    code, space = getattr(value, "__code__", None), getattr(value, "__globals__", None)
    if code is not None and space is not None and not _installed(space.get("__name__", "")):
        names = [*names_of(code)]
        parts += [space[name] for name in names if name in space and not isinstance(space[name], ModuleType)]
        modules = [space[name] for name in names if isinstance(space.get(name), ModuleType)]
        own = [module for module in modules if not _installed(module.__name__)]
        parts += [vars(module)[name] for module in own for name in names if name in vars(module)]
    return [part for part in parts if part is not None]


def _installed(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "jaxlib", "numpy", "scipy", "builtins")


_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def devices_of_caller() -> int:
    """The number of devices that the caller's process has, or would have, as far as that is known without JAX's."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return 0
    if jax_internals.has_devices():
        return jax.device_count()
    configured = int(getattr(jax.config, "jax_num_cpu_devices", 0) or 0)
    flag = _FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return configured if configured > 0 else int(flag[-1]) if flag else 0
