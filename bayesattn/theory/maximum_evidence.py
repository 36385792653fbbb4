"""Numbers that are not known, set to where the evidence is greatest: "type II maximum likelihood", or empirical Bayes.

At each step draws of U given the numbers at hand, by importance sampling or by annealing, are weighed by the likelihood at
others: log p(Y | numbers) - log p(Y | numbers at hand) = log E[p(Y | U, numbers) / p(Y | U, numbers at hand)], whose first
and second derivatives are means over the same draws (MacKay 1992 has them at the Laplace approximation). Newton's method
ends where they say that the evidence is greatest. Nothing limits T from below but the data: where a network can explain all
labels, the evidence may rise for ever as T falls, and the maximum is at the edge of what is searched.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from bayesattn._util.checks import Checked
from bayesattn._util.random import branch
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import as_html, as_text, with_error
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError, ContradictoryLabels
from bayesattn.kernels.energies import one_by_one
from bayesattn.kernels.forms import compressed
from bayesattn.theory.annealing import Singular
from bayesattn.theory.arguments import gaussian_density
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.evidence import MOST_BRIDGED_COORDINATES, annealed_draws, evidence, priors_of, stream_of
from bayesattn.theory.importance import Weighed, by_importance, wide
from bayesattn.theory.potential import Shapes, WithNumbers, refuse_many
from bayesattn.theory.saddle_point import NotConverged, likely_cause

EDGE = np.log(1e6)
"""Distance from the median of its prior, in its coordinate (the logarithm), at which a number is said to be at an edge."""
LONGEST_STEP, MOST_STEPS = 2.0, 60
"""Longest step of a number in its coordinate, and most steps."""
LARGEST_DEVIATION = 1.0
"""Standard deviation of a number, in its coordinate, above which log p(Y) at the edges is compared with its maximum."""
LEAST_GAIN = 0.01
"""Nats that log p(Y) would gain at its slope up to the edge, below which a number has no more to move."""
STEP_TOLERANCE = 0.02
"""Length of a step, in standard deviations by the curvature, at which the search ends, if it is not lost in noise before."""


class MaximumEvidence(NamedTuple):
    """Numbers at which log p(Y) is greatest, and log p(Y) there.

    Args:
        values: "temperature", "variances" (all of them): `model.at(values)` is the model at the maximum.
        deviations: standard deviation of the logarithm of each number that had a prior, by name, from the curvature of
            log p(Y); NaN for one at an edge.
        log_evidence: log p(Y) at the maximum. It is not an evidence of the model whose numbers have priors.
        error: Monte Carlo error of `log_evidence`, in nats.
        edges: names of the numbers of which there is no maximum that counts: a factor of a million away from the median of
            its prior (or at an end of its support) log p(Y) is as large, within its error, or still rises.
        reliable: whether `log_evidence` and `error` are, as those of `theory.Evidence`; and if draws annealed from the prior
            alone led to the maximum of a network of few coordinates, whether they agree with it.
    """

    values: dict[str, float | tuple[float, ...]]
    deviations: dict[str, float]
    log_evidence: float
    error: float
    edges: tuple[str, ...]
    reliable: bool

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {}
        for name, deviation in self.deviations.items():
            field, _, layer = name.partition("[")
            value = self.values[field]
            number = value[int(layer[:-1])] if isinstance(value, tuple) else value
            rows[name] = (
                f"{number:.3g}, and log p(Y) is as large at the edge of what is searched: no maximum"
                if name in self.edges
                else f"{number:.3g}, a standard deviation is a factor of {np.exp(deviation):.3g}"
            )
        trust = "" if self.reliable else ", NOT reliable"
        return f"MaximumEvidence: log p(Y) = {with_error(self.log_evidence, self.error)}{trust}", rows


class _Rise(NamedTuple):
    """Derivatives of log p(Y) in the numbers' coordinates, and the Monte Carlo covariance of the first."""

    gradient: np.ndarray
    hessian: np.ndarray
    covariance: np.ndarray


@with_own_settings
def maximum_evidence(model: Checked, *, seed: int = 0) -> MaximumEvidence:
    """Values of T and of variances that maximise log p(Y) at finite width, U integrated out; priors only say which.

    The search starts at the medians of the priors and ends at the next maximum. Each number stays within the support of its
    prior, and within a factor of a million of the median of its prior.

    Args:
        model: a `bayesattn.Model` with Gaussian labels, in which T or some variances have priors.
        seed: seed of the draws of U.

    Raises:
        ValueError: not such a model, or one of which the evidence knows two variances as a product alone.
        NotConverged: K + T I is singular in float64, or no maximum was found.
    """
    priors = priors_of(model)
    if priors is None:
        gaussian_density(model)
        raise BayesattnError(
            "model must have a prior in place of T or of a variance, got one whose numbers are all known"
        )
    gaussian_density(model.reference)
    arch, names = model.reference.architecture, priors.names
    _refuse_products(names, arch)
    shapes = layer_shapes(arch)
    refuse_many("the evidence", shapes, "use fewer heads or narrower layers")
    key = branch(stream_of(model, seed), "maximum")
    centre = np.asarray(priors.position(priors.medians))
    position, move, before = centre, np.zeros(len(names)), None
    for _ in range(MOST_STEPS):
        here, rise = _at(model, position, shapes, key)
        if before is not None and (shorter := _overshot(move, *before, here, rise)) < 1:
            position, move = position - (1 - shorter) * move, shorter * move
            continue
        outside = (np.abs(position - centre) >= EDGE) & (rise.gradient * (position - centre) > 0)
        step, deviations, noise = _newton(rise, ~outside)
        gain = np.abs(rise.gradient) * np.maximum(EDGE - np.abs(position - centre), 0)
        small = np.abs(step) < np.maximum(STEP_TOLERANCE * deviations, noise)
        if np.all(outside | small | (gain < LEAST_GAIN)):
            for number in np.flatnonzero(~(deviations < LARGEST_DEVIATION) & ~outside).tolist():
                outside[number] = _is_as_large_at_an_edge(model, position, centre, number, here, key)
            found = _result(model, position, np.where(outside, np.nan, deviations), outside, here)
            annealed = here.evidence.method == "annealing" and len(here.points[0]) <= MOST_BRIDGED_COORDINATES
            return _confirmed(model, found, seed) if annealed else found
        step *= min(1.0, LONGEST_STEP / np.abs(step).max())
        before, there = (here, rise), np.clip(position + step, centre - EDGE, centre + EDGE)
        position, move = there, there - position
    raise NotConverged(
        f"no maximum of log p(Y) was found in {MOST_STEPS} steps: it hardly depends on {', '.join(names)}; sample them",
        None,
    )


def _confirmed(model: Checked, found: MaximumEvidence, seed: int) -> MaximumEvidence:
    """Maximum found by draws that were annealed from the prior alone, with log p(Y) by `evidence`, which must agree."""
    try:
        other = evidence(model.at(found.values), seed=seed)
    except NotConverged:
        return found._replace(reliable=False)
    apart = abs(other.log_evidence - found.log_evidence) > 3 * np.hypot(other.error, found.error)
    return found._replace(
        log_evidence=other.log_evidence, error=other.error, reliable=bool(other.reliable and not apart)
    )


def _newton(rise: _Rise, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Newton's step of the numbers that are free, deviations by the curvature (NaN if it is none), and the step's noise.

    Where log p(Y) is not concave, the step is along -|H|^{-1} g, and a deviation is that given the other numbers.
    """
    step, deviations, noise = np.zeros(len(free)), np.full(len(free), np.nan), np.zeros(len(free))
    if not free.any():
        return step, deviations, noise
    curvatures, axes = np.linalg.eigh(-rise.hessian[np.ix_(free, free)])
    steepness = np.maximum(np.abs(curvatures), 1e-3 * max(np.abs(curvatures).max(), 1e-9))
    inverse = axes / steepness @ axes.T
    step[free] = inverse @ rise.gradient[free]
    own = -np.diag(rise.hessian)
    curved = free & (own > 0)
    deviations[curved] = own[curved] ** -0.5
    if np.all(curvatures > 0):
        deviations[free] = np.sqrt(np.sum(axes**2 / curvatures, axis=1))
        noise[free] = np.sqrt(np.diag(inverse @ rise.covariance[np.ix_(free, free)] @ inverse))
    return step, deviations, noise


def _overshot(move: np.ndarray, old: Weighed, slope: _Rise, here: Weighed, new: _Rise) -> float:
    """Share of a move after which log p(Y) no longer rose, by the secant of its slopes; 1 if it is not too long."""
    before, after = slope.gradient @ move, new.gradient @ move
    if after < -0.3 * before:
        return float(np.clip(before / (before - after), 0.1, 0.9))
    fall = old.evidence.log_evidence - here.evidence.log_evidence
    return 0.5 if fall > 3 * np.hypot(old.evidence.error, here.evidence.error) else 1.0


def _is_as_large_at_an_edge(
    model: Checked, position: np.ndarray, centre: np.ndarray, number: int, here: Weighed, key: Key[Array, ""]
) -> bool:
    """Whether log p(Y) at an edge is that at the maximum; nearer to it where K + T I is singular at the edge itself."""
    for side in (-EDGE, EDGE):
        for share in (1.0, 0.5, 0.25):
            there = position.copy()
            there[number] = centre[number] + share * side
            try:
                other = _drawn(model, there, key).evidence
            except NotConverged:
                continue
            error = np.hypot(other.error, here.evidence.error)
            if other.log_evidence > here.evidence.log_evidence - 3 * error:
                return True
            break
    return False


def _drawn(model: Checked, position: np.ndarray, key: Key[Array, ""]) -> Weighed:
    """Draws of U given the numbers at a position, with the same random numbers wherever it is; raises NotConverged."""
    priors = model.hyperpriors
    try:
        known = model.at({name: np.asarray(value) for name, value in _values(priors, position)[0].items()})
    except ContradictoryLabels as error:  # K + T I is singular.
        raise NotConverged(f"the evidence cannot be computed in float64; {error}", None) from None
    arch, process = known.architecture, compressed(known.gaussian_process, known.architecture)
    drawn = by_importance(process, arch, None, key, "") if wide(layer_shapes(arch)) else None
    if drawn is not None and drawn.evidence.reliable:
        return drawn
    try:
        return annealed_draws(process, arch, key)
    except Singular:
        cause = likely_cause(process, arch)
        raise NotConverged(f"the evidence cannot be computed in float64; {cause}", None) from None


def _at(model: Checked, position: np.ndarray, shapes: Shapes, key: Key[Array, ""]) -> tuple[Weighed, _Rise]:
    """Draws of U given the numbers at a position, and the derivatives of log p(Y) there."""
    drawn, priors = _drawn(model, position, key), model.hyperpriors
    posed = WithNumbers(drawn.problem, priors, position, np.ones(len(position)))  # pyright: ignore[reportArgumentType]
    slopes, curvatures = map(np.asarray, _slopes(posed, drawn.points, shapes))
    kept = np.isfinite(drawn.log_weights)
    weights, slopes = special.softmax(drawn.log_weights[kept]), slopes[kept]
    apart = slopes - weights @ slopes
    hessian = np.einsum("s,sij->ij", weights, curvatures[kept]) + (apart.T * weights) @ apart
    return drawn, _Rise(weights @ slopes, hessian, (apart.T * weights**2) @ apart)


@partial(jax.jit, static_argnames="shapes")
def _slopes(
    posed: WithNumbers, points: Float[Array, "draw coordinate"], shapes: Shapes
) -> tuple[Float[Array, "draw number"], Float[Array, "draw number number"]]:
    """First and second derivatives of the log likelihood at each draw in the numbers' coordinates."""

    def of(point):
        def slope(position):
            return jax.grad(lambda p: posed.log_likelihood(jnp.append(point, p), shapes))(position)

        return slope(posed.centre), jax.jacfwd(slope)(posed.centre)

    return one_by_one(of, points)


@jax.jit
def _values(priors: Any, position: Array) -> tuple[dict[str, Array], Array]:
    """Values at a position, and how much the logarithm of each number moves with its coordinate."""
    slopes = jax.jacfwd(lambda each: jnp.log(priors.listed(priors.values(each))))(position)
    return priors.values(position), jnp.diag(slopes)


def _result(
    model: Checked, position: np.ndarray, deviations: np.ndarray, edges: np.ndarray, here: Weighed
) -> MaximumEvidence:
    """Numbers at a position, with their deviations; of some there is no maximum."""
    priors = model.hyperpriors
    each, stretch = map(jax.device_get, _values(priors, position))
    values = {name: tuple(map(float, value)) if np.ndim(value) else float(value) for name, value in each.items()}
    return MaximumEvidence(
        values,
        dict(zip(priors.names, (np.abs(stretch) * deviations).tolist(), strict=True)),
        here.evidence.log_evidence,
        here.evidence.error,
        tuple(name for name, edge in zip(priors.names, edges, strict=True) if edge),
        here.evidence.reliable,
    )


def _refuse_products(names: tuple[str, ...], arch: Architecture) -> None:
    """Raise ValueError if the evidence depends on two of the numbers through their product alone."""
    last = len(arch.variances) - 1
    skipped = [False, *(bool(strength) for strength in arch.optional_skips), False]
    scales = [
        f"variances[{layer}]" for layer in range(last + 1) if not skipped[layer] and f"variances[{layer}]" in names
    ]
    if len(scales) > 1:
        raise BayesattnError(
            f"model must have one variance at most that scales all of U, for the maximum of the evidence, which depends on"
            f" their product alone, got priors for {' and '.join(scales)}: give all but one a number"
        )
