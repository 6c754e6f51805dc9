"""Reads what a definition says of trees: layouts of results and gradients, expectations and pictures, leaf by leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, cast

from runner.base.faults import Key, invalid, nearest
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.experiment.patterns import fits, is_pattern
from runner.experiment.written import spread
from runner.graph.language import python_source
from runner.worker.functions.operand_types import texts_in
from runner.worker.functions.reading import Reading
from runner.worker.functions.result_layouts import ResultLayouts
from runner.worker.functions.traced_calls import CallReader
from runner.worker.functions.tree_arrays import ArrayReader
from runner.worker.functions.trees import Tree

_OF_OUTPUTS = ("values", "sections", "weak", "wrong", "layouts")
"""The expectations that name outputs."""


@dataclass
class TreeSections:
    """The sections of a definition that name trees.

    - `held`: the outputs whose layouts the caller of `runner.check` asked for; `open`: those that nobody asked for.
    - `state`: the arrays of which outputs are the next values, by the names of these.
    """

    reading: Reading
    arrays: ArrayReader
    calls: CallReader
    held: list[str] = field(default_factory=list[str])
    open: list[str] = field(default_factory=list[str])
    state: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def _results(self) -> ResultLayouts:
        reading = self.reading
        return ResultLayouts(reading.probe, reading.definition, reading.arrays, reading.settings)

    def outputs(self) -> dict[str, Any]:
        """The specs of the outputs, leaf by leaf."""
        outputs = self.of_trees("outputs")
        self._add_state_of_file(outputs)
        return outputs

    def of_trees(self, section: str) -> dict[str, Any]:
        """The specs of a section, with each tree replaced by its leaves."""
        specs: dict[str, Any] = {}
        for name, spec in spread(self.reading.definition[section], (section,)).items():
            if section == "constraints" and (is_mapping(spec) or is_pattern(name)):
                continue
            if isinstance(spec, str):
                tree = self.reading.scope.trees.get(name) or self.reading.tree(name, 0, None)
                of_leaves = self.arrays.specs_in(spec, tree, (section, name))
                if section == "outputs":
                    of_leaves = self._of_outputs(name, tree, of_leaves)
                specs |= of_leaves
                continue
            if name not in self.reading.scope.trees:
                specs[name] = spec
                continue
            for leaf in self.reading.scope.trees[name].leaves:
                own = self.arrays.spec(leaf, None)
                specs[leaf] = spec if own is None else own
            if section == "outputs" and self.reading.call is not None:
                # Layouts that are to be planned say nothing of a state yet.
                self._add_state(name, self.reading.scope.trees[name], None)
        return specs

    def _of_outputs(
        self, name: str, tree: Tree, asked: Mapping[str, list[Any] | None]
    ) -> Mapping[str, list[Any] | None]:
        """The specs of the leaves of a call's result; what nobody asked for is as the compiler or the types choose."""
        missing = [leaf for leaf, entries in asked.items() if entries is None]
        self.open += missing
        call = self.calls.compilable.get(name)
        specs = self._results.chosen(name, call, tree, asked, ("outputs", name)) if missing else asked
        if self.reading.call is not None:
            self.held += [leaf for leaf in asked if leaf not in missing]
            self._add_state(name, tree, specs)
        return specs

    @property
    def _expects_state(self) -> bool:
        """Whether the state of a step is expected to be kept."""
        expect = self.reading.mapping("expect")
        return any(each.get("state_layout") for each in (expect, *expect.values()) if is_mapping(each))

    def _add_state(self, name: str, tree: Tree, specs: Mapping[str, list[Any] | None] | None) -> None:
        call = self.calls.compilable.get(name)
        if call is not None:
            # Who expects a state to be kept has one, also if it is a single array.
            alone = [*self.reading.arrays] if self._expects_state else self.donated()
            self.state |= self._results.next_values(call, tree, specs, self.reading.operands, alone)

    def _add_state_of_file(self, outputs: Mapping[str, Any]) -> None:
        """Find the state that a file expects to be kept, among the `outputs` that are results of calls."""
        if self.reading.call is not None or not self._expects_state:
            return
        for line, names in self.calls.results.items():
            self._add_state(line, Tree(tuple(names), None, ""), {name: outputs.get(name) for name in names})
        self.state = {name: array for name, array in self.state.items() if name in outputs}

    def donated(self) -> tuple[str, ...]:
        """The arrays whose memory the outputs may take: of a file those that only the line reads that donates them."""
        if self.reading.call is not None:
            return tuple(self.reading.scope.leaves(self.reading.call.donated))
        texts = list(texts_in(self.reading.definition["graph"]))
        reading = Counter(name for text in texts for name in python_source.names(text))
        return tuple(self.reading.scope.leaves(name for name in self.calls.donating if reading[name] == 1))

    def expected(self) -> dict[str, Any]:
        """The expectations, with the names of outputs in place of their paths."""
        return {
            key: self._by_name(value, ("expect", key)) if key in _OF_OUTPUTS else value
            for key, value in self.reading.mapping("expect").items()
        }

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
        paths = {name: own for name, own in self.reading.scope.paths.items() if name not in self.reading.arrays}
        names = [name for name, own in paths.items() if fits(path, own)]
        if not names:
            raise invalid(key, f"no output matches '{path}'{nearest(path, paths.values())}")
        return names

    def show(self) -> Any:
        """The names of what is drawn, with the leaves of trees in place of these."""
        show = self.reading.definition["show"]
        if not isinstance(show, list):
            return [*self.reading.scope.trees[show].leaves] if show in self.reading.scope.trees else show
        return self.reading.scope.leaves(cast("list[str]", show))
