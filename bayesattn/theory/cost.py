"""What the theory of a model will cost, told before it is solved: form of the likelihood, memory, seconds."""

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
from bayesattn.theory.saddle_point import MOST_FOR_HESSIAN, whitened_action

NEWTON_STEPS, GRADIENTS, ROUGH_GRADIENTS = 20, 700, 60
"""That a search of a minimum is taken to need by the Hessian, by gradients, and by gradients where another goes on."""
EXPANSIONS = 8
"""Hessians that the expansion to first order in 1/N costs as much as."""
COMPILATION = 8.0
"""Seconds, on one core; less where compiled programs are kept."""


class Cost(NamedTuple):
    """What a model costs.

    The form of its likelihood, the coordinates of its order parameters, how their minimum is searched for ("Hessian" or
    "gradients"), seconds of a gradient, as measured here, about how many seconds the theory takes, and bytes at the least.
    """

    form: str
    coordinates: int
    search: str
    gradient: float
    seconds: float
    bytes: int


def cost(likelihood: GaussianProcess, arch: Architecture) -> Cost:
    """What the saddle point costs, and the expansion to first order in 1/N where there is one.

    Seconds are told from the time of a gradient, which is measured, and from numbers of operations: they are rough.
    """
    shapes, likelihood = layer_shapes(arch, full=True), compressed(likelihood, arch)
    examples, features, paths = _sizes(likelihood)
    size, form = sum(shape.size for shape in shapes), form_at(likelihood, shapes[0].columns)
    gradient, hessian = seconds_of(likelihood, arch, shapes)
    newton = size <= MOST_FOR_HESSIAN
    seconds = NEWTON_STEPS * hessian if newton else GRADIENTS * gradient
    if not too_many(shapes):
        seconds += EXPANSIONS * hessian
    held = bytes_needed(examples, paths, features, form, shapes, likelihood.outputs)
    return Cost(form, size, "Hessian" if newton else "gradients", gradient, COMPILATION + seconds, held)


def cost_of_mode(likelihood: GaussianProcess, arch: Architecture) -> Cost:
    """What it costs to prepare collapsed chains, as roughly; its gradient is that of the chains."""
    shapes, full, likelihood = layer_shapes(arch), layer_shapes(arch, full=True), compressed(likelihood, arch)
    examples, features, paths = _sizes(likelihood)
    size, form = sum(shape.size for shape in shapes), form_at(likelihood, shapes[0].columns)
    gradient, hessian = seconds_of(likelihood, arch, shapes)
    seconds = ROUGH_GRADIENTS * (gradient + (seconds_of(likelihood, arch, full)[0] if narrow(shapes) else 0.0))
    seconds += GRADIENTS * gradient if too_many(shapes) else NEWTON_STEPS * hessian
    held = bytes_needed(examples, paths, features, form, shapes, likelihood.outputs)
    return Cost(form, size, "gradients" if too_many(shapes) else "Hessian", gradient, COMPILATION + seconds, held)


def _sizes(likelihood: GaussianProcess) -> tuple[int, int, int]:
    """Labels, features, and paths of all outputs."""
    _, features, paths = likelihood.features.shape
    return likelihood.labels.size, features, paths * likelihood.outputs


def seconds_of(likelihood: GaussianProcess, arch: Architecture, shapes: Shapes) -> tuple[float, float]:
    """Of a gradient, as measured, and of a Hessian by numbers of operations."""
    examples, features, paths = _sizes(likelihood)
    columns, size = shapes[0].columns, sum(shape.size for shape in shapes)
    gradient = _seconds_of_gradient(likelihood, arch, shapes)
    entries = _entries(examples, paths, columns)
    work = 2 * examples * (paths * features) ** 2 + 4 * (entries * features) ** 2 + 4 * size * entries**2 + 10 * size**3
    of_gradient = operations(examples, paths, features, columns, likelihood.outputs)[
        form_at(likelihood, shapes[0].columns)
    ]
    return gradient, gradient * (1 + work / of_gradient)


def bytes_needed(examples: int, paths: int, features: int, form: str, shapes: Shapes, outputs: int = 1) -> int:
    """Of the data as they are held, what an energy takes, and the curvature where it is needed whole.

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
    """Of F or U, in whichever the energy is expanded."""
    return paths * (columns if expands_in_factor(examples, paths, columns) else paths)


def _seconds_of_gradient(likelihood: GaussianProcess, arch: Architecture, shapes: Shapes) -> float:
    """Of the action, the least of three."""
    problem, point = problem_of(likelihood, arch), jnp.zeros(sum(shape.size for shape in shapes))

    def timed() -> float:
        began = time.perf_counter()
        jax.block_until_ready(value_and_gradient(whitened_action, shapes, point, (problem,)))
        return time.perf_counter() - began

    timed()  # compiles
    return float(np.min([timed() for _ in range(3)]))
