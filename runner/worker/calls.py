"""Gives JAX's functions with incomplete signatures full types.

Arguments and results are `Any` where JAX leaves them open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import jax
import jax.ad_checkpoint

_jax, _ad_checkpoint = cast("Any", jax), cast("Any", jax.ad_checkpoint)

configure: Callable[[str, Any], None] = _jax.config.update
devices: Callable[..., list[Any]] = _jax.devices
local_devices: Callable[..., list[Any]] = _jax.local_devices
make_mesh: Callable[..., jax.sharding.Mesh] = _jax.make_mesh
set_mesh: Callable[[jax.sharding.Mesh | None], AbstractContextManager[Any]] = _jax.set_mesh
enable_x64: Callable[[bool], AbstractContextManager[Any]] = _jax.enable_x64
default_device: Callable[[Any], AbstractContextManager[Any]] = _jax.default_device

jit: Callable[..., Any] = _jax.jit
grad: Callable[..., Callable[..., Any]] = _jax.grad
value_and_grad: Callable[..., Callable[..., tuple[Any, Any]]] = _jax.value_and_grad
vmap: Callable[..., Callable[..., Any]] = _jax.vmap
shard_map: Callable[..., Any] = _jax.shard_map
eval_shape: Callable[..., Any] = _jax.eval_shape
tree: Any = _jax.tree
tree_util: Any = _jax.tree_util
make_jaxpr: Callable[..., Callable[..., Any]] = _jax.make_jaxpr
fori_loop: Callable[..., Any] = _jax.lax.fori_loop
scan: Callable[..., Any] = _jax.lax.scan
while_loop: Callable[..., Any] = _jax.lax.while_loop
cond: Callable[..., Any] = _jax.lax.cond
switch: Callable[..., Any] = _jax.lax.switch
pcast: Callable[..., Any] = _jax.lax.pcast

arange: Callable[..., jax.Array] = _jax.numpy.arange
stack: Callable[..., jax.Array] = _jax.numpy.stack
asarray: Callable[..., jax.Array] = _jax.numpy.asarray
finfo: Callable[..., Any] = _jax.numpy.finfo
unflatten: Callable[..., Any] = _jax.tree.unflatten
device_put: Callable[..., Any] = _jax.device_put
block_until_ready: Callable[[Any], Any] = _jax.block_until_ready
checkpoint_name: Callable[[Any, str], Any] = _ad_checkpoint.checkpoint_name
clear_caches: Callable[[], None] = _jax.clear_caches
reshard: Callable[..., Any] = _jax.reshard
with_sharding_constraint: Callable[..., Any] = _jax.lax.with_sharding_constraint

JaxRuntimeError: type[RuntimeError] = _jax.errors.JaxRuntimeError


def x64() -> bool:
    """Whether JAX has 64-bit dtypes here."""
    return _jax.config.jax_enable_x64
