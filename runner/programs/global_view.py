"""Writes the programs over whole arrays, `auto`, `constraint` and `explicit`: a jitted function each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.base.layout import Spec
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import absent_hardware, source, spelling, within
from runner.programs.lines import Lines
from runner.programs.types import InferredTypes, Repairs


def auto(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write `auto`: `jit` over sharded inputs; the compiler chooses everything else."""
    return _program(experiment, folder, Program.AUTO)


def constraint(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write `constraint`: `jit` with `with_sharding_constraint` on the experiment's constraints and outputs."""
    named = {name: spec for name, spec in experiment.outputs.items() if name not in experiment.probed}
    promised = {name: spec for name, spec in named.items() if experiment.promises(Program.CONSTRAINT, name)}
    return _program(experiment, folder, Program.CONSTRAINT, constraints=experiment.constrained, outputs=promised)


def explicit(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write `explicit`: sharding in types, with `types.repairs`: `out_sharding=` and `reshard` where these require it.

    On Auto axes of the mesh, layouts are constraints for the compiler.
    """
    # Reshards have already laid out the explicit axes.
    auto = experiment.mesh.auto
    # A constraint without an automatic axis would replicate along these axes.
    constraints = {path: spec.over(auto) for path, spec in experiment.constrained.items()} if auto else {}
    return _program(experiment, folder, Program.EXPLICIT, constraints=constraints, repairs=types.repairs)


def _program(
    experiment: Experiment,
    folder: Path,
    program: Program,
    *,
    constraints: Mapping[str, Spec] | None = None,
    outputs: Mapping[str, Spec] | None = None,
    repairs: Repairs | None = None,
) -> str:
    """Write the source of a program in the global view.

    `constraints` are the specs of intermediate values, `outputs` those of the outputs, `repairs` the changes that
    explicit sharding requires.
    """
    names = Identifiers(experiment)
    target = absent_hardware if experiment.target.topology else source
    forward = names.reserve("forward") if experiment.grad else names.function
    constraints, outputs, repairs = constraints or {}, outputs or {}, repairs or Repairs()
    lines = Lines(experiment, names, repairs)
    computed = lines.section(experiment.before("graph"), {**outputs, **constraints})
    passed = [names.add(name) for name in experiment.passed("graph") if name not in experiment.results]
    gradients = experiment.grad.names if experiment.grad else ()
    for name in gradients:
        names.add(name)
    laid_out = {
        name: spelling.constrained(names.add(name), spec)
        for name, spec in outputs.items()
        if constraints.get(name, spec) != spec or name in gradients
    }
    after = ""
    if gradients:
        update = experiment.after("graph")
        after = lines.section(update, {**outputs, **constraints}, after=True)
    laid_out |= {name: spelling.resharded(names.add(name), spec) for name, spec in repairs.returned.items()}
    mixed = program.typed and bool(experiment.mesh.auto)
    jit = _jit(experiment, _promised(experiment, program, every=repairs.constant or mixed))
    returned = source.returned(experiment.forward if gradients else experiment, names, laid_out, passed)
    inside = _in_mesh if repairs.makes else str
    after = after and inside(after)
    functions = [lines.definitions] if lines.definitions else []
    head = f"def {forward}({source.parameters(experiment, names)}):"
    if experiment.grad:
        body = "\n".join(
            [
                *functions,
                head,
                source.indent(inside(f"{computed}\nreturn {names[experiment.grad.of]}, {returned}"), 4),
                "",
                source.with_gradients(experiment, names, forward, laid_out, jit, passed=passed, after=after),
                "",
                f"return {names.function}",
            ]
        )
    else:
        whole = source.indent(inside(f"{computed}\nreturn {returned}"), 4)
        body = "\n".join([*functions, *jit, head, whole, "", f"return {forward}"])
    function = "def program(mesh):\n" + source.indent(body, 4)
    return source.module(
        source.header(experiment, program, names, body, mesh=True),
        target.inputs(experiment, names, folder),
        target.mesh_functions(experiment, program),
        within.SOURCE.rstrip() if within.DECORATOR in body else "",
        function,
        target.main(experiment, program),
    )


def _in_mesh(lines: str) -> str:
    """Put lines under the abstract mesh, so that the arrays they create have it."""
    return "with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):\n" + source.indent(lines, 4)


def _promised(experiment: Experiment, program: Program, *, every: bool) -> dict[str, Spec]:
    """The outputs whose layouts are told to `jit`: those that the caller asked for, or `every` one.

    Every one where no argument tells JAX the mesh, or where sharding types specify the layouts only in part.
    """
    held = () if program.places else experiment.imports.held
    named = [name for name in experiment.outputs if name not in experiment.probed]
    return {name: experiment.outputs[name] for name in named if every or name in held}


def _jit(experiment: Experiment, promised: Mapping[str, Spec]) -> list[str]:
    """The decorator of the jitted function."""
    lines: list[str] = []
    arguments: list[str] = []
    donated = [at for at, array in enumerate(experiment.arrays) if array.name in experiment.imports.donated]
    if promised:
        lines = [*spelling.out_shardings(promised.get(name) for name in experiment.outputs), ""]
        arguments.append("out_shardings=out_shardings")
    if donated:
        arguments.append(f"donate_argnums={spelling.tuple_of(list(map(str, donated)))}")
    return [*lines, f"@jax.jit({', '.join(arguments)})" if arguments else "@jax.jit"]
