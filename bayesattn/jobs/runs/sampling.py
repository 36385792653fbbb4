"""Sampling into a run: start, resume, extend or replace it."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from bayesattn._util.checks import positive_integer
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.progress import callback, preparing
from bayesattn._util.settings import with_own_settings
from bayesattn.jobs.runs import folder, store
from bayesattn.jobs.runs.folder import RunError
from bayesattn.jobs.runs.provenance import RESULT_ARRAYS, differences, environment, settings
from bayesattn.jobs.runs.recorder import Recorder
from bayesattn.jobs.runs.run import Run
from bayesattn.models.posterior import Posterior
from bayesattn.models.stored_model import close
from bayesattn.samplers import Job, Progress
from bayesattn.samplers.blocks import Plan, advance, plan
from bayesattn.samplers.external import require_stored_name
from bayesattn.samplers.run import shown_as
from bayesattn.samplers.stopping import Goal, entries


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

    If fewer draws are asked for than the run has, the returned run reads the first ones; its folder keeps all.

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
            that all chains have by then. A call without a target, or with a higher one, continues it.
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
    job, threads = Job.of(**settings).for_model(model), positive_integer("threads", threads, 0)
    require_stored_name(job.sampler)
    out = folder.recovered(out)
    goal = Goal(job, target_ess, max_seconds)
    with callback(progress, shown_as(model), job.chains * job.transitions) as report:
        request = _Request(model, job, goal, report, threads)
        return request.replace(out) if overwrite and not folder.is_free(out) else request.draw(out)


class _Request(NamedTuple):
    """Request for draws on disk."""

    model: Posterior
    job: Job
    goal: Goal
    progress: Callable[[Progress], None]
    threads: int

    def replace(self, out: Path) -> Run:
        """Run sampled in a hidden folder, which replaces the one at `out` if it has its draws or is at its target."""
        if not (out / "zarr.json").is_file() or not (out / folder.FOLDER).is_dir():
            raise RunError(f"out must be a run, which overwriting replaces, got {out}, which is not a run")
        new = folder.beside(out, folder.REPLACEMENT)
        with folder.locked(out):
            ready = self._plan()  # Errors in the request are found before anything is created or deleted.
            if new.exists():
                try:
                    require_same_environment(self._opened(new))
                except RunError:
                    folder.remove(new)  # An earlier replacement with other settings, or a damaged one.
            run = self.draw(new, ready)
            if run.drawn < self.job.kept and self.goal.reached is None:
                return run  # A run that ran out of time replaces nothing: the same call continues it.
            folder.replace(new, out)
        folder.clean(out)
        return Run(out, run.first)

    def draw(self, out: Path, ready: Plan | None = None) -> Run:
        """Run sampled to its end, or to its goal; `ready` is the plan of a new one, if it is known."""
        if folder.is_free(out):
            ready = ready or self._plan()
            store.create(out, self.model, self.job, ready)
        else:
            ready = None  # A run continues by the plan that it was begun with.
        run = self._opened(out)
        if run.drawn < self.job.kept:  # Else no lock is taken, as the disk may be read-only.
            with folder.locked(out):
                run = self._opened(out)  # Another process may have changed it meanwhile.
                require_same_environment(run)
                if self.job.draws > run.job.draws:
                    run.extend(self.job)
                    run = self._opened(out)
                if run.drawn < self.job.kept:
                    self._advance(run, ready)
        self.goal.finish(run.drawn)
        return run

    def _plan(self, prepared: PlainDict | None = None) -> Plan:
        preparing(self.progress)
        return plan(self.model, self.job, prepared)

    def _opened(self, path: Path) -> Run:
        """Run at a path, if it is the requested one and undamaged."""
        run = Run(path)
        require_same(run, self.model, self.job)
        if self.job.draws < run.job.draws:
            run.first = self.job.kept
        run.require_sound()
        self.goal.values = lambda count: entries(cast("PlainMapping", run.root()["posterior"]), count)
        return run

    def _advance(self, run: Run, ready: Plan | None) -> None:
        """Sample the missing draws of a run, until the goal is reached; the caller has locked the run."""
        if self.goal.enough(run.drawn):
            run.log(event="stopped")
            return
        for leftover in run.path.rglob("*.partial"):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)
        run.log(event="start", pid=os.getpid(), environment=environment(self.job.sampler_name))
        try:
            ready = ready or self._plan(run.checkpoint(())[1])
            advance(ready, self.job, Recorder(run), self.progress, self.threads, self.goal)
        except BaseException as error:
            stopped = not isinstance(error, Exception)
            with suppress(OSError):  # The disk may be full.
                run.log(**({"event": "interrupted"} if stopped else {"event": "failed", "error": str(error)}))
            raise
        run.log(event="complete" if run.complete else "stopped")


def difference(run: Run, model: Posterior, job: Job) -> str | None:
    """First difference of a run from this model and these settings, as a sentence; None if there is none.

    A request for more or fewer draws is not a difference.
    """
    asked, has = settings(model, job.for_model(model)), settings(run.model, run.job)
    del asked["draws"], has["draws"]
    for name in has | asked:  # A table has no entry of what is usual, such as a Gaussian likelihood.
        if asked.get(name) != has.get(name):
            return (
                f"{run.path} holds a run with {name} = {has.get(name)}, got {asked.get(name)}: ask for the same, choose"
                " another folder, or replace it with overwrite=True (--overwrite)"
            )
    for name in (*run.model.data_names, *RESULT_ARRAYS):
        if not close(getattr(run.model, name, None), getattr(model, name, None)):
            return f"{run.path} holds a run on other data: its {name} differ; choose another folder"
    return None


def require_same(run: Run, model: Posterior, job: Job) -> None:
    """Raise RunError, which names the first difference, unless a run is of this model and these settings."""
    if found := difference(run, model, job):
        raise RunError(found)


def require_same_environment(run: Run) -> None:
    """Raise RunError, which names the differences, unless this environment would continue the draws bit for bit."""
    if changed := differences(run.description["environment"], environment(run.job.sampler_name)):
        raise RunError(
            f"{run.path} was begun with {', '.join(changed)}: resumed, its draws would not be those of one run;"
            " resume it in that environment, choose another folder, or replace it with overwrite=True (--overwrite)"
        )
