"""Figure of grades: squared bias against gradients."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from bayesattn._util.checks import shown
from bayesattn._util.errors import BayesattnError
from bayesattn.jobs.plots.style import MARKERS, legend_below, palette, short
from bayesattn.questions.grading import Grade


def grade_figure(grades: Sequence[Grade] | Grade, labels: Sequence[str] | None = None) -> Figure:
    """Figure of the squared bias of the means against gradients: maximum over quantities (left) and mean (right).

    The squared bias of right draws falls in parallel to the grey line, 1 / gradients; a bias ends in a plateau.

    Args:
        grades: grades on one reference posterior.
        labels: names of the grades, such as the samplers; by default numbers.

    Raises:
        ValueError: arguments that are not grades, grades on several references, or a wrong number of labels.
    """
    listed = [grades] if isinstance(grades, Grade) else [*grades]
    if not listed or not all(isinstance(each, Grade) for each in listed):
        raise BayesattnError(f"grades must be results of bayesattn.grade, got {shown(grades)}")
    if len(names := {each.reference.name for each in listed}) > 1:
        raise BayesattnError(f"grades must be on one reference posterior, got {', '.join(sorted(names))}")
    labels = (
        [*labels] if labels is not None else ["draws"] if len(listed) == 1 else [*map(str, range(1, len(listed) + 1))]
    )
    if len(labels) != len(listed):
        raise BayesattnError(f"labels must be {len(listed)}, one for each grade, got {len(labels)}")
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 4.2), layout="constrained", sharex=True, sharey=True)
    colors = [palette().blue, palette().orange, palette().green, palette().purple]
    known = all(each.gradients is not None for each in listed)
    paths = [each.trajectory() for each in listed]
    costs = [
        path["gradients"] if known else path["draws"] * len(each.values)
        for path, each in zip(paths, listed, strict=True)
    ]
    for panel, of in zip(panels, ("largest", "mean"), strict=True):
        for number, (path, cost, label) in enumerate(zip(paths, costs, labels, strict=True)):
            color, marker = colors[number % len(colors)], MARKERS[number % len(MARKERS)]
            panel.loglog(cost, path[of], marker=marker, ms=4, color=color, label=short(label))
        # 1 / n, through the first point of the first grade.
        ends, start = costs[0].iloc[[0, -1]], paths[0]["mean"].iloc[0]
        panel.loglog(ends, start * ends.iloc[0] / ends, color=palette().grey, lw=1, ls=":", label="1 / n")
        panel.set_title(f"{of} of {len(listed[0].table)} quantities", fontsize=10)
        panel.set_xlabel("gradients, all chains" if known else "draws, all chains")
    panels[0].set_ylabel("squared bias (posterior variances)")
    legend_below(panels[0], columns=min(4, len(listed) + 1))
    figure.suptitle(
        f"{short(listed[0].reference.name)}: {listed[0].verdict if len(listed) == 1 else 'grades'}", fontsize=11
    )
    return figure
