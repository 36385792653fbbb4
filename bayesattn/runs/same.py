"""Whether a run is the one that is asked for: of the same model and settings, and to be gone on with to the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bayesattn.models import LatentModel, Model
from bayesattn.models.trees import close
from bayesattn.runs import provenance
from bayesattn.runs.store import RunError
from bayesattn.samplers import Job

if TYPE_CHECKING:
    from bayesattn.runs.run import Run


def require_same(run: Run, model: Model | LatentModel, job: Job) -> None:
    """Raise RunError, naming the first difference, unless a run is of this model and these settings.

    More draws than it has are no difference.
    """
    if (
        isinstance(model, Model)
        and isinstance(run.model, Model)
        and model.architecture.heads == run.model.architecture.heads
        and model.head_names is None
        and run.description["about_model"].get("head_names") is None
    ):
        model = model.replace(head_names=run.model.head_names)  # Earlier versions numbered heads from 0.
    asked, has = provenance.job_table(job), provenance.job_table(run.job)
    if job.draws > run.job.draws:
        del asked["draws"], has["draws"]
    asked, has = asked | _settings(model), has | _settings(run.model)
    for name, value in has.items():
        if asked.get(name) != value:
            raise RunError(
                f"{run.path} holds a run with {name} = {value}, got {asked.get(name)}: ask for the same, choose"
                " another folder, or replace it with overwrite=True"
            )
    for name in (*run.model.data_names, *provenance.SHOWN):
        if not close(getattr(run.model, name, None), getattr(model, name, None)):
            raise RunError(f"{run.path} holds a run on other data: its {name} differ; choose another folder")


def require_same_environment(run: Run) -> None:
    """Raise RunError, naming the differences, unless draws would go on to the same bits here."""
    differences = provenance.differences(run.description["environment"], provenance.environment())
    if differences:
        raise RunError(
            f"{run.path} was begun with {', '.join(differences)}: resumed, its draws would not be those of one run;"
            " resume it with what it was begun with, or choose another folder"
        )


def _settings(model: Model | LatentModel) -> dict[str, Any]:
    """Entries of a model's table, without [task], those of [architecture] among the others."""
    table = provenance.model_table(model)
    table.pop("task", None)
    return table.pop("architecture", {}) | table | {"names": provenance.shown_names(model)}
