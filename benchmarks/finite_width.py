"""Figure of README and site: finite width beats the GP limit, and theory beside draws.

Run with `uv run python benchmarks/finite_width.py docs/finite_width.png`; it takes about a minute.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import bayesattn as ba
from bayesattn.jobs.plots.style import palette

WIDTHS = [10, 30, 100, 300, 1000]


def main(file: str) -> None:
    """Draws posteriors at five widths and writes the figure."""
    model = ba.load_model("hidden_markov")
    networks = [model.replace(width=width) for width in WIDTHS]
    found = [ba.validate(ba.sample(each, chains=4, warmup=200, draws=1000, seed=0), model=each) for each in networks]
    accuracies = [each.accuracy for each in found if each.accuracy is not None]
    curve = np.geomspace(WIDTHS[0], WIDTHS[-1], 25).astype(int)
    solved = [ba.theory.solve(model.replace(width=int(width))) for width in curve]
    means = [ba.theory.predict(each.order_parameter, model).mean for each in solved]
    theory = [np.mean(np.sign(mean) == model.test_labels) for mean in means]
    colors = palette()
    plt.rcParams.update({"font.size": 13})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.9), layout="constrained")
    left.plot(curve, 100 * np.array(theory), color=colors.blue, label="theory (saddle point)")
    errors = [100 * each.test_error for each in accuracies]
    left.errorbar(
        WIDTHS, [100 * each.draws for each in accuracies], errors, fmt="o", color=colors.orange, label="draws"
    )
    left.axhline(100 * accuracies[0].gp, color=colors.grey, linestyle="--", label="infinite width (GP limit)")
    for (name, limit), place in zip(accuracies[0].gp_of_groups.items(), ("top", "bottom"), strict=True):
        left.axhline(100 * limit, color=colors.grey, linestyle=":", linewidth=1.2)
        left.text(
            WIDTHS[-1], 100 * limit, name.removesuffix(" paths"), ha="right", va=place, fontsize=9.5, color=colors.grey
        )
    left.plot([], [], color=colors.grey, linestyle=":", linewidth=1.2, label="infinite width, these paths only")
    left.set(ylabel="test accuracy (%)", title="Narrow networks are better", ylim=(80.5, 97.5))
    right.plot(curve, [each.order_parameter[0, 0] for each in solved], color=colors.blue, label="theory: saddle point")
    corrected = [each.corrected[0, 0] for each in found]
    right.plot(WIDTHS, corrected, "x", ms=10, mew=2, color=colors.green, label="theory: first order in 1/N")
    entries, errors = [each.order_parameter[0, 0] for each in found], [each.error[0, 0] for each in found]
    right.errorbar(WIDTHS, entries, errors, fmt="o", ms=4, color=colors.orange, label="draws", zorder=3)
    right.axhline(1, color=colors.grey, linestyle="--", label="infinite width (GP limit)")
    right.set(ylabel="order parameter of this path", title="The right path gains weight", yscale="log")
    right.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    for axes, place in ((left, "lower left"), (right, "upper right")):
        axes.set(xscale="log", xlabel="width N")
        axes.legend(loc=place, fontsize=10.5, frameon=False)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1])
