"""Figures of draws, on disk or in memory: mixing of chains, posterior of U, and predictions."""

import tomllib
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from bayesattn._util.checks import one_of
from bayesattn._util.plain_values import PlainDict
from bayesattn.architecture import Architecture
from bayesattn.checks.accuracy import share_right
from bayesattn.checks.mixing import FEWEST_CHAINS, FEWEST_DRAWS, moments
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots import diagnostics
from bayesattn.jobs.plots.style import (
    MOST_ROWS_WITH_ENTRIES,
    heat_map,
    legend_below,
    name_ticks,
    palette,
    short,
    whole_numbers,
)
from bayesattn.jobs.tables import MOST_PATHS
from bayesattn.models import CENTRAL
from bayesattn.models.arviz import dataset, has_order_parameter
from bayesattn.models.draws import Draws, opened, opened_with_network
from bayesattn.models.stored_model import described_in, shown_temperature
from bayesattn.prediction import stored_prediction
from bayesattn.theory.predictor import are_classes

KINDS = ("trace", "rank", "ess", "energy", "U", "prediction")
INTERVALS = (0.5, 0.94)
"""Probabilities of the thick and of the thin interval."""
WIDTH, HEIGHTS = 13.0, {"trace": 2.6, "rank": 2.8, "ess": 2.8, "energy": 2.8, "U": 5.2, "prediction": 4.6}
"""Width of the page and heights of the kinds of figures, in inches."""
MOST_EXAMPLES_WITH_INTERVALS = 60
"""Largest number of test examples that have separate intervals."""


class Names(NamedTuple):
    """Names from the description of draws: ways through each layer (of one output), and outputs or the classes -1 and +1."""

    heads: Sequence[Sequence[str]] | None = None
    outputs: Sequence[str] | None = None


LOG_AXIS_RATIO = 30.0
"""Ratio of the largest to the smallest entry above which the axis is logarithmic."""


def run_figure(run: Draws, kinds: Sequence[str] | None = None) -> Figure:
    """Figures of draws on one page: traces, ranks, effective sample size, energy, U (or z), predictions.

    Args:
        run: a `bayesattn.runs.Run` or a run's folder, complete or not, once every chain has draws; or the result of
            `bayesattn.sample`, also after further operations.
        kinds: kinds of figures, among `KINDS`; by default all kinds for which there are data.

    Raises:
        ValueError: an unknown kind, a kind without data, a run without draws so far, draws that are not finite, an argument
            that is not draws.
        RunError: a run that cannot be read.
    """
    return figure_and_lacking(run, kinds)[0]


def figure_and_lacking(run: Draws, kinds: Sequence[str] | None = None) -> tuple[Figure, dict[str, str]]:
    """Figure of `run_figure`, and the kinds without data, with reasons."""
    wanted = [kinds] if isinstance(kinds, str) else kinds or ()
    for kind in wanted:
        one_of("kinds", kind, KINDS)
    draws = opened(run).compute()
    if not draws["posterior"].sizes["draw"]:
        raise BayesattnError("run must have draws to show, got one that has none yet")
    missing = lacking(draws)
    if absent := next((kind for kind in wanted if kind in missing), None):
        raise BayesattnError(f"kinds may hold {absent!r} only if there are data for it, but {missing[absent]}")
    chosen = [kind for kind in KINDS if kind in (wanted or KINDS) and kind not in missing]
    figure = plt.figure(figsize=(WIDTH, 0.7 + sum(HEIGHTS[kind] for kind in chosen)), layout="constrained")
    figure.suptitle(run_title(draws), fontsize=13)
    parts = figure.subfigures(len(chosen), 1, height_ratios=[HEIGHTS[kind] for kind in chosen], squeeze=False)
    for part, kind in zip(parts.flat, chosen, strict=True):
        draw(part, kind, draws)
    return figure, missing


def names_of(draws: xr.DataTree) -> Names:
    """Names in the description of a tree; empty without a description, or for a model without heads."""
    about = described_in(draws)
    try:
        arch, names = Architecture.of_table(tomllib.loads(about["model"])["architecture"]), about["about_model"]
        outputs = names.get("output_names")
        outputs = outputs if outputs and len(outputs) == max(2, arch.outputs) else None
        return Names(None if arch.output_axes else arch.way_names(names["head_names"]), outputs)
    except (AttributeError, KeyError, TypeError, ValueError):
        return Names()


def run_title(draws: xr.DataTree) -> str:
    """Title with model, width, temperature, sampler and draws, as far as known."""
    about, sizes, parts = described_in(draws), draws["posterior"].sizes, []
    try:
        model, settings = tomllib.loads(about["model"]), tomllib.loads(about.get("sampler", ""))
        parts.append(short(about["about_model"]["name"]))
        parts += [f"N = {model['architecture']['widths'][0]}"] if "architecture" in model else []
        parts += [f"T = {temperature}"] if (temperature := shown_temperature(model)) else []
        parts += [f"{settings['sampler']} ({settings['parameterisation']})"] if "sampler" in settings else []
    except (AttributeError, KeyError, TypeError, ValueError):
        parts = ["draws of a model that they do not name"]
    chains = "1 chain" if sizes["chain"] == 1 else f"{sizes['chain']} chains"
    return ", ".join([*parts, f"{chains} of {sizes['draw']} draws"])


def draw(figure: FigureBase, kind: str, draws: Draws) -> None:
    """Draw one kind of figure of draws into a figure or subfigure."""
    of_quantities = {"trace": diagnostics.trace, "rank": diagnostics.rank, "ess": diagnostics.ess}
    of_draws = {"energy": diagnostics.energy, "U": central, "prediction": prediction}
    if kind in of_quantities:
        of_quantities[kind](figure, diagnostics.scalars(draws))
    else:
        of_draws[kind](figure, opened(draws))


def lacking(draws: Draws) -> dict[str, str]:
    """Kinds of figures without data, with reasons."""
    draws, why = opened(draws), {}
    posterior, statistics = dataset(draws, "posterior"), dataset(draws, "sample_stats")
    if "lp" not in statistics and not {*CENTRAL} & {*posterior.data_vars}:
        why |= dict.fromkeys(("trace", "rank", "ess"), "the draws hold neither U nor z nor their log density")
    if posterior.sizes["draw"] < FEWEST_DRAWS:
        few = f"each chain has {posterior.sizes['draw']} draws so far, and {FEWEST_DRAWS} are needed"
        why |= dict.fromkeys(("rank", "ess", "energy"), few)
    if posterior.sizes["chain"] < FEWEST_CHAINS:
        why["rank"] = "one chain has no others to be ranked among"
    if "energy" not in statistics:
        why["energy"] = "the sampler has no energy"
    if not {"order_parameter", "latent"} & set(posterior.data_vars):
        why["U"] = "the run does not keep it"
    if "prediction" not in posterior:
        tested = {"test_path_inputs", "test_inputs"} & {*dataset(draws, "constant_data").data_vars}
        why["prediction"] = "the run does not keep predictions" if tested else "the model has no test inputs"
    return why


def central(figure: FigureBase, draws: xr.DataTree) -> None:
    """Draw the posterior mean of U and the posteriors of its diagonal entries; for a latent model, of z and its entries.

    For many paths: the mean of U's diagonal by heads of the first layer and of the layers above, and the largest entries.
    """
    posterior, heads = dataset(draws, "posterior"), names_of(draws).heads
    (left, right), above = figure.subplots(1, 2, width_ratios=(1, 1.1)), None
    if has_order_parameter(draws):
        sampled, name = posterior["order_parameter"], "U, the order parameter"
        names = [str(path) for path in posterior["path"].values]
        rows = columns = entries = names
        of_entries = np.einsum("cdpp->cdp", sampled.values)
        title = "diagonal entries of U"
        if len(names) > MOST_PATHS:
            greatest = np.sort(np.argsort(-of_entries.mean((0, 1)), kind="stable")[:MOST_PATHS])
            if heads is not None and len(heads) > 1:
                by_heads = of_entries.reshape(*of_entries.shape[:2], len(heads[0]), -1)
                sampled, name = xr.DataArray(by_heads, dims=("chain", "draw", "head", "above")), "the diagonal of U"
                rows, columns = ([f"head {way}" if way.isdecimal() else way for way in layer] for layer in heads[:2])
                above = "layer 2"
                if len(heads) > 2:
                    above, columns = f"paths of layers 2 to {len(heads)}", [*map(str, range(1, by_heads.shape[3] + 1))]
            entries, of_entries = [names[path] for path in greatest], of_entries[:, :, greatest]
            title = f"{MOST_PATHS} greatest of {len(names)} {title}"
    else:
        sampled, name = posterior["latent"], "z"
        values, features = sampled.shape[2:]
        rows, columns = [f"value {row + 1}" for row in range(values)], [f"feature {c + 1}" for c in range(features)]
        entries = [f"z[{row + 1}, {column + 1}]" for row, column in np.ndindex(values, features)]
        of_entries = sampled.values.reshape(*sampled.shape[:2], -1)
        title = "entries of z"
    of = moments(sampled)
    limit = float(np.max(np.abs(of["mean"]))) or 1.0
    errors = of["error"] if np.isfinite(of["error"]).all() else None
    image = heat_map(left, of["mean"], rows, columns, limit, errors)
    if above is not None:
        left.set(xlabel=above, ylabel="layer 1")
    numbered = errors is not None and max(errors.shape) <= MOST_ROWS_WITH_ENTRIES
    left.set_title(f"Posterior mean of {name}" + (" ± Monte Carlo error" if numbered else ""), fontsize=10)
    figure.colorbar(image, ax=left, shrink=0.85)
    intervals(right, of_entries.reshape(-1, of_entries.shape[2]), entries)
    right.set_title(f"Posterior of the {title}", fontsize=10)


def intervals(axes: Axes, draws: np.ndarray, names: Sequence[str]) -> None:
    """Draw median, 50 % and 94 % interval of each column of draws in a row with its name."""
    places, colors = np.arange(len(names)), palette()
    for share, width in zip(INTERVALS, (4, 1.2), strict=True):
        low, high = np.quantile(draws, ((1 - share) / 2, (1 + share) / 2), axis=0)
        axes.hlines(places, low, high, color=colors.blue, linewidth=width, label=f"{100 * share:g} % of draws")
    median = np.median(draws, axis=0)
    style: PlainDict = {"markerfacecolor": plt.rcParams["axes.facecolor"], "markersize": 5, "zorder": 4}
    axes.plot(median, places, "o", color=colors.blue, label="median", **style)
    if draws.min() > 0 and median.max() > LOG_AXIS_RATIO * median.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    name_ticks(axes.yaxis, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    legend_below(axes, 3)


def prediction(figure: FigureBase, draws: xr.DataTree) -> None:
    """Draw mean predictor and intervals on the test examples; with labels, also the mean against them."""
    sampled = draws["posterior"].to_dataset()["prediction"].values
    constant = dataset(draws, "constant_data")
    labels = constant["test_labels"].values if "test_labels" in constant else None
    panels = figure.subplots(1, 1 if labels is None else 2, squeeze=False).flat
    outputs = names_of(draws).outputs
    if sampled.ndim == 4 and sampled.shape[3] <= len(palette()):
        _by_output(panels[0], sampled, outputs, labels)
    else:
        _all_together(panels[0], sampled)
    if labels is not None:
        values = _is_mean_of_labels(draws)
        against_labels(panels[1], sampled.mean((0, 1)).ravel(), labels, outputs, _deciding(draws), values)


def _is_mean_of_labels(draws: xr.DataTree) -> bool:
    """Whether f is what labels scatter about, as of a Gaussian; unlike the log rate of counts, say."""
    return tomllib.loads(described_in(draws).get("model", "")).get("observation") in (None, "StudentT")


def _deciding(draws: xr.DataTree) -> np.ndarray | None:
    """What decides the class of test examples, as in `bayesattn.score`: probabilities, those of +1 from -1 to 1, if any."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The model has warned of its labels when it was made.
            found = stored_prediction(*opened_with_network(draws)).probabilities
    except BayesattnError:  # As of draws without their model: then the mean of f decides.
        return None
    return found if found is None or found.ndim == 2 else 2 * found - 1


def _by_output(axes: Axes, sampled: np.ndarray, outputs: Sequence[str] | None, labels: np.ndarray | None) -> None:
    """Draw mean and widest interval of each output; examples by the class of their label, the surest of a class first.

    Without labels that are classes, the example with the lowest first output is first.
    """
    share, mean = INTERVALS[-1], sampled.mean((0, 1))
    examples, count = mean.shape
    names = [short(name) for name in outputs or [f"output {number + 1}" for number in range(count)]]
    if labels is not None and are_classes(labels):
        classes = labels.argmax(1)
        order = np.lexsort((-mean[np.arange(examples), classes], classes))
        ends = np.r_[0, np.cumsum(np.bincount(classes, minlength=count))] + 0.5
        for end in ends[1:-1]:
            axes.axvline(end, color=palette().grey, linewidth=1, linestyle="--")
        held = np.flatnonzero(np.diff(ends))
        axes.set_xticks((ends[held] + ends[held + 1]) / 2, [names[number] for number in held])
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("test examples, by class of the label")
    else:
        order = np.argsort(mean[:, 0], kind="stable")
        axes.set_xlabel(f"test example, lowest {names[0]} first")
        whole_numbers(axes.xaxis)
    low, high = np.quantile(sampled, ((1 - share) / 2, (1 + share) / 2), axis=(0, 1))[:, order]
    # Side by side, where there is room.
    places, shifts = np.arange(1, examples + 1), np.linspace(-0.3, 0.3, count)
    thickness = max(0.4, min(3.0, 180 / examples / count))
    for number, color in zip(range(count), palette(), strict=False):
        at = places + shifts[number]
        axes.vlines(at, low[:, number], high[:, number], color=color, alpha=0.35, linewidth=thickness)
        axes.plot(at, mean[order, number], ".", color=color, markersize=3, label=names[number])
    title = f"Predictions by output, mean and {100 * share:g} % of draws"
    axes.set(ylabel="prediction f", xlim=(0.5, examples + 0.5), title=title)
    legend_below(axes, count)


def _all_together(axes: Axes, sampled: np.ndarray) -> None:
    """Draw mean and intervals of each prediction, lowest mean first."""
    flat, colors = sampled.reshape(sampled.shape[0] * sampled.shape[1], -1), palette()
    mean = flat.mean(0)
    order, places = np.argsort(mean, kind="stable"), np.arange(1, len(mean) + 1)
    few = len(mean) <= MOST_EXAMPLES_WITH_INTERVALS
    for share, width, shade in zip(INTERVALS, (4, 1.2), (0.45, 0.2), strict=True):
        low, high = np.quantile(flat, ((1 - share) / 2, (1 + share) / 2), axis=0)[:, order]
        label = f"{100 * share:g} % of draws"
        if few:
            axes.vlines(places, low, high, color=colors.blue, linewidth=width, label=label)
        else:
            axes.fill_between(places, low, high, color=colors.blue, alpha=shade, linewidth=0, label=label)
    style: PlainDict = {"marker": "o"} if few else {"linewidth": 1}
    ink = plt.rcParams["text.color"]
    axes.plot(places, mean[order], color=ink, markersize=4, zorder=4, label="mean predictor", **style)
    each = "test example" if sampled.ndim == 3 else "test example and output"
    axes.set(xlabel=f"{each}, lowest prediction first", ylabel="prediction f", title="Predictions")
    whole_numbers(axes.xaxis)
    legend_below(axes, 3)


def against_labels(
    axes: Axes,
    mean: np.ndarray,
    labels: np.ndarray,
    outputs: Sequence[str] | None = None,
    deciding: np.ndarray | None = None,
    is_mean: bool = True,
) -> None:
    """Draw the mean predictor against the test labels: a histogram for each of two classes, else a point per label.

    With several outputs and labels of classes: for each class, how often each output decides. It is that of the greatest
    mean, or probability if these are `deciding`, whose sign decides between two classes. `is_mean` says whether f is what
    labels scatter about, so that their difference is an error.
    """
    colors, values = palette(), np.unique(labels)
    decided = "mean prediction" if deciding is None else "probability"
    deciding = mean if deciding is None else deciding
    if labels.ndim == 2 and are_classes(labels):
        classes, taken = labels.argmax(1), deciding.reshape(labels.shape).argmax(1)
        counts = np.zeros((labels.shape[1],) * 2)
        np.add.at(counts, (classes, taken), 1)
        shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
        names = outputs or [f"output {number + 1}" for number in range(labels.shape[1])]
        rows = [f"{short(name)} ({count:.0f})" for name, count in zip(names, counts.sum(1), strict=True)]
        heat_map(axes, shares, rows, names, 100.0)
        right = 100 * share_right(deciding, labels)
        axes.set(xlabel=f"class of the greatest {decided}", ylabel="class of the label (examples)")
        axes.set_title(f"By class, %: {right:.1f} % of all are right", fontsize=10)
    elif labels.ndim == 1 and len(values) <= 2:
        edges = np.histogram_bin_edges(mean, min(40, max(5, len(mean) // 10)))
        width = edges[1] - edges[0]  # An edge at 0, where the class changes.
        edges = width * np.arange(np.floor(edges[0] / width), np.ceil(edges[-1] / width) + 1)
        for value, color in zip(values, (colors.orange, colors.blue), strict=False):
            some = mean[labels == value]
            name = short(outputs[int(value > 0)]) if outputs and are_classes(labels) else f"label {value:g}"
            axes.hist(
                np.clip(some, edges[0], edges[-1]),
                edges.tolist(),
                color=color,
                alpha=0.5,
                label=f"{name} ({len(some)} examples)",
            )
        right = 100 * share_right(deciding, labels)
        title = f"By label: {right:.1f} % are right" if values[0] < 0 < values[-1] else "By label"
        axes.axvline(0, color=colors.grey, linewidth=1, linestyle="--")
        axes.set(xlabel="mean predictor", ylabel="test examples", title=title)
        whole_numbers(axes.yaxis)
        legend_below(axes, 2)
    else:
        labels = labels.ravel()
        axes.plot(labels, mean, ".", color=colors.blue, markersize=4, label="test examples")
        title = "By label"
        if is_mean:
            axes.axline((0, 0), slope=1, color=colors.grey, linewidth=1, linestyle="--", label="equal")
            title += f": root mean square error {np.sqrt(np.mean((mean - labels) ** 2)):.3g}"
        axes.set(xlabel="test label", ylabel="mean predictor", title=title)
        legend_below(axes, 2)
