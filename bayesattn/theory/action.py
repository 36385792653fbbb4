"""The action whose minimum is the order parameter at large width (THEORY section 4)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import Checked, is_traced
from bayesattn.architecture import Architecture
from bayesattn.theory.kernels import symmetric
from bayesattn.theory.likelihood import Likelihood, likelihood_of
from bayesattn.theory.of_model import of_model


class Action(NamedTuple):
    """Energy and entropy, twice the exponents of likelihood and prior, and U_a; scalars."""

    energy: Float[Array, ""]
    entropy: Float[Array, ""]
    scalar_order_parameter: Float[Array, ""]


@of_model
def action(
    order_parameters: Sequence[Any],
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Checked,
    *,
    likelihood: Likelihood | None = None,
) -> Action:
    """Energy and entropy at any order parameters, the scalar one of the readout eliminated in closed form.

    energy = log det(K(U_1) + T I) + Y^T (K(U_1) + T I)^{-1} Y
    entropy = N_a (U_a / s_a^2 - log U_a) + sum_l N_l [tr(U_{l+1}^{-1} u_l) / s_l^2 - log det U_l + H_l log det U_{l+1}]
    with u_l the partial trace of U_l over its heads (THEORY section 4). It can be differentiated by `jax.grad`:
    the gradient in U_l is the symmetric one, by whose product with a symmetric change the action changes.

    Args:
        order_parameters: (U_1, .., U_L), symmetric positive definite; U_l has H_l x .. x H_L rows.
        path_inputs: xi of shape (P, Pi, N_0); a Model here stands for all that it holds.
        labels: Y of shape (P,).
        arch: the network.
        temperature: T, variance of the likelihood.
        likelihood: of these data, where it is at hand (`bayesattn.Model.likelihood`), so that it is not made again.

    Raises:
        ValueError: wrong shapes, entries that are not finite, matrices that are not symmetric positive definite.
    """
    given = likelihood_of(path_inputs, labels, arch, temperature, likelihood, once=True)
    checked = checked_order_parameters(order_parameters, arch)
    return _action(checked, given, np.array(arch.widths, float), np.array(arch.variances))


def checked_order_parameters(order_parameters: Sequence[Any], arch: Architecture) -> tuple[Any, ...]:
    """(U_1, .., U_L) as arrays; raises ValueError if they are not the order parameters of `arch`."""
    if len(order_parameters) != arch.depth:
        raise ValueError(f"order_parameters must be (U_1, .., U_L) with L = {arch.depth}, got {len(order_parameters)}")
    checked = []
    for layer, (matrix, size) in enumerate(zip(order_parameters, arch.order_parameter_sizes, strict=True)):
        name = f"order_parameters[{layer}]"
        matrix = symmetric(name, matrix, size)
        checked.append(matrix)
        if is_traced(matrix):
            continue
        smallest = np.linalg.eigvalsh(matrix)[0]
        if smallest <= 0:
            raise ValueError(f"{name} must be positive definite, got smallest eigenvalue {smallest:.3g}")
    return tuple(checked)


def scalar_order_parameter(
    top: Float[Array, "head head"], readout_width: Any, top_width: Any, readout_variance: Any, top_variance: Any
) -> Float[Array, ""]:
    """U_a that minimises the entropy given U_L: the positive root of a quadratic."""
    # N_a/s_a^2 U_a^2 + (N_L H_L - N_a) U_a - N_L tr(U_L)/s_L^2 = 0, solved without cancellation in either sign.
    quadratic = readout_width / readout_variance
    half_linear = (top_width * len(top) - readout_width) / 2
    constant = top_width * jnp.trace(top) / top_variance
    root = jnp.sqrt(half_linear**2 + quadratic * constant)
    return jnp.where(half_linear > 0, constant / (half_linear + root), (root - half_linear) / quadratic)


@jax.jit
def _action(order_parameters, likelihood: Likelihood, widths, variances) -> Action:
    energy = likelihood.energy_of(order_parameters[0])
    scalar = scalar_order_parameter(order_parameters[-1], widths[-1], widths[-2], variances[-1], variances[-2])
    entropy = widths[-1] * (scalar / variances[-1] - jnp.log(scalar))
    above = (*order_parameters[1:], scalar[None, None])
    for width, variance, lower, upper in zip(widths[:-1], variances[1:-1], order_parameters, above, strict=True):
        size, heads = len(upper), len(lower) // len(upper)
        partial_trace = jnp.einsum("hihj->ij", lower.reshape(heads, size, heads, size))
        quadratic = jnp.trace(jnp.linalg.solve(upper, partial_trace)) / variance
        log_dets = heads * jnp.linalg.slogdet(upper)[1] - jnp.linalg.slogdet(lower)[1]
        entropy += width * (quadratic + log_dets)
    return Action(energy, entropy, scalar)
