"""What a run is: resolved model and settings, a content hash of them, the environment that made it.

And whether a request is for the same run, and would go on with it to the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import tomli_w

from bayesattn._util.plain import PlainDict
from bayesattn.models import PARAMETERISATIONS
from bayesattn.models.description import plain_table
from bayesattn.models.origin import close
from bayesattn.posterior import Posterior
from bayesattn.runs.folder import RunError
from bayesattn.samplers import DRAWS_VERSION, Job

if TYPE_CHECKING:
    from bayesattn.runs.run import Run

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("bayesattn", "jax", "jaxlib", "numpyro", "blackjax", "numpy")
DECIDING = (
    *("draws_version", "jax", "jaxlib", "numpyro", "blackjax"),
    *("dtype", "device", "machine", "XLA_FLAGS", "flags"),
)
"""Parts of the environment that can change a draw's last bit; the others are for the record."""
FLAGS = {
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_optimization_level": "UNKNOWN",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
    "jax_use_direct_linearize": True,
}
"""JAX's flags, as they are by default, that can change a draw's last bit and that `_util.settings` leaves alone."""
SHOWN = ("test_labels",)
"""Arrays that decide no draw, but what is said of them."""


def model_table(model: Posterior) -> PlainDict:
    """The resolved model, in the form of a model file where there is one."""
    return plain_table(model.table())


def job_table(job: Job) -> PlainDict:
    """Every setting of the job."""
    return plain_table(vars(job))


def to_toml(table: PlainDict) -> str:
    """A table as TOML text."""
    return tomli_w.dumps(table)


def identity(model: Posterior, job: Job) -> str:
    """SHA-256 of data, model, settings and names: all that decides a run but its environment and number of draws."""
    settings, table = job_table(job), model_table(model) | {"task": {}, "shown": [plain_table(model.shown_names)]}
    del settings["draws"]
    arrays = [getattr(model, name, None) for name in (*model.data_names, *SHOWN)]
    if PARAMETERISATIONS[job.parameterisation].needs_tokens and (tokens := getattr(model, "tokens", None)):
        arrays += [tokens.inputs, *tokens.matrices]
    digest = hashlib.sha256(json.dumps([table, settings], sort_keys=True).encode())
    for array in arrays:
        digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def environment() -> PlainDict:
    """Versions, precision, device and machine that a run is made with."""
    device = next(iter(jnp.zeros(0).devices()))
    return _versions() | {
        "draws_version": DRAWS_VERSION,
        "python": platform.python_version(),
        "dtype": str(jnp.zeros(0).dtype),
        "device": f"{device.platform} {device.device_kind}",
        "machine": platform.machine(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "flags": _flags(),
        "git": _git_revision(),
    }


def differences(begun: PlainDict, now: PlainDict) -> list[str]:
    """Deciding parts of two environments that differ, as phrases."""
    return [
        f"{name} {begun.get(name) or 'none'} (now {now[name] or 'none'})"
        for name in DECIDING
        if begun.get(name) != now[name]
    ]


def _flags() -> str:
    """JAX's flags that are not as by default, and that can change a draw's last bit."""
    has = {name: getattr(jax.config, name, jax.config.values.get(name, usual)) for name, usual in FLAGS.items()}
    return " ".join(f"{name}={value}" for name, value in has.items() if value != FLAGS[name])


def require_same(run: Run, model: Posterior, job: Job) -> None:
    """Raise RunError, naming the first difference, unless a run is of this model and these settings.

    More draws than it has are no difference.
    """
    asked, has = job_table(job), job_table(run.job)
    if job.draws > run.job.draws:
        del asked["draws"], has["draws"]
    asked, has = asked | _model_settings(model), has | _model_settings(run.model)
    for name, value in has.items():
        if asked.get(name) != value:
            raise RunError(
                f"{run.path} holds a run with {name} = {value}, got {asked.get(name)}: ask for the same, choose"
                " another folder, or replace it with overwrite=True"
            )
    for name in (*run.model.data_names, *SHOWN):
        if not close(getattr(run.model, name, None), getattr(model, name, None)):
            raise RunError(f"{run.path} holds a run on other data: its {name} differ; choose another folder")


def require_same_environment(run: Run) -> None:
    """Raise RunError, naming the differences, unless draws would go on to the same bits here."""
    changed = differences(run.description["environment"], environment())
    if changed:
        raise RunError(
            f"{run.path} was begun with {', '.join(changed)}: resumed, its draws would not be those of one run;"
            " resume it with what it was begun with, choose another folder, or replace it with overwrite=True"
        )


def _model_settings(model: Posterior) -> PlainDict:
    """Entries of a model's table, without [task], those of [architecture] among the others."""
    table = model_table(model)
    table.pop("task", None)
    return table.pop("architecture", {}) | table | {"names": plain_table(model.shown_names)}


@cache
def _versions() -> dict[str, str]:
    """Versions of what this process has imported, whatever is installed meanwhile."""
    return {name: version(name) for name in LIBRARIES}


@cache
def _git_revision() -> str | None:
    """Revision of the checkout that bayesattn is imported from, None if it is not one."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        listed = subprocess.run([*command[:3], "ls-files", "--error-unmatch", __file__], capture_output=True)
        described = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return described.stdout.strip() if listed.returncode == described.returncode == 0 else None
