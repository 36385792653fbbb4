"""Command `bayesattn calibrate`: does a sampler draw from the posterior?"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import bayesattn as ba
from bayesattn._util.checks import one_of, seed_number
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.progress import Bar
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.plots import calibration_figure
from bayesattn.models import Model
from bayesattn.questions import calibration, joint_law
from bayesattn.samplers import BIASED, SAMPLERS, WITH_REPLICAS, Job

CALIBRATED_SAMPLERS = [name for name in SAMPLERS if name not in WITH_REPLICAS]
"""Samplers for which both tests are available."""
NARROW_SIMULATIONS = 100
"""Largest number of simulations of the narrow network; it is enough for p = 1e-12 if chains are stuck in one mode."""
WHY_NARROW = (
    "2 paths at width 1, one of which hardly affects the labels: chains that stay in one mode of the posterior look well"
    " mixed, but fail this test"
)
Cases = dict[str, tuple[Model, int]]
"""Networks, each with its number of simulations, by title."""
LAWS = {True: "preserved", False: "NOT preserved", None: "cannot tell"}
"""What is said of the joint law, by whether the joint test holds."""
Results = dict[str, tuple[calibration.Calibration, joint_law.JointTest]]
"""Both tests by sampler."""


def calibrate(
    model: options.ModelName,
    sampler: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(CALIBRATED_SAMPLERS)}, or all; may be given several times. By default nuts."),
    ] = None,
    parameterisation: options.ParameterisationName = options.COLLAPSED,
    width: options.Width = None,
    temperature: options.Temperature = None,
    data_seed: options.DataSeed = None,
    simulations: Annotated[int, typer.Option(min=calibration.FEWEST_SIMULATIONS, help="Simulated data sets.")] = 200,
    chains: Annotated[int, typer.Option(min=joint_law.FEWEST_CHAINS, help="Chains of the joint test.")] = 1000,
    iterations: Annotated[int, typer.Option(min=1, help="Transitions of each of these chains.")] = 10,
    draws: Annotated[
        int, typer.Option(min=calibration.FEWEST_DRAWS, help="Posterior draws that a simulated value is ranked among.")
    ] = 63,
    thin: Annotated[int, typer.Option(min=1, help="Transitions between these draws.")] = 5,
    warmup: Annotated[int, typer.Option(min=1, help="Transitions before the first draw.")] = 200,
    narrow: Annotated[
        bool, typer.Option(help="Whether a network narrower than its number of paths is calibrated too.")
    ] = True,
    seed: options.Seed = 0,
    out: Annotated[Path | None, options.results_option("calibrate")] = None,
    figure: options.FigureFile = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Is each sampler right? Simulation-based calibration and a joint test; exit status 0 if all hold, 1 if one fails.

    Labels are simulated from the prior; only architecture, path inputs and temperature of the model are used. A right
    sampler fails with a probability of 1 %, over all samplers, quantities and both networks together. Exit status 2: ranks
    are not uniform, but the draws depend on each other (raise --thin); chains of the joint test hardly moved (raise
    --iterations); or a sampler met values that are not finite.

    Example: bayesattn calibrate hidden_markov --width 10 --sampler hmc
    """
    folder = output.results_folder("calibrate", model, out, figure, overwrite)
    for name in sampler or []:
        one_of("--sampler", name, [*CALIBRATED_SAMPLERS, "all"])
    seed_number("--seed", seed)
    case = ba.load_model(model, width=width, temperature=temperature, seed=data_seed)
    serving = [name for name in CALIBRATED_SAMPLERS if name != "sgld" or parameterisation != options.COLLAPSED]
    names = list(dict.fromkeys(name for word in sampler or ["nuts"] for name in (serving if word == "all" else [word])))
    cases: Cases = {model: (case, simulations)}
    if narrow:
        cases["narrow"] = calibration.narrow_model(), min(simulations, NARROW_SIMULATIONS)
    for name in names:  # Invalid settings are found before anything is drawn.
        Job(sampler=name, parameterisation=parameterisation.value)
    # The level is shared by two tests, ranks and joint test, of each sampler on each network.
    shared: PlainDict = {"level": calibration.LEVEL / (2 * len(names) * len(cases)), "seed": seed, "warmup": warmup}
    shared["parameterisation"] = parameterisation.value
    with screen.bars(quiet=as_json) as shown:
        # Each joint test counts as one more simulation.
        bar = shown.add("simulating", len(names) * sum(count + 1 for _, count in cases.values()), note="compiling")
        results, failures = _calibrated(
            cases, names, bar, {"draws": draws, "thin": thin}, {"chains": chains, "iterations": iterations}, shared
        )
    if len(failures) == len(names) * len(cases):
        raise FloatingPointError("; ".join(failures))
    content = {
        "model": model,
        "width": case.architecture.widths[0],
        "temperature": case.table()["temperature"],
        "data_seed": data_seed,
        "parameterisation": parameterisation.value,
        "chains": chains,
        "iterations": iterations,
        "draws": draws,
        "thin": thin,
        "warmup": warmup,
        "seed": seed,
        "level": calibration.LEVEL,
        "failures": failures,
        **_plain(simulations, results[model]),
    }
    if narrow:
        content["narrow"] = {"why": WHY_NARROW, **_plain(cases["narrow"][1], results["narrow"])}
    panels = {
        name if title == model else f"{name}, {title}": ranked
        for title, of in results.items()
        for name, (ranked, _) in of.items()
    }
    output.save_results(folder, content, lambda: calibration_figure(panels), figure, overwrite)
    if as_json:
        screen.print_json(content)
    else:
        for title, of in results.items():
            if of:
                _print(of, f"{cases[title][1]} simulations of {title}", thin)
            if title != model:
                screen.say(f"{title}: {WHY_NARROW}")
        for failure in failures:
            screen.say(f"not calibrated: {failure}", style="yellow")
        screen.say(f"a right sampler fails with a probability of {100 * calibration.LEVEL:g} %, all tests together")
        screen.say_where(f"figure and results in {folder}")
    verdicts = [test.holds for of in results.values() for pair in of.values() for test in pair] + [None] * len(failures)
    raise typer.Exit(screen.FAILS if False in verdicts else screen.CANNOT_TELL if None in verdicts else screen.HOLDS)


def _calibrated(
    cases: Cases, names: list[str], bar: Bar, ranking: PlainDict, of_chains: PlainDict, shared: PlainDict
) -> tuple[dict[str, Results], list[str]]:
    """Results of each network by sampler, and what went wrong with others."""
    results: dict[str, Results] = {title: {} for title in cases}
    failures: list[str] = []
    begun = 0
    for title, (network, count) in cases.items():
        simulated = calibration.simulate(network, count, shared["seed"])
        for name in names:
            bar.update(begun, description=f"{title}: {name}, simulations")
            report = partial(_report, bar, begun)
            try:
                ranked = calibration.calibrate(network, simulated, sampler=name, progress=report, **ranking, **shared)
                bar.update(begun + count, description=f"{title}: {name}, joint test")
                results[title][name] = ranked, joint_law.joint_test(network, sampler=name, **of_chains, **shared)
            except FloatingPointError as error:
                failures.append(f"{title}: {error}")  # What other samplers have simulated is not lost.
            begun += count + 1
    bar.update(begun)
    return results, failures


def _report(bar: Bar, begun: int, done: int) -> None:
    bar.update(begun + done, note="")


def _plain(simulations: int, results: Results) -> PlainDict:
    """Results of one network as plain values, for JSON."""
    samplers = {
        name: {
            "biased": name in BIASED,
            "calibrated": ranked.holds,
            "p_values": dict(zip(ranked.names, ranked.p_values.tolist(), strict=True)),
            "p_threshold": ranked.threshold,
            "effective_share": dict(zip(ranked.names, ranked.effective.tolist(), strict=True)),
            "step_size_bias": ranked.bias,
            "joint_law_preserved": joint.holds,
            "moved": joint.moved,
            "z_scores": dict(zip(joint.names, joint.z_scores.tolist(), strict=True)),
            "z_threshold": joint.threshold,
        }
        for name, (ranked, joint) in results.items()
    }
    return {"simulations": simulations, "samplers": samplers}


def _print(results: Results, title: str, thin: int) -> None:
    ranks, laws = [], []
    for name, (ranked, joint) in results.items():
        least, dependent = ranked.p_values.argmin(), ranked.effective.argmin()
        greatest = abs(joint.z_scores).argmax()
        ranks.append(
            {
                "sampler": name,
                "ranks": calibration.VERDICTS[ranked.holds],
                "least p": f"{ranked.p_values[least]:.2g}",
                "least of": ranked.names[least],
                "effective": f"{100 * ranked.effective[dependent]:.0f} %",
                "dependent": ranked.names[dependent],
                "step bias (sd)": "" if ranked.bias is None else f"{ranked.bias:+.3f}",
            }
        )
        laws.append(
            {
                "sampler": name,
                "joint law": LAWS[joint.holds],
                "z-score": f"{abs(joint.z_scores[greatest]):.1f}",
                "of": joint.names[greatest],
            }
        )
    words = ("sampler", "ranks", "joint law", "least of", "dependent", "of")
    styles = [None if ranked.holds and joint.holds else "red" for ranked, joint in results.values()]
    screen.print_table(title, ranks, words, styles=styles)
    screen.print_table("joint law of weights and labels", laws, words, styles=styles)
    ranked, joint = next(iter(results.values()))
    screen.say(f"least p: the smallest of {len(ranked.names)} quantities, which must be above {ranked.threshold:.1g}")
    screen.say(f"z-score: the greatest of {len(joint.names)}, which must be below {joint.threshold:.1f}")
    for name, (ranked, _) in results.items():
        if ranked.effective.min() < calibration.INDEPENDENT_SHARE:
            screen.say(
                f"warning: {name}: the effective sample size is {100 * ranked.effective.min():.0f} % of the ranked"
                f" draws, below {100 * calibration.INDEPENDENT_SHARE:.0f} %: draws depend on each other;"
                f" raise --thin above {thin}",
                style="yellow",
            )
    for name, (_, joint) in results.items():
        for doubt in joint.doubts:
            screen.say(f"warning: {name}: {doubt}", style="yellow")
    biased = [name for name in results if name in BIASED]
    if biased:
        screen.say(f"{', '.join(biased)}: without Metropolis correction, biased by the step size as stated")
