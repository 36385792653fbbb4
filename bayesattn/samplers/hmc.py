"""Hamiltonian Monte Carlo and the No-U-Turn sampler, from NumPyro."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from numpyro.infer import HMC, NUTS, init_to_sample


def nuts(program: Callable, **options: Any) -> NUTS:
    """No-U-Turn sampler (Hoffman & Gelman 2014); options are those of `numpyro.infer.NUTS`."""
    return NUTS(program, init_strategy=init_to_sample, **options)


def hmc(program: Callable, **options: Any) -> HMC:
    """Hamiltonian Monte Carlo with a fixed trajectory length (2 pi unless given), options of `numpyro.infer.HMC`."""
    return HMC(program, init_strategy=init_to_sample, **options)


def statistics(state: Any) -> dict[str, Array]:
    """Sample statistics of one draw, under ArviZ's names."""
    return {
        "lp": -state.potential_energy,
        "energy": state.energy,
        "acceptance_rate": state.accept_prob,
        "n_steps": state.num_steps,
        # A full binary tree of depth d has 2^d - 1 leapfrog steps.
        "tree_depth": jnp.ceil(jnp.log2(state.num_steps + 1.0)).astype(int),
        "step_size": state.adapt_state.step_size,
        "diverging": state.diverging,
    }
