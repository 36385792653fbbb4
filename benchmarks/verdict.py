"""False alarms and power of `validate`: draws of a known model against the theory of the right and of wrong ones.

Run with `uv run python benchmarks/verdict.py`; it takes about three quarters of an hour. It prints the table
and the figures below it in docs/verdict.md. Draws are of hidden_markov, four chains with 20 sampler seeds a width; fewer
draws are the first ones of each chain. A wrong model has another temperature, other widths or other variances, all of them
by the same factor, and its theory is held against draws of the right model. What U differs by is the largest difference
between the two theories, relative to (U_ii U_jj)^(1/2).
"""

import numpy as np
import xarray as xr

import bayesattn as ba
from bayesattn.checks.theory_predictions import Predicted, predicted
from bayesattn.checks.thresholds import CANNOT_TELL, DOES_NOT_HOLD, HOLDS, LEVEL, MARGIN
from bayesattn.checks.validate import validate
from bayesattn.checks.validation import Validation

SEEDS = 20
CHAINS, WARMUP, DRAWS = 4, 200, (100, 400, 1000)
WIDTHS = (10, 20, 100)
FACTORS = (1.05, 1.1, 1.2, 1.5)


def wrong_models(model: ba.Model) -> dict[str, ba.Model]:
    """Models that are off by a factor, by name; widths only where the factor makes them whole."""
    arch, found = model.architecture, {}
    for factor in FACTORS:
        found[f"T x {factor:g}"] = model.replace(temperature=factor * model.temperature)
        variances = tuple(factor * variance for variance in arch.variances)
        found[f"variances x {factor:g}"] = model.replace(
            architecture=ba.Architecture(arch.heads, arch.widths, variances)
        )
        width = factor * arch.widths[0]
        if np.isclose(width, round(width)):
            found[f"width x {factor:g}"] = model.replace(width=round(width))
    return dict(sorted(found.items(), key=lambda item: item[0].split(" x ")[0]))


def apart(prediction: Predicted, other: Predicted) -> float:
    """Largest difference of U between two theories, relative to its size."""
    return float(np.max(np.abs(other.corrected - prediction.corrected) / size(prediction.corrected)))


def size(order_parameter: np.ndarray) -> np.ndarray:
    """(U_ii U_jj)^(1/2)."""
    own = np.diag(order_parameter)
    return np.sqrt(np.outer(own, own))


def first(draws: xr.DataTree, count: int) -> xr.DataTree:
    """The first draws of each chain."""
    groups = ("posterior", "sample_stats")
    return xr.DataTree.from_dict({name: draws[name].to_dataset().isel(draw=slice(count)) for name in groups})


def left_out(validations: list[Validation]) -> str:
    """What the right theory leaves out by all draws together, with its standard error over the seeds; the allowance."""
    relative = np.array([each.remaining / size(each.corrected) for each in validations])
    mean, error = relative.mean(0), relative.std(0, ddof=1) / np.sqrt(len(relative))
    worst = np.unravel_index(np.argmax(np.abs(mean)), mean.shape)
    first = validations[0]
    allowed = np.max(first.allowance / size(first.corrected))
    return (
        f"N = {first.width}: by the draws of all seeds U differs from the right theory by at most"
        f" {100 * abs(mean[worst]):.2f} ± {100 * error[worst]:.2f} %, allowed are {100 * allowed:.2f} %"
    )


def shares(validations: list[Validation]) -> str:
    """Of 20 seeds: does not hold / cannot tell / holds."""
    verdicts = [each.verdict for each in validations]
    return " / ".join(str(verdicts.count(verdict)) for verdict in (DOES_NOT_HOLD, CANNOT_TELL, HOLDS))


def table() -> None:
    """A row for each width and model, a column for each number of draws."""
    print(f"| N | theory of | U differs by | {' | '.join(f'{CHAINS} x {count}' for count in DRAWS)} |")
    print("| --- " * (3 + len(DRAWS)) + "|")
    right_ones, lines = [], []
    for width in WIDTHS:
        right = ba.load_model("hidden_markov", width=width)
        models = {"the right model": right} | wrong_models(right)
        predictions = {name: predicted(model) for name, model in models.items()}
        found = {(name, count): [] for name in models for count in DRAWS}
        for seed in range(SEEDS):
            settings = {"chains": CHAINS, "warmup": WARMUP, "draws": max(DRAWS), "keep": ("order_parameter",)}
            drawn = ba.sample(right, seed=seed, **settings)
            for name, count in found:
                found[name, count].append(
                    validate(first(drawn, count), model=models[name], prediction=predictions[name])
                )
        for name, prediction in predictions.items():
            cells = [shares(found[name, count]) for count in DRAWS]
            difference = 100 * apart(predictions["the right model"], prediction)
            print(f"| {width} | {name} | {difference:.2g} % | {' | '.join(cells)} |", flush=True)
        right_ones += [each for count in DRAWS for each in found["the right model", count]]
        lines.append(left_out(found["the right model", max(DRAWS)]))
    false = sum(each.verdict == DOES_NOT_HOLD for each in right_ones)
    print(f"\nFalse alarms: {false} of {len(right_ones)} at a level of {LEVEL:g}; margin {100 * MARGIN:g} %")
    print(*lines, sep="\n")


if __name__ == "__main__":
    table()
