"""Runs on disk: killed and resumed to the same bits, opened while they go on. Damage: tests/attacks/test_loss.py."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest
import xarray as xr
import zarr

import bayesattn as ba
from bayesattn import runs
from bayesattn.checks.diagnostics import summary
from bayesattn.jobs.runs import provenance, sampling, store
from bayesattn.joining import concat
from bayesattn.models.stored_model import described
from bayesattn.samplers import SAMPLERS
from bayesattn.samplers import blocks as block_runner
from tests import killed_run, zoo
from tests.killed_run import BLOCK, CHUNK
from tests.posteriors import tiny_model
from tests.processes import Started

JOB, LIGHT = ({key: value for key, value in job.items() if key != "progress"} for job in (zoo.QUICK, zoo.LIGHT))
JOB |= {"draws": 100}
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
    """Moments spread over a run, half by the clock, half in the midst of writing a file; a block between any two."""
    for number in range(count):
        at = int((number + rng.uniform(0, 0.5)) * steps / count)
        writes, part = rng.integers(1, 60), rng.integers(2)
        yield f"{at}:{rng.uniform(0, 0.02):.4f}" if number % 2 else f"{at}/{writes}/{part}"


def require_the_same_draws_after_kills(folder, job, kills, rng):
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
    return zoo.model("one")


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
        patch.setattr(store, "CHUNK_DRAWS", CHUNK)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory, model, _small_blocks):
    """A folder with a complete run and an interrupted one."""
    folder = tmp_path_factory.mktemp("runs")
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


@pytest.mark.filterwarnings("ignore:chains have not mixed")
def test_a_run_holds_the_draws_that_sample_returns(model, made):
    tree, on_disk = ba.sample(model, **JOB), runs.Run(made / "complete").draws()
    assert set(tree.children) == set(on_disk.children)
    for group in tree.children:
        assert set(tree[group].data_vars) == set(on_disk[group].data_vars)
        for name, values in tree[group].variables.items():
            assert values.dims == on_disk[group][name].dims
            np.testing.assert_array_equal(values.values, on_disk[group][name].values)


def test_an_interrupted_run_is_readable_and_resumes_where_no_other_process_writes_it(model, interrupted, made):
    run = runs.Run(interrupted)
    assert run.state == "interrupted"
    assert 180 <= sum(run.done) < 260
    # As ArviZ users open it: NaN where nothing is drawn yet; through the run: the draws that all chains have.
    opened = xr.open_datatree(interrupted, engine="zarr"), run.draws()
    raw, drawn = (tree["posterior"]["order_parameter"].values for tree in opened)
    kept = min(run.done) - JOB["warmup"]
    assert 0 < kept < 100
    assert raw.shape == (2, 100, 1, 1)
    assert np.isnan(raw).any()
    assert drawn.shape == (2, kept, 1, 1)
    assert np.isfinite(drawn).all()
    assert run.diagnose().draws == kept
    with run.locked():
        assert runs.Run(interrupted).state == "running"
        with pytest.raises(runs.RunBusy, match="interrupted is being written by another process"):
            runs.sample(model, interrupted, **JOB)
    resumed = runs.sample(model, interrupted, **JOB)
    assert resumed.state == "complete"
    assert contents(interrupted) == contents(made / "complete")
    events = [event["event"] for event in resumed.events() if event["event"] != "block"]
    assert events == ["start", "interrupted", "start", "complete"]


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


def test_draws_do_not_depend_on_flags_about_random_numbers_and_arithmetic(model, interrupted, made, flag):
    flag("jax_enable_x64", False)
    flag("jax_threefry_partitionable", False)
    flag("jax_default_prng_impl", "rbg")
    flag("jax_random_seed_offset", 5)
    flag("jax_default_matmul_precision", "bfloat16")
    flag("jax_numpy_rank_promotion", "raise")
    flag("jax_numpy_dtype_promotion", "strict")
    flag("jax_enable_custom_prng", True)
    runs.sample(model, interrupted, **JOB)
    assert contents(interrupted) == contents(made / "complete")


def test_flags_that_a_draw_may_depend_on_belong_to_the_run(model, interrupted, flag):
    assert runs.Run(interrupted).description["environment"]["flags"] == ""
    flag("jax_disable_most_optimizations", True)
    with pytest.raises(runs.RunError, match=r"begun with flags none \(now jax_disable_most_optimizations=True\)"):
        runs.sample(model, interrupted, **JOB)
    with jax.disable_jit(), pytest.raises(runs.RunError, match="now jax_disable_jit=True jax_disable_most_opt"):
        runs.sample(model, interrupted, **JOB)


def test_flags_of_the_compiler_which_change_the_last_bits_of_draws_are_part_of_the_environment(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    begun = provenance.environment("nuts")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    assert provenance.differences(begun, begun) == []
    [said] = provenance.differences(begun, provenance.environment("nuts"))
    assert said == "XLA_FLAGS none (now --xla_backend_optimization_level=1)"


def test_a_complete_run_is_left_alone(model, complete):
    before = {file: file.stat().st_mtime_ns for file in complete.rglob("*") if file.name != "lock"}
    assert runs.sample(model, complete, **JOB).complete
    assert before == {file: file.stat().st_mtime_ns for file in complete.rglob("*") if file.name != "lock"}


def test_a_run_tells_what_it_was(model, complete):
    run = runs.Run(complete)
    assert run.identity == provenance.identity(model, run.job)
    assert run.job == ba.samplers.Job(**JOB)
    environment = run.description["environment"]
    assert {"bayesattn", "jax", "numpyro", "dtype", "device", "git", "draws_version"} <= environment.keys()
    seconds = sum(event["seconds"] for event in run.events() if event["event"] == "block")
    assert 0 < seconds < 60
    np.testing.assert_array_equal(run.model.path_inputs, model.path_inputs)
    assert run.model.architecture == model.architecture
    other = provenance.identity(model.replace(temperature=0.6), run.job)
    assert len({run.identity, other, provenance.identity(model, ba.samplers.Job(**JOB | {"seed": 4}))}) == 3


def test_a_ready_model_is_recorded_as_a_model_file(tmp_path):
    few = {"examples": 8, "test_examples": 4, "dimension": 10, "tokens": 5}
    first = ba.load_model("hidden_markov", width=7, seed=2, task=few)
    (tmp_path / "resolved.toml").write_text(described(first)["model"])
    again = ba.load_model(tmp_path / "resolved.toml")
    np.testing.assert_array_equal(first.path_inputs, again.path_inputs)
    assert again.architecture == first.architecture


def test_token_runs_resume_with_their_tokens_and_are_described_by_weights_alone(model, tmp_path):
    job = LIGHT | {"parameterisation": "token", "chains": 1, "draws": 30, "keep": ["weights"]}
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **job, progress=StopAfter(20))
    run = runs.sample(model, tmp_path / "run", **job)
    posterior, whole = run.draws()["posterior"], ba.sample(model, **job)["posterior"]
    assert set(posterior.data_vars) == {"V_0", "V_1", "a"}
    np.testing.assert_array_equal(posterior["V_0"].values, whole["V_0"].values)
    assert run.diagnose().ess > 0
    assert [row["quantity"] for row in run.summary()] == ["lp"]


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


def test_overview(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "sweep" / "nested")
    shutil.copytree(made / "complete", tmp_path / "sweep" / "damaged")
    (tmp_path / "sweep" / "damaged" / "zarr.json").write_text("{")
    rows = {row["run"]: row for row in runs.overview(tmp_path / "sweep")}
    assert set(rows) == {"damaged", "nested/complete", "nested/interrupted"}
    assert rows["damaged"]["state"] == "unreadable"
    assert rows["nested/interrupted"]["progress"] == pytest.approx(sum(runs.Run(made / "interrupted").done) / 240)
    (tmp_path / "sweep" / "linked").symlink_to(made / "complete")
    (tmp_path / "sweep" / "round").symlink_to(tmp_path)
    assert {row["run"] for row in runs.overview(tmp_path / "sweep")} == {*rows, "linked"}
    [row] = runs.overview(made / "complete")
    assert row["diagnostics"]["rhat"] > 0.9
    monkeypatch.chdir(made / "complete")
    assert [each["run"] for each in runs.overview(".")] == ["complete"]


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
    assert "the first 40 kept draws of each chain" in repr(shorter)
    for draws in (shorter.draws(), concat([shorter])):
        for name, values in expected["posterior"].data_vars.items():
            np.testing.assert_array_equal(draws["posterior"][name].values, values.values)
    assert shorter.summary() == summary(expected)
    assert shorter.diagnose().draws == 40
    assert runs.sample(model, folder, **JOB).summary() == runs.Run(made / "complete").summary() != shorter.summary()
    assert contents(folder) == whole


def test_steps_beyond_those_that_are_asked_for_are_no_progress(model, tmp_path):
    """One chain has them, the other does not; with one thread the first chain is ahead."""
    told, one = [], JOB | {"threads": 1}
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", **one, progress=StopAfter(100))
    ahead, behind = runs.Run(tmp_path / "run").done
    assert ahead > behind + 1 > JOB["warmup"]
    runs.sample(model, tmp_path / "run", **one | {"draws": behind + 1 - JOB["warmup"]}, progress=told.append)
    assert {(event.chain, event.done) for event in told} >= {(0, behind + 1), (1, behind + 1)}
    assert all(event.done <= event.total for event in told)


OTHERS = {
    "holds a run with seed = 3, got 4": {"seed": 4},
    "holds a run with temperature = 0.5, got 0.4": {"model": tiny_model(temperature=0.4)},
    r"holds a run with widths = \[3, 4\], got \[3, 5\]": {"model": tiny_model(widths=(3, 5))},
    "holds a run on other data: its labels differ": {"model": tiny_model().replace(labels=np.ones(6))},
}


@pytest.mark.parametrize("message", OTHERS)
def test_another_run_is_not_resumed(model, made, message):
    for state in ("complete", "interrupted"):
        with pytest.raises(runs.RunError, match=message):
            runs.sample(**{"model": model, "out": made / state} | JOB | OTHERS[message])


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
