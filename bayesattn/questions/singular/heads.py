"""Capacity that each head of a network uses: learning coefficients of the head alone, and of the network without it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, finite_array, positive, require_kind
from bayesattn._util.plain_values import PlainMapping
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn.architecture import Architecture
from bayesattn.checks.mixing import moments
from bayesattn.compressed import Compressed, triangle_of
from bayesattn.dataset import Dataset
from bayesattn.errors import BayesattnError
from bayesattn.models import Path
from bayesattn.models.draws import CHAIN_AXES
from bayesattn.models.model import Model
from bayesattn.models.weights import weights as weights_of_draws
from bayesattn.network import network
from bayesattn.questions.heads.units import heads_of, names_of_heads
from bayesattn.questions.singular.best_fit import reduced
from bayesattn.questions.singular.coefficient import learning_coefficient
from bayesattn.samplers import sample

if TYPE_CHECKING:
    import pandas as pd

MOST_DRAWS = 500
"""Most draws of weights at which the coefficients of single heads are computed."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadCapacities(Described):
    """Learning coefficients of single heads, and of the network without each of them, at one temperature.

    Arrays have one row per head, first layer first. For a head alone, all other weights are frozen at posterior draws.

    Args:
        names: layer, from 1, and name of each head.
        temperature: T.
        alone: tr(G (G + T I)^{-1}) / 2, with G the Gram matrix of the derivatives of f by the head's values, times their
            variance: half the effective number of parameters of the head given the other weights, and its learning
            coefficient as T -> 0.
        alone_error: its Monte Carlo standard error; NaN for given weights.
        without: lambda_hat of the network without the head's paths; NaN for the only head of a layer.
        without_error: its Monte Carlo standard error.
        misfit: S* of the network without the head, minus S* of the whole network: the part that no other head can fit; NaN
            for the only head of a layer.
        whole: lambda_hat of the network, and its error.
    """

    names: list[tuple[int, str]]
    temperature: float
    alone: Float[np.ndarray, " head"]
    alone_error: Float[np.ndarray, " head"]
    without: Float[np.ndarray, " head"]
    without_error: Float[np.ndarray, " head"]
    misfit: Float[np.ndarray, " head"]
    whole: tuple[float, float]

    def summary(self) -> "pd.DataFrame":
        """One row per head."""
        import pandas as pd

        columns = ("alone", "alone_error", "without", "without_error")
        index = pd.MultiIndex.from_tuples(self.names, names=["layer", "head"])
        table = pd.DataFrame({name: getattr(self, name) for name in columns}, index=index)
        table["used"] = self.whole[0] - self.without
        table["used_error"] = np.hypot(self.whole[1], self.without_error)
        table["misfit"] = self.misfit
        return table

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {"whole network": f"{with_error(*self.whole)} at T = {self.temperature:.2g}"}
        most = int(np.argmax(self.alone))
        layer, name = self.names[most]
        rows["most alone"] = f"{name!r} of layer {layer}, {with_error(self.alone[most], self.alone_error[most])}"
        return f"Learning coefficients of {len(self.names)} heads", rows


@with_own_settings
def head_capacities(
    model: Model,
    temperature: float | None = None,
    *,
    weights: PlainMapping | None = None,
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> HeadCapacities:
    """Learning coefficient of each head alone, and of the network without it.

    Args:
        model: the posterior, with Gaussian labels.
        temperature: T, by default the model's.
        weights: weights at which all other heads are frozen, V_0, V_1, .., a, as `bayesattn.collapsed.weights` returns them
            for one draw; by default draws of the posterior.
        chains: chains at each network.
        warmup: adaptation steps of each chain.
        draws: draws of each chain.
        seed: seed of the chains.
        progress: function that is called with a line of text before each network.

    Raises:
        ValueError: a model without Gaussian labels, a temperature that is not above 0, weights that do not fit.
        NotConverged: the temperature is too low for float64.
    """
    require_kind("model", model, Model)
    model.require_theory()
    temperature = positive("temperature", model.temperature if temperature is None else temperature)
    smaller = reduced(model)[0].replace(temperature=temperature)
    job: Any = {"chains": chains, "warmup": warmup, "draws": draws, "seed": seed}
    trees = []

    def sampled(cold: Model, **settings: Any) -> xr.DataTree:
        trees.append(sample(cold, **settings))
        return trees[-1]

    tell = progress or (lambda text: None)
    tell("the whole network")
    whole = learning_coefficient(smaller, temperature, sample=sampled, **job)
    if weights is None:
        thin = max(1, -(-chains * draws // MOST_DRAWS))
        dataset = weights_of_draws(trees[0], seed, thin=thin)
        drawn = (dataset.sizes["chain"], dataset.sizes["draw"])
        frozen = {str(name): jnp.asarray(array.values).reshape(-1, *array.shape[2:]) for name, array in dataset.items()}
    else:
        drawn, frozen = (1, 1), {name: array[None] for name, array in _checked_weights(weights, smaller).items()}
    arch, names = model.architecture, names_of_heads(model)
    alone, without = [], []
    for (above, head), (layer, name) in zip(heads_of(arch), names, strict=True):
        values = _alone(frozen, jnp.asarray(smaller.path_inputs), arch, temperature, layer, head)
        found = moments(xr.DataArray(np.asarray(values).reshape(drawn), dims=CHAIN_AXES))
        alone.append((found["mean"], found["error"]))
        if arch.heads[above] == 1:
            without.append((np.nan, np.nan, np.nan))
            continue
        tell(f"without {name!r} of layer {layer}")
        rest = learning_coefficient(without_head(smaller, layer, head), temperature, **job)
        without.append((rest.value[0], rest.error[0], rest.best_fit.square - whole.best_fit.square))
    (capacities, errors), (left, left_errors, misfits) = np.array(alone, float).T, np.array(without, float).T
    of_all = float(whole.value[0]), float(whole.error[0])
    return HeadCapacities(names, temperature, capacities, errors, left, left_errors, misfits, of_all)


@with_own_settings
def without_head(model: Model, layer: int, head: int) -> Model:
    """Model without a head of a layer, from 1: its paths are taken out, and all other paths keep their prior.

    f carries 1 / sqrt(H_l), so the variance of the layer's values is lowered by (H_l - 1) / H_l.

    Raises:
        ValueError: the only head of a layer, or a head that is not there.
    """
    arch = model.architecture
    if not (1 <= layer <= arch.depth and 0 <= head < arch.heads[layer - 1]):
        raise BayesattnError(f"head must be one of heads {arch.heads}, got head {head} of layer {layer}")
    count = arch.heads[layer - 1]
    if count == 1:
        raise BayesattnError(f"head must not be the only one of its layer, got layer {layer} of heads {arch.heads}")
    first_head = arch.ways[layer - 1] - count
    kept = np.array([ways[layer - 1] != head + first_head for ways in np.ndindex(*arch.ways)])
    heads, variances = list(arch.heads), list(arch.variances)
    heads[layer - 1] -= 1
    variances[layer] *= (count - 1) / count
    if (statistics := model.compressed) is None:
        dataset = Dataset(path_inputs=model.path_inputs[:, kept], labels=model.labels)
    else:  # What the paths taken out explained of the labels may now be explained by no path.
        columns = np.append(np.repeat(kept, statistics.features), np.full(statistics.outputs, True))
        triangle, paths = triangle_of(statistics.triangle[:, columns]), int(kept.sum())
        sizes = (statistics.examples, paths, statistics.features, statistics.outputs)
        dataset = Dataset(compressed=Compressed(triangle, *sizes))
    rest = replace(arch, heads=tuple(heads), variances=tuple(variances))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The whole model has already warned of the labels.
        return Model(dataset=dataset, architecture=rest, likelihood=model.likelihood)


@partial(jax.jit, static_argnames=("arch", "layer", "head"))
def _alone(
    weights: dict[str, Array], path_inputs: Array, arch: Architecture, temperature: float, layer: int, head: int
) -> Float[Array, " draw"]:
    """tr(G (G + T I)^{-1}) / 2 of a head at each draw of all weights.

    f is linear in the head's values V, with f = left . V . right: the columns of its derivative are products of the two.
    """
    name = f"V_{layer}"

    def one(draw: dict[str, Array]) -> Array:
        def outputs(values: Array) -> Array:
            changed = draw | {name: draw[name].at[head].set(values)}
            return network(changed, path_inputs, arch.optional_skips).reshape(-1)

        slope = jax.jacrev(outputs)(draw[name][head])
        eigenvalues = jnp.linalg.svd(slope.reshape(len(slope), -1), compute_uv=False) ** 2 * arch.variances[layer]
        return jnp.sum(eigenvalues / (eigenvalues + temperature)) / 2

    return jax.lax.map(one, weights)


def _checked_weights(weights: Checked, model: Model) -> dict[str, Array]:
    """One draw of all weights, of the shapes that the network has."""
    like = jax.eval_shape(Path.of(model).draw_prior, jax.random.key(0))
    names = ("V_0", *(f"V_{layer}" for layer in range(1, model.architecture.depth + 1)), "a")
    for name in names:
        if name not in weights:
            raise BayesattnError(f"weights must hold {', '.join(names)}, got none of the name {name}")
    return {name: jnp.asarray(finite_array(name, weights[name], like[name].shape)) for name in names}
