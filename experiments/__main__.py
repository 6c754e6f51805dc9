"""`python -m experiments [NAME …]`: studies in; each is run again, and whether its answer still holds out.

The answer of a sweep (`study/NAME.yaml`) is the tables of `results/NAME/README.md`, or for a timed one the bounds that
are stated there. The answer of a wrong-answer script is its row in `wrong_answers/README.md`, and `expect.wrong` of its
experiment. Exit status: 0, every answer holds; 1, one does not; 2, there is no such study.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

from experiments import pivot, rank, tabulate
from experiments.rank import Ranked
from experiments.tabulate import cells
from runner.base.faults import nearest

HERE = Path(__file__).parent
WRONG = HERE / "wrong_answers"


@dataclass(frozen=True)
class Study:
    """A study: `ask` runs it and returns the differences from its answer, in words; none if the answer holds."""

    name: str
    ask: Callable[[], list[str]]


def main(arguments: Sequence[str]) -> int:
    """Run the named studies, or all."""
    known = {study.name: study for study in studies()}
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="Whether the studies' answers still hold."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; all by default")
    given = parser.parse_args(list(arguments))
    for name in given.names:
        if name not in known:
            hint = nearest(name, known) or f"; there are {', '.join(known)}"
            print(f"command line: {name}\n  no study '{name}'{hint}", file=sys.stderr)
            return 2
    print(f"jax {version('jax')}")
    differing = 0
    for name in given.names or known:
        otherwise = known[name].ask()
        differing += bool(otherwise)
        print("\n  ".join([f"{'differs' if otherwise else 'holds  '}  {name}", *otherwise]), flush=True)
    return int(bool(differing))


def studies() -> list[Study]:
    """Return all studies: the sweeps, the wrong answers, the crashes."""
    sweeps = [Study(file.stem, partial(_sweep, file.stem)) for file in sorted((HERE / "study").glob("*.yaml"))]
    names = sorted({file.stem for file in (*WRONG.glob("experiment/*.yaml"), *WRONG.glob("*.py"))})
    wrong = [Study(name, partial(_wrong_answer, name)) for name in names]
    crashes = [Study(file.stem, partial(_script, file)) for file in sorted(WRONG.glob("crashes/*.py"))]
    return [*sweeps, *wrong, *crashes]


# Sweeps.


def _sweep(name: str) -> list[str]:
    page = (HERE / "results" / name / "README.md").read_text(encoding="utf-8")
    tabulated = re.search(r"experiments/tabulate\.py \S+ (\S+) (\S+) (\S+) (\S+)", page)
    pivoted: list[tuple[str, str, str]] = re.findall(r"experiments/pivot\.py \S+ (\S+) (\S+) (\S+)", page)
    if tabulated is None and not pivoted and "experiments/rank.py" not in page:
        raise ValueError(f"results/{name}/README.md does not say how its table was made")
    measured = re.search(r"python -m (runner\.measure \w+) --config-dir experiments", page)
    if measured is not None:
        ran = _python("-m", *measured[1].split(), "--config-dir", str(HERE))
        if ran.returncode:
            return [f"the measuring ends with status {ran.returncode}", *_last(ran.stderr)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "sweep"
        ran = _python("-m", "runner", "-m", "--config-dir", str(HERE), f"+study={name}", f"hydra.sweep.dir={folder}")
        if ran.returncode:
            return [f"the sweep ends with status {ran.returncode}", *ran.stdout.splitlines()[-1:], *_last(ran.stderr)]
        if tabulated is not None:
            return differences(page, tabulate.table(folder, *tabulated.groups()))
        if pivoted:
            return differences(page, "\n".join(pivot.table(folder, *keys) for keys in pivoted))
        return beyond(page, rank.answers(folder))


def beyond(page: str, ranking: dict[str, Ranked]) -> list[str]:
    """Return the stated bounds that do not hold; measured times are only compared with bounds."""
    stated = re.search(r"by (.+?), τ is at least (\S+) and the regret at most (\d+) %", page)
    if stated is None:
        raise ValueError("the page does not say between which bounds its answer holds")
    by, tau, regret = stated.groups()
    broken = [] if ranking[by].tau >= float(tau) else [f"by {by}, τ is {ranking[by].tau:.2f}, less than {tau}"]
    if ranking[by].regret > int(regret) / 100:
        broken.append(f"by {by}, the regret is {ranking[by].regret:.0%}, more than {regret} %")
    return broken


def differences(answer: str, table: str) -> list[str]:
    """Return the differences of a table from the one in the answer's page, cell by cell."""
    before, now = cells(answer), cells(table)
    lines = []
    for row, column in dict.fromkeys([*before, *now]):
        was, is_ = before.get((row, column), "nothing"), now.get((row, column), "nothing")
        if was != is_:
            lines.append(f"{row}, {column}: {is_}; the answer has {was}")
    return lines


# Wrong answers.


def _wrong_answer(name: str) -> list[str]:
    script, experiment = WRONG / f"{name}.py", WRONG / "experiment" / f"{name}.yaml"
    return [
        *(_script(script) if script.exists() else ()),
        *(_experiment(name) if experiment.exists() else ()),
    ]


def _script(script: Path) -> list[str]:
    ran = _python(str(script))
    last = (ran.stdout.splitlines() or [""])[-1]
    if (last in ("WRONG", "CRASHED")) != bool(ran.returncode):
        return [f"{script.name} ends with status {ran.returncode}", *_last(ran.stderr)]
    wrong, expected = (
        bool(ran.returncode),
        expected_wrong(script.stem, version("jax"), (WRONG / "README.md").read_text(encoding="utf-8")),
    )
    if wrong == expected:
        return []
    is_, was = ("wrong", "right") if wrong else ("right", "wrong")
    return [f"{script.name} is {is_}; wrong_answers/README.md has it {was} with jax {version('jax')}"]


def expected_wrong(name: str, jax: str, page: str) -> bool:
    """Return whether a page calls a script wrong with a JAX version; newer versions count as the last one tried."""
    spans = dict(re.findall(r"^\| \[(\w+)\]\(.*\| (\d[\d.]* to \d[\d.]*)[ ,|]", page, re.MULTILINE))
    tried = max(Version(span.split(" to ")[1]) for span in spans.values())
    first, last = map(Version, spans[name].split(" to "))
    return first <= min(Version(jax), tried) <= last


def _experiment(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        ran = _python("-m", "runner", "--config-dir", str(WRONG), f"+experiment={name}", f"hydra.run.dir={scratch}/run")
    if ran.returncode == 0:
        return []
    failed = re.findall(r"^\w+: \w+ (?:failed|is weak)$", ran.stdout, re.MULTILINE)
    return [f"+experiment={name} ends with status {ran.returncode}", *failed, *_last(ran.stderr)]


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False, timeout=3600
    )


def _last(text: str) -> list[str]:
    return text.strip().splitlines()[-1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
