"""Words of a command line that are no input get one message and status 2; nothing is written, and nobody waits.

A session tries one in a few of them; `make faults` tries them all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import runner
from runner.compiled.explanation.modules import UnreadableModule
from tests.server import command

CASE = "case3_allreduce"
LONG = "x" * 300
TOO_LONG = "too long for files"
NONE = "no experiment"
NO_MESH = "is no mesh; write its axes and their sizes: data=4,model=2"
NO_AGE = "is not an age; 30m, 12h, 7d and 2w are"

LINES: list[tuple[str, list[str], str]] = [
    ("runner", ["a" * 5000], TOO_LONG),
    ("runner", [CASE, "seed=" + "[" * 500 + "]" * 500], "nested more than 100 levels deep"),
    ("runner", [CASE, "dims=" + "{a:" * 300 + "1" + "}" * 300], "nested more than 100 levels deep"),
    ("runner", [CASE, "a" * 3000 + "=1"], ""),
    ("runner", [CASE, f"hydra.run.dir={LONG}"], TOO_LONG),
    ("runner", [CASE, "hydra.run.dir=/dev/null/x"], "/dev/null/x is a file, or below one"),
    ("runner", ["--config-dir", "a" * 5000, CASE], TOO_LONG),
    ("runner", ["--config-dir", "/dev/null", CASE], "there is no such folder"),
    ("runner", ["--config-dir"], "expected one argument"),
    ("runner", ["--nope"], "unrecognized arguments: --nope"),
    ("runner", ["--help", "--nope"], "unrecognized arguments: --nope"),
    ("runner", ["-h", "x"], NONE),
    ("runner", ["help", "nope"], NONE),
    ("runner", [""], "an override is KEY=VALUE"),
    ("runner", [" "], "an override is KEY=VALUE"),
    ("runner", ["--", "x"], "unrecognized arguments: --"),
    ("runner", ["-"], "unrecognized arguments: -"),
    ("runner", [CASE, CASE], "one experiment is run at a time; a sweep runs all"),
    ("runner", [CASE, "--cfg", "nope"], "invalid choice: 'nope'"),
    ("runner", [CASE, "--info", "nope"], "invalid choice: 'nope'"),
    ("runner", ["-m", CASE, "seed=range(1,1000000000)"], "this would be 999,999,999 points"),
    ("runner", ["-m", CASE, "seed=range(0,1,0)"], "a range needs finite ends and a step other than 0"),
    ("runner", ["-m", CASE, "seed=choice()"], "Hydra reads choice(…) as a function of its own"),
    ("runner", ["-m", CASE, "seed=interval(0,1)"], "an interval is for sweepers that draw from it"),
    ("runner", ["-m", CASE, "seed=glob(*)"], "glob chooses among the files of a config group"),
    ("runner", ["-m", CASE, "seed=1,"], "Hydra's grammar does not accept the value unquoted"),
    ("runner", ["-m", CASE, "seed=tag(a,1)"], "Hydra reads tag(…) as a function of its own"),
    ("runner", ["-m", CASE, "jobs=0", "seed=1,2"], "there is no key 'jobs'"),
    ("runner", ["-m", CASE, "filter=x"], "there is no key 'filter'; 'where' chooses the rows of a sweep's table"),
    ("runner", ["-m", CASE, "hydra.sweep.dir=/dev/null/x"], "/dev/null/x: Not a directory"),
    ("runner", ["-m", CASE, "seed=1,2", "hydra.sweep.subdir=x"], "in folders by their numbers"),
    ("runner", ["-m", CASE, "seed=1,2", "hydra.sweep.subdir=../../x"], "in folders by their numbers"),
    ("runner", ["resume=nope"], "there is no such folder"),
    ("runner", ["resume="], "it has no sweep.json: it is not the folder of a sweep"),
    ("runner", ["resume=/dev/zero"], "there is no such folder"),
    ("runner", ["resume=a", "resume=b"], "a resumed sweep keeps its arguments: leave out resume=b"),
    ("runner", ["resume=x", CASE], f"a resumed sweep keeps its arguments: leave out +experiment={CASE}"),
    ("runner", ["resume=x", "trust=maybe"], "leave out trust=maybe"),
    *(("runner runs", ["--newer", age], NO_AGE) for age in ("x", "1e999d", "nand", "infd", "2026-13-45")),
    ("runner runs", ["--newer", "9" * 400 + "d"], "reaches back before the year 1"),
    ("runner runs", ["--newer", "-1d"], "expected one argument"),
    ("runner runs", ["--older", "1y"], NO_AGE),
    ("runner runs", ["--status", "nope"], "there is no status 'nope'"),
    ("runner runs", ["--status", ""], "there is no status ''"),
    ("runner runs", ["--delete"], "--delete: name the runs"),
    ("runner compare", [], "A is missing"),
    ("runner", ["-m", CASE, f"+experiment={CASE},layer"], f"a sweep runs all: -m {CASE},layer"),
    ("runner compare", ["a"], "a: there is no such file or folder"),
    ("runner compare", ["/"], "too many files for a folder of goldens"),
    ("runner report", [], "FOLDER is missing"),
    ("runner report", ["--nope"], "unrecognized arguments: --nope"),
    ("runner compare", ["--serie", "x"], "unrecognized arguments: --serie"),
    ("runner explain", ["m.txt", "--module", "y"], "m.txt: its module is x, not y"),
    ("runner explain", [], "name a FILE, or --profile LOGDIR"),
    ("runner explain", ["m.txt", "--hardware", "nope"], "there is no hardware 'nope'"),
    *(
        ("runner explain", ["m.txt", "--mesh", mesh], NO_MESH)
        for mesh in ("x", "x=0", "x=-1", "x=2,x=2", "", "x=1e3", "=2", "x=" + "9" * 5000)
    ),
    ("runner explain", ["m.txt", "--mesh", "x=٣"], "the mesh x=3 has 3 devices, the module runs on 2"),
    ("runner explain", ["m.txt", "--profile", "nope"], "nope: no profile is here"),
    ("runner explain", ["m.txt", "--lowered", "nope"], "nope: there is no such file"),
    ("runner explain", ["m.txt", "--json"], "unrecognized arguments: --json"),
    *((f"runner {name}", [LONG], "") for name in ("report", "compare", "runs", "explain", "list", "editor", "measure")),
    *((f"runner {name}", [LONG], "") for name in ("plan", "derive", "mutate")),
    *((f"runner {name}", ["/dev/zero"], "") for name in ("report", "compare", "runs", "explain", "list", "editor")),
    *((f"runner {name}", ["fifo"], "") for name in ("report", "compare", "runs", "explain", "list", "plan", "derive")),
    *((f"runner {name}", ["/proc/self/mem"], "") for name in ("report", "compare", "runs", "explain", "editor")),
    *((f"runner {name}", ["a\u202eb"], "a\\u202eb") for name in ("report", "compare", "runs", "explain", "plan")),
]  # fmt: skip
"""Modules, arguments, and what the message has; a pipe is there, and a module in `m.txt`."""

MODULE = "HloModule x, num_partitions=2\n\nENTRY main {\n  ROOT a = f32[3] parameter(0)\n}\n"


@pytest.mark.sample(8)
@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[0]} {' '.join(line[1])}"[:60])
def test_words_that_are_no_input_get_one_message(line: tuple[str, list[str], str], tmp_path: Path) -> None:
    module, words, says = line
    (tmp_path / "m.txt").write_text(MODULE)
    os.mkfifo(tmp_path / "fifo")
    done = command(tmp_path, *words, module=module, limit=60)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert "Traceback" not in output
    assert "bug in shardproof" not in output
    assert says in done.stderr
    assert done.stderr.count("\n") <= 5
    assert len(done.stderr) < 4000 + 2 * sum(map(len, words))
    assert {path.name for path in tmp_path.iterdir()} == {"m.txt", "fifo"}


def entry(*lines: str, head: str = "HloModule x, num_partitions=2") -> str:
    return "\n".join([head, "", "ENTRY main {", *(f"  {line}" for line in lines), "}", ""])


LOOP = "HloModule x\n\nf {\n  p = f32[] parameter(0)\n  ROOT c = f32[] call(p), to_apply=f\n}\n\nENTRY main {\n"
TEXTS: dict[str, tuple[str, str]] = {
    "empty": ("", "this is no text of an HLO module"),
    "NULs": ("\0" * 100, "this is no text of an HLO module"),
    "all characters": ("".join(map(chr, range(128))) * 3, "this is no text of an HLO module"),
    "a list": ("[]", "this is no text of an HLO module"),
    "100,000 brackets": ("[" * 100_000, "this is no text of an HLO module"),
    "half a head": ("HloModule x", "the module has no entry computation that could be read"),
    "a head": ("HloModule x, is_scheduled=true\n\n", "the module has no entry computation that could be read"),
    "reading itself": (entry("ROOT a = f32[] add(a, a)"), "a reads a, which stands behind it"),
    "calling itself": (f"{LOOP}  p = f32[] parameter(0)\n  ROOT a = f32[] call(p), to_apply=f\n}}\n", "f calls itself"),
    "many devices": (entry("ROOT a = f32[4] parameter(0)", head="HloModule x, num_partitions=99999999999"), "devices"),
    "another explanation": ('{"kind": "explanation"}', "this is no explanation: its schema is None"),
    "a number beyond float64": ('{"schema": 1e999}', "not valid JSON: 1e999 is beyond float64"),
    "deep JSON": ('{"schema": ' + "[" * 5000 + "]" * 5000 + "}", "not valid JSON"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_that_is_no_module_is_refused(kind: str, tmp_path: Path) -> None:
    text, says = TEXTS[kind]
    (tmp_path / "m.txt").write_text(text)
    with pytest.raises(UnreadableModule) as error:
        runner.explain(tmp_path / "m.txt")
    assert says in str(error.value)


def test_a_module_that_contradicts_itself_is_refused_with_the_instruction(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(
        entry("p = f32[4,4] parameter(0)", "ROOT d = () dot(p, p), lhs_contracting_dims={1}")
    )
    with pytest.raises(UnreadableModule) as error:
        runner.explain(tmp_path / "m.txt")
    assert "the module contradicts itself at line 5, d, dot; if a compiler wrote it" in str(error.value)


FRAMES = """HloModule x

FileNames
1 "/a/b.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=1 function_name_id=1 line=99999999999999999999 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

"""
READ: dict[str, str] = {
    "400 digits": entry("ROOT a = f32[" + "9" * 400 + "] parameter(0)"),
    "below zero": entry("ROOT a = f32[-3] parameter(0)"),
    "no dtype": entry("ROOT a = zz9[3] parameter(0)"),
    "3,000 tuples": entry("ROOT a = " + "(" * 3000 + "f32[]" + ")" * 3000 + " parameter(0)"),
    "another device": entry("p = f32[4] parameter(0)", "ROOT a = f32[4] all-reduce(p), replica_groups={{0,9}}"),
    "no permutation": entry("p = f32[4] parameter(0)", "ROOT a = f32[4] all-reduce(p), replica_groups=[2,4]<=[8]T(5)"),
    "pairs": entry("p = f32[4] parameter(0)", "ROOT a = f32[4] collective-permute(p), source_target_pairs={{0,7}}"),
    "lines beyond 64 bits": FRAMES + "\n".join([
        "ENTRY main {", "  p = f32[8,8] parameter(0)",
        "  q = f32[8,8] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={stack_frame_id=1}",
        "  r = f32[8,8] dot(q, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={stack_frame_id=2}",
        "}", "",
    ]),
    "a number left out": entry("ROOT a = f32[4,4] parameter(0), sharding={devices=[2,]<=[2]}"),
    "no root": entry("a = f32[3] parameter(0)"),
    "no end": entry("ROOT a = f32[3] parameter(0)").removesuffix("}\n"),
    "lines of Windows": entry("ROOT a = f32[3] parameter(0)").replace("\n", "\r\n"),
    "two entries": MODULE + MODULE.partition("\n\n")[2],
    "a long name": entry('ROOT a = f32[3] parameter(0), metadata={op_name="' + "a/" * 5000 + '" source_file="\x1b"}'),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_a_module_that_xla_would_not_write_is_explained_or_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(READ[kind])
    try:
        report = runner.explain(tmp_path / "m.txt")
        text = str(report)
        assert report.html()
    except UnreadableModule as error:
        text = f"x: {error}"
    assert "x: " in text
    assert "contradicts itself" not in text
    assert "\x1b" not in text
