"""Output shared by commands: consoles, tables, progress bars, JSON."""

import itertools
import json
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bayesattn._util.files import finite
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.progress import Bar, Bars, StandardError
from bayesattn._util.text import printable

HOLDS, FAILS, CANNOT_TELL = 0, 1, 2
"""Exit statuses of commands with a verdict; bad input has status 2 too, with a line on standard error."""

GAPS, NARROW_GAPS = (0, 2, 0, 0), (0, 1, 0, 0)
"""Padding of a table's cells, and that of a table too wide for the screen."""
MOST_COLUMNS = 10_000
"""Width of a screen that no table fills."""
UNBREAKABLE_SPACES, NO_BREAK_SPACE = re.compile(r" (?=[±%])|(?<=±) "), "\N{NO-BREAK SPACE}"


class Screen(Console):
    """Console that prints names literally: no markup, no emoji, no control characters."""

    def __init__(self, file: IO[str] | None = None):
        super().__init__(markup=False, emoji=False, file=file)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Text for the terminal from a string, without control characters."""
        return super().render_str(printable(text), **settings)


console, errors = Screen(), Screen(cast(IO[str], StandardError()))


def bars(quiet: bool = False) -> Bars:
    """Progress bars of a command, on standard error."""
    return Bars(False if quiet else None, errors)


@contextmanager
def working(description: str, quiet: bool = False) -> Iterator[Bar]:
    """Context with a progress bar for work of unknown length."""
    with bars(quiet) as shown:
        yield shown.add(description)


def new_table(
    rows: Sequence[PlainMapping],
    words: Collection[str] = (),
    once: Collection[str] = (),
    styles: Sequence[str | None] = (),
) -> Table:
    """Table of rows of text by heading, whose numbers never wrap.

    Columns in `words` hold words, which wrap on a narrow screen. Columns in `once` are blank where all of
    them repeat the row above. `styles` has the style of each row.
    """
    table = Table(box=None, padding=GAPS)
    for heading in rows[0]:
        text = heading in words
        table.add_column(heading, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    above: PlainMapping = {}
    for row, style in itertools.zip_longest(rows, styles):
        same = all(row[heading] == above.get(heading) for heading in once)
        table.add_row(*("" if same and heading in once else text for heading, text in row.items()), style=style)
        above = row
    return table


def print_table(title: str, rows: Sequence[PlainMapping], words: Collection[str] = (), **settings: Any) -> None:
    """Print a title above a `new_table`. No cell is cut: on a narrow screen gaps are narrower, then lines longer."""
    table, unlimited = new_table(rows, words, **settings), console.options.update(max_width=MOST_COLUMNS)
    for column in table.columns:
        if column.no_wrap:
            column.min_width = max(cell_len(str(text)) for text in (column.header, *column.cells))
    if table.__rich_measure__(console, unlimited).minimum > console.width:
        table.padding = NARROW_GAPS
        least = table.__rich_measure__(console, unlimited).minimum
        table.width = least if least > console.width else None
    console.print(title, style="italic")
    console.print(table, crop=False)


def say(text: str, style: str | None = None) -> None:
    """Print sentences, with line breaks that keep numbers together with their errors and units."""
    bound = printable(UNBREAKABLE_SPACES.sub(NO_BREAK_SPACE, text))
    lines = textwrap.wrap(bound, console.width, break_long_words=False, break_on_hyphens=False)
    console.print("\n".join(lines).replace(NO_BREAK_SPACE, " "), style=style, soft_wrap=True)


def say_where(text: str) -> None:
    """Print a sentence with a path on one line, so that a path of any length can be copied."""
    console.print(text, soft_wrap=True)


def say_paths(names: Sequence[str], numbers: Collection[int]) -> None:
    """Print the names of the paths with these numbers; tables show only the numbers."""
    chosen = [f"{number}: {name}" for number, name in enumerate(names, 1) if number in numbers]
    say("paths: " + ", ".join(each.replace(" ", NO_BREAK_SPACE) for each in chosen))


def to_json(content: PlainDict | list[PlainDict]) -> str:
    """JSON of plain values, with null for numbers that are not finite, which JSON cannot represent."""
    return json.dumps(finite(content), indent=1, allow_nan=False)


def print_json(content: PlainDict | list[PlainDict]) -> None:
    """Print JSON, and nothing else, to standard output."""
    print(to_json(content))
