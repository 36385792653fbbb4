"""Evidence: log p(Y | architecture, temperature), at finite width and exactly in the GP limit.

Where every layer is wide, importance sampling from a Student distribution with the Laplace mode and covariance, as long as
the Pareto k of its weights says that they can be trusted (Vehtari et al. 2024) and searches find no other mode. Elsewhere
annealing (`bayesattn.theory.annealing`): from the prior, and with up to 40 coordinates from two mixtures fitted to draws.
Annealing from the prior alone lags behind where the mode lies far out in the prior's tail, and its islands agree on it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from bayesattn._util.checks import Checked, is_traced, positive, positive_integer, seed_number
from bayesattn._util.errors import BayesattnError
from bayesattn._util.random import branch, digest, stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import as_html, as_text, with_error
from bayesattn.architecture import Architecture
from bayesattn.kernels.choice import compressed
from bayesattn.kernels.conditionals import is_singular
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.theory.annealing import MOVES, Annealed, Singular, anneal, bridge, prior_draws, spanning_of, systematic
from bayesattn.theory.arguments import gaussian_density, refuse_traced
from bayesattn.theory.bartlett import FREE, layer_shapes, mirrored, narrow, narrowed, stretched
from bayesattn.theory.mixture import COMPONENTS, DEGREES_OF_FREEDOM, Component, mixture, refitted
from bayesattn.theory.mode import Basin, basins, find_mode, is_only_mode
from bayesattn.theory.problem import Problem, Shapes, potential, problem_of, refuse_many
from bayesattn.theory.saddle_point import NotConverged, gp_order_parameter, likely_cause, rough_saddle_point
from bayesattn.theory.whitening import Whitening

RELIABLE = 0.3
"""Largest error, in nats, of a reliable evidence."""
ENOUGH = 0.05
"""Error, in nats, at which importance sampling stops."""
BLOCK, BLOCKS = 512, 8
"""Draws of importance sampling between two looks at their weights, and the most such blocks."""
MOST_PARETO = 0.7
FAR = 30.0
"""Nats below the greatest evidence at which a choice of temperature follows it no further, odds of 1e13."""
SEARCHES = (8, 128), (40, 32)
"""Most coordinates, and searches of modes for each bridge: 128 miss one that one in twenty ends in once in 700 times."""
LARGEST_BRIDGED = SEARCHES[-1][0]
"""Most coordinates for bridges, whose searches take minutes where there are hundreds."""
SEARCHES_GIVEN_UP = 4
"""Searches of modes at a temperature that annealing gives up."""
FURTHER = 3 * 2**0.5
"""Scale of starts further out: three times that of prior draws, in coordinates in which the entropy has unit curvature."""
CLOUD = 0.3
"""Share of a proposal that covers annealed particles."""
SHARES = 0.3, 0.8, 0.9, 0.9
"""Least effective shares of the particles on bridges, one after the other."""
ENOUGH_OF_BRIDGES = 0.1
"""Error, in nats, at which no bridge follows."""
MOST_ERRORS = 3
"""Combined errors by which two bridges may differ."""


class Evidence(NamedTuple):
    """log p(Y), its standard error in nats, "importance sampling" or "annealing", and whether both can be relied on.

    Not reliable are errors above 0.3, which understate themselves, and estimates of two routes that differ. Annealing with
    more than 40 coordinates has one route alone, from the prior, which can miss a mode far out in the prior's tail.
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


@with_own_settings
def gp_evidence(model: Checked, *, temperature: Checked = None) -> Any:
    """log Normal(Y; 0, K(U_GP) + T I), the evidence at infinite width; exact.

    JAX can trace and differentiate it in the temperature.

    Args:
        model: the posterior, a `bayesattn.Model` with Gaussian labels; its widths do not matter.
        temperature: T, variance of the likelihood, by default the model's.

    Raises:
        ValueError: no model, or one of classes; a temperature that is not above 0.
        NotConverged: K + T I is singular in float64, which is not looked at where JAX traces the temperature.
    """
    density, arch = gaussian_density(model, temperature), model.architecture
    if not is_traced(density.temperature):
        density = compressed(density, arch)
    log_evidence, singular = _of_gp(density, gp_order_parameter(arch))
    if is_traced(log_evidence):
        return log_evidence
    if singular:
        cause = likely_cause(density, arch)
        raise NotConverged(f"the evidence in the GP limit cannot be computed in float64; {cause}", None)
    return float(log_evidence)


@jax.jit
def _of_gp(likelihood: GaussianProcess, order_parameter: Checked) -> tuple[Float[Array, ""], Array]:
    """Log density of the labels, and whether it is lost in rounding."""
    singular = is_singular(likelihood, jnp.sqrt(order_parameter))
    return likelihood.log_density_of(order_parameter), singular


@with_own_settings
def evidence(model: Checked, *, temperature: Checked = None, seed: int = 0, particles: int | None = None) -> Evidence:
    """log p(Y) at finite width, by importance sampling where that can be trusted and by annealing elsewhere.

    The error is that of sampling. Smoothed weights, a stop that looks at them, and temperatures chosen along the way bias
    both estimates of p(Y) a little, which the error leaves out. Annealing takes 8 islands of particles, whose scatter is its
    error: from the prior, then from two mixtures about the modes that searches from the annealed particles and from prior
    draws end in. It is reliable where the two agree within 3 errors and annealing from the prior has not found more. With
    more than 40 coordinates there are no such mixtures, and the scatter of the islands from the prior decides alone.

    Args:
        model: the posterior, a `bayesattn.Model` with Gaussian labels.
        temperature: T, variance of the likelihood, by default the model's.
        seed: of the draws.
        particles: of each island, a multiple of 8; asks for annealing. By default 128, and as few as 32 where there are
            many examples. The error falls as their square root.

    Raises:
        ValueError: no model, or one of classes; a temperature that is not above 0 or that JAX traces, particles that are no
            multiple of 8.
        NotConverged: K + T I is singular in float64.
    """
    refuse_traced("evidence", temperature=temperature)
    density = gaussian_density(model, temperature)
    return evidences(model, [float(density.temperature)], seed=seed, particles=particles)[0]


@with_own_settings
def evidences(
    model: Checked, temperatures: Sequence[Checked], *, seed: int = 0, particles: int | None = None
) -> list[Evidence]:
    """`evidence` at each of several temperatures, those that need annealing in one run.

    So their errors are not independent of each other. Arguments and errors otherwise as for `evidence`; also raises
    ValueError if there is no temperature.
    """
    checked = _checked(temperatures)
    estimates = _estimates(model, checked, seed, particles)
    return [estimates[temperature] for temperature in checked]


@with_own_settings
def competing(
    model: Checked, temperatures: Sequence[Checked], *, seed: int = 0, particles: int | None = None
) -> list[Evidence | None]:
    """`evidences` for a choice among temperatures, None for those too cold to compete.

    Annealing, whose cost is in the coldest temperatures, ends where log p(Y) is 30 nats below the greatest and still falls.
    That it might rise again is not excluded. Arguments and errors as for `evidences`.
    """
    checked = _checked(temperatures)
    estimates = _estimates(model, checked, seed, particles, within=FAR)
    return [estimates.get(temperature) for temperature in checked]


def _checked(temperatures: Sequence[Checked]) -> list[float]:
    refuse_traced("evidences", temperatures=temperatures)
    if not len(temperatures):
        raise BayesattnError("temperatures must hold at least one number above 0, got none")
    return [positive("temperature", temperature) for temperature in temperatures]


def _estimates(
    model: Checked,
    temperatures: Sequence[float],
    seed: int,
    particles: int | None = None,
    within: float = np.inf,
) -> dict[float, Evidence]:
    """Evidences by temperature, without those that annealing has given up."""
    likelihood, arch = gaussian_density(model), model.architecture
    if particles is not None and positive_integer("particles", particles) % MOVES:
        raise BayesattnError(f"particles must be a multiple of {MOVES}, got {particles}")
    shapes, likelihood = layer_shapes(arch), compressed(likelihood, arch)
    refuse_many("the evidence", shapes, "use fewer heads or narrower layers")
    # Different posteriors have different streams of random numbers.
    posterior = digest(arch.table, np.asarray(model.path_inputs, float), np.asarray(model.labels, float))
    key = stream(seed_number("seed", seed), "evidence", posterior)
    estimates = {}
    # Rows that matter in another order, and columns of either sign, are more than one mode.
    if particles is None and not any(shape.rows > 1 and shape.freedom < FREE for shape in shapes):
        for temperature in set(temperatures):
            estimates[temperature] = _by_importance(likelihood.at(temperature), arch, shapes, key)
    estimates = {hot: estimate for hot, estimate in estimates.items() if estimate.reliable}
    if left := [temperature for temperature in temperatures if temperature not in estimates]:
        best = max((estimate.log_evidence for estimate in estimates.values()), default=-np.inf)
        ordered = _ordered(likelihood.at(min(temperatures)), arch, shapes)
        bridged = sum(shape.size for shape in shapes) <= LARGEST_BRIDGED
        for bound in (within, np.inf):
            try:
                annealed = anneal(ordered, shapes, left, branch(key, "annealing"), particles, best=best, within=bound)
            except Singular:
                cause = likely_cause(likelihood.at(min(left)), arch)
                raise NotConverged(f"the evidence cannot be computed in float64; {cause}", None) from None
            for hot, estimate in annealed.items():
                there = branch(key, "bridges", repr(float(hot)))
                if bridged:
                    estimates[hot] = _by_bridges(estimate, ordered.at(hot), shapes, there, particles)
                else:
                    value, error = estimate.log_evidence, estimate.error
                    estimates[hot] = Evidence(value, error, "annealing", error <= RELIABLE)
            if not bridged:
                break
            best = max(best, *(estimate.log_evidence for estimate in estimates.values()))
            # Annealing lags behind: what it gives up may have a mode that it does not know of.
            left = [cold for cold in left if cold not in annealed]
            starts = np.asarray(prior_draws(branch(key, "given up"), SEARCHES_GIVEN_UP, ordered, shapes))
            left = [cold for cold in left if _greatest_mass(ordered.at(cold), shapes, starts) > best - within]
            if not left:
                break
    return estimates


def _greatest_mass(problem: Problem, shapes: Shapes, starts: np.ndarray) -> float:
    """log of the greatest Laplace mass of the modes that searches find."""
    return max((basin.log_mass for basin in basins(problem, shapes, starts)), default=-np.inf)


def _by_bridges(
    annealed: Annealed, problem: Problem, shapes: Shapes, key: Key[Array, ""], particles: int | None
) -> Evidence:
    """By two bridges, which are to agree: from where annealed particles are and fall to, and from where prior draws do.

    Each is fitted to the draws that it had before, and its steps are made shorter, until both know log p(Y) and agree.
    """
    first_key, second_key, chosen_key, prior_key, further_key = jax.random.split(key, 5)
    few = next(count for most, count in SEARCHES if annealed.points.shape[1] <= most)
    signs = mirrored(shapes, problem.order)
    chosen = annealed.points[systematic(chosen_key, annealed.weights[None], few // 2)]
    drawn = prior_draws(prior_key, few // 2, problem, shapes)
    # Prior draws alone do not fall to every mode: half of the searches begin further out than these reach.
    origin, stretch = stretched(shapes, problem.widths)
    further = origin + FURTHER * stretch * jax.random.normal(further_key, (2, few // 2, len(origin)))
    routes: list[tuple[Any, Any]] = [
        (first_key, _covering(basins(problem, shapes, [*chosen, *further[0]]), annealed)),
        (second_key, _covering(basins(problem, shapes, [*drawn, *further[1]]))),
    ]
    found = Evidence(annealed.log_evidence, annealed.error, "annealing", False)
    if not all(components for _, components in routes):
        return found
    covers = [(key, components, components) for key, components in routes]
    for turn, share in enumerate(SHARES):
        bridges = [
            bridge(mixture(cover, signs), problem, shapes, branch(key, str(turn)), particles, least_share=share)
            for key, _, cover in covers
        ]
        found = _agreed(bridges, annealed)
        if turn and found.reliable and found.error <= ENOUGH_OF_BRIDGES:
            break
        covers = [
            (key, first, refitted(first, np.asarray(crossed.points), np.asarray(crossed.weights), signs))
            for (key, first, _), crossed in zip(covers, bridges, strict=True)
        ]
    return found


def _covering(found: list[Basin], cloud: Annealed | None = None) -> list[Component] | None:
    """Components about minima, by half as heavy as their masses and by half all alike, and one about annealed particles."""
    if not found:
        return None
    most = COMPONENTS[-1] // 2 - 1
    kept = [basin for basin in found if basin.log_mass > found[0].log_mass - FAR][:most]
    shares = (special.softmax([basin.log_mass for basin in kept]) + 1 / len(kept)) / 2
    of_cloud = 0.0 if cloud is None else CLOUD
    components = [
        Component(np.log((1 - of_cloud) * share), basin.centre, basin.scale)
        for share, basin in zip(shares, kept, strict=True)
    ]
    if cloud is not None:
        centre = cloud.weights @ cloud.points
        components.append(Component(np.log(CLOUD), centre, spanning_of(cloud.points, cloud.weights)))
    return components


def _agreed(routes: list[Annealed], annealed: Annealed) -> Evidence:
    """Of bridges that agree their mean, of others the greatest estimate, which is not reliable.

    An unbiased estimate is hardly ever far too great, but too small if it misses a mode. So annealing from the prior speaks
    against a bridge where it finds more, and where it finds less against itself.
    """
    greatest = max([*routes, annealed], key=lambda route: route.log_evidence)
    agreed = [
        route
        for route in routes
        if greatest.log_evidence - route.log_evidence <= MOST_ERRORS * np.hypot(greatest.error, route.error)
    ]
    if len(agreed) < 2:
        return Evidence(greatest.log_evidence, greatest.error, "annealing", False)
    errors = np.array([route.error for route in agreed])
    shares = errors**-2 / np.sum(errors**-2)
    mean: Any = special.logsumexp([route.log_evidence for route in agreed], b=shares)
    return Evidence(float(mean), float(np.sum(errors**-2) ** -0.5), "annealing", bool(max(errors) <= RELIABLE))


def _ordered(likelihood: GaussianProcess, arch: Architecture, shapes: Shapes) -> Problem:
    """The problem with rows in the order that the saddle point tells, where a layer is narrow."""
    problem = problem_of(likelihood, arch)
    saddle = rough_saddle_point(likelihood, arch, throw=False) if narrow(shapes) else None
    if saddle is None or not np.isfinite(saddle.point).all():
        return problem
    arrays = (problem.widths, problem.variances, problem.skips)
    return problem._replace(order=narrowed(saddle.point, layer_shapes(arch, full=True), shapes, *arrays)[1])


def _by_importance(likelihood: GaussianProcess, arch: Architecture, shapes: Shapes, key: Key[Array, ""]) -> Evidence:
    """By Pareto smoothed weights, in as many blocks of draws as they need; not reliable where there is no mode."""
    unknown = Evidence(np.nan, np.nan, "importance sampling", False)
    try:
        mode, problem = find_mode(likelihood, arch)
    except NotConverged:
        return unknown
    result, log_weights = unknown, np.empty(0)
    for block in range(BLOCKS):
        block_key = branch(key, "importance sampling", repr(float(likelihood.temperature)), str(block))
        drawn = _log_weights(block_key, mode.whitening, problem, shapes, BLOCK)
        log_weights = np.append(log_weights, drawn)
        smoothed, pareto = _smoothed(log_weights)
        total = special.logsumexp(smoothed)
        error = float(np.sqrt(np.sum(np.exp(2 * (smoothed - total))) - 1 / len(smoothed)))
        reliable = bool(pareto <= MOST_PARETO and error <= RELIABLE)
        result = Evidence(float(total - np.log(len(smoothed))), error, "importance sampling", reliable)
        if reliable and error <= ENOUGH:
            break
    if result.reliable and not is_only_mode(mode, problem, shapes, branch(key, "other modes")):
        return result._replace(reliable=False)
    return result


def _smoothed(log_weights: Float[np.ndarray, " draw"]) -> tuple[Float[np.ndarray, " draw"], float]:
    """Pareto smoothed log weights and Pareto k, which is infinite where hardly a draw has weight."""
    if np.mean(np.isfinite(log_weights)) < 0.5:
        return log_weights, np.inf
    from arviz_stats.base import array_stats  # which imports Matplotlib

    smoothed, pareto = array_stats.psislw(-log_weights)
    # They come normalised; weights outside the tail stay what they are, such as the median.
    median = np.argsort(log_weights)[len(log_weights) // 2]
    return smoothed + (log_weights[median] - smoothed[median]), float(pareto)


@partial(jax.jit, static_argnames=("shapes", "draws"))
def _log_weights(key, whitening: Whitening, problem: Problem, shapes: Shapes, draws: int) -> Float[Array, " draw"]:
    # With many coordinates a Student's radius scatters more than the posterior's, unless its degrees of freedom grow too.
    size = len(whitening.centre)
    freedom = max(DEGREES_OF_FREEDOM, size)
    normal_key, chi_key = jax.random.split(key)
    spread = 2 * jax.random.gamma(chi_key, freedom / 2, (draws,)) / freedom
    students = jax.random.normal(normal_key, (draws, size)) / jnp.sqrt(spread)[:, None]
    gammaln = jax.scipy.special.gammaln
    log_proposal = (
        gammaln((freedom + size) / 2)
        - gammaln(freedom / 2)
        - size * jnp.log(freedom * jnp.pi) / 2
        - (freedom + size) / 2 * jnp.log1p(jnp.sum(students**2, axis=1) / freedom)
        - whitening.log_volume()
    )
    log_density = jax.lax.map(lambda z: -potential(whitening.point(z), problem, shapes), students)
    # A proposal too far out for its Cholesky factor has no weight.
    log_density = jnp.where(jnp.isfinite(log_density), log_density, -jnp.inf)
    return log_density - log_proposal
