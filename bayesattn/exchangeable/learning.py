"""Supervised learning of attention's parameters, and how far its risk generalises (EXCHANGEABILITY section 5).

f_theta(X, q) = W sum_i softmax(q^T A k_i) v_i, learnt on the mean squared error of values at queries; each sequence has its
own latent. The generalisation laws were derived for this project.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float

from bayesattn._checks import positive, positive_integer
from bayesattn.exchangeable.sphere import uniform


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
    noise: float = 0.5,
    prior: float = 1.0,
) -> Sequences:
    """Sequences with a latent of their own: keys and queries uniform on the sphere, v = z k + noise, and so is the target.

    Raises:
        ValueError: a count below 1, a noise or prior that is not above 0.
    """
    shape = (count,) if isinstance(count, int) else count
    for size in (*shape, tokens, dimension, value_features):
        positive_integer("count, tokens, dimension and value_features", size)
    noise, prior = positive("noise", noise), positive("prior", prior)
    latents = prior * rng.normal(size=(*shape, value_features, dimension))
    points = uniform(rng, *shape, tokens + 1, dimension)
    values = points @ np.swapaxes(latents, -1, -2) + noise * rng.normal(size=(*shape, tokens + 1, value_features))
    parts = (points[..., 0, :], points[..., 1:, :], values[..., 1:, :], values[..., 0, :])
    return Sequences(*map(jnp.asarray, parts))


def attend(parameters: Parameters, data: Sequences) -> Float[Array, "*batch sequence value"]:
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


@jax.jit
def fit(start: Parameters, data: Sequences) -> Parameters:
    """Minimum of the empirical risk from a starting point, by BFGS; for one set of sequences."""

    def objective(parameters, args):
        return risk(parameters, args)

    solver = optimistix.BFGS(rtol=1e-9, atol=1e-9)
    found = optimistix.minimise(objective, solver, start, data, max_steps=500, throw=False)
    return found.value


class Sharp(NamedTuple):
    """H, Hessian of the risk, J, second moment of the gradient of one loss, and tr(H^{-1} J)."""

    hessian: Float[np.ndarray, "parameter parameter"]
    second_moment: Float[np.ndarray, "parameter parameter"]
    trace: float


def sharp_law(parameters: Parameters, data: Sequences) -> Sharp:
    """tr(H^{-1} J): m times the expected gap of test and training risk of the empirical risk's minimum, for many sequences.

    The excess of the test risk over the best possible one is half of it, over m.

    Args:
        parameters: where the risk is least.
        data: sequences that stand for the population, one batch.
    """
    hessian, second = (np.asarray(each) for each in _moments(parameters, data))
    return Sharp(hessian, second, float(np.trace(np.linalg.solve(hessian, second))))


@jax.jit
def _moments(parameters, data):
    def gradient(sequence):
        return jax.grad(lambda p: losses(p, jax.tree.map(lambda leaf: leaf[None], sequence))[0])(parameters)

    gradients = jax.vmap(gradient)(data)
    return jax.hessian(risk)(parameters, data), gradients.T @ gradients / len(gradients)


class Generalisation(NamedTuple):
    """Of R replicates: test minus training risk and excess test risk (R,) of the empirical minimum."""

    gap: Any
    excess: Any


@jax.jit
def generalise(optimum: Parameters, training: Sequences, test: Sequences) -> Generalisation:
    """How far the minimum of the training risk generalises.

    From the gap the same difference at the optimum is subtracted, which has mean zero and takes most of the variance away.

    Args:
        optimum: parameters of the population's least risk, where the search for a minimum starts.
        training: m sequences for each of R replicates: leading axes (R, m).
        test: sequences to estimate the test risk with, leading axes (R, any).
    """

    def one(pair):
        seen, unseen = pair
        found = fit(optimum, seen)
        excess = risk(found, unseen) - risk(optimum, unseen)
        return Generalisation(excess - risk(found, seen) + risk(optimum, seen), excess)

    return jax.lax.map(one, (training, test))
