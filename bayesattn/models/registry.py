"""Parameterisations by name; a new one is registered only here."""

from bayesattn.models.collapsed import Collapsed
from bayesattn.models.latent import Latent
from bayesattn.models.parameterisation import Parameterisation
from bayesattn.models.path import Path
from bayesattn.models.token import Token

PARAMETERISATIONS: dict[str, type[Parameterisation]] = {
    "token": Token,
    "path": Path,
    "collapsed": Collapsed,
    "latent": Latent,
}
CENTRAL = ("order_parameter", "latent")
"""Primary variable of each kind of posterior, for which the bias of a sampler is estimated."""
