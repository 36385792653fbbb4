"""Calibration of samplers on networks, behind `bayesattn calibrate`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bayesattn._util.checks import Checked, one_of, positive_integer, shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.checks.verdict import CANNOT_TELL, DOES_NOT_HOLD, HOLDS
from bayesattn.jobs import plots
from bayesattn.jobs.study.arguments import checked_job, checked_network
from bayesattn.models import Model
from bayesattn.models.registry import names_where
from bayesattn.questions import calibration
from bayesattn.questions.calibration import Calibration, JointTest
from bayesattn.samplers import BIASED, SAMPLERS, WITH_REPLICAS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class CalibrationStudy(Described):
    """Calibration of samplers on networks.

    Args:
        simulations: number of simulated data sets, by name of the network.
        results: ranks and joint test, by name of the network and of the sampler.
    """

    simulations: dict[str, int]
    results: dict[str, dict[str, tuple[Calibration, JointTest]]]

    def _described(self) -> tuple[str, dict[str, str]]:
        verdicts = {True: HOLDS, False: DOES_NOT_HOLD, None: CANNOT_TELL}
        rows = {
            title: f"{self.simulations[title]} simulations; "
            + ", ".join(
                f"{name}: ranks {calibration.VERDICTS[ranked.holds]}, joint law {verdicts[joint.holds]}"
                for name, (ranked, joint) in of.items()
            )
            for title, of in self.results.items()
        }
        return f"CalibrationStudy: {verdicts[self.holds]}", rows

    @property
    def holds(self) -> bool | None:
        """Whether all tests hold, at the level `bayesattn.questions.calibration.LEVEL` together; None if undecided."""
        verdicts = [test.holds for of in self.results.values() for pair in of.values() for test in pair]
        return False if False in verdicts else None if None in verdicts else True

    def figure(self) -> "Figure":
        """ECDF of each quantity's ranks, a panel for each sampler and network."""
        first = next(iter(self.results))
        return plots.calibration_figure(
            {
                name if title == first else f"{name}, {title}": ranked
                for title, of in self.results.items()
                for name, (ranked, _) in of.items()
            }
        )

    def to_dict(self) -> PlainDict:
        """Plain values by name of the network, for JSON."""
        return {
            title: {
                "simulations": self.simulations[title],
                "samplers": {name: _plain(name, *pair) for name, pair in of.items()},
            }
            for title, of in self.results.items()
        }


@with_own_settings
def calibrate(
    networks: Mapping[str, tuple[Model, int]],
    samplers: Sequence[str] = ("nuts",),
    *,
    draws: int = 63,
    thin: int = 5,
    chains: int = 1000,
    seed: int = 0,
    progress: Callable[[str, str, int], None] | None = None,
    testing: Callable[[str, str], object] | None = None,
    **settings: Any,
) -> CalibrationStudy:
    """Simulation-based calibration and a joint test of each sampler on each network.

    Args:
        networks: pairs by name: a model, whose labels are not used, and the number of data sets to simulate.
        samplers: names in `bayesattn.samplers.SAMPLERS`, except samplers with replicas, for which there is no joint test.
        draws: number of draws among which a simulated value is ranked.
        thin: transitions between these draws.
        chains: number of chains of the joint test.
        seed: seed of all random numbers.
        progress: function called with the names of network and sampler, and the number of simulations done.
        testing: function called with these names before the joint test, which follows the simulations.
        settings: warmup, parameterisation, options and keep of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no network or sampler, one sampler twice, too few simulations, draws or chains for a test that can fail,
            invalid settings.
    """
    _require_networks(networks)
    if isinstance(samplers, str) or not isinstance(samplers, Sequence) or not samplers:
        raise BayesattnError(f"samplers must be a list of at least one sampler, got {shown(samplers)}")
    if len({*map(repr, samplers)}) < len(samplers):
        raise BayesattnError(f"samplers must differ, got {shown(list(samplers))}")
    for name in settings:
        one_of("setting of a calibration", name, ("warmup", "parameterisation", "options", "keep"))
    positive_integer("thin", thin)
    draws = positive_integer("draws", draws, calibration.FEWEST_DRAWS)
    positive_integer("chains", chains, calibration.FEWEST_CHAINS)
    for name in samplers:
        one_of("samplers", name, [each for each in SAMPLERS if each not in WITH_REPLICAS])
        job = checked_job(settings | {"sampler": name, "draws": draws * thin, "thin": thin, "seed": seed})
        one_of("parameterisation", job.parameterisation, names_where("simulates"))
    # The level is shared by two tests, ranks and joint test, of each sampler on each network.
    settings |= {"seed": seed, "level": calibration.LEVEL / (2 * len(samplers) * len(networks))}
    results: dict[str, dict[str, tuple[Calibration, JointTest]]] = {title: {} for title in networks}
    for title, (model, count) in networks.items():
        simulated = calibration.simulate(model, count, seed)
        for name in samplers:
            report = progress and partial(progress, title, name)
            ranked = calibration.calibrate(
                model, simulated, sampler=name, draws=draws, thin=thin, progress=report, **settings
            )
            if testing is not None:
                testing(title, name)
            results[title][name] = ranked, calibration.joint_test(model, sampler=name, chains=chains, **settings)
    return CalibrationStudy({title: count for title, (_, count) in networks.items()}, results)


def _require_networks(networks: Checked) -> None:
    """Raise ValueError unless `networks` maps names to pairs of a model and a number of simulations."""
    wanted = "networks must be, by name, a model and a number of simulations"
    if not isinstance(networks, Mapping) or not networks:
        raise BayesattnError(f"{wanted}, got {shown(networks)}")
    for title, pair in networks.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BayesattnError(f"{wanted}, got {shown(pair)} for {title!r}")
        checked_network(f"networks[{title!r}][0]", pair[0])
        positive_integer(f"networks[{title!r}][1]", pair[1], calibration.FEWEST_SIMULATIONS)


def _plain(name: str, ranked: Calibration, joint: JointTest) -> PlainDict:
    return {
        "biased": name in BIASED,
        "calibrated": ranked.holds,
        "p_values": dict(zip(ranked.names, ranked.p_values.tolist(), strict=True)),
        "p_threshold": ranked.threshold,
        "effective_share": dict(zip(ranked.names, ranked.effective.tolist(), strict=True)),
        "step_size_bias": ranked.bias,
        "joint_law_preserved": joint.holds,
        "z_scores": dict(zip(joint.names, joint.z_scores.tolist(), strict=True)),
        "z_threshold": joint.threshold,
    }
