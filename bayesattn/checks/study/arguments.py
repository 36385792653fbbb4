"""Arguments that all studies check in the same way."""

from bayesattn._util.checks import Checked, require_kind
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainMapping
from bayesattn.checks.diagnostics import watched_examples
from bayesattn.models import Model
from bayesattn.samplers import Job

MOST_SHOWN = 4
"""Widths, or trained networks, whose results a study shows."""


def checked_model(name: str, value: Checked) -> Model:
    """A model; raises ValueError for anything else."""
    require_kind(name, value, Model)
    return value


def with_watched_examples(model: Model) -> Model:
    """The same posterior, with no test examples but those whose predictions diagnostics look at.

    All that is compared comes from draws of U.
    """
    if model.test_path_inputs is None:
        return model
    chosen = watched_examples(len(model.test_path_inputs))
    return model.replace(test_path_inputs=model.test_path_inputs[chosen], test_labels=None)


def checked_job(settings: PlainMapping) -> Job:
    """Settings of the sampler, which must keep what is compared."""
    job = Job.of(**settings)
    if "order_parameter" not in job.keep:
        raise BayesattnError(f"keep must hold 'order_parameter', which theory speaks of, got {', '.join(job.keep)}")
    return job
