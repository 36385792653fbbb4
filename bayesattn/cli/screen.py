"""What commands share to print: consoles, progress bars, JSON."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

HOLDS, FAILS, CANNOT_TELL = 0, 1, 2
"""Exit statuses of commands that ask a question; bad input ends with 2 too, and is told by its line on standard error."""
screen, errors = Console(), Console(stderr=True)
SAMPLE_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[rate]}"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)


@contextmanager
def sampling_progress(total: int, quiet: bool):
    """A progress bar for each sampling; yields a function from a description to a callback for `sample`."""
    with Progress(*SAMPLE_COLUMNS, console=errors, disable=quiet or not errors.is_terminal) as bars:

        def add(description: str):
            task = bars.add_task(description, total=total, rate="compiling")
            done: dict[int, int] = {}

            def tell(event: Any) -> None:
                done[event.chain] = event.done
                speed = bars.tasks[task].speed
                rate = f"{speed:.0f} draws/s" if speed else ""
                bars.update(task, completed=sum(done.values()), rate=rate)

            return tell

        yield add


@contextmanager
def training_progress(description: str, quiet: bool):
    """A progress bar that shows up once training begins; yields a callback for `bayesattn.training.train`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    columns = (*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=quiet or not errors.is_terminal) as bars:

        def tell(event: Any) -> None:
            if not bars.tasks:
                bars.add_task(description, total=event.total, loss="")
            loss = f"loss {event.loss:.3f}, accuracy {100 * event.accuracy:.1f} %"
            bars.update(bars.tasks[0].id, completed=event.done, loss=loss)

        yield tell


def print_json(content: Any) -> None:
    """JSON, and nothing else, to standard output."""
    print(json.dumps(content, indent=1))


def cell(number: float | None, form: str) -> str:
    """A number in a table; "n/a" for what is not defined."""
    return "n/a" if number is None else format(number, form)


def free_folder(folder: Path) -> Path:
    """The folder itself, or numbered if it is taken."""
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10**6))
    return folder if not folder.exists() else next(c for c in candidates if not c.exists())


def refuse_to_overwrite(path: Path, overwrite: bool) -> None:
    """Raise ValueError if something stands at --out."""
    if path.exists() and not overwrite:
        raise ValueError(f"--out must not exist yet, got {path}, which does; choose another or give --overwrite")


def save_results(folder: Path, content: Any, figure: Any) -> None:
    """Write result.json and figure.png into a command's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(content, indent=1))
    figure.savefig(folder / "figure.png", dpi=150)
