"""Gaussian process of a training set, in the form that takes the fewest operations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from bayesattn._util.blas import one_blas_thread
from bayesattn._util.checks import one_of, positive
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels.feature_space import ByFeatures, InFeatureSpace, mixes_pairs
from bayesattn.kernels.gaussian_process import GaussianProcess, ResidualExamples, smaller_by_features
from bayesattn.kernels.pairs import ByPairs, pairs_of
from bayesattn.kernels.path_inputs import Features, Number, checked_labels, checked_path_inputs, scaled_features

PAIRS_BYTES = 2**30
"""Most memory for kernels of pairs of paths; above it, K is formed from features."""
PRODUCTS_BYTES = 2**27
"""Most memory for products of features with features."""
FORMS = ("pairs", "features", "feature_space")
LEAST_LABELS_TO_COMPRESS = 1500
"""Number of labels from which searches and chains use compressed examples."""


def gaussian_process(
    path_inputs: ArrayLike,
    labels: ArrayLike,
    arch: Architecture,
    temperature: Number,
    *,
    form: str | None = None,
    residual: ResidualExamples | None = None,
) -> GaussianProcess:
    """Gaussian process of a training set, in its cheapest form or in the form named.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,), or (P, m) for m > 1 outputs.
        arch: the network.
        temperature: T, variance of the label noise.
        form: "pairs" of paths, for one output only, "features" for the P x P kernel as a Gram matrix, or
            "feature_space".
        residual: further examples whose outputs are 0 for every U, if there are any.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0, another form.
    """
    inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    targets = checked_labels("labels", labels, len(inputs), arch)
    if form is not None and one_of("form", form, FORMS) == "pairs" and not _has_pairs(arch):
        raise BayesattnError(f"form must be 'features' or 'feature_space' of {arch.outputs} outputs, got 'pairs'")
    scaled = scaled_features(inputs, arch.input_variance)
    # The same type as in `at`, so that programs are compiled once for both.
    at = jnp.asarray(positive("temperature", temperature), float)
    return _in_form(form, scaled, jnp.asarray(targets.reshape(len(targets), -1)), at, arch, residual)


def compressed(
    process: GaussianProcess, arch: Architecture, least_labels: int = LEAST_LABELS_TO_COMPRESS
) -> GaussianProcess:
    """The same posterior with fewer examples, if there are many, in the cheapest form for the reduced number.

    The new examples are the rows of the triangle R of [X Y] = Q R, and residual examples. Chains use them, and so do
    searches, which decompose a matrix of the labels' size at every step. Whoever evaluates K(U) itself at many U gains with
    any number of labels: `least_labels` may be 0.
    """
    examples, features, paths = process.features.shape
    columns = features * paths
    if compressed_examples(examples, columns, process.outputs, least_labels) == examples:
        return process
    rows = jnp.column_stack([process.flat, process.labels])
    # A fixed number of threads, because it may change the last bits.
    with one_blas_thread():
        triangle = jax.block_until_ready(jnp.linalg.qr(rows, mode="r"))
    earlier = ResidualExamples(0, 0.0) if process.residual is None else process.residual
    rest = jnp.sum(triangle[columns:, columns:] ** 2)
    residual = ResidualExamples(earlier.examples + examples - columns, earlier.square + rest)
    kept = triangle[:columns, :columns].reshape(columns, features, paths)
    return _in_form(None, kept, triangle[:columns, columns:], process.temperature, arch, residual)


def compressed_examples(examples: int, columns: int, outputs: int, least_labels: int = LEAST_LABELS_TO_COMPRESS) -> int:
    """Number of examples after compression: the number of columns of path inputs, or `examples` if these are few."""
    return examples if examples * outputs < least_labels or examples < 2 * columns else columns


def _in_form(
    form: str | None,
    features: Features,
    labels: Float[Array, "example output"],
    temperature: Number,
    arch: Architecture,
    residual: ResidualExamples | None,
) -> GaussianProcess:
    """Gaussian process in the form named, or in the cheapest."""
    examples, size, _ = features.shape
    form = form or cheapest_form(examples, size, arch)
    common = (features, labels, temperature)
    if form == "pairs":
        return ByPairs(*common, pairs_of(features), residual=residual)
    if form == "features":
        return ByFeatures(*common, residual=residual)
    products = jnp.tensordot(features, features, (0, 0)) if by_products(examples, size, arch) else None
    return InFeatureSpace(*common, residual=residual, products=products)


def cheapest_form(examples: int, features: int, arch: Architecture) -> str:
    """Form with the fewest `operations`, without pairs if they would take more than `PAIRS_BYTES`.

    The other two forms differ in the size of their matrix, and only the smaller one is considered: the larger matrix
    would be singular without T.
    """
    labels, columns = examples * arch.outputs, arch.factor_columns
    work = operations(labels, arch.rows, features, columns, arch.outputs)
    del work["features" if smaller_by_features(columns, features, labels) else "feature_space"]
    pairs_bytes = 8 * (arch.paths * (arch.paths + 1) // 2) * (examples * (examples + 1) // 2)
    if not _has_pairs(arch) or pairs_bytes > PAIRS_BYTES:
        del work["pairs"]
    return min(work, key=lambda form: work[form])


def operations(labels: int, rows: int, features: int, columns: int, outputs: int) -> dict[str, float]:
    """Approximate number of operations for the energy and its gradient in each form, for F of this shape.

    Each of the P^2 Pi^2 / 4 numbers of pairs is read twice. Products of larger matrices take less time per operation.
    In units of operations, reading a number costs 1.6 sqrt(P). This was fitted to cases where pairs and features took
    the same time, with 60, 100, 200, 300, 600 and 1000 examples, 9 and 16 paths, on one core and two. In these cases
    the form with the fewest operations was the fastest, or within a quarter of the fastest.
    """
    latents = columns * features
    direct = labels * latents**2
    if _products_fit(rows, features, outputs):
        direct = min(direct, _operations_by_products(rows, features, columns, outputs))
    return {
        "pairs": 0.8 * labels**2.5 * rows**2 + labels**3,
        "features": 4 * labels**2 * latents + labels**3,
        "feature_space": 4 * direct + latents**3,
    }


def by_products(examples: int, features: int, arch: Architecture) -> bool:
    """Whether A^T A takes fewer operations from products of features than from examples, and the products fit in memory."""
    labels, columns = examples * arch.outputs, arch.factor_columns
    fewer = _operations_by_products(arch.rows, features, columns, arch.outputs) < labels * (columns * features) ** 2
    smaller = smaller_by_features(columns, features, labels)
    return fewer and smaller and _products_fit(arch.rows, features, arch.outputs)


def expands_in_factor(labels: int, rows: int, columns: int) -> bool:
    """Whether expanding the energy in F takes fewer operations than in U, not counting operations that both share.

    This holds only with few columns: with 16 paths, P = 600 and 10 columns, expansion in F made the search for the mode
    a third longer.
    """
    in_factor = labels * columns * (2 * rows + columns) + 2 * (rows * columns) ** 2
    return columns < rows and in_factor < rows**4


def _has_pairs(arch: Architecture) -> bool:
    """Whether K(U) is a sum over pairs of paths; with several outputs it has one block per pair of outputs."""
    return arch.rows == arch.paths


def _products_fit(rows: int, features: int, outputs: int) -> bool:
    """Whether products of features with features fit into `PRODUCTS_BYTES`."""
    return 8 * (features * rows / outputs) ** 2 <= PRODUCTS_BYTES


def _operations_by_products(rows: int, features: int, columns: int, outputs: int) -> float:
    """Number of operations of A^T A from products of features; from both sides, an operation counts as four from examples.

    Measured with 48 and 50 features, 600 to 2000 examples, 4 to 16 columns and 16 to 81 paths. From 49 paths on,
    products took up to three times as long as 600 examples.
    """
    paths = rows / outputs
    if mixes_pairs(rows, columns, outputs):
        return (features * paths * columns) ** 2
    return 4 * features**2 * rows * columns * (paths + columns)
