"""A run started, resumed, made longer or replaced."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesattn._progress import callback, compiling
from bayesattn._settings import with_own_settings
from bayesattn.models import LatentModel, Model
from bayesattn.runs import damage, places, provenance, store
from bayesattn.runs.recorder import Recorder
from bayesattn.runs.run import Run
from bayesattn.runs.same import require_same, require_same_environment
from bayesattn.runs.store import RunBusy, RunError
from bayesattn.samplers import Job, Progress
from bayesattn.samplers.goal import Goal, entries
from bayesattn.samplers.run import advance, plan, shown_as


@with_own_settings
def sample(
    model: Model | LatentModel,
    out: str | Path,
    *,
    progress: Callable[[Progress], None] | bool | None = None,
    threads: int = 0,
    overwrite: bool = False,
    repair: bool = False,
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
        repair: draw what is damaged again, from the checkpoint before it, to the same draws.
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
    job, out = Job.of(**settings), places.settled(out)
    goal = Goal(job, target_ess, max_seconds)
    with callback(progress, shown_as(model), job.chains * job.transitions) as told:
        return _sampled(model, job, out, told, threads, overwrite, repair, goal)


def _sampled(
    model: Model | LatentModel,
    job: Job,
    out: Path,
    progress: Callable[[Progress], None],
    threads: int,
    overwrite: bool,
    repair: bool,
    goal: Goal,
) -> Run:
    if not overwrite or places.is_free(out):
        return _drawn(model, job, out, progress, threads, repair, goal)
    places.require_replaceable(out)
    compiling(progress)
    plan(model, job)  # Whatever is wrong with the request is found before anything is made.
    new = places.replacement(out)
    try:
        if new.exists():
            try:
                require_same(Run(new), model, job)
                require_same_environment(Run(new))
            except RunError:
                places.remove(new)  # A replacement that was asked for before, and given up.
        _drawn(model, job, new, progress, threads, True, goal, lambda: places.swap(new, out))
    except (RunError, FileNotFoundError):
        if not new.exists():
            raise RunBusy(f"{out} has just been replaced by another process") from None
        raise
    return Run(new if new.exists() else out)


def _drawn(
    model: Model | LatentModel,
    job: Job,
    out: Path,
    progress: Callable[[Progress], None],
    threads: int,
    repair: bool,
    goal: Goal,
    finish: Callable[[], None] | None = None,
) -> Run:
    """A run brought to its end; `finish` is called then, before its lock is free."""
    ready = None
    if places.is_free(out):
        compiling(progress)
        ready = plan(model, job)
        store.create(out, model, job, ready)
    run = Run(out)
    run.require_folder()
    if (
        finish is None and not repair and run.complete and job.draws <= run.job.draws
    ):  # Perhaps on a disk to read alone.
        require_same(run, model, job)
        run.require_sound()
        goal.values = _entries(run)
        goal.finish(run.drawn)
        return run
    with store.locked(out):
        run = Run(out)
        require_same(run, model, job)
        if repair:
            run.mend()
        run.require_sound()
        if job.draws > run.job.draws or not run.complete:
            require_same_environment(run)
        if job.draws > run.job.draws:
            if run.description["format"] < store.FORMAT:
                raise RunError(
                    f"{out} holds a run of an older store format, which cannot be made longer: draw another run"
                )
            store.extend(run, job)
            run = Run(out)
        goal.values = _entries(run)
        if not run.complete and goal.enough(run.drawn):
            run.log(event="stopped")
        elif not run.complete:
            for leftover in out.rglob("*.partial"):
                with suppress(OSError):
                    leftover.unlink(missing_ok=True)
            run.log(event="start", pid=os.getpid(), environment=provenance.environment())
            try:
                if ready is None:
                    compiling(progress)
                    if repair:
                        damage.prepare_again(run)
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
        goal.finish(run.drawn)
        # What ran out of time takes nothing's place: the same call goes on with it.
        if finish is not None and (run.complete or goal.reached is not None):
            finish()
    return run


def _entries(run: Run) -> Callable[[int], Any]:
    """Of the first draws that a run has, as `Goal` looks at them."""

    def values(count: int) -> Any:
        posterior = {
            name.partition("/")[2]: array for name, array in run.arrays_of_draws().items() if "posterior/" in name
        }
        return entries(posterior, count)

    return values
