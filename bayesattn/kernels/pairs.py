"""K(U) as a sum over pairs of paths, for one output and few paths."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn.kernels.energies import energy_and_slope
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, Features, Number, OrderParameter


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ByPairs(GaussianProcess):
    """K(U) as the sum over pairs of paths of U^{pi pi'} times the kernel of the pair.

    Args:
        pairs: for each pair of paths (pi >= pi') the kernel s_0^2 / (N_0 Pi) xi^pi xi^pi'^T, of different paths plus its
            transpose; lower triangle only, shape (Pi (Pi + 1) / 2, P (P + 1) / 2).
    """

    pairs: Float[Array, "pair entry"]

    def kernel(self, factor: Factor) -> Float[Array, "example example"]:
        """K(F F^T)."""
        return self.kernel_of(factor @ factor.T)

    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "example example"]:
        """K(U) for any symmetric U."""
        return unpacked(self._packed(order_parameter), len(self.labels))

    def _energy(self, factor: Factor) -> Float[Array, ""]:
        return self._energy_of(factor @ factor.T)

    def _energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        return packed_energy(self._packed(order_parameter), self.flat_labels, self.temperature)

    def _packed(self, order_parameter: OrderParameter) -> Float[Array, " entry"]:
        """Lower triangle of K(U), row by row."""
        symmetric = (order_parameter + order_parameter.T) / 2
        return symmetric[np.tril_indices(len(symmetric))] @ self.pairs


def pairs_of(features: Features) -> Float[Array, "pair entry"]:
    """Symmetrised kernels of pairs of paths, as `ByPairs` needs them."""
    return _pairs_of(features, np.tril_indices(features.shape[2]), np.tril_indices(len(features)))


@jax.jit
def _pairs_of(features, pairs, entries):
    def one_pair(pair):
        product = features[:, :, pair[0]] @ features[:, :, pair[1]].T
        symmetrised = product + jnp.where(pair[0] == pair[1], 0.0, 1.0) * product.T
        return symmetrised[entries]

    return jax.lax.map(one_pair, pairs)


def unpacked(packed: Float[Array, " entry"], size: int) -> Float[Array, "row row"]:
    """Symmetric matrix from its lower triangle, row by row."""
    row, column = np.indices((size, size))
    low, high = np.minimum(row, column), np.maximum(row, column)
    return packed[high * (high + 1) // 2 + low]


@jax.custom_jvp
def packed_energy(packed: Float[Array, " entry"], labels: Float[Array, " example"], temperature: Number):
    """Energy from the lower triangle of K."""
    return energy_and_slope(unpacked(packed, len(labels)), labels, temperature)[0]


@packed_energy.defjvp
def _packed_energy_jvp(primals, tangents):
    packed, labels, temperature = primals
    packed_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = energy_and_slope(unpacked(packed, len(labels)), labels, temperature)
    rows, columns = np.tril_indices(len(labels))
    twice_below = slope[rows, columns] * np.where(rows == columns, 1.0, 2.0)
    return energy, twice_below @ packed_dot + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot
