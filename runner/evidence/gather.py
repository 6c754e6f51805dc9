"""What one program left in its run folder in; the evidence of what the compiler did out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.evidence import collectives, hlo, warnings
from runner.evidence.nodes import Origins
from runner.experiment import Experiment, program_section


def gather(experiment: Experiment, program: str, folder: Path, said: str | None) -> dict[str, Any]:
    """The `collectives`, `collectives_unknown` and `compiler_warnings` of a program's record.

    `said` is what the compiler wrote to standard error; None where nobody could hear it.
    """
    origins = Origins(experiment, program_section(program))
    text = (folder / f"hlo_{program}.txt").read_text(encoding="utf-8")
    heard = None if said is None else warnings.read(said, origins)
    if not text.strip():
        unknown = ["the backend does not show the compiled module"]
        return {"collectives": None, "collectives_unknown": unknown, "compiler_warnings": heard}
    try:
        found = collectives.read(hlo.read(text), origins, experiment.mesh)
    except Exception as error:
        # What a compiler of tomorrow prints must not end a run that is otherwise complete.
        unknown = [f"the module could not be read: {type(error).__name__}: {error}"]
        return {"collectives": None, "collectives_unknown": unknown, "compiler_warnings": heard}
    return {
        "collectives": found.found,
        "collectives_unknown": list(dict.fromkeys(found.unknown)),
        "compiler_warnings": heard,
    }
