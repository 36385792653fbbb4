"""Draws that a command asks about: those of a run, or of a model that it samples into a run, which is resumed."""

from pathlib import Path

import bayesattn as ba
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.jobs import runs
from bayesattn.jobs.cli import options, output
from bayesattn.models.network_posterior import NetworkPosterior

DEFAULTS = {"sampler": options.HMC.value, "chains": 4, "warmup": 300, "draws": 1000}
"""Defaults of options that a run already has."""


def opened(
    command: str, model: str, given: PlainDict, job: PlainDict
) -> tuple[NetworkPosterior, Path, runs.Run | None]:
    """Model, folder of its run, and the run itself if `model` is the folder of a run.

    Args:
        command: name of the command.
        model: argument MODEL.
        given: options --width, --temperature, --data-seed and --out, in this order, None if not given.
        job: options of sampling.

    Raises:
        ValueError: a run that is not of a network; options that do not go with a run.
    """
    if Path(model).is_dir() and runs.is_run(model):
        run = runs.Run(model)
        if not isinstance(run.model, NetworkPosterior):
            raise BayesattnError(f"{model} must be a run of a network, got one of a {type(run.model).__name__}")
        refused = [option for option, value in given.items() if value is not None]
        refused += [f"--{name}" for name, value in DEFAULTS.items() if job[name] != value]
        if refused:
            raise BayesattnError(f"{refused[0]} is only for models, got it with the run {model}, which has its own")
        return run.model, Path(model), run
    width, temperature, data_seed, out = given.values()
    case = ba.load_model(model, width=width, temperature=temperature, seed=data_seed)
    return case, out or output.run_folder(command, model, N=width, T=temperature, data=data_seed), None


def sampled(case: NetworkPosterior, folder: Path, job: PlainDict, quiet: bool) -> runs.Run:
    """Complete run of a model in a folder."""
    kept = ("order_parameter", "prediction")
    return runs.sample(case, folder, keep=kept, progress=False if quiet else None, **job)
