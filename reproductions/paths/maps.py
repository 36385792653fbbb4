"""Theory alone over many networks: gain over the GP limit and alignment against noise, load and temperature."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesattn import theory
from bayesattn.checks.accuracy import ALL_PATHS, share_right
from bayesattn.checks.theory_predictions import gp_mean, mean_predictor
from bayesattn.models import Model
from bayesattn.tasks.load import load_model
from bayesattn.theory.predictor import readouts
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, above_zero, exponent, mean_of
from reproductions.experiment import Settings
from reproductions.paths.comparisons import SHARE

STRENGTHS, FAST_STRENGTHS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0), (0.0, 5.0)
PAPERS_STRENGTH = 5.0
CONTRASTS = ((0.0, 5.0, False), (5.0, 10.0, False), (10.0, 20.0, True))
"""Strengths whose gains are compared, and whether they fall: they rise with the noise until it is too strong for either."""
DATA_SETS, FAST_DATA_SETS = 20, 4
GROUPED_SETS, GROUPED_TESTS = 40, 2000
LOADED_SETS, FAST_LOADED_SETS = 20, 4
EXAMPLES, FAST_EXAMPLES = (20, 50, 100, 200), (20, 50)
WIDTHS, FAST_WIDTHS = (10, 30, 100, 300, 1000), (10, 100, 1000)
TEMPERATURES, FAST_TEMPERATURES = (1e-3, 1e-2, 1e-1, 1.0), (1e-2,)
FAR_WIDTHS = (10_000, 100_000)
"""So far above P that U is almost that of the GP limit."""
ROUNDED = 1e-5
"""Relative gradient of a saddle point that is good enough for accuracies."""
USUAL = 1e-2
"""The paper's temperature."""
STRENGTH, GAIN = "strength of the noise", "gain in share right"
"""Labels of axes."""


def noise_strengths(settings: Settings) -> Findings:
    """Row paths-noise: accuracy of theory and of the GP limit at N = 10 against the strength of the noise."""
    findings = Findings()
    count, strengths = (FAST_DATA_SETS, FAST_STRENGTHS) if settings.fast else (DATA_SETS, STRENGTHS)
    shares = np.empty((2, len(strengths), count))
    for number in range(count):
        settings.progress(f"noise of {len(strengths)} strengths, data set {number + 1} of {count}")
        for place, strength in enumerate(strengths):
            model = _model("hidden_markov_noisy", settings.seed, number, {"noise_orthogonal": strength})
            limit, saddle = gp_mean(model), mean_predictor(model, _saddle(model).order_parameter)
            shares[:, place, number] = [share_right(outputs, model.test_labels) for outputs in (saddle, limit)]
    gains = shares[0] - shares[1]
    papers = strengths.index(PAPERS_STRENGTH)
    findings.add("paths-2e", _above_zero(f"gain of the saddle point, N = 10, noise {PAPERS_STRENGTH:g}", gains[papers]))
    for weaker, stronger, falls in CONTRASTS:
        if {weaker, stronger} <= {*strengths}:
            said = f"gain of the saddle point at noise {stronger:g} less that at {weaker:g}, N = 10"
            difference = gains[strengths.index(stronger)] - gains[strengths.index(weaker)]
            findings.add("paths-noise", _above_zero(said, difference, below=falls))
    if not settings.fast:
        said = f"gain of the saddle point at every strength of the noise, N = 10: at {strengths[0]:g}"
        literal = dataclasses.replace(_above_zero(said, gains[0]), planted=None, wrong="", literal=True)
        findings.add("paths-noise", literal)
    x = np.array(strengths)
    curves = [_curve("saddle point", x, shares[0]), _curve("GP limit", x, shares[1])]
    findings.panels += [
        Panel("Accuracy against noise, theory at N = 10", STRENGTH, SHARE, curves),
        Panel("Gain over the GP limit against noise", STRENGTH, GAIN, [_curve("saddle point", x, gains)]),
    ]
    return findings


def gains_over_groups(settings: Settings) -> list[Claim]:
    """What the saddle point gains at N = 10 over each GP limit, mean over data sets of the usual task."""
    gains: dict[str, list[float]] = {}
    for number in range(GROUPED_SETS):
        settings.progress(f"gains over GP limits, data set {number + 1} of {GROUPED_SETS}")
        model = _model("hidden_markov", settings.seed, number, {"test_examples": GROUPED_TESTS})
        own = share_right(mean_predictor(model, _saddle(model).order_parameter), model.test_labels)
        for name, paths in {ALL_PATHS: None, **model.path_groups}.items():
            gains.setdefault(name, []).append(own - share_right(gp_mean(model, paths), model.test_labels))
    said = "gain of the saddle point over the GP limit of {}, N = 10"
    return [_above_zero(said.format(name), np.array(values)) for name, values in gains.items()]


def load(settings: Settings) -> Findings:
    """Row paths-load: gain, alignment and U over load P / N and temperature, by the saddle point."""
    findings = Findings()
    examples, widths, temperatures, count = EXAMPLES, WIDTHS, TEMPERATURES, LOADED_SETS
    if settings.fast:
        examples, widths, temperatures, count = FAST_EXAMPLES, FAST_WIDTHS, FAST_TEMPERATURES, FAST_LOADED_SETS
    all_widths = (*widths, *FAR_WIDTHS)
    # Quantity, P, N, T, data set.
    found = np.empty((3, len(examples), len(all_widths), len(temperatures), count))
    for number in range(count):
        whole = _model("hidden_markov", settings.seed, number, {"examples": max(examples)})
        for place, few in enumerate(examples):
            settings.progress(f"P = {few}, data set {number + 1} of {count}")
            found[:, place, :, :, number] = _over_widths(_part(whole, few), all_widths, temperatures)
    gains, alignments, deviations = found
    usual, largest = temperatures.index(USUAL), len(examples) - 1
    findings.add("paths-load", *vanishing(examples, found[..., usual, :], all_widths))
    for said, values in (("accuracy", gains), ("kernel-target alignment", alignments)):
        statement = f"{said} of the saddle point less that of the GP limit, P = {examples[largest]}, N = {widths[0]}"
        findings.add("paths-load", _above_zero(statement, values[largest, 0, usual]))
    for name, axis, values in (
        ("Gain in accuracy", GAIN, gains),
        ("Gain in kernel-target alignment", "gain in alignment", alignments),
        ("Largest entry of U less that of the GP limit", "largest entry of U - I", deviations),
    ):
        for place, temperature in enumerate(temperatures):
            curves = [
                _curve(f"P = {few}", few / np.array(all_widths, float), values[row, :, place])
                for row, few in enumerate(examples)
            ]
            title = f"{name} against load P / N, T = {temperature:g}"
            findings.panels.append(Panel(title, "load P / N", axis, curves))
    return findings


def vanishing(examples: Sequence[int], found: np.ndarray, widths: Sequence[int]) -> list[Claim]:
    """At each P: U's deviation from the GP limit falls as P / N, and at the least load the gain is gone.

    Args:
        examples: P.
        found: gain, gain in alignment and deviation of U, shape (3, P, N, data set).
        widths: N, the last two of them far above P.
    """
    gains, _, deviations = found
    far, claims = widths[-2:], []
    for place, few in enumerate(examples):
        slopes = [
            exponent([few / width for width in far], [Mean(value) for value in own]).value
            for own in deviations[place, -2:].T
        ]
        claims.append(
            Claim(
                f"exponent of max |U - I| in the load P / N, P = {few}, N = {far[0]} and {far[1]}",
                "1, up to the next order",
                1.0,
                mean_of(slopes),
                planted=0.5,
                wrong="deviations as the root of the load",
                # The next order is of the size of the first one squared.
                allowance=float(np.max(deviations[place, -2])),
            )
        )
    claims.append(
        Claim(
            f"gain in accuracy over the GP limit at P = {examples[-1]}, N = {far[-1]}",
            f"0, up to the gain at N = {far[0]}",
            0.0,
            mean_of(gains[-1, -1]),
            planted=float(gains[-1, 0].mean()),
            wrong=f"the gain at N = {widths[0]}",
            # It is of the order of the load, not 0.
            allowance=abs(float(gains[-1, -2].mean())),
        )
    )
    return claims


def _over_widths(model: Model, widths: Sequence[int], temperatures: Sequence[float]) -> np.ndarray:
    """Gain in accuracy and in kernel-target alignment, and max |U - U_GP|, shape (3, N, T)."""
    cases = [(model.architecture.with_width(width), t) for width in widths for t in temperatures]
    networks, colds = zip(*cases, strict=True)
    solved = _saddle(model, arch=networks, temperature=colds).order_parameter
    u = np.asarray(solved).reshape(len(widths), len(temperatures), *np.shape(solved)[1:])
    gp = np.asarray(theory.gp_order_parameter(model.architecture))
    found = np.empty((3, len(widths), len(temperatures)))
    for place, temperature in enumerate(temperatures):
        together = np.concatenate([u[:, place], gp[None]])
        by_each = np.asarray(readouts(together, model, temperature))
        outputs = np.tensordot(by_each, model.test_path_inputs, ((1, 2), (1, 2)))
        shares = np.array([share_right(output, model.test_labels) for output in outputs])
        aligned = np.array([_aligned(model, each) for each in together])
        found[:, :, place] = shares[:-1] - shares[-1], aligned[:-1] - aligned[-1], np.abs(u[:, place] - gp).max((1, 2))
    return found


def _saddle(model: Model, **named: Any) -> theory.SaddlePoint:
    """Saddle points whose gradient may end at rounding: without noise K is singular, and K + T I has condition 10^6.

    Raises NotConverged where the relative gradient is above 1e-5.
    """
    solution = theory.solve(model, **named, throw=False)
    if not np.max(solution.gradient_norm) <= ROUNDED:
        raise theory.NotConverged(f"the saddle point of {model.name} was not found", solution)
    return solution


def _aligned(model: Model, u: np.ndarray) -> float:
    kernel = theory.kernel(u, model.path_inputs, model.path_inputs, model.architecture)
    return theory.kernel_target_alignment(kernel, model.labels)


def _part(model: Model, examples: int) -> Model:
    """The first training examples of either class, half of them each."""
    labels = np.asarray(model.labels)
    chosen = np.concatenate([np.flatnonzero(labels == label)[: examples // 2] for label in (1.0, -1.0)])
    return model.replace(path_inputs=np.asarray(model.path_inputs)[chosen], labels=labels[chosen], tokens=None)


def _model(name: str, seed: int, number: int, task: dict[str, float]) -> Model:
    """A ready model at N = 10 with another data set for each number, and for each seed."""
    return load_model(name, width=10, seed=seed_of(seed, number), task=task)


def seed_of(seed: int, number: int) -> int:
    """Seed of the task's data, for each data set of each seed."""
    return 1000 * (seed + 1) + number


def _above_zero(statement: str, values: np.ndarray, below: bool = False) -> Claim:
    """The sign of a mean over data sets."""
    return above_zero(f"{statement}, {len(values)} data sets", mean_of(values), below)


def _curve(label: str, x: np.ndarray, values: np.ndarray) -> Curve:
    """Mean over data sets, the last axis, with its standard error."""
    return Curve(label, x, values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1]))
