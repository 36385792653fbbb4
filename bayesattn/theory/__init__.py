"""The thermodynamic limit: action, saddle point, kernels, predictor, head scores (THEORY sections 3 to 5)."""

from bayesattn.kernels.path_inputs import kernel
from bayesattn.theory.action import Action, action
from bayesattn.theory.evidence import evidence, evidences, gp_evidence
from bayesattn.theory.finite_width import FiniteWidth, finite_width
from bayesattn.theory.importance import Evidence
from bayesattn.theory.maximum_evidence import MaximumEvidence, maximum_evidence
from bayesattn.theory.predictor import Prediction, predict
from bayesattn.theory.saddle_point import NotConverged, SaddlePoint, gp_order_parameter, solve
from bayesattn.theory.statistics import alignment, head_scores, kernel_target_alignment, path_correlations

__all__ = [
    "Action",
    "Evidence",
    "FiniteWidth",
    "MaximumEvidence",
    "NotConverged",
    "Prediction",
    "SaddlePoint",
    "action",
    "alignment",
    "evidence",
    "evidences",
    "finite_width",
    "gp_evidence",
    "gp_order_parameter",
    "head_scores",
    "kernel",
    "kernel_target_alignment",
    "maximum_evidence",
    "path_correlations",
    "predict",
    "solve",
]
