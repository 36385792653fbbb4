"""What commands share to print: consoles, progress bars, JSON."""

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from bayesattn._files import finite, replace_file

HOLDS, FAILS, CANNOT_TELL = 0, 1, 2
"""Exit statuses of commands that ask a question; bad input ends with 2 too, and is told by its line on standard error."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, colour the screen or turn the direction of text."""


def printable(text: str) -> str:
    """Text without control characters, which names of files and heads may hold."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class Screen(Console):
    """A console that shows names as they are: no markup, no emoji, no control characters."""

    def __init__(self, **settings: Any):
        super().__init__(markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """What every string on its way to the terminal becomes."""
        return super().render_str(printable(text), **settings)


screen, errors = Screen(), Screen(stderr=True)
DESCRIPTION = TextColumn("{task.description}", markup=False)
SAMPLE_COLUMNS = (
    DESCRIPTION,
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[rate]}"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)


@contextmanager
def sampling_progress(total: int, quiet: bool):
    """A progress bar for each sampling; yields a function from a description to a callback for `sample`.

    Work of unknown length has a total of None, and its bar is gone when the next begins.
    """
    with Progress(*SAMPLE_COLUMNS, console=errors, disable=quiet or not errors.is_terminal) as bars:

        def add(description: str, total: int | None = total):
            for task in bars.tasks:
                if task.total is None:
                    bars.remove_task(task.id)
            task = bars.add_task(description, total=total, rate="compiling" if total else "")
            done: dict[int, int] = {}

            def tell(event: Any) -> None:
                done[event.chain] = event.done
                [speed] = [bar.speed for bar in bars.tasks if bar.id == task]
                rate = f"{speed:.0f} draws/s" if speed else ""
                bars.update(task, completed=sum(done.values()), rate=rate)

            return tell

        yield add


@contextmanager
def training_progress(description: str, quiet: bool):
    """A progress bar that shows up once training begins; yields a callback for `bayesattn.tasks.training.train`."""
    columns = (DESCRIPTION, BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    columns = (*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=quiet or not errors.is_terminal) as bars:

        def tell(event: Any) -> None:
            if not bars.tasks:
                bars.add_task(description, total=event.total, loss="")
            loss = f"loss {event.loss:.3f}, accuracy {100 * event.accuracy:.1f} %"
            bars.update(bars.tasks[0].id, completed=event.done, loss=loss)

        yield tell


def to_json(content: Any) -> str:
    """JSON of plain values, null for numbers that are not finite, which JSON does not have."""
    return json.dumps(finite(content), indent=1, allow_nan=False)


def print_json(content: Any) -> None:
    """JSON, and nothing else, to standard output."""
    print(to_json(content))


def cell(number: float | None, form: str) -> str:
    """A number in a table; "n/a" for what is not defined."""
    return "n/a" if number is None else format(number, form)


def free_folder(folder: Path) -> Path:
    """The folder itself, or numbered if it is taken."""
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10**6))
    return folder if not folder.exists() else next(c for c in candidates if not c.exists())


def refuse_to_overwrite(path: Path, overwrite: bool, folder: bool = True, option: str = "--out") -> None:
    """Raise ValueError if something stands at --out, or nothing can stand there."""
    there = next(above for above in path.absolute().parents if above.exists())
    if not there.is_dir():
        raise ValueError(f"{option} must be in a folder, got {path}, and {there} is a file")
    if path.exists() and not overwrite:
        raise ValueError(f"{option} must not exist yet, got {path}, which does; choose another or give --overwrite")
    if path.exists() and path.is_dir() != folder:
        raise ValueError(f"{option} must be a {'folder' if folder else 'file'}, got {path}, which is none")


def require_free_figure(file: Path | None, overwrite: bool) -> None:
    """Raise an error, before any work, if --figure cannot be written."""
    if file is not None:
        from bayesattn.plots.style import checked_file

        refuse_to_overwrite(checked_file("--figure", file, overwrite=True), overwrite, folder=False, option="--figure")


def save_results(folder: Path, content: Any, figure: Any, file: Path | None = None) -> None:
    """Write result.json and figure.png into a command's folder, and the figure to another file where one is asked for."""
    from bayesattn.plots.style import save

    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "result.json", to_json(content).encode())
    # Whether they may replace others was asked before any work.
    for place in (folder / "figure.png", *([] if file is None else [file])):
        save(figure, place, overwrite=True)
