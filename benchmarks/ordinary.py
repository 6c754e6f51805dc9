"""Programs as people write them, all right, in the dtypes that they use: does one fail?

`python -m benchmarks.ordinary [--seeds 3] [--dtypes float32 bfloat16 float16] [--planted] [NAME …]`, from the root of
the repository.

Each is compiled as `auto` and `derived`, once for all seeds. Prints those that did not pass, and the counts; the exit
status is 1 if there was one. With `--planted` each gets mistakes in the file that is compiled, the oracle stays right,
and those that pass are printed and counted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax

from benchmarks.fuzz import judge
from benchmarks.fuzz.cases import complete
from benchmarks.right_programs import compiled_once
from runner.worker import job

Lines = dict[str, Any]
X, W, V = ([16, 8], ["data", None]), ([8, 16], [None, "model"]), ([16, 8], ["model", None])
"""Tokens and two weights: shapes and specs."""
Q = ([2, 8, 2, 4], ["data", None, "model", None])
"""Queries, keys or values: batch, sequence, heads, dimension."""

PROGRAMS: dict[str, tuple[dict[str, tuple[list[int], list[Any]]], Lines, list[str]]] = {
    "attention with a mask": (
        {"q": Q, "k": Q, "v": Q},
        {
            "s": "einsum('bthd,bshd->bhts', q, k) * 0.5",
            "m": "where(tri(8) > 0, s, -1e9)",
            "o": "einsum('bhts,bshd->bthd', softmax(m, axis=-1), v)",
            "loss": "mean(o ** 2)",
        },
        ["q", "v"],
    ),
    "layer norm": (
        {"x": X, "g": ([8], [None])},
        {
            "c": "x - mean(x, axis=-1, keepdims=True)",
            "o": "c * rsqrt(mean(c ** 2, axis=-1, keepdims=True) + 1e-5) * g",
            "loss": "sum(o ** 3)",
        },
        ["x", "g"],
    ),
    "RMS norm and gated MLP": (
        {"x": X, "w": W, "u": W, "v": V},
        {
            "n": "x * rsqrt(mean(x ** 2, axis=-1, keepdims=True) + 1e-6)",
            "o": "x + (silu(n @ w) * (n @ u)) @ v",
            "loss": "mean(o ** 2)",
        },
        ["w", "v"],
    ),
    "cross entropy": (
        {"x": X, "w": W},
        {"l": "log_softmax(x @ w, axis=-1)", "loss": "-mean(sum(l * eye(16), axis=-1))"},
        ["x", "w"],
    ),
    "cross entropy with z-loss": (
        {"x": X, "w": W},
        {"z": "logsumexp(x @ w, axis=-1)", "loss": "mean(z) + 1e-3 * mean(z ** 2)"},
        ["w"],
    ),
    "focal loss": (
        {"x": X, "w": W},
        {"p": "logistic(x @ w)", "loss": "-mean((1 - p) ** 2 * log(p + 1e-3))"},
        ["w"],
    ),
    "RNN": (
        {"x": X, "w": ([8, 8], [None, "model"])},
        {
            "r": {"repeat": 6, "carry": {"h": "x"}, "body": {"h": "tanh(h @ w + x)"}},
            "o": "r.h",
            "loss": "mean(o ** 2)",
        },
        ["w"],
    ),
    "Euler steps of an oscillator": (
        {"x": X, "v": X},
        {
            "r": {"repeat": 20, "carry": {"a": "x", "b": "v"}, "body": {"a": "a + 0.1 * b", "b": "b - 0.1 * sin(a)"}},
            "o": "r.a ** 2 + r.b ** 2",
        },
        [],
    ),
    "routing by top_k": (
        {"x": X, "w": ([8, 4], [None, None])},
        {"g": "softmax(x @ w, axis=-1)", "t": "top_k(g, 2)[0]", "o": "t / sum(t, axis=-1, keepdims=True)"},
        [],
    ),
    "cumulative sums": ({"x": X}, {"o": "cumsum(x, axis=0)", "p": "cumsum(exp(-x ** 2), axis=1)"}, []),
    "sorted rows": ({"x": X}, {"o": "sort(x, axis=1)", "p": "sort(x, axis=0)"}, []),
    "argmax": ({"x": X, "w": W}, {"o": "argmax(x @ w, axis=-1)"}, []),
    "quantized": ({"x": X}, {"s": "max(abs(x)) / 127", "o": "round(x / s) * s"}, []),
    "embedding": (
        {"t": ([16, 8], ["model", None])},
        {"i": "arange(12) % 16", "e": "take(t, i, axis=0)", "loss": "mean(e ** 2)"},
        ["t"],
    ),
    "segments": ({"x": X}, {"o": "segment_sum(x, arange(16) // 4, 4)"}, []),
    "convolution": ({"x": ([32], ["data"]), "k": ([5], [None])}, {"o": "convolve(x, k, mode='same')"}, []),
    "step of Adam": (
        {"x": X, "w": W, "m": W, "s": W},
        {
            "loss": "mean((x @ w) ** 2)",
            "n": "0.9 * m + 0.1 * grad.w",
            "q": "0.999 * s ** 2 + 0.001 * grad.w ** 2",
            "o": "w - 1e-2 * (n / 0.1) / (sqrt(q / 0.001) + 1e-8)",
        },
        ["w"],
    ),
    "step with clipped norm": (
        {"x": X, "w": W},
        {
            "loss": "mean((x @ w) ** 2)",
            "n": "sqrt(sum(grad.w ** 2))",
            "o": "w - 0.1 * grad.w * minimum(1.0, 1.0 / (n + 1e-6))",
        },
        ["w"],
    ),
    "contrastive": (
        {"a": X, "b": X},
        {
            "p": "a * rsqrt(sum(a ** 2, axis=-1, keepdims=True))",
            "q": "b * rsqrt(sum(b ** 2, axis=-1, keepdims=True))",
            "s": "p @ transpose(q) / 0.1",
            "loss": "-mean(sum(log_softmax(s, axis=-1) * eye(16), axis=-1))",
        },
        ["a"],
    ),
    "kernel matrix": (
        {"x": X},
        {"d": "sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1)", "o": "exp(-0.1 * d)"},
        [],
    ),
    "Sinkhorn": (
        {"x": ([16, 16], ["data", None])},
        {
            "r": {
                "repeat": 5,
                "carry": {"z": "x"},
                "body": {"z": "z - logsumexp(z, axis=1, keepdims=True) - logsumexp(z, axis=0, keepdims=True) * 0.5"},
            },
            "o": "exp(r.z)",
        },
        [],
    ),
    "Newton-Schulz": (
        {"g": ([16, 8], ["data", None])},
        {
            "n": "g / sqrt(sum(g ** 2))",
            "r": {"repeat": 4, "carry": {"z": "n"}, "body": {"z": "1.5 * z - 0.5 * z @ (transpose(z) @ z)"}},
            "o": "r.z",
        },
        [],
    ),
    "residual blocks": (
        {"x": X, "w": W, "v": V},
        {
            "r": {"repeat": 4, "carry": {"h": "x"}, "body": {"h": "h + gelu(h @ w) @ v * 0.3"}, "checkpoint": True},
            "o": "r.h",
            "loss": "mean(o ** 2)",
        },
        ["w", "v"],
    ),
    "products in fp8 with a scale": (
        {"x": X, "w": W},
        {
            "sx": "max(abs(x)) / 448 + 1e-6",
            "sw": "max(abs(w)) / 448 + 1e-6",
            "qx": "astype(x / sx, 'float8_e4m3fn')",
            "qw": "astype(w / sw, 'float8_e4m3fn')",
            "o": "astype(qx, 'float32') @ astype(qw, 'float32') * astype(sx * sw, 'float32')",
        },
        [],
    ),
    "weights stored in fp8": (
        {"x": X, "w": W},
        {"h": "astype(astype(w, 'float8_e5m2'), 'float32')", "o": "tanh(x @ h)", "loss": "mean(o ** 2)"},
        ["x"],
    ),
    "a filter in frequency": (
        {"x": X},
        {
            "f": "rfft(astype(x, 'float32'), axis=1)",
            "o": "irfft(f * exp(-0.2 * arange(5)), n=8, axis=1)",
            "p": "abs(f) ** 2",
        },
        [],
    ),
    "convolution by FFT": (
        {"x": ([32], ["data"]), "k": ([32], [None])},
        {"o": "real(ifft(fft(astype(x, 'float32')) * fft(astype(k, 'float32'))))", "loss": "mean(o ** 2)"},
        [],
    ),
    "FNet": (
        {"x": ([2, 8, 8], ["data", "model", None])},
        {"o": "real(fft(fft(astype(x, 'float32'), axis=-1), axis=-2))"},
        [],
    ),
    "groups of unequal sizes": (
        {"x": X, "w": ([4, 8, 8], [None, None, "model"])},
        {"n": "asarray([5, 0, 8, 3])", "o": "ragged_dot(x, w, n)"},
        [],
    ),
    "padded sequences": (
        {"x": X},
        {
            "n": "asarray([3, 5, 1, 7, 8, 2, 4, 6, 8, 8, 1, 2, 3, 7, 5, 6])",
            "m": "arange(8)[None, :] < n[:, None]",
            "o": "softmax(where(m, x, -1e9), axis=-1)",
            "p": "sum(where(m, x, 0), axis=-1) / n",
        },
        [],
    ),
    "parts that no axis divides": (
        {"x": X, "w": W},
        {"h": "concatenate([x[:5], x[9:]], axis=0)", "o": "pad(h @ w, ((0, 2), (0, 3)))", "loss": "mean(o ** 2)"},
        ["w"],
    ),
    "variance of two passes": ({"x": X}, {"o": "mean(x ** 2, axis=0) - mean(x, axis=0) ** 2", "v": "var(x)"}, []),
}
"""By name: arrays (shape, spec), lines, and the arrays whose gradients of `loss` are computed."""


SHOWN = ("o", "p", "v", "loss", "e")
"""The lines that are outputs."""


def config(name: str, dtype: str, seed: int) -> dict[str, Any]:
    """Return the configuration of a program in a dtype."""
    arrays, lines, wrt = PROGRAMS[name]
    shown = [line for line in lines if line in SHOWN]
    plain: dict[str, Any] = {
        "name": name.replace(" ", "_").replace("-", "_"),
        "mesh": {"axes": ["data", "model"], "shape": [2, 2]},
        "arrays": {
            array: {"shape": shape, "spec": spec, "dtype": dtype, "init": f"normal(0, {shape[0] ** -0.5})"}
            for array, (shape, spec) in arrays.items()
        },
        "graph": lines,
        "outputs": {line: [] for line in shown},
        "program": ["auto", "derived"],
        "seed": seed,
        "timeout": 200,
    }
    if wrt:
        plain["grad"] = {"of": "loss", "wrt": wrt}
    return complete(plain)


MISTAKES = {
    "a tenth too large": "({value}) * 1.1",
    "one row doubled": "jnp.asarray({value}).at[0].multiply(2)",
    "rolled by one": "jnp.roll({value}, 1)",
}
"""What becomes of the first output that is no gradient."""


@contextlib.contextmanager
def planted(name: str, mistake: str | None) -> Iterator[None]:
    """Let programs be written with a mistake in their first output."""
    line = next(line for line in PROGRAMS[name][1] if line in SHOWN)

    def wrong(write: Callable[..., str]) -> Callable[..., str]:
        def written(*given: Any) -> str:
            changed = write(*given)
            places = [*re.finditer(rf"(?m)^(\s+{line} = )(.*)$", changed)]
            assert mistake is not None
            last = places[-1]
            return changed[: last.start(2)] + MISTAKES[mistake].format(value=last[2]) + changed[last.end(2) :]

        return written

    broken = job.WRITERS if mistake is None else {program: wrong(write) for program, write in job.WRITERS.items()}
    with mock.patch.object(job, "WRITERS", broken):
        yield


def main() -> None:
    """Run the programs, and print those that did not pass, or with mistakes those that did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--planted", action="store_true")
    given = parser.parse_args()
    judge.prepare(optimized=True)
    counts: Counter[str] = Counter()
    twins, start = 0, time.process_time()
    mistakes: list[str | None] = [*MISTAKES] if given.planted else [None]
    names: list[str] = given.names or [*PROGRAMS]
    cases = itertools.product(itertools.product(names, given.dtypes), mistakes, range(given.seeds))
    expected = {"failed"} if given.planted else {"passed"}
    with compiled_once():
        for (name, dtype), mistake, seed in cases:
            with planted(name, mistake):
                judged = judge.judge(config(name, dtype, seed))
            counts[judged["status"]] += 1
            twins += bool(judged.get("twins"))
            if judged["status"] not in expected:
                error, details = judged.get("error"), str(judged["found"])[:1000]
                print(name, dtype, mistake or "", seed, judged["status"], error, details, flush=True)
            judge.forget()
    spent = time.process_time() - start
    print(f"jax {jax.__version__}: {dict(counts)}; {twins} runs needed a twin; {spent:.0f} s of processor time")
    sys.exit(bool(counts.keys() - expected))


if __name__ == "__main__":
    main()
