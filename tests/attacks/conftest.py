import shutil
import time

import pytest

from bayesattn import runs
from bayesattn.jobs.runs import store
from bayesattn.samplers import blocks as block_runner
from tests import zoo
from tests.killed_run import BLOCK, CHUNK
from tests.test_runs import StopAfter

JOB = {key: value for key, value in zoo.LIGHT.items() if key != "progress"}

SOON = 10.0
"""Seconds that no refusal takes, on a busy machine."""


def refused(call, *expected, errors=ValueError, lines=1):
    """Check that a call is refused soon, in one short sentence that says all that is expected."""
    start = time.perf_counter()
    with pytest.raises(errors) as caught:
        call()
    message = str(caught.value)
    assert time.perf_counter() - start < SOON
    assert len(message) < 1500
    assert "pydantic" not in message
    assert len(message.strip().splitlines()) <= lines, message
    for part in expected:
        assert part in message, message
    return message


def interrupted(model, out, steps, **settings):
    """Draws a run until so many steps of all chains are done, where it is stopped."""
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, out, **settings, progress=StopAfter(steps))


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
def made(tmp_path_factory, model):
    """Runs of JOB: "whole", "half", stopped on its way, and "longer", with 80 draws; not to be touched."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        in_small_blocks(patch)
        runs.sample(model, folder / "whole", **JOB).diagnose()
        interrupted(model, folder / "half", 60, **JOB)
        runs.sample(model, folder / "longer", **JOB | {"draws": 80})
    return folder


@pytest.fixture(scope="session")
def whole(made):
    return made / "whole"


@pytest.fixture
def run(whole, tmp_path):
    """A copy of the complete one."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def stopped(made, tmp_path):
    """A copy of the one that stopped."""
    return shutil.copytree(made / "half", tmp_path / "stopped")
