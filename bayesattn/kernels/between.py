"""Kernel between two sets of examples, weighted by an order parameter (THEORY section 3)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, finite_array, is_traced
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.kernels.path_inputs import OrderParameter, checked_path_inputs, input_scale


@with_own_settings
def kernel(
    order_parameter: Checked, path_inputs: Checked, other_path_inputs: Checked, arch: Architecture
) -> Float[Array, "label other_label"]:
    """Kernel `K(U)_{mu nu} = s_0^2 / (N_0 Pi) sum_{pi pi'} U^{pi pi'} xi^pi_mu . xi^pi'_nu` (THEORY section 2).

    In a network with skips, Pi in this prefactor is the product of the heads (THEORY section 8). JAX can trace and
    differentiate the kernel in all three arrays.

    Args:
        order_parameter: U, symmetric, shape (Pi, Pi), or (Pi m, Pi m) for m outputs.
        path_inputs: xi of shape (P, Pi, N_0).
        other_path_inputs: xi' of shape (P', Pi, N_0).
        arch: the network.

    Returns:
        Array of shape (P, P'), or (P m, P' m) between (example, output) pairs, outputs fastest.

    Raises:
        ValueError: wrong shapes, entries that are not finite, U that is not symmetric.
    """
    path_inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    other = checked_path_inputs("other_path_inputs", other_path_inputs, arch, features=path_inputs.shape[2])
    order_parameter = jnp.asarray(symmetric("order_parameter", order_parameter, arch.rows))
    scale = input_scale(arch.input_variance, *path_inputs.shape[1:])
    return _kernel(order_parameter, jnp.asarray(path_inputs), jnp.asarray(other), scale)


def symmetric(name: str, value: Checked, size: int) -> Float[Array | np.ndarray, "row row"]:
    """`value` as a symmetric matrix; raises ValueError if it is not."""
    matrix = finite_array(name, value, (size, size))
    if not is_traced(matrix) and not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-8 * np.abs(matrix).max()):
        raise BayesattnError(f"{name} must be symmetric, got entries that differ from their transpose")
    return matrix


@jax.jit
def _kernel(
    order_parameter: OrderParameter,
    path_inputs: Float[Array, "example path feature"],
    other: Float[Array, "other_example path feature"],
    scale: Checked,
) -> Float[Array, "label other_label"]:
    outputs = len(order_parameter) // path_inputs.shape[1]
    weights = order_parameter.reshape(path_inputs.shape[1], outputs, -1)
    mixed = jnp.einsum("epf,pcq->ecqf", path_inputs, weights).reshape(
        len(path_inputs) * outputs, -1, outputs, other.shape[2]
    )
    across = jnp.einsum("xpcf,epf->xec", mixed, other) * scale**2
    return across.reshape(len(mixed), -1)
