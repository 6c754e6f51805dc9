"""Contractions: `@`, `dot`, `einsum`, …: the letters of an einsum are the factors, and those it sums are reduced."""

from __future__ import annotations

import ast
import string
from collections.abc import Callable

import numpy as np

from runner.derivation.rules import Assignment, Dimensions, Rule, Value
from runner.derivation.site import NotStatic, Site
from runner.language import notation

Take = Callable[[int], str]
"""So many letters that are not used yet."""


def product(site: Site) -> Value | None:
    """A product of two arrays, or an einsum of any number."""
    parts = _parts(site)
    typed = [site.type_of(part) for part in parts]
    shapes = [each.shape for each in typed if each is not None]
    if len(shapes) < len(parts):
        return None
    letters = _letters(site, shapes)
    if letters is None:
        return None
    operands, result = letters
    sizes: dict[str, int] = {}
    for shape, mine in zip(shapes, operands, strict=True):
        for size, letter in zip(shape, mine, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    # A letter that an operand has twice is a diagonal, and one of size 1 is broadcast: these are whole.
    twice = {letter for mine in operands for letter in mine if mine.count(letter) > 1}
    number = {letter: at for at, letter in enumerate(sizes) if letter not in twice and sizes[letter] > 1}

    def factors(mine: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            (number[letter],) if letter in number and size == sizes[letter] else ()
            for letter, size in zip(mine, shape, strict=True)
        )

    def write(trees: list[ast.expr], _: Assignment) -> ast.expr:
        return site.rewritten({id(part): tree for part, tree in zip(parts, trees, strict=True)})

    rule = Rule(
        tuple(factors(mine, shape) for mine, shape in zip(operands, shapes, strict=True)),
        factors(result, site.result.shape),
        {number[letter]: size for letter, size in sizes.items() if letter in number},
        write,
        {number[letter]: "sum" for letter in number if letter not in result},
    )
    return site.writer.apply(site, [site.value(part) for part in parts], rule)


def _parts(site: Site) -> list[ast.expr]:
    match site.node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Call(func=ast.Name(id="einsum"), args=[_, *operands]):
            return operands
        case _:
            names = ("lhs", "rhs") if "lhs" in site.arguments else ("a", "b") if "a" in site.arguments else ("x1", "x2")
            return [site.arguments[name] for name in names]


def _letters(site: Site, shapes: list[tuple[int, ...]]) -> tuple[list[str], str] | None:
    """The product as an einsum: the letters of the operands, and those of the result."""
    name = site.name if isinstance(site.node, ast.Call) else "matmul"
    if name == "einsum":
        return _einsum(site, shapes)
    if len(shapes) != 2:
        return None
    one, other = (len(shape) for shape in shapes)
    free = iter(string.ascii_letters)

    def take(count: int) -> str:
        return "".join(next(free) for _ in range(count))

    if name in ("matvec", "vecmat", "vecdot"):
        return None if name == "vecdot" and "axis" in site.arguments else _batched(name, one, other, take)
    if name == "matmul" or (name == "dot" and other <= 2 and one <= 2 and one and other):
        return _matmul(one, other, take)
    if name == "outer" and one == 1 and other == 1:
        return ["a", "b"], "ab"
    if name == "inner" and one and other:
        k = take(1)
        a, b = take(one - 1), take(other - 1)
        return [a + k, b + k], a + b
    if name == "dot" and one and other:
        k = take(1)
        a, b, last = take(one - 1), take(other - 2), take(1)
        return [a + k, b + k + last], a + b + last
    if name == "vdot" and one == 1 and other == 1:
        return ["a", "a"], ""
    if name == "tensordot":
        return _tensordot(site, one, other, take)
    if name == "dot_general":
        numbers = site.static("dimension_numbers")
        labels = notation.dot_general([*(np.broadcast_to(0, shape) for shape in shapes), *numbers])
        return None if labels is None else (list(labels[0]), labels[1])
    return None


def ragged(site: Site) -> Value | None:
    """`ragged_dot`: rows stay with their groups, columns by themselves, what is summed over may be sharded."""
    lhs, rhs, sizes = (site.arguments[name] for name in ("lhs", "rhs", "group_sizes"))
    first, second = site.type_of(lhs), site.type_of(rhs)
    if first is None or second is None or site.type_of(sizes) is None:
        return None
    _, rows, columns = second.shape
    operands: list[tuple[ast.expr, Dimensions]] = [(lhs, ((), (0,))), (rhs, ((), (0,), (1,))), (sizes, ((),))]
    return site.run(operands, ((), (1,)), {0: rows, 1: columns}, {0: "sum"})


def _matmul(one: int, other: int, take: Take) -> tuple[list[str], str] | None:
    if not one or not other:
        return None
    k = take(1)
    i, j = take(1) if one > 1 else "", take(1) if other > 1 else ""
    most = max(one, other) - 2
    batch = take(max(most, 0))
    first = batch[len(batch) - max(one - 2, 0) :] + i + k
    second = batch[len(batch) - max(other - 2, 0) :] + k + j
    return [first, second], batch + i + j


def _batched(name: str, one: int, other: int, take: Take) -> tuple[list[str], str] | None:
    own = {"matvec": (2, 1), "vecmat": (1, 2), "vecdot": (1, 1)}[name]
    k, m = take(1), take(1)
    batch = take(max(one - own[0], other - own[1]))
    first = batch[len(batch) - (one - own[0]) :] + {"matvec": m + k, "vecmat": k, "vecdot": k}[name]
    second = batch[len(batch) - (other - own[1]) :] + {"matvec": k, "vecmat": k + m, "vecdot": k}[name]
    return [first, second], batch + ("" if name == "vecdot" else m)


def _tensordot(site: Site, one: int, other: int, take: Take) -> tuple[list[str], str] | None:
    axes = site.static("axes", 2)
    if isinstance(axes, int):
        axes = (tuple(range(one - axes, one)), tuple(range(axes)))
    if len(axes) != 2:
        raise NotStatic
    mine, yours = ([each] if isinstance(each, int) else list(each) for each in axes)
    mine, yours = [a % one for a in mine], [b % other for b in yours]
    first = [take(1) for _ in range(one)]
    second = [first[mine[yours.index(d)]] if d in yours else take(1) for d in range(other)]
    kept = [letter for d, letter in enumerate(first) if d not in mine]
    kept += [letter for d, letter in enumerate(second) if d not in yours]
    return ["".join(first), "".join(second)], "".join(kept)


def _einsum(site: Site, shapes: list[tuple[int, ...]]) -> tuple[list[str], str] | None:
    assert isinstance(site.node, ast.Call)
    subscripts = site.writer.statics.value(site.node.args[0])
    if not isinstance(subscripts, str) or "." in subscripts:
        return None
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    operands = left.split(",")
    if not arrow:
        every = "".join(operands)
        right = "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    if len(operands) != len(shapes) or any(len(a) != len(b) for a, b in zip(operands, shapes, strict=True)):
        return None
    return operands, right


def attention(site: Site) -> Value | None:
    """`dot_product_attention`: batch, heads and queries by themselves; every query needs all keys and values."""
    names = ("query", "key", "value")
    parts = [site.arguments[name] for name in names]
    typed = [site.type_of(part) for part in parts]
    shapes = [each.shape for each in typed if each is not None]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return None
    batch, length, heads, _ = shapes[0]
    shared = shapes[1][2]
    # Factors: 0 the batch, 1 the queries, 2 the heads of the keys, 3 those of the queries that share one.
    sizes = {0: batch, 1: length, 2: shared, 3: heads // shared}
    queries: Dimensions = ((0,), (1,), (2, 3), ())
    operands: list[tuple[ast.expr, Dimensions]] = [(parts[0], queries), *((p, ((0,), (), (2,), ())) for p in parts[1:])]
    full = (batch, heads, length, shapes[1][1])
    for name in ("bias", "mask"):
        extra = site.arguments.get(name)
        known = None if extra is None else site.type_of(extra)
        if extra is None or known is None:
            continue
        if len(known.shape) != 4:
            return None
        factors = ((0,), (2, 3), (1,), ())
        operands.append((extra, tuple(f if n == m else () for f, n, m in zip(factors, known.shape, full, strict=True))))
    causal = bool(site.static("is_causal", False))

    def allowed(assignment: Assignment) -> bool:
        # Groups of queries' heads stay with the keys' head that they share; what is causal counts from the first query.
        return not assignment.get(3) and not (causal and assignment.get(1))

    return site.run(operands, queries, sizes, allowed=allowed)
