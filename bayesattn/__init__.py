"""bayesattn: exact Bayesian posteriors of attention networks, and the theory held against the draws.

Importing it turns on JAX's 64-bit mode: the theory and the collapsed likelihood need float64.
"""

import jax

jax.config.update("jax_enable_x64", True)

from bayesattn import attention, theory  # noqa: E402
from bayesattn.architecture import Architecture  # noqa: E402

__all__ = ["Architecture", "attention", "theory"]
