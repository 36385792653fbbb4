"""bayesattn calibrate: does a sampler draw from the posterior?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from bayesattn import calibration
from bayesattn.cli.options import (
    COLLAPSED,
    DataSeed,
    Json,
    ModelName,
    Overwrite,
    ParameterisationName,
    Seed,
    Temperature,
    models,
)
from bayesattn.cli.screen import (
    FAILS,
    HOLDS,
    errors,
    free_folder,
    print_json,
    refuse_to_overwrite,
    save_results,
    screen,
)
from bayesattn.samplers import BIASED, SAMPLERS


def calibrate(
    model: ModelName,
    sampler: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(SAMPLERS)}, or all; may be given several times. By default nuts."),
    ] = None,
    parameterisation: ParameterisationName = COLLAPSED,
    width: Annotated[int | None, typer.Option(help="Width of all layers.")] = None,
    temperature: Temperature = None,
    data_seed: DataSeed = None,
    simulations: Annotated[int, typer.Option(min=20, help="Simulated data sets.")] = 200,
    chains: Annotated[int, typer.Option(min=100, help="Chains of the joint test.")] = 1000,
    draws: Annotated[int, typer.Option(min=7, help="Posterior draws that a simulated value is ranked among.")] = 63,
    thin: Annotated[int, typer.Option(min=1, help="Transitions between these draws.")] = 5,
    warmup: Annotated[int, typer.Option(min=1, help="Transitions before them.")] = 200,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figure and results; by default out/calibrate-MODEL, numbered if taken."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Is each sampler right? Simulation-based calibration and a joint test; exit status 0 if all hold, 1 if not.

    Labels are simulated from the prior, so the model gives architecture, path inputs and temperature.
    """
    folder = out or free_folder(Path("out") / f"calibrate-{Path(model).stem}")
    refuse_to_overwrite(folder, overwrite)
    [case] = models(model, None if width is None else [width], temperature, data_seed)
    serving = [name for name in SAMPLERS if name != "sgld" or parameterisation != COLLAPSED]
    names = [name for each in sampler or ["nuts"] for name in (serving if each == "all" else [each])]
    found = {}
    with Progress(console=errors, disable=as_json or not errors.is_terminal) as bars:
        task = bars.add_task("simulating", total=len(names) * simulations)
        simulated = calibration.simulate(case, simulations, seed)
        for number, name in enumerate(names):

            def tell(done: int, before: int = number * simulations, name: str = name) -> None:
                bars.update(task, completed=before + done, description=name)

            settings: dict[str, Any] = {"sampler": name, "parameterisation": parameterisation.value, "seed": seed}
            ranked = calibration.calibrate(
                case, simulated, draws=draws, thin=thin, warmup=warmup, progress=tell, **settings
            )
            found[name] = ranked, calibration.joint_test(case, chains=chains, warmup=warmup, **settings)
    content = {
        "model": model,
        "simulations": simulations,
        "seed": seed,
        "samplers": {name: _plain(name, *results) for name, results in found.items()},
    }
    from bayesattn import plots

    ranked_by_name = {name: results[0] for name, results in found.items()}
    save_results(folder, content, plots.calibration_figure(ranked_by_name))
    holds = all(ranked.holds and joint.holds for ranked, joint in found.values())
    if as_json:
        print_json(content)
    else:
        _print(found, model, simulations, folder)
    raise typer.Exit(HOLDS if holds else FAILS)


def _plain(name: str, ranked: calibration.Calibration, joint: calibration.JointTest) -> dict[str, Any]:
    return {
        "biased": name in BIASED,
        "calibrated": ranked.holds,
        "p_values": dict(zip(ranked.names, ranked.p_values.tolist(), strict=True)),
        "step_size_bias": ranked.bias,
        "joint_law_preserved": joint.holds,
        "errors_apart": dict(zip(joint.names, joint.errors_apart.tolist(), strict=True)),
    }


def _print(found: dict[str, Any], model: str, simulations: int, folder: Path) -> None:
    table = Table(title=f"{simulations} simulations of {model}", box=None, padding=(0, 2, 0, 0))
    for heading in ("sampler", "ranks", "least p", "joint law", "errors apart", "step bias (sd)"):
        table.add_column(
            heading, justify="right" if heading in ("least p", "errors apart", "step bias (sd)") else "left"
        )
    for name, (ranked, joint) in found.items():
        table.add_row(
            name,
            "uniform" if ranked.holds else "NOT uniform",
            f"{ranked.p_values.min():.2g} ({ranked.names[ranked.p_values.argmin()]})",
            "preserved" if joint.holds else "NOT preserved",
            f"{abs(joint.errors_apart).max():.1f}",
            "" if ranked.bias is None else f"{ranked.bias:+.3f}",
            style=None if ranked.holds and joint.holds else "red",
        )
    screen.print(table)
    ranked, joint = next(iter(found.values()))
    level = calibration.LEVEL / len(ranked.names)
    screen.print(f"least p: of {len(ranked.names)} quantities, to be above {level:.1g}")
    screen.print(f"errors apart: the greatest of {len(joint.names)}, to be below {joint.threshold:.1f}")
    biased = [name for name in found if name in BIASED]
    if biased:
        screen.print(f"{', '.join(biased)}: without Metropolis correction, biased by the step size as stated")
    screen.print(f"figure and results in {folder}")
