"""Sweeps: what a file asks for, a worker killed on the way, errors recorded, clusters of other kinds."""

import os
import signal

import dask
import dask_jobqueue
import jax
import numpy as np
import pandas as pd
import pytest

from bayesattn import runs
from bayesattn._util import extras
from bayesattn.jobs import sweep
from bayesattn.jobs.plots import width_figure
from bayesattn.jobs.sweep import clusters, execute
from tests.test_cli import SMALL
from tests.test_runs import StopAfter

SWEEP = """
[settings]
model = "small.toml"
chains = 2
warmup = 50
draws = 100
[grid]
width = [4, 8]
seed = [0, 1]
"""
ONE_PROGRAM = SWEEP.replace("small", "arrays").replace("= 100", "= 100\nsampler = 'mala'\noptions.steps = 2")
"""Neither width is narrower than the number of paths: one program is compiled for all runs, and soon."""
ARRAYS = """
temperature = 0.5
[architecture]
heads = [1]
width = 3
[task]
name = "arrays"
file = "arrays.npz"
"""


def write_arrays(folder):
    """A model file of arrays, which nothing has to be compiled for."""
    rng = np.random.default_rng(0)
    arrays = {"path_inputs": rng.normal(size=(6, 1, 4)), "labels": rng.choice([-1.0, 1.0], 6)}
    test = {"test_path_inputs": arrays["path_inputs"], "test_labels": arrays["labels"]}
    np.savez(folder / "arrays.npz", **arrays, **test)
    (folder / "arrays.toml").write_text(ARRAYS)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    write_arrays(tmp_path)

    def write(content=SWEEP):
        (tmp_path / "sweep.toml").write_text(content)
        return tmp_path / "sweep.toml"

    return write


def planned(file, content):
    return sweep.Sweep(file(content)).runs


def test_models_of_one_file_name_are_told_apart(file, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.toml").write_text(SMALL)
    start = "[settings]\nchains = 2\n[grid]\n"
    found = planned(file, start + 'model = ["a/model.toml", "b/model.toml"]\n')
    assert [run.varied["model"] for run in found] == ["a/model.toml", "b/model.toml"]
    assert [run.name for run in found] == ["model=a-model.toml", "model=b-model.toml"]
    three = planned(file, start + 'model = ["a/model.toml", "b/model.toml", "small.toml"]\n')
    assert three[2].name == "model=small"
    [alone, ready] = planned(file, start + 'model = ["a/model.toml", "hidden_markov"]\n')
    assert (alone.name, ready.varied["model"]) == ("model=model", "hidden_markov")


def test_a_grid_crossed_with_a_list_is_every_combination(file):
    content = '[settings]\nmodel = "small.toml"\nchains = 2\n[grid]\nseed = [0, 1]\ntemperature = [0.1, 1.0]\n'
    content += '[grid.task]\nnoise_sum = [0.5]\n[[runs]]\nwidth = 5\n[[runs]]\nwidth = 9\nsampler = "hmc"\n'
    found = planned(file, content + "options.trajectory_length = 8\n")
    more = [f"seed={seed},temperature={temperature},noise_sum=0.5" for seed in (0, 1) for temperature in ("0.1", "1")]
    names = [f"width=5,{each}" for each in more] + [f"width=9,sampler=hmc,{each},trajectory_length=8" for each in more]
    assert [run.name for run in found] == names
    assert found[0].out.name == found[0].name + ".zarr"
    job, model = found[-1].job, found[-1].model()
    assert (job.sampler, job.seed, job.chains, job.options["trajectory_length"]) == ("hmc", 1, 2, 8)
    assert (model.architecture.widths, model.temperature, model.task["noise_sum"]) == ((9, 9, 9), 1.0, 0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[settings", "is not valid TOML"),
        (SWEEP + "wdth = [3]", r"\[grid\] may hold model, width, .*, got 'wdth'"),
        (SWEEP.replace("chains", "chainz"), "settings.chainz is unknown: expected one of .*did you mean 'chains'"),
        (SWEEP + "[sweep]\nx = 1", "sweep is unknown: expected one of"),
        (SWEEP.replace("[4, 8]", "[]"), r"grid.width must be a list of at least one value, got \[\]"),
        (SWEEP.replace("[4, 8]", '["four"]'), "width: Input should be a valid integer.*got 'four'"),
        (SWEEP.replace("[4, 8]", "[4, 4]"), "runs must differ in their settings, got 'width=4,seed=0' twice"),
        (SWEEP.replace('model = "small.toml"', ""), "model must be given in"),
        (SWEEP.replace("small", "large"), r"width=4,seed=0: model must be a .toml file, got .* which is not there"),
        (SWEEP + "[grid.task]\nnoize = [1.0]", "width=4,seed=0,noize=1: task.noize is unknown: expected one of name"),
        (
            SWEEP + "[grid.options]\nstep_size = [0.1]\n[[runs]]\noptions.step_size = 0.2",
            r"options.step_size must be either in \[grid\] or in \[\[runs\]\], got both",
        ),
        (SWEEP.replace("draws = 100", 'draws = 100\nsampler = "gibbs"'), "width=4,seed=0: sampler must be one of"),
        (SWEEP.replace("= 100", "= 0"), "width=4,seed=0: draws must be a whole number of at least 1, got 0"),
        (SWEEP + '[cluster]\nkind = "moon"\njobs = 1', "cluster.kind: Input should be 'slurm', 'pbs', .*got 'moon'"),
    ],
)
def test_bad_sweeps_are_refused_before_anything_runs(file, tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        sweep.Sweep(file(content), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_whose_files_change_is_read_again(file, tmp_path):
    run, *_ = planned(file, ONE_PROGRAM)
    before = run.model()
    (tmp_path / "arrays.toml").write_text(ARRAYS.replace("0.5", "0.25"))
    assert (before.temperature, run.model().temperature) == (0.5, 0.25)
    np.savez(tmp_path / "arrays.npz", path_inputs=before.path_inputs, labels=-before.labels)
    np.testing.assert_array_equal(run.model().labels, -before.labels)


def test_a_client_is_not_the_default_of_dask():
    """xarray asks for that one whenever it writes a file."""
    with clusters.own_cluster(None, 1, 1):
        assert dask.config.get("scheduler", None) is None


class KillAWorker:
    """A progress callback that kills the process of a run that is under way, once."""

    def __init__(self, folder):
        self.folder, self.killed = folder, None

    def __call__(self, standing):
        for store in self.folder.glob("*.zarr") if self.killed is None else ():
            events = [event for event in runs.Run(store).events() if event["event"] in ("start", "block")]
            if len(events) >= 3 and runs.Run(store).state == "running":
                self.killed = store.name, next(event["pid"] for event in events if event["event"] == "start")
                os.kill(self.killed[1], signal.SIGKILL)
                return


@pytest.mark.heavy
def test_a_killed_worker_costs_nothing(file, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "POLL_SECONDS", 0.05)
    content = SWEEP.replace("draws = 100", "draws = 4000\nkeep = ['order_parameter']")
    folder, pids = tmp_path / "out", set()
    plan, kill = sweep.Sweep(file(content), folder), KillAWorker(folder)
    table = sweep.run(plan, workers=2, progress=kill)
    assert kill.killed is not None
    assert set(table["state"]) == {"complete"}
    assert set(table["run"]) == {planned.name for planned in plan.runs} == {p.stem for p in folder.glob("*.zarr")}
    for planned_run in plan.runs:
        run = runs.Run(planned_run.out)
        was_killed = planned_run.out.name == kill.killed[0]
        started = [event["pid"] for event in run.events() if event["event"] == "start"]
        assert len(started) == 1 + was_killed
        assert len([event for event in run.events() if event["event"] == "complete"]) == 1
        # Done once: no more steps than the run has, but for a block of each chain that was under way. Killed between a
        # checkpoint and its line in the log, a chain has one block less there.
        steps = sum(event["steps"] for event in run.events() if event["event"] == "block")
        total = run.job.chains * run.job.transitions
        assert abs(steps - total) <= 250 * run.job.chains * was_killed, (steps, total)
        pids |= {*started}
    assert len(pids) == 2 + 1
    stored = pd.read_parquet(folder / "results.parquet")
    assert list(stored.columns) == list(table.columns)
    np.testing.assert_allclose(stored["mean"], table["mean"], rtol=1e-12)
    stored, each = pd.read_csv(folder / "results.csv"), sweep.by_run(table)
    assert list(stored.columns) == list(each.columns)
    np.testing.assert_allclose(stored["U"], each["U"], rtol=1e-12)
    assert (folder / "widths.png").exists()
    entries = table[(table["quantity"] == "order_parameter") & (table["run"] == "width=4,seed=0")]
    assert len(entries) == 10
    assert (entries["ess"] > 100).all()
    # Again: all is there, no worker is started, nothing is drawn.
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("chain-*.npz")}
    monkeypatch.setattr(clusters, "own_cluster", None)
    pd.testing.assert_frame_equal(sweep.run(plan), table)
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("chain-*.npz")}


def test_a_failed_run_is_recorded_and_the_others_go_on(file, tmp_path):
    """In-process workers, as any scheduler's: one of the folders already holds another run, one is written by another."""
    from distributed import LocalCluster

    plan, told = sweep.Sweep(file(ONE_PROGRAM), tmp_path / "out"), []
    foreign, busy, *_ = plan.runs
    runs.sample(foreign.model(), foreign.out, **vars(foreign.job) | {"chains": 1})
    with pytest.raises(KeyboardInterrupt):
        runs.sample(busy.model(), busy.out, **vars(busy.job), progress=StopAfter(0))
    one = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with runs.Run(busy.out).locked(), LocalCluster(**one, local_directory=tmp_path / "dask") as cluster:
        table = sweep.run(plan, scheduler=cluster.scheduler_address, progress=told.append)
    assert foreign.state == "different"
    states = table.groupby("run")["state"].first().to_dict()
    assert states == {run.name: "failed" if run in (foreign, busy) else "complete" for run in plan.runs}
    for found in (table, sweep.results(plan)):
        assert "holds a run with chains = 1, got 2" in found.groupby("run")["error_message"].first()[foreign.name]
    assert "RunBusy" in table.groupby("run")["error_message"].first()[busy.name]
    assert told[-1]["failed"] == told[-1]["complete"] == 2
    # One row a run, also on disk.
    stored = pd.read_csv(tmp_path / "out" / "results.csv", dtype={"path": str}).set_index("run")
    assert stored["state"].to_dict() == states
    for name, of_run in table[table["state"] == "complete"].groupby("run"):
        entries = of_run[(of_run["quantity"] == "order_parameter") & (of_run["path"] == of_run["other_path"])]
        assert stored.loc[name, "U"] == pytest.approx(entries["mean"].max())
        assert stored.loc[name, "path"] == entries.set_index("path")["mean"].astype(float).idxmax()
        assert stored.loc[name, "accuracy"] == pytest.approx(of_run[of_run["quantity"] == "accuracy"]["mean"].item())
        assert stored.loc[name, "rhat"] == of_run["rhat"].max()
    assert stored.loc[busy.name, ["U", "accuracy", "rhat"]].isna().all()
    own = {"quantity", "path", "other_path", "mean", "sd", "error", "test_error", "rhat", "ess", "tail_ess", "pareto_k"}
    assert set(table.columns) - own <= set(stored.reset_index().columns)


def test_the_figure_of_a_sweep_over_widths():
    """Dots of all complete runs, and a line through means over seeds, for each temperature; accuracies if there are any."""
    settings = {"width": (4, 8), "seed": (0, 1), "temperature": (0.1, 0.5)}
    each = pd.MultiIndex.from_product(settings.values(), names=settings.keys()).to_frame(index=False)
    each = each.assign(run=each.index, state="complete", U=1.0 + each.index, U_error=0.1)
    each = each.assign(accuracy=np.nan, accuracy_error=0.0, accuracy_test_error=0.1)
    each.loc[0, "state"] = "failed"
    (axes,) = width_figure(each).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["temperature = 0.5", "temperature = 0.1"]
    lines = [line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == "-"]
    assert lines == [[[4, 3], [8, 7]], [[4, 3], [8, 6]]]
    known = width_figure(each.assign(accuracy=0.5)).axes[0]
    assert known.get_ylabel() == "accuracy (%)"
    assert [line.get_ydata().tolist() for line in known.lines if line.get_linestyle() == "-"] == [[50, 50], [50, 50]]
    assert width_figure(each[each["width"] == 4]) is None


BATCH = f"""{SWEEP}
[cluster]
kind = "slurm"
jobs = 3
options = {{queue = "gpu", walltime = "01:00:00", cores = 4}}
"""


def test_a_batch_cluster_asks_for_its_jobs_and_no_more_than_runs(file, monkeypatch):
    asked, table = [], sweep.Sweep(file(BATCH)).table.cluster
    monkeypatch.setattr(dask_jobqueue.SLURMCluster, "scale", lambda cluster, jobs: asked.append(jobs))
    for pending, jobs in ((2, 2), (4, 3)):
        with clusters.own_cluster(table, None, pending):
            assert asked[-1] == jobs
    with clusters.batch_cluster(table) as cluster:
        script = cluster.job_script()
    for part in ("#SBATCH -p gpu", "#SBATCH -t 01:00:00", "--nthreads 4"):
        assert part in script


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_options_of_a_batch_cluster_that_are_none_are_named(file):
    """dask-jobqueue leaves half a cluster behind."""
    wrong = sweep.Sweep(file(BATCH.replace("queue =", "queu ="))).table.cluster
    with pytest.raises(ValueError, match=r"cluster.options must be options of dask_jobqueue.SLURMCluster, got .*queu"):
        clusters.batch_cluster(wrong)


def test_a_key_is_not_printed():
    key = "-----BEGIN PRIVATE KEY-----"
    for security, message in (
        (key, "security must be a distributed.Security or a table .*, got a str"),
        ({"tls_client_key": key}, "tls_client_key must be a file, got the text of a certificate or key"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            clusters._security(security)


def test_a_scheduler_is_used_instead_of_a_batch_system(file, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: module != "dask_jobqueue" or None)
    plan = sweep.Sweep(file(BATCH))
    sweep.require_extras(plan, "tcp://host:8786")
    with pytest.raises(ImportError, match="needs dask-jobqueue"):
        sweep.require_extras(plan)


@pytest.mark.parametrize(
    ("visible", "backend", "count", "names"),
    [
        ("2,5", "gpu", 1, ["2"]),
        (None, "gpu", 3, ["0", "1", "2"]),
        ("2,5", "cpu", 1, []),
        ("0", "tpu", 4, []),
    ],
)
def test_one_worker_per_gpu_that_jax_sees(monkeypatch, visible, backend, count, names):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "local_device_count", lambda: count)
    assert clusters.gpus() == names
