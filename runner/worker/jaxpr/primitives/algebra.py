"""Writes products, convolutions, decompositions and Fourier transforms in the language."""

from __future__ import annotations

from collections.abc import Sequence

from runner.graph.language import notation
from runner.graph.language.lines import operator
from runner.graph.language.lines import transposed as turned
from runner.graph.term import Apply, Const, Group, Term
from runner.programs.derivation.terms import Part, constant
from runner.worker.jaxpr.primitives.registry import REFERENCE, Application, Unread, filled, reads


@reads("dot_general")
def _product(application: Application) -> Term:
    numbers = application.params["dimension_numbers"]
    (left, right), (left_batch, right_batch) = (tuple(tuple(map(int, each)) for each in part) for part in numbers)
    ranks = [len(each.shape) for each in application.inputs]
    wide = str(application.params.get("preferred_element_type") or application.result)
    named = (("preferred_element_type", Const(wide)),) if wide != application.dtype else ()
    x, y = application.operands
    if not named and 0 in ranks:
        return operator("multiply", x, y)
    batch = tuple(range(ranks[0] - 2))
    whole = (left, right) == ((ranks[0] - 1,), (len(batch),)) and left_batch == right_batch == batch
    if not named and batch and whole and ranks == [len(batch) + 2] * 2:
        return operator("matmul", x, y)
    if not named and not left_batch and len(left) == 1 and max(ranks) <= 2:
        x = turned(x) if left[0] != ranks[0] - 1 else x
        return operator("matmul", x, turned(y) if right[0] else y)
    if not named and ranks[1] == 2 and not left_batch and (left, right) == ((ranks[0] - 1,), (0,)):
        return operator("matmul", x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(ranks[0])]
    paired = dict(zip((*right, *right_batch), (*left, *left_batch), strict=True))
    second = [first[paired[d]] if d in paired else next(letters) for d in range(ranks[1])]
    kept = [first[d] for d in (*left_batch, *(d for d in range(ranks[0]) if d not in (*left_batch, *left)))]
    kept += [second[d] for d in range(ranks[1]) if d not in paired]
    subscripts = notation.spelled((("".join(first), "".join(second)), "".join(kept)))
    return Apply("einsum", (Const(subscripts), x, y), named)


@reads("conv_general_dilated")
def _convolved(application: Application) -> Term:
    params = application.params
    numbers = params["dimension_numbers"]
    letters = "DHW"[-(application.rank - 2) :] if application.rank > 2 else ""
    lhs = _letters(numbers.lhs_spec, "NC", letters)
    rhs = _letters(numbers.rhs_spec, "OI", letters)
    out = _letters(numbers.out_spec, "NC", letters)
    wide = str(params.get("preferred_element_type") or application.result)
    given: dict[str, Part] = {
        "lhs_dilation": tuple(params["lhs_dilation"]),
        "rhs_dilation": tuple(params["rhs_dilation"]),
        "dimension_numbers": (lhs, rhs, out),
        "feature_group_count": params["feature_group_count"],
        "batch_group_count": params["batch_group_count"],
    }
    if wide != application.dtype:
        given["preferred_element_type"] = wide
    ones = (1,) * len(letters)
    plain = {"lhs_dilation": ones, "rhs_dilation": ones, "feature_group_count": 1, "batch_group_count": 1}
    keywords = tuple((name, constant(value)) for name, value in given.items() if plain.get(name) != value)
    padding = constant([tuple(map(int, each)) for each in params["padding"]])
    return Apply(
        "conv_general_dilated", (*application.operands, constant(tuple(params["window_strides"])), padding), keywords
    )


def _letters(spec: Sequence[int], first: str, spatial: str) -> str:
    """The letters of a convolution operand's dimensions, in order."""
    places = dict(zip(spec, f"{first}{spatial}", strict=True))
    return "".join(places[d] for d in range(len(spec)))


@reads("ragged_dot_general", "ragged_dot")
def _ragged(application: Application) -> Term:
    numbers = application.params["ragged_dot_dimension_numbers"]
    (summed, batch), (rows, groups) = (
        numbers.dot_dimension_numbers, (numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions),
    )  # fmt: skip
    match [[*map(list, summed)], [*map(list, batch)], list(rows), list(groups)]:
        case [[[1], [1]], [[], []], [0], [0]]:
            return application.made("ragged_dot({x}, {y}, {z})")
        case [[[1], [2]], [[], []], [0], [0]]:
            return application.made("ragged_dot({x}, matrix_transpose({y}), {z})")
        case [[[0], [0]], [[], []], [0], []]:
            # The transpose with respect to the matrices, with a one-hot group of each row.
            ends = application.made("searchsorted(cumsum({z}), arange({n}), side='right')", n=application.shape[0])
            count = application.inputs[2].shape[0]
            group = filled("one_hot({e}, {c}, dtype={t})", e=ends, c=count, t=application.dtype)
            return application.made("einsum('mg,mk,mn->gkn', {g}, {x}, {y})", g=group)
        case _:
            raise Unread(
                f"'ragged_dot_general' with other dimensions than those of ragged_dot and its derivatives: {REFERENCE}"
            )


@reads("cholesky")
def _cholesky(application: Application) -> Term:
    return application.made("cholesky({x}, symmetrize_input=False)")


@reads("eigh")
def _eigh(application: Application) -> Term:
    both = application.named(application.made("eigh({x})"), "eigen")
    return Group((filled("{b}[1]", b=both), filled("{b}[0]", b=both)))


@reads("svd")
def _svd(application: Application) -> Term:
    full = application.params["full_matrices"]
    if not application.params["compute_uv"]:
        return application.made("svdvals({x})")
    both = application.named(application.made("svd({x}, full_matrices={f})", f=full), "svd")
    return Group(tuple(filled("{b}[{n}]", b=both, n=n) for n in (1, 0, 2)))


@reads("qr")
def _qr(application: Application) -> Term:
    return application.made("qr({x}, mode={m})", m="complete" if application.params["full_matrices"] else "reduced")


@reads("geqrf")
def _reflectors(application: Application) -> Term:
    both = application.named(application.made("qr({x}, mode='raw')"), "reflectors")
    return Group((filled("matrix_transpose({b}[0])", b=both), filled("{b}[1]", b=both)))


@reads("householder_product")
def _of_reflectors(application: Application) -> Term:
    return application.made("householder_product({x}, {y})")


@reads("ormqr")
def _reflected(application: Application) -> Term:
    left, transpose = application.params["left"], application.params["transpose"]
    a, taus, c = application.operands
    return filled("ormqr({a}, {f}, {c}, left={l}, transpose={t})", a=a, f=taus, c=c, l=left, t=transpose)


@reads("lu")
def _lu(application: Application) -> Term:
    return application.made("lu({x})")


@reads("lu_pivots_to_permutation")
def _order_of_rows(application: Application) -> Term:
    return application.made("lu_pivots_to_permutation({x}, {n})", n=application.params["permutation_size"])


@reads("triangular_solve")
def _solved(application: Application) -> Term:
    params = application.params
    a, b = application.operands
    if params["conjugate_a"]:
        a = filled("conj({a})", a=a)
    lower, trans = params["lower"], 1 if params["transpose_a"] else 0
    template = "solve_triangular({a}, {b}, trans={t}, lower={l}, unit_diagonal={u})"
    if params["left_side"]:
        return filled(template, a=a, b=b, t=trans, l=lower, u=params["unit_diagonal"])
    turned = filled("matrix_transpose({b})", b=b)
    solved = filled(template, a=a, b=turned, t=1 - trans, l=lower, u=params["unit_diagonal"])
    return filled("matrix_transpose({x})", x=solved)


@reads("fft")
def _fft(application: Application) -> Term:
    kind = str(application.params["fft_type"]).rpartition(".")[2].lower().replace("fft_type.", "")
    lengths = tuple(application.params["fft_lengths"])
    name = {"0": "fft", "1": "ifft", "2": "rfft", "3": "irfft"}.get(kind, kind)
    return filled(f"{name}n({{x}}, {{s}}, {{a}})", x=application.x, s=lengths, a=tuple(range(-len(lengths), 0)))
