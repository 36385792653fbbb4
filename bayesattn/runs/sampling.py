"""A run started, resumed, made longer or replaced."""

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
    """Start a run, resume it, make it longer, or find it complete.

    The draws are the same, bit for bit, however often it stopped, and whether all were asked for at first or more later.

    Args:
        model: the posterior.
        out: folder of the run, made if it is not there; where it is a link, what that points to.
        progress: as in `bayesattn.sample`.
        threads: most chains that run at a time, by default one a core.
        overwrite: replace the run that stands at `out`, which stays until the new one is complete: that is drawn in a hidden
            folder beside it, where the same call resumes it.
        target_ess: as in `bayesattn.sample`. The run stops there, its state is "stopped", and its draws are those that all
            chains have by then; without a target, or with a higher one, it goes on.
        max_seconds: as in `bayesattn.sample`; the same call goes on for as long again. With `overwrite` the run that stands
            at `out` stays until its successor is complete or has its target, and the one returned lies in the hidden folder.
        settings: those of `bayesattn.samplers.Job`.

    Raises:
        RunError: `out` holds something else, a run of another model or other settings, or one that is damaged.
        RunBusy: another process is at work on it.
        OSError: the folder cannot be written, or the disk is full; what was written before is kept.
        ValueError: settings that make no sense.
        FloatingPointError: a draw is not finite; the blocks before it are kept.
        KeyboardInterrupt: after the blocks under way were finished and recorded.
    """
    job, out = Job.of(**settings), folder.prepared(out)
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
    plan(model, job)  # Whatever is wrong with the request is found before anything is made.
    new = folder.beside(out, folder.REPLACEMENT)
    try:
        if new.exists():
            try:
                begun = Run(new)
                require_same(begun, model, job)
                require_same_environment(begun)
                begun.require_sound()
            except RunError:
                folder.remove(new)  # A replacement that was asked for before, and given up, or is damaged.
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
    """A run brought to its end; `finish` is called then, before its lock is free."""
    ready = None
    if folder.is_free(out):
        compiling(progress)
        ready = plan(model, job)
        store.create(out, model, job, ready)
    run = Run(out)
    run.require_folder()
    if finish is None and run.complete and job.draws <= run.job.draws:  # Without the lock: the disk may be read-only.
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
        # What ran out of time takes nothing's place: the same call goes on with it.
        if finish is not None and (run.complete or goal.reached is not None):
            finish()
    return run


def _advance(
    run: Run, job: Job, ready: Plan | None, progress: Callable[[Progress], None], threads: int, goal: Goal
) -> None:
    """Draw what is missing of a run, until the goal is reached; the caller has locked it."""
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
    """Function of a number of draws that gives `Goal` the entries of the first of them."""

    def values(count: int) -> Any:
        posterior = {
            name.partition("/")[2]: array for name, array in run.arrays_of_draws().items() if "posterior/" in name
        }
        return entries(posterior, count)

    return values
