"""ArviZ groups made from draws of U and from the prior: likelihoods, log prior, replicated labels and prior draws."""

import json
import warnings
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import one_of, positive_integer, seed_number
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.kernels.energies import one_by_one
from bayesattn.likelihoods import require_by_example
from bayesattn.models.arviz import axes, axis_names, tree_of
from bayesattn.models.conditional import conditional_of
from bayesattn.models.draws import Draws, opened_with_network
from bayesattn.models.given_draw import Conditional
from bayesattn.models.left_out import require_integrated
from bayesattn.models.log_prior import log_prior
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.prior_draws import from_prior
from bayesattn.models.stored_model import ATTRIBUTE, described, described_in
from bayesattn.over_draws import (
    by_chain,
    by_draw,
    error_of_mean,
    flat_draws,
    keys_of,
    require_finite_values,
    variables_of,
)
from bayesattn.samplers.stopping import DRAWS_AT_FIRST_CHECK

if TYPE_CHECKING:
    import xarray as xr


GROUPS = ("log_likelihood", "log_prior", "posterior_predictive", "prior", "prior_predictive")
DRAWS_NEAR_MODES = 12
"""Number of draws whose outputs show where the modes of an example's likelihood are."""
MOST_ERROR = 0.05
"""Largest Monte Carlo error of a log leave-one-out density, in nats, without a warning."""
PRIOR_GROUPS = {"prior", "prior_predictive"}
PRIOR_DRAWS = 1000


@with_own_settings
def with_groups(
    draws: Draws,
    *names: str,
    prior_draws: int = PRIOR_DRAWS,
    joint: bool = False,
    model: NetworkPosterior | None = None,
    seed: int = 0,
) -> "xr.DataTree":
    """Draws with additional ArviZ groups, made from the draws of U and from the prior.

    - log_likelihood["labels"] (chain, draw, example): log p(Y_i | Y of all other examples, U). Labels are not
      independent given U, so leave-one-out cross-validation (`arviz_stats.loo`, `arviz_stats.compare`) weights draws by
      this density, not by the density of each label alone (Buerkner, Gabry and Vehtari 2021). If the likelihood is not
      Gaussian, the density is log p(Y_i | f of all other examples, U), with f_i integrated out (Vehtari et al. 2016),
      because log p(Y_i | f_i) would have far heavier tails. With hidden attention or nonlinear values it is
      log p(Y_i | weights), which has such tails: look at the Pareto k of leave-one-out. With `joint`, the group instead
      has log p(Y | U) of all labels together (log p(Y | f) if the likelihood is not Gaussian), of shape (chain, draw),
      which `arviz_stats.psense` scales.
    - log_prior["bartlett"] (chain, draw): log prior density of the Bartlett coordinates of U, which collapsed
      draws contain. For narrow layers it is the density of the coordinates in which the sampler moves, with rows in
      another order than posterior["bartlett"], strong rows first. Where T or variances have priors, log_prior["numbers"] is
      the log prior density of them. With Gaussian labels it and the joint log_likelihood
      add up to "lp", up to a constant.
    - posterior_predictive["labels"] (chain, draw, example): labels replicated on the training inputs.
    - prior["order_parameter"], and prior["prediction"] if the model has test examples: prior draws, in one chain.
    - prior_predictive["labels"] (chain, draw, example): labels of the same prior draws.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        names: groups to add, from `bayesattn.arviz_groups.GROUPS`; by default all of them, log_prior only for
            collapsed draws.
        prior_draws: number of prior draws.
        joint: whether log_likelihood is the density of all labels together.
        model: model of the draws, if they do not record it.
        seed: seed of the labels and of the prior draws.

    Returns:
        A new tree. Its new groups replace groups of the same names in `draws`; all other groups are kept.

    Raises:
        ValueError: an unknown group; a group other than prior for a compressed dataset; draws that are not of a network,
            are of another model than `model`, or have no order_parameter; log_prior of draws without Bartlett coordinates.
        RunError: a folder that is not a readable run.
        FloatingPointError: a value is not finite.

    Warns if the Monte Carlo error of a log leave-one-out density is above 0.05, where chains have at least 100 draws.
    """
    for name in names:
        one_of("group", name, GROUPS)
    positive_integer("prior_draws", prior_draws)
    seed_number("seed", seed)
    model, tree = opened_with_network(draws, model)
    by_example = [name for name in names if name != "prior"]
    if model.compressed is not None and by_example:
        raise BayesattnError(
            f"group must be 'prior' for a compressed dataset, which holds no single examples, got {by_example[0]!r}"
        )
    wanted = names or (GROUPS if model.compressed is None else ("prior",))
    if not names and "bartlett" not in tree["posterior"]:
        wanted = tuple(name for name in wanted if name != "log_prior")
    of_model, conditional = model.fingerprint, conditional_of(model)
    drawn = variables_of(tree, model, conditional.variables if {*wanted} - PRIOR_GROUPS else ("order_parameter",))
    flat, (chains, count) = flat_draws(drawn), drawn["order_parameter"].shape[:2]
    made: dict[str, dict[str, np.ndarray]] = {}
    if "log_likelihood" in wanted:
        if not joint:
            require_by_example(model.reference.likelihood, np.asarray(model.labels), "leave-one-out densities")
        some = np.linspace(0, chains * count - 1, DRAWS_NEAR_MODES).astype(int)
        others = {name: values[some] for name, values in flat.items()}
        density = _log_likelihood if joint else partial(_leave_one_out, others=others)
        values = by_draw(lambda part: density(conditional, part), flat, "log likelihood")
        made["log_likelihood"] = {"labels": by_chain(values, chains)}
        if not joint and not model.likelihood.conjugate:
            require_integrated(values, model.likelihood)
        require_finite_values("likelihood", values)
        if not joint:
            _warn_of_errors(made["log_likelihood"]["labels"])
    if "log_prior" in wanted:
        made["log_prior"] = log_prior(tree, model)
    if "posterior_predictive" in wanted:
        keys = keys_of(seed, "replicated labels", model, drawn)
        values = by_draw(lambda part: _replicated(conditional, *part), (flat, keys), "replicated labels")
        made["posterior_predictive"] = {"labels": by_chain(values, chains)}
    if PRIOR_GROUPS & {*wanted}:
        keys = jax.random.split(stream(seed, "prior", of_model), prior_draws)
        drawn_from_prior = from_prior(model, keys)
        plain = {name: np.asarray(value)[None] for name, value in drawn_from_prior.items()}
        made["prior_predictive"] = {"labels": plain.pop("labels")}
        made["prior"] = plain
    import xarray

    posterior, groups = tree["posterior"].to_dataset(), dict(tree.children)
    for name in wanted:
        of_draws = {} if name.startswith("prior") else {axis: posterior[axis].values for axis in ("chain", "draw")}
        coords = axis_names(model) | of_draws
        # All outputs of an example are left out together.
        dims = axes(model) | ({"labels": [] if joint else ["example"]} if name == "log_likelihood" else {})
        if name == "log_prior":
            dims = {key: [] for key in made[name]}
        groups |= tree_of({name: made[name]}, coords, dims).children
    result = xarray.DataTree(children={name: group.copy() for name, group in groups.items()})
    result.attrs = dict(tree.attrs) | {ATTRIBUTE: json.dumps(described(model) | described_in(tree))}
    return result


def _warn_of_errors(densities: Float[np.ndarray, "chain draw example"]) -> None:
    """Warn if a log leave-one-out density, minus the log of the mean of 1 / density, has a large Monte Carlo error."""
    if densities.shape[1] < DRAWS_AT_FIRST_CHECK:
        return
    weights = np.exp(densities.min((0, 1)) - densities)
    errors = error_of_mean(weights) / weights.mean((0, 1))
    if np.fmax.reduce(errors) > MOST_ERROR:
        example = int(np.nanargmax(errors))
        warnings.warn(
            f"the log leave-one-out density of example {example} has a Monte Carlo error of {errors[example]:.3f}, above"
            f" {MOST_ERROR}, and {np.sum(errors > MOST_ERROR)} of {len(errors)} examples are above: draw more, or leave the"
            " example out and sample again",
            stacklevel=4,
        )


@jax.jit
def _log_likelihood(conditional: Conditional, draws):
    return one_by_one(conditional.log_likelihood, draws)


@jax.jit
def _leave_one_out(conditional: Conditional, draws, others):
    outputs = one_by_one(conditional.own_outputs, others)
    return one_by_one(lambda draw: conditional.leave_one_out(draw, outputs), draws)


@jax.jit
def _replicated(conditional: Conditional, draws, keys):
    return one_by_one(lambda pair: conditional.replicate(*pair), (draws, keys))
