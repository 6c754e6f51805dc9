"""The verdicts of checks: the fields that all have, and the classes that code outside their check reads.

The classes of all other verdicts are in the files of their checks, in `runner/checks/kinds/`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal, Self, TypeAlias

from runner.base.codec import ALWAYS, named
from runner.base.lazy import dataclass
from runner.base.words import listed, on_devices
from runner.experiment.patterns import folded

RanStatus: TypeAlias = Literal["passed", "known", "weak", "failed"]
"""The status of a check that was run."""

Outcome: TypeAlias = Literal["passed", "known", "weak", "failed", "not_run"]
"""The status of a check; `known`: it failed as `expect.wrong` says; `weak`: it passed, but would not notice a mistake
of 10 %.
"""


@dataclass(frozen=True, kw_only=True)
class OutputVerdict:
    """The verdict on one output."""

    status: Outcome
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class DecidingLine:
    """A line whose operation jumps (a comparison, a cast), so that rounding may change its result.

    - `elements`: how many elements of its result are undecided, on any device.
    - `least_steps`, `most_steps`: for a while whose number of steps rounding may change, those that were seen; the most
      is null if rounded arithmetic may not end it.
    """

    section: str | None = None
    line: str
    operation: str
    elements: int
    least_steps: int | None = None
    most_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """The elements of an output that depend on decisions that rounding may take otherwise.

    - `count`: how many there are.
    - `between`: how many equal none of more than four candidate values, but lie between them.
    - `excused`: how many do not even lie between, or equal none of a few candidates.
    - `places`: the lines that decide.
    """

    count: int
    between: int | None = None
    excused: int
    places: list[DecidingLine]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of an output as a whole, with its bounds."""

    found: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class TwinOutput(OutputVerdict):
    """How an output of the twin, the same program in float64, compares with the oracle; `reason` if it was not run.

    Fields as in `ValueOutput`.

    - `ties`: the elements that depend on decisions that float64's rounding can change.
    - `shared`: whether an earlier twin's compilation was used, as at points of a sweep that differ in dtypes alone.
    """

    max_abs_error: float = 0.0
    atol: float = 0.0
    rtol: float = 0.0
    wrong: int = 0
    of: int = 0
    devices: list[int] = field(default_factory=list[int])
    ties: int = 0
    shared: bool = False
    power: float | None = None


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The first equation of a program whose result rounding does not explain, where its twin in float64 is right.

    - `line`: the line of the file; null if JAX does not say. `primitive`: JAX's primitive.
    - `gradient`: whether it is in the backward pass.
    - `error`: its largest error on the operands that it had, as a share of its largest element, or of one element of an
      integer; `rounding`: what rounding explains; both null if the error is infinite.
    - `number`, `of`: its place among the program's equations, from 1 on.
    """

    line: str | None
    primitive: str
    gradient: bool
    error: float | None
    rounding: float | None
    number: int
    of: int


@dataclass(frozen=True, kw_only=True)
class ValueOutput(OutputVerdict):
    """The verdict of `value` on one output.

    - `oracle`: the section that it is compared with; `max_abs_error`, `max_rel_error`: the largest distance of an
      element.
    - `rtol`, `atol`: the tolerance of an element; `share`: the largest part of its tolerance that an element within it
      used.
    - `rounding`: the largest error that rounding was measured to cause.
    - `wrong`, `of`, `devices`: how many elements are outside the tolerance, of how many on all devices, on which
      devices; `first`: the index of the first of them.
    - `nan`: how many are NaN in both; `overflowing`: how many the dtype cannot hold, which were not compared.
    - `whole`: measures of the output as a whole, by name.
    - `power`: the smallest mistake that would have been noticed, as a share of the output's root mean square; null if
      that is 0 or unknown.
    - `accepted`: whether it would be weak and `expect.weak` names it.
    - `accuracy`: the largest error of an element in units of the measured rounding; null of exact dtypes, and where it
      is infinite.
    - `twin`: the same program in float64; null if it was not needed.
    """

    oracle: str
    max_abs_error: float
    max_rel_error: float
    rtol: float
    atol: float
    share: float
    rounding: float
    wrong: int
    of: int
    devices: list[int]
    first: list[int] | None = None
    nan: int = 0
    undecided: Undecided | None = None
    overflowing: int = 0
    whole: dict[str, Measure] = field(default_factory=dict[str, Measure])
    power: float | None
    accepted: bool = False
    accuracy: float | None = None
    twin: TwinOutput | None = None

    @property
    def noticed(self) -> float | None:
        """The smaller of its own `power` and that of a twin that is right."""
        return self.twin.power if self.twin is not None and self.by_twin else self.power

    @property
    def by_twin(self) -> bool:
        """Whether its twin, which is right, would have noticed a smaller mistake than the measured rounding."""
        twin = self.twin
        if twin is None or twin.status != "passed" or twin.power is None:
            return False
        return self.power is None or twin.power < self.power


@dataclass(frozen=True, kw_only=True)
class SectionsOutput(OutputVerdict):
    """The verdict of `sections` on one output. Fields as in `ValueOutput`; `devices` are positions in the mesh."""

    max_abs_error: float
    rtol: float
    atol: float
    wrong: int
    of: int
    devices: list[int]
    undecided: Undecided | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a check.

    - `reason`: why it did not pass; `details`: what belongs to the reason, one line each.
    - `diagnosis`: which program disagrees with all others, or which edit of the file makes the check pass; `note`: a
      remark for the reader.
    - `dims`: the sizes of the verification, if the check was made there.
    """

    status: Outcome
    reason: str | None = None
    details: list[str] = field(default_factory=list[str])
    diagnosis: list[str] = field(default_factory=list[str])
    note: str | None = None
    dims: dict[str, int] | None = None

    def lines(self) -> list[str]:
        """Return the reasons why it failed or is weak: the diagnosis first, then the reason and its details."""
        return [*self.diagnosis, *([self.reason] if self.reason else []), *self.details]


@dataclass(frozen=True, kw_only=True)
class NotRun(Verdict):
    """A check that was not run, with the reason."""

    status: Literal["not_run"] = field(default="not_run", metadata=ALWAYS)
    reason: str  # pyright: ignore[reportGeneralTypeIssues]


@dataclass(frozen=True, kw_only=True)
class LeftOut(NotRun):
    """`agreement`, not run because `expect.wrong` lists all other programs; `left_out` as in `AgreementVerdict`."""

    left_out: dict[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class Judged(Verdict):
    """The verdict of a check that was run."""

    status: RanStatus


@dataclass(frozen=True, kw_only=True)
class SectionsVerdict(Judged):
    """`sections`: whether `graph` and `per_device` are equal in float64."""

    outputs: dict[str, SectionsOutput]


@dataclass(frozen=True, kw_only=True)
class ValueVerdict(Verdict):
    """`value`: the largest errors, tolerances and power of its `outputs`; `accepted`: the outputs that may be weak.

    `parting`: where a program that is wrong in its own dtypes alone and its twin part; null if no equation shows it.
    """

    max_abs_error: float
    max_rel_error: float
    rtol: float
    atol: float
    outputs: dict[str, ValueOutput | OutputVerdict]
    power: float | None
    accepted: list[str] = field(default_factory=list[str])
    parting: Parting | None = None

    @property
    def compared(self) -> dict[str, ValueOutput]:
        """The outputs that were compared with an oracle."""
        return {name: output for name, output in self.outputs.items() if isinstance(output, ValueOutput)}

    @property
    def accuracies(self) -> dict[str, float]:
        """The largest errors in units of the measured rounding, of the outputs that round; infinity if unmeasured."""
        compared = self.compared.items()
        unmeasured = {name: float("inf") for name, output in compared if output.wrong and output.accuracy is None}
        return {name: output.accuracy for name, output in compared if output.accuracy is not None} | unmeasured

    @property
    def accuracy(self) -> float | None:
        """The largest of them; None if no output rounds."""
        return max(self.accuracies.values(), default=None)

    def lines(self) -> list[str]:
        """Return the errors of the outputs that failed, at length for the first few, then the reasons."""
        failed = {name: output for name, output in self.compared.items() if output.status in ("failed", "known")}
        lines = [line for name in [*failed][:_AT_LENGTH] for line in self._of_output(name, failed[name])]
        others = {name: output.max_abs_error for name, output in [*failed.items()][_AT_LENGTH:]}
        if others:
            largest = max(others, key=others.__getitem__)
            named, of_more = folded(others), len(others) > 1
            lines.append(
                f"{len(others)} more output{'s' if of_more else ''}: {listed(named)}"
                f"{f'; largest error {others[largest]:.3g}, in {largest}' if of_more else ''}"
            )
        return [*lines, *super().lines()]

    def _of_output(self, name: str, output: ValueOutput) -> Iterator[str]:
        known = ", as expect.wrong says" if output.status == "known" != self.status else ""
        if output.wrong:
            first = "" if output.first is None else f", first at {output.first}"
            yield (
                f"{name} differs from {_ORACLES[output.oracle]} at {output.wrong} of {output.of} elements{first}, "
                f"on {on_devices(output.devices)}; largest error {output.max_abs_error:.3g}, "
                f"allowed {output.atol:.1e} + {output.rtol:.1e}·|reference|{known}"
            )
        if output.reason:
            yield f"{name}: {output.reason}{known}"
        elif output.twin is not None and output.twin.status == "not_run":
            yield f"{name} has no twin in float64: {output.twin.reason}"


_AT_LENGTH = 4
"""The largest number of wrong outputs that are described at length; the layers of a model have many."""

_ORACLES = {"graph": "the NumPy oracle", "per_device": "the SPMD interpreter"}


@dataclass(frozen=True, kw_only=True)
class AgreementVerdict(Judged):
    """`agreement`: the distance from the other programs.

    - `with`: the programs that it was compared with.
    - `left_out`: per output the programs that were not compared, because `expect.wrong` lists them for it.
    """

    max_abs_error: float | None = None
    others: list[str] = field(default_factory=list[str], metadata=named("with"))
    left_out: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True, kw_only=True)
class RefusalVerdict(Judged):
    """`invalid`: whether the experiment was refused as `expect.invalid` says.

    - `expected`: the text that the message must contain; `refused`: the message; null if the experiment is valid.
    """

    expected: str
    refused: str | None


class FileChecks:
    """The verdicts of the checks of an experiment's file, which need no program."""

    # Each check of `runner/checks/registry.py` is an attribute, None if it was not made.

    _OF_FILES = True

    def __init__(self, **verdicts: Verdict | None) -> None:
        names = list(self.members()) if verdicts else []
        if unknown := verdicts.keys() - set(names):
            raise TypeError(f"there is no check {', '.join(sorted(unknown))}")
        self._verdicts = {name: verdict for name in names if (verdict := verdicts.get(name)) is not None}

    @classmethod
    def members(cls) -> dict[str, Any]:
        """Return the names of the checks in the order of a report, and the types of their verdicts."""
        # Imported here: the checks are above the record, and records are also read without running checks.
        kinds: Any = importlib.import_module("runner.checks.registry").kinds()
        return {kind.name: kind.verdict | None for kind in kinds if (kind.needs.name == "FILE") == cls._OF_FILES}

    def __getattr__(self, name: str) -> Verdict | None:
        if name.startswith("_") or name not in self.members():
            raise AttributeError(f"there is no check {name}")
        return self._verdicts.get(name)

    def but(self, **verdicts: Verdict | None) -> Self:
        """Return a copy with these verdicts replaced, or removed if None."""
        return type(self)(**{**self._verdicts, **verdicts})

    def json(self) -> dict[str, Verdict]:
        """Return the verdicts as in `result.json`."""
        return self._verdicts

    def named(self) -> Iterator[tuple[str, Verdict]]:
        """Yield the existing verdicts with the names of their checks."""
        return iter(self._verdicts.items())

    def get(self, name: str) -> Verdict | None:
        """Return the verdict of the check with that name; None if there is none."""
        return self._verdicts.get(name)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._verdicts.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._verdicts == other._verdicts

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={verdict!r}' for name, verdict in self.named())})"


class Checks(FileChecks):
    """The verdicts of the checks of one program: those of its results, then those of the compiled module."""

    _OF_FILES = False
