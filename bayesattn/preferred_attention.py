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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayesattn import attention
from bayesattn._util.checks import (
    Checked,
    entries,
    names,
    one_of,
    positive,
    positive_integer,
    require_kind,
    shown,
    truth,
)
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, as_html, as_text, with_error
from bayesattn.architecture import Architecture
from bayesattn.attention_model import AttentionModel
from bayesattn.models.queries_keys import Heads
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.theory.arguments import refuse_traced
from bayesattn.theory.bartlett import Order, layer_shapes, mirrored
from bayesattn.theory.evidence import MOST_COMBINED_ERRORS, evidence
from bayesattn.theory.minimise import ARMIJO, MOST_HALVINGS
from bayesattn.theory.mode import SAME_MINIMUM_DISTANCE, find_mode
from bayesattn.theory.problem import Point, Problem, Shapes, local_potential, potential, refuse_many
from bayesattn.theory.saddle_point import NotConverged, saddle_point
from bayesattn.theory.whitening import Whitening

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("laplace", "leading")
MEMORY = 30
"""Number of steps that the ascent remembers."""

Entries = Float[Array, " entry"]
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

    Laplace's method counts one mode, and its images if columns of narrow layers take either sign. It was within 0.1 nats
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
    layers = _checked_layers(model, queries_and_keys)
    value, gradient = _evaluated(
        CollapsedAttention.of(model), model.architecture, layers, one_of("order", order, ORDERS)
    )
    return ConditionalEvidence(value, tuple(gradient) if isinstance(queries_and_keys, tuple) else gradient)


@dataclass(frozen=True, eq=False, repr=False)
class MostProbableAttention(Described):
    """End of an ascent of log p(Y | Q, K) + log p(Q, K), or of log p(Y | Q, K) alone, over queries and keys.

    Args:
        queries_and_keys: for each layer the pair (Q, K) at the end, each of shape (H_l, G, N_0).
        log_evidences: log p(Y | Q, K) at the start and after each step.
        log_priors: log p(Q, K) there, the density of the entries of Q and K.
        gradient_norm: Euclidean norm of the gradient at the end, in entries divided by their prior deviations.
        converged: whether this norm is at most the tolerance.
        ends: the ends from all starts, in the order of the starts; this is the highest of them.
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
            rows["starts"] = f"{len(self.ends)}, with log p(Y | Q, K) = {each} at their ends"
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
    """Maximum of log p(Y | Q, K) + log p(Q, K) over queries and keys, all other weights being integrated out.

    To maximise an evidence is known as type II maximum likelihood (Good 1965). The ascent is L-BFGS (Liu and Nocedal
    1989; Optax), in entries divided by their prior deviations. A step is halved until it raises the maximised quantity by
    1e-4 of what the slope promises (Armijo 1966). The ascent ends when the Euclidean norm of the gradient is at most
    `tolerance`, after `steps` steps, or when no step raises the quantity any more.

    The maximum is a local one; the ends of several starts differ by nats. It is not where most of the posterior is. If
    there are more entries than labels, it fits these better than the attention that made them: with 928 entries and 100
    labels, log p(Y | Q, K) rose from -89 at the true queries and keys to 0.4.

    Args:
        model: the posterior, with Gaussian labels.
        start: for each layer a pair (Q, K), each of shape (H_l, G, N_0); or a list of several such starts.
        steps: most steps from each start.
        learning_rate: part of the L-BFGS step that is tried first.
        prior: whether to add log p(Q, K).
        order: "laplace" or "leading", as for `conditional_evidence`.
        tolerance: largest norm of the gradient at a maximum.

    Raises:
        ValueError: as for `conditional_evidence`; no start, heads without prior density, numbers out of range.
        NotConverged: the mode, or the saddle point, was not found at a start.
    """
    positive_integer("steps", steps)
    positive("learning_rate", learning_rate)
    positive("tolerance", tolerance)
    truth("prior", prior)
    one_of("order", order, ORDERS)
    starts = [_checked_layers(model, each) for each in (start if _are_several(start) else [start])]
    if not starts:
        raise BayesattnError("start must hold queries and keys, or several such starts, got an empty list")
    if any(_deviations(model, layers) is None for layers in starts):
        raise BayesattnError(
            f"start must hold pairs (Q, K) with key_width = {model.key_width} rows, and no prior variance may be 0, for"
            " queries and keys to have a prior density"
        )
    posterior, (_, unflat) = CollapsedAttention.of(model), ravel_pytree(starts[0])
    deviations = ravel_pytree(_deviations(model, starts[0]))[0]

    def height(whitened: Entries) -> _Height:
        log_evidence, gradient = _evaluated(posterior, model.architecture, unflat(deviations * whitened), order)
        slope, log_prior = deviations * ravel_pytree(gradient)[0], _log_prior(whitened, deviations)
        if not prior:
            return _Height(whitened, log_evidence, slope, log_evidence, log_prior)
        return _Height(whitened, log_evidence + log_prior, slope - whitened, log_evidence, log_prior)

    ascents = [
        _ascent(height, ravel_pytree(layers)[0] / deviations, steps, learning_rate, tolerance) for layers in starts
    ]
    ends = []
    for at, track in ascents:
        log_evidences, log_priors = np.array(track).T
        reached = unflat(deviations * at.point), log_evidences, log_priors, at.steepness, at.steepness <= tolerance
        ends.append(MostProbableAttention(*reached))
    best = int(np.argmax([at.value for at, _ in ascents]))
    return replace(ends[best], ends=tuple(ends))


class Compared(NamedTuple):
    """One candidate at one width N_1: log p(Y | candidate) as a `bayesattn.theory.Evidence`, and its comparison.

    `difference` is from the largest log evidence at this width, and `difference_error` the combined standard error, 0 for
    that candidate itself. `log_prior` is log p(Q, K), a density; NaN for bilinear heads, for queries and keys of another
    width than the model's key_width, and for prior variances of 0.
    """

    candidate: str
    width: int
    log_evidence: float
    error: float
    method: str
    reliable: bool
    difference: float
    difference_error: float
    log_prior: float


@dataclass(frozen=True, eq=False, repr=False)
class AttentionComparison(Described):
    """Log evidence of several attentions at one or more widths.

    Args:
        rows: each candidate at each width.
    """

    rows: tuple[Compared, ...]

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each candidate at each width, with the fields of `Compared` as columns."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(Compared._fields))

    @property
    def widths(self) -> list[int]:
        """The widths compared."""
        return list(dict.fromkeys(row.width for row in self.rows))

    def best(self, width: int | None = None) -> str:
        """Candidate with the largest log evidence at a width, by default the only one; ValueError for another width."""
        if width is None and len(self.widths) == 1:
            width = self.widths[0]
        if width not in self.widths:
            raise BayesattnError(f"width must be one of {', '.join(map(str, self.widths))}, got {shown(width)}")
        return self._ranked(width)[0].candidate

    def summary(self) -> str:
        """A line for each width: the candidate with the largest log evidence, and how far it is above the next."""
        return "\n".join(f"N = {width}: {self._said(width)}" for width in self.widths)

    def _ranked(self, width: int) -> list[Compared]:
        """Candidates at a width, the largest log evidence first."""
        return sorted((row for row in self.rows if row.width == width), key=lambda row: -row.log_evidence)

    def _said(self, width: int) -> str:
        first, *others = self._ranked(width)
        text = f"{first.candidate!r}, log p(Y) = {with_error(first.log_evidence, first.error)}"
        if others:
            lead, error = -others[0].difference, others[0].difference_error
            text += f", {with_error(lead, error)} above {others[0].candidate!r}"
            text += "" if lead > MOST_COMBINED_ERRORS * error else ", from which the errors do not tell it apart"
        unreliable = ", ".join(repr(row.candidate) for row in (first, *others) if not row.reliable)
        return text + (f"; NOT reliable: {unreliable}" if unreliable else "")

    def _described(self) -> tuple[str, dict[str, str]]:
        count = len({row.candidate for row in self.rows})
        return f"AttentionComparison of {count} candidates", {f"N = {each}": self._said(each) for each in self.widths}


@with_own_settings
def compare_attention(
    model: AttentionModel, candidates: Checked, widths: Checked = None, *, seed: int = 0
) -> AttentionComparison:
    """Log evidence of each of several attentions, by `bayesattn.theory.evidence`, at each of several widths.

    Differences are log posterior odds of candidates that are equally probable beforehand. To weigh them by the prior of
    queries and keys instead, add `log_prior`, a density: only candidates of the same shapes can be compared so.

    Args:
        model: the posterior, with Gaussian labels.
        candidates: queries and keys, or bilinear heads, as for `conditional_evidence`, by name.
        widths: widths N, each of which replaces all widths of the model; by default the model's own widths.
        seed: seed of the draws.

    Raises:
        ValueError: as for `conditional_evidence`; no candidates, a width below 1.
        NotConverged: K + T I is singular in float64.
    """
    if not isinstance(candidates, Mapping) or not candidates:
        raise BayesattnError(f"candidates must be a dict of queries and keys by name, got {shown(candidates)}")
    checked = {
        name: _checked_layers(model, heads)
        for name, heads in zip(names("candidates", list(candidates)), candidates.values(), strict=True)
    }
    networks = [model.architecture]
    if widths is not None:
        listed = entries("widths", widths, "a list of widths")
        if not listed:
            raise BayesattnError("widths must hold at least one width, got none")
        checked_widths = (positive_integer(f"widths[{place}]", width) for place, width in enumerate(listed))
        networks = [networks[0].with_width(width) for width in dict.fromkeys(checked_widths)]
    given = {name: model.given(layers) for name, layers in checked.items()}
    log_priors = {name: _log_prior_of(model, layers) for name, layers in checked.items()}
    rows = []
    for network in networks:
        found = {name: evidence(each.replace(architecture=network), seed=seed) for name, each in given.items()}
        best = max(found, key=lambda name: found[name].log_evidence)
        for name, own in found.items():
            difference = own.log_evidence - found[best].log_evidence
            error = 0.0 if name == best else float(np.hypot(own.error, found[best].error))
            rows.append(Compared(name, network.widths[0], *own, difference, error, log_priors[name]))
    return AttentionComparison(tuple(rows))


def _checked_layers(model: Checked, queries_and_keys: Checked) -> Layers:
    """Heads of each layer as arrays; raises ValueError unless the theory applies to them."""
    require_kind("model", model, AttentionModel)
    refuse_traced("the evidence of an attention", queries_and_keys=queries_and_keys)
    model.given(queries_and_keys).require_gaussian()
    return list(jax.tree.map(jnp.asarray, attention.checked_heads(queries_and_keys, model.inputs.shape[2])))


def _are_several(start: Checked) -> bool:
    """Whether a start is a list of starts: of lists of pairs, rather than of pairs of arrays."""
    return isinstance(start, list) and all(
        isinstance(each, list | tuple) and len(each) > 0 and isinstance(each[0], tuple) for each in start
    )


def _deviations(model: AttentionModel, layers: Layers) -> Layers | None:
    """Prior deviation of each entry of queries and keys, in their form; None if they have no prior density."""
    deviations = []
    for heads, *variances in zip(layers, model.query_variances, model.key_variances, strict=True):
        if not isinstance(heads, tuple) or heads[0].shape[1] != model.key_width or not all(variances):
            return None
        deviations.append(tuple(jnp.full(heads[0].shape, variance**0.5) for variance in variances))
    return deviations


def _log_prior(whitened: Entries, deviations: Entries) -> float:
    """Log density of entries that are normal with these deviations, by which they are divided here."""
    return float(-jnp.sum(whitened**2 / 2 + jnp.log(deviations)) - len(whitened) * np.log(2 * np.pi) / 2)


def _log_prior_of(model: AttentionModel, layers: Layers) -> float:
    """log p(Q, K); NaN if there is none."""
    if (deviations := _deviations(model, layers)) is None:
        return np.nan
    flat = ravel_pytree(deviations)[0]
    return _log_prior(ravel_pytree(layers)[0] / flat, flat)


class _Height(NamedTuple):
    """Quantity to maximise and its slope at a point, and log p(Y | Q, K) and log p(Q, K) there."""

    point: Entries
    value: float
    slope: Entries
    log_evidence: float
    log_prior: float

    @property
    def steepness(self) -> float:
        return float(jnp.linalg.norm(self.slope))


def _ascent(
    height: Callable[[Entries], _Height], start: Entries, steps: int, learning_rate: float, tolerance: float
) -> tuple[_Height, list[tuple[float, float]]]:
    """End of an ascent, and log p(Y | Q, K) and log p(Q, K) at the start and after each step."""
    begin, update = _preconditioner()
    at, state = height(start), begin(start)
    track = [(at.log_evidence, at.log_prior)]
    while at.steepness > tolerance and len(track) <= steps:
        downwards, state = update(-at.slope, state, at.point)
        if not downwards @ at.slope < 0:
            # Where the quantity is not concave, the remembered steps may point the other way; then they are forgotten.
            downwards, state = update(-at.slope, begin(at.point), at.point)
        if (higher := _higher(height, at, -learning_rate * downwards)) is None:
            break
        at = higher
        track.append((at.log_evidence, at.log_prior))
    return at, track


def _higher(height: Callable[[Entries], _Height], at: _Height, step: Entries) -> _Height | None:
    """Point reached by a step, halved until it rises enough; None if no step does."""
    for _ in range(MOST_HALVINGS):
        with suppress(NotConverged):
            there = height(at.point + step)
            if there.value >= at.value + ARMIJO * float(step @ at.slope):
                return there
        step /= 2
    return None


@lru_cache(maxsize=1)
def _preconditioner() -> tuple[Callable, Callable]:
    """Functions for the initial state and the direction of L-BFGS, to be subtracted from a point."""
    import optax

    scaled = optax.scale_by_lbfgs(MEMORY)
    return scaled.init, jax.jit(scaled.update)


def _evaluated(posterior: CollapsedAttention, arch: Architecture, layers: Layers, order: str) -> tuple[float, Layers]:
    """log p(Y | Q, K), and its gradient in the heads of each layer."""
    likelihood = _problem(layers, posterior).likelihood
    if order == "leading":
        saddle, shapes = saddle_point(likelihood, arch), layer_shapes(arch, full=True)
        each = zip(arch.widths, shapes, arch.variances[1:], strict=True)
        least_entropy = sum(width * shape.rows * (1 - np.log(variance)) for width, shape, variance in each)
        value, gradient = _log_density(layers, posterior, saddle.point, shapes)
        return float(value - (saddle.entropy - least_entropy) / 2), gradient
    shapes = layer_shapes(arch)
    refuse_many("log p(Y | Q, K) by Laplace's method", shapes, "use order='leading', fewer heads or narrower layers")
    mode, problem = find_mode(likelihood, arch)
    value, gradient = _laplace(layers, posterior, mode.whitening, problem.order, shapes)
    return float(value + np.log(_images(mode.whitening, problem.order, shapes))), gradient


def _images(mode: Whitening, order: Order, shapes: Shapes) -> float:
    """Number of different modes with the same U, of which each has columns with other signs."""
    apart = [float(jnp.linalg.norm(mode.whitened(image))) for image in mirrored(shapes, order) * mode.centre]
    return len(apart) / np.sum(np.array(apart) < SAME_MINIMUM_DISTANCE)


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
        return problem.likelihood.log_density(problem.factor(point, shapes))

    return jax.value_and_grad(log_density)(layers)


@partial(jax.jit, static_argnames="shapes")
def _laplace(layers: Layers, posterior: CollapsedAttention, mode: Whitening, order: Order, shapes: Shapes):
    """Laplace's approximation about one mode, and its gradient, to which the motion of the mode contributes."""

    def log_evidence(layers: Layers) -> Float[Array, ""]:
        problem = _problem(layers, posterior)._replace(order=order)
        slope = jax.grad(potential)(mode.centre, problem, shapes)
        # One Newton step from the mode, with S = H0^-1 = scale scale^T.
        at = local_potential(problem, shapes)(mode.centre - mode.scale @ (mode.scale.T @ slope))
        return len(slope) * np.log(2 * np.pi) / 2 - at.value - jnp.linalg.slogdet(at.hessian)[1] / 2

    return jax.value_and_grad(log_evidence)(layers)
