"""Leave-one-out integrals over an example's outputs: likelihoods that are far narrower than the spread of the outputs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from bayesattn.models import latent_outputs, left_out

SCALES = (1.0, 0.1, 0.03, 0.01, 0.001)
normal = jax.scipy.stats.norm.logpdf


def two_spikes(label, output, scale):
    """The label is the output or its negative."""
    return jnp.logaddexp(normal(label, output, scale), normal(label, -output, scale)) - jnp.log(2.0)


def spike_and_slab(label, output, scale):
    """One label in ten is an outlier."""
    spike = jnp.log(0.9) + normal(label, output, scale)
    return jnp.logaddexp(spike, jnp.log(0.1) + normal(label, output, 2.0))


ONE_OUTPUT = {
    "Student": lambda label, output, scale: jax.scipy.stats.t.logpdf(label, 4.0, output, scale),
    "Cauchy": lambda label, output, scale: jax.scipy.stats.t.logpdf(label, 1.0, output, scale),
    "Laplace": lambda label, output, scale: -jnp.abs(label - output) / scale - jnp.log(2 * scale),
    "two spikes": two_spikes,
    "spike and slab": spike_and_slab,
    "counts": lambda _, output, scale: jnp.round(1 / scale) * output - jnp.exp(output),
    "classes": lambda _, output, scale: jax.nn.log_sigmoid(output / scale),
}


def integrals(log_prob, cases):
    """Log integrals of p(label | mean + spread z) p(z); a case has mean, spread, label, scale and draws of z."""
    size = len(cases[0][0])
    nodes = left_out.standard_nodes(size)

    @jax.jit
    @jax.vmap
    def of(mean, spread, label, scale, drawn):
        def log_integrand(z):
            return jnp.sum(log_prob(label, mean + spread @ z, scale)) - z @ z / 2 - size / 2 * jnp.log(2 * jnp.pi)

        return left_out.log_integral(log_integrand, drawn[0], drawn[1:], nodes)

    return np.asarray(of(*map(np.array, zip(*cases, strict=True))))


def require_close(found, exact):
    assert np.max(np.abs(found - exact)) < 0.1
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.04


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_integrals_over_one_output_are_those_of_quadrature(name):
    """Points at all scales around both labels, so that the sum is exact; draws of z by its inverse distribution."""
    rng, cases, exact = np.random.default_rng(0), [], []
    steps = np.geomspace(1e-8, 60, 4000)
    around = np.concatenate([-steps[::-1], [0.0], steps])
    log_prob = jax.jit(ONE_OUTPUT[name])
    for scale in np.repeat(SCALES, 4):
        mean, label = rng.normal(size=2)
        ends = np.unique(np.concatenate([around, around + label - mean, around - label - mean]))
        points, widths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
        values = np.asarray(log_prob(label, mean + points, scale)) - points**2 / 2 - np.log(2 * np.pi) / 2
        exact.append(special.logsumexp(values, b=widths))
        ranks = np.cumsum(widths * np.exp(values - exact[-1]))
        drawn = points[np.searchsorted(ranks, rng.uniform(size=7)).clip(max=len(points) - 1)]
        cases.append(([mean], np.ones((1, 1)), [label], scale, drawn[:, None]))
    # A draw in ten thousand may leave a mode out; none of these does.
    require_close(integrals(ONE_OUTPUT[name], cases), exact)


@pytest.mark.parametrize(
    ("log_prob", "outputs"),
    [
        (two_spikes, 3),
        (spike_and_slab, 2),
        pytest.param(two_spikes, 2, marks=pytest.mark.heavy),
        pytest.param(spike_and_slab, 3, marks=pytest.mark.heavy),
    ],
)
def test_integrals_over_several_outputs_are_sums_of_gaussian_ones(log_prob, outputs):
    rng, cases, exact = np.random.default_rng(1), [], []
    for number, scale in enumerate(np.repeat(SCALES, 3)):
        root = rng.normal(size=(outputs, outputs + number % 3 - 1)) if number % 3 else rng.normal(size=(outputs, 5))
        spread = np.linalg.cholesky(root @ root.T + 1e-6 * np.eye(outputs))
        mean, z = rng.normal(size=(2, outputs))
        label, terms = mean + spread @ z + scale * rng.normal(size=outputs), []
        for choice in itertools.product((0, 1), repeat=outputs):
            of = np.array(choice)
            if log_prob is two_spikes:
                signs, noise, weight = 1 - 2.0 * of, scale * np.ones(outputs), 0.5**outputs
            else:
                signs, noise = np.ones(outputs), np.where(of, 2.0, scale)
                weight = np.prod(np.where(of, 0.1, 0.9))
            covariance = spread @ spread.T + np.diag(noise**2)
            away = signs * label - mean
            solved = np.linalg.solve(covariance, away)
            log_mass = np.log(weight) - (away @ solved + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
            precision = np.eye(outputs) + spread.T @ (spread / noise[:, None] ** 2)
            terms.append((log_mass, spread.T @ solved, np.linalg.cholesky(np.linalg.inv(precision))))
        masses = np.array([term[0] for term in terms])
        # Every mode of 3 % or more is known from some draw.
        large = np.flatnonzero(special.softmax(masses) > 0.03)
        chosen = np.append(large, rng.choice(len(terms), 9 - len(large), p=special.softmax(masses)))
        drawn = [terms[each][1] + terms[each][2] @ rng.normal(size=outputs) for each in chosen]
        cases.append((mean, spread, label, scale, drawn))
        exact.append(special.logsumexp(masses))
    found = integrals(log_prob, cases)
    known = np.isfinite(found)
    assert np.mean(known) > 0.9
    require_close(found[known], np.array(exact)[known])


def test_a_fit_moves_a_component_to_its_points_and_makes_it_a_little_wider():
    """One step of expectation and maximisation of a Student law (Lange et al. 1989), by loops; the first stays."""
    points = np.random.default_rng(0).multivariate_normal([5, 4], [[1.0, 0.6], [0.6, 0.8]], 400)
    centres, scales = np.array([[-500.0, 0.0], [4.5, 4.5]]), np.stack([np.eye(2), 2 * np.eye(2)])
    fitted = left_out.Mixture(np.array([0.1, 0.9]), centres, scales).fitted(points, np.zeros(400))
    freedom = left_out._freedom(2)
    weights = np.array([(freedom + 2) / (freedom + np.sum((point - centres[1]) ** 2) / 4) for point in points])
    mean = weights @ points / weights.sum()
    covariance = sum(w * np.outer(point - mean, point - mean) for w, point in zip(weights, points, strict=True)) / 400
    covariance[np.diag_indices(2)] *= 1.05
    np.testing.assert_allclose(fitted.centres, [centres[0], mean], rtol=1e-6)
    np.testing.assert_allclose(fitted.scales[0], scales[0])
    np.testing.assert_allclose(fitted.scales[1] @ fitted.scales[1].T, covariance, rtol=1e-6)
    np.testing.assert_allclose(fitted.shares, [left_out.PRIOR_SHARE, 1 - left_out.PRIOR_SHARE], atol=1e-3)


@pytest.mark.parametrize("width", [1e-4, 0.02, 3.0])
@pytest.mark.parametrize("centre", [0.0, 2.5, -7.0])
def test_a_mode_at_a_known_value_is_resolved_on_both_sides(centre, width):
    """The midpoint rule's own error: intervals grow by a factor of 1.4 with the distance from the mode."""

    @jax.jit
    def integrals_of(centre):
        routes = (latent_outputs.log_integral_on_grid, latent_outputs.mean_and_variance_on_grid)
        return [route(lambda x: np.log(2) + normal(x, centre, width), centre[None]) for route in routes]

    log_integral, (mean, variance) = integrals_of(jnp.array(centre))
    assert abs(log_integral - np.log(2)) < 0.02
    assert abs(mean - centre) < 0.02 * width
    assert variance == pytest.approx(width**2, rel=0.05)
