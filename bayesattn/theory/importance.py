"""Evidence by importance sampling: draws from a proposal around the mode, with Pareto-smoothed weights."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from bayesattn._util.random import branch
from bayesattn._util.text import as_html, as_text, with_error
from bayesattn.architecture import Architecture
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.theory.annealing import ToPosterior, prior_draws
from bayesattn.theory.bartlett import AMPLE_DEGREES_OF_FREEDOM, layer_shapes
from bayesattn.theory.mixture import Component, Mixture, mixture
from bayesattn.theory.mode import Mode, find_mode, find_mode_with_numbers, is_only_mode
from bayesattn.theory.particles import LARGEST_RELIABLE_ERROR, log_ratios
from bayesattn.theory.potential import Posed, Shapes, problem_of
from bayesattn.theory.saddle_point import NotConverged

TARGET_ERROR = 0.05
"""Error, in nats, at which importance sampling stops."""
BLOCK_DRAWS, MOST_BLOCKS = 512, 8
"""Draws of importance sampling after which their weights are checked, and the most such blocks of draws."""
MOST_PARETO_K = 0.7
"""Largest Pareto k at which averages are reliable; of S draws at most 1 - 1 / log10(S) (Vehtari et al. 2024)."""
DEFENSIVE_SHARE = 0.1
"""Share of the proposal of importance sampling that covers the prior: weights of draws in the tails of a posterior that is
wider than at its mode stay bounded (defensive importance sampling, Hesterberg 1995)."""
MOST_DEFENSIVE_COORDINATES = 40
"""Most coordinates of a proposal with a part that covers the prior."""
DEFENSIVE_DRAWS_PER_COORDINATE = 20
"""Prior draws per coordinate from whose moments the prior's part of the proposal is made."""


class Evidence(NamedTuple):
    """log p(Y), its standard error in nats, the method, and whether estimate and error are reliable.

    The method is "importance sampling" or "annealing". An evidence is unreliable if its error is above 0.3 (such an error
    is too small), or if two bridges disagree with each other or with a larger estimate from the prior. With more than 40
    coordinates there are no bridges, only annealing from the prior, which can miss a mode far out in the prior's tail; with
    more than 200, importance sampling takes the mode that it finds for the only one, without a search for others.
    """

    log_evidence: float
    error: float
    method: str
    reliable: bool

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        trust = "reliable" if self.reliable else "NOT reliable, the error understates itself"
        return f"Evidence: log p(Y) = {with_error(self.log_evidence, self.error)}", {
            "method": f"{self.method}, {trust}"
        }


def wide(shapes: Shapes) -> bool:
    """Whether importance sampling is worth a try: rows whose order matters, and columns of either sign, give more modes."""
    return not any(shape.rows > 1 and shape.freedom < AMPLE_DEGREES_OF_FREEDOM for shape in shapes)


class Weighed(NamedTuple):
    """Draws with the logarithms of their weights, the arrays of their posterior, and the evidence that they give."""

    evidence: Evidence
    problem: Posed | None = None
    points: Float[np.ndarray, "draw coordinate"] = np.empty((0, 0))
    log_weights: Float[np.ndarray, " draw"] = np.empty(0)


def by_importance(
    process: GaussianProcess, arch: Architecture, priors: Any, key: Key[Array, ""], purpose: str
) -> Weighed:
    """Evidence by Pareto-smoothed weights, in as many blocks of draws as needed; not reliable if no mode is found.

    With `priors` of numbers, these are integrated out too. Random numbers depend on the key and the `purpose`.
    """
    unknown, shapes = Evidence(np.nan, np.nan, "importance sampling", False), layer_shapes(arch)
    try:
        mode, problem = _mode_of(process, arch, priors)
    except NotConverged:
        return Weighed(unknown)
    proposal = _proposal(mode, problem, shapes, branch(key, "defensive"))
    result, points, log_weights, smoothed = unknown, np.empty((0, len(mode.point))), np.empty(0), np.empty(0)
    for block in range(MOST_BLOCKS):
        block_key = branch(key, "importance sampling", purpose, str(block))
        drawn, weighed = _weighed(block_key, proposal, problem, shapes)
        points, log_weights = np.concatenate([points, drawn]), np.append(log_weights, weighed)
        smoothed, pareto = _smoothed(log_weights)
        total = special.logsumexp(smoothed)
        error = float(np.sqrt(np.sum(np.exp(2 * (smoothed - total))) - 1 / len(smoothed)))
        most = min(MOST_PARETO_K, 1 - 1 / np.log10(len(smoothed)))
        reliable = bool(pareto <= most and error <= LARGEST_RELIABLE_ERROR)
        result = Evidence(float(total - np.log(len(smoothed))), error, "importance sampling", reliable)
        if reliable and error <= TARGET_ERROR:
            break
    if result.reliable and not is_only_mode(mode, problem, shapes, branch(key, "other modes")):
        result = result._replace(reliable=False)
    return Weighed(result, problem, points, smoothed)


def _mode_of(process: GaussianProcess, arch: Architecture, priors: Any) -> tuple[Mode, Posed]:
    """Mode of the posterior, and its arrays; raises NotConverged."""
    if priors is None:
        return find_mode(process, arch)
    try:
        mode, problem = find_mode(process, arch)
        start = mode.point
    except NotConverged:  # At the medians of the priors, which may be far from the posterior.
        problem = problem_of(process, arch)
        start = problem.affine(layer_shapes(arch))[0]
    posed = priors.posed(problem)
    return find_mode_with_numbers(posed, arch, start), posed


def _proposal(mode: Mode, problem: Posed, shapes: Shapes, key: Key[Array, ""]) -> Mixture:
    """Proposal of importance sampling: around the mode and, with few coordinates, a part that covers the prior."""
    size = len(mode.point)
    components = [Component(0.0, np.asarray(mode.point), np.asarray(mode.whitening.scale))]
    if size <= MOST_DEFENSIVE_COORDINATES:
        drawn = prior_draws(key, DEFENSIVE_DRAWS_PER_COORDINATE * (size + 1), problem, shapes)
        spread = np.linalg.cholesky(np.atleast_2d(np.cov(drawn.T)))
        components = [
            components[0]._replace(log_weight=np.log(1 - DEFENSIVE_SHARE)),
            Component(np.log(DEFENSIVE_SHARE), drawn.mean(0), spread),
        ]
    return mixture(components, np.ones((1, size)))


def _smoothed(log_weights: Float[np.ndarray, " draw"]) -> tuple[Float[np.ndarray, " draw"], float]:
    """Pareto-smoothed log weights and Pareto k, which is infinite if fewer than half of the draws have weight."""
    if np.mean(np.isfinite(log_weights)) < 0.5:
        return log_weights, np.inf
    from arviz_stats.base import array_stats  # imports Matplotlib

    smoothed, pareto = array_stats.psislw(-log_weights)
    # The smoothed weights are normalised; weights outside the tail, such as the median, should not change.
    median = np.argsort(log_weights)[len(log_weights) // 2]
    return smoothed + (log_weights[median] - smoothed[median]), float(pareto)


def _weighed(
    key: Key[Array, ""], proposal: Mixture, problem: Posed, shapes: Shapes
) -> tuple[Float[np.ndarray, "draw coordinate"], Float[np.ndarray, " draw"]]:
    """Draws from a proposal, and their log weights; a draw too far out for its Cholesky factor has none."""
    points = proposal.sample(np.random.default_rng(np.asarray(jax.random.key_data(key))), BLOCK_DRAWS)
    log_weights = log_ratios(points, ToPosterior(proposal, problem, shapes))
    return points, np.where(np.isfinite(log_weights), log_weights, -np.inf)
