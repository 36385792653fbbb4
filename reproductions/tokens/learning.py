"""Supervised learning of attention's parameters, and how far its risk generalises (EXCHANGEABILITY section 5).

f_theta(X, q) = W sum_i softmax(q^T A k_i) v_i, learnt on the mean squared error of values at queries; each sequence has its
own latent. The generalisation laws were derived for this project.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy import optimize

from bayesattn._util.checks import positive, positive_integer
from bayesattn.questions.exchangeable import rates
from bayesattn.questions.exchangeable.sphere import uniform
from reproductions.tokens import simulation
from reproductions.tokens.simulation import NOISE, PRIOR


class Sequences(NamedTuple):
    """A query, tokens and the query's value for each of m sequences, after any leading axes.

    Shapes: queries (.., m, d), keys (.., m, n, d), values (.., m, n, d_v), targets (.., m, d_v).
    """

    queries: Any
    keys: Any
    values: Any
    targets: Any


Parameters = Float[Array, " parameter"] | Float[np.ndarray, " parameter"]
"""Entries of A (d, d), then of W (d_v, d_v), row by row."""


def draw_sequences(
    rng: np.random.Generator,
    count: int | tuple[int, ...],
    tokens: int,
    dimension: int = 2,
    value_features: int = 2,
    noise: float = NOISE,
    prior: float = PRIOR,
) -> Sequences:
    """Sequences with a latent of their own: keys and queries uniform on the sphere, v = z k + noise, and so is the target.

    Raises:
        ValueError: a count below 1, a noise or prior that is not above 0.
    """
    shape = (count,) if isinstance(count, int) else count
    for size in (*shape, tokens, dimension, value_features):
        positive_integer("count, tokens, dimension and value_features", size)
    noise, prior = positive("noise", noise), positive("prior", prior)
    points = uniform(rng, *shape, tokens + 1, dimension)
    queries, keys = points[..., :1, :], points[..., 1:, :]
    values, truth = simulation.answers(rng, keys, queries, value_features, noise, prior)
    targets = truth[..., 0, :] + noise * rng.normal(size=(*shape, value_features))
    return Sequences(*map(jnp.asarray, (queries[..., 0, :], keys, values, targets)))


class Optimum(NamedTuple):
    """Parameters A = kappa I and W = w I of the least risk, and that risk without the noise of the targets, A(n)."""

    parameters: Float[np.ndarray, " parameter"]
    approximation: float


def population_optimum(
    tokens: int, dimension: int = 2, value_features: int = 2, noise: float = NOISE, prior: float = PRIOR
) -> Optimum:
    """Where the risk over all sequences is least, exactly, for the model of `draw_sequences`.

    Keys, queries and latents have no preferred direction, so A = kappa I and W = w I. The risk of w h about f = z q is a
    quadratic in w, of which `rates.finite_softmax_error` knows E|h|^2 and E<h, f>; kappa is found by a line search.
    """
    size = value_features * prior**2

    def best(log_kappa: float) -> tuple[float, float]:
        settings = (tokens, np.exp(-log_kappa), dimension, noise, prior, value_features)
        power, about = (rates.finite_softmax_error(*settings, kept=kept) for kept in (0.0, 1.0))
        along = (power + size - about) / 2
        return along / power, size - along**2 / power

    log_kappa = np.asarray(optimize.fminbound(lambda k: best(k)[1], -2, 5, xtol=1e-7)).item()
    readout, left = best(log_kappa)
    matrices = np.exp(log_kappa) * np.eye(dimension), readout * np.eye(value_features)
    return Optimum(np.concatenate([matrix.ravel() for matrix in matrices]), left)


def attend(parameters: Parameters, data: Sequences) -> Float[Array, "*batch value"]:
    """f_theta on each sequence."""
    dimension, value_features = data.keys.shape[-1], data.values.shape[-1]
    scores, readout = jnp.split(parameters, [dimension**2])
    scores = scores.reshape(dimension, dimension)
    logits = jnp.einsum("...d,de,...ne->...n", data.queries, scores, data.keys)
    seen = jnp.einsum("...n,...nv->...v", jax.nn.softmax(logits, axis=-1), data.values)
    return seen @ readout.reshape(value_features, value_features).T


def losses(parameters: Parameters, data: Sequences) -> Float[Array, "*batch sequence"]:
    """Squared error of each sequence."""
    return jnp.sum((data.targets - attend(parameters, data)) ** 2, -1)


@jax.jit
def risk(parameters: Parameters, data: Sequences) -> Float[Array, "*batch"]:
    """Mean squared error over sequences."""
    return jnp.mean(losses(parameters, data), -1)


def lipschitz_bound(change_a: float, change_w: float, most_value: float, most_key: float, norm_w: float) -> float:
    """Most that f_theta changes: R_v |W - W'| + 2 B_W R_v R_k^2 |A - A'| (spectral norms); no number of tokens in it."""
    return most_value * change_w + 2 * norm_w * most_value * most_key**2 * change_a


@partial(jax.jit, static_argnames="objective")
def fit(start: Parameters, data: Any, hessian: Any = None, objective: Callable[[Any, Any], Any] = risk) -> Parameters:
    """Minimum of the empirical risk, or of another objective of parameters and data, from a starting point, by BFGS.

    A Hessian of the risk near the minimum, where given, takes the search through fewer steps.
    """
    factor = jnp.eye(len(start)) if hessian is None else jnp.linalg.cholesky(hessian)

    def parameters(change):
        return start + solve_triangular(factor, change, lower=True, trans=1)

    def lowered(change, args):
        return objective(parameters(change), args)

    solver = optimistix.BFGS(rtol=1e-6, atol=1e-6)
    solution = optimistix.minimise(lowered, solver, jnp.zeros(len(start)), data, max_steps=500, throw=False)
    return parameters(solution.value)


def trace(hessian: Any, second_moment: Any) -> float:
    """tr(H^{-1} J) (Takeuchi 1976): m times the expected gap of test and training risk at the least empirical one, large m.

    H is the Hessian of the risk, J the second moment of the gradient of one loss. The excess of the test risk over the best
    possible one is half of it, over m.
    """
    return float(np.trace(np.linalg.solve(hessian, second_moment)))


@jax.jit
def moments(parameters: Parameters, data: Sequences, variance: Any = 0.0) -> tuple[Array, Array]:
    """H and J of one batch of sequences at some parameters.

    Args:
        parameters: where the risk is least.
        data: sequences that stand for the population.
        variance: of each target, shape (m,), where the targets are means only, as of `expected_targets`.
    """

    def attended(sequence):
        return attend(parameters, sequence), jax.jacfwd(attend)(parameters, sequence)

    outputs, jacobian = jax.vmap(attended)(data)
    gradients = jnp.einsum("mv,mvp->mp", data.targets - outputs, jacobian)
    spread = jnp.einsum("mvp,mvq,m->pq", jacobian, jacobian, jnp.broadcast_to(variance, (len(outputs),)))
    return jax.hessian(risk)(parameters, data), 4 * (gradients.T @ gradients + spread) / len(outputs)


def expected_targets(data: Sequences, noise: float = NOISE, prior: float = PRIOR) -> tuple[Sequences, Array]:
    """Sequences with targets averaged over what their tokens leave open, and the variance of each target, shape (m,).

    Given the tokens the target is normal around the posterior mean of z q. Averages over it have no Monte Carlo error.
    """
    precision = jnp.einsum("...nd,...ne->...de", data.keys, data.keys) + (noise / prior) ** 2 * jnp.eye(
        data.keys.shape[-1]
    )
    solved = jnp.linalg.solve(precision, data.queries[..., None])[..., 0]
    mean = jnp.einsum("...nv,...nd,...d->...v", data.values, data.keys, solved)
    return data._replace(targets=mean), noise**2 * (1 + jnp.sum(data.queries * solved, -1))


class Generalisation(NamedTuple):
    """Test minus training risk, excess test risk, and G^T H^{-1} G, of the empirical minimum of R replicates; each (R,).

    G is the gradient of the training risk at the optimum: what the gap is to leading order, of mean tr(H^{-1} J) / m.
    """

    gap: Any
    excess: Any
    quadratic: Any


@partial(jax.jit, static_argnames="objective")
def generalise(
    optimum: Parameters,
    hessian: Float[Any, "parameter parameter"],
    training: Sequences,
    test: Sequences,
    objective: Callable[[Parameters, Any], Any] = risk,
) -> Generalisation:
    """How far the minimum of the training risk generalises.

    Two terms of mean zero are subtracted, which take most of the variance away: from the gap the same difference at the
    optimum, and from the test risk its first-order change, whose slope at the optimum has mean zero.

    Args:
        optimum: parameters of the population's least risk, where the search for a minimum starts.
        hessian: H.
        training: m sequences for each of R replicates: leading axes (R, m).
        test: sequences to estimate the test risk with, leading axes (R, any).
        objective: the risk to minimise, such as one with a penalty.
    """

    def one(pair):
        seen, unseen = pair
        fitted = fit(optimum, seen, hessian, objective)
        excess = objective(fitted, unseen) - objective(optimum, unseen)
        excess -= (fitted - optimum) @ jax.grad(objective)(optimum, unseen)
        slope = jax.grad(objective)(optimum, seen)
        gap = excess - objective(fitted, seen) + objective(optimum, seen)
        return Generalisation(gap, excess, slope @ jnp.linalg.solve(hessian, slope))

    return jax.lax.map(one, (training, test))


@partial(jax.jit, static_argnames="losses")
def quadratics(
    optimum: Parameters, hessian: Any, data: Sequences, losses: Callable[[Parameters, Any], Any] = losses
) -> Float[Array, " sequence"]:
    """g^T H^{-1} g of the gradient of each sequence's loss."""
    gradients = jax.jacfwd(losses)(optimum, data)
    return jnp.sum(gradients * jnp.linalg.solve(hessian, gradients.T).T, -1)
