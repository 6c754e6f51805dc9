"""Reads the lines of sections, and replaces calls of Python in them by calls of functions of the experiment.

A function of the experiment that calls Python itself is read anew for each of its calls, at the types of the arguments.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

from runner.base.faults import Fault, InvalidExperiment, Key, invalid
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.experiment.frames import free
from runner.experiment.functions import CHECKPOINT, RESULT, DefinedFunction, is_static
from runner.experiment.plain import located
from runner.experiment.written import BOTH, WrittenLine, is_choice, targets
from runner.graph.language import python, python_source
from runner.graph.language.python import OwnCall
from runner.graph.language.syntax import SyntaxFault, parse
from runner.graph.source import SECTIONS, Section
from runner.worker import calls
from runner.worker.functions.probing import FunctionAround, RepeatAround, tuple_of
from runner.worker.functions.reading import Reading, Scope, SectionLines
from runner.worker.functions.traced_calls import CallReader
from runner.worker.functions.trees import Tree


@dataclass
class LineReader:
    """Reads the lines of a definition's sections.

    - `calling`: the functions of the experiment that call Python, by name; `fixed`: the names that all functions see.
    - `inside`: those of them that are being read, the outermost first.
    """

    reading: Reading
    calls: CallReader
    calling: Mapping[str, DefinedFunction]
    fixed: frozenset[str]
    inside: list[DefinedFunction] = field(default_factory=list[DefinedFunction])

    def sections(self) -> dict[str, dict[str, Any]]:
        """The sections, with functions of the experiment in place of calls of Python."""
        self.reading.operands = {**self.reading.scope.trees}
        written: dict[str, dict[str, Any]] = {section: {} for section in (BOTH, *SECTIONS)}
        for section in SECTIONS:
            self._section(section, written)
        return written

    def _section(self, section: Section, written: dict[str, dict[str, Any]]) -> None:
        """Read the calls in the lines of a section, and put the resulting lines in `written`."""
        if not self.reading.definition[section]:
            written[section] = {}
            if section == "per_device" or not self.reading.definition[BOTH]:
                return
        scope = self.reading.scope
        so_far = self.reading.section = SectionLines(section)
        known, scope.values, scope.trees = scope.trees, set[str](), {**self.reading.operands}
        for where in (BOTH, section):
            for name, line in self._with_gradients(self.reading.definition[where]).items():
                key: Key = (where, name)
                value = line
                if is_choice(line):
                    if section not in line:
                        written[where].setdefault(name, {}).update({k: v for k, v in line.items() if k == section})
                        continue
                    value, key = line[section], (*key, section)
                given, text = self._line(name, value, key)
                if given in so_far.lines:
                    raise invalid(key, f"'{given}' appears twice")
                self._keep(given, text)
                if where == BOTH:
                    written[BOTH].setdefault(given, {})[section] = text
                else:
                    written[where][given] = text
        if section == "per_device" or not self.reading.definition["per_device"]:
            written[BOTH] = {name: _shared(texts) for name, texts in written[BOTH].items()}
        # Outputs may name the trees of any section.
        scope.trees = {**known, **scope.trees}

    def _with_gradients(self, lines: Mapping[str, Any]) -> dict[str, Any]:
        """Lines with one more for each gradient that a call of Python reads, `grad_w: grad.w`."""
        named: dict[str, str] = {}
        more: dict[str, Any] = {}
        grad: Mapping[str, Any] = self.reading.grad or {}
        wanted: Sequence[str] = grad.get("wrt") or ()
        gradients = [f"grad.{array}" for array in wanted]
        for name, line in lines.items():
            read = [each for each in gradients if isinstance(line, str) and re.search(rf"\b{re.escape(each)}\b", line)]
            if read and self._calls_python(line):
                for gradient in read:
                    if gradient not in named:
                        named[gradient] = free(gradient.replace(".", "_"), self.reading.taken)
                        more[named[gradient]] = gradient
                line = python.filled(line, named)
            more[name] = line
        return more

    def _calls_python(self, line: str) -> bool:
        """Whether a line calls a function of Python, as far as it can be read."""
        with contextlib.suppress(SyntaxFault):
            return bool(python.taken_out(line, self.reading.modules.objects)[1])
        return False

    def _keep(self, given: str, text: Any) -> None:
        """Keep a line for the types of later ones; of a call those that JAX has traced are enough."""
        self.reading.section.keep(given, self.calls.typed.get(text, text) if isinstance(text, str) else text)

    def _line(self, name: str, value: Any, key: Key) -> tuple[str, Any]:
        """The names and the text of a line, with calls of Python replaced by functions of the experiment."""
        scope = self.reading.scope
        if not isinstance(value, str):
            if is_mapping(value) and is_mapping(value.get("body")) and not is_choice(value):
                return name, self._repeat(name, value, key)
            self._refuse_inside(value, key)
            scope.values |= set(targets(name, key)) if not is_mapping(value) else set()
            return name, value
        if value.strip() in scope.trees and "." in value:
            return self._again(name, value.strip(), key)
        given = targets(name, key)
        text, results = self._results(given, value, key)
        if text not in results:
            scope.values |= set(given)
            return name, self._filled(text, results, key, value) if results else value
        written, tree, _ = results[text]
        names = self.calls.results[given[0]] = self._give(given, tree, key, value)
        return ", ".join(names), written

    def _results(self, given: Sequence[str], value: str, key: Key) -> tuple[str, dict[str, tuple[str, Tree, str]]]:
        """An expression with names for the calls of Python and of functions that contain such calls.

        Each name has the call that replaces the one that is written, the tree of its results, and the written call.
        """
        try:
            text, calls = python.taken_out(value, self.reading.modules.objects, self.calling)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, value, fault)) from None
        self._refuse_handed(text, key, value)
        line = given[0] if text in calls else ", ".join(given)
        results: dict[str, tuple[str, Tree, str]] = {}
        for place, call in calls.items():
            if isinstance(call, OwnCall):
                written, tree = self._specialised(call, results, key, line)
            else:
                filled = python.read(call.filled(self.reading.scope.statics)) if self.reading.scope.statics else call
                written, tree = self.calls.read(filled, key, line)
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

    def _specialised(
        self, call: OwnCall, results: Mapping[str, tuple[str, Tree, str]], key: Key, line: str
    ) -> tuple[str, Tree]:
        """The call of the function with its calls of Python read at the types of these arguments, and its results."""
        function = self.calling[call.function]
        if function in self.inside:
            raise InvalidExperiment(Fault(key, f"'{function.name}' calls itself", call.text, 0, len(call.text)))
        try:
            bound = function.signature.bind(*call.operands, **dict(call.named))
        except TypeError as error:
            message = f"{function.name}(): {error}; it takes {function.signature}"
            raise InvalidExperiment(Fault(key, message, call.text, 0, len(call.text))) from None
        reading, outer, section = self.reading, self.reading.scope, self.reading.section
        hidden = {leaf for name in function.own & reading.operands.keys() for leaf in reading.operands[name].leaves}
        known = {*self.fixed, *reading.functions, *reading.imported, *reading.arrays, *function.own}
        scope = reading.scope = Scope(known - hidden)
        arguments: dict[str, str] = {}
        statics: dict[str, str] = {}
        for parameter in function.signature.parameters.values():
            text = bound.arguments.get(parameter.name, repr(parameter.default))
            of = outer.trees.get(text)
            if of is not None:
                scope.trees[parameter.name] = reading.handed(parameter.name, of)
                arguments |= dict(zip(scope.trees[parameter.name].leaves, of.leaves, strict=True))
                continue
            arguments[parameter.name] = self._filled(text, results, key, call.text)
            value = python.filled(text, outer.statics)
            if self._is_static(value):
                statics[parameter.name] = value
        scope.local = frozenset(function.own | {*arguments})
        scope.trees = {name: tree for name, tree in reading.operands.items() if name not in scope.local} | scope.trees
        scope.values, scope.statics = {*arguments} - {*statics}, statics
        lines: dict[str, Any] = {}
        section.around.append(FunctionAround(line, arguments))
        self.inside.append(function)
        try:
            for written in function.body(section.name):
                given, text = self._line(", ".join(written.names), written.value, written.key)
                lines[given] = text
                self._keep(given, text)
            gives, structure = self._gives(function.result(section.name), lines)
        except InvalidExperiment as error:
            raise InvalidExperiment(replace(error.fault, uses=(*error.fault.uses, key))) from None
        section.around.pop()
        self.inside.pop()
        reading.taken |= scope.taken
        reading.scope = outer
        own = free(function.name, reading.taken)
        written = reading.definition["functions"][function.key[-1]]
        kept = {CHECKPOINT: written[CHECKPOINT]} if function.checkpoint else {}
        reading.functions[own] = {"of": [*arguments], **kept, **lines, "result": tuple_of(gives)}
        tree = Tree(tuple(f"{own}_{i}" for i in range(len(gives))), structure, "")
        return f"{own}({', '.join(arguments.values())})", tree

    def _gives(self, written: WrittenLine, lines: dict[str, Any]) -> tuple[list[str], Any]:
        """The expressions of a function's results, and their structure; calls that give trees are added to `lines`."""
        if not isinstance(written.value, str):
            raise invalid(written.key, "the result of a function is an expression, such as NAME.CARRIED of a repeat")
        text, results = self._results((RESULT,), written.value, written.key)
        part = python_source.expression(text)
        gives: list[str] = []
        structures: list[Any] = []
        for each in part.inside if part.kind == "sequence" else (part,):
            if each.text in self.reading.scope.trees:
                tree = self.reading.scope.trees[each.text]
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
            return is_static(parse(text).term, self.reading.probe.dims)
        except SyntaxFault:
            # The reader of the call reports it.
            return False

    def _repeat(self, name: str, repeat: Mapping[str, Any], key: Key) -> dict[str, Any]:
        """A repeat whose body calls imported functions; its carry and slices may be trees."""
        scope = self.reading.scope
        for part in repeat.keys() - {"body"}:
            self._refuse_inside(repeat[part], (*key, part))
        values, trees = set(scope.values), dict(scope.trees)
        parts: dict[str, dict[str, Any]] = {part: dict(repeat.get(part) or {}) for part in ("carry", "over", "stack")}
        first = {part: self._firsts(parts[part], trees) for part in ("carry", "over") if parts[part]}
        scope.values |= {str(repeat.get("index", "i")), *(leaf for part in first.values() for leaf in part)}
        lines: dict[str, Any] = {}
        body: Mapping[str, Any] = repeat["body"]
        self.reading.section.around.append(RepeatAround(name, {**repeat, **first}))
        for written, value in body.items():
            own: Key = (*key, "body", written)
            given, text = (written, value) if is_choice(value) else self._line(written, value, own)
            if is_choice(value):
                self._refuse_inside(value, own)
                scope.values |= set(targets(written, own))
            lines[given] = text
            self._keep(given, text)
        self.reading.section.around.pop()
        after = {
            f"{name}.{tree}": scope.trees[tree].renamed(f"{name}.") for tree in parts["carry"] if tree in scope.trees
        }
        stack: dict[str, Any] = {}
        for each, inner in parts["stack"].items():
            tree = scope.trees.get(inner)
            if tree is None:
                stack[each] = inner
                continue
            names = {leaf: free(f"{each}{leaf.removeprefix(inner)}", scope.taken) for leaf in tree.leaves}
            stack |= {stacked: leaf for leaf, stacked in names.items()}
            leaves = tuple(f"{name}.{stacked}" for stacked in names.values())
            after[f"{name}.{each}"] = Tree(leaves, tree.structure, tree.text)
        scope.values, scope.trees = values, trees | after
        return {**repeat, **first, "body": lines, **({"stack": stack} if stack else {})}

    def _firsts(self, given: Mapping[str, Any], trees: Mapping[str, Tree]) -> dict[str, Any]:
        """The carry or the slices of a repeat, with each tree replaced by its leaves."""
        scope = self.reading.scope
        firsts: dict[str, Any] = {}
        for name, value in given.items():
            of = trees.get(value) if isinstance(value, str) else None
            if of is None:
                firsts[name] = value
                continue
            scope.trees[name] = self.reading.handed(name, of)
            firsts |= dict(zip(scope.trees[name].leaves, of.leaves, strict=True))
        return firsts

    def _again(self, name: str, tree: str, key: Key) -> tuple[str, str]:
        """The names and the text of a line that renames a tree, such as the result of a repeat."""
        of = self.reading.scope.trees[tree]
        names = self._give([name], of, key, tree)
        return ", ".join(names), of.leaves[0] if len(names) == 1 else f"({', '.join(of.leaves)})"

    def _give(self, given: Sequence[str], tree: Tree, key: Key, text: str) -> list[str]:
        """Name the results of a line, and return the names of their leaves."""
        scope = self.reading.scope
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
            scope.taken.discard(name)
            named = self.reading.tree(name, part, None)
            scope.taken.add(name)
            if named.leaves == (name,):
                scope.values.add(name)
            else:
                scope.trees[name] = named
            names += named.leaves
            scope.values |= set(named.leaves)
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
        elif isinstance(value, str) and (
            calls := python.taken_out(value, self.reading.modules.objects, self.calling)[1]
        ):
            first = next(iter(calls.values()))
            where = "a line of a section, or of the body of a repeat"
            message = f"{first.function} cannot be called here; call it in {where}"
            raise InvalidExperiment(Fault(key, message, value, 0, len(value)))


def calling(functions: Mapping[str, DefinedFunction], imports: Collection[str]) -> dict[str, DefinedFunction]:
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


def _shared(texts: Mapping[str, Any]) -> Any:
    """A line of both sections: one text if both have the same, else one for each."""
    different = [text for i, text in enumerate(texts.values()) if text not in list(texts.values())[:i]]
    return different[0] if len(different) == 1 and len(texts) == len(SECTIONS) else dict(texts)
