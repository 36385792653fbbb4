"""Disks that fail, processes that die, and two at one place: at every write in turn, and nothing is lost."""

import contextlib
import errno
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from bayesattn import runs
from bayesattn._util.input_files import read_arrays
from bayesattn.tasks import OneShot, training
from tests.attacks.conftest import JOB
from tests.disk import Disk, dying, failing
from tests.posteriors import tiny_model
from tests.processes import Started
from tests.test_runs import contents, run_process

ERRORS = (errno.ENOSPC, errno.EIO)
SHORT = JOB | {"chains": 1, "draws": 40}
"""Two blocks."""
KINDS = {
    "new": {},
    "weights": {"keep": ["weights"]},
    "nuts": {"sampler": "nuts", "parameterisation": "collapsed", "options": {}},
}
FEW = training.Training(steps=100, batch=4, width=4)
TASK = {"examples": 8, "test_examples": 8, "validation_examples": 8, "width": 8, "key_width": 4, "heads": (2, 1)}


class Died(BaseException):
    """Stands for the death of a process: from here on nothing is written."""


def leftovers(folder):
    return [
        path for path in folder.rglob("*") if path.suffix in (".partial", ".unfinished", ".replaced", ".replacement")
    ]


def attempt(disk, act, expected):
    """Whether `act` came to its end in spite of what the disk did."""
    with pytest.MonkeyPatch.context() as patch:
        disk.patch(patch.setattr)
        try:
            act()
        except expected:
            return False
    return True


class Case:
    """Something that is made on disk: `act` makes it in a folder, where `begin` lays what is there before."""

    def __init__(self, begin, act, result):
        self.begin, self.act, self.result = begin, act, result

    def writes(self, folder):
        """How many there are, and what comes of them when none fails."""
        self.begin(folder)
        disk = Disk(folder)
        assert attempt(disk, lambda: self.act(folder), ())
        return disk.count, self.result(folder)

    def require_nothing_lost(self, folder, at, fault, expected, whole):
        self.begin(folder)
        before = self.result(folder)
        attempt(Disk(folder, fault, at), lambda: self.act(folder), expected)
        if before is not None and (found := self.result(folder)) is not None:
            assert found in (before, whole)
        self.act(folder)
        assert self.result(folder) == whole
        assert leftovers(folder) == []
        shutil.rmtree(folder)


def draws_of(folder):
    found = folder / "run"
    if not runs.is_run(found) or not runs.Run(found).complete:
        return None
    values = runs.Run(found).draws()
    return {
        (group, name): array.values.tobytes()
        for group in ("posterior", "sample_stats")
        for name, array in values[group].data_vars.items()
    }


def sound_draws_of(folder):
    with contextlib.suppress(runs.RunError):
        return draws_of(folder)


def weights_in(file):
    """Arrays alone: what a file says of itself comes in any order."""
    return {name: value.tobytes() for name, value in read_arrays("weights", file)[0].items()} if file.exists() else None


def case_of_runs(model, job, old=None, **options):
    def begin(folder):
        shutil.copytree(old, folder) if old else folder.mkdir()

    return Case(begin, lambda folder: runs.sample(model, folder / "run", **job, **options), draws_of)


def case(name, model, folder):
    if name in KINDS:
        return case_of_runs(model, SHORT | KINDS[name])
    if name == "training":

        def weights(place):
            return weights_in(place / "weights.safetensors")

        def train(place):
            if weights(place) is None:
                training.train(OneShot(**TASK), FEW, place / "weights.safetensors")

        return Case(Path.mkdir, train, weights)
    old = folder / "old"
    if name == "overwriting":
        runs.sample(model, old / "run", **SHORT | {"seed": 9})
        return case_of_runs(model, SHORT, old, overwrite=True)
    if name == "more draws":
        runs.sample(model, old / "run", **SHORT | {"draws": 20})
        return case_of_runs(model, SHORT, old)
    runs.sample(model, old / "run", **SHORT)
    for chunk in (old / "run" / "posterior" / "prediction").glob("c.*"):
        chunk.unlink()
    made = case_of_runs(model, SHORT, old, overwrite=True)
    made.result = sound_draws_of
    return made


SOON = ["new", "overwriting", "more draws", "damaged", "training"]


def require_nothing_lost_at(name, model, tmp_path, monkeypatch, moments, kinds):
    monkeypatch.setattr(training, "BLOCKS_PER_CHECKPOINT", 1)
    made = case(name, model, tmp_path)
    count, whole = made.writes(tmp_path / "whole")
    assert whole is not None
    for at in moments(count):
        for kind in kinds(at):
            if kind == "death":
                made.require_nothing_lost(tmp_path / f"{at}", at, dead(tmp_path), Died, whole)
            else:
                made.require_nothing_lost(tmp_path / f"{at}", at, failing(kind), OSError, whole)
    return count


def dead(folder):
    """Dies at a write in so far as a process can without ending: what it would do in passing is undone by no one."""

    def die():
        raise Died

    return dying(0, die)


@pytest.mark.parametrize("name", SOON)
def test_a_write_that_fails_loses_nothing(model, tmp_path, monkeypatch, name):
    """Two at random, and one of the last, by which a run is made complete or takes the place of another."""
    rng = np.random.default_rng(SOON.index(name))
    require_nothing_lost_at(
        name,
        model,
        tmp_path,
        monkeypatch,
        lambda count: [*rng.integers(1, count - 5, 2), count - rng.integers(5)],
        lambda at: [ERRORS[at % 2]],
    )


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*SOON, "weights", "nuts"])
def test_each_write_that_fails_in_turn_loses_nothing(model, tmp_path, monkeypatch, name):
    count = require_nothing_lost_at(
        name, model, tmp_path, monkeypatch, lambda count: range(1, count + 1), lambda at: ERRORS
    )
    print(f"{name}: {count} writes, each failing with {len(ERRORS)} errors")


# SIGKILL


def require_nothing_lost_to_kills(folder, job, kills, rng):
    """Kills at random writes of two runs: one that begins in an empty folder, one that replaces another with overwrite."""
    status, out, err = run_process(folder / "whole" / "run", job)
    assert status == 0, err
    writes, whole = int(out), contents(folder / "whole" / "run")
    assert run_process(folder / "old" / "run", job | {"seed": 9})[0] == 0
    old = contents(folder / "old" / "run")
    requests = {"fresh": job, "replaced": job | {"overwrite": True}}
    shutil.copytree(folder / "old", folder / "replaced")
    died = 0
    for number in range(kills):
        track = list(requests)[number % 2]
        out = folder / track / "run"
        moment = f"0/{rng.integers(1, writes + 1)}/{rng.integers(2)}"
        status, _, err = run_process(out, requests[track], moment)
        assert status in (0, -signal.SIGKILL), err
        died += status == -signal.SIGKILL
        if track == "replaced":
            # In the midst of the swap the old run has the name of one that is to be deleted.
            place = out if out.exists() else out.parent / ".run.replaced"
            assert contents(place) in (old, whole)
        if runs.is_run(out) and runs.Run(out).complete and runs.Run(out).job.seed == job["seed"]:
            assert contents(out) == whole
            shutil.rmtree(out.parent)
            if track == "replaced":
                shutil.copytree(folder / "old", out.parent)
    for track, request in requests.items():
        status, _, err = run_process(folder / track / "run", request)
        assert status == 0, err
        assert contents(folder / track / "run") == whole
        assert leftovers(folder / track) == []
    return died


KILLED = {
    "nuts": {"chains": 2, "warmup": 60, "draws": 200, "seed": 3},
    "mala": {"sampler": "mala", "chains": 2, "warmup": 60, "draws": 200, "seed": 3, "options": {"steps": 3}},
}


MOMENTS = {"it is begun": "0/7/1", "it goes on": "60/20/1", "it takes the place of another": "moved"}


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
@pytest.mark.parametrize("sampler", KILLED)
def test_processes_killed_at_thirty_random_writes_lose_nothing(tmp_path, sampler):
    died = require_nothing_lost_to_kills(tmp_path, KILLED[sampler], 30, np.random.default_rng(1))
    print(f"{sampler}: {died} of 30 were killed")
    assert died >= 20


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


def train_to_the_cache(_):
    told = []
    file = training.cached(OneShot(**TASK), FEW, told.append)
    print("trained" if told else "found", file)


def train_to_a_file(_, file):
    try:
        training.train(OneShot(**TASK), FEW, file)
        print("trained")
    except (FileExistsError, BlockingIOError):
        print("refused")


def two(function, *arguments, **environment):
    """What two processes that call the same function at once print, each given its number and the arguments."""
    ended = [each.wait() for each in [Started(function, number, *arguments, **environment) for number in range(2)]]
    assert [status for status, _, _ in ended] == [0, 0], ended
    return [out.splitlines() for _, out, _ in ended]


def test_two_processes_at_one_run(model, whole, tmp_path):
    """At a new run, then at some that are replaced: one of them draws each."""
    replaced = [tmp_path / f"replaced-{number}" for number in range(4)]
    runs.sample(model, replaced[0], **JOB | {"seed": 9})
    for out in replaced[1:]:
        shutil.copytree(replaced[0], out)
    jobs = {str(tmp_path / "new"): JOB} | {str(out): JOB | {"overwrite": True} for out in replaced}
    for said in zip(*two(make_runs, jobs), strict=True):
        assert "done" in said
        assert set(said) <= {"busy", "done"}
    for out in jobs:
        assert runs.Run(out).draws()["posterior"].equals(runs.Run(whole).draws()["posterior"])
    assert leftovers(tmp_path) == []


@pytest.mark.heavy
def test_two_processes_at_one_training_cache(tmp_path):
    said = two(train_to_the_cache, XDG_CACHE_HOME=str(tmp_path))
    assert sorted(line.split()[0] for [line] in said) == ["found", "trained"]
    [file] = (tmp_path / "bayesattn").iterdir()
    training.train(OneShot(**TASK), FEW, tmp_path / "alone.safetensors")
    assert weights_in(file) == weights_in(tmp_path / "alone.safetensors")


@pytest.mark.heavy
def test_two_processes_train_to_one_file(tmp_path):
    assert sorted(two(train_to_a_file, tmp_path / "weights.safetensors")) == [["refused"], ["trained"]]
    assert [file.name for file in tmp_path.iterdir()] == ["weights.safetensors"]


def test_a_training_cache_that_is_damaged_is_trained_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = OneShot(**TASK)
    file = training.cached(task, FEW)
    sound, weights = file.read_bytes(), weights_in(file)
    for content in (sound[: len(sound) // 2], b"", b"x" * 99):
        file.write_bytes(content)
        assert weights_in(training.cached(task, FEW)) == weights
    monkeypatch.setattr(training, "TRAINING_VERSION", training.TRAINING_VERSION + 1)
    assert training.cached(task, FEW) != file


def test_a_checkpoint_of_training_that_is_damaged_is_done_without(tmp_path):
    whole = training.train(OneShot(**TASK), FEW, tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    for name, damaged in (("cut short", content[:99]), ("empty", b""), ("of other arrays", content)):
        checkpoint = tmp_path / f"{name}.safetensors.checkpoint"
        checkpoint.write_bytes(damaged)
        found = training.train(OneShot(**TASK), FEW, tmp_path / f"{name}.safetensors")
        assert {n: value.tobytes() for n, value in found.items()} == {n: v.tobytes() for n, v in whole.items()}, name
        assert not checkpoint.exists()
