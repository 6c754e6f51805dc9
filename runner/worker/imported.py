"""Computes a function of the experiment that is the user's Python, as programs do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax

from runner.experiment.imported import Imported, Imports
from runner.graph.source import Frame
from runner.worker import calls


def called(imports: Imports, name: str, arguments: Mapping[str, Any], *, x64: bool | None = None) -> Any:
    """Call the function; `arguments`: by the names of its parameters; `x64`: with 64 bits, unlike in programs."""
    text = imports.functions[name].text({parameter: parameter for parameter in arguments})
    with calls.enable_x64(imports.x64 if x64 is None else x64):
        return _function(imports.preamble, tuple(arguments), text)(**arguments)


@lru_cache(maxsize=64)
def _function(preamble: tuple[str, ...], parameters: tuple[str, ...], returned: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"jax": jax}
    exec("\n".join(preamble), space)  # the preamble of a program
    return eval(f"lambda {', '.join(parameters)}: {returned}", space)


def forget() -> None:
    """Drop the cached functions, so that changed files are imported again."""
    _function.cache_clear()


def raised_in(error: BaseException, imported: Imported) -> Frame | None:
    """The user's line in which an error was raised; None if no traced line was running."""
    frames = {(frame.file, frame.line): frame for frame in imported.frames.values()}
    running = [frames.get((each.filename, each.lineno or 0)) for each in traceback.extract_tb(error.__traceback__)]
    return next((frame for frame in reversed(running) if frame is not None), None)
