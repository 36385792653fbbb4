"""Joint test of a sampler's transitions (after Geweke 2004).

A transition that leaves the posterior invariant, followed by a new draw of the labels, leaves the joint distribution of
parameters and labels invariant, from which exact draws are possible.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from bayesattn._util.checks import positive_integer, probability
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.checks.ranks import rank_errors
from bayesattn.errors import BayesattnError
from bayesattn.models import parameterisation_of
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.questions.calibration import (
    LEVEL,
    invariants_and_numbers,
    log_likelihood,
    names_of_invariants_and_numbers,
    quantity_names,
    simulate,
)
from bayesattn.samplers import WITH_REPLICAS, Job
from bayesattn.samplers.blocks import Plan, of_each, plan
from bayesattn.samplers.options import option_names
from bayesattn.samplers.program import kernel, options_for

FEWEST_CHAINS = 100
"""Smallest number of chains with which the test can fail."""
LEAST_MOVED, SHORTEST_WAY = 0.5, 1e-3
"""Smallest share of the chains in which each coordinate must have moved, and by which share of its prior deviation.

Transitions that hardly move can hardly fail. The way is short, since many labels, drawn anew given the parameters, hold them
where they are whatever the sampler.
"""
VERDICTS = {True: "holds", False: "does NOT hold", None: "cannot tell"}
"""Description of the result, by whether the joint distribution is preserved."""


@dataclass(frozen=True, eq=False, repr=False)
class JointTest(Described):
    """Change of location and spread of functions of parameters and labels by transitions, in standard errors.

    `moved` is the share of the chains in which a coordinate of the sampler has moved by more than `SHORTEST_WAY` of its
    standard deviation in the prior, for the coordinate of the least share.
    """

    names: list[str]
    z_scores: Float[np.ndarray, " quantity"]
    level: float = LEVEL
    moved: float = 1.0

    @property
    def holds(self) -> bool | None:
        """Whether the functions agree, at the level over all functions (Bonferroni); None if they do without moving."""
        if not np.max(np.abs(self.z_scores)) < self.threshold:
            return False
        return True if self.moved >= LEAST_MOVED else None

    @property
    def threshold(self) -> float:
        """Largest absolute z-score with which the test holds."""
        return float(stats.norm.isf(self.level / 2 / len(self.names)))

    @property
    def doubts(self) -> list[str]:
        """Why nothing is told, one sentence; nothing if the transitions move, or fail."""
        if self.holds is not None:
            return []
        return [
            f"a coordinate has moved in {100 * self.moved:.0f} % of the chains, expected at least {100 * LEAST_MOVED:.0f} %:"
            " transitions that stand still change no distribution; raise iterations, or change the step size"
        ]

    def _described(self) -> tuple[str, dict[str, str]]:
        worst = int(np.argmax(np.abs(self.z_scores)))
        largest = f"{self.z_scores[worst]:+.2f} of {self.names[worst]}; holds up to {self.threshold:.2f}"
        rows = {"largest z": largest} | ({"cannot tell": "; ".join(self.doubts)} if self.doubts else {})
        return f"JointTest: {VERDICTS[self.holds]}", rows


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
        level: probability that a correct sampler fails, over all functions; below 1.
        settings: settings of `bayesattn.samplers.Job`; by default the sampler is "nuts".

    Raises:
        ValueError: invalid settings, a sampler with replicas or without a step size to be tuned.
    """
    # With fewer, no sampler could fail.
    positive_integer("chains", chains, FEWEST_CHAINS)
    positive_integer("iterations", iterations)
    level = probability("level", level)
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
    first = exact(exact_keys)
    last = chain(init_keys, keys, *first)
    after = np.asarray(functions(*last))
    fresh = jax.random.split(fresh_key, (10, chains))
    before = np.concatenate([np.asarray(functions(*exact(keys))) for keys in fresh])
    entries = [name for name in quantity_names(model) if name.startswith("U")]
    names = [*entries, *names_of_invariants_and_numbers(model), model.likelihood.statistic_name, "log likelihood"]
    names += [f"spread of {name}" for name in names]
    sites = [np.stack(pair) for pair in zip(*map(jax.tree.leaves, (first[0], last[0])), strict=True)]
    moved = [np.mean(np.abs(new - old) > SHORTEST_WAY * old.std(0), axis=0).min() for old, new in sites]
    return JointTest(names, rank_errors(before, after), level, float(min(moved)))


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
    scalars = jnp.stack([model.likelihood.statistic(labels), log_likelihood(drawn, labels, model)])
    return jnp.concatenate([entries, *invariants_and_numbers(drawn, model), scalars])
