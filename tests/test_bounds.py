"""A sweep's points are counted before any is made, and the sweep is refused if there are more than `sweep.most`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.layout import Mesh
from runner.experiment import enumeration
from tests.server import command

SWEEP = ("-m", "+experiment=case3_allreduce", "program=auto", "hydra.sweep.dir=sweep")
WHAT_TO_DO = "sweep over fewer values, or raise sweep.most"

TOO_MANY = {
    "seed=range(0,1000000000)": "this would be 1,000,000,000 points, and sweep.most is 10,000: " + WHAT_TO_DO,
    "seed=range(1000000000,0,-1)": "this would be 1,000,000,000 points, and sweep.most is 10,000: " + WHAT_TO_DO,
    "seed=shuffle(range(0,1000000000))": "this would be 1,000,000,000 points, and",
    "seed=range(0,1000) dims.J=range(4,4000,4)": "this would be 1,000 × 999 = 999,000 points, and sweep.most is 10,000",
    "dims.J=range(0.0,1e9,0.1)": "this would be 10,000,000,000 points, and",
    "seed=0,1,2,3,4,5,6 sweep.most=6": "this would be 7 points, and sweep.most is 6: " + WHAT_TO_DO,
    "+experiment=case1_no_communication,case3_allreduce seed=1,2 sweep.most=3": "2 × 2 = 4 points, and sweep.most is 3",
    "mesh.shape=all target.devices=735134400 mesh.axes=[a,b,c,d]": "this would be 4,300,800 points, and",
    "mesh.shape=all target.devices=8 sweep.most=3": "this would be 4 points, and sweep.most is 3",
    "seed=1,2 mesh.shape=all target.devices=8 sweep.most=6": "this would be at least 8 points, and sweep.most is 6",
    "arrays.A.spec=all arrays.B.spec=all sweep.most=48": "this would be 121 points, and sweep.most is 48",
    "mesh.shape=all arrays.A.spec=all sweep.most=3": "this would be at least 14 points, and sweep.most is 3",
    "mesh.shape=all target.devices=1000000000000000000": "there are no 1,000,000,000,000,000,000 devices; name at most "
    "1,000,000,000",
    "mesh.shape=all target.devices=1000000000 sweep.most=50": "this would be 100 points, and",
    "seed=range(0,10,0)": "a range needs finite ends and a step other than 0",
    "seed=1,2 sweep.most=0": "the number of points must be at least 1",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("overrides", TOO_MANY)
def test_too_many_points_are_counted_and_refused(tmp_path: Path, overrides: str) -> None:
    words = overrides.split(" ")
    line = [word for word in SWEEP if not (word.startswith("+experiment") and "+experiment" in overrides)]
    done = command(tmp_path, *line, *words, limit=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert TOO_MANY[overrides] in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.startswith("command line: ")
    assert done.cpu < 20
    assert not list(tmp_path.rglob("result.json"))


def test_rank_eight_on_six_axes_is_counted_at_once(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "experiment" / "large.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "# @package _global_\nname: large\nmesh: {axes: [a, b, c, d, e, f], shape: [2, 2, 2, 2, 2, 2]}\n"
        "arrays:\n  A: {shape: [64, 64, 64, 64, 64, 64, 64, 64], init: zeros()}\ngraph: {C: A}\noutputs: {C: []}\n"
    )
    done = command(tmp_path, "--config-dir", "conf", "-m", "+experiment=large", "arrays.A.spec=all", limit=60)
    assert done.returncode == 2, done.stdout + done.stderr
    # Of k axes in an order, dealt out to 8 dimensions: the sum of 6!/(6-k)! · (k+7)!/(k! 7!).
    assert "arrays.A.spec=all\n  this would be 1,940,089 points, and sweep.most is 10,000" in done.stderr
    assert done.cpu < 20


def test_a_raised_limit_allows_the_sweep(tmp_path: Path) -> None:
    refused = command(tmp_path, *SWEEP, "dims.J=4,8", "sweep.most=1")
    assert refused.returncode == 2
    done = command(tmp_path, *SWEEP, "dims.J=4,8", "sweep.most=2")
    assert done.returncode == 0, done.stderr
    assert "2 points: 2 passed" in done.stdout


SIZES = st.lists(st.sampled_from([1, 2, 2, 3, 4]), max_size=4)


@settings(max_examples=150, deadline=None)
@given(shape=st.lists(st.sampled_from([0, 1, 2, 4, 6, 8, 12]), max_size=3), sizes=SIZES)
def test_the_count_of_specs_is_exact(shape: list[int], sizes: list[int]) -> None:
    mesh = Mesh(tuple("abcd"[: len(sizes)]), tuple(sizes))
    assert enumeration.count_of_specs(shape, mesh) == sum(1 for _ in enumeration.specs(shape, mesh))


@settings(max_examples=100, deadline=None)
@given(devices=st.integers(1, 2000), axes=st.integers(1, 3))
def test_the_count_of_meshes_is_exact(devices: int, axes: int) -> None:
    assert enumeration.count_of_factorisations(devices, axes) == sum(
        1 for _ in enumeration.factorisations(devices, axes)
    )


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=range(10,0)", "this has no value, so the sweep has no points"),
        ("seed=interval(0,1)", "an interval is for sweepers that draw from it (hydra/sweeper=…)"),
        ("seed=glob(*)", "glob chooses among the files of a config group"),
        ("seed=range(0,1e300)", "this would be more than 10^18 points, and sweep.most is 10,000"),
        ("sort=nothing", "no column 'nothing'"),
        ("workers=0", "the number must be at least 1"),
    ],
)
def test_an_invalid_sweep_is_refused_with_its_place_and_leaves_no_files(
    tmp_path: Path, override: str, words: str
) -> None:
    done = command(tmp_path, "-m", "+experiment=case3_allreduce", "dims.J=4,8", override)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{override}\n  {words}" in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert list(tmp_path.iterdir()) == []
