"""Progress bar for loops that turn out to be slow."""

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import ExitStack
from typing import TypeVar

SLOW_SECONDS = 2.0
"""Seconds after which a loop gets a bar, if the rest will take at least as long."""
Item = TypeVar("Item")


def watched(items: Iterable[Item], description: str, unit: str = "", *, is_slow: bool = False) -> Iterator[Item]:
    """Yield the items, with a bar after two seconds if the rest will take at least two more seconds at the same speed.

    Items without a length get a bar without an end. If the first item alone is known to be slow, there is a bar at once.
    """
    total = len(items) if isinstance(items, Sized) else None
    began, bar = time.monotonic(), None
    with ExitStack() as shown:
        for done, item in enumerate(items):
            elapsed = time.monotonic() - began
            goes_on = elapsed > SLOW_SECONDS and (not total or elapsed * (total - done) > SLOW_SECONDS * done)
            if bar is None and (is_slow or goes_on):
                from bayesattn._util.progress import Bars  # imports Rich, which short work does not need

                bar = shown.enter_context(Bars()).add(description, total, unit)
            if bar is not None:
                bar.update(done)
            yield item
        if bar is not None:
            bar.update(total)
