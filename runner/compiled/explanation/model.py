"""The classes of an explanation: what is known of one compiled module, whoever compiled it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal

from runner.base import executions
from runner.base.codec import ALWAYS, named
from runner.base.executions import Count
from runner.base.grouping import by_key
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.model import ComputedLine, Estimate
from runner.compiled.evidence.model import Collective, Profile
from runner.graph.sharding import ring
from runner.graph.sharding.propagation import PlannedOperation

SCHEMA = "shardproof-explanation/1"
"""The name and number of the schema of these classes."""


@dataclass(frozen=True, kw_only=True)
class SourcePlace:
    """A line of a file, as the compiler names the file.

    - `library`: whether no frame of the instruction is in a file of the user's, so that the line is a library's own.
    """

    file: str
    line: int
    library: bool = False


@dataclass(frozen=True, kw_only=True)
class ExplainedMesh:
    """The mesh of a module, and where its names come from.

    - `source`: the caller gave it (`given`), the module names its axes (`module`), or only the sizes of its axes follow
      from the groups of its collectives and the shardings of its arrays (`groups`): then the names are made up.
    """

    axes: list[str]
    shape: list[int]
    source: Literal["given", "module", "groups"]

    def __str__(self) -> str:
        return " × ".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))


@dataclass(frozen=True, kw_only=True)
class PlacedCollective(Collective):
    """A collective, and the lines whose calls lead to its line, the innermost first.

    Its `nodes` are the keys of `Explanation.lines`, or names of arguments.
    """

    callers: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The bytes that one device holds; null where not known.

    - `peak`: the most at one time, arguments and outputs among them.
    - `by`: whether the `compiler` reports the figures, or they follow from the text, from the arrays that are alive at
      once in its `schedule`, without padding.
    """

    arguments: int | None
    outputs: int | None
    temporaries: int | None
    aliased: int = 0
    peak: int | None = None
    by: Literal["compiler", "schedule"]


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """An array that one device holds when the most memory is in use.

    - `what`: an argument, a result of the program, or a temporary; `name`: the argument, or the instruction.
    - `node`: the line that computes it; null where the module does not say.
    """

    what: Literal["argument", "output", "temporary"]
    name: str
    node: str | None
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    gradient: bool = False


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument of the program, as one device holds it.

    - `spec`: its layout; null where the module does not say, or no PartitionSpec expresses it.
    - `donated`: whether a result may reuse its memory; `output`: the result that does, by its place among the results,
      null if none does.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    spec: Spec | None = None
    donated: bool = False
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedLayout:
    """The global shape of an array, and its layout by Shardy's plan."""

    shape: tuple[int, ...]
    spec: Spec


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What is known of one compiled module.

    - `source`: the file that was read, or the function that was compiled; `stage`: whether it is what the devices run
      (`compiled`), or what the partitioner gets (`lowered`), in which arrays are global and no collective stands yet
      but those that the program asks for.
    - `platform`: of the devices; null where the text does not say. `partitions`: how many devices run it.
    - `placed`: the collectives; null if the module could not be read. `unknown`, `missing`: what could not be read, a
      sentence each, and those of them after which a collective may be missing.
    - `lines`: for each line by the name that the others use, its place; `sources`: the text of the user's files, as far
      as they are here.
    - `computed`: what each line computes; null without an entry computation.
    - `profile`: the times that a profiler measured.
    - `layouts`: by line, the layout of the last array that it computes, where the module was planned as lowered.
    - `notes`: what else a reader should know, such as state that changes its layout.
    """

    schema: str = field(default=SCHEMA, metadata=ALWAYS)
    source: str
    module: str
    stage: Literal["compiled", "lowered"]
    platform: str | None = None
    device: str | None = None
    partitions: int
    instructions: int
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    mesh: ExplainedMesh | None = None
    placed: list[PlacedCollective] | None = field(metadata=named("collectives"))
    unknown: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    lines: Mapping[str, SourcePlace] = field(default_factory=dict[str, SourcePlace])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    memory: MemoryUse | None = None
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    arguments: list[Argument] = field(default_factory=list[Argument])
    computed: list[ComputedLine] | None = None
    estimate: Estimate | None = None
    profile: Profile | None = None
    layouts: Mapping[str, PlannedLayout] = field(default_factory=dict[str, PlannedLayout])
    notes: list[str] = field(default_factory=list[str])

    @property
    def moving(self) -> list[PlacedCollective]:
        """The collectives that some device takes part in with another one."""
        return [entry for entry in self.placed or () if not entry.alone]

    @property
    def collectives(self) -> dict[str, int]:
        """The number of collectives of each kind: `{"all-gather": 2}`; one in a loop counts once, as in the module.

        Raises `ValueError` if the module could not be read.
        """
        if self.placed is None:
            raise ValueError(f"the collectives of {self.source} are not known: {'; '.join(self.missing)}")
        return dict(Counter(entry.kind for entry in self.moving))

    def sent(self) -> Count:
        """The bytes that a device sends in a run; None where not known."""
        return ring.total(self.moving)

    def sent_by_kind(self) -> dict[str, Count]:
        """The bytes that a device sends in a run, by the kind of collective."""
        return _by(self.moving, lambda entry: entry.kind)

    def sent_by_axis(self) -> dict[str, Count]:
        """The same by mesh axis; `groups along no axis` where the groups are those of none."""
        return _by(self.moving, over)

    def sent_by_line(self) -> dict[str, Count]:
        """The same by line; one that serves several lines counts for its first."""
        return _by(self.moving, lambda entry: entry.node or "no line")


def over(entry: Collective) -> str:
    """The axes of a collective, in words."""
    return "groups along no axis" if entry.axes is None else " and ".join(entry.axes)


def _by(entries: Iterable[PlacedCollective], key: Callable[[PlacedCollective], str]) -> dict[str, Count]:
    sums = {name: ring.total(group) for name, group in by_key((key(entry), entry) for entry in entries).items()}
    return dict(sorted(sums.items(), key=lambda item: -(executions.most(item[1]) or 0)))


def layouts_of(
    operations: Iterable[PlannedOperation], name: Callable[[str], str | None] = lambda line: line
) -> dict[str, PlannedLayout]:
    """For each line the layout of the last array that it computes in the forward pass, in Shardy's plan.

    - `name`: the line of an explanation for one of the plan's; None if there is none.
    """
    last: dict[str, PlannedLayout] = {}
    for operation in operations:
        if operation.line is None or operation.gradient or not operation.results:
            continue
        line = name(operation.line)
        result = operation.results[0]
        if line is not None and result.shape:
            last[line] = PlannedLayout(shape=result.shape, spec=result.spec.padded(len(result.shape)))
    return last
