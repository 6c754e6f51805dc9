"""Counts the multiplications of a product that a GPU's library computes, from its custom call.

XLA's compiler for GPUs replaces products by calls of cuBLAS and cuDNN (hipBLAS and MIOpen under the same names on
ROCm). Their results are tuples whose first array is the product; the others are workspaces and statistics. Products in
Triton's fusions are `dot`s inside the fusion, and need none of this.

Source: xla/service/gpu/cublas_cudnn.h names the targets, xla/service/gpu/backend_configs.proto the configurations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from runner.base.lazy import dataclass
from runner.compiled.evidence.hlo import Instruction, Shape

_MATMUL = re.compile(r"__cublas\$(gemm|lt\$\w*[mM]atmul(\$f8|\$mx)?)")
_CONVOLUTION = re.compile(r"__cudnn\$conv(Forward|BiasActivationForward|BackwardInput|BackwardFilter|ForwardGraph)")
_ATTENTION = re.compile(r"__cudnn\$fmha\w*?(Backward\w*)?")

Convolved = Callable[[Instruction, Shape, Shape, Shape], int | None]
"""Counts the multiplications of a convolution with this window, from its image, its filter and its result."""


@dataclass(frozen=True)
class Multiplied:
    """The arrays that are multiplied, and the number of multiplications; None if it could not be read."""

    operands: tuple[Shape, ...]
    number: float | None


def read(instruction: Instruction, target: str, shapes: Sequence[Shape], convolved: Convolved) -> Multiplied | None:
    """What a custom call to `target` multiplies; None if it is no product.

    - `shapes`: those of its operands; `convolved`: counts a convolution.
    """
    result = instruction.shapes[:1]
    if _ATTENTION.fullmatch(target):
        return _attention(instruction, shapes, backward="Backward" in target)
    if _MATMUL.fullmatch(target):
        if len(shapes) < 2 or not result:
            return Multiplied((), None)
        contracted = _numbers(instruction, "lhs_contracting_dimensions")
        if not contracted or any(dim >= len(shapes[0].dims) for dim in contracted):
            return Multiplied((), None)
        number = math.prod(result[0].dims) * math.prod(shapes[0].dims[dim] for dim in contracted)
        return Multiplied((shapes[0], shapes[1]), number)
    convolution = _CONVOLUTION.fullmatch(target)
    if convolution is None:
        return None
    if len(shapes) < 2 or not result:
        return Multiplied((), None)
    # The labels are those of the forward convolution, of which a gradient has the image or the filter as its result.
    left, right, out = shapes[0], shapes[1], result[0]
    image, window, whole = {
        "BackwardInput": (out, right, left),
        "BackwardFilter": (left, out, right),
    }.get(convolution[1], (left, right, out))
    return Multiplied((left, right), convolved(instruction, image, window, whole))


def computes(target: str) -> bool:
    """Whether a custom call to `target` computes a product."""
    return any(pattern.fullmatch(target) for pattern in (_MATMUL, _CONVOLUTION, _ATTENTION))


def results(instruction: Instruction) -> list[Shape]:
    """The results of a product without its workspaces, which are lists of bytes."""
    return [
        shape
        for at, shape in enumerate(instruction.shapes)
        if at == 0 or len(shape.dims) != 1 or shape.dtype not in ("int8", "uint8")
    ]


def _attention(instruction: Instruction, shapes: Sequence[Shape], *, backward: bool) -> Multiplied:
    """The products of queries with keys and of weights with values; backward, five products in place of two.

    With a causal mask a kernel may skip half of each.
    """
    scores = _numbers(instruction, "dimensions", within="intermediate_tensor_shape")
    if len(shapes) < 3 or len(scores) < 2 or not math.prod(scores):
        return Multiplied((), None)
    rows = math.prod(scores[:-1])
    columns = math.prod(scores) // scores[-2]
    keys = math.prod(shapes[0].dims) / rows
    values = math.prod(shapes[2].dims) / columns
    number = math.prod(scores) * (3 * keys + 2 * values if backward else keys + values)
    causal = re.search(r'\\?"mask_type\\?": ?\\?"\w*CAUSAL', instruction.attributes) is not None
    return Multiplied((shapes[0], shapes[1]), number / 2 if causal else number)


def _numbers(instruction: Instruction, name: str, within: str = "") -> list[int]:
    """The numbers of a list in the configuration of a call, which older versions write as a quoted text."""
    text = instruction.attributes
    start = text.find(within) if within else 0
    match = re.compile(rf'\b{name}\\?": ?\[([^\]]*)\]').search(text, max(start, 0)) if start >= 0 else None
    return [int(number) for number in re.findall(r"\d+", match[1])] if match else []
