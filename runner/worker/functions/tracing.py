"""Traces the Python functions that a definition imports, and adds their lines and their trees' leaves to it.

Apart from programs, the user's code runs only here: modules are imported (`own_files.py`), trees are made
(`tree_arrays.py`), functions are traced at the types of their arguments (`traced_calls.py`). The result is an ordinary
definition with an array for each leaf, a function of the experiment for each call, and under `imported` how a program
calls the user's function instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from runner.base import codec, dtypes
from runner.base.chosen import AUTO
from runner.base.faults import invalid
from runner.base.words import listed
from runner.experiment.functions import read_functions
from runner.experiment.imported import KEY, Imports, skeleton
from runner.experiment.reader import read
from runner.experiment.written import BOTH, all_names
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.source import SECTIONS
from runner.worker import calls, phases, versions
from runner.worker.functions.inner_constraints import InnerConstraints
from runner.worker.functions.lines_with_calls import LineReader, calling
from runner.worker.functions.reading import KEYS, Reading, Scope
from runner.worker.functions.traced_calls import CallReader
from runner.worker.functions.tree_arrays import ArrayReader
from runner.worker.functions.tree_sections import TreeSections
from runner.worker.own_files import UserModules
from runner.worker.refusing import reported
from runner.worker.setting import CallSettings


def traced(
    definition: Mapping[str, Any],
    folder: Path,
    into: Path,
    *,
    values: bool = True,
    apart: Collection[str] | None = None,
) -> dict[str, Any]:
    """The definition with its imports read; relative paths are below `folder`, and arrays are saved in `into`.

    - `values`: whether the values of trees are needed too, or only their shapes.
    - `apart`: of a plan, the patterns of `constraints` for which each value inside a call gets a key of its own. The
      layouts that functions state themselves are then constraints too.

    Raises `InvalidExperiment` for what cannot be imported, traced or read, with the user's line if there is one.
    """
    versions.keep_lines_of_backward_rules()
    versions.take_mesh_of_each_call()
    if AUTO.saved != definition["remat"]:
        # A function that another module has jitted would not ask the policy again.
        calls.clear_caches()
        AUTO.saved = definition["remat"]
    probe = read(skeleton(definition))
    preamble: list[str] = []
    modules = _modules(definition, UserModules(folder, {*probe.dims, *definition["arrays"]}, preamble))
    defined = read_functions(definition["functions"], {}, ())
    specialised = calling(defined, modules.objects)
    taken = {*probe.dims, *OPERATIONS, *CONSTANTS, *KEYS, *definition["imports"], *definition["arrays"]}
    taken |= {name for name in defined if name not in specialised}
    fixed = frozenset(taken)
    for section in (BOTH, *SECTIONS):
        taken |= {name for name, _ in all_names(definition[section], (section,))}
    taken |= {name for function in specialised.values() for name in function.own}
    plain = {*definition["functions"]} - {function.key[-1] for function in specialised.values()}
    reading = Reading(
        definition, into, values, probe, modules, preamble, taken, Scope(taken),
        plain={name: value for name, value in definition["functions"].items() if name in plain},
    )  # fmt: skip
    references = {
        name: modules.reference(source, ("references", name)) for name, source in reading.mapping("references").items()
    }
    arrays = ArrayReader(reading)
    arrays.read()
    constraints = InnerConstraints(reading, None if apart is None else frozenset(apart))
    called = CallReader(reading, constraints, references)
    sections = TreeSections(reading, arrays, called)
    # Trees may have 64-bit leaves, as if the file declared them.
    wide = any(array["dtype"] in dtypes.WIDE for array in reading.arrays.values() if array.get("dtype"))
    with calls.enable_x64(True) if wide else contextlib.nullcontext():
        changed = {
            **definition,
            **LineReader(reading, called, specialised, fixed).sections(),
            "arrays": reading.arrays,
            "functions": {**reading.plain, **reading.functions},
            "outputs": sections.outputs(),
            "constraints": constraints.specs() | sections.of_trees("constraints"),
            "grad": reading.grad,
            "show": sections.show(),
            "expect": sections.expected(),
        }
        x64 = calls.x64()
    arrays.require_all_matched()
    for name in references:
        if not {name, name.rpartition(".")[2]} & called.called:
            known = listed(sorted(called.called)[:12])
            raise invalid(("references", name), f"nothing calls '{name}'; the functions called are {known}")
    changed[KEY] = codec.plain(
        Imports(
            reading.imported,
            tuple(preamble),
            names=(*definition["imports"], *(f"{name}_tree" for name in reading.scope.trees)),
            paths={name: path for name, path in reading.scope.paths.items() if name != path},
            written=called.written,
            referred=() if called.written else tuple(references),
            x64=x64,
            within=reading.settings.within,
            held=tuple(sections.held),
            open=tuple(sections.open),
            donated=sections.donated(),
            state=sections.state,
            refused=_refused(reading.settings),
        )
    )
    return changed


def _modules(definition: Mapping[str, Any], modules: UserModules) -> UserModules:
    """Import what the definition names."""
    wide = calls.x64()
    for name, source in definition["imports"].items():
        phases.tell(f"{source} was imported")
        modules.add(name, source)
        if wide and not calls.x64():
            message = f"{source} switches jax_enable_x64 off, and a 64-bit dtype of the experiment needs it"
            raise invalid(("imports", name), f"{message}; take that line out, or use 32-bit dtypes")
    return modules


def _refused(settings: CallSettings) -> str:
    """Why no program can call the functions on Auto axes; "" if one can."""
    refused = settings.refused
    return "" if refused is None else reported(refused, "JAX refuses Auto axes", ()).fault.message
