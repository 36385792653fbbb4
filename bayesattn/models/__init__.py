"""Posteriors, and the parameterisations in which they can be sampled."""

from bayesattn.models import collapsed, latent, path, token
from bayesattn.models.latent import LatentModel
from bayesattn.models.load import load_model, load_task, must_train, ready_models
from bayesattn.models.memory import bytes_needed, require_memory
from bayesattn.models.parameterisation import Joint, Parameterisation, WeightSpace
from bayesattn.models.posterior import Model, Tokens

WEIGHT_SPACE: dict[str, WeightSpace] = {"token": token, "path": path}
JOINT: dict[str, Joint] = {**WEIGHT_SPACE, "collapsed": collapsed}
PARAMETERISATIONS: dict[str, Parameterisation] = {**JOINT, "latent": latent}
CENTRAL = ("order_parameter", "latent")
"""What a posterior is about, whichever of them its draws hold: a sampler's bias is stated for it."""

__all__ = [
    "CENTRAL",
    "JOINT",
    "PARAMETERISATIONS",
    "WEIGHT_SPACE",
    "LatentModel",
    "Model",
    "Tokens",
    "bytes_needed",
    "collapsed",
    "latent",
    "load_model",
    "load_task",
    "must_train",
    "path",
    "ready_models",
    "require_memory",
    "token",
]
