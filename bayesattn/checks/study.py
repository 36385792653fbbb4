"""Whole studies, each one call with one result: what `bayesattn validate`, `prune` and `calibrate` do and print.

`validate`: does the theory hold of a network, at several widths? `prune`: which of its heads can go? `calibrate`: do
samplers draw from its posterior? Each result has a figure, and plain values for JSON.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bayesattn import plots
from bayesattn._util.checks import one_of, positive, positive_integer, shown
from bayesattn._util.files import finite
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, rounded, with_error
from bayesattn.checks import calibration, pruning, validation
from bayesattn.checks.accuracy import Accuracy, accuracy_on
from bayesattn.checks.calibration import Calibration, JointTest
from bayesattn.checks.diagnostics import watched_examples
from bayesattn.checks.pruning import Comparison
from bayesattn.checks.temperature import Candidate, by_evidence, candidates
from bayesattn.checks.validation import LEVEL, MARGIN, Slope, Validation, overall, scaling
from bayesattn.checks.verdict import CANNOT_TELL, DOES_NOT_HOLD, HOLDS
from bayesattn.models import PARAMETERISATIONS, Model
from bayesattn.samplers import BIASED, SAMPLERS, WITH_REPLICAS, Job, Progress, sample
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.problem import refuse_many

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SHOWN = 4
"""Widths, or trained networks, whose results a study shows."""
NEXT_ORDER, SLOPE_ERRORS = -2, 3.0
"""Exponent in the width of what the theory to first order leaves out, and errors by which a slope may miss it."""
Curve = dict[int, list[Candidate]]
"""By width, what theory says at each of some temperatures."""


@dataclass(frozen=True, repr=False)
class ValidationStudy(Described):
    """Theory against draws at several widths.

    Args:
        validations: draws against theory, at each width.
        curve: theory alone by width, at the temperatures tried; empty if it was not asked for.
        elsewhere: by name, accuracy on further test examples at each width.
        theory_seconds: wall time of the curve.
    """

    validations: list[Validation]
    curve: Curve
    elsewhere: dict[str, list[Accuracy]]
    theory_seconds: float

    def _described(self) -> tuple[str, dict[str, str]]:
        results = self.validations
        rows = {f"N = {result.width}": result.statement() for result in results[:MOST_SHOWN]}
        if len(results) > MOST_SHOWN:
            rows["widths"] = ", ".join(f"N = {result.width}: {result.verdict}" for result in results[MOST_SHOWN:])
        if remainder := self.remainder():
            rows["remainder"] = remainder
        return f"ValidationStudy of {results[0].model.name!r}: {self.verdict}", rows

    @property
    def verdict(self) -> str:
        """Of all widths together, at the level of `bayesattn.checks.validation.LEVEL`."""
        return overall(self.validations)

    @property
    def bound(self) -> float | None:
        """Largest difference, relative to U and to the predictor, that is not excluded; None if chains did not mix."""
        usable = all(result.usable for result in self.validations)
        return max(result.bound for result in self.validations) if usable else None

    @property
    def scaling(self) -> dict[str, Slope | None]:
        """Fits of the draws' deviation from saddle point and theory to first order against width; None where not seen."""
        return {of: scaling(self.validations, of) for of in ("relative_deviation", "relative_remaining")}

    def remainder(self) -> str | None:
        """Whether what the theory to first order in 1/N misses falls as the next order would; None where not seen.

        The next order falls as N^-2 at a fixed load P / N, and faster where the examples stay the same.
        """
        if (fit := self.scaling["relative_remaining"]) is None:
            return None
        said = f"what the theory to first order in 1/N misses falls as N^({with_error(fit.slope, fit.error)})"
        if fit.slope - NEXT_ORDER <= SLOPE_ERRORS * fit.error:
            return f"{said}, as the next order does, N^({NEXT_ORDER}) or faster"
        return f"{said}, slower than the next order, N^({NEXT_ORDER}): the theory is wrong, or the widths are too small"

    def figure(self) -> "Figure":
        """Theory and draws against width."""
        return plots.validation_figure(self.validations, self.curve)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a number that is not finite is None."""
        return finite(self._to_dict())

    def _to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "holds": self.verdict == HOLDS,
            "bound": self.bound,
            "margin": self.validations[0].margin,
            "level": LEVEL,
            "scaling": {of: slope and slope._asdict() for of, slope in self.scaling.items()},
            "theory": [
                {"width": width, "temperatures": [candidate._asdict() for candidate in tried]}
                for width, tried in self.curve.items()
            ],
            "theory_seconds": round(self.theory_seconds, 1),
            "also_on": [
                {name: accuracies[place].to_dict() for name, accuracies in self.elsewhere.items()}
                for place in range(len(self.validations))
            ],
            "results": [result.to_dict() for result in self.validations],
        }


@with_own_settings
def validate(
    model: Model,
    widths: Sequence[int],
    *,
    choose_temperature: bool = False,
    theory_widths: Sequence[int] = (),
    also_on: Mapping[str, Model] | None = None,
    margin: float = MARGIN,
    solving: Callable[[int], Any] | None = None,
    sampling: Callable[[int], Callable[[Progress], None]] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **settings: Any,
) -> ValidationStudy:
    """Draw the posterior of a network at several widths and compare each with the theory.

    Args:
        model: whose own width does not matter.
        widths: of all layers, at which it is drawn.
        choose_temperature: take at each width the temperature of greatest evidence instead of the model's.
        theory_widths: further widths at which the theory alone is solved.
        also_on: by name, models whose test examples accuracy is asked for too.
        margin: difference, relative to U and to the predictor, within which the theory is to hold.
        solving: called with a width before its theory is solved: of the curve, and of the width that was drawn.
        sampling: called with a width before it is drawn, gives what is called after each block of draws.
        progress: as in `bayesattn.sample`, where `sampling` is not given: False shows nothing.
        settings: those of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no widths, one twice, examples elsewhere that do not fit, settings that make no sense, labels that are
            classes.
        NotConverged: a solver failed.
    """
    # All that can be known to be wrong is found before any theory is solved.
    widths, theory_widths = _widths("widths", widths), _widths("theory_widths", theory_widths)
    if not widths:
        raise ValueError("widths must hold at least one width, got none")
    if len({*widths}) < len(widths):
        raise ValueError(f"widths must differ, got {', '.join(map(str, widths))}")
    _model("model", model).require_gaussian()
    cases = [model.replace(width=width) for width in widths]
    _require_examples("also_on", also_on, model)
    positive("margin", margin)
    refuse_many("an expansion to first order in 1/N", layer_shapes(cases[0].architecture, full=True))
    job = _job(settings)
    start, curve = time.perf_counter(), {}
    if choose_temperature or len(theory_widths):
        given: dict[str, Any] = {} if choose_temperature else {"temperatures": [model.temperature]}
        for width in sorted({*widths, *theory_widths}):
            if solving is not None:
                solving(width)
            curve[width] = candidates(model.replace(width=width), **given, seed=job.seed)
    if choose_temperature:
        chosen = {width: by_evidence(curve[width]).temperature for width in widths}
        cases = [case.replace(temperature=chosen[width]) for case, width in zip(cases, widths, strict=True)]
    theory_seconds = time.perf_counter() - start
    validations, elsewhere = [], {name: [] for name in also_on or {}}
    for case, width in zip(cases, widths, strict=True):
        draws = sample(_watched(case), progress=sampling(width) if sampling else progress, **settings)
        if solving is not None:
            solving(width)
        # A level for all widths together.
        validations.append(validation.validate(case, draws, margin=margin, level=LEVEL / len(cases)))
        same = {"architecture": case.architecture, "temperature": case.temperature}
        for name, other in (also_on or {}).items():
            elsewhere[name].append(accuracy_on(other.replace(**same), validations[-1]))
    return ValidationStudy(validations, curve, elsewhere, theory_seconds)


@dataclass(frozen=True, repr=False)
class PruningStudy(Described):
    """Heads removed from networks trained from several seeds, and from the posteriors of their values.

    Args:
        comparisons: of each seed.
    """

    comparisons: list[Comparison]

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {
            network: "; ".join(
                f"accuracy {100 * of.networks[network].accuracy:.3g} %,"
                f" rank correlation {rounded(of.correlation(network, 'theory'), 0.1)}"
                for of in self.comparisons[:MOST_SHOWN]
            )
            for network in self.comparisons[0].networks
        }
        return f"PruningStudy of {len(self.comparisons)} x {self.comparisons[0].model.name!r}", rows

    def figure(self) -> "Figure":
        """Head scores against what is lost with each head, and accuracy as heads go."""
        return plots.pruning_figure(self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a number that is not finite is None."""
        return finite({"results": [comparison.to_dict() for comparison in self.comparisons]})


@with_own_settings
def prune(
    models: Iterable[tuple[Model, Mapping[str, Any] | None]],
    *,
    choose_temperature: bool = False,
    choosing: Callable[[int], Any] | None = None,
    sampling: Callable[[int], Callable[[Progress], None]] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **settings: Any,
) -> PruningStudy:
    """Score the heads of networks by theory and by draws, and remove them in that order and in others.

    Args:
        models: a model and all weights of its trained network, or None, for each seed; made one after the other.
        choose_temperature: take the temperature of greatest evidence instead of the model's, where there are validation
            examples.
        choosing: called with the number of a model, from 0, before its temperature is chosen.
        sampling: called with it before the model is drawn, gives what is called after each block of draws.
        progress: as in `bayesattn.sample`, where `sampling` is not given: False shows nothing.
        settings: those of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no models, one without test examples, of several outputs, with skips or of classes, weights that do not
            fit, settings that make no sense.
        NotConverged: a solver failed.
    """
    job, comparisons, first = _job(settings), [], None
    for number, (model, weights) in enumerate(_pairs(models)):
        first = (model, weights) if first is None else first
        if model.architecture.heads != first[0].architecture.heads or (weights is None) != (first[1] is None):
            raise ValueError(
                f"models[{number}] must have the heads of the first one, and weights of a trained network if that has some"
            )
        # What does not fit is found before any draw.
        pruning.require_prunable(model)
        if weights is not None:
            features = pruning.trained_readout(weights, model.architecture).shape[1]
            if features != model.path_inputs.shape[2]:
                raise ValueError(
                    f"V_0 must have as many features as path_inputs, {model.path_inputs.shape[2]}, got {features}"
                )
        if choose_temperature and model.validation_labels is not None:
            if choosing is not None:
                choosing(number)
            model = model.replace(temperature=by_evidence(candidates(model, seed=job.seed)).temperature)
        draws = sample(_watched(model), progress=sampling(number) if sampling else progress, **settings)
        drawn = draws["posterior"]["order_parameter"].values
        comparisons.append(pruning.compare(model, drawn, weights, job.seed))
    if not comparisons:
        raise ValueError("models must hold at least one model, got none")
    return PruningStudy(comparisons)


@dataclass(frozen=True, repr=False)
class CalibrationStudy(Described):
    """Whether samplers draw from posteriors.

    Args:
        simulations: by name of the network, data sets simulated.
        results: by name of the network and of the sampler, ranks and joint test.
    """

    simulations: dict[str, int]
    results: dict[str, dict[str, tuple[Calibration, JointTest]]]

    def _described(self) -> tuple[str, dict[str, str]]:
        said = {True: HOLDS, False: DOES_NOT_HOLD, None: CANNOT_TELL}
        rows = {
            title: f"{self.simulations[title]} simulations; "
            + ", ".join(
                f"{name}: ranks {calibration.VERDICTS[ranked.holds]}, joint law {said[joint.holds]}"
                for name, (ranked, joint) in of.items()
            )
            for title, of in self.results.items()
        }
        return f"CalibrationStudy: {said[self.holds]}", rows

    @property
    def holds(self) -> bool | None:
        """Whether all do, at the level of `bayesattn.checks.calibration.LEVEL` together; None if that cannot be told."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: by name of the network."""
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
    testing: Callable[[str, str], Any] | None = None,
    **settings: Any,
) -> CalibrationStudy:
    """Simulation-based calibration and a joint test of each sampler on each network.

    Args:
        networks: by name, a model, whose labels do not matter, and the number of data sets to simulate.
        samplers: names of `bayesattn.samplers.SAMPLERS`, but for those with replicas, which no joint test serves.
        draws: that a simulated value is ranked among.
        thin: transitions between these draws.
        chains: of the joint test.
        seed: of everything.
        progress: told the names of network and sampler, and the simulations done.
        testing: told these names before the joint test, which follows.
        settings: warmup, parameterisation, options and keep of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no network or sampler, one sampler twice, too few simulations, draws or chains for a test that can fail,
            settings that make no sense.
    """
    _require_networks(networks)
    if isinstance(samplers, str) or not isinstance(samplers, Sequence) or not samplers:
        raise ValueError(f"samplers must be a list of at least one sampler, got {shown(samplers)}")
    if len({*map(repr, samplers)}) < len(samplers):
        raise ValueError(f"samplers must differ, got {shown(list(samplers))}")
    for name in settings:
        one_of("setting of a calibration", name, ("warmup", "parameterisation", "options", "keep"))
    positive_integer("thin", thin)
    draws = positive_integer("draws", draws, calibration.FEWEST_DRAWS)
    positive_integer("chains", chains, calibration.FEWEST_CHAINS)
    for name in samplers:
        one_of("samplers", name, [each for each in SAMPLERS if each not in WITH_REPLICAS])
        job = _job(settings | {"sampler": name, "draws": draws * thin, "thin": thin, "seed": seed})
        serving = [name for name, kind in PARAMETERISATIONS.items() if kind.simulates]
        one_of("parameterisation", job.parameterisation, serving)
    # Ranks and joint test of each sampler on each network.
    settings |= {"seed": seed, "level": calibration.LEVEL / (2 * len(samplers) * len(networks))}
    results: dict[str, dict[str, tuple[Calibration, JointTest]]] = {title: {} for title in networks}
    for title, (model, count) in networks.items():
        simulated = calibration.simulate(model, count, seed)
        for name in samplers:
            tell = progress and partial(progress, title, name)
            ranked = calibration.calibrate(
                model, simulated, sampler=name, draws=draws, thin=thin, progress=tell, **settings
            )
            if testing is not None:
                testing(title, name)
            results[title][name] = ranked, calibration.joint_test(model, sampler=name, chains=chains, **settings)
    return CalibrationStudy({title: count for title, (_, count) in networks.items()}, results)


def _model(name: str, value: Any) -> Model:
    if not isinstance(value, Model):
        raise ValueError(f"{name} must be a bayesattn.Model, got {shown(value)}")
    return value


def _watched(model: Model) -> Model:
    """The same posterior, with no test examples but those whose predictions diagnostics look at.

    All that is compared comes from draws of U.
    """
    if model.test_path_inputs is None:
        return model
    chosen = watched_examples(len(model.test_path_inputs))
    return model.replace(test_path_inputs=model.test_path_inputs[chosen], test_labels=None)


def _widths(name: str, values: Any) -> list[int]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of widths, got {shown(values)}")
    return [positive_integer(f"{name}[{place}]", width) for place, width in enumerate(values)]


def _job(settings: Mapping[str, Any]) -> Job:
    """Settings of the sampler, which must keep what is compared."""
    job = Job.of(**settings)
    if "order_parameter" not in job.keep:
        raise ValueError(f"keep must hold 'order_parameter', which theory speaks of, got {', '.join(job.keep)}")
    return job


def _require_examples(name: str, models: Any, model: Model) -> None:
    """Raise ValueError unless they are models, by name, whose test examples the network can be asked about."""
    if models is not None and not isinstance(models, Mapping):
        raise ValueError(f"{name} must be models by name, got {shown(models)}")
    for title, other in (models or {}).items():
        _model(f"{name}[{title!r}]", other)
        if other.test_labels is None:
            raise ValueError(f"{name}[{title!r}] must have test examples with labels, got a model without")
        if (got := other.path_inputs.shape[1:]) != (wanted := model.path_inputs.shape[1:]):
            raise ValueError(f"{name}[{title!r}] must have path_inputs of {wanted} paths and features, got {got}")


def _pairs(models: Any) -> Iterator[tuple[Model, Any]]:
    """Each model with its weights, as they are asked for."""
    wanted = "models must be pairs of a model and the weights of its trained network, or None"
    if isinstance(models, str | Model) or not isinstance(models, Iterable):
        raise ValueError(f"{wanted}, got {shown(models)}")
    for number, pair in enumerate(models):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{wanted}, got {shown(pair)}")
        yield _model(f"models[{number}][0]", pair[0]), pair[1]


def _require_networks(networks: Any) -> None:
    """Raise ValueError unless they are models and numbers of simulations by name."""
    wanted = "networks must be, by name, a model and a number of simulations"
    if not isinstance(networks, Mapping) or not networks:
        raise ValueError(f"{wanted}, got {shown(networks)}")
    for title, pair in networks.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{wanted}, got {shown(pair)} for {title!r}")
        _model(f"networks[{title!r}][0]", pair[0])
        positive_integer(f"networks[{title!r}][1]", pair[1], calibration.FEWEST_SIMULATIONS)


def _plain(name: str, ranked: Calibration, joint: JointTest) -> dict[str, Any]:
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
