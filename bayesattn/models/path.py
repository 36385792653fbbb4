"""Path parameterisation: all weights are sampled, the network function goes through path inputs (THEORY section 2)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from bayesattn.models.posterior import Model
from bayesattn.network import Weights, effective_weights, network, path_readouts

Sites = Weights
Structure = tuple[tuple[int, ...], tuple[int, ...], int]
"""Heads, widths and outputs: the shapes of the weights."""


def minibatch(data: dict[str, Any], chosen: Any) -> dict[str, Any]:
    """The data of some of the examples."""
    return data | {name: data[name][chosen] for name in ("path_inputs", "labels")}


def options(structure: Structure) -> dict[str, Any]:
    """Samplers keep their own."""
    return {}


def prepare(model: Model) -> dict[str, Any]:
    """Nothing has to be computed before sampling begins."""
    return {}


def data(model: Model) -> dict[str, Any]:
    """Arrays that the program conditions on."""
    return {
        "path_inputs": jnp.asarray(model.path_inputs),
        "labels": jnp.asarray(model.labels),
        "temperature": jnp.asarray(model.temperature),
        "variances": jnp.asarray(model.architecture.variances),
        "skips": model.architecture.optional_skips,
        "observation": model.law,
        "test_path_inputs": None if model.test_path_inputs is None else jnp.asarray(model.test_path_inputs),
    }


def with_labels(data: dict[str, Any], labels: Any) -> dict[str, Any]:
    """The same data with other labels."""
    return data | {"labels": labels}


def structure(model: Model) -> Structure:
    """Heads, widths and outputs: the shapes of the weights."""
    return model.architecture.heads, model.architecture.widths, model.architecture.outputs


def program(structure: Structure):
    """NumPyro program of `data`: V_0, V_1, .., V_L, a with Gaussian priors, labels with Gaussian likelihood."""

    def path_program(data: dict[str, Any]):
        weights = sample_weights(structure, data["path_inputs"].shape[2], data["variances"])
        observe(network(weights, data["path_inputs"], data["skips"]), data)

    return path_program


def quantities(sites: Sites, data: dict[str, Any], structure: Structure, key: Any) -> Sites:
    """Order parameter U and, where there are test examples, f on them."""
    paths = effective_weights(sites, data["skips"])
    result = {"order_parameter": paths @ paths.T / paths.shape[1]}
    if data["observation"] is not None:
        result["readout"] = path_readouts(sites, data["skips"])
    if data["test_path_inputs"] is not None:
        result["prediction"] = network(sites, data["test_path_inputs"], data["skips"])
    return result


def draw_prior(key: Key[Array, ""], data: dict[str, Any], structure: Structure) -> Sites:
    """Sites drawn from the prior."""
    with numpyro.handlers.seed(rng_seed=key):
        return sample_weights(structure, data["path_inputs"].shape[2], data["variances"])


initial = draw_prior


def draw_labels(key: Key[Array, ""], sites: Sites, data: dict[str, Any], structure: Structure) -> Array:
    """Labels drawn given the sites."""
    if data["observation"] is not None:
        return data["observation"].sample(key, network(sites, data["path_inputs"], data["skips"]))
    noise = jnp.sqrt(data["temperature"]) * jax.random.normal(key, data["labels"].shape)
    return network(sites, data["path_inputs"], data["skips"]) + noise


def network_weights(sites: Sites, data: dict[str, Any], structure: Structure, widths: Any, key: Any) -> Sites:
    """The weights are what is sampled."""
    return sites


def sample_weights(structure: Structure, features: int, variances: Float[Array, " layer_and_input"]) -> Sites:
    """Prior draws: V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,) or (m, N_a); each entry Normal(0, s^2) of its layer."""
    heads, widths, outputs = structure
    shapes: dict[str, tuple[int, ...]] = {"V_0": (widths[0], features)}
    for layer, count in enumerate(heads):
        # The readout width N_a is also the output width of the last layer's values: N_{L+1} = N_a.
        shapes[f"V_{layer + 1}"] = (count, widths[layer + 1], widths[layer])
    shapes["a"] = (widths[-1],) if outputs == 1 else (outputs, widths[-1])
    return {
        name: jnp.asarray(numpyro.sample(name, dist.Normal(0.0, jnp.sqrt(variance)).expand(shape).to_event(len(shape))))
        for (name, shape), variance in zip(shapes.items(), variances, strict=True)
    }


def observe(output: Float[Array, "*labels"], data: dict[str, Any]):
    """Y ~ Normal(f, T), or classes by their own law; a minibatch's log likelihood is scaled up to that of all examples."""
    with numpyro.handlers.scale(scale=data.get("likelihood_scale", 1.0)):
        if data["observation"] is not None:
            numpyro.factor("labels", jnp.sum(data["observation"].log_likelihood(output, data["labels"])))
            return
        noisy = dist.Normal(output, jnp.sqrt(data["temperature"])).to_event(output.ndim)
        numpyro.sample("labels", noisy, obs=data["labels"])
