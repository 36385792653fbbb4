"""Numbers set to where the evidence is greatest, against quadrature and against prior draws."""

import importlib
import itertools

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize, special, stats

import bayesattn as ba
from tests.conftest import model_of
from tests.posteriors import by_prior_draws, exact_scalar_posterior, tiny_model
from tests.statistics import likely

maximum_evidence = importlib.import_module("bayesattn.theory.maximum_evidence")
T, S = dist.LogNormal(-1.0, 1.0), dist.InverseGamma(3.0, 2.0)


def curved(function, at, step=0.05):
    """Standard deviations from the curvature of a log likelihood at its maximum, by differences."""
    moves, signs = step * np.eye(len(at)), list(itertools.product((1, -1), repeat=2))

    def second(one, other):
        return sum(a * b * function(at + a * one + b * other) for a, b in signs) / (4 * step**2)

    hessian = np.array([[second(one, other) for other in moves] for one in moves])
    return np.sqrt(np.diag(np.linalg.inv(-hessian)))


def require_equal(found, exact):
    """Logarithms of estimates with different random numbers have the exact value as their mean."""
    for estimates, value in zip(np.transpose(found), exact, strict=True):
        assert np.std(estimates) < 0.15
        likely(stats.ttest_1samp(estimates, value).pvalue)


def test_maximum_and_its_curvature_are_those_of_quadrature():
    """One head: U is a number. A bounded prior has another coordinate, and the same maximum."""
    rng = np.random.default_rng(3)
    path_inputs = rng.normal(size=(25, 1, 4))
    labels = 1.5 * path_inputs[:, 0] @ rng.normal(size=4) + 0.5 * rng.normal(size=25)
    arch = ba.Architecture((1,), (8, 9), (1.0,) * 3)
    known = model_of(path_inputs, labels, arch, 1.0, test_path_inputs=path_inputs[:1])

    def log_evidence(logs):
        variances = (1.0, float(np.exp(logs[1])), 1.0)
        return exact_scalar_posterior(known.replace(temperature=float(np.exp(logs[0])), variances=variances), 200)[2]

    precise = {"method": "Nelder-Mead", "options": {"xatol": 1e-4}}
    exact = optimize.minimize(lambda logs: -log_evidence(logs), (-1.0, 0.5), **precise).x
    for prior in (T, dist.LogUniform(1e-3, 10.0)):
        model = known.replace(temperature=prior, variances=(1.0, S, 1.0))
        found = [ba.theory.maximum_evidence(model, seed=seed) for seed in range(8)]
        numbers = [(np.log(each.values["temperature"]), np.log(each.values["variances"][1])) for each in found]
        require_equal(numbers, exact)
        deviations = np.mean([[*each.deviations.values()] for each in found], axis=0)
        np.testing.assert_allclose(deviations, curved(log_evidence, exact), rtol=0.05)
        assert all(each.reliable and not each.edges for each in found)
        likely(stats.ttest_1samp([each.log_evidence for each in found], log_evidence(exact)).pvalue)
    assert model.at(found[0].values).temperature == found[0].values["temperature"]
    assert "temperature   0." in repr(found[0])


@pytest.mark.heavy
def test_a_narrow_network_has_the_maximum_of_prior_draws():
    """Annealed; log p(Y | T) of the same networks at every T."""
    known = tiny_model(heads=(2,), widths=(3, 3))
    u, _ = by_prior_draws(known, 100_000)
    inputs = known.path_inputs * np.sqrt(known.architecture.variances[0] / (2 * known.features))
    values, vectors = np.linalg.eigh(np.einsum("phi,chk,qki->cpq", inputs, u, inputs, optimize=True))
    projected = np.einsum("p,cpq->cq", known.labels, vectors) ** 2

    def log_evidence(logs):
        variances = np.maximum(values, 0) + np.exp(logs[0])
        log_densities = -np.sum(np.log(2 * np.pi * variances) + projected / variances, axis=1) / 2
        return special.logsumexp(log_densities) - np.log(len(u))

    model = known.replace(temperature=T)
    exact = optimize.minimize(lambda logs: -log_evidence(logs), (0.0,), method="Nelder-Mead").x
    found = [ba.theory.maximum_evidence(model, seed=seed) for seed in range(6)]
    require_equal([[np.log(each.values["temperature"])] for each in found], exact)
    assert abs(np.mean([each.deviations["temperature"] for each in found]) / curved(log_evidence, exact)[0] - 1) < 0.1


@pytest.mark.heavy
def test_a_network_that_can_explain_all_labels_has_no_maximum():
    rng = np.random.default_rng(0)
    path_inputs = rng.normal(size=(12, 2, 20))
    labels = path_inputs[:, 0] @ rng.normal(size=20) / 20**0.5
    model = ba.Model(path_inputs=path_inputs, labels=labels, heads=(2,), widths=(12, 12), temperature=T)
    found = ba.theory.maximum_evidence(model)
    assert found.edges == ("temperature",)
    assert np.isnan(found.deviations["temperature"])
    assert "no maximum" in " ".join(repr(found).split())


def test_a_number_that_is_flat_leaves_the_deviation_of_another():
    """Or both were said to have no maximum, where noise makes the flat one's curvature negative."""
    rise = maximum_evidence._Rise(np.zeros(2), np.diag([1e-6, -4.0]), 1e-6 * np.eye(2))
    _, deviations, _ = maximum_evidence._newton(rise, np.array([True, True]))
    np.testing.assert_array_equal(deviations, [np.nan, 0.5])


def test_what_has_no_maximum_is_refused():
    model = tiny_model()
    for bad, message in (
        (model, "model must have a prior in place of T or of a variance, got one whose numbers"),
        (
            model.replace(variances=(S, 1.0, S)),
            r"product alone, got priors for variances\[0\] and variances\[2\]: give",
        ),
        (3, r"model must be a bayesattn\.Model, got int"),
    ):
        with pytest.raises(ValueError, match=message):
            ba.theory.maximum_evidence(bad)


@pytest.mark.heavy
def test_labels_that_contradict_each_other_at_an_edge():
    """At the lower edge of T no network explains the labels of equal inputs; the maximum is found all the same."""
    model = ba.Model(
        path_inputs=np.ones((2, 1, 1)),
        labels=[1e-3, -1e-3],
        heads=(1,),
        widths=(40, 40),
        temperature=dist.LogNormal(-20.7, 1.0),
    )
    assert 1e-8 < ba.theory.maximum_evidence(model).values["temperature"] < 1e-5
    with pytest.raises(ba.theory.NotConverged, match="cannot be computed in float64"):
        ba.theory.maximum_evidence(model.replace(temperature=dist.LogNormal(-39.0, 3.0)))
