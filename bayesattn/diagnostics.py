"""Are the draws any good? R-hat, effective draws, divergences, tree depth and BFMI, with what to do about each."""

import itertools
from dataclasses import asdict, dataclass, fields
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr

from bayesattn.accuracy import BATCHES, binomial_error, monte_carlo_error, share_right
from bayesattn.models import CENTRAL

GOOD_RHAT, ENOUGH_ESS, GOOD_BFMI = 1.01, 400, 0.3
"""What Vehtari et al. (2021) and Betancourt (2016) ask for."""
MOST_BIAS = 0.05
"""Standard deviations; about the Monte Carlo error of 400 effective draws."""
PREDICTIONS = 20
FEWEST_DRAWS = 4


@dataclass(frozen=True)
class Diagnostics:
    """Quality of draws: worst R-hat and effective draws over order parameters, energy, density and some predictions.

    `rhat` is rank-normalised, `ess` the effective draws of the bulk, `tail_ess` those of the tails, `saturated` the
    trajectories that reached the greatest tree depth, `bfmi` the least over chains. `bias` is the greatest step-size bias
    of an entry of U (or of the latent), in its standard deviations, as a biased sampler estimates it, and `bias_error`
    that estimate's Monte Carlo error. NaN where draws are too few or the sampler has none.
    """

    chains: int
    draws: int
    rhat: float
    ess: float
    tail_ess: float
    divergences: int
    saturated: int
    bfmi: float
    bias: float = float("nan")
    bias_error: float = float("nan")

    def warnings(self) -> list[str]:
        """What a Bayesian would want to know, with what to do about it."""
        if self.draws < FEWEST_DRAWS:
            return []
        found = []
        # Written so that NaN is a warning; one chain alone has an R-hat too, from its halves.
        if not self.rhat <= GOOD_RHAT:
            found.append(f"R-hat is {self.rhat:.4f}, above {GOOD_RHAT}: draw longer, or with a longer warm-up")
        if not self.ess >= ENOUGH_ESS:
            found.append(f"effective draws are {self.ess:.0f}, below {ENOUGH_ESS}: draw more")
        elif not self.tail_ess >= ENOUGH_ESS:
            found.append(
                f"effective draws of the tails are {self.tail_ess:.0f}, below {ENOUGH_ESS}: draw more before you trust"
                " quantiles"
            )
        if self.divergences:
            found.append(
                f"{self.divergences} divergent transitions: raise target_accept_prob, or use the collapsed parameterisation"
            )
        if self.saturated:
            share = 100 * self.saturated / (self.chains * self.draws)
            found.append(
                f"{share:.2g} % of trajectories reached the greatest tree depth: raise max_tree_depth, warm up longer, or"
                " use the collapsed parameterisation"
            )
        if self.bfmi < GOOD_BFMI:
            found.append(
                f"BFMI is {self.bfmi:.2f}, below {GOOD_BFMI}: momenta explore the energy slowly; draw more, or use another"
                " parameterisation"
            )
        if abs(self.bias) > 2 * self.bias_error and abs(self.bias) > MOST_BIAS:
            found.append(
                f"the sampler is biased by its step size: means by {self.bias:+.2g} standard deviations"
                f" (± {self.bias_error:.1g}): lower step_size, with adapt_step_size = false, or use an adjusted sampler"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, with the warnings; None for NaN."""
        numbers = {name: None if isinstance(v, float) and np.isnan(v) else v for name, v in asdict(self).items()}
        return numbers | {"warnings": self.warnings()}

    @classmethod
    def from_dict(cls, numbers: dict[str, Any]) -> "Diagnostics":
        """What `to_dict` made plain."""
        values: dict[str, Any] = {field.name: numbers[field.name] for field in fields(cls)}
        restored: dict[str, Any] = {name: np.nan if value is None else value for name, value in values.items()}
        return cls(**restored)


def diagnose(draws: xr.DataTree) -> Diagnostics:
    """Diagnostics of a DataTree with groups posterior and, for those of the sampler, sample_stats.

    Of predictions, 20 evenly spaced test examples are looked at, so that memory does not grow with their number.
    """
    posterior = draws["posterior"].to_dataset()
    statistics = _statistics(draws)
    chains, count = posterior.sizes["chain"], posterior.sizes["draw"]
    rhat = ess = tail = bfmi = float("nan")
    if count >= FEWEST_DRAWS:
        watched = {name: statistics[name] for name in ("energy", "lp") if name in statistics}
        watched |= {name: posterior[name] for name in CENTRAL if name in posterior}
        if "order_parameter" in watched:
            watched["order_parameter"] = on_and_below_diagonal(watched["order_parameter"])
        if "prediction" in posterior:
            axis = posterior["prediction"].dims[2]
            examples = posterior.sizes[axis]
            chosen = np.unique(np.linspace(0, examples - 1, min(examples, PREDICTIONS)).astype(int))
            watched["prediction"] = posterior["prediction"].isel({axis: chosen})
        watched = {name: values.compute() for name, values in watched.items()}
        rhat = max(float(np.max(arviz_stats.rhat(values).values)) for values in watched.values())
        ess = min(float(np.min(arviz_stats.ess(values).values)) for values in watched.values())
        tail = min(float(np.min(arviz_stats.ess(values, method="tail").values)) for values in watched.values())
        if "energy" in watched:
            bfmi = float(np.min(arviz_stats.bfmi(watched["energy"])))
    bias, bias_error = _worst_bias(draws) if count >= FEWEST_DRAWS else (float("nan"),) * 2
    return Diagnostics(
        bias=bias,
        bias_error=bias_error,
        chains=chains,
        draws=count,
        rhat=rhat,
        ess=ess,
        tail_ess=tail,
        divergences=_total(statistics, "diverging"),
        saturated=_total(statistics, "reached_max_treedepth"),
        bfmi=bfmi,
    )


def on_and_below_diagonal(order_parameters: xr.DataArray) -> xr.DataArray:
    """Of draws of U, which is symmetric, what differs: dimensions chain, draw, entry (row by row)."""
    rows, columns = (xr.DataArray(each, dims="entry") for each in np.tril_indices(order_parameters.sizes["path"]))
    # Read whole: entry by entry, stored draws are slow to read.
    return order_parameters.compute().isel(path=rows, other_path=columns)


def summary(draws: xr.DataTree) -> list[dict[str, Any]]:
    """Mean, standard deviation, Monte Carlo error, R-hat and effective draws of scalar quantities, a row each.

    They are the log posterior density ("lp"), each entry of U on and below the diagonal ("order_parameter", named by its
    paths), and where there are test labels the share that the mean predictor gets right ("accuracy": mean, Monte Carlo
    error, and "test_error" by the size of the test set).
    """
    posterior, constant = draws["posterior"].to_dataset(), draws["constant_data"].to_dataset()
    statistics, rows = _statistics(draws), []
    if "lp" in statistics:
        rows.append({"quantity": "lp"} | {k: float(v) for k, v in _moments(statistics["lp"]).items()})
    if "order_parameter" in posterior:
        found = _moments(on_and_below_diagonal(posterior["order_parameter"]))
        names = [str(name) for name in posterior["path"].values]
        pairs = np.tril_indices(len(names))
        if "step_size_bias" in draws.children:
            found |= {name: of[pairs] for name, of in zip(("bias", "bias_error"), step_size_bias(draws), strict=True)}
        for entry, (row, column) in enumerate(zip(*pairs, strict=True)):
            named = {"quantity": "order_parameter", "path": names[row], "other_path": names[column]}
            rows.append(named | {name: float(values[entry]) for name, values in found.items()})
    if "prediction" in posterior and "test_labels" in constant:
        rows.append({"quantity": "accuracy"} | _accuracy(posterior["prediction"], constant["test_labels"].values))
    return rows


def _accuracy(predictions: xr.DataArray, labels: np.ndarray) -> dict[str, float]:
    edges = np.linspace(0, predictions.sizes["draw"], min(BATCHES, predictions.sizes["draw"]) + 1).astype(int)
    parts = [
        predictions.isel(chain=chain, draw=slice(first, last))
        for chain in range(predictions.sizes["chain"])
        for first, last in itertools.pairwise(edges)
    ]
    # Part by part: predictions may be more than memory holds.
    batches = np.array([part.mean("draw").values for part in parts])
    mean = np.average(batches, axis=0, weights=[part.sizes["draw"] for part in parts])
    share = share_right(mean, labels)
    error = monte_carlo_error(mean, batches, labels)
    return {"mean": share, "error": error, "test_error": binomial_error(share, len(labels))}


def _moments(values: xr.DataArray) -> dict[str, np.ndarray]:
    """NaN for what too few draws cannot tell."""
    values = values.compute()
    if values.sizes["draw"] < FEWEST_DRAWS:
        unknown = np.full(values.shape[2:], np.nan)
        return dict.fromkeys(("mean", "sd", "error", "rhat", "ess"), unknown) | {
            "mean": values.mean(("chain", "draw")).values
        }
    return {
        "mean": values.mean(("chain", "draw")).values,
        "sd": values.std(("chain", "draw"), ddof=1).values,
        "error": arviz_stats.mcse(values).values,
        "rhat": arviz_stats.rhat(values).values,
        "ess": arviz_stats.ess(values).values,
    }


def step_size_bias(draws: xr.DataTree) -> tuple[np.ndarray, np.ndarray]:
    """Bias of each entry of U, or of the latent, as a biased sampler estimates it, and that estimate's Monte Carlo error."""
    estimates = draws["step_size_bias"].to_dataset()[_central(draws)].compute()
    return estimates.mean(("chain", "draw")).values, arviz_stats.mcse(estimates).values


def _worst_bias(draws: xr.DataTree) -> tuple[float, float]:
    if "step_size_bias" not in draws.children:
        return float("nan"), float("nan")
    deviation = draws["posterior"].to_dataset()[_central(draws)].std(("chain", "draw")).values
    bias, error = (values / deviation for values in step_size_bias(draws))
    worst = np.unravel_index(np.argmax(np.abs(bias)), bias.shape)
    return float(bias[worst]), float(error[worst])


def _central(draws: xr.DataTree) -> str:
    return next(name for name in CENTRAL if name in draws["step_size_bias"].to_dataset())


def _statistics(draws: xr.DataTree) -> xr.Dataset:
    return draws["sample_stats"].to_dataset() if "sample_stats" in draws.children else xr.Dataset()


def _total(statistics: xr.Dataset, name: str) -> int:
    return int(statistics[name].sum()) if name in statistics else 0
