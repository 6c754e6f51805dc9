"""`invalid`: whether an experiment that has to be refused is, with the message that it expects."""

from __future__ import annotations

from runner.checks.context import Check
from runner.faults import Fault, key_text


def check(expected: str, fault: Fault | None, told: str | None) -> Check:
    """The verdict on an experiment with which `fault` was found, as `told` to the user.

    `expected` is a part of the message, or of the key and the message: `outputs.C[1]: the mesh axis 'x' is used twice`.
    """
    if fault is None:
        reason = f"{_wanted(expected)}, but nothing refuses it"
        return {"status": "failed", "expected": expected, "refused": None, "reason": reason}
    found: Check = {"status": "passed", "expected": expected, "refused": told}
    if _words(expected) not in _words(f"{key_text(fault.key)}: {fault.message}"):
        details = (told or "").splitlines()
        found |= {"status": "failed", "reason": f"{_wanted(expected)}, but refused otherwise", "details": details}
    return found


def _wanted(expected: str) -> str:
    return f"expected to be refused with '{_words(expected)}'"


def _words(text: str) -> str:
    """A text on one line, as a YAML file may fold it."""
    return " ".join(text.split())
