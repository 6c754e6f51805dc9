"""Names the lines of a module by the user's files alone: `train.py:88`, with the calls that lead there.

This is what `compiled/evidence/` needs to know of lines where there is no experiment
(`evidence.nodes.Attribution`).
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from pathlib import PurePosixPath

from runner.base.grouping import by_key
from runner.compiled.evidence.hlo import Location, Metadata, Module
from runner.compiled.evidence.nodes import OperationOrigin, backward, stacks, unwrapped
from runner.compiled.evidence.source_lines import IsUsers, SourceLine, is_users, source_line
from runner.compiled.explanation.model import SourcePlace
from runner.graph.language.operations import row_of

_SOURCE_FILE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"')

_WRAPPER = re.compile(
    r"p?jit\([^()]*\)|closed_call|checkpoint|rematted_computation|eval_jaxpr|while|body|cond|shard_map"
)
"""The parts of a name stack that JAX adds."""

_STACKING = "dynamic_update_slice"
"""The operation with which a `scan` stacks the results of its steps."""

_LAST = 3
"""The scopes that name an operation for which the module has no line."""


class Places:
    """The lines of the user's files, by the name that an explanation uses for them.

    - `lines`: those that were asked for, by name.
    - `arguments`: the names of the module's arguments; None if any name without a scope may be one.
    """

    unplaced = "comes from no line that the module names"

    def __init__(
        self, files: Iterable[str], users: IsUsers = is_users, arguments: Container[str] | None = None
    ) -> None:
        self._short = _suffixes(files)
        self._users = users
        self._arguments = arguments
        self.lines: dict[str, SourcePlace] = {}
        self._callers: dict[str, dict[tuple[Location, ...], None]] = {}
        self.of = lru_cache(maxsize=None)(self._of)

    def leave(self, axes: Iterable[str]) -> bool:
        """Whether the lines leave these axes to the compiler: what is known of the program is not enough to say so."""
        return False

    def lost(self, op_name: str) -> list[str]:
        """The name stacks without a line: none, since a name is a line's or that of its scopes."""
        return []

    def tells(self, metadata: Metadata) -> bool:
        """Whether an instruction has a name or a line."""
        return bool(self.of(metadata))

    def stated(self, metadata: Metadata) -> Location | None:
        """None: a line that states a layout is a line as others are."""
        return None

    def _of(self, metadata: Metadata) -> tuple[OperationOrigin, ...]:
        line = source_line(metadata.frames, self._users)
        if not metadata.op_name:
            return () if line is None else (OperationOrigin(self._named(line), "", False),)
        origins = (self._origin(stack, line) for stack in stacks(metadata.op_name))
        return tuple(dict.fromkeys(origin for origin in origins if origin is not None))

    def _origin(self, stack: str, line: SourceLine | None) -> OperationOrigin | None:
        *around, primitive = stack.split("/")
        if not around and line is None:
            # The name of an argument is its path in the caller's tree; the compiler makes up others.
            known = bool(stack) if self._arguments is None else stack in self._arguments
            return OperationOrigin(stack.replace("\\", ""), "", False) if known else None
        node = self._named(line) if line is not None else _scopes(stack)
        # A `scan` itself passes slices to its steps.
        passes = primitive == _STACKING or row_of(primitive).moves in ("shape", "order", "part")
        passing = around[-2:] == ["while", "body"] and passes
        return OperationOrigin(node, None if passing else primitive, backward(stack))

    def _named(self, line: SourceLine) -> str:
        name = self.name(line.at)
        self.lines.setdefault(name, SourcePlace(file=line.at[0], line=line.at[1], library=line.library))
        self._callers.setdefault(name, {})[line.callers] = None
        return name

    def name(self, at: Location) -> str:
        """The name of a line: its number behind as much of its path as tells the module's files apart."""
        file, number = at
        return f"{self._short.get(file, file)}:{number}"

    def callers(self, metadata: Metadata, node: str | None) -> list[str]:
        """The lines whose calls lead to the line of an instruction, the innermost first.

        If the instruction's own line is not `node`, they are those of `node`, if all its instructions have the same.
        """
        line = source_line(metadata.frames, self._users)
        paths: Sequence[tuple[Location, ...]] = list(self._callers.get(node or "", ()))
        if line is not None and self.name(line.at) == node:
            paths = [line.callers]
        if len(paths) != 1:
            return []
        # A line that JAX traces again, for a derivative or a checkpoint, is in the path again.
        path = [at for at in dict.fromkeys(paths[0]) if self.name(at) != node]
        for at in path:
            self.lines.setdefault(self.name(at), SourcePlace(file=at[0], line=at[1]))
        return [self.name(at) for at in path]


def of_module(module: Module, users: IsUsers = is_users) -> Places:
    """The places of a module's lines; `users`: which files are the user's."""
    parameters = module.entry.parameters.values() if module.entry is not None else ()
    return Places(_files(module), users, {parameter.op_name for parameter in parameters})


def _files(module: Module) -> set[str]:
    named = set(module.stack_frames.files)
    if named:
        return named
    # A module of before JAX 0.7 has no tables.
    matches = (_SOURCE_FILE.search(instruction.attributes) for instruction in module.instructions.values())
    return {match[1] for match in matches if match is not None}


def _suffixes(files: Iterable[str]) -> dict[str, str]:
    """For each path as much of its end as no other one has: `train.py`, or `a/train.py` and `b/train.py`."""
    paths = {file: PurePosixPath(file.replace("\\", "/")).parts for file in files}
    shortest: dict[str, str] = {}
    for length in range(1, 1 + max(map(len, paths.values()), default=0)):
        ends = by_key((parts[-length:], file) for file, parts in paths.items())
        for parts, alike in ends.items():
            if len(alike) == 1:
                shortest.setdefault(alike[0], "/".join(parts).replace("//", "/"))
    return shortest


def _scopes(stack: str) -> str:
    """The user's scopes in a name stack without a line: `layers/attention/dot_general`."""
    parts = [unwrapped(part) for part in stack.split("/") if not _WRAPPER.fullmatch(part)]
    return "/".join([part for part in parts if part][-_LAST:]) or stack


_LARGEST = 400_000
"""The most characters of one file that an explanation keeps."""

_ALL = 2_000_000
"""The most characters of all files."""


def sources(lines: Iterable[SourcePlace]) -> dict[str, str]:
    """The text of each of the user's files, by the name that the compiler has for it.

    Cells of notebooks are found too, where they were run in this process.
    """
    texts: dict[str, str] = {}
    left = _ALL
    for file in dict.fromkeys(place.file for place in lines if not place.library):
        if "\0" in file:
            continue
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        if text and len(text) <= min(_LARGEST, left):
            texts[file] = text
            left -= len(text)
    return texts
