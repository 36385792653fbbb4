"""Style of all figures: colour-blind safe colours (Okabe and Ito), names, axes, legends and files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.text import rounded, with_error
from bayesattn.errors import BayesattnError

RESOLUTION = 150
SUFFIXES = (".png", ".pdf", ".svg")
METADATA_WITHOUT_DATE: dict[str, PlainMapping] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""Metadata without a date, so that the same figure always gives the same file."""
MARKERS = "os^Dv"
MOST_ROWS_WITH_ENTRIES = 8
"""Largest number of rows of a matrix whose entries are all written."""
ENTRY_ROUNDING = 0.01
"""Rounding of an entry without an error, in units of the colours' range."""
MOST_NAMED_TICKS = 32
"""Largest number of ticks that all have names."""
LONGEST_NAME, LONGEST_UPRIGHT_NAME = 28, 3
"""Most characters of a name that is shown in full, and of a name that is not tilted."""
LEGEND_DISTANCE = 36
"""Distance in points from the axes to a legend below, which leaves room for ticks and axis name."""
MOST_WIDTHS_WITH_TICKS = 6
"""Largest number of widths that all have ticks."""


class Palette(NamedTuple):
    """Colours visible on a background."""

    blue: str
    orange: str
    green: str
    purple: str
    grey: str


ON_LIGHT = Palette("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666")
ON_DARK = Palette("#56B4E9", "#FF8A3C", "#2CC79A", "#E3A2C6", "#B4B4B4")


def palette() -> Palette:
    """Colours for the current style, by the brightness of its axes."""
    dark = np.mean(to_rgb(plt.rcParams["axes.facecolor"])) < 0.5
    return ON_DARK if dark else ON_LIGHT


def literal(name: str) -> str:
    """Name escaped for figures: `$` would begin a formula, and legends omit names that begin with `_`."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def short(name: str) -> str:
    """Name escaped for figures; a long name is shortened to its beginning and end."""
    half = (LONGEST_NAME - 3) // 2
    return literal(name if len(name) <= LONGEST_NAME else f"{name[:half]} … {name[-half:]}")


def name_ticks(axis: Axis, names: Sequence[str], tilted: bool = False) -> None:
    """Set ticks with names at 0, 1, ..; with many names, only at regular intervals."""
    places = range(0, len(names), -(-len(names) // MOST_NAMED_TICKS))
    many, tilted = len(names) > MOST_ROWS_WITH_ENTRIES, tilted and max(map(len, names)) > LONGEST_UPRIGHT_NAME
    tilt: PlainDict = {"rotation": 90} if many else {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    size = 6.5 if many else 8
    axis.set_ticks(list(places), [short(names[place]) for place in places], fontsize=size, **tilt if tilted else {})


def whole_numbers(axis: Axis) -> None:
    """Set ticks at whole numbers, for counts."""
    axis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10], min_n_ticks=1))


def width_axis(axes: Axes, widths: Sequence[float]) -> None:
    """Set up a logarithmic axis of widths, with margins around a single width."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    if len(widths) <= MOST_WIDTHS_WITH_TICKS:
        axes.set_xticks(list(widths))
    axes.set_xticks([], minor=True)
    if len(set(widths)) == 1:
        axes.set_xlim(widths[0] / 2, 2 * widths[0])
    axes.set_xlabel("width N (all layers)")


def legend_below(
    axes: Axes, columns: int = 1, title: str | None = None, handles: Sequence[Artist] | None = None
) -> None:
    """Draw a legend below the label of the x-axis, so that it hides no data."""
    down = ScaledTranslation(0, -LEGEND_DISTANCE / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=axes.transAxes + down,
        ncols=columns,
        fontsize=8,
        title=title,
        title_fontsize=8,
        frameon=False,
        handles=handles,
    )


def heat_map(
    axes: Axes,
    matrix: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    limit: float,
    errors: np.ndarray | None = None,
) -> AxesImage:
    """Draw a matrix with names of rows and columns, and 0 in the middle of the colours; write entries if it is small."""
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    name_ticks(axes.xaxis, columns, tilted=True)
    name_ticks(axes.yaxis, rows)
    if max(matrix.shape) > MOST_ROWS_WITH_ENTRIES:
        return image
    for row, column in np.ndindex(*matrix.shape):
        entry, error = float(matrix[row, column]), 0.0 if errors is None else float(errors[row, column])
        if not np.isfinite(entry):
            continue
        text = with_error(entry, error).replace(" ± ", "\n±") if error > 0 else rounded(entry, ENTRY_ROUNDING * limit)
        color = "white" if abs(matrix[row, column]) > 0.6 * limit else "black"
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    return image


def checked_file(name: str, file: str | Path, overwrite: bool = False) -> Path:
    """Valid path for the file of a figure.

    Raises:
        ValueError: the name does not end in .png, .pdf or .svg.
        FileExistsError: the file exists.
    """
    file = user_path(name, file)
    if file.suffix.lower() not in SUFFIXES:
        raise BayesattnError(f"{name} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {file}")
    if not overwrite:
        require_new(name, file, "choose another, or give overwrite=True")
    return file


def save(figure: Figure, file: str | Path, *, overwrite: bool = False) -> Path:
    """Write a figure as PNG, PDF or SVG, by the ending of the file's name.

    Args:
        figure: Matplotlib figure.
        file: path of the file; its folder is created if it does not exist.
        overwrite: whether to replace an existing file.

    Returns:
        The path of the file.

    Raises:
        ValueError: the name does not end in .png, .pdf or .svg.
        FileExistsError: the file exists.
    """
    file = checked_file("file", file, overwrite)
    suffix = file.suffix.lower()
    if suffix == ".png":
        content = png(figure, RESOLUTION)
    else:
        with plt.rc_context({"svg.hashsalt": "bayesattn"}), io.BytesIO() as stream:
            figure.savefig(stream, format=suffix[1:], dpi=RESOLUTION, metadata=dict(METADATA_WITHOUT_DATE[suffix]))
            content = stream.getvalue()
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, content)
    return file


def png(figure: Figure, resolution: float) -> bytes:
    """PNG of a figure, drawn once; `savefig` draws figures with constrained layout twice.

    Args:
        figure: Matplotlib figure.
        resolution: pixels per inch; the figure keeps its own resolution and canvas.
    """
    content, canvas, own = io.BytesIO(), figure.canvas, figure.dpi
    try:
        figure.set_dpi(resolution)
        FigureCanvasAgg(figure).print_png(content)
    finally:
        figure.set_canvas(canvas)
        figure.set_dpi(own)
    return content.getvalue()
