"""Plans under memory limits, as compiled for a TPU that is not here: `python -m benchmarks.memory_limits`

Five graphs are planned by the command within a limit that the plan without one exceeds. A line each: the limit, what
the plan needs in its model and as the compiler counts it, and whether that is within the limit. `--shares`: within 85
and 70 % of what the plan without a limit needs in the model, and 100, 85 and 70 % of what it needs as compiled; in the
end the ratios of compiled to modelled bytes of all candidates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from runner.experiment.config import schema
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.written import spread

MESH = {"axes": ["x", "y"], "shape": [2, 4]}

BFLOAT16 = {"dtype": "bfloat16", "init": "normal(0, 0.1)"}

MLP = {
    "dims": {"B": 4096, "D": 1024, "F": 4096},
    "arrays": {
        "x": {"shape": ["B", "D"], "spec": ["x", None], **BFLOAT16},
        "w1, w3": {"shape": ["D", "F"], "spec": "auto", **BFLOAT16},
        "w2, w4": {"shape": ["F", "D"], "spec": "auto", **BFLOAT16},
    },
    "graph": {
        "h1": "gelu(x @ w1)",
        "y1": "x + h1 @ w2",
        "h2": "gelu(y1 @ w3)",
        "y2": "y1 + h2 @ w4",
        "loss": "mean(y2 ** 2)",
    },
    "grad": {"of": "loss", "wrt": ["w1", "w2", "w3", "w4"]},
    "outputs": {"loss": []},
}

ATTENTION = {
    "dims": {"B": 16, "S": 256, "D": 2048, "Q": 32, "H": 64},
    "arrays": {
        "x": {"shape": ["B", "S", "D"], "spec": "auto", **BFLOAT16},
        "wq, wk, wv": {"shape": ["D", "Q", "H"], "spec": "auto", **BFLOAT16},
        "wo": {"shape": ["Q", "H", "D"], "spec": "auto", **BFLOAT16},
    },
    "graph": {
        "q": "einsum('bsd,dqh->bsqh', x, wq)",
        "k": "einsum('bsd,dqh->bsqh', x, wk)",
        "v": "einsum('bsd,dqh->bsqh', x, wv)",
        "attended": "dot_product_attention(q, k, v, is_causal=True)",
        "y": "x + einsum('bsqh,qhd->bsd', attended, wo)",
    },
    "outputs": {"y": "auto"},
}

SCAN = {
    "dims": {"L": 8, "B": 8192, "D": 512, "F": 2048},
    "arrays": {
        "x": {"shape": ["B", "D"], "spec": "auto", **BFLOAT16},
        "w1": {"shape": ["L", "D", "F"], "spec": "auto", **BFLOAT16},
        "w2": {"shape": ["L", "F", "D"], "spec": "auto", **BFLOAT16},
    },
    "graph": {
        "layers": {
            "repeat": "L",
            "over": {"a": "w1", "b": "w2"},
            "carry": {"h": "x"},
            "body": {"h": "h + gelu(h @ a) @ b"},
            "checkpoint": True,
        },
        "loss": "mean(layers.h ** 2)",
    },
    "grad": {"of": "loss", "wrt": ["w1", "w2"]},
    "outputs": {"loss": []},
}

EXPERTS = {
    "dims": {"T": 2048, "D": 512, "E": 8, "C": 512, "F": 2048},
    "arrays": {
        "x": {"shape": ["T", "D"], "spec": "auto", **BFLOAT16},
        "router": {"shape": ["D", "E"], "spec": "auto", **BFLOAT16},
        "w1": {"shape": ["E", "D", "F"], "spec": "auto", **BFLOAT16},
        "w2": {"shape": ["E", "F", "D"], "spec": "auto", **BFLOAT16},
    },
    "graph": {
        "gates": "softmax(x @ router)",
        "chosen": "one_hot(argmax(gates, axis=-1), E)",
        "place": "cumsum(chosen, axis=0) * chosen - chosen",
        "slot": "one_hot(astype(sum(place, axis=-1), 'int32'), C)",
        "dispatch": "chosen[:, :, None] * slot[:, None, :]",
        "sent": "einsum('tec,td->ecd', dispatch, x)",
        "hidden": "gelu(einsum('ecd,edf->ecf', sent, w1))",
        "made": "einsum('ecf,efd->ecd', hidden, w2)",
        "y": "einsum('tec,ecd->td', dispatch, made) * max(gates, axis=-1)[:, None]",
    },
    "outputs": {"y": "auto"},
}


def llama() -> dict[str, Any]:
    """Return a Llama block's step, forward, backward and AdamW, all layouts open."""
    from benchmarks.planning import of_graph

    sizes = ("B=16", "S=256", "D=512", "Q=8", "K=4", "H=64", "F=2048")
    config = compose("llama_block_adamw", conf_folder(), [f"dims.{size}" for size in sizes]).plain
    arrays = {
        name: {**schema.given(array), "spec": "auto"} for name, array in spread(config["arrays"], ("arrays",)).items()
    }
    outputs = {name: "auto" for name in spread(config["outputs"], ("outputs",)) if not name.startswith("grad.")}
    return {
        "mesh": {**MESH, "axes": ["data", "model"]},
        "dims": config["dims"],
        "arrays": arrays,
        "functions": of_graph(config["functions"]),
        "graph": {**of_graph(config["both"]), **(config["graph"] or {})},
        "grad": config["grad"],
        "outputs": {**outputs, "loss": [], "norm": []},
    }


@dataclass(frozen=True)
class Limited:
    """The bytes of memory of a case: the limit, the plan's in its model and as compiled.

    - `limit`: None for the plan without one; `refused`: the message if arrays and outputs alone exceed it.
    - `ratios`: the compiled bytes of each candidate, divided by those in the model.
    """

    case: str
    limit: int | None
    model: float | None = None
    compiled: int | None = None
    refused: str | None = None
    ratios: tuple[float, ...] = ()

    @property
    def held(self) -> bool:
        """Whether the compiled program is within the limit."""
        return self.limit is None or (self.compiled is not None and self.compiled <= self.limit)


GRAPHS: Mapping[str, Mapping[str, Any]] = {"mlp": MLP, "attention": ATTENTION, "scan": SCAN, "experts": EXPERTS}

LIMITS = {
    "mlp": 66_000_000,
    "attention": 64_000_000,
    "scan": 100_000_000,
    "experts": 40_000_000,
    "llama": 48_000_000,
}
"""For each graph a limit of bytes of a device of v5e."""


_SEARCH = ("plan.candidates=1", "plan.seconds=300")
"""One candidate at a time, and as much time for the search as a busy machine needs."""


def limited(case: str, folder: Path, target: str = "v5e_2x4", limit: int | None = None) -> Limited:
    """Plan a case by the command within a limit, None for none; raises `RuntimeError` for an error."""
    config = GRAPHS[case] if case in GRAPHS else llama()
    home = folder / "conf" / "experiment"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{case}.yaml"
    text = yaml.safe_dump({"name": case, "mesh": MESH, **config}, sort_keys=False)
    path.write_text("# @package _global_\n" + text, encoding="utf-8")
    run = folder / f"{case}_{target}_{limit}"
    options = [f"+experiment={case}", f"target={target}", "program=constraint"]
    options += [] if limit is None else [f"plan.memory={limit}"]
    arguments = ("--config-dir", str(folder / "conf"), *options, *_SEARCH, f"hydra.run.dir={run}")
    done = subprocess.run([sys.executable, "-m", "runner", "plan", *arguments], capture_output=True, text=True)
    if done.returncode == 2 and "no layout fits" in done.stderr:
        return Limited(case, limit, refused=done.stderr.strip().splitlines()[-1].strip())
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    written = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    needs = [(each["candidate"]["needed"], each["programs"][0]["memory_bytes"]) for each in written["tried"]]
    (model, compiled), *_ = needs
    return Limited(case, limit, model, compiled, ratios=tuple(there / mine for mine, there in needs if there))


SHARES = (("model", 0.85), ("model", 0.7), ("compiled", 1.0), ("compiled", 0.85), ("compiled", 0.7))
"""Limits as shares of what the plan without a limit needs in the model or as compiled."""


def shares(case: str, folder: Path, target: str) -> Iterator[Limited]:
    """Yield a case without a limit, then within each of the shares."""
    free = limited(case, folder, target)
    yield free
    assert free.model is not None
    assert free.compiled is not None
    for of, share in SHARES:
        whole = free.model if of == "model" else free.compiled
        yield limited(case, folder, target, round(share * whole))


def main(arguments: Sequence[str]) -> None:
    """Print a line of JSON for each case, or for those named; `--limit 1000000000`: with another limit."""
    every = "--shares" in arguments
    rest = [each for each in arguments if each != "--shares"]
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    cases = options["--only"].split(",") if "--only" in options else list(LIMITS)
    target, ratios = options.get("--target", "v5e_2x4"), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            limit = int(options["--limit"]) if "--limit" in options else LIMITS[case]
            for result in shares(case, Path(folder), target) if every else [limited(case, Path(folder), target, limit)]:
                ratios += result.ratios
                print(json.dumps({**asdict(result), "held": result.held}), flush=True)
    print(json.dumps({"compiled/model": [round(each, 2) for each in sorted(ratios)]}))


if __name__ == "__main__":
    main(sys.argv[1:])
