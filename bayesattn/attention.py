"""Path inputs from fixed attention: from queries and keys, from attention matrices, or from a pretrained transformer."""

from bayesattn.fixed_attention import matrices, path_inputs, paths_from_matrices
from bayesattn.tasks.pretrained import from_cache, from_transformers
from bayesattn.tasks.pretrained.activations import TransformerActivations
from bayesattn.tasks.pretrained.projection import Projection, principal_components

__all__ = [
    "Projection",
    "TransformerActivations",
    "from_cache",
    "from_transformers",
    "matrices",
    "path_inputs",
    "paths_from_matrices",
    "principal_components",
]
