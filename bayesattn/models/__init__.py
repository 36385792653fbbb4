"""Posteriors, and the parameterisations in which they can be sampled."""

from bayesattn.models import collapsed, latent, path, token
from bayesattn.models.latent import LatentModel
from bayesattn.models.memory import bytes_needed, require_memory
from bayesattn.models.posterior import Model, Tokens
from bayesattn.models.ready import load_model, load_task, must_train, ready_models

PARAMETERISATIONS = {"token": token, "path": path, "collapsed": collapsed, "latent": latent}
"""Modules with one grammar.

structure(model): what the compiled program depends on; options(structure): of samplers, over NumPyro's and the Langevin
kernels' own; prepare(model): arrays to compute before sampling begins;
data(model, **prepared): the arrays that the program conditions on; program(structure): the NumPyro program of the data;
initial(key, data): where a chain starts, None for a prior draw; quantities(sites, data, structure, key): what is kept of
a draw; network_weights(sites, data, structure, widths, key): its weights; minibatch(data, chosen), where labels are
independent given the sites: the data of some examples; draw_prior(key, data, structure) and
draw_labels(key, sites, data, structure): a draw of the joint law of sites and labels.
"""
CENTRAL = ("order_parameter", "latent")
"""What a posterior is about, whichever of them its draws hold: a sampler's bias is stated for it."""

__all__ = [
    "CENTRAL",
    "PARAMETERISATIONS",
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
