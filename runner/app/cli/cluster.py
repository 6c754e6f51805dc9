"""Decides whether this process owns a run of which a cluster started every process, or lends its devices.

The other processes lend their devices to the first one, and print only errors of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.faults import Fault, InvalidExperiment
from runner.experiment import data
from runner.experiment.config.compose import InvalidConfiguration, resolved, sources_of
from runner.experiment.reader import read
from runner.link import cluster
from runner.link.workers import Workers

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.app.cli.jobs import CommandLine
    from runner.experiment.config.compose import Configuration

_TIMEOUT = 600.0
"""Seconds that the processes wait for each other if the experiment has no `timeout`."""


def joined(command: CommandLine, config: DictConfig) -> bool:
    """Join the processes of the cluster; return whether this process owns the run.

    If it does, `config` then has the number of processes. Raises `InvalidConfiguration`.
    """
    configuration = _of_task(config)
    sources = configuration.sources
    if not command.runs_experiments:
        message = "only a run can use a cluster, and this command runs nothing"
        raise InvalidConfiguration(sources.report(Fault(("target", "cluster"), message)))
    timeout: float = configuration.plain["timeout"]
    timeout = timeout if timeout > 0 else _TIMEOUT
    # The worker that was started already is not a member of the cluster.
    command.use(Workers())
    try:
        member = cluster.called(timeout)
        if member.count == 1:
            member.worker.close()
            config.target.cluster = False
            return True
        asked = configuration.plain["target"]["processes"]
        if asked not in (1, member.count):
            member.worker.close()
            message = f"the cluster started {member.count} processes, not {asked}"
            raise InvalidExperiment(Fault(("target", "processes"), message))
        if member.number == 0:
            _own(command, config, member, configuration.plain, timeout)
            return True
        command.lent = _lend(member, configuration, timeout, _beside(config))
    except InvalidExperiment as error:
        raise InvalidConfiguration(sources.report(error.fault)) from None
    except cluster.Unlike as error:
        raise InvalidConfiguration(sources.report(Fault(("target", "cluster"), str(error)))) from None
    except cluster.Unmet as error:
        print(error, file=sys.stderr)
        command.lent = error.status
    return False


def _beside(config: DictConfig) -> Path:
    """Return the parent of the run folder, which processes on a shared file system have in common."""
    return Path(config.hydra.run.dir).absolute().parent


def _lend(member: cluster.Member, configuration: Configuration, timeout: float, folder: Path) -> int:
    """Lend this process's devices to the first one; return the common exit status."""
    from runner.link import lending

    def data_folder(definition: Mapping[str, Any]) -> Path:
        return data.folder(read(definition), configuration.sources)

    return lending.lend(member, configuration.plain, timeout, folder, data_folder)


def _of_task(config: DictConfig) -> Configuration:
    """Return the configuration without Hydra's settings."""
    from omegaconf import open_dict

    task = config.copy()
    with open_dict(task):
        del task["hydra"]
    return resolved(task, sources_of(config.hydra))


def _own(
    command: CommandLine, config: DictConfig, member: cluster.Member, plain: Mapping[str, Any], timeout: float
) -> None:
    owner = cluster.Owner(member, plain, timeout, _beside(config))
    command.owner = owner
    command.use(Workers(start_together=owner.together, of_cluster=True))
    config.target.processes = member.count
