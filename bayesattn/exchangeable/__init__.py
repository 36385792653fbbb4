"""Attention as inference of a latent posterior from exchangeable tokens (EXCHANGEABILITY; arXiv:2212.14852).

The latent-variable model and its exact posterior, two attentions, the laws of their errors, sufficiency by enumeration,
and how attention's parameters are learnt. `bayesattn.exchangeable.validate` checks every claim.
"""

from typing import TYPE_CHECKING, Any

from bayesattn.exchangeable.attention import cme_attention, cme_covariance, same_ridge, softmax_attention
from bayesattn.exchangeable.claims import Claim
from bayesattn.exchangeable.finite import (
    FiniteLatent,
    Transfer,
    cells,
    least_loss,
    merged,
    mutual_information,
    transfer,
    type_classes,
)
from bayesattn.exchangeable.kernels import gram
from bayesattn.exchangeable.posterior import (
    LatentPosterior,
    QueryPosterior,
    dual_posterior,
    latent_posterior,
    log_evidence,
    posterior_error,
    query_posterior,
)
from bayesattn.exchangeable.sphere import (
    bessel_ratio,
    effective_dimension,
    eigenvalues,
    harmonics,
    log_partition,
    noise_factor,
    uniform,
)

if TYPE_CHECKING:
    from bayesattn.exchangeable.validation import validate

__all__ = [
    "Claim",
    "FiniteLatent",
    "LatentPosterior",
    "QueryPosterior",
    "Transfer",
    "bessel_ratio",
    "cells",
    "cme_attention",
    "cme_covariance",
    "dual_posterior",
    "effective_dimension",
    "eigenvalues",
    "gram",
    "harmonics",
    "latent_posterior",
    "least_loss",
    "log_evidence",
    "log_partition",
    "merged",
    "mutual_information",
    "noise_factor",
    "posterior_error",
    "query_posterior",
    "same_ridge",
    "softmax_attention",
    "transfer",
    "type_classes",
    "uniform",
    "validate",
]


def __getattr__(name: str) -> Any:
    """The checks use all else that stands here, and come with samplers and SciPy: they are imported when asked for."""
    if name == "validate":
        from bayesattn.exchangeable.validation import validate

        return validate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
