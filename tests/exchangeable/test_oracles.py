"""Laws of exchangeable tokens, each against something that does not use it."""

import itertools

import numpy as np
import pytest
from scipy import integrate

from bayesattn.questions import exchangeable as ex
from bayesattn.questions.exchangeable import rates
from tests.statistics import near


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


@pytest.mark.parametrize(("dimension", "numbers"), [(2, [1, 2, 2, 2]), (3, [1, 3, 5, 7]), (4, [1, 4, 9, 16])])
def test_numbers_of_harmonics_and_trace_of_the_exponential_kernel(dimension, numbers):
    assert ex.harmonics(np.arange(4), dimension).tolist() == numbers
    spectrum, counts = ex.eigenvalues(2.0, dimension)
    assert spectrum @ counts == pytest.approx(np.exp(2.0), rel=1e-12)


def test_effective_dimension_is_a_trace():
    root = np.random.default_rng(0).normal(size=(5, 5))
    covariance = root @ root.T
    trace = np.trace(covariance @ np.linalg.inv(covariance + 0.3 * np.eye(5)))
    assert ex.effective_dimension(np.linalg.eigvalsh(covariance), 0.3) == pytest.approx(trace, rel=1e-12)
    assert ex.effective_dimension([2.0, 1.0], 1.0, [1, 3]) == pytest.approx(2 / 3 + 3 / 2)


def test_type_classes_are_multisets():
    sequences = itertools.product(range(3), repeat=4)
    assert ex.type_classes(4, 3) == len({tuple(sorted(sequence)) for sequence in sequences})


def test_mutual_information_of_independent_and_of_equal_variables():
    assert ex.mutual_information(np.outer([0.2, 0.8], [0.5, 0.5])) == pytest.approx(0, abs=1e-15)
    assert ex.mutual_information(np.diag([0.25, 0.75])) == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))


def test_mean_log_odds_is_that_of_all_sequences():
    latent = ex.FiniteLatent([0.5, 0.2, 0.3], [[0.6, 0.1, 0.3], [0.4, 0.9, 0.7]])
    sequences = latent.sequences(3)
    first, second, third = latent.posterior(sequences)
    given = latent.joint(sequences)[1] / latent.prior[1]
    assert latent.mean_log_odds(3, 1) == pytest.approx(given @ np.log(second / np.maximum(first, third)), rel=1e-12)


def test_posterior_of_a_thousand_tokens_whose_joint_probability_underflows():
    latent = ex.FiniteLatent([0.5, 0.2, 0.3], [[0.6, 0.1, 0.3], [0.4, 0.9, 0.7]])
    chances = np.array([[0.5, 0.2, 0.3]]) * (latent.emission[1] / 0.9) ** 1000
    np.testing.assert_allclose(latent.posterior(np.ones((1, 1000), int)), (chances / chances.sum()).T)


def test_merging_cells_of_a_redundant_partition_loses_nothing():
    latent = ex.FiniteLatent([0.4, 0.6], [[0.5, 0.2], [0.25, 0.4], [0.25, 0.4]])
    sequences = latent.sequences(2)
    # Tokens 1 and 2 are alike, so type classes are finer than the posterior.
    types, joint = ex.cells(np.sort(sequences, 1).T), latent.joint(sequences)
    posterior = ex.cells(latent.posterior(sequences))
    assert posterior.max() < types.max()
    assert ex.least_loss(joint, types) == pytest.approx(0, abs=1e-14)
    assert ex.least_loss(joint, posterior) > 1e-4


def test_sequences_that_never_occur_are_no_cells_that_could_be_merged():
    latent = ex.FiniteLatent([0.5, 0.5], [[0.5, 0], [0.5, 0.5], [0, 0.5]])
    sequences = latent.sequences(2)
    partition = ex.cells(latent.posterior(sequences))
    never = latent.joint(sequences).sum(0) == 0
    assert never.sum() == 2
    assert len({*partition[never]}) == 1
    assert ex.least_loss(latent.joint(sequences), partition) > 0.01


@pytest.mark.parametrize("ridge", [0.25, 20.0])
def test_error_for_keys_on_the_sphere_is_the_mean_over_keys(ridge):
    """2000 sets of 64 keys; what the law leaves out is of relative order 1/n^2."""
    rng, query = np.random.default_rng(0), np.array([0.6, 0.0, 0.8])
    drawn = [rates.mean_cme_error(ex.uniform(rng, 64, 3), query, ridge, 0.5, 1.2, 2) for _ in range(2000)]
    law = rates.isotropic_cme_error(64, 3, ridge, 0.5, 1.2, 2)
    error = np.std(drawn) / np.sqrt(2000)
    near(np.mean(drawn), law, error, finds=0.02 * law, allowed=3 / 64**2 * law)
    leading = 2 * (0.25 * 64 / 3 + (ridge * 1.2) ** 2) / (64 / 3 + ridge) ** 2
    assert abs(np.mean(drawn) - leading) > 8 * error


def test_spectral_error_is_that_of_the_linear_kernel():
    """One eigenvalue 1/d of multiplicity d on the sphere: the law of the linear kernel, for any ridge."""
    for ridge in (0.25, 20.0):
        spectrum, counts = np.array([0.0, 1 / 3]), np.array([1, 3])
        variance, error = rates.spectral_cme_error(100, ridge, spectrum, counts, 0.5, 1.2, 2)
        assert error == pytest.approx(rates.isotropic_cme_error(100, 3, ridge, 0.5, 1.2, 2), rel=1e-12)
        prior = 0.5 / np.sqrt(ridge)
        assert variance == pytest.approx(rates.isotropic_cme_error(100, 3, ridge, 0.5, prior, 2), rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 4, 32])
@pytest.mark.parametrize(("dimension", "kappa", "sink"), [(2, 3.0, False), (3, 6.0, True), (4, 1.0, True)])
def test_finite_softmax_error_by_simulation(tokens, dimension, kappa, sink):
    """40,000 sequences, weights written out; the asking token has logit 0 and value 0."""
    rng = np.random.default_rng(tokens)
    keys, latents = ex.uniform(rng, 40000, tokens, dimension), 0.8 * rng.normal(size=(40000, dimension))
    values = np.einsum("rnd,rd->rn", keys, latents) + 0.5 * rng.normal(size=(40000, tokens))
    weights = np.exp(kappa * keys[..., 0])
    found = (weights * values).sum(1) / (weights.sum(1) + sink)
    for kept in (1.0, 0.4):
        law = rates.finite_softmax_error(tokens, 1 / kappa, dimension, 0.5, 0.8, 1, kept=kept, sink=sink)
        errors = (found - kept * latents[:, 0]) ** 2
        near(errors.mean(), law, errors.std() / np.sqrt(len(errors)), finds=0.08 * law)


def test_finite_softmax_error_tends_to_its_expansion():
    """Bias, variance / n and bias of the ratio / n; what is left falls as 1/n^2."""
    left = []
    for tokens in (1000, 10_000):
        exact = rates.finite_softmax_error(tokens, 0.25, 3, 0.5, 0.8, 2)
        left.append(tokens**2 * (exact - rates.softmax_error(tokens, 0.25, 3, 0.5, 0.8, 2)))
    assert left[1] == pytest.approx(left[0], rel=0.05)
    assert abs(left[1]) > 0.1


def test_quadrature_of_the_finite_law_has_converged(monkeypatch):
    def found():
        return [rates.finite_softmax_error(n, n**-0.4, 2, 0.5, 0.8, 2) for n in (64, 4096)]

    before = found()
    monkeypatch.setattr(rates, "QUADRATURE_NODES", 800)
    monkeypatch.setattr(rates, "LOG_TIME_STEP", 0.05)
    np.testing.assert_allclose(before, found(), rtol=1e-9)


def test_softmax_variance_is_its_integral():
    kappa, dimension, noise, prior = 1.5, 3, 0.4, 0.9
    kept = float(ex.bessel_ratio(1, kappa, dimension))
    # |k - a_1 q|^2 = 1 - 2 a_1 t + a_1^2
    integral = average_over_sphere(
        lambda t: np.exp(2 * kappa * t) * (noise**2 + prior**2 * (1 - 2 * kept * t + kept**2)), dimension
    )
    law = 2 * integral / average_over_sphere(lambda t: np.exp(kappa * t), dimension) ** 2
    assert rates.softmax_variance(kappa, dimension, noise, prior, 2) == pytest.approx(law, rel=1e-9)


def test_transfer_is_attained_and_infinite_where_pretraining_is_blind():
    rng = np.random.default_rng(4)
    emission, readout = rng.dirichlet(np.ones(4), size=3).T, rng.normal(size=(2, 3))
    found = ex.transfer(emission, readout)
    assert found.direction.sum() == pytest.approx(0, abs=1e-12)
    ratio = np.linalg.norm(readout @ found.direction) / np.linalg.norm(emission @ found.direction)
    assert ratio == pytest.approx(found.factor, rel=1e-10)
    blind = emission[:, [0, 0, 2]]
    assert ex.transfer(blind, readout).factor == np.inf
    # A task that does not tell the two apart either is not hurt.
    assert np.isfinite(ex.transfer(blind, np.array([[1.0, 1.0, 0.0]])).factor)
    # Fewer tokens than latents: some direction is always unseen.
    few = ex.transfer(emission[:2] / emission[:2].sum(0), np.eye(3))
    assert (few.smallest_gain, few.factor) == (pytest.approx(0, abs=1e-12), np.inf)


@pytest.mark.parametrize("seed", range(40))
def test_values_that_nothing_tells_apart_are_as_one_whatever_rounding_makes_of_them(seed):
    rng = np.random.default_rng(seed)
    apart = rng.dirichlet(0.1 * np.ones(8), size=4).T
    apart, readout, twice = apart / apart.sum(0), rng.normal(size=(2, 4)), [0, 0, 1, 2, 3]
    merged = ex.transfer(apart[:, twice], readout[:, twice])
    assert merged.factor == pytest.approx(ex.transfer(apart, readout).factor, rel=1e-6)
