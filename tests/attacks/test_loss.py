"""Attacks on runs: what is damaged is named and refused, what was there stays until its successor is complete."""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
import zarr

import bayesattn as ba
from bayesattn import runs
from bayesattn._util.random import digest
from bayesattn.jobs.runs import folder, provenance, store
from bayesattn.samplers import blocks as block_runner
from bayesattn.samplers import job as job_module
from tests.attacks.conftest import JOB, interrupted
from tests.disk import Disk, failing
from tests.test_runs import contents


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "log.jsonl"}


# Damage: a function that does it to the folder of a run, and what is said of it.


def place(pattern):
    """The one file, or the last, that a pattern finds in a run."""
    return lambda run: max(run.glob(pattern))


CHUNK = place("posterior/prediction/c.1.1*")
ROOT, CHECKPOINT, PREPARED = place("zarr.json"), place(".run/chain-*.npz"), place(".run/prepared.npz")


def cut(file, keep=0.5):
    return lambda run: file(run).write_bytes(file(run).read_bytes()[: int(keep * file(run).stat().st_size)])


def edited(file, old, new):
    return lambda run: file(run).write_text(file(run).read_text().replace(old, new))


def written(file, content):
    return lambda run: file(run).write_text(content)


def removed(pattern):
    return lambda run: [shutil.rmtree(found) if found.is_dir() else found.unlink() for found in [*run.glob(pattern)]]


def flipped(file, at=lambda content: len(content) // 2):
    """One bit, at a place in the content."""

    def damage(run):
        content = bytearray(file(run).read_bytes())
        content[at(content)] ^= 1
        file(run).write_bytes(content)

    return damage


def last_of_zip(content):
    """Of the last file's content, before the list of all."""
    return content.index(b"PK\x01\x02") - 1


def with_nan(run):
    """As another program might, that knows Zarr: the file is sound, its content is not."""
    zarr.open_group(run, mode="r+")["posterior"]["prediction"][1, 25:30] = np.nan


def checkpoint(change):
    def damage(run):
        with np.load(CHECKPOINT(run)) as stored:
            arrays = dict(stored)
        about = json.loads(arrays["about"].tobytes())
        change(about, arrays)
        np.savez(CHECKPOINT(run), **arrays | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})

    return damage


def described(**changes):
    """As if it had been written so, or, for what is to be None, not been written."""

    def damage(run):
        about, metadata = store.read_root(run)
        about = {name: value for name, value in (about | changes).items() if value is not None}
        root = json.loads(ROOT(run).read_text())
        root["attributes"]["bayesattn"] = json.dumps(about | {"checksum": store.checksum(about, metadata)})
        ROOT(run).write_text(json.dumps(root))

    return damage


def begun_with(**changes):
    return lambda run: described(environment=runs.Run(run).description["environment"] | changes)(run)


AGAIN = r"; draw it again with overwrite=True \(--overwrite\)"
DRAWS = rf"is damaged: (posterior|sample_stats)/\w+ of chain \d, draws .*{AGAIN}"
UNREADABLE = rf"is damaged: checkpoint chain-1.npz cannot be read .*{AGAIN}: the same seed gives the same draws"
FOREIGN = r"chain-1.npz cannot be read \(it is of another run or other chains\)"
MISSING = rf"is damaged: (\w+/\w+ is missing|the data of the model cannot be read: .*){AGAIN}"
OTHERWISE = rf"is damaged: its zarr.json is not what was written{AGAIN}"
NO_DATA = "is damaged: the data of the model cannot be read"
DAMAGE = {
    "chunk deleted": (removed("*/prediction/c.1.1*"), "prediction of chain 1, draws 40 to 59, is missing" + AGAIN),
    "one bit of a chunk": (flipped(CHUNK), "posterior/prediction of chain 1, draws 40 to 59, cannot be read"),
    "draws set to NaN": (with_nan, DRAWS),
    "chunk of divergences deleted": (removed("sample_stats/diverging/c.1.1*"), DRAWS),
    "checkpoint cut short": (cut(CHECKPOINT), UNREADABLE),
    "checkpoint with a pickle": (
        lambda run: np.savez(CHECKPOINT(run), about=np.array([None])),
        r"chain-1.npz cannot be read .*allow_pickle=False",
    ),
    "one bit of a state": (flipped(CHECKPOINT, last_of_zip), UNREADABLE),
    "checkpoint of another run": (checkpoint(lambda about, _: about.update(run="another")), FOREIGN),
    "of the other chain": (lambda run: shutil.copy(run / ".run/chain-0.npz", CHECKPOINT(run)), FOREIGN),
    "of the future": (checkpoint(lambda about, _: about.update(done=81)), UNREADABLE),
    "leaves missing": (checkpoint(lambda about, _: about.update(leaves=99)), UNREADABLE),
    "hidden folder left out": (removed(".run"), "is damaged: it lacks its hidden folder .run"),
    "labels deleted": (removed("observed_data/labels/c.*"), MISSING),
    "a group of draws deleted": (removed("posterior"), "damaged: posterior/.* is missing"),
    "one bit of the labels": (flipped(place("observed_data/labels/c.0")), "is damaged"),
    "description cut short": (cut(ROOT), "damaged: its zarr.json is not JSON"),
    "a folder for a checkpoint": (lambda run: ((file := CHECKPOINT(run)).unlink(), file.mkdir()), UNREADABLE),
    "too deep": (written(ROOT, "[" * 10**5), "zarr.json is not JSON"),
    "of a text too deep": (written(ROOT, json.dumps({"attributes": {"bayesattn": "[" * 10**5}})), "of something else"),
    "number of draws edited": (edited(ROOT, "draws = 60", "draws = 61"), OTHERWISE),
    "of a list": (written(ROOT, '{"attributes": {"bayesattn": [1]}}'), "of something else"),
    "another's Zarr store": (lambda run: zarr.create_group(run, overwrite=True), "got a Zarr store of something else"),
    "missing": (removed("zarr.json"), "must be a run, a Zarr store.*got no Zarr store"),
    "of an earlier format": (
        described(format=3),
        "store format 4, got format 3, written by bayesattn .*: open it with that version, or draw it again",
    ),
    "saved from memory": (described(format=None), "got saved draws of memory: use xarray.open_datatree"),
    "without sampler": (described(sampler=None), OTHERWISE),
}
OF_THE_MODEL = {
    "unknown sampler": (described(sampler='sampler = "gibbs"'), "its settings cannot be read"),
    "of another identity": (described(identity="abc"), "is damaged"),
    "path inputs deleted": (removed("*/path_inputs/c.*"), NO_DATA + ": .* path_inputs must be finite, got nan"),
}
"""What only whoever asks for the model or the settings meets; with all else it is found first, or later."""
UNPREPARED = rf"prepared\.npz cannot be read .*{AGAIN}"
STOPPED = {
    "prepared: cut short": (cut(PREPARED), UNPREPARED),
    "prepared: missing": (removed(".run/prepared.npz"), UNPREPARED),
    "prepared: of another run": (lambda run: store.write_checkpoint(PREPARED(run), {"run": "x"}, {}), UNPREPARED),
    "other shapes": (
        checkpoint(lambda _, arrays: arrays.update(leaf_1=np.zeros((3, 3)))),
        r"\d.npz has other shapes than",
    ),
    "chunks deleted": (removed("posterior/prediction/c.*"), r"prediction of chain \d, draws 0 to \d+, is missing"),
    "another JAX": (begun_with(jax="0.1"), r"was begun with jax 0\.1 \(now .*resumed, its draws"),
    "another device": (begun_with(device="gpu H"), r"was begun with device gpu H \(now cpu"),
    "other draws": (begun_with(draws_version=7), r"was begun with draws_version 7 \(now \d"),
}
EACH_WAY = ("chunk deleted", "one bit of a chunk", "one bit of a state", "one bit of the labels")


@pytest.mark.parametrize("name", DAMAGE | OF_THE_MODEL)
def test_runs_that_are_damaged_are_refused_and_left_as_they_are(model, run, name):
    damage, message = (DAMAGE | OF_THE_MODEL)[name]
    damage(run)
    before = files(run)
    ways = [lambda: runs.sample(model, run, **JOB)]
    if name in DAMAGE:
        ways += [lambda: runs.Run(run).draws()]
        [row] = runs.overview(run)
        assert row["state"] == "unreadable"
        assert re.search(message, row["error"])
    if name in EACH_WAY:
        ways += [lambda: runs.Run(run).summary(), lambda: runs.Run(run).to_netcdf(run.parent / "draws.nc")]
    for use in ways:
        with pytest.raises(runs.RunError, match=message):
            use()
    assert files(run) == before
    assert names(run.parent) == ["run"]


@pytest.mark.parametrize("name", STOPPED)
def test_runs_that_cannot_go_on_are_left_as_they_are(model, stopped, name):
    damage, message = STOPPED[name]
    damage(stopped)
    before = files(stopped)
    with pytest.raises(runs.RunError, match=message):
        runs.sample(model, stopped, **JOB)
    assert files(stopped) == before


def test_a_complete_run_needs_nothing_of_what_was_computed_before(model, run):
    (run / ".run" / "prepared.npz").unlink()
    begun_with(jax="0.1")(run)
    assert runs.sample(model, run, **JOB).complete
    before = files(run)
    with pytest.raises(runs.RunError, match=r"begun with jax 0\.1"):
        runs.sample(model, run, **JOB | {"draws": 80})
    assert files(run) == before


def test_what_stands_about_stops_no_run(model, whole, stopped):
    """A folder in place of the log, and one named as if half written."""
    (stopped / ".run" / "log.jsonl").unlink()
    for folder_name in (".run/log.jsonl", "x.partial"):
        (stopped / folder_name).mkdir()
    runs.sample(model, stopped, **JOB)
    assert contents(stopped) == contents(whole)


def assert_same(tree, other):
    """Groups, arrays and coordinates; the root's attributes tell of sums and of the code that made it."""
    tree.attrs = other.attrs = {}
    xr.testing.assert_identical(tree, other)


SIDE_FILES = [
    "5\n",
    "[" * 10**5,
    '{"chains": 2, "draws": 60, "rhat": 99.0}',  # Diagnostics of an older version.
    '[1, 2]\n["block"]\n{"time": 3}\n',
    '{"event": "block", "seconds": "few", "steps": 3, "chains": [0]}\n',
    "\xff\x00\xfe\n",  # No UTF-8.
    ...,  # A folder.
]


def test_side_files_that_are_damaged(whole, run):
    [expected], summary = runs.overview(whole), json.dumps(runs.Run(whole).summary())
    for content in SIDE_FILES:
        for file in (run / runs.FOLDER / name for name in ("log.jsonl", "diagnostics.json", "summary.json")):
            if content is ...:
                file.unlink()
                file.mkdir()
            else:
                file.write_bytes(content.encode("latin-1"))
        [row] = runs.overview(run)
        assert (row["diagnostics"], row["state"]) == (expected["diagnostics"], "complete"), content
        assert json.dumps(runs.Run(run).summary()) == summary, content


@pytest.mark.parametrize("name", ["sum", "by", "of"])
def test_diagnostics_that_are_kept_count_while_they_are_whole_and_of_this_code_and_these_draws(whole, run, name):
    file, expected = run / runs.FOLDER / "diagnostics.json", runs.Run(whole).diagnose()
    runs.Run(run).diagnose()
    content = json.loads(file.read_text())
    content["value"]["ess"] = 9999.0
    content["about"] |= {"sum": digest(content["value"])} | {name: "another"}
    file.write_text(json.dumps(content))
    assert dataclasses.asdict(runs.Run(run).diagnose()) == dataclasses.asdict(expected)


def test_a_line_that_was_cut_short_takes_no_other_with_it(run):
    log = run / runs.FOLDER / "log.jsonl"
    before = runs.Run(run).events()
    log.write_bytes(log.read_bytes()[:-5])
    runs.Run(run).log(event="start")
    assert runs.Run(run).events()[:-1] == before[:-1]
    assert runs.Run(run).events()[-1]["event"] == "start"


def test_reading_writes_nothing_where_it_may_not(whole, run, monkeypatch):
    """On a disk that is mounted for reading alone; tests may run as root, which ignores file permissions."""
    for file in ("diagnostics.json", "summary.json", "lock"):
        (run / runs.FOLDER / file).unlink(missing_ok=True)
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    disk = Disk(run, failing(errno.EROFS))
    disk._due = lambda name, path: str(run) in str(path)
    with monkeypatch.context() as patch:
        disk.patch(patch.setattr)
        [row] = runs.overview(run)
        assert row["diagnostics"] == runs.overview(whole)[0]["diagnostics"]
        assert runs.Run(run).draws()["posterior"]["prediction"].shape == (2, 60, 3)
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before


def test_a_folder_that_cannot_be_read_is_not_said_to_hold_none(run, monkeypatch):
    """Tests may run as root, which reads every folder."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(PermissionError):
            runs.overview(run.parent)


# Overwriting


def test_a_request_that_makes_no_sense_replaces_nothing(model, run):
    before = files(run)
    for changes, message in (
        ({"chains": 0}, "chains must be"),
        ({"threads": -1}, "threads must be a whole number of at least 0, got -1"),
        ({"keep": ["latent"]}, "keep must leave something"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.sample(model, run, **JOB | changes, overwrite=True)
        assert files(run) == before
        assert names(run.parent) == ["run"]


def test_whoever_asks_three_times_to_stop_waits_for_the_blocks_under_way(model, whole, tmp_path):
    asked = threading.Semaphore(0)

    def interrupt(*_):
        asked.release()
        raise KeyboardInterrupt

    def three_times(event):
        if not told:
            told.append(event)
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                assert asked.acquire(timeout=60)
                time.sleep(0.1)
            told.append("waited for")

    told, before = [], signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            runs.sample(model, tmp_path / "run", **JOB, progress=three_times)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told[1:] == ["waited for"]
    assert runs.Run(tmp_path / "run").state == "interrupted"
    runs.sample(model, tmp_path / "run", **JOB)
    assert contents(tmp_path / "run") == contents(whole)


def test_a_disk_or_memory_too_small_replaces_nothing_and_makes_nothing(model, run, monkeypatch):
    before = files(run)
    wide = model.replace(width=10**7)
    for out in (run, run.parent / "a" / "b"):
        with pytest.raises(ValueError, match="must fit into memory"):
            runs.sample(wide, out, **JOB, overwrite=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    for out in (run, run.parent / "a" / "b"):
        with pytest.raises(OSError, match=r"needs 0\.\d MiB, 0\.0 MiB are free"):
            runs.sample(model, out, **JOB, overwrite=True)
    assert files(run) == before
    assert names(run.parent) == ["run"]


def test_the_old_run_stays_until_the_new_one_is_complete(model, run):
    old = contents(run)
    interrupted(model, run, 60, **JOB | {"seed": 4}, overwrite=True)
    assert contents(run) == old
    assert runs.under_way(run) != run
    assert [row["run"] for row in runs.overview(run.parent)] == ["run"]
    assert sum(runs.Run(runs.under_way(run)).done) >= 60
    # Another request begins anew, the same one goes on.
    interrupted(model, run, 60, **JOB | {"seed": 5}, overwrite=True)
    done = sum(runs.Run(runs.under_way(run)).done)
    told = []
    runs.sample(model, run, **JOB | {"seed": 5}, overwrite=True, progress=lambda event: told.append(event.done))
    assert sum(told[:2]) >= done
    assert runs.Run(run).job.seed == 5
    assert names(run.parent) == ["run"]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()], ids=repr)
def test_what_cannot_be_read_for_a_while_is_not_damaged(model, run, monkeypatch, error):
    """Nobody is told to draw it again, and a replacement that was begun stays."""
    interrupted(model, run, 60, **JOB | {"seed": 4}, overwrite=True)
    begun, fail = contents(runs.under_way(run)), Mock(side_effect=error)
    for owner, name, failing_one in (
        (np, "load", fail),
        (zarr.Array, "blocks", property(fail)),
        (Path, "read_text", fail),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing_one)
            with pytest.raises(type(error)):
                runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True)
            with pytest.raises(type(error)):
                runs.Run(run).draws()
    assert contents(runs.under_way(run)) == begun
    assert runs.Run(runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True).path).job.seed == 4


def test_a_link_is_followed(model, whole, run):
    (run.parent / "link").symlink_to(run)
    (run.parent / "dangling").symlink_to(run.parent / "far" / "away")
    runs.sample(model, run.parent / "link", **JOB | {"seed": 4}, overwrite=True)
    assert (run.parent / "link").is_symlink()
    assert runs.Run(run).job.seed == 4
    runs.sample(model, run.parent / "dangling", **JOB)
    assert (run.parent / "dangling").is_symlink()
    assert contents(run.parent / "far" / "away") == contents(whole)


@pytest.mark.parametrize("inside", [".", "nested"])
def test_the_folder_that_a_command_runs_in_is_no_place(model, tmp_path, monkeypatch, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / inside)
    with pytest.raises(runs.RunError, match="out must be a folder other than the one that this command runs in"):
        runs.sample(model, tmp_path, **JOB)
    assert names(tmp_path / inside) == []


@pytest.mark.parametrize("name", [None, "thesis.tex", "zarr.json", ".hidden"])
def test_what_is_no_run_is_not_replaced(model, tmp_path, name):
    """A file, or a folder with one in it."""
    out = tmp_path / "out"
    if name:
        out.mkdir()
    (out / (name or "")).write_text("{}")
    found = "a Zarr store of something else" if name == "zarr.json" else "no Zarr"
    with pytest.raises(runs.RunError, match=f"got {found}"):
        runs.sample(model, out, **JOB)
    with pytest.raises(runs.RunError, match="out must be a run, which overwriting replaces"):
        runs.sample(model, out, **JOB, overwrite=True)
    assert [file.read_text() for file in (out, *out.glob("*")) if file.is_file()] == ["{}"]
    assert names(tmp_path) == ["out"]


def test_what_is_someone_elses_stays(model, run):
    """A user's own hidden copies, and what is left of a run whose name begins with this one's."""
    others = {".run.old", ".run.thesis.unfinished", ".run.2.replaced", ".run.2.unfinished", ".run.2.replacement"}
    for name in others:
        shutil.copytree(run, run.parent / name)
    runs.sample(model, run, **JOB)
    shutil.rmtree(run)
    runs.sample(model, run, **JOB | {"draws": 20})
    assert set(names(run.parent)) == {"run"} | others
    assert runs.Run(run).job.draws == 20


def test_a_swap_that_fails_puts_the_old_run_back(model, run, monkeypatch):
    old, disk = contents(run), Disk(run.parent, failing(errno.EIO), moved=run.parent / ".run.replacement")
    with monkeypatch.context() as patch:
        disk.patch(patch.setattr)
        with pytest.raises(OSError, match=r"\.run\.replacement"):
            runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True)
    assert contents(run) == old
    assert runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True).job.seed == 4
    assert names(run.parent) == ["run"]


def test_whoever_stops_it_as_chains_begin_waits_for_them(model, tmp_path, monkeypatch):
    class Stopped(block_runner.ThreadPoolExecutor):
        def submit(self, *arguments):
            super().submit(*arguments)
            time.sleep(0.1)
            raise KeyboardInterrupt

    monkeypatch.setattr(block_runner, "ThreadPoolExecutor", Stopped)
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **JOB, progress=lambda _: time.sleep(0.1))
    done = runs.Run(tmp_path / "run").done
    assert sum(done) < 160
    time.sleep(0.5)
    assert runs.Run(tmp_path / "run").done == done


def test_what_killed_processes_leave_is_cleaned_up(model, whole, run):
    beside = run.parent
    for name in (".run.unfinished", "..run.replacement.unfinished"):
        shutil.copytree(whole, beside / name)  # Killed while it made a run, or one that was to replace another.
    (beside / ".run.unfinished" / "zarr.json").unlink()
    (run / ".prediction.killed.partial").write_text("half")
    old = contents(run)
    run.rename(beside / ".run.replaced")  # Killed in the midst of a swap: the old run comes back.
    with folder.filelock.FileLock(run / ".run" / "lock"):  # So did a reader that tested the lock in between.
        pass
    (beside / ".other.replaced").mkdir()
    runs.sample(model, run, **JOB)
    assert contents(run) == old
    assert names(beside) == [".other.replaced", "run"]
    shutil.copytree(run, beside / ".run.replaced")  # Killed while it deleted the old run.
    (beside / ".run.unfinished").mkdir()  # Killed before it had a lock.
    runs.sample(model, run, **JOB)
    assert names(beside) == [".other.replaced", "run"]


def test_a_run_that_another_process_has_put_back_stays(run, monkeypatch):
    """Just after this process saw that it had to be."""
    seen = folder._no_more_than_a_lock

    def late(out):
        found = seen(out)
        if (replaced := folder.beside(out, folder.REPLACED)).exists():
            replaced.rename(out)
        return found

    monkeypatch.setattr(folder, "_no_more_than_a_lock", late)
    before = files(run)
    run.rename(folder.beside(run, folder.REPLACED))
    folder.recovered(run)
    assert files(run) == before


def test_a_lock_of_the_run_that_was_replaced_is_none(run, whole, monkeypatch):
    """It is swapped between the moments at which the lock is opened and taken."""
    acquire = folder.filelock.FileLock.acquire

    def swapped(*arguments, **options):
        proxy = acquire(*arguments, **options)
        run.rename(run.with_name("old"))
        shutil.copytree(whole, run)
        return proxy

    monkeypatch.setattr(folder.filelock.FileLock, "acquire", swapped)
    with pytest.raises(runs.RunBusy), folder.locked(run):
        pass


def test_a_run_that_was_extended_after_it_was_opened_has_its_own_draws(model, run):
    opened = runs.Run(run)
    before = opened.draws()["posterior"]["prediction"].values
    runs.sample(model, run, **JOB | {"draws": 80})
    np.testing.assert_array_equal(opened.draws()["posterior"]["prediction"], before)
    assert opened.complete


def test_a_replacement_that_has_more_draws_than_are_asked_for_replaces(model, run):
    other = JOB | {"seed": 9}
    replacement = folder.beside(run, folder.REPLACEMENT)
    runs.sample(model, replacement, **other | {"draws": 80})
    found = runs.sample(model, run, **other, overwrite=True)
    assert (found.path, found.drawn, runs.Run(run).drawn) == (run, 60, 80)


@pytest.mark.parametrize("leftover", [".run.unfinished", ".run.replaced"])
def test_what_another_process_is_at_work_on_stays(model, run, leftover):
    shutil.copytree(run, run.parent / leftover)
    with folder.locked(run.parent / leftover):
        assert runs.sample(model, run, **JOB).complete
        shutil.rmtree(run)
        if leftover == ".run.unfinished":
            with pytest.raises(runs.RunBusy, match=r"/run is being written by another process"):
                runs.sample(model, run, **JOB)
        assert (run.parent / leftover / "zarr.json").exists()


def test_a_run_that_is_written_is_not_replaced(model, run):
    """By another process, which began after the replacement did."""
    before, held = files(run), []
    with ExitStack() as stack:

        def hold(_):
            if not held:
                held.append(stack.enter_context(runs.Run(run).locked()))

        with pytest.raises(runs.RunBusy):
            runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True, progress=hold)
    assert files(run) == before
    assert runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True).job.seed == 4


# More draws


def test_thinned_vectorised_chains_that_stopped_and_got_longer_are_those_of_one_go(model, tmp_path):
    job = JOB | {"thin": 5, "chain_method": "vectorised"}
    interrupted(model, tmp_path / "run", 20, **job | {"draws": 30})
    assert runs.Run(tmp_path / "run").state == "interrupted"
    runs.sample(model, tmp_path / "run", **job | {"draws": 30})
    longer, whole = (runs.sample(model, tmp_path / name, **job) for name in ("run", "whole"))
    assert contents(longer.path) == contents(whole.path)
    assert longer.draws().equals(whole.draws())
    assert longer.draws()["posterior"]["order_parameter"].shape == (2, 12, 1, 1)


def add_notes(folder):
    (folder / "notes").mkdir()
    (folder / "notes" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')


MEMBERS = {
    "gone": [
        removed("observed_data/labels/zarr.json"),
        removed("posterior/path/zarr.json"),
        cut(place("posterior/chain/zarr.json")),
    ],
    "others": [
        removed("posterior/zarr.json"),
        lambda run: shutil.copytree(run / "observed_data", run / "observed_backup"),
        add_notes,
    ],
    "a copy of the run": [lambda run: shutil.copytree(run, run.parent / "copy").rename(run / "copy")],
}
"""Damage to what Zarr keeps of each group and array, which the root of a store keeps too."""


@pytest.fixture
def longer(made):
    """Draws of a run of JOB with 80 draws."""
    return runs.Run(made / "longer").draws()


@pytest.mark.parametrize("name", MEMBERS)
def test_more_draws_of_a_run_whose_groups_and_arrays_are_damaged(model, run, longer, name):
    for damage in MEMBERS[name]:
        damage(run)
    found = runs.sample(model, run, **JOB | {"draws": 80})
    assert_same(found.draws(), longer)
    assert found.model.labels.shape == model.labels.shape
    again = xr.open_dataset(run, group="posterior", engine="zarr", consolidated=False)
    assert again.identical(longer["posterior"].to_dataset())


def test_an_attribute_that_another_program_wrote_is_no_damage(model, run, whole, longer):
    """Zarr leaves out what the root says of groups and arrays when it writes without it."""
    zarr.open_group(run, mode="r+", use_consolidated=False).attrs["note"] = "mine"
    assert "consolidated_metadata" not in json.loads((run / "zarr.json").read_text())
    assert_same(runs.Run(run).draws(), runs.Run(whole).draws())
    add_notes(run)
    with pytest.raises(runs.RunError, match=r"is damaged: its zarr.json is not what was written"):
        runs.Run(run)
    shutil.rmtree(run / "notes")
    found = runs.sample(model, run, **JOB | {"draws": 80})
    assert_same(found.draws(), longer)
    assert zarr.open_group(run).attrs["note"] == "mine"


def test_a_complete_run_is_found_complete_without_a_lock(model, run, monkeypatch):
    """On a disk that can only be read."""
    monkeypatch.setattr(folder, "locked", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    assert runs.sample(model, run, **JOB).complete
    with pytest.raises(OSError, match="Read-only"):
        runs.sample(model, run, **JOB | {"draws": 80})


def test_places_where_no_run_can_stand(model, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a.toml").touch()
    for out, message in (
        ("loop", "out must be a folder, got .*, a link that leads to itself"),
        ("\udcff", "out must be a name in UTF-8"),
        ("a.toml/run", f"out must be in a folder, got .*, but {tmp_path / 'a.toml'} is a file"),
    ):
        with pytest.raises(runs.RunError, match=message):
            runs.sample(model, tmp_path / out, **JOB)
    with pytest.raises(OSError, match="/proc"):
        runs.sample(model, Path("/proc/bayesattn/run"), **JOB)
    with pytest.raises(runs.RunError, match="does not exist"):
        runs.Run(tmp_path / "none")
    assert names(tmp_path) == ["a.toml", "loop"]


def test_more_draws_need_room_for_themselves_alone(model, run, monkeypatch):
    before, more = files(run), runs.Run(run).nbytes * 20 // 60
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=more - 1))
    with pytest.raises(OSError, match="MiB are free"):
        runs.sample(model, run, **JOB | {"draws": 80})
    assert files(run) == before
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=more))
    assert runs.sample(model, run, **JOB | {"draws": 80}).drawn == 80


# Identity


def test_a_preset_that_came_later_changes_no_run(model, run, monkeypatch):
    monkeypatch.setitem(job_module.PRESETS, "mala", {"path": {"step_size": 0.3}})
    assert runs.Run(run).job.options == {"steps": 2}
    assert runs.Run(run).draws()["posterior"].sizes["draw"] == 60
    assert runs.Run(run).model.temperature == model.temperature
    with pytest.raises(runs.RunError, match=r"options = {'steps': 2}, got {'step_size': 0.3, 'steps': 2}"):
        runs.sample(model, run, **JOB)


def test_what_results_show_belongs_to_a_run(model, run):
    for changes, message in (
        ({"test_labels": np.ones(3)}, "its test_labels differ"),
        ({"head_names": (("another",),)}, "holds a run with names = "),
        ({"path_groups": {"good": (0,)}}, "holds a run with names = "),
    ):
        other, job = model.replace(**changes), runs.Run(run).job
        with pytest.raises(runs.RunError, match=message):
            runs.sample(other, run, **JOB)
        assert provenance.identity(other, job) != provenance.identity(model, job)


def test_a_run_of_numbers_is_not_that_of_classes(model, tmp_path):
    """The table of a model has no entry of a Gaussian likelihood."""
    numbers, job = model.replace(labels=np.sign(model.labels)), job_module.Job.of(**JOB)
    store.create(tmp_path / "run", numbers, job, block_runner.plan(numbers, job))
    with pytest.raises(runs.RunError, match="holds a run with observation = None, got categorical"):
        runs.sample(numbers.replace(likelihood=ba.Categorical(numbers.temperature)), tmp_path / "run", **JOB)


NO_ROOM = (OSError(errno.ENOSPC, "No space left"), "No space left while writing a block; the blocks before it are safe")


@pytest.mark.parametrize(("error", "said"), [NO_ROOM, (MemoryError("nothing left"), "nothing left")])
def test_a_block_that_cannot_be_written_is_a_failure_and_no_damage(model, whole, tmp_path, monkeypatch, error, said):
    """Nobody is told to draw the run again: the same call continues it."""
    write = block_runner.write_region

    def fail(arrays, chains, first, outputs):
        if first >= 20:
            raise error
        write(arrays, chains, first, outputs)

    with monkeypatch.context() as patch:
        patch.setattr("bayesattn.jobs.runs.recorder.write_region", fail)
        with pytest.raises(type(error), match=said):
            runs.sample(model, tmp_path / "run", **JOB)
    assert runs.Run(tmp_path / "run").state == "failed"
    assert said in runs.overview(tmp_path)[0]["error"]
    runs.sample(model, tmp_path / "run", **JOB)
    assert contents(tmp_path / "run") == contents(whole)


def test_a_run_that_is_deleted_as_it_is_sampled_is_not_called_safe(model, tmp_path):
    def delete(_):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(runs.RunError, match="run must stay where it is while it is sampled"):
        runs.sample(model, tmp_path / "run", **JOB | {"chains": 1}, progress=delete)
