"""What a run was: resolved model and sampler as TOML, the versions that made it, and a content hash."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tomli_w

from bayesattn._files import digest_of
from bayesattn.models import LatentModel, Model
from bayesattn.models.description import plain_table
from bayesattn.samplers import Job

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("bayesattn", "jax", "jaxlib", "numpyro", "blackjax", "numpy")
DECIDING = (
    *("bayesattn", "jax", "jaxlib", "numpyro", "blackjax"),
    *("source", "dtype", "device", "machine", "XLA_FLAGS", "flags"),
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
"""JAX's flags, as they are by default, that can change a draw's last bit and that `_settings` leaves alone."""
SHAPING = tuple(
    PACKAGE / f"{name}.py"
    for name in (
        *("_random", "_settings", "architecture", "attention", "network"),
        *(f"models/{name}" for name in ("categorical", "collapsed", "latent", "path", "posterior", "token")),
        *(
            f"samplers/{name}"
            for name in ("adapter", "curvature", "hmc", "job", "langevin", "options", "program", "run", "tempered")
        ),
        *(f"theory/{name}" for name in ("bartlett", "minimise", "mode", "problem", "saddle_point", "whitening")),
        *(
            f"kernels/{name}"
            for name in (
                "choice",
                "conditionals",
                "energies",
                "expansions",
                "feature_space",
                "features",
                "gaussian_process",
                "pairs",
                "path_inputs",
            )
        ),
    )
)
"""Modules that shape a draw. Presets do not count: the settings that they come to are stored with the run."""


SHOWN = ("test_labels",)
"""Arrays that decide no draw, but what is said of them."""


def model_table(model: Model | LatentModel) -> dict[str, Any]:
    """The resolved model, in the form of a model file where there is one."""
    return plain_table(model.table())


def job_table(job: Job) -> dict[str, Any]:
    """Every setting of the job."""
    return plain_table(vars(job))


def to_toml(table: dict[str, Any]) -> str:
    """A table as TOML text."""
    return tomli_w.dumps(table)


def identity(model: Model | LatentModel, job: Job, store: int = 3) -> str:
    """SHA-256 of all that decides a run but its environment and how many draws it has: data, model, settings, names.

    Runs of store format 2 counted draws, and neither test labels nor the names of the heads.
    """
    settings, table = job_table(job), model_table(model) | {"task": {}}
    arrays = [getattr(model, name) for name in model.data_names]
    if isinstance(model, Model) and model.tokens is not None and job.parameterisation == "token":
        arrays += [model.tokens.inputs, *model.tokens.matrices]
    if store > 2:
        del settings["draws"]
        table |= {"shown": [shown_names(model)]}
        arrays += [getattr(model, name) for name in SHOWN if hasattr(model, name)]
    digest = hashlib.sha256(json.dumps([table, settings], sort_keys=True).encode())
    for array in arrays:
        digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def shown_names(model: Model | LatentModel) -> dict[str, Any]:
    """Names that results are shown under."""
    return (
        plain_table({"path": model.path_names, "groups": dict(model.path_groups)}) if isinstance(model, Model) else {}
    )


def environment() -> dict[str, Any]:
    """Versions, precision, device, code and machine that a run is made with."""
    device = next(iter(jnp.zeros(0).devices()))
    return _versions() | {
        "python": platform.python_version(),
        "dtype": str(jnp.zeros(0).dtype),
        "device": f"{device.platform} {device.device_kind}",
        "machine": platform.machine(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "flags": _flags(),
        "source": digest_of(SHAPING),
        "git": _git_revision(),
    }


def differences(begun: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Deciding parts of two environments that differ, as phrases."""
    # Those of earlier versions do not tell flags, which are rarely set.
    return [
        f"{name} {begun.get(name) or 'none'} (now {now[name] or 'none'})"
        for name in DECIDING
        if begun.get(name, "") != now[name]
    ]


def _flags() -> str:
    """JAX's flags that are not as by default, and that can change a draw's last bit."""
    has = {name: getattr(jax.config, name, jax.config.values.get(name, usual)) for name, usual in FLAGS.items()}
    return " ".join(f"{name}={value}" for name, value in has.items() if value != FLAGS[name])


def digest_of_times(files: Iterable[str]) -> str:
    """Changes when one of the files does, by name, size and time."""
    return digest_of_text("\n".join(f"{file} {(stat := os.stat(file)).st_size} {stat.st_mtime_ns}" for file in files))


def digest_of_text(text: str) -> str:
    """SHA-256 of a text, cut to 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _versions() -> dict[str, str]:
    """Of what this process has imported, whatever is installed meanwhile."""
    return {name: version(name) for name in LIBRARIES}


@cache
def _git_revision() -> str | None:
    """Of the checkout that bayesattn is imported from, if it is one."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        listed = subprocess.run([*command[:3], "ls-files", "--error-unmatch", __file__], capture_output=True)
        described = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return described.stdout.strip() if listed.returncode == described.returncode == 0 else None
