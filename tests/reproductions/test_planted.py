"""Wrong laws and wrong draws, planted one at a time: the experiment must find each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bayesattn.questions.exchangeable import rates
from reproductions.claims import Findings
from reproductions.tokens import CHECKS, bayes, bridge, convergence, learning, masked, pretraining, stream, supervised

LEVEL = 1.25e-5
"""A quarter of that of the experiments: 0.1 % shared by 80 claims."""

Plant = Callable[[pytest.MonkeyPatch], None]


def changed(module: Any, name: str, change: Callable[..., Any]) -> Plant:
    """The function with another result: `change` of its result and its arguments."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(module, name)
        patch.setattr(module, name, lambda *rest, **settings: change(right(*rest, **settings), *rest, **settings))

    return plant


def times(module: Any, name: str, factor: Any) -> Plant:
    """The function's result times a factor, or a function of its arguments."""
    return changed(
        module, name, lambda found, *rest, **kept: found * (factor(*rest, **kept) if callable(factor) else factor)
    )


def sampled(module: Any, name: str, **factors: float) -> Plant:
    """Draws from a model of which some numbers or arrays are off by factors."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(module, name)

        def wrong(model, *arguments, **settings):
            fields = ("features", "values", "noise", "prior", "query_features")
            kept = {field: getattr(model, field) for field in fields}
            return right(type(model)(**kept | {k: f * kept[k] for k, f in factors.items()}), *arguments, **settings)

        patch.setattr(module, name, wrong)

    return plant


def no_change(patch: pytest.MonkeyPatch) -> None:
    """All replicates."""


def fewer(patch: pytest.MonkeyPatch) -> None:
    """A third of the pretrainings by masked tokens."""
    patch.setattr(masked, "REPLICATES", masked.REPLICATES // 3)


def spectral(part: int, factor: float) -> Plant:
    def scaled(found, *_):
        return tuple(value * factor if number == part else value for number, value in enumerate(found))

    return changed(rates, "spectral_cme_error", scaled)


def effective_dimension_alone(_, tokens, ridge, spectrum, counts, noise, prior, values):
    """Without the next order."""
    return values * noise**2 * convergence.ex.effective_dimension(spectrum, ridge / tokens, counts) / tokens, np.nan


def optimum(approximation: float, parameters: float) -> Plant:
    def scaled(found, _):
        return learning.Optimum(found.parameters * parameters, found.approximation * approximation)

    return changed(learning, "population_optimum", scaled)


def no_sink(patch: pytest.MonkeyPatch) -> None:
    """Heads without the asking token."""
    right = rates.finite_softmax_error
    patch.setattr(rates, "finite_softmax_error", lambda *rest, sink=False, **settings: right(*rest, **settings))


def condition(known: pretraining.Moments) -> float:
    """The condition number, or 1 for moments made by hand."""
    return known.cross[0, 0] / known.cross[2, 2] if known.cross.any() else 1.0


def narrower(found, *_):
    """Draws of z q with a deviation too small by 1.5."""
    mean = found.draws.mean((0, 1))
    return found._replace(draws=mean + (found.draws - mean) / 1.5)


def shifted(found, *_, prior, **__):
    """E c^T c without its terms of order 1/n."""
    return found._replace(attention=found.cross @ found.cross / prior**2)


PLANTS: dict[str, dict[str, Plant]] = {
    "exact posterior": {
        "NUTS: values x 1.05": sampled(bayes, "sample", values=1.05),
        "NUTS: sigma x 1.05": sampled(bayes, "sample", noise=1.05),
    },
    "sufficiency": {"E log-odds x 1.01": times(bayes.ex.FiniteLatent, "mean_log_odds", 1.01)},
    "conditional mean embedding": {
        "error, one z x 1.04": times(rates, "cme_error", 1.04),
        "error over the prior x 1.04": times(rates, "mean_cme_error", 1.04),
        "MSE x 1.06": times(rates, "isotropic_cme_error", 1.06),
        "RMS exponent + 0.02": times(rates, "isotropic_cme_error", lambda n, *rest: (n / 256) ** 0.04),
        "posterior variance x 1.001": spectral(0, 1.001),
        "posterior variance without its next order": changed(rates, "spectral_cme_error", effective_dimension_alone),
    },
    "softmax, fixed bandwidth": {
        "regression on f x 1.01": times(convergence, "softmax_regression", 1.01),
        "MSE x 1.08": times(rates, "finite_softmax_error", 1.08),
        "RMS exponent + 0.03": times(rates, "finite_softmax_error", lambda n, *rest, **kept: (n / 256) ** 0.06),
        "a_2 x 1.1": times(convergence.ex, "bessel_ratio", lambda degree, *_: 1 + 0.1 * (np.asarray(degree) == 2)),
    },
    "softmax, shrinking bandwidth": {
        "MSE x 1.12": times(rates, "finite_softmax_error", 1.12),
        "RMS exponent + 0.03": times(rates, "finite_softmax_error", lambda n, *rest: (n / 512) ** 0.06),
        "CME, exponential kernel: MSE x 1.12": spectral(1, 1.12),
    },
    "supervised learning": {
        "tr(H^-1 J) x 1.4": times(learning, "trace", 1.4),
        "A(n) x 1.1": optimum(1.1, 1.0),
        "optimum x 1.05": optimum(1.0, 1.05),
        "supremum x 1.4": times(supervised.linalg, "cholesky", 1.4),
    },
    "masked-token pretraining": {
        "E c^T c without 1/n": changed(pretraining, "moments", shifted),
        "pretraining exponent + 0.05": times(
            pretraining, "pretraining_excess", lambda theta, variances, known, values: condition(known) ** 0.05
        ),
        "downstream exponent + 0.05": times(
            pretraining, "downstream_excess", lambda theta, readout, known: condition(known) ** 0.05
        ),
    },
    "heads as posterior inference": {
        "HMC: values x 1.1": sampled(bridge.runs, "sample", values=1.1),
        "HMC: sigma x 1.03": sampled(bridge.runs, "sample", noise=1.03),
        "law of heads x 1.08": times(rates, "finite_softmax_error", 1.08),
        "law of heads without the asking token": no_sink,
        "deviation of draws / 1.5": changed(bridge, "read", narrower),
    },
}
"""Plants by the name of the experiment."""
SMALL = {"sufficiency": no_change, "masked-token pretraining": fewer}
"""Experiments that are quick, with fewer replicates if need be."""


def found(name: str, plant: Plant | None = None, size: Plant = no_change) -> tuple[Findings, set[int]]:
    """Findings of an experiment with a plant, and which statistical claims it fails."""
    with pytest.MonkeyPatch.context() as patch:
        size(patch)
        if plant is not None:
            plant(patch)
        check, *_ = CHECKS[name]
        findings = check(stream(0, name))
    failing = {
        i
        for i, claim in enumerate(findings.claims)
        if claim.statistical and not claim.literal and not claim.holds(LEVEL)
    }
    return findings, failing


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(pytest.param(name, size, id=f"{name}, small") for name, size in SMALL.items()),
        *(pytest.param(name, no_change, id=name, marks=pytest.mark.heavy) for name in PLANTS if name != "sufficiency"),
    ],
)
def test_each_planted_wrong_law_is_found(name, size):
    """Each plant fails some claim, and each claim that has an error is failed by some plant."""
    findings, failing = found(name, size=size)
    assert not failing
    assert [claim for claim in findings.claims if not claim.as_expected(LEVEL)] == []
    caught: set[int] = set()
    for label, plant in PLANTS[name].items():
        _, failing = found(name, plant, size)
        assert failing, label
        caught |= failing
    statistical = {i for i, claim in enumerate(findings.claims) if claim.statistical and not claim.literal}
    assert [findings.claims[i].statement for i in sorted(statistical - caught)] == []
