"""Estimated cost of the theory of a model before it is solved: form of the kernel, memory, seconds."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayesattn.architecture import Architecture
from bayesattn.kernels.choice import compressed, expands_in_factor, form_at, operations
from bayesattn.kernels.expansions import BLOCK_BYTES
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.theory.bartlett import layer_shapes, narrow
from bayesattn.theory.minimise import value_and_gradient
from bayesattn.theory.problem import Shapes, problem_of, too_many
from bayesattn.theory.saddle_point import MOST_COORDINATES_FOR_HESSIAN, whitened_action

NEWTON_STEPS, LAST_HESSIANS, GRADIENTS, ROUGH_GRADIENTS = 20, 3, 700, 60
"""Assumed Newton steps of a search by the Hessian, Hessians after one by gradients, and gradients of such a search and of a
rough first one."""
HESSIANS_PER_EXPANSION = 8
"""Number of Hessians that cost as much as the expansion to first order in 1/N."""
COMPILATION_SECONDS = 8.0
"""Seconds of compilation on one core; less if compiled programs are cached."""


class Cost(NamedTuple):
    """Cost of a model.

    The form of its kernel, the number of coordinates of its order parameters, how their minimum is searched
    for ("Hessian" or "gradients"), measured seconds of a gradient, approximate seconds of the theory, and a lower
    bound on bytes.
    """

    form: str
    coordinates: int
    search: str
    gradient: float
    seconds: float
    bytes: int


def cost(process: GaussianProcess, arch: Architecture) -> Cost:
    """Cost of the saddle point, and of the expansion to first order in 1/N if there is one.

    Seconds are rough estimates from the measured time of a gradient and from numbers of operations.
    """
    shapes, process = layer_shapes(arch, full=True), compressed(process, arch)
    gradient, hessian = seconds_of(process, arch, shapes)
    newton = sum(shape.size for shape in shapes) <= MOST_COORDINATES_FOR_HESSIAN
    seconds = NEWTON_STEPS * hessian if newton else GRADIENTS * gradient
    if not too_many(shapes):
        seconds += HESSIANS_PER_EXPANSION * hessian
    return _cost(process, shapes, newton, gradient, seconds)


def cost_of_mode(process: GaussianProcess, arch: Architecture) -> Cost:
    """Cost of preparing collapsed chains in many coordinates, as rough as `cost`; its gradient is that of the chains."""
    shapes, full, process = layer_shapes(arch), layer_shapes(arch, full=True), compressed(process, arch)
    gradient, hessian = seconds_of(process, arch, shapes)
    seconds = GRADIENTS * gradient + (0.0 if too_many(shapes) else LAST_HESSIANS * hessian)
    if narrow(shapes):
        seconds += ROUGH_GRADIENTS * seconds_of(process, arch, full)[0]
    return _cost(process, shapes, False, gradient, seconds)


def _cost(process: GaussianProcess, shapes: Shapes, newton: bool, gradient: float, seconds: float) -> Cost:
    """Cost of a search that takes `seconds`, to which compilation is added."""
    examples, features, paths = _sizes(process)
    size, form = sum(shape.size for shape in shapes), form_at(process, shapes[0].columns)
    memory = bytes_needed(examples, paths, features, form, shapes, process.outputs)
    return Cost(form, size, "Hessian" if newton else "gradients", gradient, COMPILATION_SECONDS + seconds, memory)


def _sizes(process: GaussianProcess) -> tuple[int, int, int]:
    """Number of labels, of features, and of paths times outputs."""
    _, features, paths = process.features.shape
    return process.labels.size, features, paths * process.outputs


def seconds_of(process: GaussianProcess, arch: Architecture, shapes: Shapes) -> tuple[float, float]:
    """Seconds of a gradient, measured, and of a Hessian, from numbers of operations."""
    examples, features, paths = _sizes(process)
    columns, size = shapes[0].columns, sum(shape.size for shape in shapes)
    gradient = _seconds_of_gradient(process, arch, shapes)
    entries = _entries(examples, paths, columns)
    work = 2 * examples * (paths * features) ** 2 + 4 * (entries * features) ** 2 + 4 * size * entries**2 + 10 * size**3
    of_gradient = operations(examples, paths, features, columns, process.outputs)[form_at(process, columns)]
    return gradient, gradient * (1 + work / of_gradient)


def bytes_needed(examples: int, paths: int, features: int, form: str, shapes: Shapes, outputs: int = 1) -> int:
    """Bytes of the data in memory, of an energy, and of the curvature if all of it is needed.

    `examples` counts labels and `paths` rows of U, of all outputs.
    """
    columns, size = shapes[0].columns, sum(shape.size for shape in shapes)
    numbers = 2 * examples * features * paths // outputs**2
    if form == "pairs":
        numbers += paths * (paths + 1) // 2 * examples * (examples + 1) // 2
    rows = columns * features if form == "feature_space" else examples
    numbers += 4 * rows**2 + (0 if form == "pairs" else 2 * examples * columns * features)
    if not too_many(shapes):
        numbers += 3 * _entries(examples, paths, columns) ** 2 + 4 * size**2
        numbers += 2 * min(BLOCK_BYTES // 8, (paths * features) ** 2)
    return 8 * numbers


def _entries(examples: int, paths: int, columns: int) -> int:
    """Number of entries of the matrix in which the energy is expanded, F or U."""
    return paths * (columns if expands_in_factor(examples, paths, columns) else paths)


def _seconds_of_gradient(process: GaussianProcess, arch: Architecture, shapes: Shapes) -> float:
    """Seconds of a gradient of the action, the least of three measurements."""
    problem, point = problem_of(process, arch), jnp.zeros(sum(shape.size for shape in shapes))

    def timed() -> float:
        began = time.perf_counter()
        jax.block_until_ready(value_and_gradient(whitened_action, shapes, point, (problem,)))
        return time.perf_counter() - began

    timed()  # compiles
    return float(np.min([timed() for _ in range(3)]))
