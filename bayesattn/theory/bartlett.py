"""Coordinates of the order parameters: Bartlett factors of each layer (THEORY section 3).

U_l = F_l F_l^T with F_l = (I_{H_l} (x) s_l F_{l+1}) B_l / sqrt(N_l), where B_l is lower triangular; the readout is a
last layer with one head per output, F_a = s_a B_a / sqrt(N_a). So F_l is a Cholesky factor of U_l if rows keep their
own order. In a layer with a skip connection of strength rho_l (THEORY section 8), F_l begins with the rows
[sqrt(H_l) rho_l F_{l+1}, 0], and B_l = [G_l, B'_l], where G_l has as many columns of normal variables as F_{l+1} has
columns, and B'_l is lower triangular. The prior of the B's factorises over entries, so these coordinates serve the
saddle point, its finite-width correction and the collapsed posterior alike.

A point is one flat vector: layer 1 first, readout last; in each layer the logarithms of the diagonal of B (with a skip,
of B'), then all other entries row by row. If a width N_l is below the number of rows, U_l is singular: B_l is
trapezoidal, without the columns beyond N_l, and B_{l-1} has only H_{l-1} times as many rows as B_l has columns.

If a layer is narrow, two conventions keep the space of U connected. First, a diagonal entry with one degree of freedom
(in the last column) is a standard normal and takes either sign. The density of its absolute value does not vanish at 0,
where U is continuous up to a sign of the rest of the column, but the logarithm of its absolute value would end there.
Second, rows have the order of a pivoted Cholesky factor of U_l at the saddle point, strong rows first; a row is weak if
it is small, or if the path inputs that it multiplies are very small. The rows of B_l may have any order, because its
distribution does not depend on the order; but strong rows after a weak row would wind about an axis set by the weak row.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int, Key

from bayesattn.architecture import Architecture
from bayesattn.kernels.path_inputs import Number

AMPLE_DEGREES_OF_FREEDOM = 4
"""Least degrees of freedom for which a column of B hardly ever comes near 0; the order of rows then does not matter."""
LARGEST_SPLIT_WIDTH, MOST_SPLIT_COORDINATES = 3, 100
"""Largest width whose posteriors are taken to have modes apart, and most coordinates for which they are tempered."""
SMALL_INPUTS = 0.1
"""Size of path inputs, relative to the largest, below which the rows that they are multiplied with are weak."""

Point = Float[Array, " coordinate"]
Order = Int[Array, " row_of_any_layer"] | None
"""Row indices of each layer, one layer after the other, in the order that rows have in B_l; None for their own order."""
Skips = Sequence[Number | None]
"""rho_l of each layer whose shape has a skip, None for other layers."""


class LayerShape(NamedTuple):
    """Shape of one Bartlett factor: `heads` of the layer, `rows` = heads x columns of the layer above, `columns`.

    `freedom` is the number of degrees of freedom of the last column, but at most `AMPLE_DEGREES_OF_FREEDOM`; `skip`
    says whether the layer has a skip connection.
    """

    heads: int
    rows: int
    columns: int
    freedom: int = AMPLE_DEGREES_OF_FREEDOM
    skip: bool = False

    @property
    def copied(self) -> int:
        """Number of columns of the layer above that a skip copies, in which all entries of B are normal."""
        return self.rows // self.heads if self.skip else 0

    @property
    def diagonal(self) -> int:
        """Number of entries on the diagonal of B, or of B' beside the copied columns."""
        return self.columns - self.copied

    @property
    def logs(self) -> int:
        """Number of diagonal entries whose logarithm is a coordinate: all except one that takes either sign.

        A single entry, such as the readout's, scales all of U, so its sign does not matter.
        """
        return self.diagonal - (self.freedom == 1 and self.rows > 1)

    @property
    def below(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column indices of the entries below the diagonal, including the copied columns."""
        rows, columns = np.nonzero(np.arange(self.columns) - self.copied < np.arange(self.rows)[:, None])
        return rows, columns

    @property
    def places(self) -> np.ndarray:
        """Index of the coordinate of each entry of B; above the diagonal, the index after the last one, which is a zero.

        Gathering entries compiles faster than scattering coordinates.
        """
        places = np.full((self.rows, self.columns), self.size)
        diagonal = np.arange(self.diagonal)
        places[diagonal, self.copied + diagonal] = diagonal
        places[self.below] = np.arange(self.diagonal, self.size)
        return places

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.diagonal + len(self.below[0])


def layer_shapes(arch: Architecture, full: bool = False) -> tuple[LayerShape, ...]:
    """Shapes of B_1, .., B_L, B_a. `full` keeps all columns, as the theory at large width does."""
    shapes, columns = [], 1
    heads, skips = (*arch.heads, arch.outputs), (*(skip > 0 for skip in arch.skips), False)
    for count, width, skip in zip(reversed(heads), reversed(arch.widths), reversed(skips), strict=True):
        rows, copied = count * columns, columns if skip else 0
        columns = copied + rows if full else min(copied + rows, width)
        wide = full or columns == copied
        shapes.append(
            LayerShape(
                count,
                rows,
                columns,
                AMPLE_DEGREES_OF_FREEDOM if wide else min(width - columns + 1, AMPLE_DEGREES_OF_FREEDOM),
                skip,
            )
        )
    return tuple(reversed(shapes))


def narrow(shapes: tuple[LayerShape, ...]) -> bool:
    """Whether a column has so few degrees of freedom that the order of rows matters."""
    return any(shape.freedom < AMPLE_DEGREES_OF_FREEDOM for shape in shapes)


def may_have_modes_apart(arch: Architecture) -> bool:
    """Whether chains may stay in one of several modes: a layer of at most three neurons has several rows of U.

    With one neuron, each row of U has a sign, and between two signs the row is 0. Wider layers can pass around such places:
    at N = 4 to 6, with a skip and two or three outputs, draws of NUTS agreed with tempered ones (12 networks). Networks of
    more than 100 coordinates are not counted: tempering them costs too much.
    """
    shapes = layer_shapes(arch)
    several = any(
        width <= LARGEST_SPLIT_WIDTH and shape.copied + shape.rows > 1
        for width, shape in zip(arch.widths, shapes, strict=True)
    )
    return several and sum(shape.size for shape in shapes) <= MOST_SPLIT_COORDINATES


def split(point: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...]) -> list[tuple[Array, Array]]:
    """Diagonal, in the form that `LayerShape.logs` describes, and entries below the diagonal, of each layer."""
    parts, start = [], 0
    for shape in shapes:
        middle, end = start + shape.diagonal, start + shape.size
        parts.append((point[start:middle], point[middle:end]))
        start = end
    return parts


@partial(jax.jit, static_argnames="shapes")
def unwhiten(
    whitened: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]
) -> Float[Array, " coordinate"]:
    """Bartlett coordinates from whitened ones: 0 is the GP limit, and the entropy has unit curvature there.

    At the GP limit, an entry that takes either sign is 0.
    """
    parts = []
    for shape, width, (diagonal, below) in zip(shapes, widths, split(whitened, shapes), strict=True):
        logs, signed = diagonal[: shape.logs], diagonal[shape.logs :]
        parts += [jnp.log(width) / 2 + logs / (2 * jnp.sqrt(width)), signed / jnp.sqrt(2), below / jnp.sqrt(2)]
    return jnp.concatenate(parts)


@partial(jax.jit, static_argnames="shapes")
def affine_from_whitened(shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]) -> tuple[Array, Array]:
    """Coordinates at which the whitened ones are 0, and the factors from whitened coordinates to these."""
    zeros = jnp.zeros(sum(shape.size for shape in shapes))
    origin = unwhiten(zeros, shapes, widths)
    return origin, unwhiten(zeros + 1, shapes, widths) - origin


def bartlett_factors(
    point: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...], order: Order = None
) -> list[Float[Array, "row column"]]:
    """B_1, .., B_L, B_a at a point, with rows in the order of the columns of (I_{H_l} (x) F_{l+1})."""
    result, start = [], 0
    for shape, (coordinates, below) in zip(shapes, split(point, shapes), strict=True):
        diagonal = [jnp.exp(coordinates[: shape.logs]), coordinates[shape.logs :]]
        lower = jnp.concatenate([*diagonal, below, jnp.zeros(1)])[shape.places]
        rows = order if order is None else jnp.argsort(order[start : start + shape.rows])
        result.append(lower if rows is None else lower[rows])
        start += shape.rows
    return result


@partial(jax.jit, static_argnames="shapes")
def cholesky_factors(
    point: Float[Array, " coordinate"],
    shapes: tuple[LayerShape, ...],
    widths: Float[Array, " layer"],
    variances: Float[Array, " layer_and_input"],
    order: Order = None,
    skips: Skips = (),
) -> list[Float[Array, "row column"]]:
    """F_1, .., F_L, F_a at a point, whose entries are those of B (with the logarithm of its diagonal).

    They are lower triangular if rows keep their own order and no layer has a skip.
    """
    factor = jnp.ones((1, 1))
    factors = []
    bartletts = bartlett_factors(point, shapes, order)
    for layer in reversed(range(len(shapes))):
        shape = shapes[layer]
        bartlett = bartletts[layer] * jnp.sqrt(variances[layer + 1] / widths[layer])
        blocks = bartlett.reshape(shape.heads, -1, shape.columns)
        of_heads = jnp.einsum("rk,hkc->hrc", factor, blocks).reshape(-1, shape.columns)
        factor = _with_skip(of_heads, factor, shape, skips, layer)
        factors.append(factor)
    return factors[::-1]


def _with_skip(of_heads: Array, above: Array, shape: LayerShape, skips: Skips, layer: int) -> Array:
    """Rows of the heads, after those of the skip if the layer has one."""
    if not shape.skip:
        return of_heads
    strength = skips[layer]
    assert strength is not None
    of_skip = jnp.sqrt(float(shape.heads)) * strength * above
    return jnp.concatenate([jnp.pad(of_skip, ((0, 0), (0, shape.diagonal))), of_heads])


def strengths_of_rows(features: Float[Array, "example feature path"], arch: Architecture) -> list[np.ndarray]:
    """Root mean square of the path inputs that each row of U_1, .., U_L, U_a multiplies, as 1 unless they are very small."""
    norms = np.linalg.norm(features, axis=(0, 1))
    small = norms < SMALL_INPUTS * norms.max()
    rows = np.repeat(np.where(small, norms / max(norms.max(), np.finfo(float).tiny), 1.0), arch.outputs)
    strengths = [rows]
    for ways in arch.ways:
        rows = np.sqrt(np.mean(rows.reshape(ways, -1) ** 2, axis=0))
        strengths.append(rows)
    return strengths


def _nearest_frame(matrix: np.ndarray) -> np.ndarray:
    """Orthonormal rows nearest to those of a matrix."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return left @ right


def narrowed(
    point: Float[Array, " coordinate"],
    shapes: tuple[LayerShape, ...],
    fewer: tuple[LayerShape, ...],
    widths: Float[Array, " layer"],
    variances: Float[Array, " layer_and_input"],
    skips: Skips = (),
    strengths: Sequence[np.ndarray] = (),
) -> tuple[Float[Array, " kept_coordinate"], Order]:
    """Point in the shapes `fewer`, with fewer columns and U_l close to those of `point`, and the order of its rows.

    Layer by layer from the readout down, B_l keeps its largest singular directions, given the F_{l+1} computed above.
    If a layer is narrow, rows have the order of a pivoted Cholesky factor, weighted by the size of the path inputs that
    each row multiplies, `strengths_of_rows`; by default all are of equal size.
    """
    factor, parts, orders = np.ones((1, 1)), [], []
    factors = cholesky_factors(point, shapes, widths, variances, skips=skips)
    variance, width = np.asarray(variances), np.asarray(widths)
    targets = [*map(np.asarray, factors), factor]
    for layer in reversed(range(len(fewer))):
        shape = fewer[layer]
        mixing = np.kron(np.eye(shape.heads), factor) * np.sqrt(variance[layer + 1] / width[layer])
        bartlett = np.linalg.lstsq(mixing, targets[layer][-len(mixing) :], rcond=None)[0]
        # Columns of the layer above in terms of its kept columns.
        turned = _nearest_frame(np.linalg.lstsq(factor, targets[layer + 1], rcond=None)[0]) if shape.skip else None
        seen = np.ones(len(mixing)) if len(strengths) == 0 else strengths[layer][-len(mixing) :]
        weights = np.sqrt(seen**2 @ mixing**2 / np.maximum(np.sum(mixing**2, axis=0), np.finfo(float).tiny))
        lower, diagonal, order = _narrowed_layer(bartlett, turned, shape, narrow(fewer), weights)
        factor = np.asarray(_with_skip(jnp.asarray(mixing[:, order] @ lower), jnp.asarray(factor), shape, skips, layer))
        parts.insert(0, np.concatenate([np.log(diagonal[: shape.logs]), diagonal[shape.logs :], lower[shape.below]]))
        orders.insert(0, order)
    return jnp.asarray(np.concatenate(parts)), jnp.asarray(np.concatenate(orders)) if narrow(fewer) else None


def _narrowed_layer(
    bartlett: np.ndarray, turned: np.ndarray | None, shape: LayerShape, pivoted: bool, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B_l of `shape` close to `bartlett`, the diagonal of its triangular part, and the order of its rows.

    Its first columns are those of a skip, if there is one; `turned` expresses the columns of the layer above in terms
    of its kept columns. `weights` of the rows count for their order alone.
    """
    copied = np.zeros((shape.rows, 0))
    if turned is not None:
        of_skip, rest = np.split(bartlett, [turned.shape[1]], axis=1)
        copied = of_skip @ turned.T
        bartlett = np.concatenate([of_skip - copied @ turned, rest], axis=1)
    left, singular, _ = np.linalg.svd(bartlett, full_matrices=False)
    # B B^T determines U, so its triangular factor can replace B.
    kept = (left * singular)[:, : shape.diagonal].T
    *_, order = scipy.linalg.qr(kept * weights, pivoting=True) if pivoted else (np.arange(shape.rows),)
    lower = np.linalg.qr(kept[:, order])[1].T
    lower *= np.where(np.diag(lower) < 0, -1, 1)
    return np.concatenate([copied[order], lower], axis=1), np.diag(lower), order


@partial(jax.jit, static_argnames="shapes")
def log_prior(
    point: Float[Array, " coordinate"], shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]
) -> Float[Array, ""]:
    """Normalised log prior density of a point: B_ii^2 ~ chi^2(N_l - i), all other entries standard normal.

    The index i counts the columns that a skip copies, too. THEORY section 3, with the Jacobian of the logarithm of the
    diagonal; an entry that takes either sign is normal.
    """
    total = jnp.zeros(())
    for shape, width, (diagonal, below) in zip(shapes, widths, split(point, shapes), strict=True):
        logs, normals = diagonal[: shape.logs], jnp.concatenate([diagonal[shape.logs :], below])
        freedom = width - shape.copied - jnp.arange(shape.logs)
        log_normaliser = jax.scipy.special.gammaln(freedom / 2) + (freedom / 2 - 1) * jnp.log(2.0)
        total += jnp.sum(freedom * logs - jnp.exp(2 * logs) / 2 - log_normaliser)
        total -= jnp.sum(normals**2) / 2 + normals.size * jnp.log(2 * jnp.pi) / 2
    return total


def sample_prior(
    key: Key[Array, ""], shapes: tuple[LayerShape, ...], widths: Float[Array, " layer"]
) -> Float[Array, " coordinate"]:
    """Draw of a point from the prior."""
    diagonal_keys, normal_keys = jax.vmap(jax.random.split)(jax.random.split(key, len(shapes))).swapaxes(0, 1)
    # One gamma program for all layers, because it takes long to compile; short layers ignore surplus draws.
    first = jnp.asarray(widths) - jnp.array([shape.copied for shape in shapes])
    freedom = first[:, None] - jnp.arange(max(shape.logs for shape in shapes))
    drawn = jax.vmap(jax.random.gamma)(diagonal_keys, jnp.maximum(freedom, 1) / 2)
    parts = []
    for shape, gammas, normal_key in zip(shapes, drawn, normal_keys, strict=True):
        # chi^2(k) = 2 Gamma(k / 2)
        parts.append(jnp.log(2 * gammas[: shape.logs]) / 2)
        parts.append(jax.random.normal(normal_key, (shape.size - shape.logs,)))
    return jnp.concatenate(parts)


def mirrored(shapes: tuple[LayerShape, ...], order: Order = None) -> np.ndarray:
    """Signs of the coordinates that leave U unchanged, one row per combination of signs of columns that take either sign.

    If such a column of F_l changes its sign, so do the rows of B_{l-1} that it multiplies, the columns whose diagonals
    are in these rows, and the columns that a skip copies, down to layer 1. The first row is ones.
    """
    images, last = np.ones((1, sum(shape.size for shape in shapes))), len(shapes)
    for turned in range(last):
        if shapes[turned].logs == shapes[turned].diagonal:
            continue
        signs, columns = np.ones(images.shape[1]), np.ones(1)
        for layer in reversed(range(last)):
            shape, start = shapes[layer], sum(each.size for each in shapes[:layer])
            rows = np.tile(columns, shape.heads)
            if order is not None:
                first = sum(each.rows for each in shapes[:layer])
                rows = rows[np.asarray(order)[first : first + shape.rows]]
            columns = np.concatenate([columns[: shape.copied], rows[: shape.diagonal]])
            if layer == turned:
                columns[-1] *= -1
            inside = shape.places < shape.size
            signs[start + shape.places[inside]] = np.outer(rows, columns)[inside]
        images = np.concatenate([images, images * signs])
    return images


def in_order(bartletts: Sequence[Array], shapes: tuple[LayerShape, ...], order: Order = None) -> Point:
    """Point with the same U_l, rows in their own order or in `order`, and diagonals above 0, by QR from the readout down.

    B_l B_l^T keeps its U_l; the rotation that makes B_l triangular rotates the rows of each head in B_{l-1}.
    """
    turn, parts, end = jnp.ones((1, 1)), [], sum(shape.rows for shape in shapes)
    for shape, bartlett in zip(reversed(shapes), reversed(bartletts), strict=True):
        blocks = bartlett.reshape(shape.heads, -1, shape.columns)
        turned = jnp.einsum("ij,hjc->hic", turn, blocks).reshape(bartlett.shape)
        if order is not None:
            turned = turned[order[end - shape.rows : end]]
        end -= shape.rows
        orthogonal, upper = jnp.linalg.qr(turned[:, shape.copied :].T)
        signs = jnp.where(jnp.diag(upper) < 0, -1.0, 1.0)
        lower, turned_next = upper.T * signs, orthogonal.T * signs[:, None]
        diagonal = jnp.diag(lower)
        if shape.skip:
            # The copied columns rotate with those of the layer above.
            lower = jnp.concatenate([turned[:, : shape.copied] @ turn.T, lower], axis=1)
            turned_next = jax.scipy.linalg.block_diag(turn, turned_next)
        turn = turned_next
        parts.insert(0, jnp.concatenate([jnp.log(diagonal[: shape.logs]), diagonal[shape.logs :], lower[shape.below]]))
    return jnp.concatenate(parts)
