"""What checkpoints save is chosen together with layouts: what is computed again, its cost, and the best choice."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from runner.app.flow import saving
from runner.base.chosen import AUTO, EVERYTHING, UnsaidPolicy
from runner.base.faults import InvalidExperiment, key_text
from runner.experiment import open_layouts, remat
from runner.experiment.reader import read
from runner.experiment.remat import Saved
from runner.programs.planning.plan import LayoutPlan, NoPlan, Wanted, plan
from runner.programs.planning.reading import layable
from runner.worker.derive import value_types
from tests.test_plan import V5P, experiment

NAMES = ("up", "act")


def block(*, steps: int = 4, **keys: Any) -> dict[str, Any]:
    """Return scanned layers of two products with a value between them, whose checkpoint is `auto`, and gradients."""
    layers = {
        "repeat": "L",
        "over": {"a": "w1", "b": "w2"},
        "carry": {"h": "x"},
        "body": {"p": "checkpoint_name(h @ a, 'up')", "g": "checkpoint_name(gelu(p), 'act')", "h": "h + g @ b"},
        "checkpoint": "auto",
    }
    arrays = {"x": (["B", "D"], ["data"]), "w1": (["L", "D", "F"], "auto"), "w2": (["L", "F", "D"], "auto")}
    graph = {"layers": layers, "loss": "mean(layers.h ** 2)"}
    dims, grad = {"L": steps, "B": 256, "D": 64, "F": 256}, {"of": "loss", "wrt": ["w1", "w2"]}
    return experiment(
        {"data": 2, "model": 2}, dims, arrays, graph, {"loss": []}, grad=grad, hardware=V5P,
        target={"platform": "tpu"}, **{"remat": "auto", **keys},
    )  # fmt: skip


def in_jax(policy: Any) -> int:
    """Return the products in the gradient of the same layers in JAX, of which one step each of both scans counts."""

    def layer(h: Any, w: Any) -> Any:
        p = checkpoint_name(h @ w[0], "up")
        g = checkpoint_name(jax.nn.gelu(p), "act")
        return h + g @ w[1], None

    def loss(w: Any, x: Any) -> Any:
        body = layer if policy is None else jax.checkpoint(layer, policy=policy)
        return jnp.mean(jax.lax.scan(body, x, w)[0] ** 2)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 64, 256), (4, 256, 64), (256, 64))]
    return str(jax.make_jaxpr(jax.grad(loss))(tuple(shapes[:2]), shapes[2])).count("dot_general[")


BY_NAME = jax.checkpoint_policies.save_only_these_names


@pytest.mark.parametrize(
    ("checkpoint", "policy", "again"),
    [
        (True, jax.checkpoint_policies.nothing_saveable, ["matmul", "checkpoint_name", "gelu", "checkpoint_name"]),
        ("dots_saveable", jax.checkpoint_policies.dots_saveable, ["checkpoint_name", "gelu", "checkpoint_name"]),
        ({"save_only_these_names": ["up"]}, BY_NAME("up"), ["gelu", "checkpoint_name"]),
        ({"save_only_these_names": ["act"]}, BY_NAME("act"), ["matmul", "checkpoint_name", "gelu"]),
        ({"save_only_these_names": ["up", "act"]}, BY_NAME("up", "act"), ["gelu"]),
        ("everything_saveable", jax.checkpoint_policies.everything_saveable, []),
    ],
)
def test_what_is_computed_again_is_what_jax_computes_again(checkpoint: Any, policy: Any, again: list[str]) -> None:
    config = {**open_layouts.without(block()), "remat": None}
    config["graph"]["layers"] = {**config["graph"]["layers"], "checkpoint": checkpoint}
    whole = read({**config, "program": "auto"})
    of = layable(whole, value_types(whole.alone("graph")), ())
    assert [each.called for each in of.operations if each.recomputed is not None] == again
    assert in_jax(policy) - in_jax(None) == again.count("matmul")


def test_what_the_backward_pass_adds_up_is_not_computed_again() -> None:
    # The derivative of a sum reads no operand, so that the second product is not needed again.
    config = open_layouts.without(block())
    whole = read({**config, "program": "auto"})
    of = layable(whole, value_types(whole.alone("graph")), ())
    products = [each for each in of.operations if each.called == "matmul"]
    assert [each.recomputed is not None for each in products] == [True, False]


def test_a_function_under_a_checkpoint_computes_its_collectives_again() -> None:
    def sent(checkpoint: bool) -> float:
        function = {"checkpoint": checkpoint, "a": "gelu(h @ w1)", "result": "gelu(a @ w2)"}
        arrays = {"x": (["B", "D"], []), "w1": (["D", "F"], [None, "model"]), "w2": (["F", "D"], ["model"])}
        config = experiment(
            {"model": 4}, {"B": 64, "D": 16, "F": 64}, arrays, {"y": "layer(x, w1, w2)", "loss": "mean(y ** 2)"},
            {"loss": []}, functions={"layer(h, w1, w2)": function}, grad={"of": "loss", "wrt": ["w1", "w2"]},
        )  # fmt: skip
        whole = read({**config, "program": "auto"})
        return plan(whole, value_types(whole.alone("graph")), Wanted("bytes", ())).best.sent

    # An all-reduce of the second product, whose result `gelu` reads in the backward pass.
    assert sent(True) - sent(False) == 2 * 3 / 4 * 64 * 16 * 4


@dataclass(frozen=True)
class Planned:
    """A plan with one choice of what is saved."""

    plan: LayoutPlan


@functools.cache
def planned(saved: Saved, memory: float | None) -> Planned:
    """Return the plan that saves some values."""
    config = remat.saving(block(), saved)
    free = tuple(key_text(key) for key in open_layouts.keys(config))
    whole = read({**open_layouts.without(config), "program": "auto"})
    return Planned(plan(whole, value_types(whole.alone("graph")), Wanted("time", free, memory)))


LIMITS = (None, 2.8e6, 1.8e6, 1.5e6, 1.2e6)


@pytest.mark.sample(6)
@pytest.mark.parametrize("memory", LIMITS)
def test_the_choice_is_the_best_of_all(memory: float | None) -> None:
    saved, best, choices = saving.best(NAMES, lambda names: planned(names, memory))
    subsets = [subset for many in range(3) for subset in itertools.combinations(NAMES, many)]
    every: dict[Saved, Planned] = {names: planned(names, memory) for names in (EVERYTHING, *subsets)}
    within = [each.plan.best.cost for each in every.values() if not each.plan.exceeds]
    assert not best.plan.exceeds
    assert best.plan.best.cost <= min(within) * (1 + 1e-6)
    assert choices[0].saved == saved
    # What the limit costs is counted from the best choice without it, whichever that is.
    assert min(each.unlimited for each in choices) == pytest.approx(planned(EVERYTHING, None).plan.best.cost)


@pytest.mark.whole
def test_a_lower_limit_saves_less() -> None:
    best = [saving.best(NAMES, lambda names, memory=memory: planned(names, memory))[0] for memory in LIMITS]
    assert best[0] == EVERYTHING
    assert len(set(best)) > 2


def test_of_many_names_one_after_the_other_is_added() -> None:
    known = [f"n{at}" for at in range(8)]
    gains = {name: at for at, name in enumerate(known)}

    def plan_of(names: Saved) -> Planned:
        """Make a plan that needs a byte for each name, of which four fit, and gains more by later ones."""
        some = known if names == EVERYTHING else names
        of = planned(EVERYTHING, None).plan
        best = _with(of.best, cost=100.0 - sum(gains[name] for name in some), needed=float(len(some)))
        return Planned(_with(of, best=best, memory=4.0, unlimited=0.0))

    saved, _, choices = saving.best(known, plan_of)
    assert saved == ("n4", "n5", "n6", "n7")
    assert len(choices) < saving.number_of_choices(known)


def _with(value: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(value, **changes)


@pytest.mark.parametrize(
    ("saved", "policy"),
    [
        ((), "jax.checkpoint_policies.nothing_saveable"),
        (EVERYTHING, "jax.checkpoint_policies.everything_saveable"),
        (("up", "act"), "jax.checkpoint_policies.save_only_these_names('up', 'act')"),
    ],
)
def test_the_policy_that_is_to_be_pasted_saves_as_the_choice_does(saved: Sequence[str], policy: str) -> None:
    assert remat.policy(saved) == policy
    with AUTO.saving(saved):
        assert in_jax(AUTO) == in_jax(eval(policy))  # the text of the policy


def test_a_policy_that_nobody_chose_says_how_to_choose_it() -> None:
    with pytest.raises(UnsaidPolicy, match=r"runner\.plan\(…, remat='auto'\) finds the policy to write in its place"):
        in_jax(AUTO)


def _message(config: Mapping[str, Any]) -> tuple[str, str]:
    with pytest.raises(InvalidExperiment) as caught:
        read({**config, "program": "auto"})
    return key_text(caught.value.fault.key), caught.value.fault.message


def test_what_a_checkpoint_saves_has_to_be_said() -> None:
    config = {**open_layouts.without(block()), "remat": None}
    assert _message(config) == (
        "graph.layers.checkpoint",
        "nothing says what is saved: write remat: auto, and the planner finds it, or remat: [NAME]",
    )
    assert _message({**config, "remat": "all"})[0] == "remat"
    assert "nothing has the name 'down'" in _message({**config, "remat": ["down"]})[1]


def test_what_nothing_reads_is_refused() -> None:
    config = open_layouts.without(block())
    config["graph"]["layers"].pop("checkpoint")
    for saved in (["act"], "everything"):
        assert _message({**config, "remat": saved}) == (
            "remat", "nothing reads it: write checkpoint: auto in a function or a repeat",
        )  # fmt: skip


def test_the_names_in_a_file_are_the_policy_of_its_checkpoints() -> None:
    whole = read({**open_layouts.without(block()), "remat": ["act"], "program": "auto"})
    (checkpoint,) = (checkpoint for checkpoint, _ in remat.of(whole.graph))
    assert checkpoint.written == {"save_only_these_names": ["act"]}


def test_an_impossible_limit_is_refused_as_without_a_choice() -> None:
    with pytest.raises(NoPlan, match="no layout fits"):
        saving.best(NAMES, lambda names: planned(names, 1e5))
