"""Which attention the posterior prefers, by the theory: evidence of queries and keys, its gradient and its maximum.

Given queries and keys, the posterior of `bayesattn.AttentionModel` is one with fixed attention, so that the theory gives
log p(Y | Q, K): all other weights are integrated out, at any width (docs/theory.md, section 9). Laplace's method is known
(MacKay 1992 chose among networks with it); its use in Bartlett coordinates for attention, and its gradient in queries
and keys, were worked out for this project.

With x the Bartlett coordinates, V minus the log of prior density times likelihood, x* its minimum and H its Hessian there,
d of both dimensions,

    log p(Y | Q, K) = -V(x*) - log det H / 2 + d log(2 pi) / 2 + O(1/N).

The minimum depends on the queries and keys. Near those at which x0 is the minimum and H0 the Hessian, one Newton step,
x* = x0 - H0^-1 grad V(x0; Q, K), has the derivative of the minimum (the implicit function theorem), so the gradient of the
above through this step is exact. To leading order at large width and fixed P/N, S being the action of
`bayesattn.theory.solve`, E its energy and S_0 the least entropy,

    log p(Y | Q, K) = -(S - S_0 + P m log(2 pi)) / 2 + O(1),   with gradient -dE/2 at fixed order parameters,

because S is stationary in them. At infinite width both are exact.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bayesattn import attention
from bayesattn._util.checks import Checked, one_of, require_kind
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import as_html, as_text
from bayesattn.attention_model import AttentionModel
from bayesattn.models.queries_keys import Heads
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.theory.arguments import refuse_traced
from bayesattn.theory.bartlett import layer_shapes, mirrored
from bayesattn.theory.mode import find_mode
from bayesattn.theory.problem import Problem, local_potential, potential
from bayesattn.theory.saddle_point import saddle_point

if TYPE_CHECKING:
    pass

ORDERS = ("laplace", "leading")


class ConditionalEvidence(NamedTuple):
    """log p(Y | Q, K), and its gradient in queries and keys (or bilinear heads), in the form in which these were given."""

    log_evidence: float
    gradient: Any

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        norm = np.linalg.norm(ravel_pytree(self.gradient)[0])
        return f"ConditionalEvidence: log p(Y | Q, K) = {self.log_evidence:.6g}", {
            "gradient": f"of norm {norm:.3g}, in {len(self.gradient)} layers"
        }


@with_own_settings
def conditional_evidence(
    model: AttentionModel, queries_and_keys: Checked, *, order: str = "laplace"
) -> ConditionalEvidence:
    """x."""
    layers = _checked_layers(model, queries_and_keys)
    posterior = CollapsedAttention.of(model)
    value, gradient = _evaluated(posterior, model.architecture, layers, one_of("order", order, ORDERS))
    return ConditionalEvidence(value, tuple(gradient) if isinstance(queries_and_keys, tuple) else gradient)


def _checked_layers(model, queries_and_keys) -> list:
    require_kind("model", model, AttentionModel)
    refuse_traced("conditional_evidence", queries_and_keys=queries_and_keys)
    model.given(queries_and_keys).require_gaussian()
    layers = attention.checked_heads(queries_and_keys, model.inputs.shape[2])
    return list(jax.tree.map(jnp.asarray, layers))


def _pairs(layers) -> Heads:
    """Queries and keys of each layer; a bilinear head W has keys of width N_0, Q = sqrt(N_0) W and K = I."""

    def pair(heads):
        if isinstance(heads, tuple):
            return heads
        size = heads.shape[1]
        return heads * np.sqrt(size), jnp.broadcast_to(jnp.eye(size), heads.shape)

    return [pair(heads) for heads in layers]


@jax.jit
def _problem(layers, posterior: CollapsedAttention) -> Problem:
    return posterior.given_heads(_pairs(layers)).problem


def _evaluated(posterior, arch, layers, order) -> tuple[float, list]:
    likelihood = _problem(layers, posterior).likelihood
    if order == "leading":
        shapes = layer_shapes(arch, full=True)
        saddle = saddle_point(likelihood, arch)
        least = sum(
            width * shape.rows * (1 - np.log(variance))
            for width, shape, variance in zip(arch.widths, shapes, arch.variances[1:], strict=True)
        )
        value, gradient = _leading(layers, posterior, saddle.point, shapes)
        return float(value - (saddle.entropy - least) / 2), gradient
    shapes = layer_shapes(arch)
    mode, problem = find_mode(likelihood, arch)
    value, gradient = _laplace(layers, posterior, mode, problem.order, shapes)
    images = mirrored(shapes, problem.order) * np.asarray(mode.point)
    return float(value) + np.log(len(images)), gradient


@partial(jax.jit, static_argnames="shapes")
def _leading(layers, posterior, point, shapes):
    def log_density(layers):
        problem = _problem(layers, posterior)
        return problem.likelihood.log_density(problem.factor(point, shapes))

    return jax.value_and_grad(log_density)(layers)


@partial(jax.jit, static_argnames="shapes")
def _laplace(layers, posterior, mode, order, shapes):
    scale = mode.whitening.scale

    def log_evidence(layers):
        problem = _problem(layers, posterior)._replace(order=order)
        slope = jax.grad(potential)(mode.point, problem, shapes)
        at = local_potential(problem, shapes)(mode.point - scale @ (scale.T @ slope))
        return -at.value - jnp.linalg.slogdet(at.hessian)[1] / 2 + len(slope) * np.log(2 * np.pi) / 2

    return jax.value_and_grad(log_evidence)(layers)
