"""Sampling in memory, in blocks of draws.

NumPyro's `MCMC.run` compiles anew at each call; here all blocks and chains share one compiled function
(`bayesattn.samplers.program`). The state passed from block to block contains the random key and everything that a kernel
adapts, so a chain continued from a state is bit-identical to one that never stopped. A `Recorder`
(`bayesattn.samplers.blocks`) stores draws and states: in memory here, in a Zarr store in `bayesattn.runs`.
"""

import json
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np
import tomli_w

from bayesattn._util.checks import one_of
from bayesattn._util.progress import callback, preparing
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.models.arviz import axes, axis_names, data_groups, tree_of
from bayesattn.models.posterior import Posterior
from bayesattn.models.stored_model import ATTRIBUTE, described, plain_table
from bayesattn.samplers.blocks import Chains, Outputs, Progress, advance, bytes_per_draw, plan, write_region
from bayesattn.samplers.job import Job
from bayesattn.samplers.stopping import Goal, entries, warn_of_few_trips, warn_of_poor_mixing

if TYPE_CHECKING:
    import xarray as xr  # imports pandas, which takes half as long as importing JAX

MOST_MEMORY_BYTES = 2**33


@with_own_settings
def sample(
    model: Posterior,
    sampler: object = "auto",
    parameterisation: str = "collapsed",
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
    seed: int = 0,
    *,
    progress: Callable[[Progress], None] | bool | None = None,
    target_ess: float | None = None,
    max_seconds: float | None = None,
    on_interrupt: str = "raise",
    **settings: object,
) -> "xr.DataTree":
    """Draw from the posterior of a model, in memory; `bayesattn.runs.sample` stores the draws on disk.

    Args:
        model: the posterior.
        sampler: "auto", "nuts", "hmc", "tempered", or one of the Langevin samplers (`bayesattn.samplers.SAMPLERS`); or a
            NumPyro kernel, such as `numpyro.infer.BarkerMH`, a class or an instance, or an (init, step) pair as BlackJAX has
            them. "auto" is "tempered" for networks so narrow that their posteriors may have modes apart, and "nuts" for
            all others (`bayesattn.samplers.suited_sampler`).
        parameterisation: "collapsed", "path" or "token"; "latent" for a LatentModel.
        chains: number of chains.
        warmup: adaptation steps of each chain, discarded.
        draws: draws of each chain after warm-up; with `target_ess` or `max_seconds`, at most this many.
        seed: same seed, same draws.
        target_ess: stop when the bulk and tail effective sample sizes of every entry of U (or of the latent) reach this
            value. They are checked after 100 kept draws of each chain, and again after each increase by a quarter. If the
            target is not reached by the last draw, a warning states the effective sample size.
        max_seconds: begin no further block of draws after this time, compilation included; a warning states the number of
            draws.
        on_interrupt: "raise" KeyboardInterrupt, or "return" the draws that all chains have by then, with a warning.
        progress: function called after each block of each chain. By default a bar is shown on a terminal and in
            Jupyter, and a line every half minute elsewhere; False shows nothing, True also shows a first and a last line.
        settings: further settings of `bayesattn.samplers.Job`: keep, thin, chain_method, options.

    Returns:
        DataTree with ArviZ's groups: posterior["order_parameter"] (chain, draw, path, other_path),
        posterior["prediction"] (chain, draw, test_example) if the model has test examples, the weights if kept,
        sample_stats under ArviZ's names, observed_data, constant_data. A sampler that is biased by its step size adds
        step_size_bias["order_parameter"], whose mean is an estimate of the bias of U. For a LatentModel the groups contain
        posterior["latent"] (chain, draw, value_feature, feature) and step_size_bias["latent"] instead. The tree's attribute
        "bayesattn", a JSON text, describes the model and the settings, so that functions that take draws can read both
        from the tree. If sampling stops early, the tree contains the first draws of each chain, the same number for all,
        bit-identical to the first draws of a longer run.

    Raises:
        ValueError: an unknown sampler, parameterisation or option, counts below 1, a model that the parameterisation
            does not support.
        FloatingPointError: a draw or its energy is not finite.
        TimeoutError: `max_seconds` passed before every chain had draws.
        KeyboardInterrupt: an interrupt, unless `on_interrupt` is "return" and all chains have draws.
    """
    job = Job.of(
        sampler=sampler,
        parameterisation=parameterisation,
        chains=chains,
        warmup=warmup,
        draws=draws,
        seed=seed,
        **settings,
    ).for_model(model)
    goal = Goal(job, target_ess, max_seconds)
    one_of("on_interrupt", on_interrupt, ("raise", "return"))
    with callback(progress, shown_as(model), job.chains * job.transitions) as report:
        preparing(report)
        ready = plan(model, job)
        recorder = InMemory(job, ready.shapes)
        goal.values = lambda count: entries(recorder.outputs["posterior"], count)
        try:
            advance(ready, job, recorder, report, goal=goal)
            if not recorder.drawn:
                raise TimeoutError(f"max_seconds = {max_seconds:g} are over, and no draws of all chains are there yet")
            kept = goal.finish(recorder.drawn)
        except KeyboardInterrupt:
            kept = recorder.drawn
            if on_interrupt == "raise" or not kept:
                raise
            warnings.warn(f"interrupted: {kept} of {job.kept} draws of each chain are there", stacklevel=3)
    warn_of_few_trips(recorder.outputs["sample_stats"], kept)
    target = math.inf if target_ess is None else target_ess
    warn_of_poor_mixing(recorder.outputs["posterior"], kept, job.thin, target)
    outputs = jax.tree.map(lambda values: values[:, :kept], recorder.outputs)
    coords = axis_names(model) | {"draw": job.draw_numbers[:kept]}
    tree = tree_of(outputs | data_groups(model), coords, axes(model))
    tree.attrs[ATTRIBUTE] = json.dumps(described(model) | {"sampler": tomli_w.dumps(plain_table(job.table))})
    return tree


def shown_as(model: Posterior) -> str:
    """Label of the progress bar for sampling a posterior."""
    return ", ".join(filter(None, ("sampling", model.size)))


class InMemory:
    """Recorder of `sample`: NumPy arrays in memory, without checkpoints."""

    def __init__(self, job: Job, shapes: Outputs):
        needed = job.chains * job.kept * bytes_per_draw(shapes)
        if needed > MOST_MEMORY_BYTES:
            raise BayesattnError(
                f"draws of these settings take {needed / 2**30:.1f} GiB of memory, expected at most"
                f" {MOST_MEMORY_BYTES / 2**30:.0f}; keep less, raise thin, or draw to disk with bayesattn.runs.sample"
            )
        self.kept = dict.fromkeys(range(job.chains), 0)
        self.outputs = jax.tree.map(lambda like: np.empty((job.chains, job.kept, *like.shape), like.dtype), shapes)

    @property
    def drawn(self) -> int:
        """Number of draws that all chains have."""
        return min(self.kept.values())

    def restore(self, chains: Chains, like: object) -> None:
        """No earlier state: every chain starts anew."""

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """Copy draws into the arrays."""
        write_region(self.outputs, chains, first, outputs)
        self.kept |= dict.fromkeys(chains, first + len(next(iter(outputs["posterior"].values()))[0]))

    def checkpoint(self, chains: Chains, state: object, done: int, steps: int, seconds: float) -> None:
        """No checkpoints are stored in memory."""
