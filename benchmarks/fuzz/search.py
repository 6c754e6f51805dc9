"""Runs cases in a child, which may die, and keeps the result of each, every failure shrunk."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fuzz import script
from benchmarks.fuzz.shrink import Config, Types, pruned, shrink

COMMAND = (sys.executable, "-m", "benchmarks.fuzz.child")
ROOT = Path(__file__).parent.parent.parent
ORDER = (
    "crash",
    "hang",
    "bug",
    "generator",
    "error",
    "sections",
    "value",
    "gradient",
    "layout",
    "replicas",
    "agreement",
)
"""The kinds of failures, the most informative first: if a value is wrong, the programs disagree as well."""

PATIENCE = 30.0
"""Seconds for shrinking one finding."""

LIFETIME = 150
"""Cases per child, which takes JAX's caches with it."""


@dataclass(frozen=True)
class Finding:
    """A failure: its kind, the failing programs, a program that passed, and its distinguishing signature."""

    kind: str
    programs: tuple[str, ...]
    spared: tuple[str, ...]
    mark: str
    words: str


def finding(verdict: dict[str, Any]) -> Finding | None:
    """Return the most informative failure in a verdict, if there is one."""
    for kind in ORDER:
        here = [(program, words) for label, program, words in verdict["found"] if label == kind]
        if here:
            programs = tuple(program for program, _ in here if program)
            ran = verdict.get("ran", {})
            spared = tuple(name for name, status in ran.items() if status != "error" and name not in programs)
            return Finding(kind, programs, spared, _mark(kind, here[0][1]), here[0][1])
    return None


def _mark(kind: str, words: str) -> str:
    if kind in ("bug", "generator"):
        frames = re.findall(r'File "[^"]*?((?:runner|benchmarks|tests)/[^"]*)", line (\d+)', words)
        last = ":".join(frames[-1]) if frames else ""
        return f"{last} {words.strip().splitlines()[-1][:100]}"
    return template(words) if kind == "error" else ""


def template(words: str) -> str:
    """Return the first line of a message without the parts that differ between cases."""
    first = words.strip().splitlines()[0] if words.strip() else ""
    return re.sub(r"\[[^\]]*\]|'[^']*'|\d+", "…", first)[:120]


class Child:
    """A process that judges one request at a time, restarted after it dies."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._served = 0

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """Return the verdict on a request; without one, the finding is `crash` or `hang`."""
        if self._process is None or self._served >= LIFETIME:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._served += 1
        self._send(json.dumps(request))
        progress: dict[str, Any] = {}
        deadline = time.monotonic() + limit
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                self.close()
                return {
                    **progress,
                    "status": "hang",
                    "found": [["hang", progress.get("program", ""), f"after {limit:g} s"]],
                }
            if line is None:
                code = process.wait()
                self._log.seek(0)
                words = self._log.read().decode(errors="replace")[-2000:]
                self.close()
                message = f"the process ended with {code}\n{words}"
                return {**progress, "status": "crash", "found": [["crash", progress.get("program", ""), message]]}
            event = json.loads(line)
            label = event.pop("event")
            if label == "verdict":
                return {**progress, **event}
            progress |= event

    def _start(self) -> None:
        self.close()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._served = 0
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(self._process, self._lines), daemon=True).start()

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The child has died, which reading its output will show.
            return

    def close(self) -> None:
        """End the child, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._log):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        continue
            self._process = None


def _listen(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
    process.stdout.close()


class Search:
    """A folder of findings, and the child that makes them."""

    def __init__(
        self,
        folder: Path,
        seed: int = 0,
        dtypes: list[str] | None = None,
        programs: list[str] | None = None,
        limit: float = 120.0,
        child: Child | None = None,
    ) -> None:
        self._folder, self._seed, self._dtypes, self._programs, self._limit = folder, seed, dtypes, programs, limit
        self._child = child or Child()
        self._log = folder / "cases.jsonl"
        (folder / "experiment").mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def run(self, seconds: float, first: int | None = None) -> int:
        """Judge cases for some seconds, from `first` or the end of the log; return the number of findings."""
        done = [record["case"] for record in self.records() if record["seed"] == self._seed]
        number = first if first is not None else max(done, default=-1) + 1
        spent, findings = 0.0, 0
        while spent < seconds:
            start = time.monotonic()
            verdict = self._judge(number)
            spent += time.monotonic() - start
            findings += self.take(number, verdict, time.monotonic() - start)
            number += 1
        return findings

    def case(self, number: int) -> int:
        """Judge one case."""
        start = time.monotonic()
        verdict = self._judge(number)
        return self.take(number, verdict, time.monotonic() - start)

    def _judge(self, number: int) -> dict[str, Any]:
        request = {"seed": self._seed, "number": number, "dtypes": self._dtypes, "programs": self._programs}
        return self._child.ask(request, self._limit)

    def take(self, number: int, verdict: dict[str, Any], seconds: float) -> bool:
        """Record the result of a case, and shrink a failure."""
        wrong = finding(verdict)
        record: dict[str, Any] = {
            "seed": self._seed,
            "case": number,
            "status": verdict["status"],
            "seconds": round(seconds, 2),
            "operations": verdict.get("operations", []),
            "ran": verdict.get("ran", {}),
            "sent": verdict.get("sent", {}),
            "ignoring": verdict.get("ignoring", []),
            "not_supported": {name: template(why) for name, why in verdict.get("not_supported", {}).items()},
            "refused": [template(words) for kind, _, words in verdict["found"] if kind == "refused"],
            "weak": [template(words) for kind, _, words in verdict["found"] if kind == "weak"],
        }
        if verdict["status"] == "invalid":
            record["invalid"] = template(verdict["error"])
        if wrong is not None:
            record |= {"kind": wrong.kind, "programs": wrong.programs, "mark": wrong.mark}
            if "config" in verdict:
                record |= self._report(number, pruned(verdict["config"]), verdict, wrong)
            print(f"case {number}: {wrong.kind} {' '.join(wrong.programs)} {record.get('lines', '')}", flush=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
        return wrong is not None

    def _report(self, number: int, config: Config, verdict: dict[str, Any], wrong: Finding) -> dict[str, Any]:
        name = f"finding_{self._seed}_{number}" if self._seed else f"finding_{number}"
        known = {record.get("mark") for record in self.records() if record.get("kind") == "bug"}
        if wrong.kind == "bug" and wrong.mark in known:
            return {"again": True}
        smallest = self._shrink({**config, "name": name}, verdict.get("types", {}), wrong)
        last = self._child.ask({"config": smallest, "programs": None, "oracle": True}, self._limit)
        words = "\n\n".join(f"{kind} {program}\n{message}" for kind, program, message in last["found"]) or wrong.words
        text = f"# @package _global_\n{yaml.safe_dump(smallest, sort_keys=False, default_flow_style=None, width=120)}"
        (self._folder / "experiment" / f"{name}.yaml").write_text(text, encoding="utf-8")
        (self._folder / f"{name}.txt").write_text(words + "\n", encoding="utf-8")
        again = finding(last)
        if again is not None and again.kind == "value":
            alone = script.compared(last, again.programs[0])
            (self._folder / f"{name}.py").write_text(alone, encoding="utf-8")
        lines = smallest.get("graph") or smallest.get("per_device") or {}
        return {
            "lines": [str(line) for line in lines.values()],
            "compiler": "wrong: the compiler" in words,
            "left": again is not None and again.kind == wrong.kind,
        }

    def _shrink(self, config: Config, types: Types, wrong: Finding) -> Config:
        programs = [*wrong.programs[:1], *wrong.spared[:1]] if wrong.programs else None
        if wrong.kind == "agreement":
            programs = None
        end = time.monotonic() + PATIENCE

        def test(smaller: Config) -> Types | None:
            if time.monotonic() > end:
                return None
            verdict = self._child.ask({"config": smaller, "programs": programs}, self._limit)
            failure = finding(verdict)
            if failure is None or failure.kind != wrong.kind or failure.mark != wrong.mark:
                return None
            if programs is not None and wrong.kind != "crash" and failure.programs != wrong.programs[:1]:
                return None
            if programs is not None and wrong.spared and not set(programs) <= set(verdict.get("ran", programs)):
                return None
            return verdict.get("types", {})

        return shrink(config, types, test)

    def records(self) -> list[dict[str, Any]]:
        """Return the log's entry for each case so far."""
        if not self._log.is_file():
            return []
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def summary(self) -> str:
        """Return the numbers of cases, their contents, and their results."""
        records = self.records()
        seconds = sum(record["seconds"] for record in records)
        operations = Counter(operation for record in records for operation in record["operations"])
        ran = Counter(f"{name} {status}" for record in records for name, status in record["ran"].items())
        lines = [
            f"{len(records)} cases in {seconds:.0f} s, {60 * len(records) / max(seconds, 1):.0f} a minute, "
            f"of {len(operations)} operations",
            f"status: {dict(Counter(record['status'] for record in records))}",
            f"programs: {dict(sorted(ran.items()))}",
            *_compared(records),
        ]
        failures = [
            f"{r['kind']} {r['mark']}{' the compiler' if r.get('compiler') else ''}" for r in records if "kind" in r
        ]
        for title, counted in (
            ("invalid", Counter(r["invalid"] for r in records if "invalid" in r)),
            ("left out", Counter(f"{p}: {w}" for r in records for p, w in r["not_supported"].items())),
            ("not implemented", Counter(words for r in records for words in set(r["refused"]))),
            ("weak", Counter(words for r in records for words in set(r["weak"]))),
            ("found", Counter(failures)),
        ):
            lines += [f"{title}:"] + [f"  {count:5} {item}" for item, count in counted.most_common(25)]
        return "\n".join(lines)


def _compared(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return in how many cases `derived` sends at most what each other program sends, and the cases with more.

    A program that ignores `constraints` is no counterpart where there are some: it is counted on its own.
    """
    fewer, many, lines = 0, 0, list[str]()
    constrained, less = 0, 0
    for record in records:
        sent = dict(record.get("sent", {}))
        if "derived" not in sent:
            continue
        mine = sent.pop("derived")
        ignoring = [sent.pop(name) for name in record.get("ignoring", ()) if name in sent]
        constrained += bool(ignoring)
        less += bool(ignoring) and min(ignoring) < mine
        if not sent:
            continue
        many += 1
        least, name = min((sent, name) for name, sent in sent.items())
        fewer += mine <= least
        if mine > least:
            lines.append(f"  case {record['case']}: {mine} B, {least} B in {name}; {' '.join(record['operations'])}")
    share = f" ({100 * fewer / many:.1f} %)" if many else ""
    return [
        f"derived sends at most what each other program of the same layouts sends in {fewer} of {many}{share}; "
        f"a program that ignores constraints sends less in {less} of {constrained}; more in:",
        *lines,
    ]
