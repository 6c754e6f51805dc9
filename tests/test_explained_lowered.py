"""StableHLO as JAX lowers it: what can be said before compiling, and the reasons that it gives to what was compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import runner
from runner.base.layout import Spec
from runner.compiled.explanation import files
from runner.compiled.explanation.files import Wanted
from runner.compiled.explanation.model import Explanation
from runner.compiled.explanation.modules import UnreadableModule
from runner.reports.show import progress


def _step(w: Any, x: Any) -> Any:
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    return w - gradient


@pytest.fixture(scope="module")
def lowered() -> Any:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])

    def spec(*axes: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*axes))

    w = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=spec("data", "model"))
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=spec("data", None))
    return jax.jit(_step, out_shardings=spec("data", "model"), donate_argnums=0).lower(w, x)


@pytest.fixture(scope="module")
def folder(lowered: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lowered")
    (folder / "step.mlir").write_text(lowered.as_text(debug_info=True))
    (folder / "bare.mlir").write_text(lowered.as_text())
    (folder / "step.txt").write_text(lowered.compile().as_text())
    return folder


@pytest.fixture(scope="module")
def planned(folder: Path) -> Explanation:
    return files.explain(folder / "step.mlir")


def test_what_is_done_is_told_while_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Heard(progress.Quiet):
        def tell(self, what: str, share: float | None = None) -> None:
            heard.append(f"{self.text().partition(':')[0]}: {what}")

    monkeypatch.setattr(progress, "Progress", Heard)
    runner.explain(jax.jit(jnp.tanh), jnp.ones(4))
    assert heard == ["tanh: tracing", "tanh: XLA is compiling", "tanh: reading the module"]


@pytest.mark.in_turn
def test_a_lowered_module_has_the_collectives_that_shardy_plans(planned: Explanation) -> None:
    assert (planned.module, planned.stage, str(planned.mesh)) == ("jit__step", "lowered", "data=2 × model=2")
    # By hand: x @ w sums over the rows of w, which `data` shards; so does its gradient over the rows of x.
    assert planned.moving
    assert all(entry.axes in (["data"], ["model"], ["data", "model"]) for entry in planned.moving)
    assert all(entry.why is not None and entry.why.by == "operation" for entry in planned.moving)
    assert {Path(place.file).name for place in planned.lines.values()} == {Path(__file__).name}
    assert any("the compiler may insert others" in note for note in planned.notes)


def test_its_arguments_have_their_layouts_and_what_a_device_holds(planned: Explanation) -> None:
    assert [(a.name, a.shape, a.bytes, a.spec, a.donated) for a in planned.arguments] == [
        ("w", (4, 2), 32, Spec.of(("data", "model")), True),
        ("x", (8, 8), 256, Spec.of(("data", None)), False),
    ]


@pytest.mark.in_turn
def test_a_collective_that_the_program_asks_for_is_as_written(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    f = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    (tmp_path / "f.mlir").write_text(f.lower(jnp.ones((8, 4))).as_text(debug_info=True))
    (entry,) = files.explain(tmp_path / "f.mlir").moving
    # Two of eight rows, 32 bytes, sent twice three quarters.
    assert (entry.kind, entry.axes, entry.inserted, entry.bytes_sent) == ("all-reduce", ["x"], False, 48)


@pytest.mark.in_turn
def test_what_was_compiled_takes_reasons_and_layouts_from_it(folder: Path, lowered: Any) -> None:
    with_lowered = files.explain(folder / "step.txt", Wanted(lowered=folder / "step.mlir"))
    here = runner.explain(lowered)

    def collectives(explanation: Explanation) -> list[Any]:
        return [(e.kind, e.node, e.axes, e.bytes_sent, e.why and e.why.text) for e in explanation.moving]

    assert collectives(with_lowered) == collectives(here)
    assert with_lowered.layouts == here.layouts
    assert here.layouts
    assert [e.why for e in files.explain(folder / "step.txt").moving] == [None] * len(here.moving)


@pytest.mark.in_turn
def test_a_file_without_locations_says_how_to_write_them(folder: Path) -> None:
    explanation = files.explain(folder / "bare.mlir")
    assert explanation.lines == {}
    assert any("lowered.as_text(debug_info=True)" in note for note in explanation.notes)


# What XLA dumps: the module before its passes has what JAX lowered.


@pytest.fixture(scope="module")
def dump(lowered: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    wanted = {"xla_dump_to": str(folder), "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}
    lowered.compile(compiler_options=wanted)
    return folder


def _why(explanation: Explanation) -> list[Any]:
    return [(e.kind, e.node, e.axes, e.why and e.why.text) for e in explanation.moving]


@pytest.mark.in_turn
def test_a_folder_of_dumps_has_reasons_axes_and_layouts_by_itself(dump: Path, lowered: Any) -> None:
    explanation, here = files.explain(dump), runner.explain(lowered)
    assert str(explanation.mesh) == "data=2 × model=2"
    assert _why(explanation) == _why(here)
    assert {name: explanation.layouts[name] for name in here.layouts} == here.layouts
    assert [argument.spec for argument in explanation.arguments] == [argument.spec for argument in here.arguments]


@pytest.mark.in_turn
def test_a_serialized_module_takes_reasons_from_a_lowered_one(dump: Path, folder: Path, lowered: Any) -> None:
    (serialized,) = dump.glob("*after_optimizations.hlo.pb")
    explanation = files.explain(serialized, Wanted(lowered=folder / "step.mlir"))
    assert _why(explanation) == _why(runner.explain(lowered))


@pytest.mark.in_turn
def test_a_dumped_module_before_its_passes_has_the_collectives_that_shardy_plans(
    dump: Path, planned: Explanation
) -> None:
    (before,) = dump.glob("*.before_optimizations.txt")
    assert _why(files.explain(before)) == _why(planned)


def _gathered(f: Any, x: Any, w: Any) -> Any:
    return f(jax.lax.with_sharding_constraint(x, P("data"))) @ w


def _in_a_loop(f: Any, x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda carry, _: (f(carry) + carry, f(carry @ w @ w.T).sum()), x, None, length=3)


def _in_a_branch(f: Any, x: Any, w: Any) -> Any:
    return jax.lax.cond(x[0, 0] > 0, lambda: f(x) @ w, lambda: jnp.zeros((16, 12)))


def _differentiated(f: Any, x: Any, w: Any) -> Any:
    return w - jax.grad(lambda w: jnp.sum(jax.checkpoint(f)(x @ w @ w.T) ** 2))(w)


def _beside_one_without_arrays(f: Any, x: Any, w: Any) -> Any:
    rank = jax.shard_map(lambda: jax.lax.axis_index("data").reshape(1) + 0.0, in_specs=(), out_specs=P("data"))
    return (rank()[:, None, None] * (f(x) @ w)).sum(0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("step", [_gathered, _in_a_loop, _in_a_branch, _differentiated, _beside_one_without_arrays])
@pytest.mark.parametrize("manual", [("data", "model"), ("model",)], ids=["all axes", "one axis"])
def test_a_dump_has_the_reasons_of_what_is_inserted_beside_a_shard_map(
    step: Any, manual: tuple[str, ...], tmp_path: Path
) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = jax.ShapeDtypeStruct((8, 12), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    with jax.set_mesh(mesh):
        inside = jax.shard_map(
            lambda v: jax.lax.psum(v, "model"), in_specs=P(None, "model"), out_specs=P(), axis_names=set(manual)
        )
        tiled = jax.shard_map(lambda v: jnp.tile(v, (1, 8)), in_specs=P(), out_specs=P(), axis_names=set(manual))
        f = jax.jit(lambda x, w: step(lambda v: tiled(inside(v)[:, :1]), x, w))
        lowered = f.lower(x, w)
        lowered.compile(compiler_options={"xla_dump_to": str(tmp_path)})
        explanation, here = files.explain(tmp_path), runner.explain(lowered)
    assert any(entry.why for entry in explanation.moving if entry.inserted)
    # Which of two like collectives in a loop Shardy planned otherwise is told by their order, which a dump changes.
    needs, needs_here = ([(*rest, why.partition("; ")[0]) for *rest, why in _why(each)] for each in (explanation, here))
    assert needs == needs_here
    assert explanation.layouts == here.layouts


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module @jit_f {\n  func.func broken\n}", "this is no StableHLO that JAX reads"),
        (
            "module @jit_f attributes {mhlo.num_partitions = 4 : i32} {\n  func.func public @main(%arg0: tensor<4xf32> "
            '{mhlo.sharding = "{devices=[4]<=[4]}"}) -> tensor<4xf32> {\n    return %arg0 : tensor<4xf32>\n  }\n}\n',
            "Shardy cannot plan this module, since its shardings are those of GSPMD",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "f.mlir").write_text(text)
    with pytest.raises(UnreadableModule, match=message):
        files.explain(tmp_path / "f.mlir")
