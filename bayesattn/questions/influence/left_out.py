"""What changes if one example is left out: draws weighed anew, or drawn again where weights would not do.

Without example i, draws of U have weights 1 / p(Y_i | Y of all other examples, U), smoothed by Pareto's law (Vehtari et al.
2024), and outputs given U have moments in closed form (`bayesattn.kernels.covariances`). If the draws determine the outputs
(other likelihoods; networks whose weights are drawn), weights are 1 / p(Y_i | f_i). With a Pareto k above 0.7 the weights of
few draws dominate, and the posterior without the example is sampled itself.
"""

import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Array, Float
from scipy import special

from bayesattn._util.random import stream
from bayesattn._util.slow_loops import watched
from bayesattn.models.conditional import conditional_of
from bayesattn.models.draws import opened_of
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.over_draws import by_draw, error_of_mean, variables_of
from bayesattn.questions.influence.covariances import Given, Posterior
from bayesattn.samplers import sample
from bayesattn.theory.importance import MOST_PARETO_K
from bayesattn.theory.predictor import are_classes, right

ROUNDING = 1e-12
"""Share of the largest log density up to which differences are rounding."""
KEPT = {"queries_1": "queries_keys", "V_0": "weights"}
"""What chains must keep for a variable beyond U."""


class LeftOut(NamedTuple):
    """Changes if one example is left out, the last axis of arrays being that example.

    Args:
        outputs: change of the posterior mean of f, shape (test_example, .., example).
        outputs_error: its Monte Carlo error.
        accuracy: change of the share of test examples that the mean of f classifies; None without classes.
        log_score: change of the mean log density of the test labels, in nats; None without test labels. Of several outputs
            with Gaussian labels given U, it is the sum of those of each output.
        pareto_k: Pareto k of the weights.
        refitted: whether the posterior without the example was sampled.
    """

    outputs: np.ndarray
    outputs_error: np.ndarray
    accuracy: np.ndarray | None
    log_score: np.ndarray | None
    pareto_k: Float[np.ndarray, " example"]
    refitted: np.ndarray


class _Sums(NamedTuple):
    """Sums over draws, where w is the weight of a draw for each example, x the mean of f without it, and y that with it.

    x and y are less the posterior mean. `scores` is the logarithm of the sum of w times the density of the test label.
    """

    wx: Any
    wwx: Any
    wwxx: Any
    wxy: Any
    wy: Any
    scores: Any


def left_out(
    model: NetworkPosterior, posterior: Posterior, given: Given, labels: np.ndarray | None, refit: bool, seed: int
) -> LeftOut:
    """Changes if each example of training is left out.

    Args:
        model: the posterior.
        posterior: the same with its draws, and inputs at which f is wanted.
        given: means given each draw.
        labels: labels of these inputs, if known.
        refit: whether to sample the posterior without an example of large Pareto k.
        seed: seed of these samples.
    """
    whole, draws = posterior.without_draws, len(given.outputs)
    densities = by_draw(lambda part: _left_out_densities(whole, part), dict(posterior.draws), "examples left out")
    log_weights, shapes = _smoothed(densities, moves=bool(np.ptp(posterior.draws["order_parameter"], axis=0).any()))
    centre = given.outputs.mean(0)
    sums = _Sums(*map(np.array, _sums(whole, dict(posterior.draws), log_weights, centre, labels)))
    # The change is sum w x - mean y; its error is that of a mean of w (x - sum w x) - y / draws, times draws.
    squares = sums.wwxx - 2 * sums.wx * sums.wwx + sums.wx**2 * np.exp(2 * log_weights).sum(0)
    of_mean = given.outputs.var(0)[..., None] / draws
    squares += of_mean - 2 / draws * (sums.wxy - sums.wx * sums.wy)
    apart = posterior.draws_worth_one(given)
    apart = apart if np.isfinite(apart) else np.nan
    change, error = sums.wx, np.sqrt(np.maximum(squares * apart, 0))
    score = _score(posterior, labels)
    scores = None if labels is None else _mean_of_examples(sums.scores) - score
    chosen = np.flatnonzero(shapes > MOST_PARETO_K) if refit and model.examples > 1 else np.empty(0, int)
    for example in watched(chosen, "posteriors without an example", is_slow=True):
        rest = _refitted(model, posterior, int(example), seed)
        outputs = rest.given().outputs.reshape(posterior.chains, -1, *centre.shape)
        change[..., example] = outputs.mean((0, 1)) - centre
        error[..., example] = np.hypot(error_of_mean(outputs), np.sqrt(of_mean[..., 0] * apart))
        if scores is not None:
            scores[example] = _score(rest, labels) - score
    refitted = np.isin(np.arange(len(shapes)), chosen)
    accuracy = None
    if labels is not None and are_classes(labels):
        means = np.moveaxis(centre[..., None] + change, -1, 0)
        each, whole_network = (np.asarray(right(f, labels), float).mean(-1) for f in (means, centre))
        accuracy = np.subtract(each, whole_network)
    for values in (change, error, accuracy, scores):
        if values is not None:
            values[..., np.isinf(shapes) & ~refitted] = np.nan
    return LeftOut(change, error, accuracy, scores, shapes, refitted)


def _smoothed(densities: Float[np.ndarray, "draw example"], moves: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normalised log weights 1 / density of each draw, smoothed, and Pareto k, infinite where it is unknown.

    It is 0 of an example whose density does not depend on U, where that `moves`.
    """
    log_weights, shapes = np.full(densities.shape, -np.log(len(densities))), np.full(densities.shape[1], np.inf)
    equal = moves & (np.ptp(densities, axis=0) <= ROUNDING * np.abs(densities).max(0))
    shapes[equal] = 0.0
    for example in np.flatnonzero(np.isfinite(densities).all(0) & ~equal):
        # Draws that are few, or whose largest weights are one draw's, have no tail.
        with np.errstate(divide="ignore", invalid="ignore"), suppress(ValueError, IndexError):
            smoothed, shape = array_stats.psislw(densities[:, example])
            if np.isfinite(shape) and np.isfinite(smoothed).all():
                log_weights[:, example], shapes[example] = special.log_softmax(smoothed), shape
    return log_weights, shapes


def _mean_of_examples(scores: np.ndarray) -> np.ndarray:
    """Sum over outputs, mean over test examples, of scores of shape (test_example, .., example)."""
    return scores.reshape(len(scores), -1, scores.shape[-1]).sum(1).mean(0)


def _score(posterior: Posterior, labels: np.ndarray | None) -> float:
    """Mean log density of labels, in nats; NaN without labels."""
    if labels is None:
        return float("nan")
    densities = by_draw(
        lambda part: _label_densities(posterior.without_draws, part, labels), dict(posterior.draws), "scores"
    )
    scores: Any = special.logsumexp(densities, axis=0) - np.log(len(densities))
    return float(scores.reshape(len(labels), -1).sum(1).mean())


def _refitted(model: NetworkPosterior, posterior: Posterior, example: int, seed: int) -> Posterior:
    """The posterior without an example, with as many draws."""
    kept = np.delete(np.arange(model.examples), example)
    arrays = {name: getattr(model, name) for name in type(model).posterior_names}
    changes: dict[str, Any] = {name: array[kept] for name, array in arrays.items() if array is not None}
    if "path_inputs" in changes:
        changes["tokens"] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The whole model has already warned about its labels.
        rest = model.replace(**changes)
    conditional = conditional_of(rest)
    keep = ("order_parameter", *(KEPT[name] for name in conditional.variables if name in KEPT))
    count = len(next(iter(posterior.draws.values()))) // posterior.chains
    number = int(jax.random.randint(stream(seed, "left out", str(example)), (), 0, 2**31 - 1))
    tree = sample(rest, chains=posterior.chains, draws=count, keep=keep, seed=number, progress=False)
    drawn = variables_of(opened_of(tree, rest), rest, conditional.variables)
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in drawn.items()}
    return posterior._replace(conditional=conditional, draws=flat)


def _log_densities(posterior: Posterior, draw, found, labels) -> Array:
    """Log density of labels given a draw: of each output, or of all of an example if the draw determines f."""
    if found.covariances is None:
        return posterior.conditional.log_prob(draw, found.outputs, labels)
    variance = found.covariances.variance.reshape(labels.shape) + found.covariances.temperature
    return jax.scipy.stats.norm.logpdf(labels, found.outputs, jnp.sqrt(variance))


@jax.jit
def _label_densities(posterior: Posterior, draws, labels):
    def of_draw(draw):
        return _log_densities(posterior, draw, posterior.explained(draw), labels)

    return jax.lax.map(of_draw, draws)


@jax.jit
def _left_out_densities(posterior: Posterior, draws):
    def of_draw(draw):
        found = posterior.explained(draw)
        return found.log_likelihoods if found.covariances is None else found.covariances.without_each().log_densities

    return jax.lax.map(of_draw, draws)


@jax.jit
def _sums(posterior: Posterior, draws, log_weights, centre, labels) -> _Sums:
    shape = (*centre.shape, log_weights.shape[1])

    def add(sums: _Sums, each):
        draw, log_weight = each
        found, weight, scores = posterior.explained(draw), jnp.exp(log_weight), None
        x = y = (found.outputs - centre)[..., None]
        if found.covariances is not None:
            rest = found.covariances.without_each()
            x = rest.mean.reshape(shape) - centre[..., None]
            deviation = jnp.sqrt(rest.variance.reshape(shape) + found.covariances.temperature)
            if labels is not None:
                scores = jax.scipy.stats.norm.logpdf(labels[..., None] - x, centre[..., None], deviation)
        elif labels is not None:
            scores = _log_densities(posterior, draw, found, labels)[..., None]
        terms = (weight * x, weight**2 * x, weight**2 * x**2, weight * x * y, weight * y)
        added = (total + term for total, term in zip(sums[:-1], terms, strict=True))
        last = sums.scores if scores is None else jnp.logaddexp(sums.scores, log_weight + scores)
        return _Sums._make((*added, last)), None

    zeros = jnp.zeros(shape)
    first = jax.eval_shape(lambda draw: posterior.explained(draw), jax.tree.map(lambda leaf: leaf[0], draws))
    by_example = first.covariances is None and labels is not None
    scores = jnp.full((len(centre), shape[-1]) if by_example else shape, -jnp.inf)
    return jax.lax.scan(add, _Sums._make((*(zeros,) * 5, scores)), (draws, log_weights))[0]
