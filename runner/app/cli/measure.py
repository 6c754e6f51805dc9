"""`python -m runner measure NAME` times collectives on the local devices and writes a hardware file."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from runner.app.cli import subcommands
from runner.base.words import bytes_text, shown, time_text
from runner.compiled.estimate import fit
from runner.experiment.forms import PLATFORMS
from runner.link.measures import MeasuredRun, MeasuringRequest, NotMeasured, measure
from runner.reports.record import writing
from runner.reports.show.console import print_table, say
from runner.reports.show.table import Table

_SIZES = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3}
_STEP = 4
"""The factor between two sizes."""

_HEAD = ("collective", "size", "time", "algbw", "busbw")


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if the file is written, 2 for bad input, 3 for unusable devices."""
    parser = subcommands.parser("measure")
    parser.add_argument("name", metavar="NAME", help="the name of the file hardware/NAME.yaml, for hardware=NAME")
    parser.add_argument("--config-dir", type=Path, default=Path("conf"), help="where hardware/ is (conf)")
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu", help="cpu: devices are simulated (cpu)")
    parser.add_argument("--devices", type=_count, default=0, help="how many devices (8 of cpu, else all that are here)")
    parser.add_argument("--smallest", type=_size, default=_size("1k"), help="bytes of the smallest collective (1k)")
    parser.add_argument("--largest", type=_size, default=_size("16M"), help="bytes of the largest one (16M)")
    parser.add_argument(
        "--runs", type=_count, default=20, help="how many times each is timed; the median is taken (20)"
    )
    options = parser.parse_args(list(arguments))
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", options.name):
        parser.error(f"{options.name!r} cannot name a file of hardware; use letters, digits and '_'")
    if options.smallest > options.largest:
        parser.error(
            f"the smallest collective, {options.smallest} bytes, is larger than the largest, {options.largest}"
        )
    if not options.config_dir.is_dir():
        parser.error(
            f"there is no folder {options.config_dir} for the file; make it, or name another with --config-dir"
        )
    devices = options.devices or (8 if options.platform == "cpu" else 0)
    sizes = [options.smallest]
    while sizes[-1] * _STEP < options.largest:
        sizes.append(sizes[-1] * _STEP)
    sizes += [options.largest] if sizes[-1] < options.largest else []
    wanted = MeasuringRequest(
        platform=options.platform, devices=devices, kinds=list(fit.KINDS), sizes=sizes, dtypes=["float32", "bfloat16"],
        runs=options.runs,
    )  # fmt: skip
    try:
        measures = list(measure(wanted))
    except NotMeasured as error:
        print(f"the devices cannot be used: {error}", file=sys.stderr)
        return 3
    _report(measures)
    file = options.config_dir / "hardware" / f"{options.name}.yaml"
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("jax", "jaxlib"))
    try:
        file.parent.mkdir(exist_ok=True)
        writing.write_text(file, fit.document(fit.fit(measures), options.name, f"{datetime.date.today()}", versions))
    except OSError as error:
        print(f"{shown(file)}\n  {error.strerror}", file=sys.stderr)
        return 3
    say(f"\n{shown(file)}: hardware={options.name} estimates for it")
    return 0


def _report(measures: Sequence[MeasuredRun]) -> None:
    first = measures[0]
    say(f"{first.devices} × {first.device}; an empty program takes {time_text(first.seconds)}", "bold")
    rows = [
        (
            timing.kind,
            bytes_text(timing.bytes),
            time_text(timing.seconds),
            _rate(fit.algbw(timing)),
            _rate(fit.busbw(timing)),
        )
        for timing in measures
        if timing.kind in fit.KINDS
    ]
    if rows:
        print_table(Table(_HEAD, rows))
        say()
    else:
        say("one device has no other to communicate with: its products and its memory are measured")
    for timing in measures:
        if timing.kind == "product":
            say(f"products of {timing.dtype}: {timing.bytes / timing.seconds:.3g} operations a second on each device")
        elif timing.kind == "copy":
            say(f"memory: {_rate(timing.bytes / timing.seconds)} on each device")


def _rate(rate: float) -> str:
    return f"{bytes_text(round(rate))}/s"


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kMG]?)(?:i?B)?", text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 1k, 16M, 1G or a number of bytes")
    return int(match[1]) * _SIZES[match[2]]


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 4096")
    return int(text)
