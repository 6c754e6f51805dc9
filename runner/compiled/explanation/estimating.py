"""Estimates the least time of a module that was read on named hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from runner.base.faults import BadInput, InvalidExperiment, nearest
from runner.base.layout import Mesh
from runner.base.untyped import is_dict
from runner.compiled.estimate.estimate import estimate
from runner.compiled.explanation import meshes
from runner.compiled.explanation.model import Explanation
from runner.compiled.explanation.modules import ReadModule
from runner.experiment import hardware
from runner.experiment.config import files, schema
from runner.experiment.config.folders import conf_folder
from runner.experiment.hardware import Hardware

_HERE = (
    ("v5e", "tpu v5 lite", "tpu v5e", "tpu v5litepod"), ("v5p", "tpu v5p", "tpu v5"), ("v4", "tpu v4"),
    ("v6e", "tpu v6 lite", "tpu v6e"), ("tpu7x", "tpu7x", "tpu v7x"), ("a100", "nvidia a100"), ("h100", "nvidia h100"),
    ("h200", "nvidia h200"), ("b200", "nvidia b200"),
)  # fmt: skip
"""The hardware files of devices, by the beginnings of JAX's names for their kinds."""


class InvalidHardware(BadInput, ValueError):
    """There is no such hardware, or the mesh does not fit onto it; the message says why."""


def hardware_of(device: str | None) -> str | None:
    """The name of the hardware file of a kind of device; None if there is none."""
    kind = (device or "").lower()
    return next((name for name, *starts in _HERE if any(map(kind.startswith, starts))), None)


def estimated(
    taken: ReadModule, name: str, coordinates: Sequence[tuple[int, ...]] | None = None, folder: Path | None = None
) -> Explanation:
    """The explanation with the estimate for a hardware file, from `folder` or among those that come with the runner.

    - `coordinates`: those of the devices, in the mesh's order, if they are known.

    Raises `InvalidHardware`.
    """
    explanation = taken.explanation
    mesh = meshes.layout_mesh(explanation.mesh, explanation.partitions)
    if taken.work is None:
        return explanation
    hardware = _hardware(name, mesh, coordinates, folder)
    notes: list[str] = []
    if explanation.platform not in (None, hardware.platform):
        notes.append(f"compiled for {explanation.platform}: here the compiler may fuse and overlap differently")
    least = estimate(
        hardware,
        mesh,
        taken.work,
        taken.communication.entries,
        coordinates=coordinates,
        needed_bytes=explanation.memory and explanation.memory.peak,
        compiled_for=explanation.device,
        notes=notes,
    )
    return replace(explanation, estimate=least)


def _hardware(name: str, mesh: Mesh, coordinates: Sequence[tuple[int, ...]] | None, folder: Path | None) -> Hardware:
    """The hardware of a file, with the shape of the torus that the coordinates or the mesh have."""
    homes = [conf_folder(), *([folder] if folder else [])]
    there = {file.stem: file for home in homes for file in sorted((home / "hardware").glob("*.yaml"))}
    if name not in there:
        hint = nearest(name, there) or f"; there are {', '.join(sorted(there))}"
        raise InvalidHardware(f"there is no hardware '{name}'{hint}")
    try:
        config: Any = files.load(there[name].read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidHardware(f"{there[name]}: {str(error).splitlines()[0]}") from None
    if not is_dict(config):
        raise InvalidHardware(f"{there[name]}: it has no keys")
    shape = tuple(max(sizes) + 1 for sizes in list(zip(*coordinates, strict=True))[1:-1]) if coordinates else None
    try:
        read = hardware.read(schema.completed(config, schema.HardwareConfig), mesh, shape or None)
    except InvalidExperiment as error:
        raise InvalidHardware(f"{name}: {error.fault.message}") from None
    if read is None:
        raise InvalidHardware(f"{there[name]}: it has no name")
    return read
