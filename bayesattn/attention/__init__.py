"""Path inputs from fixed attention: from queries and keys, from attention matrices, or from a pretrained transformer."""

from bayesattn.attention import paths
from bayesattn.attention.paths import matrices, path_inputs, paths_from_matrices
from bayesattn.attention.pretrained import from_cache, from_transformers
from bayesattn.attention.projection import Projection, principal_components
from bayesattn.attention.read import Read

__all__ = [
    "Projection",
    "Read",
    "from_cache",
    "from_transformers",
    "matrices",
    "path_inputs",
    "paths",
    "paths_from_matrices",
    "principal_components",
]
