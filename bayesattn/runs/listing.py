"""Listing of the runs in a folder, their progress, and the location of a run that replaces another."""

from pathlib import Path

from bayesattn._util.files import user_path
from bayesattn._util.plain import PlainDict
from bayesattn.runs import folder as folders
from bayesattn.runs.folder import REPLACEMENT, RunError
from bayesattn.runs.run import Run


def is_run(path: str | Path) -> bool:
    """Whether there is a readable run at a path."""
    try:
        Run(path)
    except RunError:
        return False
    return True


def overview(folder: str | Path) -> list[PlainDict]:
    """State and numbers of every run in a folder, or of the folder itself if it is a run; a damaged one is "unreadable".

    Raises RunError if there is no run.
    """
    rows, folder = [], user_path("folder", folder)
    for path in folders.found_in(folder):
        name = str(path.relative_to(folder)) if path != folder else path.name
        try:
            rows.append({"run": name} | Run(path).overview())
        except RunError as error:
            rows.append({"run": name, "state": "unreadable", "error": str(error)})
        except Exception as error:  # An error of one run must not hide the others.
            rows.append({"run": name, "state": "unreadable", "error": f"{type(error).__name__}: {error}"})
    return rows


def under_way(out: str | Path) -> Path:
    """Path at which the run for `out` is sampled: a hidden folder beside it while the run replaces another."""
    new = folders.beside(folders.followed(out), REPLACEMENT)
    return new if new.exists() else user_path("out", out)
