"""All pairs of the runner's features: experiment, target, program, option and mode, combined as users combine them.

    python -m benchmarks.pairs --out FOLDER [--seed 0] [--cases 320] [--python PYTHON ...]

Every two values of two features are together in some case, as far as the number of cases allows, chosen by the seed;
each case runs as a command, with the interpreters in turn (one for each series of JAX). Results are in
FOLDER/pairs.jsonl, from which another call continues. The report has

- each run to look at, with its commands: it ended in an `error`, with a traceback or without a message, or values or
  layouts of a shipped experiment were wrong, which no option may cause;
- each that took more than a minute;
- what failed only by the file's `expect`, which is made for the file's own options, by the names of the checks;
- what was refused, by its message: one of each kind, with their number;
- how many pairs were run, and how many were only refused.

Exits with 1 if there is a run to look at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LONG = 60.0
"""Seconds after which a run is reported."""

LIMIT = 600.0

JUDGED = ("sections", "value", "layout", "replicas", "agreement", "gradient", "derivation")
"""The checks that no option may break: the others compare with `expect`, which is made for the file's own options."""

_TRIED = 40
"""The number of random cases of which the one with the most new pairs is taken."""

_SLOW = ("collective_", "matrix_layouts", "llama_block", "latent_attention")
"""Experiments of full size, which take minutes each."""

TARGETS = {
    "cpu": [],
    "two processes": ["target.processes=2"],
    "v5e": ["target.topology=v5e:{chips}"],
    "v5p": ["target.topology=v5p:{cube}"],
    "hardware h100": ["hardware=h100"],
}
"""The command-line arguments of each; a topology has as many chips as the mesh has devices."""

CHIPS = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4"}
CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4"}

PROGRAMS = {"all": [], **{name: [f"program={name}"] for name in
            ("auto", "constraint", "explicit", "derived", "shard_map", "vmap")}}  # fmt: skip

OPTIONS = {
    "none": [],
    "trace": ["trace=true"],
    "explain": ["explain=true"],
    "profile": ["profile=true"],
    "report": ["report=true"],
    "default precision": ["precision=default"],
    "no check_vma": ["check_vma=false"],
    "no expect": ["expect=null"],
    "another seed": ["seed=7"],
    "show nothing": ["show=none"],
    "no grad": ["grad=null"],
}

MODES = ("run", "sweep", "resume", "api", "report", "compare", "derive", "mutate")


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs")
    parser.add_argument("--out", type=Path, required=True, help="the folder of what is done")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=320)
    parser.add_argument("--python", action="append", help="an interpreter that has the runner, several in turn")
    given = parser.parse_args(arguments)
    pythons = given.python or [sys.executable]
    given.out.mkdir(parents=True, exist_ok=True)
    done = _done(given.out / "pairs.jsonl")
    chosen = list(itertools.islice(cases(given.seed), given.cases))
    with (given.out / "pairs.jsonl").open("a", encoding="utf-8") as out:
        for number, case in enumerate(chosen):
            if number in done:
                continue
            done[number] = tried(case, pythons[number % len(pythons)], given.out)
            out.write(json.dumps({"number": number, **done[number]}) + "\n")
            out.flush()
    return report([done[number] for number in sorted(done)])


def values() -> dict[str, list[str]]:
    """Return the values of each feature."""
    files = sorted((ROOT / "conf" / "experiment").glob("*.yaml"))
    names = [file.stem for file in files if not file.stem.startswith(_SLOW)]
    return {
        "experiment": names,
        "target": list(TARGETS),
        "program": list(PROGRAMS),
        "option": list(OPTIONS),
        "mode": list(MODES),
    }


def cases(seed: int) -> Iterator[dict[str, str]]:
    """Choose cases so that each covers as many new pairs as can be found."""
    rng, known = random.Random(seed), values()
    covered: set[tuple[tuple[str, str], tuple[str, str]]] = set()
    while True:
        some = [{name: rng.choice(each) for name, each in known.items()} for _ in range(_TRIED)]
        best = max(some, key=lambda case: sum(pair not in covered for pair in itertools.combinations(case.items(), 2)))
        covered.update(itertools.combinations(best.items(), 2))
        yield best


def overrides(case: Mapping[str, str]) -> list[str]:
    """Return the command line of a case without its mode."""
    devices = _devices(case["experiment"])
    placed = {"chips": CHIPS.get(devices, f"1x{devices}"), "cube": CUBES.get(devices, f"1x1x{devices}")}
    target = [each.format(**placed) for each in TARGETS[case["target"]]]
    return [f"+experiment={case['experiment']}", *target, *PROGRAMS[case["program"]], *OPTIONS[case["option"]]]


def _devices(experiment: str) -> int:
    from runner.experiment.config.compose import InvalidConfiguration, compose
    from runner.experiment.config.folders import conf_folder

    try:
        shape = compose(experiment, conf_folder()).plain["mesh"]["shape"]
    except InvalidConfiguration:
        return 4
    number = 1
    for size in shape or ():
        number *= size if isinstance(size, int) else 1
    return number


def commands(case: Mapping[str, str], python: str, folder: Path) -> list[list[str]]:
    """Return the commands of a case in order; they write into the folder."""
    words, here = overrides(case), [f"hydra.run.dir={folder}/run"]
    swept = [f"hydra.sweep.dir={folder}/sweep"]
    runner = [python, "-m", "runner"]
    match case["mode"]:
        case "sweep":
            return [[*runner, "-m", *words, "++seed=1,2", *swept]]
        case "resume":
            swept += ["++seed=1,2"]
            return [[*runner, "-m", *words, *swept], [*runner, f"resume={folder}/sweep"]]
        case "api":
            name, *arguments = words
            at, experiment = str(folder / "run"), name.partition("=")[2]
            script = (
                f"import runner; ran = runner.run({experiment!r}, {arguments!r}, folder={at!r}); print(ran); "
                f"assert runner.read({at!r}) == ran; raise SystemExit(3 if ran.status == 'error' else 0)"
            )
            return [[python, "-c", script]]
        case "report":
            return [[*runner, *words, *here], [python, "-m", "runner", "report", f"{folder}/run"]]
        case "compare":
            other = [f"hydra.run.dir={folder}/other"]
            both = [f"{folder}/run", f"{folder}/other"]
            return [[*runner, *words, *here], [*runner, *words, *other], [python, "-m", "runner", "compare", *both]]
        case "derive" | "mutate" as subcommand:
            return [[*runner, subcommand, *words, *here]]
        case _:
            return [[*runner, *words, *here]]


def tried(case: Mapping[str, str], python: str, out: Path) -> dict[str, Any]:
    """Run a case: return the status of its commands, the seconds, and why it has to be looked at."""
    folder = (out / "now").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = commands(case, python, folder)
    statuses: list[int] = []
    why: str | None = None
    refusal: str | None = None
    for line in lines:
        try:
            ran = subprocess.run(
                line, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"took more than {LIMIT:.0f} s"
            break
        statuses.append(ran.returncode)
        why = why or _why(ran.returncode, ran.stdout + ran.stderr)
        if ran.returncode == 2:
            refusal = refusal or _refusal(ran.stdout + ran.stderr)
    failed = _failed(folder)
    wrong = [name for name in failed if _check(name) in JUDGED]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "case": dict(case),
        "commands": [shlex.join(line).replace(str(folder), "FOLDER") for line in lines],
        "statuses": statuses,
        "seconds": round(time.monotonic() - start, 1),
        "cpu": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "why": why or ("failed in " + ", ".join(wrong) if wrong else None),
        "failed": failed,
        "refused": refusal,
    }


def _failed(folder: Path) -> list[str]:
    """Return the failed checks in the records of a folder with their programs: `shard_map: value`."""
    checks: list[str] = []
    for file in sorted(folder.rglob("result.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        checked = {"the file": record, **(record.get("programs") or {})}
        checks += [
            f"{name}: {check}"
            for name, of in checked.items()
            for check, verdict in (of.get("checks") or {}).items()
            if (verdict["status"] if isinstance(verdict, dict) else verdict) == "failed"
        ]
    return list(dict.fromkeys(checks))


def _why(status: int, output: str) -> str | None:
    """Say why a command has to be looked at: its unexpected output, or that it ended in an error."""
    if "bug in shardproof" in output or "Traceback" in output:
        return _last(output, "Traceback")
    if status not in (0, 1, 2):
        return _last(output, "error")
    return None if output.strip() else "it said nothing"


_ROW = re.compile(r" invalid( +–)* +(?P<message>\S.*)")
"""The table entry of a sweep for a refused point."""


def _refusal(output: str) -> str:
    """Return the reason of a refusal in a line: the message without its place."""
    rows = _ROW.search(output)
    return rows["message"] if rows else (output.strip().splitlines() or [""])[-1].strip()


def kind(refusal: str) -> str:
    """Return a message without names, numbers or files, equal for refusals of one kind."""
    words = re.sub(r"^command line: \S+(  \S+)? |'[^']*'|\S*[./=]\S*|\d+", "…", refusal)
    return " ".join(words.split()[:8])


def _last(output: str, word: str) -> str:
    """Return the end of a command's output from the last occurrence of a word, on one line."""
    lines = output.strip().splitlines()
    indices = [i for i, line in enumerate(lines) if word in line]
    return " ⏎ ".join(line.strip() for line in lines[indices[-1] if indices else -6 :][-12:])[:600]


def report(done: Sequence[Mapping[str, Any]]) -> int:
    """Print the runs to look at, and how all ended."""
    wrong = [each for each in done if each["why"]]
    long = [each for each in done if not each["why"] and each["seconds"] > LONG]
    for each in (*wrong, *long):
        print(f"{each['why'] or 'no error'}; {each['seconds']} s, {each['cpu']} s of CPU")
        for command in each["commands"]:
            print(f"  {command}")
    expected = [each for each in done if each["failed"] and not each["why"]]
    _print(
        "failed by expect alone", expected, lambda each: ", ".join(sorted({_check(name) for name in each["failed"]}))
    )
    refused = [each for each in done if each["refused"] and not each["why"]]
    _print("refused", refused, lambda each: kind(each["refused"]), lambda each: each["refused"])
    ran = [each for each in done if not each["refused"]]
    last = Counter(each["statuses"][-1] if each["statuses"] else "none" for each in done)
    statuses = ", ".join(f"status {status}: {count}" for status, count in sorted(last.items(), key=str))
    print(
        f"{len(done)} cases ({statuses}): {len(wrong)} to look at, {len(long)} of more than {LONG:.0f} s\n"
        f"{len(_pairs(done))} pairs, {len(_pairs(ran))} of them in the {len(ran)} cases that were not refused"
    )
    return 1 if wrong else 0


def _print(
    title: str,
    cases: Sequence[Mapping[str, Any]],
    kind: Callable[[Mapping[str, Any]], str],
    text: Callable[[Mapping[str, Any]], str] | None = None,
) -> None:
    """Print one case of each kind with its first command, most frequent kinds first."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        kinds.setdefault(kind(case), []).append(case)
    for alike in sorted(kinds.values(), key=len, reverse=True):
        print(f"{title}, {len(alike)} ×: {(text or kind)(alike[0])}\n  {alike[0]['commands'][0]}")


def _check(name: str) -> str:
    return name.partition(": ")[2]


def _pairs(cases: Sequence[Mapping[str, Any]]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Return the pairs of features that some of the cases combine."""
    return {pair for each in cases for pair in itertools.combinations(sorted(each["case"].items()), 2)}


def _done(file: Path) -> dict[int, dict[str, Any]]:
    if not file.is_file():
        return {}
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {each.pop("number"): each for each in records}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
