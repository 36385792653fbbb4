"""Action, whose minimum is the order parameter at large width (THEORY section 4)."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, is_traced
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels.conditionals import is_singular_of
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import symmetric
from bayesattn.theory.arguments import gaussian_density


class Action(NamedTuple):
    """Energy and entropy (twice the exponents of likelihood and prior), and U_a, a matrix if there are several outputs."""

    energy: Float[Array, ""]
    entropy: Float[Array, ""]
    scalar_order_parameter: Float[Array, "*outputs"]


@with_own_settings
def action(order_parameters: Sequence[object], model: Checked, *, temperature: Checked = None) -> Action:
    """Energy and entropy at any order parameters, with the readout's U_a eliminated in closed form.

    energy = log det(K(U_1) + T I) + Y^T (K(U_1) + T I)^{-1} Y
    entropy = N_a (U_a / s_a^2 - log U_a) + sum_l N_l [tr(U_{l+1}^{-1} u_l) / s_l^2 - log det U_l + H_l log det U_{l+1}]
    with u_l the partial trace of U_l over its heads (THEORY section 4). For m outputs, U_a is a matrix, which enters
    through its trace and log determinant. In a layer with a skip, the first block of U_l is H_l rho_l^2 U_{l+1}, u_l sums
    the blocks of its heads, and log det U_l is that of their covariance given the first block (THEORY section 8).

    JAX can trace and differentiate the action in the order parameters and the temperature. The gradient in U_l is
    symmetric: its product with a symmetric change of U_l is the change of the action.

    Args:
        order_parameters: (U_1, .., U_L), symmetric positive definite; U_l has H_l x .. x H_L rows or, with skips and m
            outputs, as many as `arch.order_parameter_sizes`.
        model: the posterior, a `bayesattn.Model` with Gaussian labels.
        temperature: T, variance of the likelihood, by default the model's.

    Raises:
        ValueError: not a model, or a model of classes; wrong shapes, entries that are not finite, matrices that are not
            symmetric positive definite, or whose block of a skip does not match the layer above; K(U_1) + T I that is
            singular in float64 (not checked if JAX traces an argument).
    """
    density, arch = gaussian_density(model, temperature), model.architecture
    checked = checked_order_parameters(order_parameters, arch)
    found = _action(
        checked, density, np.array(arch.widths, float), np.array(arch.variances), arch.heads, arch.skips, arch.outputs
    )
    if not is_traced(found.energy) and is_singular_of(density, jnp.asarray(checked[0])):
        raise BayesattnError(
            "temperature must be larger: K(U_1) + T I is singular in float64, and the energy would be rounding, got"
            f" temperature {float(density.temperature):g}"
        )
    return found


def number_or_matrix(matrix: Float[Array, "output output"]) -> Float[Array, "*outputs"]:
    """U_a in user-facing form: a number if there is one output."""
    return matrix[0, 0] if len(matrix) == 1 else matrix


def checked_order_parameters(
    order_parameters: Sequence[object], arch: Architecture
) -> tuple[Float[Array | np.ndarray, "_ _"], ...]:
    """(U_1, .., U_L) as arrays; raises ValueError if they are not the order parameters of `arch`."""
    if len(order_parameters) != arch.depth:
        raise BayesattnError(
            f"order_parameters must be (U_1, .., U_L) with L = {arch.depth}, got {len(order_parameters)}"
        )
    checked = []
    for layer, (matrix, size) in enumerate(zip(order_parameters, arch.order_parameter_sizes, strict=True)):
        name = f"order_parameters[{layer}]"
        matrix = symmetric(name, matrix, size)
        checked.append(matrix)
        if is_traced(matrix):
            continue
        smallest = np.linalg.eigvalsh(matrix)[0]
        if smallest <= 0:
            raise BayesattnError(f"{name} must be positive definite, got smallest eigenvalue {smallest:.3g}")
    for layer, (heads, skip) in enumerate(zip(arch.heads, arch.skips, strict=True)):
        if not skip or layer + 1 == arch.depth or any(map(is_traced, checked[layer : layer + 2])):
            continue
        above = heads * skip**2 * checked[layer + 1]
        if not np.allclose(
            checked[layer][: len(above), : len(above)], above, rtol=1e-6, atol=1e-6 * np.abs(above).max()
        ):
            raise BayesattnError(
                f"order_parameters[{layer}] must begin with a block of H rho^2 = {heads * skip**2:g} times"
                f" order_parameters[{layer + 1}], which its skip copies, got another"
            )
    return tuple(checked)


def scalar_order_parameter(
    top: Float[Array, "row row"],
    readout_width: Checked,
    top_width: Checked,
    readout_variance: Checked,
    top_variance: Checked,
    heads: int,
) -> Float[Array, "output output"]:
    """U_a that minimises the entropy given U_L without a skip: the positive root of a quadratic equation.

    N_a/s_a^2 U_a^2 + (N_L H_L - N_a) U_a - N_L u_L / s_L^2 = 0 with u_L the partial trace of U_L over its heads; U_a
    has the eigenvectors of u_L.
    """
    outputs = len(top) // heads
    values, vectors = jnp.linalg.eigh(_partial_trace(top, outputs))
    # No cancellation for either sign of the linear coefficient.
    quadratic = readout_width / readout_variance
    half_linear = (top_width * heads - readout_width) / 2
    constant = top_width * values / top_variance
    root = jnp.sqrt(half_linear**2 + quadratic * constant)
    roots = jnp.where(half_linear > 0, constant / (half_linear + root), (root - half_linear) / quadratic)
    return (vectors * roots) @ vectors.T


def _partial_trace(matrix: Array, size: int) -> Float[Array, "row row"]:
    """Sum of the diagonal blocks with `size` rows."""
    blocks = len(matrix) // size
    return jnp.einsum("hihj->ij", matrix.reshape(blocks, size, blocks, size))


@partial(jax.jit, static_argnames=("heads", "skips", "outputs"))
def _action(order_parameters, process: GaussianProcess, widths, variances, heads, skips, outputs) -> Action:
    energy, top = process.energy_of(order_parameters[0]), order_parameters[-1]
    if skips[-1]:
        scalar = top[:outputs, :outputs] / (heads[-1] * skips[-1] ** 2)
    else:
        scalar = scalar_order_parameter(top, widths[-1], widths[-2], variances[-1], variances[-2], heads[-1])
    entropy = widths[-1] * (jnp.trace(scalar) / variances[-1] - jnp.linalg.slogdet(scalar)[1])
    layers = zip(
        widths[:-1], variances[1:-1], order_parameters, (*order_parameters[1:], scalar), heads, skips, strict=True
    )
    for width, variance, lower, upper, count, skip in layers:
        size = len(upper)
        of_heads = lower[size:, size:] if skip else lower
        log_det = jnp.linalg.slogdet(lower)[1] - (jnp.linalg.slogdet(lower[:size, :size])[1] if skip else 0.0)
        quadratic = jnp.trace(jnp.linalg.solve(upper, _partial_trace(of_heads, size))) / variance
        entropy += width * (quadratic + count * jnp.linalg.slogdet(upper)[1] - log_det)
    return Action(energy, entropy, number_or_matrix(scalar))
