"""Exact draws of all weights given draws of the collapsed parameterisation (THEORY section 3)."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn._util.checks import positive_integer, seed_number
from bayesattn._util.random import digest_of_draws, stream
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.kernels.path_inputs import input_scale
from bayesattn.models.draws import Draws, in_order_of_rows, numbers_of, opened_with_network
from bayesattn.models.earlier import draws_first
from bayesattn.models.hyperpriors import Values, in_units, scale_of
from bayesattn.models.model import Model, has_fixed_attention
from bayesattn.models.parameterisation import Sites
from bayesattn.theory import bartlett
from bayesattn.theory.potential import Problem, Shapes, problem_of

if TYPE_CHECKING:
    import xarray  # its names are found by their full path when types are checked at run time

MOST_WEIGHT_BYTES = 2**32


@draws_first
@with_own_settings
def weights(
    draws: Draws,
    seed: int = 0,
    *,
    thin: int = 1,
    max_bytes: int = MOST_WEIGHT_BYTES,
    model: Model | None = None,
) -> "xarray.Dataset":
    """Exact draws of all weights, one for each collapsed draw (THEORY section 3).

    Weights are drawn from the readout down:

    - Path vectors are W_l = sqrt(N_l) F_l Q_l^T, with Q_l a uniformly random orthonormal frame. If a skip copies the path
      vectors of the layer above, Q_l begins with the frame of that layer (THEORY section 8).
    - Values are V_l^h = s_l Q_{l+1} B_l[h] Q_l^T + (I - Q_{l+1} Q_{l+1}^T) x a prior draw, which is the prior given W_{l+1}
      and W_l.
    - V_0 is drawn by Matheron's rule; if the likelihood is not Gaussian, it is a draw from the prior given F Z.

    Args:
        draws: result of `sample` with parameterisation "collapsed", a `bayesattn.runs.Run` of it, or a run's folder.
        seed: seed of the frames and the prior draws.
        thin: the last of every `thin` draws is kept, as by samplers.
        max_bytes: largest memory of the weights.
        model: model of the draws, if they do not record it, or to check them against it.

    Returns:
        Dataset with V_0 (chain, draw, N_1, N_0), V_l (chain, draw, H_l, N_{l+1}, N_l) for l = 1..L, and a
        (chain, draw, N_a), or (chain, draw, m, N_a) for m outputs.

    Raises:
        ValueError: draws of another parameterisation or model, or weights that would need more than `max_bytes`.
    """
    positive_integer("thin", thin)
    seed_number("seed", seed)
    opened, tree = opened_with_network(draws, model)
    if not has_fixed_attention(opened):
        raise BayesattnError(
            "weights are drawn exactly for a model with fixed attention, got draws of an AttentionModel: sample with"
            ' keep=("weights",)'
        )
    model = opened
    posterior = tree["posterior"].to_dataset()
    if "bartlett" not in posterior:
        raise BayesattnError("draws must come from parameterisation 'collapsed', got a posterior without 'bartlett'")
    arch = model.architecture
    shapes = bartlett.layer_shapes(arch)
    points = posterior["bartlett"].isel(draw=slice(thin - 1, None, thin))
    if points.shape[-1] != sum(shape.size for shape in shapes):
        raise BayesattnError(
            f"draws must come from this model, got {points.shape[-1]} Bartlett coordinates,"
            f" expected {sum(shape.size for shape in shapes)}"
        )
    needed = 8 * arch.number_of_weights(model.path_inputs.shape[2]) * points.shape[0] * points.shape[1]
    if needed > max_bytes:
        raise BayesattnError(
            f"weights of all draws take {needed / 2**30:.1f} GiB, more than max_bytes; raise thin or max_bytes"
        )
    flat = jnp.asarray(points.values).reshape(-1, points.shape[-1])
    keys = jax.random.split(stream(seed, "weights", model.fingerprint, digest_of_draws(flat)), len(flat))
    mixed = None
    if not model.likelihood.conjugate:
        if "readout" not in posterior:
            raise BayesattnError("draws must hold posterior['readout'], from which weights are made, got none")
        drawn_readouts = in_order_of_rows(posterior["readout"], tree, model)
        kept = drawn_readouts.isel(draw=slice(thin - 1, None, thin)).values
        scale = input_scale(model.reference.architecture.input_variance, arch.paths, model.path_inputs.shape[2])
        mixed = jnp.asarray(kept).reshape(-1, *kept.shape[2:]) / scale
    known, values = model.reference, {}
    for name, drawn in numbers_of(tree, model).items():
        kept = drawn.isel(draw=slice(thin - 1, None, thin)).values
        values[name] = jnp.asarray(kept).reshape(len(flat), *kept.shape[2:])
    problem = problem_of(known.gaussian_process, known.architecture)
    drawn = _weights(flat, mixed, keys, values, problem, shapes, arch.widths)
    coords = {name: points[name] for name in ("chain", "draw")}
    import xarray

    return xarray.Dataset(
        {
            name: (
                ("chain", "draw", *arch.weight_dims()[name]),
                np.asarray(value).reshape(*points.shape[:2], *value.shape[1:]),
            )
            for name, value in drawn.items()
        },
        coords,
    )


@partial(jax.jit, static_argnames=("shapes", "widths"))
def _weights(points, mixed, keys, values: Values, problem: Problem, shapes: Shapes, widths: tuple[int, ...]) -> Sites:
    def one(draw):
        point, projected, key, given = draw
        drawn = weights_at(point, projected, key, problem.at_values(given), shapes, widths)
        return in_units(drawn, scale_of(problem.variances[0], given))

    return jax.lax.map(one, (points, mixed, keys, values))


def weights_at(
    point: Array, mixed: Array | None, key: Key[Array, ""], problem: Problem, shapes: Shapes, widths: tuple[int, ...]
) -> Sites:
    """All weights for a point, given F Z in `mixed`; if `mixed` is None, Z is drawn given the labels."""
    kernels, variances = problem.process, problem.variances
    bartletts = bartlett.bartlett_factors(point, shapes, problem.order)
    readout_key, input_key, *layer_keys = jax.random.split(key, len(shapes) + 1)
    frame = _frame(readout_key, widths[-1], shapes[-1].columns)
    last = jnp.sqrt(variances[-1]) * bartletts[-1] @ frame.T
    result = {"a": last[0] if len(last) == 1 else last}
    for layer in range(len(shapes) - 1, 0, -1):
        deviation = jnp.sqrt(variances[layer])
        frame_key, prior_key = jax.random.split(layer_keys[layer - 1])
        shape = shapes[layer - 1]
        known = frame if shape.skip else None
        lower, heads = _frame(frame_key, widths[layer - 1], shape.diagonal, known), shape.heads
        prior = deviation * jax.random.normal(prior_key, (heads, len(frame), len(lower)))
        by_head = bartletts[layer - 1].reshape(heads, -1, lower.shape[1])
        projected = deviation * jnp.einsum("hrc,nc->hrn", by_head, lower)
        correction = projected - jnp.einsum("mr,hmn->hrn", frame, prior)
        result[f"V_{layer}"] = prior + jnp.einsum("mr,hrn->hmn", frame, correction)
        frame = lower
    prior_key, noise_key = jax.random.split(input_key)
    prior = jax.random.normal(prior_key, (len(frame), kernels.features.shape[1]))
    projected, factor = frame.T @ prior, problem.factor(point, shapes)
    if mixed is None:
        drawn = kernels.sample_projection(noise_key, factor, projected)
    else:  # The part of Z not determined by F Z is from the prior.
        drawn = projected + jnp.linalg.pinv(factor) @ (mixed - factor @ projected)
    result["V_0"] = jnp.sqrt(variances[0]) * (prior + frame @ (drawn - projected))
    return result


def _frame(
    key: Key[Array, ""], rows: int, columns: int, known: Float[Array, "row known_column"] | None = None
) -> Float[Array, "row column"]:
    """Uniformly random orthonormal columns: QR of a Gaussian matrix, signs fixed by R's diagonal (Mezzadri 2007).

    Columns that are `known` come first, and the others are orthogonal to them.
    """
    random = jax.random.normal(key, (rows, columns))
    if known is not None:
        random = random - known @ (known.T @ random)
    orthonormal, upper = jnp.linalg.qr(random if known is None else jnp.concatenate([known, random], axis=1))
    orthonormal = orthonormal * jnp.where(jnp.diag(upper) < 0, -1.0, 1.0)
    # QR returns orthonormal columns unchanged up to rounding; the known columns are kept exactly.
    return orthonormal if known is None else jnp.concatenate([known, orthonormal[:, known.shape[1] :]], axis=1)
