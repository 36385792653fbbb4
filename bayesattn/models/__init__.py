"""Posteriors and their parameterisations for sampling."""

from bayesattn.dataset import SequenceDataset
from bayesattn.models import collapsed, conditional_attention  # noqa: F401  # registers its conditional
from bayesattn.models.attention_blocks import Blocks
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.collapsed import Collapsed
from bayesattn.models.latent import Latent, LatentModel
from bayesattn.models.memory import bytes_needed, require_memory
from bayesattn.models.model import Model
from bayesattn.models.parameterisation import Parameterisation
from bayesattn.models.path import Path
from bayesattn.models.posterior import parameterisation_of
from bayesattn.models.registry import CENTRAL, PARAMETERISATIONS
from bayesattn.models.sampled_attention import CollapsedAttention, SampledAttention, TokenAttention
from bayesattn.models.token import Token
from bayesattn.models.tokens import Tokens

__all__ = [
    "CENTRAL",
    "PARAMETERISATIONS",
    "AttentionModel",
    "Blocks",
    "Collapsed",
    "CollapsedAttention",
    "Latent",
    "LatentModel",
    "Model",
    "Parameterisation",
    "Path",
    "SampledAttention",
    "SequenceDataset",
    "Token",
    "TokenAttention",
    "Tokens",
    "bytes_needed",
    "collapsed",
    "parameterisation_of",
    "require_memory",
]
