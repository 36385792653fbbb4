"""Figure 3 of arXiv:2405.15926: one-shot images, with the networks that come with the package (THEORY section 7)."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bayesattn import theory
from bayesattn.checks.accuracy import ALL_PATHS, share_right
from bayesattn.checks.alignment import gp_kernel
from bayesattn.checks.theory_predictions import gp_mean, mean_predictor
from bayesattn.checks.thresholds import DRAWS_PER_FREEDOM
from bayesattn.checks.validate import validate
from bayesattn.checks.validation import Validation
from bayesattn.models.model import Model
from bayesattn.questions.heads.units import heads_of
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, above_zero, listed, mean_of, pooled
from reproductions.experiment import Settings
from reproductions.one_shot import OneShot, load, pruning, training
from reproductions.one_shot.pruning import Comparison, Readout, right_without
from reproductions.paths import comparisons
from reproductions.paths.comparisons import COMPONENT, OVERLAP, SHARE

SEED, LOST = "seed of the task", "share lost"
"""Labels of axes."""
WIDTH, WIDTHS = 10, (10, 30, 100, 300, 1000, 3000, 10_000)
SEEDS = range(5)
MOST_REMOVED = 3
SHOWN = 50
"""Principal components that are shown, as in the paper."""
GRID = [(temperature, width) for temperature in (0.1, 0.3, 1.0, 3.0) for width in (10, 30, 100, 1000)]
"""Temperatures and widths at which theory is asked how it agrees with the trained network; in the fast mode a few."""
FAST_GRID = [(0.1, 10), (0.3, 10), (1.0, 10), (0.3, 100)]
PAPER_ACCURACY, PAPER_CORRELATION = 83.8, 0.86
PAPER_WITHOUT = (81.8, 83.0, 79.5, 75.4, 76.0, 76.5, 74.3, 74.9)
"""Accuracy of the paper's network without each of its heads, lowest score first, by the authors' script for figure 3e."""


class Trained(NamedTuple):
    """One seed: a task, its posterior at N = 10 compared with theory, and networks that lose heads."""

    task: OneShot
    model: Model
    validation: Validation
    comparison: Comparison
    readout: Readout


def one_shot(settings: Settings) -> Findings:
    """Omniglot, five seeds; in the fast mode digits, one seed, fewer draws."""
    name, temperature, examples, draws, seeds = "one_shot_omniglot", 1.0, 5000, 400, list(SEEDS)
    if settings.fast:
        name, temperature, examples, draws, seeds = "one_shot_digits", 0.3, 1000, 100, [0]
    several, found = [], Findings()
    for seed in seeds:
        settings.progress(f"{name}, seed {seed}: draws")
        model = load(name, width=WIDTH, temperature=temperature, seed=seed, test_examples=examples)
        drawn = settings.sample(model, f"{name}-{seed}", sampler="hmc", warmup=100, draws=draws)
        settings.progress(f"{name}, seed {seed}: draws against theory, heads removed")
        several.append(_trained(model, drawn, settings.seed))
    _episodes(found, several)
    for seed, trained in zip(seeds, several, strict=True):
        _order_parameter(found, f"seed {seed}", trained.validation)
    settings.progress("principal components")
    _components(found, [trained.validation for trained in several])
    _accuracy(found, several)
    _heads(found, several)
    settings.progress("head scores at other temperatures and widths")
    _other_scores(found, several, FAST_GRID if settings.fast else GRID)
    settings.progress("accuracy against width")
    _against_width(found, [trained.model for trained in several])
    return found


def _trained(model: Model, drawn: Any, seed: int) -> Trained:
    weights = training.weights_of(model.task["attention"])
    return Trained(
        OneShot(**{field.name: model.task[field.name] for field in dataclasses.fields(OneShot)}),
        model,
        validate(drawn, model=model),
        pruning.compare(model, drawn["posterior"]["order_parameter"].values, weights, seed),
        pruning.trained_readout(weights, model.architecture),
    )


def _episodes(found: Findings, several: Sequence[Trained]) -> None:
    """Figure 3a."""
    shared = sum(
        len({*trained.task.classes["train"].groups} & {*trained.task.classes["test"].groups}) for trained in several
    )
    labels = sum(abs(trained.model.labels.sum()) for trained in several)
    found.add(
        "paths-3a",
        Claim("groups of classes in training and test", "0", 0, shared, planted=1, wrong="one"),
        Claim("labels +1 less labels -1", "0", 0, labels, planted=2, wrong="one pair more"),
    )


def _order_parameter(found: Findings, name: str, result: Validation) -> None:
    """Figures 3c and 3d, of one seed."""
    of, freedom = f"N = {WIDTH}, {name}", float(np.min(result.ess)) / DRAWS_PER_FREEDOM
    claims = (comparisons.disagreements(result), comparisons.along_correction(result))
    found.add("paths-3c", *(dataclasses.replace(claim, statement=f"{name}, {claim.statement}") for claim in claims))
    # The entry between two paths that is largest by theory.
    cross = np.abs(result.corrected) * (1 - np.eye(len(result.corrected)))
    pair = np.unravel_index(np.argmax(cross), cross.shape)
    found.add(
        "paths-3c",
        Claim(
            f"largest entry of U between two paths, {of}",
            "theory to first order in 1/N",
            float(result.corrected[pair]),
            Mean(float(result.order_parameter[pair]), float(result.error[pair]), freedom),
            planted=0.0,
            wrong="no cross-path entries, as in the GP limit",
            allowance=float(result.allowance[pair]),
        ),
    )
    aligned = result.alignment
    assert aligned is not None
    statement = f"kernel-target alignment of draws less that of the GP limit, {of}"
    gain = Mean(aligned.draws - aligned.gp, aligned.error, freedom)
    found.add("paths-3d", above_zero(statement, gain))


def _components(found: Findings, results: Sequence[Validation]) -> None:
    """Figure 3d: what the leading principal components of the mean kernel hold of the labels, mean over seeds."""
    *_, shares = zip(*map(comparisons.of_alignment, results), strict=True)
    statement = f"{shares[0].statement}, mean of {len(results)} seeds"
    found.add("paths-3d", above_zero(statement, pooled([share.measured for share in shares])))
    overlaps = []
    for result in results:
        model = result.model
        drawn = theory.kernel(result.order_parameter, model.path_inputs, model.path_inputs, model.architecture)
        overlaps.append([np.asarray(theory.alignment(k, model.labels))[:SHOWN] for k in (drawn, gp_kernel(model))])
    mean = np.mean(overlaps, 0)
    number = np.arange(1, SHOWN + 1)
    curves = [Curve(f"mean kernel of draws, N = {WIDTH}", number, mean[0]), Curve("GP limit", number, mean[1])]
    title = "Overlap of principal components with the labels, one-shot, mean over seeds"
    found.panels.append(Panel(title, COMPONENT, OVERLAP, curves))


def _accuracy(found: Findings, several: Sequence[Trained]) -> None:
    """Figure 3b at N = 10, on the test examples of all seeds together."""
    shares = [trained.validation.accuracy for trained in several if trained.validation.accuracy is not None]
    gains = [share.gains[ALL_PATHS] for share in shares]
    of = f"N = {WIDTH}, {len(several)} seeds of {shares[0].examples} test examples"
    found.add(
        "paths-3b",
        above_zero(
            f"accuracy of draws less that of the GP limit, {of}",
            pooled([Mean(gain.difference, gain.error) for gain in gains]),
        ),
        Claim(
            f"accuracy of draws less that of theory to first order in 1/N, {of}",
            "0",
            0.0,
            pooled([Mean(share.draws - share.corrected, max(share.error, 1 / share.examples)) for share in shares]),
            planted=float(np.mean([share.gp - share.corrected for share in shares])),
            wrong="draws as right as the GP limit",
        ),
    )
    seeds = np.arange(len(several))
    networks = np.array([trained.comparison.networks["trained"].accuracy for trained in several])
    drawn, law, limit = (np.array([getattr(share, name) for share in shares]) for name in ("draws", "corrected", "gp"))
    error = np.array([np.hypot(share.error, share.test_error) for share in shares])
    curves = [
        Curve("trained network", seeds, networks, np.sqrt(networks * (1 - networks) / shares[0].examples)),
        Curve(f"draws, N = {WIDTH}, theory as the law", seeds, drawn, error, law),
        Curve("GP limit", seeds, limit),
        Curve("the paper's trained network", seeds, np.full(len(seeds), PAPER_ACCURACY / 100)),
    ]
    found.panels.append(Panel("One-shot accuracy of each network", SEED, SHARE, curves))


def _heads(found: Findings, several: Sequence[Trained]) -> None:
    """Figures 3e and 3f, of the networks trained by gradient descent."""
    correlations = [trained.comparison.correlation("trained", "theory") for trained in several]
    heads = len(heads_of(several[0].model.architecture))
    # Of unrelated ranks of n things the correlation has the variance 1 / (n - 1), whatever their law.
    unrelated = Mean(float(np.mean(correlations)), 1 / np.sqrt((heads - 1) * len(several)))
    of = f"{len(several)} trained networks of {heads} heads"
    found.add(
        "paths-3e",
        above_zero(
            f"rank correlation of head scores and points lost with each head, {of}: {listed(correlations, '.2f')}"
            f" (the paper's network: {PAPER_CORRELATION})",
            unrelated,
        ),
    )
    for removed in range(1, MOST_REMOVED + 1):
        spared = [_spared(trained, removed) for trained in several]
        # Of several networks, what they scatter by; of one, what its test set leaves open.
        mean = mean_of([each.value for each in spared]) if len(spared) > 1 else spared[0]
        statement = f"accuracy without the {removed} of least score less the mean without any {removed}, {of}"
        found.add("paths-3f", above_zero(statement, mean))
    cheap = [network.dispensable("theory") for network in (each.comparison.networks["trained"] for each in several)]
    found.add(
        "paths-3f",
        Claim(
            f"networks that spare the head of least score at two points of accuracy or less, {of}",
            "all of them",
            len(several),
            sum(count > 0 for count in cheap),
            literal=True,
        ),
    )
    networks = [trained.comparison.networks["trained"] for trained in several]
    gone = np.arange(heads + 1)
    removal = []
    for order in ("theory", "magnitude", "random"):
        left = np.array([network.accuracies[order] for network in networks])
        removal.append(Curve(order, gone, left.mean(0), _error(left)))
    title = "One-shot accuracy after heads are removed, trained networks"
    found.panels.append(Panel(title, "heads removed", SHARE, removal))
    number = np.arange(1, heads + 1)
    scores = np.array([np.concatenate(trained.comparison.scores["theory"]) for trained in several])
    lost = np.array([network.drops for network in networks])
    ranked = np.take_along_axis(lost, np.argsort(scores, axis=1), axis=1)
    paper = (PAPER_ACCURACY - np.array(PAPER_WITHOUT)) / 100
    by_rank = [
        Curve("mean over seeds", number, ranked.mean(0), _error(ranked)),
        *([Curve("paper", number, paper)] if len(paper) == heads else []),
    ]
    by_score = [
        Curve(f"network {place}", score, drop) for place, (score, drop) in enumerate(zip(scores, lost, strict=True))
    ]
    title = "One-shot accuracy lost with a head, against"
    found.panels += [
        Panel(f"{title} the rank of its score", "rank of the head's score, lowest first", LOST, by_rank),
        Panel(f"{title} its score", "score of the head", LOST, by_score),
    ]


def _other_scores(found: Findings, several: Sequence[Trained], grid: Sequence[tuple[float, int]]) -> None:
    """Rank correlations of a network with scores at other temperatures and widths, most of all where theory is like it."""
    curves, chosen, places = [], [], []
    for number, trained in enumerate(several):
        model, drops = trained.model, trained.comparison.networks["trained"].drops
        inputs = model.validation_path_inputs
        assert inputs is not None
        outputs = np.einsum("epf,pf->e", inputs, trained.readout)
        alike, correlations = np.empty(len(grid)), np.empty(len(grid))
        for place, (temperature, width) in enumerate(grid):
            case = model.replace(temperature=temperature, width=width)
            saddle = theory.solve(case).order_parameter
            by_theory = np.einsum("epf,pf->e", inputs, pruning.posterior_readout(case, saddle[None]))
            alike[place] = np.corrcoef(outputs, by_theory)[0, 1]
            correlations[place] = pruning.rank_correlation(theory.head_scores(saddle, model.architecture), drops)
        best = int(np.argmax(alike))
        chosen.append(float(correlations[best]))
        places.append("T = {:g}, N = {}".format(*grid[best]))
        curves.append(Curve(f"network {number}", alike, correlations))
    title = "One-shot rank correlation against the agreement of outputs, over T and N"
    found.panels.append(Panel(title, "correlation of outputs, theory and network", "rank correlation", curves))
    drops = [{name: network.drops for name, network in trained.comparison.networks.items()} for trained in several]
    here = [trained.comparison.correlation("trained", "theory") for trained in several]
    by_drops = [pruning.rank_correlation([lost["posterior"]], lost["trained"]) for lost in drops]
    seeds = np.arange(len(several))
    curves = [
        Curve(f"score at N = {WIDTH}, T = {several[0].model.temperature:g}", seeds, np.array(here)),
        Curve("score where outputs agree best", seeds, np.array(chosen)),
        Curve("loss of the posterior's mean predictor", seeds, np.array(by_drops)),
        Curve("the paper's network", seeds, np.full(len(seeds), PAPER_CORRELATION)),
    ]
    axes = SEED, "rank correlation with points lost"
    found.panels.append(Panel("One-shot rank correlation of each network", *axes, curves))
    heads = len(heads_of(several[0].model.architecture))
    found.add(
        "paths-3e",
        above_zero(
            "rank correlation with scores at T and N where outputs on validation episodes agree best"
            f" ({'; '.join(places)}): {listed(chosen, '.2f')}",
            Mean(float(np.mean(chosen)), 1 / np.sqrt((heads - 1) * len(several))),
        ),
    )


def _error(values: np.ndarray) -> np.ndarray | None:
    """Standard error over the first axis; None of a single row."""
    return values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None


def _spared(trained: Trained, removed: int) -> Mean:
    """Accuracy without the heads of least score less the mean over all sets of as many, with the test set's error."""
    model, heads = trained.model, heads_of(trained.model.architecture)
    order = np.argsort(np.concatenate(trained.comparison.scores["theory"]))
    least = [heads[number] for number in order[:removed]]
    every = [right_without(trained.readout, model, gone) for gone in itertools.combinations(heads, removed)]
    return mean_of(right_without(trained.readout, model, least) - np.mean(every, 0))


def _against_width(found: Findings, models: Sequence[Model]) -> None:
    """Figure 3b: the saddle point at many widths, and the GP limit, at one temperature."""
    labels = [model.test_labels for model in models]
    shares = np.array(
        [
            [share_right(mean_predictor(case, theory.solve(case).order_parameter), truth) for case in cases]
            for truth, cases in zip(labels, ([m.replace(width=n) for n in WIDTHS] for m in models), strict=True)
        ]
    )
    limit = np.array([share_right(gp_mean(model), truth) for model, truth in zip(models, labels, strict=True)])
    x = np.array(WIDTHS)
    curves = [
        Curve("saddle point, mean over seeds", x, shares.mean(0), _error(shares)),
        Curve("GP limit, mean over seeds", x, np.full(len(x), limit.mean())),
    ]
    found.panels.append(Panel("One-shot accuracy against width", comparisons.WIDTH, SHARE, curves))
