"""Evidence by two independent routes, by quadrature where that is possible, and in the GP limit."""

import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from tests.posteriors import exact_scalar_posterior, tiny_model


def problem_of(model):
    return model.path_inputs, model.labels, model.architecture, model.temperature


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_both_routes_against_quadrature(temperature):
    model = tiny_model(temperature)
    exact = exact_scalar_posterior(model)[2]
    sampled = ba.theory.sampled_evidence(*problem_of(model), draws=65536)
    assert abs(sampled.log_evidence - exact) < 4 * sampled.error
    assert sampled.error < 0.003
    expanded = ba.theory.laplace_evidence(*problem_of(model))
    # Widths 3 and 4: the order kept last leaves less than itself.
    assert abs(expanded.log_evidence - exact) < 0.5 * expanded.error


def test_gp_evidence_is_a_normal_density():
    model = tiny_model(heads=(2,), widths=(3, 4))
    kernel = ba.theory.kernel(
        ba.theory.gp_order_parameter(model.architecture), model.path_inputs, model.path_inputs, model.architecture
    )
    covariance = np.asarray(kernel) + model.temperature * np.eye(len(kernel))
    expected = stats.multivariate_normal(cov=covariance).logpdf(model.labels)
    assert ba.theory.gp_evidence(*problem_of(model)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.heavy
def test_routes_agree_and_approach_the_gp_limit(hidden_markov_model):
    """Three widths and three temperatures on the reference task."""
    for temperature in (0.01, 0.1, 1.0):
        gaps = []
        for width in (10, 100, 10000):
            problem = problem_of(hidden_markov_model(width).replace(temperature=temperature))
            expanded, sampled = ba.theory.laplace_evidence(*problem), ba.theory.sampled_evidence(*problem)
            assert abs(expanded.log_evidence - sampled.log_evidence) < 4 * sampled.error + expanded.error**2
            gaps.append(abs(sampled.log_evidence - ba.theory.gp_evidence(*problem)))
        assert gaps[0] > gaps[1] > gaps[2]
        # The gap is of order 1/N.
        assert gaps[2] < 0.05 * gaps[1] + 4 * sampled.error


def test_wide_networks_of_many_paths_get_the_leading_order_alone():
    rng = np.random.default_rng(0)
    arch = ba.Architecture((3, 3), (30,) * 3, (1.0,) * 4)
    problem = (rng.normal(size=(10, 9, 4)), rng.choice([-1.0, 1.0], 10), arch, 0.5)
    expanded, sampled = ba.theory.laplace_evidence(*problem), ba.theory.sampled_evidence(*problem)
    assert np.isnan(expanded.error)
    assert abs(expanded.log_evidence - sampled.log_evidence) < 1
