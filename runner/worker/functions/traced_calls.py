"""Traces calls of Python, each at the types of its operands, and reads what they compute.

Each call is replaced by one of a function of the experiment that has its lines. A program calls the user's function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import jax

from runner.base import dtypes
from runner.base.faults import Fault, InvalidExperiment, Key, invalid, key_text
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.base.words import listed
from runner.experiment.frames import free
from runner.experiment.functions import RESULT
from runner.experiment.imported import Imported
from runner.graph.language import python_source
from runner.graph.language.python import PythonCall
from runner.worker import calls, phases
from runner.worker.functions import remedies
from runner.worker.functions.inner_constraints import InnerConstraints
from runner.worker.functions.operand_types import OperandTypes, types_of
from runner.worker.functions.probing import tuple_of
from runner.worker.functions.reading import BUILTINS, RAISED, Reading, require_names
from runner.worker.functions.refused_calls import RefusedCalls
from runner.worker.functions.result_layouts import CompilableCall
from runner.worker.functions.trees import Tree, identifier, require_shallow, types_text
from runner.worker.jaxpr import jaxprs
from runner.worker.jaxpr.jaxprs import CannotRead, FunctionLines
from runner.worker.own_files import Standing
from runner.worker.refusing import reported
from runner.worker.setting import PLAIN, TYPED, WITHIN, Setting
from runner.worker.versions import donated_parameters, varying_axes
from runner.worker.walk import REFUSALS


@dataclass
class CallReader:
    """Adds the functions of calls to what is read.

    - `references`: the functions that are read in place of called ones, by the names of these.
    - `called`: the names of the functions that lines call, directly or inside.
    - `donating`: the arrays and trees that lines give jitted functions for parameters that these donate.
    - `compilable`: for each line that is a call of arrays, what is compiled to ask for the layouts of its results.
    - `results`: for each line that is a call, the names of all of its results.
    - `written`: the calls of references, each with one of the function itself in its place.
    - `typed`: for each call in a line, an expression of the types of its results, as JAX traced them.
    """

    reading: Reading
    constraints: InnerConstraints
    references: Mapping[str, Callable[..., Any]]
    called: set[str] = field(default_factory=set[str])
    donating: dict[str, None] = field(default_factory=dict[str, None])
    compilable: dict[str, CompilableCall] = field(default_factory=dict[str, CompilableCall])
    results: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    written: dict[str, str] = field(default_factory=dict[str, str])
    typed: dict[str, str] = field(default_factory=dict[str, str])

    def read(self, call: PythonCall, key: Key, line: str) -> tuple[str, Tree]:
        """The call of the experiment's function that replaces a call of Python, and the tree of its results."""
        phases.tell(f"{call.function} was traced", f"JAX is tracing {call.function}")
        reading, scope, section = self.reading, self.reading.scope, self.reading.section
        reads = [name for name in call.names if name in scope.trees or name in scope.values or name in reading.arrays]
        require_names(call, {**reading.space, **dict.fromkeys(reads)}, key)
        names = scope.leaves(reads)
        operands = types_of(reading, names)
        operands.require_readable(call.text, key)
        path = section.path(*([] if line == RESULT else [line]))
        traced = _TracedCall(reading, self.constraints, self.references, call, key, reads, operands, path)
        reading.taken |= scope.taken
        own = free(identifier(call.function.replace(".", "_")) or line, reading.taken)
        lines, gives, how = traced.accepted()
        self.called |= {call.function, *lines.called} - {""}
        outermost = section.name == "graph" and not section.around
        if outermost and not reading.definition["grad"].get("of"):
            self.donating |= dict.fromkeys(name for name in self._donates(call) if name in reads)
        if not lines.results:
            gave = [] if reading.call is None else [*reading.call.gave]
            message = f"{call.text} gives no array" + (f", but values of type {listed(gave)}" if gave else "")
            raise traced.fault(message)
        require_shallow(gives, call.text, key)
        if outermost and all(name in reading.arrays for name in names):
            # Without a reference, the function of the latest trace is traced already.
            function = traced.latest if traced.reference is None else traced.function()
            self.compilable[line] = CompilableCall(function, traced.typed(how), how, gives)
        text = traced.put(own, lines, gives)
        if all(str(kind.dtype) in dtypes.NAMES and not kind.weak_type for kind in traced.kinds):
            self.typed[text] = tuple_of(map(_of_type, traced.kinds))
        if traced.reference is not None and outermost and (unreferred := traced.unreferred(how)) is not None:
            self.written[text] = traced.put(free(f"{own}_written", reading.taken), unreferred, gives)
        return text, Tree(tuple(f"{own}_{i}" for i in range(len(lines.results))), calls.tree.structure(gives), "")

    def _donates(self, call: PythonCall) -> Iterator[str]:
        """The names that a call gives a jitted function for parameters that this donates."""
        first, *rest = call.function.split(".")
        function = self.reading.modules.objects.get(first)
        for name in rest:
            function = getattr(function, name, None)
        part = python_source.expression(call.text)
        numbers, names = donated_parameters(function)
        given = [operand for number, operand in enumerate(part.inside) if part.kind == "call" and number in numbers]
        given += [operand for name, operand in part.named if name in names]
        for operand in given:
            yield from _names_in(operand)


@dataclass
class _TracedCall:
    """A call of Python at the types of its operands.

    - `reads`: the names of the arrays, values and trees that it reads; `path`: where it stands among all calls.
    - `numbers`: the tree of the results of the latest trace, with their numbers as leaves; `kinds`: their types.
    """

    reading: Reading
    constraints: InnerConstraints
    references: Mapping[str, Callable[..., Any]]
    call: PythonCall
    key: Key
    reads: Sequence[str]
    operands: OperandTypes
    path: str
    numbers: Any = None
    kinds: list[Any] = field(default_factory=list[Any])
    latest: Callable[..., list[Any]] = field(init=False)
    """The function that was traced latest."""

    @property
    def local(self) -> bool:
        """Whether it is called on blocks."""
        return self.reading.section.name == "per_device"

    @property
    def reference(self) -> Callable[..., Any] | None:
        """What is read in place of the called function."""
        return self.references.get(self.call.function)

    @cached_property
    def _code(self) -> Any:
        return compile(self.call.text, f"<{key_text(self.key)}>", "eval")

    def function(self, reference: Callable[..., Any] | None = None) -> Callable[..., list[Any]]:
        """A function of the leaves of its operands to those of its result, which calls the reference if one is given.

        JAX caches traces by function, so each trace needs a new one.
        """
        space, trees = self.reading.space, self.reading.scope.trees
        if reference is not None:
            root, _, rest = self.call.function.partition(".")
            space = {**space, root: Standing(space[root], rest, reference) if rest else reference}

        def function(*leaves: Any) -> list[Any]:
            values = dict(zip(self.operands.structs, leaves, strict=True))
            read = {name: trees[name].made(values) if name in trees else values[name] for name in self.reads}
            results, structure = calls.tree.flatten(eval(self._code, BUILTINS, {**space, **read}))
            self.numbers = calls.tree.unflatten(structure, range(len(results)))
            self.kinds = [*map(jax.typeof, results)]
            return results

        return function

    def typed(self, how: Setting) -> dict[str, Any]:
        """The types of its operands in a setting."""
        return self.reading.settings.typed(self.operands.structs, self.operands.layouts, how)

    def accepted(self) -> tuple[FunctionLines, Any, Setting]:
        """Its lines, the tree of the numbers of its results, and the setting in which JAX accepts it.

        Raises `InvalidExperiment` if JAX accepts it in no setting, or if its lines cannot be read.
        """
        try:
            lines, gives, how, read_as = self._accepted()
            again, gives_again = self._read(read_as)
            if not _alike(lines, again) or calls.tree.flatten(gives) != calls.tree.flatten(gives_again):
                raise CannotRead(
                    f"{self.call.function or self.call.text} returns different values when it is called again: it "
                    "depends on state that changes, such as a global, the time or NumPy's generator; pass that as an "
                    "argument"
                )
        except CannotRead as error:
            raise self.fault(str(error)) from None
        except InvalidExperiment:
            raise
        except RAISED as error:
            raise self._reported(error) from None
        return lines, gives, how

    def _reported(self, error: BaseException, of: str = "") -> InvalidExperiment:
        name = (self.call.function or self.call.text) if self.reading.call is None else self.reading.call.name
        return reported(error, f"tracing {of}{name}", self.key, self.call.text, self._hint(error))

    def _accepted(self) -> tuple[FunctionLines, Any, Setting, Setting]:
        """Its lines, results and setting, and the setting in which its lines were read."""
        settings, call = self.reading.settings, self.reading.call
        if self.local:
            return *self._read(PLAIN), PLAIN, PLAIN
        # The call of `runner.check` is of arrays alone, which have their layouts in types.
        every = call is not None and self.reading.probe.chosen
        if self.reference is None:
            (lines, gives), how = settings.accepted(self._read, every=every)
            return lines, gives, how, how
        given, how = settings.accepted(lambda how: self._shapes(how, None), every=every)
        changes = [] if call is None else [*call.changes]
        try:
            (lines, gives), read_as = settings.accepted(self._read, reference=True)
            expected = self._shapes(read_as, self.reference)
        except (CannotRead, InvalidExperiment):
            raise
        except RAISED as error:
            raise self._reported(error, "the reference of ") from None
        if calls.tree.flatten(given) != calls.tree.flatten(expected):
            if changes and call is not None and changes != call.changes:
                raise CannotRead(_other_changes(changes, call.changes))
            message = f"{self.call.function} gives {types_text(given)}, and its reference {types_text(expected)}"
            raise CannotRead(message)
        return lines, gives, how, read_as

    def _read(self, how: Setting, stating: dict[str, Spec] | None = None) -> tuple[FunctionLines, Any]:
        """Trace it, or its reference, and read its lines; `stating` collects the layouts that the function states."""
        self.latest = self.function(self.reference)
        layouts, asked, states = self.operands.layouts, None, None
        if stating is not None:
            layouts, asked, states = dict.fromkeys(layouts, Spec()), stating.__contains__, stating.update
        elif self.constraints.asked:
            asked = self._marks
            states = None if self.constraints.apart is None else self._states
        with self.reading.settings.context(how):
            lines = jaxprs.read(
                self.latest,
                self.reading.settings.typed(self.operands.structs, layouts, how),
                mesh=self.reading.probe.mesh,
                manual=self.reading.probe.manual.axes if self.local else (),
                varying=self.operands.varying,
                check_vma=self.reading.probe.check_vma,
                # A reference may have the name of what it stands for.
                references={
                    name.rpartition(".")[2]: reference
                    for name, reference in self.references.items()
                    if name != self.call.function
                },
                taken=self.reading.taken_inside,
                marks=None if self.local else asked,
                states=None if self.local else states,
            )
        return lines, self.numbers

    def _marks(self, path: str) -> bool:
        return self.constraints.marks(f"{self.path}/{path}")

    def _states(self, layouts: Mapping[str, Spec]) -> None:
        self.constraints.stated |= {f"{self.path}/{path}": spec for path, spec in layouts.items()}

    def _untyped(self) -> tuple[FunctionLines, Mapping[str, Spec]]:
        """The function of whole arrays, and the layouts that it states, which it may on Explicit axes alone."""
        try:
            return self._read(PLAIN)[0], {}
        except REFUSALS:
            stated: dict[str, Spec] = {}
            return self._read(WITHIN, stated)[0], stated

    def _shapes(self, how: Setting, reference: Callable[..., Any] | None) -> Any:
        """The types of its results, in their tree."""
        with self.reading.settings.context(how):
            leaves = calls.eval_shape(self.function(reference), *self.typed(how).values())
        # The layouts in the types of a function and its reference may differ.
        types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return calls.tree.map(types.__getitem__, self.numbers)

    def _hint(self, error: BaseException) -> str:
        """What to write instead of what JAX refuses."""
        settings, probe, call = self.reading.settings, self.reading.probe, self.reading.call
        if isinstance(error, AttributeError) and is_mapping(error.obj) and error.name in error.obj:
            return f"a member of a dict is [{error.name!r}], not .{error.name}"
        hint = remedies.of_captured(error, {} if call is None else call.captured)
        if error is settings.refused:
            hint = "JAX accepts it on Explicit axes: leave programs with Auto axes out, such as 'auto'"
        typed = any(program.typed for program in probe.programs)
        if not hint and typed and not self.local and isinstance(error, REFUSALS):
            hint = RefusedCalls(self.reading).remedy(error, self.typed(TYPED), self._untyped)
        return hint or remedies.of_words(error, probe.mesh) or ""

    def unreferred(self, how: Setting) -> FunctionLines | None:
        """The lines of a function that has a reference; None if they cannot be read, which may be why it has one."""
        function = self.function()
        # What nothing reads may be of an operation that has no line.
        for unread in (True, False):
            with contextlib.suppress(CannotRead), self.reading.settings.context(how):
                return jaxprs.read(
                    function,
                    self.typed(how),
                    mesh=self.reading.probe.mesh,
                    taken=self.reading.taken_inside,
                    unread=unread,
                )
        return None

    def put(self, name: str, lines: FunctionLines, gives: Any) -> str:
        """Add a function of the experiment with these lines, and return the call of it."""
        reading = self.reading
        traced = lines.traced(self.operands.structs)
        reading.taken |= {*traced.named, *lines.arrays}
        for value in lines.arrays.values():
            if str(value.dtype) not in dtypes.NAMES:
                message = (
                    f"it gives or reads a constant of dtype {value.dtype}; no array of an experiment has that dtype"
                )
                raise InvalidExperiment(Fault(("graph",), message, self.call.text, 0, len(self.call.text)))
        arguments = {name: name for name in traced.parameters}
        arguments |= {name: reading.array_of(name, value) for name, value in lines.arrays.items()}
        returned = self.call.filled({**reading.texts, **{name: self._text(name) for name in self.reads}})
        if not isinstance(gives, int):
            returned = f"jax.tree.leaves({returned})" + ("[0]" if len(lines.results) == 1 else "")
        constraints = {name: self.constraints.key_of(f"{self.path}/{at}") or "" for name, at in lines.marked.items()}
        reading.imported[name] = Imported(
            self.call.function, returned, traced, lines.frames, lines.differentiated, lines.marked, constraints,
            lines.spelled, lines.rules, lines.added, lines.paths,
        )  # fmt: skip
        return f"{name}({', '.join(arguments.values())})"

    def _text(self, name: str) -> str:
        """The Python expression of a value that the call reads."""
        tree = self.reading.scope.trees.get(name)
        if tree is None:
            return f"${name}"
        if not tree.text:
            message = f"'{name}' has classes that only its own function can make; call both in one function"
            raise invalid((), message)
        return tree.text

    def fault(self, message: str) -> InvalidExperiment:
        """The exception with a message about the whole call."""
        return InvalidExperiment(Fault(self.key, message, self.call.text, 0, len(self.call.text)))


def _of_type(kind: Any) -> str:
    """An expression with the type of a traced value."""
    made = f"zeros({tuple(kind.shape)}, '{kind.dtype}')"
    axes = tuple(sorted(varying_axes(kind)))
    return f"pcast({made}, {axes}, to='varying')" if axes else made


def _other_changes(changes: Sequence[str], of_reference: Sequence[str]) -> str:
    """The message for a function that changes other operands than its reference does."""
    there = listed(of_reference) if of_reference else "none"
    values = ", ".join(f"'{name}': {name}" for name in changes)
    return (
        f"it changes {listed(changes)}, and its reference changes {there}: the new values are results, so let the "
        f"reference change them too, or return them, (result, {{{values}}})"
    )


def _names_in(operand: python_source.PythonPart) -> Iterator[str]:
    """The names whose values an operand passes on: itself, or those of a tuple or a list."""
    if operand.kind == "name":
        yield operand.text
    for part in operand.inside if operand.kind == "sequence" else ():
        yield from _names_in(part)


def _alike(first: FunctionLines, second: FunctionLines) -> bool:
    """Whether two readings have the same lines, results and captured arrays."""
    captured = ({name: array.tobytes() for name, array in lines.arrays.items()} for lines in (first, second))
    same = next(captured) == next(captured)
    return same and (first.lines, first.results) == (second.lines, second.results)
