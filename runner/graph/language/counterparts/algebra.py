"""NumPy counterparts of JAX's contractions, linear algebra and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runner.base.untyped import is_sequence, is_tuple
from runner.graph.language import notation
from runner.graph.language.counterparts.promotion import array, common, floating, preferred
from runner.graph.language.notation import Labels, spelled

# Typed loosely: NumPy's stubs take `mode` only as a literal.
_convolve: Callable[..., Any] = np.convolve
_correlate: Callable[..., Any] = np.correlate

# Contractions.


def matmul(a: Any, b: Any, *, preferred_element_type: Any = None) -> Any:
    """`jnp.matmul`, `@`: integers are summed in their own dtype and wrap; booleans give booleans."""
    return np.matmul(*preferred(common(a, b), preferred_element_type))


def product(labels_of: Callable[[Sequence[Any]], notation.Labels | None]) -> Callable[..., Any]:
    """The counterpart of a product of two arrays by the function of `notation.py` that labels its dimensions."""

    def multiply(a: Any, b: Any, *axes: Any, preferred_element_type: Any = None) -> Any:
        a, b = preferred(common(a, b), preferred_element_type)
        labels = labels_of((a, b, *(part for axis in axes for part in (axis if is_sequence(axis) else [axis]))))
        return np.multiply(a, b) if labels is None else contract(labels, a, b)

    return multiply


def einsum(subscripts: str, /, *operands: Any, preferred_element_type: Any = None) -> Any:
    """`jnp.einsum` with string subscripts, pair by pair; dimensions that only one operand has are summed first."""
    arrays = preferred(common(*operands), preferred_element_type)
    inputs, result = notation.parsed(notation.in_ascii(subscripts), [operand.ndim for operand in arrays])
    terms = list(inputs)
    path: list[Any] = [tuple(range(len(arrays)))]
    if len(arrays) > 2:
        path = np.einsum_path(notation.spelled((terms, result)), *arrays, optimize="greedy")[0][1:]
    for places in path:
        taken = [(terms.pop(place), arrays.pop(place)) for place in sorted(places, reverse=True)]
        later = set(result).union(*terms)
        reduced: list[tuple[str, Any]] = []
        for at, (term, value) in reversed([*enumerate(taken)]):
            read = later.union(*(other for place, (other, _) in enumerate(taken) if place != at))
            kept = "".join(name for name in dict.fromkeys(term) if name in read)
            reduced.append((kept, value if kept == term else np.einsum(notation.spelled(([term], kept)), value)))
        names = dict.fromkeys("".join(term for term, _ in reduced))
        left = "".join(name for name in names if name in later) if terms else result
        arrays.append(contract(([term for term, _ in reduced], left), *(value for _, value in reduced)))
        terms.append(left)
    return arrays[0]


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any, *, preferred_element_type: Any = None) -> Any:
    """`jax.lax.ragged_dot`: each group of rows times its matrix; rows outside all groups give zeros."""
    lhs, rhs = preferred(common(lhs, rhs), preferred_element_type)
    ends = np.minimum(np.cumsum(np.asarray(group_sizes, np.int64)), len(lhs))
    starts = [0, *ends[:-1]]
    blocks = [np.matmul(lhs[start:end], matrix) for start, end, matrix in zip(starts, ends, rhs, strict=True)]
    rest = np.zeros_like(lhs, shape=(len(lhs) - int(ends[-1]), rhs.shape[-1]))
    return np.concatenate([*blocks, rest])


def kron(a: Any, b: Any) -> Any:
    """`jnp.kron`."""
    return np.kron(*common(a, b))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """`jnp.cross`, for vectors of two or three elements."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = common(a, b)
    u, v = (np.moveaxis(vectors, which, 0) for vectors, which in ((a, axisa), (b, axisb)))
    if len(u) == len(v) == 2:
        return u[0] * v[1] - u[1] * v[0]
    # The third element of a vector of two is 0.
    u, v = ((*vector, 0 * vector[0]) if len(vector) == 2 else vector for vector in (u, v))
    # `np.cross` would lose the rounding of `Rounded` arrays.
    parts = [u[i] * v[j] - u[j] * v[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return np.stack(parts, axisc)


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """`jnp.convolve`: integers are converted to floats."""
    return _convolve(floating(a), floating(v), mode=mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """`jnp.correlate`: integers are converted to floats."""
    return _correlate(floating(a), floating(v), mode=mode)


def polyval(p: Any, x: Any) -> Any:
    """`jnp.polyval`, by Horner's rule in the operands' common dtype."""
    p, x = common(p, x)
    total = np.zeros_like(x)
    for coefficient in p:
        total = total * x + coefficient
    return total


def of_matrices_too(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose operands may be matrices, of heads and width: one query and one key for each head, as in JAX."""

    def computed(query: Any, key: Any, value: Any, *others: Any, **named: Any) -> Any:
        if np.ndim(query) > 2:
            return attention(query, key, value, *others, **named)
        several = (np.expand_dims(operand, 0) for operand in (query, key, value))
        return np.reshape(attention(*several, *others, **named), np.shape(query))

    return computed


# Linear algebra. JAX gives NaN where LAPACK gives up; NumPy raises.


def _or_nan(function: Callable[..., Any], *arrays: Any) -> Any:
    try:
        return function(*arrays)
    except np.linalg.LinAlgError:
        if arrays[0].ndim == 2:
            shape = arrays[-1].shape
            return np.full(shape, np.nan, arrays[-1].dtype)
        batch = np.broadcast_shapes(*(operand.shape[:-2] for operand in arrays))
        spread = [np.broadcast_to(operand, batch + operand.shape[-2:]) for operand in arrays]
        return np.stack([_or_nan(function, *matrices) for matrices in zip(*spread, strict=True)])


def inv(a: Any) -> Any:
    """`jnp.linalg.inv`."""
    return _or_nan(np.linalg.inv, floating(a))


def det(a: Any) -> Any:
    """`jnp.linalg.det`."""
    return np.linalg.det(floating(a))


def slogdet(a: Any) -> tuple[Any, Any]:
    """`jnp.linalg.slogdet`: the sign, and the logarithm of the absolute determinant."""
    sign, logarithm = np.linalg.slogdet(floating(a))
    return sign, logarithm


def solve(a: Any, b: Any) -> Any:
    """`jnp.linalg.solve`: `b` is a vector only if it has one dimension."""
    a, b = common(floating(a), floating(b))
    return _or_nan(np.linalg.solve, a, b[:, None])[..., 0] if b.ndim == 1 else _or_nan(np.linalg.solve, a, b)


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """`jnp.linalg.cholesky`: a matrix that is not positive definite gives NaN in the triangle."""
    a = floating(a)
    if symmetrize_input:
        a = (a + np.conj(np.swapaxes(a, -1, -2))) / 2
    elif upper:
        a = np.conj(np.swapaxes(a, -1, -2))
    lower = np.tril(_or_nan(np.linalg.cholesky, a))
    return np.conj(np.swapaxes(lower, -1, -2)) if upper else lower


def solve_triangular(a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    """`jax.scipy.linalg.solve_triangular`: the other triangle of `a` is not read."""
    a, b = common(floating(a), floating(b))
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        order = np.arange(a.shape[-1], dtype=np.intp)
        a = a.copy()
        a[..., order, order] = 1
    if trans not in (0, "N"):
        a = np.swapaxes(a, -1, -2)
    return solve(np.conj(a) if trans in (2, "C") else a, b)


def lu(x: Any) -> tuple[Any, Any, Any]:
    """`jax.lax.linalg.lu`: both triangles in one matrix, the pivots, and the permutation of the rows."""
    a = np.array(floating(x))
    rows, columns = a.shape[-2:]
    steps = min(rows, columns)
    matrices = a.reshape(-1, rows, columns)
    pivots = np.zeros((len(matrices), steps), np.int32)
    with np.errstate(all="ignore"):
        for matrix, swaps in zip(matrices, pivots, strict=True):
            for step in range(steps):
                column: Any = matrix[step:, step]
                swaps[step] = row = step + int(np.argmax(np.abs(column.real) + np.abs(column.imag)))
                matrix[[step, row]] = matrix[[row, step]]
                if matrix[step, step] != 0:
                    matrix[step + 1 :, step] /= matrix[step, step]
                matrix[step + 1 :, step + 1 :] -= np.outer(matrix[step + 1 :, step], matrix[step, step + 1 :])
    swapped = pivots.reshape(*a.shape[:-2], steps)
    return a, swapped, lu_pivots_to_permutation(swapped, rows)


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """`jax.lax.linalg.lu_pivots_to_permutation`: the order of the rows after these swaps, in turn.

    As in JAX, a row number out of range reads the nearest row and writes nothing.
    """
    pivots = array(pivots)
    swaps = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    orders = np.tile(np.arange(permutation_size, dtype=np.int32), (len(swaps), 1))
    for order, rows in zip(orders, swaps, strict=True):
        for step, row in enumerate(rows):
            at = row + permutation_size if row < 0 else row
            read = order[np.clip(at, 0, permutation_size - 1)]
            if 0 <= at < permutation_size:
                order[at] = order[step]
            order[step] = read
    return orders.reshape(*pivots.shape[:-1], permutation_size)


def matrix_power(a: Any, n: int) -> Any:
    """`jnp.linalg.matrix_power`, by repeated products: integers wrap."""
    a = array(a)
    if n == 0:
        return np.array(np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape))
    square, result = a if n > 0 else inv(a), None
    with np.errstate(all="ignore"):
        for place, bit in enumerate(f"{abs(n):b}"[::-1]):
            square = np.matmul(square, square) if place else square
            if bit == "1":
                result = square if result is None else np.matmul(result, square)
    return result


def svd(a: Any, full_matrices: bool = True) -> tuple[Any, Any, Any]:
    """`jnp.linalg.svd`: the signs of the columns of `u` and the rows of `vh` are not determined."""
    u, s, vh = _of_finite(lambda matrices: np.linalg.svd(matrices, full_matrices=full_matrices), floating(a))
    return u, s, vh


def block_diag(*arrs: Any) -> Any:
    """`jax.scipy.linalg.block_diag`: a vector is a row."""
    blocks = [np.atleast_2d(block) for block in common(*arrs)]
    rows, columns = (sum(block.shape[d] for block in blocks) for d in (0, 1))
    matrix = np.zeros_like(blocks[0], shape=(rows, columns))
    row = column = 0
    for block in blocks:
        matrix[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return matrix


def qr(a: Any, mode: str = "reduced") -> Any:
    """`jnp.linalg.qr`, with LAPACK's signs; `raw` gives its reflectors, as rows, and their factors."""
    if mode == "r":
        return np.linalg.qr(floating(a), "r")
    q, r = np.linalg.qr(floating(a), mode if mode in ("complete", "raw") else "reduced")
    return q, r


def householder_product(a: Any, taus: Any) -> Any:
    """`jax.lax.linalg.householder_product`: the first columns of the product of the reflectors."""
    a, taus = common(a, taus)
    return ormqr(a, taus, np.broadcast_to(np.eye(*a.shape[-2:], dtype=a.dtype), a.shape))


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """`jax.lax.linalg.ormqr`: `c` times the product of the reflectors in the columns of `a`, one after the other."""
    a, taus, c = common(a, taus, c)
    if not left:
        turned = ormqr(a, taus, np.conj(np.swapaxes(c, -1, -2)), transpose=not transpose)
        return np.conj(np.swapaxes(turned, -1, -2))
    factors = np.conj(taus) if transpose else taus
    steps = range(taus.shape[-1])
    with np.errstate(all="ignore"):
        for step in steps if transpose else reversed(steps):
            reflector = np.tril(a, -1)[..., step : step + 1] + np.eye(a.shape[-2], dtype=a.dtype)[:, step : step + 1]
            share = np.matmul(np.conj(np.swapaxes(reflector, -1, -2)), c)
            c = c - factors[..., step, None, None] * np.matmul(reflector, share)
    return c


def eigh(a: Any) -> tuple[Any, Any]:
    """`jnp.linalg.eigh`: ascending eigenvalues, and eigenvectors in columns, whose signs are not determined."""
    a = floating(a)
    values, vectors = _of_finite(np.linalg.eigh, (a + np.conj(np.swapaxes(a, -1, -2))) / 2)
    return values, vectors


def _of_finite(function: Callable[[Any], Sequence[Any]], matrices: Any) -> Sequence[Any]:
    """The results of `function` for a stack of matrices; those that are not finite, on which LAPACK fails, give NaN."""
    finite = np.isfinite(matrices).all(axis=(-2, -1))
    if finite.all():
        return function(matrices)
    results = function(np.where(finite[..., None, None], matrices, 0))
    return [
        np.where(np.expand_dims(finite, tuple(range(finite.ndim, result.ndim))), result, np.nan) for result in results
    ]


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """`jnp.linalg.norm`, by JAX's formulas."""
    x = floating(x)
    axes: tuple[int, ...] = tuple(range(x.ndim)) if axis is None else axis if is_tuple(axis) else (axis,)
    if (axis is None and ord is None) or (len(axes) == 2 and ord in (None, "f", "fro")):
        return _euclidean(x, axes, keepdims)
    if len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)
    if ord not in (1, -1, np.inf, -np.inf):
        return np.linalg.norm(x, ord=ord, axis=axis, keepdims=keepdims)
    along, choose = axes[0 if abs(ord) == 1 else 1], np.max if ord > 0 else np.min
    length = choose(np.sum(np.abs(x), axis=along, keepdims=True), axis=axes, keepdims=True)
    return length if keepdims else np.squeeze(length, axes)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """`jnp.linalg.vector_norm`, by JAX's formulas."""
    x = floating(x)
    axis = tuple(axis) if is_sequence(axis) else axis
    if ord is None or ord == 2:
        return _euclidean(x, axis, keepdims)
    if ord in (np.inf, -np.inf):
        return (np.max if ord > 0 else np.min)(np.abs(x), axis=axis, keepdims=keepdims)
    if ord == 0:
        return np.sum(x != 0, axis=axis, keepdims=keepdims).astype(np.float64)
    powers = np.sum(np.abs(x) if ord == 1 else np.abs(x) ** ord, axis=axis, keepdims=keepdims)
    return powers if ord == 1 else powers ** (1 / ord)


def _euclidean(x: Any, axis: Any, keepdims: bool) -> Any:
    with np.errstate(all="ignore"):
        return np.sqrt(np.sum((x * np.conj(x)).real, axis=axis, keepdims=keepdims))


# Fourier transforms.


def fourier(function: Callable[..., Any]) -> Callable[..., Any]:
    """The counterpart of a transform along one axis, by a function of `np.fft`."""

    def transform(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        return function(floating(a), n=n, axis=axis, norm=norm)

    return transform


def fouriers(function: Callable[..., Any], default: tuple[int, ...] | None = None) -> Callable[..., Any]:
    """The counterpart of a transform along several axes, by default `default` or all."""

    def transform(a: Any, s: Any = None, axes: Any = default, norm: str | None = None) -> Any:
        a = floating(a)
        if axes is None:
            axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
        return function(a, s=s, axes=tuple(axes), norm=norm)

    return transform


def fftfreq(n: int, d: float = 1.0) -> Any:
    """`jnp.fft.fftfreq`; NumPy divides by zero for `n` = 0."""
    return np.fft.fftfreq(n, d) if n else np.zeros(0)


def rfftfreq(n: int, d: float = 1.0) -> Any:
    """`jnp.fft.rfftfreq`; for `n` = 0 it is 0 / 0, for which NumPy raises."""
    return np.fft.rfftfreq(n, d) if n else np.full(1, np.nan)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """`jnp.vander`, in the dtype of `x`."""
    x = array(x)
    exponents = np.arange(len(x) if N is None else N)
    with np.errstate(all="ignore"):
        return np.power(x[:, None], (exponents if increasing else exponents[::-1]).astype(x.dtype))


def contract(labels: Labels, *operands: Any) -> Any:
    """`np.einsum`, but as a batched matrix product for two plain arrays of floats.

    NumPy multiplies two operands element by element, which takes a minute where BLAS takes a second; with `optimize` it
    uses BLAS only where there is no batch dimension.

    - `labels`: those of the operands and of the result.
    - `operands`: arrays; those of a subclass (`Rounded`) go to `np.einsum`, which dispatches to their class.
    """
    inputs, result = labels
    if len(operands) == 2 and all(type(operand) is np.ndarray and operand.dtype.kind in "fc" for operand in operands):
        first, second = inputs
        distinct = all(len(set(names)) == len(names) for names in inputs)
        # A matrix product needs summed dimensions, and each of them in both operands.
        if distinct and set(first) ^ set(second) <= set(result) and set(first) & set(second) - set(result):
            return _multiplied(first, second, result, *operands)
    return np.einsum(spelled(labels), *operands)


def _multiplied(first: str, second: str, result: str, a: Any, b: Any) -> Any:
    """Multiply as matrices: shared dimensions that the result keeps are batch dimensions, the others are summed."""
    size: dict[str, int] = {}
    for name, length in zip(first + second, a.shape + b.shape, strict=True):
        size[name] = max(length, size.get(name, 1)) if length else 0
    batch = [name for name in result if name in first and name in second]
    summed = [name for name in first if name not in result]
    rows = [name for name in result if name in first and name not in second]
    columns = [name for name in result if name in second and name not in first]

    def matrix(names: str, value: Any, *groups: list[str]) -> Any:
        # A dimension of size 1 in one operand serves all of the other's.
        value = np.broadcast_to(value, [size[name] for name in names])
        turned = value.transpose([names.index(name) for group in (batch, *groups) for name in group])
        lengths = (math.prod(size[name] for name in group) for group in groups)
        return turned.reshape(*(size[name] for name in batch), *lengths)

    product = np.matmul(matrix(first, a, rows, summed), matrix(second, b, summed, columns))
    order = [*batch, *rows, *columns]
    return product.reshape([size[name] for name in order]).transpose([order.index(name) for name in result])
