"""Disks that fail, processes that die, and two at one place: at every write in turn, and nothing is lost."""

import errno
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bayesattn import runs
from tests.attacks.conftest import JOB
from tests.disk import Disk, failing
from tests.posteriors import tiny_model
from tests.processes import Started
from tests.test_runs import contents, run_process

ERRORS = (errno.ENOSPC, errno.EIO)
SHORT = JOB | {"chains": 1, "draws": 40}
"""Two blocks."""
KINDS = {"weights": {"keep": ["weights"]}, "nuts": {"sampler": "nuts", "parameterisation": "collapsed", "options": {}}}


def leftovers(folder):
    endings = (".partial", ".unfinished", ".replaced", ".replacement")
    return [path for path in folder.rglob("*") if path.suffix in endings]


def draws_of(run):
    """Bytes of the draws of a complete run."""
    if not runs.is_run(run) or not runs.Run(run).complete:
        return None
    tree = runs.Run(run).draws()
    groups = ("posterior", "sample_stats")
    return {(group, name): array.values.tobytes() for group in groups for name, array in tree[group].data_vars.items()}


OLD = {"overwriting": {"seed": 9}, "more draws": {"draws": 20}, "damaged": {}}
"""Settings of the run that is there before."""
SOON = ["new", *OLD]


def require_nothing_lost(name, model, folder, faults):
    """At each of the faults, which are a write and its error, given the number of writes."""
    old, job = folder / "old", SHORT | KINDS.get(name, {})
    if name in OLD:
        runs.sample(model, old / "run", **job | OLD[name])
    if name == "damaged":
        (old / "run" / "zarr.json").write_text("{")

    def act(place):
        runs.sample(model, place / "run", **job, overwrite=name in ("overwriting", "damaged"))

    def attempt(place, *fault):
        """The number of writes to a disk that may fail."""
        shutil.copytree(old, place) if name in OLD else place.mkdir()
        disk = Disk(place, *fault)
        with pytest.MonkeyPatch.context() as patch, suppress(OSError):
            disk.patch(patch.setattr)
            act(place)
        return disk.count

    before, count = draws_of(old / "run"), attempt(folder / "whole")
    whole = draws_of(folder / "whole" / "run")
    assert whole is not None
    for at, error in faults(count):
        place = folder / str(at)
        attempt(place, failing(error), at)
        assert before is None or draws_of(place / "run") in (None, before, whole)
        act(place)
        assert draws_of(place / "run") == whole
        assert leftovers(place) == []
        shutil.rmtree(place)


@pytest.mark.parametrize("name", SOON)
def test_a_write_that_fails_loses_nothing(model, tmp_path, name):
    """Two at random, and one of the last, by which a run is made complete or takes the place of another."""

    def faults(count):
        rng = np.random.default_rng(SOON.index(name))
        return [(at, ERRORS[at % 2]) for at in (*rng.integers(1, count - 5, 2), count - rng.integers(5))]

    require_nothing_lost(name, model, tmp_path, faults)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*SOON, "weights", "nuts"])
def test_each_write_that_fails_in_turn_loses_nothing(model, tmp_path, name):
    kinds = np.random.default_rng(len(name))
    require_nothing_lost(
        name,
        model,
        tmp_path,
        lambda count: [*zip(range(1, count + 1), kinds.choice(ERRORS, count).tolist(), strict=True)],
    )


# SIGKILL


MOMENTS = {
    "it is created": "0/2/0",
    "it is begun": "0/7/1",
    "it goes on": "60/20/1",
    "it takes the place of another": "moved",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_killed_at_a_write_loses_nothing(model, whole, tmp_path, moment):
    """Killed while a run is so far, and this process goes on with it."""
    out, job = tmp_path / "run", JOB
    if MOMENTS[moment] == "moved":
        runs.sample(model, out, **JOB | {"seed": 9})
        job = JOB | {"overwrite": True}
    status, _, err = run_process(out, job, MOMENTS[moment])
    assert status == -signal.SIGKILL, err
    assert runs.is_run(out) == (moment == "it goes on")
    assert not runs.is_run(out) or not runs.Run(out).complete
    runs.sample(model, out, **job)
    assert contents(out) == contents(whole)
    assert leftovers(tmp_path) == []


@pytest.mark.heavy
@pytest.mark.parametrize("settings", [{}, {"sampler": "mala", "options": {"steps": 3}}], ids=["nuts", "mala"])
def test_processes_killed_at_random_writes_of_a_replacement_lose_nothing(tmp_path, settings):
    """Another process goes on with it. New runs: the test before this one, and tests/test_runs.py."""
    job = {"chains": 2, "warmup": 60, "draws": 200, "seed": 3} | settings
    status, printed, err = run_process(tmp_path / "whole", job)
    assert status == 0, err
    assert run_process(tmp_path / "old", job | {"seed": 9})[0] == 0
    whole, old, rng, died = contents(tmp_path / "whole"), contents(tmp_path / "old"), np.random.default_rng(1), 0
    request = job | {"overwrite": True}
    for number in range(15):
        folder = tmp_path / str(number)
        out = shutil.copytree(tmp_path / "old", folder / "run")
        status, _, err = run_process(out, request, f"0/{rng.integers(1, int(printed) + 1)}/{rng.integers(2)}")
        assert status in (0, -signal.SIGKILL), err
        died += status != 0
        # In the midst of the swap the old run has the name of one that is to be deleted.
        assert contents(out if out.exists() else folder / ".run.replaced") in (old, whole)
        status, _, err = run_process(out, request)
        assert status == 0, err
        assert contents(out) == whole
        assert leftovers(folder) == []
    assert died >= 10


# Two at one place


def make_runs(number, jobs):
    """Begins each run only when the other process is there as well."""
    model = tiny_model()
    for out, job in jobs.items():
        Path(f"{out}.{number}").touch()
        while not all(Path(f"{out}.{each}").exists() for each in range(2)):
            time.sleep(0.01)
        try:
            runs.sample(model, out, **job)
            print("done")
        except runs.RunBusy:
            print("busy")


def test_two_processes_at_one_run(model, whole, tmp_path):
    """At a new run, then at some that are replaced: one of them draws each."""
    replaced = [tmp_path / f"replaced-{number}" for number in range(4)]
    runs.sample(model, replaced[0], **JOB | {"seed": 9})
    for out in replaced[1:]:
        shutil.copytree(replaced[0], out)
    jobs = {str(tmp_path / "new"): JOB} | {str(out): JOB | {"overwrite": True} for out in replaced}
    ended = [each.wait() for each in [Started(make_runs, number, jobs) for number in range(2)]]
    assert [status for status, _, _ in ended] == [0, 0], ended
    for said in zip(*(printed.splitlines() for _, printed, _ in ended), strict=True):
        assert "done" in said
        assert set(said) <= {"busy", "done"}
    for out in jobs:
        assert runs.Run(out).draws()["posterior"].equals(runs.Run(whole).draws()["posterior"])
    assert leftovers(tmp_path) == []
