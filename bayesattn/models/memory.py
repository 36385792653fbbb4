"""Memory required to sample a posterior, estimated before allocation."""

import jax

from bayesattn._util.checks import memory_limit
from bayesattn._util.errors import BayesattnError
from bayesattn.models.posterior import Posterior, parameterisation_of


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
