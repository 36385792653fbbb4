"""Log of a run, with a line of JSON for each event; only times and states depend on it."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayesattn._util.files import append_line
from bayesattn._util.plain import PlainDict


def append(file: Path, **event: Any) -> None:
    """Append an event with its time."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(IsADirectoryError):
        append_line(file, json.dumps({"time": time} | event))


def read(file: Path) -> list[PlainDict]:
    """Events of a log; unreadable lines are skipped."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [event for event in map(_parsed, lines) if event]


def blocks(events: list[PlainDict]) -> list[PlainDict]:
    """Events of blocks with valid entries."""
    numbers = ("seconds", "steps")
    return [
        event
        for event in events
        if event["event"] == "block"
        and all(isinstance(event.get(name), int | float) for name in numbers)
        and isinstance(event.get("chains"), list)
    ]


def _parsed(line: str) -> PlainDict | None:
    """Event of a line; None if the line is truncated or not an event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
