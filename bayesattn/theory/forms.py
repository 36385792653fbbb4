"""Forms of the likelihood, and which of them takes the fewest operations."""

from bayesattn.architecture import Architecture
from bayesattn.theory.bartlett import layer_shapes

PAIRS_BYTES = 2**30
"""Most memory that path-path kernels may take; beyond it K is formed from features."""
PRODUCTS_BYTES = 2**27
"""Most memory that products of features with features may take."""
FORMS = ("pairs", "features", "feature_space")
MANY_LABELS = 1500
"""From which on searches and chains look at the triangle of the examples in their place."""
SIDES = {"features": "examples", "feature_space": "features"}
"""On which the matrix is formed that is decomposed, of forms that leave it open otherwise."""


def operations(examples: int, paths: int, features: int, columns: int, outputs: int = 1) -> dict[str, float]:
    """Operations that the energy and its gradient take in each form, roughly, for F of so many columns.

    `examples` counts labels and `paths` rows of U, of all outputs.

    Each of the P^2 Pi^2 / 4 numbers that pairs are is read twice. Products of larger matrices take less time for each
    operation: in that unit to read a number takes 1.6 sqrt(P), as fitted to where pairs and features took the same time with
    60, 100, 200, 300, 600 and 1000 examples, 9 and 16 paths, on one core and two. The form of fewest operations was the
    fastest there, or within a quarter of it.
    """
    seen = columns * features
    direct = examples * seen**2
    if _fit(paths, features, outputs):
        direct = min(direct, _of_products(paths, features, columns, outputs))
    return {
        "pairs": 0.8 * examples**2.5 * paths**2 + examples**3,
        "features": 4 * examples**2 * seen + examples**3,
        "feature_space": 4 * direct + seen**3,
    }


def rows_of(examples: int, columns: int, outputs: int) -> int:
    """Rows that are looked at in place of the examples, by the columns of their path inputs: as many, if they are few."""
    return examples if examples * outputs < MANY_LABELS or examples < 2 * columns else columns


def smaller_by_features(columns: int, features: int, labels: int) -> bool:
    """Whether A^T A + T I, of factors of so many columns, is smaller than A A^T + T I."""
    return columns * features < labels


def _fit(rows: int, features: int, outputs: int) -> bool:
    """Whether products of features with features fit into `PRODUCTS_BYTES`."""
    return 8 * (features * rows / outputs) ** 2 <= PRODUCTS_BYTES


def mixes_pairs(rows: int, columns: int, outputs: int) -> bool:
    """Whether products of features are multiplied with sums of pairs of entries of F, not with F from both sides.

    From both sides intermediate arrays are larger: measured, an operation takes some three times as long (20 to 128
    features, 3 to 30 paths, 4 to 18 columns; of ten outputs, A^T A took 25 ms from both sides and 3.5 ms by pairs).
    """
    return rows // outputs * columns <= 3 * (rows + outputs * columns)


def _of_products(rows: int, features: int, columns: int, outputs: int) -> float:
    """Operations of A^T A by the products of features; from both sides each takes as long as four by the examples.

    Measured with 48 and 50 features, 600 to 2000 examples and 4 to 16 columns: 16 to 81 paths, of which those from 49 on
    took up to three times as long by products as by 600 examples.
    """
    paths = rows / outputs
    if mixes_pairs(rows, columns, outputs):
        return (features * paths * columns) ** 2
    return 4 * features**2 * rows * columns * (paths + columns)


def by_products(examples: int, features: int, arch: Architecture) -> bool:
    """Whether A^T A takes fewer operations by the products of features than by the examples, and they fit into memory."""
    columns = layer_shapes(arch)[0].columns
    direct = examples * arch.outputs * (columns * features) ** 2
    fewer = _of_products(arch.rows, features, columns, arch.outputs) < direct
    smaller = smaller_by_features(columns, features, examples * arch.outputs)
    return fewer and smaller and _fit(arch.rows, features, arch.outputs)


def expands_in_factor(examples: int, paths: int, columns: int) -> bool:
    """Whether the energy's expansion in F takes fewer operations than that in U, what both share left out.

    It does of few columns alone: with 16 paths, P = 600 and 10 columns a third more time went into the mode.
    """
    in_factor = examples * columns * (2 * paths + columns) + 2 * (paths * columns) ** 2
    return columns < paths and in_factor < paths**4


def cheapest_form(examples: int, features: int, arch: Architecture) -> str:
    """The form of fewest `operations`, but for pairs that would take more than `PAIRS_BYTES`.

    Of the other two it is that of the smaller matrix: a larger one is singular but for T.
    """
    columns = layer_shapes(arch)[0].columns
    work = operations(examples * arch.outputs, arch.rows, features, columns, arch.outputs)
    del work["features" if smaller_by_features(columns, features, examples * arch.outputs) else "feature_space"]
    pairs_bytes = 8 * (arch.paths * (arch.paths + 1) // 2) * (examples * (examples + 1) // 2)
    if arch.outputs > 1 or pairs_bytes > PAIRS_BYTES:
        del work["pairs"]
    return min(work, key=lambda form: work[form])
