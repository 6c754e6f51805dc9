"""The quality of plans, and the time to make them: `python -m benchmarks.planning`

A hundred small graphs are compiled in every layout of their open arrays. The regret of a plan is how much more its
layouts send, as compiled, than the best ones; Kendall's tau compares the bytes in the plan's model with the compiled
ones. `--llama` plans a Llama layer's step in YAML, and the step of all its layers in Python, at a real size; neither is
compiled.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.base.faults import key_text
from runner.base.layout import Spec
from runner.compiled.evidence.gather import gather
from runner.experiment import open_layouts
from runner.experiment.config import schema
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.experiment.written import spread
from runner.programs.planning.plan import Wanted, plan
from runner.programs.planning.solving import SECONDS
from runner.programs.planning.spaces import plain_layouts
from runner.programs.writers import WRITERS
from runner.worker.compilation import CompiledModule, compile_program
from runner.worker.cost import of as cost_of
from runner.worker.derive import value_types
from runner.worker.functions import tracing
from runner.worker.job import _load
from runner.worker.specs import structs
from runner.worker.types import infer
from tests.here import configurable

ROWS, WHOLE = ["model", None], [None, None]
"""The layout of an operand's rows: sharded over the devices, or replicated."""

MLP = {"x": ["B", "D"], "w1": ["D", "F"], "w2": ["F", "D"]}
GATED = {"x": ["B", "D"], "w1": ["D", "F"], "w3": ["D", "F"], "w2": ["F", "D"]}
HEADS = {"x": ["B", "S", "D"], "wq": ["D", "H", "K"], "wo": ["H", "K", "D"]}

NORMALISED = {"s": "x ** 2", "m": "mean(s, axis=-1, keepdims=True)", "r": "rsqrt(m + 1e-5)", "n": "x * r"}
PRODUCTS = {"h": "x @ w1", "a": "gelu(h)", "y": "a @ w2"}
ATTENTION = {"q": "einsum('bsd,dhk->bshk', x, wq)", "t": "einsum('bqhk,bshk->bhqs', q, q)", "p": "softmax(t, axis=-1)",
             "o": "einsum('bhqs,bshk->bqhk', p, q)", "y": "einsum('bqhk,hkd->bqd', o, wo)"}  # fmt: skip
EXPERTS = {"h": "einsum('ebd,edf->ebf', x, w1)", "a": "gelu(h)", "y": "einsum('ebf,efd->ebd', a, w2)"}

KINDS: Mapping[str, tuple[Mapping[str, Sequence[str]], Mapping[str, str], Sequence[str], str]] = {
    "a product": ({"x": ["B", "D"], "w": ["D", "F"]}, {"y": "x @ w"}, ["w"], "y"),
    "two products": (MLP, PRODUCTS, ["w1", "w2"], "y"),
    "gated": (GATED, {"h": "x @ w1", "g": "x @ w3", "s": "silu(h)", "a": "s * g", "y": "a @ w2"}, ["w1", "w2"], "y"),
    "residual": (MLP, {"h": "x @ w1", "a": "gelu(h)", "z": "a @ w2", "y": "x + z"}, ["w1", "w2"], "y"),
    "normalised": (MLP, {**NORMALISED, "h": "n @ w1", "a": "gelu(h)", "y": "a @ w2"}, ["w1", "w2"], "y"),
    "attention": (HEADS, ATTENTION, ["wq", "wo"], "y"),
    "experts": ({"x": ["E", "B", "D"], "w1": ["E", "D", "F"], "w2": ["E", "F", "D"]}, EXPERTS, ["w1", "w2"], "y"),
    "Gram matrix": ({"x": ["B", "D"], "w": ["D", "F"]}, {"g": "x.T @ x", "y": "g @ w"}, ["w"], "y"),
    "vocabulary": ({"x": ["B", "D"], "w": ["D", "F"]}, {"l": "x @ w", "n": "logsumexp(l, axis=-1)", "y": "mean(n)"},
                   ["w"], "y"),
    "backward": (MLP, {**PRODUCTS, "s": "y ** 2", "loss": "mean(s)"}, ["w1", "w2"], "loss"),
}  # fmt: skip
"""Small graphs by kind: arrays, lines, the arrays whose layouts are open, and the output."""

PROJECTED = {"x": ["B", "S", "D"], "wq": ["D", "H", "K"], "wk": ["D", "H", "K"], "wo": ["H", "K", "D"]}
TOWERS = {"x": ["B", "D"], "z": ["B", "D"], "w1": ["D", "F"], "w2": ["D", "F"]}
CONVOLVED = "relu(conv_general_dilated({}, {}, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')))"

HELD_OUT: Mapping[str, tuple[Mapping[str, Sequence[str | int]], Mapping[str, str], Sequence[str], str]] = {
    "linear attention": (
        PROJECTED,
        {"q": "einsum('bsd,dhk->bshk', x, wq)", "k": "einsum('bsd,dhk->bshk', x, wk)",
         "s": "einsum('bshk,bshv->bhkv', k, k)", "o": "einsum('bshk,bhkv->bshv', q, s)",
         "y": "einsum('bshk,hkd->bsd', o, wo)"},
        ["wq", "wo"], "y",
    ),
    "low rank": ({"x": ["B", "D"], "u": ["D", "K"], "v": ["K", "F"]}, {"h": "x @ u", "y": "h @ v"}, ["u", "v"], "y"),
    "tied weight": ({"x": ["B", "D"], "w": ["D", "F"]}, {"h": "x @ w", "a": "tanh(h)", "y": "a @ w.T"}, ["w"], "y"),
    "convolutions": (
        {"x": ["B", 8, 8, 4], "k1": [3, 3, 4, 8], "k2": [3, 3, 8, 4]},
        {"h": CONVOLVED.format("x", "k1"), "y": CONVOLVED.format("h", "k2")},
        ["k1", "k2"], "y",
    ),
    "two towers": (
        TOWERS,
        {"a": "x @ w1", "c": "z @ w2", "s": "a @ c.T", "n": "logsumexp(s, axis=-1)", "loss": "mean(n)"},
        ["w1", "w2"], "loss",
    ),
    "table of words": (
        {"x": ["B", "D"], "t": ["F", "D"], "w": ["D", "F"]},
        {"i": "argmax(x, axis=-1)", "e": "take(t, i, axis=0)", "h": "e @ w", "y": "tanh(h)"},
        ["t", "w"], "y",
    ),
    "mixing tokens": (
        {"x": ["B", "S", "D"], "u": ["S", "S"], "w": ["D", "F"]},
        {"t": "einsum('bsd,st->btd', x, u)", "a": "gelu(t)", "y": "einsum('btd,df->btf', a, w)"},
        ["u", "w"], "y",
    ),
    "scores of values": (
        {"x": ["B", "S", "D"], "wq": ["D", "K"], "wv": ["D", "K"]},
        {"q": "x @ wq", "v": "x @ wv", "t": "einsum('bqk,bsk->bqs', q, q)", "p": "softmax(t, axis=-1)",
         "y": "einsum('bqs,bsk->bqk', p, v)"},
        ["wq", "wv"], "y",
    ),
    "gated backward": (
        GATED,
        {"h": "x @ w1", "g": "x @ w3", "s": "silu(h)", "a": "s * g", "y": "a @ w2", "q": "y ** 2", "loss": "mean(q)"},
        ["w1", "w2"], "loss",
    ),
    "residual backward": (MLP, {**PRODUCTS, "r": "x + y", "s": "r ** 2", "loss": "mean(s)"}, ["w1", "w2"], "loss"),
    "vocabulary backward": (
        {"x": ["B", "D"], "w": ["D", "F"]}, {"l": "x @ w", "n": "logsumexp(l, axis=-1)", "loss": "mean(n)"},
        ["w"], "loss",
    ),
    "normalised backward": (
        MLP,
        {**NORMALISED, "h": "n @ w1", "a": "relu(h)", "y": "a @ w2", "q": "y ** 2", "loss": "mean(q)"},
        ["w1", "w2"], "loss",
    ),
}  # fmt: skip
"""More graphs, with which the model was compared once it was made."""

SIZES = ({"B": 4, "F": 32}, {"B": 16, "F": 32}, {"B": 64, "F": 32}, {"B": 256, "F": 32}, {"B": 16, "F": 128})


def cases(target: str = "cpu", scale: int = 1, *, held_out: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return a hundred cases: ten kinds, five sizes, with sharded and replicated rows; the sizes vary slowest.

    `target`: the target with the four devices that they are compiled for; `scale`: how much larger B, D
    and F are. TPU's compiler combines the all-reduces of small gradients before it could scatter them. `held_out`: the
    120 cases of the other twelve kinds.
    """
    kinds = HELD_OUT if held_out else KINDS
    compiled_for = compose("layer", conf_folder(), [f"target={target}"]).plain["target"]
    for sizes, rows, (kind, (arrays, graph, opened, output)) in itertools.product(SIZES, (ROWS, WHOLE), kinds.items()):
        rank = len(arrays["x"])
        given = (*rows, *[None] * (rank - 2))
        spec = {name: "auto" if name in opened else list(given) if name in ("x", "z") else [] for name in arrays}
        lies = [] if output == "loss" or kind == "vocabulary" else list(given)
        dims = {"B": sizes["B"] * scale, "D": 8 * scale, "F": sizes["F"] * scale}
        config: dict[str, Any] = {
            "name": "case",
            "mesh": {"axes": ["model"], "shape": [4]},
            "dims": {"S": 8, "H": 4, "K": 4, "E": 4, **dims},
            "arrays": {name: {"shape": list(shape), "spec": spec[name]} for name, shape in arrays.items()},
            "graph": dict(graph),
            "outputs": {output: lies},
            "program": "auto",
            "target": compiled_for,
        }
        if kind.endswith("backward"):
            config["grad"] = {"of": "loss", "wrt": list(opened)}
        yield f"{kind}, B = {sizes['B']}, F = {sizes['F']}, x {'by rows' if rows == ROWS else 'whole'}", config


MESHES = ({"a": 16, "b": 16}, {"a": 8, "b": 8, "c": 4})
"""Meshes of 256 devices."""

LLAMA = ("B=256", "S=4096", "D=4096", "Q=32", "K=8", "H=128", "F=14336")
"""A layer of Llama 3 8B, 256 sequences."""


@dataclass(frozen=True)
class Compared:
    """For each layout of a case, the bytes that a device sends by the plan's model and as compiled.

    - `candidates`: the indices of the plan's layouts and of the next best ones, which `runner plan` compiles.
    - `flops`: the operations of a device, from the compiler.
    """

    candidates: list[int]
    predicted: list[float]
    sent: list[int]
    flops: list[float]

    @property
    def regret(self) -> float:
        """The excess of the plan over the best layout in which a device computes no more than in the plan.

        A layout in which every device computes everything sends nothing, but is no competitor.
        """
        return self._excess(self.candidates[0])

    @property
    def ranked(self) -> float:
        """The excess of the candidate that sends least as compiled, which is the one that `runner plan` takes."""
        return self._excess(min(self.candidates, key=lambda at: self.sent[at]))

    def _excess(self, mine: int) -> float:
        most = self.flops[mine] * 1.05
        least = min(sent for sent, flops in zip(self.sent, self.flops, strict=True) if flops <= most)
        sent = self.sent[mine]
        return 0.0 if sent <= least else sent / least - 1 if least else float("inf")

    @property
    def tau(self) -> float | None:
        """Kendall's tau-b between predicted and sent bytes; None if either is constant."""
        if len(set(self.predicted)) < 2 or len(set(self.sent)) < 2:
            return None
        from scipy.stats import kendalltau

        result: Any = kendalltau(np.round(self.predicted), self.sent)
        return float(result.statistic)


def compared(config: Mapping[str, Any], folder: Path) -> Compared:
    """Plan a case, and compile each layout of its open arrays."""
    free = tuple(key_text(key) for key in open_layouts.keys(config))
    whole = read(open_layouts.without(config))
    types = value_types(whole.alone("graph"))
    request = open_layouts.read_plan(config)
    chosen = plan(whole, types, Wanted(request.least, free))
    best = chosen.best.layouts
    every = [plain_layouts(whole.mesh, whole.array(key.split(".")[1]).shape) for key in best]
    choices = [dict(zip(best, specs, strict=True)) for specs in itertools.product(*every)]
    predicted: list[float] = []
    sent: list[int] = []
    flops: list[float] = []
    for layouts in choices:
        fixed = whole.at(layouts={key: spec.json() for key, spec in layouts.items()})
        candidate = plan(fixed, types, Wanted(request.least, ())).best
        predicted.append(candidate.sent)
        bytes_sent, computed = compiled(read(_filled(config, layouts, candidate.constraints)), folder)
        sent.append(bytes_sent)
        flops.append(computed)
    candidates = [chosen.best, *chosen.others][: request.candidates]
    return Compared([choices.index(dict(each.layouts)) for each in candidates], predicted, sent, flops)


def _filled(config: Mapping[str, Any], layouts: Mapping[str, Spec], constraints: Mapping[str, Spec]) -> dict[str, Any]:
    """Return a case with layouts of its arrays, and of its lines as constraints."""
    specs = {key.split(".")[1]: spec.json() for key, spec in layouts.items()}
    arrays = {name: {**array, "spec": specs.get(name, array["spec"])} for name, array in config["arrays"].items()}
    inner = {name: spec.json() for name, spec in constraints.items() if name not in config["outputs"]}
    return {**config, "arrays": arrays, "constraints": inner, "program": "constraint"}


def compiled(experiment: Experiment, folder: Path) -> tuple[int, float]:
    """Return the bytes that a device sends and its operations, from the compiled program `constraint`.

    `auto` leaves the layouts of outputs and gradients to the compiler, so it may send less than the step that is asked
    for: it need not lay out a gradient as its weight.
    """
    program = program_of(experiment, folder)
    evidence = gather(experiment, Program.CONSTRAINT, folder, None, program.unreadable).evidence
    sent = sum(each.bytes_sent or 0 for each in evidence.collectives or [])
    cost = cost_of(program.executable, program.text)
    return sent, float((cost and cost.flops) or 0.0)


def program_of(experiment: Experiment, folder: Path) -> CompiledModule:
    """Compile the program `constraint` of an experiment; its module is left in the folder."""
    path = folder / "program_constraint.py"
    with configurable():
        path.write_text(WRITERS[Program.CONSTRAINT](experiment, folder, infer(experiment)), encoding="utf-8")
        module = _load(path)
        mesh = module.make_mesh()
        operands = structs(experiment, mesh)[: len(experiment.arrays)]
        program = compile_program(Program.CONSTRAINT, module.program(mesh), operands)
        program.leave(Program.CONSTRAINT, folder)
    return program


def llama(mesh: Mapping[str, int], least: str, *target: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Time the plan of a layer's step: forward, backward and AdamW, all layouts open."""
    overrides = [*(target or ("hardware=v5p",)), *(f"dims.{size}" for size in LLAMA)]
    config = compose("llama_block_adamw", conf_folder(), overrides).plain
    graph = {key: of_graph(config[key]) for key in ("both", "functions")}
    config |= {**graph, "per_device": {}, "constraints": {}, "expect": {}, "verify_dims": {}, "show": "none"}
    config["mesh"] = {"axes": list(mesh), "shape": list(mesh.values())}
    config["arrays"] = {
        name: {**array, "spec": "auto"} for name, array in spread(config["arrays"], ("arrays",)).items()
    }
    names = spread(config["outputs"], ("outputs",))
    config["outputs"] = {name: "auto" for name in names if not name.startswith("grad.")}
    config["plan"] = {"least": least}
    free = tuple(key_text(key) for key in open_layouts.keys(config))
    whole = read({**open_layouts.without(config), "program": "auto"})
    types = value_types(whole.alone("graph"))
    began, used = time.perf_counter(), time.process_time()
    planned = plan(whole, types, Wanted(open_layouts.read_plan(config).least, free, None, seconds))
    return {
        "mesh": dict(mesh),
        "least": least,
        "seconds": round(time.perf_counter() - began, 2),
        "seconds of CPU": round(time.process_time() - used, 2),
        "variables": planned.variables,
        "largest": planned.largest,
        "proved": planned.proved,
        "cost": planned.best.cost,
        "gap": (planned.best.cost - planned.bound) / planned.best.cost,
        "solver": planned.solver,
        "w1": planned.best.layouts["arrays.w1.spec"].yaml(),
    }


STEP = ("B=256", "S=4096", "V=128256", "D=4096", "Q=32", "K=8", "F=14336", "L=32")
"""Llama 3 8B, 256 sequences."""


def step(mesh: Mapping[str, int], dims: Sequence[str] = STEP, **keys: Any) -> dict[str, Any]:
    """The experiment `llama_step` with the layouts of weights, states and products of its function open.

    Scanned layers, recomputed in the backward pass, and AdamW are in Python. The rows of the batch are sharded over all
    axes of the mesh, and so are the words of the embedding.
    """
    config = compose("llama_step", conf_folder(), [f"dims.{size}" for size in dims]).plain
    rows = [list(mesh), None]
    tokens = {**config["arrays"]["tokens"], "spec": rows}
    return {
        **config,
        "imports": {"llama": str(conf_folder() / "functions" / "llama.py")},
        "mesh": {"axes": list(mesh), "shape": list(mesh.values())},
        "arrays": {**config["arrays"], "tokens": tokens},
        "specs": {"**/embed": rows, "{params,state}/**": "auto"},
        "per_device": {},
        "constraints": {"loss/dot_general.*": "auto"},
        "outputs": {"loss": [], "new": "auto", "new_state": "auto"},
        "program": "constraint",
        **keys,
    }


def planned_step(config: Mapping[str, Any], folder: Path, seconds: float = SECONDS) -> dict[str, Any]:
    """Time the plan of a function's step: tracing it, without values, and the search."""
    began = time.process_time()
    apart = open_layouts.apart(config)
    definition = schema.whole(open_layouts.without(config))
    experiment = read(tracing.traced(definition, folder, folder / "trees", values=False, apart=apart))
    inside = dict.fromkeys(experiment.patterned.values())
    free = tuple(map(key_text, open_layouts.of_traced(config, experiment.imports.paths, inside)))
    whole = experiment.at(program="auto")
    types = value_types(whole.alone("graph"))
    read_at, request = time.process_time(), open_layouts.read_plan(config)
    planned = plan(whole, types, Wanted(request.least, free, request.memory, seconds))
    return {
        "mesh": experiment.mesh.sizes,
        "least": request.least,
        "seconds of CPU to trace": round(read_at - began, 2),
        "seconds of CPU to plan": round(time.process_time() - read_at, 2),
        "variables": planned.variables,
        "proved": planned.proved,
        "cost": planned.best.cost,
        "gap": (planned.best.cost - planned.bound) / planned.best.cost,
        "sent": planned.best.sent,
        "held": planned.best.held,
        "needed": planned.best.needed,
        "unknown": planned.unknown,
    }


def of_graph(lines: Any) -> Any:
    """Return lines, with those of `graph` where the sections differ."""
    if not isinstance(lines, Mapping):
        return lines
    return lines["graph"] if "graph" in lines else {name: of_graph(line) for name, line in lines.items()}


def main(arguments: Sequence[str]) -> None:
    """Print a line of JSON for each case; `--llama`: the steps of Llama 3 8B; `--seconds 600`: as many as that takes.

    `--target v5e_2x2`: cases compiled for absent hardware; `--scale 16`: larger ones; `--only backward`: cases
    whose name has this; `--kinds held-out`: the other twelve kinds.
    In the end, by kinds of graphs: the cases, their median and largest regret, the mean of Kendall's tau.
    """
    if "--llama" not in arguments:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 4)
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        until = time.perf_counter() + float(options.get("--seconds", "inf"))
        chosen = cases(
            options.get("--target", "cpu"),
            int(options.get("--scale", "1")),
            held_out=options.get("--kinds") == "held-out",
        )
        _small(until, chosen, options.get("--only", ""))
        return
    for mesh, least in itertools.product(MESHES, ("bytes", "time")):
        print(json.dumps(llama(mesh, least)))
    slices = ("target=v5p_16x16x16", "target.slices=8")
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_platforms", "cpu")
        hardware = compose("llama_step", conf_folder(), ["hardware=v5p"]).plain["hardware"]
        for mesh, memory in itertools.product(MESHES, (None, "10 GiB")):
            wanted = {"least": "time", "memory": memory}
            print(json.dumps(planned_step(step(mesh, hardware=hardware, plan=wanted), Path(folder))))
    for least in ("bytes", "time"):
        print(json.dumps(llama({"slice": 8, "a": 16, "b": 16, "c": 16}, least, *slices, seconds=10.0)))


def _small(until: float, chosen: Iterable[tuple[str, dict[str, Any]]], only: str) -> None:
    every: dict[str, list[Compared]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in chosen:
            if only not in name:
                continue
            if time.perf_counter() > until:
                break
            case = compared(config, Path(folder))
            every.setdefault(name.split(",")[0], []).append(case)
            tau = None if case.tau is None else round(case.tau, 3)
            print(
                json.dumps(
                    {"case": name, "layouts": len(case.sent), "regret": case.regret, "ranked": case.ranked, "tau": tau}
                ),
                flush=True,
            )
    for kind, mine in [*every.items(), ("all", [case for each in every.values() for case in each])]:
        regrets = sorted(case.regret for case in mine)
        taus = [case.tau for case in mine if case.tau is not None]
        line = {
            "kind": kind,
            "cases": len(mine),
            "median regret": statistics.median(regrets),
            "under 5 %": sum(regret < 0.05 for regret in regrets) / len(regrets),
            "largest regret": regrets[-1],
            "largest of three": max(case.ranked for case in mine),
            "mean tau": statistics.mean(taus) if taus else None,
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main(sys.argv[1:])
