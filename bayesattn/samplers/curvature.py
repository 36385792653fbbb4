"""Coordinates for chains of many dimensions, whitened by what short chains see of the log posterior.

A metric adapted by a chain would have to be told from more draws than there are coordinates. Derivatives tell more than
draws: in the mean over the posterior the outer product of the gradient is the Hessian of minus the log density, and its
inverse a covariance that no posterior falls short of (Cramer and Rao).

Where layers are wide, one Hessian tells of all directions at once, so that a few draws will do. At the mode, where the short
chains begin, it is not to be had: of 144 paths the Laplace covariance was a twentieth of the draws'.

Dense factors have the same law whatever turns their columns, and chains turn them: the Hessian at a draw is soon another's.
What stays is what the heads of a layer have to do with one another, summed over all that is turned, which gradients tell.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from threadpoolctl import threadpool_limits

from bayesattn._random import branch, fingerprint, stream
from bayesattn.models import Model, collapsed
from bayesattn.samplers.program import Program, program
from bayesattn.theory.bartlett import stretched
from bayesattn.theory.problem import MOST_COORDINATES, Point, Problem, Shapes, local_potential, problem_of, too_many

CHAINS, ROUNDS = 2, 2
STEPS, LEAPS = 48, 16
"""Of each chain in a round, and of a step."""
LOOKS, BETWEEN = 4, 8
"""Draws of each chain whose curvature is looked at, the last of a round, and steps between two of them."""
SLOPES, BETWEEN_SLOPES = 8, 3
"""The same of those whose gradient is looked at."""
LEAST_CURVATURE = 0.15
"""In coordinates in which that of the prior is 1/2: the mean over few draws may be less, or below 0."""


def serves(shapes: Shapes) -> bool:
    """Whether chains have more coordinates than their draws can tell a metric of, but not too many for a Hessian."""
    return collapsed.many(shapes) and (collapsed.dense(shapes) or not too_many(shapes))


def whitened_by_short_chains(model: Model, prepared: dict[str, Any]) -> dict[str, Any]:
    """What `collapsed.prepare` found, with whitening by short chains in place of that at the mode, or of the prior's.

    Deterministic: the short chains have random keys of their own, whatever the seed of the job.
    """
    shapes = collapsed.structure(model)
    short = program(
        "hmc", "collapsed", shapes, STEPS, (("num_steps", LEAPS),), ("order_parameter",), None, vectorised=False
    )
    key = stream(0, "curvature", fingerprint(model))
    if collapsed.dense(shapes):
        _, slopes = _drawn(short, collapsed.data(model, **prepared), key, SLOPES, BETWEEN_SLOPES)
        # Where the chains that are asked for meet the same place, they name it.
        return (
            prepared | {"scale": _by_heads(slopes, prepared["scale"], shapes)}
            if np.isfinite(slopes).all()
            else prepared
        )
    problem = problem_of(model.likelihood, model.architecture)
    for turn in range(ROUNDS):
        data = collapsed.data(model, **prepared)
        whitening, here = collapsed.whitening_of(data), collapsed.problem_in(data)
        drawn, _ = _drawn(short, data, branch(key, str(turn)), LOOKS, BETWEEN)
        points = np.array([whitening.point(jnp.asarray(z)) for z in drawn])
        curvatures = _hessians(points, here, shapes)
        if not np.isfinite(curvatures).all():
            return prepared
        scale = _spanning(curvatures.mean(0), problem, shapes)
        centre = points.mean(0)
        whitened = np.linalg.solve(scale, (points - centre).T)
        # As wide as the draws are: a mean curvature of 1 is that of a variance of at least 1.
        spread = np.sqrt(max(1.0, np.mean(whitened**2)))
        order = {name: prepared[name] for name in ("order",) if name in prepared}
        prepared = {"centre": jnp.asarray(centre), "scale": jnp.asarray(scale * spread), **order}
    return prepared


def _side_by_side(function: Any, arguments: Any) -> list[Any]:
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(CHAINS) as pool:
        return list(pool.map(function, arguments))


def _drawn(
    short: Program, data: dict[str, Any], key: Key[Array, ""], looks: int, between: int
) -> tuple[np.ndarray, np.ndarray]:
    """Whitened coordinates of the last draws of all short chains, one in so many steps, and the gradients there."""

    def chain(key: Key[Array, ""]) -> list[Any]:
        state, states = short.start(key, data), []
        for _ in range(STEPS // between):
            state, _ = short.block(state, data, between, False, 1, between)
            states.append((state.z["whitened"], state.z_grad["whitened"]))
        return states[-looks:]

    seen = [look for states in _side_by_side(chain, jax.random.split(key, CHAINS)) for look in states]
    points, slopes = (np.array(each) for each in zip(*seen, strict=True))
    return points, slopes


def _hessians(points: np.ndarray, problem: Problem, shapes: Shapes) -> np.ndarray:
    """At each of the points."""
    return np.array(_side_by_side(lambda point: np.asarray(_hessian(jnp.asarray(point), problem, shapes)), points))


@partial(jax.jit, static_argnames="shapes")
def _hessian(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "coordinate coordinate"]:
    return local_potential(problem, shapes)(point).hessian


def _spanning(hessian: np.ndarray, problem: Problem, shapes: Shapes) -> np.ndarray:
    """Columns that span the inverse of a Hessian whose eigenvalues are kept off 0."""
    stretch = np.asarray(stretched(shapes, problem.widths)[1])
    values, vectors = np.linalg.eigh(hessian * np.outer(stretch, stretch))
    return stretch[:, None] * vectors / np.sqrt(np.maximum(values, LEAST_CURVATURE))


def _by_heads(slopes: np.ndarray, stretch: Any, shapes: Shapes) -> Array:
    """Scale by the mean outer product of slopes in stretched coordinates, where that of the prior is 1/2.

    Of dense layers from head to head, the same of all rows and columns of a head; of others of each coordinate alone. Beyond
    `MOST_COORDINATES` of each coordinate alone everywhere, which takes no square of their number.
    """
    stretch, start = np.asarray(stretch), 0
    whole = len(stretch) <= MOST_COORDINATES
    scale = np.diag(stretch) if whole else stretch.copy()
    for shape in shapes:
        own = slice(start, start + shape.size)
        if shape.dense:
            places = start + shape.places.reshape(shape.heads, -1)
            root = _root(slopes[:, places], whole)
            # Of coordinate (head, place) and whitened coordinate (other head, the same place).
            if whole:
                scale[places[:, None], places[None]] = root[:, :, None] * stretch[places][:, None]
            else:
                scale[places] *= np.diag(root)[:, None]
        else:
            own_scale = stretch[own] / np.sqrt(_towards_mean(np.mean(slopes[:, own] ** 2, 0), len(slopes)))
            scale[(np.arange(own.start, own.stop),) * (2 if whole else 1)] = own_scale
        start = own.stop
    return jnp.asarray(scale)


def _root(slopes: Float[Array, "look head place"], whole: bool) -> Float[Array, "head head"]:
    """W with W W^T the inverse of the mean outer product of heads, shrunk to its diagonal where it is of few numbers."""
    looks, heads, places = slopes.shape
    mean = np.einsum("lhj,lgj->hg", slopes, slopes) / (looks * places)
    apart = np.diag(np.diag(mean))
    shrunk = (looks * places * mean + heads * apart) / (looks * places + heads) if whole else apart
    return np.linalg.inv(np.linalg.cholesky(shrunk)).T


def _towards_mean(squares: np.ndarray, looks: int) -> np.ndarray:
    """Mean squares of so many numbers each, as if one more of them were the mean of all."""
    return (looks * squares + squares.mean()) / (looks + 1)
