"""Which attention the posterior prefers, by the theory: evidence of queries and keys, its gradient and its maximum.

Given queries and keys, the posterior of `bayesattn.AttentionModel` is one with fixed attention, so the theory gives
log p(Y | Q, K), with all other weights integrated out, at any width. Laplace's method for such an evidence is known
(MacKay 1992, "Bayesian interpolation"). Its form for attention, in Bartlett coordinates, and its gradient in queries and
keys were worked out for this project.

Let V be minus the log of prior density times likelihood at a point of the d Bartlett coordinates
(`bayesattn.theory.bartlett`), x* its minimum and H its Hessian there. Then

    log p(Y | Q, K) = -V(x*) - log det H / 2 + d log(2 pi) / 2 + O(1/N).

The minimum depends on the queries and keys. Where x0 is the minimum and H0 the Hessian, one Newton step,
x* = x0 - H0^-1 grad V(x0; Q, K), has the same derivative (implicit function theorem), so differentiation through this
step is exact.

The leading order at large width and fixed P/N needs the saddle point alone. With S its action, the sum of energy E and
entropy (`bayesattn.theory.solve`), and S_0 the least entropy,

    log p(Y | Q, K) = -(S - S_0 + P m log(2 pi)) / 2 + O(1).

Its gradient is -dE/2 at fixed order parameters, in which S is stationary. At infinite width both orders are exact.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayesattn import attention
from bayesattn._util.checks import Checked, entries, names, one_of, positive, positive_integer, require_kind, shown, truth
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, as_html, as_text, with_error
from bayesattn.architecture import Architecture
from bayesattn.attention_model import AttentionModel
from bayesattn.models.queries_keys import Heads, QueriesAndKeys
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.theory.arguments import refuse_traced
from bayesattn.theory.bartlett import Order, layer_shapes, mirrored
from bayesattn.theory.evidence import MOST_COMBINED_ERRORS, evidence
from bayesattn.theory.minimise import ARMIJO, MOST_HALVINGS
from bayesattn.theory.mode import SAME_MINIMUM_DISTANCE, Mode, find_mode
from bayesattn.theory.problem import Point, Problem, Shapes, local_potential, potential, refuse_many
from bayesattn.theory.saddle_point import NotConverged, SaddlePoint, saddle_point

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("laplace", "leading")
MEMORY = 30
"""Number of steps that L-BFGS remembers."""

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

    Laplace's method knows one mode, and its images if a narrow layer has columns of either sign. Against
    `bayesattn.theory.evidence` it was off by at most 0.1 nats with widths of at least 20 (six networks of 2 and 2 x 2
    heads, P = 20 and 100; with skips 0.2), by 0.2 at N = 8, and by up to 1.4 at N = 2. The leading order was off by up to
    2.7 nats at N = 20 and 0.7 at N = 200; its gradient takes two thirds of the time. Where layers are narrow, the row
    order of the coordinates is chosen at the saddle point, and the value may jump slightly where the choice changes.

    Args:
        model: the posterior, with Gaussian labels.
        queries_and_keys: for each layer a pair (Q, K), each of shape (H_l, G, N_0); or an array of bilinear heads, of
            shape (H_l, N_0, N_0).
        order: "laplace" or "leading".

    Raises:
        ValueError: not an `AttentionModel`, one that is not linear given queries and keys, or without Gaussian labels;
            another number of heads, other shapes, entries that are not finite or that JAX traces, too many coordinates.
        NotConverged: the mode, or the saddle point, was not found.
    """
    one_of("order", order, ORDERS)
    layers = _checked_layers(model, queries_and_keys)
    value, gradient = _evaluated(CollapsedAttention.of(model), model.architecture, layers, order)
    return ConditionalEvidence(value, tuple(gradient) if isinstance(queries_and_keys, tuple) else gradient)


@dataclass(frozen=True, eq=False, repr=False)
class MostProbableAttention(Described):
    """End of an ascent of log p(Y | Q, K) + log p(Q, K), or of the former alone, in queries and keys.

    Args:
        queries_and_keys: for each layer the pair (Q, K) at the end, each of shape (H_l, G, N_0).
        log_evidences: log p(Y | Q, K) at the start and after each step.
        log_priors: log p(Q, K) there, the density of the entries of Q and K.
        gradient_norm: Euclidean norm of the gradient at the end, in entries divided by their prior deviations.
        converged: whether this norm is at most the tolerance.
        ends: the end from each start, in the order of the starts, of which this one has the largest maximum.
    """

    queries_and_keys: Heads
    log_evidences: Float[np.ndarray, " step"]
    log_priors: Float[np.ndarray, " step"]
    gradient_norm: float
    converged: bool
    ends: tuple["MostProbableAttention", ...] = ()

    @property
    def log_evidence(self) -> float:
        """log p(Y | Q, K) at the end."""
        return float(self.log_evidences[-1])

    @property
    def log_prior(self) -> float:
        """log p(Q, K) at the end."""
        return float(self.log_priors[-1])

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {
            "evidence": f"log p(Y | Q, K) = {self.log_evidence:.6g}, {self.log_evidences[0]:.6g} at the start",
            "prior": f"log p(Q, K) = {self.log_prior:.6g}, {self.log_priors[0]:.6g} at the start",
            "gradient": f"of norm {self.gradient_norm:.1e} after {len(self.log_evidences) - 1} steps",
        }
        if len(self.ends) > 1:
            each = ", ".join(f"{end.log_evidence:.6g}" for end in self.ends)
            rows["starts"] = f"{len(self.ends)}, with log p(Y | Q, K) = {each}"
        return f"MostProbableAttention: {'converged' if self.converged else 'NOT converged'}", rows


@with_own_settings
def most_probable_attention(
    model: AttentionModel,
    start: Checked,
    *,
    steps: int = 1000,
    learning_rate: float = 1.0,
    prior: bool = True,
    order: str = "laplace",
    tolerance: float = 1e-2,
) -> MostProbableAttention:
    """Maximum of log p(Y | Q, K) + log p(Q, K) over queries and keys, with all other weights integrated out.

    Maximising an evidence is known as type II maximum likelihood (Good 1965). The ascent is L-BFGS (Nocedal 1980; Optax)
    in the entries of Q and K divided by their prior deviations. Steps are halved until they raise the maximum enough
    (Armijo 1966), so it never falls. The ascent ends once the Euclidean norm of the gradient is at most `tolerance`, after
    `steps` steps, or when no step raises the maximum. There are many local maxima: several starts show how far apart.
    A maximum of a density is not where its mass is; with many entries, draws (`bayesattn.sample`) are elsewhere.

    Args:
        model: the posterior, with Gaussian labels.
        start: for each layer a pair (Q, K), each of shape (H_l, G, N_0), or a list of several such starts.
        steps: most steps from each start.
        learning_rate: part of the L-BFGS step that is tried first.
        prior: whether to add log p(Q, K).
        order: "laplace" or "leading", as for `conditional_evidence`.
        tolerance: largest norm of the gradient at a maximum; the prior alone has unit curvature.

    Raises:
        ValueError: as for `conditional_evidence`; no start, queries and keys of another width than the model's, a prior
            variance of 0, a number out of its range.
        NotConverged: the mode, or the saddle point, was not found at a start.
    """
    positive_integer("steps", steps)
    positive("learning_rate", learning_rate)
    positive("tolerance", tolerance)
    truth("prior", prior)
    one_of("order", order, ORDERS)
    require_kind("model", model, AttentionModel)
    if not all((*model.query_variances, *model.key_variances)):
        raise BayesattnError("query_variance and key_variance must be above 0 for a maximum over queries and keys, got 0")
    starts = [_checked_layers(model, each) for each in (start if _are_several(start) else [start])]
    if not starts:
        raise BayesattnError("start must hold queries and keys, or a list of these, got an empty list")
    for layers in starts:
        if not _has_prior(model, layers):
            raise BayesattnError(
                f"start must hold a pair (Q, K) for each layer, each of shape (H_l, {model.key_width}, {model.features}),"
                " got other heads"
            )
    posterior = CollapsedAttention.of(model)
    deviations = _deviations(posterior.prior)

    def at(whitened: Heads) -> tuple[float, Float[Array, " entry"], float]:
        layers = jax.tree.map(jnp.multiply, deviations, whitened)
        value, gradient = _evaluated(posterior, model.architecture, layers, order)
        slope = jax.tree.map(jnp.multiply, deviations, gradient)
        if not prior:
            return value, slope, value
        flat = ravel_pytree(whitened)[0]
        return value - float(flat @ flat) / 2, jax.tree.map(jnp.subtract, slope, whitened), value

    ends = []
    for layers in starts:
        whitened, track, norm = _ascent(at, jax.tree.map(jnp.divide, layers, deviations), steps, learning_rate, tolerance)
        found = jax.tree.map(jnp.multiply, deviations, whitened)
        ends.append(found)
    raise NotImplementedError
