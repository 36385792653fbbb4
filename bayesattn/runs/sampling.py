"""Sampling into a run: start, resume, extend or replace it."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesattn._util.progress import callback, compiling
from bayesattn._util.settings import with_own_settings
from bayesattn.posterior import Posterior
from bayesattn.runs import folder, store
from bayesattn.runs.folder import RunBusy, RunError
from bayesattn.runs.provenance import environment, require_same, require_same_environment
from bayesattn.runs.recorder import Recorder
from bayesattn.runs.run import Run
from bayesattn.samplers import Job, Progress
from bayesattn.samplers.blocks import Plan, advance, plan
from bayesattn.samplers.elsewhere import require_stored_name
from bayesattn.samplers.goal import Goal, entries
from bayesattn.samplers.run import shown_as


@with_own_settings
def sample(
    model: Posterior,
    out: str | Path,
    *,
    progress: Callable[[Progress], None] | bool | None = None,
    threads: int = 0,
    overwrite: bool = False,
    target_ess: float | None = None,
    max_seconds: float | None = None,
    **settings: Any,
) -> Run:
    """Start, resume or extend a run; a complete run is returned as it is.

    The draws are bit-identical regardless of how often the run stopped, and of whether its draws were requested all at once
    or in several calls.

    Args:
        model: the posterior.
        out: folder of the run, created if it does not exist; for a link, the target of the link.
        progress: as in `bayesattn.sample`.
        threads: largest number of chains that run at a time, by default one per core.
        overwrite: replace the run at `out`, which is kept until the new run is complete. The new run is sampled in a hidden
            folder beside it, where the same call resumes it.
        target_ess: as in `bayesattn.sample`. The run stops at the target with the state "stopped", and its draws are those
            that all chains have by then. Without a target, or with a higher one, the run continues.
        max_seconds: as in `bayesattn.sample`; the same call continues for another `max_seconds`. With `overwrite`, the run
            at `out` is kept until its successor is complete or reaches its target; until then the returned run is in the
            hidden folder.
        settings: settings of `bayesattn.samplers.Job`.

    Raises:
        RunError: `out` contains something else, a run of another model or other settings, or a damaged run.
        RunBusy: another process is writing the run.
        OSError: the folder cannot be written, or the disk is full; the blocks before are kept.
        ValueError: invalid settings.
        FloatingPointError: a draw is not finite; the blocks before it are kept.
        KeyboardInterrupt: an interrupt, after the blocks in progress are finished and recorded.
    """
    job = Job.of(**settings)
    require_stored_name(job.sampler)
    out = folder.prepared(out)
    goal = Goal(job, target_ess, max_seconds)
    with callback(progress, shown_as(model), job.chains * job.transitions) as report:
        return _sampled(model, job, out, report, threads, overwrite, goal)


def _sampled(
    model: Posterior,
    job: Job,
    out: Path,
    progress: Callable[[Progress], None],
    threads: int,
    overwrite: bool,
    goal: Goal,
) -> Run:
    if not overwrite or folder.is_free(out):
        return _drawn(model, job, out, progress, threads, goal)
    folder.require_replaceable(out)
    compiling(progress)
    plan(model, job)  # Errors in the request are found before anything is created.
    new = folder.beside(out, folder.REPLACEMENT)
    try:
        if new.exists():
            try:
                begun = Run(new)
                require_same(begun, model, job)
                require_same_environment(begun)
                begun.require_sound()
            except RunError:
                folder.remove(new)  # An earlier replacement with other settings, or a damaged one.
        _drawn(model, job, new, progress, threads, goal, lambda: folder.replace(new, out))
    except (RunError, FileNotFoundError):
        if not new.exists():
            raise RunBusy(f"{out} has just been replaced by another process") from None
        raise
    return Run(new if new.exists() else out)


def _drawn(
    model: Posterior,
    job: Job,
    out: Path,
    progress: Callable[[Progress], None],
    threads: int,
    goal: Goal,
    finish: Callable[[], None] | None = None,
) -> Run:
    """Run sampled to its end; `finish` is called then, before the lock is released."""
    ready = None
    if folder.is_free(out):
        compiling(progress)
        ready = plan(model, job)
        store.create(out, model, job, ready)
    run = Run(out)
    run.require_folder()
    if (
        finish is None and run.complete and job.draws <= run.job.draws
    ):  # No lock is taken, as the disk may be read-only.
        require_same(run, model, job)
        run.require_sound()
        goal.values = _entries(run)
        goal.finish(run.drawn)
        return run
    with folder.locked(out):
        run = Run(out)
        require_same(run, model, job)
        run.require_sound()
        if job.draws > run.job.draws or not run.complete:
            require_same_environment(run)
        if job.draws > run.job.draws:
            store.extend(run, job)
            run = Run(out)
        goal.values = _entries(run)
        if not run.complete:
            _advance(run, job, ready, progress, threads, goal)
        goal.finish(run.drawn)
        # A run that ran out of time replaces nothing: the same call continues it.
        if finish is not None and (run.complete or goal.reached is not None):
            finish()
    return run


def _advance(
    run: Run, job: Job, ready: Plan | None, progress: Callable[[Progress], None], threads: int, goal: Goal
) -> None:
    """Sample the missing draws of a run, until the goal is reached; the caller has locked the run."""
    if goal.enough(run.drawn):
        run.log(event="stopped")
        return
    for leftover in run.path.rglob("*.partial"):
        with suppress(OSError):
            leftover.unlink(missing_ok=True)
    run.log(event="start", pid=os.getpid(), environment=environment())
    try:
        if ready is None:
            compiling(progress)
            ready = plan(run.model, job, store.read_prepared(run))
        advance(ready, job, Recorder(run), progress, threads, goal)
    except KeyboardInterrupt:
        with suppress(OSError):
            run.log(event="interrupted")
        raise
    except (FloatingPointError, OSError) as error:
        with suppress(OSError):  # The disk may be full.
            run.log(event="failed", error=str(error))
        raise
    run.log(event="complete" if run.complete else "stopped")


def _entries(run: Run) -> Callable[[int], Any]:
    """Function for `Goal` that returns the entries of the first `count` draws."""

    def values(count: int) -> Any:
        posterior = {
            name.partition("/")[2]: array for name, array in run.arrays_of_draws().items() if "posterior/" in name
        }
        return entries(posterior, count)

    return values
