"""Right programs, drawn at random: how many of them fail, are weak, or end in an error?

`python -m benchmarks.right_programs [--count 400] [--seeds 5] [--first 0] [--verify rounding]`, from the root of the
repository.

Each has two products of 8 to 512 terms, two elementary functions, layouts of one or two mesh axes, float32, bfloat16 or
float16, and mostly gradients. With `--verify rounding` no twin decides. Prints each that did not pass, and the counts.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import Any

import jax

from benchmarks.fuzz import judge
from benchmarks.fuzz.cases import complete

FUNCTIONS = (
    "tanh({x})", "exp(0.3 * {x})", "expm1(0.3 * {x})", "log1p({x} ** 2)", "logistic({x})", "erf({x})", "sin({x})",
    "cos({x})", "gelu({x})", "silu({x})", "softplus({x})", "mish({x})", "erfc(0.5 * {x})", "arctan({x})",
    "sinh(0.3 * {x})", "cosh(0.3 * {x})", "exp2(0.3 * {x})", "rsqrt({x} ** 2 + 0.1)", "sqrt({x} ** 2 + 0.1)",
    "softmax({x}, axis=-1)", "log_softmax({x}, axis=-1)", "{x} - logsumexp({x}, axis=-1, keepdims=True)",
    "({x} - mean({x}, axis=-1, keepdims=True)) * rsqrt(var({x}, axis=-1, keepdims=True) + 1e-3)",
)  # fmt: skip
TERMS = (8, 16, 32, 64, 128, 256, 512)
MESHES = ({"model": 2}, {"model": 4}, {"model": 8}, {"data": 2, "model": 2}, {"data": 2, "model": 4})
DTYPES = ("float32", "float32", "bfloat16", "float16")


def program(number: int) -> dict[str, Any]:
    """Return the configuration of one right program, always the same one."""
    rng = random.Random(f"right {number}")
    mesh, dtype, terms = rng.choice(MESHES), rng.choice(DTYPES), rng.choice(TERMS)
    rows, inner, columns = rng.choice((8, 16, 32)), rng.choice((8, 16, 32, 64)), 8

    def spec(shape: tuple[int, ...]) -> list[str | None]:
        free = rng.sample(list(mesh), len(mesh))
        return [free.pop() if free and rng.random() < 0.6 and size % mesh[free[-1]] == 0 else None for size in shape]

    def array(*shape: int, scale: float) -> dict[str, Any]:
        return {"shape": list(shape), "dtype": dtype, "init": f"normal(0, {scale})", "spec": spec(shape)}

    arrays = {
        "x": array(rows, terms, scale=rng.choice((1.0, 2.0))),
        "w1": array(terms, inner, scale=terms**-0.5),
        "w2": array(inner, columns, scale=inner**-0.5),
        "b": array(inner, scale=0.5),
    }
    first, second = (rng.choice(FUNCTIONS) for _ in range(2))
    graph = {"z": "x @ w1 + b", "h": first.format(x="z"), "y": "h @ w2", "o": second.format(x="y")}
    outputs: dict[str, Any] = {"o": spec((rows, columns))}
    plain: dict[str, Any] = {
        "name": f"right_{number}",
        "mesh": {"axes": list(mesh), "shape": list(mesh.values())},
        "arrays": arrays,
        "graph": graph,
        "outputs": outputs,
        "program": rng.choice(("auto", "constraint", "derived", "derived")),
        "timeout": 120,
    }
    if rng.random() < 0.6:
        graph["loss"], outputs["loss"] = rng.choice(("mean(o ** 2)", "sum(o * o)", "mean(o)")), []
        plain["grad"] = {"of": "loss", "wrt": rng.sample(list(arrays), 2)}
    return plain


def main() -> None:
    """Run the programs at several seeds; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--verify", help="as the key of a file: twin, rounding")
    given = parser.parse_args()
    judge.prepare(optimized=True)
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    more = {} if given.verify is None else {"verify": given.verify}
    for number in range(given.first, given.first + given.count):
        for seed in range(given.seeds):
            judged = judge.judge(complete({**program(number), **more, "seed": seed}))
            counts[judged["status"]] += 1
            if judged["status"] != "passed":
                print(number, seed, judged["status"], judged.get("error"), judged["found"], flush=True)
        judge.forget()
    print(f"jax {jax.__version__}: {dict(counts)}; {time.perf_counter() - start:.0f} s")
    sys.exit(bool(counts.keys() - {"passed", "weak"}))


if __name__ == "__main__":
    main()
