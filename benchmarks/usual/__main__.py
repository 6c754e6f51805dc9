"""Are functions as people write them right, and are small mistakes in them noticed?

`python -m benchmarks.usual [--mistakes] [--dtype bfloat16] [NAME …]`, from the root of the repository.

Runs each function of `programs.py` on two by two devices, or with `--mistakes` each with one of the small mistakes of
`mistakes.py` beside itself as the reference, in float32. Prints those that did not pass, with mistakes those that did
not fail, the outputs that a twin decided, and the counts; the exit status is 1 if there were any.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec as P

from benchmarks.usual import programs
from benchmarks.usual.mistakes import CALLERS, MISTAKES
from runner.app import api
from runner.link.workers import Workers
from runner.reports.record.model import Record
from runner.reports.record.verdicts import ValueOutput, ValueVerdict

Function = Callable[..., Any]

OPERANDS: dict[str, tuple[tuple[int, ...], P]] = {
    "x": ((16, 8), P("data")), "y": ((16, 8), P("data")), "w": ((8, 16), P(None, "model")),
    "w2": ((8, 16), P(None, "model")), "v": ((16, 8), P("model")), "b": ((16,), P("model")), "g": ((8,), P()),
    **{name: ((8, 8), P(None, "model")) for name in ("u", "u2", "p1", "p2")},
    **{name: ((2, 8, 4, 4), P("data", None, "model")) for name in "qkz"},
    "e": ((4, 8, 8), P("model")), "m": ((4, 8, 8, 4), P("data")), "c": ((3, 3, 4, 4), P(None, None, None, "model")),
}  # fmt: skip
"""The shape and the layout of an operand, by its name; weights have smaller values."""

WEIGHTS = ("w", "w2", "v", "u", "u2", "e", "c")
PARTS = ("ln", "rms", "by_hand")
SINGLE = ("shampoo", "dequantized", "spectrum", "phases", "unitary")
"""Functions that compute in float32 whatever the dtype of their operands: these have it too."""


def functions() -> dict[str, Function]:
    """The functions that are run, by name."""
    own = {n: f for n, f in vars(programs).items() if inspect.isfunction(f) and f.__module__ == programs.__name__}
    return {name: f for name, f in own.items() if name not in PARTS and not name.startswith("ref_")}


def checked(function: Function, dtype: str, folder: Path, workers: Workers, **keys: Any) -> Record:
    """Check a function on operands of a dtype."""
    names, rng = [*inspect.signature(function).parameters], np.random.default_rng(0)
    operands = [
        (rng.normal(size=OPERANDS[name][0]) * (0.35 if name in WEIGHTS else 1.0)).astype(dtype) for name in names
    ]
    by_hand = function.__name__ in ("tp_loss", "tp_norm", "tp_softmax")
    specs = [P("data", "model") if by_hand else OPERANDS[name][1] for name in names]
    mesh = {"data": 2, "model": 2}
    return api.checked(function, operands, folder, workers, mesh=mesh, in_specs=specs, program=["auto"], **keys)


def reference(name: str) -> Function:
    """What a function should compute: for one with a `shard_map` another one, without it."""
    return getattr(programs, name.replace("tp_", "ref_"))


def mistaken(folder: Path) -> Iterator[tuple[str, Function]]:
    """The functions with mistakes, each with what is wrong with it."""
    assert programs.__file__ is not None
    source = Path(programs.__file__).read_text(encoding="utf-8")
    for number, (changed, old, new) in enumerate(MISTAKES):
        text = re.search(rf"^def {changed}\(.*?(?=^def |\Z)", source, re.DOTALL | re.MULTILINE)
        assert text is not None
        assert old in text[0], (changed, old)
        file = folder / f"mistaken_{number}.py"
        file.write_text(source.replace(text[0], text[0].replace(old, new, 1)), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        yield f"{changed}: {old} → {new}", getattr(module, CALLERS.get(changed, changed))


def main() -> None:
    """Run the functions; the exit status is 1 if one is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--mistakes", action="store_true")
    parser.add_argument("--dtype", help="instead of float32, bfloat16 and float16 in turn")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder, workers = Path(scratch), Workers()
        cases = mistaken(folder) if given.mistakes else iter(functions().items())
        wanted = "failed" if given.mistakes else "passed"
        for number, (what, function) in enumerate(cases):
            name = function.__name__
            if given.names and name not in given.names:
                continue
            keys: dict[str, Any] = {"reference": reference(name), "diagnose": 0} if given.mistakes else {}
            if not given.mistakes and name.startswith("tp_"):
                keys = {"reference": reference(name)}
            dtype = given.dtype or ("float32", "bfloat16", "float32", "float16")[number % 4]
            dtype = "float32" if given.mistakes or name in SINGLE else dtype
            record = checked(function, dtype, folder / f"run_{number}", workers, **keys)
            counts[record.status] += 1
            if record.status != wanted:
                print(what, dtype, record.status, record.error or "", flush=True)
            for output in _decided(record) if record.status == "passed" else ():
                print(f"    a twin decided {what} in {dtype}: {output.reason}", flush=True)
        workers.close()
    print(f"{sum(counts.values())} functions: {dict(counts)}")
    sys.exit(bool(counts.keys() - {wanted}))


def _decided(record: Record) -> Iterator[ValueOutput]:
    for program in record.programs.values():
        if isinstance(program.checks.value, ValueVerdict):
            yield from (output for output in program.checks.value.compared.values() if output.twin is not None)


if __name__ == "__main__":
    main()
