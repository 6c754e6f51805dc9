"""Writes the lines of a program that compute the statements of a section, one named scope per node.

A call of one of the experiment's functions is written as a call of a Python function. Two calls share a function where
its lines are the same in both; explicit sharding or a constraint may make them differ. A call of a user's own Python
function stays a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runner.base.layout import Spec
from runner.experiment.identifiers import Identifiers
from runner.experiment.imported import Imported
from runner.experiment.model import Experiment
from runner.graph.model import Branches, CalledFunction, Equation, Graph, Operand, Ref, Repeat, Value, walk
from runner.graph.source import FunctionCall, Line, Source
from runner.programs import within
from runner.programs.emit import Emit
from runner.programs.spelling import checkpointed, constrained, constrained_inside, resharded, tuple_of
from runner.programs.types import Repairs


class Lines:
    """The source lines of a section, one named scope per node.

    `definitions` are the functions that they call, once the lines are written.
    """

    def __init__(
        self,
        experiment: Experiment,
        names: Identifiers,
        repairs: Repairs | None = None,
        *,
        under_vmap: bool = False,
        inside: bool = False,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._repairs = repairs or Repairs()
        self._under_vmap = under_vmap
        self._inside = inside
        """Whether the lines are those of a device, for which the compiler lays out only automatic axes."""
        self._lines: list[str] = []
        self._depth = 0
        """The number of calls around the lines that are being written as a function."""
        self._defined: dict[tuple[str, str], str] = {}
        """The functions that are written already, by their names in the experiment and their text."""
        self._named: dict[int, str] = {}
        """The identifiers of values."""
        self._parts: dict[int, Equation] = {}
        """The equations of unnamed values, which are written in the line that reads them."""
        self._functions: list[str] = []

    @property
    def definitions(self) -> str:
        """The functions that the lines call, each after those that it calls."""
        return "\n".join(self._functions)

    def section(
        self,
        lines: Graph,
        constrained: Mapping[str, Spec] | None = None,
        *,
        after: bool = False,
    ) -> str:
        """Write the lines of a graph, with a `with_sharding_constraint` for the values in `constrained`.

        They read the arrays and, if they come `after` other lines, values of these, by their identifiers.
        """
        self._constrained = constrained or {}
        self._lines = []
        self._parts, self._named = {}, {value.number: value.name for value in lines.inputs}
        read = frozenset(number for equation in lines.equations for number in equation.reads)
        arrays = {array.name for array in self._experiment.arrays}
        for value in lines.inputs:
            if value.name in arrays and (value.number in read or not after):
                self._follow(value.name, self._names[value.name], "")
        self._equations(lines.equations, "")
        return "\n".join(self._lines)

    def _put(self, indent: str, line: str) -> None:
        self._lines.append((indent + line).rstrip())

    def _equations(self, equations: Iterable[Equation], indent: str) -> None:
        for equation in equations:
            match equation.form:
                case Repeat() as repeat:
                    self._repeat(equation, repeat, indent)
                case CalledFunction() as called:
                    self._call(equation, called, indent)
                case Branches() as choice:
                    self._choice(equation, choice, indent)
                case None if equation.results[0].name:
                    self._line(equation, indent)
                case None:
                    # It is written in the line that reads it.
                    self._parts[equation.results[0].number] = equation

    def _scope(self, line: Line) -> str:
        return f'with jax.named_scope("{"/".join(line.scopes[self._depth :])}"):'

    def _define(self, value: Value) -> str:
        """Choose the identifier of a value that is assigned here."""
        self._named[value.number] = value.name
        return self._names.add(value.name)

    def _read(self, operand: Operand) -> str:
        """The identifier of an assigned value."""
        assert isinstance(operand, Ref)
        return self._names[self._named[operand.number]]

    def _line(self, equation: Equation, indent: str) -> None:
        line, source = equation.source.line, self._text(equation)
        identifier = self._define(equation.results[0])
        self._put(indent, self._scope(line))
        self._put(indent, f"    {identifier} = {source}")
        self._follow(line.path, identifier, indent + "    ")

    def _text(self, equation: Equation) -> str:
        """Write the expression of a line."""
        repairs = self._repairs.calls.get(equation.source.line.path, {})
        emit = Emit(self._experiment, self._names, self._named, self._parts, repairs, self._under_vmap)
        return emit.text(equation)

    def _call(self, equation: Equation, called: CalledFunction, indent: str) -> None:
        """Write a call of a function, and the function if it is not written yet."""
        (body,) = equation.bodies
        arguments = ", ".join(map(self._read, equation.operands))
        written = f"{self._function(called.call, body)}({arguments})"
        self._give(equation, called.call, called.taken, written, indent)

    def _give(self, equation: Equation, call: FunctionCall, taken: Sequence[Source], written: str, indent: str) -> None:
        """Write the assignment of a call or of a choice."""
        identifiers = [self._define(value) for value in equation.results]
        self._put(indent, f'with jax.named_scope("{call.label}"):')
        self._put(indent, f"    {', '.join(identifiers)} = {written}")
        for source, identifier in zip(taken, identifiers, strict=True):
            self._follow(source.line.path, identifier, indent + "    ")

    def _choice(self, equation: Equation, choice: Branches, indent: str) -> None:
        """Write a call of `cond` or `switch`."""
        branches = zip(choice.calls, equation.bodies, choice.given, strict=True)
        called = [self._branch(call, body, given) for call, body, given in branches]
        cases = [function if given is None else f"lambda: {function}({', '.join(given)})" for function, given in called]
        operands: tuple[str, ...] = ()
        if called[0][1] is not None and len({given for _, given in called}) == 1:
            cases, operands = [function for function, _ in called], called[0][1]
        between = [cases[1], cases[0]] if equation.operation == "cond" else [f"[{', '.join(cases)}]"]
        written = f"jax.lax.{equation.operation}({', '.join([self._read(equation.operands[0]), *between, *operands])})"
        self._give(equation, choice.call, choice.taken, written, indent)

    def _branch(
        self, call: FunctionCall, body: Graph, given: Sequence[Ref] | None
    ) -> tuple[str, tuple[str, ...] | None]:
        """The function of a branch and its operands; or a lambda, and None."""
        if given is None:
            texts = [self._given(equation) for equation in self._outputs(body)]
            return f"lambda: {texts[0] if len(texts) == 1 else tuple_of(texts)}", None
        arguments = tuple(map(self._read, given))
        self._depth += 1
        function = self._function(call, body, branch=True)
        self._depth -= 1
        return function, arguments

    def _outputs(self, body: Graph) -> list[Equation]:
        """The expressions that a function or a branch returns; its other lines are written before."""
        outputs = set(body.outputs)
        gives = [equation for equation in body.equations if outputs & {value.number for value in equation.results}]
        self._equations([equation for equation in body.equations if equation not in gives], "    ")
        return gives

    def _given(self, equation: Equation) -> str:
        """The expressions that a branch returns."""
        path, text = equation.source.line.path, self._text(equation)
        if path in self._repairs.reshard:
            text = resharded(text, self._repairs.reshard[path])
        return constrained(text, self._constrained[path]) if path in self._constrained else text

    def _function(self, call: FunctionCall, body: Graph, *, branch: bool = False) -> str:
        """The name of the Python function with these lines; writes it where there is none yet."""
        outer = self._names, self._lines, self._depth
        self._names, self._lines, self._depth = self._names.inside(), [], self._depth + 1
        parameters = list(map(self._define, body.inputs))
        imported = self._experiment.imports.functions.get(call.function)
        given = [] if imported is None else [self._returned(imported, body)]
        for equation in (gives := self._outputs(body) if imported is None else []):
            # The result of an ordinary call is constrained where it is called.
            written = self._given(equation) if branch else self._text(equation)
            if len(gives) == 1:
                given.append(written)
                continue
            identifier = self._define(equation.results[0])
            self._put("    ", self._scope(equation.source.line))
            self._put("    ", f"    {identifier} = {written}")
            given.append(identifier)
        last = [f"return {', '.join(given)}"]
        if imported is not None and self._experiment.x64 and not self._experiment.imports.x64:
            # 64-bit dtypes are inside the function alone, which sets `jax_enable_x64` for a part of its own lines.
            last = ["with jax.enable_x64(False):", f"    {last[0]}"]
        text = "\n".join([f"({', '.join(parameters)}):", *self._lines, *(f"    {line}" for line in last)])
        inner = self._names
        self._names, self._lines, self._depth = outer
        decorator = "" if imported is None else self._decorator(imported, body)
        known = self._defined.get((call.function, decorator + text))
        if known is None:
            known = self._defined[call.function, decorator + text] = self._names.reserve_function(call.function, inner)
            kept = "" if call.checkpoint is None else f"\n{known} = {checkpointed(known, call.checkpoint)}\n"
            self._functions.append(f"{decorator}def {known}{text}\n{kept}")
        return known

    def _returned(self, imported: Imported, body: Graph) -> str:
        """The results of a user's own Python function that the lines read."""
        return imported.text({value.name: self._names[value.name] for value in body.inputs})

    def _decorator(self, imported: Imported, body: Graph) -> str:
        """The decorator that constrains values inside a user's own Python function; "" if there are none."""
        specs: dict[str, Spec] = {}
        for equation in walk(body):
            line = equation.source.line
            if line.label in imported.inside and line.path in self._constrained:
                specs[imported.inside[line.label]] = self._constrained[line.path]
        return within.decorator(specs) if specs else ""

    def _follow(self, path: str, identifier: str, indent: str) -> None:
        """Write the lines that follow a definition."""
        if path in self._repairs.reshard:
            self._put(indent, f"{identifier} = {resharded(identifier, self._repairs.reshard[path])}")
        if path in self._constrained:
            put = constrained_inside if self._inside else constrained
            self._put(indent, f"{identifier} = {put(identifier, self._constrained[path])}")

    def _repeat(self, equation: Equation, repeat: Repeat, indent: str) -> None:
        (graph,) = equation.bodies
        starts = [self._start(operand) for operand in equation.operands]
        firsts, over = tuple_of(starts[: repeat.carried]), starts[repeat.carried :]
        for i, source in enumerate(repeat.starts[repeat.carried :]):
            if source.line.path in self._repairs.reshard:
                over[i] = resharded(over[i], self._repairs.reshard[source.line.path])
        body = self._names.add(repeat.line.label if self._depth else repeat.line.name)
        scanned = not repeat.unroll and repeat.scans(graph)
        counts = self._body(graph, repeat, body, indent, scanned=scanned)
        results = list(map(self._define, equation.results))
        carried, stacked = results[: repeat.carried], results[repeat.carried :]
        last = tuple_of(carried)
        self._put(indent, "")
        self._put(indent, self._scope(repeat.line))
        if scanned:
            if counts:
                over.append(f"jnp.arange({repeat.steps}, dtype='int32')")
            left = f"{last if carried else '_'}, {tuple_of(stacked) if stacked else '_'}"
            xs = tuple_of(over) if over else f"None, length={repeat.steps}"
            self._put(indent, f"    {left} = jax.lax.scan({body}, {firsts}, {xs})")
        elif repeat.going is not None:
            going = f"lambda carry: carry[{repeat.going}]"
            self._put(indent, f"    carry = jax.lax.while_loop({going}, {body}, {firsts})")
        elif repeat.unroll:
            self._put(indent, f"    carry = {firsts}")
            if stacked:
                self._put(indent, "    steps = []")
            if over:
                self._put(indent, f"    over = {tuple_of(over)}")
            self._put(indent, f"    for step in range({repeat.counted}):")
            arguments = ", ".join(["step", "carry", *(["tuple(x[step] for x in over)"] if over else [])])
            self._put(indent, f"        {'carry, each' if stacked else 'carry'} = {body}({arguments})")
            if stacked:
                self._put(indent, "        steps.append(each)")
        else:
            self._put(indent, f"    carry = jax.lax.fori_loop(0, {repeat.steps}, {body}, {firsts})")
        if carried and not scanned:
            self._put(indent, f"    {last} = carry")
        if stacked and repeat.unroll:
            self._put(indent, f"    {tuple_of(stacked)} = map(jnp.stack, zip(*steps, strict=True))")
        for value, identifier in zip(equation.results, results, strict=True):
            self._follow(repeat.result(value), identifier, indent + "    ")

    def _start(self, operand: Operand) -> str:
        """The initial values of a repeat's carries."""
        assert isinstance(operand, Ref)
        return self._text(self._parts[operand.number])

    def _body(self, graph: Graph, repeat: Repeat, body: str, indent: str, *, scanned: bool) -> bool:
        """Write the function of one step. Returns whether the function of a scan takes the step's number."""
        given, index = (graph.inputs[:-1], graph.inputs[-1]) if repeat.indexed else (graph.inputs, None)
        carried = list(map(self._define, given[: repeat.carried]))
        slices = list(map(self._define, given[repeat.carried :]))
        steps = [] if index is None else [self._define(index)]
        counts = scanned and any(index.number in equation.reads for equation in graph.equations if index is not None)
        if counts:
            slices += steps
        parameters = ["carry", *(["over"] if slices or scanned else [])]
        self._put(indent, f"def {body}({', '.join(parameters if scanned else [*steps, *parameters])}):")
        if carried:
            self._put(indent, f"    {tuple_of(carried)} = carry")
        if slices:
            self._put(indent, f"    {tuple_of(slices)} = over")
        self._equations(graph.equations, indent + "    ")
        ends = [self._names[self._named[output]] for output in graph.outputs]
        paths = [repeat.end(value) for value in given[: repeat.carried]]
        last = [
            resharded(end, self._repairs.reshard[path]) if path in self._repairs.reshard else end
            for path, end in zip(paths, ends, strict=False)
        ]
        stacked = ends[repeat.carried :]
        returned = tuple_of(last)
        if scanned or stacked:
            returned = f"{returned}, {tuple_of(stacked) if stacked else 'None'}"
        self._put(indent, f"    return {returned}")
        if repeat.checkpoint is not None:
            self._put(indent, "")
            # In an unrolled loop the index is a Python integer; in JAX's own loops nothing can be merged over steps.
            more = "static_argnums=(0,)" if repeat.unroll else "prevent_cse=False"
            self._put(indent, f"{body} = {checkpointed(body, repeat.checkpoint, more)}")
        return counts
