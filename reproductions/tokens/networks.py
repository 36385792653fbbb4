"""Several heads, two layers, and attention to infinitely many tokens (EXCHANGEABILITY section 5; derived here).

The risk may have a ridge, sum of squares of the parameters times `ridge` / 2, which makes its Hessian regular where heads or
layers are interchangeable. Networks are functions of parameters and sequences, as `learning.attend` is.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import i0e, i1e
from jaxtyping import Array, Float
from scipy import optimize

from bayesattn.questions.exchangeable.rates import softmax_variance
from bayesattn.questions.exchangeable.sphere import bessel_ratio
from reproductions.tokens import learning
from reproductions.tokens.learning import Parameters, Sequences
from reproductions.tokens.simulation import NOISE, PRIOR

Network = Callable[[Parameters, Sequences], Any]
GRID = 32
"""Keys of a regular grid on the circle, to which attention is attention to infinitely many, but for rounding."""


def rescaled(parameters: Parameters, data: Sequences) -> Float[Array, "*batch value"]:
    """One head with W / a_1(kappa) for its readout, kappa = tr(A) / 2; d = d_v = 2.

    The risk's flat direction at many tokens is then kappa alone, and averages over sequences have smaller errors. Neither
    tr(H^-1 J) at the optimum nor what can be expressed depend on such coordinates.
    """
    kappa = (parameters[0] + parameters[3]) / 2
    return learning.attend(parameters, data) * i0e(kappa) / i1e(kappa)


def unscaled(kappa: float, parameters: Parameters, data: Sequences) -> Float[Array, "*batch value"]:
    """One head of three parameters for A, of trace 2 kappa, and four for W: without the flat direction."""
    first, second, third = parameters[:3]
    scores = jnp.array([kappa + first, second, third, kappa - first])
    return learning.attend(jnp.concatenate([scores, parameters[3:]]), data)


def two_heads(parameters: Parameters, data: Sequences) -> Float[Array, "*batch value"]:
    """sum_h W_h sum_i softmax(q^T A_h k_i) v_i; parameters of one head after the other."""
    first, second = jnp.split(parameters, 2)
    return learning.attend(first, data) + learning.attend(second, data)


def two_layers(parameters: Parameters, data: Sequences) -> Float[Array, "*batch value"]:
    """A head whose values are those of a first layer, sum_j softmax(k_i^T A_1 k_j) v_j; d = 2.

    Parameters are three of a symmetric A_1, then A and W. A rotation in A_1 could be undone in A, for many tokens at no
    cost, and no ridge would make the Hessian regular.
    """
    below, above = jnp.split(parameters, [3])
    scores = below[jnp.array([[0, 1], [1, 2]])]
    logits = jnp.einsum("...id,de,...je->...ij", data.keys, scores, data.keys)
    return learning.attend(above, data._replace(values=jax.nn.softmax(logits, axis=-1) @ data.values))


@cache
def losses(network: Network, ridge: float) -> Callable[[Parameters, Sequences], Any]:
    """Squared error of each sequence plus ridge |theta|^2 / 2."""

    def penalised(parameters: Parameters, data: Sequences) -> Any:
        squares = jnp.sum((data.targets - network(parameters, data)) ** 2, -1)
        return squares + ridge * jnp.sum(parameters**2) / 2

    return penalised


@cache
def objective(network: Network, ridge: float) -> Callable[[Parameters, Sequences], Any]:
    """Mean squared error of a network plus ridge |theta|^2 / 2."""

    def penalised(parameters: Parameters, data: Sequences) -> Any:
        squares = jnp.sum((data.targets - network(parameters, data)) ** 2, -1)
        return jnp.mean(squares, -1) + ridge * jnp.sum(parameters**2) / 2

    return penalised


class Moments(NamedTuple):
    """Moments of one sequence's loss at some parameters: mean gradient, mean Hessian, second moment of the gradient."""

    gradient: Any
    hessian: Any
    second_moment: Any


@partial(jax.jit, static_argnames="network")
def moments(
    parameters: Parameters, data: Sequences, variance: Any, weights: Any = None, *, network: Network
) -> Moments:
    """Averages over sequences (m, ..) whose targets are means with this variance (m,), weighed (m,) where weights are given.

    The Hessian is 2 E[D^T D - e . D^2 f] and the second moment 4 E[D^T e e^T D + variance D^T D], D the derivative of the
    output and e target less output.
    """
    weights = jnp.full(len(data.targets), 1 / len(data.targets)) if weights is None else weights

    def risk(at):
        return weights @ jnp.sum((data.targets - network(at, data)) ** 2, -1)

    outputs, derivative = network(parameters, data), jax.jacfwd(network)(parameters, data)
    gradients = -2 * jnp.einsum("mv,mvp->mp", data.targets - outputs, derivative)
    spread = jnp.einsum("mvp,mvq,m->pq", derivative, derivative, weights * variance)
    second = jnp.einsum("mp,mq,m->pq", gradients, gradients, weights)
    return Moments(weights @ gradients, jax.hessian(risk)(parameters), second + 4 * spread)


def penalised_trace(ridge: float, gradient: Any, hessian: Any, second_moment: Any) -> float:
    """tr((H + ridge)^{-1} (J - g g^T)), g the mean gradient: m times the expected gap of the penalised minimum.

    The penalty is the same for training and test sequences, so it has no gap of its own. Its gradient is minus g at the
    optimum, around which gradients of the training risk have covariance (J - g g^T) / m (derived here).
    """
    covariance = second_moment - np.outer(gradient, gradient)
    return float(np.trace(np.linalg.solve(hessian + ridge * np.eye(len(gradient)), covariance)))


def mean_moments(at: Parameters, batches: Sequence[tuple], network: Network) -> Moments:
    """Over batches of equal weight."""
    found = [moments(at, *batch, network=network) for batch in batches]
    return Moments(*(np.mean(parts, 0) for parts in zip(*found, strict=True)))


def minimum(start: Parameters, batches: Sequence[tuple], network: Network, ridge: float) -> Any:
    """Parameters of least penalised risk over batches of equal weight, by Newton's method from nearby.

    Each batch holds what `moments` takes: sequences, variances of targets, weights or None.
    """
    at, step = np.asarray(start, float), np.inf
    for _ in range(30):
        gradient, hessian, _ = mean_moments(at, batches, network)
        step = np.linalg.solve(hessian + ridge * np.eye(len(at)), gradient + ridge * at)
        at = at - step
        if np.abs(step).max() < 1e-11:
            return at
    raise ValueError(f"start must lie near a minimum of the risk: the last Newton step was {np.abs(step).max():.2g}")


def grid() -> Float[np.ndarray, "key 2"]:
    """Keys evenly on the circle."""
    angles = 2 * np.pi * np.arange(GRID) / GRID
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def draw_many_tokens(
    rng: np.random.Generator, shape: tuple[int, ...], noise: float = NOISE, prior: float = PRIOR
) -> Any:
    """Sequences of infinitely many tokens: attention to them is attention to a grid of keys with values z k.

    Averages over a token of smooth functions of the angle are sums over the grid, and the noise of values averages out.
    """
    angles = rng.uniform(0, 2 * np.pi, shape)
    latents = prior * rng.normal(size=(*shape, 2, 2))
    return _many_tokens(angles, latents, noise * rng.normal(size=(*shape, 2)))


def all_many_tokens(noise: float = NOISE, prior: float = PRIOR) -> tuple[Sequences, np.ndarray, np.ndarray]:
    """The population of `draw_many_tokens` by quadrature: sequences, variances of targets, and weights.

    Losses are quadratic in z and their gradients' squares quartic, for which three Gauss-Hermite nodes are exact.
    """
    nodes, weights = np.sqrt(3) * prior * np.array([-1.0, 0.0, 1.0]), np.array([1.0, 4.0, 1.0]) / 6
    latents = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij"), -1).reshape(-1, 2, 2)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * 4, indexing="ij"), -1), -1).ravel()
    angles = 2 * np.pi * (np.arange(GRID) + 0.5) / GRID
    pairs = np.repeat(angles, len(latents)), np.tile(latents, (GRID, 1, 1))
    data = _many_tokens(*pairs, np.zeros((len(pairs[0]), 2)))
    return data, np.full(len(pairs[0]), noise**2), np.tile(mass, GRID) / GRID


def _many_tokens(angles: np.ndarray, latents: np.ndarray, noise: np.ndarray) -> Sequences:
    queries = np.stack([np.cos(angles), np.sin(angles)], -1)
    keys = np.broadcast_to(grid(), (*angles.shape, GRID, 2))
    values = np.einsum("...ve,ke->...kv", latents, grid())
    targets = np.einsum("...ve,...e->...v", latents, queries) + noise
    return Sequences(*map(jnp.asarray, (queries, keys, values, targets)))


class ManyTokens(NamedTuple):
    """One head's optimum and tr(H^-1 J) as n tends to infinity, with the share of the flat direction."""

    kappa: float
    trace: float
    flat: float


def many_tokens(noise: float = NOISE, prior: float = PRIOR) -> ManyTokens:
    """lim tr(H^-1 J) for one head, d = d_v = 2 (derived here).

    With n = infinity attention is W z a_1(|u|) u / |u|, u = A^T q: with W = I / a_1(kappa) it expresses the target whatever
    kappa is. Seven of eight parameters then give 2 sigma^2 each, as in a model that is true. Along kappa both H and J are
    of order 1/n: H = V''(kappa) / n, V the limit of n x error of softmax / a_1, and J = 4 sigma^2 B / n, where B is n times
    the mean square of the output's derivative. So the limit is 2 sigma^2 (7 + 2 B / V''), kappa at the minimum of V.
    """

    def error(kappa: float) -> float:
        return softmax_variance(kappa, 2, noise, prior, 2) / float(bessel_ratio(1, kappa, 2)) ** 2

    kappa = np.asarray(optimize.fminbound(error, 0.2, 30, xtol=1e-9)).item()
    curvature = float(jax.grad(jax.grad(_fluctuation))(kappa, noise, prior))
    squares = float(_mean_square(jax.jacfwd(_terms)(kappa, noise, prior)))
    flat = 4 * noise**2 * squares / curvature
    return ManyTokens(kappa, 14 * noise**2 + flat, flat)


def _terms(kappa: Any, noise: float, prior: float) -> Any:
    """What one token adds to n (output - z q), in deviations of z and of the noise, at W = I / a_1; shape (key, 3)."""
    cosine, sine = jnp.asarray(grid()).T
    kept = i1e(kappa) / i0e(kappa)
    weight = jnp.exp(kappa * (cosine - 1)) / i0e(kappa) / kept
    return weight[:, None] * jnp.stack([prior * (cosine - kept), prior * sine, jnp.full(GRID, noise)], axis=1)


def _mean_square(terms: Any) -> Any:
    """Summed over two value coordinates."""
    return 2 * jnp.mean(jnp.sum(terms**2, -1))


def _fluctuation(kappa: Any, noise: float, prior: float) -> Any:
    """V(kappa)."""
    return _mean_square(_terms(kappa, noise, prior))
