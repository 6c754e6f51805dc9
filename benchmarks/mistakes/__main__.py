"""How often a seeded mistake in a function is noticed, and the line that is named is that of the mistake.

    python -m benchmarks.mistakes [NAME …] [--right] [--verbose]

Every function is checked against its reference with each of its mistakes, and with --right as it is. A line is right if
it is the one that was changed, and wrong if it is another.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Not where a test imports it, whose process starts others.
if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

from benchmarks.mistakes.case import Case
from runner.app.api import Record, checked
from runner.link import copied
from runner.link.workers import Workers
from runner.reports.record.model import CompiledProgram
from runner.reports.record.verdicts import ValueVerdict

FAMILIES = (
    "rings", "attention", "training", "jitted", "global_view", "shards", "layers", "blocks", "models", "mixed",
    "signals", "parallel", "steps", "styles", "solvers", "heldout", "sciences", "practice", "assorted",
    "everyday", "projects",
)  # fmt: skip


def imported(text: str, family: str, folder: Path, number: int) -> Any:
    """A module with this text, under a name of its own."""
    name = f"{family}_{number}"
    (folder / f"{name}.py").write_text(text, "utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(name)


def diagnosis(record: Record) -> list[str]:
    """What a record says is wrong with the function."""
    values = [program.checks.value for program in record.programs.values() if isinstance(program, CompiledProgram)]
    return [text for value in values if isinstance(value, ValueVerdict) for text in value.diagnosis or ()]


def lines(texts: list[str], file: str) -> list[int]:
    """The numbers of the lines of a file that a diagnosis names as guilty."""
    named = [re.sub(r"^in NumPy too.*|.*begin to differ.*|^devices exchange values in.*", "", text) for text in texts]
    return [int(number) for text in named for number in re.findall(rf"{re.escape(file)}:(\d+)", text)]


def run(case: Case, folder: Path, workers: Workers) -> Record:
    in_specs = None if case.jitted and case.in_specs is None else case.in_specs
    with case.context():
        return checked(
            case.whole(), case.operands, folder, workers, mesh=None if case.setting else case.mesh, in_specs=in_specs,
            reference=case.reference, out_specs=None, program=case.program, show="none",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--right", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    counts = dict.fromkeys(("right", "none", "wrong", "unnoticed"), 0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sys.path.insert(0, str(folder))
        workers = Workers(copied.worker())
        number = 0
        try:
            for family in FAMILIES:
                module = importlib.import_module(f"benchmarks.mistakes.{family}")
                text = Path(module.__file__ or "").read_text("utf-8")
                for at, case in enumerate(module.CASES):
                    if given.names and case.name not in given.names and family not in given.names:
                        continue
                    if given.right:
                        record = run(case, folder / f"run{(number := number + 1)}", workers)
                        print(f"{record.status:8} {case.name}", record.error or "", *diagnosis(record), flush=True)
                        continue
                    for mistake in case.mistakes:
                        number += 1
                        broken, line = case.broken(text, mistake)
                        start = time.process_time()
                        cases = imported(broken, family, folder, number).CASES
                        record = run(cases[at], folder / f"run{number}", workers)
                        texts = diagnosis(record)
                        named = lines(texts, f"{family}_{number}.py")
                        outcome = "none" if not named else "right" if line in named else "wrong"
                        outcome = outcome if record.status == "failed" else "unnoticed"
                        counts[outcome] += 1
                        seconds = time.process_time() - start
                        print(
                            f"{outcome:9} {case.name}:{line} {named} {seconds:.0f} s {mistake[1].strip()[:70]}",
                            flush=True,
                        )
                        if given.verbose or outcome in ("wrong", "unnoticed"):
                            print(*(f"    {each}" for each in (record.error, *texts) if each), sep="\n", flush=True)
        finally:
            workers.close()
    print(counts)


if __name__ == "__main__":
    main()
