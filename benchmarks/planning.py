"""How good plans are, and how long they take: `python -m benchmarks.planning`.

Small graphs are compiled in every layout of their open arrays; the regret of a plan is what its layouts send more, as
compiled, than the best of these. Then a Llama block's step is planned, not compiled, at a real size.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config.compose import compose
from runner.config.folders import conf_folder
from runner.config.sources import Sources
from runner.experiment import auto
from runner.experiment.reader import read
from runner.experiment.written import spread
from runner.faults import key_text
from runner.flow import layouts as flow
from runner.flow.run import run
from runner.link.process import Worker
from runner.link.workers import Workers
from runner.planning.plan import Wanted, plan
from runner.planning.spaces import plain_layouts
from runner.worker.derive import value_types

MESH = {"axes": ["model"], "shape": [4]}

CASES: Mapping[str, Mapping[str, Any]] = {
    f"{name}, B = {batch}": {
        "name": "case",
        "mesh": MESH,
        "dims": {"B": batch, "D": 8, "F": 32},
        "arrays": {
            "x": {"shape": ["B", "D"], "spec": x},
            "w1": {"shape": ["D", "F"], "spec": "auto"},
            "w2": {"shape": ["F", "D"], "spec": "auto"},
        },
        "graph": graph,
        "outputs": outputs,
        **keys,
    }
    for batch, (name, x, graph, outputs, keys) in itertools.product(
        (4, 256),
        (
            ("two products", [], {"y": "gelu(x @ w1) @ w2"}, {"y": []}, {}),
            ("two products, x by rows", ["model", None], {"y": "gelu(x @ w1) @ w2"}, {"y": ["model", None]}, {}),
            (
                "two products, backward",
                ["model", None],
                {"y": "gelu(x @ w1) @ w2", "loss": "mean(y ** 2)"},
                {"loss": []},
                {"grad": {"of": "loss", "wrt": ["w1", "w2"]}},
            ),
        ),
    )
}
"""Small graphs with two open weights: 9 layouts each."""

LLAMA = ("B=256", "S=4096", "D=4096", "Q=32", "K=8", "H=128", "F=14336")
"""A layer of Llama 3 8B, 256 sequences."""


def regret(config: Mapping[str, Any], workers: Workers, folder: Path) -> tuple[int, int]:
    """What a plan's layouts send as compiled, and the least that any layouts do."""

    def sources() -> Sources:
        return Sources()

    folder.mkdir()
    planning = flow.planned(config, folder, sources, workers)
    sent: dict[str, int] = {}
    shapes = {key: planning.experiment.array(key.split(".")[1]).shape for key in planning.plan.best.layouts}
    every = [plain_layouts(planning.experiment.mesh, shape) for shape in shapes.values()]
    for number, specs in enumerate(itertools.product(*every)):
        given = dict(zip(shapes, specs, strict=True))
        definition = planning.experiment.at(layouts={key: spec.json() for key, spec in given.items()}).definition
        own = folder / str(number)
        own.mkdir()
        record = run({**definition, "program": "auto"}, own, sources, workers=workers)
        sent[str(given)] = record.programs["auto"].bytes_sent  # type: ignore[attr-defined]
    return sent[str(dict(planning.plan.best.layouts))], min(sent.values())


def llama(mesh: Mapping[str, int], least: str) -> dict[str, Any]:
    """How long the plan of a layer's step takes: forward, backward and AdamW, all layouts open."""
    config = compose("llama_block_adamw", conf_folder(), ["hardware=v5p", *(f"dims.{size}" for size in LLAMA)]).plain
    graph = {key: _of_graph(config[key]) for key in ("both", "functions")}
    config |= {**graph, "per_device": {}, "constraints": {}, "expect": {}, "verify_dims": {}, "show": "none"}
    config["mesh"] = {"axes": list(mesh), "shape": list(mesh.values())}
    config["arrays"] = {
        name: {**array, "spec": "auto"} for name, array in spread(config["arrays"], ("arrays",)).items()
    }
    names = spread(config["outputs"], ("outputs",))
    config["outputs"] = {name: "auto" for name in names if not name.startswith("grad.")}
    config["plan"] = {"least": least}
    free = tuple(key_text(key) for key in auto.keys(config))
    whole = read({**auto.without(config), "program": "auto"})
    types = value_types(whole.alone("graph"))
    began = time.perf_counter()
    found = plan(whole, types, Wanted(auto.read_plan(config).least, free, None))
    return {
        "mesh": dict(mesh),
        "least": least,
        "seconds": round(time.perf_counter() - began, 2),
        "variables": found.variables,
        "largest": found.largest,
        "proved": found.proved,
        "cost": found.best.cost,
        "w1": found.best.layouts["arrays.w1.spec"].yaml(),
    }


def _of_graph(lines: Any) -> Any:
    """Lines of which those of `graph` are taken where the sections differ."""
    if not isinstance(lines, Mapping):
        return lines
    return lines["graph"] if "graph" in lines else {name: _of_graph(line) for name, line in lines.items()}


def main(arguments: Sequence[str]) -> None:
    """Print a line of JSON for each case; with `--llama` the step of a layer alone."""
    if "--llama" not in arguments:
        workers = Workers(Worker())
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, config) in enumerate(CASES.items()):
                mine, least = regret(config, workers, Path(folder) / str(number))
                line = {"case": name, "sent": mine, "least": least, "regret": mine / least - 1 if least else None}
                print(json.dumps(line), flush=True)
        workers.close()
    for least in ("bytes", "time"):
        print(json.dumps(llama({"data": 16, "model": 16}, least)))


if __name__ == "__main__":
    main(sys.argv[1:])
