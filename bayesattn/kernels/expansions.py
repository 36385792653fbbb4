"""Second-order expansions of the energy in U, or in its factor F.

Examples enter only through the Gram matrix of whitened path inputs, so an expansion costs as much as a few kernels,
however many entries U has.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn.kernels.energies import log_det
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor

BLOCK_BYTES = 2**27
"""Most memory of a block of features."""


class EnergyExpansion(NamedTuple):
    """Second-order expansion of the energy E in U, or in F: E, its slope, and its curvature (entries row by row)."""

    value: Float[Array, ""]
    slope: Float[Array, "row column"]
    curvature: Float[Array, "row*column row*column"]


def expansion(process: GaussianProcess, factor: Factor) -> EnergyExpansion:
    """Second-order expansion of the energy around U.

    With Z_p = L^{-1} X_p and v_p = X_p^T A^{-1} Y of each path: dE/dU_pq = tr(Z_p^T Z_q) - v_p . v_q, and d^2E/dU_pq
    dU_rs = -tr(Z_q^T Z_r Z_s^T Z_p) + 2 v_p^T (Z_q^T Z_r) v_s, for symmetric changes of U.
    """
    lower, whitened, labels, weighted = process.solve(factor)
    count, _, paths = whitened.shape
    energy = log_det(lower) + labels @ labels + process.residual_energy
    slope = jnp.einsum("efp,efq->pq", whitened, whitened) - weighted.T @ weighted
    # Features last, so that pairs of paths precede pairs of features without moving single numbers.
    by_path = jnp.swapaxes(whitened, 1, 2)

    def add(traces, block):
        rows = jnp.einsum("epf,eqg->pqfg", by_path, block).reshape(paths**2, -1)
        return traces + rows @ rows.T, None

    # Rows (q, r) and columns (p, s).
    traces, _ = jax.lax.scan(add, jnp.zeros((paths**2, paths**2)), _blocks(by_path, paths))
    trace_term = jnp.einsum("qrps->pqrs", traces.reshape((paths,) * 4)).reshape(traces.shape)
    # Z_q v_p
    pulled = jnp.einsum("efq,fp->pqe", whitened, weighted).reshape(paths**2, count)
    return EnergyExpansion(energy, slope, 2 * pulled @ pulled.T - trace_term)


def expansion_in_factor(process: GaussianProcess, factor: Factor) -> EnergyExpansion:
    """Second-order expansion of the energy around F with r columns: (Pi r)^2 numbers, fewer than Pi^4 if r < Pi.

    With B = X F, A = B B^T + T I, v = X^T A^{-1} Y, w = B^T A^{-1} Y and changes d of F, which change A by dA:

        d log det A = 2 tr(d^T X^T A^{-1} B),   d^2 log det A = 2 |A^{-1/2} X d|^2 - tr(A^{-1} dA A^{-1} dA),
        d Y^T A^{-1} Y = -2 v d w,   d^2 Y^T A^{-1} Y = 2 |A^{-1/2} dA A^{-1} Y|^2 - 2 |d^T v|^2.
    """
    lower, whitened, labels, weighted = process.solve(factor)
    count, _, paths = whitened.shape
    columns = factor.shape[1]
    # A^{-1/2} B and w
    mixed, read = whitened @ factor, weighted @ factor
    energy = log_det(lower) + labels @ labels + process.residual_energy
    slope = 2 * (jnp.einsum("efp,efq->pq", whitened, mixed) - weighted.T @ read)
    entries = paths * columns
    by_path, by_column = jnp.swapaxes(whitened, 1, 2), jnp.swapaxes(mixed, 1, 2)

    def add(sums, block):
        alike, crossed = sums
        outer, inner = block
        of_paths = jnp.einsum("epf,erg->prfg", by_path, outer).reshape(paths**2, -1)
        of_columns = jnp.einsum("eqf,esg->qsfg", by_column, inner).reshape(columns**2, -1)
        there = jnp.einsum("epf,esg->psfg", by_path, inner).reshape(entries, -1)
        back = jnp.einsum("eqf,erg->rqfg", by_column, outer).reshape(entries, -1)
        return (alike + of_paths @ of_columns.T, crossed + there @ back.T), None

    nothing = jnp.zeros((paths**2, columns**2)), jnp.zeros((entries, entries))
    (alike, crossed), _ = jax.lax.scan(add, nothing, (_blocks(by_path, paths), _blocks(by_column, paths)))
    # tr(A^{-1} dA A^{-1} dA') / 2 of entries (p, q) and (r, s)
    traces = jnp.einsum("prqs->pqrs", alike.reshape(paths, paths, columns, columns))
    traces += jnp.einsum("psrq->pqrs", crossed.reshape(paths, columns, paths, columns))
    direct = jnp.einsum("efp,efr->pr", whitened, whitened) - weighted.T @ weighted
    # A^{-1/2} dA A^{-1} Y
    moved = jnp.einsum("efp,fq->epq", whitened, read) + jnp.einsum("efq,fp->epq", mixed, weighted)
    moved = moved.reshape(count, -1)
    curvature = jnp.einsum("pr,qs->pqrs", direct, jnp.eye(columns)) - traces
    return EnergyExpansion(energy, slope, 2 * (curvature.reshape(moved.shape[1], -1) + moved.T @ moved))


def _blocks(columns: Float[Array, "label column feature"], paths: int) -> Float[Array, "block label column few"]:
    """Features in blocks, because the Gram matrix of all columns of all paths may not fit into memory."""
    rows, number, features = columns.shape
    count = max(1, min(features, BLOCK_BYTES // (8 * paths**2 * features)))
    padded = jnp.pad(columns, ((0, 0), (0, 0), (0, -features % count)))
    return jnp.moveaxis(padded.reshape(rows, number, -1, count), 2, 0)
