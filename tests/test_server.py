"""The tests' own way to run a command line: a fork of a process that has imported everything."""

from __future__ import annotations

from pathlib import Path

from tests.server import command

RUN = ("+experiment=case3_allreduce", "program=shard_map", "show=none", "hydra.run.dir=out")


def test_a_worker_is_a_fork_that_has_imported_jax(tmp_path: Path) -> None:
    # A new process would take a second of computing for its imports, in each of hundreds of command lines.
    done = command(tmp_path, *RUN)
    assert (done.returncode, done.jax, done.forked) == (0, False, True), done.stderr


def test_a_variable_of_jax_is_read_by_a_new_worker(tmp_path: Path) -> None:
    done = command(tmp_path, *RUN, JAX_ENABLE_X64="maybe")
    assert (done.returncode, done.forked) == (3, False), done.stderr
