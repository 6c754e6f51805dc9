"""Finds the modules in a folder that XLA dumped into, and reads what the compiler wrote beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.base import plain
from runner.base.lazy import dataclass
from runner.link.events import Memory

_MODULE = re.compile(r"^(module_\d+\.(?P<name>.+?)(?:\.cl_\d+)?)\.(?P<stage>[^/]*?)(?P<suffix>\.txt|\.hlo\.pb|\.hlo)$")
"""The name of a dumped file; libtpu's has the number of its build behind the module's name."""

_STAGES = (
    re.compile(r"^(?:[a-z]+_|sm_[\d.a-z]+_gpu_|gfx\w+_gpu_|gpu_|tpu_)?after_optimizations$"),
    re.compile(r"^(?:.*_)?after_optimizations_after_buffer_assignment$|^after_codegen$|^.*after_spmd_partitioning.*$"),
    re.compile(r"^before_optimizations$"),
)
"""Stages of a module, those that devices run first."""

_LOOKED_AT = 100_000
"""The most files of a folder that are looked at."""

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+),(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class DumpedModule:
    """A module in a folder: its name, the file with the best stage of it, and the size of that."""

    name: str
    file: Path
    bytes: int
    compiled: bool


def modules(folder: Path) -> list[DumpedModule]:
    """The modules in a folder, the largest first; of each the stage that devices run, as text if it is there.

    Raises `OSError` if the folder cannot be read.
    """
    best: dict[str, tuple[tuple[int, int], DumpedModule]] = {}
    for at, file in enumerate(folder.iterdir()):
        match = _MODULE.match(file.name)
        if at >= _LOOKED_AT:
            break
        if match is None or not file.is_file():
            continue
        stage = next((k for k, pattern in enumerate(_STAGES) if pattern.match(match["stage"])), None)
        if stage is None:
            continue
        module = DumpedModule(match["name"], file, file.stat().st_size, stage == 0)
        rank = stage, int(match["suffix"] != ".txt")
        if match[1] not in best or rank < best[match[1]][0]:
            best[match[1]] = rank, module
    return sorted((module for _, module in best.values()), key=lambda module: (-module.bytes, module.file.name))


def is_unoptimized(file: Path) -> bool:
    """Whether a file is a dumped module before XLA's passes."""
    match = _MODULE.match(file.name)
    return match is not None and _STAGES[-1].match(match["stage"]) is not None


def unoptimized(file: Path) -> Path | None:
    """The file of the same module before XLA's passes, beside that of what was compiled; None if there is none."""
    match = _MODULE.match(file.name)
    if match is None or _STAGES[0].match(match["stage"]) is None:
        return None
    names = (f"{match[1]}.before_optimizations{suffix}" for suffix in (".txt", ".hlo.pb", ".hlo"))
    return next((path for name in names if (path := file.with_name(name)).is_file()), None)


def chosen(modules: Sequence[DumpedModule], name: str) -> list[DumpedModule]:
    """The modules with this name, or else those whose name or file has it as a part."""
    exact = [module for module in modules if name in (module.name, module.file.name)]
    return exact or [module for module in modules if name in module.file.name]


def memory(file: Path) -> Memory | None:
    """The compiler's figures for the module of a dumped file; None if it did not write them beside it."""
    beside = file.with_name(file.name.removesuffix(".txt") + "-buffer-assignment.txt")
    try:
        text = plain.read_text(beside, "replace") if beside.is_file() else ""
    except OSError:
        return None
    sizes: dict[str, int] = {"parameter": 0, "output": 0, "aliased": 0, "temporary": 0}
    for size, what in _allocations(text):
        sizes[what] += size
        if what == "aliased":
            sizes["parameter"] += size
            sizes["output"] += size
    if not any(sizes.values()):
        return None
    return Memory.of(sizes["parameter"], sizes["output"], sizes["temporary"], sizes["aliased"], None)


def _allocations(text: str) -> Iterator[tuple[int, str]]:
    """The size of each buffer, and what it holds."""
    for size, says in _ALLOCATION.findall(text):
        argument, returned = " parameter " in says, "maybe-live-out" in says
        if argument or returned:
            yield int(size), "aliased" if argument and returned else "parameter" if argument else "output"
        elif "preallocated-temp" in says:
            yield int(size), "temporary"
