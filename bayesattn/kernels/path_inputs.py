"""Path inputs and labels in the form that kernels need, checked and scaled; their products with U, its factors and readouts.

With several outputs, there is one label per (example, output) pair and one row of U per (path, output) pair, with
outputs fastest in both. One output is the case m = 1; user-facing results then have no axis of outputs
(`without_single_output`).
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import Checked, finite_array, is_traced, labels_array
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError, ContradictoryLabels

PIVOT_ROUNDING = 10.0
"""A pivot may be only rounding if it is below this multiple of the largest pivot's rounding."""

Features = Float[Array, "example feature path"]
Factor = Float[Array, "row column"]
OrderParameter = Float[Array, "row row"]
Number = float | Float[Array, ""]
"""A number such as the temperature, or a scalar array, which JAX may trace."""
Values = TypeVar("Values", Array, np.ndarray)


def checked_path_inputs(
    name: str, value: Checked, arch: Architecture, features: int | str = "features"
) -> Float[Array | np.ndarray, "example path feature"]:
    """`value` as path inputs of `arch`; raises ValueError if it does not have the right form."""
    if not isinstance(arch, Architecture):
        raise BayesattnError(f"arch must be a bayesattn.Architecture, got {type(arch).__name__}")
    array = finite_array(name, value, ("examples", "paths", features))
    require_paths(name, array, arch)
    return array


def require_paths(name: str, array: Checked, arch: Architecture) -> None:
    """Raise ValueError if path inputs of shape (P, Pi, N_0) have another number of paths than the network."""
    if array.shape[1] != arch.paths:
        raise BayesattnError(
            f"{name} must have {arch.paths} paths on axis 1 (the product of"
            f" {f'heads {arch.heads}' if arch.ways == arch.heads else f'heads and skips {arch.ways}'}),"
            f" got shape {array.shape}: bayesattn.attention.path_inputs and paths_from_matrices make path inputs of tokens"
        )


def checked_labels(
    name: str, value: Checked, examples: int, arch: Architecture
) -> Float[Array | np.ndarray, " *labels"]:
    """`value` as labels, shape (P,), or (P, m) for several outputs; raises ValueError if it has another form."""
    return labels_array(name, value, examples, arch.outputs)


def refuse_contradictions(path_inputs: Checked, labels: Checked, scale: Checked, temperature: Checked) -> None:
    """Raise ValueError if equal examples have different labels and the temperature is negligible beside their kernel.

    K + T I is then singular in float64, and results computed from it are only rounding. The kernel is `scale` times the
    products of path inputs, summed over paths. Arrays that JAX traces are not checked.
    """
    if any(map(is_traced, (path_inputs, labels, temperature))):
        return
    path_inputs, labels = np.asarray(path_inputs), np.reshape(labels, (len(path_inputs), -1))
    flat = np.reshape(path_inputs, (len(path_inputs), -1))
    own = scale * np.einsum("ef,ef->e", flat, flat)
    lost = PIVOT_ROUNDING * len(own) * np.finfo(float).eps * own.max()
    if temperature >= lost:
        return
    same = own[:, None] + own - 2 * scale * (flat @ flat.T) <= lost
    apart = np.max(np.abs(labels[:, None] - labels), axis=2) > np.sqrt(lost)
    if len(pairs := np.argwhere(same & apart)):
        first, second = pairs[0]
        got = " and ".join(", ".join(f"{label:g}" for label in labels[example]) for example in (first, second))
        raise ContradictoryLabels(
            f"labels of examples {first} and {second} must be equal, because their path inputs are, or the temperature"
            f" must be above {lost:.1g}, below which float64 cannot tell it from 0; got {got} at temperature"
            f" {temperature:g}"
        )


def input_scale(input_variance: Checked, paths: int, features: int) -> Any:
    """s_0 / sqrt(N_0 Pi), the factor of path inputs in the network's output."""
    return (input_variance / (features * paths)) ** 0.5


def scaled_features(path_inputs: Checked, input_variance: Number) -> Features:
    """Path inputs of shape (P, Pi, N_0) times s_0 / sqrt(N_0 Pi), with paths last, so that a matrix product mixes them."""
    scale = input_scale(input_variance, *path_inputs.shape[1:])
    if isinstance(path_inputs, np.ndarray) and not is_traced(scale):  # Nothing to compile.
        return jnp.asarray(np.swapaxes(path_inputs, 1, 2) * scale)
    return _scaled(path_inputs, scale)


@jax.jit
def _scaled(path_inputs: Checked, scale: Checked) -> Array:
    return jnp.swapaxes(path_inputs, 1, 2) * scale


def mixed(features: Features, factor: Factor, outputs: int) -> Float[Array, "label mixed_column"]:
    """X F, one row per label; rows of F are (path, output) pairs, columns of X F are (feature, column of F) pairs."""
    # Two axes, because the derivative of a product with a three-dimensional array is slow.
    product = features.reshape(-1, features.shape[2]) @ factor.reshape(features.shape[2], -1)
    by_output = product.reshape(len(features), -1, outputs, factor.shape[1])
    return jnp.swapaxes(by_output, 1, 2).reshape(len(features) * outputs, -1)


def by_label(features: Features, outputs: int) -> Float[Array, "label feature row"]:
    """Path inputs of each label, with one column per path and output; those of other outputs are 0."""
    examples, size, paths = features.shape
    return jnp.einsum("efp,cd->ecfpd", features, jnp.eye(outputs)).reshape(examples * outputs, size, paths * outputs)


def outputs_of(
    features: Features, readout: Float[Array, "row feature"], outputs: int
) -> Float[Array, "example output"]:
    """f at scaled path inputs for a readout g: the sum over paths of g^pi . xi^pi, for each output."""
    by_output = jnp.moveaxis(readout.reshape(features.shape[2], outputs, -1), 2, 0)
    return features.reshape(len(features), -1) @ by_output.reshape(-1, outputs)


def without_single_output(values: Values) -> Values:
    """Values of shape (.., P, m) in user-facing shape: (.., P) if m = 1."""
    return values[..., 0] if values.shape[-1] == 1 else values


@with_own_settings
def kernel(
    order_parameter: ArrayLike, path_inputs: ArrayLike, other_path_inputs: ArrayLike, arch: Architecture
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
    inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    other = checked_path_inputs("other_path_inputs", other_path_inputs, arch, features=inputs.shape[2])
    u = jnp.asarray(symmetric("order_parameter", order_parameter, arch.rows))
    scale = input_scale(arch.input_variance, *inputs.shape[1:])
    return _kernel(u, jnp.asarray(inputs), jnp.asarray(other), scale)


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
