"""The studies can be run again, and say whether their answers still hold."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments import __main__ as experiments
from experiments import pivot, rank
from experiments.rank import Ranked
from experiments.tabulate import cells
from tests.command import ROOT

PAGE = """\
# Which layout?

    python experiments/tabulate.py outputs/a/DATE_TIME A B C auto

| A ↓ B → | [x, null] | [null, y] |
|---|---|---|
| [x, null] | [x, null] | [x, y] |
| [y, x] | [y, null] | failed |

What it says: something.
"""


def test_every_study_is_listed() -> None:
    names = [study.name for study in experiments.studies()]
    assert len(set(names)) == len(names)
    files = {path.stem for path in (ROOT / "experiments" / "study").glob("*.yaml")}
    files |= {path.stem for path in (ROOT / "experiments" / "wrong_answers").rglob("*.py")}
    files |= {path.stem for path in (ROOT / "experiments" / "wrong_answers" / "experiment").glob("*.yaml")}
    assert set(names) == files


# Sweeps.


def test_the_cells_of_a_page() -> None:
    assert cells(PAGE) == {
        ("A [x, null]", "B [x, null]"): "[x, null]",
        ("A [x, null]", "B [null, y]"): "[x, y]",
        ("A [y, x]", "B [x, null]"): "[y, null]",
        ("A [y, x]", "B [null, y]"): "failed",
    }


def test_a_page_may_have_several_tables() -> None:
    other = """
| S ↓ bytes_sent → | a | b |
|---|---|---|
| 512 | 1 | 2 |
"""
    assert cells(PAGE + other) == {**cells(PAGE), ("S 512", "bytes_sent a"): "1", ("S 512", "bytes_sent b"): "2"}
    changed = (PAGE + other).replace("| 512 | 1 | 2 |", "| 512 | 1 | 3 |")
    assert experiments.differences(PAGE + other, changed) == ["S 512, bytes_sent b: 3; the answer has 2"]


def test_a_reproduced_answer_holds() -> None:
    assert experiments.differences(PAGE, "\n".join(PAGE.splitlines()[4:8])) == []


def test_every_differing_cell_is_reported() -> None:
    changed = PAGE.replace("[x, y] |", "[x, null] |").replace("| [y, x] | [y, null] | failed |\n", "")
    assert experiments.differences(PAGE, changed) == [
        "A [x, null], B [null, y]: [x, null]; the answer has [x, y]",
        "A [y, x], B [x, null]: nothing; the answer has [y, null]",
        "A [y, x], B [null, y]: nothing; the answer has failed",
    ]
    assert experiments.differences(changed, PAGE)[1] == "A [y, x], B [x, null]: [y, null]; the answer has nothing"


def test_the_answer_of_each_sweep_says_how_its_table_was_made() -> None:
    for file in (ROOT / "experiments" / "study").glob("*.yaml"):
        page = (ROOT / "experiments" / "results" / file.stem / "README.md").read_text(encoding="utf-8")
        if "experiments/rank.py outputs/" in page:
            experiments.beyond(page, {"the estimate": Ranked(1.0, 0.0)})
        else:
            assert len(cells(page)) > 1
            assert re.search(r"experiments/(tabulate|pivot)\.py outputs/", page)


PIVOTED = """\
| dims.B ↓ estimate_s → | fsdp | tensor | least |
|---|---|---|---|
| 8 | 0.0012 | 0.001 | tensor |
| 16 | 0.0012 | failed | fsdp |"""


def test_a_measure_by_two_keys(tmp_path: Path) -> None:
    rows = ["dims.B,rules,status,estimate_s", "8,fsdp,passed,0.001234", "8,tensor,passed,0.00101"]
    rows += ["16,fsdp,passed,0.0012", "16,tensor,failed,0.0001"]
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    table = pivot.table(tmp_path, "dims.B", "rules", "estimate_s")
    assert table == PIVOTED
    assert experiments.differences(PIVOTED.replace("0.001 | tensor", "0.002 | fsdp"), table) == [
        "dims.B 8, estimate_s tensor: 0.001; the answer has 0.002",
        "dims.B 8, estimate_s least: tensor; the answer has fsdp",
    ]


def test_several_columns_with_the_least_are_listed(tmp_path: Path) -> None:
    rows = ["case,program,status,bytes_sent", *(f"1,{name},passed,64" for name in "abc"), "2,a,passed,64"]
    rows += ["2,b,passed,32", "2,c,passed,32", *(f"3,{name},failed,1" for name in "abc")]
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    lines = pivot.table(tmp_path, "case", "program", "bytes_sent").splitlines()[2:]
    assert [row.split(" | ")[-1] for row in lines] == ["alike |", "b, c |", "– |"]


# Sweeps that are timed.

RESULTS = """\
point,status,bytes_sent,memory_bytes,flops,estimate_s,run_s
0,passed,0,1,8,1.0,2.0
1,passed,0,1,4,2.0,3.0
2,passed,8,1,2,3.0,5.0
3,passed,8,1,1,1.5,4.0
4,passed,0,1,1,0.1,
"""

BOUNDS = "The answer holds where, by the estimate, τ is at least {tau} and the regret at most {regret} %."


@pytest.mark.in_turn
def test_a_measure_is_ranked_against_the_clock() -> None:
    # Of six pairs five have the same order.
    assert rank.ranked((1, 2, 3, 4), (1.0, 3.0, 2.0, 4.0)).tau == pytest.approx((5 - 1) / 6)
    assert rank.ranked((1, 2, 3), (10.0, 30.0, 40.0)) == Ranked(1.0, 0.0)
    assert rank.ranked((3, 2, 1), (10.0, 30.0, 40.0)) == Ranked(-1.0, 3.0)


def test_the_regret_of_equally_ranked_points_is_their_mean(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(RESULTS, encoding="utf-8")
    ranking = rank.answers(tmp_path)
    assert ranking["the estimate"].regret == 0.0
    assert ranking["bytes sent"].regret == pytest.approx(0.25)
    assert (ranking["flops"].tau, ranking["flops"].regret) == (pytest.approx(-2 / 3), 1.0)
    assert ranking["a lot"].regret == pytest.approx(0.75)
    again = tmp_path / "again"
    again.mkdir()
    (again / "results.csv").write_text(RESULTS.replace("1.0,2.0", "1.0,3.3"), encoding="utf-8")
    ranking = rank.answers(tmp_path, again)
    assert ranking["the clock itself"].tau == pytest.approx(2 / 3)
    assert ranking["the clock itself"].regret == pytest.approx(0.1)
    (again / "results.csv").write_text(RESULTS.replace("3,passed,8,1,1,1.5,4.0\n", ""), encoding="utf-8")
    with pytest.raises(ValueError, match=r"have not the same points$"):
        rank.answers(tmp_path, again)
    (tmp_path / "results.csv").write_text(RESULTS.replace("2,passed", "2,failed"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"did not pass: point 2$"):
        rank.answers(tmp_path)


@pytest.mark.parametrize(
    ("tau", "regret", "messages"),
    [
        ("0.5", "20", []),
        ("0.7", "20", ["by the estimate, τ is 0.60, less than 0.7"]),
        ("0.5", "9", ["by the estimate, the regret is 10%, more than 9 %"]),
    ],
)
def test_a_timed_answer_holds_within_bounds(tau: str, regret: str, messages: list[str]) -> None:
    ranking = {"the estimate": Ranked(0.6, 0.1), "bytes sent": Ranked(0.1, 9.0)}
    assert experiments.beyond(BOUNDS.format(tau=tau, regret=regret), ranking) == messages


# Wrong answers.

TABLES = """\
| script and report | devices | what is wrong | wrong in jax | where | cure |
|---|---|---|---|---|---|
| [always](always.md) | 2 | `a @ b` | 0.5.3 to 0.12.0.1 | `a.cc` | none |
| [mended](mended.md) | 2 | `a @ b` | 0.6.2 to 0.11.2 | `b.cc` | jax 0.12 |

| [crash](crashes/crash.md) | 2 | fails | 0.5.3 to 0.12.0.1, with Shardy | `c.cc` | none |
"""


@pytest.mark.parametrize(
    ("name", "jax", "wrong"),
    [
        ("always", "0.5.2", False),
        ("always", "0.5.3", True),
        ("always", "0.12.0.1", True),
        ("always", "0.13.0", True),
        ("crash", "0.13.0", True),
        ("mended", "0.6.1", False),
        ("mended", "0.11.2", True),
        ("mended", "0.12.0", False),
        ("mended", "0.13.0", False),
    ],
)
def test_the_page_says_with_which_versions_a_script_is_wrong(name: str, jax: str, wrong: bool) -> None:
    assert experiments.expected_wrong(name, jax, TABLES) is wrong


def test_the_page_covers_every_script() -> None:
    page = (experiments.WRONG / "README.md").read_text(encoding="utf-8")
    scripts = [path.stem for path in experiments.WRONG.rglob("*.py")]
    assert all(experiments.expected_wrong(name, "0.10.2", page) for name in scripts)
    assert [name for name in scripts if not experiments.expected_wrong(name, "0.12.0", page)] != []


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "README.md").write_text(TABLES, encoding="utf-8")
    monkeypatch.setattr(experiments, "WRONG", tmp_path)
    monkeypatch.setattr(experiments, "version", lambda name: "0.12.0")
    return tmp_path / "always.py"


@pytest.mark.parametrize(
    ("does", "otherwise"),
    [
        ("print('WRONG'); sys.exit(1)", []),
        ("print('CRASHED'); sys.exit(1)", []),
        ("print('right')", ["always.py is right; wrong_answers/README.md has it wrong with jax 0.12.0"]),
        ("raise ValueError('no')", ["always.py ends with status 1", "ValueError: no"]),
        ("print('WRONG')", ["always.py ends with status 0"]),
    ],
)
def test_a_script_that_is_as_wrong_as_is_known_holds(script: Path, does: str, otherwise: list[str]) -> None:
    script.write_text(f"import sys\n{does}\n", encoding="utf-8")
    assert experiments._script(script) == otherwise


def test_a_script_that_is_wrong_again_is_reported(script: Path) -> None:
    again = script.with_name("mended.py")
    again.write_text("import sys\nprint('WRONG')\nsys.exit(1)\n", encoding="utf-8")
    message = "mended.py is wrong; wrong_answers/README.md has it right with jax 0.12.0"
    assert experiments._script(again) == [message]


# The command.


def command(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "experiments", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.in_turn
def test_a_study_is_run_again_by_its_name() -> None:
    ran = command("log_power")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"jax {version('jax')}\nholds    log_power\n"


def test_an_unknown_study_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments.main(["log_powr"]) == 2
    message = "command line: log_powr\n  no study 'log_powr'; did you mean 'log_power'?\n"
    assert tuple(capsys.readouterr()) == ("", message)


def test_an_answer_that_does_not_hold_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [experiments.Study("one", list), experiments.Study("two", lambda: ["a: b; the answer has c"])]
    monkeypatch.setattr(experiments, "studies", lambda: made)
    assert experiments.main([]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["holds    one", "differs  two", "  a: b; the answer has c"]
    assert experiments.main(["one"]) == 0
