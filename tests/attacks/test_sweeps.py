"""Who may come in: what a sweep listens on, TLS, names that collide, nothing trained before its time, two sweeps at once."""

import itertools
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import distributed
import pandas as pd
import psutil
import pytest

from bayesattn import runs
from bayesattn.jobs import sweep
from bayesattn.jobs.sweep import clusters
from bayesattn.jobs.sweep.plan import _name, flattened
from tests.processes import Started, run_command
from tests.test_cli import SMALL
from tests.test_sweep import write_arrays

SWEEP = """
[settings]
model = "arrays.toml"
chains = 1
warmup = 5
draws = 20
sampler = "mala"
parameterisation = "path"
options.steps = 2
[grid]
"""
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture
def file(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / "chains.toml").write_text(SMALL)

    def write(grid, head=SWEEP):
        (tmp_path / "sweep.toml").write_text(head + grid)
        return tmp_path / "sweep.toml"

    return write


def listening():
    """Addresses at which this process and all that it started listen, as the operating system has them."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    sockets = [socket for process in processes for socket in process.net_connections("tcp")]
    return [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("devices", [["2", "5"], pytest.param([], marks=pytest.mark.heavy)], ids=["GPUs", "cores"])
def test_a_sweep_listens_on_loopback_alone(tmp_path, monkeypatch, devices):
    """And each worker sees its GPU alone."""
    monkeypatch.setattr(clusters, "gpus", lambda: devices)
    cluster, threads = clusters.embedded(None if devices else 2, 10 if devices else 2, str(tmp_path))
    with cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        if devices:
            assert sorted(client.run(os.getenv, "CUDA_VISIBLE_DEVICES").values()) == devices
            assert threads == 1
        found = listening()
        pages = client.run(lambda dask_worker: dask_worker.http_server.port)
        pages[""] = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)
        named = ("", "status", "info/main/workers.html", "metrics", "json")
        for port, page in itertools.product(pages.values(), named):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10)
    assert len(found) >= 5  # The scheduler, two nannies and two workers.
    assert set(found) <= LOOPBACK
    assert len(pages) == 3


NO_SECURITY = "^security needs a scheduler at a tls:// address, got "
NO_SCHEDULER = "^scheduler must be the address of a running Dask scheduler.*got "
TCP, TLS = "tcp://127.0.0.1:9", "tls://127.0.0.1:9"
NO_CERTIFICATE = "^security must hold PEM files that belong together, got .*arrays.toml"
SCHEDULERS = [
    (None, {"tls_ca_file": "ca.pem"}, ValueError, NO_SECURITY + "None"),
    (TCP, {"tls_ca_file": "ca.pem"}, ValueError, NO_SECURITY + "tcp://127"),
    (TLS, {"tls_ca_file": "none.pem"}, FileNotFoundError, r"^.Errno 2. tls_ca_file must be a file: 'none.pem'"),
    (TLS, {"password": "x"}, ValueError, "^security must be options of distributed.Security, got password"),
    (TLS, {"tls_ca_file": "arrays.toml"}, ValueError, NO_CERTIFICATE),
    (TLS, distributed.Security(tls_ca_file="arrays.toml"), ValueError, NO_CERTIFICATE),
    (TCP, None, ConnectionError, NO_SCHEDULER + "'tcp://127"),
    ("nowhere", None, ConnectionError, NO_SCHEDULER + "'nowhere"),
]


@pytest.mark.parametrize(("scheduler", "options", "error", "message"), SCHEDULERS)
def test_schedulers_that_cannot_be_used(file, tmp_path, monkeypatch, scheduler, options, error, message):
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 0.3)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        sweep.run(sweep.Sweep(file("seed = [0]"), tmp_path / "out"), scheduler=scheduler, security=options)


def test_a_scheduler_over_tls(tmp_path):
    """With the certificates it works, without them nothing is let in."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout key.pem -out cert.pem"
    try:
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    except OSError:
        pytest.skip("makes certificates with openssl")
    options = {"tls_ca_file": "cert.pem", "tls_client_cert": "cert.pem", "tls_client_key": "key.pem"}
    options = {name: str(tmp_path / file) for name, file in options.items()}
    roles = ("client", "worker", "scheduler")
    every = {name.replace("client", role): file for name, file in options.items() for role in roles}
    with distributed.LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tls://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",  # Even without a dashboard there is a server, by default at one port for all.
        security=distributed.Security(**every, require_encryption=True),
        local_directory=tmp_path,
    ) as cluster:
        for security in (options, distributed.Security(**options, require_encryption=True)):
            with clusters.existing_cluster(cluster.scheduler_address, security) as (client, _):
                assert client.submit(int, "5").result() == 5
        client = clusters.existing_cluster(cluster.scheduler_address, None)
        with pytest.raises(ConnectionError, match="scheduler must be the address"), client:
            pass


GRIDS = {
    "temperature = [0.1234567, 0.12345671]": ["temperature=0.1234567", "temperature=0.12345671"],
    "seed = [0, 1]\ntask.seed = [0, 1]": [f"seed={seed},task.seed={other}" for seed in (0, 1) for other in (0, 1)],
    "task.noise_sum = [0.5, 1.0]": ["noise_sum=0.5", "noise_sum=1"],
    'keep = [["prediction"], ["order_parameter", "prediction"]]': [
        "keep=prediction",
        "keep=order_parameter+prediction",
    ],
    "seed = [4]\n[[runs]]\nwidth = 4\noptions.steps = 3": ["width=4,seed=4,steps=3"],
}


@pytest.mark.parametrize("grid", GRIDS)
def test_runs_that_differ_have_names_that_do(file, tmp_path, grid):
    head = SWEEP.replace("arrays", "chains") if "task" in grid else SWEEP
    plan = sweep.Sweep(file(grid, head), tmp_path / "out")
    names = [planned.name for planned in plan.runs]
    assert names == GRIDS[grid]
    assert len({json.dumps(flattened(planned.varied)) for planned in plan.runs}) == len(names)


@pytest.mark.parametrize("letter", ["/", "\\", "\0", "\n", "é" * 200, "\u202e"], ids=ascii)
def test_names_are_fit_for_files(letter):
    name = _name({"sampler": f"x{letter}y"})
    assert len(name.encode()) <= 200
    assert name.isprintable()
    assert not set(name) & set("/\\")


@pytest.fixture
def here(monkeypatch):
    """Runs of a sweep in this process, as its workers would do them; names of those that are done."""
    done = []

    class Client:
        as_current = nullcontext

        def submit(self, work, planned, pure):
            done.append(planned.name)
            future = Future()
            future.set_result(work(planned))
            return future

    monkeypatch.setattr(distributed, "wait", lambda waiting, **_: SimpleNamespace(done=set(waiting)))
    monkeypatch.setattr(clusters, "own_cluster", lambda *_: nullcontext((Client(), 1)))
    return done


@pytest.mark.parametrize(("name", "count"), [("workers", 0), ("threads", 1.5)])
def test_counts_of_a_sweep(file, tmp_path, here, name, count):
    with pytest.raises(ValueError, match=f"^{name} must be a whole number of at least 1, got {count}"):
        sweep.run(sweep.Sweep(file("seed = [0]"), tmp_path / "out"), **{name: count})
    assert here == []


def test_all_runs_of_a_sweep_are_made_longer_and_made_anew_past_what_is_damaged(file, tmp_path, here):
    """A damaged side file costs nothing; damaged draws are named, and drawn again on demand."""

    def plan(old="", new=""):
        return sweep.Sweep(file("seed = [0, 1]", SWEEP.replace(old, new)), tmp_path / "out")

    short = sweep.run(plan())
    assert here == ["seed=0", "seed=1"]
    here.clear()
    sweep.run(plan())
    assert here == []
    longer = plan("draws = 20", "draws = 30")
    assert [planned.state for planned in longer.runs] == ["short", "short"]
    whole = sweep.run(longer)
    assert here == ["seed=0", "seed=1"]
    assert set(whole["state"]) == {"complete"}
    assert {runs.Run(planned.out).draws()["posterior"].sizes["draw"] for planned in longer.runs} == {30}
    runs.Run(longer.runs[0].out).extend(plan("draws = 20", "draws = 40").runs[0].job)
    assert [planned.steps_done for planned in plan().runs] == [25, 25]
    first_draws = sweep.run(plan())
    assert len(here) == 2
    pd.testing.assert_frame_equal(first_draws.drop(columns="seconds"), short.drop(columns="seconds"))
    side, broken = (planned.out for planned in longer.runs)
    (side / ".run" / "log.jsonl").write_text("5\n[\n")
    (side / ".run" / "diagnostics.json").write_text("5")
    (broken / "posterior" / "prediction" / "c.0.0.0").unlink()
    of_runs = sweep.run(longer).groupby("run").first()
    assert of_runs["state"].to_dict() == {"seed=0": "complete", "seed=1": "failed"}
    assert "is damaged: posterior/prediction" in of_runs["error_message"]["seed=1"]
    mended = sweep.run(longer, overwrite=True)
    assert set(mended["state"]) == {"complete"}
    assert mended["mean"].tolist() == whole["mean"].tolist()
    other = plan("chains = 1", "chains = 2")
    assert "holds a run with chains = 1, got 2" in sweep.run(other)["error_message"].iloc[0]
    replaced = other.runs[0].out
    replaced.with_name(f".{replaced.name}.replacement").mkdir()
    assert [planned.steps_done for planned in other.runs] == [0, 25]
    assert set(sweep.run(other, overwrite=True)["state"]) == {"complete"}
    assert {runs.Run(planned.out).job.chains for planned in other.runs} == {2}


def test_a_folder_that_is_no_run_is_listed(file, tmp_path):
    plan = sweep.Sweep(file("seed = [0, 1]"), tmp_path / "out")
    plan.runs[0].out.mkdir(parents=True)
    (plan.runs[0].out / "zarr.json").write_text("{")
    assert [planned.state for planned in plan.runs] == ["unreadable", "new"]


def test_two_processes_at_one_sweep(file, tmp_path):
    file("seed = [0, 1]")
    request = (run_command, "sweep", "sweep.toml", "--workers", "1")
    first = Started(*request, cwd=tmp_path)
    lock = tmp_path / "out" / "sweep" / ".lock"
    while first.process.is_alive() and not lock.exists():
        time.sleep(0.05)
    refused, _, reason = Started(*request, cwd=tmp_path).wait()
    status, _, err = first.wait()
    assert status == 0, err
    assert refused == 2
    said = "out/sweep is being swept by another process: wait for it, or choose another out"
    assert reason.strip().endswith(f"bayesattn: {said}")
    for planned in sweep.Sweep(tmp_path / "sweep.toml", tmp_path / "out" / "sweep").runs:
        assert [event["event"] for event in runs.Run(planned.out).events()].count("complete") == 1
