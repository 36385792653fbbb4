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


def test_a_grid_is_every_combination(file):
    more = 'temperature = [0.1, 1.0]\nsampler = ["nuts", "hmc"]\n[grid.task]\nnoise_sum = [0.5]\n'
    found = planned(file, SWEEP + more)
    assert len(found) == len({run.name for run in found}) == 16
    assert found[0].name == "width=4,seed=0,temperature=0.1,sampler=nuts,noise_sum=0.5"
    assert found[0].out.name == found[0].name + ".zarr"
    assert (found[-1].job.sampler, found[-1].job.seed, found[-1].job.chains) == ("hmc", 1, 2)
    model = found[-1].model()
    assert (model.architecture.widths, model.temperature, model.task["noise_sum"]) == ((8, 8, 8), 1.0, 0.5)


def test_a_list_is_crossed_with_the_grid(file):
    content = '[settings]\nmodel = "small.toml"\n[grid]\nseed = [0, 1]\n'
    content += '[[runs]]\nwidth = 5\n[[runs]]\nwidth = 9\nparameterisation = "path"\noptions.max_tree_depth = 8\n'
    found = planned(file, content)
    names = ("width=5,seed={}", "width=9,parameterisation=path,seed={},max_tree_depth=8")
    assert [run.name for run in found] == [name.format(seed) for name in names for seed in (0, 1)]
    assert found[2].job.options == {"max_tree_depth": 8}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[settings", "is not valid TOML"),
        (SWEEP + "wdth = [3]", r"\[grid\] may hold model, width, .*, got 'wdth'"),
        (SWEEP.replace("chains", "chainz"), "settings.chainz is unknown: expected one of .*did you mean 'chains'"),
        (SWEEP + "[sweep]\nx = 1", "sweep is unknown: expected one of"),
        (SWEEP.replace("[4, 8]", "4"), "grid.width must be a list of at least one value, got 4"),
        (SWEEP.replace("[4, 8]", "[]"), r"grid.width must be a list of at least one value, got \[\]"),
        (SWEEP.replace("[4, 8]", '["four"]'), "width: Input should be a valid integer.*got 'four'"),
        (SWEEP.replace("[4, 8]", "[4, 4]"), "runs must differ in their settings, got 'width=4,seed=0' twice"),
        (SWEEP.replace('model = "small.toml"', ""), "model must be given in"),
        (SWEEP.replace("small.toml", "large"), "width=4,seed=0: model must be one of digits"),
        (SWEEP.replace("small", "large"), r"width=4,seed=0: model must be a .toml file, got .* which is not there"),
        (SWEEP + "[grid.task]\nnoize = [1.0]", "width=4,seed=0,noize=1: task.noize is unknown: expected one of name"),
        (SWEEP + "[[runs]]\nseed = 3", r"seed must be either in \[grid\] or in \[\[runs\]\], got both"),
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


def test_a_run_of_other_settings_is_not_complete(file, tmp_path):
    first, *_ = planned(file, ONE_PROGRAM)
    runs.sample(first.model(), first.out, **vars(first.job))
    assert first.state == "complete"
    changed = sweep.Sweep(file(ONE_PROGRAM.replace("steps = 2", "steps = 3")))
    assert changed.runs[0].state == "different"
    row = sweep.results(changed).iloc[0]
    assert row["state"] == "failed"
    assert "holds a run with options = {'steps': 2}, got {'steps': 3}" in row["error_message"]


def test_a_client_is_not_the_default_of_dask():
    """xarray asks for that one whenever it writes a file."""
    with clusters.own_cluster(None, 1, 1):
        assert dask.config.get("scheduler", None) is None


class KillAWorker:
    """A progress callback that kills the process of a run that is under way, once; `state` is when the moment has come."""

    def __init__(self, folder):
        self.folder, self.killed = folder, None

    def __call__(self, standing):
        for store in self.folder.glob("*.zarr") if self.killed is None else ():
            events = [event for event in runs.Run(store).events() if event["event"] in ("start", "block")]
            if len(events) >= 3 and runs.Run(store).state == "running":
                self.killed = store.name, next(event["pid"] for event in events if event["event"] == "start")
                os.kill(self.killed[1], signal.SIGKILL)
                return


def require_a_killed_worker_to_cost_nothing(folder, file, content, monkeypatch, workers=2):
    monkeypatch.setattr(execute, "POLL_SECONDS", 0.05)
    plan = sweep.Sweep(file(content), folder)
    kill = KillAWorker(folder)
    table = sweep.run(plan, workers=workers, progress=kill)
    assert kill.killed is not None
    assert set(table["state"]) == {"complete"}
    assert set(table["run"]) == {planned.name for planned in plan.runs} == {p.stem for p in folder.glob("*.zarr")}
    for planned_run in plan.runs:
        run = runs.Run(planned_run.out)
        events = [event["event"] for event in run.events()]
        was_killed = planned_run.out.name == kill.killed[0]
        assert events.count("complete") == 1
        assert events.count("start") == 1 + was_killed
        # Done once: no more steps than the run has, but for a block of each chain that was under way. Killed between a
        # checkpoint and its line in the log, a chain has one block less there.
        steps = sum(event["steps"] for event in run.events() if event["event"] == "block")
        total = run.job.chains * run.job.transitions
        assert abs(steps - total) <= 250 * run.job.chains * was_killed, (steps, total)
    pids = {e["pid"] for p in plan.runs for e in runs.Run(p.out).events() if e["event"] == "start"}
    assert len(pids) == workers + 1
    return plan, table


@pytest.mark.heavy
def test_a_killed_worker_costs_nothing(file, tmp_path, monkeypatch):
    content = SWEEP.replace("draws = 100", "draws = 4000\nkeep = ['order_parameter']")
    plan, table = require_a_killed_worker_to_cost_nothing(tmp_path / "out", file, content, monkeypatch)
    stored = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert list(stored.columns) == list(table.columns)
    np.testing.assert_allclose(stored["mean"], table["mean"], rtol=1e-12)
    stored, each = pd.read_csv(tmp_path / "out" / "results.csv"), sweep.by_run(table)
    assert list(stored.columns) == list(each.columns)
    np.testing.assert_allclose(stored["U"], each["U"], rtol=1e-12)
    assert (tmp_path / "out" / "widths.png").exists()
    entries = table[(table["quantity"] == "order_parameter") & (table["run"] == "width=4,seed=0")]
    assert len(entries) == 10
    assert (entries["ess"] > 100).all()
    # Again: all is there, no worker is started, nothing is drawn.
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("chain-*.npz")}
    monkeypatch.setattr(clusters, "own_cluster", None)
    again = sweep.run(plan)
    pd.testing.assert_frame_equal(again, table)
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("chain-*.npz")}


@pytest.mark.heavy
def test_a_killed_worker_costs_nothing_of_24_runs(file, tmp_path, monkeypatch):
    content = SWEEP.replace("draws = 100", "draws = 4000").replace("[0, 1]", "[0, 1, 2, 3, 4, 5]")
    content += 'sampler = ["nuts", "hmc"]\n'
    plan, _ = require_a_killed_worker_to_cost_nothing(tmp_path / "out", file, content, monkeypatch)
    assert len(plan.runs) == 24


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
    states = table.groupby("run")["state"].first().to_dict()
    assert states == {run.name: "failed" if run in (foreign, busy) else "complete" for run in plan.runs}
    messages = table.groupby("run")["error_message"].first()
    assert "holds a run with chains = 1, got 2" in messages[foreign.name]
    assert "RunBusy" in messages[busy.name]
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
    settings = [(width, seed, temperature) for width in (4, 8) for seed in (0, 1) for temperature in (0.1, 0.5)]
    about = [{"run": number, "seed": seed, "state": "complete"} for number, (_, seed, _) in enumerate(settings)]
    values = [{"width": width, "temperature": temperature} for width, _, temperature in settings]
    each = pd.DataFrame([of_run | own for of_run, own in zip(about, values, strict=True)])
    each = each.assign(U=1.0 + each.index, U_error=0.1, accuracy=np.nan, accuracy_error=0.0, accuracy_test_error=0.1)
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


@pytest.mark.parametrize(("pending", "jobs"), [(2, 2), (4, 3)])
def test_a_batch_cluster_has_no_more_jobs_than_runs(file, monkeypatch, pending, jobs):
    asked = []
    monkeypatch.setattr(dask_jobqueue.SLURMCluster, "scale", lambda cluster, jobs: asked.append(jobs))
    with clusters.own_cluster(sweep.Sweep(file(BATCH)).table.cluster, None, pending):
        assert asked == [jobs]


def test_batch_clusters_ask_for_their_jobs(file):
    with clusters.batch_cluster(sweep.Sweep(file(BATCH)).table.cluster) as cluster:
        script = cluster.job_script()
    for part in ("#SBATCH -p gpu", "#SBATCH -t 01:00:00", "--nthreads 4"):
        assert part in script


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_options_of_a_batch_cluster_that_are_none_are_named(file):
    """dask-jobqueue leaves half a cluster behind."""
    wrong = sweep.Sweep(file(BATCH.replace("queue =", "queu ="))).table.cluster
    with pytest.raises(ValueError, match=r"cluster.options must be options of dask_jobqueue.SLURMCluster, got .*queu"):
        clusters.batch_cluster(wrong)


@pytest.mark.parametrize("security", ["-----BEGIN PRIVATE KEY-----", ["cert.pem"]])
def test_security_that_is_no_table_is_named_by_its_kind_alone(security):
    kind = type(security).__name__
    with pytest.raises(ValueError, match=f"^security must be a distributed.Security or a table .*, got a {kind}$"):
        clusters._security(security)


def test_a_key_is_not_printed():
    with pytest.raises(ValueError, match=r"^tls_client_key must be a file, got the text of a certificate or key$"):
        clusters._security({"tls_client_key": "-----BEGIN PRIVATE KEY-----"})


def test_a_scheduler_is_used_instead_of_a_batch_system(file, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: module != "dask_jobqueue" or None)
    plan = sweep.Sweep(file(BATCH))
    sweep.require_extras(plan, "tcp://host:8786")
    with pytest.raises(ImportError, match="needs dask-jobqueue"):
        sweep.require_extras(plan)


@pytest.mark.parametrize(
    ("visible", "backend", "count", "names"),
    [
        ("2,5", "gpu", 2, ["2", "5"]),
        ("2,5", "gpu", 1, ["2"]),
        (None, "gpu", 3, ["0", "1", "2"]),
        ("2,5", "cpu", 1, []),
        (None, "cpu", 1, []),
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
