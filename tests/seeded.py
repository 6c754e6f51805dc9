"""Device code with a mistake in one line, from `user_functions/seeded.py`; experiments that import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.imported import FOLDER

FILE = FOLDER / "seeded.py"

ROWS, COLUMNS, WHOLE = ["data", None], [None, "model"], []
MODEL, BLOCKS = ["model", None], ["data", "model"]

X = {"shape": [8, 8], "spec": ROWS}
W1 = {"shape": [8, 8], "spec": COLUMNS}
W2 = {"shape": [8, 8], "spec": MODEL}
FULL = {"shape": [8, 8], "spec": WHOLE}
BLOCK = {"shape": [8, 8], "spec": BLOCKS}
RING = {"axes": ["ring"], "shape": [4]}
MLP = {"x": X, "w1": W1, "w2": W2}
LOSS = {"w": FULL, "x": X, "y": X}


@dataclass(frozen=True)
class Seed:
    """A function with a mistake: the intended computation, its operands, the layout of its result, its mesh."""

    name: str
    whole: str
    operands: dict[str, Any]
    result: list[Any]
    mesh: Any = None

    @property
    def definition(self) -> dict[str, Any]:
        """Return the experiment's definition."""
        arguments = ", ".join(self.operands)
        return {
            "mesh": self.mesh or {"axes": ["data", "model"], "shape": [2, 2]},
            "imports": {"seeded": str(FILE)},
            "arrays": self.operands,
            "graph": {"result": f"seeded.{self.whole}_whole({arguments})"},
            "per_device": {"result": f"seeded.{self.name}({arguments})"},
            "outputs": {"result": self.result},
            "program": "shard_map",
        }

    @property
    def line(self) -> int:
        """The number of the line with the mistake."""
        lines = FILE.read_text("utf-8").splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith(f"def {self.name}("))
        return next(i for i, line in enumerate(lines[start:], start + 1) if "# planted" in line)

    @property
    def place(self) -> str:
        """The readers' name of the line."""
        return f"{FILE.name}:{self.line} "


def of(whole: str, names: str, operands: dict[str, Any], result: list[Any], mesh: Any = None) -> list[Seed]:
    """Return seeds of several functions with the same intended computation."""
    return [Seed(name, whole, operands, result, mesh) for name in names.split()]


SEEDS = [
    *of("mlp", "row_parallel mean_of_devices other_axis early_sum", MLP, ROWS),
    *of("biased", "bias_before_sum bias_forgotten", {**MLP, "b": {"shape": [8]}}, ROWS),
    *of("residual", "residual", MLP, ROWS),
    *of("layers", "stale_weight stale_value", {"x": X, "w1": FULL, "w2": FULL, "w3": FULL}, ROWS),
    *of("loss", "loss_of_shard loss_summed loss_by_rows", LOSS, WHOLE),
    *of("sgd", "sgd", LOSS, WHOLE),
    *of("layer_norm", "layer_norm_mean layer_norm_variance",
        {"x": BLOCK, "scale": {"shape": [8], "spec": ["model"]}}, BLOCKS),
    *of("softmax", "softmax_maximum softmax_total", {"x": BLOCK}, BLOCKS),
    *of("causal", "causal_by_local_position causal_by_other_axis causal_unscaled causal_edge",
        {"q": X, "k": FULL}, ROWS),
    *of("embedding", "embedding_unshifted embedding_unmasked",
        {"table": W2, "ids": {"shape": [6], "dtype": "int32", "init": "integers(0, 8)"}}, WHOLE),
    *of("positions", "positions", {"x": X}, ROWS),
    *of("noise", "noise", {"x": X, "seed": {"shape": [1], "dtype": "int32", "init": "full(7)"}}, ROWS),
    *of("product", "gathered_on_other_dimension gathered_over_other_axis", {"a": X, "b": W2}, ROWS),
    *of("scattered", "scattered", {"a": W1, "b": W2}, COLUMNS),
    *of("turned", "turned", {"x": BLOCK}, ROWS),
    *of("ring", "ring_wrong_way ring_short ring_stale",
        {"a": {"shape": [8, 8], "spec": ["ring", None]}, "b": {"shape": [8, 8], "spec": ["ring", None]}},
        ["ring", None], RING),
    *of("cumulative", "cumulative", {"x": X}, ROWS),
    *of("differences", "differences", {"x": {"shape": [8, 8], "spec": ["ring", None]}}, ["ring", None], RING),
    *of("attention", "scale_missing keys_not_gathered swapped_values",
        {"x": X, "wq": FULL, "wk": FULL, "wv": FULL, "wo": FULL}, ROWS),
    *of("batch_norm", "batch_norm_sum batch_norm_axis", {"x": X, "g": {"shape": [8]}}, ROWS),
    *of("wrong_block", "wrong_slice neighbour_slice", {"x": X, "w": FULL}, ROWS),
    *of("dropout", "dropout_key dropout_scale",
        {"x": X, "seed": {"shape": [1], "dtype": "int32", "init": "full(7)"}}, ROWS),
    *of("stencil", "stencil_wrap stencil_first_row",
        {"x": {"shape": [8, 8], "spec": ["ring", None]}}, ["ring", None], RING),
    *of("momentum", "momentum_summed momentum_stale", {"w": FULL, "m": FULL, "x": X}, WHOLE),
    *of("norm_clip", "clip_local clip_root_first", {"g": BLOCK}, BLOCKS),
    *of("xent", "xent_edge xent_top",
        {"h": X, "w": W1, "y": {"shape": [8], "dtype": "int32", "init": "integers(0, 8)", "spec": ["data"]}}, ["data"]),
    *of("moe", "moe_expert",
        {"x": X, "w": {"shape": [4, 8, 8], "spec": ["model"]},
         "ids": {"shape": [8], "dtype": "int32", "init": "integers(0, 4)", "spec": ["data"]}}, ROWS),
    *of("pipeline", "pipeline_perm pipeline_last",
        {"x": FULL, "w": {"shape": [4, 8, 8], "spec": ["ring"]}}, WHOLE, RING),
    *of("tree", "tree_summed", {"w1": FULL, "w2": FULL, "x": X, "y": X}, WHOLE),
    *of("pair", "pair_wrong_way",
        {"a": {"shape": [8, 8], "spec": ["ring", None]}, "b": {"shape": [8, 8], "spec": ["ring", None]}},
        ["ring", None], RING),
]  # fmt: skip
