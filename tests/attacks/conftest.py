import shutil

import pytest

from bayesattn import runs
from bayesattn.runs import store
from bayesattn.samplers import blocks as block_runner
from tests import zoo
from tests.killed_run import BLOCK, CHUNK
from tests.test_runs import StopAfter

JOB = {key: value for key, value in zoo.LIGHT.items() if key != "progress"}


@pytest.fixture(scope="session")
def model():
    return zoo.model("one")


def in_small_blocks(patch):
    """Blocks of 20 draws, chunks of 40."""
    patch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
    patch.setattr(store, "CHUNK_DRAWS", CHUNK)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    in_small_blocks(monkeypatch)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, model):
    """A complete run of JOB, not to be touched."""
    with pytest.MonkeyPatch.context() as patch:
        in_small_blocks(patch)
        run = runs.sample(model, tmp_path_factory.mktemp("whole") / "run", **JOB)
    run.diagnose()
    return run.path


@pytest.fixture(scope="session")
def half(tmp_path_factory, model):
    """The same run, stopped on its way, not to be touched."""
    folder = tmp_path_factory.mktemp("half") / "run"
    with pytest.MonkeyPatch.context() as patch:
        in_small_blocks(patch)
        with pytest.raises(KeyboardInterrupt):
            runs.sample(model, folder, **JOB, progress=StopAfter(60))
    return folder


@pytest.fixture
def run(whole, tmp_path):
    """A copy of the complete one."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def stopped(half, tmp_path):
    """A copy of the one that stopped."""
    return shutil.copytree(half, tmp_path / "stopped")
