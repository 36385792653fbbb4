"""The most probable attention: an ascent of log p(Y | Q, K) + log p(Q, K) over queries and keys."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from bayesattn._util.checks import Checked, one_of, positive, positive_integer, truth
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.queries_keys import Heads
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.questions.preferred_attention.evidence import ORDERS, Layers, checked_layers, evaluated
from bayesattn.theory.minimise import ARMIJO, MOST_HALVINGS
from bayesattn.theory.saddle_point import NotConverged

MEMORY = 30
"""Number of steps that the ascent remembers."""
Entries = Float[np.ndarray, " entry"]


@dataclass(frozen=True, eq=False, repr=False)
class MostProbableAttention(Described):
    """End of an ascent of log p(Y | Q, K) + log p(Q, K), or of log p(Y | Q, K) alone, over queries and keys.

    Args:
        queries_and_keys: for each layer the pair (Q, K) at the end, each of shape (H_l, G, N_0).
        log_evidences: log p(Y | Q, K) at the start and after each step.
        log_priors: log p(Q, K) at the same points, the log density of the entries of Q and K.
        gradient_norm: Euclidean norm of the gradient at the end, for entries divided by their prior standard deviations.
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

    Maximising an evidence is known as type II maximum likelihood (Good 1965). The ascent is L-BFGS (Liu and Nocedal 1989;
    Optax), in entries divided by their prior standard deviations. A step is halved until it raises the maximised quantity
    by 1e-4 of the rise that the slope predicts (Armijo 1966). The ascent ends when the Euclidean norm of the gradient is at
    most `tolerance`, after `steps` steps, or when no step raises the quantity any more.

    The maximum is local: ascents from several starts end nats apart. Most of the posterior mass lies elsewhere. With more
    entries than labels, the maximum fits the labels better than the attention that generated them: with 928 entries and
    100 labels, log p(Y | Q, K) rose from -89 at the true queries and keys to 0.4.

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
    starts = [checked_layers(model, each) for each in (start if _are_several(start) else [start])]
    if not starts:
        raise BayesattnError("start must hold queries and keys, or several such starts, got an empty list")
    if any(_deviations(model, layers) is None for layers in starts):
        raise BayesattnError(
            f"start must hold pairs (Q, K) with key_width = {model.key_width} rows, and no prior variance may be 0:"
            " otherwise queries and keys have no prior density"
        )
    posterior, (_, unflat) = CollapsedAttention.of(model), ravel_pytree(starts[0])
    deviations = np.asarray(ravel_pytree(_deviations(model, starts[0]))[0])

    def height(whitened: Entries) -> _Height:
        log_evidence, gradient = evaluated(
            posterior, model.architecture, unflat(jnp.asarray(deviations * whitened)), order
        )
        slope = deviations * np.asarray(ravel_pytree(gradient)[0])
        log_prior = _log_prior(whitened, deviations)
        if not prior:
            return _Height(whitened, log_evidence, slope, log_evidence, log_prior)
        return _Height(whitened, log_evidence + log_prior, slope - whitened, log_evidence, log_prior)

    ascents = [
        _ascent(height, np.asarray(ravel_pytree(layers)[0]) / deviations, steps, learning_rate, tolerance)
        for layers in starts
    ]
    ends = []
    for at, track in ascents:
        log_evidences, log_priors = np.array(track).T
        reached = (
            unflat(jnp.asarray(deviations * at.point)),
            log_evidences,
            log_priors,
            at.steepness,
            at.steepness <= tolerance,
        )
        ends.append(MostProbableAttention(*reached))
    best = int(np.argmax([at.value for at, _ in ascents]))
    return replace(ends[best], ends=tuple(ends))


def _are_several(start: Checked) -> bool:
    """Whether a start is a list of starts (lists of pairs of arrays), and not a single list of pairs."""
    return isinstance(start, list) and all(
        isinstance(each, list | tuple) and len(each) > 0 and isinstance(each[0], tuple) for each in start
    )


def _deviations(model: AttentionModel, layers: Layers) -> Layers | None:
    """Prior standard deviation of each entry of queries and keys, in the same form; None if there is no prior density."""
    deviations = []
    for heads, *variances in zip(layers, model.query_variance, model.key_variance, strict=True):
        if not isinstance(heads, tuple) or heads[0].shape[1] != model.key_width or not all(variances):
            return None
        deviations.append(tuple(jnp.full(heads[0].shape, variance**0.5) for variance in variances))
    return deviations


def _log_prior(whitened: Entries, deviations: Entries) -> float:
    """Log density of normal entries with these standard deviations; `whitened` are the entries divided by them."""
    return float(-np.sum(whitened**2 / 2 + np.log(deviations)) - len(whitened) * np.log(2 * np.pi) / 2)


def log_prior_of(model: AttentionModel, layers: Layers) -> float:
    """log p(Q, K); NaN if there is none."""
    if (deviations := _deviations(model, layers)) is None:
        return np.nan
    flat, entries = (np.asarray(ravel_pytree(each)[0]) for each in (deviations, layers))
    return _log_prior(entries / flat, flat)


class _Height(NamedTuple):
    """Quantity to maximise and its slope at a point, and log p(Y | Q, K) and log p(Q, K) there."""

    point: Entries
    value: float
    slope: Entries
    log_evidence: float
    log_prior: float

    @property
    def steepness(self) -> float:
        return float(np.linalg.norm(self.slope))


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
            # Where the quantity is not concave, the remembered steps may give a descent; L-BFGS then starts anew.
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
    import optax  # which BlackJAX requires

    scaled = optax.scale_by_lbfgs(MEMORY)
    begin, advance = jax.jit(scaled.init), jax.jit(scaled.update)

    def update(slope, state, point):
        step, state = advance(slope, state, point)
        return np.asarray(step), state

    return begin, update
