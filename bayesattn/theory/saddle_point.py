"""Order parameter at large width: minimum of the action (THEORY section 4)."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayesattn._util.checks import Checked, positive, positive_integer, shown
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import as_html, as_text
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels.conditionals import LEAST_PIVOT, is_singular
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.gaussian_process import GaussianProcess, ResidualExamples
from bayesattn.kernels.path_inputs import Number
from bayesattn.theory.action import number_or_matrix
from bayesattn.theory.arguments import gaussian_density, refuse_traced, require_gaussian_model
from bayesattn.theory.bartlett import layer_shapes, split, unwhiten
from bayesattn.theory.minimise import LBFGS_STEPS_PER_NEWTON_STEP, minimum, minimum_by_gradients
from bayesattn.theory.potential import Problem, problem_of, with_derivatives

GRADIENT_TOLERANCE = 1e-8
"""Largest relative gradient of a solution that counts as converged."""
SERVED_PIVOT = 1e4
"""Least pivot of K + T I, in units of the least that is called regular, at which every search reached its tolerance.

Below, rounding of the gradient may be 1e-6: with OpenBLAS's code for four processors, 35 of 144 searches at 10 to 10,000
times the least failed, and none of 144 above.
"""
ROUGH_GRADIENT_TOLERANCE = 1e-3
"""Tolerance of `rough_saddle_point` with many coordinates; the result then only starts another search."""
STARTS, STEP_OF_STARTS = 5, 2.0
"""Starts that are tried, and by how much the logarithm of U of each layer is larger at one than at the one before."""
LARGE_LABEL_RATIO = 1e3
"""Ratio of the labels' size to the size that the prior expects, above which labels are a likely cause of failure."""
MOST_COORDINATES_FOR_HESSIAN = 1000
"""Most coordinates of a search with the Hessian; larger searches (from about 45 paths in two layers) use gradients alone."""
NUMBERS_SHOWN = 4
"""Most numbers that the text of a saddle point shows."""
SMALLEST_GRADIENT_SCALE = 1e-3
"""Floor of the denominator of the relative gradient: an energy with a smaller gradient hardly changes the prior."""


class SaddlePoint(NamedTuple):
    """Minimum of the action. With several networks or temperatures, every array has a leading batch axis.

    `order_parameter` is U = U_1, `order_parameters` are U_1, .., U_L, and `scalar_order_parameter` is U_a, a number, or
    a matrix for several outputs. `gradient_norm` is relative: the largest entry of the action's gradient, divided
    by the largest entry of the energy's gradient. (At the minimum, the gradients of energy and entropy cancel.) Both
    gradients are in whitened coordinates (`bayesattn.theory.bartlett.unwhiten`).
    `point` is the minimum in the coordinates of `bayesattn.theory.bartlett`.
    """

    order_parameter: Array
    order_parameters: tuple[Array, ...]
    scalar_order_parameter: Array
    energy: Array
    entropy: Array
    gradient_norm: Array
    iterations: Array
    converged: bool | Bool[Array | np.ndarray, "*batch"]
    point: Array

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        if np.ndim(self.energy):
            reached = f"{int(np.sum(self.converged))} of {len(self.energy)} converged"
            batch = {"energy": _shortened(self.energy), "entropy": _shortened(self.entropy)}
            return f"SaddlePoint of {len(self.energy)} networks: {reached}", batch
        own = np.diag(self.order_parameter)
        greatest = np.argsort(-own, kind="stable")[:NUMBERS_SHOWN]
        outputs = len(np.atleast_2d(self.scalar_order_parameter))
        entries = ", ".join(f"{own[row]:.4g} ({_row_name(row, outputs)})" for row in greatest)
        which = "greatest" if len(own) > NUMBERS_SHOWN else "all"
        rows = {
            "energy": f"{float(self.energy):.6g}, entropy {float(self.entropy):.6g}",
            "U": f"{len(own)} x {len(own)}; {which} entries on its diagonal: {entries}",
            "gradient": f"{float(self.gradient_norm):.1e} of the energy's, after {int(self.iterations)} steps",
        }
        return f"SaddlePoint: {'converged' if self.converged else 'NOT converged'}", rows


def _row_name(row: int, outputs: int) -> str:
    """Name of a row of U: a path, and an output if there are several, outputs fastest."""
    path = f"path {row // outputs + 1}"
    return path if outputs == 1 else f"{path}, output {row % outputs + 1}"


def _shortened(values: Checked) -> str:
    """First few numbers as text, with dots if there are more."""
    return ", ".join(f"{value:.6g}" for value in values[:NUMBERS_SHOWN]) + (
        ", .." if len(values) > NUMBERS_SHOWN else ""
    )


class NotConverged(RuntimeError):
    """The search stopped before its gradient was small enough; `.solution` is the point at which it stopped."""

    def __init__(self, message: str, solution: Checked):
        super().__init__(message)
        self.solution = solution


@with_own_settings
def gp_order_parameter(arch: Architecture) -> Float[Array, "path path"]:
    """U at infinite width: s_a^2 prod_l s_l^2 times the identity (THEORY section 4), of shape (Pi m, Pi m).

    A skip on a path contributes H_l rho_l^2 in place of s_l^2 (THEORY section 8).
    """
    return jnp.asarray(np.diag(np.repeat(arch.path_variances, arch.outputs)))


@with_own_settings
def solve(
    model: Checked, *, arch: Checked = None, temperature: Checked = None, max_steps: int = 200, throw: bool = True
) -> SaddlePoint:
    """Minimise the action from the GP limit (THEORY section 4).

    Args:
        model: the posterior, a `bayesattn.Model` with Gaussian labels.
        arch: another network, or several networks with the same heads, solved in one call; by default the model's.
        temperature: one T for all networks, or a list with one per network. With one network, a list solves it at each T.
            By default the model's.
        max_steps: most Newton steps. With more than 1000 coordinates, L-BFGS is used, and ten of its steps count as one.
        throw: whether to raise NotConverged on failure; otherwise `.converged` is False.

    Raises:
        ValueError: not a model, or a model whose likelihood is not Gaussian; networks with different heads, a temperature
            that is not above 0 or that JAX traces.
        NotConverged: the relative gradient stayed above 1e-8.
    """
    require_gaussian_model(model)
    refuse_traced("solve", temperature=temperature)
    positive_integer("max_steps", max_steps)
    networks = list(arch) if isinstance(arch, Sequence) else [model.architecture if arch is None else arch]
    batched = isinstance(arch, Sequence) or np.ndim(temperature) > 0
    for network in networks:
        if not isinstance(network, Architecture):
            raise BayesattnError(f"arch must be a bayesattn.Architecture or a list of them, got {shown(network)}")
    temperatures = [
        positive("temperature", t) for t in np.ravel(model.temperature if temperature is None else temperature)
    ]
    if (
        not networks
        or not temperatures
        or 1 != min(len(networks), len(temperatures)) != max(len(networks), len(temperatures))
    ):
        raise BayesattnError(
            f"arch and temperature must match, got {len(networks)} networks and {len(temperatures)} temperatures"
        )
    count = max(len(networks), len(temperatures))
    networks, temperatures = networks * (count // len(networks)), temperatures * (count // len(temperatures))
    if len({(net.heads, net.ways, net.outputs, net.variances[0]) for net in networks}) > 1:
        raise BayesattnError(
            "networks solved in one call must have the same heads, outputs and input variance s_0^2, and skips in the same"
            " layers"
        )
    density = gaussian_density(model if arch is None else model.replace(architecture=networks[0]))
    solutions = _solved(density, networks, temperatures, max_steps, throw)
    return _stacked(solutions) if batched else solutions[0]


def saddle_point(process: GaussianProcess, arch: Architecture, max_steps: int = 200, throw: bool = True) -> SaddlePoint:
    """`solve` of one network, given the Gaussian process of the training set, at the process's own T."""
    return _solved(process, [arch], [process.temperature], max_steps, throw)[0]


def rough_saddle_point(process: GaussianProcess, arch: Architecture, max_steps: int = 200) -> SaddlePoint:
    """A point near the saddle point of a Gaussian process, at which another search starts, converged or not."""
    shapes = layer_shapes(arch, full=True)
    if sum(shape.size for shape in shapes) <= MOST_COORDINATES_FOR_HESSIAN:
        return saddle_point(process, arch, max_steps, throw=False)
    return _solve_large(problem_of(process, arch), shapes, max_steps, ROUGH_GRADIENT_TOLERANCE)


def _stacked(solutions: Sequence[SaddlePoint]) -> SaddlePoint:
    """Solutions with a leading batch axis."""
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *solutions)
    return stacked._replace(converged=np.asarray(stacked.converged))


def _solved(
    process: GaussianProcess,
    networks: Sequence[Architecture],
    temperatures: Sequence[Number],
    max_steps: int,
    throw: bool,
) -> list[SaddlePoint]:
    """Solve each network in turn with the same compiled program; `vmap` would make all run as long as the slowest."""
    process = compressed(process, networks[0])
    shapes = layer_shapes(networks[0], full=True)
    search = _solve if sum(shape.size for shape in shapes) <= MOST_COORDINATES_FOR_HESSIAN else _solve_large
    problems = (problem_of(process.at(t), network) for t, network in zip(temperatures, networks, strict=True))
    results = (search(problem, shapes, max_steps) for problem in problems)
    solutions = [solution._replace(converged=bool(solution.converged)) for solution in results]
    if throw and not all(solution.converged for solution in solutions):
        failures = [number for number, solution in enumerate(solutions) if not solution.converged]
        worst = max(failures, key=lambda number: np.nan_to_num(float(solutions[number].gradient_norm), nan=np.inf))
        failed, which = solutions[worst], f" of network {worst + 1} of {len(solutions)}" if len(solutions) > 1 else ""
        raise NotConverged(
            f"the saddle point{which} was not found: relative gradient {float(failed.gradient_norm):.1e} after"
            f" {int(failed.iterations)} steps, expected at most {GRADIENT_TOLERANCE:.0e};"
            f" {likely_cause(process.at(temperatures[worst]), networks[worst])}",
            _stacked(solutions) if len(solutions) > 1 else failed,
        )
    return solutions


def likely_cause(process: GaussianProcess, arch: Architecture) -> str:
    """Likely cause of a failed search for the minimum, judged in the GP limit, and advice."""
    process = compressed(process, arch)
    residual, temperature = process.residual or ResidualExamples(0, 0.0), float(process.temperature)
    kernel = np.asarray(process.kernel_of(gp_order_parameter(arch)))
    eigenvalues, rounding = np.linalg.eigvalsh(kernel), len(kernel) * np.finfo(float).eps
    labels, least = len(kernel) + residual.examples * arch.outputs, LEAST_PIVOT * rounding * np.max(np.diag(kernel))
    if eigenvalues[0] + temperature < least:
        rank = int(np.sum(eigenvalues > 10 * rounding * eigenvalues[-1]))
        return (
            f"K + T I is singular in float64: K has rank {rank} for {labels} labels (duplicated or linearly dependent"
            f" examples), and temperature {temperature:.1g} is too small to make up for it; raise it above {least:.1g},"
            f" or above {SERVED_PIVOT * least:.1g} to be sure that a search for saddle point or mode ends"
        )
    square = np.sum(np.square(process.labels)) + residual.square
    excess = np.sqrt(square / (np.sum(eigenvalues) + labels * temperature))
    if excess > LARGE_LABEL_RATIO:
        return f"labels are {excess:.1g} times larger than the prior expects; rescale them, or raise the variances"
    if eigenvalues[0] + temperature < SERVED_PIVOT * least:
        return (
            "K + T I is nearly singular in float64, and rounding may end a search early; raise the temperature above"
            f" {SERVED_PIVOT * least:.1g}"
        )
    return "raise max_steps or the temperature"


@jax.custom_jvp
def _exponential_remainder(x: Array) -> Array:
    """exp(x) - 1 - x, with a derivative that is precise near 0, where x lies at large width.

    JAX would differentiate it to exp(x) - 1, which cancels near 0; here the derivative is expm1(x).
    """
    return jnp.expm1(x) - x


@_exponential_remainder.defjvp
def _exponential_remainder_jvp(primals, tangents):
    return _exponential_remainder(primals[0]), jnp.expm1(primals[0]) * tangents[0]


def _entropy(whitened, shapes, widths, variances) -> Float[Array, ""]:
    """Entropy term of the action at a point w of whitened coordinates (THEORY section 4)."""
    # In Bartlett coordinates it is a sum over entries of C = B / sqrt(N):
    # sum_l N_l (|C_l|^2 - 2 sum_i log C_ii - dim_l log s_l^2), the readout being layer L + 1.
    # In w, C_ii^2 = exp(x) with x = w_ii / sqrt(N), so N (C_ii^2 - 2 log C_ii) = N (exp(x) - x); and N C_ij^2 = w_ij^2 / 2.
    total = jnp.zeros(())
    for shape, width, variance, (diagonal, below) in zip(
        shapes, widths, variances[1:], split(whitened, shapes), strict=True
    ):
        total += width * jnp.sum(1 + _exponential_remainder(diagonal / jnp.sqrt(width))) + jnp.sum(below**2) / 2
        total -= width * shape.rows * jnp.log(variance)
    return total


def _energy(whitened, problem: Problem, shapes) -> Float[Array, ""]:
    """Energy of the labels at a point of whitened coordinates."""
    return problem.process.energy(problem.factor(unwhiten(whitened, shapes, problem.widths), shapes))


def whitened_action(whitened, problem: Problem, shapes) -> Float[Array, ""]:
    """Sum of energy and entropy at a point of whitened coordinates."""
    return _energy(whitened, problem, shapes) + _entropy(whitened, shapes, problem.widths, problem.variances)


@partial(jax.jit, static_argnames="shapes")
def _solve(problem: Problem, shapes, max_steps) -> SaddlePoint:
    """Saddle point by Newton's method, from the GP limit."""

    def factor(whitened):
        return problem.factor(unwhiten(whitened, shapes, problem.widths), shapes)

    def entropy(whitened):
        return _entropy(whitened, shapes, problem.widths, problem.variances)

    local = with_derivatives(problem.process, factor, 1.0, entropy)
    best, _, gradient, iterations = minimum(
        lambda w: whitened_action(w, problem, shapes), local, _start(problem, shapes), max_steps
    )
    return _solution(best, gradient, iterations, problem, shapes)


def _start(problem: Problem, shapes) -> Array:
    """The GP limit, or that many times larger at which the action is least.

    Of labels far larger than the prior expects, a search from the GP limit itself ended at different minima of a narrow
    network with OpenBLAS's code for different processors.
    """
    starts = []
    for shape, width in zip(shapes, problem.widths, strict=True):
        starts += [jnp.full(shape.diagonal, jnp.sqrt(width)), jnp.zeros(shape.size - shape.diagonal)]
    along = jnp.concatenate(starts)
    scales = jnp.arange(STARTS) * STEP_OF_STARTS

    def action(scale):
        start = scale * along
        singular = problem.singular(unwhiten(start, shapes, problem.widths), shapes)
        return jnp.where(singular, jnp.inf, whitened_action(start, problem, shapes))

    actions = jax.lax.map(action, scales)
    return scales[jnp.argmin(actions)] * along


def _solve_large(problem: Problem, shapes, max_steps, tolerance=GRADIENT_TOLERANCE / 10) -> SaddlePoint:
    """Saddle point by L-BFGS and, at its end, Newton steps by conjugate gradients; the Hessian would need Pi^4 numbers."""
    point, taken = np.zeros(sum(shape.size for shape in shapes)), 0
    # A second search starts where the first ended, because the tolerance of the first was relative to the slope at its
    # start, which may be far larger.
    for _ in range(2):
        end = minimum_by_gradients(whitened_action, (problem,), shapes, point, max_steps, tolerance)
        point, taken = end.point, taken + end.iterations
        solution = _compiled_solution(point, end.gradient, taken, problem, shapes)
        if (
            solution.converged
            or tolerance == ROUGH_GRADIENT_TOLERANCE
            or taken >= LBFGS_STEPS_PER_NEWTON_STEP * max_steps
        ):
            break
    return solution


def _solution(best, gradient, iterations, problem: Problem, shapes) -> SaddlePoint:
    """Result from a point in whitened coordinates and `gradient`, the largest entry of the action's gradient there."""
    slope = jax.grad(_energy)(best, problem, shapes)
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)), SMALLEST_GRADIENT_SCALE)
    point = unwhiten(best, shapes, problem.widths)
    factors = problem.factors(point, shapes)
    norm = jnp.where(is_singular(problem.process, factors[0]), jnp.inf, norm)
    order_parameters = tuple(factor @ factor.T for factor in factors)
    return SaddlePoint(
        order_parameters[0],
        order_parameters[:-1],
        number_or_matrix(order_parameters[-1]),
        _energy(best, problem, shapes),
        _entropy(best, shapes, problem.widths, problem.variances),
        norm,
        jnp.asarray(iterations),
        norm <= GRADIENT_TOLERANCE,
        point,
    )


_compiled_solution = jax.jit(_solution, static_argnames="shapes")
