"""Kernels between keys, and checks of vectors (EXCHANGEABILITY sections 1 and 2)."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, finite_array, one_of, positive
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError

KERNELS = ("linear", "exponential", "gaussian")
LARGEST_NORM_DEVIATION = 1e-6
"""Largest allowed deviation of a vector's norm from 1, for formulas that hold only on the unit sphere."""


@with_own_settings
def gram(kernel: str, keys: Checked, other: Checked, bandwidth: Checked = 1.0) -> Float[Array, "... key other_key"]:
    """K(k, k') for keys (.., n, d) and other keys (.., m, d), without checks of the arrays.

    "linear": k . k'; "exponential": exp(k . k' / gamma); "gaussian": exp(-|k - k'|^2 / (2 gamma)), which on the unit
    sphere is e^(-1/gamma) times the exponential kernel.
    """
    one_of("kernel", kernel, KERNELS)
    similar = similarity(kernel, keys, other, bandwidth)
    return similar if kernel == "linear" else jnp.exp(similar)


def similarity(
    kernel: str, keys: Checked, other: Checked, bandwidth: Checked = 1.0
) -> Float[Array, "... key other_key"]:
    """k . k' for the linear kernel, the logarithm of the kernel for the others."""
    products = jnp.einsum("...nd,...md->...nm", keys, other)
    if kernel == "linear":
        return products
    if kernel == "gaussian":
        squares = jnp.sum(jnp.square(keys), -1)[..., :, None] + jnp.sum(jnp.square(other), -1)[..., None, :]
        products = products - squares / 2
    return products / bandwidth


def checked_batch(name: str, value: Checked) -> Array:
    """`value` as an array of at least two axes (.., vector, feature), not empty, and finite unless JAX traces it."""
    shape = np.shape(value)
    if len(shape) < 2:
        raise BayesattnError(f"{name} must have shape (.., tokens, features), got {shape}")
    if shape[-2] == 0:
        raise BayesattnError(f"{name} must hold at least one token, got an empty sequence of shape {shape}")
    return value if isinstance(value, Tracer) else jnp.asarray(finite_array(name, value, shape))


def checked_kernel(kernel: str, bandwidth: Checked, **vectors: Array) -> None:
    """Raise ValueError unless the kernel exists, the bandwidth is above 0, and vectors are on the sphere if necessary."""
    one_of("kernel", kernel, KERNELS)
    if not isinstance(bandwidth, Tracer):
        positive("bandwidth", bandwidth)
    for name, value in vectors.items():
        if kernel != "gaussian" or isinstance(value, Tracer):
            continue
        norms = np.linalg.norm(np.asarray(value), axis=-1)
        worst = norms.flat[np.argmax(np.abs(norms - 1))]
        if not abs(worst - 1) <= LARGEST_NORM_DEVIATION:
            raise BayesattnError(f"{name} must lie on the unit sphere here, got a vector of norm {worst:.6g}")
