import shutil

import pytest

from bayesattn import runs
from bayesattn.samplers import run as block_runner
from tests.killed_run import BLOCK
from tests.posteriors import tiny_model
from tests.test_runs import StopAfter

JOB = {"chains": 2, "warmup": 20, "draws": 60, "seed": 3}


@pytest.fixture(scope="session")
def model():
    return tiny_model()


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_runner, "MOST_DRAWS", BLOCK)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, model):
    """A complete run of JOB, in blocks of 20 draws, not to be touched."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "MOST_DRAWS", BLOCK)
        runs.sample(model, folder, **JOB)
        runs.overview(folder)
    return folder


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
