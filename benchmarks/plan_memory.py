"""The memory of fifty plans, as compiled, beside that of the model: `python -m benchmarks.plan_memory`

Twenty-five graphs, forward or with gradients, are planned for eight TPUs v5e that are not here, in bfloat16, and for
eight simulated CPU devices, in float32. On TPUs batches are 32 times as large, so that their values do not fit into the
chips' on-chip memory. `--target cpu` or `--target v5e_2x4`: one of them; `--only scan`: graphs whose name has this.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import memory_limits
from benchmarks.planning import KINDS, program_of
from runner.base.faults import key_text
from runner.experiment import open_layouts
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.reader import read
from runner.programs.planning.plan import Candidate, Wanted, plan
from runner.worker.derive import value_types

SIZES = {"B": 16384, "D": 512, "F": 2048, "S": 256, "H": 8, "K": 64, "E": 8}
"""The sizes of the ten kinds of `benchmarks.planning`."""

LINES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str, Sequence[str]]] = {
    "six layers": (
        {"x": ["B", 1024], **{f"w{n}": [1024, 1024] for n in range(6)}},
        {f"h{n + 1}": f"relu({f'h{n}' if n else 'x'} @ w{n})" for n in range(6)},
        "mean(h6 ** 2)", [f"w{n}" for n in range(6)],
    ),
    "skips of a U-Net": (
        {"x": ["B", 1024], "d1": [1024, 512], "d2": [512, 256], "u1": [256, 512], "u2": [512, 1024]},
        {"a": "gelu(x @ d1)", "b": "gelu(a @ d2)", "c": "a + gelu(b @ u1)", "y": "x + c @ u2"},
        "mean(y ** 2)", ["d1", "d2", "u1", "u2"],
    ),
    "grouped queries": (
        {"x": ["B", 512, 1024], "wq": [1024, 4, 4, 64], "wk": [1024, 4, 64], "wv": [1024, 4, 64],
         "wo": [4, 4, 64, 1024]},
        {"q": "einsum('bsd,dgqh->bsgqh', x, wq)", "k": "einsum('bsd,dgh->bsgh', x, wk)",
         "v": "einsum('bsd,dgh->bsgh', x, wv)", "t": "einsum('bsgqh,btgh->bgqst', q, k)", "p": "softmax(t, axis=-1)",
         "o": "einsum('bgqst,btgh->bsgqh', p, v)", "y": "x + einsum('bsgqh,gqhd->bsd', o, wo)"},
        "mean(y ** 2)", ["wq", "wk", "wv", "wo"],
    ),
    "cross attention": (
        {"x": ["B", 512, 512], "z": ["B", 128, 512], "wq": [512, 8, 64], "wk": [512, 8, 64], "wv": [512, 8, 64],
         "wo": [8, 64, 512]},
        {"q": "einsum('bsd,dhk->bshk', x, wq)", "k": "einsum('btd,dhk->bthk', z, wk)",
         "v": "einsum('btd,dhk->bthk', z, wv)", "a": "dot_product_attention(q, k, v)",
         "y": "x + einsum('bshk,hkd->bsd', a, wo)"},
        "mean(y ** 2)", ["wq", "wk", "wv", "wo"],
    ),
    "two towers": (
        {"x": ["B", 1024], "z": ["B", 512], "wx": [1024, 256], "wz": [512, 256]},
        {"a": "x @ wx", "b": "z @ wz", "s": "a @ b.T", "n": "logsumexp(s, axis=-1)"},
        "mean(n) - mean(sum(a * b, axis=-1))", ["wx", "wz"],
    ),
    "tied embedding": (
        {"t": ["B"], "table": [16384, 512], "w": [512, 512]},
        {"e": "take(table, t, axis=0)", "h": "gelu(e @ w)", "l": "h @ table.T", "n": "logsumexp(l, axis=-1)"},
        "mean(n)", ["table", "w"],
    ),
    "gated experts": (
        {"x": [8, "B", 512], "w1": [8, 512, 1024], "w2": [8, 1024, 512], "w3": [8, 512, 1024]},
        {"h": "einsum('etd,edf->etf', x, w1)", "g": "einsum('etd,edf->etf', x, w3)",
         "y": "einsum('etf,efd->etd', silu(h) * g, w2)"},
        "mean(y ** 2)", ["w1", "w2", "w3"],
    ),
    "convolutions": (
        {"x": ["B", 64, 64, 32], "k1": [3, 3, 32, 64], "k2": [3, 3, 64, 64]},
        {"a": "relu(conv_general_dilated(x, k1, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')))",
         "y": "conv_general_dilated(a, k2, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))"},
        "mean(y ** 2)", ["k1", "k2"],
    ),
    "gated scan": (
        {"x": ["B", 512], "w1": [8, 512, 1024], "w2": [8, 1024, 512], "w3": [8, 512, 1024]},
        {"layers": {"repeat": 8, "over": {"a": "w1", "b": "w2", "c": "w3"}, "carry": {"h": "x"},
                    "body": {"g": "silu(h @ a)", "u": "h @ c", "h": "h + (g * u) @ b"}}},
        "mean(layers.h ** 2)", ["w1", "w2", "w3"],
    ),
    "scan that keeps products": (
        {"x": ["B", 512], "w1": [8, 512, 2048], "w2": [8, 2048, 512]},
        {"layers": {"repeat": 8, "over": {"a": "w1", "b": "w2"}, "carry": {"h": "x"},
                    "body": {"h": "h + gelu(h @ a) @ b"}, "checkpoint": "dots_saveable"}},
        "mean(layers.h ** 2)", ["w1", "w2"],
    ),
}  # fmt: skip
"""Ten graphs by name: the shapes of their arrays, their lines, the loss, the arrays with gradients."""

BATCHES = {"six layers": 8192, "skips of a U-Net": 16384, "grouped queries": 16, "cross attention": 16,
           "two towers": 4096, "tied embedding": 8192, "gated experts": 4096, "convolutions": 64, "gated scan": 8192,
           "scan that keeps products": 8192}  # fmt: skip
"""The sizes of `B` in these."""


def graphs(dtype: str, scale: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the twenty-five graphs, all arrays of floats in `dtype`, with batches `scale` times as large."""

    def array(shape: Sequence[Any], *, integers: bool = False) -> dict[str, Any]:
        return {
            "shape": list(shape),
            "spec": "auto",
            **(
                {"dtype": "int32", "init": "integers(0, 16384)"}
                if integers
                else {"dtype": dtype, "init": "normal(0, 0.1)"}
            ),
        }

    for name, (arrays, lines, opened, output) in KINDS.items():
        # The batch of attention is large as it is: its scores take 4 GB of a device.
        batch = SIZES["B"] * (1 if name == "attention" else scale)
        config: dict[str, Any] = {"dims": SIZES | {"B": batch}, "graph": dict(lines), "outputs": {output: "auto"}}
        config["arrays"] = {key: array(shape) for key, shape in arrays.items()}
        if name == "backward":
            config |= {"grad": {"of": output, "wrt": list(opened)}, "outputs": {output: []}}
        if name == "vocabulary":
            config["outputs"] = {output: []}
        yield name, config
    for name in memory_limits.LIMITS:
        case = memory_limits.GRAPHS[name] if name in memory_limits.GRAPHS else memory_limits.llama()
        arrays = {
            key: {**mine, "dtype": dtype} if mine.get("dtype") == "bfloat16" else dict(mine)
            for names, mine in case["arrays"].items()
            for key in names.split(", ")
        }
        dims = {key: size * (scale if key in ("B", "T", "C") else 1) for key, size in case["dims"].items()}
        yield f"larger {name}", {**case, "arrays": arrays, "dims": dims}
    for name, (shapes, lines, loss, wrt) in LINES.items():
        arrays = {key: array(shape, integers=key == "t") for key, shape in shapes.items()}
        yield name, {"dims": {"B": scale * BATCHES[name]}, "arrays": arrays, "graph": {**lines, "loss": loss},
                     "grad": {"of": "loss", "wrt": list(wrt)}, "outputs": {"loss": []}}  # fmt: skip


def filled(config: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """A configuration with the layouts of a candidate, those of lines as constraints."""
    specs = {key: spec.json() for key, spec in candidate.layouts.items()}
    arrays = {
        name: {**array, "spec": specs.get(f"arrays.{name}.spec", array["spec"])}
        for name, array in config["arrays"].items()
    }
    outputs = {name: specs.get(f"outputs.{name}", spec) for name, spec in config["outputs"].items()}
    lines = {name: spec.json() for name, spec in candidate.constraints.items() if name not in outputs}
    return {**config, "arrays": arrays, "outputs": outputs, "constraints": lines}


def main(arguments: Sequence[str]) -> None:
    """Print a line of JSON for each plan; in the end how many are within 10 % of the model, and at most 10 % beyond."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    ratios: list[float] = []
    targets = [options["--target"]] if "--target" in options else ["cpu", "v5e_2x4"]
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            compiled_for = compose("layer", conf_folder(), [f"target={target}"]).plain["target"]
            for name, lines in graphs("float32") if target == "cpu" else graphs("bfloat16", 32):
                if options.get("--only", "") not in name:
                    continue
                config = {"name": "case", "mesh": memory_limits.MESH, **lines, "program": "constraint"}
                config["target"] = compiled_for
                free = tuple(key_text(key) for key in open_layouts.keys(config))
                whole = read(open_layouts.without(config))
                best = plan(whole, value_types(whole.alone("graph")), Wanted("bytes", free)).best
                try:
                    memory = program_of(read(filled(config, best)), Path(folder)).memory()
                except jax.errors.JaxRuntimeError as error:
                    if "RESOURCE_EXHAUSTED" not in str(error):
                        raise
                    ratios.append(math.inf)
                    line = {"target": target, "graph": name, "model": round(best.needed), "compiled": "does not fit"}
                    print(json.dumps(line), flush=True)
                    continue
                assert memory is not None
                parts = memory.argument_bytes, memory.output_bytes, memory.temp_bytes
                needed = sum(each or 0 for each in parts) - (memory.alias_bytes or 0)
                ratios.append(needed / best.needed)
                print(json.dumps({"target": target, "graph": name, "model": round(best.needed), "compiled": needed,
                                  "ratio": round(ratios[-1], 2)}), flush=True)  # fmt: skip
    within, beyond = sum(0.9 <= each <= 1.1 for each in ratios), sum(each > 1.1 for each in ratios)
    print(json.dumps({"plans": len(ratios), "within 10 %": within, "more than 10 % beyond": beyond}))


if __name__ == "__main__":
    main(sys.argv[1:])
