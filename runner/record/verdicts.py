"""What the checks say: one class for each kind of check, and one for each kind of verdict on an output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from runner.codec import ALWAYS, named
from runner.executions import Range

Ran: TypeAlias = Literal["passed", "known", "weak", "failed"]
"""The status of a check that was run."""

Outcome: TypeAlias = Literal["passed", "known", "weak", "failed", "not_run"]
"""The status of a check; `known`: it failed as `expect.wrong` says; `weak`: it passed, but proves too little."""


@dataclass(frozen=True, kw_only=True)
class OutputVerdict:
    """The verdict on one output."""

    status: Outcome
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class DecidingLine:
    """A line that decides, and how many `elements` of it rounding may decide otherwise, on devices that differ."""

    section: str | None = None
    line: str
    operation: str
    elements: int


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """How many elements hang on decisions that rounding may take otherwise, and the lines that decide.

    Of these how many are none of the many things that the decisions were seen to lead to, but lie `between`, and how
    many are `excused`, since they do not even do that, or are none of few things.
    """

    count: int
    between: int | None = None
    excused: int
    places: list[DecidingLine]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What was found of a measure of a whole output, and between what it may lie."""

    found: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class ValueOutput(OutputVerdict):
    """The verdict of `value` on one output.

    - `oracle`: the section; `max_abs_error`, `max_rel_error`: the largest distance of an element.
    - `rtol`, `atol`: what an element may be off; `share`: what part of it an element within it used at most.
    - `rounding`: the largest error that rounding was measured to make.
    - `wrong`, `of`, `devices`: how many elements are outside, of how many on all devices, on which devices.
    - `nan`: how many are NaN in both; `overflowing`: how many the dtype cannot hold, which were not compared.
    - `whole`: measures of the output as a whole, by name.
    - `power`: the smallest mistake that would have been noticed, as a share of the root mean square, where known.
    - `accepted`: whether it would be weak and `expect.weak` names it.
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
    nan: int = 0
    undecided: Undecided | None = None
    overflowing: int = 0
    whole: dict[str, Measure] = field(default_factory=dict[str, Measure])
    power: float | None
    accepted: bool = False


@dataclass(frozen=True, kw_only=True)
class SectionsOutput(OutputVerdict):
    """The verdict of `sections` on one output: the fields are those of `ValueOutput`, `devices` are positions."""

    max_abs_error: float
    rtol: float
    atol: float
    wrong: int
    of: int
    devices: list[int]
    undecided: Undecided | None = None


@dataclass(frozen=True, kw_only=True)
class PinnedOutput(OutputVerdict):
    """The verdict of `values` on one output; `compared` is the shape of the pinned corner."""

    compared: list[int]
    rtol: float
    atol: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What every check says.

    - `reason`: why it is not passed; `details`: what belongs to the reason, a line each.
    - `diagnosis`: who stands alone, or which edit mends the file; `note`: what a reader of a verdict should know.
    - `dims`: the sizes of the verification that it comes from.
    """

    status: Outcome
    reason: str | None = None
    details: list[str] = field(default_factory=list[str])
    diagnosis: list[str] = field(default_factory=list[str])
    note: str | None = None
    dims: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class NotRun(Verdict):
    """A check that was not run, and why."""

    status: Literal["not_run"] = field(default="not_run", metadata=ALWAYS)
    reason: str  # pyright: ignore[reportGeneralTypeIssues]


@dataclass(frozen=True, kw_only=True)
class LeftOut(NotRun):
    """`agreement` that was not run since all others are known to be wrong: `left_out` as in `AgreementVerdict`."""

    left_out: dict[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class Judged(Verdict):
    """What a check says that was run."""

    status: Ran


@dataclass(frozen=True, kw_only=True)
class SectionsVerdict(Judged):
    """`sections`: whether `graph` and `per_device` say the same."""

    outputs: dict[str, SectionsOutput]


@dataclass(frozen=True, kw_only=True)
class ValueVerdict(Verdict):
    """`value`: the numbers are the largest of those of its `outputs`; `accepted` are the outputs that may be weak."""

    max_abs_error: float
    max_rel_error: float
    rtol: float
    atol: float
    outputs: dict[str, ValueOutput | OutputVerdict]
    power: float | None
    accepted: list[str] = field(default_factory=list[str])

    @property
    def compared(self) -> dict[str, ValueOutput]:
        """The outputs that an oracle knows."""
        return {name: output for name, output in self.outputs.items() if isinstance(output, ValueOutput)}


@dataclass(frozen=True, kw_only=True)
class LayoutVerdict(Judged):
    """`layout`: how many parts of operands and outputs lie in the `wrong` place."""

    wrong: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplicasVerdict(Judged):
    """`replicas`: how many copies were compared, how many are `wrong`, and then of which outputs."""

    copies: int
    wrong: int = 0
    outputs: dict[str, OutputVerdict] = field(default_factory=dict[str, OutputVerdict])


@dataclass(frozen=True, kw_only=True)
class AgreementVerdict(Judged):
    """`agreement`: the other programs that it was compared with.

    `left_out` are per output the programs that `expect.wrong` knows to give it wrong, which were not compared.
    """

    max_abs_error: float | None = None
    others: list[str] = field(default_factory=list[str], metadata=named("with"))
    left_out: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True, kw_only=True)
class GradientVerdict(Judged):
    """`gradient`: per section which oracle its gradients have, and how far directional differences are from it.

    `apart` is in units of what is allowed, `rtol` of the sum of the magnitudes and the rounding of the difference.
    """

    oracle: dict[str, str]
    directions: int
    rtol: float
    apart: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class PinnedVerdict(Judged):
    """`values`: the numbers that the file pins."""

    max_abs_error: float
    outputs: dict[str, PinnedOutput]


@dataclass(frozen=True, kw_only=True)
class RefusalVerdict(Judged):
    """`invalid`: whether the experiment was `refused`, and with what; `expected` is a part of the message."""

    expected: str
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class CountsVerdict(Judged):
    """An expectation of collectives: how often each kind was `found` to run."""

    found: dict[str, int | Range] | None = None


@dataclass(frozen=True, kw_only=True)
class LimitVerdict(Judged):
    """An expectation of bytes: how many were `found`, and how many are `allowed`."""

    found: int | None = None
    allowed: int | None = None


class _Named:
    """Verdicts by the name of their check."""

    def named(self) -> Iterator[tuple[str, Verdict]]:
        """The checks that there are, with their names, in the order of a report."""
        for each in fields(self):  # pyright: ignore[reportArgumentType]
            verdict = getattr(self, each.name)
            if verdict is not None:
                yield each.name, verdict

    def get(self, name: str) -> Verdict | None:
        """The check of that name; None where there is none."""
        return dict(self.named()).get(name)

    def __iter__(self) -> Iterator[Verdict]:
        return (verdict for _, verdict in self.named())


@dataclass(frozen=True, kw_only=True)
class FileChecks(_Named):
    """What is checked of an experiment's file, whatever its programs do."""

    sections: SectionsVerdict | NotRun | None = None
    invalid: RefusalVerdict | None = None


@dataclass(frozen=True, kw_only=True)
class Checks(_Named):
    """What is checked of one program: its results, then what `expect` says of the compiled module."""

    value: ValueVerdict | NotRun | None = None
    layout: LayoutVerdict | NotRun | None = None
    replicas: ReplicasVerdict | NotRun | None = None
    agreement: AgreementVerdict | LeftOut | NotRun | None = None
    gradient: GradientVerdict | NotRun | None = None
    values: PinnedVerdict | NotRun | None = None
    derivation: Judged | NotRun | None = None
    collectives: CountsVerdict | NotRun | None = None
    no_collectives: CountsVerdict | NotRun | None = None
    max_bytes_per_device: LimitVerdict | NotRun | None = None
    max_memory_bytes: LimitVerdict | NotRun | None = None
    overlapped: Judged | NotRun | None = None
    not_overlapped: Judged | NotRun | None = None
    layouts: Judged | NotRun | None = None
    lowered_collectives: CountsVerdict | NotRun | None = None
    lowered_no_collectives: CountsVerdict | NotRun | None = None
    lowered_max_bytes_per_device: LimitVerdict | NotRun | None = None
    planned_collectives: CountsVerdict | NotRun | None = None
    planned_no_collectives: CountsVerdict | NotRun | None = None
    planned_max_bytes_per_device: LimitVerdict | NotRun | None = None
