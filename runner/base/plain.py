"""Reads a JSON file to plain data, or says in one line why it is not JSON.

Python's parser accepts more than JSON: `NaN`, `1e999`, integers of any length. The runner never writes these, and
computing with them would fail later, where the file is no longer known.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from runner.base import regular

_DIGITS = 300
"""The most digits of an integer: a longer one does not fit into a float64 either."""


class NotJson(ValueError):
    """A text is not JSON; the message says why."""


def read(path: Path) -> Any:
    """Return the data of a file. Raises `NotJson`; `OSError` if the file cannot be read."""
    try:
        return parse(regular.read_text(path))
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8: {error.reason} at byte {error.start}") from None


def parse(text: str) -> Any:
    """Return the data of a text. Raises `NotJson`."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_float, parse_int=_integer)
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from None


def _refused(name: str) -> Any:
    raise NotJson(f"not valid JSON: it has no {name}")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotJson(f"not valid JSON: {text:.20} is beyond float64")
    return number


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise NotJson(f"not valid JSON: an integer of {len(text)} digits")
    return int(text)
