"""The one module that knows how JAX 0.10, 0.11 and 0.12 differ."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import jax
from jax._src import api
from jax._src import core as _core
from jax.sharding import AbstractMesh, AxisType

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.compiled.evidence.source_lines import HOUSE, SHIPPED
from runner.compiled.evidence.source_lines import is_users as is_own
from runner.experiment.imported import CALLED
from runner.graph.language.operations import row_of
from runner.worker import calls

# These are public in `jax.extend`, which also imports Pallas: 50 ms that few jobs need.
core: Any = _core
Literal, Var = core.Literal, core.Var
CALLING = {
    "jit": "jaxpr", "closed_call": "call_jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}  # fmt: skip
"""The primitives that only call a jaxpr, each with its parameter for that."""


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr without the arrays that it captures, and these; from JAX 0.12 on every jaxpr has them itself."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def bodies(equation: Any) -> Iterator[tuple[str, Any]]:
    """Yield the jaxprs of an equation's parameters, without what they capture, each with the parameter's name."""
    for name, value in equation.params.items():
        for inner in value if is_sequence(value) else (value,):
            body, _ = opened(inner)
            if hasattr(body, "eqns"):
                yield name, body


def evaluated(
    jaxpr: Any,
    operands: Sequence[Any],
    results: Callable[[Any, list[Any]], Sequence[Any]],
    literal: Callable[[Any], Any],
    constants: Sequence[Any],
) -> list[Any]:
    """What a jaxpr gives of `operands`: `results` of an equation and what its operands have; `literal` of a literal.

    `constants`: what the arrays have that it captures.
    """
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True))

    def read(operand: Any) -> Any:
        return literal(operand) if isinstance(operand, Literal) else values[operand]

    for equation in jaxpr.eqns:
        of_equation = results(equation, [*map(read, equation.invars)])
        values.update(zip(equation.outvars, of_equation, strict=True))
    return [*map(read, jaxpr.outvars)]


clear_backends: Callable[[], None] = api.clear_backends


def abstract_mesh(mesh: Mesh, explicit: Sequence[str] = ()) -> AbstractMesh:
    """A mesh without devices; axes that are not `explicit` are Auto.

    `axis_types` is always given, since its default changed from Auto to Explicit in 0.11.
    """
    types = (AxisType.Explicit if axis in explicit else AxisType.Auto for axis in mesh.axes)
    return AbstractMesh(mesh.shape, mesh.axes, axis_types=tuple(types))


def varying_axes(kind: Any) -> frozenset[str]:
    """The manual mesh axes over which a value of this type may vary inside `shard_map` (`vma` before 0.11)."""
    manual = getattr(kind, "manual_axis_type", None)
    return manual.varying if manual is not None else kind.vma


def sharding_type_errors() -> tuple[type[Exception], ...]:
    """The errors for conflicting sharding types, which have no public names in 0.10 to 0.12."""
    from jax._src import core, named_sharding

    return core.ShardingTypeError, named_sharding.DuplicateSpecError


PLANNED = (
    "builtin.module(sdy-propagation-pipeline,func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives),func.func(sdy-populate-op-sharding-rules))"
)
"""Shardy's passes that insert collectives; the pipeline of the propagation takes no options."""

PROPAGATED = "builtin.module(sdy-propagation-pipeline)"
"""Shardy's passes that choose layouts."""

ORIGINATING = (
    "builtin.module(sdy-import-pipeline,sdy-import-func-calls,sdy-user-priority-propagate{debug-sharding-origins=true})"
)
"""Shardy's passes that write down the origins of shardings."""


class ReadStableHlo:
    """A module that was read from a file, with what the passes of Shardy need of a `Lowered`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def compiler_ir(self, dialect: str) -> Any:
        """The module; there is no other `dialect` of it."""
        return self._module


def stablehlo(text: str) -> ReadStableHlo | str:
    """The module of a text of StableHLO; a sentence if it is none, or this JAX cannot read it."""
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]

        context: Any = cast("Any", mlir).make_ir_context()
        failure: type[Exception] = cast("Any", ir).MLIRError
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    try:
        with context:
            return ReadStableHlo(cast("Any", ir).Module.parse(text))
    except (failure, ValueError) as error:
        reasons = [line for line in str(error).splitlines() if "error: " in line] or [str(error).splitlines()[0]]
        return reasons[0].rpartition("error: ")[2][:300]


@dataclass(frozen=True)
class NotConverted:
    """Why the text of a module is not converted."""

    why: str


def converted(text: str) -> str | NotConverted:
    """The text of HLO as one of StableHLO, with its locations and with XLA's attributes."""
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]

        read: Any = importlib.import_module("jaxlib._hlo").hlo_module_from_text
        convert: Any = importlib.import_module("jaxlib._jax").mlir.hlo_to_stablehlo
        context: Any = cast("Any", mlir).make_ir_context()
    except (ImportError, AttributeError) as error:
        return NotConverted(f"this JAX does not convert HLO to StableHLO: {type(error).__name__}: {error}")
    try:
        serialized = convert(read(text).as_serialized_hlo_module_proto())
        with context:
            return cast("Any", ir).Module.parse(serialized).operation.get_asm(enable_debug_info=True)
    except (RuntimeError, ValueError, cast("Any", ir).MLIRError) as error:
        return NotConverted(f"jaxlib does not convert it: {str(error).strip().splitlines()[0][:300]}")


def propagated(lowered: Any, passes: str) -> Any | str:
    """A copy of a lowered module after passes of Shardy.

    Returns a sentence if a pass fails on the module, or if this JAX cannot run them: the passes and their names are
    private, and `lowered.compiler_ir` is the module that XLA gets.
    """
    try:
        from jax._src.lib.mlir import ir, passmanager  # pyright: ignore[reportPrivateImportUsage]

        module = lowered.compiler_ir("stablehlo")
        with module.context:
            copy = cast("Any", ir).Module.parse(module.operation.get_asm(enable_debug_info=True))
            manager = passmanager.PassManager.parse(passes)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        return f"Shardy's passes cannot be run from Python here: {type(error).__name__}: {reason}"
    failure: type[Exception] = cast("Any", ir).MLIRError
    try:
        with module.context:
            manager.run(copy.operation)
    except failure as error:
        reasons = [line for line in str(error).splitlines() if "error: " in line] or [str(error).splitlines()[0]]
        return f"Shardy fails on this program: {reasons[0].partition('error: ')[2] or reasons[0]}"
    return copy


def exchanged(key: str, number: int, count: int, text: str) -> list[str]:
    """Exchange texts among `count` processes: return those of all, by number, once all have sent theirs.

    - `key`: the name of this exchange; `number`: the number of this process; `text`: what it sends.

    JAX's public functions for this run collectives, which fail if a process is half a minute late. This uses the
    private client of `jax.distributed`.
    """
    client: Any = importlib.import_module("jax._src.distributed").global_state.client
    client.key_value_set(f"shardproof/{key}/{number}", text)
    # If a process dies, its parent ends the others that wait for it.
    return [client.blocking_key_value_get(f"shardproof/{key}/{process}", _A_DAY) for process in range(count)]


def of_cluster() -> tuple[int, int, str, tuple[int, ...] | None] | str:
    """The process of the cluster that started this one, as `jax.distributed.initialize()` would detect it.

    Returns its number, the number of processes, the coordinator's address, and its devices on this machine, None for
    all; or a sentence if there is no cluster. JAX detects and connects in one call, which aborts the process if another
    one never arrives; the detection alone is private.
    """
    clusters: Any = importlib.import_module("jax._src.clusters")
    named = os.environ.get("JAX_LOCAL_DEVICE_IDS")
    local = [int(text) for text in named.split(",")] if named else None
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            detected = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                address, None, None, local, None, _COMING
            )
        except Exception as error:  # Kubernetes, the network or a malformed variable may raise anything.
            return f"JAX cannot find out which process of the cluster this is: {type(error).__name__}: {error}"
    address, count, number, local = detected
    if address is None or count is None or number is None:
        reason = "".join(f"; it says: {' '.join(str(text.message).split())}" for text in caught)
        return (
            "JAX finds no cluster that started this process: neither Slurm (srun), Open MPI (mpirun), Kubernetes nor a "
            f"pod of TPUs; target.processes=2 starts two on this machine{reason}"
        )
    return number, count, address, None if local is None else tuple(local)


_COMING = 300
"""The seconds that JAX waits for the coordinator's name to resolve; JAX's own default."""

_A_DAY = 86_400_000
"""A day in milliseconds."""


def module_cost(text: str) -> dict[str, float] | str:
    """XLA's cost analysis of a module's text; a sentence if this JAX cannot run it.

    The parser and the analysis are private.
    """
    try:
        private: Any = importlib.import_module("jaxlib._jax")
        module: Any = cast("Any", importlib.import_module("jaxlib._hlo")).hlo_module_from_text(text)
        client: Any = cast("Any", jax).local_devices(backend="cpu")[0].client
        return private.hlo_module_cost_analysis(client, module)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        return f"XLA's cost analysis is not available for a part of a module here: {type(error).__name__}: {reason}"


@dataclass(frozen=True)
class UserFrame:
    """A place in a file: the lines, from 1 on, and columns, in bytes, between which an expression is written.

    `callers`: the files and lines of the user's that lead to it, the innermost first.
    """

    file: str
    line: int
    column: int
    last_line: int
    last_column: int
    callers: tuple[tuple[str, int], ...] = field(default=(), compare=False)


def user_frame(source: Any) -> UserFrame | None:
    """The place in the user's code that an equation comes from; None if JAX does not know.

    It is that of the innermost frame in the user's own files, or else in the library that the user calls.
    """
    return _user_frame(source.traceback)


@functools.lru_cache(maxsize=1024)
def _user_frame(traceback: Any) -> UserFrame | None:
    frames: list[Any] = list(importlib.import_module("jax._src.source_info_util").user_frames(traceback))
    frames = [frame for frame in frames if not frame.file_name.endswith(f"/{CALLED}")]
    users = [frame for frame in frames if is_own(frame.file_name)] or frames[:1]
    if not users:
        return None
    own, *around = users
    callers = tuple((frame.file_name, frame.start_line) for frame in around)
    return UserFrame(own.file_name, own.start_line, own.start_column, own.end_line, own.end_column, callers)


def user_places(source: Any) -> list[tuple[str, int]]:
    """The files and lines of the user's code that an equation comes from, those of the innermost call first."""
    frames: list[Any] = list(importlib.import_module("jax._src.source_info_util").user_frames(source.traceback))
    return [(frame.file_name, frame.start_line) for frame in frames]


def donated_parameters(function: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions and names of the arguments that a jitted function donates, which JAX publishes of a lowered one."""
    info = getattr(function, "_jit_info", None)
    return ((), ()) if info is None else (tuple(info.donate_argnums), tuple(info.donate_argnames))


def forget_frames() -> None:
    """Drop the cached frames, since the user's files may have changed."""
    _user_frame.cache_clear()


@functools.cache
def leave_out_own_frames() -> None:
    """Leave Shardproof's frames out of the locations that JAX writes into a module: no line there is a user's.

    Modules are smaller without them. The functions for this are private; the shipped experiments count as the user's.
    """
    private: Any = importlib.import_module("jax._src.source_info_util")
    private.register_exclusion(f"{HOUSE}{os.sep}")
    private.register_inclusion(f"{SHIPPED}{os.sep}")


@functools.cache
def keep_lines_of_backward_rules() -> None:
    """Give the operations of a `custom_vjp`'s backward rule the rule's own lines, not that of the function's call.

    JAX evaluates the rule in the context of the call's equation, of which only the traceback is left out here. The
    context is private.
    """
    functions: Any = jax.custom_vjp
    of_call = functions.__call__

    def call(function: Any, *arguments: Any, **named: Any) -> Any:
        if function.bwd and not hasattr(function.bwd, "shardproof_rule"):
            function.bwd = _with_own_lines(function.bwd)
        return of_call(function, *arguments, **named)

    functions.__call__ = call


class _AxesOfContext(frozenset[str]):
    """The axes of a `shard_map` without `mesh=`; `asked`: those for which the user's code asks."""

    asked: Any


@functools.cache
def take_mesh_of_each_call() -> None:
    """Let a `shard_map` without `mesh=` take the context's mesh in each call, not for good in its first.

    One process traces and runs a function on meshes with different axis types. JAX keeps the mesh of the first call in
    the function that `shard_map` gives, with the axes, and refuses a call on another mesh. Its checks are private.
    """
    private: Any = importlib.import_module("jax._src.shard_map")
    checked = private._shmap_checks

    def of_each_call(mesh: Any, axes: Any, *rest: Any) -> tuple[Any, Any]:
        if isinstance(axes, _AxesOfContext):
            mesh, axes = None, axes.asked
        taken, names = checked(mesh, axes, *rest)
        if mesh is None:
            names = _AxesOfContext(names)
            names.asked = axes
        return taken, names

    private._shmap_checks = of_each_call


def _with_own_lines(rule: Callable[..., Any]) -> Callable[..., Any]:
    private: Any = importlib.import_module("jax._src.source_info_util")
    holder = private._source_info_context

    @functools.wraps(rule)
    def evaluated(*arguments: Any, **named: Any) -> Any:
        around = holder.context
        holder.context = private.SourceInfo(None, around.name_stack)
        try:
            return rule(*arguments, **named)
        finally:
            holder.context = around

    cast("Any", evaluated).shardproof_rule = rule
    return evaluated


def asks_for_collective(source: Any) -> bool:
    """Whether an equation comes from a call of JAX's functions of collectives and casts: `psum`, `pcast`, …"""
    return any(frame.file_name.endswith(_PARALLEL) for frame in source.traceback.frames) if source.traceback else False


def stated_spec(equation: Any) -> Any:
    """The PartitionSpec that the user's own code gives an equation's value; None if it states none.

    A `reshard` that JAX makes around a function of its own has the layout of an operand.
    """
    name = equation.primitive.name
    # JAX's own sums have an `out_sharding` too, as in a derivative.
    stating = "out_sharding" if row_of(name).contraction is not None else _STATING.get(name)
    sharding = equation.params.get(stating)
    if sharding is None or (name in _CALLED_FOR and not _is_called_for(equation.source_info, _CALLED_FOR[name])):
        return None
    if name == "reshard" and not any(kind == AxisType.Explicit for kind in sharding.mesh.axis_types):
        # So JAX enters what it computes on Auto axes; the `reshard` that leaves it has the layout that was stated.
        return None
    return getattr(sharding, "spec", None)


_STATING = {
    "reshape": "sharding",
    "reshard": "dst_sharding",
    "sharding_constraint": "sharding",
}
"""The parameters in which JAX keeps the layout that a call states, by primitive that is no product."""

_CALLED_FOR = {"reshard": ("reshard", "_IndexUpdateRef.get"), "sharding_constraint": ("with_sharding_constraint",)}
"""The functions that users call for a primitive which JAX also adds; `x.at[…].get` adds it for its `out_sharding`."""


def _is_called_for(source: Any, functions: Collection[str]) -> bool:
    """Whether an equation comes from a call of one of some functions of JAX's in the user's code."""
    frames: list[Any] = source.traceback.frames if source.traceback else []
    calls = itertools.pairwise(frames)
    return any(inner.function_name in functions and is_own(caller.file_name) for inner, caller in calls)


_PARALLEL = os.path.join("jax", "_src", "lax", "parallel.py")


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of constant and of carried operands of a `scan`; the other operands are sliced."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    same, carried, _ = params["ft_in"].unpack()
    return len(same), len(carried)


def implementation(equation: Any) -> Callable[..., Any] | None:
    """The function that defines a primitive: a rejection sampler of JAX, or another library's own; else None."""
    primitive, params = equation.primitive, equation.params
    if primitive.name == "random_gamma":
        core = importlib.import_module("jax._src.random.core")
        return functools.partial(core._gamma_impl, **params, use_vmap=True)
    implemented: Any = getattr(primitive, "impl", None)
    if inspect.isfunction(implemented) and implemented.__module__.partition(".")[0] != "jax":
        return functools.partial(implemented, **params)
    return None


def expanded(params: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that a `call_hi_primitive` of JAX 0.12 calls."""
    primitive = params["_prim"]

    def call(*operands: Any) -> Any:
        return primitive.expand(*calls.unflatten(primitive.in_tree, operands))

    return call
