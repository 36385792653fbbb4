"""Two limits: P and N to infinity at fixed load, where the saddle point is right, and N alone, where the GP limit is."""

import math
from typing import Any

import numpy as np

from bayesattn import theory
from bayesattn.architecture import Architecture
from bayesattn.checks.validate import validate
from bayesattn.checks.validation import Validation
from bayesattn.models import Model
from bayesattn.samplers import sample
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, exponent, mean_of
from reproductions.experiment import Settings
from reproductions.paths.comparisons import WIDTH

LOAD, TEMPERATURE = 2, 0.1
SIGNAL, NOISE = 2.0, 0.6
WIDTHS = (4, 8, 16, 32)
DATA_SETS, DRAWS = 16, 600
FAST_WIDTHS, FAST_DATA_SETS, FAST_DRAWS = (4, 8), 4, 200
RESOLVED = 4.0
"""Standard errors by which a mean must differ from 0 for its logarithm to be taken."""
FAR_WIDTHS = (1000, 10_000, 100_000)
FAR_VARIANCES = (1.0, 0.8, 1.2, 0.9)


def run(settings: Settings) -> Findings:
    """Rows paths-action and paths-gp."""
    findings = Findings()
    widths, data_sets, draws = WIDTHS, DATA_SETS, DRAWS
    if settings.fast:
        widths, data_sets, draws = FAST_WIDTHS, FAST_DATA_SETS, FAST_DRAWS
    results: list[list[Validation]] = []
    for width in widths:
        settings.progress(f"{data_sets} data sets at N = {width}, P = {LOAD * width}")
        results.append([_validated(width, settings.seed, number, draws) for number in range(data_sets)])
    deviations, remaining = (
        [mean_of([getattr(result, name) for result in same_width]) for same_width in results]
        for name in ("relative_deviation", "relative_remaining")
    )
    findings.add("paths-action", *orders(widths, deviations, remaining))
    curves = [
        _deviation_curve("the saddle point, law 1/N", widths, deviations, 1),
        _deviation_curve("theory to first order, law 1/N^2", widths, remaining, 2),
    ]
    title = "Deviation of draws of U from theory at fixed load P / N"
    findings.panels.append(Panel(title, WIDTH, "deviation relative to U", curves))
    settings.progress("saddle points far above P")
    far, curves = far_above()
    findings.add("paths-gp", *far)
    findings.panels.append(Panel("Saddle point against the GP limit", WIDTH, "largest deviation", curves))
    return findings


def teacher(
    width: int, heads: tuple[int, ...], rng: np.random.Generator, variances: tuple[float, ...] | None = None
) -> Model:
    """Gaussian path inputs and a linear teacher on the first path, P = 2 N and N_0 = 2 N: alike at all sizes."""
    examples = features = LOAD * width
    arch = Architecture(heads, (width,) * (len(heads) + 1), variances or (1.0,) * (len(heads) + 2))
    path_inputs = rng.normal(size=(examples, arch.paths, features))
    taught = path_inputs[:, 0] @ rng.normal(size=features) / np.sqrt(features)
    labels = SIGNAL * taught + NOISE * rng.normal(size=examples)
    return Model(path_inputs=path_inputs, labels=labels, architecture=arch, temperature=TEMPERATURE, name="teacher")


def _validated(width: int, seed: int, number: int, draws: int) -> Validation:
    model = teacher(width, (2,), np.random.default_rng([seed, width, number]))
    drawn = sample(model, warmup=200, draws=draws, seed=seed, progress=False)
    return validate(drawn, model=model)


def orders(widths: tuple[int, ...], deviations: list[Mean], remaining: list[Mean]) -> list[Claim]:
    """Powers of N with which mean deviations over data sets fall, along the expected deviation and relative to U.

    The slope of a series c/N (1 + rho N_min/N) between N_min and N_max is off by at most rho / log(N_max / N_min), with rho
    the first term that theory leaves out over the one before it, both at N_min.
    """
    rho = abs(remaining[0].value / deviations[0].value)
    claims = [
        Claim(
            f"exponent of the saddle point's mean deviation from draws in N = {_range(widths)} at P / N = {LOAD}",
            "-1, up to the next order",
            -1.0,
            exponent(widths, deviations),
            planted=-0.5,
            wrong="deviations as N^(-1/2)",
            allowance=rho / math.log(widths[-1] / widths[0]),
        ),
        Claim(
            f"mean deviation of theory to first order in 1/N from draws at N = {widths[-1]}, P / N = {LOAD}, relative to U",
            f"0, up to 1/N^2 times what it is at N = {widths[0]}",
            0.0,
            remaining[-1],
            planted=deviations[-1].value,
            wrong="that of the saddle point",
            allowance=abs(remaining[0].value) * (widths[0] / widths[-1]) ** 2,
        ),
    ]
    seen = next((place for place, mean in enumerate(remaining) if abs(mean.value) < RESOLVED * mean.error), len(widths))
    if seen > 1 and len({mean.value > 0 for mean in remaining[:seen]}) == 1:
        resolved = widths[:seen]
        sizes = [mean._replace(value=abs(mean.value)) for mean in remaining[:seen]]
        claims.append(
            Claim(
                f"exponent of the same, from theory to first order in 1/N, over N = {_range(resolved)}, where it is seen",
                "-2, up to the next order",
                -2.0,
                exponent(resolved, sizes),
                planted=-1.0,
                wrong="a correction that misses a part of the order 1/N",
                allowance=rho / math.log(resolved[-1] / resolved[0]),
            )
        )
    return claims


def far_above(examples: int = 16) -> tuple[list[Claim], list[Curve]]:
    """The saddle point over s_a^2 prod s_l^2, far above P, against the unit matrix; on one small data set, exactly."""
    model = teacher(examples // LOAD, (2, 2), np.random.default_rng(0), FAR_VARIANCES)
    scale = math.prod(FAR_VARIANCES[1:])
    sizes: dict[str, list[float]] = {"cross-path entries": [], "diagonal entries, less 1": []}
    for width in FAR_WIDTHS:
        u = np.asarray(theory.solve(model.replace(width=width)).order_parameter) / scale
        sizes["cross-path entries"].append(float(np.max(np.abs(u - np.diag(np.diag(u))))))
        sizes["diagonal entries, less 1"].append(float(np.max(np.abs(np.diag(u) - 1))))
    claims = [
        Claim(
            f"exponent of the largest of {name} of U / (s_a^2 prod s_l^2) in N = {_range(FAR_WIDTHS)}, P = {examples}",
            "-1, up to the next order",
            -1.0,
            exponent(FAR_WIDTHS, [Mean(value) for value in values]),
            # The next order is of the size of the first one squared.
            tolerance=values[0],
            planted=-0.5,
            wrong="deviations as N^(-1/2)",
        )
        for name, values in sizes.items()
    ]
    widths = np.array(FAR_WIDTHS, float)
    curves = [Curve(name, widths, np.array(values), None, _law(widths, values, 1)) for name, values in sizes.items()]
    return claims, curves


def _deviation_curve(label: str, widths: tuple[int, ...], means: list[Mean], power: int) -> Curve:
    x, values = np.array(widths, float), np.abs([mean.value for mean in means])
    return Curve(label, x, values, np.array([mean.error for mean in means]), _law(x, values, power))


def _law(widths: np.ndarray, values: Any, power: int) -> np.ndarray:
    """The power of 1/N through the first value."""
    return values[0] * (widths[0] / widths) ** power


def _range(widths: tuple[int, ...]) -> str:
    return f"{widths[0]} .. {widths[-1]}"
