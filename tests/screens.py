"""Terminals for tests, and whether text fits one."""

import io
import re


class Terminal(io.StringIO):
    """A terminal whose text can be read afterwards."""

    def isatty(self):
        return True


def fits(out):
    """Whether text fits a screen of 80 columns, no number apart from its error, and both with the same digits."""
    lines = [line.rstrip() for line in out.splitlines()]
    assert not any(line.endswith("±") or line.startswith("± ") for line in lines)
    places = [[len(number.partition(".")[2]) for number in pair] for pair in re.findall(r"([\d.]+) ± ([\d.]+)", out)]
    return max(map(len, lines)) <= 80 and all(value == error for value, error in places)
