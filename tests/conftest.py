"""Nine simulated CPU devices, for the mesh of Cannon: JAX reads the number once, before its first backend exists."""

import gc
import os
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest

from runner.reports.show import progress
from tests import here, quick
from tests.server import SELDOM, TIMED

jax.config.update("jax_num_cpu_devices", 9)
# How long a case takes says how busy the machine is.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
progress.PIPED = SELDOM
# Tables are as wide without a terminal as documents show them.
os.environ.pop("COLUMNS", None)
# xdist's processes inherit the setting as a variable; `tests/here.py` alone says when their own JAX has it.
jax.config.update(quick.UNOPTIMIZED, False)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Under xdist, group the tests that share a module's fixtures on one worker.

    A worker only gets options that the command line names.
    """
    # Of the thousands of items that are collected none is garbage.
    gc.disable()
    if getattr(config.option, "dist", None) == "load":
        config.option.dist = "loadgroup"
    if hasattr(config, "workerinput"):
        config.option.loadgroup = True
    # Sessions with the `whole` tests compile with XLA's defaults, and `run_whole` does so in all sessions.
    here.OPTIMIZED = config.option.markexpr != "not whole"
    if not here.OPTIMIZED:
        os.environ.update(quick.ENVIRONMENT)
        quick.compile_quickly()
        config.pluginmanager.register(_Sampled())


LARGE = (
    "llama_block_adamw",
    "llama_block_sequence_parallel",
    "llama_step",
    "latent_attention",
    "mamba_sequence_parallel",
    "scanned_layers",
    "circular_pipeline",
    "expert_parallel_moe",
    "top2_moe",
    "ring_attention",
    "sequence_parallel",
    "tensor_parallel_attention",
    "ulysses_attention",
)
"""Experiments whose programs take longest to compile; smaller experiments or other tests cover the same features."""

_MINOR = sys.version_info.minor
"""Each minor version of Python samples other cases, so that two versions cover more than one."""

FOLDER = Path(__file__).parents[1] / "conf" / "experiment"
TRIED = frozenset(file.name for file in sorted(FOLDER.glob("*.yaml"))[_MINOR % 9 :: 9] if file.stem not in LARGE)
HARDWARE = ("collective_allgather_matmul.yaml",)
"""The experiments of these sessions, run here and compiled for hardware."""


class _Sampled:
    """Leaves out what the session does not run: composing all experiments would take most of the collection.

    It is a plugin, since pytest asks a `conftest.py` only about the files beside it.
    """

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore an experiment of which no item would be run."""
        untried = collection_path.parent == FOLDER and collection_path.name not in {*TRIED, *HARDWARE}
        return True if untried and collection_path.suffix == ".yaml" else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, obj: Any) -> list[pytest.Item] | None:
        """Make no items of a test all of whose cases are `whole`."""
        return [] if any(mark.name == "whole" for mark in getattr(obj, "pytestmark", ())) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep every n-th case of a test marked `sample(n)`, and half of those `in_turn`, unless the session runs all.

    Of the small experiments every ninth is run, and one that is compiled for hardware: `make experiments` runs all.
    """
    marked = [(item, marker) for item in items if (marker := item.get_closest_marker("sample"))]
    cases = Counter(_test(item) for item, _ in marked)
    counts: Counter[str] = Counter()
    for item, marker in marked:
        test, every = _test(item), marker.args[0]
        if (counts[test] - _MINOR % min(every, cases[test])) % every:
            item.add_marker(pytest.mark.whole)
        counts[test] += 1
    for item in items:
        if item.get_closest_marker("in_turn") is not None and (zlib.crc32(item.nodeid.encode()) + _MINOR) % 2:
            item.add_marker(pytest.mark.whole)
        if item.get_closest_marker("xdist_group") is None and _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
        hardware = "::v5e_2x2::" in item.nodeid
        if item.path.parent == FOLDER and item.path.name not in (HARDWARE if hardware else TRIED):
            item.add_marker(pytest.mark.whole)


def _shares(item: Any) -> bool:
    """Return whether an item uses a fixture of its module, which is made once if one worker runs them all."""
    # pytest has no other place that says what a fixture's scope is.
    definitions = item._fixtureinfo.name2fixturedefs if hasattr(item, "_fixtureinfo") else {}
    return any(each[-1].scope == "module" for each in definitions.values())


def _test(item: pytest.Item) -> str:
    """Return the test of which an item is a case."""
    return item.nodeid.split("[")[0]


_SLOWEST = 10


def pytest_collection_finish() -> None:
    """Freeze the existing objects, so that garbage collections skip them when JAX makes new ones."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the command lines with the longest computing time, if many were timed; waiting does not count."""
    reports = [
        report for each in terminalreporter.stats.values() for report in each if getattr(report, "when", "") == "call"
    ]
    timed = sorted(
        ((value, report.nodeid) for report in reports for name, value in report.user_properties if name == TIMED),
        reverse=True,
    )
    if len(timed) > _SLOWEST:
        longer = sum(seconds > 2 for seconds, _ in timed)
        terminalreporter.section(f"{len(timed)} command lines, {longer} computed longer than 2 s")
        for seconds, nodeid in timed[:_SLOWEST]:
            terminalreporter.write_line(f"{seconds:6.2f} s  {nodeid}")
