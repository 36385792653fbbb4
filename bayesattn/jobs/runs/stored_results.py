"""Results that are computed once and kept in a file, with what they depend on."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesattn._util.files import replace_file
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest


def remembered(file: Path, about: PlainDict, compute: Callable[[], Any], restore: Callable[[Any], Any]) -> Any:
    """Result of `compute`, plain values for JSON, restored from a file while `about`, what it depends on, is unchanged.

    A file that is missing, damaged or about something else is replaced; on a read-only disk the result is computed each
    time.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        stored = json.loads(file.read_text())
        if stored["about"] == about | {"sum": digest(stored["value"])}:
            return restore(stored["value"])
    value = compute()
    with suppress(OSError):
        replace_file(file, json.dumps({"about": about | {"sum": digest(value)}, "value": value}).encode())
    return restore(value)
