"""Writes the file of a program's twin, and runs it on every device."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import ModuleType

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.language.lines import expressions
from runner.graph.source import SECTIONS
from runner.link.events import Compilation, Ran, Timing
from runner.programs.spelling import main_of
from runner.worker import calls, phases, ready, shared
from runner.worker.execute import leave

_WIDENING = Path(__file__).with_name("widening.py")
_MAIN = "\n\n\ndef main():\n"
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:e[+-]?\d+)?(?![\w.])")


def source(written: str, experiment: Experiment, program: Program) -> str:
    """The file of a program's twin: the program as it is written, and what widens it."""
    docstring, _, rest = written.removeprefix('"""').partition('"""\n')
    before = rest.partition(_MAIN)[0]
    title = docstring.partition("\n\n")[0]
    exact = [*dict.fromkeys([*numbers(experiment), *sorted(_numbers(written))])]
    return "\n".join(
        [
            f'"""{title}',
            "",
            f"The twin of program {program} in float64: the same program with every float widened, on simulated "
            "devices.",
            f"It runs alone: python twin_{program}.py",
            '"""',
            before.rstrip(),
            "",
            "# What follows widens the program.",
            "",
            _widening(),
            "",
            "",
            f"EXACT = {exact!r}",
            '"""The numbers in the lines of the experiment, before they were rounded."""',
            f"AS_READ = {bool(experiment.imports.functions)!r}",
            '"""Whether lines come from a function, whose numbers were rounded when it was read."""',
            "",
            "",
            _main(program),
            "",
        ]
    )


def _widening() -> str:
    """The text that widens a function, without its docstring and what only its first lines may import."""
    return _WIDENING.read_text(encoding="utf-8").partition("annotations\n\n")[2].rstrip()


def _main(program: Program) -> str:
    made = (
        ["mesh = make_mesh()", "arrays = jax.device_put(inputs(), shardings(mesh))"]
        if program.on_mesh
        else ["arrays = jax.device_put(split(*inputs()))"]
    )
    return main_of(
        [
            *made,
            f"function, arrays = widened(program({'mesh' if program.on_mesh else ''}), arrays, EXACT, as_read=AS_READ)",
            "for output in function(*arrays):",
            '    print(f"{output.dtype}{list(output.shape)}")',
            "    print(np.asarray(output))",
        ]
    )


def numbers(experiment: Experiment) -> list[float]:
    """The numbers in the lines of an experiment, with the digits that the oracle has."""
    # The text of functions in Python is not among the lines: what they compute was read from jaxprs.
    lines = (expression.text for section in SECTIONS for _, expression in expressions(experiment.computed(section)))
    return sorted(set[float]().union(*map(_numbers, lines)))


def _numbers(text: str) -> set[float]:
    """The numbers in a text."""
    return {float(number) for number in _NUMBER.findall(text)}


def take(experiment: Experiment, program: Program, module: ModuleType, arrays: Path) -> Ran:
    """Run the twin of a program; leave what it computes in `arrays`."""
    phases.tell(f"the twin of {program} in float64 was compiled and run", "XLA is compiling the twin in float64")
    start = time.perf_counter()
    prepared = ready.placed(experiment, program, module)
    device_ids = ready.device_ids(experiment, prepared.mesh)
    exact = {"exact": module.EXACT, "as_read": module.AS_READ}
    in_float64, wide = module.widened(prepared.function, prepared.operands, **exact)
    compiled, kept = shared.of_lowered(in_float64.lowered(*wide), device_ids)
    compiled_at = time.perf_counter()
    with calls.enable_x64(True):
        outputs = calls.block_until_ready(compiled(*wide))
    described = leave(experiment, program, outputs, arrays)
    timing = Timing(place_s=None, compile_s=compiled_at - start, run_s=None, shared=kept)
    return Ran(
        device_ids=device_ids,
        outputs=described,
        operands={},
        stderr=None,
        compilation=Compilation(memory=None, cost=None, timing=timing),
    )
