"""The time of large inputs as whole processes, here and in another checkout: whether a change made it slower.

    python benchmarks/sizes.py [NAME …] [--against FOLDER] [--rounds 3]

`lines` is a graph of 400 lines, from which all programs are written and run; `chips` derives the lines of one device
for a mesh of 64×64 from a graph alone; `sweep` is 100 points of case 3; `llama` the experiment `llama_block_adamw` with
all its programs. The two checkouts run in turn, so that a slow moment of the machine affects both alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINES = 400

HEAD = "# @package _global_\n"
MESH = "mesh: {{axes: [x, y], shape: [{side}, {side}]}}\n"
STEPS = ("{h} @ W", "tanh({h})", "{h} + b", "{h} - mean({h}, axis=-1, keepdims=True)")
"""The expressions of a long graph's lines, in turn."""

CHIPS = """dims: {B: 8192, D: 4096, F: 16384}
arrays:
  X: {shape: [B, D], init: zeros(), spec: [x, null]}
  W: {shape: [D, F], init: zeros(), spec: [null, y]}
  V: {shape: [F, D], init: zeros(), spec: [y, null]}
graph:
  h: X @ W
  g: h * sigmoid(h)
  z: g @ V
  n: z - mean(z, axis=-1, keepdims=True)
  out: softmax(n, axis=-1)
outputs: {out: [x, y]}
"""

SWEEP = (
    "-m", "+experiment=case3_allreduce", "mesh.axes=[x,y,z]", "dims.I=8", "dims.K=8",
    "mesh.shape=[8,1,1],[4,2,1],[4,1,2],[2,4,1],[2,2,2],[2,1,4],[1,8,1],[1,4,2],[1,2,4],[1,1,8]",
    "arrays.A.spec=[null,x],[y,x],[z,x],[[y,z],x],[[z,y],x]", "outputs.C=['${arrays.A.spec.0}',null]",
    "dims.J=16", "program=auto,shard_map", "expect.collectives=null", "expect.values=null",
)  # fmt: skip


def long_graph() -> str:
    """Return an experiment whose graph has many lines, each of which reads the one before it."""
    lines = [f"  h{n}: {STEPS[n % len(STEPS)].format(h=f'h{n - 1}' if n else 'X')}" for n in range(LINES)]
    arrays = (
        "  X: {shape: [8, 8], init: 'normal(0, 1)', spec: [x, null]}",
        "  W: {shape: [8, 8], init: 'normal(0, 0.3)', spec: [null, y]}",
        "  b: {shape: [8], init: 'normal(0, 1)', spec: [y]}",
    )
    outputs = f"outputs: {{h{LINES - 1}: [x, null]}}"
    return "\n".join(["arrays:", *arrays, "graph:", *lines, outputs, ""])


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands by name; experiments that only this benchmark has are written into `folder`."""
    (folder / "experiment").mkdir()
    for name, side, text in (("lines", 2, long_graph()), ("chips", 64, CHIPS)):
        content = f"{HEAD}name: {name}\n{MESH.format(side=side)}{text}"
        (folder / "experiment" / f"{name}.yaml").write_text(content, encoding="utf-8")
    own = ["--config-dir", str(folder)]
    return {
        "lines": ["runner", *own, "+experiment=lines"],
        "chips": ["runner", "derive", *own, "+experiment=chips"],
        "sweep": ["runner", *SWEEP],
        "llama": ["runner", "+experiment=llama_block_adamw"],
    }


def seconds(command: list[str], root: Path, out: Path) -> float:
    """Return the wall time of one process, which must succeed."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(out.parent / root.name)}
    where = f"hydra.{'sweep' if '-m' in command else 'run'}.dir={out}"
    start = time.perf_counter()
    line = [sys.executable, "-m", *command, where]
    done = subprocess.run(line, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{line} in {root} ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--against", type=Path, help="another checkout, whose packages are those of this Python")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    roots = [ROOT, *([given.against.resolve()] if given.against else [])]
    with tempfile.TemporaryDirectory() as scratch:
        known = commands(Path(scratch))
        print(f"{'':<8}" + "".join(f"{name:>24}" for name in ("here", "there", "here / there")[: 2 * len(roots) - 1]))
        for name in given.names or known:
            times: list[list[float]] = [[] for _ in roots]
            for turn in range(given.rounds + 1):
                for number, root in enumerate(roots):
                    taken = seconds(known[name], root, Path(scratch) / f"{name}-{turn}-{number}")
                    # The first round compiles the modules.
                    if turn:
                        times[number].append(taken)
            row = [f"{statistics.median(each):.2f} s, least {min(each):.2f} s" for each in times]
            if len(roots) > 1:
                row.append(f"{statistics.median(times[0]) / statistics.median(times[1]):.2f}")
            print(f"{name:<8}" + "".join(f"{column:>24}" for column in row), flush=True)


if __name__ == "__main__":
    main()
