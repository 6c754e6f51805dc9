"""Programs that decide (round, compare, choose, order): right ones pass despite ties; wrong ones fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import harness

MESH: dict[str, Any] = {"axes": ["d"], "shape": [4]}


@dataclass(frozen=True)
class Case:
    """A right program, and `wrong` lines of `per_device`, each of which changes the program."""

    arrays: dict[str, Any]
    graph: dict[str, str]
    per_device: dict[str, str]
    outputs: dict[str, Any]
    wrong: tuple[dict[str, str], ...]

    def run(self, folder: Path, wrong: dict[str, str] | None = None, **changes: Any) -> harness.Outcome:
        text = {"mesh": MESH, "arrays": self.arrays, "graph": self.graph, "outputs": self.outputs}
        return harness.run({**text, "per_device": self.per_device | (wrong or {})}, folder, **changes)


ROWS = {"x": {"shape": [8, 32], "spec": ["d", None]}}
COLUMNS = {"x": {"shape": [8, 32], "spec": [None, "d"]}}
NARROW = {
    "h": {"shape": [16, 8], "dtype": "bfloat16"},
    "w": {"shape": [8, 64], "dtype": "bfloat16", "spec": [None, "d"]},
}
INT8 = {
    "h": {"shape": [8, 32], "spec": [None, "d"]},
    "w": {"shape": [32, 16], "dtype": "int8", "init": "integers(-127, 128)", "spec": ["d", None]},
}
MEDIAN = {
    "s": "x @ w",
    "m": "sort(s, axis=-1)[:, 16:17]",
    "y": "where(s <= m, s, 0)",
    "rank": "sum(s <= m, axis=-1)",
}
RELU = {
    "z": "maximum(x, 0)",
    "first": "argmax(where(z > 0, 1, 0), axis=-1)",
    "y": "clip(z, 0, 1) * (z >= 0) + (z > 0)",
}
SCALED = {"scale": "max(abs(h), axis=1, keepdims=True) / 127.0", "q": "astype(round(h / scale), 'int8')"}
BEAM = {
    "h": {"shape": [32, 16], "dtype": "bfloat16"},
    "w": {"shape": [16, 64], "dtype": "bfloat16", "spec": [None, "d"]},
    "score": {"shape": [32], "dtype": "bfloat16", "init": "normal(0, 2)"},
}
NARROW_ROWS = {
    "h": {"shape": [16, 8], "dtype": "bfloat16", "spec": ["d", None]},
    "w": {"shape": [8, 16], "dtype": "bfloat16"},
}

CASES = {
    "quantise": Case(
        {"h": {"shape": [8, 32], "spec": ["d", None]}, "w": {"shape": [32, 16]}},
        SCALED | {"back": "astype(q, 'float32') * scale", "y": "back @ w"},
        SCALED | {"back": "astype(q, 'float32') * scale", "y": "back @ w"},
        {"back": ["d", None], "y": ["d", None]},
        ({"q": "astype(trunc(h / scale), 'int8')"}, {"q": "astype(floor(h / scale), 'int8')"}),
    ),
    "int8 product": Case(
        INT8,
        SCALED | {"y": "matmul(q, w, preferred_element_type='int32')"},
        SCALED
        | {
            "scale": "pmax(max(abs(h), axis=1, keepdims=True), 'd') / 127.0",
            "y": "psum(matmul(q, w, preferred_element_type='int32'), 'd')",
        },
        {"y": [None, None]},
        ({"q": "astype(trunc(h / scale), 'int8')"}, {"scale": "max(abs(h), axis=1, keepdims=True) / 127.0"}),
    ),
    "argsort": Case(
        NARROW_ROWS,
        {"s": "h @ w", "order": "argsort(s, axis=-1)", "y": "take_along_axis(s, order, axis=-1)"},
        {"s": "h @ w", "order": "argsort(s, axis=-1)", "y": "take_along_axis(s, order, axis=-1)"},
        {"order": ["d", None], "y": ["d", None]},
        ({"order": "argsort(s, axis=-1, descending=True)"}, {"order": "argsort(abs(s), axis=-1)"}),
    ),
    "top_k": Case(
        NARROW,
        {"s": "h @ w", "best": "top_k(s, 4)", "y": "best[0]", "at": "best[1]"},
        {
            "s": "h @ w",
            "every": "all_gather(s, 'd', axis=1, tiled=True, to='invarying')",
            "best": "top_k(every, 4)",
            "y": "best[0]",
            "at": "best[1]",
        },
        {"y": [None, None], "at": [None, None]},
        ({"best": "top_k(abs(every), 4)"}, {"at": "best[1] + 1"}),
    ),
    "threshold": Case(
        NARROW,
        {"s": "h @ w", "y": "where(s >= max(s, axis=-1, keepdims=True), s, 0)"},
        {"s": "h @ w", "y": "where(s >= pmax(max(s, axis=-1, keepdims=True), 'd'), s, 0)"},
        {"y": [None, "d"]},
        ({"y": "s * 0"}, {"y": "where(s > pmax(max(s, axis=-1, keepdims=True), 'd'), s, 0)"}),
    ),
    "threshold in float32": Case(
        {"x": {"shape": [8, 4]}, "w": {"shape": [4, 16], "spec": [None, "d"]}},
        {"s": "x @ w", "y": "where(s >= max(s, axis=-1, keepdims=True), s, 0)"},
        {"s": "x @ w", "y": "where(s >= pmax(max(s, axis=-1, keepdims=True), 'd'), s, 0)"},
        {"y": [None, "d"]},
        ({"y": "s * 0"}, {"y": "where(s > pmax(max(s, axis=-1, keepdims=True), 'd'), s, 0)"}),
    ),
    "one hot": Case(
        NARROW_ROWS,
        {"p": "softmax(h @ w)", "y": "one_hot(argmax(p, axis=-1), 16)"},
        {"p": "softmax(h @ w)", "y": "one_hot(argmax(p, axis=-1), 16)"},
        {"y": ["d", None]},
        ({"y": "one_hot(argmin(p, axis=-1), 16)"}, {"y": "one_hot(argmax(p, axis=-1) + 1, 16)"}),
    ),
    "bins": Case(
        {"x": {"shape": [80], "init": "arange(80) / 80", "spec": ["d"]}},
        {"at": "astype(floor(x * 20), 'int32')", "counts": "bincount(at, length=20)"},
        {"at": "astype(floor(x * 20), 'int32')", "counts": "psum(bincount(at, length=20), 'd')"},
        {"at": ["d"], "counts": [None]},
        ({"at": "astype(ceil(x * 20), 'int32')"}, {"counts": "pmax(bincount(at, length=20), 'd') * 4"}),
    ),
    "sign": Case(
        COLUMNS,
        {"s": "sum(x, axis=1, keepdims=True)", "y": "sign(x - s / 32) * x"},
        {"s": "psum(sum(x, axis=1, keepdims=True), 'd')", "y": "sign(x - s / 32) * x"},
        {"y": [None, "d"]},
        ({"y": "sign(x) * x"}, {"s": "sum(x, axis=1, keepdims=True)"}),
    ),
    "relu and clip": Case(
        ROWS,
        RELU,
        RELU,
        {"first": ["d"], "y": ["d", None]},
        ({"y": "clip(z, 0, 1) * (z >= 0) + (z >= 0)"}, {"first": "argmax(where(z >= 0, 1, 0), axis=-1)"}),
    ),
    "median": Case(
        {
            "x": {"shape": [8, 33], "dtype": "bfloat16", "spec": ["d", None]},
            "w": {"shape": [33, 33], "dtype": "bfloat16"},
        },
        MEDIAN,
        MEDIAN,
        {"y": ["d", None], "rank": ["d"]},
        ({"y": "where(s < m, s, 0)", "rank": "sum(s < m, axis=-1)"}, {"m": "sort(s, axis=-1)[:, 17:18]"}),
    ),
    "masked argmax": Case(
        {
            "z": {"shape": [12, 32], "init": "normal(0, 3)", "spec": ["d", None]},
            "noise": {"shape": [12, 32], "spec": ["d", None]},
        },
        {"token": "argmax(where(z > 0, z, -1e30) + noise, axis=-1)"},
        {"token": "argmax(where(z > 0, z, -1e30) + noise, axis=-1)"},
        {"token": ["d"]},
        ({"token": "argmax(where(z > 0, z, -1e30), axis=-1)"}, {"token": "argmax(noise, axis=-1)"}),
    ),
    "beam": Case(
        BEAM,
        {
            "total": "score[:, None] + log_softmax(h @ w, axis=-1)",
            "best": "top_k(reshape(total, (8, 256)), 4)",
            "next": "best[0]",
            "beam": "best[1] // 64",
            "token": "best[1] % 64",
        },
        {
            "logits": "h @ w",
            "top": "pmax(max(logits, axis=-1, keepdims=True), 'd')",
            "norm": "top + log(psum(sum(exp(logits - top), axis=-1, keepdims=True), 'd'))",
            "total": "score[:, None] + (logits - norm)",
            "local": "top_k(reshape(total, (8, 64)), 4)",
            "place": "(local[1] // 16) * 64 + axis_index('d') * 16 + local[1] % 16",
            "values": "all_gather(local[0], 'd', axis=1, tiled=True, to='invarying')",
            "places": "all_gather(place, 'd', axis=1, tiled=True, to='invarying')",
            "best": "top_k(values, 4)",
            "chosen": "take_along_axis(places, best[1], axis=1)",
            "next": "best[0]",
            "beam": "chosen // 64",
            "token": "chosen % 64",
        },
        {"next": [None, None], "beam": [None, None], "token": [None, None]},
        ({"place": "(local[1] // 16) * 64 + local[1] % 16"}, {"beam": "chosen // 16"}),
    ),
}

WRONG = [(name, i) for name, case in CASES.items() for i in range(len(case.wrong))]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_a_right_program_that_decides_does_not_fail(name: str, tmp_path: Path) -> None:
    assert CASES[name].run(tmp_path).failures() == []


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "which"), WRONG)
def test_a_wrong_program_that_decides_fails(name: str, which: int, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.run(tmp_path, case.wrong[which], program="shard_map").failures()
