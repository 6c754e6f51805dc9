"""Reads what the compiler did from the files that one program left in its run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from runner.compiled.evidence import collectives, compiler_warnings, hlo
from runner.compiled.evidence.model import Evidence, Gathered
from runner.compiled.evidence.nodes import Origins
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.sharding.propagation import Reshard

if TYPE_CHECKING:
    from runner.compiled.evidence import planes
    from runner.compiled.evidence.narrow import NarrowFloats


def gather(
    experiment: Experiment,
    program: Program,
    folder: Path,
    messages: str | None,
    unreadable: str | None = None,
    taken: planes.Profile | None = None,
    reshards: Mapping[str, Reshard] | None = None,
    device_ids: Sequence[int] = (),
    narrow_lines: Mapping[str, NarrowFloats] = MappingProxyType({}),
) -> Gathered:
    """Return the evidence of one program, with its profile if one was `taken`, and its work if time is estimated.

    - `messages`: the compiler's output on standard error; None if it was not captured.
    - `unreadable`: why the module could not be printed; None if it could.
    - `reshards`: the ways around rematerializations, by the text of the compiler's warning.
    - `device_ids`: the ids of the devices in the mesh, in its order.
    - `narrow_lines`: the lines whose floats have fewer bits in the file than in the module.
    """
    origins = Origins(experiment, program.lines)
    text = (folder / f"hlo_{program}.txt").read_text(encoding="utf-8")
    module, listed = hlo.Module(), None
    if text.strip():
        try:
            module = hlo.read(text)
            communication = collectives.read(module, origins, experiment.mesh, device_ids)
            listed = communication.entries
        except Exception as error:
            # A future compiler's output must not end a run that is otherwise complete.
            communication = _nothing(f"the module could not be read: {type(error).__name__}: {error}")
    else:
        why = f": {unreadable}" if unreadable else ""
        communication = _nothing(f"the backend does not show the compiled module{why}")
    heard = None if messages is None else compiler_warnings.read(messages, origins, module.stack_frames)
    heard = heard and [replace(warning, reshard=(reshards or {}).get(warning.text)) for warning in heard]
    # Few runs are profiled or estimated.
    measured, work_of = None, None
    if taken:
        from runner.compiled.evidence import profile

        measured = profile.read(taken, module, origins, communication)
    if experiment.hardware and program.on_mesh:
        from runner.compiled.evidence import work

        work_of = work.read(module, origins, narrow_lines)
    evidence = Evidence(
        collectives=listed,
        collectives_unknown=list(dict.fromkeys(communication.unknown)),
        collectives_missing=list(dict.fromkeys(communication.missing)),
        compiler_warnings=heard,
        profile=measured,
    )
    return Gathered(evidence, work_of)


def _nothing(why: str) -> collectives.Collectives:
    return collectives.Collectives(unknown=[why], missing=[why])
