"""Parameterisations of each kind of posterior, by name; a new one is registered only here."""

from bayesattn._util.checks import one_of
from bayesattn.attention_model import AttentionModel
from bayesattn.model import Model
from bayesattn.models.blocks import Blocks
from bayesattn.models.collapsed import Collapsed
from bayesattn.models.latent import Latent, LatentModel
from bayesattn.models.parameterisation import Parameterisation
from bayesattn.models.path import Path
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.models.token import Token
from bayesattn.posterior import Posterior

PARAMETERISATIONS: dict[type[Posterior], dict[str, type[Parameterisation]]] = {
    Model: {"token": Token, "path": Path, "collapsed": Collapsed},
    AttentionModel: {"token": Blocks, "collapsed": CollapsedAttention},
    LatentModel: {"latent": Latent},
}
NAMES = [*dict.fromkeys(name for kinds in PARAMETERISATIONS.values() for name in kinds)]
"""Names of all parameterisations."""
CENTRAL = ("order_parameter", "latent")
"""Primary variable of each kind of posterior, for which the bias of a sampler is estimated."""


def parameterisations_of(model: Posterior) -> dict[str, type[Parameterisation]]:
    """Classes of a posterior's parameterisations by name."""
    return PARAMETERISATIONS[next(kind for kind in PARAMETERISATIONS if isinstance(model, kind))]


def parameterisation_of(model: Posterior, name: str) -> type[Parameterisation]:
    """Class of a posterior's parameterisation by name; for any other name, raises ValueError with the known names."""
    kinds, kind = parameterisations_of(model), type(model).__name__
    return kinds[one_of(f"parameterisation of {'an' if kind[0] in 'AEIOU' else 'a'} {kind}", name, kinds)]


def names_where(flag: str) -> list[str]:
    """Names of the parameterisations whose class attribute `flag` is true for at least one kind of posterior."""
    return [
        name
        for name in NAMES
        if any(getattr(kinds[name], flag) for kinds in PARAMETERISATIONS.values() if name in kinds)
    ]
