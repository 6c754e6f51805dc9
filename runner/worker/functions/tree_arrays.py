"""Reads the arrays of a definition: those that Python makes as trees, leaf by leaf, with the specs of the leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from runner.base import dtypes
from runner.base.faults import Fault, InvalidExperiment, Key, invalid, key_text
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.base.words import as_spec, bytes_text
from runner.experiment.config import schema
from runner.experiment.memory import available
from runner.experiment.patterns import fits, flattened
from runner.experiment.written import spread
from runner.worker import calls, phases
from runner.worker.functions.reading import BUILTINS, RAISED, Reading, python_call, require_names
from runner.worker.functions.trees import Tree, plain_spec, require_dtypes, require_shallow
from runner.worker.refusing import reported

_SHOWN_TREES = 80
"""The most characters of two trees that a message shows; of larger ones JAX says where they differ."""


@dataclass
class ArrayReader:
    """Adds arrays and leaves to what is read; `patterns`: the patterns of `specs` that match a path."""

    reading: Reading
    patterns: set[str] = field(default_factory=set[str])

    def read(self) -> None:
        """Read all arrays."""
        for name, array in spread(self.reading.definition["arrays"], ("arrays",)).items():
            phases.tell(f"the tree '{name}' was made")
            self._read(name, schema.given(array or {}))

    def _read(self, name: str, array: Mapping[str, Any]) -> None:
        expression = array.get("tree")
        if expression is None:
            self.reading.arrays[name] = {**array, "spec": self.spec(name, array.get("spec"))}
            self.reading.scope.paths[name] = name
            return
        key = ("arrays", name, "tree")
        if array.get("shape") is not None:
            raise invalid(("arrays", name, "shape"), "a tree has the shapes of its leaves; leave it out")
        call = python_call(expression, key)
        code = compile(call.text, f"<{key_text(key)}>", "eval")
        space = self.reading.space
        require_names(call, space, key)

        def make() -> Any:
            return eval(code, BUILTINS, space)

        try:
            shapes = calls.eval_shape(make)
        except RAISED as error:
            require_dtypes(make, key, expression)
            raise reported(error, "making the tree", key, expression) from None
        init = array.get("init")
        values: list[Any] | None = None
        if init is None and self.reading.valued and self.reading.probe.target.topology is None:
            self._require_memory(shapes, key)
            try:
                with calls.default_device(calls.devices("cpu")[0]):
                    values = calls.block_until_ready(calls.tree.leaves(make()))
            except RAISED as error:
                raise reported(error, "making the tree", key, expression) from None
        require_shallow(shapes, expression, key)
        tree = self.reading.tree(name, shapes, call)
        for i, (leaf, struct) in enumerate(zip(tree.leaves, calls.tree.leaves(shapes), strict=True)):
            made: dict[str, Any] = {"shape": list(struct.shape), "dtype": self._dtype(struct, leaf, key)}
            if init is not None:
                made["init"] = init
            elif values is not None and not isinstance(values[i], jax.ShapeDtypeStruct):
                made["init"] = self.reading.init(leaf, np.asarray(values[i]))
            self.reading.arrays[leaf] = {**made, "spec": self.spec(leaf, array.get("spec"))}
        self.reading.scope.trees[name] = tree
        if (leaves := array.get("specs")) is not None:
            for leaf, spec in self.specs_in(leaves, tree, (*key[:-1], "specs")).items():
                if spec is not None:
                    self.reading.arrays[leaf]["spec"] = spec

    def _require_memory(self, shapes: Any, key: Key) -> None:
        """Raise `InvalidExperiment` if the values of a tree take more memory than is free."""
        needed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in calls.tree.leaves(shapes))
        unused = available()
        if unused is not None and needed > unused:
            message = f"the values take {bytes_text(needed)}, and {bytes_text(unused)} of memory are free"
            raise invalid(key, f"{message}; choose smaller dims, or a target that is not here, such as target=v5e_4x4")

    @cached_property
    def by_pattern(self) -> dict[str, Any]:
        """The specs of leaves, by patterns of their paths."""
        return flattened(self.reading.mapping("specs"))

    def require_all_matched(self) -> None:
        """Raise `InvalidExperiment` for a pattern of `specs` that gives no leaf its spec."""
        paths = [*self.reading.scope.paths.values()]
        for at, pattern in enumerate(self.by_pattern):
            if pattern in self.patterns:
                continue
            matched = [path for path in paths if fits(pattern, path)]
            for earlier in [*self.by_pattern][:at]:
                if any(fits(earlier, path) for path in matched):
                    message = f"'{earlier}' stands before '{pattern}' and gives all its leaves their specs"
                    raise invalid(("specs",), f"{message}; the first pattern that fits counts: write '{pattern}' first")
            raise invalid(("specs",), f"no leaf of a tree matches {pattern}; there are {', '.join(paths[:12])}")

    def spec(self, name: str, own: Any) -> Any:
        """The spec of an array or leaf: an array's own, else that of the first matching pattern, else the tree's."""
        for pattern, spec in self.by_pattern.items():
            if fits(pattern, self.reading.scope.paths.get(name, name)):
                self.patterns.add(pattern)
                return spec if own is None or name not in self.reading.definition["arrays"] else own
        return own

    def specs_in(self, text: Any, tree: Tree, key: Key) -> dict[str, list[Any] | None]:
        """Evaluate an expression to the PartitionSpecs of a tree's leaves; None for a leaf without one."""
        call = python_call(text, key)
        space = {**self.reading.modules.objects, **self.reading.probe.dims}
        require_names(call, space, key)
        try:
            specs = eval(call.text, BUILTINS, space)
        except RAISED as error:
            raise reported(error, "making the specs", key, call.text) from None
        if key[0] == "outputs" and self.reading.call is not None and self.reading.call.changes:
            specs = _with_changes(specs, self.reading.call.changes)
        leaves = calls.tree.unflatten(tree.structure, tree.leaves)

        def is_spec(value: Any) -> bool:
            return value is None or isinstance(value, PartitionSpec | NamedSharding)

        of: dict[str, list[Any] | None] = {}

        def below(spec: Any, part: Any) -> None:
            if not is_spec(spec):
                message = f"a spec is a PartitionSpec, not {spec!r}"
                raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text)))
            for leaf in calls.tree.leaves(part):
                of[leaf] = plain_spec(spec)

        try:
            calls.tree.map(below, specs, leaves, is_leaf=is_spec)
        except ValueError as error:
            trees = [str(calls.tree.structure(specs, is_leaf=is_spec)), str(calls.tree.structure(leaves))]
            short = " for ".join(tree.removeprefix("PyTreeDef(").removesuffix(")") for tree in trees)
            detail = short if len(short) <= _SHOWN_TREES else " ".join(str(error).split())
            message = f"the specs have another tree structure than their value: {detail}"
            if any(isinstance(leaf, str) for leaf in calls.tree.leaves(specs, is_leaf=is_spec)):
                message = f"a spec is a PartitionSpec, not {specs!r}{as_spec(specs)}"
            raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text))) from None
        return of

    def _dtype(self, struct: Any, leaf: str, key: Key) -> str:
        name = str(struct.dtype)
        if name not in dtypes.NAMES:
            raise invalid(
                key,
                f"the leaf {self.reading.scope.paths[leaf]} is {name}; an array is one of {', '.join(dtypes.NAMES)}",
            )
        return name


def _with_changes(specs: Any, changes: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The specs of a function's result and of the operands that it changes.

    The caller gives those of the result, or a pair with a mapping of operands' specs; operands without one are open.
    """
    of_result: Any = specs
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", specs) if isinstance(specs, tuple) else ()
    of_operands: dict[str, Any] = {}
    if len(parts) == 2 and is_mapping(parts[1]) and parts[1].keys() <= {*changes}:
        of_result, of_operands = parts[0], {**parts[1]}
    return of_result, {name: of_operands.get(name) for name in changes}
