"""Finds the smallest experiment that fails as a larger one does.

This does not use JAX: an edit may be invalid, which the test detects.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

Config = dict[str, Any]
Types = dict[str, dict[str, Any]]
"""The shape and dtype of every value, by section."""

Test = Callable[[Config], Types | None]
"""Tests whether an experiment still fails: returns the types of its values, or None if it does not."""

KEPT = ("name", "mesh", "arrays", "graph", "per_device", "constraints", "outputs", "grad", "seed", "check_vma")
SECTIONS = ("graph", "per_device")


def pruned(config: Config) -> Config:
    """Return the keys of a resolved configuration that differ from the defaults."""
    plain = {key: copy.deepcopy(config[key]) for key in KEPT if config.get(key)}
    plain["mesh"] = {key: plain["mesh"][key] for key in ("axes", "shape")}
    if not plain.get("grad", {}).get("of"):
        plain.pop("grad", None)
    if config.get("check_vma") is False:
        plain["check_vma"] = False
    plain["arrays"] = {
        name: {key: array[key] for key in ("shape", "dtype", "init", "spec") if array.get(key) is not None}
        for name, array in plain.get("arrays", {}).items()
    }
    return plain


def shrink(config: Config, types: Types, test: Test) -> Config:
    """Apply the edits that keep the failure, the largest first, until none does or the `test` budget is spent."""
    tried = {json.dumps(config)}
    improved = True
    while improved:
        improved = False
        for smaller in edits(config, types):
            smaller = without_dead_lines(smaller)
            key = json.dumps(smaller)
            if key in tried:
                continue
            tried.add(key)
            kept = test(smaller)
            if kept is not None:
                config, types, improved = smaller, kept, True
                break
    return config


def edits(config: Config, types: Types) -> Iterator[Config]:
    """Yield smaller experiments, each by one step."""
    yield from _parsable(_all_edits(config, types))


def _parsable(configs: Iterator[Config]) -> Iterator[Config]:
    """Yield the experiments whose expressions are valid Python: a part of a subscript is not."""
    for config in configs:
        lines = [text for section in SECTIONS for line in config.get(section, {}).values() for text in texts(line)]
        try:
            for text in lines:
                ast.parse(text, mode="eval")
        except SyntaxError:
            continue
        yield config


def _all_edits(config: Config, types: Types) -> Iterator[Config]:
    yield from _without_aliases(config)
    for drop in (_without_sections, _with_fewer_outputs, _with_earlier_outputs, _with_values_as_arrays, _with_operands):
        yield from drop(config, types)
    for drop in (_with_single_steps, _with_fewer_constraints, _with_plainer_specs, _on_smaller_meshes):
        yield from drop(config)
    yield from _with_smaller_sizes(config)
    yield from _with_plainer_arrays(config)


def _copy(config: Config) -> Config:
    return copy.deepcopy(config)


def _without_sections(config: Config, types: Types) -> Iterator[Config]:
    for key in ("grad", *SECTIONS):
        if key in config and (key == "grad" or all(section in config for section in SECTIONS)):
            smaller = _copy(config)
            del smaller[key]
            if key == "graph":
                smaller.pop("constraints", None)
            yield smaller


def _without_aliases(config: Config) -> Iterator[Config]:
    """Remove a line that only renames a value, and use the value directly."""
    section = _section(config)
    for name, line in config[section].items():
        if isinstance(line, dict) or not str(line).isidentifier() or any(s in config for s in SECTIONS if s != section):
            continue
        smaller = _copy(config)
        del smaller[section][name]
        smaller[section] = {other: _renamed(text, name, line) for other, text in smaller[section].items()}
        for key in ("outputs", "constraints"):
            given = smaller.get(key, {})
            if name in given and (key == "constraints" or line in smaller[section]):
                given.setdefault(line, given.pop(name))
        yield smaller


def _renamed(line: Any, old: str, new: str) -> Any:
    if isinstance(line, dict):
        carry, body = ({n: _renamed(text, old, new) for n, text in line[key].items()} for key in ("carry", "body"))
        return {**line, "carry": carry, "body": body}

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name(new if node.id == old else node.id)

    return ast.unparse(Rename().visit(ast.parse(str(line), mode="eval")))


def _with_fewer_outputs(config: Config, types: Types) -> Iterator[Config]:
    outputs = config["outputs"]
    if len(outputs) > 2:
        for name in outputs:
            yield {**_copy(config), "outputs": {name: outputs[name]}}
    if len(outputs) > 1:
        for name in outputs:
            yield {**_copy(config), "outputs": {n: spec for n, spec in outputs.items() if n != name}}


def _with_earlier_outputs(config: Config, types: Types) -> Iterator[Config]:
    """Output an intermediate value instead of the outputs."""
    section = _section(config)
    names = [name for name in types.get(section, {}) if "/" not in name]
    for name in names:
        if name not in config["outputs"] and name.split(".")[0] in config[section]:
            yield {**_copy(config), "outputs": {name: []}}


def _with_values_as_arrays(config: Config, types: Types) -> Iterator[Config]:
    """Replace a line by an array, and drop everything that only the line reads."""
    section = _section(config)
    if all(name in config for name in SECTIONS):
        return
    for name in reversed(list(config[section])):
        known = types.get(section, {}).get(name)
        if name in config["outputs"] or known is None or isinstance(config[section][name], dict):
            continue
        shape, dtype = known
        smaller = _copy(config)
        del smaller[section][name]
        spec = config.get("constraints", {}).get(name, [])
        init = "integers(0, 2)" if dtype.startswith(("int", "uint", "bool")) else "normal"
        smaller["arrays"][name] = {"shape": list(shape), "dtype": dtype, "init": init, "spec": spec}
        yield smaller


def _with_operands(config: Config, types: Types) -> Iterator[Config]:
    """Replace an expression by a part of it."""
    for section in SECTIONS:
        for name, line in config.get(section, {}).items():
            if isinstance(line, dict):
                continue
            tree = ast.parse(str(line), mode="eval").body
            for part in _parts(tree):
                smaller = _copy(config)
                smaller[section][name] = part
                yield smaller


def _parts(tree: ast.expr) -> Iterator[str]:
    """Yield the expression with one of its calls, operators or subscripts replaced by its operand."""
    kinds = ast.Call | ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Compare
    places = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for place in places:
        for child in ast.iter_child_nodes(place):
            operand = place.args[0] if isinstance(place, ast.Call) and child is place.func and place.args else child
            if isinstance(operand, ast.expr) and not isinstance(operand, ast.Constant | ast.Slice | ast.keyword):
                text = ast.unparse(_replaced(tree, place, operand))
                if text != ast.unparse(tree):
                    yield text
        if isinstance(place, ast.Call) and place.keywords:
            for keyword in place.keywords:
                fewer = [k for k in place.keywords if k is not keyword]
                yield ast.unparse(_replaced(tree, place, ast.Call(place.func, place.args, fewer)))


def _replaced(tree: ast.expr, place: ast.AST, by: ast.expr) -> ast.AST:
    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return by if node is place else self.generic_visit(node)

    return Replace().visit(copy.deepcopy(tree, {id(place): place}))


def _with_single_steps(config: Config) -> Iterator[Config]:
    for section in SECTIONS:
        for name, line in config.get(section, {}).items():
            if isinstance(line, dict) and line["repeat"] != 1:
                smaller = _copy(config)
                smaller[section][name]["repeat"] = 1
                yield smaller


def _with_fewer_constraints(config: Config) -> Iterator[Config]:
    for name in config.get("constraints", {}):
        yield {**_copy(config), "constraints": {n: s for n, s in config["constraints"].items() if n != name}}


def _with_plainer_specs(config: Config) -> Iterator[Config]:
    for key in ("arrays", "constraints", "outputs"):
        for name, given in config.get(key, {}).items():
            spec = given.get("spec", []) if key == "arrays" else given
            for plainer in _plainer(spec):
                smaller = _copy(config)
                if key == "arrays":
                    smaller[key][name]["spec"] = plainer
                else:
                    smaller[key][name] = plainer
                yield smaller


def _plainer(spec: list[Any]) -> Iterator[list[Any]]:
    if any(spec):
        yield []
    for i, entry in enumerate(spec):
        if entry is not None:
            yield [*spec[:i], None, *spec[i + 1 :]]
        if isinstance(entry, list):
            for axis in entry:
                yield [*spec[:i], axis, *spec[i + 1 :]]
    if spec and spec[-1] is None:
        yield spec[:-1]


def _on_smaller_meshes(config: Config) -> Iterator[Config]:
    axes, shape = config["mesh"]["axes"], config["mesh"]["shape"]
    for i, axis in enumerate(axes):
        if len(axes) > 1:
            smaller = json.loads(json.dumps(config))
            smaller["mesh"] = {"axes": axes[:i] + axes[i + 1 :], "shape": shape[:i] + shape[i + 1 :]}
            for array in smaller["arrays"].values():
                array["spec"] = _without_axis(array.get("spec", []), axis)
            for key in ("constraints", "outputs"):
                if key in smaller:
                    smaller[key] = {name: _without_axis(spec, axis) for name, spec in smaller[key].items()}
            yield smaller
        if shape[i] > 2:
            yield {**_copy(config), "mesh": {"axes": axes, "shape": [*shape[:i], 2, *shape[i + 1 :]]}}


def _without_axis(spec: list[Any], axis: str) -> list[Any]:
    left = []
    for entry in spec:
        entry = [a for a in entry if a != axis] if isinstance(entry, list) else None if entry == axis else entry
        left.append(entry[0] if isinstance(entry, list) and len(entry) == 1 else entry or None)
    return left


def _with_smaller_sizes(config: Config) -> Iterator[Config]:
    """Replace every occurrence of a size, in shapes and expressions, or in shapes alone."""
    sizes = sorted({size for array in config["arrays"].values() for size in array["shape"]}, reverse=True)
    for size in sizes:
        for less in sorted({1, 2, 3, 4, size // 2, size // 3} - {0}):
            if less >= size:
                continue
            for everywhere in (True, False):
                smaller = _copy(config)
                for array in smaller["arrays"].values():
                    array["shape"] = [less if n == size else n for n in array["shape"]]
                if everywhere:
                    for section in SECTIONS:
                        for name, line in smaller.get(section, {}).items():
                            if not isinstance(line, dict):
                                smaller[section][name] = _resized(str(line), size, less)
                yield smaller


def _resized(text: str, size: int, less: int) -> str:
    class Resize(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.Constant(less) if type(node.value) is int and node.value == size else node

    return ast.unparse(Resize().visit(ast.parse(text, mode="eval")))


def _with_plainer_arrays(config: Config) -> Iterator[Config]:
    for name, array in config["arrays"].items():
        dtype = array.get("dtype", "float32")
        plain = "int32" if dtype.startswith(("int", "uint")) else dtype if dtype.startswith("bool") else "float32"
        for key, value in (("dtype", plain), ("init", "ones")):
            if array.get(key) != value:
                smaller = _copy(config)
                smaller["arrays"][name][key] = value
                yield smaller


def without_dead_lines(config: Config) -> Config:
    """Return the experiment without the lines, arrays and constraints that no output needs."""
    config = _copy(config)
    needed = {name.split(".")[0] for name in config["outputs"]}
    grad = config.get("grad")
    if grad:
        needed |= {grad["of"], *grad["wrt"]}
    for section in SECTIONS:
        live = set(needed)
        lines = config.get(section, {})
        for name in reversed(list(lines)):
            if name in live:
                live |= {used for text in texts(lines[name]) for used in used_names(text)}
        if section in config:
            config[section] = {name: line for name, line in lines.items() if name in live}
        needed |= live
    config["arrays"] = {name: array for name, array in config["arrays"].items() if name in needed}
    if "constraints" in config:
        known = {**config["arrays"], **config.get("graph", {})}
        config["constraints"] = {n: spec for n, spec in config["constraints"].items() if n.split(".")[0] in known}
        if not config["constraints"]:
            del config["constraints"]
    return config


def _section(config: Config) -> str:
    return "graph" if "graph" in config else "per_device"


def texts(line: Any) -> Iterator[str]:
    """Return the expressions of a line, including those of a repeat's carry and body."""
    if not isinstance(line, dict):
        yield str(line)
        return
    yield from map(str, line["carry"].values())
    for inner in line["body"].values():
        yield from texts(inner)


def used_names(text: str) -> set[str]:
    """Return the names in an expression; for `ring.acc`, `ring`."""
    return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}


def lines(config: Config) -> int:
    """Count the lines that an experiment computes."""
    return max(len(config.get(section, {})) for section in SECTIONS)
