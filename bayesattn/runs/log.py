"""The log of a run: a line of JSON for each event. Nothing but times and states depends on it."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayesattn._util.files import append_line
from bayesattn._util.plain import PlainDict


def append(file: Path, **event: Any) -> None:
    """Add an event with its time."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(IsADirectoryError):
        append_line(file, json.dumps({"time": time} | event))


def read(file: Path) -> list[PlainDict]:
    """The events; lines that cannot be read are left out."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [event for event in map(_parsed, lines) if event]


def blocks(events: list[PlainDict]) -> list[PlainDict]:
    """Events of blocks that say what they should."""
    numbers = ("seconds", "steps")
    return [
        event
        for event in events
        if event["event"] == "block"
        and all(isinstance(event.get(name), int | float) for name in numbers)
        and isinstance(event.get("chains"), list)
    ]


def _parsed(line: str) -> PlainDict | None:
    """A line that was cut short, or is no event, says nothing."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
