"""Leave-one-out densities of labels that are not Gaussian: an integral over the outputs of the example.

Gaussian labels have theirs in `kernels.conditionals`. `arviz_stats.loo` finds Pareto k from `bayesattn.with_groups`.

Given U and the outputs of the other examples, f_i is Gaussian: f_i = mean + L z with z standard normal. With one output the
integral of p(Y_i | z) p(z) is by quadrature, at all scales around values of f_i of several draws. With several it is an
average over nodes of a mixture of Student distributions: one as wide as the spread of f_i, the others about the modes that
are reached from these values, with the curvature there. If the nodes do not see enough of the integrand, for instance
because the likelihood has a kink, the mixture begins anew with further components of all scales around these values, and is
fitted to the integrand (population Monte Carlo, Cappe et al. 2008).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special, stats

from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import OrderParameter
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.models.latent_outputs import jitter_of, log_integral_on_grid, log_prob_of_example
from bayesattn.theory.minimise import Local, minimum

NODES = 512
NEWTON_STEPS = 20
"""Most steps to a mode; nodes about any other point give the right integral too, if they see enough of the integrand."""
MOST_FITS = 20
SCALES = tuple(0.3 * 0.1**rung for rung in range(5))
"""Scales of the components around a value of f_i, in units of the spread of f_i."""
MOST_LADDERS = 4
"""Number of values of f_i that have components of all these scales."""
ENOUGH, TOO_FEW = 0.3, 0.02
"""Effective share of the nodes at which fits end, and below which the integral is unknown."""
LARGEST_SHARE = 0.1
"""Largest share that any known value of f_i would have of the integral if it was one of the nodes."""
EQUAL = 32
"""Number of largest weights that a fit takes for equal, so that few nodes near a narrow mode draw the mixture there."""
LEAST_FREEDOM = 5
PRIOR_SHARE = 0.05

Point = Float[Array, " output"]


class Nodes(NamedTuple):
    """Quasi-random points: heights in (0, 1), by which a component is chosen, and standard draws of its Student law."""

    heights: Float[Array, " node"]
    students: Float[Array, "node output"]


class Mixture(NamedTuple):
    """Student distributions with shares, centres and scales (lower triangular). The first is as wide as the prior of z."""

    shares: Float[Array, " component"]
    centres: Float[Array, "component output"]
    scales: Float[Array, "component output output"]

    def log_densities(self, points: Float[Array, "node output"]) -> tuple[Array, Array]:
        """Log of share times density of each component at each point, and squared distances from the centres."""
        size, freedom = self.centres.shape[1], _freedom(self.centres.shape[1])
        inverses = jax.vmap(lambda scale: jax.scipy.linalg.solve_triangular(scale, jnp.eye(size), lower=True))(
            self.scales
        )
        squares = jnp.sum(jnp.einsum("kij,nkj->nki", inverses, points[:, None] - self.centres) ** 2, axis=2)
        constant = special.gammaln((freedom + size) / 2) - special.gammaln(freedom / 2)
        constant += jnp.log(self.shares) + jnp.sum(jnp.log(jnp.diagonal(inverses, axis1=1, axis2=2)), axis=1)
        return constant - size / 2 * np.log(freedom * np.pi) - (freedom + size) / 2 * jnp.log1p(
            squares / freedom
        ), squares

    def points(self, nodes: Nodes) -> Float[Array, "node output"]:
        """Nodes of the mixture."""
        ends = jnp.cumsum(self.shares)
        chosen = jnp.searchsorted(ends, nodes.heights * ends[-1]).clip(max=len(ends) - 1)
        return self.centres[chosen] + jnp.einsum("nij,nj->ni", self.scales[chosen], nodes.students)

    def fitted(self, points: Float[Array, "node output"], log_weights: Float[Array, " node"]) -> "Mixture":
        """Mixture after one step of expectation and maximisation; components with few points stay where they are."""
        size, freedom = points.shape[1], _freedom(points.shape[1])
        weights = jax.nn.softmax(jnp.minimum(log_weights, jnp.sort(log_weights)[-EQUAL]))
        log_densities, squares = self.log_densities(points)
        own = weights[:, None] * jax.nn.softmax(log_densities, axis=1)
        shares = jnp.sum(own, axis=0)
        pulled = own * (freedom + size) / (freedom + squares)
        centres = pulled.T @ points / jnp.sum(pulled, axis=0)[:, None]
        away = points[:, None] - centres
        covariances = jnp.einsum("nk,nki,nkj->kij", pulled, away, away) / shares[:, None, None]
        scales = jnp.linalg.cholesky(covariances * (1 + 0.05 * jnp.eye(size)))
        prior = jnp.arange(len(shares)) == 0
        moves = (shares**2 > (size + 2) * jnp.sum(own**2, axis=0)) & jnp.isfinite(scales).all((1, 2)) & ~prior
        return Mixture(
            (1 - PRIOR_SHARE) * shares + PRIOR_SHARE * prior,
            jnp.where(moves[:, None], centres, self.centres),
            jnp.where(moves[:, None, None], scales, self.scales),
        )


def _freedom(size: int) -> int:
    """Degrees of freedom: with many outputs a Student's radius varies too much, unless they grow too."""
    return LEAST_FREEDOM + size


def standard_nodes(outputs: int) -> Nodes:
    """Nodes in standard form, the same for all examples and draws."""
    qmc: Any = stats.qmc  # Type checkers know another name of the seed.
    uniform = qmc.Sobol(outputs + 2, seed=0).random(NODES).clip(1e-12, 1 - 1e-12)
    freedom = _freedom(outputs)
    stretch = np.sqrt(freedom / (2 * special.gammaincinv(freedom / 2, uniform[:, 1])))
    return Nodes(jnp.asarray(uniform[:, 0]), jnp.asarray(special.ndtri(uniform[:, 2:]) * stretch[:, None]))


def log_integral(
    log_integrand: Callable[[Point], Array], start: Point, known: Float[Array, "value output"], nodes: Nodes
) -> Float[Array, ""]:
    """Log integral of a function over z; NaN if the nodes do not see enough of it.

    Args:
        log_integrand: logarithm of the function.
        start: draw from the integrand.
        known: further values that may lie in its modes; searches for modes begin at all of them.
        nodes: result of `standard_nodes`.
    """
    size, known = len(start), jnp.concatenate([start[None], known])
    if size == 1:
        return log_integral_on_grid(lambda z: log_integrand(z[None]), known[:, 0])

    def value(point):
        return -log_integrand(point)

    def local(point):
        return Local(value(point), jax.grad(value)(point), jax.hessian(value)(point))

    def about(point):
        """Mode that is reached from a point, and the scale of the integrand there."""
        mode = minimum(value, local, point, NEWTON_STEPS, 1e-3)
        curvatures, vectors = jnp.linalg.eigh(mode.local.hessian)
        covariance = vectors / jnp.maximum(jnp.abs(curvatures), 1e-2) @ vectors.T
        usable = jnp.isfinite(covariance).all() & jnp.isfinite(mode.point).all()
        scale = jnp.linalg.cholesky(jnp.where(usable, covariance, jnp.eye(size)))
        return jnp.where(usable, mode.point, point), scale

    modes, widths = jax.vmap(about)(known)
    centres = jnp.concatenate([jnp.zeros((1, size)), modes])
    scales = jnp.concatenate([jnp.eye(size)[None], widths])
    few = known[:MOST_LADDERS]
    around = jnp.tile(jnp.asarray(SCALES)[:, None, None] * jnp.eye(size), (len(few), 1, 1))
    shares = jnp.concatenate([jnp.array([0.35]), jnp.full(len(known), 0.65 / len(known))])
    ladder = Mixture(
        jnp.concatenate([0.5 * shares, jnp.full(len(around), 0.5 / len(around))]),
        jnp.concatenate([centres, jnp.repeat(few, len(SCALES), axis=0)]),
        jnp.concatenate([scales, around]),
    )

    def log_weights(mixture: Mixture, points):
        values = jax.vmap(log_integrand)(points)
        density = jax.scipy.special.logsumexp(mixture.log_densities(points)[0], axis=1)
        return jnp.where(jnp.isnan(values), -jnp.inf, values) - density

    def seen(mixture: Mixture):
        points = mixture.points(nodes)
        weights = log_weights(mixture, points)
        total = jax.scipy.special.logsumexp(weights)
        share = jnp.exp(2 * total - jax.scipy.special.logsumexp(2 * weights)) / len(weights)
        missed = jnp.max(log_weights(mixture, known)) > total + jnp.log(LARGEST_SHARE)
        return points, weights, jnp.where(missed, 0.0, share)

    def go_on(state):
        return (state[0] < MOST_FITS) & ~(state[-1] >= ENOUGH)

    def better(state):
        fits, mixture, points, weights, _ = state
        mixture = jax.tree.map(lambda *each: jnp.where(fits == 0, *each), mixture, mixture.fitted(points, weights))
        return fits + 1, mixture, *seen(mixture)

    first = seen(Mixture(shares, centres, scales))
    *_, weights, share = jax.lax.while_loop(go_on, better, (0, ladder, *first))
    result = jax.scipy.special.logsumexp(weights) - jnp.log(len(weights))
    return jnp.where(share >= TOO_FEW, result, jnp.nan)


def leave_one_out(
    kernels: GaussianProcess,
    likelihood: Likelihood,
    order_parameter: OrderParameter,
    outputs: Outputs,
    labels: Labels,
    others: Float[Array, "draw example *output"],
) -> Float[Array, " example"]:
    """Log density log p(Y_i | f of all other examples, U) of each example, integrated over the example's own outputs.

    Given the outputs of the other examples, f_i is Gaussian with precision B = (K^{-1})_ii and mean
    f_i - B^{-1} (K^{-1} f)_i; with several outputs these are blocks. NaN where the integral is unknown. A
    mode of the likelihood in which none of the draws lies may be missed.

    Args:
        kernels: kernels K(U).
        likelihood: likelihood of the labels given f.
        order_parameter: U.
        outputs: f on the training examples, shape (P,) or (P, m), a draw of the posterior.
        labels: labels, of the same shape.
        others: f of other draws, in which each mode of an example's likelihood may appear.
    """
    kernel = kernels.kernel_of(order_parameter)
    root = jnp.linalg.cholesky(kernel + jitter_of(kernel) * jnp.eye(len(kernel)))
    inverse = jax.scipy.linalg.solve_triangular(root, jnp.eye(len(root)), lower=True)
    columns = inverse.reshape(len(root), -1, kernels.outputs)
    blocks = jnp.einsum("xec,xed->ecd", columns, columns)
    pulled = jax.scipy.linalg.cho_solve((root, True), outputs.reshape(-1)).reshape(-1, kernels.outputs)
    nodes = standard_nodes(kernels.outputs)

    def one(block, pull, at, label, elsewhere):
        lower = jnp.linalg.cholesky(block)
        spread = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(lower)), lower=True).T
        drawn = spread.T @ pull
        mean = at.reshape(-1) - spread @ drawn
        known = (elsewhere.reshape(len(elsewhere), -1) - mean) @ lower

        def log_integrand(point):
            found = log_prob_of_example(likelihood, mean + spread @ point, label)
            return found - point @ point / 2 - len(point) / 2 * jnp.log(2 * jnp.pi)

        return log_integral(log_integrand, drawn, known, nodes)

    return jax.vmap(one)(blocks, pulled, outputs, labels, jnp.moveaxis(others, 1, 0))


def require_integrated(values: Float[np.ndarray, "draw example"], likelihood: Likelihood) -> None:
    """Raise FloatingPointError if the integral of an example is unknown in some draws."""
    unknown = np.isnan(values)
    if unknown.any():
        example = int(np.argmax(unknown.sum(0)))
        raise FloatingPointError(
            f"log_likelihood of example {example} could not be integrated over the example's outputs in"
            f" {unknown[:, example].sum()} of {len(values)} draws, for likelihood {likelihood!r}: leave the example"
            " out and sample again"
        )
