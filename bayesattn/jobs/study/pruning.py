"""Pruning of the heads of networks, behind `bayesattn prune`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayesattn._util.checks import Checked, shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.files import finite
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, rounded
from bayesattn.jobs import plots
from bayesattn.jobs.study.arguments import MOST_SHOWN_RESULTS, checked_job, checked_model, with_watched_examples
from bayesattn.models import Model
from bayesattn.questions import pruning
from bayesattn.questions.pruning import Comparison
from bayesattn.questions.temperature import by_evidence, candidates
from bayesattn.samplers import Progress, sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class PruningStudy(Described):
    """Heads removed from networks trained from several seeds, and from the posteriors of their values.

    Args:
        comparisons: comparison of scores and losses, for each seed.
    """

    comparisons: list[Comparison]

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {
            network: "; ".join(
                f"accuracy {100 * of.networks[network].accuracy:.3g} %,"
                f" rank correlation {rounded(of.correlation(network, 'theory'), 0.1)}"
                for of in self.comparisons[:MOST_SHOWN_RESULTS]
            )
            for network in self.comparisons[0].networks
        }
        return f"PruningStudy of {len(self.comparisons)} x {self.comparisons[0].model.name!r}", rows

    def figure(self) -> "Figure":
        """Head scores against the accuracy lost without each head, and accuracy as heads are removed."""
        return plots.pruning_figure(self.comparisons)

    def to_dict(self) -> PlainDict:
        """Plain values, for JSON; a number that is not finite is None."""
        return finite({"results": [comparison.to_dict() for comparison in self.comparisons]})


@with_own_settings
def prune(
    models: Iterable[tuple[Model, PlainMapping | None]],
    *,
    choose_temperature: bool = False,
    choosing: Callable[[int], object] | None = None,
    sampling: Callable[[int], Callable[[Progress], None]] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **settings: Any,
) -> PruningStudy:
    """Score the heads of networks by theory and by draws, and remove heads in the order of the scores and in other orders.

    Args:
        models: for each seed a model, and all weights of its trained network or None; an iterator is consumed lazily.
        choose_temperature: use the temperature with the largest evidence instead of the model's, if there are validation
            examples.
        choosing: function called with the number of a model, from 0, before its temperature is chosen.
        sampling: function called with this number before the model is sampled; it returns the function that is called after
            each block of draws.
        progress: as in `bayesattn.sample`, if `sampling` is not given: False shows nothing.
        settings: settings of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no models, a model without test examples, with several outputs, skips or class labels, weights that do
            not fit, invalid settings.
        NotConverged: a solver failed.
    """
    job, comparisons, first = checked_job(settings), [], None
    for number, (model, weights) in enumerate(_pairs(models)):
        first = (model, weights) if first is None else first
        if model.architecture.heads != first[0].architecture.heads or (weights is None) != (first[1] is None):
            raise BayesattnError(
                f"models[{number}] must have the heads of the first one, and weights of a trained network if that has some"
            )
        # Invalid models and weights are found before sampling.
        pruning.require_prunable(model)
        if weights is not None:
            features = pruning.trained_readout(weights, model.architecture).shape[1]
            if features != model.path_inputs.shape[2]:
                raise BayesattnError(
                    f"V_0 must have as many features as path_inputs, {model.path_inputs.shape[2]}, got {features}"
                )
        if choose_temperature and model.validation_labels is not None:
            if choosing is not None:
                choosing(number)
            model = model.replace(temperature=by_evidence(candidates(model, seed=job.seed)).temperature)
        draws = sample(with_watched_examples(model), progress=sampling(number) if sampling else progress, **settings)
        drawn = draws["posterior"]["order_parameter"].values
        comparisons.append(pruning.compare(model, drawn, weights, job.seed))
    if not comparisons:
        raise BayesattnError("models must hold at least one model, got none")
    return PruningStudy(comparisons)


def _pairs(models: Checked) -> Iterator[tuple[Model, PlainMapping | None]]:
    """Yield each model with its weights; raise ValueError for anything else."""
    wanted = "models must be pairs of a model and the weights of its trained network, or None"
    if isinstance(models, str | Model) or not isinstance(models, Iterable):
        raise BayesattnError(f"{wanted}, got {shown(models)}")
    for number, pair in enumerate(models):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BayesattnError(f"{wanted}, got {shown(pair)}")
        yield checked_model(f"models[{number}][0]", pair[0]), pair[1]
