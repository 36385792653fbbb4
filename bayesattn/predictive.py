"""What draws say of data: predictions at new inputs, and ArviZ's groups of likelihoods, replicated labels and the prior.

Given U the network's outputs are Gaussian, with moments in closed form (THEORY section 5), whatever parameterisation U was
drawn in. Draws of U are all that is needed.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from bayesattn._checks import one_of, positive_integer, require_memory, seed_number, shown
from bayesattn._random import fingerprint, stream
from bayesattn.models import Model
from bayesattn.models.description import ATTRIBUTE, restored
from bayesattn.theory import bartlett
from bayesattn.theory.kernels import checked_path_inputs, input_scale
from bayesattn.theory.likelihood import Factor, Likelihood, OrderParameter
from bayesattn.theory.problem import Problem, problem_of

if TYPE_CHECKING:
    import xarray as xr

    from bayesattn.runs import Run

GROUPS = ("log_likelihood", "posterior_predictive", "prior", "prior_predictive")
BATCHES = 4
"""Of consecutive draws of each chain; between them the Monte Carlo error shows."""
BLOCK_ENTRIES = 2**23
"""Most entries of an array that predictions are made in: 64 MiB."""
DRAWS_AT_ONCE = 16
PRIOR_DRAWS = 1000


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class PosteriorPrediction:
    """The posterior of the network's outputs f at new inputs, without the label noise T.

    Args:
        mean: of f, shape (example,).
        variance: of f, shape (example,): that given U, and that of the mean given U, over draws.
        error: Monte Carlo standard error of the mean, shape (example,), between batches of consecutive draws, four a chain;
            NaN of a single batch.
        probabilities: that f is above 0, shape (example,), where all labels are +1 or -1; else None.
        draws: of f, shape (chain, draw, example), if they were asked for; jointly of all examples.
    """

    mean: Float[np.ndarray, " example"]
    variance: Float[np.ndarray, " example"]
    error: Float[np.ndarray, " example"]
    probabilities: Float[np.ndarray, " example"] | None
    draws: Float[np.ndarray, "chain draw example"] | None


def predict(
    draws: "xr.DataTree | Run | str | Path",
    new_path_inputs: Any,
    *,
    keep_draws: bool = False,
    thin: int = 1,
    model: Model | None = None,
    seed: int = 0,
) -> PosteriorPrediction:
    """What the posterior says of the network's outputs at new inputs, in memory that does not grow with their number.

    Given a draw of U, f is Gaussian: mean k_*^T (K + T I)^{-1} Y, variance k_** - k_*^T (K + T I)^{-1} k_* (THEORY section
    5). Over draws, moments add up by the law of total variance.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        new_path_inputs: xi of shape (example, Pi, N_0), from `bayesattn.attention`.
        keep_draws: whether a draw of f is made for each draw of U; they take memory.
        thin: look at every thin-th draw of U, the last of each thin.
        model: whose draws they are, where they do not say so themselves.
        seed: of the draws of f.

    Raises:
        ValueError: draws that are not those of a network or have no order_parameter, inputs of another shape or not finite,
            draws of f that memory cannot hold.
        RunError: a folder that is not a run that can be read, or one without draws.
    """
    model, tree = _opened(draws, model)
    order_parameters = _order_parameters(tree, model, thin)
    features = model.path_inputs.shape[2]
    inputs = checked_path_inputs("new_path_inputs", new_path_inputs, model.architecture, features=features)
    seed_number("seed", seed)
    chains, count = order_parameters.shape[:2]
    if keep_draws:
        require_memory("draws of f", 8 * chains * count * len(inputs), "raise thin, or predict fewer inputs at a time")
    scale = input_scale(model.architecture.variances[0], *inputs.shape[1:])
    flat = jnp.asarray(order_parameters.reshape(-1, *order_parameters.shape[2:]))
    keys = jax.random.split(stream(seed, "new predictions", fingerprint(model)), len(flat)) if keep_draws else None
    signs = np.array_equal(np.abs(model.labels), np.ones_like(model.labels))
    size = max(1, min(len(inputs), BLOCK_ENTRIES // max(len(flat), DRAWS_AT_ONCE * len(model.labels))))
    # All blocks have one shape, and with it one compiled program.
    padded = np.pad(inputs * scale, ((0, -len(inputs) % size), (0, 0), (0, 0)))
    blocks = []
    for block in np.split(padded, len(padded) // size):
        outputs = _outputs(flat, model.likelihood, jnp.asarray(block), keys)
        mean, variance, sampled = (_by_chain(values, chains) for values in outputs)
        blocks.append(_over_draws(mean, variance, sampled, signs))
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1)[..., : len(inputs)], *blocks)


def with_groups(
    draws: "xr.DataTree | Run | str | Path",
    *names: str,
    prior_draws: int = PRIOR_DRAWS,
    model: Model | None = None,
    seed: int = 0,
) -> "xr.DataTree":
    """Draws with further groups of ArviZ's, made from the draws of U and from the prior.

    - log_likelihood["labels"] (chain, draw, example): log p(Y_i | Y of all other examples, U). Labels are not independent
      given U, so this, not the density of each label alone, is what leave-one-out cross-validation of `arviz_stats.loo` and
      `arviz_stats.compare` weighs draws by (Buerkner, Gabry and Vehtari 2021, section 2).
    - posterior_predictive["labels"] (chain, draw, example): labels replicated on the training inputs.
    - prior["order_parameter"], and prior["prediction"] where the model has test examples: drawn from the prior, one chain.
    - prior_predictive["labels"] (chain, draw, example): labels of the same draws.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        names: of the groups, some of `bayesattn.predictive.GROUPS`; all of them if none is named.
        prior_draws: from the prior.
        model: whose draws they are, where they do not say so themselves.
        seed: of the labels and the prior's draws.

    Returns:
        A new tree; groups of these names that `draws` has are not in it, the others are.

    Raises:
        ValueError: another group, draws that are not those of a network or have no order_parameter.
        RunError: a folder that is not a run that can be read, or one without draws.
    """
    for name in names:
        one_of("group", name, GROUPS)
    positive_integer("prior_draws", prior_draws)
    seed_number("seed", seed)
    wanted = names or GROUPS
    model, tree = _opened(draws, model)
    order_parameters = _order_parameters(tree, model)
    likelihood, of_model = model.likelihood, fingerprint(model)
    chains, flat = len(order_parameters), jnp.asarray(order_parameters.reshape(-1, *order_parameters.shape[2:]))
    made: dict[str, dict[str, np.ndarray]] = {}
    if "log_likelihood" in wanted:
        made["log_likelihood"] = {"labels": _by_chain(_log_likelihood(flat, likelihood), chains)}
    if "posterior_predictive" in wanted:
        keys = jax.random.split(stream(seed, "replicated labels", of_model), len(flat))
        made["posterior_predictive"] = {"labels": _by_chain(_replicated(flat, likelihood, keys), chains)}
    if {"prior", "prior_predictive"} & {*wanted}:
        keys = jax.random.split(stream(seed, "prior", of_model), prior_draws)
        test, arch = model.test_path_inputs, model.architecture
        scaled = None if test is None else jnp.asarray(test) * input_scale(arch.variances[0], *test.shape[1:])
        drawn = _prior(keys, problem_of(likelihood, arch), scaled, bartlett.layer_shapes(arch))
        plain = {name: np.asarray(value)[None] for name, value in drawn.items()}
        made["prior_predictive"] = {"labels": plain.pop("labels")}
        made["prior"] = plain
    import arviz_base
    import xarray

    posterior, groups = tree["posterior"].to_dataset(), dict(tree.children)
    for name in wanted:
        of_draws = {} if name.startswith("prior") else {axis: posterior[axis].values for axis in ("chain", "draw")}
        coords: Any = model.coords() | of_draws
        groups |= arviz_base.from_dict({name: made[name]}, coords=coords, dims=model.dims()).children
    result = xarray.DataTree(children={name: group.copy() for name, group in groups.items()})
    result.attrs = dict(tree.attrs)
    return result


def _opened(draws: Any, model: Model | None) -> tuple[Model, "xr.DataTree"]:
    """The network, and draws of it in memory or on disk."""
    import xarray

    if not isinstance(draws, xarray.DataTree):
        from bayesattn.runs import Run

        if isinstance(draws, str | Path):
            draws = Run(draws)
        if not isinstance(draws, Run):
            raise ValueError(
                f"draws must be the result of bayesattn.sample, a Run or a run's folder, got {shown(draws)}"
            )
        model, draws = model or draws.model, draws.draws()
    if model is None:
        model = _described_in(draws)
    if not isinstance(model, Model):
        raise ValueError(f"draws must be of a network, a bayesattn.Model, got those of a {type(model).__name__}")
    return model, draws


def _described_in(draws: "xr.DataTree") -> Any:
    about: Any = draws.attrs.get(ATTRIBUTE)
    try:
        arrays = {
            str(name): array.values
            for group in ("observed_data", "constant_data")
            for name, array in draws[group].to_dataset().data_vars.items()
        }
        return restored(json.loads(about) if isinstance(about, str) else about, arrays)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"draws must say what model they are of, in their attribute {ATTRIBUTE!r} and the groups observed_data and"
            " constant_data, got a tree that does not: hand over the model too, as model"
        ) from None


def _order_parameters(draws: "xr.DataTree", model: Model, thin: int = 1) -> Float[np.ndarray, "chain draw path path"]:
    """Every thin-th U."""
    positive_integer("thin", thin)
    if "posterior" not in draws.children or "order_parameter" not in draws["posterior"]:
        raise ValueError("draws must have posterior['order_parameter'], got draws without: keep it when you sample")
    drawn = draws["posterior"].to_dataset()["order_parameter"].values[:, thin - 1 :: thin]
    if drawn.shape[2:] != (model.architecture.paths,) * 2:
        raise ValueError(
            f"draws must be of a network of {model.architecture.paths} paths, got U of shape {drawn.shape[2:]}"
        )
    if not drawn.size:
        raise ValueError(
            f"draws must be at least as many as thin, got {draws['posterior'].sizes['draw']} of each chain"
        )
    return drawn


def _by_chain(values: Any, chains: int) -> Any:
    return None if values is None else np.asarray(values).reshape(chains, len(values) // chains, -1)


def _over_draws(mean: np.ndarray, variance: np.ndarray, sampled: np.ndarray | None, signs: bool) -> PosteriorPrediction:
    """From moments of f given each U, shape (chain, draw, example)."""
    return PosteriorPrediction(
        mean=mean.mean((0, 1)),
        variance=variance.mean((0, 1)) + mean.var((0, 1)),
        error=_error_of_mean(mean),
        probabilities=_probability_above_zero(mean, variance) if signs else None,
        draws=sampled,
    )


def _error_of_mean(values: Float[np.ndarray, "chain draw example"]) -> Float[np.ndarray, " example"]:
    chains, draws, examples = values.shape
    batches = min(BATCHES, draws)
    kept = values[:, draws % batches :].reshape(chains * batches, -1, examples).mean(1)
    if len(kept) < 2:
        return np.full(examples, np.nan)
    return kept.std(0, ddof=1) / np.sqrt(len(kept))


def _probability_above_zero(mean: np.ndarray, variance: np.ndarray) -> Float[np.ndarray, " example"]:
    """Of a Gaussian of each draw, over draws; one without variance is above zero or not."""
    certain = variance <= 0
    return np.where(
        certain, (np.sign(mean) + 1) / 2, stats.norm.cdf(mean / np.sqrt(np.where(certain, 1, variance)))
    ).mean((0, 1))


def _root(order_parameter: OrderParameter) -> Factor:
    """F with U = F F^T, also of a singular U."""
    values, vectors = jnp.linalg.eigh(order_parameter)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))


def _function(
    features: Float[Array, "example path feature"], factor: Factor, projection: Any
) -> Float[Array, " example"]:
    """f of a network whose path vectors are F and whose V_0 is the projection, in units of s_0."""
    return jnp.tensordot(features, factor @ projection, 2)


@jax.jit
def _outputs(order_parameters, likelihood: Likelihood, features, keys):
    """Mean and variance of f given each U at scaled path inputs, and a draw of it where there are keys."""

    def given(pair):
        order_parameter, key = pair
        moments = likelihood.prediction_of(order_parameter, features)
        if key is None:
            return (*moments, None)
        factor = _root(order_parameter)
        return (*moments, _function(features, factor, likelihood.sample_projection(key, factor)))

    return jax.lax.map(given, (order_parameters, keys), batch_size=DRAWS_AT_ONCE)


@jax.jit
def _log_likelihood(order_parameters, likelihood: Likelihood):
    return jax.lax.map(likelihood.leave_one_out_of, order_parameters, batch_size=DRAWS_AT_ONCE)


@jax.jit
def _replicated(order_parameters, likelihood: Likelihood, keys):
    """Labels drawn on the training inputs, given each U and the labels."""

    def given(pair):
        factor, (projection_key, noise_key) = _root(pair[0]), jax.random.split(pair[1])
        output = _function(likelihood.features, factor, likelihood.sample_projection(projection_key, factor))
        return output + jnp.sqrt(likelihood.temperature) * jax.random.normal(noise_key, output.shape)

    return jax.lax.map(given, (order_parameters, keys), batch_size=DRAWS_AT_ONCE)


@partial(jax.jit, static_argnames="shapes")
def _prior(keys, problem: Problem, features, shapes) -> dict[str, Array]:
    """U, labels and, at scaled test inputs, f of networks drawn from the prior."""
    likelihood = problem.likelihood

    def draw(key):
        point_key, projection_key, noise_key = jax.random.split(key, 3)
        factor = problem.factor(bartlett.sample_prior(point_key, shapes, problem.widths), shapes)
        projection = jax.random.normal(projection_key, (factor.shape[1], likelihood.features.shape[2]))
        output = _function(likelihood.features, factor, projection)
        noise = jnp.sqrt(likelihood.temperature) * jax.random.normal(noise_key, output.shape)
        drawn = {"order_parameter": factor @ factor.T, "labels": output + noise}
        return drawn if features is None else drawn | {"prediction": _function(features, factor, projection)}

    return jax.lax.map(draw, keys, batch_size=DRAWS_AT_ONCE)
