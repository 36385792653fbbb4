"""Evidence: log p(Y | architecture, temperature), at finite width and exactly in the GP limit.

Numbers that are not known, the temperature or variances, are integrated out with their priors, beside U.

If every layer is wide, the method is importance sampling from a Student distribution with the Laplace mode and
covariance, to a tenth (with up to 40 coordinates) from one that covers the prior, provided that the Pareto k of the
weights shows that they are reliable (Vehtari et al. 2024) and that searches, made with up to 200 coordinates, find no
other mode. Otherwise the method is annealing (`bayesattn.theory.annealing`): from the prior and, with up to 40
coordinates, from two mixtures, one around modes found from the annealed particles and one around modes found from prior
draws. Annealing from the prior alone lags behind if the mode lies far out in the prior's tail; its groups of particles
that do not mix (islands) then agree on a wrong value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from bayesattn._util.checks import Checked, is_traced, positive, positive_integer, seed_number
from bayesattn._util.random import branch, digest, stream
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels.conditionals import is_singular
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.theory.annealing import MOVES, Singular, anneal, bridge, prior_draws
from bayesattn.theory.arguments import gaussian_density, refuse_traced
from bayesattn.theory.bartlett import (
    layer_shapes,
    narrow,
    narrowed,
    strengths_of_rows,
)
from bayesattn.theory.importance import Evidence, Weighed, by_importance, wide
from bayesattn.theory.mixture import COMPONENT_COUNTS, Component, mixture, refitted
from bayesattn.theory.mode import Basin, basins
from bayesattn.theory.particles import LARGEST_RELIABLE_ERROR, Particles, metric_factor, systematic
from bayesattn.theory.potential import Posed, Problem, Shapes, problem_of, refuse_many
from bayesattn.theory.saddle_point import NotConverged, gp_order_parameter, likely_cause, rough_saddle_point

NEGLIGIBLE_LOG_ODDS = 30.0
"""Temperatures (in `competing`) and modes are dropped if they are this many nats below the best (odds 1e13)."""
BRIDGE_SEARCHES = (8, 128), (40, 32)
"""Pairs: largest number of coordinates, and number of searches for modes per bridge up to that number.

A mode that one search in 20 reaches is missed by all 128 with probability 1/700 (by all 32: 0.19).
"""
MOST_BRIDGED_COORDINATES = BRIDGE_SEARCHES[-1][0]
"""Most coordinates for bridges, whose searches take minutes with hundreds of coordinates."""
SEARCHES_PER_DROPPED_TEMPERATURE = 4
"""Searches for modes at a temperature that annealing drops."""
DISTANT_START_SCALE = 3 * 2**0.5
"""Scale of distant starts in whitened coordinates, three times that of prior draws.

The prior has curvature 1/2 in these coordinates, half that of the entropy, so its standard deviation is sqrt(2).
"""
PARTICLE_SHARE = 0.3
"""Share of a proposal that covers annealed particles."""
LEAST_BRIDGE_SHARES = 0.5, 0.9, 0.95, 0.95
"""Least effective shares of the particles on successive bridges."""
BRIDGE_TARGET_ERROR = 0.1
"""Error, in nats, at which no further bridge is made."""
MOST_COMBINED_ERRORS = 3
"""Largest difference between two bridges, in combined errors."""
MOST_EXCESS = np.log(1000)
"""Nats by which an unbiased estimate is too large with a probability of 1/1000 at most."""


@with_own_settings
def gp_evidence(model: Checked, *, temperature: Checked = None) -> Any:
    """log Normal(Y; 0, K(U_GP) + T I), the evidence at infinite width; exact.

    JAX can trace and differentiate it in the temperature.

    Args:
        model: the posterior, a `bayesattn.Model` with Gaussian labels; its widths do not matter.
        temperature: T, variance of the likelihood, by default the model's.

    Raises:
        ValueError: not a model, or a model of classes; a temperature that is not above 0.
        NotConverged: K + T I is singular in float64; not checked if JAX traces the temperature.
    """
    density, arch = gaussian_density(model, temperature), model.architecture
    if not is_traced(density.temperature):
        density = compressed(density, arch)
    log_evidence, singular = _gp_log_density(density, gp_order_parameter(arch))
    if is_traced(log_evidence):
        return log_evidence
    if singular:
        cause = likely_cause(density, arch)
        raise NotConverged(f"the evidence in the GP limit cannot be computed in float64; {cause}", None)
    return float(log_evidence)


@jax.jit
def _gp_log_density(process: GaussianProcess, order_parameter: Checked) -> tuple[Float[Array, ""], Array]:
    """Log density of the labels, and whether it is lost in rounding."""
    singular = is_singular(process, jnp.sqrt(order_parameter))
    return process.log_density_of(order_parameter), singular


@with_own_settings
def evidence(model: Checked, *, temperature: Checked = None, seed: int = 0, particles: int | None = None) -> Evidence:
    """log p(Y) at finite width, by importance sampling if it is reliable and by annealing otherwise.

    The error is that of sampling. Both estimates of p(Y) are slightly biased (importance sampling by smoothing and its
    stopping rule, annealing by adaptive temperatures); the error leaves this out. Annealing uses 8 islands of
    particles, whose scatter is its error. It starts from the prior, then from two mixtures: around modes found from the
    annealed particles, and around modes found from prior draws. It is reliable if the two agree within 3 errors, their
    errors are at most 0.3, and the estimate from the prior is not larger. With more than 40 coordinates there are no
    such mixtures, and the scatter of the islands from the prior alone decides.

    A temperature and variances with priors are integrated out too.

    Args:
        model: the posterior, a `bayesattn.Model` with Gaussian labels.
        temperature: T, variance of the likelihood, by default the model's; left out if the model has priors.
        seed: seed of the draws.
        particles: particles of each island, a multiple of 8; setting it requires annealing. By default 128, or down to
            32 with many examples. The error decreases as 1 / sqrt(particles).

    Raises:
        ValueError: not a model, or a model of classes; a temperature that is not above 0 or that JAX traces, particles
            that are not a multiple of 8.
        NotConverged: K + T I is singular in float64.
    """
    refuse_traced("evidence", temperature=temperature)
    if temperature is None and priors_of(model):
        known = float(gaussian_density(model.reference).temperature)
        return _estimates(model, [known], seed, particles)[known]
    density = gaussian_density(model, temperature)
    return evidences(model, [float(density.temperature)], seed=seed, particles=particles)[0]


@with_own_settings
def evidences(
    model: Checked, temperatures: Sequence[Checked], *, seed: int = 0, particles: int | None = None
) -> list[Evidence]:
    """`evidence` at each of several temperatures, with one run for all that need annealing.

    Their errors are therefore not independent of each other. Other arguments and errors as for `evidence`; also raises
    ValueError if there is no temperature.
    """
    checked = _checked_temperatures(temperatures)
    gaussian_density(model)
    estimates = _estimates(model, checked, seed, particles)
    return [estimates[temperature] for temperature in checked]


@with_own_settings
def competing(
    model: Checked, temperatures: Sequence[Checked], *, seed: int = 0, particles: int | None = None
) -> list[Evidence | None]:
    """`evidences` for a choice among temperatures, None for temperatures too cold to compete.

    These are 30 nats below the largest value by annealing from the prior, and by the modes that a few searches find.
    Arguments and errors as for `evidences`.
    """
    checked = _checked_temperatures(temperatures)
    gaussian_density(model)
    estimates = _estimates(model, checked, seed, particles, within=NEGLIGIBLE_LOG_ODDS)
    return [estimates.get(temperature) for temperature in checked]


def _checked_temperatures(temperatures: Sequence[Checked]) -> list[float]:
    refuse_traced("evidences", temperatures=temperatures)
    if not len(temperatures):
        raise BayesattnError("temperatures must hold at least one number above 0, got none")
    return [positive("temperature", temperature) for temperature in temperatures]


def _estimates(
    model: Checked, temperatures: Sequence[float], seed: int, particles: int | None, within: float = np.inf
) -> dict[float, Evidence]:
    """Evidences by temperature, without the temperatures that annealing has dropped."""
    priors = priors_of(model)
    known = model if priors is None else model.reference
    process, arch = gaussian_density(known), known.architecture
    if particles is not None and positive_integer("particles", particles) % MOVES:
        raise BayesattnError(f"particles must be a multiple of {MOVES}, got {particles}")
    shapes, process = layer_shapes(arch), compressed(process, arch)
    refuse_many("the evidence", shapes, "use fewer heads or narrower layers")
    key = stream_of(model, seed)
    estimates = {}
    if particles is None and wide(shapes):
        for temperature in set(temperatures):
            weighed = by_importance(process.at(temperature), arch, priors, key, repr(temperature))
            estimates[temperature] = weighed.evidence
    estimates = {hot: estimate for hot, estimate in estimates.items() if estimate.reliable}
    left = [temperature for temperature in temperatures if temperature not in estimates]
    if not left:
        return estimates
    problem = _ordered(process.at(min(left)), arch, shapes)
    posed = problem if priors is None else priors.posed(problem)
    return estimates | _by_annealing(posed, arch, left, key, particles, estimates, within)


def annealed_draws(process: GaussianProcess, arch: Architecture, key: Key[Array, ""]) -> Weighed:
    """Particles annealed from the prior to the posterior; raises Singular."""
    shapes, temperature = layer_shapes(arch), float(process.temperature)
    problem = _ordered(process, arch, shapes)
    [(_, cooled)] = anneal(problem, shapes, [temperature], key)
    points, weights = cooled.flat
    with np.errstate(divide="ignore"):
        evidence = Evidence(cooled.log_evidence, cooled.error, "annealing", cooled.reliable)
        return Weighed(evidence, problem, points, np.log(weights))


def priors_of(model: Checked) -> Any:
    """`Hyperpriors` of the numbers of a model that are not known, or None if all are."""
    return model.hyperpriors if getattr(model, "has_priors", False) else None


def stream_of(model: Checked, seed: Checked) -> Key[Array, ""]:
    """Random numbers for a posterior: different ones have different streams."""
    path_inputs, labels = np.asarray(model.path_inputs, float), np.asarray(model.labels, float)
    settings = model.table() if priors_of(model) else model.architecture.table
    return stream(seed_number("seed", seed), "evidence", digest(settings, path_inputs, labels))


def _by_annealing(
    problem: Posed,
    arch: Architecture,
    temperatures: Sequence[float],
    key: Key[Array, ""],
    particles: int | None,
    others: Mapping[float, Evidence],
    within: float,
) -> dict[float, Evidence]:
    """Evidences of temperatures, without those more than `within` below these or the `others`."""
    shapes, estimates = layer_shapes(arch), {}
    bridged = len(problem.affine(shapes)[0]) <= MOST_BRIDGED_COORDINATES
    starts = prior_draws(branch(key, "given up"), SEARCHES_PER_DROPPED_TEMPERATURE, problem, shapes)

    def has_mode_above(least: float, temperature: float) -> bool:
        """Whether searches find a mode of more Laplace mass; annealing lags behind and may not have found it."""
        minima = basins(problem.at(temperature), shapes, starts) if bridged else []
        return any(basin.log_mass > least for basin in minima)

    dropped, hotter = False, np.inf
    try:
        for temperature, cooled in anneal(problem, shapes, temperatures, branch(key, "annealing"), particles):
            known = [each.log_evidence for each in (*others.values(), *estimates.values())]
            least = max(known, default=-np.inf) - within
            falls, hotter = cooled.log_evidence < hotter, cooled.log_evidence
            if cooled.log_evidence < least and not has_mode_above(least, temperature):
                dropped = True
                colder = [cold for cold in temperatures if cold < temperature]
                # Most of the work is at the coldest temperatures.
                if falls and not any(has_mode_above(least, cold) for cold in colder):
                    break
            elif bridged:
                there = branch(key, "bridges", repr(temperature))
                estimates[temperature] = _by_bridges(cooled, problem.at(temperature), shapes, there, particles)
            else:
                estimates[temperature] = Evidence(cooled.log_evidence, cooled.error, "annealing", cooled.reliable)
    except Singular:
        # Of temperatures that do not compete, colder ones need not be known.
        if not dropped:
            cause = likely_cause(problem.process, arch)
            raise NotConverged(f"the evidence cannot be computed in float64; {cause}", None) from None
    return estimates


def _by_bridges(
    annealed: Particles, problem: Posed, shapes: Shapes, key: Key[Array, ""], particles: int | None
) -> Evidence:
    """Evidence from two bridges that must agree.

    Each bridge is fitted to the draws of its previous pass, with shorter steps, until both have a small error and agree.
    """
    keys, signs = jax.random.split(key, 5), problem.signs(shapes)
    first = covers = _two_covers(annealed, problem, shapes, keys[2:])
    result = Evidence(annealed.log_evidence, annealed.error, "annealing", False)
    for turn, share in enumerate(LEAST_BRIDGE_SHARES if all(first) else ()):
        try:
            bridges = [
                bridge(mixture(cover, signs), problem, shapes, branch(own_key, str(turn)), particles, share)
                for own_key, cover in zip(keys[:2], covers, strict=True)
            ]
        except FloatingPointError:  # Too few of the points from which a bridge starts have weight.
            return result._replace(reliable=False)
        result = _agreed(bridges, annealed)
        if turn and result.reliable and result.error <= BRIDGE_TARGET_ERROR:
            break
        covers = [refitted(cover, *crossed.flat, signs) for cover, crossed in zip(first, bridges, strict=True)]
    return result


def _two_covers(
    annealed: Particles, problem: Posed, shapes: Shapes, keys: Key[Array, " number"]
) -> list[list[Component]]:
    """Components around the annealed particles and modes found from them, and around modes found from prior draws.

    Searches from prior draws alone do not reach every mode, so half of the searches start further out.
    """
    chosen_key, prior_key, further_key = keys
    points, weights = annealed.flat
    origin, stretch = map(np.asarray, problem.affine(shapes))
    half = next(count for most, count in BRIDGE_SEARCHES if len(origin) <= most) // 2
    chosen = points[systematic(chosen_key, weights[None], half)]
    drawn = prior_draws(prior_key, half, problem, shapes)
    steps = np.asarray(jax.random.normal(further_key, (2, half, len(origin))))
    further = origin + DISTANT_START_SCALE * stretch * steps
    return [
        _covering(basins(problem, shapes, [*chosen, *further[0]]), annealed),
        _covering(basins(problem, shapes, [*drawn, *further[1]])),
    ]


def _covering(minima: list[Basin], particles: Particles | None = None) -> list[Component]:
    """Components about minima, weighted half by mass, half equally, and one about annealed particles; none if no minima."""
    if not minima:
        return []
    most = COMPONENT_COUNTS[-1] // 2 - 1
    kept = [basin for basin in minima if basin.log_mass > minima[0].log_mass - NEGLIGIBLE_LOG_ODDS][:most]
    shares = (special.softmax([basin.log_mass for basin in kept]) + 1 / len(kept)) / 2
    particle_share = 0.0 if particles is None else PARTICLE_SHARE
    components = [
        Component(np.log((1 - particle_share) * share), basin.centre, basin.scale)
        for share, basin in zip(shares, kept, strict=True)
    ]
    if particles is not None:
        points, weights = particles.flat
        components.append(Component(np.log(PARTICLE_SHARE), weights @ points, metric_factor(points, weights)))
    return components


def _agreed(routes: list[Particles], annealed: Particles) -> Evidence:
    """Mean of the bridges if they agree; otherwise the largest estimate, which is not reliable.

    An unbiased estimate is hardly ever far too large, but it is too small if it misses a mode. So a larger estimate from
    the prior contradicts a bridge, and a smaller one is itself in doubt. By Markov's inequality an estimate is too large by
    x nats with a probability of e^-x at most, whatever its error.
    """
    greatest = max([*routes, annealed], key=lambda route: route.log_evidence)
    agreed = [
        route
        for route in routes
        if greatest.log_evidence - route.log_evidence
        <= min(
            MOST_COMBINED_ERRORS * np.hypot(greatest.error, route.error),
            MOST_EXCESS + MOST_COMBINED_ERRORS * route.error,
        )
    ]
    if len(agreed) < 2:
        return Evidence(greatest.log_evidence, greatest.error, "annealing", False)
    errors = np.array([route.error for route in agreed])
    shares = errors**-2 / np.sum(errors**-2)
    values = np.array([route.log_evidence for route in agreed])
    mean: Any = special.logsumexp(values, b=shares)
    # Where bridges differ by more than their errors, these are too small by as much (Birge 1932).
    excess = np.sqrt(np.sum(((values - shares @ values) / errors) ** 2) / (len(agreed) - 1))
    error = float(np.sum(errors**-2) ** -0.5 * max(1.0, excess))
    reliable = all(route.reliable for route in agreed) and error <= LARGEST_RELIABLE_ERROR
    return Evidence(float(mean), error, "annealing", reliable)


def _ordered(process: GaussianProcess, arch: Architecture, shapes: Shapes) -> Problem:
    """Problem with rows in the order of the saddle point, if a layer is narrow."""
    problem = problem_of(process, arch)
    saddle = rough_saddle_point(process, arch) if narrow(shapes) else None
    if saddle is None or not np.isfinite(saddle.point).all():
        return problem
    arrays = (problem.widths, problem.variances, problem.skips, strengths_of_rows(process.features, arch))
    return problem._replace(order=narrowed(saddle.point, layer_shapes(arch, full=True), shapes, *arrays)[1])
