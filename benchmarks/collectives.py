"""The time to read a module's communication, against the time to compile the module.

    python benchmarks/collectives.py [--count 2000] [--devices 8]

Runs an experiment with an unrolled loop of `--count` collective-permutes on `--devices` simulated devices, and reads
its compiled module again; exits with 1 if the reader takes longer than the compiler.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from runner.compiled.evidence.gather import gather
from runner.experiment.config.schema import ExperimentConfig
from runner.experiment.program import Program
from runner.experiment.reader import read

ROOT = Path(__file__).parent.parent
LIMIT = 1.0
"""The largest allowed time of the reader, as a multiple of the compiler's."""

EXPERIMENT = """
name: collectives
mesh: {{axes: [x], shape: [{devices}]}}
arrays:
  A: {{shape: [{devices}, 8], spec: [x, null]}}
per_device:
  ring:
    repeat: {count}
    carry: {{h: A}}
    body:
      h: tanh(ppermute(h, 'x', shift=1))
outputs:
  ring.h: [x, null]
program: shard_map
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--devices", type=int, default=8)
    given = parser.parse_args()
    text = EXPERIMENT.format(count=given.count, devices=given.devices)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiling = _compile(text, folder)
        size = (folder / "run" / "hlo_shard_map.txt").stat().st_size
        plain = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(ExperimentConfig), yaml.safe_load(text)))
        assert isinstance(plain, dict)
        experiment = read({str(key): value for key, value in plain.items()})
        start = time.perf_counter()
        evidence = gather(experiment, Program.SHARD_MAP, folder / "run", "").evidence
        reading = time.perf_counter() - start
    count = len(evidence.collectives or ())
    if count != given.count or evidence.collectives_unknown:
        raise SystemExit(f"{count} of {given.count} collectives were read; {evidence.collectives_unknown}")
    print(f"{count} collectives in {size / 1e6:.1f} MB of text")
    print(f"{'compiled in':<12} {compiling:>6.2f}s")
    print(f"{'read in':<12} {reading:>6.2f}s   ratio {reading / compiling:.2f}, at most {LIMIT:.1f}")
    return int(reading > LIMIT * compiling)


def _compile(text: str, folder: Path) -> float:
    """Run the experiment; return the seconds of its compilation."""
    (folder / "experiment").mkdir()
    (folder / "experiment" / "collectives.yaml").write_text(f"# @package _global_\n{text}", encoding="utf-8")
    command = [sys.executable, "-m", "runner", "--config-dir", str(folder), "+experiment=collectives"]
    command.append(f"hydra.run.dir={folder}/run")
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    record = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    return record["programs"]["shard_map"]["timing"]["compile_s"]


if __name__ == "__main__":
    sys.exit(main())
