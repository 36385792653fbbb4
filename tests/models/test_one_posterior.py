"""One posterior by chains of U, by chains of weights and by weighed prior draws, of every kind of network and likelihood.

Prior draws weighed by the likelihood know neither U nor chains. Weights of them go through `network`, which test_dense.py
holds against plain NumPy, as it does the density that chains of weights draw from: few cases have chains of weights.
"""

from functools import partial
from typing import NamedTuple

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import bayesattn as ba
from bayesattn.models import path
from bayesattn.network import effective_weights, path_readouts
from bayesattn.samplers import QUANTITIES
from tests import dense
from tests.conftest import relative_error
from tests.models import test_extended, test_likelihoods
from tests.models.test_likelihoods import NO_THEORY, Clipped, model_of, model_of_classes
from tests.posteriors import weighed_mean
from tests.statistics import agree, mean_of, near

LIGHT = {
    # Outputs are latents in all but the first: entries of Z, coefficients of a root of K, entries of Z of one output.
    "skips in both layers": ("nuts", 50_000),
    "three classes, T = 0.5": ("tempered", 100_000),
    "two classes, one output, T = 0.5": ("nuts", 100_000),
    "clipped errors": ("nuts", 50_000),
}
"""Light cases, their samplers, and their numbers of prior draws, which are as good as 4,000 to 20,000 of the posterior."""


class Case(NamedTuple):
    """A posterior, the parameterisations that draw from it where time allows, and whether chains keep weights."""

    make: partial
    kinds: tuple[str, ...] = ("collapsed", "path")
    keeps: bool = False


BY_WEIGHTS = ("a skip and two outputs", "upper width below heads", "three layers")
"""Gaussian cases with chains of weights."""
GAUSSIAN = {
    name: Case(
        partial(test_extended.extended_model, name, temperature=1.0),
        ("collapsed", "path", "token") if name in BY_WEIGHTS else ("collapsed",),
        True,
    )
    for name in test_extended.NETWORKS
}
CLASSES = {
    f"{name}, T = {temperature}": Case(partial(model_of_classes, name, temperature), keeps=name == "three classes")
    for name in test_likelihoods.CLASSES
    for temperature in ((0.5, 0.2) if name in ("three classes", "two classes, one output") else (0.5,))
}
OWN = {
    "clipped errors": Case(partial(model_of, "one layer", "outliers", Clipped(0.5)), keeps=True),
    **{", ".join(case): Case(partial(model_of, *case)) for case in test_likelihoods.CASES},
}
CASES = GAUSSIAN | CLASSES | OWN


def each_of(names):
    return [pytest.param(name, marks=[pytest.mark.heavy] * (name not in LIGHT)) for name in names]


def log_likelihoods(model, outputs):
    """log p(Y_i | f_i) of each example and draw of f, up to a constant."""
    if isinstance(law := model.likelihood, Clipped):
        return -np.minimum((model.labels - outputs) ** 2, 1.0) / (2 * law.temperature)
    return dense.log_likelihoods(model, outputs)


def prior_draws(model, count):
    """U, test outputs and weights of networks drawn from the prior, and their outputs on the training inputs."""
    posterior, skips = path.Path.of(model), model.architecture.optional_skips
    inputs, new = jnp.asarray(model.path_inputs), jnp.asarray(model.test_path_inputs)

    @jax.jit
    @jax.vmap
    def draw(key):
        weights = posterior.draw_prior(key)
        paths = effective_weights(weights, skips)
        u, test = paths @ paths.T / paths.shape[1], path.network(weights, new, skips)
        return {"order_parameter": u, "prediction": test, **weights}, path.network(weights, inputs, skips)

    return jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(3), count)))


@pytest.fixture(scope="module", params=each_of(CASES))
def drawn(request):
    """A model, draws of it in each parameterisation, and draws of its prior."""
    name, (make, kinds, keeps) = request.param, CASES[request.param]
    model, light = make(), name in LIGHT
    sampler, count = LIGHT.get(name, ("auto", 400_000))
    settings = {"sampler": sampler, "chains": 2, "warmup": 300, "draws": 1500 if light else 8000, "progress": False}
    if keeps:
        settings["keep"] = QUANTITIES
    chains = {
        kind: ba.sample(model, parameterisation=kind, seed=seed, **settings)
        for seed, kind in enumerate(kinds[:1] if light else kinds)
    }
    return model, chains, prior_draws(model, count)


def test_collapsed_chains_path_chains_and_weighed_prior_draws_have_one_posterior(drawn):
    """Means of U, f, weights that are kept, and squares, by asinh: U has heavy tails in the narrowest networks."""
    model, chains, prior = drawn
    log_weights = log_likelihoods(model, prior[1]).sum(1)
    one, *others = (tree["posterior"].to_dataset() for tree in chains.values())
    if model.likelihood.conjugate:
        assert float(arviz_stats.rhat(one["order_parameter"]).max()) < 1.02
    rows = model.architecture.rows
    distinct = np.flatnonzero(np.tril(np.ones((rows, rows))))  # Entries of U, which is symmetric.
    for variable in ("order_parameter", "prediction", *model.architecture.weight_dims()):
        if variable not in one:
            continue
        entries = distinct if variable == "order_parameter" else slice(None)
        known, *drawn_by = (
            np.arcsinh(each[variable].stack(entry=each[variable].dims[2:])).isel(entry=entries)
            for each in (one, *others)
        )
        for power in (1, 2):
            for other in drawn_by:
                agree(known**power, other**power)
            flat = np.arcsinh(prior[0][variable].reshape(len(prior[1]), -1)[:, entries]) ** power
            agree(known**power, *weighed_mean(log_weights, flat, least=100))


def test_weights_give_back_the_draws_that_they_are_of(drawn):
    model, chains, _ = drawn
    tree, skips = chains["collapsed"], model.architecture.optional_skips
    posterior, dims = tree["posterior"].to_dataset(), model.architecture.weight_dims()
    later = posterior.isel(draw=slice(49, None, 50))
    given = [(later, ba.weights(tree, model=model, thin=50))]
    if "V_0" in posterior:
        given.append((posterior, posterior[[*dims]]))

    @jax.jit
    @jax.vmap
    def described(weights):
        return effective_weights(weights, skips), path_readouts(weights, skips), path.network(weights, new, skips)

    new = jnp.asarray(model.test_path_inputs)
    for draws, weights in given:
        assert weights["V_1"].dims == ("chain", "draw", *dims["V_1"])
        flat = {key: each.values.reshape(-1, *each.shape[2:]) for key, each in weights.data_vars.items()}
        paths, readouts, outputs = map(np.asarray, described(flat))
        u = paths @ np.swapaxes(paths, 1, 2) / paths.shape[2]
        assert relative_error(u, draws["order_parameter"].values.reshape(u.shape)) < 1e-10
        if "readout" in draws:
            # F may be as ill conditioned as layers are narrow.
            assert relative_error(readouts, draws["readout"].values.reshape(readouts.shape)) < 1e-8
        if draws is posterior:
            assert relative_error(outputs, draws["prediction"].values.reshape(outputs.shape)) < 1e-12


@pytest.mark.filterwarnings("ignore:the log leave-one-out density")
@pytest.mark.parametrize("drawn", each_of(OWN), indirect=True)
def test_draws_say_what_they_are_of(drawn):
    """Fields of the likelihood included."""
    model, draws = drawn[0], drawn[1]["collapsed"]
    few = draws.isel(draw=slice(0, 50))  # Integrals over what is left out take longer than the draws.
    left_out = ba.with_groups(few, "log_likelihood")["log_likelihood"]["labels"]
    assert left_out.shape == (2, 50, len(model.path_inputs))
    found, kept = ba.predict(draws, model.test_path_inputs), draws["posterior"]["prediction"]
    np.testing.assert_allclose(found.mean, kept.mean(("chain", "draw")), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:the variance of f has a heavy tail")
@pytest.mark.parametrize("drawn", each_of(CLASSES), indirect=True)
def test_predictions_of_classes_are_those_of_the_draws(drawn):
    model, chains, _ = drawn
    for tree in chains.values():
        values = tree["posterior"]["prediction"].values
        found = ba.predict(tree, model.test_path_inputs, keep_draws=True)
        assert relative_error(found.draws, values) < 1e-10
        logits = values / model.temperature
        odds = np.exp(logits if logits.ndim == 4 else np.stack([logits, 0 * logits], -1))
        chances = (odds / odds.sum(-1, keepdims=True)).mean((0, 1))
        assert relative_error(found.probabilities, chances if logits.ndim == 4 else chances[..., 0]) < 1e-10
    with pytest.raises(ValueError, match=NO_THEORY):
        ba.validate(tree, model=model)
    groups = ba.with_groups(tree, "posterior_predictive", "prior", "prior_predictive", prior_draws=400)
    replicated = groups["posterior_predictive"]["labels"]
    training = ba.predict(tree, model.path_inputs, keep_draws=True)
    whole = ba.with_groups(tree, "log_likelihood", joint=True)["log_likelihood"]["labels"]
    log_prob = log_likelihoods(model, training.draws.reshape(-1, *model.labels.shape)).sum(1)
    assert relative_error(whole.values.ravel(), log_prob) < 1e-10
    share = (replicated > 0).mean(("chain", "draw")).values
    error = np.sqrt(training.probabilities * (1 - training.probabilities) / len(training.draws[0]) / 2)
    near(share, training.probabilities, error, finds=0.1)
    assert {*np.unique(groups["prior_predictive"]["labels"])} == {*np.unique(model.labels)}
    assert "prediction" in groups["prior"]


def refitted(log_likelihood):
    """Sum of log p(Y_i | Y of the others), each by prior draws weighed with the other labels alone; and its error."""
    total, sum_of, terms = log_likelihood.sum(1), 0.0, 0.0
    for column in log_likelihood.T:
        weights = special.softmax(total - column)
        chance = weights @ np.exp(column)
        sum_of += np.log(chance)
        terms += weights * (np.exp(column) - chance) / chance
    return sum_of, np.sqrt(np.sum(terms**2))


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param(name, marks=[pytest.mark.heavy] * (name != "two classes, one output, T = 0.5"))
        for name in CLASSES
        if name.startswith(("two classes", "three classes"))
    ],
    indirect=True,
)
@pytest.mark.filterwarnings("ignore:the log leave-one-out density of example")  # Its error counts below.
def test_leave_one_out_of_classes_is_that_of_refits(drawn):
    """By p(Y_i | f_i) alone that of two classes at T = 0.2 was -4.71, with k of 0.9: 0.8 above the refits."""
    model, chains, (_, outputs) = drawn
    tree = chains["collapsed"]
    step = 4 if model.labels.ndim == 1 else 1
    groups = ba.with_groups(tree.isel(draw=slice(step - 1, None, step)), "log_likelihood")
    found = arviz_stats.loo(groups, pointwise=True)
    exact, exact_error = refitted(log_likelihoods(model, outputs))
    pointwise = groups["log_likelihood"]["labels"]
    ratios = np.exp(-pointwise)
    drawn_by = mean_of((ratios / ratios.mean(("chain", "draw"))).sum("example"))
    near(float(found.elpd), exact, np.hypot(drawn_by.error, exact_error), drawn_by.degrees, finds=0.9)
    assert float(found.pareto_k.max()) < 0.85
