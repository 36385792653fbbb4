"""Kernels of attention paths, and the Gaussian process of the labels: one density, three ways to compute it."""

from bayesattn.kernels.conditionals import (
    Prediction,
    conditional_moments,
    is_singular,
    leave_one_out,
    moments_at_factor,
    sample_labels,
)
from bayesattn.kernels.expansions import EnergyExpansion, expansion, expansion_in_factor
from bayesattn.kernels.forms import FORMS, compressed, gaussian_process
from bayesattn.kernels.gaussian_process import GaussianProcess, ResidualExamples
from bayesattn.kernels.path_inputs import Factor, OrderParameter, kernel

__all__ = [
    "FORMS",
    "EnergyExpansion",
    "Factor",
    "GaussianProcess",
    "OrderParameter",
    "Prediction",
    "ResidualExamples",
    "compressed",
    "conditional_moments",
    "expansion",
    "expansion_in_factor",
    "gaussian_process",
    "is_singular",
    "kernel",
    "leave_one_out",
    "moments_at_factor",
    "sample_labels",
]
