"""What is known of a module that somebody compiled: from its text alone, from a file, and in the caller's process."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import runner
from runner.app.cli.explain import main
from runner.base.layout import Spec
from runner.compiled.evidence import hlo
from runner.compiled.evidence.model import Collective
from runner.compiled.explanation import dumps, expecting, files, meshes, modules
from runner.compiled.explanation.meshes import InvalidMesh
from runner.compiled.explanation.model import Explanation, MemoryUse, PlacedCollective, SourcePlace
from runner.compiled.explanation.modules import Known, UnreadableModule
from runner.reports.record.model import MeshShape
from runner.reports.record.record import write
from runner.reports.show import annotated, explained
from runner.reports.show.page import explanation as explained_page
from tests import evidence
from tests.command import ROOT
from tests.compiled import MODULES, experiment, stored
from tests.explained import STEP, step
from tests.server import command


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return modules.explain(STEP, "step.txt")


@pytest.fixture(scope="module")
def gathered(explanation: Explanation) -> PlacedCollective:
    return explanation.moving[0]


# The text of a module.


def test_collectives_are_named_by_the_users_lines_and_callers(explanation: Explanation) -> None:
    lines = [(entry.kind, entry.node, entry.callers, entry.gradient) for entry in explanation.moving]
    assert lines == [
        ("all-gather", "model.py:7", ["train.py:21", "train.py:30"], False),
        ("all-reduce", "model.py:7", ["train.py:21", "train.py:30"], True),
    ]
    assert explanation.lines["model.py:7"] == SourcePlace(file="/home/me/model.py", line=7)
    assert explanation.unknown == []


def test_a_module_in_the_folder_of_a_run_has_the_mesh_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hlo_auto.txt"
    file.write_text(STEP)
    assert main([str(file)]) == 0
    assert "data" in capsys.readouterr().out
    write(evidence.record(mesh=MeshShape(axes=["rows", "columns"], shape=[4, 2])), tmp_path)
    assert main([str(file)]) == 0
    assert "8 devices (rows=4 × columns=2)" in capsys.readouterr().out
    assert main([str(file), "--mesh", "a=4,b=2"]) == 0
    assert "8 devices (a=4 × b=2)" in capsys.readouterr().out


def test_a_collective_in_a_loop_has_its_count_bytes_and_axes(gathered: PlacedCollective) -> None:
    assert (gathered.count, gathered.axes) == (12, ["data"])
    # Three of four shards of 512 bytes arrive from others, and as many are sent on a ring.
    assert (gathered.bytes_in, gathered.bytes_out, gathered.bytes_sent) == (512, 2048, 1536)


def test_totals_are_by_kind_axis_and_line(explanation: Explanation) -> None:
    assert explanation.collectives == {"all-gather": 1, "all-reduce": 1}
    assert explanation.sent_by_kind() == {"all-gather": 12 * 1536, "all-reduce": 512}
    assert explanation.sent_by_axis() == {"data": 12 * 1536, "model": 512}
    assert explanation.sent_by_line() == {"model.py:7": 12 * 1536 + 512}
    assert explanation.sent() == 12 * 1536 + 512


def test_a_loops_products_are_multiplied_by_its_steps(explanation: Explanation) -> None:
    flops = {tuple(line.nodes): line.flops for line in explanation.computed or () if line.flops}
    assert flops == {("model.py:7",): 12 * 2 * 4 * 16 * 32}


def test_donated_arguments_are_those_whose_memory_a_result_reuses(explanation: Explanation) -> None:
    assert [(argument.name, argument.output) for argument in explanation.arguments] == [
        ("params['w']", "0"),
        ("x", None),
    ]


def test_memory_is_what_is_alive_at_once(explanation: Explanation) -> None:
    # In the loop the gathered weights and the product; after it only the gradient, in two versions.
    assert explanation.memory == MemoryUse(
        arguments=512 + 256,
        outputs=512 + 4,
        temporaries=16 * 32 * 4 + 4 * 32 * 4,
        aliased=512,
        peak=768 + 516 - 512 + 2560,
        by="schedule",
    )
    assert [buffer.name for buffer in explanation.buffers if buffer.what == "temporary"] == ["whole", "h"]


def test_memory_is_free_again_after_the_last_read() -> None:
    # Three arrays of 4 KB, of which two are alive at once; the last one is returned.
    text = """HloModule jit_chain, is_scheduled=true

ENTRY %main (x: f32[4]) -> f32[1024] {
  %x = f32[4]{0} parameter(0)
  %a = f32[1024]{0} broadcast(%x), dimensions={}
  %b = f32[1024]{0} negate(%a)
  %c = f32[1024]{0} exponential(%b)
  %d = f32[1024]{0} negate(%c)
  ROOT %e = f32[1024]{0} add(%d, %d)
}
"""
    use = modules.explain(text, "chain.txt").memory
    assert use is not None
    assert use.temporaries == 2 * 4096


def test_the_compilers_figures_replace_those_of_the_schedule() -> None:
    from runner.link.events import Memory

    use = modules.explain(STEP, "step.txt", Known(memory=Memory.of(768, 516, 4096, 512, None))).memory
    assert use is not None
    assert (use.temporaries, use.peak, use.by) == (4096, 768 + 516 + 4096 - 512, "compiler")


def test_a_line_in_a_library_is_a_librarys_where_no_frame_is_the_users() -> None:
    text = step(**{"4 {file_location_id=4 parent_frame_id=4}": "4 {file_location_id=4 parent_frame_id=1}"})
    explanation = modules.explain(text, "step.txt")
    assert explanation.moving[0].node == "linear.py:400"
    assert explanation.lines["linear.py:400"].library


def test_files_of_one_name_are_told_apart_by_their_folders() -> None:
    text = step(**{'"/home/me/train.py"': '"/home/me/a/model.py"', '"/home/me/model.py"': '"/home/me/b/model.py"'})
    assert modules.explain(text, "step.txt").moving[0].node == "b/model.py:7"


def test_a_module_without_frames_is_named_by_its_scopes() -> None:
    text = step(**{" stack_frame_id=4": "", "jvp()/while/body/closed_call": "jvp(decoder)/while/body/closed_call/mlp"})
    assert modules.explain(text, "step.txt").moving[0].node == "decoder/mlp/dot_general"


@pytest.mark.parametrize(("name", "known"), [("x", True), ("broadcast.30", False)])
def test_a_name_without_a_line_or_a_scope_is_an_arguments_or_the_compilers_own(name: str, known: bool) -> None:
    text = step(**{'op_name="jit(step)/sub" stack_frame_id=1': f'op_name="{name}"'})
    computed = modules.explain(text, "step.txt").computed or ()
    assert (name in {node for line in computed for node in line.nodes}) == known


def test_an_older_module_names_the_innermost_line() -> None:
    text = step(**{" stack_frame_id=4": ' source_file="/home/me/old.py" source_line=3'})
    text = text[: text.index("FileNames")] + text[text.index("%add") :]
    assert modules.explain(text, "step.txt").moving[0].node == "old.py:3"


# Its mesh.


def test_the_mesh_is_the_one_that_the_module_names(explanation: Explanation) -> None:
    assert explanation.mesh is not None
    assert (str(explanation.mesh), explanation.mesh.source) == ("data=4 × model=2", "module")


UNNAMED = {"mesh['data'=4,'model'=2] {'data'}": "{{0,2,4,6},{1,3,5,7}}"}


def test_the_sizes_of_axes_without_names_follow_from_groups() -> None:
    explanation = modules.explain(step(**UNNAMED), "step.txt")
    assert explanation.mesh is not None
    assert (str(explanation.mesh), explanation.mesh.source) == ("axis_0=4 × axis_1=2", "groups")
    assert [entry.axes for entry in explanation.moving] == [["axis_0"], ["axis_1"]]
    assert explanation.notes == [
        "the module does not name its mesh axes; name them, the slowest first: --mesh NAME=4,NAME=2"
    ]


def test_a_mesh_that_is_given_names_the_axes() -> None:
    explanation = modules.explain(step(**UNNAMED), "step.txt", Known(mesh={"fsdp": 4, "tensor": 2}))
    assert [entry.axes for entry in explanation.moving] == [["fsdp"], ["tensor"]]
    assert explanation.notes == []


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidMesh, match=r"^the mesh data=4 has 4 devices, the module runs on 8$"):
        modules.explain(STEP, "step.txt", Known(mesh={"data": 4}))


@pytest.mark.parametrize(
    ("text", "partitions", "sizes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", 8, [4, 2]),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", 8, [4, 2]),
        ("replica_groups={{0,1,4,5},{2,3,6,7}}", 8, [2, 2, 2]),
        ("sharding={devices=[2,1,4]<=[2,4]T(1,0) last_tile_dim_replicate}", 8, [2, 4]),
        ("replica_groups={{0,1,2,3,4,5,6,7}}", 8, [8]),
        ("replica_groups={{0,3,1,5},{2,4,6,7}}", 8, [8]),
    ],
)
def test_the_sizes_of_axes_follow_from_a_text(text: str, partitions: int, sizes: list[int]) -> None:
    mesh = meshes.mesh_of(text, partitions)
    assert mesh is not None
    assert mesh.shape == sizes


@pytest.mark.parametrize("text", ["", "data", "data=0", "data=4,data=2", "data=4.0", "a b=2", "data=-1"])
def test_what_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(InvalidMesh, match="is no mesh; write its axes and their sizes: data=4,model=2"):
        meshes.parsed(text)


# Modules that compilers wrote, as an experiment reads them.


@pytest.mark.parametrize("name", sorted(f"{path.parent.name}/{path.stem}" for path in MODULES.glob("*/*.txt")))
def test_a_module_alone_has_the_collectives_that_its_experiment_finds_in_it(name: str) -> None:
    entries = stored(name).entries
    mesh = experiment(name.partition("/")[0]).mesh
    text = (MODULES / f"{name}.txt").read_text("utf-8")
    given = mesh.sizes if math.prod(mesh.shape) == hlo.read(text).partitions else None
    alone = modules.explain(text, name, Known(mesh=given)).placed or []
    assert [_facts(entry, axes=given is not None) for entry in alone] == [
        _facts(entry, axes=given is not None) for entry in entries
    ]


def _facts(entry: Collective, *, axes: bool) -> tuple[Any, ...]:
    """What of a collective does not depend on the names of lines."""
    sizes = entry.bytes_in, entry.bytes_out, entry.bytes_sent if axes else None
    return entry.instruction, entry.kind, entry.axes if axes else None, entry.count, sizes, entry.asynchronous


# Saved, drawn, compared with itself.


def test_an_explanation_is_read_back_as_it_was_saved(explanation: Explanation, tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text(files.document(explanation), "utf-8")
    assert files.explain(tmp_path / "step.json") == explanation


def test_the_schema_describes_what_is_saved(explanation: Explanation) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "explain.schema.json").read_text("utf-8"))
    jsonschema.validate(json.loads(files.document(explanation)), schema)
    assert files.schema_text() == (ROOT / "docs" / "explain.schema.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "this is no explanation: its schema is None, not 'shardproof-explanation/1'"),
        ("{", "not JSON: "),
        ('{"schema": "shardproof-explanation/1"}', "source"),
        ("Hello", "this is no text of an HLO module: no line of it begins with 'HloModule'"),
        ("HloModule m", "the module has no entry computation that could be read: no computation is marked ENTRY"),
    ],
)
def test_what_is_no_module_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UnreadableModule) as refused:
        files.explain(path)
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)


def test_a_computation_that_calls_itself_is_refused() -> None:
    text = step(**{"to_apply=%add,": "to_apply=%add, calls=%main,"})
    with pytest.raises(UnreadableModule, match=r"^step.txt: the computation main calls itself"):
        modules.explain(text, "step.txt")


def test_a_module_that_ends_early_says_what_may_be_missing() -> None:
    cut = STEP[: STEP.index("  %updated")]
    explanation = modules.explain(cut, "step.txt")
    assert "the text ends inside of main" in " ".join(explanation.missing)


@pytest.mark.parametrize("seed", range(4))
def test_a_broken_module_gives_an_explanation_or_a_message(seed: int) -> None:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(60):
        letters = list(STEP)
        for _ in range(rng.randrange(1, 60)):
            letters[rng.randrange(len(letters))] = rng.choice("{}()[],=%\"'0 9a-\n\x00é")
        text = "".join(letters)[: rng.randrange(len(letters)) if rng.random() < 0.3 else None]
        try:
            broken = modules.explain(text, "step.txt")
            outcomes["explained"] += files.saved(files.document(broken), "step.json") == broken
        except UnreadableModule:
            outcomes["refused"] += 1
    assert outcomes.total() == 60
    assert len(outcomes) == 2


# The command.


def test_the_command_explains_a_file_without_jax(tmp_path: Path) -> None:
    (tmp_path / "step.txt").write_text(STEP)
    outcome = command(tmp_path, "step.txt", "--save", "step.json", "--html", "step.html", module="runner explain")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert not outcome.jax
    first, _, _, row, *_ = outcome.stdout.splitlines()
    assert first == "jit_step: 8 devices (data=4 × model=2), compiled; 31 instructions"
    assert row.split() == ["all-gather", "model.py:7", "data", "params['w']", "12", "18.4", "kB", "inserted"]
    again = command(tmp_path, "step.json", module="runner explain")
    assert again.stdout + "step.json\nstep.html\n" == outcome.stdout
    assert "model.py:7" in (tmp_path / "step.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt"], "nothing.txt: there is no such file\n"),
        (["."], ".: no module was dumped here (module_0001.NAME.….txt)\n"),
        (["/dev/null"], "/dev/null: it is not a regular file\n"),
        (["step.txt", "--mesh", "x=3"], "the mesh x=3 has 3 devices, the module runs on 8\n"),
    ],
)
def test_bad_input_is_answered_in_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "step.txt").write_text(STEP)
    outcome = command(tmp_path, *arguments, module="runner explain")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (2, "", message)


# Folders of dumps, serialized modules, hardware.


ALLOCATIONS = """BufferAssignment:
allocation 0: size 512, page 0, parameter 0, shape |f32[16,8]|, maybe-live-out:
 value: <1 w0 @0> (size=512,offset=0): f32[16,8]{1,0}
allocation 1: size 256, page 0, parameter 1, shape |f32[4,16]| at ShapeIndex {}:
allocation 2: size 4, page 0, output shape is |f32[]|, maybe-live-out:
allocation 3: size 4, page 0, constant:
allocation 4: size 3000, page 0, preallocated-temp:
 value: <2 whole @0> (size=2048,offset=0): f32[16,32]{1,0}
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A folder as `--xla_dump_to` leaves it: a step, a smaller module, and what belongs to them."""
    small = step(**{"HloModule jit_step": "HloModule jit_small", "StackFrames": "StackFrames"}).replace("%twelve", "%n")
    names = {
        "module_0007.jit_step.cpu_after_optimizations.txt": STEP,
        "module_0007.jit_step.before_optimizations.txt": STEP * 3,
        "module_0007.jit_step.cpu_after_optimizations-buffer-assignment.txt": ALLOCATIONS,
        "module_0001.jit_small.sm_9.0_gpu_after_optimizations.txt": small,
        "module_0002.jit_other.thunk_sequence.txt": "no module",
    }
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_folders_modules_are_listed_the_largest_first(dump: Path) -> None:
    outcome = command(dump, ".", module="runner explain")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert [line.split()[0] for line in outcome.stdout.splitlines()[1:3]] == ["jit_step", "jit_small"]
    with pytest.raises(files.SeveralModules, match="it has 2 modules; choose one by its name"):
        files.explain(dump)


def test_a_module_that_libtpu_dumps_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "module_0003.jit_step.cl_1003875606.after_optimizations.txt").write_text(STEP)
    (tmp_path / "module_0003.jit_step.cl_1003875606.after_optimizations_after_buffer_assignment.txt").write_text(STEP)
    assert [module.name for module in dumps.modules(tmp_path)] == ["jit_step"]
    assert runner.explain(tmp_path, module="jit_step").collectives == {"all-gather": 1, "all-reduce": 1}


def test_a_module_of_a_folder_is_chosen_by_its_name(dump: Path) -> None:
    chosen = runner.explain(dump, module="jit_small")
    assert (chosen.module, chosen.platform) == ("jit_small", "gpu")
    with pytest.raises(UnreadableModule, match=r"it has no module jit_stp; did you mean 'jit_step'\?$"):
        runner.explain(dump, module="jit_stp")


@pytest.mark.in_turn
def test_memory_beside_a_dumped_module_is_the_compilers(dump: Path) -> None:
    assert runner.explain(dump, module="jit_step").memory == MemoryUse(
        arguments=768, outputs=516, temporaries=3000, aliased=512, peak=768 + 516 + 3000 - 512, by="compiler"
    )


def test_a_folder_without_modules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModule, match="no module was dumped here"):
        runner.explain(tmp_path)


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7) if number > 0x7F else bytes([number])


def test_a_serialized_module_is_read_by_jaxlib(compiled: Any, here: runner.Explained, tmp_path: Path) -> None:
    (module,) = compiled.runtime_executable().hlo_modules()
    proto = module.as_serialized_hlo_module_proto()
    # An HloProto has the module in its first field.
    (tmp_path / "step.hlo.pb").write_bytes(b"\x0a" + _varint(len(proto)) + proto)
    serialized = runner.explain(tmp_path / "step.hlo.pb", mesh={"data": 2, "model": 2})
    assert serialized.collectives == here.collectives
    assert serialized.sent_by_line() == here.sent_by_line()


@pytest.mark.parametrize("data", [b"", b"\x0a\xff\xff\xff\x0f", b"\x0a\x03abc", bytes(range(256))])
def test_a_broken_serialized_module_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "step.hlo.pb").write_bytes(data)
    with pytest.raises(UnreadableModule, match="this is no serialized module that jaxlib reads: "):
        runner.explain(tmp_path / "step.hlo.pb")


def test_hardware_gives_an_estimate_of_the_least_time(tmp_path: Path) -> None:
    (tmp_path / "step.txt").write_text(STEP)
    shown = runner.explain(tmp_path / "step.txt", hardware="h100")
    assert "<summary>Where the time goes</summary>" in shown._repr_html_()
    estimate = shown.estimate
    assert estimate is not None
    # Twelve all-gathers of small arrays take the latency of the switch, 5 µs each.
    assert estimate.collectives[0].seconds == pytest.approx(12 * 5e-6)
    assert [line.nodes for line in estimate.lines if line.flops] == [["model.py:7"]]
    with pytest.raises(ValueError, match=r"^there is no hardware 'h10'; did you mean 'h100'\?$"):
        runner.explain(tmp_path / "step.txt", hardware="h10")


# The annotated source.


MODEL = """import jax


def layer(x, w):
    # A comment.
    h = 2 * x
    h = x @ w  # the product of one layer, which is longer than the columns that are left for it at eighty columns
    return h


def unused():
    return None
"""


@pytest.fixture
def sourced(tmp_path: Path) -> Explanation:
    """The step, with the file of its layer on this machine."""
    (tmp_path / "model.py").write_text(MODEL)
    return modules.explain(step(**{'"/home/me/model.py"': f'"{tmp_path}/model.py"'}), "step.txt")


def test_the_source_has_each_lines_collectives_in_its_margin(sourced: Explanation) -> None:
    file, *_ = annotated.files(sourced)
    (line,) = (line for line in file.lines if line is not None and line.entries)
    assert (line.number, line.text[:13], line.share) == (7, "    h = x @ w", 1.0)
    assert [(entry.text, entry.sent) for entry in line.entries] == [
        ("12×AG data", 12 * 1536),
        ("1×AR model↩", 512),
    ]
    assert line.entries[0].callers == [["train.py:21", "train.py:30"]]


def test_the_smallest_share_that_is_shown_has_a_bar() -> None:
    assert [annotated._bar(share) for share in (0.0, 0.004, 0.006, 0.5, 1.0)] == [
        "    ",
        "    ",
        "▏   ",
        "██  ",
        "████",
    ]


def test_lines_without_anything_are_folded_but_not_their_definition(sourced: Explanation) -> None:
    shown = annotated.text_of(sourced, 100)
    assert shown[1:5] == [
        "⋮",
        "4                               │ def layer(x, w):",
        "5                               │     # A comment.",
        "6                               │     h = 2 * x",
    ]
    assert not any("unused" in line for line in shown)


@pytest.mark.parametrize("width", [80, 100])
def test_the_annotated_source_fits(sourced: Explanation, width: int) -> None:
    shown = annotated.text_of(sourced, width)
    # The path of the file is as long as it is.
    assert max(map(len, shown[1:])) <= width
    (line,) = (line for line in shown if "x @ w" in line)
    assert line.startswith("7 12×AG data       18.4 kB ████ │     h = x @ w")
    assert line.endswith("…")


def test_a_file_that_is_not_here_has_the_numbers_of_its_lines(explanation: Explanation) -> None:
    assert annotated.text_of(explanation)[:2] == [
        "/home/me/model.py (not on this machine)",
        "⋮",
    ]
    assert annotated.text_of(explanation)[2].startswith("7 12×AG data       18.4 kB ████ │")


def test_a_saved_explanation_draws_its_source_where_the_file_is_gone(sourced: Explanation, tmp_path: Path) -> None:
    before = annotated.text_of(sourced)
    page = explained_page.document(sourced)
    (tmp_path / "model.py").unlink()
    again = files.saved(files.document(sourced), "step.json")
    assert annotated.text_of(again) == before
    assert explained_page.document(again) == page
    assert "called by train.py:21 ← train.py:30" in page


def test_the_command_annotates_the_source(sourced: Explanation, tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text(files.document(sourced), "utf-8")
    outcome = command(tmp_path, "step.json", "--annotate", module="runner explain")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines() == annotated.text_of(sourced)


# Differences.


def test_equal_modules_differ_in_nothing(explanation: Explanation) -> None:
    assert runner.compare(explanation, explanation) == []


def test_a_collective_that_appears_is_named_with_what_it_costs(explanation: Explanation) -> None:
    without = step(
        **{
            "f32[16,8]{1,0} all-reduce(%part), channel_id=2, replica_groups=[4,2]<=[8], "
            "use_global_device_ids=true, to_apply=%add": "f32[16,8]{1,0} negate(%part)",
            "%twelve = s32[] constant(12)": "%twelve = s32[] constant(6)",
        }
    )
    assert runner.compare(modules.explain(without, "old.txt"), explanation) == [
        "all-gather of params['w'] at model.py:7 over data runs 6 → 12 times: +9.2 kB sent (9.2 kB → 18.4 kB)",
        "all-reduce at model.py:7 (backward) over model appeared, once: +512 B sent",
        "in all a device sends 9.2 kB → 18.9 kB (+9.7 kB)",
    ]


def test_a_line_that_moved_is_the_same_line(tmp_path: Path) -> None:
    explanations: list[Explanation] = []
    for name, before in (("old", 0), ("new", 5)):
        file = tmp_path / name / "model.py"
        file.parent.mkdir()
        file.write_text("\n" * (6 + before) + "h = x @ w\n")
        text = step(**{'"/home/me/model.py"': f'"{file}"'}).replace("line=7 ", f"line={7 + before} ")
        explanations.append(modules.explain(text, name))
    assert [each.moving[0].node for each in explanations] == ["model.py:7", "model.py:12"]
    assert runner.compare(*explanations) == []


def test_made_up_axes_are_compared_by_the_names_of_the_other() -> None:
    unnamed = modules.explain(step(**UNNAMED), "step.txt")
    assert runner.compare(unnamed, modules.explain(STEP, "step.txt")) == []


def test_the_command_compares_two_modules(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text(STEP)
    (tmp_path / "new.txt").write_text(step(**{"constant(12)": "constant(13)"}))
    same = command(tmp_path, "old.txt", "old.txt", module="runner compare")
    assert (same.returncode, same.stdout) == (0, "jit_step: the same\n")
    outcome = command(tmp_path, "old.txt", "new.txt", module="runner compare")
    assert (outcome.returncode, outcome.stderr, outcome.jax) == (1, "", False)
    assert outcome.stdout.splitlines()[1] == (
        "  all-gather of params['w'] at model.py:7 over data runs 12 → 13 times: +1.5 kB sent (18.4 kB → 20.0 kB)"
    )


def test_the_command_compares_two_folders_module_by_module(dump: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "module_0000.jit_step.cpu_after_optimizations.txt").write_text(STEP)
    outcome = command(dump, ".", str(other), module="runner compare")
    assert (outcome.returncode, outcome.stderr) == (1, "")
    assert outcome.stdout == "jit_step: the same\njit_small\n  it disappeared\n"


# In the caller's process.


@pytest.fixture(scope="module")
def mesh() -> Any:
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])


def _loss(w: Any, x: Any) -> Any:
    return jnp.sum((x @ w) ** 2)


def _step(w: Any, x: Any) -> Any:
    gradient = jax.grad(_loss)(w, x)
    return w - gradient, jnp.sum(gradient)


@pytest.fixture(scope="module")
def operands(mesh: Any) -> tuple[Any, Any]:
    w = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    return w, x


@pytest.fixture(scope="module")
def jitted(mesh: Any) -> Any:
    out = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P())
    return jax.jit(_step, donate_argnums=0, out_shardings=out)


@pytest.fixture(scope="module")
def compiled(jitted: Any, operands: tuple[Any, Any]) -> Any:
    return jitted.lower(*operands).compile()


@pytest.fixture(scope="module")
def here(compiled: Any) -> runner.Explained:
    return runner.explain(compiled)


def _line_of(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    return f"{Path(__file__).name}:{next(at for at, line in enumerate(lines, start=1) if text in line)}"


def test_a_compiled_step_is_explained_by_the_callers_lines(here: runner.Explained) -> None:
    product = _line_of("jnp.sum((x @ w) ** 2)")
    assert (str(here.mesh), here.platform, here.partitions) == ("data=2 × model=2", "cpu", 4)
    assert {entry.node for entry in here.moving if entry.kind == "all-gather"} == {product}
    assert _line_of("jax.grad(_loss)(w, x)") in here.moving[0].callers
    assert here.unknown == []


def test_memory_layouts_and_donation_are_jaxs(here: runner.Explained, compiled: Any) -> None:
    stats = compiled.memory_analysis()
    assert here.memory is not None
    assert (here.memory.by, here.memory.temporaries) == ("compiler", stats.temp_size_in_bytes)
    assert [(a.name, a.spec, a.output) for a in here.arguments] == [
        ("w", Spec.of(("data", "model")), "0"),
        ("x", Spec.of(("data", None)), None),
    ]


def test_a_function_a_lowered_and_a_compiled_step_are_explained_alike(
    here: runner.Explained, jitted: Any, operands: tuple[Any, Any]
) -> None:
    for other in (runner.explain(jitted, *operands), runner.explain(jitted.lower(*operands))):
        assert other.collectives == here.collectives
        assert other.sent_by_axis() == here.sent_by_axis()


def test_each_collective_has_the_reason_by_shardys_plan(jitted: Any, operands: tuple[Any, Any]) -> None:
    product = _line_of("jnp.sum((x @ w) ** 2)")
    reasons = {entry.kind: entry.why for entry in runner.explain(jitted, *operands).moving if not entry.gradient}
    gathered = reasons["all-gather"]
    assert gathered is not None
    assert gathered.keys == ["w"]
    assert gathered.text.startswith(f"the product in {product}")
    assert "which w shards over data" in gathered.text


def test_a_collective_that_the_program_asks_for_says_so(mesh: Any, operands: tuple[Any, Any]) -> None:
    def mean(x: Any) -> Any:
        return jax.lax.pmean(x, "data")

    mapped = jax.jit(jax.shard_map(mean, mesh=mesh, in_specs=P("data", "model"), out_specs=P(None, "model")))
    (only,) = runner.explain(mapped, operands[0]).moving
    assert only.why is not None
    assert only.why.text == f"{_line_of('jax.lax.pmean')} asks for it: psum"
    # The module alone has it too.
    assert runner.explain(mapped.lower(operands[0]).compile()).moving[0].why == only.why


def test_an_expectation_that_is_met_is_silent(compiled: Any, here: runner.Explained) -> None:
    runs = {kind: sum(int(e.count) for e in here.moving if e.kind == kind) for kind in here.collectives}  # type: ignore[arg-type]
    assert runner.explain(compiled, expect={"collectives": runs, "max_bytes_per_device": 10**6}) == here


def test_an_expectation_that_is_not_met_raises_with_the_report(tmp_path: Path) -> None:
    (tmp_path / "step.txt").write_text(STEP)
    with pytest.raises(AssertionError) as unmet:
        runner.explain(tmp_path / "step.txt", expect={"collectives": {"all-gather": 1}, "max_bytes_per_device": 512})
    first, second, _, head, *_ = str(unmet.value).splitlines()
    assert first == "collectives: all-gather runs 12 times, expected 1; all-reduce runs 1 times, expected 0"
    assert second == "max_bytes_per_device: a device sends 18.9 kB, at most 512 B are allowed"
    assert head.startswith("jit_step: 8 devices")


def test_what_cannot_be_decided_is_not_met() -> None:
    cut = modules.explain(STEP[: STEP.index("  %updated")], "step.txt")
    assert len(expecting.unmet(cut, {"no_collectives": True, "max_bytes_per_device": 10**9, "collectives": {}})) == 3


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"collective": {}}, "there is no expectation 'collective'; did you mean 'collectives'?"),
        ({"collectives": 3}, "collectives is a mapping of kinds to counts, {'all-reduce': 2}, not 3"),
        ({"no_collectives": 1}, "no_collectives is True, or left out, not 1"),
        ({"max_memory_bytes": "2GB"}, "a limit is a number of bytes, not '2GB'"),
        ({"collectives": {"all-gather": {"least": 1}}}, "the range of all-gather has the keys min and max, not least"),
    ],
)
def test_what_is_no_expectation_is_refused(explanation: Explanation, expected: Any, message: str) -> None:
    with pytest.raises(expecting.InvalidExpectation) as refused:
        expecting.unmet(explanation, expected)
    assert str(refused.value) == message


def test_a_function_that_is_not_jitted_is_jitted(operands: tuple[Any, Any]) -> None:
    assert runner.explain(_loss, *operands).collectives["all-reduce"] >= 1


class _Wrapping:
    """A jitted function of a library that has what JAX lowers and compiles in objects of its own."""

    def __call__(self, *arguments: Any) -> Any:
        return _loss(*arguments)

    def lower(self, *arguments: Any) -> SimpleNamespace:
        lowered = jax.jit(_loss).lower(*arguments)
        return SimpleNamespace(lowered=lowered, compile=lambda: SimpleNamespace(compiled=lowered.compile()))


def test_a_librarys_own_jit_is_explained(operands: tuple[Any, Any]) -> None:
    reports = [runner.explain(step, *operands) for step in (jax.jit(_loss), _Wrapping())]
    lowered = _Wrapping().lower(*operands)
    reports += [runner.explain(lowered), runner.explain(lowered.compile())]
    assert len({tuple(report.collectives.items()) for report in reports}) == 1
    assert all(entry.why is not None for report in reports[:3] for entry in report.moving)


def test_with_sharding_types_a_reason_names_what_the_program_asks_for() -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])

    def product(a: Any, b: Any) -> Any:
        return jnp.dot(jax.nn.relu(a * 2), b, out_sharding=P())

    a = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=NamedSharding(mesh, P(None, "x")))
    b = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x", None)))
    with jax.set_mesh(mesh):
        (summed,) = runner.explain(product, a, b).moving
    assert summed.why is not None
    assert summed.why.keys == ["a", "b"]


def test_state_that_comes_back_in_another_layout_is_named(mesh: Any, operands: tuple[Any, Any]) -> None:
    out = NamedSharding(mesh, P("model", None)), NamedSharding(mesh, P())
    moved = runner.explain(jax.jit(_step, out_shardings=out), *operands)
    assert moved.notes == [
        "argument 0 comes back as result 0 in another layout: the array from P('data', 'model') to P('model', None)"
    ]


def test_a_donation_that_no_result_can_use_is_named(operands: tuple[Any, Any]) -> None:
    unused = runner.explain(jax.jit(_loss, donate_argnums=0), *operands)
    assert explained.notes(unused) == ["w is donated, but no result reuses its memory (32 B a device)"]


@pytest.mark.parametrize(
    ("step", "arguments", "message"),
    [
        (3, (), "a value of the type int is neither a function nor what jit lowers or compiles"),
        ("step.txt", (1,), "a file has no arguments"),
    ],
)
def test_what_cannot_be_explained_is_refused(step: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        runner.explain(step, *arguments)


def test_an_explanation_is_shown_in_notebooks_and_terminals(here: runner.Explained, tmp_path: Path) -> None:
    assert repr(here).startswith("<Explained jit__step: 4 devices (data=2 × model=2), compiled for cpu; ")
    assert str(here).startswith("jit__step: 4 devices")
    assert "<table>" in here._repr_html_()
    assert here.html(tmp_path / "step.html") == (tmp_path / "step.html").read_text("utf-8")
    assert runner.explain(here.save(tmp_path / "step.json")) == here


def test_the_head_of_an_explanation_is_singular_for_one_device() -> None:
    text = "HloModule jit_step, is_scheduled=true\n\nENTRY %main (x: f32[4]) -> f32[4] {\n"
    only = modules.explain(text + "  ROOT %x = f32[4]{0} parameter(0)\n}\n", "step.txt")
    assert explained.head(only) == ["jit_step: 1 device, compiled; 1 instruction"]
    assert explained.totals(only) == ["no collectives"]
