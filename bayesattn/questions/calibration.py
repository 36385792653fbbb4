"""Calibration of a sampler: simulation-based calibration, and a joint test of its transitions.

Both use the joint distribution of parameters and labels, from which exact draws are possible. Simulation-based calibration
(Talts et al. 2018; Modrak et al. 2023): the rank of a parameter among posterior draws, given labels drawn with this
parameter, is uniform. Joint test (after Geweke 2004): a transition that leaves the posterior invariant, followed by a new
draw of the labels, leaves the joint distribution invariant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import stats

from bayesattn._util.checks import positive_integer
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.checks.ranks import effective_share, least_tail, rank_errors, ranks_among, uniform_probability
from bayesattn.errors import BayesattnError
from bayesattn.models import Model, parameterisation_of
from bayesattn.models.conditional import conditional_of
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.queries_keys import invariants, names_of_invariants
from bayesattn.models.tokens import TokenDataset
from bayesattn.samplers import BIASED, WITH_REPLICAS, Job
from bayesattn.samplers.blocks import Plan, of_each, plan
from bayesattn.samplers.options import option_names
from bayesattn.samplers.program import Program, kernel, options_for

FEWEST_SIMULATIONS, FEWEST_DRAWS, FEWEST_CHAINS = 20, 7, 100
"""Smallest numbers with which a calibration can fail: simulations, draws per rank, chains of the joint test."""
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


@dataclass(frozen=True, eq=False, repr=False)
class JointTest(Described):
    """Change of location and spread of functions of parameters and labels by transitions, in standard errors."""

    names: list[str]
    z_scores: Float[np.ndarray, " quantity"]
    level: float = LEVEL

    @property
    def holds(self) -> bool:
        """Whether the functions agree, at the level over all functions (Bonferroni)."""
        return bool(np.max(np.abs(self.z_scores)) < self.threshold)

    @property
    def threshold(self) -> float:
        """Largest absolute z-score with which the test holds."""
        return float(stats.norm.isf(self.level / 2 / len(self.names)))

    def _described(self) -> tuple[str, dict[str, str]]:
        worst = int(np.argmax(np.abs(self.z_scores)))
        largest = f"{self.z_scores[worst]:+.2f} of {self.names[worst]}; holds up to {self.threshold:.2f}"
        return f"JointTest: {'holds' if self.holds else 'does NOT hold'}", {"largest z": largest}


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
        level: probability that a correct sampler fails, over all quantities.
        progress: function called with the number of simulations done.
        settings: further settings of `bayesattn.samplers.Job`.

    Raises:
        ValueError: invalid settings.
        FloatingPointError: a draw is not finite.
    """
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
    return Calibration(quantity_names(model), stacked, draws, p_values, effective, worst, level)


@with_own_settings
def joint_test(
    model: NetworkPosterior,
    *,
    chains: int = 1000,
    iterations: int = 10,
    warmup: int = 200,
    seed: int = 0,
    level: float = LEVEL,
    **settings: Any,
) -> JointTest:
    """Test whether transitions of a sampler, tuned once and then fixed, preserve the joint distribution.

    Each of many chains begins at an exact draw of parameters and labels. Transitions given the labels alternate with new
    draws of the labels given the parameters. The final states of the chains are compared with fresh exact draws.

    Args:
        model: the model; its labels are not used.
        chains: number of independent chains.
        iterations: transitions of each chain.
        warmup: transitions on one simulated data set that adapt the step size.
        seed: seed of all random numbers.
        level: probability that a correct sampler fails, over all functions.
        settings: settings of `bayesattn.samplers.Job`; by default the sampler is "nuts".

    Raises:
        ValueError: invalid settings, a sampler with replicas or without a step size to be tuned.
    """
    # With fewer, no sampler could fail.
    positive_integer("chains", chains, FEWEST_CHAINS)
    positive_integer("iterations", iterations)
    settings = {"sampler": "nuts"} | settings
    job = Job(**settings, chains=1, warmup=warmup, draws=1, seed=seed, chain_method="parallel").for_model(model)
    if job.sampler in WITH_REPLICAS:
        raise BayesattnError(
            f"sampler must draw from its last draw alone for the joint test, got {job.sampler!r}, whose replicas remember"
            " earlier labels; use calibration.calibrate instead"
        )
    if lacking := {"step_size", "adapt_step_size", "adapt_mass_matrix"} - {*option_names(job.kernel)}:
        raise BayesattnError(
            "sampler must be a name or a class of kernels with options for the step size that the joint test fixes, got"
            f" {job.sampler_name} without {', '.join(sorted(lacking))}: use calibration.calibrate instead"
        )
    tuning_key, start_key, fresh_key = jax.random.split(
        stream(seed, "joint test", model.fingerprint, job.sampler_name, job.parameterisation), 3
    )
    simulated = model.replace(labels=simulate(model, 1, seed).labels[0])
    # Neither the transition nor its whitening may depend on the drawn labels. Whitening is by the prior, or by the model's
    # own labels if outputs are sampled.
    by_whitening = job.parameterisation == "collapsed"
    kind = parameterisation_of(model, job.parameterisation)
    prepared = kind.prepare(model, "prior") if by_whitening and has_fixed_attention(model) else {}
    ready = plan(simulated, job, prepared, other_labels=True)
    options, posterior = _tuned_options(ready, job, warmup, tuning_key), ready.posterior

    @jax.jit
    @of_each
    def functions(sites, labels):
        return _tested(posterior.quantities(sites, tuning_key), labels, model)

    @jax.jit
    @of_each
    def exact(key):
        prior_key, labels_key = jax.random.split(key)
        sites = posterior.draw_prior(prior_key)
        return sites, posterior.draw_labels(labels_key, sites)

    @jax.jit
    @of_each
    def chain(init_key, key, sites, labels):
        transition = kernel(job.kernel, type(posterior), options)
        state = transition.init(init_key, 0, sites, (posterior.with_labels(labels),), {})

        def iterate(carry, key):
            state, labels = carry
            arguments = (posterior.with_labels(labels),)
            state = transition.sample(transition.refresh(state, arguments, {}), arguments, {})
            return (state, posterior.draw_labels(key, state.z)), None

        (state, labels), _ = jax.lax.scan(iterate, (state, labels), jax.random.split(key, iterations))
        return state.z, labels

    # Functions of one batch size are compiled once, and so are functions that do not depend on the sampler.
    exact_keys, init_keys, keys = jax.vmap(lambda key: jax.random.split(key, 3), out_axes=1)(
        jax.random.split(start_key, chains)
    )
    after = np.asarray(functions(*chain(init_keys, keys, *exact(exact_keys))))
    fresh = jax.random.split(fresh_key, (10, chains))
    before = np.concatenate([np.asarray(functions(*exact(keys))) for keys in fresh])
    entries = [name for name in quantity_names(model) if name.startswith("U")]
    names = [*entries, *_names_of_others(model), model.likelihood.statistic_name, "log likelihood"]
    return JointTest([*names, *(f"spread of {name}" for name in names)], rank_errors(before, after), level)


def _tuned_options(ready: Plan, job: Job, warmup: int, key: Array) -> PlainDict:
    """Options of the sampler without adaptation, with the step size of the job or, by default, that of warm-up."""
    options = options_for(job.kernel, ready.posterior, job.options)
    if options.get("adapt_step_size", True) or "step_size" not in options:
        state = ready.program.start(key, ready.posterior)
        while (left := warmup - int(state.i)) > 0:
            state, _ = ready.program.block(state, ready.posterior, min(left, ready.block), False, 1, ready.block)
        options["step_size"] = float(state.adapt_state.step_size)
    return options | {"adapt_step_size": False, "adapt_mass_matrix": False}


def _tested(drawn: dict[str, Array], labels: Array, model: NetworkPosterior) -> Array:
    """Functions of one draw and its labels that the joint test compares: entries of U, invariants, numbers, two scalars."""
    entries = drawn["order_parameter"][np.tril_indices(model.architecture.rows)]
    scalars = jnp.stack([model.likelihood.statistic(labels), _log_likelihood(drawn, labels, model)])
    return jnp.concatenate([entries, *_others(drawn, model), scalars])


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
    return [*entries, *correlations, *predictions, *_names_of_others(model), "log likelihood"]


def _others(drawn: dict[str, Array], model: NetworkPosterior) -> list[Array]:
    """Invariants of queries and keys, if these are sampled, and numbers that have priors."""
    of_heads = [] if has_fixed_attention(model) else [invariants(drawn)]
    return of_heads + ([model.hyperpriors.listed(drawn)] if model.has_priors else [])


def _names_of_others(model: NetworkPosterior) -> list[str]:
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
    return jnp.concatenate([*parts, *_others(drawn, model), _log_likelihood(drawn, labels, model)[None]])


def _log_likelihood(drawn: dict[str, Array], labels: Array, model: NetworkPosterior) -> Array:
    """Log likelihood log p(Y | U) of a draw, or log p(Y | f) if its outputs are sampled."""
    return conditional_of(model).with_labels(labels).log_likelihood(drawn)
