"""Every network of the tables of tests/models in every parameterisation, at three points, against tests/dense.py.

Exact numbers: log densities, their gradients by finite differences, U and, of ten networks, K(U) and the predictor. What is
left to chains is that samplers draw from these densities. Of latents, the form (entries of the projection of V_0, or
coefficients of a root of K) is the library's choice, repeated here.
"""

from functools import partial

import jax
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.models import collapsed, path, token
from bayesattn.theory.bartlett import narrow
from tests import dense
from tests.conftest import relative_error
from tests.models import test_extended, test_likelihoods, test_narrow
from tests.posteriors import narrow_model

POINTS = 3
STEP = 1e-5


NETWORKS = {
    **{f"{name}, tokens": partial(test_extended.extended_model, name) for name in test_extended.NETWORKS},
    **{f"{name}, narrow": partial(narrow_model, *case, 0.01) for name, case in test_narrow.NETWORKS.items()},
    **{f"{name}, classes": partial(test_likelihoods.model_of_classes, name) for name in test_likelihoods.CLASSES},
    **{", ".join(case): partial(test_likelihoods.model_of, *case) for case in test_likelihoods.CASES},
}


def require_equal(posterior, sites, expected, further=lambda posterior, site: {}):
    """Log densities at all points, and their slopes along one direction each, against a function of sites in NumPy.

    Returns what else is asked of the posterior at the first point.
    """

    @jax.jit
    def known(site, posterior):
        return jax.value_and_grad(lambda at: posterior.log_density(at))(site), further(posterior, site)

    # One point after the other: a program for all at once takes twice as long to compile.
    found = jax.device_get([known(site, posterior) for site in sites])
    exact = np.array([expected(each) for each in sites])
    values = [value for (value, _), _ in found]
    np.testing.assert_allclose(values, exact, rtol=1e-10, atol=1e-10 * np.abs(exact).max())
    rng = np.random.default_rng(2)
    for each, value, ((_, slopes), _) in zip(sites, exact, found, strict=True):
        direction = {name: rng.normal(size=value.shape) for name, value in each.items()}
        up, down = (
            expected({name: value + sign * STEP * direction[name] for name, value in each.items()}) for sign in (1, -1)
        )
        along = sum(np.vdot(slopes[name], direction[name]) for name in each)
        size = np.sqrt(sum(np.vdot(slopes[name], slopes[name]) for name in each))
        assert abs(along - (up - down) / (2 * STEP)) < 1e-5 * (size + abs(value))
    return found[0][1]


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_by_paths_and_by_tokens(name):
    model = NETWORKS[name]()
    arch, rng = model.architecture, np.random.default_rng(0)
    sites = [dense.random_weights(arch, model.path_inputs.shape[2], rng) for _ in range(POINTS)]

    def log_density(weights, outputs):
        return dense.log_prior_of_weights(arch, weights) + dense.log_likelihood(model, outputs(weights))

    posterior = path.Path.of(model)
    inputs, new = model.path_inputs, model.test_path_inputs
    by_paths = partial(log_density, outputs=lambda weights: dense.outputs(arch, weights, inputs))
    key = jax.random.key(0)
    found = require_equal(posterior, sites, by_paths, lambda posterior, site: posterior.quantities(site, key))
    assert relative_error(found["order_parameter"], dense.order_parameter(arch, sites[0])) < 1e-12
    if new is not None:
        assert relative_error(found["prediction"], dense.outputs(arch, sites[0], new)) < 1e-12
    if model.tokens is not None:
        by_tokens = partial(dense.outputs_by_tokens, arch, tokens=model.tokens)
        require_equal(token.Token.of(model), sites, partial(log_density, outputs=by_tokens))


@pytest.mark.parametrize("name", NETWORKS)
def test_bartlett_coordinates(name):
    """In coordinates whitened at random, with rows of each layer of narrow networks in a random order."""
    model = NETWORKS[name]()
    arch, rng, conjugate = model.architecture, np.random.default_rng(1), model.likelihood.conjugate
    order = None
    if narrow(collapsed.structure(model)):
        order = np.concatenate([rng.permutation(rows) for _, rows, _, _ in dense.layers(arch)])
    size = sum(shape.size for shape in collapsed.structure(model))
    prepared = {"centre": rng.normal(size=size), "scale": np.eye(size) + 0.1 * rng.normal(size=(size, size))}
    columns, features = dense.layers(arch)[0][2], model.path_inputs.shape[2]
    latents = columns * features if arch.outputs > 1 or columns * features <= 4 * model.labels.size else model.examples
    if not conjugate:
        prepared |= {"latent_centre": rng.normal(size=latents), "latent_scale": rng.uniform(0.5, 2, latents)}
    posterior = collapsed.Collapsed.of(model, order=order, **prepared)
    volume = np.linalg.slogdet(prepared["scale"])[1]

    def at(site):
        bartletts, log_prior = dense.bartlett(arch, prepared["centre"] + prepared["scale"] @ site["whitened"], order)
        return dense.factor(arch, bartletts), log_prior + volume

    def log_density(site):
        factor, log_prior = at(site)
        if conjugate:
            return log_prior + dense.log_evidence(model, factor @ factor.T)
        z = prepared["latent_centre"] + prepared["latent_scale"] * site["latents"]
        log_prior += np.sum(np.log(prepared["latent_scale"])) - (z @ z + len(z) * np.log(2 * np.pi)) / 2
        return log_prior + dense.log_likelihood(model, outputs(factor, z))

    def outputs(factor, z):
        """Of latents that are the projection of V_0, feature by feature, or coefficients of a root of K(U)."""
        if latents == columns * features:
            readout = (factor @ z.reshape(features, columns).T).reshape(-1, arch.outputs, features)
            f = np.einsum("epf,pcf->ec", model.path_inputs, readout)
            f *= np.sqrt(arch.variances[0] / (features * np.prod(arch.heads)))
        else:
            kernel = dense.kernel(arch, factor @ factor.T, model.path_inputs, model.path_inputs)
            f = np.linalg.cholesky(kernel + 1e-10 * np.mean(np.diag(kernel)) * np.eye(len(kernel))) @ z
        return f.reshape(model.labels.shape)

    sites = [{"whitened": 0.5 * rng.normal(size=size)} for _ in range(POINTS)]
    if not conjugate:
        sites = [site | {"latents": rng.normal(size=latents)} for site in sites]
    found = require_equal(posterior, sites, log_density, lambda posterior, site: posterior.central(site))
    u = at(sites[0])[0] @ at(sites[0])[0].T
    assert relative_error(found["order_parameter"], u) < 1e-12
    if name.endswith("tokens"):
        kernel = ba.theory.kernel(u, model.path_inputs, model.path_inputs, arch)
        assert relative_error(kernel, dense.kernel(arch, u, model.path_inputs, model.path_inputs)) < 1e-12
        new = model.path_inputs[::-2] + 1.0
        found, (mean, variance) = ba.theory.predict(u, model, new), dense.predictor(model, u, new)
        np.testing.assert_allclose(found.mean.ravel(), mean, rtol=1e-7, atol=1e-7 * np.abs(mean).max())
        np.testing.assert_allclose(found.variance.ravel(), variance, rtol=1e-7, atol=1e-7 * variance.max())
