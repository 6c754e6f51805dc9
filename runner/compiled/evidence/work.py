"""Counts the floating-point operations of each line of a compiled module, and its memory traffic, on one device.

Floating-point operations are those of products and convolutions, two per multiply-add: the work of matrix units. Bytes
are those that an instruction outside of fusions reads and writes; values inside a fusion stay on the chip. Both are
lower bounds: a cache may hold less than assumed, and other operations take time too.

XLA's compiler for GPUs replaces products by calls of cuBLAS and cuDNN (hipBLAS and MIOpen under the same names on
ROCm). Their results are tuples whose first array is the product; the others are workspaces and statistics. Products in
Triton's fusions are `dot`s inside the fusion. The multiplications of the others are counted from their custom calls.

Source: xla/service/gpu/cublas_cudnn.h names the targets, xla/service/gpu/backend_configs.proto the configurations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from runner.base import executions
from runner.base.executions import Range
from runner.base.lazy import dataclass, pattern
from runner.compiled.evidence import opcodes
from runner.compiled.evidence.counts import Counts
from runner.compiled.evidence.hlo import CALLING, Computation, Instruction, Module, Shape
from runner.compiled.evidence.narrow import WIDE, NarrowFloats, product, share
from runner.compiled.evidence.nodes import Attribution, served
from runner.compiled.evidence.opcodes import IDLE, kind_of, target_of

_MATMUL = pattern(r"__cublas\$(gemm|lt\$\w*[mM]atmul(\$f8|\$mx)?)")
_CONVOLUTION = pattern(r"__cudnn\$conv(Forward|BiasActivationForward|BackwardInput|BackwardFilter|ForwardGraph)")
_ATTENTION = pattern(r"__cudnn\$fmha\w*?(Backward\w*)?")

Convolved = Callable[[Instruction, Shape, Shape, Shape], int | None]
"""Counts the multiplications of a convolution with this window, from its image, its filter and its result."""


@dataclass(frozen=True)
class Multiplied:
    """The arrays that are multiplied, and the number of multiplications; None if it could not be read."""

    operands: tuple[Shape, ...]
    number: float | None


def library_product(
    instruction: Instruction, target: str, shapes: Sequence[Shape], convolved: Convolved
) -> Multiplied | None:
    """What a custom call to `target` multiplies; None if it is no product.

    - `shapes`: those of its operands; `convolved`: counts a convolution.
    """
    result = instruction.shapes[:1]
    if _ATTENTION.fullmatch(target):
        return _attention(instruction, shapes, backward="Backward" in target)
    if _MATMUL.fullmatch(target):
        if len(shapes) < 2 or not result:
            return Multiplied((), None)
        contracted = _library_numbers(instruction, "lhs_contracting_dimensions")
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


def is_library_product(target: str) -> bool:
    """Whether a custom call to `target` computes a product."""
    return any(pattern.fullmatch(target) for pattern in (_MATMUL, _CONVOLUTION, _ATTENTION))


def library_results(instruction: Instruction) -> list[Shape]:
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
    scores = _library_numbers(instruction, "dimensions", within="intermediate_tensor_shape")
    if len(shapes) < 3 or len(scores) < 2 or not math.prod(scores):
        return Multiplied((), None)
    rows = math.prod(scores[:-1])
    columns = math.prod(scores) // scores[-2]
    keys = math.prod(shapes[0].dims) / rows
    values = math.prod(shapes[2].dims) / columns
    number = math.prod(scores) * (3 * keys + 2 * values if backward else keys + values)
    causal = re.search(r'\\?"mask_type\\?": ?\\?"\w*CAUSAL', instruction.attributes) is not None
    return Multiplied((shapes[0], shapes[1]), number / 2 if causal else number)


def _library_numbers(instruction: Instruction, name: str, within: str = "") -> list[int]:
    """The numbers of a list in the configuration of a call, which older versions write as a quoted text."""
    text = instruction.attributes
    start = text.find(within) if within else 0
    match = re.compile(rf'\b{name}\\?": ?\[([^\]]*)\]').search(text, max(start, 0)) if start >= 0 else None
    return [int(number) for number in re.findall(r"\d+", match[1])] if match else []


Kind = tuple[str, str]
"""What a product multiplies, and how precisely: `("float32", "highest")`."""

IN_BRANCHES = "the lines of a branch count as if it were always taken: a run may take less"

_PASSED = IDLE - {"copy", "iota"}
"""Opcodes that neither read nor write memory."""

_CONVERTING = {"parameter", "convert", "bitcast"}
"""The opcodes of a fusion that only converts."""

_AHEAD = ("copy-start", "slice-start", "dynamic-slice-start")
"""Copies that overlap with computation; the first array of their result is the written one."""


@dataclass
class LineWork:
    """What the instructions of one line do on one device, over all of their executions.

    - `nodes`: the lines; several where one instruction serves them all, none where the module does not say.
    - `flops`: by what is multiplied; `bytes`: read and written.
    """

    nodes: tuple[str, ...]
    gradient: bool
    flops: dict[Kind, float] = field(default_factory=dict[Kind, float])
    bytes: float = 0.0


@dataclass
class ModuleWork:
    """The lines in the order of the schedule, as each is first met, and the sentences about what is not counted.

    - `ahead`: the bytes that asynchronous copies read and write, which belong to no line's time.
    """

    lines: list[LineWork] = field(default_factory=list[LineWork])
    unknown: list[str] = field(default_factory=list[str])
    ahead: float = 0.0


def read(
    module: Module, origins: Attribution, narrow_lines: Mapping[str, NarrowFloats] = MappingProxyType({})
) -> ModuleWork | None:
    """What a module computes and moves; None where no entry computation could be read.

    `narrow_lines`: the lines whose floats have fewer bits in the file than in the module, which count as in the file;
    converting them costs nothing.
    """
    return None if module.entry is None else _WorkReader(module, origins, narrow_lines).read(module.entry)


class _WorkReader:
    def __init__(self, module: Module, origins: Attribution, narrow_lines: Mapping[str, NarrowFloats]) -> None:
        self._module, self._narrow = module, narrow_lines
        self._origins = origins
        self._counts = Counts(module)
        self._lines: dict[tuple[tuple[str, ...], bool], LineWork] = {}
        self._unknown: dict[str, None] = {}
        self._ahead = 0.0

    def read(self, entry: Computation) -> ModuleWork:
        for computation, instruction in self._run(entry, set()):
            count = self._counts.of(computation.name).count
            if count is None:
                self._unknown[f"how often {computation.name} runs is not known: it counts once"] = None
            elif isinstance(count, Range):
                self._unknown[IN_BRANCHES] = None
            self._add(computation, instruction, 1 if count is None else executions.ends(count)[1])
        return ModuleWork(list(self._lines.values()), list(self._unknown), self._ahead)

    def _run(self, computation: Computation, visited: set[str]) -> Iterator[tuple[Computation, Instruction]]:
        """Yield the instructions that run, as scheduled, with their places; not those inside fusions and reductions."""
        if computation.name in visited:
            return
        visited.add(computation.name)
        for instruction in computation.instructions.values():
            yield computation, instruction
            if instruction.opcode in CALLING:
                for _, name in instruction.called:
                    if name in self._module.computations:
                        yield from self._run(self._module.computations[name], visited)

    def _add(self, computation: Computation, instruction: Instruction, times: int) -> None:
        opcode = instruction.opcode
        if opcode in _AHEAD:
            self._ahead += times * self._copied(computation, instruction)
        if opcode in _PASSED or opcode in CALLING or kind_of(instruction) or opcode.endswith(("-start", "-done")):
            return
        inside = list(self._inside(instruction)) if opcode == "fusion" else []
        flops: dict[Kind, float] = {}
        for where, member in [(computation, instruction), *inside]:
            self._count(where, member, flops)
        if not flops and any(kind_of(inner) for _, inner in inside):
            # It only computes a collective, whose time is that of the links.
            return
        line = self._line(instruction, [member for _, member in inside])
        for (dtype, precision), number in flops.items():
            kind = (product(line.nodes, self._narrow) or dtype) if dtype == WIDE else dtype, precision
            line.flops[kind] = line.flops.get(kind, 0.0) + number * times
        line.bytes += self._moved(computation, instruction, line, [member for _, member in inside]) * times

    def _inside(self, fusion: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        for _, name in fusion.called:
            where = self._module.computations.get(name)
            for instruction in where.instructions.values() if where else ():
                yield where, instruction  # type: ignore[misc]
                if instruction.opcode == "fusion":
                    yield from self._inside(instruction)

    def _line(self, instruction: Instruction, inside: list[Instruction]) -> LineWork:
        """The line of an instruction; for a fusion, the line of its product, if it has one."""
        products = [fused for fused in inside if fused.opcode in ("dot", "convolution")]
        origins = [origin for fused in products for origin in self._origins.of(fused.metadata)]
        origins = origins or list(self._origins.of(instruction.metadata))
        origins = origins or [origin for fused in inside for origin in self._origins.of(fused.metadata)]
        nodes, gradient = served(origins)
        key = tuple(nodes), gradient
        return self._lines.setdefault(key, LineWork(*key))

    def _count(self, computation: Computation, instruction: Instruction, flops: dict[Kind, float]) -> None:
        """Add the products and convolutions of one instruction."""
        if instruction.opcode not in ("dot", "convolution", "custom-call"):
            return
        shapes = self._operands(computation, instruction)
        target = target_of(instruction)
        if target is not None:
            self._count_library(instruction, target, shapes, flops)
            return
        number = None if len(shapes) < 2 else _multiplied(instruction, *shapes[:2])
        if number is None:
            self._unknown[f"the operands of {instruction.name} could not be read"] = None
            return
        self._multiply(instruction, shapes[:2], number, flops)

    def _count_library(
        self, instruction: Instruction, target: str, shapes: Sequence[Shape], flops: dict[Kind, float]
    ) -> None:
        """Add the products that a library computes."""
        product = library_product(instruction, target, shapes, _convolved)
        if product is not None and product.number is not None:
            self._multiply(instruction, product.operands, product.number, flops)
        elif product is not None:
            self._unknown[f"the operands of {instruction.name} could not be read"] = None
        elif opcodes.computing(target):
            self._unknown[f"the flops of {target} are not counted"] = None

    def _multiply(
        self, instruction: Instruction, shapes: Sequence[Shape], number: float, flops: dict[Kind, float]
    ) -> None:
        widest = max((shape.dtype for shape in shapes), key=lambda dtype: _bits(dtype, shapes))
        kind = (widest, _precision(instruction))
        flops[kind] = flops.get(kind, 0.0) + 2.0 * number

    def _operands(self, computation: Computation, instruction: Instruction) -> list[Shape]:
        operands = [computation.instructions.get(name) for name in instruction.operands]
        return [operand.shapes[0] for operand in operands if operand is not None and operand.shapes]

    def _memory(self, shapes: Sequence[Shape]) -> int:
        """The bytes of these arrays in the device's main memory; on TPUs, VMEM and similar memories are excluded."""
        return sum(shape.bytes for shape in shapes if not (self._module.tiled and shape.space))

    def _copied(self, computation: Computation, start: Instruction) -> int:
        """The bytes that an asynchronous copy reads and writes."""
        source = computation.instructions.get(start.operands[0]) if start.operands else None
        written = start.shapes[:1] if start.opcode == "copy-start" else start.shapes[1:2]
        read = [replace(shape, space=source.shapes[0].space if source and source.shapes else 0) for shape in written]
        return self._memory(read) + self._memory(written)

    def _moved(
        self, computation: Computation, instruction: Instruction, line: LineWork, inside: Sequence[Instruction]
    ) -> float:
        """The bytes that an instruction of a line reads and writes, with those of the file's floats."""
        if self._narrow and {fused.opcode for fused in inside or [instruction]} <= _CONVERTING:
            return 0.0
        moved, part = self._bytes(computation, instruction), share(line.nodes, self._narrow)
        if part == 1:
            return moved
        shapes = [*self._operands(computation, instruction), *instruction.shapes]
        wide = self._memory([shape for shape in shapes if shape.dtype == WIDE])
        return moved * (1 - (1 - part) * wide / max(1, self._memory(shapes)))

    def _bytes(self, computation: Computation, instruction: Instruction) -> float:
        """The bytes that an instruction reads and writes."""
        operands = [computation.instructions.get(name) for name in instruction.operands]
        sizes = [self._memory(operand.shapes) if operand is not None else 0 for operand in operands]
        result = self._memory(instruction.shapes)
        match instruction.opcode:
            case "custom-call" if opcodes.still(target_of(instruction) or ""):
                return 0
            case "custom-call" if is_library_product(target_of(instruction) or ""):
                return sum(sizes) + self._memory(library_results(instruction))
            case "dynamic-slice" | "slice" | "gather":
                return result + min(instruction.bytes, *sizes[:1])
            case "dynamic-update-slice" if len(operands) > 1 and (update := operands[1]) is not None:
                return sizes[1] + (update.bytes if result else 0)
            case "scatter" if operands and (update := operands[-1]) is not None:
                return sizes[-1] + (2 * update.bytes if result else 0)
            case "fusion":
                return self._of_fusion(instruction, sizes, result)
            case _:
                return sum(sizes) + result

    def _of_fusion(self, fusion: Instruction, sizes: list[int], result: int) -> float:
        """The bytes that a fusion reads and writes: only slices of operands or of a result updated in place."""
        called = dict(fusion.called).get("calls", "")
        where = self._module.computations.get(called)
        if where is None or where.root is None:
            return sum(sizes) + result
        written, total = float(result), 0.0
        root = where.root
        while root.opcode in ("bitcast", "copy", "convert") and root.operands[0] in where.instructions:
            root = where.instructions[root.operands[0]]
        updated = None
        if root.opcode == "dynamic-update-slice" and root.operands[1] in where.instructions:
            written = where.instructions[root.operands[1]].bytes if result else 0.0
            updated = root.operands[0]
        for number, size in enumerate(sizes):
            parameter = where.parameters.get(number)
            if parameter is None or parameter.name == updated:
                continue
            users = where.users.get(parameter.name, [])
            slices = users and all(
                user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == parameter.name
                for user in users
            )
            total += min(size, sum(user.bytes for user in users)) if slices else size
        return total + written


def _multiplied(instruction: Instruction, left: Shape, right: Shape) -> int | None:
    """The number of products that a dot or a convolution sums."""
    results = math.prod(instruction.shapes[0].dims)
    if instruction.opcode == "dot":
        contracted = _numbers(instruction.attribute("lhs_contracting_dims"))
        if any(dim >= len(left.dims) for dim in contracted):
            return None
        return results * math.prod(left.dims[dim] for dim in contracted)
    return _convolved(instruction, left, right, instruction.shapes[0])


def _convolved(instruction: Instruction, left: Shape, right: Shape, out: Shape) -> int | None:
    """The number of products that a convolution of an image with a filter sums."""
    labels = re.match(r"(\w+)_(\w+)->(\w+)", instruction.attribute("dim_labels") or "")
    ranks = len(left.dims), len(right.dims), len(out.dims)
    if labels is None or tuple(map(len, labels.groups())) != ranks or "o" not in labels[2] or "i" not in labels[2]:
        return None
    result = _spatial(labels[3], out.dims)
    moved = _moved(instruction, _spatial(labels[1], left.dims), _spatial(labels[2], right.dims), result)
    if moved is None:
        return None
    return math.prod(out.dims) // max(1, math.prod(result)) * right.dims[labels[2].index("i")] * moved


def _spatial(labels: str, dims: Sequence[int]) -> list[int]:
    """The sizes of the dimensions that a window moves over, in the order of their numbers."""
    return [dims[labels.index(label)] for label in sorted(filter(str.isdigit, labels))]


_WINDOW = 1 << 20
"""The largest window: no module of a compiler's comes near it."""


def _moved(instruction: Instruction, image: Sequence[int], window: Sequence[int], result: Sequence[int]) -> int | None:
    """The number of pairs of a result and a window position that is not on padding.

    XLA writes products of more than two dimensions as convolutions whose windows are mostly on padding, and computes
    none of that. Counted as in its HloCostAnalysis::HandleConvolution.
    """
    window_text = instruction.attribute("window") or ""
    count = len(image)

    def of(name: str, otherwise: int) -> list[int]:
        match = re.search(rf"\b{name}=([\dx]+)", window_text)
        return [int(number) for number in match[1].split("x")] if match else [otherwise] * count

    pads = re.search(r"\bpad=([-\dx_]+)", window_text)
    low = [int(pad.split("_")[0]) for pad in pads[1].split("x")] if pads else [0] * count
    strides, dilated, apart = of("stride", 1), of("lhs_dilate", 1), of("rhs_dilate", 1)
    if not len(strides) == len(dilated) == len(apart) == len(low) == len(window) == len(result) == count:
        return None
    if 0 in (*strides, *dilated) or max(window, default=0) > _WINDOW:
        return None
    total = 1
    for at in range(count):
        last = (image[at] - 1) * dilated[at]
        # For each position in the window, the results for which it is on an element.
        starts = [place * apart[at] - low[at] for place in range(window[at])]
        total *= sum(_hits(start, strides[at], result[at], last, dilated[at]) for start in starts)
    return total


def _hits(start: int, stride: int, results: int, last: int, dilated: int) -> int:
    """The number of `results`, from `start` on and `stride` apart, that are multiples of `dilated` from 0 to `last`."""
    first, final = max(0, -(start // stride)), min(results - 1, (last - start) // stride)
    shared = math.gcd(stride, dilated)
    if start % shared:
        return 0
    # Every `period`-th result is on an element.
    period = dilated // shared
    residue = -(start // shared) * pow(stride // shared, -1, period) % period
    first += (residue - first) % period
    return 0 if first > final else (final - first) // period + 1


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def _precision(instruction: Instruction) -> str:
    """The precision of a product's operands; `default` if it has none."""
    precision = instruction.attribute("operand_precision")
    if precision is None:
        # A library's product has it in its configuration.
        config = re.search(r'operand_precision\\?": ?\[([^\]]*)\]', instruction.attributes)
        precision = config[1].lower() if config else ""
    precisions = re.findall(r"\w+", precision)
    return next((word for word in ("highest", "high") if word in precisions), "default")


def _bits(dtype: str, shapes: Sequence[Shape]) -> int:
    return next(shape.bits for shape in shapes if shape.dtype == dtype)
