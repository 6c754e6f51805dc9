"""Every operation of the table on sharded operands: the expressions that the tests of the programs evaluate."""

ARRAYS = """
arrays:
  A: {shape: [4, 8], init: normal, spec: %(A)s}
  U: {shape: [4, 8], init: "uniform(0.1, 0.9)", spec: %(A)s}
  W: {shape: [4, 8], init: normal, spec: %(W)s}
  B: {shape: [8, 4], init: normal, spec: %(B)s}
  S: {shape: [4, 4], init: normal, spec: %(S)s}
  V: {shape: [8], init: normal, spec: %(V)s}
  T: {shape: [2, 4, 8], init: normal, spec: %(T)s}
  Q: {shape: [2, 4, 2, 4], init: normal, spec: %(Q)s}
  I: {shape: [4, 8], dtype: int32, init: "integers(0, 8)", spec: %(A)s}
  J: {shape: [8], dtype: int32, init: "integers(0, 4)", spec: %(J)s}
  M: {shape: [4, 8], dtype: bool, init: "integers(0, 2)", spec: %(W)s}
  Z: {shape: [4, 8], dtype: complex64, init: normal, spec: %(A)s}
"""

SPECS = (
    {"A": "[x, y]", "W": "[y, x]", "B": "[x, y]", "S": "[x, y]", "V": "[x]", "T": "[x, null, y]", "Q": "[x, y]",
     "J": "[y]"},
    {"A": "[null, [x, y]]", "W": "[x]", "B": "[y, x]", "S": "[null, x]", "V": "[[x, y]]", "T": "[null, [x, y]]",
     "Q": "[null, null, x, y]", "J": "[[y, x]]"},
    {"A": "[[x, y]]", "W": "[null, y]", "B": "[[y, x]]", "S": "[[x, y]]", "V": "[]", "T": "[null, y, x]",
     "Q": "[x, null, y]", "J": "[]"},
)  # fmt: skip
"""Layouts of the arrays: different ones for different operands, tuples of axes, an axis on every kind of dimension."""


def _each(operations: str, *expressions: str) -> dict[str, list[str]]:
    """For each operation, the expressions with its name in the place of `f`."""
    return {name: [e.replace("f(", f"{name}(", 1) for e in expressions] for name in operations.split()}


SAMPLES: dict[str, list[str]] = {
    **_each(
        "add subtract multiply divide true_divide floor_divide mod remainder fmod maximum minimum "
        "fmax fmin copysign hypot logaddexp logaddexp2 arctan2 atan2 equal not_equal less "
        "less_equal greater greater_equal isclose",
        "f(A, U)",
        "f(A, W)",
        "f(A, 2.0)",
    ),
    **_each(
        "square reciprocal negative positive abs absolute sign nan_to_num stop_gradient "
        "optimization_barrier floor ceil trunc rint round exp exp2 expm1 sin cos tan arctan atan "
        "sinh cosh tanh arcsinh sinc deg2rad rad2deg erf erfc logistic isnan isinf isfinite signbit "
        "cbrt rfft fftshift ones_like ravel fliplr flipud rot90 tril triu atleast_1d atleast_3d "
        "relu relu6 sigmoid silu swish gelu softplus log_sigmoid leaky_relu elu selu celu hard_tanh "
        "hard_sigmoid hard_silu hard_swish soft_sign sparse_plus sparse_sigmoid squareplus mish",
        "f(A)",
    ),
    **_each(
        "sqrt log log2 log10 log1p arcsin arccos asin acos arctanh rsqrt erf_inv lgamma digamma",
        "f(U)",
    ),
    **_each(
        "power pow float_power xlogy",
        "f(U, A)",
    ),
    **_each(
        "real imag conj conjugate angle ifft irfft",
        "f(Z)",
    ),
    **_each(
        "logical_and logical_or logical_xor",
        "f(M, A > 0)",
    ),
    **_each(
        "bitwise_and bitwise_or bitwise_xor left_shift right_shift",
        "f(I, 5)",
        "f(I, J)",
    ),
    **_each(
        "bitwise_not invert bitwise_count",
        "f(I)",
    ),
    **_each(
        "sum prod mean var std nansum nanprod nanmean nanmax nanmin max min amax amin ptp any all "
        "count_nonzero median logsumexp logmeanexp norm",
        "f(A)",
        "f(A, axis=0)",
        "f(A, axis=1, keepdims=True)",
        "f(T, axis=(0, 2))",
    ),
    **_each(
        "segment_sum segment_prod segment_max segment_min",
        "f(B, J, num_segments=4)",
    ),
    **_each(
        "argmin cumsum cumprod",
        "f(A)",
        "f(A, axis=0)",
        "f(A, axis=1)",
    ),
    **_each(
        "cummax cummin cumlogsumexp",
        "f(A)",
        "f(A, axis=1)",
        "f(A, axis=0, reverse=True)",
    ),
    **_each(
        "diff trapezoid vector_norm argsort softmax log_softmax standardize glu",
        "f(A)",
        "f(A, axis=0)",
    ),
    "divmod": ["divmod(A, U)[0]", "divmod(A, U)[1]"],
    "arccosh": ["arccosh(U + 1.5)"],
    "clip": ["clip(A, -0.5, 0.5)", "clip(A, min=W)"],
    "allclose": ["allclose(A, A)"],
    "array_equal": ["array_equal(A, U)"],
    "logical_not": ["logical_not(M)"],
    "average": ["average(A, axis=0)", "average(A, axis=1, weights=V)"],
    "argmax": ["argmax(A)", "argmax(A, axis=0)", "argmax(A, axis=1, keepdims=True)"],
    "quantile": ["quantile(A, 0.3)", "quantile(A, 0.3, axis=0)", "quantile(A, 0.3, axis=1)"],
    "percentile": ["percentile(A, 30.0, axis=1)"],
    "matmul": ["matmul(A, B)", "matmul(A, V)", "matmul(T, B)", "A @ B", "V @ B", "T @ B"],
    "dot": ["dot(A, B)", "dot(A, V)", "dot(T, B)", "dot(V, V)", "dot(A, 2.0)"],
    "vdot": ["vdot(A, U)"],
    "inner": ["inner(A, U)", "inner(A, V)"],
    "tensordot": ["tensordot(A, B, axes=1)", "tensordot(A, U)", "tensordot(A, T, axes=((0, 1), (1, 2)))"],
    "einsum": [
        "einsum('ij,jk->ik', A, B)",
        "einsum('ij,jk', A, B)",
        "einsum('ij,ij->i', A, U)",
        "einsum('bij,jk->bik', T, B)",
        "einsum('...ij,jk->...ik', T, B)",
        "einsum('ij->ji', A)",
        "einsum('ii->i', S)",
        "einsum('ij,jk,kl->il', A, B, A)",
        "einsum('ij->', A)",
    ],
    "vecdot": ["vecdot(A, U)"],
    "matvec": ["matvec(A, V)"],
    "vecmat": ["vecmat(V, B)"],
    "outer": ["outer(V, V)"],
    "kron": ["kron(S, S)"],
    "cross": ["cross(A[:, :3], U[:, :3])"],
    "trace": ["trace(S)", "trace(T, axis1=1, axis2=2)"],
    "convolve": ["convolve(V, V)", "convolve(V, V, mode='same')"],
    "correlate": ["correlate(V, V)"],
    "polyval": ["polyval(V, A)"],
    "vander": ["vander(V, 3)"],
    "inv": ["inv(S @ S.T + 4 * eye(4))", "inv(S + 4 * eye(4))"],
    "det": ["det(S)"],
    "slogdet": ["slogdet(S)[1]"],
    "solve": ["solve(S + 4 * eye(4), S)"],
    "cholesky": ["cholesky(S @ S.T + 4 * eye(4))"],
    "solve_triangular": ["solve_triangular(S + 4 * eye(4), S)"],
    "matrix_power": ["matrix_power(S, 3)"],
    "svdvals": ["svdvals(S)"],
    "eigvalsh": ["eigvalsh(S + S.T)"],
    "fft": ["fft(A)", "abs(fft(A, axis=0))"],
    "ifftshift": ["ifftshift(A, axes=0)"],
    "zeros": ["A + zeros((4, 8))"],
    "ones": ["A * ones((4, 8))"],
    "full": ["A + full((4, 8), 2.0)"],
    "zeros_like": ["zeros_like(A) + 1"],
    "full_like": ["full_like(A, 3)"],
    "eye": ["S + eye(4)"],
    "identity": ["identity(4) @ S"],
    "tri": ["S * tri(4)"],
    "arange": ["A + arange(8)"],
    "linspace": ["A + linspace(0, 1, 8)"],
    "iota": ["V + iota('float32', 8)"],
    "broadcasted_iota": ["A + broadcasted_iota('float32', (4, 8), 1)"],
    "array": ["V + array([1, 2, 3, 4, 5, 6, 7, 8])", "array([sum(A), sum(U)])"],
    "asarray": ["asarray(A, 'float32')"],
    "astype": ["astype(A, 'int32')"],
    "meshgrid": ["meshgrid(V, V)[0]"],
    "reshape": [
        "reshape(A, (8, 4))",
        "reshape(A, (-1,))",
        "reshape(A, (2, 2, 8))",
        "reshape(T, (8, 8))",
        "reshape(A, (4, 2, 4))",
        "reshape(T, (2, 32))",
    ],
    "transpose": ["transpose(A)", "transpose(T, (2, 0, 1))", "A.T"],
    "permute_dims": ["permute_dims(T, (2, 0, 1))"],
    "matrix_transpose": ["matrix_transpose(T)"],
    "swapaxes": ["swapaxes(T, 0, 2)"],
    "moveaxis": ["moveaxis(T, 0, 2)"],
    "expand_dims": ["expand_dims(A, 1)"],
    "squeeze": ["squeeze(expand_dims(A, 1), 1)"],
    "broadcast_to": ["broadcast_to(A, (2, 4, 8))", "broadcast_to(V, (4, 8))"],
    "concatenate": ["concatenate([A, U], axis=0)", "concatenate((A, U), axis=1)", "concatenate([A, W], axis=0)"],
    "concat": ["concat([A, U], axis=1)"],
    "stack": ["stack([A, U])", "stack([A, U, W], axis=1)"],
    "vstack": ["vstack([A, U])"],
    "hstack": ["hstack([A, U])"],
    "dstack": ["dstack([A, U])"],
    "column_stack": ["column_stack([A, U])"],
    "append": ["append(A, U, axis=0)", "append(V, V)", "append(A, U)"],
    "split": ["split(A, 2)[1]", "split(A, 2, axis=1)[0]"],
    "array_split": ["array_split(A, 3, axis=1)[2]"],
    "hsplit": ["hsplit(A, 2)[0]"],
    "vsplit": ["vsplit(A, 2)[0]"],
    "unstack": ["unstack(A)[1]"],
    "tile": ["tile(A, (2, 1))", "tile(A, 2)"],
    "repeat": ["repeat(A, 2, axis=0)", "repeat(A, 2, axis=1)", "repeat(A, 2)"],
    "flip": ["flip(A)", "flip(A, axis=1)"],
    "roll": ["roll(A, 1)", "roll(A, 1, axis=0)", "roll(A, 1, axis=1)"],
    "pad": ["pad(A, 1)", "pad(A, ((0, 4), (0, 0)))", "pad(A, ((0, 0), (2, 2)))"],
    "diag": ["diag(S)", "diag(V)"],
    "diagonal": ["diagonal(S)"],
    "atleast_2d": ["atleast_2d(V)"],
    "slice": ["slice(A, (0, 2), (4, 6))", "slice(A, (0, 0), (2, 8))"],
    "slice_in_dim": ["slice_in_dim(A, 2, 6, axis=1)"],
    "index_in_dim": ["index_in_dim(A, 1)", "index_in_dim(A, 1, axis=1, keepdims=False)"],
    "dynamic_slice": [
        "dynamic_slice(A, (1, 2), (2, 4))",
        "dynamic_slice(A, (0, J[0]), (4, 4))",
        "dynamic_slice(A, (J[0], 0), (2, 8))",
    ],
    "dynamic_update_slice": [
        "dynamic_update_slice(A, U[:2, :4], (1, 2))",
        "dynamic_update_slice(A, W[:2], (J[1], 0))",
        "dynamic_update_slice(A, U[:2], (J[1], 0))",
    ],
    "dynamic_slice_in_dim": ["dynamic_slice_in_dim(A, J[0], 4, axis=1)", "dynamic_slice_in_dim(A, J[0], 2)"],
    "dynamic_update_slice_in_dim": [
        "dynamic_update_slice_in_dim(A, U[:2], J[1], 0)",
        "dynamic_update_slice_in_dim(A, U[:, :2], J[1], axis=1)",
    ],
    "dynamic_index_in_dim": ["dynamic_index_in_dim(A, J[0], axis=1)", "dynamic_index_in_dim(A, J[0])"],
    "dynamic_update_index_in_dim": [
        "dynamic_update_index_in_dim(A, U[0], J[0], 0)",
        "dynamic_update_index_in_dim(A, U[:, 0], J[0], 1)",
    ],
    "take": ["take(A, J)", "take(B, J, axis=0)", "take(A, J, axis=1)", "take(V, I)"],
    "take_along_axis": ["take_along_axis(A, I, axis=1)", "take_along_axis(A, I % 4, axis=0)"],
    "where": ["where(M, A, U)", "where(A > 0, A, 0)", "where(M, A, W)"],
    "select": ["select([M, A > 0], [A, U])"],
    "one_hot": ["one_hot(J, 4)", "one_hot(I, 8)"],
    "sort": ["sort(A)", "sort(A, axis=0)", "sort(A, axis=None)"],
    "top_k": ["top_k(A, 2)[0]", "top_k(A, 2)[1]"],
    "searchsorted": ["searchsorted(sort(V), A)"],
    "digitize": ["digitize(A, sort(V))"],
    "bincount": ["bincount(J, length=4)"],
    "interp": ["interp(A, sort(V), V)"],
    "dot_product_attention": ["dot_product_attention(Q, Q, Q)", "dot_product_attention(Q, Q, Q, is_causal=True)"],
    "shape": ["A * shape(A)[1]"],
    "ndim": ["A * ndim(A)"],
    "size": ["A / size(A)"],
    "key": ["key_data(key(3))", "normal(key(0), (4, 8)) + A"],
    "PRNGKey": ["normal(PRNGKey(3), (4, 8)) + A"],
    "key_data": ["key_data(key(3))"],
    "fold_in": ["uniform(fold_in(key(0), J[0]), (4, 8)) * A"],
    "split_key": ["normal(split_key(key(0))[1], (4, 8)) + A", "key_data(split_key(key(0), 4))"],
    "bits": ["bits(key(0), (4,))"],
    "uniform": ["uniform(key(0), (8,)) + V"],
    "normal": ["normal(key(0), (8,)) * V"],
    "exponential": ["exponential(key(1), (8,))"],
    "gumbel": ["gumbel(key(1), (8,))"],
    "categorical": ["categorical(key(0), A)"],
    "bernoulli": ["bernoulli(key(0), 0.3, (4, 8))", "bernoulli(key(0), U)"],
    "randint": ["randint(key(0), (8,), 0, 9)"],
    "permutation": ["permutation(key(0), V)", "permutation(key(0), A)"],
    "subscript": [
        "A[0]",
        "A[:, 0]",
        "A[-1, 3]",
        "A[1:3]",
        "A[:, ::2]",
        "A[:, ::-1]",
        "A[J]",
        "A[:, J]",
        "A[J % 4, J]",
        "A[None]",
        "A[J[0]]",
        "A[:, J[0]]",
        "A[0, 1:3]",
        "V[I]",
        "T[:, 1]",
        "A[(J % 4)[:, None], J]",
        "T[J % 2, :, J]",
    ],
    "operators": [
        "A + V",
        "A - W",
        "-A",
        "A ** 2",
        "A // 2",
        "A % 3",
        "A < V",
        "A == W",
        "~M",
        "M & (A > 0)",
        "M | M",
        "M ^ M",
        "I << 1",
        "I >> 1",
        "2 / U",
        "A * T",
        "A + B.T",
        "A * sum(A)",
        "A - mean(A, axis=0)",
        "A - max(A, axis=1, keepdims=True)",
        "A + V[:, None].T",
    ],
}
"""The expressions of each operation; the last two are of subscripts and operators."""
