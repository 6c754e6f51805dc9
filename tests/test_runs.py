"""`python -m runner runs` and `report`: their arguments, their output, and the files that they leave alone."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.app.cli import report, runs
from runner.reports.record import folders, manifest, record, shelf, writing
from runner.reports.record.model import SCHEMA
from tests import evidence, swept
from tests.command import run_command


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in a temporary folder, so that paths are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: str, status: str = "passed", time: str = "2026-01-01T00:00:00+00:00", name: str = "case") -> Path:
    """Write a run folder."""
    path = Path(folder)
    manifest.begin(path, "run")
    overrides = [f"+experiment={name}", "dims.I=8"]
    record.write(evidence.record(experiment=name, status=status, time=time, overrides=overrides), path)
    manifest.end(path)
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    """Return the lines that a command prints."""
    assert runs.main(arguments) == status
    captured = capsys.readouterr()
    return (captured.out + captured.err).splitlines()


def test_runs_and_sweeps_are_listed_the_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    write("outputs/case/new", "failed", "2026-03-01T00:00:00+00:00")
    write("outputs/case/old")
    swept.write(Path("outputs/case/sweep"), 11)
    lines = printed(capsys)
    assert [line.split()[0] for line in lines[1:4]] == ["outputs/case/old", "outputs/case/sweep", "outputs/case/new"]
    assert lines[0].split() == ["folder", "experiment", "began", "(UTC)", "points", "status", "size", "overrides"]
    assert lines[1].split()[:6] == ["outputs/case/old", "case", "2026-01-01", "00:00:00", "–", "passed"]
    assert lines[2].split()[:8] == ["outputs/case/sweep", "case", "2026-01-01", "00:00:00", "11", "10", "passed,", "1"]
    assert lines[-1].startswith("2 runs, 1 sweep, ")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--experiment", "ca*"], ["a", "b"]),
        (["--status", "failed,error"], ["b"]),
        (["--with", "dims.I=8", "--experiment", "other"], ["c"]),
        (["--with", "dims.I=9"], []),
        (["--older", "1d"], ["a", "b", "c"]),
        (["--newer", "9999w"], ["a", "b", "c"]),
        (["--newer", "1m"], []),
    ],
)
def test_a_listing_can_be_filtered(capsys: pytest.CaptureFixture[str], arguments: list[str], names: list[str]) -> None:
    write("outputs/a")
    write("outputs/b", "failed", "2026-01-02T00:00:00+00:00")
    write("outputs/c", time="2026-01-03T00:00:00+00:00", name="other")
    lines = printed(capsys, "--json", *arguments)
    assert [Path(json.loads(line)["folder"]).name for line in lines] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "missing: there is no such folder"),
        ([], "outputs: there is no such folder"),
        (
            ["--status", "bad"],
            "--status: there is no status 'bad'; there are passed, known, weak, failed, invalid, error",
        ),
        (["--older", "soon"], "--older: 'soon' is not an age; 30m, 12h, 7d and 2w are"),
        (["--older", "9999999999w"], "--older: '9999999999w' reaches back before the year 1"),
        (["--yes"], "--yes belongs to --delete, which is missing"),
        (["--delete"], "--delete: name the runs, by a folder, or by --experiment, --status, --with or --older"),
    ],
)
def test_an_invalid_filter_is_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert printed(capsys, *arguments, status=2) == [message]


# Deleting.

TRACED = ("+experiment=case3_allreduce", "program=shard_map", "trace=true", "profile=true")
"""A run that writes every kind of file that a run can write."""


def test_a_run_and_a_sweep_are_deleted_with_all_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    run = write("outputs/case/run")
    swept.write(Path("outputs/case/sweep"), 3)
    assert report.main(["outputs/case/sweep"]) == 0
    capsys.readouterr()
    (run / ".hydra").mkdir()
    for file in ("hlo_auto.txt", "program_auto.py", "runner.log", "shardings.svg", ".hydra/config.yaml"):
        (run / file).write_text("")
    manifest.end(run)
    assert printed(capsys, "outputs/case", "--delete", "--yes")[-1] == "2 deleted"
    assert list(Path("outputs/case").iterdir()) == []


@pytest.mark.parametrize(
    "stranger",
    [
        "notes.txt", ".git/config", "hlo_auto.txt.bak", ".hydra/mine.yaml", "profile/auto/plugins/profile/1/notes.md",
        "verification/notes.txt", "src/result.json", "conf/experiment/deep/mine.yaml",
    ],
)  # fmt: skip
def test_a_folder_with_a_foreign_file_is_kept_whole(capsys: pytest.CaptureFixture[str], stranger: str) -> None:
    run = write("outputs/case/run")
    (run / stranger).parent.mkdir(parents=True, exist_ok=True)
    (run / stranger).write_text("mine")
    lines = printed(capsys, "outputs", "--delete", "--yes", status=1)
    assert any(line.startswith("outputs/case/run stays: no run wrote outputs/case/run/") for line in lines)
    assert "0 deleted, 1 left" in lines
    assert (run / stranger).read_text() == "mine"
    assert (run / "result.json").is_file()


def test_a_link_is_never_followed_nor_what_it_leads_to_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    kept = write("elsewhere/run")
    Path("outputs").mkdir()
    Path("outputs/linked").symlink_to(kept.resolve(), target_is_directory=True)
    assert printed(capsys, "outputs") == ["no runs"]
    run = write("outputs/run")
    (run / "program_auto.py").symlink_to((kept / "result.json").resolve())
    printed(capsys, "outputs", "--delete", "--yes", status=1)
    assert (run / "result.json").is_file()
    (run / "program_auto.py").unlink()
    (run / "verification").symlink_to(kept.resolve(), target_is_directory=True)
    printed(capsys, "outputs", "--delete", "--yes", status=1)
    assert (run / "result.json").is_file()
    assert (kept / "result.json").is_file()


def test_a_foreign_result_json_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (
        ("a", "{}"),
        ("b", '{"schema": 1, "status": "ok", "experiment": 1, "overrides": []}'),
        ("c", "x"),
    ):
        Path(f"outputs/{name}").mkdir(parents=True)
        Path(f"outputs/{name}/result.json").write_text(text)
    no_record = "  not a record: it has no 'schema', 'status', 'experiment' and 'overrides'"
    assert printed(capsys, "outputs", "--delete", "--yes") == [
        *("no runs", "outputs/a/result.json", no_record, "outputs/b/result.json", no_record),
        *("outputs/c/result.json", "  not JSON: Expecting value: line 1 column 1 (char 0)"),
    ]
    assert len(list(Path("outputs").rglob("result.json"))) == 3


def test_a_record_that_is_damaged_further_down_is_listed_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    damaged, record_ = write("outputs/damaged") / "result.json", write("outputs/right") / "result.json"
    damaged.write_text(damaged.read_text().replace('"arrays"', '"arays"'))
    lines = printed(capsys)
    assert [line.split()[0] for line in lines[1:3]] == ["outputs/damaged", "outputs/right"]
    assert lines[-2:] == [
        "outputs/damaged/result.json",
        f"  not a record of schema {SCHEMA}: it has no 'arrays'; only the start of the file could be listed",
    ]
    # One of another schema is read as far as the schemas agree.
    damaged.write_text(record_.read_text().replace(f'"schema": {SCHEMA}', '"schema": 2').replace('"arrays"', '"arays"'))
    assert "result.json" not in "\n".join(printed(capsys))


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_without_yes_the_user_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    write("outputs/run")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    printed(capsys, "outputs", "--delete", status=left)
    assert len(shelf.entries(Path("outputs"))) == left


def test_without_a_terminal_nothing_is_deleted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("outputs/run")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    lines = printed(capsys, "outputs", "--delete", status=2)
    assert lines[-1] == "--delete asks first, and standard input is not a terminal; --yes deletes without asking"
    assert len(shelf.entries(Path("outputs"))) == 1


def test_every_file_of_real_runs_and_sweeps_is_recognized(here: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = run_command(*TRACED, folder=here, **environment)
    assert run.returncode == 0, run.stderr
    swept_by_hand = ("-m", "+experiment=case3_allreduce", "program=auto", "dims.J=4,8")
    assert run_command(*swept_by_hand, folder=here, **environment).returncode == 0
    entries = shelf.entries(here / "outputs")
    assert [entry.sweep for entry in entries] == [False, True]
    for entry in entries:
        assert report.main([str(entry.folder)]) == 0
        assert shelf.strangers(entry) == []


def test_the_runs_of_a_folder_are_in_the_order_of_their_numbers() -> None:
    swept.write(Path("sweep"), 12)
    assert [path.name for path in folders.runs(Path("sweep"))] == [str(number) for number in range(12)]
    assert folders.is_sweep(Path("sweep"))
    assert not folders.is_sweep(Path("sweep/3"))


# The page's own command.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "missing: there is no such folder"),
        (["empty"], "empty: no run folder, and none in it: there is no result.json"),
        (["broken"], "broken/result.json\n  not a record: it has no 'schema'"),
    ],
)
def test_a_folder_without_a_record_is_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/result.json").write_text("{}")
    assert report.main(arguments) == 2
    assert capsys.readouterr().err == f"{message}\n"
    assert not list(Path().rglob("*.html"))


def test_a_point_whose_record_cannot_be_read_costs_only_itself(capsys: pytest.CaptureFixture[str]) -> None:
    swept.write(Path("sweep"), 3)
    Path("sweep/1/result.json").write_text('{"schema": 1}')
    assert report.main(["sweep"]) == 0
    captured = capsys.readouterr()
    assert "an older version of shardproof wrote it" in captured.err
    page = Path("sweep/report.html").read_text("utf-8")
    assert "an older version of shardproof wrote it" in page
    assert page.count("<tr data-p=") == 2


def test_several_sweeps_have_one_page_that_leads_to_all_their_points() -> None:
    swept.write(Path("first"), 3)
    swept.write(Path("sub/second"), 4)
    assert report.main(["first", "sub/second", "-o", "pages/both.html", "--only"]) == 3
    Path("pages").mkdir()
    assert report.main(["first", "sub/second", "-o", "pages/both.html"]) == 0
    page = Path("pages/both.html").read_text("utf-8")
    assert page.count("<tr data-p=") == 7
    assert 'href="../first/0/report.html">first/0</a>' in page
    assert 'href="../sub/second/3/report.html">second/3</a>' in page


def test_points_represented_by_another_are_shown_as_such() -> None:
    swept.write(Path("sweep"), 2)
    row = {
        "point": 2,
        "experiment": "case",
        "arrays.A.spec": "[q]",
        "program": "auto",
        "status": "passed",
        "same_as": 1,
    }
    Path("sweep/results.jsonl").write_text(json.dumps(row) + "\n")
    assert report.main(["sweep"]) == 0
    page = Path("sweep/report.html").read_text("utf-8")
    assert page.count("<tr data-p=") == 3
    assert '<a href="1/report.html">2</a> as 1' in page
    assert "1 of the points equal another one up to a symmetry of the mesh" in page


def test_a_page_may_be_elsewhere_and_leads_to_the_run_folder() -> None:
    write("runs/mine")
    assert report.main(["runs/mine/result.json", "-o", "page.html"]) == 0
    assert 'href="runs/mine/result.json"' in Path("page.html").read_text("utf-8")


def test_a_run_of_an_earlier_version_is_listed_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    run = write("outputs/run")
    plain = json.loads((run / "result.json").read_text("utf-8"))
    (run / "result.json").write_text(json.dumps(plain | {"schema": 1}))
    (run / manifest.FILE).unlink()
    assert len(printed(capsys, "--json")) == 1
    assert printed(capsys, "outputs", "--delete", "--yes", status=1)[-2:] == [
        "0 deleted, 1 left",
        "outputs/run stays: it has no manifest.json, so nothing says what a run wrote there; remove it yourself",
    ]
    assert (run / "result.json").is_file()


# Names alone do not make a file a run's.


LIKE_OURS = ("program_mine.py", "results.csv", "runner.log", "trace_of_me.py", ".hydra/config.yaml", "plan_b.json")


@pytest.mark.parametrize("name", LIKE_OURS)
def test_a_file_that_is_called_as_one_of_ours_is_not_ours(capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = write("outputs/run")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("mine")
    lines = printed(capsys, "outputs", "--delete", "--yes", status=1)
    assert f"outputs/run stays: no run wrote outputs/run/{name}, or it has changed since" in lines
    assert (run / name).read_text() == "mine"
    assert (run / "result.json").is_file()


def test_a_changed_file_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    run = write("outputs/run")
    (run / "program_auto.py").write_text("as it was written")
    manifest.end(run)
    (run / "program_auto.py").write_text("with my notes")
    lines = printed(capsys, "outputs", "--delete", "--yes", status=1)
    assert "outputs/run stays: no run wrote outputs/run/program_auto.py, or it has changed since" in lines


def test_a_log_may_have_grown_since(capsys: pytest.CaptureFixture[str]) -> None:
    run = write("outputs/run")
    (run / "runner.log").write_text("as it was written\n")
    manifest.end(run)
    (run / "runner.log").write_text("otherwise\n")
    assert printed(capsys, "outputs", "--delete", "--yes", status=1)
    (run / "runner.log").write_text("as it was written\nand a launcher's last word\n")
    assert printed(capsys, "outputs", "--delete", "--yes")[-1] == "1 deleted"


def test_a_record_without_a_manifest_makes_no_folder_ours(capsys: pytest.CaptureFixture[str]) -> None:
    run = write("elsewhere/run")
    mine = Path("outputs/mine")
    mine.mkdir(parents=True)
    for name in ("result.json", *(name for name in LIKE_OURS if "/" not in name)):
        (mine / name).write_bytes((run / "result.json").read_bytes())
    printed(capsys, "outputs", "--delete", "--yes", status=1)
    assert len(list(mine.iterdir())) == 6


def test_a_folder_named_by_digits_is_no_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("outputs/7", "outputs/8"):
        write(name)
    Path("outputs/notes.txt").write_text("mine")
    Path("outputs/2026").mkdir()
    Path("outputs/2026/photo.jpg").write_text("mine")
    assert printed(capsys, "outputs", "--delete", "--yes")[-1] == "2 deleted"
    assert sorted(path.name for path in Path("outputs").iterdir()) == ["2026", "notes.txt"]


@pytest.mark.parametrize("name", ["7/photo.jpg", "7/result.json", "notes.txt", "0/notes.txt", "0/7/a"])
def test_a_sweep_is_deleted_with_its_own_points_only(capsys: pytest.CaptureFixture[str], name: str) -> None:
    swept.write(Path("outputs/sweep"), 2)
    (Path("outputs/sweep") / name).parent.mkdir(parents=True, exist_ok=True)
    (Path("outputs/sweep") / name).write_text("mine")
    lines = printed(capsys, "outputs", "--delete", "--yes", status=1)
    named = {"7/photo.jpg": "7", "7/result.json": "7", "0/7/a": "0/7"}.get(name, name)
    assert any(line.startswith(f"outputs/sweep stays: no run wrote outputs/sweep/{named},") for line in lines)
    assert len(list(Path("outputs/sweep").rglob("result.json"))) >= 2


def test_a_killed_run_is_deleted_with_its_partial_files(capsys: pytest.CaptureFixture[str]) -> None:
    run = write("outputs/run")
    manifest.again(run)
    (run / "hlo_auto.txt").write_text("…")
    (run / "notes.txt").write_text("mine")
    assert "no run wrote outputs/run/notes.txt," in printed(capsys, "outputs", "--delete", "--yes", status=1)[-1]
    (run / "notes.txt").unlink()
    assert printed(capsys, "outputs", "--delete", "--yes")[-1] == "1 deleted"


@pytest.mark.parametrize("named", [".", "../run", "good/..", "./", "../linked"])
def test_a_run_is_deleted_by_any_path_to_its_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path, named: str
) -> None:
    write("outputs/run")
    Path("outputs/linked").symlink_to("run")
    beside = write("outputs/other")
    monkeypatch.chdir("outputs/run")
    if named == "good/..":
        Path("good").mkdir()
        assert "no run wrote" in printed(capsys, named, "--delete", "--yes", status=1)[-1]
        assert Path("good").is_dir()
    else:
        assert printed(capsys, named, "--delete", "--yes")[-1] == "1 deleted"
        assert not (beside.parent / "run").exists()
    assert (here / beside / "result.json").is_file()


# Where a run begins.


def test_a_run_does_not_begin_where_something_is(here: Path) -> None:
    (here / "results.csv").write_text("mine")
    for more, key in (([], "run"), (["-m", "seed=1,2"], "sweep"), (["hydra.searchpath=[]"], "run")):
        done = run_command("+experiment=case3_allreduce", f"hydra.{key}.dir=.", *more, folder=here)
        assert done.returncode == 2
        assert done.stderr == (
            f"command line: hydra.{key}.dir\n  . is not empty: it has results.csv, which no run wrote and this one "
            "could overwrite; name a folder that is empty, or not there\n"
        )
    assert [path.name for path in here.iterdir()] == ["results.csv"]


# Pages.


def test_a_page_follows_a_link_and_refuses_non_files(capsys: pytest.CaptureFixture[str]) -> None:
    write("run")
    Path("elsewhere").mkdir()
    Path("elsewhere/page.html").write_text("before")
    Path("link.html").symlink_to("elsewhere/page.html")
    assert report.main(["run", "-o", "link.html"]) == 0
    assert Path("link.html").is_symlink()
    assert "Shardproof" in Path("elsewhere/page.html").read_text("utf-8")
    os.mkfifo("pipe.html")
    for name in ("pipe.html", "/dev/null", "elsewhere"):
        assert report.main(["run", "-o", name]) == 2
        message = f"-o {name}: this is not a regular file\n"
        assert capsys.readouterr().err == message
    assert stat.S_ISFIFO(os.stat("pipe.html").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="it is not a file, so it is left as it is"):
        writing.write_text(Path("pipe.html"), "text")


def test_a_page_shows_no_file_but_those_beside_the_record() -> None:
    Path("secret.py").write_text("SECRET = 1\n")
    write("run")
    record.write(evidence.record({"auto": evidence.program()}, experiment="case"), Path("run"))
    Path("run/program_auto.py").symlink_to(Path("secret.py").absolute())
    assert report.main(["run", "-o", "page.html"]) == 0
    assert "SECRET" not in Path("page.html").read_text("utf-8")
    Path("run/program_auto.py").unlink()
    Path("run/program_auto.py").write_text("SHOWN = 1\n")
    assert report.main(["run", "-o", "page.html"]) == 0
    assert "SHOWN" in Path("page.html").read_text("utf-8")


def test_a_page_at_the_default_path_replaces_only_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    write("mine/run")
    assert report.main(["mine/run"]) == 0
    assert report.main(["mine/run"]) == 0
    assert shelf.strangers(shelf.entries(Path("mine"))[0]) == []
    for name in ("mine/report.html", "mine/run/report.html"):
        before = Path(name).read_text() if Path(name).exists() else None
        Path(name).write_text("mine")
        capsys.readouterr()
        assert report.main(["mine"]) == 2
        assert capsys.readouterr().err == f"{name}\n  this command did not write it: -o names another file\n"
        assert Path(name).read_text() == "mine"
        Path(name).unlink() if before is None else Path(name).write_text(before)


def test_the_statuses_of_a_sweep_are_counted() -> None:
    swept.write(Path("sweep"), 22)
    (entry,) = shelf.entries(Path("sweep"))
    assert entry.statuses == {"passed": 20, "invalid": 2}
    assert replace(entry, statuses=entry.statuses).points == 22


def test_folders_that_may_not_be_read_are_named_and_the_others_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("outputs/a", "outputs/closed/b", "outputs/z"):
        write(name)
    scanned, state = os.scandir, os.stat

    def refused(path: str | os.PathLike[str]) -> None:
        # Permissions do not hold for the user root.
        if "closed" in Path(path).parts[-1 if Path(path).name == "closed" else -2 :][:1]:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", lambda path: (refused(path), scanned(path))[1])
    monkeypatch.setattr("os.stat", lambda path, **more: (refused(path), state(path, **more))[1])
    message = "outputs/closed\n  Permission denied: what is in it is left out\n"
    assert runs.main([]) == 0
    out, err = capsys.readouterr()
    assert err == message
    assert "2 runs" in out
    assert report.main(["outputs", "--only"]) == 0
    assert capsys.readouterr().err == message
