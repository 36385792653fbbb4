"""Wrong draws, planted one at a time: the experiment that compares them with a law must find each.

Wrong laws are planted by each claim (`Claim.planted`), whenever experiments are run.
"""

import pytest

from reproductions.tokens import CHECKS, bayes, bridge, stream

LEVEL = 1.25e-5
"""A quarter of that of the experiments: 0.1 % shared by 80 claims."""


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


def narrower(patch):
    """Draws of z q with a deviation too small by 1.5."""
    right = bridge.read

    def wrong(*arguments):
        found = right(*arguments)
        mean = found.draws.mean((0, 1))
        return found._replace(draws=mean + (found.draws - mean) / 1.5)

    patch.setattr(bridge, "read", wrong)


PLANTS = {
    "exact posterior": {
        "NUTS: values x 1.05": sampled(bayes, values=1.05),
        "NUTS: sigma x 1.05": sampled(bayes, noise=1.05),
    },
    "heads as posterior inference": {
        "HMC: values x 1.1": sampled(bridge.runs, values=1.1),
        "HMC: sigma x 1.03": sampled(bridge.runs, noise=1.03),
        "deviation of draws / 1.5": narrower,
    },
}
"""Plants by the name of the experiment."""


def failing(name, plant):
    """Statistical claims that fail."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        claims = CHECKS[name][0](stream(0, name)).claims
    return [claim for claim in claims if claim.statistical and not claim.literal and not claim.holds(LEVEL)]


@pytest.mark.heavy
@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_fault_is_found(name):
    assert failing(name, lambda patch: None) == []
    for label, plant in PLANTS[name].items():
        assert failing(name, plant), label
