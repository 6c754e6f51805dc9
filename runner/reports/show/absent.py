"""Says which checks ran, and on what, for programs that were compiled for absent hardware."""

from __future__ import annotations

from runner.link.events import Devices
from runner.reports.record.model import Record
from runner.reports.record.verdicts import NotRun
from runner.reports.show.console import say


def show(record: Record, target: Devices) -> None:
    """Print which checks ran, and on what, for a target that is not here."""
    if target.device_order:
        reason = target.device_order_reason
        say(f"device order: {target.device_order}" + (f", since {reason}" if reason else ""))
    verified = record.verification
    if verified:
        dims = ", ".join(f"{name}={size}" for name, size in verified.dims.items())
        count = verified.target.devices
        say(f"only compiled; values, replicas and agreement are those at {dims} on {count} simulated CPU devices")
    else:
        reasons = [check.reason for p in record.programs.values() for check in p.checks if check.status == "not_run"]
        if reasons:
            say(f"values, replicas and agreement were not checked: {reasons[0]}")
    sections = record.checks.sections
    if isinstance(sections, NotRun):
        say(f"sections was not run: {sections.reason}")
    elif sections is not None and not verified:
        at = ", ".join(f"{name}={size}" for name, size in (sections.dims or {}).items())
        say(f"graph and per_device were compared at {at or 'their own sizes'}, without a device")
