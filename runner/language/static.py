"""An expression of sizes in, an integer out: shapes, dims and the number of a loop's steps, known before JAX."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from runner.language import bounds
from runner.language.check import missing_axis
from runner.language.syntax import Expression
from runner.layout import Mesh

_OF_SIZES = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow)


_LONGEST = 100_000
"""The most elements of a comprehension."""


def written_out(
    expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None, unknown: frozenset[str] = frozenset()
) -> Expression:
    """The expression with the elements of each comprehension in its place.

    Raises `SyntaxFault` where these are not known without arrays; where they depend on names that are `unknown` yet,
    there are none.
    """
    if not any(isinstance(node, ast.ListComp) for node in ast.walk(expression.tree)):
        return expression

    class WrittenOut(ast.NodeTransformer):
        def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
            if any(isinstance(part, ast.Name) and part.id in unknown for part in ast.walk(node)):
                return ast.copy_location(ast.List([], ast.Load()), node)
            (generator,) = node.generators
            assert isinstance(generator.target, ast.Name)
            assert isinstance(generator.iter, ast.Call)
            bounds_ = [evaluate(Expression(expression.text, part), sizes, mesh) for part in generator.iter.args]
            if len(bounds_) == 3 and bounds_[2] == 0:
                raise expression.fault("the step of a range is not 0", node)
            steps = range(*bounds_)
            if len(steps) > _LONGEST:
                raise expression.fault(f"it has {len(steps):,} elements; {_LONGEST:,} are the most", node)
            elements = [element(node.elt, {**sizes, generator.target.id: i}) for i in steps]
            return ast.copy_location(ast.List(elements, ast.Load()), node)

    def element(node: ast.expr, sizes: Mapping[str, int]) -> ast.expr:
        if isinstance(node, ast.Tuple | ast.List):
            found: ast.expr = type(node)([element(part, sizes) for part in node.elts], ast.Load())
        else:
            found = ast.Constant(evaluate(Expression(expression.text, node), sizes, mesh))
        return ast.copy_location(found, node)

    return Expression(expression.text, WrittenOut().visit(copy.deepcopy(expression.tree)))


def evaluate(expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None) -> int:
    """The integer that `expression` stands for.

    `sizes` are the dims; with a `mesh`, `axis_size('x')` is allowed. Raises `SyntaxFault` for anything else.
    """

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name):
                if name not in sizes:
                    known = ", ".join(sizes) or "none"
                    raise expression.fault(f"no dim '{name}'; the dims are: {known}", node)
                return sizes[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _OF_SIZES):
                first, second = value(left), value(right)
                if second == 0 and isinstance(op, ast.FloorDiv | ast.Mod):
                    raise expression.fault("division by zero", node)
                if isinstance(op, ast.Pow) and second < 0:
                    raise expression.fault("sizes are integers: the exponent is at least 0", node)
                return bounds.EXACT[type(op)](first, second)
            case ast.BinOp(op=ast.Div()):
                raise expression.fault("sizes are integers: use // instead of /", node)
            case ast.Call(func=ast.Name(id="axis_size"), args=[argument], keywords=[]) if mesh is not None:
                return axis_size(argument)
            case _:
                raise expression.fault("a size is made of integers, dims and + - * // % ** only", node)

    def axis_size(node: ast.expr) -> int:
        assert mesh is not None
        if isinstance(node, ast.Tuple | ast.List):
            product = 1
            for element in node.elts:
                product *= axis_size(element)
            return product
        if isinstance(node, ast.Constant) and node.value in mesh.sizes:
            return mesh.sizes[str(node.value)]
        if not isinstance(node, ast.Constant):
            raise expression.fault("axis_size takes the name of a mesh axis, in quotes", node)
        raise expression.fault(missing_axis(node.value, mesh), node)

    bounds.check(expression, sizes, mesh)
    return value(expression.tree)
