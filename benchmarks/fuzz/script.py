"""Writes a script with JAX and NumPy alone that reproduces a wrong program's failure."""

from __future__ import annotations

from typing import Any

_MAIN = '''WANTED = {wanted}
"""What NumPy computes in float64."""


def main():
    mesh = make_mesh()
    outputs = program(mesh)(*jax.device_put(inputs(), shardings(mesh)))
    wrong = False
    for (name, wanted), output in zip(WANTED.items(), outputs):
        got, wanted = np.asarray(output), np.array(wanted)
        wide = got.astype(wanted.dtype)
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
        here = not np.allclose(wide, wanted, rtol={rtol!r}, atol={rtol!r} * largest, equal_nan=True)
        print(f"{{name}} {{'WRONG' if here else 'right'}}\\ngot\\n{{got}}\\nwanted\\n{{wanted}}")
        wrong |= here
    raise SystemExit(wrong)


if __name__ == "__main__":
    main()
'''


def compared(verdict: dict[str, Any], program: str) -> str:
    """Return the program's source with a `main` that compares its outputs with the oracle's; for `vmap`, its own."""
    source = verdict["sources"][program]
    section = "per_device" if program in ("shard_map", "vmap") else "graph"
    wanted = verdict.get("oracle", {}).get(section)
    if program == "vmap" or wanted is None:
        return source
    head = source[: source.index("\ndef main():")].rstrip() + "\n\n\n"
    body = _MAIN.format(wanted=_literal(wanted), rtol=_tolerance(verdict, program))
    return head + body


def _tolerance(verdict: dict[str, Any], program: str) -> float:
    """Return a round number above the dtypes' usual rounding error and below the observed error."""
    narrow = any(f"ml_dtypes.{name}" in verdict["sources"][program] for name in ("bfloat16", "float8", "float4"))
    return 0.05 if narrow or "np.float16" in verdict["sources"][program] else 1e-4


def _literal(wanted: dict[str, Any]) -> str:
    text = repr(wanted)
    return text.replace("nan", "np.nan").replace("inf", "np.inf")
