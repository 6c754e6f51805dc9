"""The pictures of layouts, and that they agree with `jax.debug.visualize_array_sharding`."""

import io
import itertools
import json
import math
import re
import subprocess
import sys
from typing import Any, Literal
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rich.console import Console

from runner.base import codec
from runner.base.layout import Layout, Mesh, Spec
from runner.base.words import devices_text
from runner.reports.record.model import Pictures, Shard
from runner.reports.show import colours, console, figures, pictures, sheet, svg
from runner.reports.show.page import layouts as layouts_page
from runner.reports.show.page.markup import joined
from runner.reports.show.pictures import ArrayPicture, MeshPicture
from tests import evidence


def picture_of(
    mesh: Mesh,
    shape: tuple[int, ...],
    spec: Any,
    *,
    name: str = "A",
    role: Literal["array", "output"] = "array",
    ids: Any = None,
    dims: Any = None,
    platform: str = "cpu",
    programs: Any = (),
) -> ArrayPicture:
    """Return the picture of a float32 array; `spec` is in YAML syntax."""
    return pictures.from_layout(
        Layout(mesh, shape, Spec.of(spec)),
        name=name,
        role=role,
        dtype="float32",
        dims=dims or (None,) * len(shape),
        device_ids=range(mesh.size) if ids is None else ids,
        platform=platform,
        programs=programs,
    )


def mesh_picture(mesh, ids=None, platform="cpu"):
    return MeshPicture(mesh.axes, mesh.shape, tuple(range(mesh.size) if ids is None else ids), platform)


def plain(mesh, arrays, width=100):
    return figures.text(mesh, arrays, width)


def expanded(label):
    """Expand `CPU 0-3,6` as JAX writes it: `CPU 0,1,2,3,6`."""
    return re.sub(r"(\d+)-(\d+)", lambda run: ",".join(map(str, range(int(run[1]), int(run[2]) + 1))), label)


def block(text, name):
    """Return the lines of one array in a figure, without those beside it."""
    lines = text.splitlines()
    starts = [[m.start(1) for m in re.finditer(r"(?:^| {4})(\w+  \S*\[)", line)] for line in lines]
    for k, columns in enumerate(starts):
        for column, end in itertools.pairwise([*columns, None]):
            if re.match(rf"{name}  \S*\[", lines[k][column:end]):
                rows = itertools.takewhile(str.strip, lines[k:])
                return [line[column:end].rstrip() for line in rows if line[column:end].strip()]
    raise AssertionError(f"no {name} in\n{text}")


def boxes(lines):
    """Return the labels in a drawing of box lines, by row and column."""
    rows = []
    for line in lines:
        if re.search("[┌├]", line):
            rows.append(None)
        elif "│" in line:
            cells = [cell.strip() for cell in line.split("│")[1:-1]]
            rows[-1] = cells if rows[-1] is None else [a + b for a, b in zip(rows[-1], cells, strict=True)]
    return rows


LIKE_JAX = [
    ({"x": 8}, (8,), [None]),
    ({"x": 8}, (16,), ["x"]),
    ({"x": 8}, (8, 16), ["x"]),
    ({"x": 8}, (8, 16), [None, "x"]),
    ({"x": 1}, (4, 4), ["x", None]),
    ({"x": 2, "y": 2}, (4, 4), []),
    ({"x": 2, "y": 2}, (4, 4), [None, "x"]),
    ({"x": 2, "y": 2}, (4, 4), ["y", None]),
    ({"x": 2, "y": 2}, (4, 4), ["y", "x"]),
    ({"x": 2, "y": 4}, (8,), [["y", "x"]]),
    ({"x": 2, "y": 4}, (8,), ["y"]),
    ({"x": 2, "y": 4}, (8, 8), ["x", "y"]),
    ({"x": 2, "y": 4}, (8, 32), [["y", "x"], None]),
    ({"x": 2, "y": 4}, (8, 8), [None, ["x", "y"]]),
    ({"x": 4, "y": 1}, (8, 4), ["y", "x"]),
    ({"x": 2, "y": 2, "z": 2}, (8, 8), [["z", "x"], "y"]),
    ({"x": 2, "y": 2, "z": 2}, (8, 8), ["y"]),
]


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize(("axes", "shape", "spec"), LIKE_JAX, ids=str)
def test_one_and_two_dimensions_are_drawn_as_in_jax(axes, shape, spec, backwards, capsys):
    devices = jax.devices()[: math.prod(axes.values())][:: -1 if backwards else 1]
    types = (AxisType.Auto,) * len(axes)
    jax_mesh = jax.sharding.Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes), axis_types=types)
    entries = (tuple(entry) if isinstance(entry, list) else entry for entry in spec)
    array = jax.device_put(np.zeros(shape, np.float32), NamedSharding(jax_mesh, PartitionSpec(*entries)))
    jax.debug.visualize_array_sharding(array, use_color=False)
    theirs = boxes(capsys.readouterr().out.splitlines())

    ids = [device.id for device in devices]
    mesh = Mesh(tuple(axes), tuple(axes.values()))
    picture = picture_of(mesh, shape, spec, ids=ids)
    ours = [list(map(expanded, row)) for row in boxes(block(plain(mesh_picture(mesh, ids), [picture]), "A"))]

    assert theirs
    assert ours == theirs
    assert {s.devices for s in picture.shards} == {
        tuple(sorted(d.id for d, index in array.sharding.devices_indices_map(shape).items() if index == of))
        for of in array.sharding.devices_indices_map(shape).values()
    }


# The index range of every device, read off the pictures.

READ = [
    ({"x": 8}, (16,), ["x"]),
    ({"x": 2, "y": 4}, (8,), [["y", "x"]]),
    ({"x": 2, "y": 2}, (4,), ["y"]),
    ({"x": 2, "y": 2}, (4, 6), ["y", "x"]),
    ({"x": 2, "y": 4}, (8, 8), [None, ["y", "x"]]),
    ({"x": 2, "y": 2}, (4, 4), []),
    ({"x": 2, "y": 2, "z": 2}, (4, 6, 8), ["z", "y", "x"]),
    ({"x": 2, "y": 2, "z": 2}, (4, 6, 8), [None, "x", "y"]),
]
RANGE = re.compile(r"\d+:\d+")


def in_text(lines, rank):
    """Return each device's index range as a reader finds it: the slice's title, the row's and the column's heading."""
    held, lead, columns = {}, (), [""]
    for before, line in itertools.pairwise(["", *lines]):
        if line.startswith("slice"):
            lead = tuple(RANGE.findall(line))
        elif "┌" in line and rank:
            columns = RANGE.findall(before)
        elif re.search(r"CPU [\d,]+", line := expanded(line)):
            heading, *cells = line.split("│")[:-1]
            row = tuple(RANGE.findall(heading))
            for column, cell in zip(columns, cells, strict=True):
                for device in re.findall(r"\d+", cell):
                    held[int(device)] = (*lead, *row, *filter(None, [column]))
    return held


def in_svg(image, name):
    """Return the same from the tooltips of the image's cells."""
    titles = re.findall(rf"<title>CPU ([\d,]+): {name}\[([\d:, ]*)\]</title>", expanded(image))
    return {int(d): tuple(RANGE.findall(index)) for devices, index in titles for d in devices.split(",")}


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize(("axes", "shape", "spec"), READ, ids=str)
def test_the_index_range_and_the_shape_of_every_shard_can_be_read(axes, shape, spec, backwards):
    devices = jax.devices()[: math.prod(axes.values())][:: -1 if backwards else 1]
    types = (AxisType.Auto,) * len(axes)
    jax_mesh = jax.sharding.Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes), axis_types=types)
    entries = (tuple(entry) if isinstance(entry, list) else entry for entry in spec)
    array = jax.device_put(np.zeros(shape, np.float32), NamedSharding(jax_mesh, PartitionSpec(*entries)))
    theirs = {
        shard.device.id: tuple(
            "{}:{}".format(*part.indices(size)[:2]) for part, size in zip(shard.index, shape, strict=True)
        )
        for shard in array.addressable_shards
    }

    ids = [device.id for device in devices]
    mesh = Mesh(tuple(axes), tuple(axes.values()))
    picture = picture_of(mesh, shape, spec, ids=ids)
    lines = block(plain(mesh_picture(mesh, ids), [picture], width=110 if len(shape) < 3 else 30), "A")
    assert in_text(lines, len(shape)) == theirs
    image = svg.draw(mesh_picture(mesh, ids), [picture], "read")
    assert in_svg(image, "A") == theirs
    shown = f"shard {list(array.addressable_shards[0].data.shape)}"
    assert any(line.startswith(shown) for line in lines)
    assert shown in image
    # The headings at the edges, for readers without a pointer.
    written = set(re.findall(r'<text [^>]*class="r [em]"[^>]*>([\d:]+)</text>', image))
    titles = set(RANGE.findall(" ".join(re.findall(r">slice \[([^\]]*)\]</text>", image))))
    assert {part for ranges in theirs.values() for part in ranges} <= written | titles


def test_where_the_columns_are_too_narrow_for_their_ranges_a_note_has_them():
    mesh = Mesh(("x",), (16,))
    even = picture_of(mesh, (16384,), ["x"])
    lines = block(plain(mesh_picture(mesh), [even], width=80), "A")
    assert lines[-2] == "columns 0:1024, 1024:2048, …, 15360:16384"
    ends = [0, 1000, 2000, 3000, 3500]
    shards = tuple(Shard((bounds,), (d,)) for d, bounds in enumerate(itertools.pairwise(ends)))
    uneven = ArrayPicture("A", "array", (3500,), "int8", (None,), "P('x')", shards, 1, "cpu")
    lines = block(plain(mesh_picture(Mesh(("x",), (4,))), [uneven], width=40), "A")
    assert "columns 0:1000, 1000:2000, 2000:3000,\n3000:3500" in "\n".join(lines)


MESH = Mesh(("x", "y"), (2, 2))


def test_a_heading_says_type_spec_shard_bytes_copies_and_programs():
    picture = picture_of(
        MESH, (4, 4), [None, "x"], name="C", role="output", dims=("I", "K"), programs=("auto", "shard_map")
    )
    assert picture.lines() == (
        "float32[I=4, K=4]",
        "P(None, 'x')",
        "shard [4, 2]  32 B per device",
        "2 copies of each shard",
        "output of auto, shard_map",
    )
    assert plain(mesh_picture(MESH), [picture], width=40) == (
        "mesh  x=2, y=2\n"
        "4 CPU devices\n"
        "x↓ y→     0       1\n"
        "      ┌───────┬───────┐\n"
        "0     │ CPU 0 │ CPU 1 │\n"
        "      ├───────┼───────┤\n"
        "1     │ CPU 2 │ CPU 3 │\n"
        "      └───────┴───────┘\n"
        "\n"
        "C  float32[I=4, K=4]  P(None, 'x')\n"
        "shard [4, 2]  32 B per device\n"
        "2 copies of each shard\n"
        "output of auto, shard_map\n"
        "I↓ K→     0:2       2:4\n"
        "      ┌─────────┬─────────┐\n"
        "      │         │         │\n"
        "      │         │         │\n"
        "      │         │         │\n"
        "0:4   │ CPU 0,1 │ CPU 2,3 │\n"
        "      │         │         │\n"
        "      │         │         │\n"
        "      │         │         │\n"
        "      └─────────┴─────────┘\n"
    )


def test_outputs_of_one_layout_share_a_line():
    outputs = [picture_of(MESH, (4, 4), [], name=name, role="output", programs=("auto",)) for name in ("C", "D")]
    (both,) = pictures.alike(outputs)
    assert both.lines()[-1] == "outputs of auto"
    (three,) = pictures.alike([picture_of(MESH, (4, 4), []), *outputs])
    assert three.lines()[-1] == "C, D: outputs of auto"


def test_a_scalar_is_one_cell():
    picture = picture_of(MESH, (), [])
    assert boxes(block(plain(mesh_picture(MESH), [picture]), "A")) == [["CPU 0-3"]]
    assert picture.shard_shape == ()
    assert picture.bytes_per_device == 4


def test_above_two_dimensions_every_slice_is_named():
    mesh = Mesh(("x", "y", "z"), (2, 2, 2))
    three = picture_of(mesh, (4, 8, 8), ["x", None, "z"])
    four = picture_of(mesh, (8, 8, 4, 2), ["x", "y", "z"])
    assert [grid.title for grid in three.grids()] == ["slice [0:2, :, :]", "slice [2:4, :, :]"]
    lines = block(plain(mesh_picture(mesh), [four], width=30), "A")
    assert [line for line in lines if "slice" in line] == [
        "slice [0:4, 0:4, :, :]",
        "slice [0:4, 4:8, :, :]",
        "slice [4:8, 0:4, :, :]",
        "slice [4:8, 4:8, :, :]",
    ]
    assert [box for box in boxes(lines) if box] == [[f"CPU {d}"] for d in range(8)]
    assert svg.draw(mesh_picture(mesh), [four], "four").count("slice [") == 4


def test_slices_that_are_left_out_are_counted():
    mesh = Mesh(("x",), (32,))
    picture = picture_of(mesh, (32, 2, 2), ["x"])
    assert block(plain(mesh_picture(mesh), [picture]), "A")[-1] == "32 slices, 4 shown"
    assert "32 slices, 16 shown" in svg.draw(mesh_picture(mesh), [picture], "many")


def test_a_mesh_of_three_axes_is_drawn_as_slices_and_one_axis_as_a_row():
    cube = mesh_picture(Mesh(("x", "y", "z"), (2, 2, 2)))
    assert [grid.title for grid in cube.grids()] == ["x=0", "x=1"]
    assert [[cell.index for cell in row] for row in cube.grids()[1].cells] == [
        ["x=1, y=0, z=0", "x=1, y=0, z=1"],
        ["x=1, y=1, z=0", "x=1, y=1, z=1"],
    ]
    assert "x→     0       1       2\n" in plain(mesh_picture(Mesh(("x",), (3,))), [])
    assert [len(grid.cells) for grid in MeshPicture((), (), (0,), "cpu").grids()] == [1]


def test_uneven_shards_are_drawn_with_their_ranges_and_an_empty_one_is_named():
    shards = tuple(Shard((r, (0, 3)), (d,)) for d, r in enumerate([(0, 2), (2, 4), (4, 5), (5, 5)]))
    picture = ArrayPicture("A", "array", (5, 3), "int8", (None, None), "P('x', None)", shards, 1, "cpu")
    lines = block(plain(mesh_picture(Mesh(("x",), (4,))), [picture]), "A")
    assert boxes(lines) == [["CPU 0"], ["CPU 1"], ["CPU 2"]]
    assert [line.split()[0] for line in lines if "CPU" in line and "│" in line] == ["0:2", "2:4", "4:5"]
    assert lines[-1] == "CPU 3: an empty shard"
    assert picture.shard_shapes == ((2, 3), (1, 3), (0, 3))
    assert picture.lines()[2] == "shards [2, 3], [1, 3], [0, 3]  up to 6 B per device"


def test_an_array_without_elements_is_one_cell():
    picture = picture_of(MESH, (0, 3), ["x"])
    assert boxes(block(plain(mesh_picture(MESH), [picture]), "A")) == [["CPU 0-3"]]
    assert picture.bytes_per_device == 0


@st.composite
def layouts(draw):
    """Draw a mesh of up to 27 devices, and an array of rank up to 4 whose dimensions its axes shard."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    mesh = Mesh(tuple("xyz"[: len(sizes)]), tuple(sizes))
    rank = draw(st.integers(0, 4))
    spec = [[] for _ in range(rank)]
    for axis in draw(st.permutations(mesh.axes)):
        dimension = draw(st.integers(0, rank))
        if dimension < rank:
            spec[dimension].append(axis)
    shape = tuple(mesh.axis_size(axes) * draw(st.integers(1, 3)) for axes in spec)
    return mesh, shape, spec


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_every_element_is_in_exactly_one_shard_and_in_exactly_one_cell(case):
    mesh, shape, spec = case
    picture = picture_of(mesh, shape, spec)
    in_shards, in_cells = np.zeros(shape, int), np.zeros(shape, int)
    holders = np.empty(shape, object)
    for shard in picture.shards:
        index = tuple(slice(*bounds) for bounds in shard.ranges)
        in_shards[index] += 1
        for element in itertools.product(*(range(*bounds) for bounds in shard.ranges)):
            holders[element] = shard.devices
    for cell in (cell for grid in picture.grids() for row in grid.cells for cell in row):
        bounds = [(int(a), int(b)) for a, b in re.findall(r"(\d+):(\d+)", cell.index)]
        in_cells[tuple(slice(*pair) for pair in bounds)] += 1
        assert {holders[e] for e in itertools.product(*(range(*pair) for pair in bounds))} == {cell.devices}
    assert (in_shards == 1).all()
    assert (in_cells == 1).all()


@given(layouts(), st.integers(40, 130))
@settings(max_examples=60, deadline=None)
def test_plain_text_keeps_to_its_width(case, width):
    mesh, shape, spec = case
    text = plain(mesh_picture(mesh), [picture_of(mesh, shape, spec)], width=width)
    assert max(map(len, text.splitlines())) <= width


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_a_picture_is_the_same_after_json(case):
    mesh, shape, spec = case
    picture = picture_of(mesh, shape, spec, role="output", programs=("auto",))
    drawn = mesh_picture(mesh)
    written = codec.plain(pictures.recorded(drawn, [picture]))
    assert pictures.read(codec.build(Pictures, json.loads(json.dumps(written)))) == (drawn, [picture])


def test_512_devices_fit_in_80_columns_and_the_text_says_what_is_left_out():
    mesh = Mesh(("x", "y"), (16, 32))
    arrays = [
        picture_of(mesh, (512, 512), ["x", "y"], name="A"),
        picture_of(mesh, (512,), [["x", "y"]], name="B"),
        picture_of(mesh, (512, 2), [["x", "y"]], name="C"),
        picture_of(mesh, (512, 512), ["x"], name="D"),
        picture_of(mesh, (512, 512), [], name="E"),
    ]
    text = plain(mesh_picture(mesh), arrays, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "16 × 32 devices, 16 × " in text
    for name, rows, columns in (("A", 16, 32), ("B", 1, 512)):
        lines = block(text, name)
        shown = re.fullmatch(rf"{rows} × {columns} shards, {rows} × (\d+) shown", lines[-2])
        labels = boxes(lines)[0]
        assert shown is not None
        assert len(labels) - labels.count("…") == int(shown[1]) >= 10
        assert labels[-1] == str(columns - 1)
    assert "512 × 1 shards, 8 × 1 shown" in block(text, "C")
    assert [row[0] for row in boxes(block(text, "C"))][-3:] == ["CPU 6", "⋮", "CPU 511"]
    assert boxes(block(text, "D"))[:2] == [["CPU 0-31"], ["CPU 32-63"]]
    assert boxes(block(text, "E")) == [["CPU 0-511"]]


def test_a_cell_that_has_room_for_one_device_says_how_many_hold_it():
    mesh = Mesh(("x", "y"), (2, 16))
    text = plain(mesh_picture(mesh), [picture_of(mesh, (16, 16), [None, "y"])], width=60)
    assert "each cell names the first of its 2 CPU devices" in block(text, "A")
    assert boxes(block(text, "A"))[0][:2] == ["0", "1"]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0], "CPU 0"),
        ([0, 2, 4, 6], "CPU 0,2,4,6"),
        (range(3), "CPU 0-2"),
        ([0, 1, 4, 5], "CPU 0,1,4,5"),
        ([0, 1, 2, 3, 6], "CPU 0-3,6"),
        (range(8), "CPU 0-7"),
        (range(64), "CPU 0-63"),
        ([*range(8), *range(16, 24)], "CPU 0-7,16-23"),
        (range(0, 64, 2), "CPU 0,2,…,62 (32)"),
    ],
)
def test_long_lists_of_devices_are_shortened(ids, text):
    assert devices_text(list(ids), "cpu") == text


def test_outputs_with_equal_layouts_are_one_picture():
    same = [
        picture_of(MESH, (4, 4), ["x"], name="C", role="output", programs=("auto",)),
        picture_of(MESH, (4, 4), ["x", None], name="C", role="output", programs=("shard_map",)),
    ]
    other = picture_of(MESH, (4, 4), [None, "y"], name="C", role="output", programs=("explicit",))
    merged = pictures.merge([same[0], other, same[1]])
    assert [picture.programs for picture in merged] == [("auto", "shard_map"), ("explicit",)]
    assert [picture.spec for picture in merged] == ["P('x', None)", "P(None, 'y')"]


FIGURES = {
    "2x2": (MESH, [((4, 4), [None, "x"]), ((4, 4), []), ((), [])]),
    "8": (Mesh(("x",), (8,)), [((8,), ["x"]), ((16, 64), [None, "x"]), ((8, 8), ["x"])]),
    "2x2x2": (Mesh(("x", "y", "z"), (2, 2, 2)), [((4, 8, 8), ["x", None, "z"]), ((8, 8, 4, 2), ["x", "y", "z"])]),
    "16x16": (Mesh(("x", "y"), (16, 16)), [((64, 64), ["x", "y"]), ((256,), [["x", "y"]]), ((64, 64), ["y"])]),
    "512": (Mesh(("batch", "model"), (128, 4)), [((512, 4), [["batch", "model"]]), ((4, 128, 2), ["model", "batch"])]),
}


def figure(name, platform="cpu"):
    mesh, arrays = FIGURES[name]
    drawn = [
        picture_of(mesh, shape, spec, name=f"A{k}", platform=platform, dims=("I", "J", "K", "L")[: len(shape)])
        for k, (shape, spec) in enumerate(arrays)
    ]
    return mesh_picture(mesh, platform=platform), drawn


def printed(name, system):
    """Return a figure on a terminal of 100 columns."""
    mesh, arrays = figure(name)
    file = io.StringIO()
    lines = figures.drawn(mesh, [mesh, *arrays], 100)
    Console(file=file, force_terminal=True, color_system=system, width=100).print(console.Styled(tuple(lines)))
    return file.getvalue()


@pytest.mark.parametrize("name", FIGURES)
def test_a_terminal_shows_the_plain_text_in_colours(name):
    coloured = printed(name, "truecolor")
    text = plain(*figure(name), width=100)
    assert "\x1b" not in text
    assert "\x1b[38;2;0;0;0;48;2;" in coloured
    stripped = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()]
    assert "\n".join(stripped).strip() == text.strip()


def test_a_terminal_of_sixteen_colours_gets_labels_without_backgrounds():
    assert "CPU 0-3" in printed("2x2", "standard")
    assert not re.search(r"\x1b\[(\d+;)*(4\d|10\d)", printed("2x2", "standard"))


def test_a_copy_is_striped_in_the_colours_of_all_that_have_one():
    mesh, arrays = figure("2x2")
    paint = colours.colours(range(4))
    lines = figures.drawn(mesh, [arrays[1]], 100)
    backgrounds = {style.split(" on ")[1] for line in lines for _, style in line if " on " in style}
    assert backgrounds == {*paint.values(), "#FFFFFF"}
    (cell,) = re.findall(r"<title>CPU 0-3: A1\[0:4, 0:4\]</title>(.*?)</g>", svg.draw(mesh, arrays, "t"))
    assert set(re.findall(r'fill="(#\w+)"', cell)) == {*paint.values(), "#FFFFFF", "#1F2328"}


def test_drawing_imports_no_jax_and_rich_only_to_show():
    code = (
        "import sys\nfrom runner.reports.show import figures, pictures, svg\n"
        "mesh = pictures.MeshPicture(('x',), (2,), (0, 1), 'cpu')\n"
        "svg.draw(mesh, [], 't'); figures.text(mesh, [], 80)\n"
        "print([name for name in ('jax', 'numpy', 'rich') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", FIGURES)
def test_an_svg_names_every_device_of_every_picture(name):
    mesh, arrays = figure(name)
    tree = ElementTree.fromstring(svg.draw(mesh, arrays, name))
    tips = [tip.text or "" for group in tree.iter(f"{SVG}g") for tip in group.findall(f"{SVG}title")]
    for picture in arrays:
        ids = [re.match(rf"CPU ([\d,]+): {picture.name}\[", expanded(tip)) for tip in tips]
        assert {int(d) for match in ids if match for d in match[1].split(",")} == set(mesh.device_ids)
    assert len([tip for tip in tips if re.match(r"CPU \d+: \w+=0", tip)]) >= 1
    assert tree.findtext(f"{SVG}title") == name
    assert (tree.findtext(f"{SVG}desc") or "").startswith("mesh: ")


@pytest.mark.parametrize("name", FIGURES)
def test_an_svg_needs_nothing_from_outside_and_is_the_same_each_time(name):
    drawn = svg.draw(*figure(name), name)
    assert re.findall(r"\w+://[^\"]+", drawn) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|url\(|@import|<script|<image|<foreignObject", drawn)
    assert drawn == svg.draw(*figure(name), name)


@pytest.mark.parametrize("name", FIGURES)
def test_everything_in_an_svg_is_inside_its_page(name):
    tree = ElementTree.fromstring(svg.draw(*figure(name), name))
    _, _, width, height = map(float, tree.attrib["viewBox"].split())

    def corners(node, x, y):
        if move := re.match(r"translate\((\S+) (\S+)\)", node.get("transform", "")):
            x, y = x + float(move[1]), y + float(move[2])
        if node.tag in (f"{SVG}rect", f"{SVG}text"):
            a, b = x + float(node.get("x", 0)), y + float(node.get("y", 0))
            yield a, b
            yield a + float(node.get("width", 0)), b + float(node.get("height", 0))
        for child in node:
            yield from corners(child, x, y)

    points = list(corners(tree, 0, 0))
    assert len(points) > 20
    assert all(0 <= a <= width and 0 <= b <= height for a, b in points)


def test_all_slices_of_an_array_have_cells_of_one_size():
    mesh = Mesh(("x", "y"), (8, 2))
    drawn = svg.draw(mesh_picture(mesh), [picture_of(mesh, (8, 4, 2000), ["x", None, "y"])], "t")
    cells = re.findall(r'<title>CPU \d+: A\[[^<]*</title><rect [^>]*width="([\d.]+)" height="([\d.]+)"', drawn)
    assert len(cells) == 16
    assert len(set(cells)) == 1
    text = plain(mesh_picture(mesh), [picture_of(mesh, (16, 4, 200), ["x", None, "y"])], 60)
    assert len(set(re.findall("┌[─┬]+┐", text.split("A  float32")[1]))) == 1


@pytest.mark.parametrize(("count", "most", "rows"), [(8, 5, [4, 4]), (7, 5, [4, 3]), (3, 9, [3]), (5, 0, [1] * 5)])
def test_slices_are_arranged_evenly(count, most, rows):
    across = pictures.balanced(count, most)
    assert [min(across, count - first) for first in range(0, count, across)] == rows


@pytest.mark.parametrize("name", FIGURES)
def test_the_root_of_an_svg_has_a_size_and_no_style(name):
    root = ElementTree.fromstring(svg.draw(*figure(name), name))
    assert root.get("style") is None
    assert [root.get("width"), root.get("height")] == root.attrib["viewBox"].split()[2:]


def test_text_is_readable_on_a_light_and_on_a_dark_page():
    drawn = svg.draw(*figure("2x2"), "t")
    ((light, dark),) = re.findall(r"<style>(.*)@media \(prefers-color-scheme:dark\)\{(.*)\}</style>", drawn)
    inks = [set(re.findall(r"fill:(#\w+)", re.sub(r"\.sp \.[pk]\{[^}]*\}", "", rules))) for rules in (light, dark)]
    pages = [{"#F6F8FA", "#FFFFFF"}, set(re.findall(r"\.[pk]\{fill:(#\w+)", dark))]
    assert all(len(each) >= 2 for each in (*inks, *pages))
    for words, behind in zip(inks, pages, strict=True):
        assert min(contrast(ink, page) for ink in words for page in behind) >= 4.5


def sheet_of(specs):
    """Return the sheet of points in which A has one spec after the other."""
    return sheet.of_points({k: (mesh_picture(MESH), [picture_of(MESH, (4, 4), s)]) for k, s in enumerate(specs)})


def test_a_sheet_has_each_layout_once_with_the_points_that_have_it():
    drawings, left = sheet_of([["x"], [None, "y"], ["x"], ["x"]])
    assert left == 0
    assert [[(p.spec, p.captions) for p in arrays] for _, arrays in drawings] == [
        [("P('x', None)", ("points 0,2,3",)), ("P(None, 'y')", ("point 1",))]
    ]
    assert svg.sheet(drawings, "t", "s").count(">A</text>") == 2
    text = sheet.text(drawings, 80)
    assert "points 0,2,3" in text
    assert "P(None, 'y')" in text
    assert sheet_of([["x"]])[0][0][1][0].captions == ("all points",)


def test_a_sheet_says_how_many_layouts_it_leaves_out():
    sizes = {k: (mesh_picture(MESH), [picture_of(MESH, (2 + 2 * k,), ["x"])]) for k in range(sheet.MOST + 3)}
    drawings, left = sheet.of_points(sizes)
    assert (len(drawings[0][1]), left) == (sheet.MOST, 3)


def test_an_svg_shows_copies_in_the_label_and_as_a_number():
    drawn = svg.draw(*figure("2x2"), "t")
    assert ">CPU 0,1</text>" in drawn
    assert ">×2</text>" in drawn
    assert ">×4</text>" in drawn


def test_an_svg_says_what_it_leaves_out():
    mesh = Mesh(("x",), (600,))
    drawn = svg.draw(mesh_picture(mesh), [picture_of(mesh, (600,), ["x"]), picture_of(mesh, (600, 2), ["x"])], "t")
    assert ">1 × 600 shards, 1 × 512 shown<" in drawn
    assert ">600 × 1 shards, 512 × 1 shown<" in drawn
    mesh = Mesh(("x", "y"), (64, 64))
    assert ">64 × 64 devices, 16 × 64 shown<" in svg.draw(mesh_picture(mesh), [], "t")
    assert ">too small for labels: point at a cell to read its devices<" in drawn


def test_names_are_escaped_in_an_svg():
    picture = picture_of(MESH, (4, 4), ["x"], name="<A&B>", dims=("<I>", '"J"'))
    tree = ElementTree.fromstring(svg.draw(mesh_picture(MESH), [picture], '<"title" & more>'))
    assert tree.findtext(f"{SVG}title") == '<"title" & more>'
    assert "<A&B>" in [text.text for text in tree.iter(f"{SVG}text")]


# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB: https://doi.org/10.1109/TVCG.2009.113
VISION = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour):
    channels = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(foreground, background):
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (foreground, background))
    return (high + 0.05) / (low + 0.05)


def lab(colour, vision):
    """Return the colour in CIE Lab under D65, as seen with this kind of vision."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(vision @ linear(colour), 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION.values(), ids=VISION)
def test_any_two_of_eight_device_colours_are_distinguishable(vision):
    perceived = [lab(colour, vision) for colour in colours.colours(range(8)).values()]
    # A difference of about 2.3 is just noticeable side by side; 15 is plain across a page.
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(perceived, 2)) >= 15


@pytest.mark.parametrize("vision", VISION.values(), ids=VISION)
@pytest.mark.parametrize("count", [9, 16, 64])
def test_more_devices_are_coloured_from_light_to_dark_for_every_vision(vision, count):
    lightness = [lab(colour, vision)[0] for colour in colours.colours(range(count)).values()]
    assert all(a > b for a, b in itertools.pairwise(lightness))


@pytest.mark.parametrize("count", [1, 2, 8, 9, 64, 512])
def test_every_label_can_be_read_on_its_colour(count):
    palette = colours.colours(range(count))
    assert len(palette) == count
    assert min(contrast(colour, colours.ink(colour)) for colour in palette.values()) >= 4.5


@given(st.integers(0, 0xFFFFFF))
def test_ink_can_be_read_on_any_colour(value):
    assert contrast(f"#{value:06X}", colours.ink(f"#{value:06X}")) >= 4.5


def test_a_device_has_one_colour_in_all_pictures_of_a_mesh():
    mesh, arrays = figure("2x2")
    tree = ElementTree.fromstring(svg.draw(mesh, arrays, "t"))
    fills = {}
    for group in tree.iter(f"{SVG}g"):
        if (tip := group.find(f"{SVG}title")) is not None:
            first = re.match(r"CPU (\d+)", tip.text or "")
            cell = group.find(f"{SVG}rect")
            assert first is not None
            assert cell is not None
            fills.setdefault(first[1], set()).add(cell.get("fill"))
    assert set(fills) == {"0", "1", "2", "3"}
    assert all(len(fill) == 1 for fill in fills.values())


def test_a_shape_is_not_broken_between_two_lines() -> None:
    line = "p/layers/w  float32[2, 32, 32]  P(None, None, 'tp')  shard [2, 32, 8]  2.0 kB per device"
    for width in range(24, len(line)):
        broken = console.wrapped(line, width)
        assert " ".join(" ".join(broken).split()) == " ".join(line.split())
        assert all(part.count("[") == part.count("]") and part.count("(") == part.count(")") for part in broken), broken


MANY_COPIES = [(f"w{k}", (4 * k, 4), []) for k in range(1, 9)]
"""Arrays of which each device has a full copy, each of another shape."""


def test_where_pictures_do_not_fit_the_sharded_arrays_are_drawn_first() -> None:
    mesh = Mesh(("x", "y"), (2, 2))
    arrays = [picture_of(mesh, shape, spec, name=name) for name, shape, spec in [*MANY_COPIES, ("A", (8, 8), ["x"])]]
    lines = ["".join(text for text, _ in line) for line in figures.shown(mesh_picture(mesh), arrays, "auto", 100)]
    names = re.findall(r"\b(A|w\d)  float32", "\n".join(lines))
    assert names[0] == "A"
    assert sorted(names) == sorted(["A", *(name for name, *_ in MANY_COPIES)])
    assert "not drawn here" in "\n".join(lines)
    few = figures.shown(mesh_picture(mesh), [*arrays[:1], arrays[-1]], "auto", 100)
    assert re.findall(r"\b(A|w\d)  float32", "\n".join("".join(text for text, _ in line) for line in few)) == [
        "w1",
        "A",
    ]


@pytest.mark.parametrize(("copies", "drawn"), [(3, True), (4, False)])
def test_a_page_lists_many_full_copies_and_draws_few(copies: int, drawn: bool) -> None:
    mesh = Mesh(("x", "y"), (2, 2))
    arrays = [picture_of(mesh, shape, spec, name=name) for name, shape, spec in MANY_COPIES[:copies]]
    every = pictures.recorded(mesh_picture(mesh), [*arrays, picture_of(mesh, (8, 8), ["x"])])
    *_, shown = layouts_page.parts(evidence.record(pictures=every))
    html = str(joined(shown.inside))
    assert html.count("<figure") == (copies + 1 if drawn else 1)
    assert ("A full copy on every device" in html) is not drawn
    assert all(f">w{k}<" in html for k in range(1, copies + 1))
