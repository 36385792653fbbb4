"""Files that commands write: folders of results and figures, and what may be overwritten."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bayesattn._util.files import replace_file, require_new
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli.screen import say_where, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def results_folder(command: str, model: str, out: Path | None, figure: Path | None, overwrite: bool) -> Path:
    """Folder `out` for a command's results; by default out/COMMAND-MODEL, with a number appended if it exists.

    Raises an error, before any computation, if the folder or the file `figure` cannot be written.
    """
    folder = run_folder(command, model)
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    folder = out or next(each for each in itertools.chain([folder], numbered) if not each.exists())
    refuse_to_overwrite(folder, overwrite)
    require_free_figure(figure, overwrite)
    return folder


def run_folder(command: str, model: str, **settings: object) -> Path:
    """Folder in out/ for the runs of a command, with the settings that are given in its name."""
    given = [f"{name}={value}" for name, value in settings.items() if value is not None]
    return Path("out") / "-".join([command, Path(model).stem, *given])


def require_free_figure(file: Path | None, overwrite: bool) -> None:
    """Raise an error, before any computation, if --figure cannot be written."""
    if file is not None:
        from bayesattn.jobs.plots.style import checked_file

        refuse_to_overwrite(checked_file("--figure", file, overwrite=True), overwrite, folder=False, option="--figure")


def refuse_to_overwrite(path: Path, overwrite: bool, folder: bool = True, option: str = "--out") -> None:
    """Raise FileExistsError if the path exists, ValueError if it cannot be created."""
    here = path.absolute()
    there = next(above for above in here.parents or [here] if above.exists())
    if not there.is_dir():
        raise BayesattnError(f"{option} must be in a folder, got {path}, and {there} is a file")
    if not overwrite:
        require_new(option, path, "choose another or give --overwrite")
    if path.exists() and path.is_dir() != folder:
        raise BayesattnError(
            f"{option} must be a {'folder' if folder else 'file'}, got {path}, which is a {'file' if folder else 'folder'}"
        )


def save_results(
    folder: Path, content: PlainDict, draw: Callable[[], "Figure"], file: Path | None = None, overwrite: bool = False
) -> None:
    """Write result.json and figure.png to a command's folder, and the figure also to `file` if given."""
    from bayesattn.jobs.plots.style import save

    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "result.json", to_json(content).encode())
    figure = draw()
    # Whether the folder may exist was checked before any computation.
    save(figure, folder / "figure.png", overwrite=True)
    if file is not None:
        save(figure, file, overwrite=overwrite)


def save_figure(draw: Callable[[], "Figure"], file: Path | None, overwrite: bool, quiet: bool) -> None:
    """Write a figure to the file of --figure, if it is given, and say where."""
    from bayesattn.jobs.plots.style import save

    if file is not None:
        save(draw(), file, overwrite=overwrite)
        if not quiet:
            say_where(f"figure in {file}")
