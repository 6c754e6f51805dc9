"""What failed apart from the programs is named before the programs that passed: terminal, page, notebook and `repr`."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.app.api import Record
from runner.reports.record.verdicts import FileChecks, NotRun, RefusalVerdict, SectionsVerdict
from runner.reports.show import html, report
from runner.reports.show.page import headline
from tests import evidence
from tests.test_page import Page

PASSED = {"auto": evidence.program(), "vmap": evidence.program()}

DIFFER = SectionsVerdict(status="failed", diagnosis=["a psum is left out"], reason="C is not graph's", outputs={})
WEAK = SectionsVerdict(status="weak", reason="C: it would not notice 20 %", outputs={})
UNREFUSED = RefusalVerdict(
    status="failed", expected="twice", refused=None, reason="expected to be refused with 'twice'"
)

OUTCOMES = {
    "the sections": (
        {"status": "failed", "checks": FileChecks(sections=DIFFER)},
        "failed: sections failed, 2 of 2 programs passed",
        "failed sections a psum is left out programs passed 2 of 2",
    ),
    "weak sections": (
        {"status": "weak", "checks": FileChecks(sections=WEAK)},
        "weak: sections is weak, 2 of 2 programs passed",
        "is weak sections C: it would not notice 20 % programs passed 2 of 2",
    ),
    "a refusal that was expected": (
        {"status": "failed", "checks": FileChecks(invalid=UNREFUSED)},
        "failed: invalid failed, 2 of 2 programs passed",
        "failed invalid expected to be refused with 'twice' programs passed 2 of 2",
    ),
    "the end of the run": (
        {
            "status": "error",
            "error": "the worker ended with status 1",
            "checks": FileChecks(sections=NotRun(reason="–")),
        },
        "error: the run ended early, 2 of 2 programs passed",
        "ended early the run the worker ended with status 1 programs passed 2 of 2",
    ),
    "nothing": ({"checks": FileChecks()}, "passed: 2 of 2 programs passed", "programs passed 2 of 2"),
}


@pytest.mark.parametrize("culprit", OUTCOMES)
def test_the_headline_says_first_what_failed(culprit: str, tmp_path: Path) -> None:
    fields, line, first = OUTCOMES[culprit]
    record = evidence.record(PASSED, **fields)
    assert f"\n{line}; " in report.story(record, tmp_path)
    inline = line.replace(": ", ", ", 1)
    assert f"case : {inline}" in Page(html.fragment(record)).text
    assert Page(str(headline.numbers(record))).text.startswith(first)
    if record.error is None:
        assert repr(Record.of(record, tmp_path)) == f"<Record of case: {inline}>"


def test_without_programs_the_headline_still_says_what_failed() -> None:
    checks = FileChecks(invalid=UNREFUSED)
    numbers = headline.numbers(evidence.record({}, status="failed", checks=checks))
    assert Page(str(numbers)).text == "failed invalid expected to be refused with 'twice'"
    assert headline.numbers(evidence.record({}, checks=FileChecks())) is None
