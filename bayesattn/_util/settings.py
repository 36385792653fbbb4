"""JAX's global settings that affect numbers, with the values that this package needs.

JAX's precision and the bits of its random numbers are global settings, which another library, an environment variable
or a user's other code may change at any time. Public functions always compute under the settings below, so that neither
a result nor anything that a model keeps depends on the current global values. JAX's checks for NaN are off: a proposal
that a sampler or a line search rejects may be NaN. The functions that make results check that these are finite.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from bayesattn._util.blas import one_blas_thread

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
SETTINGS = {
    "enable_x64": True,
    "default_prng_impl": "threefry2x32",
    "threefry_partitionable": True,
    "default_matmul_precision": None,
    "debug_nans": False,
    "debug_infs": False,
    "numpy_rank_promotion": "allow",
    "numpy_dtype_promotion": "standard",
}
"""Names of JAX's settings without "jax_", and their values inside the package."""


@contextmanager
def own_settings() -> Iterator[None]:
    """Context of `SETTINGS` for this thread, and of one thread of BLAS; threads that it starts need their own."""
    jax = sys.modules.get("jax")
    with one_blas_thread(), ExitStack() as stack:
        for name, value in SETTINGS.items():
            if jax is not None and getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(getattr(jax, name)(value))
        yield


def with_own_settings(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator that makes a function compute under `SETTINGS`, whatever JAX's global settings are."""

    @wraps(function)
    def under_settings(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with own_settings():
            return function(*arguments, **named)

    return under_settings
