"""Wrong draws and wrong fits, planted one at a time: the experiment must find each.

Laws that are wrong by themselves are planted by each claim (`Claim.planted`), whenever experiments are run.
"""

import pytest

from reproductions.tokens import CHECKS, bayes, bridge, learning, masked, pretraining, stream, supervised

LEVEL = 1.25e-5
"""A quarter of that of the experiments: 0.1 % shared by 80 claims."""


def changed(module, name, change):
    """The function with another result: `change` of its result and its arguments."""

    def plant(patch):
        right = getattr(module, name)
        patch.setattr(module, name, lambda *rest, **settings: change(right(*rest, **settings), *rest, **settings))

    return plant


def sampled(module, **factors):
    """Draws from a model of which some numbers or arrays are off by factors."""

    def plant(patch):
        right = module.sample

        def wrong(model, *arguments, **settings):
            fields = ("features", "values", "noise", "prior", "query_features")
            kept = {field: getattr(model, field) for field in fields}
            off = {field: factor * kept[field] for field, factor in factors.items()}
            return right(type(model)(**kept | off), *arguments, **settings)

        patch.setattr(module, "sample", wrong)

    return plant


def condition(known):
    """The condition number, or 1 for moments made by hand."""
    return known.cross[0, 0] / known.cross[2, 2] if known.cross.any() else 1.0


def rescaled(found, _):
    """An optimum that is none."""
    return found._replace(parameters=1.05 * found.parameters)


def narrower(found, *_):
    """Draws of z q with a deviation too small by 1.5."""
    mean = found.draws.mean((0, 1))
    return found._replace(draws=mean + (found.draws - mean) / 1.5)


def without_next_order(found, *_, prior, **__):
    """E c^T c without its terms of order 1/n."""
    return found._replace(attention=found.cross @ found.cross / prior**2)


PLANTS = {
    "exact posterior": {
        "NUTS: values x 1.05": sampled(bayes, values=1.05),
        "NUTS: sigma x 1.05": sampled(bayes, noise=1.05),
    },
    "sufficiency": {"E log-odds x 1.01": changed(bayes.ex.FiniteLatent, "mean_log_odds", lambda odds, *_: 1.01 * odds)},
    "supervised learning": {
        "optimum x 1.05": changed(learning, "population_optimum", rescaled),
        "supremum x 1.4": changed(supervised.linalg, "cholesky", lambda root, _: 1.4 * root),
    },
    "masked-token pretraining": {
        "E c^T c without 1/n": changed(pretraining, "moments", without_next_order),
        "pretraining exponent + 0.05": changed(
            pretraining, "pretraining_excess", lambda found, theta, _, known, __: found * condition(known) ** 0.05
        ),
        "downstream exponent + 0.05": changed(
            pretraining, "downstream_excess", lambda found, theta, _, known: found * condition(known) ** 0.05
        ),
    },
    "heads as posterior inference": {
        "HMC: values x 1.1": sampled(bridge.runs, values=1.1),
        "HMC: sigma x 1.03": sampled(bridge.runs, noise=1.03),
        "deviation of draws / 1.5": changed(bridge, "read", narrower),
    },
}
"""Plants by the name of the experiment."""
QUICK = ("sufficiency", "masked-token pretraining")


def failing(name, plant=None):
    """Statistical claims that fail, and others that are not as expected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked, "REPLICATES", masked.REPLICATES // 3)
        if plant is not None:
            plant(patch)
        claims = CHECKS[name][0](stream(0, name)).claims
    found = [claim for claim in claims if claim.statistical and not claim.literal and not claim.holds(LEVEL)]
    return found, [claim for claim in claims if claim not in found and not claim.as_expected(LEVEL)]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.heavy) for name in PLANTS]
)
def test_each_planted_fault_is_found(name):
    assert failing(name) == ([], [])
    for label, plant in PLANTS[name].items():
        assert failing(name, plant)[0], label
