"""Parameterisations of each kind of posterior, by name; a new one is registered only here."""

from bayesattn.models.attention_blocks import Blocks
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.collapsed import Collapsed
from bayesattn.models.hyper_parameterisations import HyperAttention, HyperBlocks, HyperCollapsed, HyperPath, HyperToken
from bayesattn.models.latent import Latent, LatentModel
from bayesattn.models.model import Model
from bayesattn.models.parameterisation import Parameterisation
from bayesattn.models.path import Path
from bayesattn.models.posterior import Posterior
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.models.token import Token

PARAMETERISATIONS: dict[type[Posterior], dict[str, type[Parameterisation]]] = {
    Model: {"token": Token, "path": Path, "collapsed": Collapsed},
    AttentionModel: {"token": Blocks, "collapsed": CollapsedAttention},
    LatentModel: {"latent": Latent},
}
for _posterior, _kinds in PARAMETERISATIONS.items():
    _posterior.kinds, _posterior.parameterisations = _kinds, tuple(_kinds)
Model.kinds_with_priors = {"token": HyperToken, "path": HyperPath, "collapsed": HyperCollapsed}
AttentionModel.kinds_with_priors = {"token": HyperBlocks, "collapsed": HyperAttention}
NAMES = [*dict.fromkeys(name for kinds in PARAMETERISATIONS.values() for name in kinds)]
"""Names of all parameterisations."""
CENTRAL = ("order_parameter", "latent")
"""Primary variable of each kind of posterior, for which the bias of a sampler is estimated."""


def names_where(flag: str) -> list[str]:
    """Names of the parameterisations whose class attribute `flag` is true for at least one kind of posterior."""
    return [
        name
        for name in NAMES
        if any(getattr(kinds[name], flag) for kinds in PARAMETERISATIONS.values() if name in kinds)
    ]
