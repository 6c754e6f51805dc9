"""Traces the Python functions that a definition imports, and adds their lines and their trees' leaves to it.

Apart from programs, the user's code runs only here: modules are imported, trees are made, functions are traced at the
types of their arguments. The result is an ordinary definition with an array for each leaf, a function of the experiment
for each call, and under `imported` how a program calls the user's function instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from runner.base import codec, dtypes
from runner.base.chosen import AUTO
from runner.base.faults import Fault, InvalidExperiment, Key, invalid, key_text, nearest
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.base.words import as_spec, bytes_text, listed
from runner.experiment.config import schema
from runner.experiment.frames import free
from runner.experiment.functions import CHECKPOINT, RESULT, DefinedFunction, is_static, read_functions
from runner.experiment.imported import CALLED, KEY, Imported, Imports, skeleton
from runner.experiment.memory import available
from runner.experiment.patterns import fits, flattened, is_pattern
from runner.experiment.plain import located
from runner.experiment.reader import read
from runner.experiment.written import BOTH, WrittenLine, all_names, is_choice, spread, targets
from runner.graph.language import python, python_source
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.python import OwnCall, PythonCall
from runner.graph.language.syntax import SyntaxFault, parse
from runner.graph.sharding.repairs import Repair
from runner.graph.source import SECTIONS, Section
from runner.worker import (
    calls,
    explicit,
    jaxprs,
    phases,
    remedies,
    types,
    versions,
)
from runner.worker.jaxprs import CannotRead
from runner.worker.own_files import Standing, UserModules
from runner.worker.probing import FunctionAround, Probing, RepeatAround, tuple_of
from runner.worker.refusing import reported
from runner.worker.result_layouts import CompilableCall, ResultLayouts
from runner.worker.setting import CallSettings, Setting
from runner.worker.specs import spec_of
from runner.worker.trees import (
    Tree,
    identifier,
    part_of_path,
    plain_spec,
    require_dtypes,
    require_shallow,
    tree_text,
    types_text,
)
from runner.worker.versions import donated_parameters, varying_axes
from runner.worker.walk import REFUSALS

_OF_FUNCTIONS = ("of", "result", "checkpoint")
"""The keys of a function's mapping, beside its lines."""

_KEYS = {"key": "jax.random.key"}
"""The names that Python expressions may use besides imports, with their names in programs."""

_Result = TypeVar("_Result")

_BUILTINS: dict[str, Any] = {"__builtins__": {"__import__": __import__}}
"""The builtins of an evaluated expression, which can name none: JAX's extensions import what they need by this one."""

_PLAIN = Setting(explicit=False, within=False)
"""How a device's code is traced: the mesh is that of the `shard_map` around it."""

_TYPED, _WITHIN = Setting(explicit=True, within=False), Setting(explicit=True, within=True)

_SHOWN_TREES = 80
"""The most characters of two trees that a message shows; of larger ones JAX says where they differ."""

_RAISED = BaseException
"""The exceptions of the user's code that are reported: all of them."""

_NUMBERED = re.compile(r"(\w|[*{},])+\.(\d+|\*)")
"""The last part of a path of a primitive's result, or of a pattern of such paths: `dot_general.3`, `dot_general.*`."""

_LONGEST = 150
"""The most characters of a leaf's name in the name of its file."""

_FEW = 16
"""The most leaves of a tree of dicts, lists and tuples that is written out; otherwise its structure gets a name."""


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
    if AUTO.saved != definition["remat"]:
        # A function that another module has jitted would not ask the policy again.
        calls.clear_caches()
        AUTO.saved = definition["remat"]
    return _FunctionReader(definition, folder, into, values, None if apart is None else frozenset(apart)).done()


@dataclass
class _FunctionReader:
    definition: Mapping[str, Any]
    folder: Path
    into: Path
    valued: bool
    apart: frozenset[str] | None = None
    stated: dict[str, Spec] = field(default_factory=dict[str, Spec])
    """The layouts that functions state themselves, by the paths of the values inside the calls."""
    preamble: list[str] = field(default_factory=list[str])
    trees: dict[str, Tree] = field(default_factory=dict[str, Tree])
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])
    imported: dict[str, Imported] = field(default_factory=dict[str, Imported])
    written: dict[str, str] = field(default_factory=dict[str, str])
    patterns: set[str] = field(default_factory=set[str])
    """The patterns of `specs` that match a path."""
    inside: dict[str, None] = field(default_factory=dict[str, None])
    """The paths inside calls that constraints may name."""
    donating: dict[str, None] = field(default_factory=dict[str, None])
    """The arrays and trees that lines give jitted functions for parameters that these donate."""
    paths: dict[str, str] = field(default_factory=dict[str, str])
    """The paths of leaves in their trees, by name."""
    compilable: dict[str, CompilableCall] = field(default_factory=dict[str, "CompilableCall"])
    """For each line that is a call of arrays: what is compiled to ask for the layouts of its results."""
    captured: dict[tuple[Any, ...], str] = field(default_factory=dict["tuple[Any, ...]", str])
    """The arrays that functions capture, by their dtypes, shapes and bytes."""
    held: list[str] = field(default_factory=list[str])
    open: list[str] = field(default_factory=list[str])
    """The outputs whose layouts the caller of `runner.check` asked for, and those whose layouts nobody asked for."""
    state: dict[str, str] = field(default_factory=dict[str, str])
    """The arrays of which outputs are the next values, by the names of these."""
    references: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    called: set[str] = field(default_factory=set[str])
    """The names of the functions that lines call, directly or inside."""
    statics: Mapping[str, str] = field(default_factory=dict[str, str])
    """The static arguments of the function around, as texts by parameter."""
    typed: dict[str, str] = field(default_factory=dict[str, str])
    """For each call in a line: an expression of the types of its results, as JAX traced them."""
    inside_functions: list[DefinedFunction] = field(default_factory=list[DefinedFunction])
    """The functions of the experiment that are being read."""
    scope: set[str] | None = None
    """The names that are visible in the function around; None outside of functions."""
    local: frozenset[str] = frozenset()
    """The names that the function around defines, which are not the experiment's arrays of these names."""

    def done(self) -> dict[str, Any]:
        self.probe = read(skeleton(self.definition))
        names = {*self.probe.dims, *self.definition["arrays"]}
        self.modules = UserModules(self.folder, names, self.preamble)
        self.taken = {*self.probe.dims, *OPERATIONS, *CONSTANTS, *_KEYS}
        self.taken |= {*self.definition["imports"], *self.definition["arrays"]}
        if self.definition["remat"] is not None:
            self.preamble += ["import runner", f"runner.AUTO.saved = {self.definition['remat']!r}"]
        wide = calls.x64()
        for name, source in self.definition["imports"].items():
            phases.tell(f"{source} was imported")
            self.modules.add(name, source)
            if wide and not calls.x64():
                message = f"{source} switches jax_enable_x64 off, and a 64-bit dtype of the experiment needs it"
                raise invalid(("imports", name), f"{message}; take that line out, or use 32-bit dtypes")
        ambient = self.call is not None and self.call.context
        self.settings = CallSettings(self.probe, ambient, (CannotRead, InvalidExperiment))
        self.results = ResultLayouts(self.probe, self.definition, self.arrays, self.settings)
        defined = read_functions(self.definition["functions"], {}, ())
        self.calling = _calling(defined, self.modules.objects)
        self.plain = {
            written: value
            for written, value in self.definition["functions"].items()
            if not any(function.key[-1] == written for function in self.calling.values())
        }
        self.taken |= {name for name in defined if name not in self.calling}
        self.fixed = {*self.taken}
        for section in (BOTH, *SECTIONS):
            self.taken |= {name for name, _ in all_names(self.definition[section], (section,))}
        self.taken |= {name for function in self.calling.values() for name in function.own}
        self.references = {
            name: self.modules.reference(source, ("references", name))
            for name, source in self._mapping("references").items()
        }
        for name, array in spread(self.definition["arrays"], ("arrays",)).items():
            phases.tell(f"the tree '{name}' was made")
            self._array(name, schema.given(array or {}))
        # Trees may have 64-bit leaves, as if the file declared them.
        wide = any(array["dtype"] in dtypes.WIDE for array in self.arrays.values() if array.get("dtype"))
        with calls.enable_x64(True) if wide else contextlib.nullcontext():
            changed = self._changed()
            x64 = calls.x64()
        for pattern in self.specs:
            if pattern not in self.patterns:
                self._require_unshadowed(pattern)
                known = ", ".join(list(self.paths.values())[:12])
                raise invalid(("specs",), f"no leaf of a tree matches {pattern}; there are {known}")
        for name in self.references:
            if not {name, name.rpartition(".")[2]} & self.called:
                known = listed(sorted(self.called)[:12])
                raise invalid(("references", name), f"nothing calls '{name}'; the functions called are {known}")
        names = (*self.definition["imports"], *(f"{name}_tree" for name in self.trees))
        paths = {name: path for name, path in self.paths.items() if name != path}
        referred = () if self.written else tuple(self.references)
        changed[KEY] = codec.plain(
            Imports(
                self.imported, tuple(self.preamble), names, paths, self.written, referred, x64,
                self.settings.within, tuple(self.held), tuple(self.open), self._donated(), self.state, self._refused,
            )
        )  # fmt: skip
        return changed

    @cached_property
    def call(self) -> Any:
        """The module with the arguments of `runner.check`; None for an experiment of a file."""
        called = (name for name, source in self.definition["imports"].items() if Path(source).name == CALLED)
        return self.modules.objects.get(next(called, ""))

    @property
    def _refused(self) -> str:
        """Why no program can call the functions on Auto axes; "" if one can."""
        refused = self.settings.refused
        return "" if refused is None else reported(refused, "JAX refuses Auto axes", ()).fault.message

    def _donated(self) -> tuple[str, ...]:
        """The arrays whose memory the outputs may take: of a file those that only the line reads that donates them."""
        if self.call is not None:
            return tuple(self._leaves(self.call.donated))
        texts = list(_texts_in(self.definition["graph"]))
        reading = Counter(name for text in texts for name in python_source.names(text))
        return tuple(self._leaves(name for name in self.donating if reading[name] == 1))

    def _changed(self) -> dict[str, Any]:
        """The definition with the lines of the functions that it calls."""
        self.operands = {**self.trees}
        written: dict[str, dict[str, Any]] = {section: {} for section in (BOTH, *SECTIONS)}
        for section in SECTIONS:
            self._section(section, written)
        return {
            **self.definition,
            **written,
            "arrays": self.arrays,
            "functions": {**self.plain, **self.functions},
            "outputs": self._of_trees("outputs"),
            "constraints": self._constraints(),
            "grad": self._grad(),
            "show": self._show(),
            "expect": {
                key: self._by_name(value, ("expect", key)) if key in _OF_OUTPUTS else value
                for key, value in self._mapping("expect").items()
            },
        }

    @property
    def visible(self) -> set[str]:
        """The names that a new name may not have: those of the function around, or all."""
        return self.taken if self.scope is None else self.scope

    @cached_property
    def specs(self) -> dict[str, Any]:
        """The specs of leaves, by patterns of their paths."""
        return flattened(self._mapping("specs"))

    @cached_property
    def constrained(self) -> dict[str, Any]:
        """The constraints whose keys are patterns of paths, by pattern."""
        given = self._mapping("constraints")
        return flattened({key: spec for key, spec in given.items() if is_mapping(spec) or is_pattern(key)})

    def _require_unshadowed(self, pattern: str) -> None:
        """Raise `InvalidExperiment` for a pattern of `specs` all of whose leaves an earlier one has."""
        paths = [path for path in self.paths.values() if fits(pattern, path)]
        earlier = [
            other for other in [*self.specs][: [*self.specs].index(pattern)] if any(fits(other, p) for p in paths)
        ]
        if earlier:
            message = f"'{earlier[0]}' stands before '{pattern}' and gives all its leaves their specs"
            raise invalid(("specs",), f"{message}; the first pattern that fits counts: write '{pattern}' first")

    def _mapping(self, key: str) -> Mapping[str, Any]:
        """The mapping at a key, empty if it is null."""
        return self.definition[key] or {}

    # Arrays, and the leaves of trees.

    def _array(self, name: str, array: Mapping[str, Any]) -> None:
        expression = array.get("tree")
        if expression is None:
            self.arrays[name] = {**array, "spec": self._spec(name, array.get("spec"))}
            self.paths[name] = name
            return
        key = ("arrays", name, "tree")
        if array.get("shape") is not None:
            raise invalid(("arrays", name, "shape"), "a tree has the shapes of its leaves; leave it out")
        call = self._python(expression, key)
        code = compile(call.text, f"<{key_text(key)}>", "eval")
        space = self._space()
        self._known(call, space, key)

        def make() -> Any:
            return eval(code, _BUILTINS, space)

        try:
            shapes = calls.eval_shape(make)
        except _RAISED as error:
            require_dtypes(make, key, expression)
            raise reported(error, "making the tree", key, expression) from None
        init = array.get("init")
        values: list[Any] | None = None
        if init is None and self.valued and self.probe.target.topology is None:
            self._require_memory(shapes, key)
            try:
                with calls.default_device(calls.devices("cpu")[0]):
                    values = calls.block_until_ready(calls.tree.leaves(make()))
            except _RAISED as error:
                raise reported(error, "making the tree", key, expression) from None
        require_shallow(shapes, expression, key)
        tree = self._tree(name, shapes, call)
        for i, (leaf, struct) in enumerate(zip(tree.leaves, calls.tree.leaves(shapes), strict=True)):
            made: dict[str, Any] = {"shape": list(struct.shape), "dtype": self._dtype(struct, leaf, key)}
            if init is not None:
                made["init"] = init
            elif values is not None and not isinstance(values[i], jax.ShapeDtypeStruct):
                made["init"] = self._left(leaf, np.asarray(values[i]))
            self.arrays[leaf] = {**made, "spec": self._spec(leaf, array.get("spec"))}
        self.trees[name] = tree
        if (leaves := array.get("specs")) is not None:
            for leaf, spec in self._specs(leaves, tree, (*key[:-1], "specs")).items():
                if spec is not None:
                    self.arrays[leaf]["spec"] = spec

    @property
    def _taken_inside(self) -> set[str]:
        """The names that lines of a function may not have."""
        return {*self.taken, *_OF_FUNCTIONS}

    def _require_memory(self, shapes: Any, key: Key) -> None:
        """Raise `InvalidExperiment` if the values of a tree take more memory than is free."""
        needed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in calls.tree.leaves(shapes))
        unused = available()
        if unused is not None and needed > unused:
            message = f"the values take {bytes_text(needed)}, and {bytes_text(unused)} of memory are free"
            raise invalid(key, f"{message}; choose smaller dims, or a target that is not here, such as target=v5e_4x4")

    def _specs(self, text: Any, tree: Tree, key: Key) -> dict[str, list[Any] | None]:
        """Evaluate an expression to the PartitionSpecs of a tree's leaves; None for a leaf without one."""
        call = self._python(text, key)
        space = {**self.modules.objects, **self.probe.dims}
        self._known(call, space, key)
        try:
            specs = eval(call.text, _BUILTINS, space)
        except _RAISED as error:
            raise reported(error, "making the specs", key, call.text) from None
        if key[0] == "outputs" and self.call is not None and self.call.changes:
            specs = _with_changes(specs, self.call.changes)
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
            raise invalid(key, f"the leaf {self.paths[leaf]} is {name}; an array is one of {', '.join(dtypes.NAMES)}")
        return name

    def _left(self, name: str, value: np.ndarray) -> str:
        """Save values to a file, and return the `init` that loads them."""
        self.into.mkdir(parents=True, exist_ok=True)
        # A leaf may have any path, and thus a name longer than a file's can be.
        short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        file = self.into / f"{short}.npy"
        # NumPy's file format lacks bfloat16; float32 represents all its values.
        plain = value if value.dtype.kind in "biufc" else value.astype(np.float32)
        np.save(file, plain)
        return f"load({str(file)!r})"

    def _tree(self, name: str, value: Any, made_by: PythonCall | None) -> Tree:
        """The tree of a value, with a name for each leaf; `made_by`: the expression that gives its structure."""
        leaves: list[str] = []
        known = {path: leaf for leaf, path in self.paths.items()}
        for keys, _ in calls.tree_util.tree_flatten_with_path(value)[0]:
            parts = [part_of_path(part) for part in keys]
            path = "/".join([name, *parts])
            leaf = known.get(path, name) if path in known or not parts else None
            leaf = leaf or free("_".join([name, *(identifier(part) for part in parts)]), self.visible)
            self.paths[leaf] = path
            leaves.append(leaf)
        structure = calls.tree.structure(value)
        written = tree_text(calls.tree.unflatten(structure, [f"${leaf}" for leaf in leaves]))
        if written is None or len(leaves) > _FEW:
            if made_by is None and written is None:
                written = ""
            elif made_by is not None:
                text = made_by.filled(self._texts())
                self.preamble += ["", f"{name}_tree = jax.tree.structure(jax.eval_shape(lambda: {text}))"]
                written = f"jax.tree.unflatten({name}_tree, [{', '.join(f'${leaf}' for leaf in leaves)}])"
        return Tree(tuple(leaves), structure, written or "")

    def _leaves(self, names: Iterable[str]) -> list[str]:
        """The names, with each tree replaced by its leaves."""
        return [leaf for name in names for leaf in (self.trees[name].leaves if name in self.trees else (name,))]

    def _space(self) -> dict[str, Any]:
        """The names that Python expressions may use: imports, dims and `key`."""
        return {**self.modules.objects, **self.probe.dims, "key": jax.random.key}

    def _texts(self) -> dict[str, str]:
        """The expressions for dims and `key` in a program."""
        return {**_KEYS, **{dim: str(size) for dim, size in self.probe.dims.items()}}

    def _spec(self, name: str, own: Any) -> Any:
        """The spec of an array or leaf: an array's own, else that of the first matching pattern, else the tree's."""
        for pattern, spec in self.specs.items():
            if fits(pattern, self.paths.get(name, name)):
                self.patterns.add(pattern)
                return spec if own is None or name not in self.definition["arrays"] else own
        return own

    # Sections.

    def _section(self, section: Section, written: dict[str, dict[str, Any]]) -> None:
        """Read the calls in the lines of a section, and put the resulting lines in `written`."""
        if not self.definition[section]:
            written[section] = {}
            if section == "per_device" or not self.definition[BOTH]:
                return
        self.before: dict[str, Any] = {}
        self.around: list[RepeatAround | FunctionAround] = []
        self.values: set[str] = set()
        known, self.trees = dict(self.trees), dict(self.operands)
        for where in (BOTH, section):
            for name, line in self._with_gradients(self.definition[where]).items():
                key: Key = (where, name)
                value = line
                if is_choice(line):
                    if section not in line:
                        written[where].setdefault(name, {}).update({k: v for k, v in line.items() if k == section})
                        continue
                    value, key = line[section], (*key, section)
                given, text = self._line(section, name, value, key)
                if given in self.before:
                    raise invalid(key, f"'{given}' appears twice")
                self._keep(given, text)
                if where == BOTH:
                    written[BOTH].setdefault(given, {})[section] = text
                else:
                    written[where][given] = text
        if section == "per_device" or not self.definition["per_device"]:
            written[BOTH] = {name: _shared(texts) for name, texts in written[BOTH].items()}
        # Outputs may name the trees of any section.
        self.trees = {**known, **self.trees}

    def _with_gradients(self, lines: Mapping[str, Any]) -> dict[str, Any]:
        """Lines with one more for each gradient that a call of Python reads, `grad_w: grad.w`."""
        named: dict[str, str] = {}
        more: dict[str, Any] = {}
        grad: Mapping[str, Any] = self._grad() or {}
        wanted: Sequence[str] = grad.get("wrt") or ()
        gradients = [f"grad.{array}" for array in wanted]
        for name, line in lines.items():
            read = [each for each in gradients if isinstance(line, str) and re.search(rf"\b{re.escape(each)}\b", line)]
            if read and self._calls_python(line):
                for gradient in read:
                    if gradient not in named:
                        named[gradient] = free(gradient.replace(".", "_"), self.taken)
                        more[named[gradient]] = gradient
                line = python.filled(line, named)
            more[name] = line
        return more

    def _calls_python(self, line: str) -> bool:
        """Whether a line calls a function of Python, as far as it can be read."""
        with contextlib.suppress(SyntaxFault):
            return bool(python.taken_out(line, self.modules.objects)[1])
        return False

    def _keep(self, given: str, text: Any) -> None:
        """Keep a line for the types of later ones; of a call those that JAX has traced are enough."""
        lines = self.around[-1].lines if self.around else self.before
        lines[given] = self.typed.get(text, text) if isinstance(text, str) else text

    def _line(self, section: Section, name: str, value: Any, key: Key) -> tuple[str, Any]:
        """The names and the text of a line, with calls of Python replaced by functions of the experiment."""
        if not isinstance(value, str):
            if is_mapping(value) and is_mapping(value.get("body")) and not is_choice(value):
                return name, self._repeat(section, name, value, key)
            self._refuse_inside(value, key)
            self.values |= set(targets(name, key)) if not is_mapping(value) else set()
            return name, value
        if value.strip() in self.trees and "." in value:
            return self._again(name, value.strip(), key)
        given = targets(name, key)
        text, results = self._results(section, given, value, key)
        if text not in results:
            self.values |= set(given)
            return name, self._filled(text, results, key, value) if results else value
        written, tree, _ = results[text]
        return ", ".join(self._give(given, tree, key, value)), written

    def _results(
        self, section: Section, given: Sequence[str], value: str, key: Key
    ) -> tuple[str, dict[str, tuple[str, Tree, str]]]:
        """An expression with names for the calls of Python and of functions that contain such calls.

        Each name has the call that replaces the one that is written, the tree of its results, and the written call.
        """
        try:
            text, calls = python.taken_out(value, self.modules.objects, self.calling)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, value, fault)) from None
        self._refuse_handed(text, key, value)
        line = given[0] if text in calls else ", ".join(given)
        results: dict[str, tuple[str, Tree, str]] = {}
        for place, call in calls.items():
            if isinstance(call, OwnCall):
                written, tree = self._specialised(section, call, results, key, line)
            else:
                filled = python.read(call.filled(self.statics)) if self.statics else call
                written, tree = self._called(section, filled, key, line)
            results[place] = written, tree, call.text
        return text, results

    def _filled(self, text: str, results: Mapping[str, tuple[str, Tree, str]], key: Key, value: str) -> str:
        """An expression with the calls that its names stand for, each of which gives one array."""
        read = [place for place in results if place in python_source.names(text)]
        for _, tree, call in map(results.__getitem__, read):
            if len(tree.leaves) != 1:
                message = f"{call} gives {len(tree.leaves)} arrays; give it a line of its own"
                raise InvalidExperiment(Fault(key, message, value, 0, len(value)))
        return python.filled(text, {place: results[place][0] for place in read})

    # Functions of the experiment that call Python.

    def _specialised(
        self, section: Section, call: OwnCall, results: Mapping[str, tuple[str, Tree, str]], key: Key, line: str
    ) -> tuple[str, Tree]:
        """The call of the function with its calls of Python read at the types of these arguments, and its results."""
        function = self.calling[call.function]
        if function in self.inside_functions:
            raise InvalidExperiment(Fault(key, f"'{function.name}' calls itself", call.text, 0, len(call.text)))
        try:
            bound = function.signature.bind(*call.operands, **dict(call.named))
        except TypeError as error:
            message = f"{function.name}(): {error}; it takes {function.signature}"
            raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text))) from None
        outer = self.trees, self.values, self.paths, self.statics, self.local, self.scope
        arguments: dict[str, str] = {}
        statics: dict[str, str] = {}
        trees: dict[str, Tree] = {}
        hidden = {leaf for name in function.own & self.operands.keys() for leaf in self.operands[name].leaves}
        known = {*self.fixed, *self.functions, *self.imported, *self.arrays, *function.own}
        self.paths, self.scope = {}, known - hidden
        for parameter in function.signature.parameters.values():
            text = bound.arguments.get(parameter.name, repr(parameter.default))
            of = self.trees.get(text)
            if of is not None:
                trees[parameter.name] = self._handed(parameter.name, of)
                arguments |= dict(zip(trees[parameter.name].leaves, of.leaves, strict=True))
                continue
            arguments[parameter.name] = self._filled(text, results, key, call.text)
            value = python.filled(text, self.statics)
            if self._is_static(value):
                statics[parameter.name] = value
        self.local = frozenset(function.own | {*arguments})
        self.trees = {name: tree for name, tree in self.operands.items() if name not in self.local} | trees
        self.values, self.statics = {*arguments} - {*statics}, statics
        lines: dict[str, Any] = {}
        self.around.append(FunctionAround(line, arguments))
        self.inside_functions.append(function)
        try:
            for written in function.body(section):
                given, text = self._line(section, ", ".join(written.names), written.value, written.key)
                lines[given] = text
                self._keep(given, text)
            gives, structure = self._gives(section, function.result(section), lines)
        except InvalidExperiment as error:
            raise InvalidExperiment(replace(error.fault, uses=(*error.fault.uses, key))) from None
        self.around.pop()
        self.inside_functions.pop()
        self.taken |= self.visible
        self.trees, self.values, self.paths, self.statics, self.local, self.scope = outer
        own = free(function.name, self.taken)
        written = self.definition["functions"][function.key[-1]]
        kept = {CHECKPOINT: written[CHECKPOINT]} if function.checkpoint else {}
        self.functions[own] = {"of": [*arguments], **kept, **lines, "result": tuple_of(gives)}
        tree = Tree(tuple(f"{own}_{i}" for i in range(len(gives))), structure, "")
        return f"{own}({', '.join(arguments.values())})", tree

    def _gives(self, section: Section, written: WrittenLine, lines: dict[str, Any]) -> tuple[list[str], Any]:
        """The expressions of a function's results, and their structure; calls that give trees are added to `lines`."""
        if not isinstance(written.value, str):
            raise invalid(written.key, "the result of a function is an expression, such as NAME.CARRIED of a repeat")
        text, results = self._results(section, (RESULT,), written.value, written.key)
        part = python_source.expression(text)
        gives: list[str] = []
        structures: list[Any] = []
        for each in part.inside if part.kind == "sequence" else (part,):
            if each.text in self.trees:
                tree = self.trees[each.text]
                gives += tree.leaves
            elif each.text in results:
                call, tree, _ = results[each.text]
                names = tree.leaves if len(tree.leaves) > 1 else ()
                if names:
                    lines[", ".join(names)] = call
                gives += names or (call,)
            else:
                gives.append(self._filled(each.text, results, written.key, written.value))
                structures.append(0)
                continue
            structures.append(calls.tree.unflatten(tree.structure, [0] * len(tree.leaves)))
        return gives, calls.tree.structure(tuple(structures) if part.kind == "sequence" else structures[0])

    def _is_static(self, text: str) -> bool:
        """Whether an argument of a function is a number, a text or a dim, or a tuple or arithmetic of these."""
        try:
            return is_static(parse(text).term, self.probe.dims)
        except SyntaxFault:
            # The reader of the call reports it.
            return False

    def _handed(self, name: str, of: Tree) -> Tree:
        """A tree under the name of a carry, a slice or a parameter."""
        tree = self._tree(name, calls.tree.unflatten(of.structure, of.leaves), None)
        leaves = {old: f"${new}" for old, new in zip(of.leaves, tree.leaves, strict=True)}
        template = string.Template(of.text)
        same = all(identifier in leaves for identifier in template.get_identifiers())
        return replace(tree, text=template.substitute(leaves) if same else "")

    def _repeat(self, section: Section, name: str, repeat: Mapping[str, Any], key: Key) -> dict[str, Any]:
        """A repeat whose body calls imported functions; its carry and slices may be trees."""
        for part in repeat.keys() - {"body"}:
            self._refuse_inside(repeat[part], (*key, part))
        values, trees = set(self.values), dict(self.trees)
        parts: dict[str, dict[str, Any]] = {part: dict(repeat.get(part) or {}) for part in ("carry", "over", "stack")}
        first = {part: self._firsts(parts[part], trees) for part in ("carry", "over") if parts[part]}
        self.values |= {str(repeat.get("index", "i")), *(leaf for part in first.values() for leaf in part)}
        lines: dict[str, Any] = {}
        body: Mapping[str, Any] = repeat["body"]
        self.around.append(RepeatAround(name, {**repeat, **first}))
        for written, value in body.items():
            own: Key = (*key, "body", written)
            given, text = (written, value) if is_choice(value) else self._line(section, written, value, own)
            if is_choice(value):
                self._refuse_inside(value, own)
                self.values |= set(targets(written, own))
            lines[given] = text
            self._keep(given, text)
        self.around.pop()
        after = {
            f"{name}.{tree}": self.trees[tree].renamed(f"{name}.") for tree in parts["carry"] if tree in self.trees
        }
        stack: dict[str, Any] = {}
        for each, inner in parts["stack"].items():
            tree = self.trees.get(inner)
            if tree is None:
                stack[each] = inner
                continue
            names = {leaf: free(f"{each}{leaf.removeprefix(inner)}", self.visible) for leaf in tree.leaves}
            stack |= {stacked: leaf for leaf, stacked in names.items()}
            leaves = tuple(f"{name}.{stacked}" for stacked in names.values())
            after[f"{name}.{each}"] = Tree(leaves, tree.structure, tree.text)
        self.values, self.trees = values, trees | after
        return {**repeat, **first, "body": lines, **({"stack": stack} if stack else {})}

    def _firsts(self, given: Mapping[str, Any], trees: Mapping[str, Tree]) -> dict[str, Any]:
        """The carry or the slices of a repeat, with each tree replaced by its leaves."""
        firsts: dict[str, Any] = {}
        for name, value in given.items():
            of = trees.get(value) if isinstance(value, str) else None
            if of is None:
                firsts[name] = value
                continue
            self.trees[name] = self._handed(name, of)
            firsts |= dict(zip(self.trees[name].leaves, of.leaves, strict=True))
        return firsts

    def _again(self, name: str, tree: str, key: Key) -> tuple[str, str]:
        """The names and the text of a line that renames a tree, such as the result of a repeat."""
        of = self.trees[tree]
        names = self._give([name], of, key, tree)
        return ", ".join(names), of.leaves[0] if len(names) == 1 else f"({', '.join(of.leaves)})"

    def _give(self, given: Sequence[str], tree: Tree, key: Key, text: str) -> list[str]:
        """Name the results of a line, and return the names of their leaves."""
        if len(given) == 1:
            parts = [calls.tree.unflatten(tree.structure, tree.leaves)]
        else:
            top = calls.tree.unflatten(tree.structure, tree.leaves)
            if not isinstance(top, tuple | list) or len(cast("Sequence[Any]", top)) != len(given):
                count = len(cast("Sequence[Any]", top)) if isinstance(top, tuple | list) else 1
                message = f"it gives {count} value{'s' if count > 1 else ''} for {len(given)} names"
                raise InvalidExperiment(Fault(key, message, text, 0, len(text)))
            parts = list(cast("Sequence[Any]", top))
        names: list[str] = []
        for name, part in zip(given, parts, strict=True):
            self.visible.discard(name)
            named = self._tree(name, part, None)
            self.visible.add(name)
            if named.leaves == (name,):
                self.values.add(name)
            else:
                self.trees[name] = named
            names += named.leaves
            self.values |= set(named.leaves)
        return names

    def _refuse_handed(self, text: str, key: Key, value: str) -> None:
        """Refuse a function that calls Python and is handed to `cond`, `switch` or `map`."""
        handed = python_source.names(text) & {*self.calling} if any(name in text for name in self.calling) else ()
        for name in sorted(handed):
            message = (
                f"'{name}' calls Python, and is traced with the types of its arguments: where a function is expected, "
                f"write a lambda that calls it with lines, such as lambda: {name}(x); for map, call jax.lax.map in "
                "Python"
            )
            raise InvalidExperiment(Fault(key, message, value, 0, len(value)))

    def _refuse_inside(self, value: Any, key: Key) -> None:
        """Refuse calls of imported functions where they cannot have a line of their own."""
        if is_mapping(value):
            for name, part in value.items():
                self._refuse_inside(part, (*key, name))
        elif isinstance(value, str) and (calls := python.taken_out(value, self.modules.objects, self.calling)[1]):
            first = next(iter(calls.values()))
            where = "a line of a section, or of the body of a repeat"
            message = f"{first.function} cannot be called here; call it in {where}"
            raise InvalidExperiment(Fault(key, message, value, 0, len(value)))

    # Calls.

    def _called(self, section: Section, call: PythonCall, key: Key, line: str) -> tuple[str, Tree]:
        """The call of the experiment's function that replaces a call of Python, and the tree of its results."""
        phases.tell(f"{call.function} was traced", f"JAX is tracing {call.function}")
        space = self._space()
        reads = [name for name in call.names if name in self.trees or name in self.values or name in self.arrays]
        self._known(call, {**space, **dict.fromkeys(reads)}, key)
        operands = self._leaves(reads)
        structs, varying, layouts = self._types(section, operands)
        wide = [f"{name} is {struct.dtype}" for name, struct in structs.items() if str(struct.dtype) in dtypes.WIDE]
        if wide and not calls.x64():
            message = (
                f"{listed(wide)}, which only a part of another function's lines has with jax.enable_x64; set it for "
                "all: jax.config.update('jax_enable_x64', True) at the top of the imported file"
            )
            raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text)))
        code = compile(call.text, f"<{key_text(key)}>", "eval")
        result: list[Any] = []
        kinds: list[Any] = []

        def in_space(space: Mapping[str, Any]) -> Callable[..., list[Any]]:
            def function(*leaves: Any) -> list[Any]:
                values = dict(zip(structs, leaves, strict=True))
                read = {name: self.trees[name].made(values) if name in self.trees else values[name] for name in reads}
                given = eval(code, _BUILTINS, {**space, **read})
                leaves_of, structure = calls.tree.flatten(given)
                result[:] = [calls.tree.unflatten(structure, range(len(leaves_of)))]
                kinds[:] = map(jax.typeof, leaves_of)
                return leaves_of

            return function

        where = "/".join([*(around.name for around in self.around), *([] if line == RESULT else [line])])

        def marks(path: str) -> bool:
            if not _is_numbered(path):
                self.inside.setdefault(f"{where}/{path}")
            return self._constraint(f"{where}/{path}") is not None

        def states(layouts: Mapping[str, Spec]) -> None:
            self.stated |= {f"{where}/{path}": spec for path, spec in layouts.items()}

        reference = self.references.get(call.function)
        read_in = space if reference is None else self._referring(reference, call, space)
        # A reference may have the name of what it stands for.
        inside = {name.rpartition(".")[2]: each for name, each in self.references.items() if name != call.function}
        self.taken |= self.visible
        own = free(identifier(call.function.replace(".", "_")) or line, self.taken)
        local = section == "per_device"

        latest: list[Callable[..., list[Any]]] = []

        def reading(how: Setting, stating: dict[str, Spec] | None = None) -> tuple[jaxprs.FunctionLines, Any]:
            # JAX caches traces by function, so each reading needs a new one.
            latest[:] = [in_space(read_in)]
            of_operands = layouts if stating is None else dict.fromkeys(layouts, Spec())
            if stating is not None:
                asked, tell = stating.__contains__, stating.update
            else:
                asked = marks if self._mapping("constraints") or self.apart is not None else None
                tell = None if self.apart is None else states
            with self.settings.context(how):
                lines = jaxprs.read(
                    latest[0],
                    self.settings.typed(structs, of_operands, how),
                    mesh=self.probe.mesh,
                    manual=self.probe.manual.axes if local else (),
                    varying=varying,
                    check_vma=self.probe.check_vma,
                    references=inside,
                    taken=self._taken_inside,
                    marks=None if local else asked,
                    states=None if local else tell,
                )
            return lines, result[0]

        def untyped() -> tuple[jaxprs.FunctionLines, Mapping[str, Spec]]:
            """The function of whole arrays, and the layouts that it states, which it may on Explicit axes alone."""
            try:
                return reading(_PLAIN)[0], {}
            except REFUSALS:
                stated: dict[str, Spec] = {}
                return reading(_WITHIN, stated)[0], stated

        # The call of `runner.check` is of arrays alone, which have their layouts in types.
        every = self.call is not None and self.probe.chosen
        try:
            if reference is None or local:
                (lines, gives), how = (
                    (reading(_PLAIN), _PLAIN) if local else self.settings.accepted(reading, every=every)
                )
                read_as = how
            else:
                given, how = self.settings.accepted(
                    lambda how: self._shapes(in_space(space), structs, layouts, how, result), every=every
                )
                changes = [] if self.call is None else [*self.call.changes]
                (lines, gives), read_as = self.settings.accepted(reading, reference=True)
                expected = self._shapes(in_space(read_in), structs, layouts, read_as, result)
                if calls.tree.flatten(given) != calls.tree.flatten(expected):
                    if changes and self.call is not None and changes != self.call.changes:
                        raise CannotRead(_other_changes(changes, self.call.changes))
                    message = f"{call.function} gives {types_text(given)}, and its reference {types_text(expected)}"
                    raise CannotRead(message)
            again, gives_again = reading(read_as)
            if not _alike(lines, again) or calls.tree.flatten(gives) != calls.tree.flatten(gives_again):
                raise CannotRead(
                    f"{call.function or call.text} returns different values when it is called again: it depends on "
                    "state that changes, such as a global, the time or NumPy's generator; pass that as an argument"
                )
        except CannotRead as error:
            raise InvalidExperiment(Fault(key, str(error), call.text, 0, len(call.text))) from None
        except InvalidExperiment:
            raise
        except _RAISED as error:
            hint = remedies.of_captured(error, {} if self.call is None else self.call.captured)
            typed = any(program.typed for program in self.probe.programs)
            if error is self.settings.refused:
                hint = "JAX accepts it on Explicit axes: leave programs with Auto axes out, such as 'auto'"
            if not hint and typed and not local and isinstance(error, REFUSALS):
                hint = self._remedy(error, self.settings.typed(structs, layouts, _TYPED), untyped) or ""
            hint = hint or remedies.of_words(error, self.probe.mesh) or ""
            name = (call.function or call.text) if self.call is None else self.call.name
            raise reported(error, f"tracing {name}", key, call.text, hint) from None
        self.called |= {call.function, *lines.called} - {""}
        if section == "graph" and not self.around and not self.definition["grad"].get("of"):
            self.donating |= dict.fromkeys(name for name in self._donates(call) if name in reads)
        if not lines.results:
            gave = [] if self.call is None else [*self.call.gave]
            message = f"{call.text} gives no array" + (f", but values of type {listed(gave)}" if gave else "")
            raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text)))
        require_shallow(gives, call.text, key)
        if section == "graph" and not self.around and all(operand in self.arrays for operand in operands):
            # The function of the latest reading is traced already.
            function = latest[0] if reference is None else in_space(space)
            self.compilable[line] = CompilableCall(function, self.settings.typed(structs, layouts, how), how, gives)
        text, tree = self._function(call, own, reads, structs, lines, gives, where)
        if all(str(kind.dtype) in dtypes.NAMES and not kind.weak_type for kind in kinds):
            self.typed[text] = tuple_of(map(_of_type, kinds))
        if reference is not None and not local and not self.around:
            with self.settings.context(how):
                self._write(
                    text, call, reads, self.settings.typed(structs, layouts, how), in_space(space), gives, where
                )
        return text, tree

    def _shapes(
        self,
        function: Callable[..., list[Any]],
        structs: Mapping[str, Any],
        layouts: Mapping[str, Spec],
        how: Setting,
        result: list[Any],
    ) -> Any:
        """The types of a function's results, in the tree that it leaves in `result`."""
        with self.settings.context(how):
            leaves = calls.eval_shape(function, *self.settings.typed(structs, layouts, how).values())
        # The layouts in the types of a function and its reference may differ.
        types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return calls.tree.map(types.__getitem__, result[0])

    def _remedy(
        self,
        error: BaseException,
        typed: Mapping[str, Any],
        untyped: Callable[[], tuple[jaxprs.FunctionLines, Mapping[str, Spec]]],
    ) -> str | None:
        """What to write where JAX's types refuse a line.

        `untyped` reads the function of whole arrays, whose types JAX accepts, and the layouts that it states itself.
        """
        if self.around:
            return None
        place = remedies.refused_at(error)
        by_path = {self.paths.get(name, name): struct for name, struct in typed.items()}
        if (hint := remedies.of_in_specs(error, by_path) or remedies.of_control_flow(error, place)) is not None:
            return hint
        try:
            lines, stated = untyped()
        except Exception:
            # It is refused without types too, for the layouts that it states itself.
            return self._remedy_alone(error)
        if place is None:
            return None
        for path, repairs in self._repairs(lines, typed, self.arrays, stated).items():
            # The path of a line of a call ends with the line's own name.
            own = max((label for label in lines.frames if path.endswith(label)), key=len, default="")
            frame = lines.frames.get(own)
            if frame is None or (frame.file, frame.line) != (place.filename, place.lineno):
                continue
            # Of several calls in a line JAX refuses the first.
            repair = next(iter(repairs.values()))
            text = remedies.written(repair, place)
            hint = f"write {text}, which JAX's types accept" if text else remedies.on_auto_axes(repair, self.probe.mesh)
            if hint is not None:
                return hint
        return self._remedy_alone(error)

    def _remedy_alone(self, error: BaseException) -> str | None:
        """What to write in the refused expression, of operands in the layouts that they have there."""
        refused = remedies.RefusedExpression.of(error)
        if refused is None or any(varying_axes(kind) for kind in refused.operands.values()):
            return None
        arrays = {
            name: {"shape": list(kind.shape), "dtype": str(kind.dtype), "spec": spec.json(), "init": 0}
            for name, kind in refused.operands.items()
            if (spec := spec_of(kind.sharding)) is not None
        }
        ways: list[tuple[str, str] | None] = []
        # What is refused without types too states layouts itself, or no operand's layout is at fault.
        with contextlib.suppress(Exception):
            lines = jaxprs.read(refused.function(), refused.operands, mesh=self.probe.mesh, taken=self._taken_inside)
            repairs = self._repairs(lines, refused.operands, arrays, {})
            ways += [refused.mended(next(iter(of_line.values()))) for of_line in repairs.values()]
        with contextlib.suppress(Exception), self.settings.context(_WITHIN):
            ways += refused.resharded(self.probe.mesh)
        for way in ways:
            with contextlib.suppress(Exception), self.settings.context(_WITHIN):
                if way is not None:
                    calls.eval_shape(refused.function(way[1]), *refused.operands.values())
                    return f"write {way[0]}, which JAX's types accept"
        return None

    def _repairs(
        self,
        lines: jaxprs.FunctionLines,
        operands: Mapping[str, Any],
        arrays: Mapping[str, Any],
        stated: Mapping[str, Spec],
    ) -> dict[str, dict[int, Repair]]:
        """The repairs of a function's lines that make JAX's types accept them, by the paths of the lines."""
        name, arrays = free("refused", self.taken), {**arrays}
        for captured, value in lines.arrays.items():
            arrays[captured] = {"shape": list(value.shape), "dtype": str(value.dtype), "spec": [], "init": 0}
        traced = lines.traced(operands)
        function = Imported(name, "", traced, lines.frames, inside=lines.marked, constraints=lines.marked)
        given = [f"{name}_{number}" for number in range(len(lines.results))]
        whole: dict[str, Any] = {
            **skeleton(self.definition),
            "arrays": arrays,
            "functions": {**self.plain, **self.functions},
            "graph": {", ".join(given): f"{name}({', '.join(traced.parameters)})"},
            "outputs": {each: [] for each in given},
            "constraints": {path: spec.json() for path, spec in stated.items()},
            "per_device": {},
            "expect": {},
            "grad": {},
            KEY: codec.plain(Imports({name: function}, x64=calls.x64())),
        }
        chosen = explicit.Repairs()
        with contextlib.suppress(InvalidExperiment):
            # A later line may be one that no repair of ours mends.
            explicit.repairs(read(whole).alone("graph"), through=True, chosen=chosen)
        return chosen.calls

    def _write(
        self,
        reference: str,
        call: PythonCall,
        reads: Sequence[str],
        structs: Mapping[str, Any],
        function: Callable[..., list[Any]],
        gives: Any,
        where: str,
    ) -> None:
        """Add the lines of a function that has a reference, if they can be read."""
        lines: jaxprs.FunctionLines | None = None
        # What nothing reads may be of an operation that has no line.
        for unread in (True, False):
            with contextlib.suppress(CannotRead):
                lines = lines or jaxprs.read(
                    function, structs, mesh=self.probe.mesh, taken=self._taken_inside, unread=unread
                )
        if lines is None:
            # Its reference was read, which is why it has one.
            return
        own = free(f"{reference.partition('(')[0]}_written", self.taken)
        self.written[reference], _ = self._function(call, own, reads, structs, lines, gives, where)

    def _referring(self, reference: Callable[..., Any], call: PythonCall, space: Mapping[str, Any]) -> dict[str, Any]:
        """The names of Python, with a reference in place of the called function."""
        root, _, rest = call.function.partition(".")
        return {**space, root: Standing(space[root], rest, reference) if rest else reference}

    def _function(
        self,
        call: PythonCall,
        own: str,
        reads: Sequence[str],
        structs: Mapping[str, Any],
        lines: jaxprs.FunctionLines,
        result: Any,
        where: str,
    ) -> tuple[str, Tree]:
        traced = lines.traced(structs)
        self.taken |= {*traced.named, *lines.arrays}
        for value in lines.arrays.values():
            if str(value.dtype) not in dtypes.NAMES:
                message = (
                    f"it gives or reads a constant of dtype {value.dtype}; no array of an experiment has that dtype"
                )
                raise InvalidExperiment(Fault(("graph",), message, call.text, 0, len(call.text)))
        arguments = {name: name for name in traced.parameters}
        arguments |= {name: self._captured(name, value) for name, value in lines.arrays.items()}
        results = lines.results
        texts = {name: self._text(name) for name in reads}
        returned = call.filled({**self._texts(), **texts})
        single = isinstance(result, int)
        if not single:
            returned = f"jax.tree.leaves({returned})" + ("[0]" if len(results) == 1 else "")
        constraints = {name: self._constraint(f"{where}/{path}") or "" for name, path in lines.marked.items()}
        self.imported[own] = Imported(
            call.function, returned, traced, lines.frames, lines.differentiated, lines.marked, constraints,
            lines.spelled, lines.rules, lines.added, lines.paths,
        )  # fmt: skip
        structure = calls.tree.structure(result)
        tree = Tree(tuple(f"{own}_{i}" for i in range(len(results))), structure, "")
        return f"{own}({', '.join(arguments.values())})", tree

    def _captured(self, name: str, value: np.ndarray) -> str:
        """The array of the experiment that a function captures; a function and its reference may capture the same."""
        key = str(value.dtype), value.shape, hashlib.blake2b(value.tobytes()).digest()
        if key not in self.captured:
            self.captured[key] = name
            self.arrays[name] = {
                "shape": list(value.shape),
                "dtype": str(value.dtype),
                "init": self._left(name, value),
                "spec": [],
            }
            self.paths[name] = name
        return self.captured[key]

    def _text(self, name: str) -> str:
        """The Python expression of a value that a call reads."""
        if name not in self.trees:
            return f"${name}"
        text = self.trees[name].text
        if not text:
            message = f"'{name}' has classes that only its own function can make; call both in one function"
            raise invalid((), message)
        return text

    def _types(
        self, section: Section, operands: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, frozenset[str]], dict[str, Spec]]:
        """The types of a call's operands in its section, the mesh axes over which they vary, and arrays' layouts."""
        computed = [name for name in operands if name not in self.arrays or name in self.local]
        names = {name: f"probe{i}_" if self.around else name for i, name in enumerate(computed)}
        probing = Probing({}, {probe: name for name, probe in names.items()}, {})
        for around in reversed(self.around) if computed else ():
            probing = around.probing(probing)
        inner = {**probing.lines, **probing.probes} if self.around else {}
        stacks = sum(around.stacks for around in self.around)
        lines_read = {"probe_": "zeros(1)", **self.before, **inner}
        functions = {**self.plain, **self.functions, **probing.functions}
        texts = " ".join(_texts_in([lines_read, functions]))
        imported = {name: function for name, function in self.imported.items() if f"{name}(" in texts}
        partial: dict[str, Any] = {
            **skeleton(self.definition),
            "arrays": self.arrays,
            "functions": functions,
            section: lines_read,
            "outputs": {"probe_": [], **{name: [] for name in names.values()}},
            KEY: codec.plain(Imports(imported, x64=calls.x64())),
        }
        partial |= {other: {} for other in SECTIONS if other != section}
        # Only lines that read gradients need them: they take as long as everything before.
        grad: dict[str, Any] = self._grad() if "grad." in texts else {}
        partial["outputs"] |= {grad["of"]: []} if grad else {}
        experiment = read({**partial, "program": "all", "expect": {}, "grad": grad})
        given = {array.name: array for array in experiment.arrays if array.name not in names}
        lines: Mapping[str, Any] = {}
        differing: Mapping[str, frozenset[str]] = {}
        if any(name not in given for name in operands):
            with calls.enable_x64(experiment.x64):
                if section == "graph":
                    lines = types.whole(experiment.alone("graph"), {})
                else:
                    lines, differing = types.per_device(experiment.alone("per_device"), {})
        structs: dict[str, Any] = {}
        varying: dict[str, frozenset[str]] = {}
        for name in operands:
            if name in given:
                layout = experiment.block(given[name].layout) if section == "per_device" else given[name].layout
                shape = layout.shard_shape if section == "per_device" else layout.shape
                structs[name] = jax.ShapeDtypeStruct(shape, dtypes.dtype(given[name].dtype).numpy)
                varying[name] = frozenset(layout.spec.axes)
            else:
                typed = lines[names[name]]
                # The probes of a repeat are stacked, one dimension for each repeat around.
                shape = typed.shape[stacks:]
                structs[name] = jax.ShapeDtypeStruct(shape, dtypes.dtype(typed.dtype).numpy)
                varying[name] = differing.get(names[name], frozenset())
        return structs, varying, {name: array.layout.spec for name, array in given.items() if name in structs}

    def _python(self, text: Any, key: Key) -> PythonCall:
        if not isinstance(text, str):
            raise invalid(key, f"{text!r} is not a call of a function, such as llama.init(key(0), B)")
        try:
            return python.read(text)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, text, fault)) from None

    def _donates(self, call: PythonCall) -> list[str]:
        """The names that a call gives a jitted function for parameters that this donates."""
        first, *rest = call.function.split(".")
        function = self.modules.objects.get(first)
        for name in rest:
            function = getattr(function, name, None)
        part = python_source.expression(call.text)
        numbers, names = donated_parameters(function)
        given = [operand for number, operand in enumerate(part.inside) if part.kind == "call" and number in numbers]
        given += [operand for name, operand in part.named if name in names]
        return [name for operand in given for name in _names_in(operand)]

    def _known(self, call: PythonCall, space: Mapping[str, Any], key: Key) -> None:
        """Refuse names that are not defined."""
        for name in call.names:
            if name not in space:
                known = ", ".join(space)
                message = f"no '{name}'; Python has {known} here"
                if name in OPERATIONS:
                    message += f"; compute {name}(…) in a line of its own, and pass that"
                raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text)))

    # Sections that name trees.

    def _of_trees(self, section: str) -> dict[str, Any]:
        """The specs of a section, with each tree replaced by its leaves."""
        specs: dict[str, Any] = {}
        for name, spec in spread(self.definition[section], (section,)).items():
            if section == "constraints" and (is_mapping(spec) or is_pattern(name)):
                continue
            if isinstance(spec, str):
                tree = self.trees.get(name) or self._tree(name, 0, None)
                of_leaves = self._specs(spec, tree, (section, name))
                if section == "outputs":
                    of_leaves = self._of_outputs(name, tree, of_leaves)
                specs |= of_leaves
                continue
            if name not in self.trees:
                specs[name] = spec
                continue
            for leaf in self.trees[name].leaves:
                own = self._spec(leaf, None)
                specs[leaf] = spec if own is None else own
            if section == "outputs" and self.call is not None:
                # Layouts that are to be planned say nothing of a state yet.
                self._add_state(name, self.trees[name], None)
        return specs

    def _constraint(self, path: str) -> str | None:
        """The key of the constraint on a path inside a call: the first pattern that matches it, or the path itself."""
        if path in self.stated:
            return path
        patterns = (each for each in self.constrained if fits(each, path) and _is_numbered(each) == _is_numbered(path))
        pattern = next(patterns, None)
        return path if pattern in (self.apart or ()) else pattern

    def _check_named(self) -> None:
        """Refuse constraints on names that no line, array or tree has, with what they may name instead."""
        lines = {name for section in (BOTH, *SECTIONS) for name, _ in all_names(self.definition[section], (section,))}
        known = {*lines, *self.arrays, *self.trees, *self.paths}
        for name in self._mapping("constraints").keys() - self.constrained.keys():
            if name in known or "." in name or "," in name:
                continue
            within = sorted(path for path in self.inside if name in path.split("/"))
            paths = {path for path in self.paths.values() if "/" in path}
            near = f"; write '{within[0]}'" if within else nearest(name, {*known, *self.inside})
            near = near or f"; there are {listed(sorted({*lines, *self.inside, *paths})[:12])}"
            message = f"graph computes no '{name}'{near}"
            if not self.inside:
                message += "; a value inside a call is named by jax.named_scope, or jax.ad_checkpoint.checkpoint_name"
            raise invalid(("constraints", name), message)

    def _constraints(self) -> dict[str, Any]:
        """The constraints, for leaves by name and for values inside calls by pattern."""
        self._check_named()
        specs: dict[str, Any] = {}
        used = {pattern for function in self.imported.values() for pattern in function.constraints.values()}
        for pattern, spec in self.constrained.items():
            leaves = [leaf for leaf, path in self.paths.items() if fits(pattern, path)]
            for leaf in leaves:
                specs.setdefault(leaf, spec)
            if pattern in (self.apart or ()):
                specs |= {path: spec for path in sorted(used - {*self.stated}) if fits(pattern, path)}
            if pattern in used:
                specs[pattern] = spec
            elif not any(fits(pattern, path) for path in (*used, *self.inside, *self.paths.values())):
                known = {*self.inside, *(path for path in self.paths.values() if "/" in path)}
                near = nearest(pattern, known) or (f"; there are {listed(sorted(known)[:12])}" if known else "")
                message = f"no value inside a call matches '{pattern}', and no leaf of a result{near}"
                if not self.inside:
                    message += "; a value inside is named by jax.named_scope, or jax.ad_checkpoint.checkpoint_name"
                raise invalid(("constraints", pattern), message)
        stated = {path: spec.json() for path, spec in self.stated.items() if path in used}
        return specs | stated | self._of_trees("constraints")

    def _of_outputs(
        self, name: str, tree: Tree, asked: Mapping[str, list[Any] | None]
    ) -> Mapping[str, list[Any] | None]:
        """The specs of the leaves of a call's result; what nobody asked for is as the compiler or the types choose."""
        missing = [leaf for leaf, entries in asked.items() if entries is None]
        self.open += missing
        call = self.compilable.get(name)
        specs = self.results.chosen(name, call, tree, asked, ("outputs", name)) if missing else asked
        if self.call is not None:
            self.held += [leaf for leaf in asked if leaf not in missing]
            self._add_state(name, tree, specs)
        return specs

    def _add_state(self, name: str, tree: Tree, specs: Mapping[str, list[Any] | None] | None) -> None:
        call = self.compilable.get(name)
        if call is not None:
            expect = self._mapping("expect")
            asked = any("state_layout" in each for each in (expect, *expect.values()) if is_mapping(each))
            # Who expects a state to be kept has one, also if it is a single array.
            alone = [*self.arrays] if asked else self._donated()
            self.state |= self.results.next_values(call, tree, specs, self.operands, alone)

    def _grad(self) -> Any:
        grad = self.definition["grad"]
        if not grad or not grad.get("wrt"):
            return grad
        names = [grad["wrt"]] if isinstance(grad["wrt"], str) else grad["wrt"]
        return {**grad, "wrt": self._leaves(names)}

    def _by_name(self, value: Any, key: Key) -> Any:
        """An expectation with the names of outputs in place of their paths, or of patterns of these."""
        if is_mapping(value):
            parts = {name: self._by_name(part, (*key, name)) for name, part in value.items()}
            return {own: part for name, part in parts.items() for own in self._outputs_at(name, (*key, name))}
        if is_list(value):
            named = [self._outputs_at(part, (*key, at)) for at, part in enumerate(value)]
            return [own for several in named for own in several]
        several = self._outputs_at(value, key)
        return several if len(several) > 1 else several[0]

    def _outputs_at(self, path: Any, key: Key) -> list[Any]:
        """The names of the outputs whose paths a pattern fits; what is no path is returned as it is."""
        if not isinstance(path, str) or "/" not in path:
            return [path]
        paths = {name: own for name, own in self.paths.items() if name not in self.arrays}
        names = [name for name, own in paths.items() if fits(path, own)]
        if not names:
            raise invalid(key, f"no output matches '{path}'{nearest(path, paths.values())}")
        return names

    def _show(self) -> Any:
        show = self.definition["show"]
        if not isinstance(show, list):
            return [*self.trees[show].leaves] if show in self.trees else show
        return self._leaves(cast("list[str]", show))


_OF_OUTPUTS = ("values", "sections", "weak", "wrong", "layouts")
"""The expectations that name outputs."""


def _of_type(kind: Any) -> str:
    """An expression with the type of a traced value."""
    made = f"zeros({tuple(kind.shape)}, '{kind.dtype}')"
    axes = tuple(sorted(varying_axes(kind)))
    return f"pcast({made}, {axes}, to='varying')" if axes else made


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


def _other_changes(changes: Sequence[str], of_reference: Sequence[str]) -> str:
    """The message for a function that changes other operands than its reference does."""
    there = listed(of_reference) if of_reference else "none"
    values = ", ".join(f"'{name}': {name}" for name in changes)
    return (
        f"it changes {listed(changes)}, and its reference changes {there}: the new values are results, so let the "
        f"reference change them too, or return them, (result, {{{values}}})"
    )


def _names_in(operand: python_source.PythonPart) -> Iterator[str]:
    """The names whose values an operand passes on: itself, or those of a tuple or a list."""
    if operand.kind == "name":
        yield operand.text
    for part in operand.inside if operand.kind == "sequence" else ():
        yield from _names_in(part)


def _calling(functions: Mapping[str, DefinedFunction], imports: Collection[str]) -> dict[str, DefinedFunction]:
    """The functions of the experiment that call imported functions, in their own lines or in functions they call."""

    def calls_in(value: Any, names: Collection[str]) -> bool:
        if is_mapping(value):
            return any(calls_in(part, names) for part in value.values())
        try:
            return isinstance(value, str) and bool(python.taken_out(value, imports, names)[1])
        except SyntaxFault:
            # The line is reported where it is read.
            return True

    calling: dict[str, DefinedFunction] = {}
    more = True
    while more:
        added = {
            name: function
            for name, function in functions.items()
            if name not in calling and calls_in(function.lines, calling)
        }
        calling |= added
        more = bool(added)
    return calling


def _texts_in(value: Any) -> Iterator[str]:
    """The expressions of a section, those of repeats' bodies too."""
    if isinstance(value, str):
        yield value
    for part in value.values() if is_mapping(value) else value if is_list(value) else ():
        yield from _texts_in(part)


def _alike(first: jaxprs.FunctionLines, second: jaxprs.FunctionLines) -> bool:
    """Whether two readings have the same lines, results and captured arrays."""
    captured = ({name: array.tobytes() for name, array in lines.arrays.items()} for lines in (first, second))
    same = next(captured) == next(captured)
    return same and (first.lines, first.results) == (second.lines, second.results)


def _shared(texts: Mapping[str, Any]) -> Any:
    """A line of both sections: one text if both have the same, else one for each."""
    different = [text for i, text in enumerate(texts.values()) if text not in list(texts.values())[:i]]
    return different[0] if len(different) == 1 and len(texts) == len(SECTIONS) else dict(texts)


def _is_numbered(path: str) -> bool:
    """Whether a path or pattern names results of primitives by their numbers."""
    return _NUMBERED.fullmatch(path.rpartition("/")[2]) is not None
