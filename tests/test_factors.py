"""The factors of our rules equal Shardy's, for every operation that Shardy has rules for.

A single call is lowered, and Shardy gives for each operation of the module which dimensions belong together. Followed
from the arguments to the result these form groups of dimensions, which must equal those of the call's rule.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import pytest
from jax._src.lib.mlir import ir, passmanager  # pyright: ignore[reportPrivateImportUsage]

from runner.base.dtypes import dtype
from runner.base.layout import Spec
from runner.experiment.model import Experiment
from runner.graph.language.syntax import parse
from runner.graph.model import Ref
from runner.graph.sharding.propagation import parsed_rule
from runner.graph.term import Name, within
from runner.programs.derivation.calls import Call, DeviceValue, NotStatic
from runner.programs.derivation.facts import call_of, leaves
from runner.programs.derivation.registry import Way
from runner.programs.derivation.rules import Rule
from runner.programs.derivation.ruling import WAYS
from runner.programs.derivation.scopes import Binding, Names
from runner.worker import shardy
from runner.worker.derive import planned
from runner.worker.modules import Walk, shape_of
from runner.worker.walk import Walker
from tests import harness
from tests.test_derivation import EVERY

Groups = frozenset[frozenset[tuple[str, int]]]
"""The dimensions of arguments and of the result (`out`) that are sharded together."""


MADE = ("stablehlo.constant", "stablehlo.iota")
"""Operations without array operands have no rule: any device can make any part of the result."""


class Factors(Walk):
    """The factors of the dimensions of all values of a module; `marked` factors must be replicated."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module  # the dimensions inside it belong to it
        self.of: dict[Any, list[list[int]]] = {}
        self.sizes: list[int] = []
        self.split: dict[int, list[int]] = {}
        self.whole: set[int] = set()
        self.unruled: set[str] = set()
        self.returns: list[Any] = []

    def fresh(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def dimensions(self, value: Any) -> list[list[int]]:
        if value not in self.of:
            self.of[value] = [[self.fresh(size)] for size in shape_of(value)]
        return self.of[value]

    def leaves(self, factors: list[int]) -> list[int]:
        parts: list[int] = []
        for factor in factors:
            parts += self.leaves(self.split[factor]) if factor in self.split else [factor]
        return [factor for factor in parts if self.sizes[factor] > 1]

    def together(self, factors: list[int], others: list[int]) -> None:
        """Merge two lists of factors as the same dimensions."""
        left, right = self.leaves(factors), self.leaves(others)
        while left and right:
            a, b = left[0], right[0]
            if a != b and self.sizes[a] == self.sizes[b]:
                # The older one stands for both: the other way about, a chain grows by each operation.
                old, new = min(a, b), max(a, b)
                self.split[new] = [old]
                if new in self.whole:
                    self.whole.add(old)
            elif a != b:
                big, small = (a, b) if self.sizes[a] > self.sizes[b] else (b, a)
                if self.sizes[big] % self.sizes[small]:
                    self.whole |= {*left, *right}
                    return
                quotient = self.fresh(self.sizes[big] // self.sizes[small])
                self.split[big] = [small, quotient]
                if big in self.whole:
                    self.whole |= {small, quotient}
            left, right = self.leaves(left), self.leaves(right)
            assert left[0] == right[0]
            left, right = left[1:], right[1:]

    def argument(self, owner: Any, argument: Any, at: int) -> None:
        if owner.name == "func.call":
            self.of[argument] = self.dimensions(self.bindings[argument])

    def operation(self, operation: Any) -> bool:
        name = operation.name
        if name.endswith("return"):
            self.returns = list(operation.operands)
            return False
        if name in ("func.call", *MADE) or not any(map(shape_of, (*operation.operands, *operation.results))):
            return name == "func.call"
        rule = shardy.rule(operation)
        if rule.text is None:
            self.unruled.add(name)
            return False
        own = {factor: self.fresh(size) for factor, size in rule.sizes.items()}
        self.whole |= {own[factor] for factor in (*rule.whole, *rule.permuted)}
        given, made = parsed_rule(rule.text)
        for values, side in ((operation.operands, given), (operation.results, made)):
            for value, term in zip(values, side, strict=False):
                for mine, factors in zip(self.dimensions(value), term, strict=False):
                    self.together(mine, [own[factor] for factor in factors])
        return False

    def returned(self, owner: Any) -> None:
        for result, value in zip(owner.results, self.returns, strict=True):
            self.of[result] = self.dimensions(value)

    def groups(self, named: dict[str, Any]) -> Groups:
        groups: dict[int, set[tuple[str, int]]] = {}
        for name, value in named.items():
            for d, factors in enumerate(self.dimensions(value)):
                for factor in self.leaves(factors):
                    if factor not in self.whole:
                        groups.setdefault(factor, set()).add((name, d))
        return frozenset(map(frozenset, groups.values()))


def _ruled(lowered: Any) -> Any:
    """Return a copy of a lowered module in which each operation has Shardy's rule."""
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
        pipeline = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
        passmanager.PassManager.parse(pipeline).run(copy.operation)
    return copy


def theirs(experiment: Experiment) -> Groups | set[str]:
    """Return the groups of Shardy's rules, or the operations for which it has none."""

    def whole(*arrays: Any) -> Any:
        walker = Walker(experiment, dict(zip((array.name for array in experiment.arrays), arrays, strict=True)))
        walker.run(experiment.graph, "graph")
        return walker.values["out"]

    with harness.configured(experiment):
        given = (jax.ShapeDtypeStruct(array.shape, dtype(array.dtype).numpy) for array in experiment.arrays)
        factors = Factors(_ruled(jax.jit(whole, keep_unused=True).lower(*given)))
    factors.walk()
    if factors.unruled:
        return factors.unruled
    arguments = factors.main.regions[0].blocks[0].arguments
    named = {array.name: value for array, value in zip(experiment.arrays, arguments, strict=True)}
    return factors.groups({**named, "out": factors.returns[0]})


def ours(experiment: Experiment) -> tuple[str, Groups | None] | None:
    """Return the operation of an experiment's line, and the groups of its rule, if it has one for the call.

    None if the operands are not distinct named arrays.
    """
    equation = experiment.computed("graph").equations[-1]
    if equation.spelled == "name":
        return None
    with harness.configured(experiment):
        names = Names(experiment, planned(experiment)[1])
    names.path = "out"
    for array in experiment.arrays:
        value = DeviceValue(Name(array.name), array.shape, Spec(((),) * len(array.shape)), array.dtype)
        names.scopes[0].names[array.name] = Binding(value)
    read = list(leaves(names.statics, equation))
    named = names.statics.spelling.named
    given = {place: named[part.number] for place, part in read if isinstance(part, Ref) and named[part.number]}
    if len({*given.values()}) < len(read):
        return None
    values = {place: names.binding(name).value for place, name in given.items()}
    call = call_of(names, equation, values, free=False, alone=False)
    rule = next(filter(None, (_rule(way, call) for way in WAYS.get(call.name, ()))), None)
    return call.name, None if rule is None else _groups(rule, given)


def _rule(way: Way, call: Call) -> Rule | None:
    with contextlib.suppress(NotStatic):
        return way.rule(call)
    return None


def _groups(rule: Rule, given: dict[str, str]) -> Groups:
    groups: dict[int, set[tuple[str, int]]] = {}
    for name, dimensions in [*((given[place], each) for place, each in rule.operands.items()), ("out", rule.result)]:
        for d, factors in enumerate(dimensions):
            for factor in factors:
                if factor not in rule.whole and rule.sizes[factor] > 1:
                    groups.setdefault(factor, set()).add((name, d))
    return frozenset(map(frozenset, groups.values()))


INSIDE = "split with what a device sends inside; to Shardy the blocks are permuted"
READ = "a device reads what lies in its block, and the rest is zero; to Shardy the dimension is whole"
WHOLE = "the dimension is whole; Shardy splits what the operation is made of"
INDICES = "every device has all indices, and updates its block; Shardy splits the indices"
CLIPPED = "the updated dimension is whole where indices are clipped: one may end in another block; Shardy splits it"
OWN_INDICES = "each device updates by its own indices, and the results are summed; Shardy gathers the indices"
DIAGONALS = "split with one of the two dimensions, while the other is whole; to Shardy, which gathers, it is alone"
COPIES = "copies are made on each device; Shardy has a factor for them"
MADE_OF_NOTHING = "lies as the array lies, so that nothing is sent for it; to Shardy no array enters"

DIFFERENT = {
    "associative_scan": ("associative_scan('mul', a)", INSIDE),
    "cumlogsumexp": ("cumlogsumexp(A)", INSIDE),
    "cummax": ("cummax(a, axis=0)", INSIDE),
    "cummin": ("cummin(A)", INSIDE),
    "cumprod": ("cumprod(a, axis=1)", INSIDE),
    "cumsum": ("cumsum(a, axis=0)", INSIDE),
    "cumulative_sum": ("cumulative_sum(A, axis=1)", INSIDE),
    "flip": ("flip(a, axis=0)", INSIDE),
    "fliplr": ("fliplr(A)", INSIDE),
    "flipud": ("flipud(A)", INSIDE),
    "reduce_window": ("reduce_window(A, -inf, 'max', (1, 3), (1, 1), 'SAME')", INSIDE),
    "roll": ("roll(v, 4)", INSIDE),
    "dynamic_index_in_dim": ("dynamic_index_in_dim(a, i, axis=0, keepdims=False)", READ),
    "dynamic_slice": ("dynamic_slice(a, (i, 0), (2, 4))", READ),
    "dynamic_slice_in_dim": ("dynamic_slice_in_dim(a, i, 2, axis=0)", READ),
    "index_in_dim": ("index_in_dim(A, 1)", READ),
    "slice": ("slice(A, (0, 2), (4, 6))", READ),
    "slice_in_dim": ("slice_in_dim(A, 2, 6, axis=1)", READ),
    "index": ("A[0, 1:3]", READ),
    "argmax": ("argmax(A)", WHOLE),
    "argmin": ("argmin(A)", WHOLE),
    "bincount": ("bincount(J, length=4)", WHOLE),
    "matrix_power": ("matrix_power(S, 3)", WHOLE),
    "norm": ("norm(v, ord=1)", WHOLE),
    "pad": ("pad(A, ((0, 4), (0, 0)))", WHOLE),
    "svdvals": ("svdvals(S)", WHOLE),
    "vector_norm": ("vector_norm(A)", WHOLE),
    "at[].add": ("a.at[k].add(c, mode='clip')", CLIPPED),
    "at[].subtract": ("S.at[:, J].subtract(A)", OWN_INDICES),
    "at[].get": ("t.at[:, k].get(mode='fill', fill_value=0)", INDICES),
    "at[].mul": ("a.at[p, :].mul(2)", INDICES),
    "at[].multiply": ("a.at[k].multiply(c, mode='fill')", INDICES),
    "diag": ("diag(b)", DIAGONALS),
    "diagonal": ("diagonal(a, offset=-2)", DIAGONALS),
    "repeat": ("repeat(A, 2)", COPIES),
    "tile": ("tile(a, (1, 2))", COPIES),
    "full_like": ("full_like(A, 3)", MADE_OF_NOTHING),
    "ones_like": ("ones_like(A)", MADE_OF_NOTHING),
}
"""The operations for which some calls have other factors than Shardy's: one such call, and why."""

if jax.__version_info__ >= (0, 12):
    DIFFERENT["dynamic_update_index_in_dim"] = ("dynamic_update_index_in_dim(a, w, i, 0)", INSIDE)

DIAGONAL = "einsum('ii->i', S)"
"""A repeated letter is replicated; Shardy shards one of the two dimensions, and gathers the other."""


def _case(text: str) -> Experiment | None:
    """Return the experiment of one expression, with the arrays that it reads; None if it reads none."""
    read = {part.name for part in within(parse(text).term) if isinstance(part, Name)}
    arrays = {name: entry for name, entry in harness.loaded(EVERY[text])["arrays"].items() if name in read}
    given = {"arrays": arrays, "graph": {"out": text}, "outputs": {"out": []}}
    return harness.experiment(given, program="auto") if arrays else None


@pytest.mark.sample(12)
@pytest.mark.parametrize("text", EVERY)
def test_the_factors_of_a_rule_are_shardys(text: str) -> None:
    experiment = _case(text)
    own_rule = None if experiment is None else ours(experiment)
    if experiment is None or own_rule is None or own_rule[1] is None:
        return
    name, groups = own_rule
    shardys = theirs(experiment)
    if not isinstance(shardys, set) and name not in DIFFERENT and text != DIAGONAL:
        assert groups == shardys


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_listed_deviation_from_shardys_factors_exists(name: str) -> None:
    experiment = _case(DIFFERENT[name][0])
    assert experiment is not None
    own_rule, shardys = ours(experiment), theirs(experiment)
    assert own_rule is not None
    assert own_rule[0] == name
    assert not isinstance(shardys, set)
    assert own_rule[1] != shardys


def test_wrong_factors_are_noticed() -> None:
    experiment = _case("matmul(A, B)")
    assert experiment is not None
    own_rule = ours(experiment)
    assert own_rule == ("matmul", theirs(experiment))
    rule = Rule({"a": ((0,), (1,)), "b": ((2,), (1,))}, ((0,), (2,)), {0: 8, 1: 4, 2: 4})
    assert _groups(rule, {"a": "A", "b": "B"}) != theirs(experiment)
