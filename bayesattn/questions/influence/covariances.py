"""Covariances under the posterior from draws, with the error of each.

A covariance of quantities q and l is E_U[Cov(q, l | U)] + Cov_U(E[q | U], E[l | U]) (law of total covariance): the mean
over draws of z = Cov(q, l | U) + (E[q | U] - E[q]) (E[l | U] - E[l]). Its error is that of a mean of correlated terms, from
the scatter of means over batches of neighbouring draws (Flegal and Jones 2010).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Array, Float

from bayesattn._util.slow_loops import watched
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.kernels.energies import one_by_one
from bayesattn.models.given_draw import Conditional, Examples, Explained
from bayesattn.over_draws import by_draw

TIMES_OF_BATCH = 5.0
"""Smallest length of a batch, in draws that are as good as one independent draw."""
MANY = 500
"""Number of examples above which covariances given a draw are of every other draw only.

They vary less from draw to draw than the means do: at P = 1000, errors grow by 16 %, and by 41 % if half of the draws are
left out altogether.
"""

Members = Float[Array, "group example"]


class Estimate(NamedTuple):
    """Estimates and their Monte Carlo errors, of the same shape."""

    value: np.ndarray
    error: np.ndarray


class Given(NamedTuple):
    """Means given each draw, on the first axis.

    Args:
        log_likelihoods: E[l_i | draw], shape (draw, example).
        outputs: E[f_t | draw], shape (draw, test_example), or with a further axis of outputs.
    """

    log_likelihoods: np.ndarray
    outputs: np.ndarray


class Posterior(NamedTuple):
    """What covariances are computed from.

    Args:
        conditional: outputs and labels given a draw.
        draws: draws by name, chain after chain.
        chains: number of chains.
        inputs: inputs at which f is wanted.
        examples: examples whose log likelihoods are wanted; None for those of training.
        members: 1 for the examples of each group; None without groups.
    """

    conditional: Conditional
    draws: Mapping[str, np.ndarray]
    chains: int
    inputs: Any
    examples: Examples | None
    members: Members | None

    def given(self) -> Given:
        """Means given each draw."""
        return Given(*by_draw(lambda part: _given(self.without_draws, part), dict(self.draws), "log likelihoods"))

    @property
    def without_draws(self) -> "Posterior":
        """The same without draws, for compiled functions of some of them."""
        return self._replace(draws={}, chains=0)

    def explained(self, draw: Mapping[str, Array]) -> Explained:
        """Log likelihoods and outputs given a draw."""
        return self.conditional.explained(draw, self.inputs, self.examples)

    def at(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Some of the draws."""
        return {name: values[numbers] for name, values in self.draws.items()}

    def draws_worth_one(self, given: Given) -> float:
        """Number of draws that are worth an independent one: 1 at least, infinite if a chain does not move.

        By the smallest effective sample size of the log likelihood of all examples, the diagonal of U, and |f|^2.
        """
        diagonal = np.diagonal(self.draws["order_parameter"], axis1=1, axis2=2)
        squares = np.sum(given.outputs.reshape(len(given.outputs), -1) ** 2, axis=1)
        series = np.column_stack([given.log_likelihoods.sum(1), squares, diagonal]).T
        series = series.reshape(len(series), self.chains, -1)
        moving = np.ptp(series, axis=2) > 0
        if series.shape[2] < FEWEST_DRAWS or not moving.any(0).all():
            return np.inf
        sizes = [array_stats.ess(each) for each in series[moving.all(1)]]
        return max(1.0, float(series[0].size / np.nanmin(sizes)))

    def batches(self, given: Given) -> list[np.ndarray]:
        """Numbers of the draws of each batch; all batches are equally long, and the first draws of a chain may be left out.

        A batch has at least as many draws as there are batches of a chain, and five times as many as are worth one. A chain
        that does not move, or of which there is little more than one such, is one batch.
        """
        count = len(given.outputs) // self.chains
        length = max(np.sqrt(count), TIMES_OF_BATCH * self.draws_worth_one(given))
        of_chain = max(1, int(count // length)) if np.isfinite(length) else 1
        whole = count // of_chain
        return [
            chain * count + count - (of_chain - batch) * whole + np.arange(whole)
            for chain in range(self.chains)
            for batch in range(of_chain)
        ]


def deviations(
    posterior: Posterior, given: Given, quantities: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray], dict[str, Float[np.ndarray, "draw entry"]], Float[np.ndarray, "draw last"]]:
    """Numbers of the draws of each batch; quantities, and log likelihoods of examples or groups, less their means."""
    batches = posterior.batches(given)
    used = np.concatenate(batches)
    own = given.log_likelihoods - given.log_likelihoods[used].mean(0)
    own = own if posterior.members is None else own @ np.asarray(posterior.members).T
    flat = {name: values.reshape(len(values), -1) for name, values in quantities.items()}
    return batches, {name: values - values[used].mean(0) for name, values in flat.items()}, own


def covariances(posterior: Posterior, given: Given, quantities: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Covariances of quantities with the log likelihood of each example, or with the sum of those of each group.

    Args:
        posterior: the posterior.
        given: means given each draw, from `Posterior.given`.
        quantities: values given each draw, shape (draw, ..), by name; "outputs" and "log_likelihoods" also vary given a
            draw of U.

    Returns:
        Estimates of shape (.., example) or (.., group), by name.
    """
    batches, values, own = deviations(posterior, given, quantities)
    sums = {name: [np.zeros((each.shape[1], own.shape[1]))] * 2 for name, each in values.items()}
    many = given.log_likelihoods.shape[1] > MANY
    for batch in watched(batches, "covariances", "batches of draws"):
        part = {name: each[batch] for name, each in values.items()}
        some = posterior.at(batch[:: 2 if many else 1])
        sums = _added(posterior.without_draws, sums, some, part, own[batch])
    sums = jax.device_get(sums)
    shapes = {name: (*each.shape[1:], -1) for name, each in quantities.items()}
    return {
        name: estimate_of(np.reshape(total, shapes[name]), np.reshape(squares, shapes[name]), len(batches))
        for name, (total, squares) in sums.items()
    }


def estimate_of(total: np.ndarray, squares: np.ndarray, batches: int) -> Estimate:
    """Mean over batches and its standard error, NaN with fewer than four batches, or if these are alike."""
    mean = total / batches
    variance = np.maximum(squares / batches - mean**2, 0)
    if batches < FEWEST_DRAWS or not variance.any():
        return Estimate(mean, np.full_like(mean, np.nan))
    return Estimate(mean, np.sqrt(variance / (batches - 1)))


@jax.jit
def _given(posterior: Posterior, draws):
    return one_by_one(lambda draw: posterior.explained(draw)[:2], draws)


@partial(jax.jit, donate_argnames="sums")
def _added(posterior: Posterior, sums, draws, values, own):
    """Sums over batches of the mean of z over a batch and of its square, with a further batch; `draws` are some of it."""
    known = _mean_covariances(posterior, draws, [name for name in values if name in ("outputs", "log_likelihoods")])

    def added(name):
        term = values[name].T @ own / len(own)
        term = term + known[name].reshape(term.shape) if name in known else term
        total, squares = sums[name]
        return [total + term, squares + term**2]

    return {name: added(name) for name in values}


def _mean_covariances(posterior: Posterior, draws, names: list[str]) -> dict[str, Array]:
    """Mean over draws of the covariances given a draw, by quantity; none if a draw determines the outputs."""

    def of_draw(draw):
        # Functions of U alone do not vary given a draw.
        found = posterior.explained(draw).covariances if names else None
        if found is None:
            return {}
        each = {"outputs": found.of_outputs, "log_likelihoods": found.of_log_likelihoods}
        members = posterior.members
        return {name: each[name]() if members is None else each[name]() @ members.T for name in names}

    shapes = jax.eval_shape(of_draw, jax.tree.map(lambda leaf: leaf[0], draws))
    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape), shapes)
    total, _ = jax.lax.scan(lambda total, draw: (jax.tree.map(jnp.add, total, of_draw(draw)), None), zeros, draws)
    return jax.tree.map(lambda each: each / len(next(iter(draws.values()))), total)
