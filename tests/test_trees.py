"""Trees in reports: paths for names, patterns for many paths, a table of subtrees."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.base.layout import Spec
from runner.experiment.patterns import fits, folded
from runner.reports.record.model import ArrayRecord, Record
from runner.reports.record.readable import readable
from runner.reports.show import report, trees
from runner.reports.show.page import run as page
from runner.reports.show.table import Table
from tests import evidence


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        (["A", "B"], ["A", "B"]),
        (["A", "params/A"], ["A", "params/A"]),
        (["params/q", "params/k", "params/b"], ["params/{q,k,b}"]),
        (["params/l/k", "params/l/v", "new/l/k", "new/l/v"], ["{params,new}/l/{k,v}"]),
        (["params/l/k", "params/l/v", "new/l/k"], ["params/l/{k,v}", "new/l/k"]),
        (["s/0/mu/w", "s/0/nu/w", "t/0/mu/w", "t/0/nu/w", "p/w"], ["{s,t}/0/{mu,nu}/w", "p/w"]),
        ([], []),
    ],
)
def test_paths_fold_into_patterns(paths: list[str], patterns: list[str]) -> None:
    assert folded(paths) == patterns


def test_patterns_fit_the_paths_and_no_others() -> None:
    every = ["/".join(names) for names in itertools.product("ab", "cde", "fg")]
    for count in (3, 5, 7):
        for paths in itertools.islice(itertools.combinations(every, count), 0, None, 7):
            patterns = folded(paths)
            assert {path for path in every if any(fits(pattern, path) for pattern in patterns)} == set(paths)


def array(shape: list[int]) -> ArrayRecord:
    """Return an array that is sharded in two along its first dimension, if it has one."""
    shard = [shape[0] // 2, *shape[1:]] if shape else []
    spec = Spec([("x",), *[()] * (len(shape) - 1)] if shape else [])
    return ArrayRecord(shape=shape, dtype="float32", spec=spec, shard_shape=shard, shards_from="spec", shards=None)


def record(shapes: dict[str, list[int]]) -> Record:
    """Return a record whose arrays have these paths and shapes, and one that is not a leaf."""
    paths = {path.replace("/", "_"): path for path in shapes}
    arrays = {name: array(shapes[path]) for name, path in paths.items()}
    return readable(evidence.record(arrays={**arrays, "tokens": array([512, 512])}, paths=paths))


SHAPES = {"p/embed": [64, 16], "p/layers/q": [16, 16], "p/layers/o": [16, 8], "s/0/count": [], "s/0/mu": [8]}


def rows(table: Table[str]) -> list[list[str]]:
    return [list(row) for row in table.rows]


def test_a_tree_has_a_row_for_each_subtree_the_largest_first() -> None:
    assert rows(trees.table(record(SHAPES))) == [
        ["p", "3", "5.6 kB", "2.8 kB", "P('x', None)"],
        ["  /embed", "1", "4.1 kB", "2.0 kB", "P('x', None)"],
        ["  /layers", "2", "1.5 kB", "768 B", "P('x', None)"],
        ["    /q", "1", "1.0 kB", "512 B", "P('x', None)"],
        ["    /o", "1", "512 B", "256 B", "P('x', None)"],
        ["s/0", "2", "36 B", "20 B", "2 layouts"],
        ["  /mu", "1", "32 B", "16 B", "P('x')"],
        ["  /count", "1", "4 B", "4 B", "P()"],
    ]


@pytest.mark.parametrize(("most", "names"), [(2, ["p", "s/0"]), (5, ["p", "  /embed", "  /layers", "s/0"])])
def test_subtrees_beyond_the_limit_stay_folded(most: int, names: list[str]) -> None:
    shown = rows(trees.table(record(SHAPES), most))
    assert [name for name, *_ in shown][: len(names)] == names
    assert len(shown) <= most


def test_hundreds_of_leaves_fold() -> None:
    shapes = {f"p/layers/{n}/{kind}": [8, 8] for n in range(300) for kind in ("q", "k")}
    (row,) = rows(trees.table(record(shapes)))
    assert row == ["p/layers", "600", "154 kB", "76.8 kB", "P('x', None)"]


def test_a_record_is_shown_with_paths() -> None:
    leaf = {"params_q": "params/q"}
    output = evidence.program(evidence.collective(nodes=["params_q"]))
    shown = readable(evidence.record({"auto": output}, paths=leaf, arrays={"params_q": array([8])}, show=["params_q"]))
    assert list(shown.arrays) == ["params/q"]
    assert shown.show == ["params/q"]
    assert [collective.nodes for collective in shown.compiled["auto"].collectives or ()] == [["params/q"]]


def test_a_report_has_the_paths_of_a_tree(tmp_path: Path) -> None:
    def function(params: dict[str, dict[str, Any]], x: Any) -> dict[str, Any]:
        return {name: x @ w for name, w in params["layers"].items()}

    layer = np.arange(16, dtype=np.float32).reshape(4, 4)
    x, specs = np.ones((4, 4), np.float32), {"layers": {"q": P("x"), "k": P("x")}}
    params = {"layers": {"q": layer, "k": layer + 1}}
    record = runner.check(
        function, (params, x), mesh={"x": 2}, in_specs=(specs, P()), folder=tmp_path, quiet=True, show="all"
    )
    assert record.status == "passed", record
    text = report.story(record, tmp_path)
    first = [line.split()[0] for line in text.splitlines() if line.startswith(("params/", "  /"))]
    assert first[first.index("params/layers") :][:3] == ["params/layers", "/k", "/q"]
    assert "all-gather" in text
    assert "of params/layers/q" in text or "params/layers/q for" in text
    for file in ("shardings.txt", "shardings.svg"):
        assert "params/layers/{k,q}" in (tmp_path / file).read_text()
    assert "Trees" in page.page(record, tmp_path)
