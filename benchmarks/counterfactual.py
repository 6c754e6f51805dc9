"""How many reasons of collectives that a compiler inserted are true, tested by removing what they name.

    python benchmarks/counterfactual.py [NAME …] [--folder FOLDER] [--all]

A reason names keys of the file that shard a dimension over the collective's axes. The axes are removed from all these
keys, the program is written and compiled again, and the collective must be gone: there must be fewer of its kind, over
its axes, in its lines and direction; for a merged collective, fewer or smaller ones. If a key takes part through the
dimension of another array, that dimension has to matter: with the axes removed from the other keys only, the collective
must remain. Reasons that cannot be tested in this way are counted, with the cause.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402

from benchmarks.why import DEVICES, compiled_collectives  # noqa: E402
from runner.base.faults import InvalidExperiment  # noqa: E402
from runner.base.layout import Spec  # noqa: E402
from runner.compiled.evidence import words  # noqa: E402
from runner.compiled.evidence.model import Collective  # noqa: E402
from runner.experiment.config.compose import compose  # noqa: E402
from runner.experiment.model import Experiment  # noqa: E402
from runner.experiment.program import Program  # noqa: E402
from runner.experiment.reader import read  # noqa: E402

TRUE, FALSE, UNTRIED, UNEXPLAINED = "true", "false", "not tried", "not explained"


@dataclass(frozen=True)
class Trial:
    """The verdict on one reason, and for one that is not true the evidence."""

    program: Program
    collective: Collective
    verdict: str
    why: str = ""

    def __str__(self) -> str:
        assert self.collective.why is not None
        claim = f"{self.program}: {words.collective(self.collective)}: {words.because(self.collective.why)}"
        return f"{self.verdict}: {claim}" + (f" [{self.why}]" if self.why else "")


def trials(name: str, folder: Path, overrides: Sequence[str] = (), config: Path | None = None) -> Iterator[Trial]:
    """Test every reason of an inserted collective of an experiment."""
    plain = compose(name, config or ROOT / "conf", overrides).plain
    try:
        experiment = read(plain)
    except InvalidExperiment:
        return
    for program in experiment.programs:
        if not program.on_mesh:
            continue
        tried = _Tries(plain, program, folder)
        for collective in tried.original:
            if collective.inserted and not collective.alone:
                yield _trial(experiment, program, collective, tried)


class _Tries:
    """The collectives of one program, as written and with axes removed from keys."""

    def __init__(self, plain: Mapping[str, Any], program: Program, folder: Path) -> None:
        self._plain, self._program, self._folder = plain, program, folder
        self._known: dict[tuple[frozenset[str], frozenset[str]], list[Collective] | str] = {}
        self.experiment = read(_only(plain, program))
        self.original = [collective for _, collective in compiled_collectives(self.experiment, folder)]

    def without(self, keys: frozenset[str], axes: frozenset[str]) -> list[Collective] | str:
        """Return the collectives with `axes` removed from `keys`; the message if that cannot be compiled."""
        known = self._known.get((keys, axes))
        if known is None:
            known = self._known[keys, axes] = self._compiled(keys, axes)
        return known

    def _compiled(self, keys: frozenset[str], axes: frozenset[str]) -> list[Collective] | str:
        plain = _only(self._plain, self._program)
        # A key that asks for a replicated dimension has no axes: only the axes that shard it elsewhere are removed.
        dropped = [_dropped(plain, self.experiment, key, axes) for key in sorted(keys)]
        if not any(dropped):
            return f"none of {', '.join(sorted(keys))} has {' and '.join(sorted(axes))}"
        refused = ""
        # The lines of `per_device` are only valid for the original layouts.
        for lines in [plain["per_device"], {}] if self._program.whole else [plain["per_device"]]:
            try:
                experiment = read({**plain, "per_device": lines})
                return [
                    collective
                    for _, collective in compiled_collectives(experiment, self._folder, refused=True, reasons=False)
                ]
            except InvalidExperiment as error:
                refused = refused or f"refused: {str(error).splitlines()[0]}"
        return refused


def _only(plain: Mapping[str, Any], program: Program) -> dict[str, Any]:
    only = copy.deepcopy(dict(plain))
    only |= {"program": str(program), "expect": None, "test": None}
    return only


def _spec(experiment: Experiment, key: str) -> Spec:
    """Return the spec of a key."""
    section, _, member = key.partition(".")
    if section == "arrays":
        return experiment.array(member.removesuffix(".spec")).layout.spec
    return (experiment.constraints if section == "constraints" else experiment.outputs)[member]


def _dropped(plain: dict[str, Any], experiment: Experiment, key: str, axes: frozenset[str]) -> bool:
    """Remove axes from the spec of a key; return False if it has none of them."""
    section, _, member = key.partition(".")
    name = member.removesuffix(".spec") if section == "arrays" else member
    spec = _spec(experiment, key)
    # A spec with logical names is rewritten with mesh axes.
    left = [[axis for axis in entry if axis not in axes] for entry in spec]
    # A key of a single name overrides a key of several, `q, k: {…}`.
    if section == "arrays":
        plain[section][name] = {**plain[section].get(name, {}), "spec": left}
    else:
        plain[section][name] = left
    return bool(axes & set(spec.axes))


def _trial(experiment: Experiment, program: Program, collective: Collective, tried: _Tries) -> Trial:
    why = collective.why
    assert why is not None
    if why.by is None:
        return Trial(program, collective, UNEXPLAINED)
    if not why.keys:
        return Trial(program, collective, UNTRIED, "it names no key")
    if collective.axes is None:
        return Trial(program, collective, UNTRIED, "its groups are of no axis")
    keys = frozenset(why.keys)
    # A collective that replaces another one may be over other axes.
    named = frozenset(axis for key in keys for axis in _spec(experiment, key).axes)
    axes = frozenset(collective.axes) & named or named
    others: set[str] = set()
    for key in why.keys:
        if f"{key} wants" in why.text:
            continue
        misfit, ways = _misfit(experiment, key, axes, why.dims)
        if misfit and not any(re.search(rf"\bby way of ([\w, ]+ and )?{way}\b", why.text) for way in ways):
            return Trial(program, collective, FALSE, misfit)
        others |= {key} if misfit else set()
    left = tried.without(keys, axes)
    if isinstance(left, str):
        return Trial(program, collective, UNTRIED, left)
    verdict, reason = _gone(collective, tried.original, left)
    if verdict == TRUE and others < keys and others:
        remaining = tried.without(keys - others, axes)
        if not isinstance(remaining, str) and _gone(collective, tried.original, remaining)[0] == TRUE:
            return Trial(program, collective, FALSE, f"it goes with the axes in {', '.join(sorted(others))} too")
    return Trial(program, collective, verdict, reason)


def _misfit(experiment: Experiment, key: str, axes: frozenset[str], dims: Sequence[str]) -> tuple[str, set[str]]:
    """Return what is wrong with a key by itself, and the dimensions that it shards.

    Its spec must have an axis, and its array the named dimension.
    """
    section, _, member = key.partition(".")
    if section != "arrays":
        return "", set()
    array = experiment.array(member.removesuffix(".spec"))
    spec = array.layout.spec.padded(len(array.shape))
    if not axes & set(spec.axes):
        return f"{key} has no {' and '.join(sorted(axes))}", set()
    mine = {name for name, over in zip(array.dims, spec, strict=True) if axes & set(over)}
    if None not in mine and dims and all(dim in experiment.dims for dim in dims) and not mine & set(dims):
        return f"{key} has no {' and '.join(dims)} over {' and '.join(sorted(axes))}", {str(name) for name in mine}
    return "", set()


def _gone(collective: Collective, before: Sequence[Collective], after: Sequence[Collective]) -> tuple[str, str]:
    mine = [each for each in before if _alike(each) == _alike(collective)]
    left = [each for each in after if _alike(each) == _alike(collective) and not each.alone]
    if len(left) < len(mine):
        return TRUE, ""
    if len(collective.nodes) > 1 and sum(each.bytes or 0 for each in left) < sum(each.bytes or 0 for each in mine):
        return TRUE, ""
    return FALSE, f"without the axes in {', '.join(collective.why.keys if collective.why else ())} it is there still"


def _alike(collective: Collective) -> tuple[Any, ...]:
    between = (
        (tuple(collective.between.source), tuple(collective.between.to))
        if collective.between and len(collective.nodes) < 2
        else ()
    )
    return (
        collective.kind,
        frozenset(collective.axes or ()),
        frozenset(collective.nodes),
        collective.gradient,
        collective.reduction,
        between,
    )


def _simulated() -> None:
    """Prepare a process to compile for simulated devices, quickly and without XLA's warnings; nothing is run."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_llvm_disable_expensive_passes=true"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    # Python's exceptions are reported instead.
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _judged(name: str, config: Path | None) -> list[tuple[str, str]]:
    """Return the verdict on each reason of an experiment, with a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        return [(trial.verdict, f"{name} {trial}") for trial in trials(name, Path(folder), config=config)]


def verdicts(names: Sequence[str], config: Path | None = None, jobs: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the verdicts on the reasons of experiments as they are done, with a sentence each.

    Runs in `jobs` processes, by default one per core.
    """
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawning, initializer=_simulated) as pool:
        for done in as_completed([pool.submit(_judged, name, config) for name in names]):
            yield from done.result()


def main() -> None:
    """Test and count the reasons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, help="a folder of experiments besides those of conf")
    parser.add_argument("--all", action="store_true", help="print the true ones too")
    parser.add_argument("--jobs", type=int, help="processes; without it as many as there are cores")
    arguments = parser.parse_args()
    place = arguments.folder or ROOT / "conf"
    names = arguments.names or sorted(path.stem for path in (place / "experiment").glob("*.yaml"))
    counts: Counter[str] = Counter()
    for verdict, line in verdicts(names, arguments.folder, arguments.jobs):
        counts[verdict] += 1
        if arguments.all or verdict != TRUE:
            print(line, flush=True)
    tried = counts[TRUE] + counts[FALSE]
    share = f" ({counts[TRUE] / tried:.1%})" if tried else ""
    print(
        f"{counts[TRUE]} of {tried} reasons tried are true{share}; {counts[UNTRIED]} were not tried, "
        f"{counts[UNEXPLAINED]} not explained; jax {jax.__version__}"
    )


if __name__ == "__main__":
    main()
