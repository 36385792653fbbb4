"""Memory that sampling a model takes at the least, told before any of it is taken."""

import jax

from bayesattn._util.checks import memory_limit
from bayesattn.kernels.choice import cheapest_form, compressed_examples
from bayesattn.model import Model
from bayesattn.models.latent import LatentModel
from bayesattn.models.latent_outputs import MOST_LATENTS, number_of_latents
from bayesattn.theory import cost
from bayesattn.theory.bartlett import layer_shapes

COPIES = 8
"""Vectors as long as the sampled point that a chain holds: points, momenta, gradients of a trajectory's ends, scale, .."""


def bytes_needed(model: Model | LatentModel, parameterisation: str, chains: int = 1) -> int:
    """Bytes that so many chains at a time take at the least, without the draws that are kept."""
    if isinstance(model, LatentModel):
        return 8 * (chains * COPIES * model.values.shape[1] * model.features.shape[1] + model.features.size)
    arch, (examples, paths, features) = model.architecture, model.path_inputs.shape
    data = model.path_inputs.size + (0 if model.test_path_inputs is None else model.test_path_inputs.size)
    if parameterisation == "collapsed":
        # Only the Gaussian likelihood can use compressed data.
        seen = compressed_examples(examples, paths * features, arch.outputs) if model.likelihood.conjugate else examples
        form, shapes = cheapest_form(seen, features, arch), layer_shapes(arch)
        # Each chain has a gradient of its own, of which that of the search of the mode is one.
        rows = shapes[0].columns * features if form == "feature_space" else seen * arch.outputs
        held = cost.bytes_needed(seen * arch.outputs, arch.rows, features, form, shapes, arch.outputs)
        held += 8 * 2 * (examples - seen) * paths * features
        if not model.likelihood.conjugate:
            # The scale of the outputs, its inverse, and the Hessian it is made of.
            latents = number_of_latents(shapes[0].columns * features, examples * arch.outputs, arch.outputs)
            held += 8 * (3 * latents**2 if latents <= MOST_LATENTS else 0)
        return held + 8 * (data - model.path_inputs.size + (chains - 1) * 2 * rows**2)
    if parameterisation == "token" and model.tokens is not None:
        data += examples * sum(arch.heads) * model.tokens.inputs.shape[1] ** 2
    return 8 * (data + chains * COPIES * arch.number_of_weights(features))


def require_memory(model: Model | LatentModel, parameterisation: str, chains: int = 1) -> None:
    """Raise ValueError if so many chains at a time take more memory than there is, on the machine or its accelerator."""
    needed, device = bytes_needed(model, parameterisation, chains), jax.devices()[0]
    limit = min(memory_limit(), (device.memory_stats() or {}).get("bytes_limit", 2**63))
    if needed > limit:
        size = f" at widths {model.architecture.widths}" if isinstance(model, Model) else ""
        weights = isinstance(model, Model) and parameterisation != "collapsed"
        advice = (
            "use parameterisation 'collapsed', whose size does not grow with the width"
            if weights
            else "use fewer paths or, for many examples, a compressed dataset (bayesattn.Dataset.gather)"
        )
        raise ValueError(
            f"parameterisation {parameterisation!r}{size} must fit into memory, {limit / 2**30:.3g} GiB, and needs at least"
            f" {needed / 2**30:.3g} GiB; {advice}"
        )
