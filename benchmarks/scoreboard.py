"""Scoreboard: samplers and approximations on the reference posteriors. Which are right, and after how many gradients?

`uv run python benchmarks/scoreboard.py [--only METHOD ..] [--on NAME ..] [--out FOLDER] [--table FILE]` grades every
method on every reference posterior with one setting of each, its preset or its library's default, and writes one JSON
file per pair as it goes; run again, it goes on with what is missing. `--table` writes docs/scoreboard.md of what is there.

Gradients are those of all chains after warm-up; methods without gradients count evaluations of the log density. What a
squared error of 0.01 or 0.0001 posterior variances costs, in expectation and for the worst quantity, follows from bias
and Monte Carlo error: (bias^2 - error^2) does not fall with more draws, error^2 does as 1 / n. A bias counts only where
the grade finds it.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import blackjax
import jax
import numpy as np
import numpyro.infer
import numpyro.infer.autoguide as guides
import optax

import bayesattn as ba
from bayesattn.checks.grading import BIASED, RIGHT, Grade
from bayesattn.reference.posteriors import Reference
from bayesattn.samplers import SAMPLERS

CHAINS, WARMUP, DRAWS = 4, 500, 2000
ENSEMBLE_STEPS, ENSEMBLE_THIN = 4000, 50
SGLD_STEPS = 10
"""Steps per draw of SGLD; its preset of 4,000 would take hours."""
SVI_STEPS, SVI_DRAWS = 5000, 4000
MEMBERS, MEMBER_STEPS = 50, 3000
TARGETS = (1e-2, 1e-4)


class Drawn(NamedTuple):
    """Draws, gradients behind them, and a note."""

    tree: Any
    gradients: int | None
    note: str = ""


def ours(reference: Reference, sampler: Any, parameterisation: str) -> Drawn:
    """A sampler of `ba.sample`, by its preset; SGLD with fewer steps, as people use it, and small minibatches."""
    options = {"minibatch": min(20, reference.model.examples // 2), "steps": SGLD_STEPS} if sampler == "sgld" else {}
    tree = ba.sample(
        reference.model,
        sampler,
        parameterisation,
        chains=CHAINS,
        warmup=WARMUP,
        draws=DRAWS,
        seed=0,
        progress=False,
        options=options,
    )
    counted = "n_steps" in tree["sample_stats"]
    return Drawn(tree, None if counted else CHAINS * DRAWS)


def numpyro_ensemble(reference: Reference, kernel: Any) -> Drawn:
    """An ensemble of 40 walkers, by NumPyro's own MCMC.

    Walkers depend on each other's past, so their errors as chains hold only for states far apart: every 50th is kept.
    """
    walkers, density = 40, reference.model.log_density("collapsed")
    mcmc = numpyro.infer.MCMC(
        kernel(reference.model.numpyro("collapsed"), randomize_split=True),
        num_warmup=WARMUP * 4,
        num_samples=ENSEMBLE_STEPS,
        thinning=ENSEMBLE_THIN,
        num_chains=walkers,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    names = [*density.sites(density.initial(jax.random.key(0)))]
    sites = {name: value for name, value in mcmc.get_samples(group_by_chain=True).items() if name in names}
    return Drawn(ba.from_numpyro(sites, reference.model, "collapsed"), walkers * ENSEMBLE_STEPS, f"{walkers} walkers")


def blackjax_nuts(reference: Reference) -> Drawn:
    """BlackJAX's NUTS after its window adaptation."""
    density = reference.model.log_density("collapsed")

    @jax.jit
    @jax.vmap
    def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start_key, warmup_key, key = jax.random.split(key, 3)
        adaptation: Any = blackjax.window_adaptation(blackjax.nuts, density.function)
        (state, parameters), _ = adaptation.run(warmup_key, density.initial(start_key), WARMUP)
        kernel = blackjax.nuts(density.function, **parameters)

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            moved: Any = kernel.step(key, state)
            return moved[0], (moved[0].position, moved[1].num_integration_steps)

        return jax.lax.scan(step, state, jax.random.split(key, DRAWS))[1]

    vectors, steps = chain(jax.random.split(jax.random.key(0), CHAINS))
    return Drawn(ba.from_vectors(vectors, reference.model), int(steps.sum()))


def variational(reference: Reference, guide: Any, parameterisation: str = "path") -> Drawn:
    """SVI with a guide of NumPyro's; draws are independent."""
    program = reference.model.numpyro(parameterisation)
    fitted = guide(program)
    svi = numpyro.infer.SVI(program, fitted, numpyro.optim.Adam(5e-3), numpyro.infer.Trace_ELBO())
    found = svi.run(jax.random.key(0), SVI_STEPS, progress_bar=False)
    drawn = fitted.sample_posterior(jax.random.key(1), found.params, sample_shape=(CHAINS, SVI_DRAWS))
    if all(np.ptp(drawn[name], (0, 1)).max() == 0 for name in drawn):
        raise ValueError("the Hessian at the maximum is singular, as it is in weights; NumPyro then draws one point")
    return Drawn(ba.from_numpyro(drawn, reference.model, parameterisation), SVI_STEPS, "")


def deep_ensemble(reference: Reference) -> Drawn:
    """Networks trained by Adam to the maximum of the posterior from draws of the prior, each one draw."""
    density = reference.model.log_density("path")
    optimiser = optax.adam(1e-2)

    @jax.jit
    @jax.vmap
    def member(key: jax.Array) -> jax.Array:
        vector = density.initial(key)

        def step(carry: Any, _: None) -> tuple[Any, None]:
            vector, state = carry
            updates, state = optimiser.update(-jax.grad(density.function)(vector), state)
            return (optax.apply_updates(vector, updates), state), None

        return jax.lax.scan(step, (vector, optimiser.init(vector)), length=MEMBER_STEPS)[0][0]

    members = CHAINS * 4 * MEMBERS
    vectors = member(jax.random.split(jax.random.key(0), members)).reshape(CHAINS, members // CHAINS, -1)
    return Drawn(ba.from_vectors(vectors, reference.model, "path"), members * MEMBER_STEPS, f"{members} members")


METHODS: dict[str, Callable[[Reference], Drawn]] = {
    **{
        name: partial(ours, sampler=name, parameterisation="path" if name == "sgld" else "collapsed")
        for name in SAMPLERS
    },
    "nuts, weights": partial(ours, sampler="nuts", parameterisation="path"),
    "NumPyro BarkerMH": partial(ours, sampler=numpyro.infer.BarkerMH, parameterisation="collapsed"),
    "NumPyro SA": partial(ours, sampler=numpyro.infer.SA, parameterisation="collapsed"),
    "NumPyro AIES": partial(numpyro_ensemble, kernel=numpyro.infer.AIES),
    "NumPyro ESS": partial(numpyro_ensemble, kernel=numpyro.infer.ESS),
    "BlackJAX NUTS": blackjax_nuts,
    "SVI, normal": partial(variational, guide=guides.AutoNormal),
    "SVI, low-rank normal": partial(variational, guide=guides.AutoLowRankMultivariateNormal),
    "SVI, normal, collapsed": partial(variational, guide=guides.AutoMultivariateNormal, parameterisation="collapsed"),
    "Laplace, weights": partial(variational, guide=guides.AutoLaplaceApproximation),
    "Laplace, collapsed": partial(variational, guide=guides.AutoLaplaceApproximation, parameterisation="collapsed"),
    "deep ensemble": deep_ensemble,
}


def costs(found: Grade) -> dict[str, float | None]:
    """Gradients for an expected squared error of each target of the worst quantity; None if it is never reached."""
    table = found.table
    gradients = found.gradients
    error, bias = table["error"].to_numpy(), table["bias"].to_numpy()
    if gradients is None or not np.isfinite(error).all():
        return dict.fromkeys(map(str, TARGETS))
    stays = np.maximum(bias**2 - error**2, 0) * (found.verdict == BIASED)
    result = {}
    for target in TARGETS:
        room = target - stays
        needed = gradients * error**2 / np.where(room > 0, room, np.nan)
        result[str(target)] = None if np.isnan(needed).any() else float(needed.max())
    return result


def cell(method: str, name: str, file: Path) -> dict[str, Any]:
    """Result of a method on a reference posterior, from its file or made now."""
    if file.exists():
        return json.loads(file.read_text())
    start, reference = time.perf_counter(), ba.reference.load(name)
    try:
        drawn = METHODS[method](reference)
        found = ba.grade(drawn.tree, name, gradients=drawn.gradients)
        squared = found.squared_bias()
        result: dict[str, Any] = {
            "verdict": found.verdict,
            "statement": found.statement(),
            "gradients": found.gradients,
            "largest": float(squared.max()),
            "mean": float(squared.mean()),
            "costs": costs(found),
            "note": drawn.note,
        }
    except (ValueError, FloatingPointError, NotImplementedError, AssertionError) as error:
        result = {"verdict": "not served", "statement": " ".join(str(error).split())[:200]}
    result |= {"method": method, "reference": name, "seconds": round(time.perf_counter() - start, 1)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1))
    return result


SHORT = {RIGHT: "right", BIASED: "biased", "cannot tell": "?", "not served": "-"}


def power(number: float | None) -> str:
    """A number of gradients in short."""
    return "never" if number is None else f"{number:.0e}".replace("e+0", "e")


def page(results: list[dict[str, Any]]) -> str:
    """The page docs/scoreboard.md."""
    names = [name for name in ba.reference.names() if any(each["reference"] == name for each in results)]
    by_pair = {(each["method"], each["reference"]): each for each in results}
    methods = [method for method in METHODS if any(each["method"] == method for each in results)]

    def table(shown: Callable[[dict[str, Any]], str]) -> list[str]:
        rows = [["", *names], ["---"] * (1 + len(names))]
        for method in methods:
            pairs = (by_pair.get((method, name)) for name in names)
            rows.append([method, *("" if found is None else shown(found) for found in pairs)])
        return [f"| {' | '.join(row)} |" for row in rows]

    lines = [
        "# Scoreboard",
        "",
        "Made by `uv run python benchmarks/scoreboard.py --table docs/scoreboard.md`. Each method runs once on each",
        "reference posterior, with its preset or its library's default:",
        f"{CHAINS} chains of {WARMUP} steps of warm-up and {DRAWS} draws. `bayesattn.grade` says whether the draws are",
        "right, biased, or cannot tell (?); - is not served.",
        "",
        "## Which are right",
        "",
        *table(lambda found: SHORT[found["verdict"]]),
        "",
        "## Gradients for a squared error of 0.01 and of 0.0001",
        "",
        "Posterior variances of the worst quantity, in expectation; all chains together, without warm-up. 'never': the",
        "bias that was found is larger. Methods without gradients count evaluations of the log density. Draws that cannot",
        "tell have costs by their Monte Carlo errors, which may be too small.",
        "",
        *table(lambda found: " / ".join(power(cost) for cost in found.get("costs", {}).values())),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=[*METHODS], default=[*METHODS], metavar="METHOD")
    parser.add_argument("--on", nargs="*", choices=ba.reference.names(), default=ba.reference.names(), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("out/scoreboard"))
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    results = []
    for name in given.on:
        for method in given.only:
            file = given.out / name / f"{method.replace(' ', '_').replace(',', '')}.json"
            result = cell(method, name, file)
            results.append(result)
            # Thousands of compiled programs would use up the memory maps that a process may have.
            jax.clear_caches()
            print(f"{name:15} {method:22} {result['seconds']:7.1f} s  {result['statement'][:110]}", flush=True)
    if given.table:
        given.table.write_text(page(results))


if __name__ == "__main__":
    main()
