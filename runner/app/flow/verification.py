"""Merges the record of programs compiled for absent hardware with that of a run at `verify_dims`.

Nothing runs on hardware that is not here. If the experiment names smaller sizes, the same programs run at these on
simulated CPU devices, and the checks of that run are in the record with the sizes beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from runner.base.faults import InvalidExperiment, key_text
from runner.checks import registry
from runner.experiment.model import Experiment
from runner.reports.record import record as records
from runner.reports.record.model import ProgramRecord, Record, Verification
from runner.reports.record.verdicts import Checks, FileChecks, NotRun, Verdict

SIMULATED = 512
"""The largest number of simulated devices: JAX's collectives between CPU devices were tried with no more."""

FOLDER = "verification"
"""The folder of the verification's programs within the run folder."""

_OF_RESULTS = ("values", "sections", "weak", "wrong")
"""The keys of `expect` about results."""


def smaller(experiment: Experiment, at: Callable[..., Experiment] | None = None) -> Experiment | str:
    """The experiment at `verify_dims` on simulated devices, or why there is no verification.

    `at` gives it at other sizes, by default `experiment.at`.

    Raises `InvalidExperiment` for `verify_dims` at which the experiment is invalid.
    """
    if not experiment.verify_dims:
        return "verify_dims names no sizes to run it at"
    if experiment.mesh.size > SIMULATED and experiment.on_mesh:
        return f"the mesh has {experiment.mesh.size} devices, and at most {SIMULATED} are simulated"
    try:
        return (at or experiment.at)(
            dims=experiment.verify_dims, target={"platform": "cpu"}, **only_results(experiment)
        )
    except InvalidExperiment as error:
        raise located(error, experiment) from None


def only_results(experiment: Experiment) -> dict[str, Any]:
    """The changes to an experiment of which only the results matter, at other sizes or on other devices."""
    expected: Mapping[str, Any] = experiment.definition["expect"]
    return {
        "verify_dims": {},
        # The other expectations are about the whole sizes and the absent hardware.
        "expect": {name: expected.get(name) for name in _OF_RESULTS},
        # The time on simulated devices at other sizes is of no use.
        "profile": False,
        "hardware": {},
    }


def located(error: InvalidExperiment, experiment: Experiment) -> InvalidExperiment:
    """The error of a verification, located at `verify_dims`."""
    fault = error.fault
    message = f"at {sizes(experiment.verify_dims)}, {key_text(fault.key)}: {fault.message}"
    return InvalidExperiment(replace(fault, key=("verify_dims",), message=message))


def overrides(dims: Mapping[str, int]) -> list[str]:
    """The overrides for these sizes: `dims.M=512`."""
    return [f"dims.{name}={size}" for name, size in dims.items()]


def sizes(dims: Mapping[str, int]) -> str:
    """`M=512, K=64`."""
    return ", ".join(f"{name}={size}" for name, size in dims.items())


def not_run(record: Record, reason: str) -> None:
    """Record in every check that needs results why it was not run."""
    for name, program in record.programs.items():
        checks = program.checks.but(**_because(program.checks, registry.of_values(), reason))
        record.programs[name] = replace(program, checks=checks)


def _because(checks: FileChecks | Checks, names: Collection[str], reason: str) -> dict[str, Verdict]:
    return {name: replace(check, reason=f"{check.reason}; {reason}") for name, check in checks.named() if name in names}


def adopt(record: Record, verified: Record, dims: Mapping[str, int]) -> None:
    """Add the checks of a verification to the record of the compiled programs."""
    at = f"at {sizes(dims)}"
    assert verified.target is not None
    record.verification = Verification(dims=dict(dims), target=verified.target, status=verified.status, folder=FOLDER)
    record.warnings += [f"{at}: {warning}" for warning in verified.warnings]
    if verified.trace is not None:
        record.trace = replace(verified.trace, dims=dict(dims))
    if verified.checks.sections is not None:
        record.checks = verified.checks.but(sections=replace(verified.checks.sections, dims=dict(dims)))
    for name, program in record.programs.items():
        verified_program = verified.programs.get(name)
        error = program.error
        if verified_program is None:
            reason = verified.not_supported.get(name) or verified.error or "it did not run"
            checks = _without_results(program, reason)
        elif verified_program.error is not None:
            error = error or f"{at}, on simulated CPU devices: {verified_program.error}"
            checks = _without_results(program, "it failed")
        else:
            checks = {
                check: verdict for check, verdict in verified_program.checks.named() if check in registry.of_values()
            }
        record.programs[name] = replace(
            program,
            error=error,
            checks=program.checks.but(**_at(dims, checks)),
            status=records.worst([program.status, verified_program.status if verified_program else "passed"]),
        )
    for name, verified_program in verified.programs.items():
        if name not in record.programs:
            checks = Checks(**_at(dims, dict(verified_program.checks.named())))
            record.programs[name] = ProgramRecord(
                status=verified_program.status, error=verified_program.error, checks=checks
            )
    if verified.status == "error" and verified.error:
        record.error = f"{at}, on simulated CPU devices: {verified.error}"
    record.status = records.worst([record.status, verified.status])


def _without_results(program: ProgramRecord, reason: str) -> dict[str, Verdict]:
    return {check: NotRun(reason=reason) for check, _ in program.checks.named() if check in registry.of_values()}


def _at(dims: Mapping[str, int], checks: Mapping[str, Verdict]) -> dict[str, Any]:
    """The checks of the verification in the record of the whole run, with the sizes beside them."""
    bound = {kind.name: kind.own_dims for kind in registry.kinds() if kind.own_dims is not None}
    verdicts = {name: NotRun(reason=bound[name]) if name in bound else verdict for name, verdict in checks.items()}
    return {name: replace(verdict, dims=dict(dims)) for name, verdict in verdicts.items()}
