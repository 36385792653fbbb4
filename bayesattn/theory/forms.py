"""Forms of the likelihood, and which of them takes the fewest operations."""

from bayesattn.architecture import Architecture
from bayesattn.theory.bartlett import layer_shapes

PAIRS_BYTES = 2**30
"""Most memory that path-path kernels may take; beyond it K is formed from features."""
FORMS = ("pairs", "features", "feature_space")
SIDES = {"features": "examples", "feature_space": "features"}
"""On which the matrix is formed that is decomposed, of forms that leave it open otherwise."""


def operations(examples: int, paths: int, features: int, columns: int) -> dict[str, float]:
    """Operations that the energy and its gradient take in each form, roughly, for F of so many columns.

    Each of the P^2 Pi^2 / 4 numbers that pairs are is read twice, each time as long as 16 operations take: measured from 60
    to 1000 examples and 4 to 16 paths, the form of fewest operations was the fastest, or within 5 % of it.
    """
    seen = columns * features
    return {
        "pairs": 8 * examples**2 * paths**2 + examples**3,
        "features": 4 * examples**2 * seen + examples**3,
        "feature_space": 4 * examples * seen**2 + seen**3,
    }


def expands_in_factor(examples: int, paths: int, columns: int) -> bool:
    """Whether the energy's expansion in F takes fewer operations than that in U, what both share left out.

    It does of few columns alone: with 16 paths, P = 600 and 10 columns a third more time went into the mode.
    """
    in_factor = examples * columns * (2 * paths + columns) + 2 * (paths * columns) ** 2
    return columns < paths and in_factor < paths**4


def cheapest_form(examples: int, features: int, arch: Architecture) -> str:
    """The form of fewest `operations`, but for pairs that would take more than `PAIRS_BYTES`."""
    work = operations(examples * arch.outputs, arch.paths, features, layer_shapes(arch)[0].columns)
    pairs_bytes = 8 * (arch.paths * (arch.paths + 1) // 2) * (examples * (examples + 1) // 2)
    if arch.outputs > 1 or pairs_bytes > PAIRS_BYTES:
        del work["pairs"]
    return min(work, key=lambda form: work[form])
