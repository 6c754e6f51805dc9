"""Measured times of the local devices, as a hardware file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from runner.app.cli.measure import main
from runner.base.layout import Mesh
from runner.compiled.estimate import fit
from runner.experiment import hardware
from runner.experiment.hardware import Switch
from runner.graph.sharding import ring
from runner.link.measures import MeasuredRun, MeasuringRequest, NotMeasured, measure

DEVICES = 8


def made(bandwidth: float, latency: float, start: float = 20e-6) -> list[MeasuredRun]:
    """Return the times of devices with these links, if each program takes this long to start."""

    def measured_run(kind: str, size: int, seconds: float, dtype: str = "float32") -> MeasuredRun:
        return MeasuredRun(kind=kind, dtype=dtype, bytes=size, seconds=seconds, device="a device", devices=DEVICES)

    runs = [measured_run("dispatch", 0, start)]
    for kind in fit.KINDS:
        for size in (1_000, 1_000_000, 1_000_000_000):
            waiting = latency * (2 if kind == "all-reduce" else 1)
            runs.append(
                measured_run(kind, size, start + max(waiting, size * ring.bus_factor(kind, DEVICES) / bandwidth))
            )
    runs += [
        measured_run("product", 10**12, start + 0.5),
        measured_run("product", 10**12, start + 0.25, "bfloat16"),
        measured_run("copy", 10**9, start + 0.01),
    ]
    return runs


def test_the_fit_recovers_the_true_numbers() -> None:
    fitted = fit.fit(made(bandwidth=4.5e11, latency=5e-6))
    assert fitted.bandwidth == pytest.approx(4.5e11)
    assert fitted.latency == pytest.approx(5e-6)
    assert fitted.flops == pytest.approx({"float32": 2e12, "bfloat16": 4e12})
    assert fitted.memory_bandwidth == pytest.approx(1e11)


def test_measures_as_short_as_a_dispatch_have_no_latency_but_a_rate() -> None:
    measures = [replace(run, seconds=5e-6) if run.bytes == 1_000 else run for run in made(4.5e11, 5e-6)]
    assert fit.fit(measures).latency == 0.0
    quick = [replace(run, seconds=20e-6) for run in measures]
    bandwidth = fit.fit(quick).bandwidth
    assert bandwidth is not None
    assert 0 < bandwidth < 1e15


@pytest.mark.parametrize(
    ("kind", "factor"),
    # nccl-tests, doc/PERFORMANCE.md, for eight ranks.
    [("all-reduce", 2 * 7 / 8), ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("all-to-all", 7 / 8)],
)
def test_the_bandwidth_of_a_link_is_counted_as_nccl_tests_does(kind: str, factor: float) -> None:
    run = MeasuredRun(kind=kind, dtype="float32", bytes=8_000, seconds=1e-3, device="a device", devices=8)
    assert fit.algbw(run) == pytest.approx(8e6)
    assert fit.busbw(run) == pytest.approx(8e6 * factor)


def test_the_file_is_read_as_hardware() -> None:
    text = fit.document(fit.fit(made(4.5e11, 5e-6)), "mine", "2026-01-01", "jax 1.2.3")
    given = {"memory": {}, "torus": {}, "network": {}, "slices": 1, "shape": None, **yaml.safe_load(text)}
    machine = hardware.read(given, Mesh(("x",), (DEVICES,)), None)
    assert machine is not None
    assert isinstance(machine.links, Switch)
    assert machine.links.devices == DEVICES
    assert (machine.links.bandwidth, machine.links.latency) == (pytest.approx(4.5e11), pytest.approx(5e-6))
    assert machine.peak("bfloat16", "highest") == pytest.approx(4e12)


@pytest.mark.in_turn
def test_the_devices_here_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["here", "--config-dir", str(tmp_path), "--devices", "2", "--largest", "4k", "--runs", "1"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for kind in fit.KINDS:
        assert printed.count(f"{kind} ") == 2
    written = yaml.safe_load((tmp_path / "hardware" / "here.yaml").read_text())
    assert written["switch"]["devices"] == 2
    assert all(written["flops"][dtype] > 0 for dtype in ("float32", "bfloat16"))


@pytest.mark.in_turn
def test_one_device_has_products_and_memory_and_no_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one", "--config-dir", str(tmp_path), "--devices", "1", "--runs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "one device has no other to communicate with" in printed
    assert not any(kind in printed for kind in fit.KINDS)
    written = yaml.safe_load((tmp_path / "hardware" / "one.yaml").read_text())
    assert set(written) == {"name", "flops", "memory"}
    assert written["flops"]["float32"] > 0
    assert written["memory"]["bandwidth"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["../x"], "cannot name a file of hardware"),
        (["x", "--smallest", "2M", "--largest", "1M"], "is larger than the largest"),
        (["x", "--largest", "many"], "'many' is not a size"),
        (["x", "--devices", "0"], "not a number from 1 to 4096"),
        (["x", "--config-dir", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_invalid_measure_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.in_turn
def test_devices_that_are_not_here_are_one_message() -> None:
    wanted = MeasuringRequest(platform="tpu", devices=0, kinds=["all-reduce"], sizes=[64], dtypes=[], runs=1)
    with pytest.raises(NotMeasured, match=r"(?i)tpu"):
        list(measure(wanted))
