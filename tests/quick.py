"""Settings that make compilations for CPU take less computing time; XLA partitions and schedules as without them."""

from __future__ import annotations

import os

import jax
from jaxlib import xla_client

UNOPTIMIZED = "jax_disable_most_optimizations"
"""JAX's setting that switches LLVM's optimization off, a third to half of a compilation."""

ENVIRONMENT = {UNOPTIMIZED.upper(): "1"}
"""The environment variables with which new processes compile without it."""

FLAGS = "--xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else ""
"""XLA's flag to compile fusions with its earlier emitters, which saves another third; JAX 0.11 no longer has it."""


def compile_quickly() -> None:
    """Have this process, and those that are forked from it, compile with XLA's flags `FLAGS`.

    XLA reads `XLA_FLAGS` once. The variable is restored at once, since libtpu reads it too and refuses the flag.
    """
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{given or ''} {FLAGS}".strip()
    # XLA reads its flags for this attribute. No backend starts, so the process may still be forked.
    _ = xla_client.CompileOptions().executable_build_options.debug_options
    if given is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = given
