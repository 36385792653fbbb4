"""Memory required to sample a posterior, estimated before allocation."""

import jax

from bayesattn._util.checks import memory_limit
from bayesattn.errors import BayesattnError
from bayesattn.kernels.expansions import BLOCK_BYTES
from bayesattn.kernels.forms import expands_in_factor
from bayesattn.models.posterior import Posterior, parameterisation_of
from bayesattn.theory.potential import Shapes, too_many


def bytes_needed(model: Posterior, parameterisation: str, chains: int = 1) -> int:
    """Lower bound on the memory in bytes of `chains` chains at a time, without the kept draws."""
    return parameterisation_of(model, parameterisation).bytes_needed(model, chains)


def require_memory(model: Posterior, parameterisation: str, chains: int = 1) -> None:
    """Raise ValueError if `chains` chains at a time need more memory than the machine or its accelerator has."""
    needed, device = bytes_needed(model, parameterisation, chains), jax.devices()[0]
    limit = min(memory_limit(), (device.memory_stats() or {}).get("bytes_limit", 2**63))
    if needed > limit:
        kind = parameterisation_of(model, parameterisation)
        size = f" at {model.size}" if model.size else ""
        raise BayesattnError(
            f"parameterisation {parameterisation!r}{size} must fit into memory, {limit / 2**30:.3g} GiB, and needs at least"
            f" {needed / 2**30:.3g} GiB; {kind.memory_advice}"
        )


def bytes_of_energy(examples: int, paths: int, features: int, form: str, shapes: Shapes, outputs: int = 1) -> int:
    """Bytes of the data in memory, of an energy, and of the curvature if all of it is needed.

    `examples` counts labels and `paths` rows of U, of all outputs.
    """
    columns, size = shapes[0].columns, sum(shape.size for shape in shapes)
    numbers = 2 * examples * features * paths // outputs**2
    if form == "pairs":
        numbers += paths * (paths + 1) // 2 * examples * (examples + 1) // 2
    rows = columns * features if form == "feature_space" else examples
    numbers += 4 * rows**2 + (0 if form == "pairs" else 2 * examples * columns * features)
    if not too_many(shapes):
        numbers += 3 * _entries(examples, paths, columns) ** 2 + 4 * size**2
        numbers += 2 * min(BLOCK_BYTES // 8, (paths * features) ** 2)
    return 8 * numbers


def _entries(examples: int, paths: int, columns: int) -> int:
    """Number of entries of the matrix in which the energy is expanded, F or U."""
    return paths * (columns if expands_in_factor(examples, paths, columns) else paths)
