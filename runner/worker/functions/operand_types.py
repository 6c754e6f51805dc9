"""Finds the types of a call's operands: those of arrays, and of what the lines before the call compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from runner.base import codec, dtypes
from runner.base.faults import Fault, InvalidExperiment, Key
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.base.words import listed
from runner.experiment.imported import KEY, Imports, skeleton
from runner.experiment.reader import read
from runner.graph.source import SECTIONS
from runner.worker import calls, types
from runner.worker.functions.probing import Probing
from runner.worker.functions.reading import Reading


@dataclass(frozen=True)
class OperandTypes:
    """The operands of a call, by name.

    - `structs`: their shapes and dtypes, in order; of `per_device` those of a device's block.
    - `varying`: the mesh axes over which they vary.
    - `layouts`: of arrays.
    """

    structs: Mapping[str, Any]
    varying: Mapping[str, frozenset[str]]
    layouts: Mapping[str, Spec]

    def require_readable(self, text: str, key: Key) -> None:
        """Raise `InvalidExperiment` for 64-bit operands of a call at `key` that reads none."""
        wide = [f"{name} is {kind.dtype}" for name, kind in self.structs.items() if str(kind.dtype) in dtypes.WIDE]
        if wide and not calls.x64():
            message = (
                f"{listed(wide)}, which only a part of another function's lines has with jax.enable_x64; set it for "
                "all: jax.config.update('jax_enable_x64', True) at the top of the imported file"
            )
            raise InvalidExperiment(Fault(key, message, text, 0, len(text)))


def types_of(reading: Reading, operands: Sequence[str]) -> OperandTypes:
    """The types of a call's operands, behind the lines of the section before the call."""
    section, scope = reading.section, reading.scope
    computed = [name for name in operands if name not in reading.arrays or name in scope.local]
    names = {name: f"probe{i}_" if section.around else name for i, name in enumerate(computed)}
    probing = Probing({}, {probe: name for name, probe in names.items()}, {})
    for around in reversed(section.around) if computed else ():
        probing = around.probing(probing)
    inner = {**probing.lines, **probing.probes} if section.around else {}
    stacks = sum(around.stacks for around in section.around)
    lines_read = {"probe_": "zeros(1)", **section.lines, **inner}
    functions = {**reading.plain, **reading.functions, **probing.functions}
    texts = " ".join(texts_in([lines_read, functions]))
    imported = {name: function for name, function in reading.imported.items() if f"{name}(" in texts}
    partial: dict[str, Any] = {
        **skeleton(reading.definition),
        "arrays": reading.arrays,
        "functions": functions,
        section.name: lines_read,
        "outputs": {"probe_": [], **{name: [] for name in names.values()}},
        KEY: codec.plain(Imports(imported, x64=calls.x64())),
    }
    partial |= {other: {} for other in SECTIONS if other != section.name}
    # Only lines that read gradients need them: they take as long as everything before.
    grad: dict[str, Any] = reading.grad if "grad." in texts else {}
    partial["outputs"] |= {grad["of"]: []} if grad else {}
    experiment = read({**partial, "program": "all", "expect": {}, "grad": grad})
    given = {array.name: array for array in experiment.arrays if array.name not in names}
    lines: Mapping[str, Any] = {}
    differing: Mapping[str, frozenset[str]] = {}
    if any(name not in given for name in operands):
        with calls.enable_x64(experiment.x64):
            if section.name == "graph":
                lines = types.whole(experiment.alone("graph"), {})
            else:
                lines, differing = types.per_device(experiment.alone("per_device"), {})
    structs: dict[str, Any] = {}
    varying: dict[str, frozenset[str]] = {}
    for name in operands:
        if name in given:
            local = section.name == "per_device"
            layout = experiment.block(given[name].layout) if local else given[name].layout
            shape = layout.shard_shape if local else layout.shape
            structs[name] = jax.ShapeDtypeStruct(shape, dtypes.dtype(given[name].dtype).numpy)
            varying[name] = frozenset(layout.spec.axes)
        else:
            typed = lines[names[name]]
            # The probes of a repeat are stacked, one dimension for each repeat around.
            structs[name] = jax.ShapeDtypeStruct(typed.shape[stacks:], dtypes.dtype(typed.dtype).numpy)
            varying[name] = differing.get(names[name], frozenset())
    layouts = {name: array.layout.spec for name, array in given.items() if name in structs}
    return OperandTypes(structs, varying, layouts)


def texts_in(value: Any) -> Iterator[str]:
    """The expressions of a section, those of repeats' bodies too."""
    if isinstance(value, str):
        yield value
    for part in value.values() if is_mapping(value) else value if is_list(value) else ():
        yield from texts_in(part)
