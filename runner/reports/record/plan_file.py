"""Reads a `plan.json`, checked against a model of all that is shown of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from runner.base import codec, plain
from runner.base.codec import Misfit
from runner.base.faults import BadInput
from runner.base.invocation import invocation
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.experiment.open_layouts import Least, LineCost
from runner.reports.record import consistent
from runner.reports.record.folders import PLAN
from runner.reports.record.model import Status


class UnreadablePlan(BadInput):
    """There is no plan, or it cannot be read; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Layouts by their keys, and their cost."""

    layouts: Mapping[str, Spec]
    cost: float


@dataclass(frozen=True, kw_only=True)
class Best(Candidate):
    """The best layouts, and what a device then does with bytes."""

    sent: float
    held: float
    needed: float | None = None
    saved: tuple[str, ...] | str | None = None

    @property
    def totals(self) -> dict[str, float]:
        """The bytes that a device sends, holds and needs, by these words, as far as the file has them."""
        sizes = {"sends": self.sent, "holds": self.held, "needs": self.needed}
        return {word: size for word, size in sizes.items() if size is not None}


@dataclass(frozen=True, kw_only=True)
class OnFront:
    """A plan on the front: its layouts and its costs."""

    layouts: Mapping[str, Spec]
    costs: Mapping[Least, float]


@dataclass(frozen=True, kw_only=True)
class OtherPlan:
    """The cost of another plan."""

    cost: float


@dataclass(frozen=True, kw_only=True)
class PlannedAxes:
    """The bytes of one kind of collective over mesh axes."""

    axes: tuple[str, ...]
    kind: str
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """The runner-up of a layout."""

    key: str
    spec: Spec
    since: str
    next: Spec | None = None
    more: float | None = None


@dataclass(frozen=True, kw_only=True)
class BestPlan:
    """The plan itself."""

    least: Least
    best: Best
    bound: float
    proved: bool
    lines: tuple[LineCost, ...]
    alternatives: tuple[Alternative, ...]
    memory: float | None = None
    axes: tuple[PlannedAxes, ...] = ()
    others: tuple[OtherPlan, ...] = ()
    front: tuple[OnFront, ...] = ()
    parallelism: tuple[str, ...] = ()

    @property
    def exceeds(self) -> bool:
        """Whether it needs more memory than its limit."""
        return self.memory is not None and (self.best.needed or 0) > self.memory


@dataclass(frozen=True, kw_only=True)
class CompiledCandidate:
    """A program of a candidate."""

    program: str
    status: Status
    bytes_sent: float | None = None
    seconds: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate as compiled."""

    candidate: Candidate
    folder: str
    programs: tuple[CompiledCandidate, ...]
    by_hand: str | None = None
    written: str | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """A plan within a limit of the model."""

    planned: float
    limit: float | None = None
    needed: float | None = None
    candidate: str | None = None
    exceeds: bool = False


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The plan for one shape of the mesh, or the reason why there is none."""

    shape: tuple[int, ...]
    cost: float | None = None
    sent: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The plan with one choice of what checkpoints save."""

    saved: tuple[str, ...] | str
    cost: float
    needed: float
    recomputed: float
    exceeds: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A `plan.json`, as far as it is shown."""

    plan: BestPlan
    experiment: str | None = None
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    limit: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    shapes: tuple[Shape, ...] = ()
    tried: tuple[Tried, ...] = ()
    rounds: tuple[Round, ...] = ()
    choices: tuple[Choice, ...] = ()
    caveat: str | None = None
    verified: bool = True

    @property
    def mesh_text(self) -> str:
        """The mesh in words, `data=2 × model=4`; empty if an older version wrote the file."""
        return " × ".join(f"{axis}={size}" for axis, size in self.mesh.items())


@dataclass(frozen=True)
class SavedPlan:
    """A plan that was read: its path, what is shown of it, and the whole file as plain data."""

    name: str
    file: PlanFile
    plain: dict[str, Any]


def read(path: Path) -> SavedPlan:
    """Return the plan of a run folder, or of a file such as its `plan.json`. Raises `UnreadablePlan`."""
    file = path / PLAN if path.is_dir() else path
    try:
        whole: Any = plain.read(file)
        # Absent and null are the same where a plan was not made.
        whole = {key: value for key, value in whole.items() if value is not None} if is_mapping(whole) else whole
        plan = codec.build(PlanFile, whole)
        _require(plan, whole)
    except OSError as error:
        raise UnreadablePlan(f"{file}: {error.strerror}") from None
    except plain.NotJson as error:
        raise UnreadablePlan(f"{file} is {error}") from None
    except Misfit as misfit:
        raise UnreadablePlan(f"{file} is not a plan, such as {invocation()} plan writes: {misfit}") from None
    return SavedPlan(str(path), plan, whole)


def _require(file: PlanFile, whole: dict[str, Any]) -> None:
    """Raise `Misfit` for the first inconsistency of a plan, built from the data `whole`, that types do not express."""
    consistent.require_integers(whole)
    consistent.require_finite(file)
    plan = file.plan
    if plan.memory is not None and plan.best.needed is None:
        raise Misfit("plan.best has no 'needed'")
    for number, line in enumerate(plan.lines):
        if line.cost < 0:
            raise Misfit(f"plan.lines[{number}].cost is {line.cost:g}, not a cost")
    for number, point in enumerate(plan.front):
        if not point.costs or list(point.costs) != list(plan.front[0].costs):
            raise Misfit(f"plan.front[{number}].costs are not those of the plan's other points")
    for number, tried in enumerate(file.tried):
        if not tried.programs:
            raise Misfit(f"tried[{number}] has no program")
