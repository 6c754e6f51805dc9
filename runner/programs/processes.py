"""Writes the parts of programs whose devices belong to several JAX processes.

Each process runs the same program and creates the shards of its own devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.experiment.model import Experiment

CONFIGURATION = 'jax.config.update("jax_cpu_collectives_implementation", "gloo")'
"""The line by which CPU devices of several processes can communicate."""

_PLACE = '''def place(arrays, shardings):
    """The arrays on the mesh; each process makes of them what its own devices have."""
    return tuple(
        jax.make_array_from_callback(array.shape, sharding, lambda index, array=array: array[index])
        for array, sharding in zip(arrays, shardings, strict=True)
    )'''
"""A program's replacement for `jax.device_put`, which would send whole arrays between processes to compare them."""

_ADDRESS = "localhost:8476"
"""The address at which the processes meet if a program is run by hand."""


def use(experiment: Experiment, file: str) -> str:
    """The command that runs a program's file by hand, for its docstring."""
    if experiment.target.cluster:
        count = experiment.target.processes
        return f"It runs alone, in {count} processes that a cluster starts at once:\nsrun -n {count} python {file}"
    last = experiment.target.processes - 1
    numbered = f"python {file} {{}}"
    between = ", …, " if last > 1 else " and "
    return f"It runs alone, in {last + 1} processes at once:\n{numbered.format(0)}{between}{numbered.format(last)}"


def library(experiment: Experiment) -> str | None:
    """The import with which a program gets its process number if there is no cluster manager."""
    return "sys" if experiment.target.processes > 1 and not experiment.target.cluster else None


def main(experiment: Experiment, shown: Sequence[str], first: Sequence[str] = ()) -> str:
    """Write `place`, and the function that runs the program in one process.

    `shown` are the lines that print the outputs' shards of the process; `first` are those before the program runs.
    """
    count = experiment.target.processes
    # By default JAX's coordinator listens on every interface.
    here = [
        f'address = "{_ADDRESS}"',
        "jax.distributed.initialize(",
        f"    address, num_processes={count}, process_id=int(sys.argv[1]), coordinator_bind_address=address",
        ")",
    ]
    lines = [
        *first,
        *(["jax.distributed.initialize()"] if experiment.target.cluster else here),
        "mesh = make_mesh()",
        "arrays = place(inputs(), shardings(mesh))",
        *shown,
    ]
    return "\n".join(
        [
            _PLACE,
            "",
            "",
            "def main():",
            *(f"    {line}" for line in lines),
            "",
            "",
            'if __name__ == "__main__":',
            "    main()",
        ]
    )
