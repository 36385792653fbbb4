"""Checks of arguments shared by all studies."""

from bayesattn._util.checks import Checked, require_kind
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainMapping
from bayesattn.checks.diagnostics import watched_examples
from bayesattn.models import Model
from bayesattn.models.network_posterior import NetworkPosterior, is_network
from bayesattn.samplers import Job

MOST_SHOWN_RESULTS = 4
"""Largest number of widths whose results a study shows."""


def checked_model(name: str, value: Checked) -> Model:
    """The value, a model with fixed attention; raises ValueError for anything else."""
    require_kind(name, value, Model)
    return value


def checked_network(name: str, value: Checked) -> NetworkPosterior:
    """The value, a model with fixed or with sampled attention; raises ValueError for anything else."""
    return value if is_network(value) else checked_model(name, value)


def with_watched_examples(model: Model) -> Model:
    """Model of the same posterior that keeps only the test examples whose predictions are diagnosed.

    All comparisons use draws of U, so the other test examples are not needed.
    """
    if model.test_path_inputs is None:
        return model
    chosen = watched_examples(len(model.test_path_inputs))
    return model.replace(test_path_inputs=model.test_path_inputs[chosen], test_labels=None)


def checked_job(settings: PlainMapping) -> Job:
    """Sampling job with these settings; raises ValueError unless it keeps U, which the theory predicts."""
    job = Job.of(**settings)
    if "order_parameter" not in job.keep:
        raise BayesattnError(f"keep must hold 'order_parameter', which the theory predicts, got {', '.join(job.keep)}")
    return job
