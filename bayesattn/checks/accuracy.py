"""Does finite width beat the GP limit? Accuracy of the mean predictor, and alignment of its kernel, with their errors."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import arviz_stats
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import stats
from threadpoolctl import threadpool_limits

from bayesattn import theory
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, rounded, with_error
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.models import Model, trees
from bayesattn.theory.arguments import gaussian_density
from bayesattn.theory.predictor import outputs_at, readouts, right

if TYPE_CHECKING:
    from bayesattn.checks.validation import Validation

LEVEL = 0.01
"""Of each comparison with the GP limit alone: how often it may call predictors or kernels different that are equal."""
SIGNIFICANT_ERRORS = float(stats.norm.isf(LEVEL / 2))
PREDICTOR_DRAWS = 1000
BATCHES = 4
"""Of each chain."""
RESAMPLES, RESAMPLING_BLOCKS = 1000, 50
MOST_ALIGNED = 2000
ALIGNED_DRAWS = 100
"""Draws of U whose kernels are aligned with the labels: each takes the eigenvectors of a matrix of P rows."""
ALIGNED_EIGENVECTORS = 100
ALL_PATHS = "all paths"

Outcome = Literal["higher", "lower", "cannot tell"]


@dataclass(frozen=True)
class Gain:
    """Accuracy of a mean predictor less that of the GP limit, on the same test examples.

    `difference` is the gain, as a share of the `examples`; `better` and `worse` count the examples that only the mean
    predictor and only the GP limit gets right; `monte_carlo_error` is that of the mean predictor's accuracy.
    """

    difference: float
    better: int
    worse: int
    examples: int
    monte_carlo_error: float

    @property
    def p_value(self) -> float:
        """McNemar's exact test: two-sided binomial probability of so uneven counts if both predictors were as good."""
        discordant = self.better + self.worse
        return float(stats.binomtest(self.better, discordant).pvalue) if discordant else 1.0

    @property
    def test_error(self) -> float:
        """Standard error of a paired difference by the size of the test set, sqrt(b + c - (b - c)^2 / n) / n.

        Half an example is added to b = better and to c = worse, so that no difference among n examples is not taken for
        certainty (after Agresti and Min 2005, who add it to every kind).
        """
        n = self.examples + 1
        return float(np.sqrt(self.better + self.worse + 1 - (self.better - self.worse) ** 2 / n) / n)

    @property
    def error(self) -> float:
        """Of the test set and of the draws together."""
        return float(np.hypot(self.test_error, self.monte_carlo_error))

    @property
    def outcome(self) -> Outcome:
        """Whether accuracy is higher or lower, at a level of 1 % by McNemar's test and by `error`."""
        return _outcome(self.difference, self.error) if self.p_value <= LEVEL else "cannot tell"

    def verdict(self, limit: str = "the GP limit") -> str:
        """The outcome in words, with its error."""
        size = with_error(100 * self.difference, 100 * self.error, "+")
        told = f" points (McNemar p = {self.p_value:.1g})"
        if self.outcome == "cannot tell":
            return f"finite width and {limit} cannot be told apart: {size}{told}"
        first, second = ("finite width", limit) if self.outcome == "higher" else (limit, "finite width")
        return f"{first} beats {second} by {size.lstrip('+-')}{told}"

    def to_dict(self) -> dict[str, Any]:
        """Counts, errors, p-value and outcome, for JSON."""
        derived = ("test_error", "error", "p_value", "outcome")
        return _plain(dataclasses.asdict(self) | {name: getattr(self, name) for name in derived})


@dataclass(frozen=True, eq=False, repr=False)
class Accuracy(Described):
    """Share of test examples that the sign of the mean predictor gets right: of theory, draws and GP limits.

    `error` is the Monte Carlo error of `draws`, `test_error` the standard error by which any of the shares may miss those
    of all possible examples, the test set being of `examples`. `gains` are those of the draws' mean predictor over the GP
    limits of all paths and of each group, `theory_gains` those of the saddle point's.
    """

    theory: float
    corrected: float
    draws: float
    error: float
    gp: float
    gp_of_groups: dict[str, float]
    examples: int
    gains: dict[str, Gain]
    theory_gains: dict[str, Gain]

    @property
    def test_error(self) -> float:
        """That of `draws`."""
        return binomial_error(self.draws, self.examples)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, for JSON."""
        gains = {
            name: {limit: gain.to_dict() for limit, gain in getattr(self, name).items()}
            for name in ("gains", "theory_gains")
        }
        return _plain(dataclasses.asdict(self) | {"test_error": self.test_error} | gains)

    def _described(self) -> tuple[str, dict[str, str]]:
        error, test_error = 100 * self.error, 100 * self.test_error
        limits = {ALL_PATHS: self.gp} | self.gp_of_groups
        rows = {
            "draws": f"{percent(self.draws, self.error, self.examples)} % ± {rounded(error, error)} by the number of draws,"
            f" ± {rounded(test_error, test_error)} by that of examples",
            "theory": f"{percent(self.theory, 0, self.examples)} % at the saddle point,"
            f" {percent(self.corrected, 0, self.examples)} % with the first order in 1/N",
            "GP limit": ", ".join(f"{percent(gp, 0, self.examples)} % of {name}" for name, gp in limits.items()),
            "verdict": self.gains[ALL_PATHS].verdict(),
        }
        return f"Accuracy on {self.examples} test examples", rows


@dataclass(frozen=True, eq=False)
class Alignment:
    """Alignment of the kernel with the labels: over draws of U with its Monte Carlo error, by theory, and in the GP limit.

    The numbers are kernel-target alignments (`theory.kernel_target_alignment`): Y is spread over several of the leading
    eigenvectors, which change places from draw to draw, and the kernel-target alignment counts them all, each by its
    eigenvalue. `eigenvectors`, `eigenvectors_error` and `gp_eigenvectors` are the alignments |u_k . Y| / |Y| of the leading
    ones (`theory.alignment`), mean and Monte Carlo error over the draws, and in the GP limit.
    """

    draws: float
    error: float
    theory: float
    gp: float
    eigenvectors: Float[np.ndarray, " eigenvector"]
    eigenvectors_error: Float[np.ndarray, " eigenvector"]
    gp_eigenvectors: Float[np.ndarray, " eigenvector"]

    @property
    def outcome(self) -> Outcome:
        """Whether the alignment is higher or lower than in the GP limit, at a level of 1 %."""
        return _outcome(self.draws - self.gp, self.error)

    def verdict(self) -> str:
        """The outcome in words, with its error."""
        words = {"higher": "is higher than", "lower": "is lower than", "cannot tell": "cannot be told apart from"}
        return (
            f"kernel-target alignment {with_error(self.draws, self.error)} {words[self.outcome]}"
            f" {rounded(self.gp, self.error)} in the GP limit"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON."""
        return _plain(dataclasses.asdict(self) | {"outcome": self.outcome})


def _outcome(difference: float, error: float) -> Outcome:
    # Written so that NaN cannot tell.
    if not abs(difference) > SIGNIFICANT_ERRORS * error:
        return "cannot tell"
    return "higher" if difference > 0 else "lower"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as lists, and None for what is not known."""
    lists = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return {
        name: [_known(number) for number in value] if isinstance(value, list) else _known(value)
        for name, value in lists.items()
    }


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def share_right(outputs: Float[np.ndarray, "*label"], labels: Float[np.ndarray, "*labels"]) -> float:
    """Accuracy: share of the examples whose output has the sign of its label; an output of 0 is right half of the time.

    Of several outputs it is the share of those whose greatest output is that of the greatest label.
    """
    return float(np.mean(right(outputs, labels)))


def percent(share: float, error: float, examples: int) -> str:
    """An accuracy in percent, to the place of its error's second digit, and to none that is below 1 / examples.

    >>> percent(0.834, 3e-5, 1000), percent(0.834, 0.012, 1000), percent(5 / 6, 0.0, 6)
    ('83.4', '83.4', '83')
    """
    places = max(0, math.ceil(math.log10(examples)) - 2)
    return rounded(100 * share, float(np.fmax(100 * error, 10.0 ** (1 - places))))


def binomial_error(share: float, examples: int) -> float:
    """Binomial standard error sqrt(p (1 - p) / n) of an accuracy by the size of the test set.

    Half an example is added to the right and to the wrong ones, so that none wrong among n is not taken for certainty.
    """
    smoothed = (share * examples + 0.5) / (examples + 1)
    return float(np.sqrt(smoothed * (1 - smoothed) / (examples + 1)))


def monte_carlo_error(
    mean: Float[np.ndarray, " label"],
    batches: Float[np.ndarray, "batch label"],
    labels: Float[np.ndarray, "*labels"],
    seed: int = 0,
) -> float:
    """Root mean square error of the mean predictor's accuracy by the number of draws: against that of infinitely many.

    Accuracy is a step function of the mean predictor, whose Monte Carlo error is normal, with the covariance between
    examples that the means of B batches show, sum_b (m_b - m)(m_b - m)^T / (B (B - 1)). The error is the root mean square
    change of the accuracy when errors of that law are added. It is 0 if no example then changes its sign: below
    1 / (n sqrt(RESAMPLES)) for n examples.

    Args:
        mean: mean predictor over all draws.
        batches: that of each batch of consecutive draws, long compared with their autocorrelation.
        labels: of the test examples.
        seed: of the errors added; the same by default, so that the same draws have the same error.

    Returns:
        The error; NaN if there is a single batch.
    """
    count = len(batches)
    if count < 2:
        return float("nan")
    deviations = (batches - batches.mean(0)) / np.sqrt(count * (count - 1))
    normals = np.random.default_rng(seed).normal(size=(RESAMPLES, count))
    stated = share_right(mean, labels)
    changes = [
        right(mean + block @ deviations, labels).mean(1) - stated
        for block in np.array_split(normals, RESAMPLING_BLOCKS)
    ]
    return float(np.sqrt(np.mean(np.square(changes))))


def accuracy_of(model: Model, by_theory: Mapping[str, np.ndarray], batches: np.ndarray) -> Accuracy:
    """Accuracies, errors and gains of mean predictors.

    Args:
        model: with test examples and labels.
        by_theory: mean predictors on the test examples: of "theory" (saddle point), "corrected" theory, and "gp".
        batches: mean predictors over batches of draws, shape (batch, test_example).
    """
    labels, mean = model.test_labels, batches.mean(0)
    error = monte_carlo_error(mean, batches, labels)
    limits = {ALL_PATHS: by_theory["gp"]} | {name: gp_mean(model, group) for name, group in model.path_groups.items()}
    return Accuracy(
        **{name: share_right(values, labels) for name, values in by_theory.items()},
        draws=share_right(mean, labels),
        error=error,
        gp_of_groups={name: share_right(limits[name], labels) for name in model.path_groups},
        examples=len(labels),
        gains={name: gain(mean, limit, labels, error) for name, limit in limits.items()},
        theory_gains={name: gain(by_theory["theory"], limit, labels) for name, limit in limits.items()},
    )


def gain(
    outputs: Float[np.ndarray, " label"],
    limit: Float[np.ndarray, " label"],
    labels: Float[np.ndarray, "*labels"],
    monte_carlo_error: float = 0.0,
) -> Gain:
    """How much more accurate outputs are than those of the GP limit, on the same examples.

    Args:
        outputs: of a mean predictor.
        limit: of the GP limit.
        labels: of the examples.
        monte_carlo_error: of the accuracy of `outputs`.
    """
    change = np.asarray(right(outputs, labels) - right(limit, labels))
    counts = {"better": int(np.sum(change > 0)), "worse": int(np.sum(change < 0)), "examples": len(change)}
    return Gain(difference=float(np.mean(change)), monte_carlo_error=monte_carlo_error, **counts)


@with_own_settings
def accuracy_on(model: Model, validation: "Validation") -> Accuracy:
    """Accuracy on the test examples of `model`, with the saddle point, corrected theory and draws of the same posterior.

    The corrected theory's predictor is here the one at its mean U, without the correction of the predictor itself.

    Args:
        model: the same training examples, architecture and temperature as `validation.model`, and test examples of another
            kind, say images of another set.
        validation: of the same posterior.

    Raises:
        ValueError: other training examples, architecture or temperature; no test labels.
    """
    ours, theirs = model, validation.model
    same = ours.architecture == theirs.architecture and ours.temperature == theirs.temperature
    if not (
        same and np.array_equal(ours.path_inputs, theirs.path_inputs) and np.array_equal(ours.labels, theirs.labels)
    ):
        raise ValueError(
            "model must have training examples, architecture and temperature of validation.model, got others"
        )
    if model.test_labels is None:
        raise ValueError("model must have test_labels, got None")
    if validation.readouts is None:
        raise ValueError("validation must be of a model with test examples, got one without")
    by_theory = {
        "theory": mean_predictor(model, validation.saddle),
        "corrected": mean_predictor(model, validation.corrected),
        "gp": gp_mean(model),
    }
    return accuracy_of(model, by_theory, outputs_of(model, validation.readouts))


@with_own_settings
def alignment_over_draws(
    model: Model,
    saddle: Float[np.ndarray | Array, "path path"],
    order_parameters: Any,
) -> Alignment | None:
    """Alignment of the kernel with the labels, at finite width against the GP limit; None where there is no such thing.

    Labels that are all zero have none; of a compressed dataset, whose kernel is that of other examples, and of more labels
    than `MOST_ALIGNED`, whose kernel's eigenvectors each draw would need, it is not known.

    Args:
        model: the posterior.
        saddle: U at the saddle point.
        order_parameters: draws of U, shape (chain, draw, Pi, Pi), of which at most 100 are looked at; or what
            `bayesattn.sample` returned, a run or its folder.

    Raises ValueError at draws of another model.
    """
    labels, likelihood = model.labels.ravel(), gaussian_density(model)
    if model.compressed is not None or len(labels) > MOST_ALIGNED or not np.any(labels):
        return None

    def aligned(kernel: Any) -> np.ndarray:
        """Kernel-target alignment, then that of the leading eigenvectors."""
        leading = theory.alignment(kernel, labels)[:ALIGNED_EIGENVECTORS]
        return np.append(theory.kernel_target_alignment(kernel, labels), leading)

    order_parameters = _order_parameters(order_parameters, model)
    chains, draws = order_parameters.shape[:2]
    kept = np.linspace(0, draws - 1, min(draws, max(1, ALIGNED_DRAWS // chains))).astype(int)
    # BLAS threads, which wait for each other, take several times as long for eigenvectors of a hundred examples.
    with threadpool_limits(1, user_api="blas"):
        values = [[aligned(_kernel(likelihood, u)) for u in chain] for chain in order_parameters[:, kept]]
    alignments = xr.DataArray(values, dims=("chain", "draw", "quantity"))
    mean, error = alignments.mean(("chain", "draw")).values, arviz_stats.mcse(alignments).values
    gp = aligned(gp_kernel(model))
    by_theory = theory.kernel(saddle, model.path_inputs, model.path_inputs, model.architecture)
    return Alignment(
        draws=float(mean[0]),
        error=float(error[0]),
        theory=float(theory.kernel_target_alignment(by_theory, labels)),
        gp=float(gp[0]),
        eigenvectors=mean[1:],
        eigenvectors_error=error[1:],
        gp_eigenvectors=gp[1:],
    )


@with_own_settings
def gp_kernel(model: Model, paths: Any = None) -> Float[np.ndarray, "example example"]:
    """K at infinite width on the training examples, of the network or of a group of its paths alone."""
    return np.asarray(_kernel(gaussian_density(model), _gp_of_group(model, paths)))


@jax.jit
def _kernel(likelihood: GaussianProcess, order_parameter: Any) -> Float[Array, "label label"]:
    return likelihood.kernel_of(order_parameter)


def _gp_of_group(model: Model, paths: Any) -> np.ndarray:
    """U in the GP limit of a network that has these paths only: 0 for all others, and normalised by their number."""
    arch = model.architecture
    gp = np.asarray(theory.gp_order_parameter(arch))
    if paths is None:
        return gp
    kept = np.isin(np.arange(arch.paths), paths)
    return gp * np.repeat(kept, arch.outputs) * (np.prod(arch.heads) / kept.sum())


@with_own_settings
def gp_mean(model: Model, paths: Any = None) -> Float[np.ndarray, " test_label"]:
    """Mean of f on the test examples at infinite width, of the network or of a group of its paths alone."""
    return mean_predictor(model, _gp_of_group(model, paths))


@with_own_settings
def mean_predictor(
    model: Model, order_parameter: Float[np.ndarray | Array, "row row"]
) -> Float[np.ndarray, " test_label"]:
    """Mean of f on the test examples given U, all outputs of the first example first."""
    of_one = readouts(order_parameter[None], model)
    return outputs_of(model, np.asarray(of_one))[0]


def outputs_of(model: Model, by_batch: Float[np.ndarray, "batch row feature"]) -> Float[np.ndarray, "batch test_label"]:
    """f on the test examples with each of several readouts."""
    return outputs_at(by_batch, model.test_path_inputs)


@with_own_settings
def readout_batches(model: Model, order_parameters: Any) -> Float[np.ndarray, "batch row feature"]:
    """Readouts of the mean predictor over batches of consecutive draws of U, shape (chain, draw, Pi, Pi), four a chain.

    Of more than 1000 draws as many are looked at, evenly spread: the error between batches is theirs. What
    `bayesattn.sample` returned, a run or its folder will do for the draws; ValueError is raised at those of another model.
    """
    order_parameters = _order_parameters(order_parameters, model)
    chains, draws = order_parameters.shape[:2]
    batches = min(BATCHES, draws)
    per_batch = max(1, min(draws // batches, PREDICTOR_DRAWS // (chains * batches)))
    kept = np.linspace(0, draws - 1, batches * per_batch).astype(int)
    chosen = order_parameters[:, kept].reshape(-1, *order_parameters.shape[2:])
    per_draw = np.asarray(readouts(chosen, model))
    return per_draw.reshape(chains * batches, per_batch, *per_draw.shape[1:]).mean(1)


def _order_parameters(draws: Any, model: Model) -> Float[np.ndarray, "chain draw row row"]:
    """As they are, finite or not, of an array; of draws those of this model."""
    return draws if isinstance(draws, np.ndarray) else trees.order_parameters(draws, model)
