"""Reads the text of a compiled HLO module into its computations and instructions.

Only what the evidence needs is parsed: names, opcodes, shapes, operands, the attributes that name computations. The
rest of an instruction stays text. Lines that cannot be read are kept in `Module.unread`, never dropped.

Source: xla/hlo/parser/hlo_parser.cc and xla/hlo/ir/hlo_instruction.cc, which print and read this syntax.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from runner.base.grouping import by_key
from runner.base.lazy import dataclass, pattern

_DTYPES = {
    "pred": ("bool", 8), "s2": ("int2", 2), "s4": ("int4", 4), "s8": ("int8", 8), "s16": ("int16", 16),
    "s32": ("int32", 32), "s64": ("int64", 64), "u2": ("uint2", 2), "u4": ("uint4", 4), "u8": ("uint8", 8),
    "u16": ("uint16", 16), "u32": ("uint32", 32), "u64": ("uint64", 64), "f16": ("float16", 16),
    "bf16": ("bfloat16", 16), "f32": ("float32", 32), "f64": ("float64", 64), "c64": ("complex64", 64),
    "c128": ("complex128", 128), "f4e2m1fn": ("float4_e2m1fn", 4), "f8e3m4": ("float8_e3m4", 8),
    "f8e4m3": ("float8_e4m3", 8), "f8e4m3fn": ("float8_e4m3fn", 8), "f8e4m3fnuz": ("float8_e4m3fnuz", 8),
    "f8e4m3b11fnuz": ("float8_e4m3b11fnuz", 8), "f8e5m2": ("float8_e5m2", 8), "f8e5m2fnuz": ("float8_e5m2fnuz", 8),
    "f8e8m0fnu": ("float8_e8m0fnu", 8), "token": ("token", 0), "opaque": ("opaque", 0),
}  # fmt: skip

_LEAF = pattern(r"\b([a-z]+[0-9]*(?:e[0-9]+m[0-9]+[a-z0-9]*)?)\[([0-9,<=?]*)\](?:\{([^{}]*)\})?")
_SPACE = pattern(r"S\((\d+)\)")
_COMMENT = pattern(r"/\*.*?\*/")
_NAME = pattern(r"%([^\s,(){}=]+)")
_DEFINITION = pattern(r"^\s+(ROOT )?%?([^\s=]+) = ")
_PLAIN = pattern(
    r"^\s+(ROOT )?%?([^\s=]+) = ([a-z][a-z0-9]*\[[0-9,]*\](?:\{[^{}]*\})?) ([a-z][a-z0-9\-]*)\(([^()\[\]{}\"]*)\)"
)
"""A definition whose result is one array, and whose operands are without brackets, as most are."""

_OPCODE = pattern(r"\s*([a-z][a-z0-9\-]*)\(")
_OP_NAME = pattern(r'[ {]op_name="((?:[^"\\]|\\.)*)"')
_STACK_FRAME = pattern(r" stack_frame_id=(\d+)|\{stack_frame_id=(\d+)")
_SOURCE = pattern(r'[ {]source_file="((?:[^"\\]|\\.)*)" source_line=(\d+)')
_CALLED = pattern(
    r", (to_apply|calls|body|condition|true_computation|false_computation|branch_computations|called_computations"
    r"|select|scatter|comparator)=(?:%?([\w.\-]+)|\{([^}]*)\})"
)
SILENT = frozenset(
    {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "copy", "broadcast", "reshape", "transpose"}
    | {"add", "subtract", "multiply", "divide", "maximum", "minimum", "negate", "abs", "sign", "power", "remainder"}
    | {"and", "or", "xor", "not", "compare", "select", "clamp", "convert", "bitcast-convert", "is-finite", "iota"}
    | {"exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "sqrt", "rsqrt", "cbrt"}
    | {"sine", "cosine", "tan", "atan2", "erf", "floor", "ceil", "round-nearest-even", "round-nearest-afz"}
    | {"shift-left", "shift-right-logical", "shift-right-arithmetic", "popcnt", "count-leading-zeros"}
    | {"concatenate", "slice", "dynamic-slice", "dynamic-update-slice", "gather", "pad", "reverse", "dot"}
    | {"convolution", "real", "imag", "complex", "reduce-precision"}
)
"""Opcodes that neither communicate nor run a computation: those of most instructions."""

STARTED = ("async-start", "call-start", "custom-call-start")
"""Opcodes that start a computation which runs beside the instructions after it: on a TPU's SparseCore, for example."""

CALLING = ("while", "conditional", "call", *STARTED)
"""Opcodes that only do the work of the computations that they run, which execute as separate instructions."""

GOING_ON = {f"{start.removesuffix('-start')}-{end}" for start in STARTED for end in ("update", "done")}
"""Opcodes of what was started: it goes on, it is done."""

_CALLING_NOTHING = SILENT | GOING_ON
"""Opcodes that run no computation; some name the one that their start runs."""

_QUOTED = pattern(r'"(?:[^"\\]|\\.)*"')

_COMPUTATION = pattern(r"^(ENTRY )?%?([^\s(]+) (?:\(.*\) -> .*)?\{\s*$")


_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = pattern(r'^(\d+) (?:"((?:[^"\\]|\\.)*)"|\{(.*)\})')
_ENTRY = pattern(r"(\w+)=(\d+)")

Location: TypeAlias = tuple[str, int]
"""A line of a Python file, by its number."""


@dataclass(frozen=True)
class Metadata:
    """Where JAX traced an operation.

    - `op_name`: the name stack; empty if the compiler gave it none.
    - `frames`: the lines of the user's files, those of the innermost call first.
    """

    op_name: str = ""
    frames: tuple[Location, ...] = ()


@dataclass
class StackFrames:
    """The tables at the head of a module, which map the number of a stack frame to lines of the user's files."""

    rows: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _read: dict[int, tuple[Location, ...]] = field(default_factory=dict[int, tuple[Location, ...]], repr=False)

    @cached_property
    def _tables(self) -> dict[str, dict[int, Any]]:
        tables: dict[str, dict[int, Any]] = {name: {} for name in _TABLES}
        for name, rows in self.rows.items():
            for match in filter(None, map(_ROW.match, rows)):
                text = match[2]
                if (text is None) == name.endswith("Names"):
                    # A broken table has rows of another one.
                    continue
                entries = {entry: int(number) for entry, number in _ENTRY.findall(match[3] or "")}
                tables[name][int(match[1])] = entries if text is None else text
        return tables

    @property
    def files(self) -> list[str]:
        """The names of all files."""
        return [*self._tables["FileNames"].values()]

    def of(self, number: int) -> tuple[Location, ...]:
        """The lines of a stack frame, those of the innermost call first."""
        if number not in self._read:
            self._read[number] = self._of(number)
        return self._read[number]

    def _of(self, number: int) -> tuple[Location, ...]:
        files, places, stack = (self._tables[name] for name in ("FileNames", "FileLocations", "StackFrames"))
        # The first frame has no parent: its parent's number is 0.
        none = stack.get(1, {}).get("parent_frame_id", 0)
        frames: list[Location] = []
        # A broken table may go round.
        for _ in range(len(stack)):
            if number not in stack:
                break
            place = places.get(stack[number].get("file_location_id"), {})
            file = files.get(place.get("file_name_id"))
            if file is not None:
                frames.append((file, place.get("line", 0)))
            number = stack[number].get("parent_frame_id", none) - none
        return tuple(frames)


NO_FRAMES = StackFrames()
"""The tables of a module without stack frames."""


_NO_METADATA = Metadata()


def metadata(attributes: str, stack_frames: StackFrames) -> Metadata:
    """Where JAX traced an operation with these attributes."""
    start = attributes.find("metadata={")
    if start < 0:
        return _NO_METADATA
    name, number = _OP_NAME.search(attributes, start), _STACK_FRAME.search(attributes, start)
    frames = stack_frames.of(int(number[1] or number[2])) if number else ()
    if not frames and (source := _SOURCE.search(attributes, start)) is not None:
        # A module of before JAX 0.7 has the innermost frame alone.
        frames = ((source[1], int(source[2])),)
    return Metadata(name[1] if name else "", frames)


@dataclass(frozen=True)
class Shape:
    """One array of an instruction's result; a tuple has several.

    - `space`: the device's memory space, 0 for the main memory. The others depend on the backend.
    """

    dtype: str
    dims: tuple[int, ...]
    bits: int
    space: int = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that one device holds."""
        return (math.prod(self.dims) * self.bits + 7) // 8


def size_of(shapes: Iterable[Shape] | None) -> int | None:
    """The bytes of all these arrays; None if that of one is unknown."""
    shapes = None if shapes is None else [shape for shape in shapes if shape.dtype != "token"]
    return None if shapes is None or not all(shape.bits for shape in shapes) else sum(s.bytes for s in shapes)


@dataclass
class Instruction:
    """One line of a computation.

    - `operands`: names of instructions of the same computation.
    - `called`: the computations that it runs, as (role, name): `("calls", "fused_computation")`.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool
    position: int
    called: tuple[tuple[str, str], ...] = ()
    stack_frames: StackFrames = field(default_factory=StackFrames, repr=False)
    shape_text: str = field(default="", repr=False)

    @property
    def elements(self) -> tuple[str, ...]:
        """The shapes of a tuple's elements, as text; none of an array."""
        if not self.shape_text.startswith("("):
            return ()
        return tuple(part.strip() for part in _parts(_COMMENT.sub("", self.shape_text)[1:-1]))

    @cached_property
    def metadata(self) -> Metadata:
        """Where JAX traced the operation."""
        return metadata(self.attributes, self.stack_frames)

    @property
    def op_name(self) -> str:
        """JAX's name stack at which the operation was traced; empty if the compiler gave it none."""
        return self.metadata.op_name

    @property
    def bytes(self) -> int:
        """The bytes of all arrays of its result."""
        return sum(shape.bytes for shape in self.shapes)

    def attribute(self, name: str) -> str | None:
        """The text of one attribute, up to the comma that ends it."""
        text, start = self.attributes, self.attributes.find(f"{name}=")
        while start > 0 and text[start - 1] not in ", ":
            start = text.find(f"{name}=", start + 1)
        if start < 0:
            return None
        start += len(name) + 1
        return text[start : _end(text, start, ",")].strip()

    def parameter(self) -> int:
        """The number of a parameter."""
        return int(self.operands[0])

    def index(self) -> int:
        """The index of a `get-tuple-element` in its tuple."""
        return int(self.attribute("index") or 0)


@dataclass
class Computation:
    """Named instructions, in the order of the schedule if the module has one."""

    name: str
    entry: bool
    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])

    @cached_property
    def order(self) -> tuple[Instruction, ...]:
        """The positions of the instructions, by name."""
        return tuple(self.instructions.values())

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """For each instruction, the instructions that take its result."""
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            operands = instruction.operands
            for operand in dict.fromkeys(operands) if len(operands) > 1 else operands:
                users.setdefault(operand, []).append(instruction)
        return users

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The parameters by their numbers."""
        return {i.parameter(): i for i in self.instructions.values() if i.opcode == "parameter"}

    @cached_property
    def root(self) -> Instruction | None:
        """The instruction whose result is the computation's."""
        return next((i for i in reversed(self.instructions.values()) if i.root), None)


@dataclass
class Module:
    """A module. `unread` are the lines that cannot be parsed, are in no computation, or have a duplicate name.

    - `tiled`: whether arrays are stored in tiles, as only on TPUs.
    """

    name: str = ""
    scheduled: bool = False
    tiled: bool = False
    partitions: int = 1
    replicas: int = 1
    computations: dict[str, Computation] = field(default_factory=dict[str, Computation])
    unread: list[str] = field(default_factory=list[str])
    stack_frames: StackFrames = field(default_factory=StackFrames)

    @cached_property
    def entry(self) -> Computation | None:
        """The computation that the module runs first."""
        return next((c for c in self.computations.values() if c.entry), None)

    @cached_property
    def instructions(self) -> dict[str, Instruction]:
        """The instructions of all computations, by their names."""
        return {name: i for computation in self.computations.values() for name, i in computation.instructions.items()}

    def inside(self, instruction: Instruction, role: str | None = None) -> Iterator[Instruction]:
        """The instructions of the computations that an instruction calls, all or those in one `role`."""
        for called_as, name in instruction.called:
            if name in self.computations and role in (None, called_as):
                yield from self.computations[name].instructions.values()

    @cached_property
    def callers(self) -> dict[str, list[tuple[Computation, Instruction, str]]]:
        """For each computation its callers: the calling computation, the instruction, the role."""
        callers: dict[str, list[tuple[Computation, Instruction, str]]] = {}
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                for role, name in instruction.called:
                    callers.setdefault(name, []).append((computation, instruction, role))
        return callers


def read(text: str) -> Module:
    """Read the text of a module (`compiled.as_text()`)."""
    module = Module(tiled=":T(" in text)
    computation: Computation | None = None
    rows: list[str] | None = None
    for line in text.splitlines():
        if computation is None:
            if line in _TABLES:
                rows = module.stack_frames.rows[line] = []
            elif rows is not None and line:
                rows.append(line)
            elif not line:
                rows = None
            elif line.startswith("HloModule "):
                _header(module, line)
            elif not line[0].isspace() and line.rstrip().endswith("{"):
                match = _COMPUTATION.match(line)
                if match is None:
                    module.unread.append(line.strip())
                    continue
                computation = Computation(match.group(2), bool(match.group(1)))
                module.computations[computation.name] = computation
            elif _DEFINITION.match(line):
                module.unread.append(line.strip())
        elif line.startswith("}"):
            computation = None
        elif line.strip():
            instruction = _instruction(line, len(computation.instructions), module.stack_frames)
            if instruction is not None and "#" in line and any("#" in name for name in instruction.operands):
                _take_elements(computation, instruction)
            if instruction is None or instruction.name in computation.instructions:
                module.unread.append(line.strip())
            else:
                computation.instructions[instruction.name] = instruction
    if computation is not None:
        module.unread.append(f"the text ends inside of {computation.name}")
    return module


def _take_elements(computation: Computation, reading: Instruction) -> None:
    """Add the elements of tuples that an instruction reads as `%tuple#1`; most texts have instructions for them."""
    for name in reading.operands:
        _take_element(computation, name, reading.stack_frames)
    reading.position = len(computation.instructions)


def _take_element(computation: Computation, name: str, stack_frames: StackFrames) -> None:
    of, mark, index = name.rpartition("#")
    if not mark or not index.isdecimal() or name in computation.instructions:
        return
    _take_element(computation, of, stack_frames)
    source = computation.instructions.get(of)
    elements = source.elements if source is not None else ()
    if int(index) < len(elements):
        text = elements[int(index)]
        computation.instructions[name] = Instruction(
            name, "get-tuple-element", shapes(text), (of,), f", index={index}", False, len(computation.instructions),
            (), stack_frames, text,
        )  # fmt: skip


def _header(module: Module, line: str) -> None:
    module.name = line.split()[1].rstrip(",")
    module.scheduled = "is_scheduled=true" in line
    for attribute, number in re.findall(r"\b(num_partitions|replica_count)=(\d+)", line):
        if attribute == "num_partitions":
            module.partitions = int(number)
        else:
            module.replicas = int(number)


def _instruction(line: str, position: int, stack_frames: StackFrames) -> Instruction | None:
    plain = _PLAIN.match(line)
    if plain is not None:
        root, name, shape, kind, inside = plain.groups()
        operands, rest = _operands(kind, inside), line[plain.end() :]
        called = () if kind in _CALLING_NOTHING else _called(rest)
        instruction = Instruction(name, kind, shapes(shape), operands, rest, bool(root), position, called, stack_frames)
        return instruction if _complete(instruction) else None
    match = _DEFINITION.match(line)
    if match is None:
        return None
    start = match.end()
    # A tuple's shape is in parentheses; any other ends at the first space.
    end = _end(line, start + 1, ")") + 1 if line[start : start + 1] == "(" else line.find(" ", start)
    opcode = _OPCODE.match(line, end) if end > 0 else None
    if opcode is None:
        return None
    close = _end(line, opcode.end(), ")")
    inside, rest = line[opcode.end() : close], line[close + 1 :]
    instruction = Instruction(
        name=match.group(2),
        opcode=opcode.group(1),
        shapes=shapes(line[start:end]),
        operands=_operands(opcode.group(1), inside),
        attributes=rest,
        root=bool(match.group(1)),
        position=position,
        called=() if opcode.group(1) in _CALLING_NOTHING else _called(rest),
        stack_frames=stack_frames,
        shape_text=line[start:end],
    )
    return instruction if _complete(instruction) else None


_WITHOUT_OPERANDS = frozenset(
    {"parameter", "constant", "iota", "partition-id", "replica-id", "after-all", "tuple", "infeed", "rng", "fusion"}
    | {"rng-get-and-update-state", "custom-call", "call", *STARTED, "recv", "create-token", "conditional"}
    | {"get-dimension-size", "map", "rng-bit-generator", "all-reduce", "all-gather", "all-to-all", "reduce-scatter"}
)
"""Opcodes whose instructions may have no operands."""


def _called(attributes: str) -> tuple[tuple[str, str], ...]:
    """The computations that an instruction with these attributes runs, as (role, name)."""
    if _CALLED.search(attributes) is None:
        return ()
    called: list[tuple[str, str]] = []
    # The metadata may hold anything in quotes.
    for role, single, several in _CALLED.findall(_QUOTED.sub('""', attributes)):
        names = [single] if single else [name.strip().lstrip("%") for name in several.split(",")]
        called += [(role, name) for name in names if name]
    return tuple(called)


_NUMBERED = frozenset({"parameter", "get-tuple-element", "dynamic-update-slice", "compare"})
"""Opcodes of which `_complete` asks for more than operands."""


def _complete(instruction: Instruction) -> bool:
    """Whether an instruction has what later readers take from it: numbers, and the operands of its opcode."""
    if instruction.operands and instruction.opcode not in _NUMBERED:
        return True
    match instruction.opcode:
        case "parameter":
            return instruction.operands[:1] != () and instruction.operands[0].isdecimal()
        case "get-tuple-element":
            return len(instruction.operands) == 1 and (instruction.attribute("index") or "").isdecimal()
        case "dynamic-update-slice" | "compare":
            return len(instruction.operands) > 1
        case opcode:
            return opcode in _WITHOUT_OPERANDS


def _operands(opcode: str, text: str) -> tuple[str, ...]:
    if opcode in ("parameter", "constant"):
        # Parameters and scalar constants have their number or value in place of operands.
        return (text.strip(),) if len(text) < 32 else ()
    if not text:
        return ()
    if text[0] == "%" and "/" not in text and ("," not in text or text.count(",") == text.count(", %")):
        return tuple(text[1:].split(", %"))
    if "%" in text:
        return tuple(_NAME.findall(text))
    # Without percent signs an operand is the last word of its part.
    return tuple(part.split()[-1] for part in _parts(_COMMENT.sub("", text)) if part.strip())


def _parts(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets."""
    start = 0
    while start < len(text):
        end = _end(text, start, ",")
        yield text[start:end]
        start = end + 1


_BRACKETS = pattern(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')


def _end(text: str, start: int, until: str) -> int:
    """The position of `until` outside of all brackets and quotes that open after `start`; by default the end."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, start):
        mark = bracket.group()
        if depth == 0 and mark == until:
            return bracket.start()
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            if depth == 0:
                return bracket.start()
            depth -= 1
    return len(text)


@lru_cache(maxsize=1 << 14)
def shapes(text: str) -> tuple[Shape, ...]:
    """The arrays of a shape: one, or the leaves of a tuple. Most shapes of a module are alike."""
    leaves: list[Shape] = []
    for dtype, dims, layout in _LEAF.findall(text):
        name, bits = _DTYPES.get(dtype, (dtype, 0))
        sizes = tuple(int(re.sub(r"\D", "", dim) or 0) for dim in dims.split(",") if dim)
        space = _SPACE.search(layout)
        leaves.append(Shape(name, sizes, bits, int(space[1]) if space else 0))
    return tuple(leaves)


def calls_itself(module: Module) -> str | None:
    """The name of a computation that calls itself, perhaps through others, as no module of XLA does; else None."""
    left = {
        name: {called for instruction in computation.instructions.values() for _, called in instruction.called}
        & module.computations.keys()
        for name, computation in module.computations.items()
    }
    leaves = [name for name, inner in left.items() if not inner]
    callers = by_key((called, name) for name, inner in left.items() for called in inner)
    while leaves:
        leaf = leaves.pop()
        del left[leaf]
        for caller in callers.get(leaf, ()):
            left[caller].discard(leaf)
            if not left[caller]:
                leaves.append(caller)
    return next(iter(left), None)


def disordered(module: Module) -> str | None:
    """A sentence about an operand that stands behind what reads it, which XLA never writes; None without one."""
    for computation in module.computations.values():
        # The instructions are in the order of the text; few of a large module read what no earlier one makes.
        before: set[str] = set()
        for instruction in computation.instructions.values():
            if not before.issuperset(instruction.operands) and instruction.opcode not in ("parameter", "constant"):
                for name in instruction.operands:
                    if name not in before and name in computation.instructions:
                        return f"{instruction.name} reads {name}, which stands behind it"
            before.add(instruction.name)
    return None


def trip_count(module: Module, loop: Instruction, computation: Computation) -> int | None:
    """How often a `while` runs its body: from the compiler's own count, else from its condition."""
    trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if trips:
        return int(trips.group(1))
    return _counted(module, loop, computation)


def _counted(module: Module, loop: Instruction, computation: Computation) -> int | None:
    """The count of `for (i = start; i < end; i += step)` if all three are constants, perhaps in the carry."""
    roles = dict(loop.called)
    condition = module.computations.get(roles.get("condition", ""))
    body = module.computations.get(roles.get("body", ""))
    entered = computation.instructions.get(loop.operands[0])
    if condition is None or body is None or condition.root is None or body.root is None or entered is None:
        return None
    test, ends = condition.root, body.root
    if test.opcode != "compare" or test.attribute("direction") != "LT" or {entered.opcode, ends.opcode} != {"tuple"}:
        return None

    def source(where: Computation, name: str) -> Instruction | None:
        """Return the value that a chain of copies starts from."""
        instruction = where.instructions.get(name)
        while instruction is not None and instruction.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
            instruction = where.instructions.get(instruction.operands[0])
        return instruction

    def carried(where: Computation, name: str) -> int | None:
        """The index of the carry's element that a value is; None if it is no such element."""
        instruction = source(where, name)
        return instruction.index() if instruction is not None and instruction.opcode == "get-tuple-element" else None

    def value(where: Computation, name: str) -> int | None:
        """A constant, or an element of the carry that starts as one and that no step changes."""
        index = None if where is computation else carried(where, name)
        if index is None:
            return constant(source(where, name))
        return value(computation, entered.operands[index]) if carried(body, ends.operands[index]) == index else None

    index = carried(condition, test.operands[0])
    if index is None:
        return None
    stepped = body.instructions.get(ends.operands[index])
    start, end = value(computation, entered.operands[index]), value(condition, test.operands[1])
    if start is None or end is None or stepped is None or stepped.opcode != "add":
        return None
    steps = [step for name in stepped.operands if (step := value(body, name)) is not None]
    if len(steps) != 1 or steps[0] <= 0 or index not in [carried(body, name) for name in stepped.operands]:
        return None
    return max(0, math.ceil((end - start) / steps[0]))


def constant(instruction: Instruction | None) -> int | None:
    """The value of an integer constant."""
    if instruction is None or instruction.opcode != "constant":
        return None
    text = instruction.operands[0] if instruction.operands else ""
    return int(text) if re.fullmatch(r"-?\d+", text) else None
