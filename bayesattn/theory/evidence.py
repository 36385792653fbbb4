"""Evidence: log p(Y | architecture, temperature), by two routes at finite width and exactly in the GP limit."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import Checked, positive_integer
from bayesattn.architecture import Architecture
from bayesattn.theory.action import checked_data
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.finite_width import Problem, Shapes, find_mode, local_potential, potential
from bayesattn.theory.kernels import cross_kernel, gaussian_energy
from bayesattn.theory.saddle_point import gp_order_parameter

DIFFERENCE_STEP = 1e-2
"""Step, in posterior standard deviations, of the differences of Hessians: truncation and rounding both below 1e-4."""
MOST_COORDINATES = 40
"""Beyond so many coordinates the second-order term costs too much and is left out."""
DEGREES_OF_FREEDOM = 7
"""Of the Student proposals: tails heavier than the posterior's keep the weights bounded."""


class Evidence(NamedTuple):
    """log p(Y) and its error: one standard error of sampling, or the size of the last order that an expansion keeps."""

    log_evidence: float
    error: float


def gp_evidence(path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked) -> float:
    """log Normal(Y; 0, K(U_GP) + T I), the evidence at infinite width; exact.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,).
        arch: the network; its widths do not matter.
        temperature: T, variance of the likelihood.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0.
    """
    path_inputs, labels, temperature = checked_data(path_inputs, labels, arch, temperature)
    xi = jnp.asarray(path_inputs)
    kernel = cross_kernel(gp_order_parameter(arch), xi, xi, arch.variances[0])
    energy = gaussian_energy(kernel[np.tril_indices(len(labels))], jnp.asarray(labels), jnp.asarray(temperature))
    return -(float(energy) + len(labels) * np.log(2 * np.pi)) / 2


def laplace_evidence(
    path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked, start: Any = None
) -> Evidence:
    """Evidence at finite width by the expansion around the mode, to the order that the shift of `finite_width` has.

    log Z = -V(m) + d/2 log(2 pi) + log det(S) / 2 - V_aabb / 8 + V_aac V_bbc / 8 + V_abc V_abc / 12, with derivatives of V
    in coordinates in which S is the identity (see Tierney and Kadane 1986). The last three terms are of order 1/N; their
    sum, the last order kept, is given as a cautious error. Above 40 coordinates they are left out, and the error is not
    known (NaN). Arguments as for `gp_evidence`, and `start`, such as `SaddlePoint.point`, where the search of the mode
    starts; also raises NotConverged if the mode was not found.
    """
    mode, problem = find_mode(path_inputs, labels, arch, temperature, start=start)
    shapes = layer_shapes(arch)
    size = len(mode.point)
    leading = -mode.potential + size * np.log(2 * np.pi) / 2 + jnp.linalg.slogdet(mode.scale)[1]
    if size > MOST_COORDINATES:
        return Evidence(float(leading), float("nan"))
    second = float(_second_order(mode.point, mode.scale, problem, shapes))
    return Evidence(float(leading) + second, abs(second))


def sampled_evidence(
    path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked, *, draws: int = 16384, seed: int = 0
) -> Evidence:
    """Evidence at finite width by importance sampling from a Student distribution with the Laplace mode and covariance.

    Unbiased for p(Y), whatever the expansion neglects; the error is that of the mean weight.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,).
        arch: the network.
        temperature: T, variance of the likelihood.
        draws: number of proposals.
        seed: of the proposals.

    Raises:
        ValueError: as `gp_evidence`.
        NotConverged: the mode was not found.
    """
    positive_integer("draws", draws, minimum=2)
    mode, problem = find_mode(path_inputs, labels, arch, temperature)
    log_weights = _log_weights(jax.random.key(seed), mode.point, mode.scale, problem, layer_shapes(arch), draws)
    largest = jnp.max(log_weights)
    weights = np.exp(log_weights - largest)
    return Evidence(
        float(largest + np.log(weights.mean())), float(weights.std(ddof=1) / weights.mean() / np.sqrt(draws))
    )


@partial(jax.jit, static_argnames="shapes")
def _second_order(point, scale, problem: Problem, shapes: Shapes) -> Float[Array, ""]:
    local = local_potential(problem, shapes)

    def curvature(whitened: Float[Array, " coordinate"]) -> Float[Array, "coordinate coordinate"]:
        return scale.T @ local(point + scale @ whitened).hessian @ scale

    steps = DIFFERENCE_STEP * jnp.eye(len(point))
    centre, ahead, behind = curvature(0 * point), jax.lax.map(curvature, steps), jax.lax.map(curvature, -steps)
    third = (ahead - behind) / (2 * DIFFERENCE_STEP)
    fourth = (ahead + behind - 2 * centre) / DIFFERENCE_STEP**2
    traces = jnp.einsum("caa->c", third)
    return -jnp.einsum("baa->", fourth) / 8 + traces @ traces / 8 + jnp.sum(third**2) / 12


@partial(jax.jit, static_argnames=("shapes", "draws"))
def _log_weights(key, centre, scale, problem: Problem, shapes: Shapes, draws: int) -> Float[Array, " draw"]:
    size, freedom = len(centre), DEGREES_OF_FREEDOM
    normal_key, chi_key = jax.random.split(key)
    spread = 2 * jax.random.gamma(chi_key, freedom / 2, (draws,)) / freedom
    students = jax.random.normal(normal_key, (draws, size)) / jnp.sqrt(spread)[:, None]
    gammaln = jax.scipy.special.gammaln
    log_proposal = (
        gammaln((freedom + size) / 2)
        - gammaln(freedom / 2)
        - size * jnp.log(freedom * jnp.pi) / 2
        - (freedom + size) / 2 * jnp.log1p(jnp.sum(students**2, axis=1) / freedom)
        - jnp.linalg.slogdet(scale)[1]
    )
    log_density = jax.lax.map(lambda z: -potential(centre + scale @ z, problem, shapes), students)
    # A proposal too far out for its Cholesky factor has no weight.
    log_density = jnp.where(jnp.isfinite(log_density), log_density, -jnp.inf)
    return log_density - log_proposal
