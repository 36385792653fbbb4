"""Coordinates of the order parameters: Bartlett factors of each layer (THEORY section 3).

U_l = F_l F_l^T with F_l = (I_{H_l} (x) s_l F_{l+1}) B_l / sqrt(N_l), where B_l is lower triangular; the readout is a
last layer with one head, F_a = s_a B_a / sqrt(N_a). So F_l is the Cholesky factor of U_l. The prior of the B's factorises
over entries, so these coordinates serve the saddle point, its finite-width correction and the collapsed posterior alike.

A point is one flat vector: layer 1 first, readout last; in each layer the logarithms of B's diagonal, then the entries
below it row by row. Where a width N_l is below the number of rows, U_l is singular: B_l is trapezoidal, its columns beyond
N_l absent, and B_{l-1} has only H_{l-1} times as many rows as B_l has columns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.architecture import Architecture


class LayerShape(NamedTuple):
    """Shape of one Bartlett factor: `heads` of the layer, `rows` = heads x columns of the layer above, `columns`."""

    heads: int
    rows: int
    columns: int

    @property
    def below(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column indices of the entries below the diagonal."""
        rows, columns = np.tril_indices(self.rows, -1)
        kept = columns < self.columns
        return rows[kept], columns[kept]

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.columns + len(self.below[0])


def layer_shapes(arch: Architecture, full: bool = False) -> tuple[LayerShape, ...]:
    """Shapes of B_1, .., B_L, B_a. `full` keeps all columns, as the theory at large width does."""
    shapes, columns = [], 1
    for heads, width in zip((1, *reversed(arch.heads)), reversed(arch.widths), strict=True):
        rows = heads * columns
        columns = rows if full else min(rows, width)
        shapes.append(LayerShape(heads, rows, columns))
    return tuple(reversed(shapes))


def split(point: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...]) -> list[tuple[Array, Array]]:
    """(log diagonal, entries below the diagonal) of each layer."""
    parts, start = [], 0
    for shape in shapes:
        middle, end = start + shape.columns, start + shape.size
        parts.append((point[start:middle], point[middle:end]))
        start = end
    return parts


def unwhiten(
    whitened: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]
) -> Float[Array, " coordinate"]:
    """Bartlett coordinates from whitened ones: 0 is the GP limit, and the entropy has unit curvature there."""
    parts = []
    for width, (diagonal, below) in zip(widths, split(whitened, shapes), strict=True):
        parts += [jnp.log(width) / 2 + diagonal / (2 * jnp.sqrt(width)), below / jnp.sqrt(2)]
    return jnp.concatenate(parts)


def bartlett_factors(
    point: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...]
) -> list[Float[Array, "row column"]]:
    """B_1, .., B_L, B_a at a point."""
    result = []
    for shape, (log_diagonal, below) in zip(shapes, split(point, shapes), strict=True):
        diagonal = np.arange(shape.columns)
        zeros = jnp.zeros((shape.rows, shape.columns))
        result.append(zeros.at[diagonal, diagonal].set(jnp.exp(log_diagonal)).at[shape.below].set(below))
    return result


def cholesky_factors(
    point: Float[Array, " coordinate"],
    shapes: tuple[LayerShape, ...],
    widths: Float[Array, " layer"],
    variances: Float[Array, " layer_and_input"],
) -> list[Float[Array, "row column"]]:
    """F_1, .., F_L, F_a at a point whose entries are those of B (with the logarithm of its diagonal)."""
    factor = jnp.ones((1, 1))
    factors = []
    bartletts = bartlett_factors(point, shapes)
    for layer in reversed(range(len(shapes))):
        shape = shapes[layer]
        bartlett = bartletts[layer] * jnp.sqrt(variances[layer + 1] / widths[layer])
        blocks = bartlett.reshape(shape.heads, -1, shape.columns)
        factor = jnp.einsum("rk,hkc->hrc", factor, blocks).reshape(-1, shape.columns)
        factors.append(factor)
    return factors[::-1]


def truncated(
    point: Float[Array, " coordinate"],
    shapes: tuple[LayerShape, ...],
    fewer: tuple[LayerShape, ...],
    widths: Float[Array, " layer"],
    variances: Float[Array, " layer_and_input"],
) -> Float[Array, " kept_coordinate"]:
    """Point of shapes with fewer columns whose U_l are close to those of a point of `shapes`.

    Layer by layer from the readout down, B_l keeps its largest singular directions, given the F_{l+1} found above.
    """
    factor, parts = np.ones((1, 1)), []
    targets = cholesky_factors(point, shapes, widths, variances)
    for layer in reversed(range(len(fewer))):
        shape = fewer[layer]
        mixing = np.kron(np.eye(shape.heads), factor) * np.sqrt(variances[layer + 1] / widths[layer])
        bartlett = np.linalg.lstsq(mixing, np.asarray(targets[layer]), rcond=None)[0]
        left, singular, _ = np.linalg.svd(bartlett, full_matrices=False)
        # B B^T determines U; of its factors the triangular one is wanted.
        lower = np.linalg.qr((left * singular)[:, : shape.columns].T)[1].T
        lower *= np.sign(np.diag(lower))
        factor = mixing @ lower
        parts.insert(0, np.concatenate([np.log(np.diag(lower)), lower[shape.below]]))
    return jnp.asarray(np.concatenate(parts))


def log_prior(
    point: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]
) -> Float[Array, ""]:
    """Normalised log prior density of a point: B_ii^2 ~ chi^2(N_l - i), entries below the diagonal standard normal.

    THEORY section 3, with the Jacobian of the logarithm of the diagonal.
    """
    total = jnp.zeros(())
    for shape, width, (log_diagonal, below) in zip(shapes, widths, split(point, shapes), strict=True):
        freedom = width - jnp.arange(shape.columns)
        log_normaliser = jax.scipy.special.gammaln(freedom / 2) + (freedom / 2 - 1) * jnp.log(2.0)
        total += jnp.sum(freedom * log_diagonal - jnp.exp(2 * log_diagonal) / 2 - log_normaliser)
        total -= jnp.sum(below**2) / 2 + below.size * jnp.log(2 * jnp.pi) / 2
    return total


def sample_prior(
    key: Key[Array, ""], shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]
) -> Float[Array, " coordinate"]:
    """A prior draw of a point."""
    parts = []
    for shape, width, layer_key in zip(shapes, widths, jax.random.split(key, len(shapes)), strict=True):
        diagonal_key, below_key = jax.random.split(layer_key)
        freedom = width - jnp.arange(shape.columns)
        # chi^2(k) = 2 Gamma(k / 2)
        parts.append(jnp.log(2 * jax.random.gamma(diagonal_key, freedom / 2)) / 2)
        parts.append(jax.random.normal(below_key, (len(shape.below[0]),)))
    return jnp.concatenate(parts)
