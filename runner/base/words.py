"""Words names, axes, bytes, times and devices, the same in all messages and tables."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from runner.base.untyped import is_tuple

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_MOST = 10**30
"""The most bytes that are said; only the text of a module that no machine runs has more."""

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_FLOPS = ("flops", "kflop", "Mflop", "Gflop", "Tflop", "Pflop", "Eflop")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Join names as `auto, constraint and explicit`; `last` is the conjunction."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def quoted(names: Sequence[str]) -> str:
    """Quote and join names: `'x' and 'y'`."""
    return listed([f"'{name}'" for name in names])


def as_spec(entries: object) -> str:
    """Return the hint for a tuple of axis names in place of a PartitionSpec; empty for other values."""
    if not is_tuple(entries) or not entries or not all(entry is None or isinstance(entry, str) for entry in entries):
        return ""
    return f": write P({', '.join(map(repr, entries))})"


def bytes_text(count: int | None) -> str:
    """Format bytes in powers of 1000, with one decimal below 100: `64 B`, `2.1 MB`, `170 GB`."""
    if count is None:
        return "an unknown number of bytes"
    if count > _MOST:
        return f"more than {_MOST:.0e} B"
    return f"{count} B" if abs(count) < 1000 else _scaled(count, _BYTES)


def flops_text(count: float) -> str:
    """Format floating-point operations, in full below a million: `852,016 flops`, `1.3 Mflop`, `170 Gflop`."""
    return f"{count:,.0f} flops" if round(count) < 1_000_000 else _scaled(count, _FLOPS)


def _scaled(size: float, units: Sequence[str]) -> str:
    """Format a number with the unit that leaves it below 1000; each unit is a thousand of the one before."""
    power = 0
    while abs(size) >= 999.5 and power < len(units) - 1:
        size /= 1000
        power += 1
    return f"{size:.{1 if abs(size) < 99.95 else 0}f} {units[power]}"


def time_text(seconds: float | None) -> str:
    """Format seconds as three digits and a unit, `62.1 µs`; None as a dash."""
    if seconds is None:
        return "–"
    # 999.5 and more would round to 1000 of a unit, so it is 1 of the next.
    size, unit = next(((size, unit) for size, unit in _TIMES if seconds >= 0.9995 * size), _TIMES[-1])
    return f"{seconds / size:#.3g}".removesuffix(".") + f" {unit}"


def share_text(share: float) -> str:
    """Format a share as a percentage with two digits: `100%`, `58%`, `0.058%`, `under 0.001%`."""
    percent = 100 * share
    if 0 < percent < 0.001:
        return "under 0.001%"
    return f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.2g}%"


def devices_text(ids: Sequence[int], platform: str = "", *, whole: bool = False) -> str:
    """Format device ids with consecutive ones as ranges: `CPU 0,1`, `0-7,16-23`.

    Unless `whole`, many ranges are abbreviated: `0,2,…,62 (32)`.
    """
    runs: list[list[int]] = []
    for device in ids:
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    parts = [f"{a}-{b}" if b - a > 1 else ",".join(map(str, range(a, b + 1))) for a, b in runs]
    many = len(parts) > 4 and len(ids) > 8 and not whole
    text = f"{parts[0]},{parts[1]},…,{parts[-1]} ({len(ids)})" if many else ",".join(parts)
    return f"{platform.upper()} {text}" if platform else text


def on_devices(ids: Sequence[int]) -> str:
    """Format device ids with the noun: `device 3`, `devices 0-7`."""
    return f"device{'s' if len(ids) != 1 else ''} {devices_text(ids)}"


def varying(value: str, axes: Sequence[str]) -> str:
    """JAX's cast of a value that is the same along mesh axes: `x = jax.lax.pcast(x, 'data', to='varying')`."""
    over = repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))
    return f"{value} = jax.lax.pcast({value}, {over}, to='varying')"


def shortened(text: str) -> str:
    """Shorten the paths of leaves in a message that have more than 200 characters: `in_specs['layers']…['w']`."""
    return _LONG_PATH.sub(lambda path: f"{path[0][:_KEPT]}…{path[0][-_KEPT:]}", text)


_KEPT = 60
"""The characters of a long path that stand at its beginning, and at its end."""

_LONG_PATH = re.compile(r"[^\s,;]{201,}")


def shown(path: Path) -> str:
    """The path relative to the current folder where it lies below it, else unchanged."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def of_system(error: OSError, where: Path | None) -> str:
    """Format an error of the system with its file, or else `where`: `/full/a: No space left on device`."""
    if error.errno == errno.ENAMETOOLONG:
        name = str(error.filename or where)
        return f"{name[:60]}…: a path of {len(name):,} characters, or a name in it, is too long for files"
    return f"{error.filename or where}: {error.strerror or error}"


def of_address(path: Path) -> str:
    """Return what to do with a URL, in place of which there is no path; "" for any other path."""
    return "; copy it here: it is the address of another machine" if _ADDRESS.match(str(path)) else ""


_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")
"""How a URL begins, of which a path has one slash."""


def long_text(seconds: float) -> str:
    """`2 minutes`, `5 hours`, `3 days`."""
    size, unit = next((size, unit) for size, unit in _SPANS if seconds >= size)
    count = round(seconds / max(size, 1.0))
    return f"{count} {unit}{'' if count == 1 else 's'}"


_SPANS = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (0.0, "second"))


def error_text(error: float) -> str:
    """Format an error with two digits, `5.2e-06`; no error as `0`."""
    return f"{error:.1e}" if error else "0"


def accuracy_text(accuracy: float | None) -> str:
    """Return an error in units of the measured rounding as text: `4.2 ×`."""
    return "–" if accuracy is None else f"{accuracy:.2g} ×"
