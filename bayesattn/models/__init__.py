"""Posteriors, and the parameterisations in which they can be sampled."""

from bayesattn.models import path, token
from bayesattn.models.posterior import Model, Tokens
from bayesattn.models.ready import load_model, ready_models

PARAMETERISATIONS = {"token": token, "path": path}
"""Modules with one grammar: data(model), program(architecture), quantities(sites, data, architecture)."""

__all__ = ["PARAMETERISATIONS", "Model", "Tokens", "load_model", "path", "ready_models", "token"]
