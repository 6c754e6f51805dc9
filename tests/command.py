"""How the tests run the command: as a whole process, from the checkout, warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))


def run_command(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `python -m runner` with `arguments` from `folder`."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "runner", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
