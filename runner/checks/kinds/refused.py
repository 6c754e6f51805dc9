"""`invalid`: checks that an experiment is refused with the message that it expects."""

from __future__ import annotations

from runner.base.faults import Fault, key_text
from runner.checks.kind import CheckKind, Needs
from runner.reports.record.verdicts import RefusalVerdict


def check(expected: str, fault: Fault | None, message: str | None) -> RefusalVerdict:
    """The verdict on an experiment in which `fault` was found.

    `message` is what the user reads of that, or of what ended the run.
    `expected` is a part of the message, or of the key and the message: `outputs.C[1]: the mesh axis 'x' is used twice`.
    """
    if fault is None:
        ended = "the run ended with an error" if message else "nothing refuses it"
        reason, details = f"{_wanted(expected)}, but {ended}", (message or "").splitlines()
        return RefusalVerdict(status="failed", reason=reason, details=details, expected=expected, refused=None)
    if _words(expected) in _words(f"{key_text(fault.key)}: {fault.message}"):
        return RefusalVerdict(status="passed", expected=expected, refused=message)
    reason = f"{_wanted(expected)}, but refused with another message"
    details = (message or "").splitlines()
    return RefusalVerdict(status="failed", reason=reason, details=details, expected=expected, refused=message)


def _wanted(expected: str) -> str:
    return f"expected to be refused with '{_words(expected)}'"


def _words(text: str) -> str:
    """Return a text on one line, since a YAML file may fold it."""
    return " ".join(text.split())


KINDS = (
    CheckKind(
        "invalid", RefusalVerdict, Needs.FILE, order=10,
        says="the experiment is refused, as `expect.invalid` says; it has no other check",
    ),
)  # fmt: skip
