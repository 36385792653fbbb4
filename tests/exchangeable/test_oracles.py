"""Formulas behind the claims, each against something that does not use it."""

import itertools

import jax
import numpy as np
import pytest
from scipy import integrate

from bayesattn import exchangeable as ex
from bayesattn.exchangeable import learning, pretraining, rates


def average_over_sphere(function, dimension):
    """E f(q . k) for k uniform on the sphere: t = q . k has density ~ (1 - t^2)^((d-3)/2)."""
    # t = cos(angle), so that the density has no pole for d = 2.
    density = lambda angle: np.sin(angle) ** (dimension - 2)  # noqa: E731
    total, _ = integrate.quad(lambda angle: function(np.cos(angle)) * density(angle), 0, np.pi, epsabs=1e-13)
    return total / integrate.quad(density, 0, np.pi)[0]


@pytest.mark.parametrize("dimension", [2, 3, 5])
@pytest.mark.parametrize("kappa", [0.3, 2.0, 20.0])
def test_bessel_ratio_is_what_softmax_leaves_of_a_harmonic(dimension, kappa):
    partition = average_over_sphere(lambda t: np.exp(kappa * t), dimension)
    assert np.exp(ex.log_partition(kappa, dimension)) == pytest.approx(partition, rel=1e-10)
    # Zonal harmonics of degree 1 and 2, equal to 1 at t = 1.
    zonal = [lambda t: 1.0, lambda t: t, lambda t: (dimension * t**2 - 1) / (dimension - 1)]
    for degree, harmonic in enumerate(zonal):
        smoothed = average_over_sphere(lambda t, h=harmonic: h(t) * np.exp(kappa * t), dimension) / partition
        assert ex.bessel_ratio(degree, kappa, dimension) == pytest.approx(smoothed, rel=1e-9)
    squares = average_over_sphere(lambda t: np.exp(2 * kappa * t), dimension) / partition**2
    assert ex.noise_factor(kappa, dimension) == pytest.approx(squares, rel=1e-9)


def test_bessel_ratio_does_not_overflow():
    # a_1 ~ 1 - (d - 1) / (2 kappa)
    assert ex.bessel_ratio(1, 1e6, 3) == pytest.approx(1 - 1e-6, abs=1e-11)
    assert np.isfinite(ex.noise_factor(1e6, 2))


def test_numbers_of_harmonics():
    assert ex.harmonics(np.arange(4), 2).tolist() == [1, 2, 2, 2]
    assert ex.harmonics(np.arange(4), 3).tolist() == [1, 3, 5, 7]
    assert ex.harmonics(np.arange(4), 4).tolist() == [1, 4, 9, 16]


@pytest.mark.parametrize("dimension", [2, 3, 4])
def test_eigenvalues_of_the_exponential_kernel_sum_to_its_trace(dimension):
    spectrum, counts = ex.eigenvalues(2.0, dimension)
    assert spectrum @ counts == pytest.approx(np.exp(2.0), rel=1e-12)


def test_effective_dimension_is_a_trace():
    root = np.random.default_rng(0).normal(size=(5, 5))
    covariance = root @ root.T
    trace = np.trace(covariance @ np.linalg.inv(covariance + 0.3 * np.eye(5)))
    assert ex.effective_dimension(np.linalg.eigvalsh(covariance), 0.3) == pytest.approx(trace, rel=1e-12)
    assert ex.effective_dimension([2.0, 1.0], 1.0, [1, 3]) == pytest.approx(2 / 3 + 3 / 2)


@pytest.mark.parametrize(("tokens", "vocabulary"), [(4, 3), (1, 5), (6, 2)])
def test_type_classes_are_multisets(tokens, vocabulary):
    sequences = itertools.product(range(vocabulary), repeat=tokens)
    assert ex.type_classes(tokens, vocabulary) == len({tuple(sorted(sequence)) for sequence in sequences})


def test_mutual_information():
    assert ex.mutual_information(np.outer([0.2, 0.8], [0.5, 0.5])) == pytest.approx(0, abs=1e-15)
    assert ex.mutual_information(np.diag([0.25, 0.75])) == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))


def test_mean_log_odds_is_that_of_all_sequences():
    latent = ex.FiniteLatent([0.5, 0.2, 0.3], [[0.6, 0.1, 0.3], [0.4, 0.9, 0.7]])
    sequences = latent.sequences(3)
    odds = latent.posterior(sequences)
    odds = np.log(odds[1] / np.maximum(odds[0], odds[2]))
    given = latent.joint(sequences)[1] / latent.prior[1]
    assert latent.mean_log_odds(3, 1) == pytest.approx(given @ odds, rel=1e-12)


def test_merging_cells_of_a_redundant_partition_loses_nothing():
    latent = ex.FiniteLatent([0.4, 0.6], [[0.5, 0.2], [0.25, 0.4], [0.25, 0.4]])
    sequences = latent.sequences(2)
    # Tokens 1 and 2 are alike, so type classes are finer than the posterior.
    types = ex.cells(np.sort(sequences, 1).T)
    joint = latent.joint(sequences)
    assert ex.least_loss(joint, types) == pytest.approx(0, abs=1e-14)
    assert ex.cells(latent.posterior(sequences)).max() < types.max()
    assert ex.least_loss(joint, ex.cells(latent.posterior(sequences))) > 1e-4


def test_isotropic_error_is_the_error_of_isotropic_keys():
    keys = np.tile(np.eye(3), (40, 1))
    query = np.array([0.6, 0.0, 0.8])
    exact = rates.mean_cme_error(keys, query, 3.0, 0.5, 1.2, 2)
    assert rates.isotropic_cme_error(120, 3, 3.0, 0.5, 1.2, 2) == pytest.approx(exact, rel=1e-12)


def test_softmax_variance_is_its_integral():
    kappa, dimension, noise, prior = 1.5, 3, 0.4, 0.9
    kept = float(ex.bessel_ratio(1, kappa, dimension))
    # |k - a_1 q|^2 = 1 - 2 a_1 t + a_1^2
    integral = average_over_sphere(
        lambda t: np.exp(2 * kappa * t) * (noise**2 + prior**2 * (1 - 2 * kept * t + kept**2)), dimension
    )
    law = 2 * integral / average_over_sphere(lambda t: np.exp(kappa * t), dimension) ** 2
    assert rates.softmax_variance(kappa, dimension, noise, prior, 2) == pytest.approx(law, rel=1e-9)


def test_sharp_law_has_the_curvature_and_spread_of_the_losses():
    data = learning.draw_sequences(np.random.default_rng(0), 200, 6)
    parameters = np.concatenate([np.eye(2).ravel(), np.eye(2).ravel()]) + 0.1
    found = learning.sharp_law(parameters, data)
    gradients = np.array(jax.jacfwd(lambda p: learning.losses(p, data))(parameters))
    np.testing.assert_allclose(found.second_moment, gradients.T @ gradients / 200, rtol=1e-10)
    step = 1e-5 * np.eye(8)
    slope = jax.grad(lambda p: learning.risk(p, data))
    differences = [(slope(parameters + s) - slope(parameters - s)) / 2e-5 for s in step]
    np.testing.assert_allclose(found.hessian, differences, rtol=1e-5, atol=1e-7)
    assert found.trace == pytest.approx(np.trace(np.linalg.inv(found.hessian) @ found.second_moment))


def test_attend_is_softmax_attention_with_a_matrix():
    data = learning.draw_sequences(np.random.default_rng(1), 5, 7)
    scores, readout = np.array([[2.0, 0.3], [-0.5, 1.0]]), np.array([[1.0, 0.2], [0.0, 0.7]])
    found = learning.attend(np.concatenate([scores.ravel(), readout.ravel()]), data)
    expected = ex.softmax_attention(data.queries[:, None] @ scores, data.keys, data.values)[:, 0] @ readout.T
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_moments_of_pretraining():
    """Closed forms against 40,000 draws, within 4 standard errors of each entry."""
    rng, variances = np.random.default_rng(2), np.array([1.0, 0.3])
    known = pretraining.moments(rng, 10, variances, 0.4, 0.8)
    latents = 0.8 * rng.normal(size=(40000, 1, 2))
    keys = np.sqrt(variances) * rng.normal(size=(40000, 10, 2))
    values = keys @ latents.transpose(0, 2, 1) + 0.4 * rng.normal(size=(40000, 10, 1))
    rows = (values.transpose(0, 2, 1) @ keys / 10)[:, 0]
    for expected, other in ((known.attention, rows), (known.cross, latents[:, 0])):
        products = rows[:, :, None] * other[:, None, :]
        error = products.std(0) / np.sqrt(len(products))
        assert np.all(np.abs(products.mean(0) - expected) < 4 * error)


def test_learnt_parameters_approach_the_best():
    rng, variances = np.random.default_rng(3), np.array([1.0, 0.5])
    setting = {"tokens": 20, "noise": 0.3, "prior": 1.0}
    known = pretraining.moments(rng, variances=variances, **setting)
    best = pretraining.best(known)
    least = pretraining.pretraining_excess(best, variances, known, 2)
    excess = [
        pretraining.pretraining_excess(
            pretraining.learn(pretraining.draw(rng, m, variances=variances, value_features=2, **setting)),
            variances,
            known,
            2,
        )
        for m in (100, 10000)
    ]
    assert least < excess[1] < least + 0.1 * (excess[0] - least)


def test_transfer_is_attained_and_infinite_where_pretraining_is_blind():
    rng = np.random.default_rng(4)
    emission, readout = rng.dirichlet(np.ones(4), size=3).T, rng.normal(size=(2, 3))
    found = ex.transfer(emission, readout)
    assert found.direction.sum() == pytest.approx(0, abs=1e-12)
    ratio = np.linalg.norm(readout @ found.direction) / np.linalg.norm(emission @ found.direction)
    assert ratio == pytest.approx(found.factor, rel=1e-10)
    blind = np.column_stack([emission[:, 0], emission[:, 0], emission[:, 2]])
    assert ex.transfer(blind, readout).factor == np.inf
    # A task that does not tell the two apart either is not hurt.
    assert np.isfinite(ex.transfer(blind, np.array([[1.0, 1.0, 0.0]])).factor)
    # Fewer tokens than latents: some direction is always unseen.
    few = ex.transfer(emission[:2] / emission[:2].sum(0), np.eye(3))
    assert (few.weakest, few.factor) == (pytest.approx(0, abs=1e-12), np.inf)


def test_finite_latents_refuse_what_is_no_probability():
    with pytest.raises(ValueError, match="emission must hold probabilities that sum to 1"):
        ex.FiniteLatent([0.5, 0.5], [[0.5, 0.5], [0.6, 0.5]])
    with pytest.raises(ValueError, match="prior must hold probabilities"):
        ex.FiniteLatent([1.5, -0.5], [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"condition must be a finite number of at least 1, got 0\.5"):
        pretraining.key_variances(0.5)
