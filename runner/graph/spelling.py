"""Prints equations: finds the terms that they were read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.base.lazy import dataclass
from runner.graph.model import (
    Branches,
    CombiningFunction,
    Equation,
    Graph,
    Operand,
    Ref,
    Size,
    inside,
    walk,
    with_parts,
)
from runner.graph.term import Apply, Lambda, Name, Term


@dataclass(frozen=True)
class Spelling:
    """Converts the equations of a graph back to terms.

    - `parts`: the unnamed equations, by the number of their result: they are written where that is read.
    - `named`: the names of the other values.
    """

    parts: Mapping[int, Equation]
    named: Mapping[int, str]

    @staticmethod
    def of(graph: Graph) -> Spelling:
        """Build the spelling of a graph and its bodies."""
        parts: dict[int, Equation] = {}
        named = {value.number: value.name for value in graph.inputs}
        for equation in walk(graph):
            for value in (
                *equation.results,
                *(value_of_body for body in equation.bodies for value_of_body in body.inputs),
            ):
                named[value.number] = value.name
            if equation.form is None and not equation.results[0].name:
                parts[equation.results[0].number] = equation
        return Spelling(parts, named)

    def selecting(self, choice: Branches, bodies: Iterable[Graph]) -> Spelling:
        """The spelling of the lines that select one branch's values, which read the results of all branches."""
        results = {
            number: name
            for call, body in zip(choice.calls, bodies, strict=True)
            for name, number in zip(call.results, body.outputs, strict=True)
        }
        own = Spelling.of(choice.selecting)
        return Spelling(own.parts, {**self.named, **own.named, **results})

    def operand(self, operand: Operand) -> Term:
        """The term of an operand."""
        match operand:
            case Ref(number=number) if number in self.parts:
                return self.equation(self.parts[number])
            case Ref(number=number, source=source):
                return Name(self.named[number], None if source is None else source.at)
            case Size(name=name):
                return Name(name)
            case CombiningFunction(body=body):
                return self.function(body)
            case _:
                return with_parts(operand, [self.operand(part) for part in inside(operand)])

    def equation(self, equation: Equation) -> Term:
        """The term of an equation."""
        if equation.spelled == "name":
            return self.operand(equation.operands[0])
        named = tuple((name, self.operand(operand)) for name, operand in equation.named)
        operands = tuple(map(self.operand, equation.operands))
        return Apply(equation.operation, operands, named, equation.spelled, equation.source.at)

    def function(self, body: Graph) -> Lambda:
        """The lambda of a function that combines two values, with its own parameter names."""
        parameters = {value.number: value.name for value in body.inputs}
        *parts, result = body.equations
        inside = Spelling({part.results[0].number: part for part in parts}, {**self.named, **parameters})
        return Lambda(tuple(parameters.values()), inside.equation(result))
