"""Reads constraints on values inside calls of Python, which keys and patterns name by paths."""

from __future__ import annotations

import re
from dataclasses import field
from functools import cached_property
from typing import Any

from runner.base.faults import invalid, nearest
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.base.words import listed
from runner.experiment.patterns import fits, flattened, is_pattern
from runner.experiment.written import BOTH, all_names
from runner.graph.source import SECTIONS
from runner.worker.functions.reading import Reading

_NUMBERED = re.compile(r"(\w|[*{},])+\.(\d+|\*)")
"""The last part of a path of a primitive's result, or of a pattern of such paths: `dot_general.3`, `dot_general.*`."""


@dataclass
class InnerConstraints:
    """The constraints inside calls.

    - `apart`: of a plan, the patterns for which each value inside gets a key of its own.
    - `stated`: the layouts that functions state themselves, by the paths of the values inside the calls.
    - `inside`: the paths that constraints may name.
    """

    reading: Reading
    apart: frozenset[str] | None
    stated: dict[str, Spec] = field(default_factory=dict[str, Spec])
    inside: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def asked(self) -> bool:
        """Whether any value inside may be constrained."""
        return bool(self.reading.mapping("constraints")) or self.apart is not None

    def marks(self, path: str) -> bool:
        """Whether the value at a path inside a call is constrained; notes that it may be."""
        if not _is_numbered(path):
            self.inside.setdefault(path)
        return self.key_of(path) is not None

    @cached_property
    def constrained(self) -> dict[str, Any]:
        """The constraints whose keys are patterns of paths, by pattern."""
        given = self.reading.mapping("constraints")
        return flattened({key: spec for key, spec in given.items() if is_mapping(spec) or is_pattern(key)})

    def key_of(self, path: str) -> str | None:
        """The key of the constraint on a path inside a call: the first pattern that matches it, or the path itself."""
        if path in self.stated:
            return path
        patterns = (each for each in self.constrained if fits(each, path) and _is_numbered(each) == _is_numbered(path))
        pattern = next(patterns, None)
        return path if pattern in (self.apart or ()) else pattern

    def _check_named(self) -> None:
        """Refuse constraints on names that no line, array or tree has, with what they may name instead."""
        lines = {
            name for section in (BOTH, *SECTIONS) for name, _ in all_names(self.reading.definition[section], (section,))
        }
        known = {*lines, *self.reading.arrays, *self.reading.scope.trees, *self.reading.scope.paths}
        for name in self.reading.mapping("constraints").keys() - self.constrained.keys():
            if name in known or "." in name or "," in name:
                continue
            within = sorted(path for path in self.inside if name in path.split("/"))
            paths = {path for path in self.reading.scope.paths.values() if "/" in path}
            near = f"; write '{within[0]}'" if within else nearest(name, {*known, *self.inside})
            near = near or f"; there are {listed(sorted({*lines, *self.inside, *paths})[:12])}"
            message = f"graph computes no '{name}'{near}"
            if not self.inside:
                message += "; a value inside a call is named by jax.named_scope, or jax.ad_checkpoint.checkpoint_name"
            raise invalid(("constraints", name), message)

    def specs(self) -> dict[str, Any]:
        """The constraints that patterns name, for leaves by name and for values inside calls by pattern."""
        self._check_named()
        specs: dict[str, Any] = {}
        used = {pattern for function in self.reading.imported.values() for pattern in function.constraints.values()}
        for pattern, spec in self.constrained.items():
            leaves = [leaf for leaf, path in self.reading.scope.paths.items() if fits(pattern, path)]
            for leaf in leaves:
                specs.setdefault(leaf, spec)
            if pattern in (self.apart or ()):
                specs |= {path: spec for path in sorted(used - {*self.stated}) if fits(pattern, path)}
            if pattern in used:
                specs[pattern] = spec
            elif not any(fits(pattern, path) for path in (*used, *self.inside, *self.reading.scope.paths.values())):
                known = {*self.inside, *(path for path in self.reading.scope.paths.values() if "/" in path)}
                near = nearest(pattern, known) or (f"; there are {listed(sorted(known)[:12])}" if known else "")
                message = f"no value inside a call matches '{pattern}', and no leaf of a result{near}"
                if not self.inside:
                    message += "; a value inside is named by jax.named_scope, or jax.ad_checkpoint.checkpoint_name"
                raise invalid(("constraints", pattern), message)
        stated = {path: spec.json() for path, spec in self.stated.items() if path in used}
        return specs | stated


def _is_numbered(path: str) -> bool:
    """Whether a path or pattern names results of primitives by their numbers."""
    return _NUMBERED.fullmatch(path.rpartition("/")[2]) is not None
