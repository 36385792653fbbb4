"""Progress of work on standard error, by tqdm: a bar on a terminal and in Jupyter, a line every half minute in a file."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

from bayesattn._util.errors import BayesattnError
from bayesattn._util.text import printable

SLOW_SECONDS = 2.0
"""Seconds after which a loop gets a bar, if the rest will take at least as long."""
LINE_SECONDS = 30.0
"""Seconds between two lines in a file."""
LINE = "bayesattn: {desc}: {n_fmt}/{total_fmt} {unit}{postfix}, elapsed {elapsed}, left {remaining}"
ENDLESS_LINE = "bayesattn: {desc}{postfix}, elapsed {elapsed}"
BAR = "{desc}: {bar} {n_fmt}/{total_fmt} {unit}{postfix} {rate_noinv_fmt}, elapsed {elapsed}, left {remaining}"
ENDLESS_BAR = "{desc}{postfix}, elapsed {elapsed}"


class _Lines(tqdm):
    """Bar that is a line of text each time."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], object]:
        """Function that writes a line."""
        return lambda text: text and file.write(f"{text}\n")

    def close(self) -> None:
        """Write a last line if there was a first one."""
        if not self.disable:
            if self.leave and self.last_print_t >= self.start_t + self.delay:
                self.display()
            self.disable = True
            self._decr_instances(self)  # pyright: ignore[reportAttributeAccessIssue]  # as tqdm's own `close`


class Bars:
    """One progress bar at a time, while the context lasts.

    Args:
        wanted: False shows nothing; True writes a first line into a file at once; None, the default, writes none into a
            file during the first half minute.
    """

    def __init__(self, wanted: bool | None = None):
        self.wanted, self.bar = wanted, None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def add(self, description: str, total: float | None = None, unit: str = "", note: str = "") -> "Bar":
        """Begin a bar, which ends the one before; a bar whose `total` is None disappears when it ends."""
        if self.bar is not None:
            self.bar.close()
        self.bar = Bar(self.wanted, description, total, unit, note)
        return self.bar

    def sampling(self, description: str, total: int) -> "SamplingBar":
        """Bar for chains, which is a callback for `bayesattn.sample`."""
        return SamplingBar(self, description, total)


class Bar:
    """Bar of one piece of work, which any thread may update."""

    def __init__(self, wanted: bool | None, description: str, total: float | None, unit: str, note: str):
        moving = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        kind, forms = (tqdm, (BAR, ENDLESS_BAR)) if moving else (_Lines, (LINE, ENDLESS_LINE))
        self.lock = threading.Lock()
        self.shown = kind(
            desc=printable(description),
            total=total,
            unit=unit,
            file=sys.stderr,
            disable=wanted is False or sys.stderr is None,
            leave=total is not None,
            dynamic_ncols=True,
            mininterval=0.1 if moving else LINE_SECONDS,
            delay=0 if moving or wanted else LINE_SECONDS,
            bar_format=forms[total is None],
            postfix=printable(note) or None,
        )

    def update(
        self,
        completed: float | None = None,
        *,
        description: str | None = None,
        note: str | None = None,
        total: float | None = None,
    ) -> None:
        """Set the completed amount, description, note or total."""
        with self.lock:
            if description is not None:
                self.shown.set_description_str(printable(description), refresh=False)
            if note is not None:
                self.shown.set_postfix_str(printable(note), refresh=False)
            if total is not None:
                self.shown.total = total
            self.shown.update(0 if completed is None else completed - self.shown.n)

    def begins(self, completed: float) -> None:
        """Start the clock; work completed before does not count in the speed."""
        with self.lock:
            self.shown.initial = self.shown.n = self.shown.last_print_n = completed
            self.shown.start_t = self.shown.last_print_t = time.time()
            self.shown.set_postfix_str("", refresh=False)

    def close(self) -> None:
        """End the bar."""
        self.shown.close()


class Block(Protocol):
    """Block of draws of a chain, as `bayesattn.sample` reports it."""

    @property
    def chain(self) -> int:
        """Number of the chain."""
        ...

    @property
    def done(self) -> int:
        """Steps that the chain has done."""
        ...


Event = TypeVar("Event", bound=Block)
Item = TypeVar("Item")


class SamplingBar:
    """Bar for the steps of all chains: a callback for `bayesattn.sample` that shows their preparation too."""

    def __init__(self, bars: Bars, description: str, total: int):
        self.bars, self.description, self.total = bars, description, total
        self.bar: Bar | None = None
        self.done: dict[int, int] = {}
        self.drawing = False

    def preparing(self) -> None:
        """Show the bar if it is not shown yet."""
        if self.bar is None:
            self.bar = self.bars.add(self.description, self.total, "steps", "preparing")

    def begin_drawing(self) -> None:
        """Mark the beginning of drawing."""
        self.preparing()
        self.drawing = True
        if self.bar is not None:
            self.bar.begins(sum(self.done.values()))

    def __call__(self, event: Block) -> None:
        """Record the steps that a chain has done; steps before drawing begins were done by an earlier process."""
        self.done[event.chain] = event.done
        if self.drawing and self.bar is not None:
            self.bar.update(sum(self.done.values()))


def preparing(progress: object) -> None:
    """Show in the progress display, if it can, that the preparation of the chains begins."""
    if isinstance(progress, SamplingBar):
        progress.preparing()


def begin_drawing(progress: object) -> None:
    """Show in the progress display, if it can, that drawing begins."""
    if isinstance(progress, SamplingBar):
        progress.begin_drawing()


@contextmanager
def callback(
    progress: Callable[[Event], None] | bool | None, description: str, total: int
) -> Iterator[Callable[[Event], None]]:
    """Callback for each block of draws: `progress` itself if it is a function, otherwise a bar.

    Raises ValueError unless it is a function, True, False or None.
    """
    if callable(progress):
        yield progress
        return
    if progress is not None and not isinstance(progress, bool):
        from bayesattn._util.checks import shown  # imports NumPy, which `bayesattn --help` does not need

        raise BayesattnError(f"progress must be True, False, None or a function, got {shown(progress)}")
    with Bars(progress) as bars:
        yield bars.sampling(description, total)


def watched(items: Iterable[Item], description: str, unit: str = "") -> Iterator[Item]:
    """Yield the items, with a bar after two seconds if the rest will take at least two more seconds at the same speed.

    Items without a length get a bar without an end.
    """
    total = len(items) if isinstance(items, Sized) else None
    began, bar = time.monotonic(), None
    with ExitStack() as shown:
        for done, item in enumerate(items):
            elapsed = time.monotonic() - began
            if bar is None and elapsed > SLOW_SECONDS and (not total or elapsed * (total - done) > SLOW_SECONDS * done):
                bar = shown.enter_context(Bars()).add(description, total, unit)
            if bar is not None:
                bar.update(done)
            yield item
        if bar is not None:
            bar.update(total)
