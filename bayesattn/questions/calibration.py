"""Simulation-based calibration of a sampler (Talts et al. 2018; Modrak et al. 2023).

Parameters and labels have a joint distribution from which exact draws are possible. The rank of a parameter among posterior
draws, given labels drawn with this parameter, is uniform. `joint_law` tests transitions by the same distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayesattn._util.checks import positive_integer, probability
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.checks.ranks import effective_share, least_tail, ranks_among, uniform_probability
from bayesattn.errors import BayesattnError
from bayesattn.models import Model, parameterisation_of
from bayesattn.models.conditional import conditional_of
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.queries_keys import invariants, names_of_invariants
from bayesattn.models.tokens import TokenDataset
from bayesattn.samplers import BIASED, Job
from bayesattn.samplers.blocks import of_each, plan
from bayesattn.samplers.program import Program

FEWEST_SIMULATIONS, FEWEST_DRAWS = 20, 7
"""Smallest numbers with which a calibration can fail: simulations, draws per rank."""
RANKED_PREDICTIONS = 5
"""Number of test examples whose predictions are ranked."""
VERDICTS = {True: "uniform", False: "NOT uniform", None: "cannot tell"}
"""Description of the ranks, by whether they are uniform."""
LEVEL = 0.01
"""Probability that a correct sampler fails, over all quantities of a test."""
INDEPENDENT_SHARE = 0.65
"""Smallest effective share at which ranked draws count as independent.

For draws of an autoregressive chain with this share, ranks fail as rarely as for independent draws, up to 1000
simulations. With a share of 0.5 they fail 1.5 times as often, with a share of 0.2 and 200 simulations 5 times as often.
"""
SIMULATIONS_PER_BATCH = 50
"""Number of simulations sampled in one batch."""
TIE_STREAM = 2
"""Number of the random stream that breaks ties."""


class Simulations(NamedTuple):
    """Draws from the joint distribution: labels, and the true quantities to be ranked among posterior draws."""

    labels: Float[np.ndarray, "simulation example"]
    quantities: Float[np.ndarray, "simulation quantity"]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Described):
    """Ranks of each quantity among its posterior draws, and the p-value of their uniformity.

    `effective` is the effective share of the ranked draws, 1 if thinning made them independent. `level` is the probability
    that a correct sampler fails. `bias` is the step-size bias of the entry of U with the largest bias, as a biased sampler
    estimates it, in posterior standard deviations, averaged over simulations; None for other samplers.
    """

    names: list[str]
    ranks: Int[np.ndarray, "simulation quantity"]
    draws: int
    p_values: Float[np.ndarray, " quantity"]
    effective: Float[np.ndarray, " quantity"]
    bias: float | None
    level: float = LEVEL

    @property
    def threshold(self) -> float:
        """Value that each p must exceed, so that all quantities together have the level (Bonferroni)."""
        return self.level / len(self.names)

    @property
    def holds(self) -> bool | None:
        """Whether the ranks are uniform; None if uniformity fails only for quantities whose draws are not independent."""
        failed = self.p_values <= self.threshold
        if not failed.any():
            return True
        return False if np.any(failed & (self.effective >= INDEPENDENT_SHARE)) else None

    def _described(self) -> tuple[str, dict[str, str]]:
        worst = int(np.argmin(self.p_values))
        return f"Calibration: {VERDICTS[self.holds]}", {
            "simulations": f"{len(self.ranks)}, ranks among {self.draws} draws",
            "independence": f"effective share of the ranked draws {self.effective.min():.2f} at least",
            "least p": f"{self.p_values[worst]:.2g} of {self.names[worst]}; holds above {self.threshold:.2g}",
        }


@with_own_settings
def simulate(model: NetworkPosterior, simulations: int, seed: int = 0) -> Simulations:
    """Draw weights from the prior, and labels and predictions from the network with these weights.

    The simulations do not depend on the sampler or the parameterisation that are calibrated later.

    Args:
        model: the model; its labels are not used.
        simulations: number of simulations.
        seed: same seed, same simulations.

    Raises:
        ValueError: fewer than one simulation; numbers with priors and a compressed dataset.
    """
    positive_integer("simulations", simulations)
    if model.compressed is not None and model.has_priors:
        raise BayesattnError(
            "model must have known numbers to be simulated with a compressed dataset, whose unexplained labels are not"
            f" drawn, got priors of {' and '.join(model.hyperpriors.names)}"
        )
    network = parameterisation_of(model, model.weight_space).of(model)

    def one(key):
        weights_key, labels_key = jax.random.split(key)
        weights = network.draw_prior(weights_key)
        labels = network.draw_labels(labels_key, weights)
        drawn = network.quantities(weights, key)
        return labels, _ranked(drawn, labels, model)

    labels, quantities = jax.jit(of_each(one))(
        jax.random.split(stream(seed, "simulations", model.fingerprint), simulations)
    )
    return Simulations(np.asarray(labels), np.asarray(quantities))


@with_own_settings
def calibrate(
    model: NetworkPosterior,
    simulations: Simulations,
    *,
    draws: int = 63,
    thin: int = 5,
    warmup: int = 200,
    seed: int = 0,
    level: float = LEVEL,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> Calibration:
    """Simulation-based calibration of a sampler.

    Args:
        model: the model; its posterior given the labels of each simulation is sampled.
        simulations: draws from the joint distribution, by `simulate`.
        draws: number L of posterior draws among which a simulated value is ranked; ranks go from 0 to L.
        thin: transitions between these draws, which should make them nearly independent: see `Calibration.effective`.
        warmup: transitions before the first draw.
        seed: seed of the sampler.
        level: probability that a correct sampler fails, over all quantities; below 1.
        progress: function called with the number of simulations done.
        settings: further settings of `bayesattn.samplers.Job`.

    Raises:
        ValueError: invalid settings, simulations of a model of another size.
        FloatingPointError: a draw is not finite.
    """
    level, names = probability("level", level), quantity_names(model)
    own, got = (np.size(model.labels), len(names)), tuple(np.size(each[:1]) for each in simulations)
    if got != own:
        raise BayesattnError(
            f"simulations must be of the model, of {own[0]} labels and {own[1]} quantities, got {got[0]} and {got[1]}"
        )
    if not has_fixed_attention(model):  # Ranked quantities depend on the queries and keys.
        settings = {"keep": ("order_parameter", "prediction", "queries_keys")} | settings
    for name, value, fewest in (("draws", draws, FEWEST_DRAWS), ("thin", thin, 1)):
        positive_integer(name, value, fewest)
    count = positive_integer("number of simulations", len(simulations.labels), FEWEST_SIMULATIONS)
    job = Job(**settings, chains=1, warmup=warmup, draws=draws * thin, thin=thin, seed=seed, chain_method="parallel")
    job = job.for_model(model)
    ranked_of_all = jax.jit(of_each(lambda drawn, labels: of_each(partial(_ranked, labels=labels, model=model))(drawn)))
    ties = np.random.default_rng((seed, TIE_STREAM))
    ranks, kept, bias = [], [], []
    for first in range(0, count, SIMULATIONS_PER_BATCH):
        batch = slice(first, min(first + SIMULATIONS_PER_BATCH, count))
        key = stream(seed, "calibration", model.fingerprint, job.sampler_name, job.parameterisation, str(first))
        outputs = _posterior_draws(model, simulations.labels[batch], job, key)
        posterior = outputs["posterior"]
        ranked = np.asarray(ranked_of_all(posterior, simulations.labels[batch]))
        if not np.isfinite(ranked).all():
            raise FloatingPointError(
                f"sampler {job.sampler_name!r} met a value that is not finite; a smaller step size may help"
            )
        # Ties occur if U is singular: correlations are then 1 or -1.
        ranks.append(ranks_among(ranked, simulations.quantities[batch], ties))
        kept.append(ranked)
        if job.sampler in BIASED:
            deviation = posterior["order_parameter"].std(1)
            bias.append(outputs["step_size_bias"]["order_parameter"].mean(1) / deviation)
        if progress is not None:
            progress(batch.stop)
    stacked = np.concatenate(ranks)
    p_values = uniform_probability(least_tail(stacked, draws), count, draws)
    effective = effective_share(np.concatenate(kept))
    worst = float(max(np.concatenate(bias).mean(0).ravel(), key=abs)) if bias else None
    return Calibration(names, stacked, draws, p_values, effective, worst, level)


def quantity_names(model: NetworkPosterior) -> list[str]:
    """Names of the ranked quantities: entries of U by path numbers, their correlations, predictions, log p(Y | U).

    If queries and keys are sampled too, their invariants come before the last one, and so do numbers with priors. If the
    likelihood is not Gaussian, the last one is log p(Y | f).

    Correlations U_ij / sqrt(U_ii U_jj) keep their sign, so they reveal chains that cannot cross from one sign to the other.
    """
    paths = model.architecture.rows
    entries = [f"U {row + 1},{column + 1}" for row, column in zip(*np.tril_indices(paths), strict=True)]
    correlations = [f"corr {row + 1},{column + 1}" for row, column in zip(*np.tril_indices(paths, -1), strict=True)]
    shape = (min(RANKED_PREDICTIONS, model.test_examples), *model.architecture.output_axes)
    predictions = ["f " + ",".join(str(axis + 1) for axis in entry) for entry in np.ndindex(shape)]
    return [*entries, *correlations, *predictions, *names_of_invariants_and_numbers(model), "log likelihood"]


def invariants_and_numbers(drawn: dict[str, Array], model: NetworkPosterior) -> list[Array]:
    """Invariants of queries and keys, if these are sampled, and numbers that have priors."""
    of_heads = [] if has_fixed_attention(model) else [invariants(drawn)]
    return of_heads + ([model.hyperpriors.listed(drawn)] if model.has_priors else [])


def names_of_invariants_and_numbers(model: NetworkPosterior) -> list[str]:
    """Names of `invariants_and_numbers`."""
    of_heads = [] if has_fixed_attention(model) else names_of_invariants(model.architecture)
    return [*of_heads, *model.hyperpriors.names]


def narrow_model(temperature: float = 0.01) -> Model:
    """Model of a network narrower than its number of paths, with one path that hardly affects the labels.

    Two heads at width 1 make U singular. The first head averages over all tokens, which are nearly centred, so its path
    inputs are a hundredth the size of the second head's. The labels do not determine the sign of the weak path relative to
    the strong one, so the posterior has two modes. In coordinates that do not connect the modes a chain stays in one of
    them: it seems mixed, but is wrong.
    """
    rng = np.random.default_rng(0)
    examples, tokens, features = 20, 40, 5
    inputs, test_inputs = (rng.normal(size=(count, tokens, features)) for count in (examples, RANKED_PREDICTIONS))
    # With a large multiple of an orthogonal matrix, the second head attends to one token.
    focused = 20 * np.linalg.qr(rng.normal(size=(features, features)))[0]
    data = TokenDataset(
        inputs=inputs - 0.9 * inputs.mean(1, keepdims=True),
        labels=np.zeros(examples),
        test_inputs=test_inputs - 0.9 * test_inputs.mean(1, keepdims=True),
        test_labels=np.ones(RANKED_PREDICTIONS),
        weights=[np.stack([np.zeros_like(focused), focused])],
        head_names=(("average", "focused"),),
        path_groups={},
    )
    return Model.from_tokens(data, (1, 1), (1.0, 1.0, 1.0), temperature, name="narrow")


def _posterior_draws(
    model: NetworkPosterior, labels: np.ndarray, job: Job, key: Array
) -> dict[str, dict[str, np.ndarray]]:
    """Kept draws of one chain per row of labels, all in one batch."""
    kind = parameterisation_of(model, job.parameterisation)
    models = [model.replace(labels=row) for row in labels]
    prepared = [kind.prepare(case) for case in models]
    ready = plan(models[0], job, prepared[0], other_labels=True)
    own = jnp.asarray(labels), {name: jnp.stack([arrays[name] for arrays in prepared]) for name in prepared[0]}
    start, block = _batched(ready.program, job.kept)
    state = start(jax.random.split(key, len(labels)), own, ready.posterior)
    most = job.kept * job.thin
    for done in range(0, job.warmup, most):
        state, _ = block(state, own, ready.posterior, min(most, job.warmup - done), False, job.thin)
    _, outputs = block(state, own, ready.posterior, job.draws, True, job.thin)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], outputs)


@lru_cache(maxsize=16)
def _batched(program: Program, slots: int) -> tuple[Callable, Callable]:
    """Batched start and block functions for many simulations, each with its own labels and prepared arrays."""

    def of_one(own, posterior):
        labels, prepared = own
        return posterior.with_prepared(prepared).with_labels(labels)

    def start(keys, own, posterior):
        return of_each(lambda key, own: program.start(key, of_one(own, posterior)))(keys, own)

    def block(states, own, posterior, *arguments):
        return of_each(lambda state, own: program.block(state, of_one(own, posterior), *arguments, slots))(states, own)

    return jax.jit(start), jax.jit(block)


def _ranked(drawn: dict[str, Array], labels: Array, model: NetworkPosterior) -> Array:
    """Ranked quantities of one draw, in the order of `quantity_names`."""
    order_parameter, prediction = drawn["order_parameter"], drawn.get("prediction")
    deviations = jnp.sqrt(jnp.diag(order_parameter))
    # Rounded, so that values equal up to rounding errors are ties.
    correlations = jnp.round(order_parameter / jnp.outer(deviations, deviations), 9)
    parts = [order_parameter[np.tril_indices(len(deviations))], correlations[np.tril_indices(len(deviations), -1)]]
    parts += [] if prediction is None else [prediction[:RANKED_PREDICTIONS].ravel()]
    return jnp.concatenate([*parts, *invariants_and_numbers(drawn, model), log_likelihood(drawn, labels, model)[None]])


def log_likelihood(drawn: dict[str, Array], labels: Array, model: NetworkPosterior) -> Array:
    """Log likelihood log p(Y | U) of a draw, or log p(Y | f) if its outputs are sampled."""
    return conditional_of(model).with_labels(labels).log_likelihood(drawn)
