"""Effective sample size of U per second and a gradient, for each sampler and parameterisation, in one run: the collapsed
parameterisation at N = 10 and 100, weight space at N = 10.

Run with `uv run python benchmarks/samplers.py`; it takes about ten minutes. Rates are of sampling after warm-up, without
compilation. Token chains follow the law of path chains and differ in the cost of a gradient only, so their rates are those
of path chains times the ratio of the costs, which is measured here. Chains with R-hat above 1.05 have no rate worth
quoting. U is compared with that of a collapsed NUTS run: the entry that is furthest off, in combined Monte Carlo errors, and
for samplers without a Metropolis correction, which are biased, in standard deviations with the Monte Carlo error. Neal's
funnel follows, where every sampler here has a hard time.
"""

import sys
from pathlib import Path
from typing import Any

import arviz_stats
import jax.numpy as jnp
import numpy as np
from gradients import gradient
from timing import interleaved_seconds

import bayesattn as ba
from bayesattn.samplers import BIASED, SAMPLERS, Job
from bayesattn.samplers.blocks import advance, plan
from bayesattn.samplers.run import InMemory

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.samplers.targets import chains, funnel_potential

CHAINS = 2
RUNS = {"collapsed": {"warmup": 300, "draws": 2000}, "path": {"warmup": 200, "draws": 200}}
IN_WEIGHT_SPACE = (10,)
"""Widths at which weight space is sampled too; at N = 100 that would take hours."""
USABLE_RHAT = 1.05
OVERDAMPED = {"mala": 500, "barker": 500, "ula": 500, "sgld": 500}
"""Steps a draw in weight space, where these do not mix in any case; 4000, as preset, would take an hour."""
FUNNEL_STEPS = {"underdamped": 1, "adjusted_mclmc": 1}


class Timed(InMemory):
    """Draws in memory, and the seconds of sampling after warm-up."""

    seconds = 0.0

    def checkpoint(self, chains, state, done, steps, seconds):
        """Add up the blocks."""
        if done > self.job.warmup:
            self.seconds += seconds

    def __init__(self, job, shapes):
        super().__init__(job, shapes)
        self.job = job


def measured(model: ba.Model, sampler: str, parameterisation: str, seed: int = 0) -> dict[str, Any]:
    """Effective sample size, R-hat, gradients and seconds of one sampler; U's mean, deviation and error."""
    settings: dict[str, Any] = dict(RUNS[parameterisation])
    if parameterisation == "path" and sampler in OVERDAMPED:
        settings["options"] = {"steps": OVERDAMPED[sampler]}
    job = Job(
        sampler=sampler,
        parameterisation=parameterisation,
        chains=CHAINS,
        seed=seed,
        keep=("order_parameter",),
        **settings,
    )
    ready = plan(model, job)
    recorder = Timed(job, ready.shapes)
    advance(ready, job, recorder)
    draws = recorder.outputs["posterior"]["order_parameter"]
    entries = draws[..., *np.tril_indices(draws.shape[-1])]
    columns = range(entries.shape[-1])
    return {
        "ess": min(float(arviz_stats.ess(entries[..., c])) for c in columns),
        "rhat": max(float(arviz_stats.rhat(entries[..., c])) for c in columns),
        "gradients": float(recorder.outputs["sample_stats"]["n_steps"].sum()),
        "seconds": recorder.seconds / CHAINS,
        "mean": entries.mean((0, 1)),
        "sd": entries.std((0, 1)),
        "error": np.array([float(arviz_stats.mcse(entries[..., c])) for c in columns]),
    }


def apart(found: dict, reference: dict, biased: bool) -> str:
    """Greatest difference of U from the reference: of a biased sampler in standard deviations, else in combined errors."""
    difference, error = found["mean"] - reference["mean"], np.hypot(found["error"], reference["error"])
    if not biased:
        return f"{np.max(np.abs(difference) / error):.1f} z"
    worst = int(np.argmax(np.abs(difference) / reference["sd"]))
    return f"{difference[worst] / reference['sd'][worst]:+.2f} ± {error[worst] / reference['sd'][worst]:.2f} sd"


def table(model: ba.Model) -> None:
    """Rates of every sampler."""
    print("| N | sampler | parameterisation | ESS / s | / 1000 gradients | R-hat | U against NUTS |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for width in (10, 100):
        wide = model.replace(width=width)
        costs = interleaved_seconds({name: gradient(wide, name) for name in ("path", "token")}, repeats=5)
        slower = costs["token"] / costs["path"]
        reference = measured(wide, "nuts", "collapsed", seed=1)
        for sampler in SAMPLERS:
            for parameterisation in RUNS:
                if sampler == "sgld" and parameterisation == "collapsed":
                    continue
                if parameterisation == "path" and width not in IN_WEIGHT_SPACE:
                    continue
                found = measured(wide, sampler, parameterisation)
                good = found["rhat"] <= USABLE_RHAT
                per_second, per_gradient = found["ess"] / found["seconds"], 1000 * found["ess"] / found["gradients"]
                shown = apart(found, reference, sampler in BIASED) if good else ""
                cells = [f"{per_second:.3g}", f"{per_gradient:.3g}"] if good else ["-", "-"]
                name = f"{sampler} (biased)" if sampler in BIASED else sampler
                print(
                    f"| {width} | {name} | {parameterisation} | {' | '.join(cells)} | {found['rhat']:.3f} | {shown} |"
                )
                if parameterisation == "path":
                    token = f"{per_second / slower:.3g}" if good else "-"
                    print(f"| {width} | {name} | token | {token} | {cells[1]} | | |", flush=True)


def funnel() -> None:
    """v of Neal's funnel, whose mean is 0 and standard deviation 3."""
    print("\n| sampler | mean of v (0) | standard deviation of v (3) | R-hat |\n| --- | --- | --- | --- |")
    for name, kernel in SAMPLERS.items():
        if name == "sgld":
            continue
        options = {} if name in ("nuts", "hmc") else {"steps": FUNNEL_STEPS.get(name, 20)}
        z, _ = chains(kernel(potential_fn=funnel_potential, **options), jnp.zeros(10), 1000, 4000)
        v = z[..., 0]
        mean, error = v.mean(), float(arviz_stats.mcse(v))
        print(f"| {name} | {mean:+.2f} ± {error:.2f} | {v.std():.2f} | {float(arviz_stats.rhat(v)):.3f} |", flush=True)


if __name__ == "__main__":
    table(ba.load_model("hidden_markov"))
    funnel()
