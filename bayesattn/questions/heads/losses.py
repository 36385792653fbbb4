"""Losses of log evidence, accuracy and log score without a head, with the values of all other heads inferred again.

The network without a head has only the other paths, with their prior. Its evidence equals that of the whole network with
the head's path inputs set to 0, because the head's rows of U then do not affect the likelihood. The networks in between
multiply the head's path inputs by t, which falls from 1 to 0. With D = diag(t for rows of the head, 1 for others),

    log p(Y | U, t) = log Normal(Y; 0, K(D U D) + T I),

and a bridge (Bennett 1976; Meng and Wong 1996) estimates the ratio of the evidences at neighbouring t and t' from draws
of both. The steps in t are so short that the difference of log densities has a standard deviation of at most 2.5 nats.
For a head that hardly matters, one step is enough.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayesattn._util.checks import Checked, positive_integer, require_kind, seed_number
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import Described, with_error
from bayesattn.checks.accuracy import paired_error
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.checks.thresholds import ONE_CHAIN, USABLE_RHAT
from bayesattn.errors import BayesattnError
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.models.arviz import dataset
from bayesattn.models.draws import Draws, opened_with_network, order_parameters_in
from bayesattn.models.earlier import draws_first
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.questions.heads.bridge import Bridge, bridge, chained, rhat
from bayesattn.questions.heads.fit import (
    Fit,
    at_saddle_point,
    mean_and_error,
    predictions,
    with_scaled_paths,
    without_paths,
)
from bayesattn.questions.heads.units import Units, units_of
from bayesattn.samplers import sample, suited_sampler
from bayesattn.theory.bartlett import may_have_modes_apart
from bayesattn.theory.evidence import evidence

if TYPE_CHECKING:
    import pandas as pd

CLEAR_LOSS = 5.0
"""Log evidence lost, in nats, that gives odds of 150 for the network with the head."""
LARGEST_SPREAD = 2.5
"""Largest standard deviation, in nats, of the difference of log densities between neighbouring networks."""
SEARCHED_SCALES = 12
"""Halvings in the search for the next t."""
FEW, MOST = 100, 500
"""Number of draws that choose the next t, and largest number of draws used from each network."""
STEPS, TEMPERED_STEPS = (200, 150), (500, 1000)
"""Usual steps of warm-up and draws of each network, and those of tempered chains, whose draws are less independent."""
MOST_ERRORS = 5.0
"""Largest difference, in combined errors, between the loss by chains and that by evidences."""
COLUMNS = ("evidence", "accuracy", "log_score")


@dataclass(frozen=True, eq=False, repr=False)
class Losses(Described):
    """Losses of the posterior without each head, path or group; arrays have one entry for each.

    Args:
        names: layer and name of each head; or names of paths or groups.
        evidence: log p(Y) of the whole network, less that of the network without the head, in nats.
        evidence_error: its Monte Carlo standard error; NaN for the theory's leading order, which has none.
        accuracy: accuracy of the mean predictor on the test examples, less that without the head; NaN
            without test labels, and for labels that are neither -1 and 1 nor, of several outputs, a high one at the class.
        accuracy_error: its standard error over test examples, which both networks predict.
        log_score: mean log predictive density of the test labels, less that without the head, in nats; of classes too
            that of their labels as numbers with Gaussian noise, unlike the log score of `predict(..).scores(labels)`.
        log_score_error: its standard error over test examples.
        rhat: largest R-hat of the log densities of the chains that were compared; NaN without chains, and of one.
        levels: names of the columns of `names`.
    """

    names: list[Any]
    evidence: Float[np.ndarray, " unit"]
    evidence_error: Float[np.ndarray, " unit"]
    accuracy: Float[np.ndarray, " unit"]
    accuracy_error: Float[np.ndarray, " unit"]
    log_score: Float[np.ndarray, " unit"]
    log_score_error: Float[np.ndarray, " unit"]
    rhat: Float[np.ndarray, " unit"]
    levels: list[str]

    def summary(self) -> "pd.DataFrame":
        """One row for each head, path or group."""
        import pandas as pd

        columns = [name for column in COLUMNS for name in (column, f"{column}_error")]
        index = indexed(self.names, self.levels)
        return pd.DataFrame({name: getattr(self, name) for name in (*columns, "rhat")}, index=index)

    @property
    def doubts(self) -> list[str]:
        """Why some losses are not to be trusted, one sentence each; nothing if all chains mixed, or there were none."""
        found = []
        if np.any(np.isnan(self.rhat) & ~np.isnan(self.evidence_error)):
            found.append(f"R-hat is not defined, {ONE_CHAIN}")
        if doubtful := [str(self.names[at]) for at in np.flatnonzero(self.rhat > USABLE_RHAT)]:
            found.append(
                f"chains did not mix (R-hat above {USABLE_RHAT}) for {', '.join(doubtful)}; raise warmup= and length= of"
                " head_losses"
            )
        return found

    def _described(self) -> tuple[str, dict[str, str]]:
        least, most = int(np.argmin(self.evidence)), int(np.argmax(self.evidence))
        rows = {
            word: f"{self.names[at]}, log evidence lost {with_error(self.evidence[at], self.evidence_error[at])}"
            + (" (greater without it)" if self.evidence[at] < -2 * np.nan_to_num(self.evidence_error[at]) else "")
            for word, at in (("most", most), ("least", least))
        }
        rows["nats"] = (
            f"1 says little, {CLEAR_LOSS:g} are odds of 150 for the network with it; ± is the Monte Carlo error"
        )
        rows |= {"cannot tell": "; ".join(doubts)} if (doubts := self.doubts) else {}
        return f"Losses without each of {len(self.names)} heads, paths or groups", rows


def indexed(names: list[Any], levels: list[str]) -> "pd.Index":
    """Index of a table of heads, paths or groups."""
    import pandas as pd

    return pd.MultiIndex.from_tuples(names, names=levels) if len(levels) > 1 else pd.Index(names, name=levels[0])


@draws_first
@with_own_settings
def head_losses(
    draws: Draws,
    *,
    of: Checked = "heads",
    model: NetworkPosterior | None = None,
    chains: int = 4,
    warmup: int | None = None,
    length: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Losses:
    """Log evidence, accuracy and log score lost without each head, by sampling the networks without it.

    Each head needs one job of `bayesattn.sample` per step to the network without it: one step for a head that hardly
    matters, two to five steps for others. The jobs are tempered if the draws are, or if the network may have modes apart.
    For such networks, bridges between chains in one mode agree on a wrong value, so each loss of log evidence is compared
    with the difference of two `bayesattn.theory.evidence` where both are reliable; a warning names losses that differ.

    Args:
        draws: draws of the whole network, as for `bayesattn.heads`.
        of: "heads"; "paths"; or a dictionary of lists of heads, as for `bayesattn.heads`.
        model: model of the draws, if they do not record it.
        chains: chains of each job.
        warmup: adaptation steps of each chain; by default 200, or 500 of tempered chains.
        length: draws of each chain; by default 150, or 1000 of tempered chains.
        seed: seed of the jobs.
        progress: function that is called with a line of text before each job.

    Raises:
        ValueError: draws of a network whose attention is sampled too, or without a Gaussian likelihood; draws without
            order_parameter; as for `bayesattn.heads`.
    """
    whole, tree = opened_with_network(draws, model)
    whole = gaussian_model(whole)
    tempered = "round_trips" in dataset(tree, "sample_stats") or suited_sampler(whole) == "tempered"
    usual_warmup, usual_length = TEMPERED_STEPS if tempered else STEPS
    warmup, length = usual_warmup if warmup is None else warmup, usual_length if length is None else length
    for name, value, fewest in (("chains", chains, 1), ("warmup", warmup, 1), ("length", length, FEWEST_DRAWS)):
        positive_integer(name, value, fewest)
    job = {"sampler": "tempered" if tempered else "nuts", "chains": chains, "warmup": warmup, "draws": length}
    seed_number("seed", seed)
    units, drawn = units_of(whole, of), order_parameters_in(tree, whole)
    if drawn.shape[1] < FEWEST_DRAWS:
        raise BayesattnError(f"draws must hold at least {FEWEST_DRAWS} of each chain, got {drawn.shape[1]}")
    ladder = _Ladder(whole, _thinned(drawn), job, seed, progress)
    names = watched(units.names, "networks without a head", is_slow=True)
    each = [ladder.losses(str(name), rows) for name, rows in zip(names, units.rows(whole.architecture), strict=True)]
    losses = _collected(units, each)
    if may_have_modes_apart(whole.architecture):
        _compare_with_evidence(losses, whole, units, seed)
    return losses


def gaussian_model(model: Checked) -> Model:
    """The same model; raises ValueError unless it has fixed attention and Gaussian labels."""
    require_kind("model", model, Model)
    model.require_theory()
    return model


def _compare_with_evidence(losses: Losses, model: Model, units: Units, seed: int) -> None:
    """Warn of losses of log evidence that differ from the difference of two reliable evidences."""
    whole, wrong = evidence(model, seed=seed), []
    for number, paths in enumerate(units.paths):
        rest = evidence(without_paths(model, paths), seed=seed)
        error = float(np.sqrt(whole.error**2 + rest.error**2 + losses.evidence_error[number] ** 2))
        lost = whole.log_evidence - rest.log_evidence
        if whole.reliable and rest.reliable and abs(losses.evidence[number] - lost) > MOST_ERRORS * error:
            wrong.append(
                f"{units.names[number]} {losses.evidence[number]:.3g} nats, where the evidences say {lost:.3g}"
            )
    if wrong:
        warnings.warn(
            f"losses of log evidence by chains differ from those by bayesattn.theory.evidence: {'; '.join(wrong)}; chains"
            " have not reached all modes: draw longer",
            stacklevel=4,
        )


@with_own_settings
def predicted_losses(model: Model, *, of: Checked = "heads") -> Losses:
    """Losses by the theory alone, in closed form: `head_losses` to leading order at large width, in seconds.

    log p(Y) is minus half the least action, and predictions are those at the saddle point, with and without the head.
    For three heads at N = 8 and 30 examples, the theory gave 19.7, 3.4 and -0.4 nats; the actual losses were 18.7, 2.9
    and -0.7.

    Args:
        model: the posterior, with Gaussian labels.
        of: as for `head_losses`.

    Raises:
        ValueError: another kind of model or likelihood; as for `bayesattn.heads`.
        NotConverged: a saddle point was not found.
    """
    units = units_of(gaussian_model(model), of)
    whole = at_saddle_point(model)
    each = [
        _lost(whole, at_saddle_point(without_paths(model, paths)), model)
        for paths in watched([*units.paths], "networks without a head")
    ]
    return _collected(units, each)


def _lost(whole: Fit, rest: Fit, model: Model, error: float = np.nan, rhat: float = np.nan) -> dict[str, float]:
    """Losses between two networks by name, with the error of the log evidence and R-hat."""
    found = {"evidence": whole.log_evidence - rest.log_evidence, "evidence_error": error, "rhat": rhat}
    of_examples = {
        "accuracy": whole.accuracy(model) - rest.accuracy(model),
        "log_score": whole.log_score(model) - rest.log_score(model),
    }
    for name, lost in of_examples.items():
        found[name], found[f"{name}_error"] = mean_and_error(lost)
    if not np.isnan(found["accuracy"]):
        lost = of_examples["accuracy"]
        found["accuracy_error"] = paired_error(float(lost @ lost), float(lost.sum()), lost.size)
    return found


def _collected(units: Units, each: list[dict[str, float]]) -> Losses:
    arrays: Any = {name: np.array([loss[name] for loss in each]) for name in each[0]}
    return Losses(names=units.names, levels=units.levels, **arrays)


@jax.jit
def _log_densities(order_parameters: Array, scale: Array, process: GaussianProcess) -> Float[Array, " draw"]:
    """log p(Y | D U D) of each U."""
    return jax.lax.map(lambda each: process.log_density_of(scale[:, None] * each * scale), order_parameters)


def _thinned(drawn: Float[np.ndarray, "chain draw row row"]) -> Float[np.ndarray, "chain draw row row"]:
    """At most `MOST` draws of all chains together."""
    chains, count = drawn.shape[:2]
    return drawn[:, np.linspace(0, count - 1, max(1, min(count, MOST // chains))).astype(int)]


@dataclass(frozen=True, eq=False)
class _Ladder:
    """Networks between the whole network and the one without a head, with draws of each.

    Args:
        model: the whole network.
        drawn: draws of its U, shape (chain, draw, row, row).
        job: sampler, chains, warmup and draws of each job.
        seed: seed of the jobs.
        progress: function that is called with a line of text before each job.
    """

    model: Model
    drawn: Float[np.ndarray, "chain draw row row"]
    job: dict[str, Any]
    seed: int
    progress: Callable[[str], None] | None

    @cached_property
    def process(self) -> GaussianProcess:
        return compressed(self.model.gaussian_process, self.model.architecture, least_labels=0)

    @cached_property
    def whole(self) -> Fit:
        return Fit(0.0, *predictions(self.model, self.drawn.reshape(-1, *self.drawn.shape[2:])))

    def losses(self, name: str, rows: Bool[np.ndarray, " row"]) -> dict[str, float]:
        """Losses without the given rows of U."""
        scale, drawn, worst = 1.0, self.drawn, 0.0
        steps: list[Bridge] = []
        while scale > 0:
            colder = self._next(drawn, scale, rows)
            after = self._sampled(name, colder, rows)
            forward = self._differences(drawn, scale, colder, rows)
            backward = self._differences(after, colder, scale, rows)
            steps.append(bridge(forward, backward))
            worst = float(np.max([worst, rhat(forward), rhat(backward)]))  # NaN of one chain, which tells nothing.
            scale, drawn = colder, after
        total, error = chained(steps)
        kept = np.where(rows, 0.0, 1.0)
        masked = (kept[:, None] * drawn * kept).reshape(-1, *drawn.shape[2:])
        rest = Fit(total, *predictions(self.model, masked))
        return _lost(self.whole, rest, self.model, error, worst)

    def _differences(
        self, drawn: np.ndarray, at: float, to: float, rows: np.ndarray
    ) -> Float[np.ndarray, "chain draw"]:
        """log p(Y | U, to) - log p(Y | U, at) of each draw."""
        flat = jnp.asarray(drawn.reshape(-1, *drawn.shape[2:]))
        there, here = (
            np.asarray(_log_densities(flat, jnp.asarray(np.where(rows, scale, 1.0)), self.process))
            for scale in (to, at)
        )
        return (there - here).reshape(drawn.shape[:2])

    def _next(self, drawn: np.ndarray, scale: float, rows: np.ndarray) -> float:
        """Smallest t whose log density, minus that at the current t, spreads by at most `LARGEST_SPREAD`."""
        step = max(1, drawn.shape[0] * drawn.shape[1] // FEW)
        few = drawn.reshape(-1, *drawn.shape[2:])[::step][None]
        low, high = 0.0, scale
        if np.std(self._differences(few, scale, 0.0, rows)) <= LARGEST_SPREAD:
            return 0.0
        for _ in range(SEARCHED_SCALES):
            middle = (low + high) / 2
            if np.std(self._differences(few, scale, middle, rows)) <= LARGEST_SPREAD:
                high = middle
            else:
                low = middle
        if high == scale:
            raise BayesattnError(f"draws must be of the model, got some whose log density jumps near scale {scale:.3g}")
        return high

    def _sampled(self, name: str, scale: float, rows: np.ndarray) -> Float[np.ndarray, "chain draw row row"]:
        """Draws of U for the network whose path inputs of the head are multiplied by `scale`."""
        if self.progress is not None:
            self.progress(f"{name}, path inputs times {scale:.2g}")
        of_paths = rows.reshape(self.model.architecture.paths, -1)[:, 0]
        changed = with_scaled_paths(self.model, np.where(of_paths, scale, 1.0))
        seed = int(jax.random.randint(stream(self.seed, "losses", name, repr(scale)), (), 0, 2**31 - 1))
        tree = sample(changed, keep=("order_parameter",), seed=seed, progress=False, **self.job)  # pyright: ignore[reportArgumentType]
        return _thinned(order_parameters_in(tree, changed))
