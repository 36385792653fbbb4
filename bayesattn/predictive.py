"""Predictions from draws, and ArviZ groups of likelihoods, replicated labels and prior draws.

Given U, the network's outputs are Gaussian, with moments in closed form (THEORY section 5). This holds for every
parameterisation, so draws of U are sufficient. Only networks whose attention reads hidden states or whose values are
nonlinear need draws of all weights.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import Checked, one_of, positive_integer, require_memory, seed_number
from bayesattn._util.random import digest_of_draws, stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn.checks.mixing import FEWEST_DRAWS, heaviest_tail
from bayesattn.errors import BayesattnError
from bayesattn.kernels.energies import one_by_one
from bayesattn.likelihoods import require_by_example
from bayesattn.models.arviz import axes, axis_names, tree_of
from bayesattn.models.conditional import conditional_of, new_inputs
from bayesattn.models.draws import (
    DRAW_VARIABLES,
    Draws,
    in_order_of_rows,
    opened_with_network,
    order_parameters_in,
    require_finite,
)
from bayesattn.models.given_draw import Conditional
from bayesattn.models.left_out import require_integrated
from bayesattn.models.log_prior import log_prior
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.prior_draws import from_prior
from bayesattn.models.stored_model import ATTRIBUTE, described, described_in
from bayesattn.prediction import PosteriorPrediction
from bayesattn.samplers.stopping import DRAWS_AT_FIRST_CHECK
from bayesattn.theory.importance import MOST_PARETO_K

if TYPE_CHECKING:
    import xarray as xr


GROUPS = ("log_likelihood", "log_prior", "posterior_predictive", "prior", "prior_predictive")
BLOCK_ENTRIES = 2**23
"""Largest number of entries of each array used to predict one block of inputs: 64 MiB."""
DRAWS_PER_BLOCK = 64
"""Number of draws between two updates of the progress bar."""
RANK_TOLERANCE = 1e-5
"""Share of the largest eigenvalue of U up to which others are rounding, also of draws that were stored in float32."""
DRAWS_NEAR_MODES = 12
"""Number of draws whose outputs show where the modes of an example's likelihood are."""
MOST_ERROR = 0.05
"""Largest Monte Carlo error of a log leave-one-out density, in nats, without a warning."""
PRIOR_GROUPS = {"prior", "prior_predictive"}
PRIOR_DRAWS = 1000
Part = TypeVar("Part")


@with_own_settings
def predict(
    draws: Draws,
    new_path_inputs: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    keep_draws: bool = False,
    thin: int = 1,
    model: NetworkPosterior | None = None,
    seed: int = 0,
) -> PosteriorPrediction:
    """Posterior of the network's outputs at new inputs, which are processed in blocks.

    Given a draw of U, f is Gaussian, with mean k_*^T (K + T I)^{-1} Y and variance k_** - k_*^T (K + T I)^{-1} k_*
    (THEORY section 5). The moments over draws follow from the law of total variance. If the likelihood is not
    Gaussian, each draw has its own f.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        new_path_inputs: xi of shape (example, Pi, N_0), from `bayesattn.attention`. If queries and keys are sampled too,
            token sequences of shape (example, T, N_0); the draws must then hold queries and keys (keep "queries_keys"),
            or with hidden attention or nonlinear values all weights (keep "weights"), besides U.
        mask: shape (example, T), True for tokens and False for padding; for token sequences only.
        keep_draws: whether to return a draw of f for each draw of U, which takes memory.
        thin: use every thin-th draw of U, the last one of each `thin` draws.
        model: model of the draws, if they do not record it.
        seed: seed of the draws of f.

    Raises:
        ValueError: draws that are not of a network, are not of `model`, have no order_parameter, or were concatenated
            from several models, from chains of several lengths or from the same draws twice; inputs of another shape or
            not finite; draws of f that memory cannot hold.
        RunError: a folder that is not a readable run.
        FloatingPointError: a prediction is not finite, for instance because K + T I is singular in float64.

    Warns with the Pareto k of the terms of a variance, if it is above 0.7.
    """
    model, tree = opened_with_network(draws, model)
    conditional = conditional_of(model).compressed(model.architecture)
    drawn = variables_of(tree, model, conditional.variables, thin)
    inputs = new_inputs(model, new_path_inputs, mask)
    seed_number("seed", seed)
    chains, count = drawn["order_parameter"].shape[:2]
    arch = model.architecture
    if keep_draws:
        needed = 8 * chains * count * len(inputs) * arch.outputs
        require_memory("draws of f", needed, "raise thin, or predict fewer inputs at a time")
    flat, numbers = _flat(drawn), {name: jnp.asarray(drawn[name]) for name in model.hyperpriors.fields}
    keys = _keys(seed, "new predictions", model, drawn) if keep_draws else None
    entries = max(arch.outputs * chains * count, conditional.entries(inputs))
    size = max(1, min(len(inputs), BLOCK_ENTRIES // entries))

    def predicted(block: Checked) -> PosteriorPrediction:
        outputs = by_draw(lambda part: _outputs(conditional, part[0], block, part[1]), (flat, keys), "predicting")
        mean, variance = (_by_chain(values, chains) for values in outputs[:2])
        _require_finite("prediction", mean, variance)
        variance = np.maximum(variance, 0)
        # Their average is the variance; an error of their centre changes it by its square only.
        terms = variance + (mean - mean.mean((0, 1))) ** 2
        tails.append(heaviest_tail(terms))
        return PosteriorPrediction(
            mean=mean.mean((0, 1)),
            variance=variance.mean((0, 1)) + mean.var((0, 1)),
            error=error_of_mean(mean),
            variance_error=error_of_mean(terms),
            probabilities=conditional.probabilities(mean, variance, numbers),
            draws=None if outputs[2] is None else _by_chain(outputs[2], chains),
            output_names=model.output_names,
        )

    tails: list[float] = []
    # All blocks have one shape, so that the program is compiled once.
    places = [np.arange(first, first + size) % len(inputs) for first in range(0, len(inputs), size)]
    blocks = [predicted(inputs[place]) for place in places]
    if (tail := np.fmax.reduce(tails)) > MOST_PARETO_K:
        warnings.warn(
            f"the variance of f has a heavy tail: Pareto k is {tail:.2f}, above {MOST_PARETO_K}: values too rare to be"
            " among the draws may dominate it, so that variance_error is too small; draw more, or state quantiles"
            " (keep_draws=True)",
            stacklevel=3,
        )
    axis = -blocks[0].mean.ndim
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis).take(range(len(inputs)), axis), *blocks)


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
        names: groups to add, from `bayesattn.predictive.GROUPS`; by default all of them, log_prior only for
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
    flat, (chains, count) = _flat(drawn), drawn["order_parameter"].shape[:2]
    made: dict[str, dict[str, np.ndarray]] = {}
    if "log_likelihood" in wanted:
        if not joint:
            require_by_example(model.reference.likelihood, np.asarray(model.labels), "leave-one-out densities")
        some = np.linspace(0, chains * count - 1, DRAWS_NEAR_MODES).astype(int)
        others = {name: values[some] for name, values in flat.items()}
        density = _log_likelihood if joint else partial(_leave_one_out, others=others)
        values = by_draw(lambda part: density(conditional, part), flat, "log likelihood")
        made["log_likelihood"] = {"labels": _by_chain(values, chains)}
        if not joint and not model.likelihood.conjugate:
            require_integrated(values, model.likelihood)
        _require_finite("likelihood", values)
        if not joint:
            _warn_of_errors(made["log_likelihood"]["labels"])
    if "log_prior" in wanted:
        made["log_prior"] = log_prior(tree, model)
    if "posterior_predictive" in wanted:
        keys = _keys(seed, "replicated labels", model, drawn)
        values = by_draw(lambda part: _replicated(conditional, *part), (flat, keys), "replicated labels")
        made["posterior_predictive"] = {"labels": _by_chain(values, chains)}
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


def variables_of(
    tree: "xr.DataTree", model: NetworkPosterior, names: Sequence[str], thin: int = 1
) -> dict[str, Float[np.ndarray, "chain draw *axes"]]:
    """Every thin-th draw of some variables."""
    variables = {"order_parameter": order_parameters_in(tree, model, thin)}
    _require_rank(variables["order_parameter"], model.architecture.factor_columns)
    for name in {*names} - variables.keys():
        if name not in tree["posterior"]:
            of, kept = repr(model.reference.likelihood), "queries_keys"
            if "V_0" in names:
                of, kept = "hidden attention or nonlinear values", "weights"
            advice = "" if name in DRAW_VARIABLES or name in model.hyperpriors.variables else f": keep {kept!r}"
            raise BayesattnError(f"draws of a model with {of} must have posterior[{name!r}], got draws without{advice}")
        values = in_order_of_rows(tree["posterior"].to_dataset()[name], tree, model)
        require_finite(f"posterior[{name!r}]", values)
        variables[name] = values.isel(draw=slice(thin - 1, None, thin)).values
    return variables


def _require_rank(order_parameters: Float[np.ndarray, "chain draw row row"], columns: int) -> None:
    """Raise ValueError if one of some evenly spaced draws of U has a higher rank than U of this network can have."""
    flat = order_parameters.reshape(-1, *order_parameters.shape[2:])
    some = flat[:: -(-len(flat) // DRAWS_PER_BLOCK)]
    values = np.linalg.eigvalsh(some)
    rank = np.sum(values > RANK_TOLERANCE * values[:, -1:], axis=1).max()
    if rank > columns:
        raise BayesattnError(
            f"order_parameter of draws must have rank {columns} or less at these widths, got rank {rank}"
        )


def by_draw(function: Callable[[Part], object], drawn: Part, description: str) -> Any:
    """Values of a function of draws, in parts of one shape, so that it is compiled once; with a bar if it is slow."""
    count = len(jax.tree.leaves(drawn)[0])
    size = min(DRAWS_PER_BLOCK, count)
    parts = [np.arange(first, first + size) % count for first in range(0, count, size)]
    values = [
        jax.device_get(function(jax.tree.map(lambda leaf, part=part: _at(leaf, part), drawn)))
        for part in watched(parts, description, f"blocks of {size} draws")
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *values)


def _at(values: Any, numbers: np.ndarray) -> Any:
    """Entries along the first axis; of JAX's arrays, such as keys, by one program."""
    return values[numbers] if isinstance(values, np.ndarray) else _gathered(values, numbers)


@jax.jit
def _gathered(values, numbers):
    return values[numbers]


def _keys(seed: int, purpose: str, model: NetworkPosterior, drawn: dict[str, np.ndarray]) -> Any:
    """A key for each draw, which depends on all draws."""
    own = digest_of_draws(*(drawn[name] for name in sorted(drawn)))
    chains, count = drawn["order_parameter"].shape[:2]
    return jax.random.split(stream(seed, purpose, model.fingerprint, own), chains * count)


def _flat(drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws of all chains along one axis."""
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in drawn.items()}


def _require_finite(what: str, *values: np.ndarray) -> None:
    if not all(np.isfinite(value).all() for value in values):
        raise FloatingPointError(
            f"a {what} is not finite: K + T I of a draw is likely singular in float64; raise the temperature"
        )


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


def _by_chain(values: np.ndarray, chains: int) -> np.ndarray:
    """Values of each draw, with a first axis of chains."""
    return values.reshape(chains, -1, *values.shape[1:])


def error_of_mean(values: Float[np.ndarray, "chain draw *label"]) -> Float[np.ndarray, "*label"]:
    """Standard error of the mean; NaN with fewer than four draws, or if draws do not vary in any chain."""
    unknown = (values.max(1) == values.min(1)).all(0)
    if values.shape[1] < FEWEST_DRAWS:
        return np.full(values.shape[2:], np.nan)
    import xarray

    dims = ("chain", "draw", "example", "output")[: values.ndim]
    with np.errstate(divide="ignore", invalid="ignore"):
        error = arviz_stats.mcse(xarray.DataArray(values, dims=dims)).values
    return np.where(unknown, np.nan, error)


@jax.jit
def _outputs(conditional: Conditional, draws, path_inputs, keys):
    """Mean and variance of f given each draw, and a draw of f if there are keys."""
    return one_by_one(lambda pair: conditional.outputs(pair[0], path_inputs, pair[1]), (draws, keys))


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
