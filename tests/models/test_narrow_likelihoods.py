"""Likelihoods much narrower than the prior of the outputs: whitening at every U, chains, and leave-one-out integrals."""

import itertools

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import special

import bayesattn as ba
from bayesattn.models import latent_outputs, left_out
from bayesattn.models.collapsed import WithOutputs
from bayesattn.models.prior_draws import from_prior
from bayesattn.theory.potential import Whitening
from tests.conftest import relative_error
from tests.models.test_likelihoods import Laplace
from tests.posteriors import weighed_mean
from tests.statistics import agree

NARROW = 0.01
normal = jax.scipy.stats.norm.logpdf


def two_spikes(label, output, scale):
    """The label is the output or its negative."""
    return jnp.logaddexp(normal(label, output, scale), normal(label, -output, scale)) - jnp.log(2.0)


class TwoSpikes(Laplace):
    """Labels of two spikes."""

    def log_prob(self, outputs, labels):
        """log density of each example."""
        return two_spikes(labels, outputs, self.scale)


# Variances of the normal distributions of which each likelihood is a mixture. The density of the second has a kink, where
# the curvature is zero or infinite.
MIXTURES = {
    "Student": (ba.StudentT(NARROW, 4.0), lambda rng, size: NARROW**2 / (rng.chisquare(4, size) / 4)),
    "Laplace": (Laplace(NARROW), lambda rng, size: 2 * NARROW**2 * rng.exponential(size=size)),
}


def model_of(likelihood, outputs=1, features=6, examples=4):
    rng = np.random.default_rng(3)
    arch = ba.Architecture((2,), (20, 20), (1.0, 1.0, 1.0), (), outputs)
    labels = 0.7 * rng.normal(size=(examples, outputs) if outputs > 1 else examples)
    xi = rng.normal(size=(examples, arch.paths, features))
    return ba.Model(path_inputs=xi, labels=labels, architecture=arch, likelihood=likelihood)


def by_scale_mixtures(model, variances, count=50_000):
    """Posterior means of U, and log leave-one-out densities; errors of both.

    Given U and the variance of each label's noise, labels are Gaussian. So U and variances of the prior are weighed.
    """
    rng, arch = np.random.default_rng(0), model.architecture
    drawn = from_prior(model, jax.random.split(jax.random.key(5), count))
    u = jnp.asarray(np.asarray(drawn["order_parameter"]).reshape(count, arch.rows, arch.rows))
    kernels = np.asarray(jax.lax.map(model.gaussian_process.kernel_of, u))
    labels, size = model.labels.reshape(-1), model.labels.size
    covariances = kernels + variances(rng, (count, size))[:, None] * np.eye(size)

    def log_evidence(kept):
        own = covariances[:, kept][:, :, kept]
        solved = np.linalg.solve(own, np.broadcast_to(labels[kept, None], (count, len(kept), 1)))[..., 0]
        return -(solved @ labels[kept] + np.linalg.slogdet(2 * np.pi * own)[1]) / 2

    whole = log_evidence(np.arange(size))
    rests = [log_evidence(np.delete(np.arange(size), own)) for own in np.split(np.arange(size), model.examples)]
    densities = special.logsumexp(whole) - special.logsumexp(rests, axis=1)
    errors = np.linalg.norm(special.softmax(whole) - special.softmax(rests, axis=1), axis=1)
    return weighed_mean(whole, np.asarray(u).reshape(count, -1), least=1000), (densities, errors)


@pytest.mark.filterwarnings("ignore:the log leave-one-out density")
@pytest.mark.parametrize(
    ("name", "outputs", "features"),
    [
        ("Laplace", 1, 20),
        pytest.param("Student", 1, 6, marks=pytest.mark.heavy),
        pytest.param("Student", 3, 6, marks=pytest.mark.heavy),
    ],
)
def test_order_parameters_and_left_out_labels_are_those_of_scale_mixtures(name, outputs, features):
    """At 500 draws a chain, leave-one-out was 0.24 nats off with trees of 757 steps when latents were whitened once."""
    likelihood, variances = MIXTURES[name]
    model = model_of(likelihood, outputs, features, examples=4 if outputs == 1 else 3)
    draws = ba.sample(model, chains=2, warmup=500, draws=2000, seed=1, progress=False)
    assert float(draws["sample_stats"]["n_steps"].mean()) < 50
    (mean, mean_error), (densities, errors) = by_scale_mixtures(model, variances)
    u = draws["posterior"]["order_parameter"]
    agree(u.stack(entry=u.dims[2:]), mean, mean_error)
    # Each takes integrals of all labels, which cost more than the draw.
    some = draws.isel(draw=slice(3, None, 4))
    log_densities = ba.with_groups(some, "log_likelihood")["log_likelihood"]["labels"]
    agree(np.exp(densities - log_densities), 1.0, errors)


@pytest.mark.parametrize(
    ("outputs", "features", "latents", "zero"),
    [pytest.param(1, 6, 12, True, marks=pytest.mark.heavy), (1, 20, 4, False), (3, 6, 36, True)],
)
def test_whitening_at_every_u_is_a_change_of_coordinates(outputs, features, latents, zero):
    """Densities differ by the volume, by automatic differentiation; outputs and prior draws do not differ.

    With `zero`, one example has inputs of zero, so that its output is zero whatever its label.
    """
    model = model_of(ba.StudentT(NARROW, 4.0), outputs, features)
    if zero:
        model = model.replace(path_inputs=model.path_inputs * np.array([0.0, 1, 1, 1])[:, None, None])
    prepared = WithOutputs.prepare(model)
    posterior = WithOutputs.of(model, **prepared)
    assert isinstance(posterior.latents, latent_outputs.PseudoLabels)
    sites = posterior.initial(jax.random.key(0))
    size = len(sites["latents"])
    assert size == latents  # Entries of Z or, in the second case, columns of the Cholesky factor of K.
    by_prior = {"latent_centre": jnp.zeros(size), "latent_scale": jnp.ones(size)}
    other = WithOutputs.of(model, **{name: prepared[name] for name in ("centre", "scale")}, **by_prior)
    assert isinstance(other.latents, Whitening)

    @jax.jit
    def computed(posterior, other, sites):
        factor = posterior.factor(sites)
        point = posterior.latents.at(posterior.kernels, factor).point
        same = sites | {"latents": point(sites["latents"])}
        volume = jnp.linalg.slogdet(jax.jacfwd(point)(sites["latents"]))[1]
        densities = posterior.log_density(sites), other.log_density(same) + volume
        by_prior = [one.outputs(each, one.factor(each)) for one in (posterior, other) for each in [one.draw_prior(key)]]
        outputs = posterior.outputs(sites, factor), other.outputs(same, factor)
        return outputs, densities, by_prior, posterior.readout(sites, factor, key)

    key = jax.random.key(1)
    outputs, densities, by_prior, readout = computed(posterior, other, sites)
    by_output = np.asarray(readout).reshape(model.architecture.paths, -1, features)
    seen = np.einsum("epf,pcf->ec", model.path_inputs, by_output).reshape(outputs[0].shape)
    # To the deviation of what stands on the diagonal of K, if that is decomposed.
    assert relative_error(seen, outputs[0]) < 1e-4
    np.testing.assert_allclose(*outputs, rtol=1e-9)
    np.testing.assert_allclose(*densities, rtol=1e-10)
    np.testing.assert_allclose(*by_prior, rtol=1e-8)


def test_errors_of_left_out_labels_are_told():
    """Chains of two spikes begin between them, where the curvature is not positive, and stay in one."""
    model = model_of(TwoSpikes(0.1))
    with pytest.warns(UserWarning, match=r"chains have not mixed: R-hat is [1-9]\.\d+ "):
        draws = ba.sample(model, warmup=200, draws=200, seed=1, progress=False)
    found = ba.diagnose(draws)
    assert found.worst["rhat"] == "readout"
    assert any(note.startswith(f"R-hat (of readouts) is {found.rhat:.4f}, above") for note in found.warnings())
    with pytest.warns(UserWarning, match=r"example \d has a Monte Carlo error of 0\.\d+, above 0\.05, and \d of 4"):
        values = ba.with_groups(draws, "log_likelihood")["log_likelihood"]["labels"]
    weights = xr.DataArray(np.exp(values.values.min() - values.values), dims=("chain", "draw", "example"))
    assert float((arviz_stats.mcse(weights) / weights.mean(("chain", "draw"))).max()) > 0.05


SCALES = (1.0, 0.1, 0.03, 0.01, 0.001)


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
        for of in map(np.array, itertools.product((0, 1), repeat=outputs)):
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
    np.testing.assert_allclose(
        fitted.scales @ fitted.scales.swapaxes(1, 2), [np.eye(2), covariance], rtol=1e-6, atol=1e-15
    )
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
