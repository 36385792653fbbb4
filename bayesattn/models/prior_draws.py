"""U, labels and outputs of networks drawn from the prior."""

from dataclasses import replace
from functools import partial

import jax
from jaxtyping import Array, Key

from bayesattn.kernels.path_inputs import outputs_of, scaled_features
from bayesattn.likelihoods import Likelihood
from bayesattn.models.hyperpriors import Hyperpriors, fields_of, scale_of
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.parameterisation import Parameterisation, arrays_of
from bayesattn.models.posterior import parameterisation_of
from bayesattn.theory import bartlett
from bayesattn.theory.potential import Problem, problem_of


def from_prior(model: NetworkPosterior, keys: Key[Array, " draw"]) -> dict[str, Array]:
    """U, labels and, if there are test examples, f of networks drawn from the prior."""
    if not has_fixed_attention(model):
        return _prior_by_weights(keys, parameterisation_of(model, model.weight_space).of(model))
    known = model.reference
    test, arch = known.test_path_inputs, known.architecture
    scaled = None if test is None else scaled_features(test, arch.input_variance)
    problem = problem_of(known.gaussian_process, arch)
    priors = model.hyperpriors if model.has_priors else None
    return _prior(keys, problem, arrays_of(known.likelihood), scaled, bartlett.layer_shapes(arch), priors)


@jax.jit
def _prior_by_weights(keys, posterior: Parameterisation) -> dict[str, Array]:
    def draw(key):
        sites_key, quantities_key, labels_key = jax.random.split(key, 3)
        sites = posterior.draw_prior(sites_key)
        drawn = posterior.quantities(sites, quantities_key) | {"labels": posterior.draw_labels(labels_key, sites)}
        kept = ("order_parameter", "prediction", "labels", *posterior.numbers)
        return {name: drawn[name] for name in kept if name in drawn}

    return jax.lax.map(draw, keys)


@partial(jax.jit, static_argnames="shapes")
def _prior(
    keys, problem: Problem, likelihood: Likelihood, features, shapes, priors: Hyperpriors | None
) -> dict[str, Array]:
    """U, labels and, at scaled test inputs if given, f of networks drawn from the prior; and numbers that have `priors`."""
    kernels = problem.process

    def draw(key):
        here, law, values, ratio = problem, likelihood, {}, 1.0
        if priors is not None:
            hyper_key, key = jax.random.split(key)
            values = priors.values(priors.draw(hyper_key))
            here, law = problem.at_values(values), replace(likelihood, **fields_of(values))
            ratio = scale_of(problem.variances[0], values)
        point_key, projection_key, noise_key = jax.random.split(key, 3)
        factor = here.factor(bartlett.sample_prior(point_key, shapes, problem.widths), shapes)
        projection = jax.random.normal(projection_key, (factor.shape[1], kernels.features.shape[1]))

        def function(inputs):
            """f of a network with path vectors F and with V_0 equal to the projection, in units of s_0."""
            return kernels.by_example(outputs_of(inputs, factor @ projection, kernels.outputs))

        output = function(kernels.features)
        labels = law.sample(noise_key, output)
        drawn = {"order_parameter": factor @ factor.T / ratio, "labels": labels, **values}
        return drawn if features is None else drawn | {"prediction": function(features)}

    return jax.lax.map(draw, keys)
