"""Attacks on runs: what is damaged is named and refused, what was there stays until its successor is complete."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import threading
import time
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
import zarr

import bayesattn as ba
from bayesattn import runs
from bayesattn.models import LatentModel
from bayesattn.runs import folder, provenance, store
from bayesattn.samplers import blocks as block_runner
from bayesattn.samplers import job as job_module
from tests.attacks.conftest import JOB
from tests.disk import Disk, failing
from tests.posteriors import tiny_model
from tests.test_runs import StopAfter, contents, cut, edit_description, edit_environment


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "log.jsonl"}


def chunk(name="prediction", chain=1, number=1, group="posterior"):
    return lambda run: next((run / group / name).glob(f"c.{chain}.{number}*"))


def remove_chunks(pattern):
    return lambda run: [file.unlink() for file in run.glob(pattern)]


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def with_nan(run):
    """As another program might, that knows Zarr: the file is sound, its content is not."""
    zarr.open_group(run, mode="r+")["posterior"]["prediction"][1, 25:30] = np.nan


def folder_for_chunk(run):
    file = chunk()(run)
    file.unlink()
    file.mkdir()


DRAWS = {
    "chunk deleted": lambda f: chunk()(f).unlink(),
    "chunk of U deleted": lambda f: chunk("order_parameter", 0, 0)(f).unlink(),
    "all chunks of a chain deleted": remove_chunks("posterior/bartlett/c.1.*"),
    "all chunks deleted": remove_chunks("posterior/bartlett/c.*"),
    "chunk cut short": lambda f: cut(chunk()(f)),
    "chunk empty": lambda f: cut(chunk()(f), 0),
    "chunk of noise": lambda f: chunk()(f).write_bytes(np.random.default_rng(0).bytes(999)),
    "one bit of a chunk": lambda f: flip(chunk()(f)),
    "one bit of a chunk of energies": lambda f: flip(chunk("energy", group="sample_stats")(f)),
    "draws set to NaN": with_nan,
    "chunk of energies deleted": lambda f: chunk("energy", group="sample_stats")(f).unlink(),
    "chunk of divergences deleted": lambda f: chunk("diverging", group="sample_stats")(f).unlink(),
    "a folder in place of a chunk": folder_for_chunk,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_that_are_not_those_written(model, run, name):
    DRAWS[name](run)
    before = files(run)
    for use in (
        runs.Run(run).draws,
        lambda: runs.Run(run).to_netcdf(run.parent / "draws.nc"),
        runs.Run(run).summary,
        lambda: runs.sample(model, run, **JOB),
    ):
        with pytest.raises(
            runs.RunError,
            match=r"is damaged: (posterior|sample_stats)/\w+ of chain \d, draws .*; draw it again with overwrite=True",
        ):
            use()
    [row] = runs.overview(run)
    assert row["state"] == "unreadable"
    assert "is damaged" in row["error"]
    assert files(run) == before
    assert names(run.parent) == ["run"]


def checkpoint(change):
    def damage(folder):
        file = folder / runs.FOLDER / "chain-1.npz"
        with np.load(file) as stored:
            arrays = dict(stored)
        about = json.loads(arrays["about"].tobytes())
        change(about, arrays)
        np.savez(file, **arrays | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})

    return damage


def flip_leaf(file):
    with np.load(file) as stored:
        leaf = max((stored[name] for name in stored.files if name.startswith("leaf")), key=lambda leaf: leaf.nbytes)
    content = bytearray(file.read_bytes())
    content[content.index(leaf.tobytes())] ^= 1
    file.write_bytes(bytes(content))


def flip_entry(file, place, bit):
    """In the zip's list of members."""
    content = bytearray(file.read_bytes())
    content[content.rindex(b"PK\x01\x02") + place] ^= bit
    file.write_bytes(bytes(content))


CHECKPOINTS = {
    "cut short": lambda f: cut(f / ".run" / "chain-1.npz"),
    "empty": lambda f: cut(f / ".run" / "chain-1.npz", 0),
    "a text": lambda f: (f / ".run" / "chain-1.npz").write_text("chain 1"),
    "one bit of a state": lambda f: flip_leaf(f / ".run" / "chain-1.npz"),
    "of another run": checkpoint(lambda about, _: about.update(run="another")),
    "of the future": checkpoint(lambda about, _: about.update(done=81)),
    "of the past": checkpoint(lambda about, _: about.update(done=-1)),
    "done is a text": checkpoint(lambda about, _: about.update(done="all")),
    "leaves missing": checkpoint(lambda about, _: about.update(leaves=99)),
    "one bit, by which it is encrypted": lambda f: flip_entry(f / ".run" / "chain-1.npz", 8, 1),
    "one bit, of another compression": lambda f: flip_entry(f / ".run" / "chain-1.npz", 10, 32),
    "a folder": lambda f: [(f / ".run" / "chain-1.npz").unlink(), (f / ".run" / "chain-1.npz").mkdir()],
    "a chain's own of the other chain": lambda f: shutil.copy(f / ".run" / "chain-0.npz", f / ".run" / "chain-1.npz"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_that_are_damaged(model, run, name):
    CHECKPOINTS[name](run)
    for use in (runs.Run(run).draws, lambda: runs.sample(model, run, **JOB)):
        with pytest.raises(runs.RunError, match=r"is damaged: .*; draw it again with overwrite=True"):
            use()


PREPARED = {
    "cut short": cut,
    "missing": lambda file: file.unlink(),
    "a folder": lambda file: [file.unlink(), file.mkdir()],
    "one bit, of another compression": lambda file: flip_entry(file, 10, 32),
    "of another run": lambda file: store.write_checkpoint(file, {"run": "another"}, {}),
}


@pytest.mark.parametrize("name", PREPARED)
def test_what_was_computed_before_sampling_and_is_damaged(model, stopped, name):
    PREPARED[name](stopped / ".run" / "prepared.npz")
    before = files(stopped)
    with pytest.raises(runs.RunError, match=r"prepared\.npz cannot be read .* draw it again with overwrite=True"):
        runs.sample(model, stopped, **JOB)
    assert files(stopped) == before


def test_a_complete_run_needs_nothing_of_what_was_computed_before(model, run):
    (run / ".run" / "prepared.npz").unlink()
    edit_environment(run, jax="0.1")
    assert runs.sample(model, run, **JOB).complete


STRAY = {
    "a folder in place of the log": lambda f: [(f / ".run" / "log.jsonl").unlink(), (f / ".run" / "log.jsonl").mkdir()],
    "a folder named as if half written": lambda f: (f / "x.partial").mkdir(),
}


@pytest.mark.parametrize("name", STRAY)
def test_what_stands_about_stops_no_run(model, whole, stopped, name):
    STRAY[name](stopped)
    runs.sample(model, stopped, **JOB)
    assert contents(stopped) == contents(whole)


DATA = {
    "labels deleted": remove_chunks("observed_data/labels/c.*"),
    "test labels deleted": remove_chunks("constant_data/test_labels/c.*"),
    "names of paths deleted": remove_chunks("posterior/path/c.*"),
    "numbers of draws deleted": remove_chunks("posterior/draw/c.*"),
    "numbers of chains deleted": remove_chunks("sample_stats/chain/c.*"),
    "group deleted": lambda f: shutil.rmtree(f / "sample_stats"),
    "one bit of the labels": lambda f: flip(f / "observed_data" / "labels" / "c.0"),
    "one bit of the names of paths": lambda f: flip(f / "posterior" / "path" / "c.0"),
    "hidden folder left out": lambda f: shutil.rmtree(f / runs.FOLDER),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_are_damaged(model, run, name):
    DATA[name](run)
    for use in (
        runs.Run(run).draws,
        lambda: runs.sample(model, run, **JOB),
        lambda: runs.Run(run).to_netcdf("draws.nc"),
    ):
        with pytest.raises(runs.RunError, match="is damaged"):
            use()
    assert runs.overview(run)[0]["state"] == "unreadable"


def description(**changes):
    return lambda f: edit_description(f, **changes)


def without(key):
    return description(**{key: None})


DESCRIPTIONS = {
    "cut short": (lambda f: cut(f / "zarr.json"), "zarr.json is not JSON"),
    "empty": (lambda f: cut(f / "zarr.json", 0), "zarr.json is not JSON"),
    "not text": (lambda f: (f / "zarr.json").write_bytes(b"\xff\xfe\x00"), "zarr.json is not JSON"),
    "too deep": (lambda f: (f / "zarr.json").write_text("[" * 10**5), "zarr.json is not JSON"),
    "a number": (lambda f: (f / "zarr.json").write_text("5"), "a Zarr store of something else"),
    "of a list": (lambda f: (f / "zarr.json").write_text('{"attributes": {"bayesattn": [1]}}'), "of something else"),
    "of another format": (description(format="x"), "of store format 4, got format x"),
    "of no format": (without("format"), "got format None"),
    "without sampler": (without("sampler"), "is not what was written"),
    "without identity": (without("identity"), "is not what was written"),
    "model is a number": (description(model=5), "the data of the model cannot be read"),
    "sampler is not TOML": (description(sampler="sampler ="), "its settings cannot be read"),
    "sampler has an unknown key": (description(sampler="momentum = 3"), "its settings cannot be read"),
    "unknown sampler": (description(sampler='sampler = "gibbs"'), "its settings cannot be read"),
    "of an unknown kind": (description(kind="Network"), "the data of the model cannot be read"),
    "of another model": (description(model="temperature = 3"), "the data of the model cannot be read"),
    "of another identity": (description(identity="abc"), "is damaged"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_that_are_damaged(model, whole, run, name):
    damage, message = DESCRIPTIONS[name]
    damage(run)
    with pytest.raises(runs.RunError, match=message):
        runs.sample(model, run, **JOB)
    # It takes its own line alone, and gives way to another run.
    shutil.copytree(whole, run.parent / "sound")
    states = {row["run"]: row["state"] for row in runs.overview(run.parent)}
    assert states["sound"] == "complete"
    assert names(run.parent) == ["run", "sound"]


def test_consolidated_metadata_are_those_that_zarr_writes(run):
    ours = json.loads((run / "zarr.json").read_text())["consolidated_metadata"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of .run, and of a standard that has no place for it yet.
        zarr.consolidate_metadata(run)
    assert json.loads((run / "zarr.json").read_text())["consolidated_metadata"] == ours


EDITS = {
    "the model's name": (r"\"name\": \"model\"", r"\"name\": \"motel\""),
    "the number of draws": ("draws = 60", "draws = 40"),
    "dimensions": ('"dimension_names": ["chain", "draw"]', '"dimension_names": ["draw", "chain"]'),
    "a shape": ('"shape": [2, 60]', '"shape": [2, 61]'),
}


def assert_same(tree, other):
    """Groups, arrays and coordinates; the root's attributes tell of sums and of the code that made it."""
    tree.attrs = other.attrs = {}
    xr.testing.assert_identical(tree, other)


@pytest.mark.parametrize("name", EDITS)
def test_descriptions_that_still_make_sense_but_are_not_those_written(run, name):
    text, (old, new) = (run / "zarr.json").read_text(), EDITS[name]
    assert old in text
    (run / "zarr.json").write_text(text.replace(old, new))
    with pytest.raises(runs.RunError, match=r"is damaged: its zarr.json is not what was written; draw it again"):
        runs.Run(run)


def test_bytes_of_a_description_that_are_damaged(whole, run):
    """It is refused, or means the same."""
    sound, rng, refused = (whole / "zarr.json").read_bytes(), np.random.default_rng(0), 0
    expected = runs.Run(whole)
    for at in rng.choice(len(sound), 300, replace=False):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << int(rng.integers(8))
        (run / "zarr.json").write_bytes(damaged)
        try:
            found = runs.Run(run)
            assert found.description == expected.description
            assert found.metadata == expected.metadata
        except runs.RunError:
            refused += 1
    assert refused > 250


def test_a_damaged_run_is_drawn_again_to_the_same_draws(model, whole, run):
    cut(run / "zarr.json")
    chunk()(run).unlink()
    runs.sample(model, run, **JOB, overwrite=True)
    assert contents(run) == contents(whole)
    assert names(run.parent) == ["run"]


SIDE_FILES = {
    "log of a number": ("log.jsonl", "5\n"),
    "log of null": ("log.jsonl", "null\n"),
    "log of lists": ("log.jsonl", '[1, 2]\n["block"]\n'),
    "log of an event without a name": ("log.jsonl", '{"time": 3}\n'),
    "log of a block without seconds": ("log.jsonl", '{"event": "block", "chains": [0]}\n'),
    "log of a block with words": ("log.jsonl", '{"event": "block", "seconds": "few", "steps": 3, "chains": [0]}\n'),
    "log too deep": ("log.jsonl", "[" * 10**5),
    "log of bytes": ("log.jsonl", b"\xff\x00\xfe\n"),
    "log empty": ("log.jsonl", ""),
    "log missing": ("log.jsonl", None),
    "log is a folder": ("log.jsonl", ...),
    **{
        f"{name}: {what}": (f"{name}.json", content)
        for name in ("diagnostics", "summary")
        for what, content in {
            "cut": '{"about": {',
            "empty": "",
            "a number": "5",
            "too deep": "[" * 10**5,
            "bytes": b"\xff\x00",
            "of an older version": '{"chains": 2, "draws": 60, "rhat": 99.0}',
            "missing": None,
            "a folder": ...,
        }.items()
    },
}


@pytest.mark.parametrize("name", SIDE_FILES)
def test_side_files_that_are_damaged(whole, run, name):
    file, content = SIDE_FILES[name]
    file = run / runs.FOLDER / file
    file.unlink()
    if content is ...:
        file.mkdir()
    elif content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    [row], [expected] = runs.overview(run), runs.overview(whole)
    assert row["diagnostics"] == expected["diagnostics"]
    assert row["state"] == "complete"
    assert json.dumps(runs.Run(run).summary()) == json.dumps(runs.Run(whole).summary())


@pytest.mark.parametrize("change", ["number edited", "unknown field", "field missing", "other code", "other draws"])
def test_diagnostics_that_are_kept_count_while_all_is_as_it_was(whole, run, change):
    file = run / runs.FOLDER / "diagnostics.json"
    expected = runs.Run(whole).diagnose()
    runs.Run(run).diagnose()
    content = json.loads(file.read_text())
    edit = {
        "number edited": lambda: content["value"].update(ess=9999.0),
        "unknown field": lambda: content["value"].update(quality="good"),
        "field missing": lambda: content["value"].pop("ess"),
        "other code": lambda: content["about"].update(by="x"),
        "other draws": lambda: content["about"].update(of="x"),
    }
    edit[change]()
    if change.startswith("other"):
        content["value"]["ess"] = 9999.0
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
    """On a disk that is mounted for reading alone; root, as which tests may run, is held up by nothing less."""
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


# Overwriting


BAD_REQUESTS = {
    "no chains": ({"chains": 0}, "chains must be"),
    "no draws": ({"draws": 0}, "draws must be"),
    "thin that does not divide": ({"thin": 7}, "thin must divide"),
    "negative seed": ({"seed": -1}, "seed must be"),
    "unknown sampler": ({"sampler": "gibbs"}, "sampler must be"),
    "unknown parameterisation": ({"parameterisation": "latent"}, "parameterisation of a Model must be"),
    "sampler that cannot": ({"sampler": "sgld"}, "sgld"),
    "unknown quantity": ({"keep": ["weight"]}, "keep must be"),
    "nothing kept": ({"keep": ["latent"]}, "keep must leave something"),
    "unknown option": ({"options": {"steps": 3}}, "steps"),
    "chains in no such way": ({"chain_method": "serial"}, "chain_method must be"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_request_that_makes_no_sense_replaces_nothing(model, run, name):
    changes, message = BAD_REQUESTS[name]
    before = files(run)
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
            runs.sample(wide, out, **JOB, parameterisation="path", overwrite=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    for out in (run, run.parent / "a" / "b"):
        with pytest.raises(OSError, match="MiB are free"):
            runs.sample(model, out, **JOB, overwrite=True)
    assert files(run) == before
    assert names(run.parent) == ["run"]


def test_the_old_run_stays_until_the_new_one_is_complete(model, whole, run):
    old = contents(run)
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True, progress=StopAfter(60))
    assert contents(run) == old
    assert runs.under_way(run) != run
    assert sum(runs.Run(runs.under_way(run)).done) >= 60
    # Another request begins anew, the same one goes on.
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, run, **JOB | {"seed": 5}, overwrite=True, progress=StopAfter(60))
    done = sum(runs.Run(runs.under_way(run)).done)
    told = []
    runs.sample(model, run, **JOB | {"seed": 5}, overwrite=True, progress=lambda event: told.append(event.done))
    assert sum(told[:2]) >= done
    assert runs.Run(run).job.seed == 5
    assert names(run.parent) == ["run"]
    runs.sample(model, run, **JOB, overwrite=True)
    assert contents(run) == contents(whole)


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


@pytest.mark.parametrize("what", ["thesis", "another program's store", "file", "nothing but a hidden file"])
def test_what_is_no_run_is_not_replaced(model, tmp_path, what):
    out = tmp_path / "out"
    if what == "file":
        out.write_text("precious")
    else:
        out.mkdir()
        (out / {"thesis": "thesis.tex", "nothing but a hidden file": ".hidden"}.get(what, "zarr.json")).write_text("{}")
    before = files(tmp_path)
    for overwrite in (True, False):
        with pytest.raises(runs.RunError):
            runs.sample(model, out, **JOB, overwrite=overwrite)
    assert files(tmp_path) == before


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
    old, rename = contents(run), Path.rename

    def fail(path, target):
        if path.name == ".run.replacement":
            raise OSError(errno.EIO, "no more")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no more"):
        runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True)
    assert contents(run) == old
    monkeypatch.undo()
    assert runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True).job.seed == 4
    assert names(run.parent) == ["run"]


def test_whoever_stops_it_as_chains_begin_waits_for_them(model, whole, tmp_path, monkeypatch):
    class Stopped(block_runner.ThreadPoolExecutor):
        def submit(self, *arguments):
            super().submit(*arguments)
            time.sleep(0.1)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(block_runner, "ThreadPoolExecutor", Stopped)
        with pytest.raises(KeyboardInterrupt):
            runs.sample(model, tmp_path / "run", **JOB, progress=lambda _: time.sleep(0.1))
    done = runs.Run(tmp_path / "run").done
    assert sum(done) < 160
    time.sleep(0.5)
    assert runs.Run(tmp_path / "run").done == done
    runs.sample(model, tmp_path / "run", **JOB)
    assert contents(tmp_path / "run") == contents(whole)


def test_what_killed_processes_leave_is_cleaned_up(model, whole, run):
    beside = run.parent
    for name in (".run.unfinished", "..run.replacement.unfinished"):
        shutil.copytree(whole, beside / name)  # Killed while it made a run, or one that was to replace another.
    (beside / ".run.unfinished" / "zarr.json").unlink()
    (run / ".prediction.killed.partial").write_text("half")
    old = contents(run)
    run.rename(beside / ".run.replaced")  # Killed in the midst of a swap: the old run comes back.
    (beside / ".other.replaced").mkdir()
    runs.sample(model, run, **JOB)
    assert contents(run) == old
    assert names(beside) == [".other.replaced", "run"]
    shutil.copytree(run, beside / ".run.replaced")  # Killed while it deleted the old run.
    (beside / ".run.unfinished").mkdir()  # Killed before it had a lock.
    runs.sample(model, run, **JOB)
    assert names(beside) == [".other.replaced", "run"]


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
    before = files(run)
    with runs.Run(run).locked(), pytest.raises(runs.RunBusy):
        runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True)
    # Nor where that begins after the replacement did.
    held = threading.Event()

    def hold(_):
        if not held.is_set():
            held.lock = runs.Run(run).locked()
            held.lock.__enter__()
            held.set()

    with pytest.raises(runs.RunBusy):
        runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True, progress=hold)
    held.lock.__exit__(None, None, None)
    assert files(run) == before
    assert runs.sample(model, run, **JOB | {"seed": 4}, overwrite=True).job.seed == 4


# More draws


OTHERWISE = {"thin": 5, "chain_method": "vectorised", "sampler": "hmc", "options": {"num_steps": 3}}


@pytest.mark.parametrize("changes", [{}, OTHERWISE], ids=["by default", "thinned, vectorised"])
def test_more_draws_of_a_run_are_those_of_a_longer_one(model, tmp_path, changes):
    # 30 draws end in the midst of a chunk.
    runs.sample(model, tmp_path / "run", **JOB | changes | {"draws": 30})
    more = runs.sample(model, tmp_path / "run", **JOB | changes)
    runs.sample(model, tmp_path / "whole", **JOB | changes)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert more.draws().equals(runs.Run(tmp_path / "whole").draws())
    assert more.identity == runs.Run(tmp_path / "whole").identity
    assert more.state == "complete"


def test_more_draws_of_a_run_that_stopped(model, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **JOB | {"draws": 40}, progress=StopAfter(70))
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **JOB, progress=StopAfter(90))
    run = runs.sample(model, tmp_path / "run", **JOB)
    assert run.draws()["posterior"].equals(runs.Run(whole).draws()["posterior"])


def test_more_draws_that_fail_at_the_last_moment(model, run, monkeypatch, tmp_path):
    """Arrays are longer by then, the description is not: it is the run that it was, and the same request goes on."""
    before, replace = runs.Run(run).draws(), store.replace_file

    def fail_at_the_root(file, content):
        if file == run / "zarr.json":
            raise OSError(errno.EIO, "the disk failed")
        replace(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(store, "replace_file", fail_at_the_root)
        with pytest.raises(OSError, match="the disk failed"):
            runs.sample(model, run, **JOB | {"draws": 100})
    assert runs.Run(run).complete
    assert runs.Run(run).draws().identical(before)
    longer = runs.sample(model, run, **JOB | {"draws": 100})
    expected = runs.sample(model, tmp_path / "longer", **JOB | {"draws": 100})
    assert longer.draws()["posterior"].equals(expected.draws()["posterior"])


def change_member(name, **changes):
    def change(folder):
        file = folder / name / "zarr.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def add_notes(folder):
    (folder / "notes").mkdir()
    (folder / "notes" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')


MEMBERS = {
    "an array of data gone": lambda f: (f / "observed_data" / "labels" / "zarr.json").unlink(),
    "a coordinate gone": lambda f: (f / "posterior" / "path" / "zarr.json").unlink(),
    "a group gone": lambda f: (f / "posterior" / "zarr.json").unlink(),
    "another dimension": change_member("posterior/path", dimension_names=["qath"]),
    "another type": change_member("constant_data/temperature", data_type="int64"),
    "cut short": lambda f: cut(f / "posterior" / "chain" / "zarr.json"),
    "a copy of a group": lambda f: shutil.copytree(f / "posterior", f / "posterior_backup"),
    "a copy of the run": lambda f: shutil.copytree(f, f.parent / "copy").rename(f / "copy"),
    "another's notes": add_notes,
}
"""Damage to what Zarr keeps of each group and array, which the root of a store keeps too."""


@pytest.fixture(scope="session")
def longer(tmp_path_factory, model):
    """A run of JOB with 80 draws, not to be touched."""
    return runs.sample(model, tmp_path_factory.mktemp("longer") / "run", **JOB | {"draws": 80}).draws().load()


@pytest.mark.parametrize("damage", MEMBERS)
def test_more_draws_of_a_run_whose_groups_and_arrays_are_damaged(model, run, longer, damage):
    MEMBERS[damage](run)
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


@pytest.mark.parametrize("out", ["loop", "a.toml/run", "\udcff"])
def test_places_where_no_run_can_stand(model, tmp_path, out):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a.toml").touch()
    with pytest.raises(runs.RunError, match="out must be"):
        runs.sample(model, tmp_path / out, **JOB)
    assert names(tmp_path) == ["a.toml", "loop"]


@pytest.mark.parametrize("why", ["other draws", "no room"])
def test_more_draws_that_there_cannot_be(model, run, monkeypatch, why):
    job, expected = JOB | {"draws": 80}, "was begun with draws_version 7"
    if why == "other draws":
        edit_environment(run, draws_version=7)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
        expected = "MiB are free"
    before = files(run)
    with pytest.raises((runs.RunError, OSError), match=expected):
        runs.sample(model, run, **job)
    assert files(run) == before


# Identity


def test_a_preset_that_came_later_changes_no_run(model, run, monkeypatch):
    monkeypatch.setitem(job_module.PRESETS, "nuts", {"collapsed": {"max_tree_depth": 8}})
    assert runs.Run(run).job.options == {}
    assert runs.Run(run).draws()["posterior"].sizes["draw"] == 60
    assert runs.Run(run).model.temperature == model.temperature
    with pytest.raises(runs.RunError, match=r"holds a run with options = {}, got {'max_tree_depth': 8}"):
        runs.sample(model, run, **JOB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": np.array([1.0, 1.0, 1.0])}, "its test_labels differ"),
        ({"head_names": (("another",),)}, "holds a run with names = "),
        ({"path_groups": {"good": (0,)}}, "holds a run with names = "),
    ],
    ids=["test labels", "head names", "groups"],
)
def test_what_results_show_belongs_to_a_run(model, run, changes, message):
    with pytest.raises(runs.RunError, match=message):
        runs.sample(model.replace(**changes), run, **JOB)
    job = runs.Run(run).job
    assert provenance.identity(model.replace(**changes), job) != provenance.identity(model, job)


@pytest.mark.parametrize("number", [2, 3])
def test_runs_of_earlier_store_formats_are_refused(model, whole, run, number):
    edit_description(run, format=number)
    for use in (runs.Run, lambda run: runs.sample(model, run, **JOB)):
        with pytest.raises(
            runs.RunError, match=f"store format 4, got format {number}, written by bayesattn .*: open it"
        ):
            use(run)
    runs.sample(model, run, **JOB, overwrite=True)
    assert contents(run) == contents(whole)


def test_a_run_of_a_latent_model_is_not_that_of_a_nameless_network(model, tmp_path):
    rng = np.random.default_rng(0)
    latent = LatentModel(features=rng.normal(size=(4, 2)), values=rng.normal(size=(4, 1)), noise=0.5, prior=1.0)
    job = job_module.Job.of(parameterisation="latent", **JOB)
    store.create(tmp_path / "run", latent, job, block_runner.plan(latent, job))
    with pytest.raises(runs.RunError, match="holds a run with parameterisation = latent, got collapsed"):
        runs.sample(model.replace(head_names=None), tmp_path / "run", **JOB)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_disk_that_fails_is_a_failure_not_an_interruption(model, tmp_path, monkeypatch, number):
    write = block_runner.write_region

    def fail(arrays, chains, first, outputs):
        if first >= 20:
            raise OSError(number, os.strerror(number))
        write(arrays, chains, first, outputs)

    monkeypatch.setattr("bayesattn.runs.sampling.write_region", fail)
    with pytest.raises(OSError, match="while writing a block; the blocks before it are safe"):
        runs.sample(model, tmp_path / "run", **JOB)
    assert runs.Run(tmp_path / "run").state == "failed"
    assert os.strerror(number) in runs.overview(tmp_path)[0]["error"]


def test_an_old_run_is_listed_by_its_folder_alone(whole, tmp_path):
    """What is being made or deleted beside runs is not listed."""
    for name in ("run", ".run.unfinished", ".run.replaced", ".run.replacement"):
        shutil.copytree(whole, tmp_path / name)
    assert folder.found_in(tmp_path) == [tmp_path / "run"]


def test_settings_of_a_run_are_toml(run):
    assert tomllib.loads(runs.Run(run).description["sampler"])["draws"] == 60
    assert ba.samplers.Job.restored(tomllib.loads(runs.Run(run).description["sampler"])) == ba.samplers.Job(**JOB)


def test_a_model_wider_than_memory_is_refused_before_any_compilation():
    began = time.monotonic()
    wide = tiny_model(widths=(10**7, 10**7))
    for parameterisation in ("path", "token"):
        with pytest.raises(ValueError, match="must fit into memory"):
            ba.sample(wide, parameterisation=parameterisation)
    assert time.monotonic() - began < 60
