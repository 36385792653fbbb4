"""What commands share to print: consoles, tables, progress bars, JSON."""

import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bayesattn._util.errors import BayesattnError
from bayesattn._util.files import finite, replace_file, require_new
from bayesattn._util.progress import Bar, Bars, StandardError
from bayesattn._util.text import printable

HOLDS, FAILS, CANNOT_TELL = 0, 1, 2
"""Exit statuses of commands that ask a question; bad input ends with 2 too, and is told by its line on standard error."""

KEPT_TOGETHER, BOUND = re.compile(r" (?=[±%])|(?<=±) "), "\N{NO-BREAK SPACE}"


class Screen(Console):
    """A console that shows names as they are: no markup, no emoji, no control characters."""

    def __init__(self, **settings: Any):
        super().__init__(markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """What every string on its way to the terminal becomes."""
        return super().render_str(printable(text), **settings)


screen, errors = Screen(), Screen(file=StandardError())


def bars(quiet: bool = False) -> Bars:
    """Bars on standard error for the work of a command."""
    return Bars(False if quiet else None, errors)


@contextmanager
def working(description: str, quiet: bool = False) -> Iterator[Bar]:
    """A bar for work of unknown length."""
    with bars(quiet) as shown:
        yield shown.add(description)


@contextmanager
def training_progress(description: str, quiet: bool):
    """`training_bar` alone on the screen."""
    with bars(quiet) as shown:
        yield training_bar(shown, description)


def training_bar(shown: Bars, description: str) -> Callable[[Any], None]:
    """A bar that shows up once training begins, as a callback for `bayesattn.tasks.training.train`."""
    begun: list[Bar] = []

    def tell(event: Any) -> None:
        if not begun:
            begun.append(shown.add(description, event.total))
        note = f"loss {event.loss:.2f}, {100 * event.accuracy:.0f} % right"
        begun[0].update(event.done, note=note)

    return tell


def new_table(*headings: str, text: Collection[str] = ()) -> Table:
    """A table whose numbers never break; columns of text, named in `text`, do where the screen is narrow."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        words = heading in text
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return table


def print_table(title: str, table: Table) -> None:
    """A title over a table, which may be narrower."""
    screen.print(title, style="italic")
    screen.print(table)


def say(text: str, style: str | None = None) -> None:
    """Sentences, at the ends of whose lines numbers stay with their errors and units."""
    bound = printable(KEPT_TOGETHER.sub(BOUND, text))
    lines = textwrap.wrap(bound, screen.width, break_long_words=False, break_on_hyphens=False)
    screen.print("\n".join(lines).replace(BOUND, " "), style=style, soft_wrap=True)


def say_where(text: str) -> None:
    """A sentence that says where something lies, on one line, so that the path can be copied whatever its length."""
    screen.print(text, soft_wrap=True)


MOST_OWN = 20
"""Diagonal entries of U that tables show, the greatest."""


def say_paths(names: Sequence[str], numbers: Collection[int] | None = None) -> None:
    """Which numbers of tables stand for which paths, of all paths or of those that a table has."""
    chosen = [f"{number}: {name}" for number, name in enumerate(names, 1) if numbers is None or number in numbers]
    say("paths: " + ", ".join(each.replace(" ", BOUND) for each in chosen))


def as_options(text: str) -> str:
    """A sentence of the library, with what the command line calls the argument that it advises."""
    return text.replace("overwrite=True", "--overwrite")


def to_json(content: Any) -> str:
    """JSON of plain values, null for numbers that are not finite, which JSON does not have."""
    return json.dumps(finite(content), indent=1, allow_nan=False)


def print_json(content: Any) -> None:
    """JSON, and nothing else, to standard output."""
    print(to_json(content))


def free_folder(folder: Path) -> Path:
    """The folder itself, or numbered if it is taken."""
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10**6))
    return folder if not folder.exists() else next(c for c in candidates if not c.exists())


def refuse_to_overwrite(path: Path, overwrite: bool, folder: bool = True, option: str = "--out") -> None:
    """Raise FileExistsError if something stands at --out, ValueError if nothing can stand there."""
    there = next(above for above in path.absolute().parents if above.exists())
    if not there.is_dir():
        raise BayesattnError(f"{option} must be in a folder, got {path}, and {there} is a file")
    if not overwrite:
        require_new(option, path, "choose another or give --overwrite")
    if path.exists() and path.is_dir() != folder:
        raise BayesattnError(f"{option} must be a {'folder' if folder else 'file'}, got {path}, which is none")


def require_free_figure(file: Path | None, overwrite: bool) -> None:
    """Raise an error, before any work, if --figure cannot be written."""
    if file is not None:
        from bayesattn.plots.style import checked_file

        refuse_to_overwrite(checked_file("--figure", file, overwrite=True), overwrite, folder=False, option="--figure")


def save_results(
    folder: Path, content: Any, draw: Callable[[], Any], file: Path | None = None, overwrite: bool = False
) -> None:
    """Write result.json and figure.png into a command's folder, and the figure to another file where one is asked for."""
    from bayesattn.plots.style import save

    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "result.json", to_json(content).encode())
    figure = draw()
    save(figure, folder / "figure.png", overwrite=True)  # Whether the folder may be there was asked before any work.
    if file is not None:
        save(figure, file, overwrite=overwrite)
