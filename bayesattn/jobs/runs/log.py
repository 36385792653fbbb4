"""Log of a run: one line of JSON for each event, in its hidden folder."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bayesattn._util.files import append_line
from bayesattn._util.plain_values import PlainDict

NAME = "log.jsonl"


def append(folder: Path, event: PlainDict) -> None:
    """Append an event, with its time, to the log in a folder."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(IsADirectoryError):
        append_line(folder / NAME, json.dumps({"time": time} | event))


def events(folder: Path) -> list[PlainDict]:
    """Events of the log in a folder, none if there is no log; lines that were cut short are left out."""
    found = []
    with suppress(OSError):
        for line in (folder / NAME).read_text(errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    found.append(event)
    return found


def blocks(events: list[PlainDict]) -> list[PlainDict]:
    """Events of blocks with valid entries."""
    kinds = {"seconds": int | float, "steps": int | float, "chains": list}
    found = [event for event in events if event["event"] == "block"]
    return [event for event in found if all(isinstance(event.get(name), kind) for name, kind in kinds.items())]
