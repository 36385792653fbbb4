"""Execution of a sweep on Dask, and its results; each run has its own store, which survives its worker."""

import io
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import pandas as pd

from bayesattn._util.checks import positive_integer
from bayesattn._util.extras import require
from bayesattn._util.files import replace_file
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.processes import require_main_guard
from bayesattn.errors import BayesattnError
from bayesattn.jobs import runs
from bayesattn.jobs.runs.sampling import difference
from bayesattn.jobs.sweep import clusters
from bayesattn.jobs.sweep.plan import Planned, Sweep, flattened

if TYPE_CHECKING:
    from distributed import Client, Future, Security

POLL_SECONDS = 1.0
OF_A_QUANTITY = (
    *("quantity", "path", "other_path", "variance", "mean", "sd", "error", "test_error", "rhat", "ess", "tail_ess"),
    *("pareto_k", "bias", "bias_error"),
)
"""Columns of `Run.summary`, of one quantity each."""
OVERVIEW_COLUMNS = ("state", "sampler", "width", "temperature", "seconds")


def run_one(planned: Planned, threads: int, overwrite: bool = False) -> str | None:
    """Sample one run to its end, on a worker.

    Returns:
        Error of the run as text, or None: the sweep goes on when a run fails.
    """
    try:
        model, job = planned.model(), vars(planned.job)
        try:
            run = runs.sample(model, planned.out, threads=threads, progress=False, **job)
        except runs.RunError as error:
            if not overwrite or isinstance(error, runs.RunBusy):
                raise
            run = runs.sample(model, planned.out, threads=threads, overwrite=True, progress=False, **job)
        run.summary()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(
    sweep: Sweep,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    security: "PlainMapping | Security | None" = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Callable[[PlainDict], None] | None = None,
) -> pd.DataFrame:
    """Sample all runs of a sweep to their end: complete runs are skipped, interrupted ones resumed, short ones extended.

    The embedded cluster listens on 127.0.0.1 only. Everyone who can reach a scheduler or its workers can run code there:
    use a remote scheduler over TLS, or in a trusted network.

    Args:
        sweep: the sweep.
        workers: number of processes of the embedded cluster, by default one per core, or one per GPU.
        scheduler: address of a running Dask scheduler, instead of an embedded cluster.
        security: a `distributed.Security` for the scheduler, or its options, such as tls_ca_file, tls_client_cert and
            tls_client_key.
        threads: chains that a run samples at a time: by default the cores divided among the workers of the embedded
            cluster, else 1.
        overwrite: replace existing runs that have other settings or are damaged.
        progress: function called about every second with the steps done and in total, and the numbers of runs that are
            complete, failed and in total.

    Returns:
        The table of results, which is also written to results.parquet in the sweep's folder, `by_run` to results.csv, and
        the figure of a sweep over widths to widths.png.

    Raises:
        BlockingIOError: another process is working on the sweep.
        RuntimeError: a script calls this outside of `if __name__ == "__main__":`, without which each worker would call it.
        ConnectionError: no scheduler answers at the address.
        ImportError: the extra "sweep" is not installed, or "cluster" if there is a [cluster] and no scheduler.
        ValueError: `security` without a scheduler at a tls:// address, with an unknown option, or with certificates and
            keys that do not belong together; `workers` or `threads` below 1.
    """
    for name, count in (("workers", workers), ("threads", threads)):
        if count is not None:
            positive_integer(name, count)
    if scheduler is None and sweep.table.cluster is None:
        require_main_guard("sweep.run")
    if security and not (scheduler or "").startswith("tls://"):
        raise BayesattnError(f"security needs a scheduler at a tls:// address, got {scheduler}")
    require_extras(sweep, scheduler)
    sweep.out.mkdir(parents=True, exist_ok=True)
    errors: dict[str, str | None] = {planned.name: None for planned in sweep.runs}
    try:
        lock = filelock.FileLock(sweep.out / ".lock").acquire(timeout=0)
    except filelock.Timeout:
        raise BlockingIOError(
            f"{sweep.out} is being swept by another process: wait for it, or choose another out"
        ) from None
    with lock:
        pending = [planned for planned in sweep.runs if not planned.is_finished]
        try:
            if pending:
                if scheduler is None:
                    connected = clusters.own_cluster(sweep.table.cluster, workers, len(pending))
                else:
                    connected = clusters.existing_cluster(scheduler, security)
                with connected as (client, threads_each):
                    work = partial(run_one, threads=threads or threads_each, overwrite=overwrite)
                    _run_all(client, work, sweep, pending, errors, progress)
        finally:
            table = results(sweep, errors)
            _write(table, sweep.out)
    return table


def _write(table: pd.DataFrame, folder: Path) -> None:
    """Write results.parquet, results.csv and, of a sweep over widths, widths.png."""
    from bayesattn.jobs.plots import save, width_figure  # Workers of a sweep do without Matplotlib.

    each, parquet = by_run(table), io.BytesIO()
    table.to_parquet(parquet, index=False)
    replace_file(folder / "results.csv", each.to_csv(index=False).encode())
    replace_file(folder / "results.parquet", parquet.getvalue())
    try:
        if (figure := width_figure(each)) is not None:
            save(figure, folder / "widths.png", overwrite=True)
    except Exception as error:  # The table is what counts.
        warnings.warn(f"widths.png was not drawn: {type(error).__name__}: {error}", stacklevel=2)


def require_extras(sweep: Sweep, scheduler: str | None = None) -> None:
    """Raise ImportError unless the extras that the sweep needs are installed; "cluster" includes "sweep".

    With a scheduler, no [cluster] is started.
    """
    if sweep.table.cluster is not None and scheduler is None:
        require("cluster", "[cluster]")
    require("sweep", "a sweep")


def _run_all(
    client: "Client",
    work: Callable,
    sweep: Sweep,
    pending: list[Planned],
    errors: dict[str, str | None],
    progress: Callable[[PlainDict], None] | None,
) -> None:
    futures = {client.submit(work, planned, pure=False): planned for planned in pending}
    waiting = set(futures)
    started = {planned.name for planned in pending}
    finished = [planned.job for planned in sweep.runs if planned.name not in started]
    settled_steps = sum(job.chains * job.transitions for job in finished)
    while waiting:
        for future in _finished(client, waiting):
            # If a worker dies repeatedly with a run, or lacks bayesattn, the error is raised by Dask.
            failure = future.exception()
            errors[futures[future].name] = f"{type(failure).__name__}: {failure}" if failure else future.result()
            waiting.remove(future)
            settled_steps += futures[future].steps_done
        if progress:
            progress(_progress_of(sweep, [futures[future] for future in waiting], errors, settled_steps))


def _finished(client: "Client", waiting: "set[Future]") -> "set[Future]":
    """Futures that have finished, after `POLL_SECONDS` at the latest."""
    from distributed import wait

    try:
        with client.as_current():
            # Dask's annotation says a coroutine.
            outcome: Any = wait(waiting, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
    except TimeoutError:
        return set()
    return outcome.done


def _progress_of(
    sweep: Sweep, running: list[Planned], errors: Mapping[str, str | None], settled_steps: int
) -> PlainDict:
    """Steps done and in total, and numbers of runs; `settled_steps` are those of runs that are not running."""
    failed = sum(error is not None for error in errors.values())
    return {
        "done": settled_steps + sum(planned.steps_done for planned in running),
        "total": sum(planned.job.chains * planned.job.transitions for planned in sweep.runs),
        "complete": len(sweep.runs) - len(running) - failed,
        "failed": failed,
        "runs": len(sweep.runs),
    }


def results(sweep: Sweep, errors: Mapping[str, str | None] | None = None) -> pd.DataFrame:
    """Tidy table: a row for each quantity of each complete run, and one with state and error for each other run.

    Columns: run, model, sampler, parameterisation, chains, warmup, draws, seed, and the settings that vary; state, width,
    temperature, seconds (of sampling, of all chains together), divergences and error_message; and those of `Run.summary`,
    one row a quantity.
    """
    return pd.DataFrame([row for planned in sweep.runs for row in _rows(planned, (errors or {}).get(planned.name))])


def by_run(table: pd.DataFrame) -> pd.DataFrame:
    """One row a run, of a table of `results`: its settings and state, and what its quantities say.

    Columns: those of a run; accuracy, accuracy_error (Monte Carlo) and accuracy_test_error (size of the test set); the
    greatest diagonal entry of U (path, U and U_error); and the largest R-hat and the smallest effective sample size of all
    quantities. NaN where a run has none of these.
    """
    rows = table.drop_duplicates("run").set_index("run", drop=False).drop(columns=[*OF_A_QUANTITY], errors="ignore")
    missing = [name for name in OF_A_QUANTITY if name not in table]
    table = table.reindex(columns=[*table.columns, *missing])
    table = table.astype(dict.fromkeys(("mean", "error", "test_error", "rhat", "ess"), float))
    accuracy = table.loc[table["quantity"] == "accuracy"].set_index("run")
    diagonal = table.loc[(table["quantity"] == "order_parameter") & (table["path"] == table["other_path"])]
    greatest = diagonal.sort_values("mean").drop_duplicates("run", keep="last").set_index("run")
    of_run = table.groupby("run")
    return rows.assign(
        accuracy=accuracy["mean"],
        accuracy_error=accuracy["error"],
        accuracy_test_error=accuracy["test_error"],
        path=greatest["path"],
        U=greatest["mean"],
        U_error=greatest["error"],
        rhat=of_run["rhat"].max(),
        ess=of_run["ess"].min(),
    ).reset_index(drop=True)


def _rows(planned: Planned, sweep_error: str | None) -> list[PlainDict]:
    """Rows of one run; `sweep_error` is the error with which it failed in this sweep."""
    job = vars(planned.job)
    about: PlainDict = {"run": planned.name, "model": Path(planned.settings["model"]).stem}
    about |= {name: job[name] for name in ("sampler", "parameterisation", "chains", "warmup", "draws", "seed")}
    columns, summary, error = _overview(planned, sweep_error)
    about |= flattened(planned.varied) | columns
    if error:
        about["state"] = "failed"
    return [about | {"error_message": error} | quantity for quantity in summary or [{}]]


def _overview(planned: Planned, sweep_error: str | None) -> tuple[PlainDict, list[PlainDict], str | None]:
    """Columns from the overview of a run, its summary if it is complete and did not fail, and its error."""
    columns: PlainDict = {}
    try:
        state = planned.state
        if state == "new":
            return {"state": state, "divergences": None}, [], sweep_error
        run = planned.stored()
        overview: PlainDict = run.overview() | {"state": state}
        columns |= {name: overview[name] for name in OVERVIEW_COLUMNS if name in overview}
        columns["divergences"] = (overview["diagnostics"] or {}).get("divergences")
        complete = state == "complete"
        why = difference(run, planned.model(), planned.job) if state == "different" else overview["error"]
        error = sweep_error or (None if complete else why)
        return columns, run.summary() if complete and not error else [], error
    except (runs.RunError, OSError) as damage:
        return columns, [], sweep_error or str(damage)
