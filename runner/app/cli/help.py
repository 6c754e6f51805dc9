"""`--help` prints the usage, the subcommands, and the number of names in each config group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.app.cli.subcommands import SUBCOMMANDS
from runner.base.invocation import invocation
from runner.experiment.config.folders import experiments, options_of

_GROUPS = {
    "experiment": "what is computed, and how it is sharded",
    "mesh": "the axes of a device mesh and their sizes: mesh=x4_y2",
    "target": "the devices that programs are compiled for: target=gpu",
    "hardware": "speeds, for estimates of time: hardware=h100",
    "rules": "logical axis rules: rules=fsdp_tensor",
}
"""The config groups of an experiment, in the order in which users need them."""

_TEXT = """\
Shardproof runs a sharded JAX computation from one YAML file, checks every device's values, and explains collectives.

usage:
  {program}                         list the experiments
  {program} NAME [KEY=VALUE ...]    run one: an experiment's name, or a YAML file of yours
  {program} -m NAME KEY=A,B ...     run a sweep: every combination of the values
  {program} SUBCOMMAND --help

example:
  {program} case3_allreduce program=shard_map dims.J=8 mesh=x4_y2

subcommands:
{subcommands}

groups, of which KEY=NAME chooses a file; `{program} list GROUP` lists them:
{groups}

flags:
  --config-dir DIR    a folder of your own, which holds experiment/ (and mesh/, target/ ...)
  --cfg job           print the configuration instead of running it: every key that can be set
  --version           print the version
  --hydra-help        more flags, which are Hydra's
"""


def text(folders: Sequence[Path]) -> str:
    """Return the help, with the number of names in the config folders."""
    return _TEXT.format(
        program=invocation(),
        subcommands=_lines({name: each.summary for name, each in SUBCOMMANDS.items()}),
        groups=_lines({name: f"{_count(name, folders):>3}  {what}" for name, what in _GROUPS.items()}),
    ).rstrip()


def _lines(texts: dict[str, str]) -> str:
    width = max(map(len, texts))
    return "\n".join(f"  {name:{width}}  {text}" for name, text in texts.items())


def _count(group: str, folders: Sequence[Path]) -> int:
    if group == "experiment":
        return len({file.stem for folder in folders for file in experiments(folder)})
    return len(options_of(folders, group))
