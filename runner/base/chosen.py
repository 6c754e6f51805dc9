"""Stands for what the planner chooses: the spec of an array, or what a `jax.checkpoint` saves."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any, Final

EVERYTHING: Final = "everything"
"""What a checkpoint saves that is as good as none."""


class UnsaidPolicy(ValueError):
    """AUTO is the policy of a checkpoint, and nothing says what it saves."""


class Auto:
    """The spec of an array whose layout the planner chooses, and the policy of a `jax.checkpoint`.

    - `saved`: what it saves as a policy: the values with these names, which `checkpoint_name` gives, or everything;
      None where nothing says so.
    """

    saved: Sequence[str] | None = None

    def __call__(self, primitive: Any, *_: Any, **params: Any) -> bool:
        """Whether the result of an operation is saved for the backward pass, as JAX asks a policy.

        Raises `UnsaidPolicy` if nothing says so.
        """
        if self.saved is None:
            raise UnsaidPolicy(
                "policy=runner.AUTO stands for what the planner chooses: runner.plan(…, remat='auto') finds the policy "
                "to write in its place"
            )
        if self.saved == EVERYTHING:
            return True
        return primitive.name == "name" and params["name"] in self.saved

    @contextlib.contextmanager
    def saving(self, saved: Sequence[str] | None) -> Generator[None]:
        """Save these values meanwhile, or what was said before if that is None."""
        before, self.saved = self.saved, self.saved if saved is None else saved
        try:
            yield
        finally:
            self.saved = before

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"


AUTO: Final = Auto()
"""The spec of an array whose layout the planner chooses; so is the text `auto`. It is a policy of checkpoints too."""
