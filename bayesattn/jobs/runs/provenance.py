"""Provenance of a run: resolved model and settings, their content hash, and the environment.

It also checks whether a request is for the same run, and whether this environment would continue the run bit for bit.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest
from bayesattn.models import parameterisation_of
from bayesattn.models.posterior import Posterior
from bayesattn.models.stored_model import plain_table
from bayesattn.samplers import DRAWS_VERSIONS, Job

LIBRARIES = ("bayesattn", "jax", "jaxlib", "numpyro", "blackjax", "numpy")
DRAW_ENVIRONMENT = (
    *("draws_version", "jax", "jaxlib", "numpyro", "blackjax"),
    *("dtype", "device", "machine", "XLA_FLAGS", "flags"),
)
"""Parts of the environment that can change the last bit of a draw; the other parts are only recorded."""
DEFAULT_FLAGS = {
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_optimization_level": "UNKNOWN",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
    "jax_use_direct_linearize": True,
}
"""Defaults of JAX's flags that can change the last bit of a draw and are not set by `_util.settings`."""
RESULT_ARRAYS = ("test_labels",)
"""Arrays that do not affect draws, but results computed from draws."""


def job_table(job: Job) -> PlainDict:
    """Table of all settings of the job."""
    return plain_table(job.table)


def identity(model: Posterior, job: Job) -> str:
    """SHA-256 of data, model, settings and names: all that defines a run, except environment and number of draws."""
    settings = {name: value for name, value in job_table(job).items() if name != "draws"}
    table = plain_table(model.table()) | {"task": {}, "shown": [plain_table(model.shown_names)]}
    arrays = [getattr(model, name, None) for name in (*model.data_names, *RESULT_ARRAYS)]
    if parameterisation_of(model, job.parameterisation).needs_tokens and (tokens := getattr(model, "tokens", None)):
        arrays += [tokens.inputs, *tokens.matrices]
    absent = np.frombuffer(b"-", np.uint8)
    return digest([table, settings], *(absent if array is None else array for array in arrays))


def environment(sampler: str) -> PlainDict:
    """Versions, that of the sampler among them, precision, device, machine, JAX flags that differ from the defaults."""
    device = next(iter(jnp.zeros(0).devices()))
    flags = {
        name: getattr(jax.config, name, jax.config.values.get(name, usual)) for name, usual in DEFAULT_FLAGS.items()
    }
    return _software() | {
        "draws_version": DRAWS_VERSIONS.get(sampler, DRAWS_VERSIONS["nuts"]),
        "python": platform.python_version(),
        "dtype": str(jnp.zeros(0).dtype),
        "device": f"{device.platform} {device.device_kind}",
        "machine": platform.machine(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "flags": " ".join(f"{name}={value}" for name, value in flags.items() if value != DEFAULT_FLAGS[name]),
    }


@cache
def _software() -> PlainDict:
    """Versions of the libraries as at the first call, even if others are installed later, and the Git revision.

    The revision is that of the checkout from which bayesattn is imported; None without a checkout.
    """
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True)
        command = [*git, "describe", "--always", "--dirty", "--abbrev=40"]
        revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = None
    return {name: version(name) for name in LIBRARIES} | {"git": revision}


def differences(begun: PlainDict, now: PlainDict) -> list[str]:
    """Differences of two environments in the parts that can change draws, as phrases."""
    return [
        f"{name} {begun.get(name) or 'none'} (now {now[name] or 'none'})"
        for name in DRAW_ENVIRONMENT
        if begun.get(name) != now[name]
    ]


def settings(model: Posterior, job: Job) -> PlainDict:
    """Entries of the tables of job and model, without [task] and with those of [architecture] on the same level."""
    table = plain_table(model.table()) | {"names": plain_table(model.shown_names)}
    table.pop("task", None)
    return job_table(job) | table.pop("architecture", {}) | table
