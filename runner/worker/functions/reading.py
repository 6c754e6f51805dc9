"""Holds what is read of a definition that imports Python: its arrays, functions, trees, and the names that these take.

The readers of arrays, lines, calls and constraints share one `Reading`, which each of them adds to.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.base.faults import Fault, InvalidExperiment, Key, invalid
from runner.base.lazy import dataclass
from runner.experiment.frames import free
from runner.experiment.imported import CALLED, Imported
from runner.experiment.model import Experiment
from runner.experiment.plain import located
from runner.graph.language import python
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.python import PythonCall
from runner.graph.language.syntax import SyntaxFault
from runner.graph.source import Section
from runner.worker import calls
from runner.worker.functions.probing import FunctionAround, RepeatAround
from runner.worker.functions.trees import Tree, identifier, part_of_path, tree_text
from runner.worker.jaxpr.jaxprs import CannotRead
from runner.worker.own_files import UserModules
from runner.worker.setting import CallSettings

BUILTINS: dict[str, Any] = {"__builtins__": {"__import__": __import__}}
"""The builtins of an evaluated expression, which can name none: JAX's extensions import what they need by this one."""

RAISED = BaseException
"""The exceptions of the user's code that are reported: all of them."""

KEYS = {"key": "jax.random.key"}
"""The names that Python expressions may use besides imports, with their names in programs."""

_OF_FUNCTIONS = ("of", "result", "checkpoint")
"""The keys of a function's mapping, beside its lines."""

_LONGEST = 150
"""The most characters of a leaf's name in the name of its file."""

_FEW = 16
"""The most leaves of a tree of dicts, lists and tuples that is written out; otherwise its structure gets a name."""


@dataclass
class Scope:
    """The names that lines may use: those of the experiment, or those of one of its functions while this is read.

    - `taken`: the names that a new name may not have.
    - `trees`: by name; `paths`: those of leaves in their trees, by the leaves' names.
    - `values`: the names of lines, and of what repeats and functions bind.
    - `statics`: the static arguments of the function, as texts by parameter.
    - `local`: the names that the function defines, which are not the experiment's arrays of these names.
    """

    taken: set[str]
    trees: dict[str, Tree] = field(default_factory=dict[str, Tree])
    paths: dict[str, str] = field(default_factory=dict[str, str])
    values: set[str] = field(default_factory=set[str])
    statics: Mapping[str, str] = field(default_factory=dict[str, str])
    local: frozenset[str] = frozenset()

    def leaves(self, names: Iterable[str]) -> list[str]:
        """The names, with each tree replaced by its leaves."""
        return [leaf for name in names for leaf in (self.trees[name].leaves if name in self.trees else (name,))]


@dataclass
class SectionLines:
    """The section that is read: its lines so far, for the types of later ones, and what is around the present line."""

    name: Section
    lines: dict[str, Any] = field(default_factory=dict[str, Any])
    around: list[RepeatAround | FunctionAround] = field(default_factory=list["RepeatAround | FunctionAround"])

    def keep(self, names: str, value: Any) -> None:
        """Keep a line for the types of later ones."""
        (self.around[-1].lines if self.around else self.lines)[names] = value

    def path(self, *last: str) -> str:
        """The path of a call in it: the names of the lines around it, then `last`."""
        return "/".join([*(around.name for around in self.around), *last])


@dataclass
class Reading:
    """A definition, and what was read of it.

    - `into`: the folder for the values of trees; `valued`: whether they are needed, or only their shapes.
    - `probe`: the experiment with stubs in place of lines and trees.
    - `modules`: what the user's files define; `preamble`: the lines of a program that import that.
    - `arrays`: those of the definition, the leaves of its trees, and what functions capture.
    - `plain`: the functions of the file that call no Python; `functions`: the others, as read for each call.
    - `imported`: what was traced, by the names of the functions that have the lines.
    - `taken`: all names.
    """

    definition: Mapping[str, Any]
    into: Path
    valued: bool
    probe: Experiment
    modules: UserModules
    preamble: list[str]
    taken: set[str]
    scope: Scope
    plain: Mapping[str, Any]
    section: SectionLines = field(default_factory=lambda: SectionLines("graph"))
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])
    imported: dict[str, Imported] = field(default_factory=dict[str, Imported])
    captured: dict[tuple[Any, ...], str] = field(default_factory=dict["tuple[Any, ...]", str])
    """The arrays that functions capture, by their dtypes, shapes and bytes."""
    operands: dict[str, Tree] = field(default_factory=dict[str, Tree])
    """The trees of arrays, without those of results."""

    @cached_property
    def call(self) -> Any:
        """The module with the arguments of `runner.check`; None for an experiment of a file."""
        called = (name for name, source in self.definition["imports"].items() if Path(source).name == CALLED)
        return self.modules.objects.get(next(called, ""))

    @cached_property
    def settings(self) -> CallSettings:
        """The settings in which functions are traced."""
        ambient = self.call is not None and self.call.context
        return CallSettings(self.probe, ambient, (CannotRead, InvalidExperiment))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The mapping at a key, empty if it is null."""
        return self.definition[key] or {}

    @property
    def grad(self) -> Any:
        """The definition's gradient, with the leaves of trees in place of these."""
        grad = self.definition["grad"]
        if not grad or not grad.get("wrt"):
            return grad
        names = [grad["wrt"]] if isinstance(grad["wrt"], str) else grad["wrt"]
        return {**grad, "wrt": self.scope.leaves(names)}

    # Expressions of Python.

    @property
    def space(self) -> dict[str, Any]:
        """The names that Python expressions may use: imports, dims and `key`."""
        return {**self.modules.objects, **self.probe.dims, "key": jax.random.key}

    @property
    def texts(self) -> dict[str, str]:
        """The expressions for dims and `key` in a program."""
        return {**KEYS, **{dim: str(size) for dim, size in self.probe.dims.items()}}

    @property
    def taken_inside(self) -> set[str]:
        """The names that lines of a function may not have."""
        return {*self.taken, *_OF_FUNCTIONS}

    # Trees and values.

    def tree(self, name: str, value: Any, made_by: PythonCall | None) -> Tree:
        """The tree of a value, with a name for each leaf; `made_by`: the expression that gives its structure."""
        leaves: list[str] = []
        known = {path: leaf for leaf, path in self.scope.paths.items()}
        for keys, _ in calls.tree_util.tree_flatten_with_path(value)[0]:
            parts = [part_of_path(part) for part in keys]
            path = "/".join([name, *parts])
            leaf = known.get(path, name) if path in known or not parts else None
            leaf = leaf or free("_".join([name, *(identifier(part) for part in parts)]), self.scope.taken)
            self.scope.paths[leaf] = path
            leaves.append(leaf)
        structure = calls.tree.structure(value)
        written = tree_text(calls.tree.unflatten(structure, [f"${leaf}" for leaf in leaves]))
        if written is None or len(leaves) > _FEW:
            if made_by is None and written is None:
                written = ""
            elif made_by is not None:
                text = made_by.filled(self.texts)
                self.preamble += ["", f"{name}_tree = jax.tree.structure(jax.eval_shape(lambda: {text}))"]
                written = f"jax.tree.unflatten({name}_tree, [{', '.join(f'${leaf}' for leaf in leaves)}])"
        return Tree(tuple(leaves), structure, written or "")

    def handed(self, name: str, of: Tree) -> Tree:
        """A tree under the name of a carry, a slice or a parameter."""
        tree = self.tree(name, calls.tree.unflatten(of.structure, of.leaves), None)
        leaves = {old: f"${new}" for old, new in zip(of.leaves, tree.leaves, strict=True)}
        template = string.Template(of.text)
        same = all(identifier in leaves for identifier in template.get_identifiers())
        return replace(tree, text=template.substitute(leaves) if same else "")

    def init(self, name: str, value: np.ndarray) -> str:
        """Save values to a file, and return the `init` that loads them."""
        self.into.mkdir(parents=True, exist_ok=True)
        # A leaf may have any path, and thus a name longer than a file's can be.
        short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        file = self.into / f"{short}.npy"
        # NumPy's file format lacks bfloat16; float32 represents all its values.
        plain = value if value.dtype.kind in "biufc" else value.astype(np.float32)
        np.save(file, plain)
        return f"load({str(file)!r})"

    def array_of(self, name: str, value: np.ndarray) -> str:
        """The array of the experiment that a function captures; a function and its reference may capture the same."""
        key = str(value.dtype), value.shape, hashlib.blake2b(value.tobytes()).digest()
        if key not in self.captured:
            self.captured[key] = name
            self.arrays[name] = {
                "shape": list(value.shape),
                "dtype": str(value.dtype),
                "init": self.init(name, value),
                "spec": [],
            }
            self.scope.paths[name] = name
        return self.captured[key]


def python_call(text: Any, key: Key) -> PythonCall:
    """An expression of Python that the file has at `key`."""
    if not isinstance(text, str):
        raise invalid(key, f"{text!r} is not a call of a function, such as llama.init(key(0), B)")
    try:
        return python.read(text)
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, text, fault)) from None


def require_names(call: PythonCall, space: Mapping[str, Any], key: Key) -> None:
    """Raise `InvalidExperiment` for a name that `space` lacks."""
    for name in call.names:
        if name not in space:
            known = ", ".join(space)
            message = f"no '{name}'; Python has {known} here"
            if name in OPERATIONS:
                message += f"; compute {name}(…) in a line of its own, and pass that"
            raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text)))
