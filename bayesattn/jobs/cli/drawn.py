"""Draws that a command asks about: those of a run, or of a model that it samples into a run, which is resumed."""

from pathlib import Path

import bayesattn as ba
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.jobs import runs
from bayesattn.jobs.cli import options, output, screen
from bayesattn.models.network_posterior import NetworkPosterior

DEFAULTS = {"sampler": options.HMC.value, "chains": 4, "warmup": 300, "draws": 1000}
"""Defaults of options that a run already has."""


def opened(
    command: str,
    model: str,
    job: PlainDict,
    *,
    width: int | None,
    temperature: float | None,
    data_seed: int | None,
    out: Path | None,
) -> tuple[NetworkPosterior, Path, runs.Run | None]:
    """Model, folder of its run, and the run itself if `model` is the folder of a run.

    Args:
        command: name of the command.
        model: argument MODEL.
        job: options of sampling.
        width: option --width, None if not given, as those that follow.
        temperature: option --temperature.
        data_seed: option --data-seed.
        out: option --out.

    Raises:
        ValueError: a run that is not of a network; options that do not go with a run.
    """
    if Path(model).is_dir() and runs.is_run(model):
        run = runs.Run(model)
        if not isinstance(run.model, NetworkPosterior):
            raise BayesattnError(f"{model} must be a run of a network, got one of a {type(run.model).__name__}")
        given = {"--width": width, "--temperature": temperature, "--data-seed": data_seed, "--out": out}
        refused = [option for option, value in given.items() if value is not None]
        refused += [f"--{name}" for name, value in DEFAULTS.items() if job[name] != value]
        if refused:
            raise BayesattnError(f"{refused[0]} is only for models, got it with the run {model}, which has its own")
        return run.model, Path(model), run
    case = ba.load_model(model, width=width, temperature=temperature, seed=data_seed)
    return case, out or output.run_folder(command, model, N=width, T=temperature, data=data_seed), None


def sampled(case: NetworkPosterior, folder: Path, job: PlainDict, quiet: bool) -> runs.Run:
    """Complete run of a model in a folder."""
    kept = ("order_parameter", "prediction")
    return runs.sample(case, folder, keep=kept, progress=False if quiet else None, **job)


def say_how_drawn(run: runs.Run, folder: Path) -> None:
    """Print the diagnostics' warnings, and the folder of the run."""
    for warning in run.diagnose().warnings():
        screen.say(f"warning: {warning}", style="yellow")
    screen.say_where(f"run in {folder}")
