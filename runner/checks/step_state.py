"""Says of a compiled step whether the memory that it was given is used, and whether its state lies as it lay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from runner.base import dtypes
from runner.base.grouping import by_key
from runner.base.layout import Layout, Spec
from runner.base.words import bytes_text, listed
from runner.compiled.explanation.arguments import aliased
from runner.experiment.model import Array, Experiment
from runner.experiment.patterns import folded
from runner.experiment.program import Program


def unused(experiment: Experiment, program: Program, module: str, outputs: Mapping[str, Spec | None]) -> str | None:
    """The warning for donated arrays whose memory no result of a program takes; `module` is the compiled module.

    `outputs`: the layouts of the results. Arrays of equal memory may take each other's place, which the compiler does:
    of these the ones are named whose next values are laid out otherwise.
    """
    if not program.whole:
        return None
    missing = set(experiment.imports.donated) - aliased(module)
    otherwise = {name for name, *_ in moved(experiment, outputs)}
    donated = map(experiment.array, experiment.imports.donated)
    alike = by_key(((array.dtype, array.layout.shard_shape), array.name) for array in donated)
    chosen: set[str] = set()
    for names in alike.values():
        ordered = sorted(names, key=lambda name: (name not in otherwise, name not in missing))
        chosen.update(ordered[: len(missing.intersection(names))])
    arrays = [array.name for array in experiment.arrays if array.name in chosen]
    if not arrays:
        return None
    named = _some([experiment.imports.paths.get(name, name) for name in arrays])
    size = sum(_bytes(experiment.array(name)) for name in arrays)
    verb, whose = ("is", "its type and layout") if len(arrays) == 1 else ("are", "their types and layouts")
    return (
        f"{program}: {named} {verb} donated, and the compiler cannot use the memory, {bytes_text(size)} on each "
        f"device: no result is left that has {whose}"
    )


def _bytes(array: Array) -> int:
    return math.prod(array.layout.shard_shape) * dtypes.dtype(array.dtype).numpy.itemsize


def moved(experiment: Experiment, outputs: Mapping[str, Spec | None]) -> Iterator[tuple[str, str, Spec, Spec]]:
    """The arrays of a state that come out laid out otherwise: the array, its next value, and both layouts."""
    for output, name in experiment.imports.state.items():
        after = outputs.get(output)
        if after is None or output not in outputs:
            continue
        array = experiment.array(name)
        shape = array.layout.shape
        before, behind = (Layout(experiment.mesh, shape, spec) for spec in (array.layout.spec, after))
        if any(before.block(at) != behind.block(at) for at in range(experiment.mesh.size)):
            yield name, output, array.layout.spec, after


def kept(experiment: Experiment, program: Program, outputs: Mapping[str, Spec | None]) -> list[str]:
    """The sentences on the state of a step that a program lays out otherwise than it takes it; empty if it does not."""
    paths = experiment.imports.paths
    changed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, output, before, after in moved(experiment, outputs):
        pair = paths.get(name, name), paths.get(output, output)
        changed.setdefault((str(before), str(after)), []).append(pair)
    sentences: list[str] = []
    for (before, after), pairs in changed.items():
        arrays, results = ([pair[at] for pair in pairs] for at in (0, 1))
        verb, value = ("is", "value of") if len(pairs) == 1 else ("are", "values of")
        sentences.append(
            f"{program}: {_some(results)}, the next {value} {_some(arrays)}, {verb} laid out as {after}, not as "
            f"{before}: another step moves the state, or compiles anew; to keep the layout, give it as out_specs"
        )
    return sentences


def _some(paths: list[str]) -> str:
    names = folded(paths)
    return listed(names) if len(names) <= _FEW else f"{listed(names[:_FEW])} and {len(names) - _FEW} more"


_FEW = 4
"""The most patterns of leaves that a sentence names."""
