"""Theory beyond the saddle point: order of its error, agreement with exact integrals and with draws."""

import dataclasses

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.kernels.conditionals import conditional_moments
from bayesattn.kernels.path_inputs import scaled_features
from bayesattn.theory import bartlett
from bayesattn.theory.finite_width import usual_centre
from bayesattn.theory.mode import find_mode
from bayesattn.theory.potential import potential, problem_of
from tests.conftest import model_of, relative_error
from tests.posteriors import exact_scalar_posterior, tiny_model
from tests.statistics import DRAWS_PER_DEGREE, near


def gaussian_teacher(width, seed):
    """Gaussian inputs of one path and a linear teacher: P = N_0 = 2 N, alike at all sizes."""
    rng = np.random.default_rng(seed)
    path_inputs = rng.normal(size=(2 * width, 1, 2 * width))
    teacher = rng.normal(size=2 * width) / np.sqrt(2 * width)
    labels = 2 * path_inputs[:, 0] @ teacher + 0.6 * rng.normal(size=2 * width)
    arch = ba.Architecture((1,), (width, width), (1.0,) * 3)
    return model_of(path_inputs, labels, arch, 0.1, test_path_inputs=path_inputs[:2])


def narrow_model():
    """Its first layer is narrower than its path suffixes."""
    return tiny_model(heads=(2, 2), widths=(3, 6, 4), variances=(1.0, 0.8, 1.2, 1.1))


def slope(widths, deviations):
    return np.polyfit(np.log(widths), np.log(np.abs(deviations)), 1)[0]


@pytest.mark.heavy
def test_orders_of_the_error_by_quadrature():
    """One head, fixed load, no sampling: the saddle point errs as 1/N, the corrected theory as 1/N^2 (4 data sets)."""
    widths = (8, 16, 32)
    deviations, remaining = np.zeros(3), np.zeros(3)
    for index, width in enumerate(widths):
        for seed in range(4):
            model = gaussian_teacher(width, seed)
            exact, exact_f, _ = exact_scalar_posterior(model)
            saddle, corrected = ba.theory.solve(model), ba.theory.finite_width(model)
            deviations[index] += abs(exact / saddle.order_parameter[0, 0] - 1) / 4
            remaining[index] += abs(exact / corrected.order_parameter[0, 0] - 1) / 4
            assert relative_error(corrected.prediction.mean, exact_f) < 1 / width**2
    assert slope(widths, deviations) == pytest.approx(-1, abs=0.15)
    assert slope(widths, remaining) == pytest.approx(-2, abs=0.3)


def test_prototype_values_on_the_reference_task(hidden_markov_model):
    """Computed beforehand by another program: 14.91, 6.864, 2.932 for the good path's diagonal entry."""
    for width, value in ((10, 14.91), (30, 6.864), (100, 2.932)):
        found = ba.theory.finite_width(hidden_markov_model(width))
        assert float(found.order_parameter[0, 0]) == pytest.approx(value, rel=5e-4)
        assert found.about == "mode"


def test_standard_deviation_of_u_is_that_of_the_draws(hidden_markov_model):
    """To first order in 1/N: relative corrections of a few 1/N remain."""
    model = hidden_markov_model(100)
    draws = ba.sample(model, chains=2, warmup=100, draws=1000)["posterior"]["order_parameter"]
    sampled, error = draws.std(("chain", "draw")).values, arviz_stats.mcse(draws, method="sd").values
    degrees = arviz_stats.ess(draws, method="sd").values / DRAWS_PER_DEGREE
    deviation = np.sqrt(ba.theory.finite_width(model).order_parameter_variance)
    near(deviation / sampled, 1, error / sampled, degrees, finds=0.3, allowed=0.05)


@pytest.mark.parametrize("about", [pytest.param("mode", marks=pytest.mark.heavy), "saddle"])
def test_the_expansion_is_that_by_plain_automatic_differentiation(about):
    """E[g] = g + grad g . shift + tr(Hess g S) / 2 of U and of the predictor, with a narrow first layer."""
    model = narrow_model()
    arch, xi = model.architecture, jnp.asarray(model.path_inputs)
    shapes, test = bartlett.layer_shapes(arch, full=about == "saddle"), xi[:3] + 0.3
    if about == "saddle":
        centre, problem = ba.theory.solve(model).point, problem_of(model.gaussian_process, arch)
    else:
        mode, problem = find_mode(model.gaussian_process, arch)
        centre = mode.point

    def found(point):
        u = problem.order_parameter(point, shapes)
        return u, *conditional_moments(model.gaussian_process, u, scaled_features(test, arch.variances[0]))

    def height(point):
        return potential(point, problem, shapes)

    @jax.jit
    def expansion(point):
        covariance = jnp.linalg.inv(jax.hessian(height)(point))
        third = jnp.einsum("abc,bc->a", jax.jacfwd(jax.hessian(height))(point), covariance)
        shift = -covariance @ (jax.grad(height)(point) + third / 2)
        slopes = jax.jacfwd(found)(point)
        means = jax.tree.map(
            lambda value, slope, bend: value + slope @ shift + jnp.sum(bend * covariance, (-2, -1)) / 2,
            found(point),
            slopes,
            jax.hessian(found)(point),
        )
        spread = [jnp.einsum("...a,ab,...b->...", slope, covariance, slope) for slope in slopes[:2]]
        return *means[:2], means[2] + spread[1], spread[0]

    mean, predicted, variance, variance_of_u = expansion(centre)
    by_theory = ba.theory.finite_width(model, test, about=about)
    quick = ba.theory.finite_width(model, test, about=about, variances=False)
    ours = by_theory.order_parameter, by_theory.order_parameter_variance, *by_theory.prediction, quick.prediction.mean
    for value, expected in zip(ours, (mean, variance_of_u, predicted, variance, predicted), strict=True):
        assert relative_error(value, expected) < 1e-9
    assert np.isnan(quick.prediction.variance).all()


def test_every_head_is_treated_alike():
    """Heads of the first layer in another order, in a network narrower than its path suffixes: U in that order."""
    model = narrow_model()
    order = np.arange(4).reshape(2, 2)[[1, 0]].ravel()
    turned = model.replace(path_inputs=model.path_inputs[:, order], tokens=None)
    for about in ("saddle", "mode"):  # The mode by the order of rows.
        plain, other = (ba.theory.finite_width(each, about=about).order_parameter for each in (model, turned))
        assert relative_error(other, plain[np.ix_(order, order)]) < 1e-9
    assert ba.theory.finite_width(model).about == "saddle"
    for widths, about in (((8, 4, 2), "mode"), ((7, 4, 2), "saddle"), ((8, 4, 1), "saddle")):
        assert usual_centre(dataclasses.replace(model.architecture, widths=widths)) == about
    # A skip is one more way: 3 x 3 of them, or 3 times three outputs, are 9 suffixes, and half of 81 is 40.5.
    for heads, skips, outputs in (((2, 2), (1.0, 1.0), 1), ((2,), (1.0,), 3)):
        arch = ba.Architecture(heads, (20,) * (len(heads) + 1), (1.0,) * (len(heads) + 2), skips, outputs)
        assert [usual_centre(arch.with_width(width)) for width in (20, 40, 41)] == ["saddle", "saddle", "mode"]
    with pytest.raises(ValueError, match="about must be one of 'mode', 'saddle', got 'mean'"):
        ba.theory.finite_width(model, about="mean")


@pytest.mark.heavy
def test_within_two_percent_of_draws_at_three_widths(hidden_markov_model):
    """Corrected theory within 2 % of the sampled mean for every diagonal entry, and the saddle point not."""
    for width in (10, 30, 100):
        model = hidden_markov_model(width)
        validation = ba.validate(ba.sample(model, warmup=300, draws=12000, seed=width), model=model)
        sampled = np.diag(validation.order_parameter)
        assert np.max(np.diag(validation.error) / sampled) < 0.005
        assert np.max(np.abs(np.diag(validation.remaining)) / sampled) < 0.02
        assert validation.holds
        if width == 10:
            assert np.max(np.abs(np.diag(validation.deviation)) / sampled) > 0.05
