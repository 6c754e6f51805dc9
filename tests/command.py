"""Runs the command for tests: from the checkout, with warnings as errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import quick
from tests.server import Done, command

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
REFUSED = [n for n in EXPERIMENTS if "\n  invalid: " in (ROOT / "conf" / "experiment" / f"{n}.yaml").read_text("utf-8")]
"""The experiments that expect a refusal: none of their programs runs."""
LARGE = [n for n in EXPERIMENTS if (n.startswith("collective_") and "matmul" in n) or n == "matrix_layouts"]
"""The notebook's matmuls at 16384×1024×2048 (`benchmarks/large.py` runs them as they are), and MinText's matrix."""
SMALLER = ("++dims.M=1024", "++dims.K=64", "++dims.N=128")


def run_command(*arguments: str, folder: Path = ROOT, **environment: str) -> Done:
    """Run `python -m runner` with `arguments` from `folder`, except for the start and the exit of Python."""
    return command(folder, *arguments, limit=600, **environment)


def run_whole(*arguments: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process, with `environment` variables added to this one's.

    It compiles as users do, also where the session's other processes leave LLVM's optimization out.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in quick.ENVIRONMENT}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "runner", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
    )


def errors(stderr: str) -> str:
    """Return standard error without the lines of progress, `mine: the types, 10 s`, that a loaded machine adds."""
    return re.sub(r"^.+: .+, \d+ s\n", "", stderr, flags=re.MULTILINE)


def alone(folder: Path, *arguments: str) -> str:
    """Return what Python prints where neither the runner nor, for a script, the current folder is importable."""
    result = subprocess.run(
        [sys.executable, "-I", "-W", "error", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def recorded(folder: Path) -> Any:
    """Return the contents of `result.json` of a run folder, as any tool reads it."""
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))
