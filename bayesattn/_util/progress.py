"""Progress of work: a bar on a terminal and in Jupyter, a line every half minute if output goes into a file."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import duration, printable
from bayesattn.errors import BayesattnError

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

LINE_SECONDS = 30.0
"""Seconds between two lines in a log file."""
NOTEBOOK_SECONDS = 1.0
"""Seconds between two updates in Jupyter."""
LONGEST_BAR = 40
NOTEBOOK_COLUMNS = 84
"""Columns of a line beside JupyterLab's file browser, in a window of 1280 pixels."""


class _Words(ProgressColumn):
    """Column of a bar: a text about its task."""

    max_refresh = None

    def __init__(self, words: Callable[[Task], str], yielding: bool = False):
        super().__init__(Column(no_wrap=not yielding))  # Columns that may wrap shrink first if space is short.
        self.words = words

    def render(self, task: Task) -> Text:
        return Text(self.words(task), no_wrap=True, overflow="ellipsis")


def _description(task: Task) -> str:
    return printable(task.description)


def _count(task: Task) -> str:
    return f"{task.completed:.0f}/{task.total:.0f} {task.fields['unit']}".rstrip() if task.total else ""


def _note(task: Task) -> str:
    digits = ".0f" if (task.speed or 0) >= 10 else ".2g"
    return printable(task.fields["note"]) or (f"{task.speed:{digits}}/s" if task.speed else "")


def _elapsed(task: Task) -> str:
    return f"elapsed {duration((task.fields['ended'] or time.monotonic()) - task.fields['began'])}"


def _left(task: Task) -> str:
    seconds = None if task.fields["ended"] else task.time_remaining
    return "" if seconds is None else f"left {duration(seconds)}"


class StandardError:
    """Standard error that ignores a closed or broken stream, so that no draws are lost."""

    @property
    def _stream(self) -> IO[str]:
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)

    def write(self, text: str) -> int:
        """Write text if the stream accepts it."""
        with suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it accepts it."""
        with suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        with suppress(OSError, ValueError, AttributeError):
            return self._stream.isatty()
        return False

    @property
    def encoding(self) -> str:
        """Encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"


class Bars:
    """Progress bars, one for each piece of work, while the context lasts.

    Args:
        wanted: False shows nothing; True also writes a first and a last line into a file; None, the default, writes no
            line into a file during the first half minute.
        console: where to show the bars, by default standard error.
    """

    def __init__(self, wanted: bool | None = None, console: Console | None = None):
        self.console = console or Console(file=cast(IO[str], StandardError()))
        self.wanted = wanted
        self.notebook = wanted is not False and self.console.is_jupyter
        if self.console.is_jupyter:
            self.console.width = NOTEBOOK_COLUMNS
        # A file may receive colours (FORCE_COLOR), but no moving bar.
        moving = self.console.is_interactive and self.console.file.isatty()
        self.on_terminal = wanted is not False and moving and not self.notebook
        bar = BarColumn(bar_width=None, table_column=Column(max_width=LONGEST_BAR))
        words = [_Words(part, part is _note) for part in (_count, _note, _elapsed, _left)]
        # Without a terminal, the bars count but show nothing.
        self.progress = Progress(
            _Words(_description),
            bar,
            *words,
            console=self.console,
            disable=not self.on_terminal,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._handle: DisplayHandle | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Bars":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_endless()
        self.progress.stop()
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            if self.notebook or self.wanted:
                self._tell(last=True)

    def add(self, description: str, total: float | None = None, unit: str = "", note: str = "") -> "Bar":
        """Add a bar for work that begins now; a bar whose `total` is None disappears when the next bar begins."""
        self._remove_endless()
        bar = Bar(self, description, total, unit, note)
        if self._thread is None and self.wanted is not False and not self.on_terminal:
            if self.notebook or self.wanted:
                self._tell()
            self._thread = threading.Thread(target=self._keep_telling, daemon=True)
            self._thread.start()
        return bar

    def _remove_endless(self) -> None:
        for task in self.progress.tasks:
            if task.total is None:
                self.progress.remove_task(task.id)

    def sampling(self, description: str, total: int) -> "SamplingBar":
        """Add a bar for chains, which is a callback for `bayesattn.sample`."""
        return SamplingBar(self, description, total)

    def _keep_telling(self) -> None:
        while not self._over.wait(NOTEBOOK_SECONDS if self.notebook else LINE_SECONDS):
            self._tell()

    def _tell(self, last: bool = False) -> None:
        tasks = self.progress.tasks  # Read once, because the working thread may remove a task meanwhile.
        if self._handle is not None:
            self._handle.update(self.progress)
        elif self.notebook:
            from IPython.display import display

            self._handle = display(self.progress, display_id=True)
        elif tasks and (last or not tasks[-1].finished):
            task = tasks[-1]
            words = ", ".join(filter(None, (part(task) for part in (_count, _note, _elapsed, _left))))
            line = f"bayesattn: {_description(task)}: {words}"
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class Bar:
    """Bar of one piece of work."""

    def __init__(self, bars: Bars, description: str, total: float | None, unit: str, note: str):
        self.progress = bars.progress
        self.fields: PlainDict = {"unit": unit, "began": time.monotonic(), "ended": None}
        self.task = self.progress.add_task(description, total=total, note=note, **self.fields)

    def update(self, completed: float | None = None, **changes: Any) -> None:
        """Set the completed amount, description, note or total; ignored if the bar is gone."""
        with suppress(KeyError):
            self.progress.update(self.task, completed=completed, **changes)
            task = {task.id: task for task in self.progress.tasks}[self.task]
            if task.finished and task.fields["ended"] is None:
                self.progress.update(self.task, ended=time.monotonic())

    def begins(self, completed: float) -> None:
        """Start the clock; work completed before does not count in the speed."""
        self.progress.reset(self.task, completed=int(completed), note="", **self.fields)


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
            self.bar = self.bars.add(self.description, self.total, "steps", "compiling (once for each shape)")

    def begin_drawing(self) -> None:
        """Mark the beginning of drawing."""
        self.preparing()
        self.drawing = True
        if self.bar is not None:
            self.bar.begins(sum(self.done.values()))

    def __call__(self, event: Any) -> None:
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
    progress: Callable[[Any], None] | bool | None, description: str, total: int
) -> Iterator[Callable[[Any], None]]:
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
