"""Would it have been caught? Silent faults that sampler libraries shipped and later mended, graded after the fact.

    uv run python benchmarks/caught.py [--only FAULT ..] [--alarms] [--page FILE]

For each fault, the version that had it and the version that mended it are installed into environments of their own, in
build/caught, draw a reference posterior in the weights, three seeds each, and are graded here. `--alarms` counts false
alarms of `bayesattn.testing.assert_right` over 1,000 calls on right draws, and how often it finds a temperature that is
5 % too high. It writes a file for each result and goes on with what is missing; `--page` writes the page of what is there.
"""

import argparse
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import bayesattn as ba
from bayesattn import testing
from bayesattn.jobs.plots import save
from bayesattn.jobs.plots.style import palette
from bayesattn.questions.reference.checking import BY_DEFAULT
from bayesattn.questions.reference.grading import BIASED, MARGIN, RIGHT, Grade
from bayesattn.questions.reference.quantities import quantities_of_draws

FOLDER = Path(__file__).parents[1] / "build" / "caught"
DRAWS = Path(__file__).with_name("caught_draws.py")
SEEDS = (0, 1, 2)
MOST_SECONDS = 600
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""First parts of the draws that are graded too."""
CALLS, AT_ONCE, DEFAULT_DRAWS, CHAINS = 1000, 100, 4000, 4
POWER_CALLS = 50
LATE_2023 = ("jax==0.4.23", "jaxlib==0.4.23", "numpyro==0.13.2", "numpy==1.26.4", "scipy==1.11.4")
EARLY_2026 = ("jax==0.9.0", "jaxlib==0.9.0", "numpyro==0.22.0")


class Fault(NamedTuple):
    """A fault, and two versions.

    Args:
        what: what was wrong.
        source: where it was reported or mended; empty if it was found in the code.
        sampler: sampler of `caught_draws.py`.
        reference: reference posterior.
        faulty: requirement of the version with the fault.
        mended: requirement of the version without it.
        others: requirements of both.
    """

    what: str
    source: str
    sampler: str
    reference: str
    faulty: str
    mended: str
    others: tuple[str, ...]


def github(project: str, number: int) -> str:
    """Link to an issue or pull request."""
    return f"[{number}](https://github.com/{project}/issues/{number})"


NUMPYRO, BLACKJAX, PINTS, FLOWMC = "pyro-ppl/numpyro", "blackjax-devs/blackjax", "pints-team/pints", "kazewong/flowMC"
JAX_0_9 = EARLY_2026[:2]
FAULTS = {
    "NumPyro AIES": Fault(
        "the second half of the walkers moves against itself",
        github(NUMPYRO, 2189),
        "aies",
        "heavy_tail",
        "numpyro==0.21.0",
        "numpyro==0.22.0",
        JAX_0_9,
    ),
    "NumPyro ESS": Fault(
        "the same",
        github(NUMPYRO, 2189),
        "ess",
        "heavy_tail",
        "numpyro==0.21.0",
        "numpyro==0.22.0",
        JAX_0_9,
    ),
    "BlackJAX MALA": Fault(
        "the acceptance ratio upside down",
        github(BLACKJAX, 653),
        "mala",
        "heavy_tail",
        "blackjax==1.1.1",
        "blackjax==1.2.0",
        LATE_2023,
    ),
    "BlackJAX IRMH": Fault(
        "the density of the proposal left out of the acceptance ratio",
        github(BLACKJAX, 484),
        "irmh",
        "heavy_tail",
        "blackjax==0.9.6",
        "blackjax==1.2.0",
        LATE_2023,
    ),
    "BlackJAX HMC": Fault(
        "kinetic energy of the position, not of the momentum",
        github(BLACKJAX, 46),
        "old_hmc",
        "heavy_tail",
        "blackjax==0.2",
        "blackjax==0.2.1",
        LATE_2023,
    ),
    "BlackJAX NUTS": Fault(
        "weights of states relative to the last proposal, not to the start",
        "",
        "old_nuts",
        "heavy_tail",
        "blackjax==0.1",
        "blackjax==0.2.1",
        LATE_2023,
    ),
    "flowMC HMC": Fault(
        "energy of the last momentum, not of the new one",
        github(FLOWMC, 90),
        "flowmc_hmc",
        "heavy_tail",
        "flowMC==0.0.9",
        "flowMC==0.2.2",
        (*LATE_2023, "tqdm"),
    ),
    "PINTS emcee hammer": Fault(
        "the stretch to the power of the number of chains, not of dimensions",
        github(PINTS, 1325),
        "hammer",
        "three_weights",
        "pints==0.3.0",
        "pints==0.5.1",
        LATE_2023,
    ),
    "PINTS relativistic": Fault(
        "momenta drawn from a normal law",
        github(PINTS, 1348),
        "relativistic",
        "heavy_tail",
        "pints==0.3.0",
        "pints==0.5.1",
        LATE_2023,
    ),
    "PINTS population": Fault(
        "an exchange puts one state into both chains",
        github(PINTS, 1238),
        "population",
        "width_one",
        "pints==0.3.0",
        "pints==0.5.1",
        LATE_2023,
    ),
    "PINTS DRAM": Fault(
        "the acceptance ratio of the second stage",
        github(PINTS, 1339),
        "dram",
        "three_weights",
        "pints==0.3.0",
        "pints==0.5.1",
        LATE_2023,
    ),
    "BlackJAX adjusted MCLMC": Fault(
        "tuned to one step a proposal",
        github(BLACKJAX, 939),
        "adjusted_mclmc",
        "heavy_tail",
        "blackjax==1.5",
        "blackjax==1.6",
        EARLY_2026,
    ),
    "BlackJAX tempered SMC": Fault(
        "a sign in the solver for the next temperature",
        github(BLACKJAX, 914),
        "tempered_smc",
        "heavy_tail",
        "blackjax==1.5",
        "blackjax==1.6",
        EARLY_2026,
    ),
}
CONTROL = "NumPyro NUTS"
FAULTS |= {
    CONTROL: Fault("none: the control", "", "nuts", "heavy_tail", "numpyro==0.21.0", "numpyro==0.22.0", JAX_0_9),
}


def environment(requirements: tuple[str, ...]) -> Path:
    """Python of an environment with the requirements, made if it is missing."""
    folder = FOLDER / "environments" / sha256(" ".join(requirements).encode()).hexdigest()[:12]
    python, done = folder / "bin" / "python", folder / "requirements"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # flowMC's requirements ask for what its HMC does not use.
        alone = [each for each in requirements if each.startswith("flowMC")]
        subprocess.run([*install, *(each for each in requirements if each not in alone)], check=True)
        if alone:
            subprocess.run([*install, "--no-deps", *alone], check=True)
        done.write_text("\n".join(requirements))
    return python


def drawn(name: str, requirement: str, seed: int) -> Path:
    """File of a version's draws, made now if it is missing; a file that says why there are none."""
    fault = FAULTS[name]
    stem = f"{name} {fault.reference} {requirement} {seed}".replace(" ", "_").replace("=", "")
    file, program, failed = FOLDER / f"{stem}.npz", FOLDER / f"{fault.reference}.py", FOLDER / f"{stem}.failed"
    if file.exists() or failed.exists():
        return file if file.exists() else failed
    if not program.exists():
        ba.reference.export(fault.reference, FOLDER, format="numpyro")
    command = [environment((requirement, *fault.others)), "-W", "ignore", DRAWS]
    try:
        subprocess.run(
            [*command, fault.sampler, program, str(seed), file], check=True, timeout=MOST_SECONDS, capture_output=True
        )
    except subprocess.SubprocessError as error:
        output = getattr(error, "stderr", None) or b""
        failed.write_text(f"{error}\n{output.decode()}")
        return failed
    return file


def result_of(name: str, requirement: str, seed: int) -> dict[str, Any]:
    """Grade of a version's draws, and the first part of them that is found biased."""
    file, reference = drawn(name, requirement, seed), FAULTS[name].reference
    found: dict[str, Any] = {"verdict": "failed", "statement": file.read_text() if file.suffix == ".failed" else ""}
    if file.suffix == ".npz":
        sites = dict(np.load(file))
        minutes = float(sites.pop("seconds")) / 60
        try:
            found = graded(reference, sites) | {"minutes": minutes}
        except ValueError as error:  # Draws that are not finite.
            found = {"verdict": "failed", "statement": str(error), "minutes": minutes}
    print(name, requirement, seed, found["verdict"], found.get("z"), found["statement"][:150], flush=True)
    return found


def graded(reference: str, sites: dict[str, np.ndarray]) -> dict[str, Any]:
    """Grade of draws of the weights, and of first parts of them."""
    tree = ba.from_numpyro(sites, ba.reference.load(reference).model, "path")
    count, first = tree["posterior"].sizes["draw"], None
    found = ba.grade(tree, reference, level=testing.LEVEL)
    for share in SHARES if found.verdict == BIASED else ():
        part = tree.isel(draw=slice(int(share * count)), missing_dims="ignore")
        # The level is shared out among the looks.
        if ba.grade(part, reference, level=testing.LEVEL / len(SHARES)).verdict == BIASED:
            first = share
            break
    return {
        "verdict": found.verdict,
        "statement": found.statement(),
        "quantity": found.smallest_p.idxmin(),
        "z": float(np.nanmax(np.abs(found.table["z"].to_numpy()))),
        "rhat": float(np.max(found.table["rhat"].to_numpy())),
        "biased after": None if first is None else {"draws": int(first * count) * len(found.values), "share": first},
    }


def alarms() -> dict[str, Any]:
    """Verdicts of the default assertion on right draws, and on draws at a temperature that is 5 % too high."""
    file = FOLDER / "alarms.json"
    if file.exists():
        return json.loads(file.read_text())
    right = verdicts(CALLS, 1.0)
    off = verdicts(POWER_CALLS, 1.05)
    found = {
        "calls": CALLS,
        "biased": int(np.any(right == BIASED, axis=0).sum()),
        "not right": int(np.any(right != RIGHT, axis=0).sum()),
        "power calls": POWER_CALLS,
        "found": int(np.any(off == BIASED, axis=0).sum()),
        "found by": {name: int((each == BIASED).sum()) for name, each in zip(BY_DEFAULT, off, strict=True)},
    }
    file.write_text(json.dumps(found, indent=1))
    return found


def verdicts(calls: int, factor: float) -> np.ndarray:
    """Verdict of each call on each default reference, of HMC at a temperature, shape (reference, call)."""
    found = []
    for name in BY_DEFAULT:
        reference, each = ba.reference.load(name), []
        model = reference.model
        other = model.replace(temperature=factor * model.temperature)
        for seed in range(-(-calls // AT_ONCE)):
            tree = ba.sample(
                other,
                "hmc",
                chains=CHAINS * min(AT_ONCE, calls),
                warmup=1000,
                draws=DEFAULT_DRAWS,
                seed=seed,
                keep=("order_parameter", "prediction"),
                chain_method="vectorised",
                progress=False,
            )
            posterior = tree["posterior"].to_dataset()
            values = quantities_of_draws(posterior["order_parameter"].values, posterior["prediction"].values, model)
            for own in np.split(values, len(values) // CHAINS):
                level = testing.LEVEL / len(BY_DEFAULT)
                each.append(Grade(reference, own, None, MARGIN, level).verdict)
        found.append(each[:calls])
    return np.array(found)


def shown(results: list[dict[str, Any]]) -> str:
    """Verdicts of all seeds as text."""
    seen = [each["verdict"] for each in results]
    return ", ".join(f"{seen.count(each)} {each}" for each in dict.fromkeys(seen))


def middle(results: list[dict[str, Any]], key: str) -> float:
    """Median of a number over seeds."""
    known = [each[key] for each in results if each.get(key) is not None]
    return float(np.median(known)) if known else float("nan")


def page(found: dict[str, list[list[dict[str, Any]]]], file: Path) -> None:
    """Write the table, and the figure beside it."""
    rows = []
    for name, (faulty, mended) in found.items():
        fault = FAULTS[name]
        after = [each["biased after"] for each in faulty if each.get("biased after")]
        needed = "-"
        if after:
            draws = np.median([each["draws"] for each in after])
            minutes = np.median([each["share"] * middle(faulty, "minutes") for each in after])
            needed = f"{draws:,.0f}, {minutes:.2f} min"
        quantities = sorted({each["quantity"] for each in faulty if each["verdict"] == BIASED})
        rows.append(
            f"| {name} | {fault.what} {fault.source} | {fault.reference} | {fault.faulty.split('==')[1]}:"
            f" {shown(faulty)}; z {middle(faulty, 'z'):.1f} | {fault.mended.split('==')[1]}: {shown(mended)};"
            f" z {middle(mended, 'z'):.1f} | {needed} | {', '.join(quantities) or '-'} |"
        )
    minutes = sum(each.get("minutes") or 0 for pair in found.values() for results in pair for each in results)
    counted = alarms() if (FOLDER / "alarms.json").exists() else None
    real = {name: faulty for name, (faulty, _) in found.items() if name != CONTROL}
    caught = [name for name, faulty in real.items() if all(each["verdict"] == BIASED for each in faulty)]
    still = [name for name, (_, mended) in found.items() if any(each["verdict"] == BIASED for each in mended)]
    right = [name for name, (_, mended) in found.items() if all(each["verdict"] == RIGHT for each in mended)]
    unclear = [name for name in real if name not in caught or name not in right]
    if unknown := {*unclear} - {*NOTES}:
        raise ValueError(f"NOTES must say why {', '.join(unknown)} was not found, or is not right")
    text = INTRODUCTION.format(
        seeds=len(SEEDS),
        count=2 * len(found),
        minutes=minutes,
        found=len(caught),
        real=len(real),
        still=", ".join(still) or "none",
        notes="\n".join(f"- *{name}* {note}" for name, note in NOTES.items() if name in unclear),
        rows="\n".join(rows),
    )
    if counted:
        numbers = {name.replace(" ", "_"): value for name, value in counted.items()} | counted["found by"]
        text += ALARMS.format(default=f"{DEFAULT_DRAWS:,}", chains=CHAINS, **numbers)
    file.write_text(text)
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    for place, (faulty, mended) in enumerate(found.values()):
        for results, color, marker in ((faulty, palette().orange, "o"), (mended, palette().blue, "s")):
            z = [each["z"] for each in results if each.get("z")]
            axes.plot(z, [place] * len(z), marker, ms=5, color=color, alpha=0.8)
    axes.plot([], [], "o", color=palette().orange, label="version with the fault")
    axes.plot([], [], "s", color=palette().blue, label="mended version")
    axes.set_yticks(range(len(found)), [*found])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="|z| of the mean that is off most, three seeds")
    axes.legend()
    save(figure, file.with_suffix(".png"), overwrite=True)


INTRODUCTION = """# Would it have been caught?

Sampler libraries have shipped faults that raise no error: chains look well, R-hat is near 1, and the law is wrong. Here
the version with a fault and the mended one are [graded](howto/grading.md) on a neural network of known posterior.

```
uv run python benchmarks/caught.py --alarms --page docs/caught.md
```

makes this page; {count} versions, {seeds} seeds of each, drew for {minutes:.0f} minutes. All draw the weights of a
network: 18 of heavy_tail, 7 of width_one, which has modes of either sign, or 3 of three_weights, made for the two
samplers that did not mix on the others. A right sampler is called biased with a probability of at most 1e-4, as by
`assert_right`. z is the mean that is off most, of some twenty, in Monte Carlo errors: up to 4 is chance. *Needed* is
the smallest first part of the draws of all chains that is found biased, and its share of the time. Steps and lengths
are set by hand so that the mended version mixes.

**Found: {found} of {real}.** Called biased of the mended versions, on the reference of their row: {still}.

![Distance from the truth, with the fault and without](caught.png)

| sampler | what was wrong | reference | with the fault | mended | needed | found by |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

{notes}
- *PINTS DRAM* 0.5.1 is right on three_weights. On width_one it was biased in three of three seeds (z 11): its proposal
  adapts while it draws. With adaptation stopped after the warm-up it was not (two seeds by hand, z 2.7 and 1.9), nor with
  the second stage of Haario et al. (2006) as well (1.5 and 1.7).
"""
NOTES = {
    "BlackJAX adjusted MCLMC": "was tuned badly and cost twice as much, but its Metropolis step is right. Only"
    " effective draws per gradient show it.",
    "BlackJAX tempered SMC": "reached the same law by other and more temperatures.",
    "PINTS relativistic": "moves slowly: some seeds of the mended version would take longer to be called right.",
}
"""What is to say about faults that were not found, and about mended versions that are not right."""
ALARMS = """
## False alarms, and power

`assert_right` takes {chains} chains of {default} draws of two references. Of {calls:,} cases of right draws (HMC, tuned
for each chain), it called {biased} biased and {not_right} not right; 0 means below 3 in 1,000 with a probability of
95 %. At a temperature 5 % too high, of U and of f, it found {found} of {power_calls}: {two_heads} by two_heads alone,
{heavy_tail} by heavy_tail alone. A sampler that is tested draws U alone by default, and f given U is ours: of hand-written
HMC (by hand) on a log density divided by 1.1 it found 5 of 10 seeds by two_heads; with `parameterisation="path"`, all
weights, 10 of 10 divided by 1.05.
"""


def main() -> None:
    """Fill in what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[*FAULTS], choices=[*FAULTS], metavar="FAULT")
    parser.add_argument("--alarms", action="store_true")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = {
        name: [
            [result_of(name, requirement, seed) for seed in SEEDS]
            for requirement in (FAULTS[name].faulty, FAULTS[name].mended)
        ]
        for name in arguments.only
    }
    if arguments.alarms:
        print(alarms())
    if arguments.page:
        page(found, arguments.page)


if __name__ == "__main__":
    main()
