"""One thread of BLAS, for matrices of this package's sizes.

OpenBLAS's threads wait for each other in a loop that takes a core. Where other work ran on the same two cores, an evidence
took 13 s with two threads and 0.7 s with one (960 labels, 48 features); on idle cores, 0.6 s either way. Chains that run
side by side are other work too. With one thread, the last bits of a result do not depend on the number of cores either.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_LOCK = threading.Lock()
_LIMITS: list[Any] = []
"""The one limit, which is the process's, once for each context that is open; the last one to leave lifts it."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Context in which BLAS has one thread, in all threads of the process."""
    with _LOCK:
        _LIMITS.append(_LIMITS[0] if _LIMITS else _controller().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _LIMITS.pop()
            if not _LIMITS:
                limit.restore_original_limits()


@cache
def _controller() -> Any:
    """Controller of the libraries that are loaded, those of NumPy and of SciPy, by which XLA decomposes matrices."""
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
