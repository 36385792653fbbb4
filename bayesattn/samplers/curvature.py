"""Coordinates for chains of many dimensions, whitened by the mean curvature of the log posterior along short chains.

For a narrow network the curvature of the log posterior is far larger at the mode than at the draws: with 144 paths at
N = 10 the Laplace covariance was a twentieth of the covariance of the draws. In few dimensions, the metric adapted in
warm-up corrects for this. In many dimensions, such a metric needs more draws than there are coordinates, but one Hessian
contains all directions at once. The inverse of the mean Hessian over a few draws is a lower bound on the covariance of a
posterior with that mean curvature (Cramer and Rao).
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import branch, stream
from bayesattn._util.settings import with_own_settings
from bayesattn.models import Collapsed, Model, collapsed
from bayesattn.samplers.hmc import Hmc
from bayesattn.samplers.program import Program, program_of
from bayesattn.theory.bartlett import affine_from_whitened
from bayesattn.theory.potential import Point, Problem, Shapes, problem_of, too_many
from bayesattn.theory.saddle_point import MOST_COORDINATES_FOR_HESSIAN

CHAINS, ROUNDS = 2, 2
STEPS_PER_ROUND, LEAPFROG_STEPS = 48, 16
"""Steps of each chain in a round, and leapfrog steps of each of these steps."""
HESSIAN_DRAWS, STEPS_BETWEEN_DRAWS = 4, 8
"""Draws of each chain at which the Hessian is evaluated, the last ones of a round, and steps between two such draws."""
LEAST_CURVATURE = 0.15
"""Lower bound on eigenvalues of the mean Hessian, in coordinates in which the prior's curvature is 1/2.

The mean over a few draws may have smaller eigenvalues, even negative ones.
"""


def is_worthwhile(shapes: Shapes) -> bool:
    """Whether there are too many coordinates to estimate a metric from draws, but not too many for a Hessian."""
    return sum(shape.size for shape in shapes) > MOST_COORDINATES_FOR_HESSIAN and not too_many(shapes)


def refined(model: Model, prepared: PlainDict) -> PlainDict:
    """Result of `collapsed.prepare`, with whitening by the mean curvature if this is worthwhile."""
    if not model.likelihood.conjugate or not is_worthwhile(collapsed.structure(model)):
        return prepared
    return whitened_by_mean_curvature(model, prepared)


def whitened_by_mean_curvature(model: Model, prepared: PlainDict) -> PlainDict:
    """Result of `collapsed.prepare`, with whitening by the mean curvature instead of the curvature at the mode.

    Deterministic: the random keys of the short chains do not depend on the seed of the job.
    """
    shapes = collapsed.structure(model)
    key, posterior = stream(0, "curvature", model.fingerprint), Collapsed.of(model, **prepared)
    chain = program_of(posterior, Hmc, {"num_steps": LEAPFROG_STEPS}, STEPS_PER_ROUND, ("order_parameter",))
    for number in range(ROUNDS):
        posterior = posterior.with_prepared(prepared)
        keys = jax.random.split(branch(key, str(number)), CHAINS)
        with ThreadPoolExecutor(CHAINS) as pool:
            evaluations = list(pool.map(partial(_points_and_hessians, chain, posterior), keys))
        points, curvatures = (np.concatenate(each) for each in zip(*evaluations, strict=True))
        if not np.isfinite(curvatures).all():
            return prepared  # The real chains will fail here too, with a clearer error.
        scale = _inverse_square_root(curvatures.mean(0), problem_of(model.gaussian_process, model.architecture), shapes)
        centre = points.mean(0)
        whitened = np.linalg.solve(scale, (points - centre).T)
        # Scaled to the width of the draws: a mean curvature of 1 implies a variance of at least 1 (Jensen).
        spread = np.sqrt(max(1.0, np.mean(whitened**2)))
        order = {name: prepared[name] for name in ("order",) if name in prepared}
        prepared = {"centre": jnp.asarray(centre), "scale": jnp.asarray(scale * spread), **order}
    return prepared


@with_own_settings
def _points_and_hessians(chain: Program, posterior: Collapsed, key: Key[Array, ""]) -> tuple[np.ndarray, ...]:
    """Bartlett coordinates of some draws of a chain, and the Hessians at these draws."""
    state, points = chain.start(key, posterior), []
    for _ in range(STEPS_PER_ROUND // STEPS_BETWEEN_DRAWS):
        state, _ = chain.block(state, posterior, STEPS_BETWEEN_DRAWS, False, 1, STEPS_BETWEEN_DRAWS)
        points.append(posterior.point(state.z))
    hessians = [_hessian(point, posterior.problem, posterior.shapes) for point in points[-HESSIAN_DRAWS:]]
    return np.array(points[-HESSIAN_DRAWS:]), np.array(hessians)


@partial(jax.jit, static_argnames="shapes")
def _hessian(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "coordinate coordinate"]:
    return problem.local(shapes)(point).hessian


def _inverse_square_root(hessian: np.ndarray, problem: Problem, shapes: Shapes) -> np.ndarray:
    """Square root S of the inverse S S^T of a Hessian, with its eigenvalues bounded from below by `LEAST_CURVATURE`."""
    stretch = np.asarray(affine_from_whitened(shapes, problem.widths)[1])
    values, vectors = np.linalg.eigh(hessian * np.outer(stretch, stretch))
    return stretch[:, None] * vectors / np.sqrt(np.maximum(values, LEAST_CURVATURE))
