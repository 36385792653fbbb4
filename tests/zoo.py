"""Posteriors and jobs that tests share: each is compiled once in a process, and drawn once in a run of all tests."""

import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import xarray as xr
from filelock import FileLock

import bayesattn as ba
from bayesattn import runs
from tests.models.attention_networks import attention_model
from tests.posteriors import tiny_model

QUICK = {"sampler": "nuts", "chains": 2, "warmup": 20, "draws": 60, "seed": 3, "progress": False}
"""For whoever stores draws, or reads them."""
LIGHT = QUICK | {"sampler": "mala", "parameterisation": "path", "options": {"steps": 2}}
"""Without a search for the mode; draws move hardly."""
LONG = QUICK | {"warmup": 300, "draws": 500}
"""For whoever needs means."""


def classes():
    """Three classes, two heads; labels follow the first head."""
    rng = np.random.default_rng(5)
    path_inputs = rng.normal(size=(15, 2, 3))
    labels = np.eye(3)[np.argmax(path_inputs[:, 0], axis=1)]
    return ba.Model(
        path_inputs=path_inputs[:10],
        labels=labels[:10],
        test_path_inputs=path_inputs[10:],
        test_labels=labels[10:],
        architecture=ba.Architecture((2,), (5, 6), (1.0,) * 3, outputs=3),
        likelihood=ba.Categorical(1.0),
    )


MODELS = {
    "one": tiny_model,
    "two": lambda: tiny_model(heads=(2,)),
    "layers": lambda: tiny_model(heads=(2, 2), widths=(4, 4, 4), variances=(1.0, 0.8, 1.2, 1.1)),
    "classes": classes,
    "attention": attention_model,
}
"""One head; two; two layers of two; three classes; queries and keys sampled too."""


@cache
def model(name):
    return MODELS[name]()


class Zoo:
    """Runs and draws in a folder that all processes of a run of tests share."""

    def __init__(self, folder: Path):
        self.folder = folder

    def run(self, name: str, job: dict = QUICK, seed: int = 3) -> Path:
        """Folder of a complete run, which nobody changes: a test that does copies it."""
        settings = job | {"seed": seed}
        path = self.folder / f"{name}-{zlib.crc32(json.dumps(settings, sort_keys=True).encode()):08x}"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                runs.sample(model(name), path, **settings)
        return path

    def draws(self, name: str, job: dict = QUICK, seed: int = 3) -> xr.DataTree:
        """Draws of a run, in memory, the caller's own."""
        return runs.Run(self.run(name, job, seed)).draws().load().copy(deep=True)
