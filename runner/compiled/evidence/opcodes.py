"""Classifies an instruction of a compiled module: what it communicates, starts or completes.

A module calls libraries by name, and some of them communicate: NCCL and MPI behind the FFI (openxla/xla#42689), Pallas
kernels with remote copies (`tpu_custom_call`, `mosaic_gpu_v2`), TPU's SparseCore, DCN between slices. Names that are
known to be local are listed; any other may communicate.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from runner.compiled.evidence.hlo import STARTED, Computation, Instruction
from runner.experiment.forms import KINDS

_ALIKE = re.compile(r"all-?reduce|all-?gather|reduce-?scatter|all-?to-?all|collective", re.IGNORECASE)
"""Parts of the names of opcodes that communicate."""

_CONNECTING = ("channel_id=", "replica_groups=", "source_target_pairs=")
"""Attributes of operations that communicate."""

_LOCAL = ("copy", "slice", "dynamic-slice", "dynamic-update-slice")
"""Operations with a start and a done that stay within a device's memory."""

_STARTED = tuple(start.removesuffix("-start") for start in STARTED)

IDLE = frozenset(
    {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "copy", "iota"}
    | {"partition-id", "replica-id", "after-all", "opt-barrier", "async-update", "add-dependency", "domain"}
    | {f"{opcode}-{end}" for opcode in _LOCAL for end in ("start", "done")}
)
"""Opcodes that compute too little to overlap with communication."""

HEAVY = ("dot", "convolution", "scatter", "sort", "triangular-solve", "cholesky", "fft")

START, DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
"""The custom calls that start and complete an async collective fusion of TPU's compiler."""


_KINDS = {opcode: kind for kind in KINDS for opcode in (kind, f"{kind}-start")}


def kind_of(instruction: Instruction) -> str | None:
    """The kind of collective that an instruction is or starts; a `-done` belongs to its start."""
    return _KINDS.get(instruction.opcode)


def target_of(instruction: Instruction) -> str | None:
    """The target of a custom call."""
    if instruction.opcode != "custom-call":
        return None
    return (instruction.attribute("custom_call_target") or "").strip('"')


def doubts(computation: Computation, instruction: Instruction) -> str | None:
    """Why an instruction that is not a known collective may communicate; None if it does not."""
    opcode, target = instruction.opcode, target_of(instruction)
    if target is not None:
        begins = target == START and any(map(kind_of, computation.instructions.values()))
        if begins or local(target):
            return None
        return f"{instruction.name} calls {target or 'an unnamed target'}, which may communicate"
    if opcode == "custom-call-start" and not instruction.called:
        return f"{instruction.name} starts a call of the compiler's own, which may communicate"
    alike = _communicates(opcode)
    if alike is None:
        alike = any(attribute in instruction.attributes for attribute in _CONNECTING)
    return f"{instruction.name} ({opcode}) seems to communicate, in an unknown way" if alike else None


@lru_cache(maxsize=1 << 10)
def _communicates(opcode: str) -> bool | None:
    """Whether an opcode that is no known collective seems to be one; None if its attributes decide."""
    if opcode.endswith(("-done", "-update")):
        return opcode.rsplit("-", 1)[0] not in (*KINDS, *_STARTED, *_LOCAL)
    return True if _ALIKE.search(opcode) else None


def done_with(computation: Computation, start: Instruction) -> tuple[Instruction, ...]:
    """The instructions that continue and complete a start."""
    chain: list[Instruction] = []
    front = [start]
    while front:
        for user in computation.users.get(front.pop().name, ()):
            if user.opcode.endswith(("-done", "-update")) and user not in chain:
                chain.append(user)
                if user.opcode.endswith("-update"):
                    front.append(user)
            elif user.opcode == "get-tuple-element":
                front.append(user)
    return tuple(sorted(chain, key=lambda instruction: instruction.position))


def keeps_a_part(computation: Computation, reduced: Instruction) -> bool:
    """Whether a fusion is TPU's all-reduce-scatter: it reduces over all devices and returns only one device's slice.

    Several arrays may be reduced together, of each of which it returns a slice.
    """
    root = _moved(computation, computation.root)
    if root is None:
        return False
    ends = [computation.instructions.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
    slices = [_moved(computation, end) for end in ends]
    return bool(slices) and all(user is not None and _slices(computation, user, reduced) for user in slices)


def _moved(computation: Computation, instruction: Instruction | None) -> Instruction | None:
    """The instruction that computes a value which is then only moved or reshaped."""
    while instruction is not None and instruction.opcode in ("bitcast", "reshape", "copy"):
        instruction = computation.instructions.get(instruction.operands[0])
    return instruction


def _slices(computation: Computation, instruction: Instruction, reduced: Instruction) -> bool:
    if instruction.opcode != "dynamic-slice":
        return False
    whole = computation.instructions.get(instruction.operands[0])
    if whole is not None and whole.opcode == "get-tuple-element":
        whole = computation.instructions.get(whole.operands[0])
    return whole is not None and whole.name == reduced.name


REDUCTIONS = {
    "add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "and", "or": "or",
}  # fmt: skip
"""The opcodes that reduce two values to one, in HLO and StableHLO, and what the record calls them."""


_COMPUTING = (
    # LAPACK and its kin on CPUs: jaxlib/cpu/cpu_kernels.cc, listed by `jaxlib.lapack.registrations()`.
    r"lapack_[a-z0-9]+(_ffi)?",
    r"tridiagonal_solve_perturbed_ffi",
    # XLA's for CPUs: xla/service/cpu/onednn_ops_rewriter.cc, xla/service/topk_rewriter.cc.
    r"__onednn\$\w+",
    r"(Approx)?TopK",
    # XLA's for GPUs, under the same names on ROCm: xla/service/gpu/cublas_cudnn.cc, cusolver_rewriter.cc and
    # transforms/sort_rewriter.cc.
    r"__(cublas|cudnn|cusolver|cub)\$[\w$]+",
    # JAX's own for GPUs: jaxlib/gpu/{solver,blas,sparse,rnn,hybrid,linalg,prng}.cc.
    r"(cu|hip|oneapi)(solver|blas|sparse|dnn|hybrid)_\w+",
    r"(cu|hip|oneapi)_(threefry2x32_ffi|lu_pivots_to_permutation|cholesky_update_ffi|tridiagonal_solve_perturbed)",
    # Transformer Engine's kernels that stay on their device: transformer_engine/jax/csrc/extensions/pybind.cpp. Its
    # products (`te_gemm_ffi`) may communicate.
    r"te_(fused_attn|norm|layernorm|rmsnorm|act|dact|dbias|quantize|grouped_quantize|dequantize|scaled)_\w+",
    # JAX's for TPUs (jax/_src/tpu/linalg) and their lowerings in libtpu 0.0.51.
    r"Qr|Eigh|LuDecomposition|ProductOfElementaryHouseholderReflectors",
    r"Cholesky|EighTpu|QrDecompositionBlock|CompactWyHelper|Lu(Real|Complex)DecompositionBlock|MaskAggregatorBlock",
    r"InvertDiagBlocks(Lower|Upper)Triangular|PartialReduce|TopKWithUnique|TopKBatchMajorSmallK",
    r"Resize(Nearest|Bilinear)(Grad)?",
)
"""Targets that compute."""

_STILL = (
    # Memory spaces of values: xla/service/host_memory_offload_annotations.h.
    r"annotate_device_placement|AllocateBuffer|PinToDevice(Sram)?",
    # How a value is partitioned: xla/service/spmd, xla/service/spmd/shardy/constants.h.
    r"Sharding|SPMD(FullToShard|ShardToFull)Shape|xla\.sdy\.\w+|LayoutConstraint",
    # Annotations of TPU's compiler for values that are not moved.
    r"ConcatBitcast|DeviceId|SliceId|AssumeGatherIndicesInBound",
)
"""Targets that annotate or allocate: nothing is read or written."""

_IDLE = (
    *_STILL,
    r"MoveTo(Host|Device)",
    # Bounded dynamic shapes: xla/service/dynamic_padder.cc.
    r"PadToStatic|PadRealToStatic|SliceToDynamic",
    # Memory, wide numbers and indices on TPUs: the targets for which libtpu 0.0.51 registers an emitter, and those seen
    # in its modules.
    r"ZeroCrop|X(64|128)(SplitLow|SplitHigh|Combine)|WindowPrefetch|GatherScatterIndicesBitpacked",
)
"""Targets that annotate, allocate or move within the device's memory."""


@cache
def _pattern(targets: tuple[str, ...]) -> re.Pattern[str]:
    # Compiled when the first custom call is seen: few modules have one.
    return re.compile("|".join(f"(?:{target})" for target in targets))


def local(target: str) -> bool:
    """Whether a custom call to `target` is known not to communicate with other devices."""
    return computing(target) or idle(target)


def computing(target: str) -> bool:
    """Whether it is known to compute on its device, and so may overlap with communication."""
    return _pattern(_COMPUTING).fullmatch(target) is not None


def idle(target: str) -> bool:
    """Whether it is known to compute nothing."""
    return _pattern(_IDLE).fullmatch(target) is not None


def still(target: str) -> bool:
    """Whether it is known to read and write nothing."""
    return _pattern(_STILL).fullmatch(target) is not None
