"""Diagnostics of draws: R-hat, effective sample size, divergences, tree depth and BFMI, with advice on each."""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

import arviz_stats
import numpy as np
import xarray as xr
from jaxtyping import Int

from bayesattn._util.files import finite
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import Described, draw_more, with_error
from bayesattn.checks.accuracy import binomial_error, monte_carlo_error, share_right
from bayesattn.checks.mixing import (
    FEWEST_CHAINS,
    FEWEST_DRAWS,
    MOST_REPEATS,
    REPEATED,
    is_constant,
    is_stuck,
    mixing_of,
    moments,
    on_and_below_diagonal,
    pareto_k,
    repeated_share,
)
from bayesattn.checks.theory_predictions import BATCHES_PER_CHAIN
from bayesattn.models import CENTRAL
from bayesattn.models.arviz import dataset, has_order_parameter
from bayesattn.models.draws import Draws, fewest_round_trips, identifying_numbers, opened
from bayesattn.models.hyperpriors import VARIANCES, VECTORS
from bayesattn.models.stored_model import architecture_in, numbers_with_priors
from bayesattn.samplers.stopping import doubts_about_trips
from bayesattn.theory.bartlett import may_have_modes_apart
from bayesattn.theory.importance import MOST_PARETO_K
from bayesattn.theory.predictor import have_accuracy

GOOD_RHAT, GOOD_ESS, GOOD_BFMI = 1.01, 400, 0.3
"""Thresholds of Vehtari et al. (2021) and Betancourt (2016)."""
MOST_BIAS = 0.05
"""Largest step-size bias, in standard deviations: about the Monte Carlo error at an effective sample size of 400."""
WATCHED_PREDICTIONS = 20
QUANTITY_NAMES = {
    "order_parameter": "U",
    "latent": "z",
    "prediction": "predictions",
    "readout": "readouts",
    "energy": "the energy",
    "lp": "the log posterior",
    VARIANCES: "the variances",
}
"""Name of each watched quantity in sentences."""
WATCHED_QUANTITIES = "U or z, numbers with priors, predictions, readouts, energy and log posterior"


@dataclass(frozen=True, repr=False)
class Diagnostics(Described):
    """Quality of draws: worst R-hat and effective sample size over order parameters, energy, density and some predictions.

    `rhat` is rank-normalised, `ess` is the effective sample size of the bulk and `tail_ess` that of the tails. `saturated`
    is the number of trajectories that reached the greatest tree depth, `bfmi` the smallest BFMI over chains. `pareto_k` is
    the largest shape of a generalised Pareto distribution fitted to the tail of an entry of U^2: above 0.5, averages of U^2
    have no finite variance. `bias` is the largest step-size bias of an entry of U (or of the latent), in its standard
    deviations, as estimated by a biased sampler, and `bias_error` the Monte Carlo error of that estimate. Numbers that are
    not defined are NaN: R-hat of one chain, all numbers of too few draws or of draws that do not vary, and numbers that the
    sampler does not have.

    `worst` names the quantity with the worst R-hat and with each smallest effective sample size. `constant` names the
    quantities that do not vary in any chain, `stuck` those among them that differ between chains, so that their R-hat is
    infinite. `uncrossed` names the pairs of rows of U whose entry has one sign in each chain, for networks that may have
    modes apart (`bayesattn.theory.bartlett.may_have_modes_apart`) and draws that were not tempered; `round_trips` is the
    least number of round trips of a tempered chain between posterior and prior. `weight_space` says whether the draws are
    known to come from a parameterisation that samples weights. `repeated` is the greatest share of a chain's draws that also
    occur in another chain.
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
    pareto_k: float = float("nan")
    worst: Mapping[str, str] = field(default_factory=dict)
    constant: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    uncrossed: list[str] = field(default_factory=list)
    round_trips: float = float("nan")
    weight_space: bool = False
    repeated: float = 0.0

    @property
    def undefined(self) -> dict[str, str]:
        """Reasons why R-hat or an effective sample size is not defined, by name; empty if all are defined."""
        reasons = {}
        for name, value in (("rhat", self.rhat), ("ess", self.ess), ("tail_ess", self.tail_ess)):
            if np.isfinite(value):
                continue
            if self.draws < FEWEST_DRAWS:
                reasons[name] = f"too few draws to tell: {self.draws} of each chain, at least {FEWEST_DRAWS} are needed"
            elif name == "rhat" and self.chains < FEWEST_CHAINS:
                reasons[name] = "there is one chain alone: draw several to see whether they agree"
            elif self.stuck:
                names = " and ".join(_named(key) for key in self.stuck)
                reasons[name] = f"chains are stuck in different places: the draws of {names} do not vary within a chain"
            elif self.constant:
                reasons[name] = f"the draws of {' and '.join(_named(key) for key in self.constant)} do not vary"
            else:
                reasons[name] = "some draws are not finite"
        return reasons

    def doubts_about_signs(self) -> list[str]:
        """Why chains that never change a sign of U may have seen one mode of several; nothing if all signs change."""
        if not self.uncrossed:
            return []
        return [
            f"the sign of U between {self.uncrossed[0]}{_and_others(len(self.uncrossed) - 1)} never changes in a chain:"
            " a network this narrow may have modes that no chain has reached, which R-hat does not show; draw with"
            " sampler='tempered'"
        ]

    def doubts_about_repeats(self) -> list[str]:
        """Why chains with the same draws are fewer than they seem; nothing if they differ."""
        return [REPEATED] if self.repeated > MOST_REPEATS else []

    def warnings(self) -> list[str]:
        """Warnings about the draws, each with advice."""
        notes = []
        reasons = self.undefined
        if self.draws < FEWEST_DRAWS:
            return [f"R-hat and ESS are not defined: {reasons['ess']}"]
        if self.stuck:
            notes.append(f"R-hat is infinite: {reasons['rhat']}; start from other seeds, or warm up longer")
            reasons = {}
        for reason in dict.fromkeys(reasons.values()):
            what = [title for name, title in (("rhat", "R-hat"), ("ess", "ESS")) if reasons.get(name) == reason]
            if what:
                notes.append(f"{' and '.join(what)} {'is' if len(what) == 1 else 'are'} not defined: {reason}")
        if self.rhat > GOOD_RHAT and not self.stuck:
            other = (
                ", or with sampler='tempered' if chains are in different modes" if np.isnan(self.round_trips) else ""
            )
            notes.append(
                f"R-hat{self._of('rhat')} is {self.rhat:.4f}, above {GOOD_RHAT}: draw longer or warm up longer{other}"
            )
        enough = GOOD_ESS if self.rhat <= GOOD_RHAT else np.nan  # Of chains that differ it is not known.
        if self.ess < GOOD_ESS:
            notes.append(
                f"the effective sample size{self._of('ess')} is {self.ess:.0f}, below {GOOD_ESS}:"
                f" {draw_more(enough / self.ess)}"
            )
        elif self.tail_ess < GOOD_ESS:
            notes.append(
                f"the effective sample size of the tails{self._of('tail_ess')} is {self.tail_ess:.0f}, below {GOOD_ESS}:"
                f" {draw_more(enough / self.tail_ess)}, before you trust quantiles"
            )
        notes += [*self.doubts_about_repeats(), *self.doubts_about_signs(), *doubts_about_trips(self.round_trips)]
        if self.pareto_k > MOST_PARETO_K:
            notes.append(
                f"the tails of U^2 are heavy: Pareto k is {self.pareto_k:.2f}, above {MOST_PARETO_K}: values too rare"
                " to be among the draws may dominate means of U^2 and variances of U, so that their Monte Carlo errors are"
                " too small; draw more, or state quantiles"
            )
        elsewhere = ", or use the collapsed parameterisation" if self.weight_space else ""
        if self.divergences:
            notes.append(f"{self.divergences} divergent transitions: raise target_accept_prob{elsewhere}")
        if self.saturated:
            share = 100 * self.saturated / (self.chains * self.draws)
            notes.append(
                f"{share:.2g} % of trajectories reached the greatest tree depth: raise max_tree_depth, or warm up"
                f" longer{elsewhere}"
            )
        if self.bfmi < GOOD_BFMI:
            notes.append(
                f"BFMI is {self.bfmi:.2f}, below {GOOD_BFMI}: momenta explore the energy slowly; draw more{elsewhere}"
            )
        if abs(self.bias) > 2 * self.bias_error and abs(self.bias) > MOST_BIAS:
            notes.append(
                f"the sampler is biased by its step size: means by {with_error(self.bias, self.bias_error, '+')}"
                f" standard deviations: lower step_size, with adapt_step_size = false, or use an adjusted sampler"
            )
        return notes

    def overall(self) -> str:
        """Worst R-hat and effective sample size, with the quantities that have them; tables show each entry of U."""
        rhat = f"at most {self.rhat:.3f}{self._of('rhat')}" if "rhat" in self.worst else "not defined"
        if self.stuck:
            rhat = "infinite"
        ess = f"at least {self.ess:.0f}{self._of('ess')}" if "ess" in self.worst else "not defined"
        return f"R-hat is {rhat}, the effective sample size is {ess}; looked at: {WATCHED_QUANTITIES}"

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {"mixing": self.overall(), "warnings": "; ".join(self.warnings()) or "none"}
        return f"Diagnostics of {self.chains} chains of {self.draws} draws", rows

    def _of(self, name: str) -> str:
        return f" (of {_named(self.worst[name])})" if name in self.worst else ""

    def to_dict(self) -> PlainDict:
        """Plain numbers, with the warnings; None for undefined numbers, with the reasons under "undefined"."""
        return finite(asdict(self)) | {"undefined": self.undefined, "warnings": self.warnings()}

    @classmethod
    def from_dict(cls, numbers: PlainDict) -> "Diagnostics":
        """Diagnostics from the result of `to_dict`."""
        values = {each.name: numbers[each.name] for each in fields(cls) if each.name in numbers}
        restored: PlainDict = {name: np.nan if value is None else value for name, value in values.items()}
        if restored.get("stuck"):
            restored["rhat"] = np.inf
        return cls(**restored)


def _named(quantity: str) -> str:
    """A watched quantity in sentences; numbers of the likelihood have the names of its fields."""
    return QUANTITY_NAMES.get(quantity, f"the {quantity}")


def _and_others(count: int) -> str:
    """Words for further pairs."""
    return f" and of {count} other pairs" if count > 1 else " and of another pair" if count else ""


def watched_examples(examples: int) -> Int[np.ndarray, " watched"]:
    """Indices of the test examples whose predictions are diagnosed: evenly spaced, or all if they are few."""
    return np.unique(np.linspace(0, examples - 1, min(examples, WATCHED_PREDICTIONS)).astype(int))


def diagnose(draws: Draws) -> Diagnostics:
    """Diagnostics of draws with the group posterior and, for the sampler's numbers, the group sample_stats.

    Predictions are diagnosed on 20 evenly spaced test examples, so that memory does not grow with the number of examples.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.

    Raises:
        ValueError: an argument of another kind; missing axes; joined trees of several models, with chains of several
            lengths, or with the same draws twice.
        RunError: a folder that is not a readable run.
    """
    draws = opened(draws)
    posterior, statistics = draws["posterior"].to_dataset(), dataset(draws, "sample_stats")
    chains, count = posterior.sizes["chain"], posterior.sizes["draw"]
    found: PlainDict = dict.fromkeys(("rhat", "ess", "tail_ess", "bfmi"), float("nan"))
    if count >= FEWEST_DRAWS:
        watched = {name: statistics[name] for name in ("energy", "lp") if name in statistics}
        watched |= {name: posterior[name] for name in CENTRAL if name in posterior} | numbers_with_priors(draws)
        if "order_parameter" in watched:
            watched["order_parameter"] = on_and_below_diagonal(watched["order_parameter"])
        for name in [name for name in ("prediction", "readout") if name in posterior]:
            axis = posterior[name].dims[-1 if name == "readout" else 2]
            watched[name] = posterior[name].isel({axis: watched_examples(posterior.sizes[axis])})
        watched = {name: values.compute() for name, values in watched.items()}
        mixing = {name: mixing_of(values) for name, values in watched.items()}
        found["constant"] = [name for name, values in watched.items() if is_constant(values).any()]
        found["stuck"] = [name for name, values in watched.items() if is_stuck(values).any()]
        found["worst"] = {}
        for number, sign in (("rhat", 1), ("ess", -1), ("tail_ess", -1)):
            # NumPy's maximum is NaN if one value is; Python's may not be.
            least = {name: float(np.max(sign * values[number])) for name, values in mixing.items()}
            found[number] = sign * float(np.max(list(least.values())))
            if np.isfinite(found[number]):
                found["worst"][number] = max(least, key=lambda name: least[name])
        if "energy" in watched and "energy" not in found["constant"]:
            found["bfmi"] = float(np.min(arviz_stats.bfmi(watched["energy"])))
        found["bias"], found["bias_error"] = _worst_bias(draws)
        if "order_parameter" in watched:
            found["pareto_k"] = float(np.fmax.reduce(pareto_k(watched["order_parameter"])))
            if "round_trips" not in statistics:  # Tempered replicas have been where signs change.
                found["uncrossed"] = _uncrossed(draws, watched["order_parameter"])
        numbers = identifying_numbers({"posterior": posterior, "sample_stats": statistics})[1]
        if np.ptp(numbers, axis=1).min() > 0:
            found["repeated"] = repeated_share(numbers)
    found["round_trips"] = fewest_round_trips(draws)
    return Diagnostics(
        **found,
        chains=chains,
        draws=count,
        divergences=_total(statistics, "diverging"),
        saturated=_total(statistics, "reached_max_treedepth"),
        # Only collapsed draws of U include Bartlett coordinates.
        weight_space=has_order_parameter(draws) and "bartlett" not in posterior,
    )


def _uncrossed(draws: xr.DataTree, entries: xr.DataArray) -> list[str]:
    """Pairs of rows of U whose entry never changes its sign in a chain, for draws of a network with modes apart."""
    arch = architecture_in(draws)
    if arch is None or not may_have_modes_apart(arch):
        return []
    positive, names = entries.values > 0, [str(name) for name in draws["posterior"].coords["path"].values]
    crossed = (positive != positive[:, :1]).any((0, 1))
    pairs = zip(*np.tril_indices(len(names)), crossed, strict=True)
    return [f"{names[row]} and {names[other]}" for row, other, changes in pairs if row != other and not changes]


def summary(draws: Draws) -> list[PlainDict]:
    """Mean, standard deviation, Monte Carlo error, R-hat and effective sample size of scalar quantities, a row each.

    The quantities are the log posterior density ("lp"), numbers that have priors ("temperature"; "variances", with the name
    of each, and the product of several), each entry of U on and below the diagonal ("order_parameter", named
    by its paths) and, if there are test labels with signs or of classes, the share of them that the mean predictor
    gets right ("accuracy": mean, Monte Carlo error, and "test_error" due to the size of the test set).

    Rows of U also contain the effective sample size of the tails ("tail_ess") and the shape of the tail of the square
    ("pareto_k"). If it is above 0.7, the mean of U^2 is unreliable.

    Undefined numbers are None: R-hat of one chain, and all numbers except the mean for too few draws or for draws that do
    not vary. The argument and its errors are those of `diagnose`.
    """
    draws = opened(draws)
    posterior, statistics, constant = (dataset(draws, name) for name in ("posterior", "sample_stats", "constant_data"))
    rows: list[PlainDict] = []
    if "lp" in statistics:
        rows.append({"quantity": "lp"} | {name: float(value) for name, value in moments(statistics["lp"]).items()})
    for name, values in numbers_with_priors(draws).items():
        rows += _rows_of_numbers(name, values)
    if has_order_parameter(draws):
        entries = on_and_below_diagonal(posterior["order_parameter"])
        numbers = moments(entries, tails=True)
        names = [str(name) for name in posterior["path"].values]
        pairs = np.tril_indices(len(names))
        if "step_size_bias" in draws.children:
            numbers |= {name: of[pairs] for name, of in zip(("bias", "bias_error"), step_size_bias(draws), strict=True)}
        for entry, (row, column) in enumerate(zip(*pairs, strict=True)):
            named = {"quantity": "order_parameter", "path": names[row], "other_path": names[column]}
            rows.append(named | {name: float(values[entry]) for name, values in numbers.items()})
    if "prediction" in posterior and "test_labels" in constant:
        labels = constant["test_labels"].values
        if have_accuracy(labels):
            rows.append({"quantity": "accuracy"} | _accuracy(posterior["prediction"], labels))
    return finite(rows)


def _rows_of_numbers(name: str, values: xr.DataArray) -> list[PlainDict]:
    """Rows of a number that has a prior; of several variances, also of their product, on which f depends without skips."""
    if name not in VECTORS:
        return [{"quantity": name} | {key: float(value) for key, value in moments(values, tails=True).items()}]
    axis = str(values.dims[-1])
    of_layers = values[axis].values if axis in values.coords else range(1, values.sizes[axis] + 1)
    each = [(str(layer), values[..., place]) for place, layer in enumerate(of_layers)]
    each += [("product", values.prod(axis))] if len(each) > 1 and name == VARIANCES else []
    return [
        {"quantity": name, "variance": which} | {key: float(value) for key, value in moments(of, tails=True).items()}
        for which, of in each
    ]


def _accuracy(predictions: xr.DataArray, labels: np.ndarray) -> dict[str, float]:
    edges = np.linspace(0, predictions.sizes["draw"], min(BATCHES_PER_CHAIN, predictions.sizes["draw"]) + 1).astype(int)
    parts = [
        predictions.isel(chain=chain, draw=slice(first, last))
        for chain in range(predictions.sizes["chain"])
        for first, last in itertools.pairwise(edges)
    ]
    # One part at a time: all predictions may not fit into memory.
    batches = np.array([part.mean("draw").values.ravel() for part in parts])
    mean = np.average(batches, axis=0, weights=[part.sizes["draw"] for part in parts])
    share = share_right(mean, labels)
    error = monte_carlo_error(mean, batches, labels)
    return {"mean": share, "error": error, "test_error": binomial_error(share, len(labels))}


def step_size_bias(draws: xr.DataTree) -> tuple[np.ndarray, np.ndarray]:
    """Step-size bias of each entry of U or of the latent, estimated by a biased sampler, and its Monte Carlo error."""
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


def _total(statistics: xr.Dataset, name: str) -> int:
    return int(statistics[name].sum()) if name in statistics else 0
