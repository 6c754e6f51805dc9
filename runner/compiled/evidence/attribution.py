"""Says what a reader of a module needs in order to name the lines of its instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.nodes import OperationOrigin


class Attribution(Protocol):
    """Names the lines of instructions: those of an experiment (`Origins`), or of the files that were traced.

    The second needs nothing but the module (`runner.compiled.explanation.places`).
    """

    unplaced: str
    """What is said of an instruction without a line, behind its name."""

    @property
    def of(self) -> Callable[[Metadata], tuple[OperationOrigin, ...]]:
        """The lines of an instruction; several if operations were merged, none if the module does not say."""
        ...

    def leave(self, axes: Iterable[str]) -> bool:
        """Whether the lines leave all of these axes to the compiler."""
        ...

    def lost(self, op_name: str) -> list[str]:
        """The name stacks of collectives that the program asks for outside of any line."""
        ...

    def tells(self, metadata: Metadata) -> bool:
        """Whether a name belongs to a line, or to a collective that the program asks for."""
        ...
