"""Times of collectives over links, against published numbers.

They are from How to Scale Your Model (jax-ml/scaling-book, sharding.md): the examples of "AllGather" and worked
problems 2, 3 and 10.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.layout import Mesh
from runner.compiled.estimate import links
from runner.compiled.estimate.links import Links
from runner.experiment import hardware
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.hardware import Hardware, NodeLinks, Switch, Torus

WITHIN = 0.05


@cache
def of_file(name: str) -> dict[str, Any]:
    """Return the keys of a hardware file: Hydra takes a tenth of a second to compose them."""
    return compose("case3_allreduce", conf_folder(), [f"hardware={name}"]).plain["hardware"]


def named(name: str, mesh: Mesh, **more: object) -> Hardware:
    machine = hardware.read({**of_file(name), **more}, mesh, None)
    assert machine is not None
    return machine


def seconds(links: Links, mesh: Mesh, kind: str, axes: str | tuple[str, ...], whole: float) -> float:
    """Return the seconds of a collective over some axes; `whole` is the array's bytes over all of them."""
    group = mesh.groups(axes)[0]
    part = int(whole / len(group))
    sizes = {"all-gather": (part, int(whole)), "reduce-scatter": (int(whole), part), "all-to-all": (part, part)}
    duration = links.time(kind, group, *sizes.get(kind, (int(whole), int(whole))))
    assert duration is not None
    return duration.seconds


def torus(mesh: Mesh, ring: int | None, **more: object) -> Links:
    links = Torus(len(mesh.shape), 4.5e10, 1e-6, ring)
    return Links(Hardware("one of the book's", {}, None, None, links, None, 1, mesh.shape), mesh)


def test_an_all_gather_of_34_mb_on_v5e() -> None:
    mesh = Mesh(("X", "Y"), (4, 4))
    v5e, wrapped = Links(named("v5e", mesh), mesh), torus(mesh, ring=4)
    array = 2 * 2048 * 8192
    assert seconds(v5e, mesh, "all-gather", "Y", array) == pytest.approx(560e-6, rel=WITHIN)
    # The book's 377 µs are V / (2w), the limit for a long ring; here a chip already has one of the four shards.
    assert seconds(wrapped, mesh, "all-gather", "Y", array) == pytest.approx(3 / 4 * 377e-6, rel=WITHIN)


def test_a_small_all_gather_waits_for_its_hops() -> None:
    mesh = Mesh(("X", "Y"), (4, 4))
    time = Links(named("v5e", mesh), mesh).time("all-gather", mesh.groups("Y")[0], 32_768, 131_072)
    assert time is not None
    assert (time.seconds, time.bound, time.over) == (pytest.approx(3e-6), "latency", "a line of 4")


def test_worked_problems_2_and_3_on_v4() -> None:
    mesh = Mesh(("X", "Y", "Z"), (4, 4, 4))
    links = Links(named("v4", mesh), mesh)
    array = 2 * 1024 * 4096
    # The book ignores that a chip already has one part of four, or of sixteen.
    assert seconds(links, mesh, "all-gather", "X", array / 4) == pytest.approx(3 / 4 * 23e-6, rel=WITHIN)
    assert seconds(links, mesh, "all-gather", "Y", array / 4) == pytest.approx(3 / 4 * 23e-6, rel=WITHIN)
    assert seconds(links, mesh, "all-gather", ("X", "Y"), array) == pytest.approx(15 / 16 * 46e-6, rel=WITHIN)
    # The book has 5.8 µs for one of the two phases of an all-reduce.
    assert seconds(links, mesh, "reduce-scatter", "Z", array / 16) == pytest.approx(3 / 4 * 5.8e-6, rel=WITHIN)
    assert seconds(links, mesh, "all-reduce", "Z", array / 16) == pytest.approx(2 * 3 / 4 * 5.8e-6, rel=WITHIN)
    assert seconds(links, mesh, "all-gather", "X", 256) == pytest.approx(2e-6)


def test_worked_problem_10_an_all_to_all_is_a_quarter() -> None:
    mesh = Mesh(("X",), (16,))
    ring = torus(mesh, ring=16)
    gather, exchange = (seconds(ring, mesh, kind, "X", 1e9) for kind in ("all-gather", "all-to-all"))
    assert 16 / 15 * gather / exchange == pytest.approx(4)


@pytest.mark.parametrize("name", ["v4", "v5p", "tpu7x"])
@pytest.mark.parametrize(
    ("shape", "closed"),
    # MaxText's accelerator_to_spec_map.py, of v4 and v5p.
    [
        ((2, 2, 1), False),
        ((2, 2, 4), False),
        ((2, 4, 4), False),
        ((4, 4, 4), True),
        ((4, 4, 8), True),
        ((8, 8, 8), True),
        ((4, 4, 6), False),
        ((4, 4), False),
    ],
)
def test_three_dimensional_tori_wrap_around_on_full_cubes_only(
    name: str, shape: tuple[int, ...], *, closed: bool
) -> None:
    links = named(name, Mesh(("x",), (64,))).links
    assert isinstance(links, Torus)
    assert links.rings(shape) == (closed,) * len(shape)


@pytest.mark.parametrize("name", ["v5e", "v6e"])
@pytest.mark.parametrize(
    ("shape", "closed"), [((4, 4), (False, False)), ((8, 16), (False, True)), ((16, 16), (True, True))]
)
def test_two_dimensional_tori_wrap_around_in_dimensions_of_16(
    name: str, shape: tuple[int, ...], closed: tuple[bool, ...]
) -> None:
    links = named(name, Mesh(("x",), (64,))).links
    assert isinstance(links, Torus)
    assert links.rings(shape) == closed


def test_an_all_reduce_on_a_v4_without_wrap_around() -> None:
    """34 MB along the four chips of 2 × 2 × 4: the book's 746 µs assume a ring, which this topology does not have."""
    mesh = Mesh(("X", "Y", "Z"), (2, 2, 4))
    links = Links(named("v4", mesh), mesh)
    assert seconds(links, mesh, "all-reduce", "Z", 2 * 2048 * 8192) == pytest.approx(1118e-6, rel=1e-3)


def test_collectives_within_a_node_of_gpus_use_its_links_and_others_the_network() -> None:
    """How to Scale Your Model, gpus.md: `V (N - 1) / (N W)` in a node, about `V / W` of the node between nodes."""
    mesh = Mesh(("node", "gpu"), (4, 8))
    links = Links(named("h100", mesh), mesh)
    assert seconds(links, mesh, "all-gather", "gpu", 1e9) == pytest.approx(7 / 8 * 1e9 / 4.5e11)
    # NCCL's issue tracker: 480 GB/s of bus bandwidth where the switches sum, more than a link has.
    assert seconds(links, mesh, "all-reduce", "gpu", 1e9) == pytest.approx(2 * 7 / 8 * 1e9 / 4.8e11)
    assert seconds(links, mesh, "reduce-scatter", "gpu", 1e9) == pytest.approx(7 / 8 * 1e9 / 4.5e11)
    assert seconds(links, mesh, "all-to-all", "gpu", 1e9) == pytest.approx(7 / 64 * 1e9 / 4.5e11)
    # Both at once: each device receives a part into its node, and the node distributes it.
    everywhere = seconds(links, mesh, "all-gather", ("node", "gpu"), 1e9)
    assert everywhere == pytest.approx(max(3 / 4 * 1e9 / 4e11, 7 / 8 * 1e9 / 4.5e11))


def test_a_collective_on_one_device_takes_no_time() -> None:
    mesh = Mesh(("X",), (1,))
    assert seconds(torus(mesh, ring=None), mesh, "all-reduce", "X", 1e9) == 0


def test_a_permute_by_one_goes_around_a_ring_and_back_along_a_line() -> None:
    mesh = Mesh(("X",), (4,))
    pairs = [(i, (i + 1) % 4) for i in range(4)]
    ring, line = (torus(mesh, ring=closes).permute(pairs, 45_000_000) for closes in (4, None))
    # On a ring a part may take the other direction, which is idle.
    assert (ring.seconds, ring.over) == (pytest.approx(0.5e-3), "1 hop of the torus")
    assert (line.seconds, line.over) == (pytest.approx(1e-3), "3 hops of the torus")


def test_half_of_a_message_goes_each_way_around_a_ring() -> None:
    mesh = Mesh(("X",), (8,))
    across = [(i, (i + 4) % 8) for i in range(8)]
    time = torus(mesh, ring=8).permute(across, 45_000_000)
    assert (time.seconds, time.over) == (pytest.approx(2e-3), "4 hops of the torus, 2 messages a link")


def test_a_permute_of_which_no_pair_is_listed_goes_one_hop() -> None:
    mesh = Mesh(("X", "Y"), (4, 4))
    links = torus(mesh, ring=None)
    pairs = [pair for group in mesh.groups("X") for pair in itertools.pairwise(group)]
    assert links.permute(pairs, 45_000_000).seconds == pytest.approx(1e-3)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_load_of_a_permute_is_a_lower_bound_for_every_route(data: st.DataObject) -> None:
    """All routes: here each message takes the dimensions in its own order, in either direction."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    rings = tuple(size > 2 and data.draw(st.booleans()) for size in shape)
    chips = list(itertools.product(*map(range, shape)))
    messages = [(chip, stop) for chip, stop in zip(chips, data.draw(st.permutations(chips)), strict=True)]
    loads: dict[tuple[tuple[int, ...], int, int], int] = {}
    for start, stop in messages:
        here = list(start)
        for dimension in data.draw(st.permutations(range(len(shape)))):
            size, distance = shape[dimension], stop[dimension] - here[dimension]
            if rings[dimension] and data.draw(st.booleans()):
                distance = distance - size if distance > 0 else distance + size
            step = 1 if distance > 0 else -1
            for _ in range(abs(distance)):
                loads[tuple(here), dimension, step] = loads.get((tuple(here), dimension, step), 0) + 1
                here[dimension] = (here[dimension] + step) % size
        assert tuple(here) == stop
    assert links.border_load(shape, rings, messages) <= max(loads.values(), default=0) + 1e-9


def test_messages_that_share_a_link_wait_for_each_other() -> None:
    mesh = Mesh(("X",), (8,))
    halves = [(i, i + 4) for i in range(4)]
    time = torus(mesh, ring=None).permute(halves, 45_000_000)
    assert (time.seconds, time.over) == (pytest.approx(4e-3), "4 hops of the torus, 4 messages a link")


def test_groups_that_share_a_line_share_its_links() -> None:
    mesh = Mesh(("X",), (8,))
    links = torus(mesh, ring=None)
    together = links.time("all-gather", list(range(4)), 1_000_000, 4_000_000)
    strewn = links.time("all-gather", [0, 2, 4, 6], 1_000_000, 4_000_000)
    assert together is not None
    assert strewn is not None
    assert strewn.seconds == pytest.approx(2 * together.seconds)


def test_slices_are_linked_by_the_network() -> None:
    mesh = Mesh(("slice", "X", "Y"), (2, 4, 4))
    links = Links(named("v5e", mesh, slices=2), mesh)
    assert seconds(links, mesh, "all-reduce", "slice", 1e9) == pytest.approx(2 * 1 / 2 * 1e9 / 3.125e9)
    # Each chip of a slice receives its part, and the links of the slice distribute it in much less time.
    everywhere = seconds(links, mesh, "all-reduce", ("slice", "X", "Y"), 1e9)
    assert everywhere == pytest.approx(2 * 1 / 2 * 1e9 / 16 / 3.125e9, rel=0.5)


def test_the_halves_of_a_chip_share_its_links() -> None:
    mesh = Mesh(("X", "core"), (4, 2))
    links = Links(named("tpu7x", mesh), mesh)
    square = Mesh(("X", "Y"), (2, 2))
    v4 = seconds(torus(square, ring=None), square, "all-gather", ("X", "Y"), 1e9)
    alone = seconds(links, mesh, "all-gather", "X", 1e9)
    assert alone == pytest.approx(2 * v4 * 4.5e10 / 9e10)
    assert seconds(links, mesh, "all-gather", "core", 1e9) == pytest.approx(1e9 / 2 / 5.4e11)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"])
@pytest.mark.parametrize("ring", [None, 4])
def test_no_collective_is_faster_than_its_incoming_bytes(kind: str, ring: int | None) -> None:
    """With any algorithm, a chip receives the data that it lacks over its own links."""
    mesh = Mesh(("X", "Y"), (4, 4))
    links, whole = torus(mesh, ring), 1.6e9
    for axes in ("X", "Y", ("X", "Y")):
        count = mesh.axis_size(axes)
        incoming = 4.5e10 * (2 if ring else 1) * (1 if isinstance(axes, str) else len(axes))
        missing = {"all-reduce": 2 * whole * (count - 1) / count, "all-to-all": whole / count * (count - 1) / count}
        least = missing.get(kind, whole * (count - 1) / count) / incoming
        assert seconds(links, mesh, kind, axes, whole) >= least * (1 - 1e-9)


def test_the_time_of_an_all_to_all_on_a_ring_equals_the_counted_messages() -> None:
    """Every message of an all-to-all is routed one by one; the fullest link determines the time."""
    for size, ring in itertools.product((3, 4, 5, 8), (None, 1)):
        mesh = Mesh(("X",), (size,))
        links = torus(mesh, ring)
        local = 45_000_000
        loads: dict[tuple[int, int], float] = {}
        for start, stop in itertools.permutations(range(size), 2):
            ahead, back = (stop - start) % size, (start - stop) % size
            ways = [(1, ahead), (-1, back)] if ring and ahead == back else []
            if not ways:
                near = (1, ahead) if ahead < back else (-1, back)
                ways = [near] if ring else [(1, stop - start) if stop > start else (-1, start - stop)]
            for step, hops in ways:
                for hop in range(hops):
                    link = ((start + step * hop) % size, step)
                    loads[link] = loads.get(link, 0.0) + local / size / len(ways)
        counted = max(loads.values()) / 4.5e10
        time = links.time("all-to-all", list(range(size)), local, local)
        assert time is not None
        assert time.seconds == pytest.approx(counted)


def test_an_unknown_kind_has_no_time() -> None:
    mesh = Mesh(("X",), (4,))
    assert torus(mesh, None).time("collective-of-tomorrow", [0, 1, 2, 3], 1, 1) is None


def test_without_a_network_nodes_are_out_of_reach() -> None:
    mesh = Mesh(("X",), (4,))
    nodes = Hardware("two nodes", {}, None, None, Switch(2, 1e9, 0.0), None)
    time = Links(nodes, mesh).time("all-reduce", [0, 1, 2, 3], 1, 1)
    assert time is not None
    assert math.isinf(time.seconds)
    linked = Hardware("two nodes", {}, None, None, Switch(2, 1e9, 0.0), NodeLinks(1e8, 0.0))
    time = Links(linked, mesh).time("all-gather", [0, 1, 2, 3], 25_000_000, 100_000_000)
    assert time is not None
    assert (time.seconds, time.over) == (pytest.approx(1e8 / 4 / 1e8), "the network")
