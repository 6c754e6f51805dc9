"""Solvers, samplers, distributions and other numerics of public libraries."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.public.subject import Call, normal, public

B = P("data")
POSITIVE = normal(0, 8, 8) @ normal(0, 8, 8).T + 8 * jnp.eye(8)


@public("numpyro", "infer.util.log_density of a regression")
def _(_: Path) -> Call:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, x @ w, scale), obs=y)

    def density(w, scale, x, y):
        return log_density(model, (x, y), {}, {"w": w, "scale": scale})[0]

    return Call(density, (normal(0, 4), jnp.float32(0.5), normal(1, 8, 4), normal(2, 8)), (P(), P(), B, B))


@public("numpyro", "distributions.MultivariateNormal.log_prob")
def _(_: Path) -> Call:
    import numpyro.distributions as dist

    return Call(
        lambda x, loc, cov: dist.MultivariateNormal(loc, covariance_matrix=cov).log_prob(x),
        (normal(1, 6, 8), normal(2, 8), POSITIVE), (B, P(), P()),
    )  # fmt: skip


@public("numpyro", "distributions.transforms.CorrCholeskyTransform")
def _(_: Path) -> Call:
    from numpyro.distributions.transforms import CorrCholeskyTransform

    return Call(jax.vmap(CorrCholeskyTransform()), (normal(0, 4, 6),), (B,))


@public("diffrax", "diffeqsolve by Tsit5, eight fixed steps")
def _(_: Path) -> Call:
    import diffrax

    def solved(y, rate):
        term = diffrax.ODETerm(lambda t, y, rate: -rate * y + jnp.sin(t))
        return diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.125, y, args=rate, max_steps=8, throw=False,
            adjoint=diffrax.DirectAdjoint(),
        ).ys  # fmt: skip

    return Call(solved, (normal(0, 8), jnp.abs(normal(1, 8))), (B, B))


@public("distrax", "MultivariateNormalTri.log_prob")
def _(_: Path) -> Call:
    import distrax

    return Call(
        lambda x, loc, scale: distrax.MultivariateNormalTri(loc, scale).log_prob(x),
        (normal(0, 6, 8), normal(1, 8), jnp.linalg.cholesky(POSITIVE)), (B, P(), P()),
    )  # fmt: skip


@public("distrax", "RationalQuadraticSpline.forward_and_log_det")
def _(_: Path) -> Call:
    import distrax

    return Call(
        lambda x, params: distrax.RationalQuadraticSpline(params, -2.0, 2.0).forward_and_log_det(x),
        (normal(0, 8), normal(1, 8, 13)), (B, B),
    )  # fmt: skip


@public("ott", "solvers.linear.solve, ten iterations")
def _(_: Path) -> Call:
    from ott.geometry import pointcloud
    from ott.solvers import linear

    def cost(x, y):
        solution = linear.solve(
            pointcloud.PointCloud(x, y, epsilon=1.0), min_iterations=10, max_iterations=10, inner_iterations=10
        )
        return solution.reg_ot_cost

    return Call(cost, (normal(0, 8, 3), normal(1, 6, 3)), (B, P()))


@public("blackjax", "hmc.build_kernel, a step of four leapfrogs")
def _(_: Path) -> Call:
    import blackjax

    def density(x):
        return -0.5 * (x**2).sum() - (jnp.roll(x, 1) * x).sum() / 4

    algorithm = blackjax.hmc(density, 0.1, jnp.ones(8), 4)
    return Call(
        lambda key, x: algorithm.step(key, algorithm.init(x))[0].position, (jax.random.PRNGKey(0), normal(0, 8)),
        (P(), B),
    )  # fmt: skip


@public("blackjax", "smc.resampling.systematic")
def _(_: Path) -> Call:
    from blackjax.smc import resampling

    weights = jax.nn.softmax(normal(0, 8))
    return Call(lambda key, w: resampling.systematic(key, w, 8), (jax.random.PRNGKey(1), weights), (P(), B))


@public("lineax", "linear_solve by Cholesky")
def _(_: Path) -> Call:
    import lineax

    def solved(matrix, vector):
        operator = lineax.MatrixLinearOperator(matrix, lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, vector, lineax.Cholesky(), throw=False).value

    return Call(solved, (POSITIVE, normal(1, 8)), (B, P()))


@public("lineax", "linear_solve by CG")
def _(_: Path) -> Call:
    import lineax

    def solved(matrix, vector):
        operator = lineax.MatrixLinearOperator(matrix, lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, vector, lineax.CG(rtol=1e-4, atol=1e-4), throw=False).value

    return Call(solved, (POSITIVE, normal(1, 8)), (B, P()))


@public("optimistix", "least_squares by LevenbergMarquardt")
def _(_: Path) -> Call:
    import optimistix

    def fitted(start, x, y):
        def residual(p, args):
            x, y = args
            return p[0] * jnp.tanh(p[1] * x) - y

        solver = optimistix.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
        return optimistix.least_squares(residual, solver, start, (x, y), max_steps=4, throw=False).value

    x = jnp.linspace(-1.0, 1.0, 8)
    return Call(fitted, (jnp.array([1.0, 1.0]), x, 1.5 * jnp.tanh(0.7 * x)), (P(), B, B))


@public("jaxopt", "projection.projection_simplex")
def _(_: Path) -> Call:
    from jaxopt import projection

    return Call(jax.vmap(projection.projection_simplex), (normal(0, 8, 6),), (B,))


@public("jaxopt", "loss.multiclass_sparsemax_loss")
def _(_: Path) -> Call:
    from jaxopt import loss

    labels = jax.random.randint(jax.random.key(0), (8,), 0, 6)
    return Call(jax.vmap(loss.multiclass_sparsemax_loss), (labels, normal(0, 8, 6)), (B, B))


@public("evosax", "OpenES.ask")
def _(_: Path) -> Call:
    from evosax.algorithms import Open_ES

    strategy = Open_ES(population_size=8, solution=jnp.zeros(4))
    params = strategy.default_params
    state = strategy.init(jax.random.PRNGKey(0), jnp.zeros(4), params)
    return Call(lambda key, mean: strategy.ask(key, state.replace(mean=mean), params)[0],
                (jax.random.PRNGKey(1), normal(0, 4)), (P(), P()))  # fmt: skip


@public("gymnax", "CartPole.step")
def _(_: Path) -> Call:
    import gymnax

    environment, params = gymnax.make("CartPole-v1")
    _, state = environment.reset(jax.random.PRNGKey(0), params)

    def stepped(key, force):
        return environment.step(key, state, force, params)[0]

    return Call(stepped, (jax.random.PRNGKey(1), jnp.int32(1)), (P(), P()))


@public("tinygp", "GaussianProcess.log_probability")
def _(_: Path) -> Call:
    import tinygp

    def density(x, y, scale):
        kernel = tinygp.kernels.Matern32(scale)
        return tinygp.GaussianProcess(kernel, x, diag=0.1).log_probability(y)

    return Call(density, (jnp.linspace(0.0, 1.0, 8), normal(0, 8), jnp.float32(0.5)), (B, B, P()))


@public("interpax", "interp1d, cubic")
def _(_: Path) -> Call:
    import interpax

    x = jnp.linspace(0.0, 1.0, 9)
    return Call(lambda xq, f: interpax.interp1d(xq, x, f, method="cubic"), (jnp.linspace(0.1, 0.9, 8), normal(0, 9)), (B, P()))  # noqa: E501  # fmt: skip


@public("jaxlie", "SE3.exp, its inverse and log")
def _(_: Path) -> Call:
    import jaxlie

    return Call(jax.vmap(lambda t: jaxlie.SE3.exp(t).inverse().log()), (normal(0, 8, 6) / 2,), (B,))


@public("orthax", "chebyshev.chebval")
def _(_: Path) -> Call:
    from orthax import chebyshev

    return Call(chebyshev.chebval, (jnp.linspace(-1.0, 1.0, 8), normal(0, 6)), (B, P()))


@public("e3nn", "spherical_harmonics of degree 3")
def _(_: Path) -> Call:
    import e3nn_jax as e3nn

    return Call(
        lambda x: e3nn.spherical_harmonics([1, 2, 3], e3nn.IrrepsArray("1o", x), normalize=True).array,
        (normal(0, 8, 3),), (B,),
    )  # fmt: skip


@public("e3nn", "tensor_product")
def _(_: Path) -> Call:
    import e3nn_jax as e3nn

    irreps = e3nn.Irreps("2x0e + 1x1o")
    return Call(
        lambda x, y: e3nn.tensor_product(e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray(irreps, y)).array,
        (normal(0, 8, 5), normal(1, 8, 5)), (B, B),
    )  # fmt: skip
