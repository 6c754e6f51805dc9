"""What a green `value` and a green `sections` prove: `python benchmarks/tolerance.py [--seeds 40] [--markdown FILE]`

Six programs in four dtypes, with contractions of 64 to 8,192 terms. For each, the right program runs at many seeds and
has to pass, and every mistake has to fail: in `value`, where JAX runs the program with the mistake and the oracle is
that of the right one; in `sections`, where `per_device` has the mistake and `graph` does not. Prints the tolerance, the
share of it that was used, the error that the check claims to notice, and the mistakes that it missed; the exit status
is 1 if it missed any.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from omegaconf import OmegaConf

from runner.checks import oracles
from runner.checks.kinds import sections, value
from runner.experiment import data
from runner.experiment.config.schema import ExperimentConfig
from runner.experiment.model import Experiment
from runner.experiment.program import Program as Way
from runner.experiment.reader import read
from runner.link.events import Compilation, Ran, Timing
from runner.link.target import ProgramRun, program_run
from runner.programs.types import InferredTypes
from runner.programs.writers import WRITERS
from runner.reports.record.verdicts import ValueVerdict
from runner.reports.show.table import Table, markdown
from runner.worker.execute import leave
from runner.worker.types import infer
from tests.harness import configured
from tests.here import loaded

DTYPES = {"float32": 1.0001, "bfloat16": 1.05, "float16": 1.05, "float8_e4m3fn": 1.1}
"""The dtypes, and the factor by which a wrong result must be noticed in each."""

STORED = "float8_e4m3fn stored"
"""8-bit floats as in practice: for the arrays and the result, with computation in bfloat16."""

LENGTHS = (64, 512, 8192)
ROWS, COLUMNS, DEVICES = 64, 32, 8


@dataclass(frozen=True)
class Program:
    """One computation: its arrays, its graph, its per-device lines, and possible mistakes in these.

    `mistakes` maps a description to the wrong line and its text; rounding may hide those in `subtle`, which only
    `sections` has to notice.
    """

    arrays: dict[str, dict[str, Any]]
    graph: dict[str, Any]
    per_device: dict[str, Any]
    mistakes: dict[str, tuple[str, str]]
    subtle: dict[str, tuple[str, str]]
    spec: tuple[str | None, ...] = ()


def _normal(*shape: Any, spec: list[Any], scale: float | str = 1.0) -> dict[str, Any]:
    return {"shape": list(shape), "init": f"normal(0, {scale})", "spec": spec}


DROPPED = "where(axis_index('x') == 3, 0, 1)"
ZEROED = "where((axis_index('x') == 0) & (arange(shape({x})[1]) == 0), 0, {x})"

PROGRAMS = {
    "matmul": Program(
        {
            "x": _normal(ROWS, "K", spec=[None, "x"]),
            "w": _normal("K", COLUMNS, spec=["x", None], scale="1 / K ** 0.5"),
            "b": _normal(COLUMNS, spec=[]),
            "r": _normal(ROWS, COLUMNS, spec=[]),
        },
        {"out": "x @ w + b + r"},
        {"p": "psum(x @ w, 'x')", "out": "p + b + r"},
        {
            "zeros": ("out", "(p + b + r) * 0"),
            "scale": ("out", "(p + b + r) * {scale}"),
            "a device dropped": ("p", f"psum({DROPPED} * (x @ w), 'x')"),
            "bias subtracted": ("out", "p - b + r"),
            "residual left out": ("out", "p + b"),
            "pmean for psum": ("p", "pmean(x @ w, 'x')"),
        },
        {
            "one element dropped": ("p", f"psum({ZEROED.format(x='x')} @ w, 'x')"),
            "scale of 1 + 1e-6": ("out", "(p + b + r) * (1 + 1e-6)"),
        },
    ),
    "MLP": Program(
        {
            "x": _normal(ROWS, COLUMNS, spec=[]),
            "w1": _normal(COLUMNS, "K", spec=[None, "x"], scale=COLUMNS**-0.5),
            "b1": _normal("K", spec=["x"]),
            "w2": _normal("K", COLUMNS, spec=["x", None], scale="1 / K ** 0.5"),
            "b2": _normal(COLUMNS, spec=[]),
        },
        {"h": "gelu(x @ w1 + b1)", "out": "x + h @ w2 + b2"},
        {"h": "gelu(x @ w1 + b1)", "p": "psum(h @ w2, 'x')", "out": "x + p + b2"},
        {
            "zeros": ("out", "(x + p + b2) * 0"),
            "scale": ("out", "(x + p + b2) * {scale}"),
            "a device dropped": ("p", f"psum({DROPPED} * (h @ w2), 'x')"),
            "bias subtracted": ("out", "x + p - b2"),
            "residual left out": ("out", "p + b2"),
            "pmean for psum": ("p", "pmean(h @ w2, 'x')"),
        },
        {
            "one element dropped": ("p", f"psum({ZEROED.format(x='h')} @ w2, 'x')"),
            "scale of 1 + 1e-6": ("out", "(x + p + b2) * (1 + 1e-6)"),
        },
    ),
    "softmax": Program(
        {"x": _normal(ROWS, "K", spec=[None, "x"]), "b": _normal("K", spec=["x"])},
        {"out": "softmax(x + b) * (K // 8)"},
        {
            "s": "x + b",
            "e": "exp(s - pmax(max(s, axis=-1, keepdims=True), 'x'))",
            "n": "psum(sum(e, axis=-1, keepdims=True), 'x')",
            "out": "e / n * (K // 8)",
        },
        {
            "zeros": ("out", "e / n * (K // 8) * 0"),
            "scale": ("out", "e / n * (K // 8) * {scale}"),
            "a device dropped": ("n", f"psum({DROPPED} * sum(e, axis=-1, keepdims=True), 'x')"),
            "bias subtracted": ("s", "x - b"),
            "pmean for psum": ("n", "pmean(sum(e, axis=-1, keepdims=True), 'x')"),
        },
        {
            "one element dropped": ("n", f"psum(sum({ZEROED.format(x='e')}, axis=-1, keepdims=True), 'x')"),
            "scale of 1 + 1e-6": ("out", "e / n * (K // 8) * (1 + 1e-6)"),
        },
        (None, "x"),
    ),
    "layer norm": Program(
        {
            "x": _normal(ROWS, "K", spec=[None, "x"]),
            "g": _normal("K", spec=["x"]),
            "b": _normal("K", spec=["x"]),
            "r": _normal(ROWS, "K", spec=[None, "x"]),
        },
        {
            "m": "mean(x, axis=-1, keepdims=True)",
            "v": "mean((x - m) ** 2, axis=-1, keepdims=True)",
            "out": "(x - m) * rsqrt(v + 1e-3) * g + b + r",
        },
        {
            "m": "pmean(mean(x, axis=-1, keepdims=True), 'x')",
            "v": "pmean(mean((x - m) ** 2, axis=-1, keepdims=True), 'x')",
            "y": "(x - m) * rsqrt(v + 1e-3) * g",
            "out": "y + b + r",
        },
        {
            "zeros": ("out", "(y + b + r) * 0"),
            "scale": ("out", "(y + b + r) * {scale}"),
            "a device dropped": ("v", f"pmean({DROPPED} * mean((x - m) ** 2, axis=-1, keepdims=True), 'x')"),
            "bias subtracted": ("out", "y - b + r"),
            "residual left out": ("out", "y + b"),
            "psum for pmean": ("v", "psum(mean((x - m) ** 2, axis=-1, keepdims=True), 'x')"),
        },
        {
            "mean over n - 1": ("v", "psum(sum((x - m) ** 2, axis=-1, keepdims=True), 'x') / (K - 1)"),
            "one element dropped": ("m", f"pmean(mean({ZEROED.format(x='x')}, axis=-1, keepdims=True), 'x')"),
            "scale of 1 + 1e-6": ("out", "(y + b + r) * (1 + 1e-6)"),
        },
        (None, "x"),
    ),
    "attention": Program(
        {
            "q": _normal(ROWS, COLUMNS, spec=[], scale=COLUMNS**-0.25),
            "k": _normal("K", COLUMNS, spec=["x"], scale=COLUMNS**-0.25),
            "v": _normal("K", COLUMNS, spec=["x"], scale="K ** 0.5"),
            "b": _normal(COLUMNS, spec=[], scale=1.0),
            "r": _normal(ROWS, COLUMNS, spec=[]),
        },
        {"out": "softmax(q @ k.T) @ v + b + r"},
        {
            "s": "q @ k.T",
            "e": "exp(s - pmax(max(s, axis=-1, keepdims=True), 'x'))",
            "n": "psum(sum(e, axis=-1, keepdims=True), 'x')",
            "p": "psum(e @ v, 'x')",
            "out": "p / n + b + r",
        },
        {
            "zeros": ("out", "(p / n + b + r) * 0"),
            "scale": ("out", "(p / n + b + r) * {scale}"),
            "a device dropped": ("p", f"psum({DROPPED} * (e @ v), 'x')"),
            "bias subtracted": ("out", "p / n - b + r"),
            "residual left out": ("out", "p / n + b"),
            "pmean for psum": ("n", "pmean(sum(e, axis=-1, keepdims=True), 'x')"),
        },
        {
            "one element dropped": ("p", f"psum({ZEROED.format(x='e')} @ v, 'x')"),
            "scale of 1 + 1e-6": ("out", "(p / n + b + r) * (1 + 1e-6)"),
        },
    ),
    "eight steps": Program(
        {
            "x": _normal(ROWS, "K", spec=[None, "x"]),
            "w": _normal("K", COLUMNS, spec=["x", None], scale="0.5 / K ** 0.5"),
            "u": _normal(COLUMNS, COLUMNS, spec=[], scale=0.5 * COLUMNS**-0.5),
            "b": _normal(COLUMNS, spec=[], scale=0.3),
        },
        {
            "h0": "x @ w",
            "net": {"repeat": 8, "carry": {"h": "h0"}, "body": {"h": "h + tanh(h @ u + b) * 0.25"}},
            "out": "net.h",
        },
        {
            "h0": "psum(x @ w, 'x')",
            "net": {"repeat": 8, "carry": {"h": "h0"}, "body": {"h": "h + tanh(h @ u + b) * 0.25"}},
            "out": "net.h",
        },
        {
            "zeros": ("out", "net.h * 0"),
            "scale": ("out", "net.h * {scale}"),
            "a device dropped": ("h0", f"psum({DROPPED} * (x @ w), 'x')"),
            "bias subtracted": ("net.body.h", "h + tanh(h @ u - b) * 0.25"),
            "residual left out": ("net.body.h", "tanh(h @ u + b) * 0.25"),
            "pmean for psum": ("h0", "pmean(x @ w, 'x')"),
        },
        {
            "one element dropped": ("h0", f"psum({ZEROED.format(x='x')} @ w, 'x')"),
            "scale of 1 + 1e-6": ("out", "net.h * (1 + 1e-6)"),
        },
    ),
}


def main() -> None:
    """Run every program in every dtype and length, and print the missed mistakes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--dtypes", nargs="*", default=[*DTYPES, STORED])
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    rows = []
    print(f"jax {jax.__version__}, {given.seeds} seeds of each right program")
    for name in given.programs:
        for dtype in given.dtypes:
            for length in given.lengths:
                row = _row(name, dtype, length, given.seeds)
                print("  ".join(row), flush=True)
                rows.append(row)
    if given.markdown:
        given.markdown.write_text("\n".join(markdown(Table(HEAD, rows))) + "\n")
    sys.exit(any(row[-1] not in ("nothing", "JAX gives NaN: weak") for row in rows))


HEAD = ("program", "dtype", "terms", "rounding", "allowed", "used", "notices", "mistakes", "missed")


def _row(name: str, dtype: str, length: int, seeds: int) -> tuple[str, ...]:
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        missed: list[str] = []
        right = _experiment(program, dtype, length, program.per_device)
        used, power, rounding, allowed, failed = 0.0, 0.0, 0.0, 0.0, 0
        for verdict in _verdicts(right, right, where, seeds):
            failed += verdict.status != "passed"
            out = verdict.compared["out"]
            if out.nan or out.power is None:
                # A mistake is invisible among NaNs: the verdict should be weak, and is printed.
                return name, dtype, str(length), "", "", "", "", "", f"JAX gives NaN: {verdict.status}"
            used, power = max(used, out.share), max(power, out.power)
            rounding, allowed = max(rounding, out.rounding), max(allowed, out.atol)
        if failed:
            missed.append(f"{failed} of {seeds} right ones")
        factor = DTYPES[dtype.removesuffix(" stored")]
        for mistake, (line, wrong) in (program.mistakes | program.subtle).items():
            changed = _changed(program.per_device, line, wrong.replace("{scale}", str(factor)))
            mistaken = _experiment(program, dtype, length, changed)
            if mistake in program.mistakes:
                verdict = next(_verdicts(right, mistaken, where, 1))
                if verdict.status != "failed":
                    missed.append(f"{mistake} (value)")
            if not _sections_notice(mistaken, where):
                missed.append(f"{mistake} (sections)")
    mistakes = f"{len(program.mistakes)} + {len(program.subtle)}"
    cells = (
        f"{rounding:.1e}",
        f"{allowed:.1e}",
        f"{used:.2f}",
        f"{power:.1e}",
        mistakes,
        ", ".join(missed) or "nothing",
    )
    return name, dtype, str(length), *cells


def _changed(lines: dict[str, Any], at: str, text: str) -> dict[str, Any]:
    head, _, inner = at.partition(".")
    return {**lines, head: _changed(lines[head], inner, text) if inner else text}


def _experiment(program: Program, dtype: str, length: int, per_device: dict[str, Any]) -> Experiment:
    stored = dtype == STORED
    dtype = dtype.removesuffix(" stored")
    arrays = {
        name: {**array, "dtype": dtype, "init": array["init"].replace("K", str(length))}
        for name, array in program.arrays.items()
    }
    graph: dict[str, Any] = program.graph
    if stored:
        # Values with standard deviation 8,192 ** 0.5 exceed 448, the largest of these dtypes.
        within = f"normal(0, {length} ** 0.46)"
        arrays = {
            name: {**array, "init": array["init"].replace(f"normal(0, {length} ** 0.5)", within)}
            for name, array in arrays.items()
        }
        casts = {name: f"astype({name}8, 'bfloat16')" for name in arrays}
        arrays = {f"{name}8": array for name, array in arrays.items()}
        graph, per_device = (
            {**casts, **lines, "out": f"astype({lines['out']}, '{dtype}')"} for lines in (graph, per_device)
        )
    config = {
        "name": "tolerance",
        "mesh": {"axes": ["x"], "shape": [DEVICES]},
        "dims": {"K": length},
        "arrays": arrays,
        "graph": graph,
        "per_device": per_device,
        "outputs": {"out": list(program.spec)},
        "check_vma": False,
    }
    plain: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(ExperimentConfig), config), resolve=True)
    return read(plain)


def _context(experiment: Experiment, types: InferredTypes, where: Path) -> oracles.Context:
    """Return the oracles of the sections that the experiment has."""
    return oracles.consult(experiment, data.make(experiment, where), types.outputs, types.floats)


def _verdicts(right: Experiment, ran: Experiment, where: Path, seeds: int) -> Iterator[ValueVerdict]:
    """Yield the verdict on JAX's result for the `shard_map` of `ran`, by the oracle of `right`, seed by seed."""
    functions: dict[str, Any] = {}
    with configured(ran):
        types = infer(right)
        with written(Way.SHARD_MAP, ran, infer(ran), where) as module:
            for seed in range(seeds):
                # JAX's result for the `shard_map` is compared with `per_device` alone.
                context = _context(replace(right.alone("per_device"), seed=seed), types, where)
                yield value.check(context, execute(context, Way.SHARD_MAP, module, functions, where))


def _sections_notice(mistaken: Experiment, where: Path) -> bool:
    with configured(mistaken):
        return sections.check(_context(mistaken, infer(mistaken), where)).status == "failed"


def written(
    program: Way, experiment: Experiment, types: InferredTypes, where: Path
) -> contextlib.AbstractContextManager[ModuleType]:
    """Write a program into `where` and import it with the JAX configuration of its header."""
    path = where / f"program_{program}.py"
    path.write_text(WRITERS[program](experiment, where, types), encoding="utf-8")
    return loaded(path)


def execute(
    context: oracles.Context, program: Way, module: ModuleType, functions: dict[str, Any], where: Path
) -> ProgramRun:
    """Run a program on the arrays of the context."""
    experiment = context.experiment
    operands: Any = tuple(context.arrays[array.name] for array in experiment.arrays)
    devices = jax.devices()[: experiment.mesh.size]
    if not program.on_mesh:
        functions.setdefault(program, module.program())
        operands, ids = module.split(*operands), list(range(experiment.mesh.size))
    else:
        mesh = module.make_mesh(devices)
        if program not in functions:
            functions[program] = module.program(mesh)
        operands, ids = jax.device_put(operands, module.shardings(mesh)), [d.id for d in mesh.devices.flat]
    outputs = jax.block_until_ready(functions[program](*operands))
    ran = Ran(
        device_ids=ids,
        outputs=leave(experiment, program, outputs, where),
        operands={},
        stderr=None,
        compilation=Compilation(memory=None, cost=None, timing=Timing(place_s=None, compile_s=0.0, run_s=None)),
    )
    shapes = {name: shape for name, (shape, _) in context.outputs.items()}
    return program_run(program, ran, shapes, lambda name, position: context.layout(name).ranges(position), where)


if __name__ == "__main__":
    main()
