"""Draws by parallel tempering: round trips of the replicas, barriers between powers, and the evidence.

`samplers.tempered` counts the trips, and `samplers.stopping` says how many there must be.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from bayesattn._util.checks import positive_integer
from bayesattn._util.text import Described, with_error
from bayesattn.errors import BayesattnError
from bayesattn.models.arviz import dataset
from bayesattn.models.draws import Draws, opened
from bayesattn.models.interface import TEMPERED_FIELDS
from bayesattn.models.stored_model import described_in
from bayesattn.samplers.stopping import doubts_about_trips
from bayesattn.samplers.tempered import Tempered, collected
from bayesattn.theory.particles import LARGEST_RELIABLE_ERROR

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpyro.infer import MCMC

TRIPS_PER_BATCH, MOST_BATCHES = 3, 30
"""Round trips in each batch of a chain, and the most batches; the error of log p(Y) is from their scatter.

Of 24 chains of 31 to 47 round trips (two skips, 12 replicas) log p(Y) has a standard deviation of 0.157, and batches of 2 to
12 trips say 0.133 to 0.147.
"""
TRIPS_SHOWN, MOST_TICKS = 5, 8
"""Round trips of a replica that the figure has room for, and powers that it names."""


@dataclass(frozen=True, eq=False, repr=False)
class Tempering(Described):
    """How replicas moved between posterior and prior, and the evidence that they give.

    Args:
        powers: powers of the likelihood in each chain, from 1 to 0.
        barriers: probability that an exchange of neighbours was rejected, for each pair of neighbouring powers.
        round_trips: number of ways of a replica from power 1 to power 0 and back, in each chain.
        restarts: number of arrivals at power 1 from power 0, in each chain.
        replica_at: number of the replica at each power, in each draw.
        transitions: number of transitions of each chain that the draws span, more than draws if these were thinned.
        log_evidence: log p(Y), the log of the mean likelihood under the prior.
        error: standard error of `log_evidence`: +- 2 errors is the 95 % interval. NaN for one chain of few round trips.
        reliable: whether each chain made 10 round trips or more, the error is at most 0.3, and the prior is one that can be
            drawn. A mode with a small share of the prior may take many more trips to be found.
        prior_drawn: whether the prior of the program can be drawn; the density of any other may lack a constant.
    """

    powers: Float[np.ndarray, "chain power"]
    barriers: Float[np.ndarray, "chain pair"]
    round_trips: Int[np.ndarray, " chain"]
    restarts: Int[np.ndarray, " chain"]
    replica_at: Int[np.ndarray, "chain draw power"]
    transitions: int
    log_evidence: float
    error: float
    reliable: bool
    prior_drawn: bool = True

    @property
    def barrier(self) -> float:
        """Sum of the rejection probabilities, mean of the chains; replicas should be twice as many (Syed et al. 2022)."""
        return float(self.barriers.sum(1).mean())

    @property
    def most_round_trips(self) -> float:
        """Round trips of a chain if states at a power were independent: n / (2 + 2 sum r / (1 - r)) of n transitions."""
        with np.errstate(divide="ignore"):  # A pair that was never exchanged lets no replica through.
            rates = 1 / (2 + 2 * np.sum(self.barriers / (1 - self.barriers), axis=1))
        return float(self.transitions * rates.mean())

    def warnings(self) -> list[str]:
        """Reasons why the draws do not say how much weight each mode has, one sentence each."""
        return doubts_about_trips(self.round_trips)

    def _described(self) -> tuple[str, dict[str, str]]:
        chains, draws, replicas = self.replica_at.shape
        trips = ", ".join(map(str, self.round_trips))
        rows = {
            "round trips": f"{trips} (at most about {self.most_round_trips:.0f} of each chain)",
            "barrier": f"{self.barrier:.2f}; exchanges rejected with probability {self.barriers.min():.2f} to"
            f" {self.barriers.max():.2f}",
            "log evidence": with_error(self.log_evidence, self.error) + self._why_unreliable(),
        }
        if notes := self.warnings():
            rows["warnings"] = "; ".join(notes)
        return f"Tempering of {chains} chains of {draws} draws at {replicas} powers", rows

    def _why_unreliable(self) -> str:
        if self.reliable:
            return ""
        if self.warnings():
            return ", not reliable, as round trips are few"
        if not self.prior_drawn:
            return ", not reliable, as the prior cannot be drawn, so its density may lack a constant"
        known = np.isfinite(self.error)
        return f", not reliable, as its error is {'above ' + str(LARGEST_RELIABLE_ERROR) if known else 'not known'}"

    def figure(self, chain: int = 0) -> "Figure":
        """Figure: ways of the replicas of a chain through the powers, as long as some round trips; barrier by power."""
        from matplotlib import pyplot as plt
        from matplotlib.ticker import LogLocator

        positive_integer("chain", chain, 0, len(self.powers) - 1)
        draws, replicas = self.replica_at.shape[1:]
        trips = max(1, int(self.round_trips[chain]))
        rungs = np.argsort(self.replica_at[chain], axis=1)[: TRIPS_SHOWN * draws * replicas // trips]
        figure = plt.figure(figsize=(10, 3.4), layout="constrained")
        ways, barrier = figure.subplots(1, 2, width_ratios=(2, 1))
        ways.plot(rungs, color="0.82", lw=0.4)
        ways.plot(rungs[:, 0], color="#0072B2", lw=1.4)
        part = "" if len(rungs) == draws else f"; the first {len(rungs)} draws"
        ways.set(
            title=f"replicas of chain {chain}: {self.round_trips[chain]} round trips in {draws} draws{part}",
            xlabel="draw",
            ylabel="power of the likelihood",
            ylim=(replicas - 0.5, -0.5),
        )
        ticks = np.unique(np.linspace(0, replicas - 1, min(replicas, MOST_TICKS)).astype(int))
        ways.set_yticks(ticks, [f"{power:.2g}" for power in self.powers[chain][ticks]])
        for number, (powers, rejected) in enumerate(zip(self.powers, self.barriers, strict=True)):
            # The lowest pair, which ends at power 0, is shown at half its upper power.
            middle = np.append(np.sqrt(powers[:-2] * powers[1:-1]), powers[-2] / 2)
            barrier.plot(middle, rejected, "o-", ms=3, lw=0.8, label=f"chain {number}")
        barrier.set(
            title=f"barrier {self.barrier:.2f}",
            xlabel="power of the likelihood",
            ylabel="exchanges rejected",
            xscale="log",
            ylim=(0, 1),
        )
        barrier.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=MOST_TICKS))
        barrier.xaxis.set_major_formatter("{x:g}")
        barrier.minorticks_off()
        plt.close(figure)
        return figure


def tempering(draws: "Draws | MCMC") -> Tempering:
    """Round trips, barriers and evidence of draws by parallel tempering.

    The evidence is by stepping stones between neighbouring powers b > c (Xie et al. 2011), here from both sides:
    p_b(Y) / p_c(Y) = E_c[L^((b - c) / 2)] / E_b[L^(-(b - c) / 2)], with L the likelihood. Its error is from the scatter of
    the chains, and from a jackknife over batches of each chain in which there are three round trips on average.

    Args:
        draws: result of `bayesattn.sample` by the sampler "tempered", a `bayesattn.runs.Run` or its folder; or a
            `numpyro.infer.MCMC` of the kernel `bayesattn.samplers.Tempered` that has run.

    Raises ValueError for draws that were not tempered, a chain whose powers change, and an MCMC that has not run.
    """
    found, thin, prior_drawn = _statistics(draws)
    powers, logs = found["powers"][:, -1], found["log_likelihoods"]
    if np.any(found["powers"] != powers[:, None]):
        raise BayesattnError(
            "draws of a chain must be at the same powers, got several ladders: those of warm-up, or of runs that were put"
            " together one after the other; take the draws of one run, or bayesattn.joining.concat, chain after chain"
        )
    steps = powers[:, :-1] - powers[:, 1:]
    barriers = 1 - np.exp(np.minimum(steps[:, None] * np.diff(logs), 0)).mean(1)
    # Counts go on from warm-up, also where the first draws were cut off.
    trips, restarts = (np.ptp(found[name], axis=1).astype(int) for name in ("round_trips", "restarts"))
    value, error = _evidence(steps, logs, batches=int(np.clip(trips.min() // TRIPS_PER_BATCH, 1, MOST_BATCHES)))
    return Tempering(
        powers=powers,
        barriers=barriers,
        round_trips=trips,
        restarts=restarts,
        replica_at=found["replica_at"].astype(int),
        transitions=thin * logs.shape[1],
        log_evidence=value,
        error=error,
        reliable=bool(prior_drawn and not doubts_about_trips(trips) and error <= LARGEST_RELIABLE_ERROR),
        prior_drawn=prior_drawn,
    )


def _statistics(draws: "Draws | MCMC") -> tuple[Mapping[str, Any], int, bool]:
    """Statistics of tempered draws by name, with axes (chain, draw, ..), transitions from draw to draw, `prior_drawn`."""
    prior_drawn = True  # As of all networks.
    if (found := collected(draws)) is not None:
        thin = int(cast("MCMC", draws).thinning)
        if len(found) < len(TEMPERED_FIELDS):
            raise BayesattnError(
                "draws must be by the kernel bayesattn.samplers.Tempered, got an MCMC of"
                f" {type(cast('MCMC', draws).sampler).__name__}"
            )
        prior_drawn = bool(cast("Tempered", cast("MCMC", draws).sampler).draws_prior)
    else:
        tree = opened(cast("Draws", draws))
        statistics = dataset(tree, "sample_stats")
        found = {name: statistics[name].values for name in TEMPERED_FIELDS.values() if name in statistics}
        if len(found) < len(TEMPERED_FIELDS):
            used = tomllib.loads(described_in(tree).get("sampler", "")).get("sampler", "tempered")
            raise BayesattnError(
                "draws must be by the sampler 'tempered' (bayesattn.samplers.Tempered), got"
                f" {'draws that record no replicas' if used == 'tempered' else f'those of {used!r}'}"
            )
        thin = int(np.median(np.diff(statistics["draw"].values))) if statistics.sizes["draw"] > 1 else 1
    return found, thin, prior_drawn


def _evidence(
    steps: Float[np.ndarray, "chain pair"], logs: Float[np.ndarray, "chain draw power"], batches: int
) -> tuple[float, float]:
    """log p(Y) and its standard error; NaN for one chain of one batch."""
    chains, draws = logs.shape[:2]
    halves = steps[:, None] / 2
    # A likelihood of 0 is at power 0 alone, where 0 is its share in the mean.
    below, above = halves * logs[:, :, 1:], -halves * logs[:, :, :-1]

    def of(kept: np.ndarray) -> np.ndarray:
        ratios = special.logsumexp(below[:, kept], axis=1) - special.logsumexp(above[:, kept], axis=1)
        return ratios.sum(1)

    values = of(np.ones(draws, bool))
    scatter = np.std(values, ddof=1) / np.sqrt(chains) if chains > 1 else np.nan
    # +- 2 errors is the 95 % interval, by Student's law.
    errors = [scatter * special.stdtrit(max(chains - 1, 1), 0.975) / 2]
    if batches > 1:
        batch = np.arange(draws) * batches // draws
        left_out = np.array([of(batch != number) for number in range(batches)])
        variances = (batches - 1) * np.var(left_out, axis=0)
        errors.append(np.sqrt(variances.sum()) / chains * special.stdtrit(chains * (batches - 1), 0.975) / 2)
    # The log of a chain's estimate is biased low, the more so the wider it scatters.
    value = special.logsumexp(values) - np.log(chains)
    return float(value), float(np.nan if np.isnan(errors).all() else np.nanmax(errors))
