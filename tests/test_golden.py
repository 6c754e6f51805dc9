"""The pinned values of a record, the format of their file, and the messages when they change."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.layout import Spec
from runner.base.words import flops_text
from runner.compiled.evidence import words
from runner.compiled.evidence.model import MergedPart
from runner.reports.record import differences, golden
from tests.command import ROOT
from tests.evidence import collective, died, memory, output, program

PLACE = ("jax 0.10", "cpu", "shard_map")


def test_a_series_is_the_first_two_numbers_of_the_version() -> None:
    assert [golden.series(v) for v in ("0.10.2", "0.12.0.1", "0.12.0.dev3")] == ["jax 0.10", "jax 0.12", "jax 0.12"]


# Pinned values.


def test_collectives_bytes_and_layouts_are_pinned_and_nothing_that_varies_from_run_to_run() -> None:
    assert golden.pinned(program(collective())) == {
        "bytes": {"argument": 64, "output": 64},
        "outputs": {"C": {"shape": [4, 4], "dtype": "float32", "spec": [None, None], "shard_shape": [4, 4]}},
        "collectives": [
            {
                "kind": "all-reduce",
                "node": "C",
                "inserted": False,
                "axes": ["x"],
                "dtype": "float32",
                "bytes_in": 64,
                "bytes_out": 64,
                "bytes_sent": 64,
                "count": 1,
            }
        ],
    }


def test_equal_collectives_are_counted_whatever_their_instructions_are_called_and_their_order_is() -> None:
    listed = [collective("collective-permute", "ring.lhs", instruction=f"collective-permute.{i}") for i in range(3)] + [
        collective("all-gather", "B"),
        collective(instruction="all-reduce.9"),
    ]
    pinned = golden.pinned(program(*listed))["collectives"]
    assert [(each["node"], each["kind"], each.get("times")) for each in pinned] == [
        ("B", "all-gather", None),
        ("C", "all-reduce", None),
        ("ring.lhs", "collective-permute", 3),
    ]
    assert golden.pinned(program(*reversed(listed)))["collectives"] == pinned


def test_groups_are_pinned_where_they_are_no_axes() -> None:
    assert "groups" not in golden.pinned(program(collective()))["collectives"][0]
    (reduction,) = golden.pinned(program(collective(groups=[[0, 3], [1, 2]])))["collectives"]
    assert reduction["axes"] is None
    assert reduction["groups"] == [[0, 3], [1, 2]]


def test_what_an_asynchronous_collective_overlaps_with_is_pinned() -> None:
    (reduction,) = golden.pinned(program(collective(asynchronous=True, overlapped=["y", "acc"])))["collectives"]
    assert reduction["overlapped"] == ["acc", "y"]


def test_a_list_that_may_be_incomplete_says_so() -> None:
    pins = golden.pinned(program(collectives_unknown=["all-reduce.1: replica_groups could not be read"]))
    assert pins["collectives_incomplete"] is True


def test_a_record_without_collectives_pins_none() -> None:
    assert golden.pinned(died("the process was ended by SIGABRT")) == {}
    assert golden.pinned(program(collectives=None))["collectives"] is None


def test_smaller_dims_are_pinned_with_the_results() -> None:
    assert golden.pinned(program(), {"M": 512})["dims"] == {"M": 512}
    assert "dims" not in golden.pinned(program(), {})


# The file.

WRITTEN = """\
{
  "jax 0.10": {
    "cpu": {
      "shard_map": {
        "bytes": {"argument": 64, "output": 64},
        "collectives": [
          {"axes": ["x"], "bytes_in": 64, "bytes_out": 64, "bytes_sent": 64, "count": 1, "dtype": "float32", \
"inserted": false, "kind": "all-reduce", "node": "C"}
        ],
        "outputs": {
          "C": {"dtype": "float32", "shape": [4, 4], "shard_shape": [4, 4], "spec": [null, null]}
        }
      }
    }
  }
}
"""


def test_a_file_has_a_line_for_each_collective_and_output(tmp_path: Path) -> None:
    path = tmp_path / "goldens" / "case.json"
    golden.pin(path, PLACE, golden.pinned(program(collective())))
    assert path.read_text(encoding="utf-8") == WRITTEN
    assert golden.entry(golden.read(path), PLACE) == golden.pinned(program(collective()))


def test_pinning_leaves_every_other_series_target_and_program_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    places = [("jax 0.12", "cpu", "shard_map"), ("jax 0.10", "v5e_2x2", "shard_map"), ("jax 0.10", "cpu", "auto")]
    for place in (*places, PLACE):
        golden.pin(path, place, golden.pinned(program()))
    golden.pin(path, PLACE, golden.pinned(program(collective())))
    content = golden.read(path)
    assert [golden.entry(content, place) for place in places] == [golden.pinned(program())] * 3
    assert golden.entry(content, PLACE) == golden.pinned(program(collective()))
    golden.pin(path, ("jax 0.12", "cpu", "shard_map"), None)
    assert list(golden.read(path)) == ["jax 0.10"]


@pytest.mark.in_turn
def test_several_processes_pin_in_one_file_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    script = (
        "import sys; from pathlib import Path; from runner.reports.record import golden\n"
        "path, name = Path(sys.argv[1]), sys.argv[2]\n"
        "for i in range(20): golden.pin(path, ('jax 0.10', 'cpu', f'{name}{i}'), {'dims': {'M': i}})"
    )
    command = [sys.executable, "-c", script, path]
    running = [subprocess.Popen([*command, name], cwd=ROOT) for name in "abc"]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(golden.read(path)["jax 0.10"]["cpu"]) == 60


SHAPE = " is not what --update-golden writes; "
REMEDY = "restore the file, or delete it and run pytest --update-golden"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jax 0.10": {"cpu": }}', "case.json:1:22\n  not JSON: Expecting value; "),
        ("[]", "case.json  is not a mapping of series of JAX; "),
        ('{"jax 0.10": 1}', "case.json  'jax 0.10' is not a mapping of targets; "),
        ('{"jax 0.10": {"cpu": []}}', "case.json  'jax 0.10', 'cpu' is not a mapping of programs; "),
        (
            '{"jax 0.10": {"cpu": {"auto": {"bytes": 64}}}}',
            "case.json  'jax 0.10', 'cpu', 'auto', 'bytes'" + SHAPE,
        ),
        (
            WRITTEN.replace('"count": 1', '"count": "twice"'),
            "case.json  'jax 0.10', 'cpu', 'shard_map', 'collectives'[0], 'count'" + SHAPE,
        ),
        (
            WRITTEN.replace('"axes": ["x"]', '"axes": null'),
            "case.json  'jax 0.10', 'cpu', 'shard_map', 'collectives'[0], 'groups'" + SHAPE,
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("case.json").write_text(text, encoding="utf-8")
    with pytest.raises(golden.InvalidGolden) as caught:
        golden.read(Path("case.json"))
    assert str(caught.value) == message + REMEDY


def test_goldens_are_in_the_tests_beside_the_config_folder_or_beside_it(tmp_path: Path) -> None:
    assert golden.folder(tmp_path / "conf") == tmp_path / "goldens"
    (tmp_path / "tests").mkdir()
    assert golden.folder(tmp_path / "conf") == tmp_path / "tests" / "goldens"
    (tmp_path / "goldens").mkdir()
    assert golden.folder(tmp_path / "conf") == tmp_path / "goldens", "goldens that are there stay where they are"


# The words.

GATHER = collective("all-gather", "w", bytes_in=1048576, bytes_out=2097152, bytes_sent=1048576, inserted=True)
SHARDED = {"C": output(spec=Spec.of(["x", None]), shard_shape=[2, 4])}


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (
            program(),
            program(GATHER),
            ["all-gather of w over x appeared in constraint: +1.0 MB sent per device, inserted by the compiler"],
        ),
        (
            program(collective()),
            program(),
            ["all-reduce of C over x disappeared from constraint: -64 B sent per device"],
        ),
        (
            program(collective(), collective()),
            program(collective()),
            ["1 of 2 × all-reduce of C over x disappeared from constraint: -64 B sent per device"],
        ),
        (
            program(collective()),
            program(collective(), collective(), collective()),
            ["2 more all-reduce of C over x appeared in constraint: +128 B sent per device"],
        ),
        (
            program(),
            program(collective("collective-permute", "ring.lhs", count=7)),
            ["collective-permute of ring.lhs over x appeared in constraint: +448 B sent per device in 7 steps"],
        ),
        (
            program(),
            program(collective("all-to-all", count=None)),
            [
                "all-to-all of C over x appeared in constraint: +64 B sent per device in every step of a loop "
                "of unknown length"
            ],
        ),
        (
            program(collective()),
            program(collective(axes=["x", "y"], bytes_in=128, count=3)),
            ["all-reduce of C over x changed in constraint: axes x → x, y, takes 64 B → 128 B per device, "
             "runs once → 3 times"],
        ),
        (
            program(collective()),
            program(collective(inserted=True)),
            ["all-reduce of C over x changed in constraint: the compiler inserts it now"],
        ),
        (
            program(collective(node=None)),
            program(collective()),
            ["all-reduce of no line that the module names over x changed in constraint: now of C, "
             "before of no line that the module names"],
        ),
        (
            program(collective(nodes=["C", "D"])),
            program(collective()),
            ["all-reduce of C and D over x changed in constraint: now of C, before of C and D"],
        ),
        (
            program(collective(inserted=True, between={"from": ["C"], "to": ["C"]})),
            program(collective(inserted=True, between={"from": ["C"], "to": []})),
            ["all-reduce of C over x changed in constraint: is between C and no line that the module names, "
             "was between C and C"],
        ),
        (
            program(collective("all-gather", inserted=True, between={"from": ["w"], "to": ["C"]})),
            program(collective("all-gather", inserted=True, between={"from": ["A"], "to": ["C"]})),
            ["all-gather of w for C over x changed in constraint: now of A for C, before of w for C"],
        ),
        (
            program(collective(gradient=True, groups=[[0, 3], [1, 2]])),
            program(),
            ["all-reduce of C (backward) within groups [[0, 3], [1, 2]] disappeared from constraint: "
             "-64 B sent per device"],
        ),
        (
            program(collective(asynchronous=True, overlapped=["y"])),
            program(collective(asynchronous=True, overlapped=[])),
            ["all-reduce of C over x changed in constraint: overlapped with y → none"],
        ),
        (
            program(collective()),
            program(collective("reduce-scatter", bytes_out=32)),
            [
                "all-reduce of C over x disappeared from constraint: -64 B sent per device",
                "reduce-scatter of C over x appeared in constraint: +64 B sent per device",
            ],
        ),
        (
            program(),
            program(outputs=SHARDED),
            ["output C of constraint: spec P(None, None) → P('x', None), shard shape [4, 4] → [2, 4]"],
        ),
        (
            program(outputs={}),
            program(),
            ["output C appeared in constraint: float32[4, 4] P(None, None)"],
        ),
        (
            program(memory=memory(2097152, 64)),
            program(memory=memory(2097160, 96)),
            [
                "arguments of constraint: 2,097,152 B → 2,097,160 B per device",
                "outputs of constraint: 64 B → 96 B per device",
            ],
        ),
        (program(), program(collectives=None), ["the collectives of constraint are known only before"]),
        (
            program(),
            program(collectives_unknown=["what"]),
            ["the compiled module of constraint is read only in part now"],
        ),
    ],
)  # fmt: skip
def test_a_change_is_described_in_the_fields_terms(before: Any, after: Any, lines: list[str]) -> None:
    assert differences.of_program("constraint", golden.pinned(before), golden.pinned(after)) == lines


def test_other_dims_are_reported() -> None:
    old, new = golden.pinned(program(), {"M": 512}), golden.pinned(program())
    assert differences.of_program("auto", old, new) == ["auto ran at the dims of its file, before at M=512"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2097152, "2.1 MB"), (99_960_000, "100 MB"), (999_600, "1.0 MB"),
     (1_700_000_000, "1.7 GB"), (-64, "-64 B"), (3 * 10**18, "3000 PB"), (999_500, "1.0 MB"), (999_499, "999 kB"),
     (99_949, "99.9 kB"), (99_950, "100 kB"), (-2000, "-2.0 kB"), (-999_500, "-1.0 MB"), (-99_950, "-100 kB"),
     (-64_200, "-64.2 kB"), (None, "an unknown number of bytes")],
)  # fmt: skip
def test_bytes_are_counted_in_powers_of_1000(count: int, text: str) -> None:
    assert words.bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 flops"), (852_016, "852,016 flops"), (999_999.7, "1.0 Mflop"), (16_777_216, "16.8 Mflop"),
     (2.75e11, "275 Gflop"), (1.1e12, "1.1 Tflop"), (3e21, "3000 Eflop")],
)  # fmt: skip
def test_flops_are_in_full_below_a_million(count: float, text: str) -> None:
    assert flops_text(count) == text


@pytest.mark.parametrize(
    ("moved", "text"),
    [
        (collective(), "all-reduce of C over x"),
        (collective(axes=[]), "all-reduce of C over no other device"),
        (collective(axes=["x", "y"]), "all-reduce of C over x, y"),
        (collective(groups=[[0, 3]]), "all-reduce of C within groups [[0, 3]]"),
        (collective(node=None), "all-reduce of no line that the module names over x"),
        (collective(nodes=["C", "D"], gradient=True), "all-reduce of C and D (backward) over x"),
    ],
)
def test_a_collective_in_words(moved: Any, text: str) -> None:
    assert words.collective(moved) == text


@pytest.mark.parametrize(
    ("nodes", "taken", "needed", "text"),
    [
        (["C"], ["w"], ["C"], "w for C"),
        (["C"], ["w", "v"], [], "w and v for C"),
        (["C"], ["C"], ["D"], "C"),
        (["C", "D"], ["w", "C"], [], "w for C and D"),
        ([], ["w"], ["C"], "w for C"),
        ([], ["w"], ["C", "D"], "w for C and D"),
        ([], ["w", "v"], ["w"], "w and v"),
        ([], ["w", "v"], ["C", "w"], "w and v for C"),
        ([], ["w"], [], "w"),
        ([], [], ["C", "D"], "a value for C and D"),
        ([], [], [], "no line that the module names"),
    ],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_collective_names_whose_value_it_moves_for_which_lines(
    nodes: list[str], taken: list[str], needed: list[str], text: str, gradient: bool
) -> None:
    between = {"from": taken, "to": needed}
    moved = collective(node=None, nodes=nodes, inserted=True, between=between, gradient=gradient)
    assert words.subject(moved) == text + (" (backward)" if gradient else "")


def test_merged_sums_have_their_own_lines_whatever_these_sum() -> None:
    parts = [MergedPart(nodes=[name], gradient=True, bytes=4) for name in "CD"]
    between = {"from": ["C", "w"], "to": ["E"]}
    merged = collective(node="C", nodes=["C", "D"], inserted=True, between=between)
    assert words.subject(merged) == "w for C and D"
    assert words.subject(replace(merged, parts=parts)) == "C and D"


COLLECTIVES = st.builds(
    collective,
    st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "collective-permute"]),
    st.sampled_from(["C", "ring.lhs", None]),
    st.sampled_from([["x"], ["y"], ["x", "y"]]),
    bytes_in=st.sampled_from([32, 64]),
    count=st.sampled_from([1, 3, None]),
    inserted=st.booleans(),
    gradient=st.booleans(),
    asynchronous=st.booleans(),
    overlapped=st.sampled_from([None, [], ["y"]]),
)
LISTS = st.lists(COLLECTIVES, max_size=5)


@given(LISTS, st.randoms())
def test_the_order_of_collectives_is_no_difference(listed: list[Any], random: Any) -> None:
    shuffled = list(listed)
    random.shuffle(shuffled)
    before, after = golden.pinned(program(*listed)), golden.pinned(program(*shuffled))
    assert golden.text({"jax 0.10": {"cpu": {"auto": before}}}) == golden.text({"jax 0.10": {"cpu": {"auto": after}}})
    assert differences.of_program("auto", before, after) == []


@given(LISTS, LISTS)
def test_two_pins_are_equal_or_a_difference_is_reported(left: list[Any], right: list[Any]) -> None:
    before, after = golden.pinned(program(*left)), golden.pinned(program(*right))
    lines = differences.of_program("auto", before, after)
    assert (lines == []) == (before == after)
    assert all("  " not in line and not line.endswith(": ") for line in lines)


@given(LISTS)
def test_a_file_gives_back_what_was_pinned(listed: list[Any]) -> None:
    content = {"jax 0.10": {"cpu": {"auto": golden.pinned(program(*listed))}}}
    assert json.loads(golden.text(content)) == content


FIELDS = [
    ("bytes", "argument"),
    ("bytes", "output"),
    *(("outputs", "C", key) for key in ("shape", "dtype", "spec", "shard_shape")),
    *(
        ("collectives", 0, key)
        for key in ("kind", "node", "inserted", "axes", "dtype", "bytes_in", "bytes_sent", "count")
    ),
]


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_that_is_pinned_is_compared(path: tuple[Any, ...]) -> None:
    before = golden.pinned(program(collective()))
    after = copy.deepcopy(before)
    at: Any = after
    for part in path[:-1]:
        at = at[part]
    value = at[path[-1]]
    at[path[-1]] = (
        not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2 if value else ["y"]
    )
    assert differences.of_program("auto", before, after) != []


# Differences, part by part.


def pin(*collectives: Any, **more: Any) -> Any:
    """Return a pin as in a golden file."""
    return {"bytes": {"argument": 64, "output": 64}, "outputs": {}, "collectives": list(collectives), **more}


def entry(kind: str = "all-reduce", node: str | None = "C", **more: Any) -> Any:
    """Return a collective as in a golden file."""
    defaults = {"kind": kind, "node": node, "inserted": False, "axes": ["x"], "dtype": "float32", "count": 1}
    return defaults | {"bytes_in": 64, "bytes_out": 64, "bytes_sent": 64} | more


def lying(*spec: Any, **more: Any) -> Any:
    """Return an output as in a golden file."""
    return {"shape": [4, 4], "dtype": "float32", "spec": list(spec), "shard_shape": [2, 4], **more}


GONE = "all-reduce of C over x disappeared from auto: -64 B sent per device"
CAME = "all-reduce of C over x appeared in auto: +64 B sent per device"


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        # The dims.
        (pin(dims={"M": 1, "N": 2}), pin(), ["auto ran at the dims of its file, before at M=1, N=2"]),
        (pin(dims={"M": 1}), pin(dims={"M": 3, "N": 2}), ["auto ran at M=3, N=2, before at M=1"]),
        # Pinned values without a sentence of their own.
        (pin(flops=1), pin(flops=2), ["flops of auto: 1 → 2"]),
        (pin(b=[], a="old"), pin(b=["x", "y"], a="new"), ["a of auto: old → new", "b of auto: none → x, y"]),
        (pin(), pin(flops=True), ["flops of auto: none → true"]),
        (
            pin(a={"ä": [1]}, z=[1, "x"]),
            pin(z=[2, "x"]),
            ['a of auto: {"ä": [1]} → none', 'z of auto: [1, "x"] → [2, "x"]'],
        ),
        (pin(flops=1, a=2), pin(flops=1, a=2), []),
        # Bytes.
        (
            pin(bytes={"argument": None, "output": 64}),
            pin(bytes={"argument": 2000, "output": None}),
            [
                "arguments of auto: unknown → 2.0 kB per device",
                "outputs of auto: 64 B → unknown per device",
            ],
        ),
        (pin(bytes={"argument": 1}), pin(bytes={"output": 1}), [
            "arguments of auto: 1 B → unknown per device", "outputs of auto: unknown → 1 B per device",
        ]),
        (pin(bytes=None), pin(), ["the bytes of auto's arguments and outputs are known only now"]),
        (pin(), pin(bytes=None), ["the bytes of auto's arguments and outputs are known only before"]),
        (pin(bytes=None), pin(bytes=None), []),
        # Outputs.
        (pin(outputs=None), pin(), ["the outputs of auto are known only now"]),
        (pin(), pin(outputs=None), ["the outputs of auto are known only before"]),
        (pin(outputs=None), pin(outputs=None), []),
        (
            pin(outputs={"C": lying("x"), "D": lying("x"), "Z": lying(["x", "y"], None)}),
            pin(outputs={"B": lying("x", ["y", "z"]), "C": lying("x", dtype="int32", shape=[8]), "D": lying("y")}),
            [
                "output B appeared in auto: float32[4, 4] P('x', ('y', 'z'))",
                "output C of auto: shape [4, 4] → [8], dtype float32 → int32",
                "output D of auto: spec P('x') → P('y')",
                "output Z disappeared from auto: float32[4, 4] P(('x', 'y'), None)",
            ],
        ),
        (
            pin(outputs={"C": lying("axis")}),
            pin(outputs={"C": lying() | {"spec": None}}),
            ["output C of auto: spec P('axis') → no PartitionSpec"],
        ),
        (
            pin(outputs={"C": lying(None, "axis", more=1)}),
            pin(outputs={"C": lying(None, "axis", also=2)}),
            ["output C of auto: also none → 2, more 1 → none"],
        ),
        # Completeness of the reading.
        (
            pin(collectives_incomplete=True),
            pin(),
            ["the compiled module of auto is read completely now, before only in part"],
        ),
        (pin(collectives_incomplete=False), pin(), []),
        (pin() | {"collectives": None}, pin(entry()), ["the collectives of auto are known only now"]),
        (pin() | {"collectives": None}, pin() | {"collectives": None}, []),
        (
            pin() | {"collectives": None},
            pin(collectives_incomplete=True),
            ["the compiled module of auto is read only in part now", "the collectives of auto are known only now"],
        ),
        # Fields that are left out where they are false, and equal ones that are one entry.
        (pin(entry(gradient=False, asynchronous=False)), pin(entry()), []),
        (pin(entry(inserted=False)), pin({key: value for key, value in entry().items() if key != "inserted"}), None),
        (pin(entry(times=3)), pin(entry(), entry(times=2)), []),
        (
            pin(entry(times=3)),
            pin(entry()),
            ["2 of 3 × all-reduce of C over x disappeared from auto: -128 B sent per device"],
        ),
        (pin(entry(times=2)), pin(), ["2 × all-reduce of C over x disappeared from auto: -128 B sent per device"]),
        (pin(), pin(entry(times=2)), ["2 × all-reduce of C over x appeared in auto: +128 B sent per device"]),
        # Several at once.
        (
            pin(entry(), entry("all-gather", "B")),
            pin(entry(count=2), entry("all-gather", "B", dtype="int8")),
            [
                "all-reduce of C over x changed in auto: runs once → 2 times",
                "all-gather of B over x changed in auto: dtype float32 → int8",
            ],
        ),
        (
            pin(entry(times=2)),
            pin(entry(count=3, times=2)),
            ["all-reduce of C over x changed in auto: runs once → 3 times, 2 of them"],
        ),
        (
            pin(entry(), entry("all-gather", "B"), entry("all-to-all", "E")),
            pin(entry("reduce-scatter", "F"), entry("send", "G")),
            [
                GONE,
                "all-gather of B over x disappeared from auto: -64 B sent per device",
                "all-to-all of E over x disappeared from auto: -64 B sent per device",
                "reduce-scatter of F over x appeared in auto: +64 B sent per device",
                "send of G over x appeared in auto: +64 B sent per device",
            ],
        ),
        # Matching old and new collectives.
        (
            pin(entry(node="B"), entry(node="C")),
            pin(entry(node="C", count=2), entry(node="B", count=3)),
            [
                "all-reduce of B over x changed in auto: runs once → 3 times",
                "all-reduce of C over x changed in auto: runs once → 2 times",
            ],
        ),
        (
            pin(entry(gradient=True), entry()),
            pin(entry(count=2), entry(gradient=True, count=3)),
            [
                "all-reduce of C (backward) over x changed in auto: runs once → 3 times",
                "all-reduce of C over x changed in auto: runs once → 2 times",
            ],
        ),
        (
            pin(entry(axes=["y"]), entry()),
            pin(entry(count=2), entry(axes=["y"], count=3)),
            [
                "all-reduce of C over y changed in auto: runs once → 3 times",
                "all-reduce of C over x changed in auto: runs once → 2 times",
            ],
        ),
        (
            pin(entry(inserted=True), entry()),
            pin(entry(count=2), entry(inserted=True, count=3)),
            [
                "all-reduce of C over x changed in auto: runs once → 3 times",
                "all-reduce of C over x changed in auto: runs once → 2 times",
            ],
        ),
        (
            pin(entry(node="B")),
            pin(entry(node="C")),
            ["all-reduce of B over x changed in auto: now of C, before of B"],
        ),
        (
            pin(entry(node="B")),
            pin(entry(node="C", dtype="int32")),
            [GONE.replace("of C", "of B"), CAME],
        ),
        # The sentence for a change.
        (
            pin(entry(inserted=True, asynchronous=True, overlapped=["D"])),
            pin(entry()),
            ["all-reduce of C over x changed in auto: the program calls it now, synchronous now, "
             "overlapped with D → none"],
        ),
        (
            pin(entry()),
            pin(entry(gradient=True, asynchronous=True, overlapped=[])),
            ["all-reduce of C over x changed in auto: now of C (backward), before of C, in the backward pass now, "
             "asynchronous now, overlapped with none → []"],
        ),
        (
            pin(entry(gradient=True)),
            pin(entry()),
            ["all-reduce of C (backward) over x changed in auto: now of C, before of C (backward), "
             "in the forward pass now"],
        ),
        (
            pin(entry(count=None)),
            pin(entry(count=1)),
            ["all-reduce of C over x changed in auto: runs a number of times that is not known → once"],
        ),
        (
            pin(entry(bytes_in=64, bytes_out=None)),
            pin(entry(bytes_in=2_000_000, bytes_out=128)),
            ["all-reduce of C over x changed in auto: takes 64 B → 2.0 MB per device, "
             "gives unknown → 128 B per device"],
        ),
        (
            pin(entry(axes=None, groups=[[0, 1]])),
            pin(entry(axes=None, groups=[[1, 0]])),
            ["all-reduce of C within groups [[0, 1]] changed in auto: groups [[0, 1]] → [[1, 0]]"],
        ),
        (
            pin(entry(inserted=True, between={"from": ["B", "C"], "to": []})),
            pin(entry(inserted=True, between={"from": ["C", "B"], "to": []})),
            ["all-reduce of B for C over x changed in auto: is between C and B and no line that the module names, "
             "was between B and C and no line that the module names"],
        ),
        (
            pin(entry(bytes_sent=64)),
            pin(entry(bytes_sent=96)),
            ["all-reduce of C over x changed in auto: sends 64 B → 96 B per device"],
        ),
        # What a device sends for one.
        (
            pin(),
            pin(entry(bytes_sent=None)),
            ["all-reduce of C over x appeared in auto: +an unknown number of bytes sent per device"],
        ),
        (
            pin(entry(bytes_sent=None)),
            pin(),
            ["all-reduce of C over x disappeared from auto: -an unknown number of bytes sent per device"],
        ),
        (pin(), pin(entry(bytes_in=None)), [CAME]),
        (pin(), pin(entry(bytes_in=16)), [CAME]),
        (pin(), pin(entry(bytes_out=16)), [CAME]),
        (pin(), pin(entry(bytes_sent=0)), [CAME.replace("+64", "+0")]),
        (pin(), pin(entry(count=0)), [CAME.replace("+64", "+0")]),
        (pin(entry(count=3)), pin(), [GONE.replace("-64 B sent per device", "-192 B sent per device in 3 steps")]),
        (
            pin(entry(count=None, times=2)),
            pin(),
            ["2 × all-reduce of C over x disappeared from auto: -128 B sent per device in every step of a loop "
             "of unknown length"],
        ),
        (pin(), pin(entry(inserted=True)), [CAME + ", inserted by the compiler"]),
        (pin(entry(inserted=True)), pin(), [GONE]),
    ],
)  # fmt: skip
def test_every_part_of_a_difference_is_reported(before: Any, after: Any, lines: list[str] | None) -> None:
    reported = differences.of_program("auto", before, after)
    if lines is None:
        assert reported != []
    else:
        assert sorted(reported) == sorted(lines)
    assert differences.of_program("auto", before, before) == differences.of_program("auto", after, after) == []


def test_differences_are_reported_in_a_fixed_order() -> None:
    before = pin(bytes={}, outputs={}, a=1, b=1, c=1, d=1, e=1)
    after = pin(bytes=dict.fromkeys("gfhij", 1), outputs={name: lying("x") for name in "onpqr"})
    lines = differences.of_program("auto", before, after)
    assert [line.split()[0] for line in lines[:5]] == ["fs", "gs", "hs", "is", "js"]
    assert [line.split()[1] for line in lines[5:10]] == ["n", "o", "p", "q", "r"]
    assert [line.split()[0] for line in lines[10:]] == ["a", "b", "c", "d", "e"]


def test_fields_that_an_older_golden_lacks_are_no_difference() -> None:
    before = pin({key: value for key, value in entry().items() if key != "bytes_sent"})
    assert differences.of_program("auto", before, pin(entry())) == []
    assert differences.of_program("auto", before, pin(entry(bytes_in=96))) == [
        "all-reduce of C over x changed in auto: takes 64 B → 96 B per device"
    ]
    assert differences.of_program("auto", before, pin()) == [
        "all-reduce of C over x disappeared from auto: -an unknown number of bytes sent per device"
    ]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (pin(entry(nodes=["C", "D"])), pin(entry(nodes=["C", "D"], node="D")),
         "all-reduce of C and D over x changed in auto: node C → D"),
        (pin(entry(between={"from": [], "to": []})), pin(entry()),
         'all-reduce of C over x changed in auto: between {"from": [], "to": []} → none'),
        (pin(entry(asynchronous=True, overlapped=[])), pin(entry(asynchronous=True, overlapped=None)),
         "all-reduce of C over x changed in auto: overlapped with [] → none"),
        (pin(entry(count=3)), pin(entry(count="3")),
         'all-reduce of C over x changed in auto: runs 3 → "3"'),
        (pin(outputs={"C": lying("x")}), pin(outputs={"C": lying(["x"])}),
         'output C of auto: spec ["x"] → [["x"]]'),
        (pin(a=[]), pin(), "a of auto: [] → none"),
        (pin(a="true"), pin(a=True), 'a of auto: "true" → true'),
    ],
)  # fmt: skip
def test_a_difference_that_reads_alike_is_told_by_what_the_golden_has(before: Any, after: Any, change: str) -> None:
    assert differences.of_program("auto", before, after) == [change]


def test_operands_are_compared_where_both_sides_know_them() -> None:
    before, after = pin(operands={"p/w": [None, "x"], "x": ["x"]}), pin(operands={"p/w": [None, None], "x": ["x"]})
    assert differences.of_program("auto", before, after) == ["operand p/w: P(None, 'x') → P(None, None)"]
    assert differences.of_program("auto", pin(), after) == []
    assert differences.of_program("auto", before, pin()) == []


def test_collectives_that_only_belong_to_other_lines_are_told_in_one_sentence() -> None:
    shown = {f"v{number}": f"block.py:{number} x = f(y)" for number in range(9)}

    def of(node: str, *nodes: str, **fields: Any) -> Any:
        return entry(node=node, nodes=[node, *nodes], **fields)

    before = pin(of("v1", "v2", "v3"), of("v4", dtype="bfloat16"), of("v5", axes=["y"]), names=shown)
    after = pin(of("v1", "v2", "v6"), of("v7", dtype="bfloat16"), of("v5", axes=["y"]), names=shown)
    assert differences.of_program("auto", before, after) == [
        "2 collectives of auto have the same kinds, axes and bytes, and belong to other lines; "
        "all-reduce of block.py:4 x = f(y) is now of block.py:7 x = f(y)"
    ]
    # Another dtype is more than another line.
    after = pin(of("v1", "v2", "v3", dtype="float16"), of("v7", dtype="bfloat16"), of("v5", axes=["y"]), names=shown)
    changes = differences.of_program("auto", before, after)
    assert len(changes) == 2
    assert any("all-reduce of block.py:1 and 2 more over x changed in auto" in change for change in changes)
    assert any("dtype float32 → float16" in change for change in changes)


def test_lines_of_python_with_one_name_are_one_line() -> None:
    shown = {"loss_mul": "llama.py:41 x * y", "loss_mul_2": "llama.py:41 x * y"}
    single = pin(entry(node="loss_mul"), names=shown)
    merged = pin(entry(node="loss_mul", nodes=["loss_mul", "loss_mul_2"]), names=shown)
    assert differences.of_program("auto", single, merged) == []
    assert differences.of_program("auto", merged, pin(entry(node="loss_mul", dtype="bfloat16"), names=shown)) == [
        "all-reduce of llama.py:41 x * y over x changed in auto: dtype float32 → bfloat16"
    ]
    # Without readers' names they are two.
    del single["names"], merged["names"]
    assert differences.of_program("auto", single, merged) == [
        "all-reduce of loss_mul over x changed in auto: now of loss_mul and loss_mul_2, before of loss_mul"
    ]
