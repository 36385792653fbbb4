"""Minimum of a smooth function, up to rounding of the gradient, by its Hessian or, in high dimensions, by gradients only."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import optimize

from bayesattn._util.checks import Checked

SMALLEST_CURVATURE = 1e-10
"""Smallest curvature along an eigenvector that a step uses, relative to the largest."""
ARMIJO = 1e-4
"""Share of the predicted decrease that a step must achieve."""
MOST_HALVINGS = 40
ROUNDING = 1e-12
"""Relative rise of the function that may be rounding."""
SINGULAR_ROUNDING = 1e-6
"""Relative rise that may be rounding if K + T I is nearly singular (`bayesattn.kernels.conditionals.LEAST_PIVOT`)."""


class Local(NamedTuple):
    """A function at a point: value, gradient, Hessian."""

    value: Float[Array, ""]
    gradient: Float[Array, " coordinate"]
    hessian: Float[Array, "coordinate coordinate"]


class Minimum(NamedTuple):
    """End of a search: the point, the function there, its largest slope (infinite unless finite), and the steps taken."""

    point: Float[Array, " coordinate"]
    local: Local
    gradient: Float[Array, ""]
    iterations: Int[Array, ""]


def minimum(
    function: Callable,
    local: Callable[[Array], Local],
    start: Float[Array, " coordinate"],
    max_steps: int,
    tolerance: float = 1e-11,
) -> Minimum:
    """Newton's method with a line search, along -|H|^{-1} g so that it leaves saddles (Dauphin et al. 2014).

    Near the minimum, differences of the function are lost in rounding, but those of the gradient are not. So a step is
    accepted if it does not raise the function by more than rounding or, if no step does that, if it lowers the
    gradient. The search ends when the gradient reaches `tolerance`, after `max_steps` steps, or when the gradient stops
    decreasing where the function no longer decreases.
    """

    def size(at: Local) -> Array:
        return jnp.max(jnp.abs(at.gradient))

    def go_on(state):
        step, _, at, stuck = state
        return (step < 0) | (step < max_steps) & (size(at) > tolerance) & ~stuck

    def newton_step(state):
        step, point, at, _ = state
        values, vectors = jnp.linalg.eigh(at.hessian)
        curvature = jnp.maximum(jnp.abs(values), SMALLEST_CURVATURE * jnp.max(jnp.abs(values)))
        direction = -vectors @ ((vectors.T @ at.gradient) / curvature)
        fall = at.gradient @ direction
        slack = ROUNDING * (1 + jnp.abs(at.value))

        def too_long(search):
            halvings, length = search
            value = function(point + length * direction)
            return (halvings < MOST_HALVINGS) & ~(value <= at.value + ARMIJO * length * fall + slack)

        halvings, length = jax.lax.while_loop(too_long, lambda s: (s[0] + 1, s[1] / 2), (0, jnp.ones(())))
        # If no part of the step lowers the function, or none could by more than rounding, the gradient decides.
        lost = halvings == MOST_HALVINGS
        new_point = point + jnp.where(lost, 1.0, length) * direction
        new = local(new_point)
        as_low = new.value <= at.value + SINGULAR_ROUNDING * (1 + jnp.abs(at.value))
        stuck = (step >= 0) & (lost | (-fall < slack)) & ~(as_low & (size(new) < size(at)))
        kept = jax.tree.map(lambda ours, theirs: jnp.where(stuck, ours, theirs), (point, at), (new_point, new))
        return step + 1, *kept, stuck

    # Step -1 only evaluates the start, so that `local`, which is most of the program, is compiled once.
    nowhere = Local(jnp.array(jnp.inf), jnp.zeros_like(start), jnp.eye(len(start)))
    steps, point, at, _ = jax.lax.while_loop(go_on, newton_step, (jnp.array(-1), start, nowhere, jnp.array(False)))
    return Minimum(point, at, jnp.where(jnp.isfinite(size(at)), size(at), jnp.inf), steps)


LBFGS_MEMORY = 50
"""Number of steps that L-BFGS remembers."""
LBFGS_STEPS_PER_NEWTON_STEP = 10
"""Number of L-BFGS steps that count as one Newton step."""
CONJUGATE_TOLERANCE, MOST_CONJUGATE_STEPS = 1e-2, 300
"""Relative residual, and most steps, of conjugate gradients for a Newton step."""


class LbfgsResult(NamedTuple):
    """End of a search without the Hessian: the point, the function and its largest slope there, and the gradients used."""

    point: Float[Array, " coordinate"]
    value: float
    gradient: float
    iterations: int


def minimum_by_gradients(
    function: Callable[..., Array],
    data: tuple[object, ...],
    shapes: Checked,
    start: Checked,
    max_steps: int,
    tolerance: float,
) -> LbfgsResult:
    """L-BFGS until the function is lost in rounding, then Newton steps as long as they decrease the gradient.

    Args:
        function: module-level function of a point, the data and the shapes.
        data: further arrays that are arguments of the function.
        shapes: static argument, on which the compiled program depends.
        start: start of the search.
        max_steps: most Newton steps, each of which counts as `LBFGS_STEPS_PER_NEWTON_STEP` L-BFGS steps.
        tolerance: largest slope at which the search ends, relative to that at the start.
    """

    def numbers(point: Checked) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(function, shapes, jnp.asarray(point), data)
        return float(value), np.asarray(gradient)

    tolerance *= max(np.max(np.abs(numbers(start)[1])), 1e-3)
    options = {
        "maxcor": LBFGS_MEMORY,
        "maxiter": LBFGS_STEPS_PER_NEWTON_STEP * max_steps,
        "maxfun": 2 * LBFGS_STEPS_PER_NEWTON_STEP * max_steps,
    }
    rough = optimize.minimize(
        numbers, start, jac=True, method="L-BFGS-B", options=options | {"ftol": 0.0, "gtol": tolerance, "maxls": 40}
    )
    point, value, gradient, taken = rough.x, float(rough.fun), np.asarray(rough.jac), int(rough.nfev)
    for _ in range(max_steps):
        if not np.max(np.abs(gradient)) > tolerance:
            break
        nearer = point + np.asarray(
            _newton_direction(function, shapes, jnp.asarray(point), jnp.asarray(gradient), data)
        )
        value_there, there = numbers(nearer)
        taken += 1
        if not np.max(np.abs(there)) < np.max(np.abs(gradient)):
            break
        point, value, gradient = nearer, value_there, there
    largest = float(np.max(np.abs(gradient)))
    return LbfgsResult(jnp.asarray(point), value, largest if np.isfinite(largest) else np.inf, taken)


@partial(jax.jit, static_argnums=(0, 1))
def value_and_gradient(function, shapes, point, data):
    """Value and gradient of a function as in `minimum_by_gradients`."""
    return jax.value_and_grad(function)(point, *data, shapes)


@partial(jax.jit, static_argnums=(0, 1))
def _newton_direction(function, shapes, point, gradient, data):
    """-H^{-1} g by conjugate gradients."""
    curved = jax.linearize(lambda p: jax.grad(function)(p, *data, shapes), point)[1]
    return jax.scipy.sparse.linalg.cg(curved, -gradient, tol=CONJUGATE_TOLERANCE, maxiter=MOST_CONJUGATE_STEPS)[0]


@partial(jax.jit, static_argnums=(0, 1))
def hessian_times(function, shapes, direction, point, data):
    """Product of the Hessian of a function as in `minimum_by_gradients` with a vector."""
    return jax.jvp(lambda p: jax.grad(function)(p, *data, shapes), (point,), (direction,))[1]
