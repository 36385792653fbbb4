"""Runs in a folder: which there are, how far they are, and where one is drawn that replaces another."""

from pathlib import Path

from bayesattn._util.files import user_path
from bayesattn._util.plain import PlainDict
from bayesattn.runs import folder as folders
from bayesattn.runs.folder import REPLACEMENT, RunError
from bayesattn.runs.run import Run


def is_run(path: str | Path) -> bool:
    """Whether a readable run stands at a path."""
    try:
        Run(path)
    except RunError:
        return False
    return True


def overview(folder: str | Path) -> list[PlainDict]:
    """State and figures of every run in a folder, or of the run that it is; a damaged one is "unreadable".

    Raises RunError if there is none.
    """
    rows, folder = [], user_path("folder", folder)
    for path in folders.found_in(folder):
        name = str(path.relative_to(folder)) if path != folder else path.name
        try:
            rows.append({"run": name} | Run(path).overview())
        except RunError as error:
            rows.append({"run": name, "state": "unreadable", "error": str(error)})
        except Exception as error:  # Whatever is wrong with one run must not hide the others.
            rows.append({"run": name, "state": "unreadable", "error": f"{type(error).__name__}: {error}"})
    return rows


def under_way(out: str | Path) -> Path:
    """Where a run for a place is drawn: beside it, as long as it replaces another."""
    new = folders.beside(folders.followed(out), REPLACEMENT)
    return new if new.exists() else user_path("out", out)
