"""Plans of Python functions: specs as trees, the lines to constrain, the second best, and what is refused."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import runner
from runner.app import call_plan
from runner.app.call_plan import LineConstraint, Plan
from runner.app.flow.planning import Compiled
from runner.graph.source import Frame
from tests.user_functions import planned_step

MESH = {"data": 2, "model": 2}
X = jax.ShapeDtypeStruct((512, 64), jnp.float32)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return runner.plan(
        planned_step.step,
        (planned_step.shapes(), X),
        mesh=MESH,
        in_specs=(runner.AUTO, P("data")),
        folder=tmp_path_factory.mktemp("plan") / "run",
        quiet=True,
    )


@pytest.mark.in_turn
def test_the_specs_are_trees_of_partition_specs(plan: Plan) -> None:
    assert plan.in_specs == ({"up": P(None, "model"), "down": P("model")}, P("data"))
    assert plan.status == "passed"
    assert plan.proved


def test_a_plan_says_what_was_compiled(plan: Plan) -> None:
    """The programs are those that a user can write: the specs alone, and with the layouts of products."""
    assert {"auto", "constraint"} <= set(plan.compiled)
    assert plan.compiled["constraint"].bytes_sent == plan.bytes_sent
    assert "auto is your function with in_specs and out_specs alone" in str(plan)


@pytest.mark.in_turn
def test_a_line_that_is_mapped_is_not_changed(tmp_path: Path) -> None:
    """A value there has a dimension less than the spec: the constraint would shard another one, without a word."""
    plan = runner.plan(
        planned_step.mapped, (planned_step.shapes(), X), mesh=MESH, candidates=0, quiet=True, folder=tmp_path / "run"
    )
    assert [each.frame is not None and each.frame.mapped for each in plan.constraints] == [True]
    assert plan.diff() == ""
    assert re.search(r"diff\(\) does not change planned_step\.py:\d+, which\s+jax\.vmap\s+maps", str(plan))


def test_the_next_state_lies_as_the_state(plan: Plan) -> None:
    """A step whose parameters came out in other layouts would move them before the next."""
    assert plan.out_specs == (plan.in_specs[0], P())


def test_the_plan_names_the_lines_to_constrain_and_changes_the_file(plan: Plan) -> None:
    first = plan.constraints[0]
    assert first.frame is not None
    assert (Path(first.frame.file).name, first.frame.text) == ("planned_step.py", 'h = jax.nn.gelu(x @ params["up"])')
    changes = [line for line in plan.diff().splitlines() if line.startswith(("+ ", "- "))]
    assert changes == [
        '-    h = jax.nn.gelu(x @ params["up"])',
        '-    y = h @ params["down"]',
        "+    h = jax.nn.gelu(jax.lax.with_sharding_constraint(x @ params[\"up\"], P('data', 'model')))",
        "+    y = jax.lax.with_sharding_constraint(h @ params[\"down\"], P('data'))",
    ]


@pytest.mark.parametrize(("sent", "worse"), [(820_908, True), (1_179_980, False), (None, False)])
def test_a_diff_that_makes_the_compiled_program_worse_is_left_out(plan: Plan, sent: int | None, worse: bool) -> None:
    """As for a small CNN: the compiler gathers operands of gradients for the layouts of its products."""
    compiled = {
        name: Compiled(program=name, status="passed", bytes_sent=bytes_sent)
        for name, bytes_sent in (("auto", sent), ("constraint", 1_179_980))
    }
    assert call_plan._is_worse(compiled, "bytes") == worse
    assert not call_plan._is_worse({}, "bytes")
    undivided = compiled | {"auto": replace(compiled["auto"], flops=200.0)}
    divided = undivided | {"constraint": replace(compiled["constraint"], flops=100.0)}
    assert not call_plan._is_worse(divided, "bytes")
    assert not plan.worse
    assert bool(replace(plan, worse=worse).diff()) != worse


@pytest.mark.in_turn
def test_the_plan_says_why_and_has_a_page(plan: Plan) -> None:
    assert plan.parallelism[0].startswith("data parallelism over data: dimension 0 of x")
    assert "tensor parallelism (Megatron) over model: params/up by columns, params/down by rows" in str(plan)
    assert plan.next_best["params/up"].next is not None
    assert max(map(len, str(plan).splitlines()[5:])) <= 100
    assert "params/up by columns" in plan.page.read_text(encoding="utf-8")


@pytest.mark.in_turn
def test_the_specs_are_what_check_takes(plan: Plan, tmp_path: Path) -> None:
    import numpy as np

    params = {name: np.ones(each.shape, np.float32) / 64 for name, each in planned_step.shapes().items()}
    record = runner.check(
        planned_step.step,
        (params, np.ones(X.shape, np.float32)),
        mesh=plan.mesh,
        in_specs=plan.in_specs,
        out_specs=plan.out_specs,
        quiet=True,
        folder=tmp_path / "run",
    )
    assert record.status == "passed"


@pytest.mark.in_turn
def test_check_plans_what_is_auto_and_then_checks(tmp_path: Path) -> None:
    record = runner.check(
        planned_step.loss,
        (planned_step.shapes(16, 32), jax.ShapeDtypeStruct((3, 16), jnp.float32)),
        mesh={"model": 4},
        in_specs=("auto", P()),
        quiet=True,
        folder=tmp_path / "run",
    )
    assert record.status == "passed"
    assert record.collectives == {"all-reduce": 1}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("hold", "up"), [({"params/up": P("model")}, P("model")), ({"params/*": P()}, P()), ({"result/0/up": P()}, P())]
)
def test_held_layouts_of_leaves_are_kept(hold: dict[str, Any], up: Any, tmp_path: Path) -> None:
    best = _held(hold, tmp_path)
    assert best.in_specs[0]["up"] == up
    assert best.out_specs[0]["up"] == up


def test_the_held_layout_of_an_operation_decides_that_of_its_weight(tmp_path: Path) -> None:
    """With `h` sharded by columns alone the rows of `down` would be sharded; the plan may still choose otherwise."""
    best = _held({"dot_general.1": P(None, "model")}, tmp_path)
    assert "dot_general.1" not in [each.operation for each in best.constraints]
    assert best.in_specs[0]["up"] == P(None, "model")


def _of_stated(function: Any, kind: AxisType, spec: P, folder: Path, candidates: int = 1) -> Plan:
    """The plan of a function that states a layout itself, on axes of a kind."""
    mesh = jax.sharding.AbstractMesh(tuple(MESH.values()), tuple(MESH), axis_types=(kind,) * 2)
    with jax.sharding.use_abstract_mesh(mesh):
        return runner.plan(
            functools.partial(function, spec=spec), (planned_step.shapes(), X), folder=folder / "run", quiet=True,
            candidates=candidates,
        )  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_the_layouts_that_a_function_states_are_kept(kind: AxisType, tmp_path: Path) -> None:
    function = planned_step.stated if kind is AxisType.Explicit else planned_step.constrained
    over_rows = _of_stated(function, kind, P("data", None), tmp_path)
    assert over_rows.in_specs[0]["up"] == P()
    program = "explicit" if kind is AxisType.Explicit else "auto"
    assert over_rows.compiled[program].status == "passed"


@pytest.mark.in_turn
@pytest.mark.parametrize("axis", MESH)
def test_the_layout_that_a_lookup_states_is_kept(axis: str, tmp_path: Path) -> None:
    """The data are sharded over the axis that the lookup's rows are, of two axes that are alike."""
    assert _of_stated(planned_step.looked_up, AxisType.Explicit, P(axis), tmp_path, candidates=0).in_specs[1] == P(axis)


@pytest.mark.in_turn
def test_a_plan_on_explicit_axes_is_one_that_the_types_accept(tmp_path: Path) -> None:
    """A product whose sum is over several devices would have to state its layout: none of the plan's is one."""
    over_columns = _of_stated(planned_step.stated, AxisType.Explicit, P(None, "model"), tmp_path)
    assert over_columns.status == "passed"
    assert over_columns.in_specs[0]["up"] == P(None, "model")
    assert "diff() is empty" in str(over_columns)


@pytest.mark.in_turn
def test_an_argument_of_which_the_types_ask_a_layout_is_to_be_given(tmp_path: Path) -> None:
    """What is planned is replicated when the function is traced, and this loop carries rows over the data."""
    mesh = jax.sharding.AbstractMesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Explicit,) * 2)
    operands = planned_step.shapes(), X
    with pytest.raises(runner.InvalidPlan, match=r"if it needs another layout of one, give it, such as in_specs="):
        runner.plan(planned_step.carried, operands, mesh=mesh, quiet=True, folder=tmp_path / "run")


@pytest.mark.in_turn
def test_rows_that_a_loss_normalises_over_are_a_batch(tmp_path: Path) -> None:
    """The gradient of the softmax is multiplied with values, as an attention's weights are; it is no attention."""
    plan = runner.plan(
        planned_step.contrasted, (planned_step.shapes(), X), mesh=MESH, in_specs=(runner.AUTO, P("data")),
        candidates=0, quiet=True, folder=tmp_path / "run",
    )  # fmt: skip
    assert any(each.startswith("data parallelism over data: dimension 0 of x") for each in plan.parallelism)
    assert not [each for each in plan.parallelism if each.startswith("sequence")]


def _held(hold: dict[str, Any], tmp_path: Path) -> Plan:
    return runner.plan(
        planned_step.step,
        (planned_step.shapes(), X),
        mesh=MESH,
        in_specs=(runner.AUTO, P("data")),
        hold=hold,
        candidates=0,
        quiet=True,
        folder=tmp_path / "run",
    )


def test_the_step_of_a_convolution_is_data_parallel(tmp_path: Path) -> None:
    """The gradient of a kernel is a convolution whose windows move along the positions in the kernel."""
    kernels = [jax.ShapeDtypeStruct((3, 3, 4, 4), jnp.float32)] * 2
    best = runner.plan(
        planned_step.convolved,
        (kernels, jax.ShapeDtypeStruct((16, 6, 6, 4), jnp.float32)),
        mesh={"data": 4},
        in_specs=(P(), P("data")),
        candidates=0,
        quiet=True,
        folder=tmp_path / "run",
    )
    assert [each.partition(";")[0] for each in best.parallelism] == ["data parallelism over data: dimension 0 of x"]
    assert best.constraints[0].operation == "conv_general_dilated.1"


@pytest.mark.in_turn
def test_gradients_are_no_state(tmp_path: Path) -> None:
    """They have the structure of the parameters, and are not their next value: nothing holds them to one layout."""
    best = runner.plan(
        planned_step.gradients,
        (planned_step.shapes(), X),
        mesh={"data": 4},
        in_specs=({"up": P(), "down": P()}, P("data")),
        candidates=0,
        quiet=True,
        folder=tmp_path / "run",
    )
    assert "for the next step" not in str(best)


@pytest.mark.in_turn
def test_a_function_without_products_is_planned_by_its_arrays(tmp_path: Path) -> None:
    plan = runner.plan(
        lambda a, b: jnp.tanh(a) + b, (X, X), mesh={"data": 4}, candidates=0, folder=tmp_path / "run", quiet=True
    )
    assert plan.in_specs == (P("data"), P("data"))
    assert plan.constraints == ()
    assert plan.bytes_sent == 0


@pytest.mark.in_turn
def test_operands_without_arrays_have_no_layout(tmp_path: Path) -> None:
    plan = runner.plan(
        lambda by, x: by * x, (3, X), mesh=MESH, candidates=0, quiet=True, folder=tmp_path / "run"
    )  # fmt: skip
    assert plan.in_specs[0] is None
    assert plan.in_specs[1] is not None


@pytest.mark.in_turn
def test_what_a_function_saves_is_planned_with_its_layouts(tmp_path: Path) -> None:
    def gradient(x: Any) -> Any:
        saving = jax.checkpoint(lambda x: jnp.sum(checkpoint_name(jnp.tanh(x @ x.T), "h") ** 2), policy=runner.AUTO)
        return jax.grad(saving)(x)

    plan = runner.plan(
        gradient, (X,), mesh=MESH, candidates=0, quiet=True, remat="auto", folder=tmp_path / "run"
    )  # fmt: skip
    assert plan.saved == "everything"


@pytest.mark.in_turn
def test_the_shape_of_the_mesh_is_found(tmp_path: Path) -> None:
    """Rows are sharded over data alone, and need no more than the sum of the loss."""
    keys = {"devices": 4, "candidates": 0, "lines": False, "quiet": True, "in_specs": (runner.AUTO, P("data"))}
    operands = (planned_step.shapes(16, 32), jax.ShapeDtypeStruct((64, 16), jnp.float32))
    best = runner.plan(planned_step.loss, operands, mesh="auto", folder=tmp_path / "run", **keys)
    assert dict(best.mesh) == {"data": 4, "model": 1}
    with pytest.raises(ValueError, match='mesh="auto" takes the number of devices: devices=64'):
        runner.plan(planned_step.loss, operands, mesh="auto")


def _saved(policy: Any, memory: int, tmp_path: Path) -> Plan:
    """Plan the gradient of scanned layers under a checkpoint; the value `outside` is computed before it."""

    def layer(h: Any, w: Any) -> Any:
        p = checkpoint_name(h @ w["up"], "up")
        return h + checkpoint_name(jax.nn.gelu(p), "act") @ w["down"], None

    def loss(weights: Any, x: Any) -> Any:
        start = checkpoint_name(jnp.tanh(x), "outside")
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer, policy=policy), start, weights)[0] ** 2)

    shapes = {"up": (4, 64, 256), "down": (4, 256, 64)}
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return runner.plan(
        jax.grad(loss), (weights, X), mesh=MESH, in_specs=(P(), P("data")), hardware="v5e", memory=memory, remat="auto",
        candidates=0, lines=False, quiet=True, folder=tmp_path / "run",
    )  # fmt: skip


@pytest.mark.in_turn
def test_what_a_function_saves_is_chosen_from_the_names_under_its_checkpoint(tmp_path: Path) -> None:
    plan = _saved(runner.AUTO, 3_000_000, tmp_path)
    assert plan.saved is not None
    assert plan.policy is not None
    assert plan.policy.startswith("jax.checkpoint_policies.")
    choices = json.loads((plan.folder / "plan.json").read_text(encoding="utf-8"))["choices"]
    assert {name for each in choices if each["saved"] != "everything" for name in each["saved"]} <= {"up", "act"}


@pytest.mark.in_turn
def test_a_function_without_an_open_policy_has_nothing_to_choose(tmp_path: Path) -> None:
    plan = _saved(jax.checkpoint_policies.nothing_saveable, 3_000_000, tmp_path)
    assert "changes nothing: is a checkpoint around open" in " ".join(str(plan).split())


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"in_specs": (P(), P("data")), "out_specs": P(), "lines": False},
            "there is no layout to plan; give runner.AUTO in place of a spec of in_specs",
        ),
        ({"memory": 1000}, "no layout fits: arrays and outputs need at least"),
        ({"least": "time"}, "plan.least=time needs hardware"),
        ({"hardware": "v9"}, "hardware"),
        ({"hold": {"up": P()}}, "hold['up']: no leaf that is AUTO has this path; there are params/down"),
        ({"hold": {"params/up": "model"}}, "hold['params/up']: 'model' is not a PartitionSpec"),
        ({"hold": {3: P()}}, "hold[3]: a path of leaves is a text"),
        ({"out_specs": 3}, "out_specs: a spec is a PartitionSpec, not 3"),
        ({"in_specs": ({"up": "auto", "side": P()}, P())}, "the operand has no ['side']"),
    ],
)
def test_what_cannot_be_planned_is_one_message(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(runner.InvalidPlan) as error:
        runner.plan(
            planned_step.loss, (planned_step.shapes(), X), mesh=MESH, candidates=0, quiet=True,
            folder=tmp_path / "run", **arguments,
        )  # fmt: skip
    assert message in str(error.value)


def _diff(tmp_path: Path, source: str, *specs: Any) -> list[str]:
    file = tmp_path / "mine.py"
    file.write_text(source)
    each = tuple(
        LineConstraint(Frame(str(file), 1, source.strip()), f"dot_general.{n}", spec) for n, spec in enumerate(specs)
    )
    plan = Plan({}, (), None, each, {}, (), "bytes", 0, 0, 0, 0, True, {}, "passed", tmp_path, "")
    return [line[1:] for line in plan.diff().splitlines() if line.startswith("+") and not line.startswith("+++")]


@pytest.mark.parametrize(
    ("source", "specs", "changed"),
    [
        (
            "y = x @ a @ b\n",
            (P("a"), P()),
            "y = jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(x @ a, P('a')) @ b, P())",
        ),
        ("y = nn.Dense(8)(x)\n", (P("a"), P()), "y = jax.lax.with_sharding_constraint(nn.Dense(8)(x), P('a'))"),
        ("y = nn.gelu(self.up(x))\n", (P("a"),),
         "y = nn.gelu(jax.lax.with_sharding_constraint(self.up(x), P('a')))"),
        ("y = jnp.mean(nn.Dense(8)(x))\n", (P("a"),),
         "y = jnp.mean(jax.lax.with_sharding_constraint(nn.Dense(8)(x), P('a')))"),
        ("y = 'é' and jnp.einsum('ij,jk', x, w)\n", (P("a"),),
         "y = 'é' and jax.lax.with_sharding_constraint(jnp.einsum('ij,jk', x, w), P('a'))"),
    ],
)  # fmt: skip
def test_products_of_a_line_are_constrained_inside_out(
    source: str, specs: tuple[Any, ...], changed: str, tmp_path: Path
) -> None:
    assert _diff(tmp_path, source, *specs) == [changed]


@pytest.mark.parametrize(
    ("source", "products"),
    [
        ("for x in layers: pass\n", 1),
        ("y = self.up(self.down(x))\n", 2),
        ("return jnp.mean((jax.vmap(model)(x) - x) ** 2)\n", 8),
    ],
)
def test_a_line_whose_product_is_not_known_is_not_changed(source: str, products: int, tmp_path: Path) -> None:
    """A model of several layers that one line calls has several products; a mean has another shape than they."""
    assert _diff(tmp_path, source, *[P("a")] * products) == []
