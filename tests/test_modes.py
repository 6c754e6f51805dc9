"""What each program leaves to the compiler: who places values, who communicates, how many bytes, how many lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.app.flow.recording import modes
from runner.reports.record import record
from runner.reports.record.model import Mode
from runner.reports.show import modes as shown
from tests.command import run_command
from tests.evidence import as_json, collective, died, program
from tests.evidence import record as recorded

SOURCE = '''\
"""A program."""

import jax


def inputs():
    return ()


def program(mesh):
    # Not counted, nor is the line below it.

    def f(x):
        return x

    return jax.jit(f)


def main():
    print(program(None)())
'''


def of(folder: Path, **programs: Any) -> list[Mode]:
    for name in programs:
        (folder / f"program_{name}.py").write_text(SOURCE, encoding="utf-8")
    return modes(programs, folder)


def test_a_program_says_its_view_and_the_lines_of_its_function(tmp_path: Path) -> None:
    rows = of(tmp_path, auto=program(), constraint=program(), explicit=program(), shard_map=program(), vmap=program())
    assert [(mode.program, mode.view, mode.placed_by, mode.lines) for mode in rows] == [
        ("auto", "global", "compiler", 4),
        ("constraint", "global", "constraints", 4),
        ("explicit", "global", "types", 4),
        ("shard_map", "per device", "specs", 4),
    ]


def test_a_program_that_failed_is_not_compared(tmp_path: Path) -> None:
    assert of(tmp_path, auto=died("no")) == []


@pytest.mark.parametrize(
    ("collectives", "by"),
    [
        ([], []),
        ([collective(inserted=True)], ["compiler"]),
        ([collective(), collective(count=3)], ["program"]),
        ([collective(gradient=True), collective()], ["program", "differentiation"]),
        # Collectives that the compiler inserted into a backward pass count as the compiler's.
        ([collective(gradient=True, inserted=True), collective()], ["program", "compiler"]),
        ([collective(count=None)], ["program"]),
    ],
)
def test_who_communicates_is_read_off_the_compiled_module(
    tmp_path: Path, collectives: list[Any], by: list[str]
) -> None:
    (mode,) = of(tmp_path, auto=program(*collectives))
    assert mode.communicated_by == by


@pytest.mark.parametrize("more", [{"collectives_missing": ["a line was not read"]}, {"collectives": None}])
def test_a_program_that_may_communicate_more_is_unknown(tmp_path: Path, more: dict[str, Any]) -> None:
    (mode,) = of(tmp_path, auto=program(**more))
    assert mode.communicated_by is None


def test_the_rows_rank_the_programs_by_what_a_device_sends() -> None:
    mode = Mode(program="auto", view="global", placed_by="compiler", communicated_by=[], bytes_sent=0, lines=4)
    rows = shown.rows(
        recorded(
            modes=[
                replace(mode, communicated_by=None, bytes_sent=None),
                replace(mode, communicated_by=["program", "compiler"], bytes_sent=2_100_000),
                mode,
            ]
        )
    )
    assert rows == [
        ("auto", "global", "compiler", "nobody", "–", "4"),
        ("auto", "global", "compiler", "program and compiler", "2.1 MB", "4"),
        ("auto", "global", "compiler", "unknown", "unknown", "4"),
    ]
    assert shown.rows(recorded(modes=[mode])) == []
    assert shown.rows(recorded()) == []


def test_a_run_of_all_programs_compares_them(tmp_path: Path) -> None:
    ran = run_command("+experiment=case3_allreduce", f"hydra.run.dir={tmp_path}/all")
    assert ran.returncode == 0, ran.stderr
    rows = record.read(tmp_path / "all").modes
    assert rows is not None
    assert [(mode.program, mode.communicated_by, mode.bytes_sent) for mode in rows] == [
        ("auto", ["compiler"], 64),
        ("constraint", ["compiler"], 64),
        ("explicit", ["compiler"], 64),
        ("derived", ["program"], 64),
        ("shard_map", ["program"], 64),
    ]
    assert rows[0].lines < rows[-1].lines
    assert "program     view        who places   who communicates  each device sends  lines\n" in ran.stdout


def test_a_run_of_one_program_compares_nothing(tmp_path: Path) -> None:
    ran = run_command("+experiment=case3_allreduce", "program=auto", f"hydra.run.dir={tmp_path}/one")
    assert ran.returncode == 0, ran.stderr
    assert "modes" not in as_json(record.read(tmp_path / "one"))
    assert "who places" not in ran.stdout
