"""Text of results: numbers with their errors, and objects in a few short lines or, in a notebook, a small table."""

import html
import math
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, Protocol

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, colour the screen or turn the direction of text."""
UNKNOWN = "n/a"
ROUNDING = 1e-12
"""Ratio of an error to its value up to which the error is only rounding."""
DIGITS = 4
"""Significant digits of a number without an error."""
LEAST_PLAIN_POWER, LARGEST_PLAIN_POWER = -5, 7
"""Powers of ten between which numbers with errors are written without an exponent."""
COLUMNS, LINES = 88, 8
"""Largest size of an object's text."""


def printable(text: str) -> str:
    """Text without control characters, which names of files and heads may contain."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def cell(number: float | None, form: str) -> str:
    """A number in the format `form`; "n/a" if it is undefined."""
    return UNKNOWN if number is None or not math.isfinite(number) else format(number, form)


def cells(numbers: Mapping[Any, Any], forms: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Texts of numbers by heading; `forms` has the name and the format of the number under each heading."""
    return {heading: cell(numbers[name], form) for heading, (name, form) in forms.items()}


def duration(seconds: float) -> str:
    """Hours, if there are any, minutes and seconds.

    >>> duration(3), duration(62.6), duration(3601)
    ('0:03', '1:03', '1:00:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def with_error(value: float | None, error: float | None, sign: str = "") -> str:
    """`value ± error`: the error with two significant digits, the value to the same place.

    >>> with_error(12.5981, 0.0724), with_error(-0.3, 41.7, "+"), with_error(1.5e-9, 2e-10)
    ('12.598 ± 0.072', '+0 ± 42', '(1.50 ± 0.20)e-09')

    An error of 0 means that the number is exact or that the error is too small to resolve. A value or an error that is
    None or not finite is unknown.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    error = math.nan if error is None else error
    if 0 < error < max(sys.float_info.min, ROUNDING * abs(value)):
        error = 0.0
    if not math.isfinite(error) or error == 0:
        return f"{rounded(value, error, sign)} ± {'0' if error == 0 else UNKNOWN}"
    power = _power(max(abs(value), error))
    if not LEAST_PLAIN_POWER <= power < LARGEST_PLAIN_POWER:
        scale = 10.0**power
        return f"({with_error(value / scale, error / scale, sign)})e{power:+03d}"
    return f"{rounded(value, error, sign)} ± {rounded(error, error)}"


def rounded(value: float, error: float, sign: str = "") -> str:
    """`value` to the place of the second significant digit of its error; four digits if the error is 0 or not finite."""
    if not math.isfinite(value):
        return UNKNOWN
    if not math.isfinite(error) or error == 0:
        return f"{value:{sign}.{DIGITS}g}"
    places = min(1 - _power(error), sys.float_info.dig - 1 - _power(abs(value)) if value else 300)
    return f"{round(value, places) + 0.0:{sign}.{max(0, places)}f}"  # No -0.


def draw_more(times: float) -> str:
    """Advice to draw more, with how many times as many draws would do, if known."""
    if not 1 < times < math.inf:
        return "draw more"
    few = times < 10  # Then to one decimal, rounded up.
    return f"draw more, about {math.ceil(10 * times) / 10 if few else math.ceil(times):g} times as many"


def _power(number: float) -> int:
    """Power of ten of a positive number rounded to two significant digits: 0 for 9.94, 1 for 9.96."""
    return int(f"{number:.1e}".partition("e")[2]) if number else 0


class Described:
    """Object shown in a few short lines or, in a notebook, as a table; showing it never raises and begins no work."""

    def _described(self) -> tuple[str, Mapping[str, str]]:
        """Title, and rows of text by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


class _HasDescription(Protocol):
    """Method that `Described` and the named tuples of results share."""

    def _described(self) -> tuple[str, Mapping[str, str]]: ...


def as_text(thing: _HasDescription) -> str:
    """Title and rows of an object, cut to `LINES` lines of `COLUMNS` columns."""
    title, rows = _content(thing)
    indent = 4 + max(map(len, rows), default=0)
    lines = textwrap.wrap(title, COLUMNS, max_lines=1, placeholder=" ..")
    for number, (word, text) in enumerate(rows.items(), 1):
        # Each of the remaining rows gets at least one line.
        room = LINES - len(lines) - (len(rows) - number)
        lines += textwrap.wrap(
            text,
            COLUMNS,
            initial_indent=f"  {word:<{indent - 4}}  ",
            subsequent_indent=" " * indent,
            max_lines=max(1, room),
            break_on_hyphens=False,
            placeholder=" ..",
        )
    return "\n".join(lines)


def as_html(thing: _HasDescription) -> str:
    """Title and rows of an object as a table, names escaped."""
    title, rows = _content(thing)
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(word)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for word, text in rows.items()
    )
    return f"<div><strong>{html.escape(title)}</strong><table>{cells}</table></div>"


def _content(thing: _HasDescription) -> tuple[str, dict[str, str]]:
    try:
        title, rows = thing._described()
    except Exception as error:  # A debugger may show objects that are not fully constructed.
        title, rows = type(thing).__name__, {"cannot be shown": f"{type(error).__name__}: {error}"}
    return _clean(title), {word: _clean(text) for word, text in rows.items()}


def _clean(text: str) -> str:
    """Text on one line, in characters that every terminal and browser accepts."""
    return printable(" ".join(text.split())).encode(errors="backslashreplace").decode()
