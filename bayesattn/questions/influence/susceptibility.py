"""Susceptibility of heads: how scores, and what is lost without a head, respond to data of which a group weighs more."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, seed_number
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import Described, with_error
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.errors import BayesattnError
from bayesattn.models.conditional import conditional_of
from bayesattn.models.draws import Draws, order_parameters_in
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.over_draws import error_of_mean
from bayesattn.questions.heads.fit import without_paths
from bayesattn.questions.heads.losses import gaussian_model
from bayesattn.questions.heads.units import Units, exchangeability_note, units_of
from bayesattn.questions.influence.covariances import Estimate, Posterior, deviations, estimate_of
from bayesattn.questions.influence.influence import posterior_of
from bayesattn.samplers import sample

if TYPE_CHECKING:
    import pandas as pd

ENDS = (0.03, 0.97)
"""Ends of central intervals of probability 0.94."""
RESAMPLED = 1000


class Mode(NamedTuple):
    """One singular value of the response, its vectors, and the ends of their intervals, on a first axis of (low, high).

    Args:
        value: singular value.
        heads: weight of each head.
        groups: weight of each group.
        value_interval: ends of the value's interval.
        heads_interval: ends of the heads' intervals.
        groups_interval: ends of the groups' intervals.
    """

    value: float
    heads: Float[np.ndarray, " head"]
    groups: Float[np.ndarray, " group"]
    value_interval: Float[np.ndarray, " end"]
    heads_interval: Float[np.ndarray, "end head"]
    groups_interval: Float[np.ndarray, "end group"]


@dataclass(frozen=True, eq=False, repr=False)
class Susceptibility(Described):
    """Response of each head to each group of examples.

    Args:
        heads: names of the heads, as (layer, name); or of paths or groups of heads.
        groups: names of the groups of examples.
        scores: derivative of the posterior mean of each head's score by the weight of a group, shape (head, group).
        error: its Monte Carlo standard error.
    """

    heads: list[Any]
    groups: list[str]
    scores: Float[np.ndarray, "head group"]
    error: Float[np.ndarray, "head group"]
    _batches: Float[np.ndarray, "batch head group"]
    _posterior: Posterior
    _model: NetworkPosterior
    _units: Units
    _seed: int

    @cached_property
    def modes(self) -> list[Mode]:
        """Singular values of the response, largest first, with vectors; intervals by resampling batches of draws."""
        left, values, right = np.linalg.svd(self.scores, full_matrices=False)
        # The sign of a pair of vectors is free: the largest weight of a head is positive.
        signs = np.sign(left[np.abs(left).argmax(0), np.arange(len(values))])
        left, right = left * signs, right * signs[:, None]
        rng = np.random.default_rng(self._seed)
        chosen = rng.integers(len(self._batches), size=(RESAMPLED, len(self._batches)))
        lefts, others, rights = np.linalg.svd(
            np.stack([self._batches[each].mean(0) for each in chosen]), full_matrices=False
        )
        turned = np.sign(np.einsum("hk,rhk->rk", left, lefts) + np.einsum("kg,rkg->rk", right, rights))
        lefts, rights = lefts * turned[:, None], rights * turned[..., None]
        known = 1.0 if len(self._batches) >= FEWEST_DRAWS else np.nan  # As the errors of the scores.
        ends = [known * np.quantile(each, ENDS, axis=0) for each in (others, lefts, rights)]
        return [
            Mode(float(values[k]), left[:, k], right[k], ends[0][:, k], ends[1][:, :, k], ends[2][:, k])
            for k in range(len(values))
        ]

    @cached_property
    def evidence(self) -> Estimate:
        """Response of the log evidence lost without each head, in nats, shape (head, group), and its error.

        The log evidence of a network changes by E[log p(Y_i | w)] with the weight of example i, so the response is the
        difference of these means with and without the head. The networks without a head are sampled on first access.
        """
        whole, each = self._means(self._posterior), []
        for name, paths in zip(watched(self._units.names, "networks without a head"), self._units.paths, strict=True):
            rest = without_paths(gaussian_model(self._model), paths)
            count = len(self._posterior.draws["order_parameter"]) // self._posterior.chains
            number = int(jax.random.randint(stream(self._seed, "susceptibility", str(name)), (), 0, 2**31 - 1))
            chains = self._posterior.chains
            tree = sample(rest, chains=chains, draws=count, keep=("order_parameter",), seed=number, progress=False)
            drawn = order_parameters_in(tree, rest)
            draws = {"order_parameter": drawn.reshape(-1, *drawn.shape[2:])}
            without = self._means(self._posterior._replace(conditional=conditional_of(rest), draws=draws))
            each.append((whole.value - without.value, np.hypot(whole.error, without.error)))
        return Estimate(*map(np.stack, zip(*each, strict=True)))

    def _means(self, posterior: Posterior) -> Estimate:
        """Mean log likelihood of each group, and its error."""
        of_groups = posterior.given().log_likelihoods @ np.asarray(posterior.members).T
        drawn = of_groups.reshape(posterior.chains, -1, of_groups.shape[1])
        constant = np.ptp(drawn, axis=(0, 1)) == 0  # Without any head.
        return Estimate(drawn.mean((0, 1)), np.where(constant, 0.0, error_of_mean(drawn)))

    def summary(self) -> "pd.DataFrame":
        """One row for each head and group: response of the score and its error; of the evidence once it was computed."""
        import pandas as pd

        heads = [f"{name[0]}: {name[1]}" if isinstance(name, tuple) else str(name) for name in self.heads]
        index = pd.MultiIndex.from_product([heads, self.groups], names=["head", "group"])
        columns = {"score": self.scores, "score_error": self.error}
        if "evidence" in vars(self):
            columns |= {"evidence": self.evidence.value, "evidence_error": self.evidence.error}
        return pd.DataFrame({name: values.ravel() for name, values in columns.items()}, index=index)

    def _described(self) -> tuple[str, dict[str, str]]:
        head, group = np.unravel_index(np.argmax(np.abs(self.scores)), self.scores.shape)
        strongest = with_error(float(self.scores[head, group]), float(self.error[head, group]))
        return f"Susceptibility of {len(self.heads)} heads to {len(self.groups)} groups", {
            "strongest": f"score of {self.heads[head]} to {self.groups[group]}, {strongest}",
            "singular values": ", ".join(f"{mode.value:.3g}" for mode in self.modes),
        } | ({"note": note} if (note := exchangeability_note(self._model, self._units)) else {})


@with_own_settings
def susceptibility(
    draws: Draws,
    groups: Checked,
    *,
    of: Checked = "heads",
    thin: int | None = None,
    model: NetworkPosterior | None = None,
    seed: int = 0,
) -> Susceptibility:
    """Response of each head's score to each group of training examples, with singular vectors of the response.

    The derivative of a mean score by the weight of a group in the log likelihood is the covariance of the score with the
    group's log likelihood (Baker et al. 2025, for the loss; THEORY section 10).

    Args:
        draws: as for `bayesattn.influence`.
        groups: as for `bayesattn.influence`.
        of: heads, paths or groups of heads, as for `bayesattn.heads`.
        thin: as for `bayesattn.influence`.
        model: model of the draws, if they do not record it.
        seed: seed of resampling, and of networks without a head.

    Raises:
        ValueError: as for `bayesattn.influence` and `bayesattn.heads`.
    """
    seed_number("seed", seed)
    if groups is None:
        raise BayesattnError("groups must be a class for each example, or lists of examples by name, got None")
    model, posterior, names = posterior_of(draws, model, groups=groups, thin=thin)
    units, given = units_of(model, of), posterior.given()
    scores = units.scores(posterior.draws["order_parameter"], model.architecture)
    batches, values, own = deviations(posterior, given, {"scores": scores})
    each = np.stack([values["scores"][batch].T @ own[batch] / len(batch) for batch in batches])
    response = estimate_of(each.sum(0), (each**2).sum(0), len(each))
    return Susceptibility(units.names, names or [], *response, each, posterior, model, units, seed)
