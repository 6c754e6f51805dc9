"""Says whether a custom call is known to stay on its device, and whether it computes anything.

A compiled module calls libraries by name, and some of them communicate: NCCL and MPI behind the FFI
(openxla/xla#42689), Pallas kernels with remote copies (`tpu_custom_call`, `mosaic_gpu_v2`), TPU's SparseCore, DCN
between slices. The names that are known to be local are listed; any other may communicate.
"""

from __future__ import annotations

import re
from functools import cache

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
