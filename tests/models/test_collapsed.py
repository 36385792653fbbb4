"""The collapsed parameterisation: exact draws of weights, and what is said of draws that have none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import bayesattn as ba
from bayesattn.models import collapsed, path
from bayesattn.theory import bartlett
from tests.models.test_extended import NETWORKS, extended_model
from tests.posteriors import tiny_model
from tests.statistics import likely, near
from tests.zoo import LONG
from tests.zoo import model as zoo_model

NARROW = ("first width below paths", "all widths one, no skips", "upper width below heads")
HEAVY = [pytest.param(name, marks=pytest.mark.heavy) for name in ("unequal widths", "three layers", *NARROW)]


@pytest.fixture(scope="module", params=["of the zoo", *HEAVY])
def case(request, zoo):
    """A model and draws of U, which need not be many, because all that is compared with them is exact given U."""
    if request.param == "of the zoo":
        return zoo_model("layers"), zoo.draws("layers", LONG)
    network = extended_model(request.param)
    return network, ba.sample(network, **LONG)


def require_conditional_law(outputs, order_parameters, model):
    """Mean and variance of f on the test inputs, for each U in units of those of the closed form."""
    exact = jax.jit(jax.vmap(lambda u: ba.theory.predict(u, model)))(order_parameters)
    standard = ((outputs - exact.mean) / np.sqrt(exact.variance)).reshape(-1, outputs.shape[-1])
    near(standard.mean(0), 0, 1 / np.sqrt(len(standard)), finds=0.25)
    squares, law = (standard**2).sum(0), stats.chi2(len(standard))
    likely(2 * np.minimum(law.cdf(squares), law.sf(squares)))


def test_f_of_exact_weights_has_the_conditional_moments(case):
    """Ten draws of all weights of each of 200 U."""
    model, draws = case
    network = jax.jit(jax.vmap(lambda weights: path.network(weights, jnp.asarray(model.test_path_inputs))))
    outputs = []
    for seed in range(10):
        drawn = ba.weights(draws, model=model, seed=seed, thin=5)
        outputs.append(network({name: each.values.reshape(-1, *each.shape[2:]) for name, each in drawn.items()}))
    u = draws["posterior"]["order_parameter"].sel(draw=drawn["draw"]).values
    require_conditional_law(np.stack(outputs), u.reshape(-1, *u.shape[2:]), model)


def test_predictions_of_the_runner_are_draws_of_f_given_u(case):
    model, draws = case
    u, outputs = (draws["posterior"][name].values for name in ("order_parameter", "prediction"))
    require_conditional_law(outputs.reshape(-1, outputs.shape[-1]), u.reshape(-1, *u.shape[2:]), model)


@pytest.mark.parametrize(
    "name",
    [
        *("skips in both layers", "upper width below heads"),
        *(
            pytest.param(name, marks=pytest.mark.heavy)
            for name in NETWORKS
            if name.startswith(("a", "first", "skips that"))
        ),
    ],
)
def test_without_likelihood_every_weight_is_an_independent_normal(name):
    """Prior draws of the Bartlett factors, temperature so high that labels say nothing: all weights are normal again."""
    model, count = extended_model(name, temperature=1e12), 3000
    shapes, widths = collapsed.structure(model), jnp.array(model.architecture.widths, float)
    # One after the other, which compiles in half of the time of all at once.
    draw = jax.jit(lambda keys: jax.lax.map(lambda key: bartlett.sample_prior(key, shapes, widths), keys))
    points = draw(jax.random.split(jax.random.key(7), count))
    coordinates = {"bartlett": (("chain", "draw", "coordinate"), np.asarray(points)[None])}
    dataset = xr.Dataset(coordinates, {"chain": [0], "draw": np.arange(count)})
    drawn = ba.weights(xr.DataTree.from_dict({"posterior": dataset}), model=model, seed=8)
    deviations = zip(sorted(drawn), np.sqrt(model.architecture.variances), strict=True)  # V_0, V_1, .., a.
    everything = np.concatenate([drawn[name].values[0].reshape(count, -1) / s for name, s in deviations], axis=1)
    likely(stats.kstest(everything, "norm", axis=0).pvalue)
    squares, law = (everything**2).sum(0), stats.chi2(count)
    likely(2 * np.minimum(law.cdf(squares), law.sf(squares)))
    near(np.mean(everything**4, axis=0), 3, np.sqrt(96 / count), finds=1.3)
    # The largest correlation of any pair, of their sizes too, which dependence through U would change.
    pairs = np.tril_indices(everything.shape[1], -1)
    for values in (everything, (np.abs(everything) - np.sqrt(2 / np.pi)) / np.sqrt(1 - 2 / np.pi)):
        largest = np.abs((values.T @ values)[pairs]).max() / np.sqrt(count)
        likely(len(pairs[0]) * 2 * stats.norm.sf(largest))


def test_bad_weights_requests_are_named(zoo):
    model, tree = zoo_model("layers"), zoo.draws("layers", LONG)
    bare = type(tree).from_dict({"posterior": tree["posterior"].to_dataset()})
    without = tree.map_over_datasets(lambda node: node.drop_vars("bartlett", errors="ignore"))
    some = tree.isel(draw=slice(0, 3))
    needed = 8 * model.architecture.number_of_weights(model.features) * tree["posterior"].sizes["chain"] * 3
    ba.weights(some, model=model, max_bytes=needed)
    for draws, of, settings, message in (
        (some, model, {"max_bytes": needed - 1}, "raise thin or max_bytes"),
        (tree, model, {"thin": 0}, "thin must be a whole number of at least 1, got 0"),
        (bare, tiny_model(), {}, "draws must come from this model, got 14 Bartlett coordinates, expected 2"),
        (without, model, {}, "draws must come from parameterisation 'collapsed'"),
    ):
        with pytest.raises(ValueError, match=message):
            ba.weights(draws, model=of, **settings)
