"""Finds the subcommand that a command line names, its module, and its help.

It is imported first of all, so it imports next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from runner.base.invocation import invocation

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence


class Subcommand(NamedTuple):
    """A subcommand: a summary, a description, example arguments, and its exit statuses."""

    summary: str
    description: str
    example: str
    statuses: str

    experiment: bool = False
    """Whether it takes an experiment and overrides, as a run does, and has no flags of its own."""


SUBCOMMANDS = {
    "compare": Subcommand(
        "what differs between two runs, sweeps, goldens or compiled modules",
        "Print what differs between run folders, sweeps, result.json files, or goldens (files or folders): "
        "between the first and each of the others. Or between two compiled modules, as explain takes them.",
        "outputs/mine/2026-11-21_01-30-43 outputs/mine/2026-11-22_09-12-01",
        "0 nothing differs, 1 something does, 2 they cannot be compared",
    ),
    "explain": Subcommand(
        "what a module that was compiled elsewhere communicates, computes and needs",
        "Print the collectives of a compiled module with the source lines that cause them, what a device sends, "
        "computes and holds. The module is a text that XLA dumps (…after_optimizations.txt) or compiled.as_text() "
        "returns, a .hlo.pb, or one of a folder of --xla_dump_to. No devices are needed, and nothing is run.",
        "xla_dump --module jit_step --hardware v5p",
        "0 explained, 2 bad input, 3 a file cannot be written",
    ),
    "derive": Subcommand(
        "the per_device lines that a graph and its specs determine",
        "Print the per_device that a graph and its specs determine, to be pasted, and what a device sends in it. "
        "Nothing is compiled or run.",
        "case3_allreduce arrays.A.spec=[x,null]",
        "0 there are lines, 2 bad input, or a graph from which none can be derived, 3 an error",
        experiment=True,
    ),
    "mutate": Subcommand(
        "which mistakes in an experiment its checks would notice",
        "Break an experiment in every way that people break one, one edit at a time, and print which of its checks "
        "notice. Nothing is compiled.",
        "case3_allreduce",
        "0 every mutant is noticed, refused or equivalent, 1 one survives, 2 bad input, 3 an error",
        experiment=True,
    ),
    "plan": Subcommand(
        "layouts that send the fewest bytes, or take the least time or memory",
        "Find the layouts of what is `auto`: those with which a device sends the fewest bytes, or the program takes "
        "the least time or memory (plan.least). The best are compiled and verified. plan --compare A B says how "
        "the plans of two run folders differ; -o FILE draws it on a page.",
        "case3_allreduce per_device=null expect=null arrays.A.spec=auto",
        "0 the plan passes its checks, 1 one failed, 2 bad input, 3 an error",
        experiment=True,
    ),
    "report": Subcommand(
        "an HTML page of a run, of a sweep, or of several",
        "Write report.html of a run folder, of a sweep and its points, or of several of them together. "
        "It is made of the records alone, so no devices are needed.",
        "outputs/case3_allreduce/2026-11-22_09-12-01",
        "0 written, 2 bad input, 3 it cannot be written",
    ),
    "runs": Subcommand(
        "list, filter and delete runs and sweeps",
        "List the runs and sweeps in a folder, the oldest first; with --delete, delete what is listed. "
        "A folder with files that its manifest.json does not list stays.",
        "--experiment 'case*' --status failed --newer 7d",
        "0 done, 1 something was not deleted, 2 bad input",
    ),
    "measure": Subcommand(
        "time collectives on the devices here, for estimates",
        "Time collectives, products and copies on the devices here, and write them into a hardware file. "
        "The columns are those of nccl-tests.",
        "here --platform gpu --largest 256M",
        "0 written, 2 bad input, 3 the devices cannot be used",
    ),
    "editor": Subcommand(
        "completion and checks of YAML files in an editor",
        "Write the JSON Schema of experiments into a config folder, and refer to it from each experiment.",
        "my_conf",
        "0 done, 2 bad input; an experiment that cannot be read is left as it is",
    ),
    "list": Subcommand(
        "the names in a group: experiments, meshes, targets …",
        "List the names in a config group, with what their files say; without a group, the experiments.",
        "mesh",
        "0 listed, 2 there is no such group",
    ),
}
"""The subcommands `python -m runner NAME` by name; each runs `main` of `runner.app.cli.NAME`."""


def chosen(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the module whose `main` runs a command line, and the arguments for it.

    `help`, `version` and `run` are what other commands call `--help`, `--version` and no subcommand.
    """
    name = arguments[0] if arguments else ""
    if name in ("help", "version"):
        return chosen([*arguments[1:], f"--{name}"])
    if name == "run":
        return chosen(arguments[1:])
    if name in SUBCOMMANDS:
        return f"runner.app.cli.{name}", list(arguments[1:])
    return "runner.app.cli.app", list(arguments)


def parser(name: str) -> ArgumentParser:
    """Return the parser of a subcommand: its help has an example and the exit statuses, its errors the example."""
    import argparse
    import textwrap

    from runner.app.cli.arguments import Parser

    subcommand, prog = SUBCOMMANDS[name], f"{invocation()} {name}"
    parser = Parser(
        f"{prog} {subcommand.example}",
        prog=prog,
        description=textwrap.fill(subcommand.description, 100),
        epilog=f"example:\n  {prog} {subcommand.example}\n\nexit status: {subcommand.statuses}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if subcommand.experiment:
        parser.add_argument("experiment", metavar="NAME", help="an experiment's name, or its YAML file")
        parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="as for a run: dims.J=8 mesh=x4_y2")
        parser.add_argument("--config-dir", metavar="DIR", help="a folder of your own, which holds experiment/")
    return parser
