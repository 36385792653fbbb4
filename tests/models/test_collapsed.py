"""The collapsed parameterisation: its law, its exact weight draws, singular order parameters, error messages."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import bayesattn as ba
from bayesattn.models import collapsed, path
from bayesattn.theory import bartlett
from tests.conftest import relative_error
from tests.posteriors import tiny_model, two_sample_z_score

CASES = {
    "two layers, unequal": ((2, 2), (10, 7, 12), (1.1, 0.8, 1.2, 0.9)),
    "three layers": ((2, 1, 2), (10, 8, 9, 10), (1.0, 0.9, 1.1, 0.8, 1.2)),
    "first width below paths": ((2, 2), (3, 5, 4), (1.0, 0.8, 1.2, 1.1)),
    "all widths one": ((2, 2), (1, 1, 1), (1.0, 0.8, 1.2, 1.1)),
    "upper width below heads": ((2, 3), (10, 2, 4), (1.0, 0.8, 1.2, 1.1)),
}


LONG = ("three layers", "first width below paths", "upper width below heads", "all widths one")


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.heavy] * (name in LONG)) for name in CASES]
)
def case(request):
    heads, widths, variances = CASES[request.param]
    model = tiny_model(heads=heads, widths=widths, variances=variances, examples=8)
    twenty = np.random.default_rng(5).normal(size=(20, model.architecture.paths, model.path_inputs.shape[2]))
    model = model.replace(test_path_inputs=twenty, test_labels=None)
    # Where U is of rank one the posterior is far from Gaussian and chains mix slowly.
    return model, ba.sample(model, warmup=300, draws=8000 if request.param == "all widths one" else 1000, seed=1)


def test_draws_agree_with_path_level_nuts(case):
    model, draws = case
    weights = ba.sample(model, parameterisation="path", warmup=400, draws=1000, seed=2)
    for name in ("order_parameter", "prediction"):
        assert two_sample_z_score(draws["posterior"][name], weights["posterior"][name]) < 4
    assert float(arviz_stats.rhat(draws["posterior"]["order_parameter"]).max()) < 1.02


@pytest.mark.heavy
def test_the_reference_task_by_path_level_nuts(hidden_markov_model):
    """N = 10 on real path inputs: every entry of U and 20 predictions."""
    model = hidden_markov_model(10).replace(
        test_path_inputs=hidden_markov_model(10).test_path_inputs[:20], test_labels=None
    )
    draws = ba.sample(model, warmup=200, draws=2000, seed=1)["posterior"]
    weights = ba.sample(model, parameterisation="path", warmup=300, draws=1000, seed=2)["posterior"]
    for name in ("order_parameter", "prediction"):
        assert two_sample_z_score(draws[name], weights[name]) < 4


def test_order_parameter_from_exact_weights_is_the_drawn_one(case):
    model, draws = case
    drawn = collapsed.weights(draws, model, seed=3, thin=2)
    assert drawn.sizes["draw"] == draws.posterior.sizes["draw"] // 2
    expected = draws["posterior"]["order_parameter"].sel(draw=drawn["draw"]).values
    for chain, draw in ((0, 0), (1, 7), (3, 19)):
        weights = {name: jnp.asarray(values.values[chain, draw]) for name, values in drawn.items()}
        paths = path.effective_weights(weights)
        assert relative_error(paths @ paths.T / paths.shape[1], expected[chain, draw]) < 1e-10


def test_f_of_exact_weights_has_the_conditional_moments(case):
    """Many weight draws of one U: mean and variance of f on the test inputs against the closed form."""
    model, draws = case
    one = draws.isel(chain=[0], draw=[5])
    count = 2000  # As many weights as of all chains above, by the same program.
    repeated = one["posterior"].to_dataset().isel(draw=np.zeros(count, int)).assign_coords(draw=np.arange(count))
    drawn = collapsed.weights(type(draws).from_dict({"posterior": repeated}), model, seed=4)
    test = jnp.asarray(model.test_path_inputs)
    outputs = np.array(
        jax.vmap(lambda w: path.network(w, test))({name: jnp.asarray(v.values[0]) for name, v in drawn.items()})
    )
    order_parameter = one["posterior"]["order_parameter"].values[0, 0]
    exact = ba.theory.predict(order_parameter, model)
    error = np.sqrt(exact.variance / count)
    assert np.max(np.abs(outputs.mean(0) - exact.mean) / error) < 4
    # A Gaussian's sample variance has relative standard error sqrt(2 / count).
    assert np.max(np.abs(outputs.var(0, ddof=1) / exact.variance - 1)) < 4 * np.sqrt(2 / count)


def test_predictions_of_the_runner_are_draws_of_f_given_u(case):
    """Law of total variance over draws: mean and variance of drawn f against conditional moments averaged over U."""
    model, draws = case
    posterior = draws["posterior"]
    flat = posterior["order_parameter"].values.reshape(-1, *posterior["order_parameter"].shape[2:])
    conditional = [ba.theory.predict(u, model) for u in flat[:: len(flat) // 100]]
    assert len(conditional) == 100
    expected = np.mean([c.variance + c.mean**2 for c in conditional], axis=0)
    second = posterior["prediction"] ** 2
    spread = np.std([c.variance + c.mean**2 for c in conditional], axis=0, ddof=1) / np.sqrt(100)
    error = np.hypot(
        arviz_stats.mcse(second).values, 2 * spread
    )  # successive U's are correlated: twice the naive error
    assert np.max(np.abs(second.mean(("chain", "draw")).values - expected) / error) < 4


def prior_draws(draw, keys):
    """One after the other, which compiles in half of the time of all at once."""
    return jax.jit(lambda keys: jax.lax.map(draw, keys))(keys)


def test_without_likelihood_every_weight_is_an_independent_normal():
    """Prior draws of the Bartlett factors, temperature so high that labels say nothing: all weights are normal again."""
    heads, widths, variances = (2, 2), (4, 5, 3), (1.3, 0.7, 1.1, 0.9)
    model = tiny_model(temperature=1e12, heads=heads, widths=widths, variances=variances)
    shapes = collapsed.structure(model)
    keys = jax.random.split(jax.random.key(7), 3000)
    points = prior_draws(lambda key: bartlett.sample_prior(key, shapes, jnp.array(widths, float)), keys)
    dataset = xr.Dataset(
        {"bartlett": (("chain", "draw", "coordinate"), np.asarray(points)[None])},
        {"chain": [0], "draw": np.arange(3000)},
    )
    drawn = collapsed.weights(xr.DataTree.from_dict({"posterior": dataset}), model, seed=8)
    deviations = dict(zip(("V_0", "V_1", "V_2", "a"), np.sqrt(variances), strict=True))
    samples = {name: drawn[name].values[0].reshape(3000, -1) / s for name, s in deviations.items()}
    for values in samples.values():
        for entry in range(min(6, values.shape[1])):
            # Fixed seeds; 24 tests of level 1e-4.
            assert stats.kstest(values[:, entry], "norm").pvalue > 1e-4
    everything = np.concatenate(list(samples.values()), axis=1)
    count = len(everything)
    # Second moments between all pairs, and fourth moments that dependence through U would change: 4.5 standard errors,
    # about 1e-5 each.
    correlation = everything.T @ everything / count - np.eye(everything.shape[1])
    assert np.abs(correlation).max() < 4.5 * np.sqrt(2 / count)
    squares = everything**2 - 1
    fourth = squares.T @ squares / count - 2 * np.eye(everything.shape[1])
    off_diagonal = ~np.eye(len(fourth), dtype=bool)
    assert np.abs(fourth[off_diagonal]).max() < 5 * 2 / np.sqrt(count)
    assert np.abs(np.mean(everything**4, axis=0) - 3).max() < 4.5 * np.sqrt(96 / count)


def test_log_prior_is_the_density_that_sample_prior_draws_from():
    """E exp(log q - log p) = 1 for draws of p and a narrower density q, regular and singular."""
    for heads, widths, variances in (CASES[name] for name in ("upper width below heads",)):
        arch = ba.Architecture(heads, widths, variances)
        shapes, n = bartlett.layer_shapes(arch), jnp.array(widths, float)
        keys = jax.random.split(jax.random.key(0), 10000)
        draws = prior_draws(lambda k, shapes=shapes, n=n: bartlett.sample_prior(k, shapes, n), keys)
        log_p = jax.jit(jax.vmap(lambda p, shapes=shapes, n=n: bartlett.log_prior(p, shapes, n)))(draws)
        mean, deviation = draws.mean(0), 0.8 * draws.std(0)
        log_q = jnp.sum(-(((draws - mean) / deviation) ** 2) / 2 - jnp.log(deviation) - jnp.log(2 * jnp.pi) / 2, axis=1)
        ratio = np.exp(log_q - log_p)
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_prior_moments_of_the_order_parameter():
    """E U = s_a^2 prod s_l^2 I, singular cases included: 20,000 prior draws, every entry within 4.5 standard errors."""
    for heads, widths, variances in CASES.values():
        arch = ba.Architecture(heads, widths, variances)
        shapes, n, s = bartlett.layer_shapes(arch), jnp.array(widths, float), jnp.array(variances)

        def order_parameter(key, shapes=shapes, n=n, s=s):
            factor = bartlett.cholesky_factors(bartlett.sample_prior(key, shapes, n), shapes, n, s)[0]
            return factor @ factor.T

        draws = np.asarray(prior_draws(order_parameter, jax.random.split(jax.random.key(1), 20000)))
        error = draws.std(0) / np.sqrt(len(draws))
        assert np.max(np.abs(draws.mean(0) - ba.theory.gp_order_parameter(arch)) / error) < 4.5


@pytest.mark.heavy
def test_whitening_does_not_change_the_answer(monkeypatch):
    model = tiny_model(heads=(2, 2), widths=(5, 6, 4), variances=(1.0, 0.8, 1.2, 1.1))
    by_laplace = ba.sample(model, warmup=300, draws=1000)["posterior"]
    by_prior = staticmethod(lambda model: collapsed.prepare(model, whitening="prior"))
    monkeypatch.setattr(collapsed.Collapsed, "prepare", by_prior)
    by_prior = ba.sample(model, warmup=300, draws=1000, options={"adapt_mass_matrix": True})["posterior"]
    for name in ("order_parameter", "prediction"):
        assert two_sample_z_score(by_laplace[name], by_prior[name]) < 4


@pytest.fixture(scope="module")
def with_weights():
    model = tiny_model(heads=(2,), widths=(5, 4))
    return model, ba.sample(model, chains=2, warmup=50, draws=30, keep=ba.samplers.QUANTITIES)


def test_kept_weights_are_those_of_the_draw(with_weights):
    posterior = with_weights[1]["posterior"]
    assert posterior["V_0"].shape == (2, 30, 5, 4)
    assert posterior["V_1"].dims == ("chain", "draw", "head_1", "readout_width", "width_1")
    weights = {name: jnp.asarray(posterior[name].values[1, 7]) for name in ("V_0", "V_1", "a")}
    effective = path.effective_weights(weights)
    np.testing.assert_allclose(posterior["order_parameter"].values[1, 7], effective @ effective.T / 5, rtol=1e-9)
    np.testing.assert_allclose(
        posterior["prediction"].values[1, 7],
        path.network(weights, jnp.asarray(with_weights[0].test_path_inputs)),
        rtol=1e-9,
    )


def test_bad_weights_requests_are_named(with_weights):
    model, tree = with_weights
    with pytest.raises(ValueError, match="raise thin or max_bytes"):
        collapsed.weights(tree, model, max_bytes=100)
    with pytest.raises(
        ValueError, match=r"model must be the one that draws are of, got one with heads = \[1\], not \[2\]"
    ):
        collapsed.weights(tree, tiny_model())
    bare = type(tree).from_dict({"posterior": tree["posterior"].to_dataset()})
    with pytest.raises(ValueError, match="draws must come from this model, got 4 Bartlett coordinates, expected 2"):
        collapsed.weights(bare, tiny_model())
    with pytest.raises(ValueError, match="draws must come from parameterisation 'collapsed'"):
        collapsed.weights(tree.map_over_datasets(lambda node: node.drop_vars("bartlett", errors="ignore")), model)
    with pytest.raises(ValueError, match="thin must be a whole number of at least 1, got 0"):
        collapsed.weights(tree, model, thin=0)
