"""Hamiltonian Monte Carlo and the No-U-Turn sampler, from NumPyro."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from numpyro.infer import HMC, NUTS, init_to_sample
from numpyro.infer.hmc import HMCState

from bayesattn.samplers.langevin_base import statistics_of


class Nuts(NUTS):
    """No-U-Turn sampler (Hoffman & Gelman 2014) with the options of `numpyro.infer.NUTS`."""

    def __init__(self, program: Callable | None = None, **options: Any):
        super().__init__(program, init_strategy=init_to_sample, **options)

    def statistics(self, state: HMCState) -> dict[str, Array]:
        """Sample statistics of one draw, under ArviZ's names."""
        # A full binary tree of depth d has 2^d - 1 leapfrog steps. A pair of depths is (in warm-up, after it).
        deepest = self._max_tree_depth[1] if isinstance(self._max_tree_depth, tuple) else self._max_tree_depth
        return _statistics(state) | {
            "tree_depth": jnp.ceil(jnp.log2(state.num_steps + 1.0)).astype(int),
            "reached_max_treedepth": state.num_steps >= 2**deepest - 1,
        }


class Hmc(HMC):
    """Hamiltonian Monte Carlo with the options of `numpyro.infer.HMC`: trajectory length (default 2 pi), or `num_steps`."""

    def __init__(self, program: Callable | None = None, **options: Any):
        if "num_steps" in options:  # Both together would fix the step size, which then could not be adapted.
            options.setdefault("trajectory_length", None)
        super().__init__(program, init_strategy=init_to_sample, **options)

    def statistics(self, state: HMCState) -> dict[str, Array]:
        """Sample statistics of one draw, under ArviZ's names."""
        return _statistics(state)


def _statistics(state: HMCState) -> dict[str, Array]:
    return statistics_of(state) | {"energy": state.energy}
