"""Takes an experiment that calls a user's function; returns it with some of the function's results alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from runner.base import codec
from runner.base.lazy import dataclass
from runner.experiment import imported
from runner.experiment.imported import Imported
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLines
from runner.experiment.written import targets


@dataclass(frozen=True)
class _Call:
    """A call of a traced function: the function's name, and its arguments, each for a parameter of its `lines`."""

    function: str
    arguments: tuple[str, ...]
    lines: TracedLines

    @classmethod
    def of(cls, text: str, functions: dict[str, Imported]) -> _Call:
        """Read the text of a call, as the reader of functions writes it."""
        function, _, arguments = text.removesuffix(")").partition("(")
        return cls(function, tuple(arguments.split(", ")) if arguments else (), functions[function].lines)

    @property
    def read(self) -> frozenset[str]:
        """The arguments that its lines read, or that are results."""
        names = frozenset(self.lines.results).union(*(line.names for line in self.lines.lines))
        given = zip(self.lines.parameters, self.arguments, strict=True)
        return frozenset(argument for parameter, argument in given if parameter in names)

    def without(self, arguments: Collection[str]) -> _Call:
        """The call of the function without the parameters that have these arguments."""
        kept = [at for at, argument in enumerate(self.arguments) if argument not in arguments]
        parameters = tuple(self.lines.parameters[at] for at in kept)
        return replace(
            self, arguments=tuple(self.arguments[at] for at in kept), lines=replace(self.lines, parameters=parameters)
        )

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.arguments)})"


def with_results(experiment: Experiment, names: Collection[str]) -> Experiment | None:
    """The experiment with only these results of the function that `graph` calls, and of its reference.

    The arrays that only other results depend on are left out. None where `graph` is anything but one call of a function
    that has a reference.
    """
    definition, imports = experiment.definition, experiment.imports
    (line, text), *others = definition["graph"].items()
    if others or text not in imports.written or experiment.grad is not None:
        return None
    results = targets(line, ("graph",))
    kept = [at for at, name in enumerate(results) if name in names]
    functions = {**imports.functions}
    whole = [_Call.of(each, functions) for each in (text, imports.written[text])]
    narrow = [replace(call, lines=call.lines.only(kept)) for call in whole]
    read, still_read = (frozenset[str]().union(*(call.read for call in calls)) for calls in (whole, narrow))
    reference, own = (call.without(read - still_read) for call in narrow)
    for call in (reference, own):
        functions[call.function] = replace(functions[call.function], lines=call.lines)
    changed = {
        "arrays": {name: array for name, array in definition["arrays"].items() if name not in read - still_read},
        "graph": {", ".join(results[at] for at in kept): str(reference)},
        "outputs": {name: definition["outputs"][name] for name in names},
        "constraints": {}, "values": {}, "expect": {},
        imported.KEY: codec.plain(replace(imports, functions=functions, written={str(reference): str(own)})),
    }  # fmt: skip
    return experiment.reader({**definition, **changed})
