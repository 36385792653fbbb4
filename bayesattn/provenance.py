"""What a run was: resolved model and sampler as TOML, the versions that made it, and a content hash."""

import hashlib
import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tomli_w

from bayesattn.models import LatentModel, Model
from bayesattn.samplers import Job

PACKAGE = Path(__file__).parent
LIBRARIES = ("bayesattn", "jax", "jaxlib", "numpyro", "numpy")
DECIDING = ("bayesattn", "jax", "jaxlib", "numpyro", "source", "dtype", "device", "machine")
"""Parts of the environment that can change a draw's last bit; the others are for the record."""


def model_table(model: Model | LatentModel) -> dict[str, Any]:
    """The resolved model, in the form of a model file where there is one."""
    return _plain(model.table())


def job_table(job: Job) -> dict[str, Any]:
    """Every setting of the job."""
    return _plain(vars(job))


def to_toml(table: dict[str, Any]) -> str:
    """A table as TOML text."""
    return tomli_w.dumps(table)


def identity(model: Model | LatentModel, job: Job) -> str:
    """SHA-256 of all that decides the draws but the environment: data, model, settings."""
    digest = hashlib.sha256(json.dumps([model_table(model) | {"task": {}}, job_table(job)], sort_keys=True).encode())
    arrays = [getattr(model, name) for name in model.data_names]
    if isinstance(model, Model) and model.tokens is not None and job.parameterisation == "token":
        arrays += [model.tokens.inputs, *model.tokens.matrices]
    for array in arrays:
        digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """Versions, precision, device, code and machine that a run is made with."""
    device = jax.devices()[0]
    return {name: version(name) for name in LIBRARIES} | {
        "python": platform.python_version(),
        "dtype": str(jnp.zeros(0).dtype),
        "device": f"{device.platform} {device.device_kind}",
        "machine": platform.machine(),
        "source": _source_hash(),
        "git": _git_revision(),
    }


def differences(begun: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Deciding parts of two environments that differ, as phrases."""
    return [f"{name} {begun.get(name)} (now {now.get(name)})" for name in DECIDING if begun.get(name) != now.get(name)]


def _source_hash() -> str:
    """Of the code that decides the draws, so that a change of it is seen without a new version."""
    digest = hashlib.sha256()
    folders = ("models", "samplers", "theory")
    for file in sorted(file for folder in folders for file in (PACKAGE / folder).iterdir() if file.is_file()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _git_revision() -> str | None:
    """Of the checkout that bayesattn is imported from, if it is one."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        listed = subprocess.run([*command[:3], "ls-files", "--error-unmatch", __file__], capture_output=True)
        found = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() if listed.returncode == found.returncode == 0 else None


def _plain(value: Any) -> Any:
    """Lists and dictionaries of plain values, without None, which TOML lacks."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
