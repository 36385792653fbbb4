"""Grades: comparison of draws of a reference posterior with its truth (docs/howto/grading.md)."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import stats

from bayesattn._util.checks import finite_array, positive, positive_integer, probability
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, cell, draw_more
from bayesattn.checks.mixing import FEWEST_DRAWS, MOST_REPEATS, REPEATED, moments, repeated_share
from bayesattn.checks.thresholds import DRAWS_PER_FREEDOM, LEVEL, doubts_about, times_as_many
from bayesattn.errors import BayesattnError
from bayesattn.models.draws import CHAIN_AXES, Draws, fewest_round_trips, opened, order_parameters_in
from bayesattn.models.stored_model import ModelRecord, described_in
from bayesattn.questions.reference.posteriors import Reference, load
from bayesattn.questions.reference.quantities import quantities_of_draws
from bayesattn.questions.reference.truth import LEVELS

if TYPE_CHECKING:
    import pandas as pd

RIGHT, BIASED, CANNOT_TELL = "right", "biased", "cannot tell"
"""Verdicts in the order of the exit statuses of `bayesattn grade`."""
MARGIN = 0.2
"""Bias of a mean, in posterior standard deviations, that must be excluded for draws to be called right."""
MOST_TOGETHER = 6
"""Largest correlation of two chains, and of all pairs on average, in its standard deviations if chains are independent."""
SMALLEST_SPREAD = 0.01
"""Smallest ratio of standard deviations at which repeats count: fits that reach one optimum repeat by rounding."""
LENGTHS = 20
"""Number of lengths of the chains at which the squared bias is computed."""
SHARES = tuple(f"below {level:.0%}" for level in LEVELS)


@dataclass(frozen=True, eq=False, repr=False)
class Grade(Described):
    """Draws of a reference posterior, graded.

    For each quantity, the mean and the shares of draws below the true quantiles are tested, within the Monte Carlo errors
    of draws and truth. The shares show a wrong spread or shape. The ratio of standard deviations is stated but not tested,
    because heavy tails affect it; they hardly affect the shares.

    Args:
        reference: the reference posterior.
        values: quantities of the draws.
        gradients: number of gradients computed for all draws, or None.
        margin: bias of a mean, in posterior standard deviations, that must be excluded for draws to be called right.
        level: largest probability that right draws are called biased, all tests together.
        round_trips: least number of round trips of a tempered chain; NaN of other draws.
    """

    reference: Reference
    values: Float[np.ndarray, "chain draw quantity"]
    gradients: int | None
    margin: float
    level: float
    round_trips: float = float("nan")

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One row per quantity.

        Columns: mean; truth; sd, the posterior standard deviation; bias and error, in units of sd; z; p, the two-sided
        p-value of z; sd ratio with its error; the share of draws below each true quantile, and the smallest p of
        these; R-hat and effective sample size.
        """
        import arviz_stats
        import pandas as pd

        quantiles, truth = self.reference.truth.quantiles, self.reference.truth.combined
        drawn = xr.DataArray(self.values, dims=(*CHAIN_AXES, "quantity"))
        found = moments(drawn)
        # No smaller than the error of right draws: draws that happen to miss a long tail have too small a spread.
        error = np.hypot(np.fmax(found["error"], truth.sd / np.sqrt(found["ess"])), truth.mean_error)
        shares = moments((drawn <= xr.DataArray(quantiles, dims=("quantity", "level"))).astype(float))
        # A share has the error of right draws. An error estimated from few draws below a level is too small, and undefined
        # if there are none.
        ess = np.where(np.isnan(shares["ess"]), found["ess"][:, None], shares["ess"])
        own = np.sqrt(truth.below * (1 - truth.below) / ess)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (found["mean"] - truth.mean) / error
            z_shares = (shares["mean"] - truth.below) / np.hypot(own, truth.below_error)
            sd_error = arviz_stats.mcse(drawn, method="sd").values if drawn.sizes["draw"] >= FEWEST_DRAWS else np.nan
        columns = {
            "mean": found["mean"],
            "truth": truth.mean,
            "sd": truth.sd,
            "bias": (found["mean"] - truth.mean) / truth.sd,
            "error": error / truth.sd,
            "z": z,
            "p": _p_value(z, found["ess"]),
            "sd ratio": found["sd"] / truth.sd,
            "sd ratio error": sd_error / truth.sd,
            **dict(zip(SHARES, shares["mean"].T, strict=True)),
            "p of shares": _p_value(z_shares, ess).min(1),
            "rhat": found["rhat"],
            "ess": found["ess"],
        }
        return pd.DataFrame(columns, index=pd.Index(self.reference.truth.names, name="quantity"))

    @property
    def tests(self) -> int:
        """Number of tests: for each quantity one of its mean, and one for each of the `LEVELS`."""
        return len(self.table) * (1 + len(LEVELS))

    @property
    def bounds(self) -> Float[np.ndarray, " quantity"]:
        """Simultaneous upper confidence bounds of |bias|, in posterior standard deviations."""
        table = self.table
        noise = stats.t.isf(self.level / (2 * len(table)), _freedom(table["ess"].to_numpy())) * table["error"]
        return (table["bias"].abs() + noise).to_numpy()

    @cached_property
    def doubts(self) -> list[str]:
        """Reasons why the draws cannot be called right or biased, one sentence each."""
        table = self.table
        if fixed := int(np.sum(np.ptp(self.values, axis=(0, 1)) == 0)):
            return [f"{fixed} quantities never vary: these are points, not draws"]
        if table["sd ratio"].iloc[0] > SMALLEST_SPREAD and repeated_share(self.values[..., 0]) > MOST_REPEATS:
            return [REPEATED]
        if np.all(np.ptp(self.values[..., 0], axis=1) == 0):  # U; predictions may be drawn anew given it.
            return ["no chain ever moves: is the log density finite, and the step size small enough?"]
        if together := _moving_together(self.values):
            return [f"chains move together, with a correlation of {together:.2f}: give each a random key of its own"]
        rhat, ess = table["rhat"].to_numpy(), table["ess"].to_numpy()
        return doubts_about("the quantities", len(self.values), rhat, ess, self.round_trips)

    @property
    def smallest_p(self) -> "pd.Series":
        """Smallest p-value of each quantity, of its mean and its shares."""
        return self.table[["p", "p of shares"]].min(axis=1)

    @property
    def suspects(self) -> "pd.Index":
        """Quantities in the order in which they stand against "right": by p-values if biased, else by bounds of bias."""
        if self.verdict == BIASED:
            return self.smallest_p.sort_values().index
        return self.table.index[np.argsort(-np.nan_to_num(self.bounds, nan=np.inf), kind="stable")]

    @property
    def verdict(self) -> str:
        """One of "right", "biased" and "cannot tell"."""
        if self.doubts:
            return CANNOT_TELL
        if self.smallest_p.min() * self.tests < self.level:
            return BIASED
        return RIGHT if self.bounds.max() < self.margin else CANNOT_TELL

    def statement(self) -> str:
        """Verdict in one sentence."""
        if self.doubts:
            return f"cannot tell: {'; '.join(self.doubts)}"
        if self.verdict == BIASED:
            worst = self.smallest_p.idxmin()
            row = self.table.loc[worst]
            shares = ", ".join(f"{row[name]:.3f} {name}" for name in SHARES)
            mean = f"{row['bias']:+.3f} ± {row['error']:.3f} posterior standard deviations"
            if row["p of shares"] < row["p"]:
                return f"biased: {worst} has shares of {shares} of the truth; its mean is off by {mean}"
            return f"biased: {worst} is off by {mean}, with shares of {shares} of the truth"
        largest = f"{self.bounds.max():.2f} posterior standard deviations"
        ess = f"{self.table['ess'].min():.0f} effective draws or more"
        if self.verdict == RIGHT:
            *first, last = (f"{100 * level:.0f}" for level in LEVELS)
            quantiles = f"{', '.join(first)} and {last} %"
            shares = f"no share of draws below the true {quantiles} quantiles differs significantly"
            return f"right: no mean is off by more than {largest}, {shares} (level {self.level:.2g}; {ess})"
        times = times_as_many(np.abs(self.table["bias"].to_numpy()), np.asarray(self.bounds), self.margin)
        return (
            f"cannot tell: a mean of {self.suspects[0]} off by {largest} is not excluded, but must be below"
            f" {self.margin:g} ({ess}); {draw_more(times)}"
        )

    def squared_bias(self, draws: int | None = None) -> Float[np.ndarray, " quantity"]:
        """Squared error of the mean over the first `draws` draws of each chain, in posterior variances, of each quantity.

        Its maximum and mean are the "b^2" of Hoffman and Sountsov (2022).
        """
        truth = self.reference.truth.combined
        draws = None if draws is None else positive_integer("draws", draws)
        return ((self.values[:, :draws].mean((0, 1)) - truth.mean) / truth.sd) ** 2

    def trajectory(self) -> "pd.DataFrame":
        """Squared bias, largest and mean over the quantities, of growing first parts of the chains.

        The column "gradients" is the number of all gradients times the share of the draws; if that number is unknown, it is
        the number of draws of all chains.
        """
        import pandas as pd

        chains, draws = self.values.shape[:2]
        lengths = np.unique(np.geomspace(1, draws, LENGTHS).astype(int))
        squared = np.stack([self.squared_bias(length) for length in lengths])
        gradients = lengths * (chains if self.gradients is None else self.gradients / draws)
        return pd.DataFrame(
            {"draws": lengths, "gradients": gradients, "largest": squared.max(1), "mean": squared.mean(1)}
        )

    def to_dict(self) -> PlainDict:
        """Plain numbers and lists, for JSON."""
        squared = self.squared_bias()
        return {
            "reference": self.reference.name,
            "verdict": self.verdict,
            "statement": self.statement(),
            "gradients": self.gradients,
            "squared_bias": {"largest": float(squared.max()), "mean": float(squared.mean())},
            "quantities": self.table.reset_index().to_dict(orient="list"),
        }

    def _described(self) -> tuple[str, dict[str, str]]:
        squared = self.squared_bias()
        rows = {
            "verdict": self.statement(),
            "squared bias": f"largest {squared.max():.2g}, mean {squared.mean():.2g} posterior variances",
            "draws": f"{len(self.values)} chains of {self.values.shape[1]}; effective sample size"
            f" {cell(float(self.table['ess'].to_numpy().min()), '.0f')} or more",
        }
        return f"Grade on reference posterior {self.reference.name!r}", rows | (
            {} if self.gradients is None else {"gradients": f"{self.gradients:,}"}
        )


def _recorded(steps: xr.DataArray, thin: int) -> int | None:
    """Number of gradients of all draws, including those left out by thinning and slices.

    None if some were not recorded, and of draws whose numbers are not evenly spaced by a multiple of `thin`: those put
    together along `draw` are numbered anew.
    """
    numbers = steps["draw"].values if "draw" in steps.coords else np.arange(steps.sizes["draw"])
    between = np.unique(np.diff(numbers))
    if len(between) != 1 or between[0] < 1 or between[0] % thin or not np.isfinite(steps.values).all():
        return None
    return int(steps.sum()) * int(between[0])


def _moving_together(values: Float[np.ndarray, "chain draw quantity"]) -> float:
    """Correlation of two chains at equal numbers of draws, the one that chance explains least; 0 if chance may explain it.

    Of ranks, because tails may be heavy, and of the second half, because the first may remember a common start. Chains
    with their own spectra and independent phases have correlations of the variance sum_f |F_a|^2 |F_b|^2 / n^4, F being
    the Fourier transform of n standardised draws: Bartlett's formula, which holds whatever the autocorrelation.
    """
    chains, count = len(values), values.shape[1] - values.shape[1] // 2
    if chains < 2 or count < FEWEST_DRAWS:
        return 0.0
    ranks = stats.rankdata(values[:, -count:], axis=1)
    ranks = ranks - ranks.mean(1, keepdims=True)
    spread = ranks.std(1, keepdims=True)
    waves = np.fft.fft(ranks / np.where(spread == 0, np.inf, spread), axis=1) / count
    pairs = np.triu_indices(chains, 1)
    together = np.einsum("afq,bfq->abq", waves, waves.conj()).real[pairs]
    variances = np.einsum("afq,bfq->abq", np.abs(waves) ** 2, np.abs(waves) ** 2)[pairs]
    together = np.concatenate([together, together.mean(0, keepdims=True)])
    variances = np.concatenate([variances, variances.sum(0, keepdims=True) / len(variances) ** 2])
    z = np.abs(together) / np.sqrt(np.where(variances == 0, np.inf, variances))
    return float(together.flat[z.argmax()]) if z.max() > MOST_TOGETHER else 0.0


def _freedom(ess: np.ndarray) -> np.ndarray:
    """Degrees of freedom of Monte Carlo errors."""
    return np.maximum(ess / DRAWS_PER_FREEDOM, 1)


def _p_value(z: np.ndarray, ess: np.ndarray) -> np.ndarray:
    """Two-sided p-values of differences in Monte Carlo errors."""
    return 2 * stats.t.sf(np.abs(z), _freedom(ess))


@with_own_settings
def grade(
    draws: Draws, name: str, *, gradients: int | None = None, margin: float = MARGIN, level: float = LEVEL
) -> Grade:
    """Grade draws of a reference posterior as "right", "biased" or "cannot tell".

    Args:
        draws: draws of `bayesattn.reference.load(name).model`: the result of `bayesattn.sample`, `from_numpyro` or
            `from_vectors`, a run, or its folder. They hold the order parameter and the prediction.
        name: name of the reference posterior, one of `bayesattn.reference.names()`.
        gradients: number of gradients computed for all draws of all chains, to state the squared bias at a given cost; by
            default the sum of n_steps in sample_stats, times the thinning, without the warm-up; not known of draws that
            were put together along `draw`, or sliced unevenly.
        margin: bias of a mean, in posterior standard deviations, that must be excluded for draws to be called right.
        level: largest probability that right draws are called biased, all tests together; below 1.

    Raises:
        ValueError: an unknown name, draws of another model or on other test examples, without U or f, or not finite.
    """
    margin, level, reference = positive("margin", margin), probability("level", level), load(name)
    model, tree = reference.model, opened(draws)
    _require_own(tree, reference)
    order_parameters = order_parameters_in(tree, model)
    shape = (*order_parameters.shape[:2], len(model.test_path_inputs), *model.architecture.output_axes)
    predictions = finite_array("prediction of the draws", tree["posterior"]["prediction"].values, shape)
    order_parameters = finite_array("order_parameter of the draws", order_parameters, order_parameters.shape)
    values = quantities_of_draws(order_parameters, predictions, model)
    return Grade(reference, values, _gradients(tree, gradients), margin, level, fewest_round_trips(tree))


def _require_own(tree: xr.DataTree, reference: Reference) -> None:
    """Raise ValueError unless draws are of a reference posterior, on its test examples, with U and f."""
    model, name = reference.model, reference.name
    if difference := ModelRecord.of_tree(tree).difference(ModelRecord.of_model(model)):
        raise BayesattnError(f"draws must be of reference posterior {name!r}, which has {difference}")
    if not {"order_parameter", "prediction"} <= set(tree["posterior"].data_vars):
        raise BayesattnError(
            "draws must hold order_parameter and prediction to be graded, got"
            f" {', '.join(map(str, tree['posterior'].data_vars))}"
        )
    if "constant_data" not in tree or "test_path_inputs" not in tree["constant_data"]:
        return
    own_inputs = tree["constant_data"].to_dataset()["test_path_inputs"].values
    if not np.array_equal(own_inputs, model.test_path_inputs):
        raise BayesattnError(
            "draws must be on the test examples of the reference posterior, in their order, got others: use"
            f" bayesattn.reference.load({name!r}).model as it is"
        )


def _gradients(tree: xr.DataTree, gradients: int | None) -> int | None:
    """Number of gradients of all draws: as given, else as recorded with the draws, if it was."""
    if gradients is not None:
        return positive_integer("gradients", gradients)
    if "sample_stats" in tree and "n_steps" in tree["sample_stats"]:
        settings = tomllib.loads(described_in(tree).get("sampler", ""))
        return _recorded(tree["sample_stats"].to_dataset()["n_steps"], int(settings.get("thin", 1)))
    return None
