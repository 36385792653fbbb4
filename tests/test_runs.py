"""Runs on disk: killed and resumed to the same bits, opened while they go on, damaged."""

import json
import pickle
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
import zarr

import bayesattn as ba
from bayesattn import runs
from bayesattn.models.description import described
from bayesattn.runs import provenance, sampling, store
from bayesattn.samplers import SAMPLERS
from bayesattn.samplers import blocks as block_runner
from tests import killed_run
from tests.killed_run import BLOCK, CHUNK
from tests.posteriors import tiny_model
from tests.processes import Started

JOB = {"sampler": "nuts", "chains": 2, "warmup": 20, "draws": 100, "seed": 3}
KILLS = 20


def contents(store):
    """Bytes of every array of draws, and of every leaf of the sampler's last state."""
    tree = zarr.open_group(store, mode="r")
    groups = ("posterior", "sample_stats")
    found = {(group, name): np.asarray(a[...]).tobytes() for group in groups for name, a in tree[group].arrays()}
    for file in sorted((store / runs.FOLDER).glob("chain-*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            found |= {(file.name, name): stored[name].tobytes() for name in stored.files if name != "about"}
    return found


def run_process(out, job, moment="never"):
    """Exit status and output of a process that makes a run on disk, killed at a moment."""
    return Started(killed_run.main, out, job, moment).wait()


def random_moments(count, steps, rng):
    """Moments spread over a run, far enough from each other for a block between any two.

    Half go by the clock, the others come in the course of writing a file.
    """
    for number in range(count):
        at = int((number + rng.uniform(0, 0.5)) * steps / count)
        writes, part = rng.integers(1, 60), rng.integers(2)
        yield f"{at}:{rng.uniform(0, 0.02):.4f}" if number % 2 else f"{at}/{writes}/{part}"


def require_the_same_draws_after_kills(folder, job, kills, rng):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
        runs.sample(tiny_model(), folder / "uninterrupted", **job)
    steps = job["chains"] * (job["warmup"] + job["draws"])
    died, where = 0, []
    for moment in random_moments(kills, steps, rng):
        status, _, err = run_process(folder / "killed", job, moment)
        assert status in (0, -signal.SIGKILL), err
        died += status == -signal.SIGKILL
        where.append(sum(runs.Run(folder / "killed").done))
    assert run_process(folder / "killed", job)[0] == 0
    # A moment close to the end may come too late.
    assert died >= 0.7 * kills
    assert len(set(where)) > kills / 2
    assert contents(folder / "killed") == contents(folder / "uninterrupted")


def test_killed_and_resumed_draws_are_bit_identical(tmp_path):
    job = JOB | {"draws": 200}
    require_the_same_draws_after_kills(tmp_path, job, 2, np.random.default_rng(1))


@pytest.mark.heavy
@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name not in ("nuts", "hmc")])
def test_killed_langevin_runs_are_bit_identical(tmp_path, sampler):
    job = {"sampler": sampler, "parameterisation": "path", "chains": 2, "warmup": 200, "draws": 400}
    if sampler not in ("adjusted_mclmc", "tempered"):
        job |= {"options": {"steps": 5} | ({"minibatch": 3} if sampler == "sgld" else {})}
    require_the_same_draws_after_kills(tmp_path, job, 4, np.random.default_rng(7))


@pytest.mark.heavy
@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("sampler", ["nuts path", "hmc path", "nuts collapsed"])
def test_killed_twenty_times_and_resumed_draws_are_bit_identical(tmp_path, sampler, chains):
    name, parameterisation = sampler.split()
    job = {"sampler": name, "parameterisation": parameterisation, "chains": chains, "warmup": 400, "draws": 1200}
    require_the_same_draws_after_kills(tmp_path, job, KILLS, np.random.default_rng(chains))


class StopAfter:
    """A progress callback that interrupts the run after so many steps of all chains."""

    def __init__(self, steps):
        self.steps, self.done = steps, {}

    def __call__(self, event):
        self.done[event.chain] = event.done
        if sum(self.done.values()) >= self.steps:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def made(tmp_path_factory, model):
    """A folder with a complete run, an interrupted one, and one made in one go to compare them with."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
        patch.setattr(store, "CHUNK_DRAWS", CHUNK)
        runs.sample(model, folder / "complete", **JOB)
        with pytest.raises(KeyboardInterrupt):
            runs.sample(model, folder / "interrupted", **JOB, progress=StopAfter(180))
    return folder


@pytest.fixture
def complete(made, tmp_path):
    return shutil.copytree(made / "complete", tmp_path / "complete")


@pytest.fixture
def interrupted(made, tmp_path):
    return shutil.copytree(made / "interrupted", tmp_path / "interrupted")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
    monkeypatch.setattr(store, "CHUNK_DRAWS", CHUNK)


@pytest.mark.filterwarnings("ignore:chains have not mixed")
def test_a_run_holds_the_draws_that_sample_returns(model, made):
    tree, on_disk = ba.sample(model, **JOB), runs.Run(made / "complete").draws()
    assert set(tree.children) == set(on_disk.children)
    for group in tree.children:
        assert set(tree[group].data_vars) == set(on_disk[group].data_vars)
        for name, values in tree[group].variables.items():
            assert values.dims == on_disk[group][name].dims
            np.testing.assert_array_equal(values.values, on_disk[group][name].values)


def test_an_interrupted_run_is_readable_and_resumes(model, interrupted, made):
    run = runs.Run(interrupted)
    assert run.state == "interrupted"
    assert 180 <= sum(run.done) < 260
    # As ArviZ users open it: NaN where nothing is drawn yet; through the run: the draws that all chains have.
    raw = xr.open_datatree(interrupted, engine="zarr")
    assert raw["posterior"]["order_parameter"].shape == (2, 100, 1, 1)
    kept = min(run.done) - JOB["warmup"]
    assert 0 < kept < 100
    assert np.isnan(raw["posterior"]["order_parameter"].values).any()
    assert run.draws()["posterior"]["order_parameter"].shape == (2, kept, 1, 1)
    assert np.isfinite(run.draws()["posterior"]["order_parameter"].values).all()
    assert run.diagnose().draws == kept
    resumed = runs.sample(model, interrupted, **JOB)
    assert resumed.state == "complete"
    assert contents(interrupted) == contents(made / "complete")
    assert [event["event"] for event in resumed.events() if event["event"] != "block"] == [
        "start",
        "interrupted",
        "start",
        "complete",
    ]


FLAGS = {
    "jax_threefry_partitionable": False,
    "jax_default_prng_impl": "rbg",
    "jax_random_seed_offset": 5,
    "jax_default_matmul_precision": "bfloat16",
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_enable_custom_prng": True,
}
"""JAX's flags about random numbers and arithmetic, none of which a draw depends on."""


@pytest.fixture
def flag():
    """Sets a flag of JAX's for a test."""
    before = {}

    def update(name, value):
        before[name] = jax.config.values[name]
        jax.config.update(name, value)

    yield update
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("names", [[*FLAGS][:1], [*FLAGS][1:2], [*FLAGS]], ids=["numbers", "keys", "all"])
def test_draws_do_not_depend_on_flags(model, interrupted, made, flag, names):
    for name in names:
        flag(name, FLAGS[name])
    runs.sample(model, interrupted, **JOB)
    assert contents(interrupted) == contents(made / "complete")


def test_flags_that_a_draw_may_depend_on_belong_to_the_run(model, interrupted, flag):
    assert runs.Run(interrupted).description["environment"]["flags"] == ""
    flag("jax_disable_most_optimizations", True)
    with pytest.raises(runs.RunError, match=r"begun with flags none \(now jax_disable_most_optimizations=True\)"):
        runs.sample(model, interrupted, **JOB)
    with jax.disable_jit(), pytest.raises(runs.RunError, match="now jax_disable_jit=True jax_disable_most_opt"):
        runs.sample(model, interrupted, **JOB)


def test_a_complete_run_is_left_alone(model, complete):
    before = {file: file.stat().st_mtime_ns for file in complete.rglob("*") if file.is_file()}
    assert runs.sample(model, complete, **JOB).complete
    after = {file: file.stat().st_mtime_ns for file in complete.rglob("*") if file.is_file()}
    assert {file for file in after if after[file] != before.get(file)} <= {complete / runs.FOLDER / "lock"}


def test_a_run_tells_what_it_was(model, complete):
    run = runs.Run(complete)
    assert run.identity == provenance.identity(model, run.job)
    assert run.job == ba.samplers.Job(**JOB)
    assert {"bayesattn", "jax", "numpyro", "dtype", "device", "git", "draws_version"} <= run.description[
        "environment"
    ].keys()
    seconds = sum(event["seconds"] for event in run.events() if event["event"] == "block")
    assert 0 < seconds < 60
    np.testing.assert_array_equal(run.model.path_inputs, model.path_inputs)
    assert run.model.architecture == model.architecture
    other = provenance.identity(model.replace(temperature=0.6), run.job)
    assert len({run.identity, other, provenance.identity(model, ba.samplers.Job(**JOB | {"seed": 4}))}) == 3


def test_a_ready_model_is_recorded_as_a_model_file(tmp_path):
    first = ba.load_model("hidden_markov", width=7, seed=2)
    (tmp_path / "resolved.toml").write_text(described(first)["model"])
    again = ba.load_model(tmp_path / "resolved.toml")
    np.testing.assert_array_equal(first.path_inputs, again.path_inputs)
    assert again.architecture == first.architecture


def test_token_runs_resume_with_their_tokens(model, tmp_path):
    job = {"parameterisation": "token", "chains": 1, "warmup": 10, "draws": 20, "keep": ["weights"]}
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **job, progress=StopAfter(10))
    posterior = runs.sample(model, tmp_path / "run", **job).draws()["posterior"]
    whole = ba.sample(model, **job)["posterior"]
    assert set(posterior.data_vars) == {"V_0", "V_1", "a"}
    np.testing.assert_array_equal(posterior["V_0"].values, whole["V_0"].values)


def test_vectorised_chains_resume_bit_identically(model, tmp_path):
    job = JOB | {"chain_method": "vectorised", "thin": 5}
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **job, progress=StopAfter(20))
    assert runs.Run(tmp_path / "run").state == "interrupted"
    resumed = runs.sample(model, tmp_path / "run", **job)
    runs.sample(model, tmp_path / "whole", **job)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert resumed.draws()["posterior"]["order_parameter"].shape == (2, 20, 1, 1)


def test_a_run_with_few_draws_or_weights_alone_is_described(model, tmp_path):
    few = runs.sample(model, tmp_path / "few", **JOB | {"chains": 1, "draws": 2})
    assert few.overview()["diagnostics"]["rhat"] is None
    assert [row["rhat"] for row in few.summary() if row["quantity"] == "lp"] == [None]
    job = {"sampler": "mala", "parameterisation": "path", "options": {"steps": 2}, "keep": ["weights"]}
    weights = runs.sample(model, tmp_path / "weights", chains=2, warmup=5, draws=8, **job)
    assert weights.diagnose().ess > 0
    assert [row["quantity"] for row in weights.summary()] == ["lp"]


def test_two_jobs_that_begin_at_one_moment_make_one_run(model, tmp_path, monkeypatch):
    """The other one finishes while this one makes ready."""
    ready = sampling.plan(model, ba.samplers.Job(**JOB))

    def slow(*arguments):
        monkeypatch.setattr(sampling, "plan", lambda *_: ready)
        runs.sample(model, tmp_path / "run", **JOB)
        return ready

    monkeypatch.setattr(sampling, "plan", slow)
    assert runs.sample(model, tmp_path / "run", **JOB).complete
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [event["event"] for event in runs.Run(tmp_path / "run").events()].count("start") == 1


def test_netcdf_holds_the_same_draws(complete, tmp_path):
    runs.Run(complete).to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf") as exported:
        for group, name in (("posterior", "order_parameter"), ("posterior", "path"), ("sample_stats", "diverging")):
            np.testing.assert_array_equal(exported[group][name], runs.Run(complete).draws()[group][name])
        assert json.loads(exported.attrs["bayesattn"])["identity"] == runs.Run(complete).identity
    with pytest.raises(FileExistsError, match=r"must not exist yet.*draws\.nc"):
        runs.Run(complete).to_netcdf(tmp_path / "draws.nc")


def test_two_jobs_on_one_run(model, interrupted):
    with runs.Run(interrupted).locked():
        assert runs.Run(interrupted).state == "running"
        with pytest.raises(runs.RunBusy, match="interrupted is being written by another process"):
            runs.sample(model, interrupted, **JOB)
        with pytest.raises(runs.RunBusy):
            runs.sample(model, interrupted, **JOB, overwrite=True)
    assert runs.Run(interrupted).state == "interrupted"


def test_overview(made, tmp_path):
    shutil.copytree(made, tmp_path / "sweep" / "nested")
    (tmp_path / "sweep" / "nested" / "complete" / "zarr.json").write_text("{")
    rows = {row["run"]: row for row in runs.overview(tmp_path / "sweep")}
    assert set(rows) == {"nested/complete", "nested/interrupted"}
    assert rows["nested/complete"]["state"] == "unreadable"
    assert rows["nested/interrupted"]["progress"] == pytest.approx(sum(runs.Run(made / "interrupted").done) / 240)
    [row] = runs.overview(made / "complete")
    assert row["diagnostics"]["rhat"] > 0.9


# Damage: a function that does it to an interrupted run's folder, and what resuming says.


def cut(file, keep=0.5):
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])


def edit_description(folder, **changes):
    """As if it had been written so, or, for what is to be None, not been written."""
    about, metadata = store.read_root(folder)
    about = {name: value for name, value in (about | changes).items() if value is not None}
    root = json.loads((folder / "zarr.json").read_text())
    root["attributes"]["bayesattn"] = json.dumps(about | {"checksum": store.checksum(about, metadata)})
    (folder / "zarr.json").write_text(json.dumps(root))


def edit_environment(folder, **changes):
    edit_description(folder, environment=runs.Run(folder).description["environment"] | changes)


class Bomb:
    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def pickled_checkpoint(folder):
    np.savez(folder / runs.FOLDER / "chain-0.npz", about=np.array([Bomb()], dtype=object))


def checkpoint_of_other_shapes(folder):
    file = folder / runs.FOLDER / "chain-0.npz"
    with np.load(file) as stored:
        arrays = dict(stored)
    arrays["leaf_1"] = np.zeros((3, 3))
    np.savez(file, **arrays)


def foreign_checkpoint(folder):
    other = json.dumps({"run": "another", "chains": [0], "done": 40, "leaves": 0}).encode()
    np.savez(folder / runs.FOLDER / "chain-0.npz", about=np.frombuffer(other, np.uint8))


DAMAGE = {
    "zarr.json cut short": (lambda f: cut(f / "zarr.json"), "damaged: its zarr.json is not JSON"),
    "zarr.json missing": (lambda f: (f / "zarr.json").unlink(), "must be a run, a Zarr store.*got no Zarr store"),
    "another's Zarr store": (lambda f: zarr.create_group(f, overwrite=True), "got a Zarr store of something else"),
    "another format": (
        lambda f: edit_description(f, format=7),
        "store format 4, got format 7, written by bayesattn .*: open it with that version, or draw it again",
    ),
    "checkpoint cut short": (
        lambda f: cut(f / runs.FOLDER / "chain-1.npz"),
        "checkpoint chain-1.npz cannot be read .* draw it again with overwrite=True: the same seed gives the same draws",
    ),
    "checkpoint empty": (lambda f: cut(f / runs.FOLDER / "chain-0.npz", 0), "checkpoint chain-0.npz cannot be read"),
    "checkpoint with a pickle": (pickled_checkpoint, "checkpoint chain-0.npz cannot be read .*allow_pickle=False"),
    "checkpoint of other shapes": (checkpoint_of_other_shapes, "chain-0.npz has other shapes than its sampler"),
    "checkpoint of another run": (
        foreign_checkpoint,
        r"checkpoint chain-0.npz cannot be read \(it is of another run or other chains\)",
    ),
    "chunk missing": (
        lambda f: (f / "posterior" / "order_parameter" / "c.1.0.0.0").unlink(),
        "posterior/order_parameter of chain 1, draws 0 to 39, is missing; draw it again with overwrite=True",
    ),
    "chunk cut short": (
        lambda f: cut(f / "posterior" / "prediction" / "c.0.0.0"),
        "posterior/prediction of chain 0, draws 0 to 39, cannot be read",
    ),
    "array missing": (lambda f: shutil.rmtree(f / "posterior"), "damaged: posterior/.* is missing"),
    "data chunk missing": (
        lambda f: (f / "constant_data" / "path_inputs" / "c.0.0.0").unlink(),
        "the data of the model cannot be read: .* path_inputs must be finite, got nan",
    ),
    "data missing": (lambda f: shutil.rmtree(f / "constant_data"), "damaged: the data of the model cannot be read"),
    "prepared.npz cut short": (lambda f: cut(f / runs.FOLDER / "prepared.npz"), "prepared.npz cannot be read"),
    "another JAX": (lambda f: edit_environment(f, jax="0.1"), r"was begun with jax 0\.1 \(now .*resumed, its draws"),
    "another device": (lambda f: edit_environment(f, device="gpu H"), r"was begun with device gpu H \(now cpu"),
    "other draws": (lambda f: edit_environment(f, draws_version=7), r"was begun with draws_version 7 \(now \d"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_runs_are_refused_and_left_as_they_are(model, interrupted, name):
    damage, message = DAMAGE[name]
    damage(interrupted)
    before = {file: file.read_bytes() for file in interrupted.rglob("*") if file.is_file()}
    with pytest.raises(runs.RunError, match=message):
        runs.sample(model, interrupted, **JOB)
    after = {file: file.read_bytes() for file in interrupted.rglob("*") if file.is_file()}
    log = interrupted / runs.FOLDER / "log.jsonl"
    assert {file: content for file, content in after.items() if file != log} == {
        file: content for file, content in before.items() if file != log
    }
    assert not Bomb.exploded


def test_a_deleted_checkpoint_draws_its_chain_again(model, interrupted, made):
    (interrupted / runs.FOLDER / "chain-0.npz").unlink()
    runs.sample(model, interrupted, **JOB)
    assert contents(interrupted) == contents(made / "complete")


@pytest.mark.parametrize("state", ["complete", "interrupted"])
def test_the_first_draws_of_a_longer_run_may_be_asked_for(model, made, interrupted, state):
    """Those that a run of this length would have; its numbers are kept apart from those of the whole run."""
    folder = interrupted if state == "interrupted" else made / state
    whole = contents(made / "complete")
    runs.Run(made / "complete").summary()
    shorter = runs.sample(model, folder, **JOB | {"draws": 40})
    expected = ba.sample(model, **JOB | {"draws": 40})
    assert shorter.drawn == 40
    for draws in (shorter.draws(), ba.concat([shorter])):
        for name, values in expected["posterior"].data_vars.items():
            np.testing.assert_array_equal(draws["posterior"][name].values, values.values)
    assert shorter.summary() == ba.diagnostics.summary(expected)
    assert shorter.diagnose().draws == 40
    assert runs.sample(model, folder, **JOB).summary() == runs.Run(made / "complete").summary() != shorter.summary()
    assert contents(folder) == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "holds a run with seed = 3, got 4"),
        ({"sampler": "hmc"}, "holds a run with sampler = nuts, got hmc"),
        ({"options": {"max_tree_depth": 8}}, "holds a run with options = {.*}, got {.*'max_tree_depth': 8}"),
        ({"model": tiny_model(temperature=0.4)}, "holds a run with temperature = 0.5, got 0.4"),
        ({"model": tiny_model(widths=(3, 5))}, r"holds a run with widths = \[3, 4\], got \[3, 5\]"),
        ({"model": tiny_model().replace(labels=np.ones(6))}, "holds a run on other data: its labels differ"),
    ],
)
@pytest.mark.parametrize("state", ["complete", "interrupted"])
def test_another_run_is_not_resumed(model, made, state, change, message):
    with pytest.raises(runs.RunError, match=message):
        runs.sample(change.get("model", model), made / state, **JOB | {k: v for k, v in change.items() if k != "model"})


def test_places_that_cannot_hold_a_run(model, tmp_path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    for out, message in (("file", "got no Zarr store"), ("folder", "got no Zarr store")):
        with pytest.raises(runs.RunError, match=message):
            runs.sample(model, tmp_path / out, **JOB)
        with pytest.raises(runs.RunError, match="out must be a run, which overwriting replaces"):
            runs.sample(model, tmp_path / out, **JOB, overwrite=True)
    with pytest.raises(runs.RunError, match=f"out must be in a folder, got .*, but {tmp_path / 'file'} is a file"):
        runs.sample(model, tmp_path / "file" / "run", **JOB)
    with pytest.raises(OSError, match="/proc"):
        runs.sample(model, Path("/proc/bayesattn/run"), **JOB)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "thesis.tex").read_text() == "precious"
    with pytest.raises(runs.RunError, match="does not exist"):
        runs.Run(tmp_path / "none")
    with pytest.raises(runs.RunError, match="which holds none"):
        runs.overview(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_disk_too_small_is_seen_before_sampling(model, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(OSError, match=r"needs 0\.\d MiB, 0\.0 MiB are free"):
        runs.sample(model, tmp_path / "run", **JOB)
    assert not list(tmp_path.iterdir())


def test_a_draw_that_is_not_finite_ends_the_run_with_the_last_good_block_kept(model, tmp_path, monkeypatch):
    require_finite = block_runner._require_finite

    def fail_late(values, where, chains):
        if "draws 61" in where:
            raise FloatingPointError("sampling met a value that is not finite")
        require_finite(values, where, chains)

    monkeypatch.setattr(block_runner, "_require_finite", fail_late)
    with pytest.raises(FloatingPointError):
        runs.sample(model, tmp_path / "run", **JOB)
    run = runs.Run(tmp_path / "run")
    assert run.state == "failed"
    assert max(run.done) == 60
    assert "not finite" in run.overview()["error"]


def test_opening_a_stranger_s_run_executes_nothing(interrupted):
    pickled_checkpoint(interrupted)
    (interrupted / "posterior" / "order_parameter" / "c.0.0.0.0").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(runs.RunError):
        runs.Run(interrupted).draws()
    assert not Bomb.exploded


def test_flags_of_the_compiler_are_part_of_the_environment(monkeypatch):
    """They change a draw's last bits."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    begun = provenance.environment()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    now = provenance.environment()
    assert provenance.differences(begun, begun) == []
    assert provenance.differences(begun, now) == ["XLA_FLAGS none (now --xla_backend_optimization_level=1)"]
