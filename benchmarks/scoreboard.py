"""Scoreboard: samplers and approximations on the reference posteriors. Which are right, and after how many gradients?

`uv run python benchmarks/scoreboard.py [--only METHOD ..] [--on NAME ..] [--out FOLDER] [--table FILE]` grades every
method on every reference posterior with one setting of each, its preset or its library's default, and writes one JSON
file per pair as it goes; run again, it goes on with what is missing. `--table` writes docs/scoreboard.md of what is there.

Gradients are those of all chains after warm-up; methods without gradients count evaluations of the log density. What a
squared error of 0.01 or 0.0001 posterior variances costs, in expectation and for the worst quantity, follows from bias
and Monte Carlo error: bias^2 - error^2 does not fall with more draws, error^2 does as 1 / n. The bias of a quantity counts
where its own test finds it. Fits (SVI, Laplace) cost what their optimisation does, however many draws are taken.
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
from bayesattn.questions.reference.grading import BIASED, CANNOT_TELL, MARGIN, RIGHT, Grade
from bayesattn.questions.reference.posteriors import Reference
from bayesattn.samplers import SAMPLERS

CHAINS, WARMUP, DRAWS = 4, 500, 2000
ENSEMBLE_STEPS, ENSEMBLE_THIN = 6000, 50
SGLD_STEPS = 10
"""Steps per draw of SGLD; its preset of 4,000 would take hours."""
MOST_COORDINATES_OF_SA = 100
"""Most coordinates for NumPyro's SA, which moves twice as many points: a step at 111 coordinates takes 0.1 s."""
MOST_WEIGHTS_OF_LAPLACE = 5000
"""Most weights for Laplace's method: a Hessian of 20,400 weights, which JAX needs several times, takes 3.1 GiB."""
SVI_STEPS, SVI_DRAWS = 5000, 4000
MEMBERS, MEMBER_STEPS = 50, 3000
TARGETS = (1e-2, 1e-4)
SETTINGS = [
    CHAINS,
    WARMUP,
    DRAWS,
    ENSEMBLE_STEPS,
    ENSEMBLE_THIN,
    SGLD_STEPS,
    SVI_STEPS,
    SVI_DRAWS,
    MEMBERS,
    MEMBER_STEPS,
]
"""Results of other settings are not used."""
NOT_SERVED = "not served"


class Drawn(NamedTuple):
    """Draws, gradients behind them, and whether more draws cost no more gradients."""

    tree: Any
    gradients: int | None
    fixed: bool = False


def ours(reference: Reference, sampler: Any, parameterisation: str) -> Drawn:
    """A sampler of `ba.sample`, by its preset; SGLD with fewer steps, as people use it, and small minibatches."""
    options = {"minibatch": min(20, reference.model.examples // 2), "steps": SGLD_STEPS} if sampler == "sgld" else {}
    if (
        sampler is numpyro.infer.SA
        and (size := reference.model.log_density(parameterisation).size) > MOST_COORDINATES_OF_SA
    ):
        raise ValueError(f"SA has {2 * size} points at {size} coordinates, which takes too long")
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
        kernel(reference.model.numpyro("collapsed"), randomize_split=False),
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
    return Drawn(ba.from_numpyro(sites, reference.model, "collapsed"), walkers * ENSEMBLE_STEPS)


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
    if (
        guide is guides.AutoLaplaceApproximation
        and (size := reference.model.log_density(parameterisation).size) > MOST_WEIGHTS_OF_LAPLACE
    ):
        raise ValueError(f"the Hessian of {size:,} weights does not fit into 20 GiB as JAX computes it")
    program = reference.model.numpyro(parameterisation)
    fitted = guide(program)
    svi = numpyro.infer.SVI(program, fitted, numpyro.optim.Adam(5e-3), numpyro.infer.Trace_ELBO())
    found = svi.run(jax.random.key(0), SVI_STEPS, progress_bar=False)
    drawn = fitted.sample_posterior(jax.random.key(1), found.params, sample_shape=(CHAINS, SVI_DRAWS))
    if all(np.ptp(drawn[name], (0, 1)).max() == 0 for name in drawn):
        raise ValueError("the Hessian at the maximum is singular, as it is in weights; NumPyro then draws one point")
    return Drawn(ba.from_numpyro(drawn, reference.model, parameterisation), SVI_STEPS, fixed=True)


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
    return Drawn(ba.from_vectors(vectors, reference.model, "path"), members * MEMBER_STEPS)


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


def costs(found: Grade, fixed: bool) -> dict[str, float | None]:
    """Gradients for an expected squared error of each target of the worst quantity, None if never; empty if unknown."""
    table, gradients = found.table, found.gradients
    error, bias, p = (table[name].to_numpy() for name in ("error", "bias", "p"))
    if gradients is None or not np.isfinite(error).all():
        return {}
    stays = np.where(p * found.tests < found.level, np.maximum(bias**2 - error**2, 0), 0)
    result: dict[str, float | None] = {}
    for target in TARGETS:
        room = target - stays
        needed = gradients if fixed else float((gradients * error**2 / np.where(room > 0, room, np.nan)).max())
        result[str(target)] = None if (room <= 0).any() else needed
    return result


def cell(method: str, name: str, file: Path) -> dict[str, Any]:
    """Result of a method on a reference posterior, from its file or made now."""
    if file.exists() and (stored := json.loads(file.read_text())).get("settings") == SETTINGS:
        return stored
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
            "costs": costs(found, drawn.fixed),
        }
    except (ValueError, FloatingPointError, NotImplementedError, AssertionError) as error:
        result = {"verdict": NOT_SERVED, "statement": " ".join(str(error).split())[:200]}
    result |= {
        "settings": SETTINGS,
        "method": method,
        "reference": name,
        "seconds": round(time.perf_counter() - start, 1),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1))
    return result


SIGNS = {RIGHT: "✓", BIASED: "✗", CANNOT_TELL: "?", NOT_SERVED: "–"}


INTRODUCTION = """---
hide: [toc]
---

# Scoreboard of samplers

Which samplers and approximations are right on a neural network's posterior, at what cost? Each ran once, by its preset
or its library's default, on {names} [reference posteriors](howto/grading.md) whose truth is known.

```
uv run python benchmarks/scoreboard.py --table docs/scoreboard.md
```

makes this page, and resumes after an interruption; {cells} cells took {minutes:.0f} minutes of one process.{missing}

- ✓ right: no mean can be off by {margin:g} posterior standard deviations, and nothing differs from the truth.
- ✗ biased: a mean, or the share of draws below a true quantile, differs by more than chance explains.
- ? cannot tell: too few effective draws, or chains that differ. – not served, or failed.

Gradients are those of all chains, without warm-up, for an expected squared error of 0.01, and of 0.0001, posterior
variances of the worst quantity. *Never* means that the mean of a quantity has a larger bias. A bias too small to be
found is not counted: a cost for 0.0001 is what Monte Carlo errors alone demand. Fits (SVI, Laplace) cost their
optimisation. Methods without gradients count evaluations of the log density, ensembles one for each walker and step,
though slice sampling needs several. ULA, SGLD and mclmc, which have no Metropolis correction, spend two thirds of their
gradients on a second chain of half the step, to measure their bias. A minibatch counts as a gradient. Where the verdict
is ?, Monte Carlo errors may be too small, and so may costs.

Chains: {chains} of {warmup} steps of warm-up and {draws:,} draws. Ensembles: 40 walkers. Fits: {svi:,} steps of Adam.
Deep ensembles: {members} networks, trained from the prior to the maximum of the posterior."""

CROSSES = {("nuts", "sixteen_paths"), ("hmc", "cold"), ("mala", "three_classes")}
"""Crosses of samplers with a Metropolis correction that were drawn again, with three other seeds each: all were right."""
ABOUT_CROSSES = """\
A right sampler gets a cross in up to one of a hundred verdicts. NUTS on sixteen_paths, HMC on cold and MALA on
three_classes have such crosses: three other seeds of each were right. So [begin with `auto`](howto/samplers.md), mostly
NUTS, and believe no cross of one seed. `assert_right` therefore takes a level of 1e-4."""


def power(number: float | None) -> str:
    """A number of gradients in short."""
    return "never" if number is None else f"{number:.0e}".replace("e+0", "e").replace("e+", "e")


def middle(numbers: list[float | None]) -> str:
    """Median cost, "never" if at least half of the costs are."""
    known = sorted(float("inf") if number is None else number for number in numbers)
    return "" if not known else power(None if np.isinf(known[len(known) // 2]) else known[len(known) // 2])


def page(results: list[dict[str, Any]]) -> str:
    """The page docs/scoreboard.md."""
    names = [name for name in ba.reference.names() if any(each["reference"] == name for each in results)]
    by_pair = {(each["method"], each["reference"]): each for each in results}
    methods = [method for method in METHODS if any(each["method"] == method for each in results)]

    def table(columns: list[str], cells: Callable[[str], list[str]]) -> list[str]:
        rows = [["", *columns], ["---"] * (1 + len(columns)), *([method, *cells(method)] for method in methods)]
        return [f"| {' | '.join(row)} |" for row in rows]

    def summary(method: str) -> list[str]:
        own = [each for each in results if each["method"] == method]
        verdicts = [sum(each["verdict"] == verdict for each in own) for verdict in SIGNS]
        return [
            *map(str, verdicts),
            *(middle([each["costs"][str(target)] for each in own if each.get("costs")]) for target in TARGETS),
        ]

    def shown(of: Callable[[dict[str, Any]], str]) -> Callable[[str], list[str]]:
        return lambda method: [of(by_pair[method, name]) if (method, name) in by_pair else "" for name in names]

    def cost(found: dict[str, Any]) -> str:
        return " / ".join(power(each) for each in found.get("costs", {}).values())

    minutes = sum(each["seconds"] for each in results) / 60
    crosses = {pair for pair, each in by_pair.items() if each["verdict"] == BIASED}
    lines = [
        *INTRODUCTION.format(
            names=len(names),
            chains=CHAINS,
            warmup=WARMUP,
            draws=DRAWS,
            minutes=minutes,
            cells=len(results),
            missing=" Blank cells have not been run yet." if len(results) < len(names) * len(methods) else "",
            margin=MARGIN,
            svi=SVI_STEPS,
            members=CHAINS * 4 * MEMBERS,
        ).splitlines(),
        "",
        "## Summary",
        "",
        *table([*SIGNS.values(), "gradients for 0.01", "for 0.0001"], summary),
        "",
        "Gradients are medians over the reference posteriors.",
        "",
        "## Verdicts",
        "",
        *table(names, shown(lambda found: SIGNS[found["verdict"]])),
        "",
        *(ABOUT_CROSSES.splitlines() if crosses >= CROSSES else ()),
        "",
        "## Gradients for a squared error of 0.01 and of 0.0001",
        "",
        *table(names, shown(cost)),
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
