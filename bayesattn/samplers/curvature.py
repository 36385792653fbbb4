"""Coordinates for chains of many dimensions, whitened by the mean curvature of the log posterior along short chains.

At the mode of a narrow network the log posterior curves far more than where its draws lie: of 144 paths at N = 10 the
Laplace covariance was a twentieth of the draws'. A metric adapted by a chain, which is how it is made up for elsewhere,
would have to be told from more draws than there are coordinates. One Hessian tells of all directions at once, and its mean
over a few draws is the inverse of a covariance that no posterior of the same mean curvature falls short of (Cramer and Rao).
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from threadpoolctl import threadpool_limits

from bayesattn._util.plain import PlainDict
from bayesattn._util.random import branch, fingerprint, stream
from bayesattn._util.settings import with_own_settings
from bayesattn.models import Collapsed, Model, collapsed
from bayesattn.samplers.program import Program, program_of
from bayesattn.theory.bartlett import stretched
from bayesattn.theory.problem import Point, Problem, Shapes, local_potential, problem_of, too_many
from bayesattn.theory.saddle_point import MOST_FOR_HESSIAN

CHAINS, ROUNDS = 2, 2
STEPS, LEAPS = 48, 16
"""Of each chain in a round, and of a step."""
LOOKS, BETWEEN = 4, 8
"""Draws of each chain whose curvature is looked at, the last of a round, and steps between two of them."""
LEAST_CURVATURE = 0.15
"""In coordinates in which that of the prior is 1/2: the mean over few draws may be less, or below 0."""


def is_worthwhile(shapes: Shapes) -> bool:
    """Whether chains have more coordinates than their draws can tell a metric of, but not too many for a Hessian."""
    return sum(shape.size for shape in shapes) > MOST_FOR_HESSIAN and not too_many(shapes)


def refined(model: Model, prepared: PlainDict) -> PlainDict:
    """What `collapsed.prepare` found, with whitening by the mean curvature, where this is worthwhile."""
    if not model.likelihood.conjugate or not is_worthwhile(collapsed.structure(model)):
        return prepared
    return whitened_by_mean_curvature(model, prepared)


def whitened_by_mean_curvature(model: Model, prepared: PlainDict) -> PlainDict:
    """What `collapsed.prepare` found, with whitening by the mean curvature in place of that at the mode.

    Deterministic: the short chains have random keys of their own, whatever the seed of the job.
    """
    shapes = collapsed.structure(model)
    key, posterior = stream(0, "curvature", fingerprint(model)), Collapsed.of(model, **prepared)
    chain = program_of(posterior, "hmc", {"num_steps": LEAPS}, STEPS, ("order_parameter",))
    for turn in range(ROUNDS):
        posterior = posterior.with_prepared(prepared)
        keys = jax.random.split(branch(key, str(turn)), CHAINS)
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(CHAINS) as pool:
            looks = list(pool.map(partial(_looks, chain, posterior), keys))
        points, curvatures = (np.concatenate(each) for each in zip(*looks, strict=True))
        if not np.isfinite(curvatures).all():
            return prepared  # The chains that are asked for meet the same place, and name it.
        scale = _spanning(curvatures.mean(0), problem_of(model.kernels, model.architecture), shapes)
        centre = points.mean(0)
        whitened = np.linalg.solve(scale, (points - centre).T)
        # As wide as the draws are: a mean curvature of 1 is that of a variance of at least 1.
        spread = np.sqrt(max(1.0, np.mean(whitened**2)))
        order = {name: prepared[name] for name in ("order",) if name in prepared}
        prepared = {"centre": jnp.asarray(centre), "scale": jnp.asarray(scale * spread), **order}
    return prepared


@with_own_settings
def _looks(chain: Program, posterior: Collapsed, key: Key[Array, ""]) -> tuple[np.ndarray, ...]:
    """Bartlett coordinates of some draws of a chain, and the Hessians there."""
    state, points = chain.start(key, posterior), []
    for _ in range(STEPS // BETWEEN):
        state, _ = chain.block(state, posterior, BETWEEN, False, 1, BETWEEN)
        points.append(posterior.point(state.z))
    hessians = [_hessian(point, posterior.problem, posterior.shapes) for point in points[-LOOKS:]]
    return np.array(points[-LOOKS:]), np.array(hessians)


@partial(jax.jit, static_argnames="shapes")
def _hessian(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "coordinate coordinate"]:
    return local_potential(problem, shapes)(point).hessian


def _spanning(hessian: np.ndarray, problem: Problem, shapes: Shapes) -> np.ndarray:
    """Columns that span the inverse of a Hessian whose eigenvalues are kept off 0."""
    stretch = np.asarray(stretched(shapes, problem.widths)[1])
    values, vectors = np.linalg.eigh(hessian * np.outer(stretch, stretch))
    return stretch[:, None] * vectors / np.sqrt(np.maximum(values, LEAST_CURVATURE))
