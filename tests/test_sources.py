"""A key has the file, line and column at which it was written, in the file that set it last."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runner.base.faults import Fault, Key
from runner.experiment.config.files import layers
from runner.experiment.config.sources import Layer, Location, Sources, key_place, listing, shown, text_place

TEXT = """\
name: mine
dims: {I: 4, "J": 8}
arrays:
  A: {shape: [I, J], init: "arange(32)", spec: [null, [x, y]]}
  B:
    shape:
      - I
      - J
    init: |
      arange(32)
        + 1
common: &common
  dtype: int8
  spec: [x]
more:
  C: *common
  D:
    <<: *common
    shape: [I]
1: one
"""


def at(text: str, part: str, occurrence: int = 0) -> tuple[int, int]:
    """Return the line and column of a part of a text, counted from 1."""
    index = -1
    for _ in range(occurrence + 1):
        index = text.index(part, index + 1)
    before = text[:index]
    return before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1


PLACES: dict[Key, tuple[str, int]] = {
    ("name",): ("mine", 0),
    ("dims",): ("dims", 0),
    ("dims", "I"): ("4", 0),
    ("dims", "J"): ("8", 0),
    ("arrays", "A"): ("A:", 0),
    ("arrays", "A", "shape"): ("[I, J]", 0),
    ("arrays", "A", "shape", 1): ("J]", 0),
    ("arrays", "A", "init"): ('"arange', 0),
    ("arrays", "A", "spec", 0): ("null", 0),
    ("arrays", "A", "spec", 1): ("[x, y]", 0),
    ("arrays", "A", "spec", 1, 1): ("y]", 0),
    ("arrays", "B", "shape", 1): ("J\n", 0),
    ("arrays", "B", "init"): ("|", 0),
    # A fault in a default is reported at the nearest written key.
    ("arrays", "A", "dtype"): ("A:", 0),
    ("arrays", "A", "shape", 7): ("[I, J]", 0),
    ("arrays", "Z", "shape"): ("arrays", 0),
    # An alias has the place of its anchor.
    ("more", "C", "dtype"): ("int8", 0),
    ("more", "D", "spec", 0): ("x]\n", 0),
    ("more", "D", "shape", 0): ("I]\n", 0),
    ("1",): ("one", 0),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("key", PLACES)
def test_a_key_is_found_where_it_was_written(file: Path, key: Key) -> None:
    place = Sources((Layer(file),)).place(key)
    assert place is not None
    assert (place.file, place.line, place.column) == (file, *at(TEXT, *PLACES[key]))


def test_an_unwritten_key_has_no_place(file: Path) -> None:
    assert Sources((Layer(file),)).place(("mesh", "shape")) is None
    assert Sources(()).place(("name",)) is None


def test_columns_count_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("dims: {größe: 4, 日本: 5}\n", encoding="utf-8")
    assert str(Sources((Layer(path),)).place(("dims", "日本"))).endswith("a.yaml:1:22")


def test_the_last_file_that_sets_a_key_counts(tmp_path: Path) -> None:
    first, second, mesh = (tmp_path / f"{name}.yaml" for name in ("first", "second", "mesh"))
    first.write_text("dims: {I: 4}\nmesh: {shape: [2, 2]}\n")
    second.write_text("\ndims: {J: 4}\n")
    mesh.write_text("axes: [x, y]\n")
    sources = Sources((Layer(mesh, ("mesh",)), Layer(first), Layer(second)))
    assert sources.place(("dims", "I")) == Location(first, 1, 11)
    assert sources.place(("dims", "J")) == Location(second, 2, 11)
    assert sources.place(("mesh", "axes", 1)) == Location(mesh, 1, 11)
    assert sources.place(("mesh", "shape", 0)) == Location(first, 2, 16)
    assert sources.place(("arrays",)) is None


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    assert Sources((Layer(tmp_path / "none.yaml"), Layer(tmp_path / "broken.yaml"))).place(("a",)) is None


def test_the_names_below_a_key(file: Path) -> None:
    sources = Sources((Layer(file),))
    assert sources.names(("dims",)) == ["I", "J"]
    assert sources.names(("arrays",)) == ["A", "B"]
    assert sources.names(("name",)) == []
    assert Sources((Layer(file, ("mesh",)),)).names(("mesh", "dims")) == ["I", "J"]


@pytest.mark.parametrize(
    ("override", "key", "names"),
    [
        ("dims.I=4", ("dims", "I"), True),
        ("+dims.I=4", ("dims", "I"), True),
        ("~dims.I", ("dims", "I"), True),
        ("dims={I: 4}", ("dims", "I"), True),
        ("mesh.shape=[2,0]", ("mesh", "shape", 1), True),
        ("mesh=x2", ("mesh", "shape"), True),
        ("mesh@mesh=x2", ("mesh", "shape"), True),
        ("dims.I=4", ("dims", "J"), False),
        ("dims.I=4", ("dims",), False),
        ("dim=4", ("dims",), False),
    ],
)
def test_an_override_is_named_if_it_set_the_key(override: str, key: Key, names: bool) -> None:
    assert Sources((), (override,)).override(key) == (override if names else None)


def test_the_last_override_counts() -> None:
    assert Sources((), ("dims.I=1", "seed=1", "dims.I=2")).override(("dims", "I")) == "dims.I=2"


def test_an_override_is_reported_before_a_file(file: Path) -> None:
    report = Sources((Layer(file),), ("dims.I=0",)).report(Fault(("dims", "I"), "wrong"))
    assert report == "command line: dims.I=0  dims.I\n  wrong"


def test_the_folder_of_a_file_name_is_that_of_its_yaml_or_the_current_one(file: Path) -> None:
    key = ("arrays", "A", "init")
    assert Sources((Layer(file),)).folder(key) == file.parent
    assert Sources((Layer(file),), ("arrays.A.init=load('a.npy')",)).folder(key) == Path.cwd()


# The message.


def test_the_message_names_the_place_the_key_and_the_fault(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    fault = Fault(("arrays", "A", "init"), "first\nsecond", "arange(32)", 7, 9)
    assert Sources((Layer(file),)).report(fault) == (
        "mine.yaml:4:28  arrays.A.init\n  first\n  second\n    arange(32)\n           ^^"
    )
    assert Sources(()).report(Fault((), "nothing to run")) == "configuration\n  nothing to run"


def carets(expression: str, start: int, end: int) -> list[str]:
    return [line[4:] for line in Sources(()).report(Fault(("a",), "m", expression, start, end)).splitlines()[2:]]


def test_carets_are_under_the_span() -> None:
    assert carets("A @ @ B", 4, 5) == ["A @ @ B", "    ^"]
    assert carets("A @", 3, 3) == ["A @", "   ^"]


def test_carets_are_right_after_wide_and_combining_characters() -> None:
    assert carets("größe @ Z", 8, 9) == ["größe @ Z", "        ^"]
    assert carets("日本 @ Z", 5, 6) == ["日本 @ Z", "       ^"]
    assert carets("e\u0301 @ Z", 5, 6) == ["e\u0301 @ Z", "    ^"]
    assert carets("A + 日本", 4, 6) == ["A + 日本", "    ^^^^"]
    assert carets("A\t@ Z", 4, 5) == ["A @ Z", "    ^"]


def test_a_long_expression_is_shortened_around_the_fault() -> None:
    text = "a + " * 100 + "Z" + " + b" * 100
    shown_text, under = carets(text, 400, 401)
    assert shown_text.startswith("…")
    assert shown_text.endswith("…")
    assert len(shown_text) == 142
    assert shown_text[under.index("^")] == "Z"
    shown_text, under = carets(text, 10, 700)
    assert len(under) <= len(shown_text)


# Files.


def test_a_path_is_shown_as_short_as_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert shown(tmp_path / "below" / "a.yaml") == "a.yaml"
    assert shown(tmp_path / "a.yaml") == str(tmp_path / "a.yaml")


def test_the_place_of_a_key_and_of_a_word(file: Path) -> None:
    assert key_place(file, ("arrays", "A", "spec")) == Location(file, *at(TEXT, "spec"))
    assert key_place(file, ("arrays", "A", "none")) is None
    assert key_place(file, ("name", "deeper")) is None
    assert text_place(file, "common") == Location(file, *at(TEXT, "common"))
    assert text_place(file, "absent") == Location(file, 1, 1)
    assert text_place(file.parent / "none.yaml", "a").line == 1


def test_experiments_are_listed_with_their_summaries_the_first_folder_winning(tmp_path: Path) -> None:
    for folder, name, text in (
        ("one", "b", "summary: >\n  two\n  lines\n"),
        ("one", "group/a", "name: a\n"),
        ("two", "b", "summary: hidden\n"),
        ("two", "c", "summary: ["),
    ):
        path = tmp_path / folder / "experiment" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    listed = [(name, summary) for name, summary, _ in listing([tmp_path / "one", tmp_path / "two", tmp_path / "none"])]
    assert listed == [("b", "two lines"), ("c", "(this file cannot be read)"), ("group/a", "")]


# The layers of a configuration.


def conf(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


FILES = {
    "config": "seed: 0\n",
    "mesh/x2": "axes: [x]\n",
    "mesh/x4": "axes: [x]\n",
    "target/cpu": "platform: cpu\n",
    "experiment/parent": "# @package _global_\nname: parent\n",
    "experiment/child": "# @package _global_\ndefaults:\n  - override /mesh: x4\n  - parent\n  - _self_\nname: child\n",
    "experiment/loop": "# @package _global_\ndefaults: [loop]\n",
    "mesh/packed": "# @package _global_.other\naxes: [x]\n",
    "mesh/deep": "# @package a.b\naxes: [x]\n",
}


def layered(folder: Path, choices: dict[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    return [(layer.file.stem, layer.package) for layer in layers([conf(folder, FILES)], choices)]


def test_a_group_is_below_its_name_and_the_experiment_is_merged_last(tmp_path: Path) -> None:
    listed = layered(tmp_path, {"experiment": "parent", "mesh": "x2", "target": "cpu", "hydra/output": "default"})
    assert listed == [("config", ()), ("mesh/x2"[5:], ("mesh",)), ("cpu", ("target",)), ("parent", ())]


def test_a_file_is_merged_after_its_bases(tmp_path: Path) -> None:
    listed = layered(tmp_path, {"experiment": "child"})
    assert listed == [("config", ()), ("x4", ("mesh",)), ("parent", ()), ("child", ())]


def test_a_file_based_on_itself_terminates(tmp_path: Path) -> None:
    assert layered(tmp_path, {"experiment": "loop"}) == [("config", ()), ("loop", ())]


@pytest.mark.parametrize(("option", "package"), [("packed", ("other",)), ("deep", ("a", "b"))])
def test_a_package_header_moves_a_file(tmp_path: Path, option: str, package: tuple[str, ...]) -> None:
    assert layered(tmp_path, {"mesh": option})[1:] == [(option, package)]


def test_the_users_folder_comes_first(tmp_path: Path) -> None:
    mine, theirs = conf(tmp_path / "mine", {"mesh/x2": "axes: [z]\n"}), conf(tmp_path / "theirs", FILES)
    assert [layer.file for layer in layers([mine, theirs], {"mesh": "x2", "target": "none"})] == [
        theirs / "config.yaml",
        mine / "mesh" / "x2.yaml",
    ]


def test_the_fixture_is_yaml() -> None:
    assert yaml.safe_load(TEXT)["more"]["D"] == {"dtype": "int8", "spec": ["x"], "shape": ["I"]}
