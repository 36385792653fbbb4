import shutil

import pytest

from bayesattn import runs
from bayesattn.runs import store
from bayesattn.samplers import blocks as block_runner
from tests.killed_run import BLOCK, CHUNK
from tests.posteriors import tiny_model
from tests.test_runs import StopAfter

JOB = {"sampler": "nuts", "chains": 2, "warmup": 20, "draws": 60, "seed": 3}
QUICK = JOB | {"sampler": "mala", "parameterisation": "path", "options": {"steps": 2}}
"""One that a process of its own begins in half of the time: nothing has to be prepared."""


@pytest.fixture(scope="session")
def model():
    return tiny_model()


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
    monkeypatch.setattr(store, "CHUNK_DRAWS", CHUNK)


def complete(model, folder, job):
    """A complete run, in blocks of 20 draws and chunks of 40, not to be touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
        patch.setattr(store, "CHUNK_DRAWS", CHUNK)
        runs.sample(model, folder, **job)
        runs.overview(folder)
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory, model):
    """A complete run of JOB."""
    return complete(model, tmp_path_factory.mktemp("whole") / "run", JOB)


@pytest.fixture(scope="session")
def whole_quick(tmp_path_factory, model):
    """A complete run of QUICK."""
    return complete(model, tmp_path_factory.mktemp("quick") / "run", QUICK)


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def stopped(model, tmp_path):
    """The same run, stopped on its way."""
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "stopped", **JOB, progress=StopAfter(60))
    return tmp_path / "stopped"
