"""Attention that the posterior prefers, by the theory: evidence of queries and keys, its gradient and its maximum.

Given queries and keys, the posterior of `bayesattn.AttentionModel` is one with fixed attention, so the theory gives
log p(Y | Q, K), with all other weights integrated out, at any width. Laplace's method for such an evidence is known
(MacKay 1992, "Bayesian interpolation"). Its form for attention, in Bartlett coordinates, and its gradient in queries and
keys were worked out for this project.

Let V be minus the log of prior density times likelihood at a point of the d Bartlett coordinates
(`bayesattn.theory.bartlett`), x* its minimum and H its Hessian there. Then

    log p(Y | Q, K) = -V(x*) - log det H / 2 + d log(2 pi) / 2 + O(1/N).

The minimum depends on the queries and keys. Let x0 be the minimum at given Q and K, and H0 the Hessian there. One Newton
step, x* = x0 - H0^-1 grad V(x0; Q, K), has the same derivative as the minimum (implicit function theorem), so
differentiation through this step is exact.

The leading order at large width and fixed P/N needs the saddle point alone. With S its action, the sum of energy E and
entropy (`bayesattn.theory.solve`), and S_0 the least entropy,

    log p(Y | Q, K) = -(S - S_0 + P m log(2 pi)) / 2 + O(1).

Its gradient is -dE/2 at fixed order parameters, in which S is stationary. At infinite width both orders are exact.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, one_of, require_kind
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import as_html, as_text
from bayesattn.architecture import Architecture
from bayesattn.likelihoods import require_gaussian
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.theory.arguments import refuse_traced
from bayesattn.theory.bartlett import Order, layer_shapes, mirrored
from bayesattn.theory.mode import SAME_MINIMUM_DISTANCE, find_mode
from bayesattn.theory.potential import Point, Problem, Shapes, Whitening, potential, refuse_many
from bayesattn.theory.saddle_point import saddle_point

ORDERS = ("laplace", "leading")
Layers = list[Any]
"""Heads of each layer: a pair of queries and keys, or an array of bilinear heads."""


class ConditionalEvidence(NamedTuple):
    """log p(Y | Q, K), and its gradient in queries and keys, or in bilinear heads, in the form in which they were given."""

    log_evidence: float
    gradient: Any

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        norm = np.linalg.norm(ravel_pytree(self.gradient)[0])
        return f"ConditionalEvidence: log p(Y | Q, K) = {self.log_evidence:.6g}", {
            "gradient": f"of norm {norm:.3g}, for {len(self.gradient)} layers"
        }


@with_own_settings
def conditional_evidence(
    model: AttentionModel, queries_and_keys: Checked, *, order: str = "laplace"
) -> ConditionalEvidence:
    """log p(Y | Q, K) by Laplace's method about the mode, or to leading order, and its exact gradient.

    Laplace's method counts one mode and, in narrow layers, its images under sign changes of columns. It was within 0.1 nats
    of `bayesattn.theory.evidence` for networks of 1, 2 and 2 x 2 heads at N >= 20, P = 20 and 100 (with skips 0.2; with
    4 x 4 heads, N = 60 and 100, 0.3), within 0.2 at N = 8 and 1.4 at N = 2. Its coordinates list paths in order, so a
    permutation of heads changes it, within this error; if a layer is narrow, that order depends on the saddle point, and
    the value jumps where the order changes. The leading order was within 2.7 nats for up to 2 x 2 heads at N >= 20, and
    22 nats too large for 4 x 4 heads, P = 600 and N = 100; it takes two thirds of the time.

    Args:
        model: the posterior, with Gaussian labels.
        queries_and_keys: for each layer a pair (Q, K), each of shape (H_l, G, N_0); or an array of bilinear heads, of
            shape (H_l, N_0, N_0).
        order: "laplace" or "leading".

    Raises:
        ValueError: not an `AttentionModel`, one that is not linear given queries and keys, or without Gaussian labels;
            another number of heads, other shapes, entries that are not finite or that JAX traces; too many coordinates.
        NotConverged: the mode, or the saddle point, was not found.
    """
    layers = checked_layers(model, queries_and_keys)
    value, gradient = evaluated(
        CollapsedAttention.of(model), model.architecture, layers, one_of("order", order, ORDERS)
    )
    return ConditionalEvidence(value, tuple(gradient) if isinstance(queries_and_keys, tuple) else gradient)


def checked_layers(model: Checked, queries_and_keys: Checked) -> Layers:
    """Heads of each layer as arrays; raises ValueError unless the theory applies to them."""
    require_kind("model", model, AttentionModel)
    model.require_numbers()
    refuse_traced("the evidence of an attention", queries_and_keys=queries_and_keys)
    require_gaussian(model.likelihood)
    return list(jax.tree.map(jnp.asarray, model.checked_heads(queries_and_keys)))


def evaluated(posterior: CollapsedAttention, arch: Architecture, layers: Layers, order: str) -> tuple[float, Layers]:
    """log p(Y | Q, K), and its gradient in the heads of each layer."""
    process = _problem(layers, posterior).process
    if order == "leading":
        saddle, shapes = saddle_point(process, arch), layer_shapes(arch, full=True)
        each = zip(arch.widths, shapes, arch.variances[1:], strict=True)
        least_entropy = sum(width * shape.rows * (1 - np.log(variance)) for width, shape, variance in each)
        value, gradient = _log_density(layers, posterior, saddle.point, shapes)
        return float(value - (saddle.entropy - least_entropy) / 2), gradient
    shapes = layer_shapes(arch)
    refuse_many("log p(Y | Q, K) by Laplace's method", shapes, "use order='leading', fewer heads or narrower layers")
    mode, problem = find_mode(process, arch)
    value, gradient = _laplace(layers, posterior, mode.whitening, problem.order, shapes)
    return float(value + np.log(_images(mode.whitening, problem.order, shapes))), gradient


def _images(mode: Whitening, order: Order, shapes: Shapes) -> float:
    """Number of different modes with the same U, which differ in the signs of columns."""
    apart = np.asarray(_distances(mode, mirrored(shapes, order)))
    return len(apart) / np.sum(apart < SAME_MINIMUM_DISTANCE)


@jax.jit
def _distances(mode: Whitening, signs: Float[Array, "image coordinate"]) -> Float[Array, " image"]:
    """Distance of each image of a mode from it, whitened."""
    return jax.lax.map(lambda image: jnp.linalg.norm(mode.whitened(image)), signs * mode.centre)


@jax.jit
def _problem(layers: Layers, posterior: CollapsedAttention) -> Problem:
    return posterior.given_heads([_pair(heads) for heads in layers]).problem


def _pair(heads: Any) -> tuple[Array, Array]:
    """Queries and keys of a layer; those of bilinear heads W are sqrt(N_0) W and the identity, of width N_0."""
    if isinstance(heads, tuple):
        return heads
    size = heads.shape[1]
    return np.sqrt(size) * heads, jnp.broadcast_to(jnp.eye(size), heads.shape)


@partial(jax.jit, static_argnames="shapes")
def _log_density(layers: Layers, posterior: CollapsedAttention, point: Point, shapes: Shapes):
    """log p(Y | Q, K, U) at fixed U, and its gradient."""

    def log_density(layers: Layers) -> Float[Array, ""]:
        problem = _problem(layers, posterior)
        return problem.process.log_density(problem.factor(point, shapes))

    return jax.value_and_grad(log_density)(layers)


@partial(jax.jit, static_argnames="shapes")
def _laplace(layers: Layers, posterior: CollapsedAttention, mode: Whitening, order: Order, shapes: Shapes):
    """Laplace's approximation about one mode, and its gradient, which includes the motion of the mode."""

    def log_evidence(layers: Layers) -> Float[Array, ""]:
        problem = _problem(layers, posterior)._replace(order=order)
        slope = jax.grad(potential)(mode.centre, problem, shapes)
        # One Newton step from the mode, with S = H0^-1 = scale scale^T.
        at = problem.local(shapes)(mode.centre - mode.scale @ (mode.scale.T @ slope))
        return len(slope) * np.log(2 * np.pi) / 2 - at.value - jnp.linalg.slogdet(at.hessian)[1] / 2

    return jax.value_and_grad(log_evidence)(layers)
