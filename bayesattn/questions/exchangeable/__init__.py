"""Attention as inference of a latent posterior from exchangeable tokens (EXCHANGEABILITY; arXiv:2212.14852).

The latent-variable model and its exact posterior, two attentions and formulas for their errors, and finite latents
by enumeration.
"""

from bayesattn.questions.exchangeable.attention import cme_attention, cme_covariance, same_ridge, softmax_attention
from bayesattn.questions.exchangeable.finite import (
    FiniteLatent,
    Transfer,
    cells,
    least_loss,
    merged,
    mutual_information,
    transfer,
    type_classes,
)
from bayesattn.questions.exchangeable.kernels import gram
from bayesattn.questions.exchangeable.posterior import (
    LatentPosterior,
    QueryPosterior,
    dual_posterior,
    latent_posterior,
    log_evidence,
    posterior_error,
    query_posterior,
)
from bayesattn.questions.exchangeable.sphere import (
    bessel_ratio,
    effective_dimension,
    eigenvalues,
    harmonics,
    log_partition,
    noise_factor,
    uniform,
)

__all__ = [
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
]
